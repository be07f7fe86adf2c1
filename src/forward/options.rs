//! The options of `[backend]` that are about sending calls.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{BackendTls, ForwarderSettings, NamedRemote, StickyBy};
use crate::call::listener::socket_path;
use crate::call::{BackendKind, OnClientLeft};
use crate::options::kind::{
    DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND, choice, duration, flag, integer, is_plain,
    parsed, pem, size, text,
};
use crate::options::shown::quoted;
use crate::options::toml::string;
use crate::options::{Mistake, ValueKind, options};

/// A backend: where it listens, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it listens.
    pub address: BackendAddress,
    /// TLS to it; none if it is spoken to without.
    pub tls: Option<BackendTls>,
}

/// A backend as the config gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendTarget {
    pub(crate) address: BackendAddress,
    /// Whether it speaks TLS.
    pub(crate) is_tls: bool,
}

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendAddress {
    /// An address.
    Ip(SocketAddr),
    /// A name, looked up at each connect.
    Name(Box<str>, u16),
    /// A socket file.
    Unix(Box<Path>),
}

options! {
    /// The server behind the sidecar.
    pub struct BackendSection {
        /// The sdkserver. Required for socket listeners. tls://host:port is with TLS.
        socket: Option<BackendTarget> = target("127.0.0.1:2001").optional().line("\"127.0.0.1:2001\"").first(6);

        /// sdkwsgi, or any other HTTP server. Without it, HTTP routes are answered with 501.
        /// https://host:port is with TLS. On a socket file the client's Host is passed on, as it is on an
        /// address.
        http: Option<BackendTarget> = http_target().optional().line("\"http://127.0.0.1:8080\"").first(5);

        /// The server behind tcp listeners. A call is one connection there. tls://host:port is with TLS.
        tcp: Option<BackendTarget> = target("127.0.0.1:9000").optional().example("\"127.0.0.1:9000\"");

        /// Whether a read (GET, HEAD, and the functions that the table marks as reads) is sent once more
        /// if its connection closed before one byte of reply. The second attempt counts against every
        /// limit again and has an access line of its own. It never goes to a backend that has just
        /// refused a connect. Switch it on for clients that do not repeat reads themselves.
        retry_reads: bool = flag().or(false);

        /// What happens to a call at the backend when its client leaves. "close" closes the connection to the
        /// backend, and the slot is free at once. "finish" reads the reply to its end, and the slot is free
        /// when the backend is done. The default is "finish" with kind = "zvm", and "close" otherwise. Set
        /// "finish" for a backend that goes on working when its connection is closed: otherwise more calls
        /// run there than the limits say. A [[route]] can differ.
        on_client_left: Option<OnClientLeft> = choice().optional().example("\"finish\"");

        /// How long a call that was at the backend when this process died holds its slot in the next process.
        /// With on_client_left = "close" the default is 0s. With "finish" such a backend goes on working, and the
        /// default is the time in which 99 of 100 calls of its function were answered. It is 60s until this process
        /// has measured 100 of them, and longer if calls had lasted longer than usual. One call in a hundred takes
        /// longer than that. Set a time for a backend that must never get one call too many.
        after_crash: Option<Duration> = duration(Duration::ZERO..=HOUR).optional().example("\"60s\"");

        /// Slots that slow clients may hold together. One more is disconnected in the middle of its
        /// reply, as if it had left: on_client_left says when its slot is free. The default is a quarter
        /// of queue.workers, at least 1. Raise it for many slow downloads at once. They never hold more than
        /// half of the smallest limit on calls at once that such a call is under, whatever this says.
        max_slow_readers: Option<u32> = integer(0..=65536).of("replies").optional().example("16").expert();

        /// Idle connections kept to the HTTP backend. The default is queue.workers, so that busy clients
        /// find one. 0 closes each connection after its reply.
        pool_max_idle: Option<u32> = integer(0..=65536).of("connections").optional().example("64").expert();

        /// How long the limits grow from a tenth to full after the backend accepted no connection for at
        /// least a second, and after a pause that ended by itself. 0s is not at all. Set it for a backend
        /// that is slow while it warms up. It does not apply to rate limits of callers.
        ramp: Duration = duration(Duration::ZERO..=HOUR).or(Duration::ZERO);
    }
}

