//! Keep-alive connections to the HTTP backend.
//!
//! Last in, first out, so that a lull lets the surplus go cold and be closed. There is no
//! probe at checkout: an EOF that has arrived shows before the request is written. A
//! connection is never used after `pool_idle_timeout`, which should be shorter than the
//! backend's own keep-alive (Apache closes after 5 s).

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::Settings;
use super::backend::{self, ConnectError};
use super::carry::carry_on;
use super::doorbell::Doorbell;
use crate::call::{BodyError, ByteStream, RequestBody};
use crate::clock::Timer;

/// One connection; it carries one request at a time.
pub(super) struct Upstream {
    connection: Connection<TokioIo<WatchedIo>, SentBody>,
    doorbell: Arc<Doorbell>,
    waker: Waker,
    pub(super) sender: SendRequest<SentBody>,
    pub(super) signals: Arc<Signals>,
    /// Bounds the exchange under way. Kept from one to the next, since setting a timer costs
    /// more than one that fires early once in a while.
    pub(super) timer: Timer,
    idle_since: Instant,
}

impl Upstream {
    /// Opens a new one.
    pub(super) async fn open(settings: &Settings) -> Result<Box<Self>, ConnectError> {
        let address = settings
            .http
            .as_ref()
            .expect("an HTTP call is only sent where there is an HTTP backend");
        let stream = backend::connect(address, settings.connect_timeout).await?;
        // Keep-alive: without this a small body would wait for the head's ACK.
        stream.set_nodelay(true).map_err(ConnectError::Refused)?;
        let signals = Arc::new(Signals::default());
        let io = WatchedIo {
            stream,
            signals: Arc::clone(&signals),
        };
        let (sender, connection) = Builder::new()
            // One buffer: what is small goes out quicker than as a list of pieces.
            .writev(false)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| ConnectError::Refused(io::Error::other(error)))?;
        // Boxed, because it is handed around with each call and weighs a kilobyte.
        let doorbell = Arc::new(Doorbell::default());
        Ok(Box::new(Self {
            connection,
            waker: Waker::from(Arc::clone(&doorbell)),
            doorbell,
            sender,
            signals,
            timer: Timer::default(),
            idle_since: Instant::now(),
        }))
    }

    /// Drives the connection; ready when it has ended.
    pub(super) fn poll_connection(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.doorbell.belongs_to(cx);
        let mut cx = Context::from_waker(&self.waker);
        Pin::new(&mut self.connection).poll(&mut cx).map(|_| ())
    }
}

/// The idle ones.
#[derive(Clone, Default)]
pub(super) struct Pool {
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    /// Oldest first.
    #[expect(
        clippy::vec_box,
        reason = "each goes in and out boxed, with every call"
    )]
    upstreams: Vec<Box<Upstream>>,
    sweeping: bool,
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the one used last, if it is not too old. That it was closed meanwhile shows
    /// before anything is written on it.
    pub(super) fn take(&self, now: Instant, settings: &Settings) -> Option<Box<Upstream>> {
        let upstream = self.idle().upstreams.pop()?;
        if upstream.idle_since + settings.pool_idle_timeout <= now {
            // Those below it are older still; the sweep closes them.
            return None;
        }
        upstream.signals.rearm();
        Some(upstream)
    }

    /// Puts one back whose reply has been read to its end.
    pub(super) fn put(&self, mut upstream: Box<Upstream>, settings: &Settings) {
        if !upstream.sender.is_ready() {
            // Asked once more, it says whether it will take another request.
            let over = upstream.poll_connection(&Context::from_waker(Waker::noop()));
            if over.is_ready() || !upstream.sender.is_ready() {
                return;
            }
        }
        upstream.idle_since = Instant::now();
        let mut idle = self.idle();
        if idle.upstreams.len() >= settings.pool_max_idle {
            return;
        }
        idle.upstreams.push(upstream);
        if !idle.sweeping {
            idle.sweeping = true;
            carry_on(sweep(self.clone(), settings.pool_idle_timeout));
        }
    }

    /// Closes all.
    pub(super) fn clear(&self) {
        self.idle().upstreams.clear();
    }
}

