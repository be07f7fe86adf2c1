//! The options of `[backend]` that are about sending calls.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Settings;
use crate::call::HttpEngine;
use crate::call::listener::socket_path;
use crate::options::kind::{
    DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND, duration, flag, integer, is_plain, size, text,
};
use crate::options::shown::quoted;
use crate::options::toml::string;
use crate::options::{Kind, Mistake, options};

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
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
        /// The sdkserver. Required for socket listeners.
        socket: Option<Address> = Address::or_socket_file("127.0.0.1:2001").optional()
            .line("\"127.0.0.1:2001\"");

        /// sdkwsgi, or any other HTTP server. Without it, HTTP routes are answered with 501.
        http: Option<Address> = http_address().optional().line("\"http://127.0.0.1:8080\"");

        /// The server behind tcp listeners.
        tcp: Option<Address> = Address::kind("127.0.0.1:9000").optional()
            .example("\"127.0.0.1:9000\"");

        /// Whether a read (GET, HEAD, and the functions that the table marks as reads) is sent once more
        /// if its connection closed before one byte of reply. The second attempt counts against every
        /// limit again and has an access line of its own. It never goes to a backend that has just
        /// refused a connect. Switch it on for clients that do not repeat reads themselves.
        retry_reads: bool = flag().or(false);

        /// Slots that slow clients may hold together. One more is disconnected in the middle of its
        /// reply, and its slot is free once the backend is done. The default is a quarter of
        /// queue.workers, at least 1. Raise it for many slow downloads at once.
        max_slow_readers: Option<u32> = integer(0..=65536).of("replies").optional().example("16");

        /// Idle connections kept to the HTTP backend. The default is queue.workers, so that busy clients
        /// find one. 0 closes each connection after its reply.
        pool_max_idle: Option<u32> = integer(0..=65536).of("connections").optional().example("64");

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
        /// What reads and writes HTTP.
        engine: HttpEngine,
        /// Idle HTTP connections kept.
        pool_max_idle: usize,
        /// Replies that may hold a slot for a slow client.
        slow_readers_max: usize,
    } {
        /// How long a connect may take. A call whose connect failed was not sent, so it waits again. The
        /// lookup of a name has the same time before that.
        connect_timeout: Duration = duration(MS..=5 * MINUTE).or(2 * SECOND);

        /// From the last byte sent to the last byte of the reply, streamed replies included. Set it above
        /// the longest call there is (a deploy takes minutes): a call given up here still runs at the
        /// backend.
        response_timeout: Duration = duration(MS..=DAY).or(HOUR);

        /// The least bytes a second that the backend must take of a request, after 5 s of grace. Time in
        /// which the client owes its own body does not count. With 0B only response_timeout applies.
        send_min_rate: u64 = size(0..=GIB).or(KIB);

        /// The least bytes a second of a streamed reply. A slower client counts as slow, after 5 s of
        /// grace. A reply holds its slot until the client has taken it. Lower it for clients on slow
        /// lines. With 0B no client is slow.
        reply_min_rate: u64 = size(0..=GIB).or(256 * KIB);

        /// Largest reply of the socket backend. A larger one is an error.
        max_reply_bytes: usize = size(KIB..=GIB).or(16 << 20);

        /// Replies up to this size are held whole, so that a reply that is cut in the middle reaches the
        /// client as a whole error. Lower it to save memory.
        reply_buffer_bytes: usize = size(KIB..=GIB).or(MIB as usize);

        /// How long an idle connection is kept. Set it below the backend's own keep-alive timeout
        /// (Apache: 5 s), so that no request meets a connection that is just being closed.
        pool_idle_timeout: Duration = duration(MS..=HOUR).or(4 * SECOND);
    }
}

impl BackendSection {
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
        engine: HttpEngine,
    ) -> Settings {
        let count = |setting: Option<u32>| setting.unwrap_or_default() as usize;
        Settings {
            socket: self.socket.value.clone(),
            http: self.http.value.clone(),
            tcp: self.tcp.value.clone(),
            retry_reads: self.retry_reads.value,
            bounds: bounds.settings(
                own,
                engine,
                count(self.pool_max_idle.value),
                count(self.max_slow_readers.value),
            ),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// `host:port`.
    pub(crate) fn kind(example: &'static str) -> Kind<Self> {
        text("host:port", example, |given| {
            Self::parse(given, None, example)
        })
    }

    /// `host:port`, or a socket file.
    fn or_socket_file(example: &'static str) -> Kind<Self> {
        let allowed = "host:port, or unix:/path of a socket file";
        text(allowed, example, |given| {
            match given.trim().strip_prefix("unix:") {
                Some(path) => Ok(Self::Unix(socket_path(path)?.into())),
                None => Self::parse(given, None, example),
            }
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

/// `http://host:port` or a socket file.
fn http_address() -> Kind<Address> {
    const EXAMPLE: &str = "http://127.0.0.1:8080";
    let allowed = "http://host:port, or unix:/path of a socket file";
    let kind = text(allowed, EXAMPLE, |given| {
        let given = given.trim();
        if let Some(path) = given.strip_prefix("unix:") {
            return Ok(Address::Unix(socket_path(path)?.into()));
        }
        let wrong = |message: &str, cure: &str| {
            Err(Mistake::new(format!("{} {message}", quoted(given)), cure))
        };
        if given.starts_with("https://") {
            let cure =
                "give http://host:port, with TLS ended in front of the backend or not at all";
            return wrong("asks for TLS, which can't be spoken to a backend yet", cure);
        }
        let Some(rest) = given.strip_prefix("http://") else {
            return wrong(
                "does not begin with http://",
                "write it as http://host:port",
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
        Address::parse(host, Some(80), EXAMPLE)
    });
    let show = |address: &Address| match address {
        Address::Unix(_) => string(&address.to_string()),
        address => string(&format!("http://{address}")),
    };
    Kind {
        show: Box::new(move |address| Some(show(address))),
        ..kind
    }
}
