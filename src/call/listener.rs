//! An address for clients, and its settings: one `[[listen]]`.

#[cfg(not(feature = "tls"))]
// Without TLS there is no such value, and so no listener with a certificate.
use std::convert::Infallible as ServerConfig;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use tokio_rustls::rustls::ServerConfig;

use tidegate_runtime::Causes;

use super::{Dialect, SignsOfLife, TicketMode};
use crate::options::kind::{HOUR, MS, SECOND, choice, duration, flag, name, parsed, pem, text};
use crate::options::shown::quoted;
use crate::options::tree::ConfigValue;
use crate::options::{Mistake, ValueKind, options, words};

/// Most listeners; each is a label in the metrics.
pub(crate) const LISTENERS_MAX: usize = 64;
/// Permissions of a socket file, unless the config says others.
pub(crate) const UNIX_MODE: u32 = 0o660;
/// Longest path of a socket file: what the kernel has room for, without the byte that ends
/// it.   bytes
const SOCKET_PATH_MAX: usize = 107;

options! {
    /// Where clients connect; one section for each address.
    pub struct ListenSection => Listener + {
        /// Certificate of the listener, with TLS.
        tls: Option<ListenerTls>,
    } required {
        /// Its name in logs and metrics. Required.
        name: Arc<str> = name("nova").required(
            "the listener has no name",
            "add a name for logs and metrics, such as name = \"nova\"",
        ).line("\"nova\"").first(1);

        /// Its address. Required. 127.0.0.1 is for clients on this machine, 0.0.0.0 for all clients. A
        /// socket file is for this machine alone, and tells which user connects. It is created at the
        /// start and removed at the end.
        bind: Bind = Bind::kind().required(
            "the listener has no address",
            "add its address, such as bind = \"127.0.0.1:8081\"",
        ).line("\"127.0.0.1:8081\"").first(2);
    } {
        /// Permissions of the socket file. A process that may write to the file may connect.
        unix_mode: u32 = file_mode().or(UNIX_MODE).restart();

        /// What is spoken here. "auto" tells the socket protocol, HTTP and, where there is a
        /// certificate, TLS apart by the first byte. Name one protocol to refuse the others. "tcp"
        /// limits connections of any other protocol.
        protocol: Protocol = choice().or(Protocol::Auto).first(3);

        /// Whether a client that closes its sending side has left, so that its waiting call is dropped.
        /// This applies to every protocol. On HTTP the reply of a running call is dropped too. Turn it
        /// off for clients that close their sending side and then read: then only a reset means that a
        /// client has left.
        cancel_on_eof: bool = flag().or(true);

        /// Whether every connection begins with a PROXY header, version 1 or 2, that names the client.
        /// For a listener behind a proxy that passes bytes on. The header is never guessed: a
        /// connection that does not come from trusted_proxies is closed.
        proxy_protocol: ProxyProtocol = choice().or(ProxyProtocol::Off);

        /// Where the user's name is taken from. "peer" is uid:N of the process at a socket file, and no
        /// user on an address. "basic" is the name in HTTP Basic authentication; its password is not
        /// checked here. "certificate" is the common name of the client's certificate.
        user_from: UserFrom = choice().or(UserFrom::Peer);

        /// Whether a client that would give up before its turn keeps its place in the queue. Half a second
        /// before its time-out its call is refused with Retry-After and a Queue-Ticket. "explicit" is for
        /// clients that send the ticket when they come back. With "implicit", a client that sends the same
        /// call once more has its place without it. A client names its time-out with Prefer: wait=10, or all
        /// of this listener have client_timeout.
        tickets: TicketMode = choice().or(TicketMode::Off).example("\"implicit\"");

        /// After which time the clients of this listener give up, unless they say otherwise. Needs tickets.
        client_timeout: Option<Duration> = duration(SECOND..=HOUR).optional().example("\"10s\"");

        /// Signs of life for a client on HTTP/1.1 while its call waits, so that neither it nor a proxy between
        /// gives up. "100" and "102" are interim answers with this status; an agent that is known to fail on them
        /// gets none. "by-agent" chooses by the User-Agent, and sends nothing to an unknown one or
        /// through a proxy that names itself: see docs/reference/signs-of-life.md. At most 5 for a call, unless the agent is known to read any number.
        signs_of_life: SignsOfLife = choice().or(SignsOfLife::Off);

        /// The time between two signs of life. Set it below the shortest idle timeout of clients and of
        /// proxies between.
        signs_of_life_every: Duration = duration(100 * MS..=HOUR).or(20 * SECOND);

        /// Whether a client that asks for an event stream gets its head and a comment at each sign of life,
        /// before its call has its turn. The status is then 200 whatever follows: a refusal, or an answer that
        /// is no event stream, becomes an event. Clients do not retry it as they would retry a 503.
        event_stream_signs: bool = flag().or(false);

        /// Whether clients can learn their place in the queue: from signs of life and refusals, if they send
        /// Prefer: wait, and at GET /v1/queue/CALL. A client learns of its own calls only.
        queue_status: bool = flag().or(false);
    }
}

