//! The client's side of an HTTP connection: its socket with a clock on every phase.
//!
//! hyper decides when to read and write; this decides how long either may take. One timer serves
//! all phases. It is set only for a wait. If it fires too early, because a later phase has begun,
//! it is set again.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::{Clock, Timer, lock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::Settings;
use super::super::io::{LINGER, Unread};
use super::super::stream::Stream;
use super::super::wire::OnEof;
use super::heads::Heads;
use crate::call::{Record, Refusal};

/// Most bytes of one read before a call has its slot. hyper keeps its read buffer while the call
/// waits, and doubles a buffer that a read fills.   bytes
const READ_BYTES: usize = 8 * 1024 - 1;
/// The same while a body streams.   bytes
const STREAM_BYTES: usize = 16 * 1024 - 1;

/// What the connection is doing; shared by its socket and its requests.
pub(super) struct Phases(Mutex<Phase>);

#[derive(Default)]
pub(super) struct Phase {
    step: Step,
    /// When the latest bytes arrived.
    last_byte: Timestamp,
    /// Part of the head of the next request is here, which a drain waits for.
    pub(super) is_mid_head: bool,
    /// A body streams, whose call has its slot.
    is_streaming: bool,
    /// Part of that body is not read. hyper closes the connection after an answer to such a request,
    /// and does not say so in the answer.
    pub(super) owes_body: bool,
    /// Requests that hyper has delivered.
    begun: u64,
    /// The number of the request with a bad head, and its refusal.
    refused: Option<(u64, Refusal)>,
    /// The address that the client connected to, if a request of HTTP/1.0 names no host.
    pub(super) local: Option<SocketAddr>,
    /// The latest answered call, until its answer is written.
    answered: Option<Arc<Record>>,
    /// The next read asks the kernel, which may have bytes that the runtime does not know of yet.
    pub(super) looks: bool,
    /// The client has left. An earlier request that has not begun is not served.
    pub(super) has_left: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// Between requests, since this moment.
    Idle(Timestamp),
    /// A head began to arrive at this moment.
    Head(Timestamp),
    /// A request is being read, waits, or is being answered.
    #[default]
    Serving,
}

