//! A connection to the HTTP backend that hyper reads and writes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_runtime::{Timer, lock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::carry::Flag;
use super::connect::ConnectError;
use super::doorbell::Doorbell;
use super::pool::{LOOK_AFTER, Life, Pooled};
use super::stream::{for_many, read_now};
use super::tls_failure::TlsFailure;
use crate::call::{BodyError, ByteStream, Link, PolledFrame, RequestBody, data_bytes};

/// The most header fields of a reply.
const REPLY_FIELDS: usize = 256;

/// One connection; it carries one request at a time.
pub(super) struct Upstream {
    /// `None` once it has ended.
    connection: Option<Connection<TokioIo<WatchedIo>, SentBody>>,
    doorbell: Arc<Doorbell>,
    waker: Waker,
    pub(super) sender: SendRequest<SentBody>,
    pub(super) signals: Arc<Signals>,
    /// Bounds the exchange under way. It is kept from one exchange to the next: to set a timer
    /// costs more than one that occasionally fires early.
    pub(super) timer: Timer,
    life: Life,
    peer: Option<SocketAddr>,
}

impl Pooled for Box<Upstream> {
    fn life(&self) -> Life {
        self.life
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }
}

impl Upstream {
    /// Opens a new connection on what `connecting` returns.
    pub(super) async fn open(connecting: impl Connecting) -> Result<Box<Self>, ConnectError> {
        let link = for_many(connecting.await?);
        let peer = link.tcp().peer_addr().ok();
        let signals = Arc::new(Signals::default());
        let doorbell = Arc::new(Doorbell::default());
        let io = WatchedIo {
            link,
            signals: Arc::clone(&signals),
            doorbell: Arc::clone(&doorbell),
            is_awaited: false,
        };
        let (sender, connection) = Builder::new()
            // One buffer: small messages leave faster than as a list of parts.
            .writev(false)
            .max_headers(REPLY_FIELDS)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|error| ConnectError::Refused(io::Error::other(error)))?;
        // Boxed, because it moves with each call and has a kilobyte.
        Ok(Box::new(Self {
            connection: Some(connection),
            waker: Waker::from(Arc::clone(&doorbell)),
            doorbell,
            sender,
            signals,
            timer: Timer::default(),
            life: Life::begin(Instant::now(), rand::random()),
            peer,
        }))
    }

    /// Drives the connection; ready when it has ended.
    pub(super) fn poll_connection(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(());
        };
        self.doorbell.belongs_to(cx);
        let mut cx = Context::from_waker(&self.waker);
        Pin::new(connection).poll(&mut cx).map(|_| ())
    }

    /// Continues on a new stream after the first write of a request failed. hyper does not see that
    /// failure, so it writes the same bytes again.
    ///
    /// # Errors
    /// If there is no new stream.
    pub(super) async fn continue_elsewhere(
        &mut self,
        connecting: impl Connecting,
    ) -> Result<(), ConnectError> {
        let link = for_many(connecting.await?);
        lock(&self.signals.failed).instead = Some(link);
        Ok(())
    }

    /// Prepares a connection that was idle for so long.
    pub(super) fn rearm(&self, idle_for: Duration) {
        self.signals.rearm(idle_for >= LOOK_AFTER);
    }

    /// Whether it takes another request.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.sender.is_ready() {
            return true;
        }
        let over = self.poll_connection(&Context::from_waker(Waker::noop()));
        over.is_pending() && self.sender.is_ready()
    }

    /// Ends the connection. A request that hyper had not yet taken comes back with that: hyper
    /// returns it only then.
    pub(super) fn end(&mut self) {
        self.connection = None;
    }
}

/// A connect under way.
pub(super) trait Connecting: Future<Output = Result<Link, ConnectError>> {}

impl<C: Future<Output = Result<Link, ConnectError>>> Connecting for C {}

/// What is known of one request on the wire.
#[derive(Default)]
pub(super) struct Signals {
    /// Asks the kernel for received bytes, before the runtime reports them.
    look: Flag,
    /// hyper has taken the last of the body.
    body_taken: Flag,
    /// The rest of the body is still at the client.
    pub(super) client_owes: Flag,
    /// Bytes that the kernel has accepted.
    written: AtomicU64,
    /// The last byte was written.
    pub(super) flushed: Flag,
    /// A byte of the reply has arrived.
    pub(super) read: Flag,
    /// It begins as TLS does.
    pub(super) read_tls: Flag,
    /// The first write failed, so no byte has left. hyper waits.
    pub(super) has_failed: Flag,
    /// Locked only in that case.
    failed: Mutex<FailedWrite>,
}

/// The first write of a request, after it failed.
#[derive(Default)]
struct FailedWrite {
    bytes: Vec<u8>,
    /// Where hyper writes the bytes instead.
    instead: Option<Link>,
}

impl Signals {
    fn rearm(&self, look: bool) {
        self.look.set(look);
        self.body_taken.set(false);
        self.client_owes.set(false);
        self.written.store(0, Ordering::Relaxed);
        self.flushed.set(false);
        self.read.set(false);
    }

    /// The bytes of that write.
    pub(super) fn take_failed(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.failed).bytes)
    }

    /// Whether a byte was written: from then on the call counts as sent.
    pub(super) fn wrote(&self) -> bool {
        self.written() > 0
    }

    /// Bytes that the kernel has accepted.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

