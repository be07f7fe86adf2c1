//! What comes before the first request where a listener asks for it: a PROXY header, then
//! TLS. A connection of any other listener never comes here.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, CertificateError};
use tokio_rustls::server::TlsStream;

use super::io::Client;
use super::proxy_header::{self, Header};
use super::stream::Stream;
use super::wire::Wire;
use super::{Settings, certificate};
use crate::call::identity::{self, Field};
use crate::call::listener::{ProxyProtocol, Tls};
use crate::call::{Identity, Listener, Rejection, UserFrom};

/// What a handshake record of TLS begins with; nothing of HTTP or JSON does.
const TLS_HANDSHAKE: u8 = 0x16;

/// How a preamble ends without a request to come.
pub(super) enum Ended {
    /// The client closed, or stayed silent, without a byte: usually a health check.
    Silent,
    /// Not like this.
    Rejected(Rejection),
}

impl From<Rejection> for Ended {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// Reads the preamble; what it tells about the client goes into its identity.
pub(super) async fn read(
    mut client: Client,
    listener: &Listener,
    identity: &mut Identity,
    settings: &Settings,
) -> Result<Client, Ended> {
    if listener.proxy_protocol == ProxyProtocol::Required {
        if !settings.trusted_proxies.trusts(identity.peer) {
            return Err(Rejection::UntrustedProxy.into());
        }
        let header = read_header(&mut client, settings.handshake_timeout).await?;
        if let Some(source) = header.source {
            identity.address = Some(source.ip().to_canonical());
        }
    }
    if let Some(tls) = &listener.tls {
        let patience = if tls.required {
            settings.handshake_timeout
        } else {
            settings.request_timeout
        };
        let first = timeout(patience, client.peek_first()).await;
        let Ok(Ok(Some(first))) = first else {
            return Err(Ended::Silent);
        };
        if first == TLS_HANDSHAKE {
            let stream = shake_hands(client, tls, settings.handshake_timeout, identity).await?;
            if listener.user_from == UserFrom::Certificate {
                match subject(&stream) {
                    Ok(user) => identity.user = user,
                    Err(identity::Unusable) => identity.unusable.add(Field::User),
                }
            }
            client = Client::secured(Stream::secured(stream));
        } else if tls.required {
            return Err(Rejection::NotTls.into());
        }
    }
    Ok(client)
}

/// Reads a PROXY header, and not a byte of what follows it.
async fn read_header(client: &mut Client, patience: Duration) -> Result<Header, Ended> {
    let until = Instant::now() + patience;
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let peeked = match timeout_at(until, client.peek_some(&mut bytes)).await {
            Ok(Ok(peeked @ 1..)) => peeked,
            Ok(Ok(0) | Err(_)) | Err(_) if before == 0 => return Err(Ended::Silent),
            Ok(Ok(0) | Err(_)) => return Err(Rejection::ProxyHeader.into()),
            Err(_) => return Err(Rejection::HandshakeTimeout.into()),
        };
        let header = proxy_header::parse(&bytes);
        let belongs = match header {
            Ok(Some(header)) => header.length - before,
            // Its end is still to come, so all of this belongs to it.
            Ok(None) => peeked,
            Err(proxy_header::Malformed) => return Err(Rejection::ProxyHeader.into()),
        };
        if client.discard(belongs).is_err() {
            return Err(Rejection::ProxyHeader.into());
        }
        if let Ok(Some(header)) = header {
            return Ok(header);
        }
    }
}

async fn shake_hands(
    client: Client,
    tls: &Tls,
    patience: Duration,
    identity: &Identity,
) -> Result<TlsStream<Wire>, Ended> {
    let Ok(Stream::Plain(wire)) = client.into_watched() else {
        return Err(Ended::Silent);
    };
    // Each flight of the handshake is answered, so none should wait for the ACK of the last.
    // A socket that cannot be told so is only slower.
    let _ = wire.tcp().set_nodelay(true);
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.loaded));
    match timeout(patience, acceptor.accept(wire)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            if is_of_version_1(&error) {
                let client = identity.address.map(|address| address.to_string());
                tracing::info!(
                    listener = &*identity.listener,
                    client = client.as_deref().unwrap_or("a socket file"),
                    "the client's certificate is of X.509 version 1, which is not taken: issue \
                     one of version 3, such as with `openssl req -x509` or `openssl x509 -req \
                     -extfile`"
                );
            } else {
                tracing::debug!(%error, "no TLS handshake");
            }
            Err(Rejection::TlsHandshake.into())
        }
        Err(_) => Err(Rejection::HandshakeTimeout.into()),
    }
}

/// Whether the handshake failed because the client's certificate is of X.509 version 1, which
/// `openssl x509 -req` makes without `-extfile`. The library accepts only version 3, and gives
/// its reason as a text.
fn is_of_version_1(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|error| error.downcast_ref());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(reason))) => {
            reason.0.to_string() == "UnsupportedCertVersion"
        }
        _ => false,
    }
}

/// The user in the client's certificate, if it has sent one.
fn subject(stream: &TlsStream<Wire>) -> Result<Option<Arc<str>>, identity::Unusable> {
    let (_, session) = stream.get_ref();
    let Some([own, ..]) = session.peer_certificates() else {
        return Ok(None);
    };
    let name = certificate::common_name(own).ok_or(identity::Unusable)?;
    let user = identity::user(name)?;
    Ok(user.map(|user| Arc::from(&*user)))
}
