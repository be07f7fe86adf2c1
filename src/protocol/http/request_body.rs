//! The body of a request: read whole before the call queues, or streamed once the call has its turn.
//!
//! A streamed body is read from the client only when the backend is ready for more. The connection reads its socket
//! ([`Upload`]); the exchange with the backend takes the parts ([`UploadBody`]).

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tidegate_h1::chunks::Chunks;
use tidegate_h1::{BodyLeft, Framing};
use tidegate_runtime::{Timer, lock};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::super::ClientSettings;
use super::super::stream::ClientStream;
use super::super::wire::OnEof;
use super::head_cache::KnownHead;
use crate::call::{BodyError, ByteStream, ClientLeft, PolledFrame, RequestBody};

/// Most bytes of one read of a streamed body.
const READ_BYTES: usize = 32 * 1024;

/// The grace time of a client before the minimum rate applies.
const GRACE: Duration = Duration::from_secs(5);

/// The part of a body that must be here before its call can queue.
#[derive(Clone, Copy)]
pub(super) enum BodyNeed {
    /// A number of bytes of head and body; all of the body, unless it is larger than may be held.
    Bytes(usize),
    /// Chunks up to the last one, or up to what may be held.
    Chunks {
        chunks: Chunks,
        /// How far they were read, in bytes of head and body.
        at: usize,
        /// Bytes of data so far.
        data: usize,
    },
}

/// A body as far as it was read.
pub(super) enum ReadBody {
    /// More bytes are needed.
    Partial,
    /// Enough of it is here. The message has this number of bytes so far.
    Ready(RequestBody, Option<Box<Upload>>, usize),
    /// The chunks are malformed.
    Malformed,
}

impl BodyNeed {
    /// Computes the need of this request's body. `waits` is whether its client waits for a permission to send it,
    /// which it gets when the call has its turn.
    pub(super) fn of(head: &KnownHead, waits: bool, settings: &ClientSettings) -> Self {
        match head.framing {
            Framing::Length(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let wanted = if waits { 0 } else { length };
                Self::Bytes(head.length + wanted.min(settings.buffer_bytes))
            }
            Framing::Chunked => Self::Chunks {
                chunks: Chunks::default(),
                at: head.length,
                data: 0,
            },
            Framing::None | Framing::Close => Self::Bytes(head.length),
        }
    }

    /// Reads the body behind a head.
    pub(super) fn read(
        &mut self,
        head: &KnownHead,
        waits: bool,
        bytes: &[u8],
        settings: &ClientSettings,
    ) -> ReadBody {
        match self {
            Self::Bytes(needed) if bytes.len() < *needed => ReadBody::Partial,
            Self::Bytes(_) => {
                let length = match head.framing {
                    Framing::Length(length) => length,
                    Framing::None | Framing::Chunked | Framing::Close => 0,
                };
                let here = (bytes.len() - head.length) as u64;
                let is_whole = length <= here && length <= settings.buffer_bytes as u64;
                let taken = match usize::try_from(length) {
                    Ok(length) if is_whole => length,
                    _ => (bytes.len() - head.length).min(settings.buffer_bytes),
                };
                let end = head.length + taken;
                let body = Bytes::copy_from_slice(&bytes[head.length..end]);
                if is_whole {
                    return ReadBody::Ready(RequestBody::Whole(body), None, end);
                }
                let left = BodyLeft::Length(length - taken as u64);
                let (body, upload) = Upload::start(body, left, waits, settings);
                ReadBody::Ready(body, Some(upload), end)
            }
            Self::Chunks { chunks, at, data } => {
                while *at < bytes.len() && !chunks.has_ended() {
                    let Ok(step) = chunks.step(&bytes[*at..]) else {
                        return ReadBody::Malformed;
                    };
                    *at += step.framing + step.data;
                    *data += step.data;
                }
                // A chunk of one byte has five bytes of framing.
                let most = settings.buffer_bytes.saturating_mul(6);
                let is_large = *data > settings.buffer_bytes || *at - head.length > most || waits;
                if !chunks.has_ended() && !is_large {
                    return ReadBody::Partial;
                }
                let body = data_of(&bytes[head.length..*at], *data);
                if chunks.has_ended() {
                    return ReadBody::Ready(RequestBody::Whole(body), None, *at);
                }
                let (body, upload) =
                    Upload::start(body, BodyLeft::Chunks(*chunks), waits, settings);
                ReadBody::Ready(body, Some(upload), *at)
            }
        }
    }
}

/// The data of chunks that were read before.
fn data_of(mut bytes: &[u8], length: usize) -> Bytes {
    let mut data = Vec::with_capacity(length);
    let mut chunks = Chunks::default();
    while !bytes.is_empty() {
        let Ok(step) = chunks.step(bytes) else { break };
        data.extend_from_slice(&bytes[step.framing..step.framing + step.data]);
        bytes = &bytes[step.framing + step.data..];
    }
    data.into()
}

/// A streamed body, as the connection reads it.
pub(super) struct Upload {
    shared: Arc<Mutex<UploadState>>,
    left: BodyLeft,
    /// The client waits for the permission to send.
    waits: bool,
    /// Bytes that came and were not taken.
    here: Bytes,
    /// Room for the next read. Its memory is used again once what was read has left.
    room: BytesMut,
    body_timeout: Duration,
    min_rate: u32,
    received: u64,
    /// How long the client has delayed the backend.
    delayed: Duration,
    delays_since: Option<Instant>,
}