/// The connection's socket. It notices when a request's bytes leave.
pub(super) struct WatchedIo {
    link: Link,
    signals: Arc<Signals>,
    doorbell: Arc<Doorbell>,
    /// The last read found nothing, so the runtime rings the doorbell when something arrives.
    is_awaited: bool,
}

impl WatchedIo {
    /// Moves to the new stream after a failed write; pending until there is one.
    #[cold]
    fn poll_new_stream(&mut self) -> Poll<()> {
        let mut failed = lock(&self.signals.failed);
        let Some(link) = failed.instead.take() else {
            return Poll::Pending;
        };
        failed.bytes = Vec::new();
        drop(failed);
        self.link = link;
        self.is_awaited = false;
        self.signals.has_failed.set(false);
        Poll::Ready(())
    }

    /// Keeps the bytes of a first write that failed. The exchange handles the rest.
    #[cold]
    fn keep(&self, bytes: &[u8]) {
        lock(&self.signals.failed).bytes = bytes.to_vec();
        self.signals.has_failed.set(true);
    }
}

impl AsyncRead for WatchedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.signals.has_failed.get() {
            ready!(self.poll_new_stream());
        }
        if self.signals.look.get() {
            self.signals.look.set(false);
            match &mut self.link {
                Link::Plain(tcp) => match read_now(tcp, buf) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    seen => return Poll::Ready(seen),
                },
                // Whatever came, nothing is written on it any more: for hyper it has ended.
                Link::Tls(secured) => {
                    if !secured.is_quiet() {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
        // hyper asks several times in an exchange; without news, the runtime is not asked again.
        if self.is_awaited && !self.doorbell.has_rung() {
            return Poll::Pending;
        }
        let filled = buf.filled().len();
        let read = Pin::new(&mut self.link).poll_read(cx, buf);
        self.is_awaited = read.is_pending();
        if buf.filled().len() > filled {
            if !self.signals.read.get() && TlsFailure::of_answer(&buf.filled()[filled..]).is_some()
            {
                self.signals.read_tls.set(true);
            }
            self.signals.read.set(true);
        }
        read
    }
}

impl AsyncWrite for WatchedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.signals.has_failed.get() {
            ready!(self.poll_new_stream());
        }
        let written = Pin::new(&mut self.link).poll_write(cx, buf);
        match written {
            Poll::Ready(Ok(more @ 1..)) => {
                // Only this connection's own task writes.
                let all = self.signals.written() + more as u64;
                self.signals.written.store(all, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) if !self.signals.wrote() => {
                self.keep(buf);
                return Poll::Pending;
            }
            _ => {}
        }
        written
    }

    /// hyper flushes when it has passed all its bytes to the socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.signals.wrote() && self.signals.body_taken.get() {
            self.signals.flushed.set(true);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

/// A request body on its way to the backend.
pub(super) struct SentBody {
    /// The part that is here and was not taken.
    read: Bytes,
    rest: Option<ByteStream>,
    /// Its length, if it is known.   bytes
    length: Option<u64>,
    is_whole: bool,
    taken: u64,
    signals: Option<Arc<Signals>>,
}

impl SentBody {
    pub(super) fn new(body: RequestBody) -> Self {
        let (read, rest) = match body {
            RequestBody::Whole(bytes) => (bytes, None),
            RequestBody::Streamed { read, rest } => (read, Some(rest)),
        };
        let left = rest
            .as_ref()
            .map_or(Some(0), |rest| rest.size_hint().exact());
        Self {
            length: left.map(|left| read.len() as u64 + left),
            is_whole: rest.is_none(),
            read,
            rest,
            taken: 0,
            signals: None,
        }
    }

    /// The length of a body that is here as a whole.   bytes
    pub(super) fn whole_length(&self) -> Option<u64> {
        self.length.filter(|_| self.is_whole)
    }

    /// Sets its connection; none of it has been taken yet.
    pub(super) fn goes_over(&mut self, signals: &Arc<Signals>) {
        self.signals = Some(Arc::clone(signals));
        self.mark();
    }

    /// The unchanged body, if none of it was taken.
    pub(super) fn into_request_body(self) -> Option<RequestBody> {
        if self.taken > 0 {
            return None;
        }
        let read = self.read;
        Some(match self.rest {
            None => RequestBody::Whole(read),
            Some(rest) => RequestBody::Streamed { read, rest },
        })
    }

    fn mark(&self) {
        if self.is_end_stream()
            && let Some(signals) = &self.signals
        {
            signals.body_taken.set(true);
        }
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        if !self.read.is_empty() {
            let bytes = std::mem::take(&mut self.read);
            self.taken += bytes.len() as u64;
            self.mark();
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let Some(rest) = self.rest.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(rest).poll_frame(cx);
        if let Some(signals) = &self.signals {
            signals.client_owes.set(frame.is_pending());
        }
        let frame = ready!(frame);
        self.taken += data_bytes(frame.as_ref());
        let is_over = match &frame {
            Some(Ok(_)) => self.rest.as_ref().is_some_and(Body::is_end_stream),
            Some(Err(_)) => false,
            None => true,
        };
        if is_over {
            self.rest = None;
            self.mark();
        }
        Poll::Ready(frame)
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