options! {
    /// TLS on the listener above. SIGHUP reads the files again; open connections stay.
    pub struct TlsSection {
        /// The certificate, followed by the chain to a known authority. Required.
        cert: Option<PathBuf> = pem("/etc/tidegate/tls.crt").required(
            "there is no cert",
            "add cert = \"/etc/tidegate/tls.crt\", or leave tls out",
        ).example("\"/etc/tidegate/tls.crt\"");

        /// Its key, without a passphrase. Required.
        key: Option<PathBuf> = pem("/etc/tidegate/tls.key").required(
            "there is no key",
            "add key = \"/etc/tidegate/tls.key\", or leave tls out",
        ).example("\"/etc/tidegate/tls.key\"");

        /// The authorities that sign the certificates of clients. Required if clients are asked for
        /// one. No other authority is accepted.
        client_ca: Option<PathBuf> = pem("/etc/tidegate/clients.crt").optional()
            .example("\"/etc/tidegate/clients.crt\"");

        /// Whether clients are asked for a certificate. "optional" checks it if there is one.
        /// "required" closes a connection without a good one.
        client_auth: ClientAuth = choice().or(ClientAuth::Off).example("\"required\"");

        /// Whether a connection without TLS is closed. The default is true, except with protocol =
        /// "auto", which admits both.
        required: Option<bool> = flag().optional().example("true");
    }
}

impl TlsSection {
    /// The contents of these files, of a config without an error.
    pub(crate) fn tls(&self, loaded: Arc<ServerConfig>) -> ListenerTls {
        ListenerTls {
            cert: self.cert.required(),
            key: self.key.required(),
            client_ca: self.client_ca.value.clone(),
            client_auth: self.client_auth.value,
            required: self.required.required(),
            loaded,
            failures: Arc::default(),
        }
    }
}

impl Bind {
    /// An address to listen on, or the path of a socket file.
    pub(crate) fn kind() -> ValueKind<Self> {
        let allowed = "address:port, or unix:/path of a socket file";
        text(allowed, "127.0.0.1:8081", |given| {
            let given = given.trim();
            if let Some(path) = given.strip_prefix("unix:") {
                return Ok(Self::Unix(socket_path(path)?.into()));
            }
            if given.starts_with('/') {
                let cure = format!(
                    "write {} for a socket file",
                    quoted(&format!("unix:{given}"))
                );
                return Err(Mistake::new(format!("{} is a path", quoted(given)), cure));
            }
            address(given, "127.0.0.1:8081").map(Self::Tcp)
        })
    }
}

/// The path of a socket file, as it stands behind `unix:`.
pub(crate) fn socket_path(path: &str) -> Result<&Path, Mistake> {
    let (cause, cure) = if !path.starts_with('/') || path.ends_with('/') {
        let cure = "write it from /, such as unix:/run/tidegate/nova.sock";
        ("is not the whole path of a file", cure)
    } else if path.contains('\0') {
        ("holds a NUL byte", "give a path without one")
    } else if path.len() > SOCKET_PATH_MAX {
        let cure = "give a path of at most 107 bytes, such as unix:/run/tidegate/nova.sock";
        ("is longer than a socket's path can be", cure)
    } else {
        return Ok(Path::new(path));
    };
    Err(Mistake::new(
        format!("{} {cause}", quoted(&format!("unix:{path}"))),
        cure,
    ))
}

