//! One call on the socket protocol: one connection, one write, the reply until EOF.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tidegate_limits::Outcome;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::backend::Backend;
use super::carry::{Committed, carry_on};
use super::connect::ConnectError;
use super::reply::{self, Balance, Ending};
use super::stream::Stream;
use super::{Bounds, Outgoing, Unsent};
use crate::call::{ArrayCall, BodyError, Reason, Record, Refusal, Reply, ReplyBody, Slot};

/// Room for a reply to begin with; most are smaller.
const REPLY_BYTES: usize = 2048;

/// Writes the array in one write, unless that has been done with the connect, and reads the
/// reply to its end.
pub(super) fn array<S: Slot>(
    stream: Stream,
    written: usize,
    call: ArrayCall,
    slot: S,
    record: Arc<Record>,
    backend: Arc<Backend>,
    committed: Committed,
) -> impl Future<Output = Result<Reply, Unsent<S>>> + Send {
    if written > 0 {
        committed.set();
    }
    exchange(stream, written, call, slot, record, backend, committed)
}

async fn exchange<S: Slot>(
    stream: Stream,
    written: usize,
    call: ArrayCall,
    mut slot: S,
    record: Arc<Record>,
    backend: Arc<Backend>,
    committed: Committed,
) -> Result<Reply, Unsent<S>> {
    let deadline = Instant::now() + backend.bounds.response_timeout;
    match write_whole(&stream, written, &call.bytes, &committed, deadline).await {
        Written::Whole => {}
        Written::Nothing(error) => {
            return Err(Unsent {
                outgoing: Outgoing::Array(call),
                slot,
                cause: ConnectError::ClosedBefore(error),
            });
        }
        Written::Part => {
            slot.sent();
            slot.finish(Outcome::Failed);
            return Ok(Reply::Refused(closed()));
        }
    }
    slot.sent();
    record.note(|facts| facts.bytes_in = call.bytes.len() as u64);
    drop(call);
    read_reply(stream, slot, record, &backend.bounds, deadline)
        .await
        .map_or_else(|failure| Ok(Reply::Refused(failure)), Ok)
}

enum Written {
    Whole,
    /// No byte was taken, so the call was not sent.
    Nothing(io::Error),
    Part,
}

async fn write_whole(
    stream: &Stream,
    mut written: usize,
    bytes: &[u8],
    committed: &Committed,
    deadline: Instant,
) -> Written {
    while written < bytes.len() {
        match stream.try_write(&bytes[written..]) {
            Ok(more) => {
                committed.set();
                written += more;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match timeout_at(deadline, stream.writable()).await {
                    Ok(Ok(())) => {}
                    _ if written == 0 => return Written::Nothing(error),
                    _ => return Written::Part,
                }
            }
            Err(error) if written == 0 => return Written::Nothing(error),
            Err(_) => return Written::Part,
        }
    }
    Written::Whole
}

