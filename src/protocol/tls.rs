//! TLS to clients: the handshake, and the session after it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::tls::explained_to_server;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::server::TlsStream;

use super::certificate;
use super::wire::Wire;
use crate::call::Rejection;
use crate::call::identity::{self, Identity};
use crate::call::listener::ListenerTls;

/// An encrypted connection.
pub(super) type Session = TlsStream<Wire>;

/// The connection below.
pub(super) fn below(session: &Session) -> &Wire {
    session.get_ref().0
}

/// The connection below, to change it.
pub(super) fn below_mut(session: &mut Session) -> &mut Wire {
    session.get_mut().0
}

/// The handshake, within `patience`. Of the identity, it only logs parts.
pub(super) async fn accept(
    wire: Wire,
    tls: &ListenerTls,
    patience: Duration,
    identity: &Identity,
) -> Result<Session, Rejection> {
    // Each flight of the handshake is answered, so none should wait for the ACK of the last.
    // A socket that cannot be told so is only slower.
    let _ = wire.tcp().set_nodelay(true);
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.loaded));
    match timeout(patience, acceptor.accept(wire)).await {
        Ok(Ok(session)) => Ok(session),
        Ok(Err(error)) => {
            let is_of_tls = error.get_ref().is_some_and(|it| it.is::<rustls::Error>());
            let cause = explained_to_server(error);
            // Any other client has only gone away.
            if is_of_tls && let Some(count) = tls.failures.count(&cause.to_string()) {
                let client = identity.address.map(|address| address.to_string());
                tracing::warn!(
                    listener = &*identity.listener,
                    client = client.as_deref().unwrap_or("a socket file"),
                    count,
                    "no TLS handshake: {cause}"
                );
            }
            Err(Rejection::TlsHandshake)
        }
        Err(_) => Err(Rejection::HandshakeTimeout),
    }
}

/// The user in the client's certificate, if it has sent one.
pub(super) fn subject(session: &Session) -> Result<Option<Arc<str>>, identity::Unusable> {
    let Some([own, ..]) = session.get_ref().1.peer_certificates() else {
        return Ok(None);
    };
    let name = certificate::common_name(own).ok_or(identity::Unusable)?;
    let user = identity::user(name.as_bytes())?;
    Ok(user.map(|user| Arc::from(&*user)))
}
