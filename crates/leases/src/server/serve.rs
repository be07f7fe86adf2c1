//! Serves the four calls on a socket, and the services for tools, within bounds.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::tls::TlsServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::layer_fn;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::service_fn;
use tracing::{info, warn};

use super::connection::{ServerConnection, ServerStream, closed};
use super::health::HealthService;
use super::metrics::Metrics;
use super::observed::answer;
use super::reflection;
use super::service::CapacityService;
use super::settings::NetworkBounds;
use crate::wire::capacity_server::CapacityServer as Wire;

/// The most requests of one connection that are answered at once.
const STREAMS_MAX: u32 = 256;
/// A silent peer gets a ping after this time.
const ARE_YOU_THERE_EVERY: Duration = Duration::from_secs(30);
/// The time for its answer.
const ARE_YOU_THERE: Duration = Duration::from_secs(20);
/// Bytes of a request's headers.
const HEADERS_MAX: u32 = 16 << 10;
/// Bytes that a peer may send ahead in one request: the size of a large one.
const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes that a peer may send ahead over all of its requests.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The most streams that a peer may open and reset before they are handled. More is an attack.
const RESETS_MAX: usize = 64;
/// The pause after an accept that failed for lack of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers on a socket until it is stopped. Then it accepts nothing new and finishes the answers
/// under way.
///
/// # Errors
///
/// An error of tonic's own settings; failed connections end nothing.
pub async fn serve(
    listener: TcpListener,
    service: CapacityService,
    tls: Option<TlsServer>,
    reach: NetworkBounds,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (to_server, accepted) = mpsc::channel(1);
    let accepting = accept(
        listener,
        to_server,
        tls,
        reach,
        Arc::clone(&metrics),
        stop.clone(),
    );
    let accepting = tokio::spawn(accepting);
    let health = HealthService::of(service.clone());
    let following = tokio::spawn(health.clone().keep_following(stop.clone()));
    let wire = Wire::new(service)
        .max_decoding_message_size(reach.message_bytes)
        // What is answered is bounded by what was asked.
        .max_encoding_message_size(usize::MAX);
    let served = Server::builder()
        .timeout(reach.request_timeout)
        .load_shed(true)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(ARE_YOU_THERE_EVERY))
        .http2_keepalive_timeout(Some(ARE_YOU_THERE))
        .http2_max_header_list_size(HEADERS_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .layer(GlobalConcurrencyLimitLayer::new(reach.requests))
        .layer(layer_fn(move |routes: Routes| {
            let metrics = Arc::clone(&metrics);
            service_fn(move |request| answer(routes.clone(), Arc::clone(&metrics), request))
        }))
        .add_service(wire)
        .add_service(health.service(reach.message_bytes))
        .add_service(reflection::v1())
        .add_service(reflection::v1alpha())
        .serve_with_incoming_shutdown(ReceiverStream::new(accepted), stop.cancelled_owned())
        .await;
    accepting.abort();
    following.abort();
    served
}

/// Accepts under all conditions, with a bound on open connections.
async fn accept(
    listener: TcpListener,
    to_server: mpsc::Sender<io::Result<ServerConnection>>,
    tls: Option<TlsServer>,
    reach: NetworkBounds,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let connections_max = reach.connections;
    let places = Arc::new(Semaphore::new(connections_max));
    // Clients must wait to be accepted. Logged less and less often while this lasts.
    let waits = |why: &str| {
        let total = metrics.ours.accept_waits_total();
        total.inc();
        let count = total.get();
        if count.is_power_of_two() {
            warn!(connections_max, count, "leases: {why}");
        }
    };
    loop {
        let next = async {
            if places.available_permits() == 0 {
                waits("every connection is taken, further clients wait");
            }
            let place = Arc::clone(&places).acquire_owned().await;
            let place = place.expect("no task closes the semaphore");
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok((stream, place))
        };
        let accepted: io::Result<(TcpStream, OwnedSemaphorePermit)> = tokio::select! {
            () = stop.cancelled() => break,
            accepted = next => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (metrics, stopped) = (Arc::clone(&metrics), stop.clone());
                let Some(tls) = &tls else {
                    let stream = ServerStream::Plain(stream);
                    let connection = ServerConnection::new(stream, place, &reach, metrics, stopped);
                    if to_server.send(Ok(connection)).await.is_err() {
                        break;
                    }
                    continue;
                };
                // A slow handshake holds up no other one. It has its place.
                let (tls, to_server) = (tls.clone(), to_server.clone());
                tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
                    let peer = stream.peer_addr();
                    match ServerStream::secured(&tls, stream, reach.handshake_timeout).await {
                        Ok(stream) => {
                            let made =
                                ServerConnection::new(stream, place, &reach, metrics, stopped);
                            let _ = to_server.send(Ok(made)).await;
                        }
                        Err((reason, cause)) => {
                            let peer = peer.map_or("unknown".to_owned(), |peer| peer.to_string());
                            closed(&metrics, &peer, reason, &format!("a connection: {cause}"));
                        }
                    }
                }));
            }
            Err(error) => {
                waits(&format!("cannot accept, further clients wait: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    info!("leases: no connection is accepted any more");
}