/// An address to listen on, or `""` or `false` for none.
pub fn address_or_off() -> ValueKind<Option<SocketAddr>> {
    let given = text("address:port", "127.0.0.1:9180", |given| match given {
        "" => Ok(String::new()),
        // Not the address of a listener, which is another one.
        _ => address(given, "127.0.0.1:9180").map(|address| address.to_string()),
    });
    let read = given.read;
    let address_of = |text: String| text.parse().ok();
    ValueKind::of_parts(
        "address:port, or \"\" or false for none",
        move |node| match node.value {
            ConfigValue::Boolean(false) => Ok(None),
            _ => read(node).map(address_of),
        },
        |address: &Option<SocketAddr>| {
            quoted(&address.map(|it| it.to_string()).unwrap_or_default())
        },
    )
}

/// An address with a port; `example` is one that could be given here.
fn address(given: &str, example: &str) -> Result<SocketAddr, Mistake> {
    if let Ok(address) = given.trim().parse() {
        return Ok(address);
    }
    if given.trim().parse::<IpAddr>().is_ok() {
        let cure = format!("write it as address:port, such as {example:?}");
        return Err(Mistake::new(format!("{} has no port", quoted(given)), cure));
    }
    let port = given.rsplit(':').next();
    let port = port.and_then(|port| port.trim().parse::<u16>().ok());
    let cure = match (port, given.split_once(':').map(|(host, _)| host)) {
        (Some(port), None | Some("" | "localhost")) => format!(
            "write \"127.0.0.1:{port}\" for this machine only, or \"0.0.0.0:{port}\" for all its \
             addresses"
        ),
        (Some(_), Some(_)) => {
            format!("give a numeric address of this machine, such as {example:?}")
        }
        (None, _) => {
            format!("write it as address:port, such as {example:?}, with a port up to 65535")
        }
    };
    let cause = format!("{} is not an address with a port", quoted(given));
    Err(Mistake::new(cause, cure))
}

/// The permissions of a file.
fn file_mode() -> ValueKind<u32> {
    let octal = |mode: &str| u32::from_str_radix(mode, 8).ok();
    let show = |mode: &u32| format!("{mode:04o}");
    let take = move |given: &str| {
        let is_octal = given.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let is_mode = is_octal && matches!(given.len(), 3 | 4);
        let mode = octal(given).filter(|mode| is_mode && *mode <= 0o777);
        mode.as_ref().map(show)
    };
    let wrong = (
        "is no mode of a file",
        "give it in octal, as chmod takes it, such as \"0660\"",
    );
    let kind = parsed("\"0000\" to \"0777\", in octal", "0660", take, wrong);
    kind.map(move |mode| octal(&mode).expect("it was one"), show)
}

words! {
    /// The protocol of a listener.
    #[derive(Hash)]
    pub enum Protocol {
        /// The first byte decides: an upper-case letter is HTTP, 0x16 is TLS if there is a certificate,
        /// anything else the socket protocol.
        Auto = "auto",
        /// The socket protocol: one JSON array per connection.
        Socket = "socket",
        /// HTTP/1.1.
        Http = "http",
        /// Any bytes; one connection is one call.
        Tcp = "tcp",
    }

    /// Whether the PROXY protocol is used. It is never guessed: a client that may send an unexpected
    /// header could pretend to be any other.
    pub enum ProxyProtocol {
        /// No.
        Off = "off",
        /// Every connection begins with a header, version 1 or 2, from a trusted proxy.
        Required = "required",
    }

    /// The source of the user's name.
    pub enum UserFrom {
        /// The kernel: `uid:1000` on a Unix socket, no user on TCP.
        Peer = "peer",
        /// The name in HTTP Basic authentication. It is not checked here.
        Basic = "basic",
        /// The common name of the client's certificate.
        Certificate = "certificate",
    }

    /// Whether a client on TLS needs a certificate.
    pub enum ClientAuth {
        /// Clients are not asked for a certificate.
        Off = "off",
        /// A certificate is checked if there is one.
        Optional = "optional",
        /// A good certificate.
        Required = "required",
    }
}

