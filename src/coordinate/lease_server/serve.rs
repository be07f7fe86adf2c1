//! Serves the four calls on a socket, within bounds.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tower::limit::GlobalConcurrencyLimitLayer;
use tracing::{info, warn};

use super::metrics::Metrics;
use super::observed::Observe;
use super::service::Service;
use crate::coordinate::wire::capacity_server::CapacityServer as Wire;

/// Requests of one connection that are answered at once.
const STREAMS_MAX: u32 = 256;
/// A peer that says nothing is asked after this long whether it is there.
const ARE_YOU_THERE_EVERY: Duration = Duration::from_secs(30);
/// How long it has to say so.
const ARE_YOU_THERE: Duration = Duration::from_secs(20);
/// Bytes of a request's headers.
const HEADERS_MAX: u32 = 16 << 10;
/// Bytes that a peer may send ahead in one request; as much as a large one has.
const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes that a peer may send ahead over all of its requests.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Streams that a peer opens and takes back before we have seen them. Beyond it, it means harm.
const RESETS_MAX: usize = 64;
/// A pause after an accept that failed for want of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is taken from the network at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Connections open at once. Further ones wait to be accepted.
    pub connections: usize,
    /// Requests read and answered at once, over all connections. Further ones are refused.
    pub requests: usize,
    /// Bytes of a request.
    pub message_bytes: usize,
    /// From a request's first byte to its answer.
    pub request_timeout: Duration,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            connections: 10_000,
            requests: 1_024,
            message_bytes: 4 << 20,
            request_timeout: Duration::from_secs(10),
        }
    }
}

/// Answers on a socket until told to stop; then takes nothing new and lets the answers under
/// way go out.
///
/// # Errors
///
/// What tonic says of its own settings; connections that fail end nothing.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    reach: Reach,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (to_server, accepted) = mpsc::channel(1);
    let accepting = tokio::spawn(accept(listener, to_server, reach.connections, stop.clone()));
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
        .layer(Observe(metrics))
        .layer(GlobalConcurrencyLimitLayer::new(reach.requests))
        .add_service(wire)
        .serve_with_incoming_shutdown(Incoming(accepted), stop.cancelled_owned())
        .await;
    accepting.abort();
    served
}

/// Accepts whatever happens; at most so many connections are open.
async fn accept(
    listener: TcpListener,
    to_server: mpsc::Sender<Connection>,
    connections_max: usize,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            let place = place.expect("nobody closes the semaphore");
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(Connection {
                stream,
                _place: place,
            })
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = next => accepted,
        };
        match accepted {
            Ok(connection) => {
                if to_server.send(connection).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    info!("leases: no connection is accepted any more");
}

/// The connections, as tonic wants them.
struct Incoming(mpsc::Receiver<Connection>);

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.0.poll_recv(cx));
        Poll::Ready(next.map(Ok))
    }
}

/// A connection and its place among those that may be open.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