impl Phases {
    /// A connection whose first bytes arrived at this moment.
    pub(super) fn begun(came: Timestamp, now: Timestamp) -> Self {
        Self(Mutex::new(Phase {
            step: Step::Head(now),
            last_byte: came,
            ..Phase::default()
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Phase> {
        lock(&self.0)
    }

    /// A head is here. Returns when its last byte arrived, and the refusal if the head is bad.
    pub(super) fn begin_request(&self) -> (Timestamp, Option<Refusal>) {
        let mut phase = self.lock();
        phase.step = Step::Serving;
        phase.is_streaming = false;
        phase.owes_body = false;
        let number = phase.begun;
        phase.begun += 1;
        let refused = phase.refused.take_if(|(refused, _)| *refused == number);
        (phase.last_byte, refused.map(|(_, refusal)| refusal))
    }

    /// The part of the body that is read before the call queues is here. Returns when its last byte
    /// arrived.
    pub(super) fn body_read(&self, streams: bool) -> Timestamp {
        let mut phase = self.lock();
        phase.is_streaming = streams;
        phase.owes_body = streams;
        phase.last_byte
    }

    /// The request is answered. Its call is reported when the answer has been written.
    pub(super) fn end_request(&self, now: Timestamp, record: Option<Arc<Record>>) {
        let mut phase = self.lock();
        phase.step = match phase.is_mid_head {
            // Its first part waited for the previous answer.
            true => Step::Head(now),
            false => Step::Idle(now),
        };
        let earlier = mem::replace(&mut phase.answered, record);
        drop(phase);
        drop(earlier);
    }

    /// The answer was written. Returns the new state of the connection.
    fn written(&self) -> Step {
        let mut phase = self.lock();
        let (record, step) = (phase.answered.take(), phase.step);
        drop(phase);
        drop(record);
        step
    }

    fn bytes_came(&self, now: Timestamp, is_mid_head: bool) {
        let mut phase = self.lock();
        phase.last_byte = now;
        phase.is_mid_head = is_mid_head;
        if let Step::Idle(_) = phase.step
            && is_mid_head
        {
            phase.step = Step::Head(now);
        }
    }

    /// Most bytes of the next read, and whether it asks the kernel.
    fn next_read(&self) -> (usize, bool) {
        let mut phase = self.lock();
        let most = match phase.is_streaming {
            true => STREAM_BYTES,
            false => READ_BYTES,
        };
        (most, mem::take(&mut phase.looks))
    }
}

/// A client's socket under the clock.
pub(super) struct ClientIo {
    stream: Stream,
    heads: Heads,
    phases: Arc<Phases>,
    clock: Clock,
    on_eof: OnEof,
    request_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    timer: Timer,
    /// Since when a write has made no progress.
    stalled_since: Option<Instant>,
    /// What the client may still send after the end of our bytes, and until when.
    lingering: Option<(Unread, Instant)>,
}

impl ClientIo {
    pub(super) fn new(
        stream: Stream,
        first: Vec<u8>,
        phases: Arc<Phases>,
        clock: Clock,
        on_eof: OnEof,
        settings: &Settings,
    ) -> Self {
        let mut heads = Heads::new(settings.max_request_fields);
        heads.take_first(first);
        let mut io = Self {
            stream,
            heads,
            phases,
            clock,
            on_eof,
            request_timeout: settings.request_timeout,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
            timer: Timer::default(),
            stalled_since: None,
            lingering: None,
        };
        io.note_heads();
        io.phases.lock().is_mid_head = io.heads.is_mid_head();
        io
    }

    /// Passes on the results of the latest heads.
    fn note_heads(&mut self) {
        if let Some(refused) = self.heads.take_refused() {
            self.phases.lock().refused = Some(refused);
        }
        if self.heads.take_lacks_host() {
            self.phases.lock().local = self.stream.tcp().local_addr().ok();
        }
    }

    /// Reads received bytes and checks their heads; ready with 0 at the end.
    fn poll_more(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut chunk = [MaybeUninit::uninit(); STREAM_BYTES];
        let (most, looks) = self.phases.next_read();
        if looks {
            self.stream.look();
        }
        let mut chunk = ReadBuf::uninit(&mut chunk[..most]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut chunk))?;
        let bytes = chunk.filled();
        if !bytes.is_empty() {
            self.heads.take(bytes, buf);
            self.phases
                .bytes_came(self.clock.now(), self.heads.is_mid_head());
            self.note_heads();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Ready when the time for the next bytes is over.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let step = self.phases.lock().step;
        let due = match step {
            Step::Serving => return Poll::Pending,
            Step::Head(began) => self.clock.instant(began) + self.request_timeout,
            Step::Idle(since) => self.clock.instant(since) + self.idle_timeout,
        };
        // A stalled write has the timer; hyper comes back to the read afterwards.
        if self.stalled_since.is_some() {
            return Poll::Pending;
        }
        self.timer.poll_until(due, cx)
    }

    fn poll_written(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled_since = None;
            return written;
        }
        let since = *self.stalled_since.get_or_insert_with(Instant::now);
        ready!(self.timer.poll_until(since + self.write_timeout, cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut is_late = false;
        loop {
            if self.heads.give(buf) || self.heads.is_over() {
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            match self.poll_more(cx, buf) {
                Poll::Ready(Ok(0)) => {
                    if self.on_eof == OnEof::Left {
                        self.phases.lock().has_left = true;
                    }
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(_)) if buf.filled().len() > before => return Poll::Ready(Ok(())),
                // Part of a head, which stays here, or the end of one.
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.phases.lock().has_left = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending if is_late => {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending => {
                    ready!(self.poll_late(cx));
                    is_late = true;
                    self.phases.lock().looks = true;
                }
            }
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.poll_written(written, cx)
    }

    /// hyper comes here each time it has done what it can, so a client that left is noticed here.
    /// (hyper could watch by itself, but then it keeps a buffer of 8 KiB for each waiting call.)
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Stream::Tls(_) = self.stream {
            // Written bytes may still wait to be encrypted and sent.
            let flushed = Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| 0);
            ready!(self.poll_written(flushed, cx))?;
        }
        let step = self.phases.written();
        let on_eof = self.on_eof;
        if step == Step::Serving {
            if self.stream.poll_left(cx, on_eof).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        } else if on_eof == OnEof::Left && self.stream.has_ended() {
            self.phases.lock().has_left = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the end, then reads what the client still sends, within bounds. An immediate close
    /// would reset the connection and destroy an answer on its way.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            // TLS has a last message to send, which may have to wait.
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx).map_ok(|()| 0);
            ready!(self.poll_written(shut, cx))?;
            self.lingering = Some((Unread::default(), Instant::now() + LINGER));
        }
        let Self {
            stream,
            timer,
            lingering: Some((unread, until)),
            ..
        } = &mut *self
        else {
            return Poll::Ready(Ok(()));
        };
        if unread.poll_discard(cx, stream).is_pending() {
            ready!(timer.poll_until(*until, cx));
        }
        Poll::Ready(Ok(()))
    }
}
