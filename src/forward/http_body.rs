//! Bodies on their way: the request to the backend, and a reply that is passed on as it arrives.
//!
//! Both can be under way at once: a backend may answer before it has read all of the request, and go on reading.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use tidegate_h1::write::{self, ONE_BUFFER};
use tidegate_h1::{BodyLeft, Framing};
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::{poll_write_both, with_scratch};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::backend::BackendHandle;
use super::failure::Failure;
use super::pinned::ConnectionFate;
use super::streamed::ReplySource;
use super::upstream::Upstream;
use crate::call::{
    BodyError, ClientLeft, HttpCall, Link, OnClientLeft, PolledFrame, Reason, Record, RequestBody,
    Slot,
};

/// Most bytes of one read of a long body.
pub(super) const BODY_BYTES: usize = 32 * 1024;

/// A request on its way.
pub(super) struct Outgoing {
    /// The bytes to write next: the head or the framing of a chunk, and a small body behind the head. They are kept
    /// only if not all of them left at once.
    first: Vec<u8>,
    first_length: usize,
    /// A larger body, or data of a streamed one.
    second: Bytes,
    /// Bytes of these two that have left.
    at: usize,
    /// All bytes that have left.
    written: u64,
    stage: RequestStage,
    /// The rest of the body is still at the client.
    client_owes: bool,
}

/// How far a request is.
#[derive(Clone, Copy)]
enum RequestStage {
    /// The head was not made.
    Unwritten,
    /// More of its body follows.
    Streams { chunked: bool },
    /// The last bytes are being written.
    Last,
    /// All of it has left.
    Sent,
    /// The backend takes no more, or the client sends no more. The backend may have answered before.
    Cut,
}