/// The connection's and the exchange's side of a streamed body.
struct UploadState {
    /// The next part, or why there is none.
    part: Option<Result<Bytes, BodyError>>,
    /// The exchange waits for a part.
    is_wanted: bool,
    /// No part follows.
    has_ended: bool,
    /// Bytes that the exchange has not got, if that is known.
    left: Option<u64>,
    waker: Option<Waker>,
}

impl Upload {
    fn start(
        read: Bytes,
        left: BodyLeft,
        waits: bool,
        settings: &ClientSettings,
    ) -> (RequestBody, Box<Self>) {
        let shared = Arc::new(Mutex::new(UploadState {
            part: None,
            is_wanted: false,
            has_ended: false,
            left: left.length(),
            waker: None,
        }));
        let rest = ByteStream::new(UploadBody(Arc::clone(&shared)));
        let upload = Self {
            // A client that sends its body at once does not wait for the permission.
            waits: waits && read.is_empty(),
            shared,
            left,
            here: Bytes::new(),
            room: BytesMut::new(),
            body_timeout: settings.body_timeout,
            min_rate: settings.body_min_rate,
            received: 0,
            delayed: Duration::ZERO,
            delays_since: None,
        };
        (RequestBody::Streamed { read, rest }, Box::new(upload))
    }

    /// Takes bytes that came behind the part that was read.
    pub(super) fn take(&mut self, bytes: Vec<u8>) {
        self.here = bytes.into();
    }

    /// Whether all of the body was read.
    pub(super) fn has_ended(&self) -> bool {
        self.left.has_ended()
    }

    /// Bytes behind the body, which belong to the next request.
    pub(super) fn take_surplus(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.here).into()
    }

    /// Whether the client must be given the permission to send, now that the backend is ready. Returned once.
    pub(super) fn takes_permission(&mut self) -> bool {
        self.waits && lock(&self.shared).is_wanted && std::mem::take(&mut self.waits)
    }

    /// Reads the next part if the backend is ready for it. Ready when the exchange has something new.
    pub(super) fn poll(
        &mut self,
        stream: &mut ClientStream,
        on_eof: OnEof,
        timer: &mut Timer,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if !lock(&self.shared).is_wanted {
            return Poll::Pending;
        }
        loop {
            match self.take_part() {
                Ok(part) if part.is_some() || self.has_ended() => {
                    self.deliver(part.map(Ok));
                    return Poll::Ready(());
                }
                Ok(_) => {}
                Err(error) => {
                    self.deliver(Some(Err(error)));
                    return Poll::Ready(());
                }
            }
            self.room.reserve(READ_BYTES);
            match poll_read_buf(Pin::new(&mut *stream), cx, &mut self.room) {
                Poll::Ready(Ok(1..)) => {
                    self.end_delay();
                    self.here = self.room.split().freeze();
                }
                Poll::Ready(read) => {
                    let is_here = read.is_ok() && on_eof == OnEof::Stays;
                    self.deliver(Some(Err(match is_here {
                        true => "the request's body ends in the middle".into(),
                        false => ClientLeft.into(),
                    })));
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    let since = *self.delays_since.get_or_insert_with(Instant::now);
                    let due = since + self.patience().saturating_sub(self.delayed);
                    ready!(timer.poll_until(due, cx));
                    self.deliver(Some(Err("the client sends its body too slowly".into())));
                    return Poll::Ready(());
                }
            }
        }
    }

    /// The next part that is here.
    fn take_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        while !self.here.is_empty() && !self.has_ended() {
            let step = self.left.step(&self.here);
            let step = step.map_err(|_| "the chunks of the request are malformed")?;
            let _framing = self.here.split_to(step.framing);
            let part = self.here.split_to(step.data);
            if !part.is_empty() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn deliver(&mut self, part: Option<Result<Bytes, BodyError>>) {
        if let Some(Ok(bytes)) = &part {
            self.received += bytes.len() as u64;
        }
        let has_failed = matches!(part, Some(Err(_)));
        let mut state = lock(&self.shared);
        state.part = part;
        state.is_wanted = false;
        state.has_ended = has_failed || self.has_ended();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn end_delay(&mut self) {
        if let Some(since) = self.delays_since.take() {
            self.delayed += since.elapsed();
        }
    }

    /// How long the client may have delayed the backend by now. The time in which the backend is not ready does not
    /// count.
    fn patience(&self) -> Duration {
        let earned =
            Duration::from_secs_f64(self.received as f64 / f64::from(self.min_rate.max(1)));
        (GRACE + earned).min(self.body_timeout)
    }
}

/// The connection has ended, so no more of the body comes.
impl Drop for Upload {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.deliver(Some(Err(ClientLeft.into())));
        }
    }
}

/// A streamed body, as the exchange takes it.
struct UploadBody(Arc<Mutex<UploadState>>);

impl Body for UploadBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut state = lock(&self.0);
        if let Some(part) = state.part.take() {
            if let (Ok(bytes), Some(left)) = (&part, &mut state.left) {
                *left -= bytes.len() as u64;
            }
            return Poll::Ready(Some(part.map(Frame::data)));
        }
        if state.has_ended {
            return Poll::Ready(None);
        }
        state.is_wanted = true;
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        state.has_ended && state.part.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = lock(&self.0).left;
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