/// Closes connections that nobody took, the oldest first; ends when none is left.
async fn sweep(pool: Pool, idle_timeout: Duration) {
    loop {
        let due = {
            let mut idle = pool.idle();
            let now = Instant::now();
            let cold = idle
                .upstreams
                .partition_point(|upstream| upstream.idle_since + idle_timeout <= now);
            idle.upstreams.drain(..cold);
            match idle.upstreams.first() {
                Some(oldest) => oldest.idle_since + idle_timeout,
                None => {
                    idle.sweeping = false;
                    return;
                }
            }
        };
        sleep_until(due).await;
    }
}

/// What is seen of one request on the wire.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// hyper has taken the last of the body.
    body_taken: AtomicBool,
    wrote: AtomicBool,
    flushed: AtomicBool,
}

impl Signals {
    fn rearm(&self) {
        self.body_taken.store(false, Ordering::Relaxed);
        self.wrote.store(false, Ordering::Relaxed);
        self.flushed.store(false, Ordering::Relaxed);
    }

    /// Whether a byte has been written: from here on the call counts as sent.
    pub(super) fn wrote(&self) -> bool {
        self.wrote.load(Ordering::Relaxed)
    }

    /// Whether the last byte has been written.
    pub(super) fn flushed(&self) -> bool {
        self.flushed.load(Ordering::Relaxed)
    }
}

/// The connection's socket; it sees when a request's bytes leave.
pub(super) struct WatchedIo {
    stream: TcpStream,
    signals: Arc<Signals>,
}

impl WatchedIo {
    fn saw(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.signals.wrote.store(true, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for WatchedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for WatchedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.saw(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.saw(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has handed all it had to the socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.signals.wrote() && self.signals.body_taken.load(Ordering::Relaxed) {
            self.signals.flushed.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A request body on its way to the backend.
pub(super) struct SentBody {
    read: std::collections::VecDeque<Bytes>,
    rest: Option<ByteStream>,
    /// What a whole body weighs; a streamed one goes by its own headers.
    length: Option<u64>,
    taken: u64,
    signals: Option<Arc<Signals>>,
}

impl SentBody {
    pub(super) fn new(body: RequestBody) -> Self {
        let (read, rest, length) = match body {
            RequestBody::Whole(bytes) => {
                let length = Some(bytes.len() as u64);
                let read = if bytes.is_empty() {
                    std::collections::VecDeque::new()
                } else {
                    [bytes].into()
                };
                (read, None, length)
            }
            RequestBody::Streamed { read, rest } => (read.into(), Some(rest), None),
        };
        Self {
            read,
            rest,
            length,
            taken: 0,
            signals: None,
        }
    }

    /// Says on which connection it goes; nothing of it has been taken yet.
    pub(super) fn goes_over(&mut self, signals: &Arc<Signals>) {
        self.signals = Some(Arc::clone(signals));
        self.mark();
    }

    /// The body as it was, if nothing of it has been taken.
    pub(super) fn into_request_body(mut self) -> Option<RequestBody> {
        if self.taken > 0 {
            return None;
        }
        Some(match self.rest.take() {
            None => RequestBody::Whole(self.read.pop_front().unwrap_or_default()),
            Some(rest) => RequestBody::Streamed {
                read: std::mem::take(&mut self.read).into(),
                rest,
            },
        })
    }

    fn mark(&self) {
        if self.read.is_empty()
            && self.rest.is_none()
            && let Some(signals) = &self.signals
        {
            signals.body_taken.store(true, Ordering::Relaxed);
        }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(bytes) = self.read.pop_front() {
            self.taken += bytes.len() as u64;
            self.mark();
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let Some(rest) = self.rest.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(rest).poll_frame(cx));
        match frame {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    let length = bytes.len() as u64;
                    self.taken += length;
                }
                if self.rest.as_ref().is_some_and(Body::is_end_stream) {
                    self.rest = None;
                    self.mark();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                self.rest = None;
                self.mark();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, |length| {
            SizeHint::with_exact(length.saturating_sub(self.taken))
        })
    }
}