options! {
    /// How long each step of an exchange may take, and what may be held.
    pub struct BoundsSection => Bounds + {
        /// Where this sidecar listens itself: such an address is no backend.
        own: Arc<[SocketAddr]>,
        /// How a call that was sent ends when its client leaves.
        on_client_left: OnClientLeft,
        /// Idle HTTP connections kept.
        pool_max_idle: usize,
        /// Replies that may hold a slot for a slow client.
        slow_readers_max: usize,
    } {
        /// How long a connect may take. A call whose connect failed was not sent, so it waits again. The
        /// lookup of a name has the same time before that, a TLS handshake after that.
        connect_timeout: Duration = duration(MS..=5 * MINUTE).or(2 * SECOND);

        /// From the last byte sent to the last byte of the reply, streamed replies included. Set it above
        /// the longest call there is (a deploy takes minutes): a call given up here still runs at the
        /// backend.
        response_timeout: Duration = duration(MS..=DAY).or(HOUR).first(7);

        /// The least bytes a second that the backend must take of a request, after 5 s of grace. Time in
        /// which the client owes its own body does not count. With 0B only response_timeout applies.
        send_min_rate: u64 = size(0..=GIB).or(KIB).expert();

        /// The least bytes a second of a streamed reply. A slower client counts as slow, after 5 s of
        /// grace. A reply holds its slot until the client has taken it. Lower it for clients on slow
        /// lines. With 0B no client is slow.
        reply_min_rate: u64 = size(0..=GIB).or(256 * KIB);

        /// How long a call may go on at the HTTP backend after its connection was closed because its client had left
        /// (on_client_left = "close"). Its slot is held for as long, so that never more calls run at once than
        /// the limits say. Raise it to the time in which the backend notices a closed connection: for a model
        /// server, a few tokens.
        after_close: Duration = duration(Duration::ZERO..=HOUR).or(Duration::ZERO);

        /// Largest reply of the socket backend. A larger one is an error.
        max_reply_bytes: usize = size(KIB..=GIB).or(16 << 20);

        /// Replies up to this size are held whole, so that a reply that is cut in the middle reaches the
        /// client as a whole error. Lower it to save memory.
        reply_buffer_bytes: usize = size(KIB..=GIB).or(MIB as usize).expert();

        /// How long an idle connection is kept. Set it below the backend's own keep-alive timeout
        /// (Apache: 5 s), so that no request meets a connection that is just being closed.
        pool_idle_timeout: Duration = duration(MS..=HOUR).or(4 * SECOND);

        /// How long a connection to the HTTP backend is used for new calls after it was opened, more or
        /// less by up to a fifth, so that connections do not all end together. A call under way is never
        /// cut. With a name as the backend's address, all calls have followed the name after this time
        /// and a fifth. SIGHUP follows it at once. 0s sets no limit.
        pool_max_age: Duration = duration(Duration::ZERO..=DAY).or(MINUTE).expert();
    }
}

options! {
    /// TLS to backends whose address begins with https:// or tls://. SIGHUP reads the files again: if they
    /// changed, later calls use new connections, and calls under way end on theirs.
    pub struct BackendTlsSection {
        /// The authorities that sign the certificates of backends. No other authority is accepted. The
        /// default is the list of the system.
        ca: Option<PathBuf> = pem("/etc/tidegate/backend-ca.crt").optional()
            .example("\"/etc/tidegate/backend-ca.crt\"");

        /// The certificate that is shown to a backend that asks for one, followed by its chain.
        cert: Option<PathBuf> = pem("/etc/tidegate/client.crt").optional()
            .example("\"/etc/tidegate/client.crt\"");

        /// Its key, without a passphrase.
        key: Option<PathBuf> = pem("/etc/tidegate/client.key").optional()
            .example("\"/etc/tidegate/client.key\"");

        /// The name that the certificate of a backend must be for, if it is not the host in its address.
        server_name: Option<String> = server_name().optional().example("\"sdk.example\"");

        /// Whether any certificate is accepted: of any authority, for any name, also an expired one. The
        /// calls are encrypted, but any server that answers at the address gets them, with their passwords
        /// and tokens. For trials only.
        accept_any_certificate: bool = flag().or(false);
    }
}