impl Listener {
    /// Whether a waiting client may get anything before its answer, or with it.
    #[must_use]
    pub fn gives_signs(&self) -> bool {
        self.signs_of_life != SignsOfLife::Off || self.event_stream_signs || self.queue_status
    }

    /// Whether a PROXY header or TLS comes before the first byte of a request.
    #[must_use]
    pub fn has_preamble(&self) -> bool {
        self.tls.is_some() || self.proxy_protocol == ProxyProtocol::Required
    }
}

impl Protocol {
    /// The dialect of a client whose first byte this is.
    #[must_use]
    pub fn dialect(self, first: u8) -> Dialect {
        match self {
            Self::Auto if first.is_ascii_uppercase() => Dialect::Http,
            Self::Auto | Self::Socket => Dialect::Socket,
            Self::Http => Dialect::Http,
            Self::Tcp => Dialect::Tcp,
        }
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a socket file.
    Unix(Arc<Path>),
}

impl Bind {
    /// The address, on TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// TLS on a listener.
#[derive(Clone)]
pub struct ListenerTls {
    /// The file of the certificate and its chain.
    pub cert: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The file of those who sign clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// The certificate that clients are asked for.
    pub client_auth: ClientAuth,
    /// Whether a connection without TLS is turned away.
    pub required: bool,
    /// The contents of the files when they were read.
    pub loaded: Arc<ServerConfig>,
    /// Why handshakes failed since then, as logged.
    pub failures: Arc<Causes>,
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("cert", &self.cert)
            .field("client_auth", &self.client_auth)
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}

/// Equal if the config says the same, whatever the files hold.
impl PartialEq for ListenerTls {
    fn eq(&self, other: &Self) -> bool {
        self.cert == other.cert
            && self.key == other.key
            && self.client_ca == other.client_ca
            && self.client_auth == other.client_auth
            && self.required == other.required
    }
}

impl Eq for ListenerTls {}

impl Rejection {
    /// The cause and the cure, for the log. `None` if that was logged where more is known.
    #[must_use]
    pub fn in_words(self) -> Option<&'static str> {
        match self {
            Self::UntrustedProxy => Some(
                "this listener wants a PROXY header, and the peer is no trusted proxy: add its address to \
                 trusted_proxies in [callers], or set proxy_protocol = \"off\"",
            ),
            Self::ProxyHeader => Some(
                "this listener wants a PROXY header, and no whole one came: let the proxy send version 1 or 2 of it, \
                 or set proxy_protocol = \"off\"",
            ),
            Self::NotTls => Some(
                "this listener wants TLS, and the client does not speak it: let it connect with TLS, or leave tls out",
            ),
            Self::TlsHandshake => None,
            Self::HandshakeTimeout => Some(
                "no whole PROXY header, or no TLS handshake, within client.handshake_timeout: raise that for clients \
                 far away",
            ),
            Self::Http2 => Some(
                "the client speaks HTTP/2 without being offered it (gRPC, or prior knowledge), and this listener \
                 speaks HTTP/1.1: turn HTTP/2 off in the client",
            ),
        }
    }
}

labels! {
    /// Why a connection was closed before its first request.
    pub enum Rejection {
        /// A PROXY header is required here, and the peer is no trusted proxy.
        UntrustedProxy = "untrusted_proxy",
        /// The connection did not begin with a whole PROXY header.
        ProxyHeader = "proxy_header",
        /// TLS is required here, and the client does not speak it.
        NotTls = "not_tls",
        /// The TLS handshake failed: no good certificate, nothing in common, or not TLS at all.
        TlsHandshake = "tls_handshake",
        /// The header or the handshake did not come to its end within `handshake_timeout`.
        HandshakeTimeout = "handshake_timeout",
        /// The client speaks HTTP/2, and nothing offered it.
        Http2 = "http2",
    }
}
