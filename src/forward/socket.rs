//! A call on the socket protocol: one connection, one write, the reply until EOF.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tidegate_limits::scheduler::Outcome;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::backend::BackendHandle;
use super::connect::ConnectError;
use super::deadline::ExchangeDeadline;
use super::failure::Failure;
use super::stream::{keep_alive, reset_when_closed};
use super::streamed::{ReplySource, StreamedBody};
use super::tls::refused_after_the_handshake;
use super::tls_failure::TlsFailure;
use super::{ExchangeResult, UnsentCall};
use crate::call::sdk::reply::{self, Balance, ReplyEnding};
use crate::call::{
    ArrayCall, BodyError, Link, Message, OnClientLeft, PolledFrame, Reason, Record, Refusal, Reply,
    ReplyBody, Slot,
};

/// Initial room for a reply; most are smaller.
const REPLY_BYTES: usize = 2048;

/// A connection whose reply takes longer gets TCP keep-alive. Most replies are quicker, and save
/// those system calls.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(1);

/// Writes the array in one write, unless the connect has done that, and reads the reply to its
/// end.
pub(super) async fn array<S: Slot>(
    mut link: Link,
    written: usize,
    call: Box<ArrayCall>,
    mut slot: S,
    record: Arc<Record>,
    backend: Arc<BackendHandle>,
) -> ExchangeResult<S> {
    let bounds = &backend.bounds;
    let mut deadline = ExchangeDeadline::new(bounds);
    let writing = write_whole(&mut link, written, &call.bytes, &record, &mut deadline);
    match writing.await {
        WriteOutcome::Whole => {}
        WriteOutcome::Nothing(error) => {
            let cause = ConnectError::ClosedBefore(error);
            return Err(UnsentCall::new(Message::Socket(call), slot, cause));
        }
        WriteOutcome::Part(failure) => {
            slot.sent();
            slot.finish(Outcome::Failed);
            return Ok(Err(failure.refusal(&backend, &record)));
        }
    }
    let deadline = deadline.sent(slot.sent(), bounds);
    record.note(|facts| facts.bytes_in = call.bytes.len() as u64);
    drop(call);
    Ok(read_reply(link, slot, record, &backend, deadline).await)
}

enum WriteOutcome {
    Whole,
    /// The backend accepted no byte, so the call was not sent.
    Nothing(io::Error),
    Part(Failure),
}

async fn write_whole(
    link: &mut Link,
    mut written: usize,
    bytes: &[u8],
    record: &Record,
    deadline: &mut ExchangeDeadline,
) -> WriteOutcome {
    while written < bytes.len() {
        match link.try_write(&bytes[written..]) {
            Ok(more) => {
                record.commit();
                written += more;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let due = deadline.due(written as u64, false);
                let due = due.expect("nothing is owed by a client whose array is here");
                match timeout_at(due, link.tcp().writable()).await {
                    Ok(Ok(())) => {}
                    _ if written == 0 => return WriteOutcome::Nothing(error),
                    Ok(Err(_)) => return WriteOutcome::Part(Failure::Closed),
                    Err(_) => return WriteOutcome::Part(Failure::TakenSlowly),
                }
            }
            Err(error) if written == 0 => return WriteOutcome::Nothing(error),
            Err(_) => return WriteOutcome::Part(Failure::Closed),
        }
    }
    WriteOutcome::Whole
}