async fn read_reply<S: Slot>(
    stream: Stream,
    mut slot: S,
    record: Arc<Record>,
    bounds: &Bounds,
    deadline: Instant,
) -> Result<Reply, Refusal> {
    let mut held = BytesMut::with_capacity(REPLY_BYTES);
    loop {
        let ready = match timeout_at(deadline, stream.ready(Interest::READABLE)).await {
            Ok(ready) => ready,
            Err(_) => {
                // The backend should have closed first.
                stream.reset_when_closed();
                slot.finish(Outcome::Failed);
                return Err(slow(bounds));
            }
        };
        let is_first = held.is_empty();
        match stream.try_read_buf(&mut held) {
            Ok(0) => break,
            Ok(_) => {
                if is_first {
                    slot.replied();
                }
                if held.len() > bounds.reply_buffer_bytes {
                    let body =
                        StreamedReply::new(stream, slot, record, held.freeze(), bounds, deadline);
                    return Ok(Reply::Stream(ReplyBody::stream(body)));
                }
                // The end had been seen before this read, which took all there was: to read
                // once more would only say so again.
                let is_end = ready.is_ok_and(|ready| ready.is_read_closed());
                if is_end && held.len() < held.capacity() {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A reset after a whole reply takes nothing from it: the check below decides.
            Err(_) => break,
        }
    }
    drop(stream);
    if held.is_empty() {
        slot.finish(Outcome::Failed);
        return Err(closed());
    }
    match reply::read(&held) {
        Ending::Whole(overall_rc) => {
            // Given back before the answer is written: whoever reads it and asks again at
            // once should find the slot free.
            slot.finish(Outcome::Served);
            record.note(|facts| {
                facts.bytes_out = held.len() as u64;
                facts.overall_rc = overall_rc;
            });
            Ok(Reply::Whole(held.freeze()))
        }
        Ending::Cut => {
            slot.finish(Outcome::Failed);
            Err(cut(held.len()))
        }
    }
}

pub(super) fn closed() -> Refusal {
    Refusal::new(
        Reason::BackendClosed,
        "the backend closed the connection without an answer; whether it did the call is not known",
    )
}

pub(super) fn cut(read: usize) -> Refusal {
    Refusal::new(
        Reason::BackendCut,
        format!(
            "the backend's answer broke off after {read} bytes; whether it did the call is not known"
        ),
    )
}

pub(super) fn slow(bounds: &Bounds) -> Refusal {
    Refusal::new(
        Reason::BackendSlow,
        format!(
            "the backend gave no whole answer within {} s; whether it did the call is not known",
            bounds.response_timeout.as_secs_f64()
        ),
    )
}

/// A reply too large to hold: what was read, then the rest as it comes.
///
/// Dropped before its end, it reads the rest in a task of its own, and the slot comes back
/// at the end of that.
struct StreamedReply<S: Slot>(Option<Streaming<S>>);

struct Streaming<S: Slot> {
    stream: Stream,
    slot: S,
    record: Arc<Record>,
    first: Option<Bytes>,
    balance: Balance,
    total: usize,
    max: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<S: Slot> StreamedReply<S> {
    fn new(
        stream: Stream,
        slot: S,
        record: Arc<Record>,
        first: Bytes,
        bounds: &Bounds,
        deadline: Instant,
    ) -> Self {
        Self(Some(Streaming {
            stream,
            slot,
            record,
            first: Some(first),
            balance: Balance::default(),
            total: 0,
            max: bounds.max_reply_bytes,
            deadline: Box::pin(sleep_until(deadline)),
        }))
    }
}

impl<S: Slot> Streaming<S> {
    fn end(self, outcome: Outcome) {
        self.record
            .note(|facts| facts.bytes_out = self.total as u64);
        self.slot.finish(outcome);
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(first));
        }
        if self.deadline.as_mut().poll(cx).is_ready() {
            self.stream.reset_when_closed();
            return Poll::Ready(Err("the backend is too slow".into()));
        }
        let mut chunk = vec![0; 16 * 1024];
        let mut room = ReadBuf::new(&mut chunk);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        chunk.truncate(read);
        Poll::Ready(Ok(Bytes::from(chunk)))
    }
}

impl<S: Slot> Body for StreamedReply<S> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(streaming) = self.0.as_mut() else {
            return Poll::Ready(None);
        };
        let chunk = ready!(streaming.poll_chunk(cx));
        let failure: BodyError = match chunk {
            Ok(chunk) if chunk.is_empty() && streaming.balance.is_open() => {
                streaming
                    .record
                    .note(|facts| facts.reason = Some(Reason::BackendCut));
                "the backend's answer broke off".into()
            }
            Ok(chunk) if chunk.is_empty() => {
                if let Some(streaming) = self.0.take() {
                    streaming.end(Outcome::Served);
                }
                return Poll::Ready(None);
            }
            Ok(chunk) => {
                streaming.total += chunk.len();
                if streaming.total <= streaming.max {
                    streaming.balance.push(&chunk);
                    return Poll::Ready(Some(Ok(Frame::data(chunk))));
                }
                // The client gets a reset; the backend is read to its end all the same.
                let record = Arc::clone(&streaming.record);
                record.note(|facts| facts.reason = Some(Reason::ReplyTooLarge));
                self.leave();
                return Poll::Ready(Some(Err("the backend's answer is too large".into())));
            }
            Err(error) => error,
        };
        if let Some(streaming) = self.0.take() {
            streaming.end(Outcome::Failed);
        }
        Poll::Ready(Some(Err(failure)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

impl<S: Slot> StreamedReply<S> {
    /// Reads the rest and discards it.
    fn leave(&mut self) {
        if let Some(mut streaming) = self.0.take() {
            streaming.record.note(|facts| facts.left = true);
            carry_on(async move {
                let outcome = loop {
                    match std::future::poll_fn(|cx| streaming.poll_chunk(cx)).await {
                        Ok(chunk) if chunk.is_empty() => break Outcome::Served,
                        Ok(chunk) => streaming.total += chunk.len(),
                        Err(_) => break Outcome::Failed,
                    }
                };
                streaming.end(outcome);
            });
        }
    }
}

impl<S: Slot> Drop for StreamedReply<S> {
    fn drop(&mut self) {
        self.leave();
    }
}