/// Why a request does not go on.
pub(super) enum Interruption {
    /// The backend takes no more.
    ByBackend(io::Error),
    /// The client left.
    ClientLeft,
    /// The client sent its body too slowly, or malformed.
    ByClient,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            first: Vec::new(),
            first_length: 0,
            second: Bytes::new(),
            at: 0,
            written: 0,
            stage: RequestStage::Unwritten,
            client_owes: false,
        }
    }

    /// Whether all of it has left.
    pub(super) fn is_sent(&self) -> bool {
        matches!(self.stage, RequestStage::Sent)
    }

    /// Whether nothing more leaves.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, RequestStage::Sent | RequestStage::Cut)
    }

    /// Bytes that have left.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Whether the client owes the next part of the body.
    pub(super) fn is_owed(&self) -> bool {
        self.client_owes
    }

    /// Writes as much as the backend takes.
    pub(super) fn poll(
        &mut self,
        call: &mut HttpCall,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Interruption>> {
        let polled = self.poll_parts(call, link, cx);
        if let Poll::Ready(Err(_)) = polled
            && self.written > 0
        {
            self.stage = RequestStage::Cut;
        }
        polled
    }

    fn poll_parts(
        &mut self,
        call: &mut HttpCall,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Interruption>> {
        self.client_owes = false;
        if let RequestStage::Unwritten = self.stage {
            ready!(self.poll_begin(call, link, cx))?;
        }
        loop {
            ready!(self.poll_write(link, cx)).map_err(Interruption::ByBackend)?;
            let RequestStage::Streams { chunked } = self.stage else {
                self.stage = RequestStage::Sent;
                return Poll::Ready(Ok(()));
            };
            match ready!(self.poll_part(call, cx))? {
                Some(data) => self.load(data, chunked, call),
                None => self.load_end(chunked),
            }
        }
    }

    /// Writes the head, with the body if that is small, and sends it. The head of a streamed body leaves with the
    /// body's first part.
    fn poll_begin(
        &mut self,
        call: &mut HttpCall,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Interruption>> {
        if let RequestBody::Streamed { read, .. } = &call.body
            && read.is_empty()
        {
            let part = ready!(self.poll_part(call, cx))?;
            match (&mut call.body, part) {
                (RequestBody::Streamed { read, .. }, Some(part)) => *read = part,
                (body, _) => *body = RequestBody::Whole(Bytes::new()),
            }
        }
        let written = with_scratch(|first| {
            self.write_head(call, first);
            self.first_length = first.len();
            std::mem::swap(first, &mut self.first);
            let written = self.poll_write(link, cx);
            std::mem::swap(first, &mut self.first);
            if self.at < self.first_length {
                self.first = first.clone();
            }
            written
        });
        written.map_err(Interruption::ByBackend)
    }

    fn write_head(&mut self, call: &HttpCall, first: &mut Vec<u8>) {
        match &call.body {
            RequestBody::Whole(body) => {
                let framing = match call.head.has_body || !body.is_empty() {
                    true => Framing::Length(body.len() as u64),
                    false => Framing::None,
                };
                call.head.write(framing, call.forwarded.as_deref(), first);
                if body.len() <= ONE_BUFFER {
                    first.extend_from_slice(body);
                } else {
                    self.second = body.clone();
                }
                self.stage = RequestStage::Last;
            }
            RequestBody::Streamed { read, rest } => {
                let left = rest.size_hint().exact();
                let chunked = left.is_none();
                let framing = left.map_or(Framing::Chunked, |left| {
                    Framing::Length(read.len() as u64 + left)
                });
                call.head.write(framing, call.forwarded.as_deref(), first);
                if chunked {
                    write::chunk_size(read.len(), first);
                }
                self.second = read.clone();
                self.stage = match left {
                    Some(0) => RequestStage::Last,
                    _ => RequestStage::Streams { chunked },
                };
            }
        }
    }

    /// The next part of a streamed body; none at its end.
    fn poll_part(
        &mut self,
        call: &mut HttpCall,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Interruption>> {
        let RequestBody::Streamed { rest, .. } = &mut call.body else {
            return Poll::Ready(Ok(None));
        };
        loop {
            let polled = Pin::new(&mut *rest).poll_frame(cx);
            self.client_owes = polled.is_pending();
            let Some(frame) = ready!(polled) else {
                return Poll::Ready(Ok(None));
            };
            let frame = frame.map_err(|error| match error.is::<ClientLeft>() {
                true => Interruption::ClientLeft,
                false => Interruption::ByClient,
            })?;
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                return Poll::Ready(Ok(Some(data)));
            }
        }
    }

    /// Makes these bytes the next to be written.
    fn load(&mut self, data: Bytes, chunked: bool, call: &mut HttpCall) {
        self.begin_part(chunked);
        if chunked {
            write::chunk_size(data.len(), &mut self.first);
        }
        self.first_length = self.first.len();
        self.second = data;
        if let RequestBody::Streamed { read, rest } = &mut call.body {
            // It was kept in case the call had to be sent elsewhere.
            *read = Bytes::new();
            if !chunked && rest.is_end_stream() {
                self.stage = RequestStage::Last;
            }
        }
    }

    fn load_end(&mut self, chunked: bool) {
        self.begin_part(chunked);
        if chunked {
            self.first.extend_from_slice(write::LAST_CHUNK);
        }
        self.first_length = self.first.len();
        self.stage = RequestStage::Last;
    }

    fn begin_part(&mut self, chunked: bool) {
        self.at = 0;
        self.first.clear();
        self.second = Bytes::new();
        if chunked {
            // The end of the chunk before.
            self.first.extend_from_slice(b"\r\n");
        }
    }

    fn poll_write(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.at < self.first_length + self.second.len() {
            let link = Pin::new(&mut *link);
            let first = self.first.get(self.at..).unwrap_or_default();
            let second = &self.second[self.at.saturating_sub(self.first_length)..];
            match ready!(poll_write_both(link, first, second, cx))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => {
                    self.at += more;
                    self.written += more as u64;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// A request that is still being sent while its reply is passed on.
pub(super) struct LateUpload {
    pub(super) outgoing: Outgoing,
    pub(super) call: Box<HttpCall>,
}

/// A reply whose head has arrived.
pub(super) struct RunningReply<S: Slot> {
    pub(super) upstream: Upstream,
    /// Where the connection goes afterwards; `None` if it cannot be used again, by what is known so far.
    pub(super) keeping: Option<ConnectionFate>,
    pub(super) upload: Option<Box<LateUpload>>,
    pub(super) slot: S,
    pub(super) record: Arc<Record>,
    pub(super) backend: Arc<BackendHandle>,
    pub(super) on_client_left: OnClientLeft,
    pub(super) deadline: Instant,
    /// Bytes of the body so far.
    pub(super) read: u64,
    /// Bytes that came and were not passed on.
    pub(super) here: Bytes,
    pub(super) left: BodyLeft,
    /// Room for the next read. Its memory is used again once what was read has left.
    pub(super) room: BytesMut,
}

impl<S: Slot> RunningReply<S> {
    /// The next part of the body that is here. `None` if more must be read first, or if it has ended.
    fn take_part(&mut self) -> Result<Option<Bytes>, Failure> {
        while !self.here.is_empty() {
            if self.left.has_ended() {
                // It belongs to no reply.
                self.keeping = None;
                self.here.clear();
                return Ok(None);
            }
            let step = self.left.step(&self.here);
            let step = step.map_err(|_| Failure::Chunks)?;
            let _framing = self.here.split_to(step.framing);
            let part = self.here.split_to(step.data);
            if !part.is_empty() {
                self.read += part.len() as u64;
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        self.poll_upload(cx);
        loop {
            if let Some(part) = self.take_part()? {
                // Also reads an end that is here.
                if let BodyLeft::Chunks(_) = self.left {
                    self.read_end()?;
                }
                return Poll::Ready(Ok(Some(part)));
            }
            if self.left.has_ended() {
                return Poll::Ready(Ok(None));
            }
            self.room.reserve(BODY_BYTES);
            let link = Pin::new(&mut self.upstream.link);
            match poll_read_buf(link, cx, &mut self.room) {
                // Only an end that the backend has sent is one. After a reset, or with TLS an end that was not
                // announced, more may have been meant to follow (RFC 9112, 8).
                Poll::Ready(Ok(0)) if matches!(self.left, BodyLeft::Close) => {
                    self.left = BodyLeft::None;
                    self.keeping = None;
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    self.left = BodyLeft::None;
                    self.keeping = None;
                    return Poll::Ready(Err(Failure::CutBody(self.read)));
                }
                Poll::Ready(Ok(_)) => self.here = self.room.split().freeze(),
                Poll::Pending => {
                    ready!(self.upstream.timer.poll_until(self.deadline, cx));
                    let within = self.backend.bounds.response_timeout;
                    return Poll::Ready(Err(Failure::Late(within)));
                }
            }
        }
    }

    /// Goes on sending the request. Its failure does not end a reply that has begun.
    fn poll_upload(&mut self, cx: &mut Context<'_>) {
        if let Some(upload) = &mut self.upload {
            let LateUpload { outgoing, call } = &mut **upload;
            if outgoing.poll(call, &mut self.upstream.link, cx).is_ready() {
                self.upload = None;
            }
        }
    }

    /// Reads the last chunk, if it is the next that is here.
    fn read_end(&mut self) -> Result<(), Failure> {
        let mut ahead = self.left;
        let step = ahead.step(&self.here);
        if step.is_ok_and(|step| step.data == 0) && ahead.has_ended() {
            self.take_part()?;
        }
        Ok(())
    }
}

/// A reply that is too large to hold, or of unknown length.
impl<S: Slot> ReplySource for RunningReply<S> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let part = ready!(self.poll_part(cx));
        if let Err(failure) = &part {
            let reason = match self.deadline <= Instant::now() {
                true => Reason::BackendSlow,
                false => failure.reason(),
            };
            self.record.note(|facts| facts.reason = Some(reason));
        }
        let part = part.map_err(BodyError::from);
        Poll::Ready(part.map(|part| part.map(Frame::data)).transpose())
    }

    fn keeps_sending(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        self.left.has_ended()
    }

    fn on_client_left(&self) -> OnClientLeft {
        self.on_client_left
    }

    fn narrowest(&self) -> Option<u32> {
        self.slot.narrowest()
    }

    fn end(self, outcome: Outcome) {
        let is_clean = self.here.is_empty() && self.upload.is_none() && outcome == Outcome::Served;
        self.record.note(|facts| facts.bytes_out = self.read);
        let since = self.slot.finish(outcome);
        if let Some(keeping) = self.keeping.filter(|_| is_clean) {
            keeping.keep(self.upstream, since, &self.backend);
        }
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.left.length();
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
