//! TLS to clients: the handshake, and the session after it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, CertificateError, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::certificate;
use super::wire::Wire;
use crate::call::Rejection;
use crate::call::identity::{self, Identity};

/// An encrypted connection.
pub(super) type Session = TlsStream<Wire>;

/// The connection below.
pub(super) fn below(session: &Session) -> &Wire {
    session.get_ref().0
}

/// The same, to change it.
pub(super) fn below_mut(session: &mut Session) -> &mut Wire {
    session.get_mut().0
}

/// The handshake, within `patience`. Of the identity, it only logs parts.
pub(super) async fn accept(
    wire: Wire,
    config: &Arc<ServerConfig>,
    patience: Duration,
    identity: &Identity,
) -> Result<Session, Rejection> {
    // Each flight of the handshake is answered, so none should wait for the ACK of the last.
    // A socket that cannot be told so is only slower.
    let _ = wire.tcp().set_nodelay(true);
    let acceptor = TlsAcceptor::from(Arc::clone(config));
    match timeout(patience, acceptor.accept(wire)).await {
        Ok(Ok(session)) => Ok(session),
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
            Err(Rejection::TlsHandshake)
        }
        Err(_) => Err(Rejection::HandshakeTimeout),
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
pub(super) fn subject(session: &Session) -> Result<Option<Arc<str>>, identity::Unusable> {
    let Some([own, ..]) = session.get_ref().1.peer_certificates() else {
        return Ok(None);
    };
    let name = certificate::common_name(own).ok_or(identity::Unusable)?;
    let user = identity::user(name)?;
    Ok(user.map(|user| Arc::from(&*user)))
}
