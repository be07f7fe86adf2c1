//! An address for clients, and its settings: one `[[listen]]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use super::Dialect;

/// One `[[listen]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its name in logs and metrics.
    pub name: Arc<str>,
    /// Its address.
    pub bind: Bind,
    /// Permissions of its socket file; without effect on TCP.
    pub unix_mode: u32,
    /// Its protocol.
    pub protocol: Protocol,
    /// Whether the end of a client's bytes means that the client has left.
    pub cancel_on_eof: bool,
    /// Its certificate, with TLS.
    pub tls: Option<Tls>,
    /// Whether a PROXY header comes first.
    pub proxy_protocol: ProxyProtocol,
    /// The source of the user's name.
    pub user_from: UserFrom,
}

impl Listener {
    /// Whether a PROXY header or TLS comes before the first byte of a request.
    #[must_use]
    pub fn has_preamble(&self) -> bool {
        self.tls.is_some() || self.proxy_protocol == ProxyProtocol::Required
    }
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The first byte decides: an upper-case letter is HTTP, 0x16 is TLS if there is a certificate,
    /// anything else the socket protocol.
    Auto,
    /// One JSON array per connection.
    Socket,
    /// HTTP/1.1.
    Http,
    /// Any bytes; one connection is one call.
    Tcp,
}

impl Protocol {
    /// What a client speaks whose first byte this is.
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

/// Whether the PROXY protocol is used. It is never guessed: a client that may send an unexpected
/// header could pretend to be any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// No.
    Off,
    /// Every connection begins with a header, version 1 or 2, from a trusted proxy.
    Required,
}

/// The source of the user's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserFrom {
    /// The kernel: `uid:1000` on a Unix socket, no user on TCP.
    Peer,
    /// The name in HTTP Basic authentication. It is not checked here.
    Basic,
    /// The common name of the client's certificate.
    Certificate,
}

/// What is asked of clients on TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nothing.
    Off,
    /// A certificate is checked if there is one.
    Optional,
    /// A good certificate.
    Required,
}

/// TLS on a listener.
#[derive(Clone)]
pub struct Tls {
    /// The file of the certificate and its chain.
    pub cert: PathBuf,
    /// The file of its key.
    pub key: PathBuf,
    /// The file of those who sign clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// What is asked of clients.
    pub client_auth: ClientAuth,
    /// Whether a connection without TLS is turned away.
    pub required: bool,
    /// What the files held when they were read.
    pub loaded: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("cert", &self.cert)
            .field("client_auth", &self.client_auth)
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}

/// Equal if the config says the same, whatever the files hold.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.cert == other.cert
            && self.key == other.key
            && self.client_ca == other.client_ca
            && self.client_auth == other.client_auth
            && self.required == other.required
    }
}

impl Eq for Tls {}

/// Why a connection was closed before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// A PROXY header is required here, and the peer is no trusted proxy.
    UntrustedProxy,
    /// What came instead of a PROXY header is none, or ends in the middle.
    ProxyHeader,
    /// TLS is required here, and the client does not speak it.
    NotTls,
    /// The TLS handshake failed: no good certificate, nothing in common, or not TLS at all.
    TlsHandshake,
    /// The header or the handshake did not come to its end within `handshake_timeout`.
    HandshakeTimeout,
}

impl Rejection {
    /// The word used in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::UntrustedProxy => "untrusted_proxy",
            Self::ProxyHeader => "proxy_header",
            Self::NotTls => "not_tls",
            Self::TlsHandshake => "tls_handshake",
            Self::HandshakeTimeout => "handshake_timeout",
        }
    }
}
