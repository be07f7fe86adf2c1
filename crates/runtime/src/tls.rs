//! TLS to servers and of servers, from files in PEM.
//!
//! Every error says what is wrong with which certificate, and the cure: rustls names the check
//! that failed, and a server only sends a number of an alert. Some alerts arrive after the
//! handshake, with the first answer. So a [`TlsSession`] explains the errors of its reads too.

mod chain;
mod explained;
mod key_kind;
mod pem;
mod sections;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use tokio_rustls::server;

pub use self::chain::ChainDoubt;
pub use self::explained::{explained, explained_to_server};
pub use self::key_kind::KeyKind;
pub use self::pem::{PemError, authorities, certificates, private_key};
pub use self::sections::Flaw;
use crate::Live;

/// The certificates that a client shows to servers, its own first, and their key. In PEM.
#[derive(Clone, Copy)]
pub struct TlsIdentity<'a> {
    /// The certificate, followed by the chain to a known authority.
    pub cert: &'a [u8],
    /// The key of the first certificate, without a passphrase.
    pub key: &'a [u8],
}

impl fmt::Debug for TlsIdentity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// Trusts these authorities alone, and shows this certificate where a server asks for one. No
/// protocol is negotiated; set `alpn_protocols` for one.
#[must_use]
pub fn client_config(authorities: RootCertStore, own: Option<CertifiedKey>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider knows TLS 1.2 and 1.3")
        .with_root_certificates(authorities);
    match own {
        Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
        None => builder.with_no_client_auth(),
    }
}

/// The client's side of TLS to some servers. Clones share its settings, which a reload replaces
/// for later connections.
#[derive(Clone)]
pub struct TlsClient(Arc<Live<ClientSettings>>);

#[derive(Clone)]
struct ClientSettings {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// Expects the server's certificate to be for `server_name`, or for the host that is connected
    /// to.
    #[must_use]
    pub fn new(config: ClientConfig, server_name: Option<ServerName<'static>>) -> Self {
        Self(Arc::new(Live::new(ClientSettings {
            config: Arc::new(config),
            server_name,
        })))
    }

    /// Takes over the settings of another one, such as after a reload. Open connections stay.
    pub fn renew(&self, other: &Self) {
        self.0.set((*other.0.get()).clone());
    }

    /// Shakes hands over a connection to a host: a name or an IP address, without a port.
    ///
    /// # Errors
    ///
    /// A text that names the cause and the cure.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<TlsSession<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let ClientSettings {
            config,
            server_name,
        } = (*self.0.get()).clone();
        let name = match server_name {
            Some(name) => name,
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                let cause = "no certificate can be for this host: set server_name";
                io::Error::new(io::ErrorKind::InvalidInput, cause)
            })?,
        };
        let has_identity = config.client_auth_cert_resolver.has_certs();
        match TlsConnector::from(config).connect(name, stream).await {
            Ok(stream) => Ok(TlsSession {
                stream,
                has_identity,
                said: CloseReason::default(),
                broken: None,
            }),
            Err(error) => Err(explained(error, has_identity)),
        }
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient")
    }
}

/// All are equal: what they hold can change while settings with one of them stay.
impl PartialEq for TlsClient {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TlsClient {}

/// The server's side of TLS. Clones share its certificate, which a reload replaces for later
/// connections.
#[derive(Clone)]
pub struct TlsServer(Arc<Live<Arc<ServerConfig>>>);

impl TlsServer {
    /// With this certificate, and what clients must show.
    #[must_use]
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(Live::new(config)))
    }

    /// Takes over the settings of another one, such as after a reload. Open connections stay.
    pub fn renew(&self, other: &Self) {
        self.0.set(Arc::clone(&other.0.get()));
    }

    /// Shakes hands with a client.
    ///
    /// # Errors
    ///
    /// A text that names the cause and the cure.
    pub async fn accept<S>(&self, stream: S) -> io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&*self.0.get());
        let accepted = TlsAcceptor::from(config).accept(stream).await;
        accepted.map_err(explained_to_server)
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

/// An encrypted connection to a server.
#[derive(Debug)]
pub struct TlsSession<S> {
    stream: TlsStream<S>,
    has_identity: bool,
    said: CloseReason,
    /// Why a write failed, until all was read that came before.
    broken: Option<io::Error>,
}

/// Why a server ended a session, once that was read. The library of a protocol above may lose it: to its
/// calls a connection is only closed.
#[derive(Clone, Debug, Default)]
pub struct CloseReason(Arc<OnceLock<Box<str>>>);

impl CloseReason {
    /// The cause and the cure, if the server gave one.
    #[must_use]
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(|said| &**said)
    }
}

impl<S> TlsSession<S> {
    /// Where to look for the reason when it has ended.
    #[must_use]
    pub fn said(&self) -> CloseReason {
        self.said.clone()
    }

    /// The library's own.
    pub fn get_ref(&self) -> &TlsStream<S> {
        &self.stream
    }

    fn explains<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        done.map_err(|error| {
            let is_of_tls = error.get_ref().is_some_and(|it| it.is::<rustls::Error>());
            let error = explained(error, self.has_identity);
            if is_of_tls {
                // The first reason is the one that counts.
                let _ = self.said.0.set(error.to_string().into());
            }
            error
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsSession<S> {
    /// The result of a write. TLS 1.3 refuses a certificate behind the handshake, so a write may find the connection
    /// closed before the alert was read. Then it fails only once all that came before the end was read: the alert
    /// is with the kernel, but this process may not have heard of it.
    fn explains_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_ended = |error: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionReset};
            matches!(error.kind(), BrokenPipe | ConnectionReset)
        };
        match done {
            Poll::Ready(Err(error)) if is_ended(&error) && self.said.get().is_none() => {
                self.broken = Some(error);
                self.poll_broken(cx).map(Err)
            }
            done => self.explains(done),
        }
    }

    /// Why writing ended. A client that writes has no use for what may have come besides.
    fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut rest = [0; 1024];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut rest));
            let has_more = read.is_ok() && !rest.filled().is_empty();
            let _ = self.explains(Poll::Ready(read));
            if !has_more {
                break;
            }
        }
        let broken = self.broken.take();
        Poll::Ready(match (self.said.get(), broken) {
            (Some(said), _) => io::Error::other(said.to_owned()),
            (None, Some(broken)) => broken,
            (None, None) => io::ErrorKind::BrokenPipe.into(),
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsSession<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        self.explains(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsSession<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.broken.is_some() {
            return self.poll_broken(cx).map(Err);
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.explains_write(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken.is_some() {
            return self.poll_broken(cx).map(Err);
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.explains_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.explains(shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.broken.is_some() {
            return self.poll_broken(cx).map(Err);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.explains_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
