//! The client's side of an HTTP connection: its socket with a clock on every phase.
//!
//! hyper decides when to read and write; this decides how long either may take. One timer
//! serves all phases: it is only set when something has to be waited for, and when it fires
//! too early because a later phase has begun, it is set anew.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::Settings;
use super::super::io::{LINGER, LINGER_BYTES};
use super::super::stream::Stream;
use super::super::wire::OnEof;
use crate::call::Record;
use crate::clock::{Clock, Timer};

/// What the connection is doing; shared by its socket and its requests.
pub(super) struct Phases(Mutex<Phase>);

struct Phase {
    step: Step,
    /// When the first byte that belongs to no request yet came in.
    first_byte: Option<Timestamp>,
    /// The latest call that is answered, until its answer is written.
    answered: Option<Arc<Record>>,
    /// The client was seen to leave between two requests: what it sent before is not served.
    has_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Between requests, since then.
    Idle(Timestamp),
    /// A head has begun to come in, at that time.
    Head(Timestamp),
    /// A request is being read, waits, or is being answered.
    Serving,
}

impl Phases {
    /// A connection whose first byte is here; its first call's clock runs since it was
    /// accepted.
    pub(super) fn begun(accepted: Timestamp, now: Timestamp) -> Self {
        Self(Mutex::new(Phase {
            step: Step::Head(now),
            first_byte: Some(accepted),
            answered: None,
            has_left: false,
        }))
    }

    fn with<R>(&self, change: impl FnOnce(&mut Phase) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A head is here; returns when its first byte was.
    pub(super) fn begin_request(&self, clock: &Clock) -> Timestamp {
        self.with(|phase| {
            phase.step = Step::Serving;
            phase.first_byte.take().unwrap_or_else(|| clock.now())
        })
    }

    /// The request's body is here: what comes now belongs to the next request.
    pub(super) fn body_read(&self) {
        self.with(|phase| phase.first_byte = None);
    }

    /// The request is answered; its call is told of when the answer has been written.
    pub(super) fn end_request(&self, now: Timestamp, record: Option<Arc<Record>>) {
        let earlier = self.with(|phase| {
            phase.step = phase.first_byte.map_or(Step::Idle(now), Step::Head);
            std::mem::replace(&mut phase.answered, record)
        });
        drop(earlier);
    }

    /// What was answered has been written.
    fn written(&self) {
        let record = self.with(|phase| phase.answered.take());
        drop(record);
    }

    /// Whether the client of the request that begins has left already.
    pub(super) fn has_left(&self) -> bool {
        self.with(|phase| phase.has_left)
    }

    fn leave(&self) {
        self.with(|phase| phase.has_left = true);
    }

    fn bytes_came(&self, now: Timestamp) {
        self.with(|phase| {
            phase.first_byte.get_or_insert(now);
            if let Step::Idle(_) = phase.step {
                phase.step = Step::Head(now);
            }
        });
    }

    fn step(&self) -> Step {
        self.with(|phase| phase.step)
    }
}

/// A client's socket under the clock.
pub(super) struct ClientIo {
    stream: Stream,
    /// Bytes read before it was known that this is HTTP.
    first: Vec<u8>,
    phases: Arc<Phases>,
    clock: Clock,
    on_eof: OnEof,
    request_timeout: Duration,
    idle_timeout: Duration,
    write_timeout: Duration,
    timer: Timer,
    /// Since when a write has made no progress.
    stalled_since: Option<Instant>,
    lingering: Option<Lingering>,
}

#[derive(Clone, Copy)]
struct Lingering {
    until: Instant,
    left: usize,
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
        Self {
            stream,
            first,
            phases,
            clock,
            on_eof,
            request_timeout: settings.request_timeout,
            idle_timeout: settings.idle_timeout,
            write_timeout: settings.write_timeout,
            timer: Timer::default(),
            stalled_since: None,
            lingering: None,
        }
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
        if !self.first.is_empty() {
            let taken = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..taken]);
            if taken == self.first.len() {
                self.first = Vec::new();
            } else {
                self.first.drain(..taken);
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            if buf.filled().len() > before {
                let now = self.clock.now();
                self.phases.bytes_came(now);
            }
            return Poll::Ready(read);
        }
        let due = match self.phases.step() {
            Step::Serving => return Poll::Pending,
            Step::Head(began) => self.clock.instant(began) + self.request_timeout,
            Step::Idle(since) => self.clock.instant(since) + self.idle_timeout,
        };
        // A write that stalls has the timer; hyper comes back here when it is over.
        if self.stalled_since.is_some() {
            return Poll::Pending;
        }
        ready!(self.timer.poll_until(due, cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.poll_written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper comes here each time it has done what it can, so this is where a client is
    /// seen to leave. (It could watch by itself, but for that it keeps a buffer of 8 KiB for
    /// each call that waits.)
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Stream::Tls(_) = self.stream {
            // What was written may still wait to be encrypted and sent.
            let flushed = Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| 0);
            ready!(self.poll_written(flushed, cx))?;
        }
        self.phases.written();
        let on_eof = self.on_eof;
        if self.phases.step() == Step::Serving {
            if self.stream.poll_left(cx, on_eof).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        } else if on_eof == OnEof::Left && self.stream.has_ended() {
            self.phases.leave();
        }
        Poll::Ready(Ok(()))
    }

    /// Says that no more comes, then reads what the client still sends, within bounds: to
    /// close at once would reset the connection and destroy an answer on its way.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lingering = match self.lingering {
            Some(lingering) => lingering,
            None => {
                // With TLS there is a last message to send, which may have to wait.
                let shut = Pin::new(&mut self.stream).poll_shutdown(cx).map_ok(|()| 0);
                ready!(self.poll_written(shut, cx))?;
                Lingering {
                    until: Instant::now() + LINGER,
                    left: LINGER_BYTES,
                }
            }
        };
        let mut scrap = [0; 4096];
        loop {
            self.lingering = Some(lingering);
            let mut room = ReadBuf::new(&mut scrap);
            match Pin::new(&mut self.stream).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) if room.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {
                    lingering.left = lingering.left.saturating_sub(room.filled().len());
                    if lingering.left == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(self.timer.poll_until(lingering.until, cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}
