//! A client's connection, which is closed when its peer is silent for too long.
//!
//! Connections are scarce, and HTTP/2 alone lets a peer keep one for nothing: by sending no byte
//! at all, or by answering pings without any request. So a peer must start HTTP/2 in time, and
//! must send requests.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_runtime::tls::TlsServer;
use tidegate_runtime::tls::server::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;
use tracing::warn;

use super::metrics::{HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Metrics, TLS_HANDSHAKE};
use super::settings::NetworkBounds;

/// The preface of HTTP/2 and the head of the first frame: a peer that sends these uses HTTP/2,
/// and from then on it answers pings or the connection is closed.   bytes
const HANDSHAKE_BYTES: u64 = 24 + 9;

/// Once the server stops, a peer has this long to close an idle connection.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The activity of a connection's requests.
#[derive(Debug)]
pub(super) struct Activity {
    accepted: Instant,
    /// When a request last began or ended, in milliseconds after that.
    last_millis: AtomicU64,
    under_way: AtomicU32,
}

impl Activity {
    fn touch(&self) {
        let millis = u64::try_from(self.accepted.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// When a request last began or ended; now, while one is under way.
    fn last(&self) -> Instant {
        if !self.is_idle() {
            return Instant::now();
        }
        let millis = self.last_millis.load(Ordering::Relaxed);
        self.accepted + Duration::from_millis(millis)
    }

    fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0
    }
}

/// A request that is under way on a connection.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<Activity>);

impl RequestGuard {
    pub(super) fn on(activity: Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// With or without TLS.
#[derive(Debug)]
pub(super) enum ServerStream {
    Plain(TcpStream),
    Secured(Box<TlsStream<TcpStream>>),
}

impl ServerStream {
    /// Shakes hands, within the time for the beginning of a connection.
    pub(super) async fn secured(
        tls: &TlsServer,
        stream: TcpStream,
        within: Duration,
    ) -> Result<Self, (&'static str, String)> {
        match timeout(within, tls.accept(stream)).await {
            Ok(Ok(session)) => Ok(Self::Secured(Box::new(session))),
            Ok(Err(error)) => Err((TLS_HANDSHAKE, error.to_string())),
            Err(_) => Err((HANDSHAKE_TIMEOUT, "no TLS handshake in time".to_owned())),
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Secured(session) => session.get_ref().0,
        }
    }
}

/// Runs an expression on either kind of stream.
macro_rules! on {
    ($this:expr, $stream:ident => $done:expr) => {
        match &mut $this.stream {
            ServerStream::Plain($stream) => $done,
            ServerStream::Secured($stream) => $done,
        }
    };
}

/// Counts why a connection was closed, and logs each cause less and less often.
pub(super) fn closed(metrics: &Metrics, peer: &str, reason: &str, cause: &str) {
    metrics.ours.connections_closed_total(reason).inc();
    if let Some(count) = metrics.closings.count(cause) {
        warn!(%peer, reason, count, "leases: closed {cause}");
    }
}

/// A connection and its place among the open ones.
#[derive(Debug)]
pub(super) struct ServerConnection {
    stream: ServerStream,
    activity: Arc<Activity>,
    idle_timeout: Duration,
    metrics: Arc<Metrics>,
    /// Received bytes.
    came: u64,
    /// When to check whether the peer is silent.
    look: Pin<Box<Sleep>>,
    /// Ready when the server stops; `None` once it has.
    stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _place: OwnedSemaphorePermit,
}

impl ServerConnection {
    pub(super) fn new(
        stream: ServerStream,
        place: OwnedSemaphorePermit,
        reach: &NetworkBounds,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        metrics.ours.connections().inc();
        Self {
            stream,
            activity: Arc::new(Activity {
                accepted: Instant::now(),
                last_millis: AtomicU64::new(0),
                under_way: AtomicU32::new(0),
            }),
            idle_timeout: reach.idle_timeout,
            metrics,
            came: 0,
            look: Box::pin(tokio::time::sleep(reach.handshake_timeout)),
            stopped: Some(Box::pin(stop.cancelled_owned())),
            _place: place,
        }
    }

    /// Whether the connection must end although its peer has not closed it.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(stopped) = &mut self.stopped
            && stopped.as_mut().poll(cx).is_ready()
        {
            self.stopped = None;
            if self.came < HANDSHAKE_BYTES {
                return Poll::Ready(());
            }
            // HTTP/2 has a message for the end, which a stalled peer does not answer.
            self.look.as_mut().reset(Instant::now() + LAST_WORDS);
        }
        while self.look.as_mut().poll(cx).is_ready() {
            if self.stopped.is_none() {
                if self.activity.is_idle() {
                    return Poll::Ready(());
                }
                self.look.as_mut().reset(Instant::now() + LAST_WORDS);
                continue;
            }
            if self.came < HANDSHAKE_BYTES {
                return self.ended(HANDSHAKE_TIMEOUT);
            }
            let until = self.activity.last() + self.idle_timeout;
            if until <= Instant::now() {
                return self.ended(IDLE_TIMEOUT);
            }
            self.look.as_mut().reset(until);
        }
        Poll::Pending
    }

    fn ended(&self, reason: &str) -> Poll<()> {
        let peer = self.stream.tcp().peer_addr();
        let peer = peer.map_or("unknown".to_owned(), |peer| peer.to_string());
        let cause = match reason {
            HANDSHAKE_TIMEOUT => "a connection that did not start HTTP/2 in time",
            _ => "a connection that sent no request for long",
        };
        closed(&self.metrics, &peer, reason, cause);
        Poll::Ready(())
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        self.metrics.ours.connections().dec();
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = Arc<Activity>;

    fn connect_info(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        match on!(this, stream => Pin::new(stream).poll_read(cx, into)) {
            Poll::Ready(read) => {
                this.came += (into.filled().len() - before) as u64;
                Poll::Ready(read)
            }
            // For the reader, the peer has closed.
            Poll::Pending => this.poll_ended(cx).map(Ok),
        }
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on!(self, stream => Pin::new(stream).poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            ServerStream::Plain(stream) => stream.is_write_vectored(),
            ServerStream::Secured(stream) => stream.is_write_vectored(),
        }
    }
}