impl BackendSection {
    /// Fills in the default that depends on what the backend is.
    pub(crate) fn for_kind(&mut self, kind: BackendKind) {
        let left = self
            .on_client_left
            .value
            .get_or_insert(kind.on_client_left());
        if *left == OnClientLeft::Close {
            self.after_crash.value.get_or_insert(Duration::ZERO);
        }
    }

    /// Fills in the defaults that depend on the number of workers.
    pub(crate) fn for_workers(&mut self, workers: u32) {
        self.pool_max_idle.value.get_or_insert(workers);
        let quarter = (workers / 4).max(1);
        self.max_slow_readers.value.get_or_insert(quarter);
    }

    /// The settings of the stage. `own` is where the sidecar listens itself.
    pub(crate) fn settings(
        &self,
        bounds: &BoundsSection,
        own: Arc<[SocketAddr]>,
        tls: &TlsByBackend,
        (servers, sticky_by): (Vec<NamedRemote>, Option<StickyBy>),
    ) -> ForwarderSettings {
        let count = |setting: Option<u32>| setting.unwrap_or_default() as usize;
        let remote = |target: &Option<BackendTarget>, tls: &Option<BackendTls>| {
            let BackendTarget { address, is_tls } = target.clone()?;
            assert_eq!(is_tls, tls.is_some(), "TLS that can't be used is an error");
            let tls = tls.clone();
            Some(Remote { address, tls })
        };
        ForwarderSettings {
            socket: remote(&self.socket.value, &tls.socket),
            http: remote(&self.http.value, &tls.http),
            tcp: remote(&self.tcp.value, &tls.tcp),
            servers,
            sticky_by,
            retry_reads: self.retry_reads.value,
            bounds: bounds.settings(
                own,
                self.on_client_left.value.unwrap_or_default(),
                count(self.pool_max_idle.value),
                count(self.max_slow_readers.value),
            ),
        }
    }
}

/// TLS of each backend by a config's certificates, for backends that speak TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsByBackend {
    pub(crate) socket: Option<BackendTls>,
    pub(crate) http: Option<BackendTls>,
    pub(crate) tcp: Option<BackendTls>,
}

/// For people: the admin address shows it.
impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.tls.as_ref().map_or("", |_| " (TLS)");
        write!(f, "{}{tls}", self.address)
    }
}

/// As `target` reads it.
impl fmt::Display for BackendTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { TLS } else { "" };
        write!(f, "{scheme}{}", self.address)
    }
}

impl fmt::Display for BackendAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl BackendAddress {
    /// `host:port`.
    pub fn kind(example: &'static str) -> ValueKind<Self> {
        text("host:port", example, |given| {
            Self::parse(given, None, example)
        })
    }

    /// Reads `host:port`, where the port may be left out if there is a usual one.
    pub(crate) fn parse(given: &str, usual: Option<u16>, example: &str) -> Result<Self, Mistake> {
        let wrong = |message: &str| {
            let cure = format!("write it as {}", quoted(example));
            Mistake::new(format!("{} {message}", quoted(given)), cure)
        };
        let given = given.trim();
        if let Ok(ip) = given.parse::<Ipv6Addr>() {
            let cure = format!("write an IPv6 address in brackets: \"[{ip}]:2001\"");
            return Err(Mistake::new(format!("{} has no port", quoted(given)), cure));
        }
        let (host, port) = match given.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (
                    host,
                    port.ok_or_else(|| wrong("has no port from 1 to 65535"))?,
                )
            }
            _ => (given, usual.ok_or_else(|| wrong("has no port"))?),
        };
        if let Some(inner) = host.strip_prefix('[') {
            let ip: Option<Ipv6Addr> = inner.strip_suffix(']').and_then(|ip| ip.parse().ok());
            let ip = ip.ok_or_else(|| wrong("is not an IPv6 address in brackets"))?;
            return Ok(Self::Ip((ip, port).into()));
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            if ip.is_ipv6() {
                return Err(wrong("is an IPv6 address without brackets"));
            }
            return Ok(Self::Ip((ip, port).into()));
        }
        if host.is_empty() || host.len() > 253 || !is_plain(host, "-._") {
            return Err(wrong("has no host that could be looked up"));
        }
        // No host is called 300.1.2.3: a name that ends in digits was meant as an address.
        let last = host.trim_end_matches('.').rsplit('.').next();
        if last.is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(wrong("is neither an address nor a name"));
        }
        Ok(Self::Name(host.into(), port))
    }
}