async fn read_reply<S: Slot>(
    mut link: Link,
    mut slot: S,
    record: Arc<Record>,
    backend: &BackendHandle,
    deadline: Instant,
) -> Result<Reply, Refusal> {
    let bounds = &backend.bounds;
    let mut held = BytesMut::with_capacity(REPLY_BYTES);
    let mut due = deadline - bounds.response_timeout.saturating_sub(KEEP_ALIVE_AFTER);
    let fail = |failure: Failure, slot: S| {
        slot.finish(Outcome::Failed);
        Err(failure.refusal(backend, &record))
    };
    loop {
        let is_ended = match timeout_at(due, link.readable()).await {
            Ok(ended) => ended.unwrap_or(false),
            Err(_) if due < deadline => {
                keep_alive(link.tcp());
                due = deadline;
                continue;
            }
            Err(_) => {
                // The backend should have closed first.
                reset_when_closed(link.tcp());
                return fail(Failure::Late(bounds.response_timeout), slot);
            }
        };
        let is_first = held.is_empty();
        match link.try_read(&mut held) {
            Ok(0) => break,
            Ok(_) => {
                // The end was seen before this read, which took everything: one more read would
                // only report the end again.
                let is_end = is_ended && held.len() < held.capacity();
                // If the whole reply is here, the slot is given back at once, which has the same
                // effect.
                if is_first && !(is_end && held.len() <= bounds.reply_buffer_bytes) {
                    slot.replied();
                }
                if held.len() > bounds.reply_buffer_bytes {
                    let source = Streaming {
                        link,
                        slot,
                        record,
                        first: Some(held.freeze()),
                        balance: Balance::default(),
                        total: 0,
                        max: bounds.max_reply_bytes,
                        is_too_large: false,
                        on_client_left: bounds.on_client_left,
                        due: deadline,
                        timer: Box::pin(sleep_until(deadline)),
                    };
                    let body = StreamedBody::new(source, backend.readers());
                    return Ok(Reply::object(ReplyBody::stream(body)));
                }
                if is_end {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A reset after a whole reply does no harm, nor does an end of TLS that is not announced: the
            // check below decides.
            Err(error) => match refused_after_the_handshake(&error) {
                Some(failure) if held.is_empty() => {
                    return fail(Failure::NoTls(Box::new(failure)), slot);
                }
                _ => break,
            },
        }
    }
    drop(link);
    match TlsFailure::of_answer(&held) {
        Some(failure) => fail(Failure::NoTls(Box::new(failure)), slot),
        None => {
            end_of_reply(held, slot, &record).map_err(|failure| failure.refusal(backend, &record))
        }
    }
}

/// Judges a reply that has ended, and gives the slot back.
fn end_of_reply<S: Slot>(held: BytesMut, slot: S, record: &Record) -> Result<Reply, Failure> {
    if held.is_empty() {
        slot.finish(Outcome::Failed);
        return Err(Failure::Closed);
    }
    match reply::read(&held) {
        ReplyEnding::Whole(overall_rc) => {
            // Noted first: whether the call succeeded decides which reads of its guest are promoted.
            record.note(|facts| {
                facts.bytes_out = held.len() as u64;
                facts.overall_rc = overall_rc;
            });
            // Given back before the answer is written, so that a client that reads it and asks
            // again at once finds the slot free.
            slot.finish(Outcome::Served);
            Ok(Reply::object(ReplyBody::whole(held.freeze())))
        }
        ReplyEnding::Cut => {
            slot.finish(Outcome::Failed);
            Err(Failure::CutBody(held.len() as u64))
        }
    }
}

/// A reply that is too large to hold: the part that was read, then the rest as it arrives.
struct Streaming<S: Slot> {
    link: Link,
    slot: S,
    record: Arc<Record>,
    first: Option<Bytes>,
    balance: Balance,
    total: usize,
    max: usize,
    is_too_large: bool,
    on_client_left: OnClientLeft,
    due: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S: Slot> Streaming<S> {
    /// The next part; empty at the end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(first));
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            reset_when_closed(self.link.tcp());
            self.fails(Reason::BackendSlow);
            return Poll::Ready(Err("the backend is too slow".into()));
        }
        let mut chunk = vec![0; 16 * 1024];
        let mut room = ReadBuf::new(&mut chunk);
        match ready!(Pin::new(&mut self.link).poll_read(cx, &mut room)) {
            // The end of TLS was not announced. Whether the reply is whole, it shows itself.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => read?,
        }
        let read = room.filled().len();
        chunk.truncate(read);
        Poll::Ready(Ok(Bytes::from(chunk)))
    }

    fn fails(&self, reason: Reason) {
        self.record.note(|facts| facts.reason = Some(reason));
    }
}

impl<S: Slot> ReplySource for Streaming<S> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let chunk = match ready!(self.poll_chunk(cx)) {
            Ok(chunk) => chunk,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        if chunk.is_empty() {
            if self.is_too_large || !self.balance.is_open() {
                return Poll::Ready(None);
            }
            self.fails(Reason::BackendCut);
            return Poll::Ready(Some(Err("the backend's answer broke off".into())));
        }
        self.total += chunk.len();
        if !self.is_too_large {
            if self.total > self.max {
                // The client gets a reset. The backend is still read to its end.
                self.is_too_large = true;
                self.fails(Reason::ReplyTooLarge);
                return Poll::Ready(Some(Err("the backend's answer is too large".into())));
            }
            self.balance.push(&chunk);
        }
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn keeps_sending(&self) -> bool {
        self.is_too_large
    }

    fn is_over(&self) -> bool {
        false
    }

    fn on_client_left(&self) -> OnClientLeft {
        self.on_client_left
    }

    fn narrowest(&self) -> Option<u32> {
        self.slot.narrowest()
    }

    fn end(self, outcome: Outcome) {
        self.record
            .note(|facts| facts.bytes_out = self.total as u64);
        self.slot.finish(outcome);
    }

    fn abandon(self) {
        self.end(Outcome::Failed);
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn deadline(&self) -> Instant {
        self.due
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
