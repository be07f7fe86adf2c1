//! A request on its way to the backend.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use tidegate_h1::Framing;
use tidegate_h1::write::{self, ONE_BUFFER};
use tidegate_runtime::{poll_write_both, with_scratch};

use crate::call::{ClientLeft, HttpCall, Link, RequestBody};

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
