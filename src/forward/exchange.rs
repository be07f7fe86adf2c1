//! One call on the socket protocol: one connection, one write, the reply until EOF.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tidegate_limits::Outcome;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::backend::ConnectError;
use super::carry::{Committed, carry_on};
use super::reply::{self, Balance, Ending};
use super::{Outgoing, Settings, Unsent};
use crate::call::{ArrayCall, BodyError, Reason, Record, Refusal, Reply, ReplyBody, Slot};

/// Room for a reply to begin with; most are smaller.
const REPLY_BYTES: usize = 2048;

/// Writes the array in one write, unless that has been done with the connect, and reads the
/// reply to its end.
pub(super) fn array<S: Slot>(
    stream: TcpStream,
    written: usize,
    call: ArrayCall,
    slot: S,
    record: Arc<Record>,
    settings: Arc<Settings>,
    committed: Committed,
) -> impl Future<Output = Result<Reply, Unsent<S>>> + Send {
    if written > 0 {
        committed.set();
    }
    exchange(stream, written, call, slot, record, settings, committed)
}

async fn exchange<S: Slot>(
    stream: TcpStream,
    written: usize,
    call: ArrayCall,
    mut slot: S,
    record: Arc<Record>,
    settings: Arc<Settings>,
    committed: Committed,
) -> Result<Reply, Unsent<S>> {
    let deadline = Instant::now() + settings.response_timeout;
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
    read_reply(stream, slot, record, &settings, deadline)
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
    stream: &TcpStream,
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
    stream: TcpStream,
    mut slot: S,
    record: Arc<Record>,
    settings: &Settings,
    deadline: Instant,
) -> Result<Reply, Refusal> {
    let mut held = BytesMut::with_capacity(REPLY_BYTES);
    loop {
        let ready = match timeout_at(deadline, stream.ready(Interest::READABLE)).await {
            Ok(ready) => ready,
            Err(_) => {
                reset(&stream);
                slot.finish(Outcome::Failed);
                return Err(slow(settings));
            }
        };
        let is_first = held.is_empty();
        match stream.try_read_buf(&mut held) {
            Ok(0) => break,
            Ok(_) => {
                if is_first {
                    slot.replied();
                }
                if held.len() > settings.reply_buffer_bytes {
                    let body =
                        StreamedReply::new(stream, slot, record, held.freeze(), settings, deadline);
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

/// Closes so that no TIME_WAIT holds one of our ports: the backend should have closed first.
fn reset(stream: &TcpStream) {
    // A socket that cannot be told so is closed the ordinary way.
    let _ = stream.set_zero_linger();
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

pub(super) fn slow(settings: &Settings) -> Refusal {
    Refusal::new(
        Reason::BackendSlow,
        format!(
            "the backend gave no whole answer within {} s; whether it did the call is not known",
            settings.response_timeout.as_secs_f64()
        ),
    )
}

/// A reply too large to hold: what was read, then the rest as it comes.
///
/// Dropped before its end, it reads the rest in a task of its own, and the slot comes back
/// at the end of that.
struct StreamedReply<S: Slot>(Option<Streaming<S>>);

struct Streaming<S: Slot> {
    stream: TcpStream,
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
        stream: TcpStream,
        slot: S,
        record: Arc<Record>,
        first: Bytes,
        settings: &Settings,
        deadline: Instant,
    ) -> Self {
        Self(Some(Streaming {
            stream,
            slot,
            record,
            first: Some(first),
            balance: Balance::default(),
            total: 0,
            max: settings.max_reply_bytes,
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
            reset(&self.stream);
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
