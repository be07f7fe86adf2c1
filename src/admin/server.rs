//! Serves the admin address: few connections, each with its bounds. A silent one makes room for a
//! new one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate_runtime::ByteStream;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::places::{ActiveRequest, AdminConnection, AdminConnections};
use super::series::EndlessResponse;
use super::{AdminPeer, AdminSettings, AdminSource, CallersSource, router};

/// The most open connections. A further one replaces the one that has been silent for longest.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// A connection that sends no whole request head for this long is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time of any connection, so that a reader that stalls gives its place back.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);
/// The time for a connection to finish an answer when it must end.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// The pause after a failed accept, which would otherwise fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the admin address is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Every client could read it.
    #[error("admin.bind {0} is not a loopback address, so admin.token must be set")]
    NeedsToken(SocketAddr),
    /// The listener has no address.
    #[error("cannot tell the admin address")]
    Address(#[source] io::Error),
}

/// Whether an admin address requires a token: every address except loopback.
#[must_use]
pub fn needs_token(bind: SocketAddr) -> bool {
    !bind.ip().to_canonical().is_loopback()
}

/// Where connections are accepted.
#[derive(Debug)]
pub enum Inlet {
    /// An address.
    Tcp(TcpListener),
    /// A socket file.
    Unix(UnixListener),
}

impl Inlet {
    async fn accept(&self) -> io::Result<(Box<dyn ByteStream>, AdminPeer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((Box::new(stream), AdminPeer::Address(from)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok((Box::new(stream), AdminPeer::Uid(uid)))
            }
        }
    }
}

/// Answers on `inlet`, for any address in the settings, until it is stopped. Then it finishes
/// the answers under way, for at most a second.
///
/// # Errors
///
/// At once, if the listener is open to others and there is no token.
pub async fn serve(
    inlet: Inlet,
    settings: AdminSettings,
    source: Arc<dyn AdminSource>,
    callers: Arc<dyn CallersSource>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    match &inlet {
        Inlet::Tcp(listener) => {
            let bind = listener.local_addr().map_err(ServeError::Address)?;
            if !settings.has_token() && needs_token(bind) {
                return Err(ServeError::NeedsToken(bind));
            }
            tracing::info!(%bind, "admin address is up");
        }
        Inlet::Unix(_) => tracing::info!("admin socket file is up"),
    }
    let places = source.connections_max();
    serve_within(inlet, router(settings, source, callers), places, stop).await;
    Ok(())
}

/// Answers on `listener` with `router`, within the same bounds, until it is stopped.
pub async fn serve_router(listener: TcpListener, router: Router, stop: CancellationToken) {
    serve_within(Inlet::Tcp(listener), router, CONNECTIONS_MAX, stop).await;
}

async fn serve_within(inlet: Inlet, router: Router, places: usize, stop: CancellationToken) {
    let places = AdminConnections::new(places);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&inlet, &places) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(answer(stream, peer, place, router, stop));
            }
            Err(error) => {
                tracing::warn!(%error, "admin accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// The next connection, with a place for it.
async fn accept(
    inlet: &Inlet,
    places: &Arc<AdminConnections>,
) -> io::Result<(Box<dyn ByteStream>, AdminPeer, AdminConnection)> {
    let (stream, peer) = inlet.accept().await?;
    Ok((stream, peer, places.take().await))
}

/// Answers the requests of one connection. Its end concerns only the client.
async fn answer(
    stream: Box<dyn ByteStream>,
    peer: AdminPeer,
    place: AdminConnection,
    router: Router,
    stop: CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        let answering = place.answering();
        let answer = router.call(request);
        async move { answer.await.map(|answered| held(answered, answering)) }
    });
    let stream = std::pin::pin!(place.watch(stream));
    let mut connection = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        ended = connection.as_mut() => return told(ended),
        () = place.closed() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => {}
    }
    connection.as_mut().graceful_shutdown();
    if let Ok(ended) = tokio::time::timeout(LAST_ANSWER, connection).await {
        told(ended);
    }
}

/// An answer that goes on counts as being answered to its end, any other until it has begun.
fn held(answered: Response, answering: ActiveRequest) -> Response {
    if answered.extensions().get::<EndlessResponse>().is_none() {
        return answered;
    }
    answered.map(|body| {
        Body::new(body.map_frame(move |part| {
            let _until_its_end = &answering;
            part
        }))
    })
}

fn told(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection ended early");
    }
}