/// `host:port`, the same with TLS, or a socket file.
fn target(example: &'static str) -> ValueKind<BackendTarget> {
    let allowed = "host:port, tls://host:port, or unix:/path of a socket file";
    text(allowed, example, |given| {
        let given = given.trim();
        if let Some(target) = BackendTarget::socket_file(given) {
            return target;
        }
        let (host, is_tls) = match given.strip_prefix(TLS) {
            Some(host) => (host, true),
            None => (given, false),
        };
        if let Some((scheme, host)) = host.split_once("://") {
            let right = match scheme {
                "https" | "tls" | "ssl" => format!("{TLS}{host}"),
                _ => host.to_owned(),
            };
            let cause = format!("{} begins with another scheme", quoted(given));
            return Err(Mistake::new(cause, format!("write {}", quoted(&right))));
        }
        let address = BackendAddress::parse(host, None, example)?;
        Ok(BackendTarget { address, is_tls })
    })
}

/// The name that a certificate is for.
fn server_name() -> ValueKind<String> {
    let take = |given: &str| {
        let is_name = given.len() <= 253 && is_plain(given, "-._");
        let is_one = is_name && !given.is_empty() || given.parse::<IpAddr>().is_ok();
        is_one.then(|| given.to_owned())
    };
    let wrong = (
        "is no host name and no IP address",
        "give the name alone, such as \"sdk.example\", without a scheme or a port",
    );
    parsed("a host name or an IP address", "sdk.example", take, wrong)
}

/// Prefix of an address with TLS.
const TLS: &str = "tls://";

impl BackendTarget {
    /// Reads `unix:` and a path; none if it is something else.
    fn socket_file(given: &str) -> Option<Result<Self, Mistake>> {
        let path = socket_path(given.strip_prefix("unix:")?);
        Some(path.map(|path| Self {
            address: BackendAddress::Unix(path.into()),
            is_tls: false,
        }))
    }
}

/// `http://host:port`, the same with TLS, or a socket file.
pub(crate) fn http_target() -> ValueKind<BackendTarget> {
    const EXAMPLE: &str = "http://127.0.0.1:8080";
    let allowed = "http://host:port, https://host:port, or unix:/path of a socket file";
    let kind = text(allowed, EXAMPLE, |given| {
        let given = given.trim();
        if let Some(target) = BackendTarget::socket_file(given) {
            return target;
        }
        let wrong = |message: &str, cure: &str| {
            Err(Mistake::new(format!("{} {message}", quoted(given)), cure))
        };
        let plain = given.strip_prefix("http://").map(|rest| (rest, false));
        let secured = || given.strip_prefix("https://").map(|rest| (rest, true));
        let Some((rest, is_tls)) = plain.or_else(secured) else {
            return wrong(
                "does not begin with http:// or https://",
                "write it as http://host:port, or with TLS as https://host:port",
            );
        };
        let host = rest.strip_suffix('/').unwrap_or(rest);
        if host.contains(['/', '?', '#']) {
            let cure = "write it as http://host:port and nothing after the port";
            return wrong("has a path, and the path is the client's", cure);
        }
        if host.contains('@') {
            // Reported without its value: it may hold a password.
            let cure = "write it as http://host:port; the client's own headers pass through";
            return Err(Mistake::new("the address holds a user name", cure));
        }
        let usual = if is_tls { 443 } else { 80 };
        let address = BackendAddress::parse(host, Some(usual), EXAMPLE)?;
        Ok(BackendTarget { address, is_tls })
    });
    let show = |BackendTarget { address, is_tls }: &BackendTarget| match (address, is_tls) {
        (BackendAddress::Unix(_), _) => string(&address.to_string()),
        (address, false) => string(&format!("http://{address}")),
        (address, true) => string(&format!("https://{address}")),
    };
    ValueKind {
        show: Box::new(move |target| Some(show(target))),
        ..kind
    }
}
