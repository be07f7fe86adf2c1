//! Reads requests from a client's socket, one after the other, each within its time.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_h1::request::{BadHead, HeadBounds};
use tidegate_h1::{Framing, HeadEnd, write};
use tidegate_limits::Timestamp;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::WaitForCancellationFuture;

use super::super::{ClientSettings, Conversation};
use super::client_socket::ClientSocket;
use super::head_cache::{self, KnownHead};
use super::http2;
use super::received::{self, HEAD_BYTES, cut_body, slow_body};
use super::request_body::{BodyNeed, ReadBody};
use super::respond::ReplyForm;
use super::upload::Upload;
use crate::call::{HttpCall, Refusal, Serve};

/// Most bytes of one read. Most requests are smaller.
const READ_BYTES: usize = 8 * 1024;

/// Requests of a connection, as far as they were read.
pub(super) struct RequestReader {
    /// Bytes that came and were not read: pipelined requests, or a part of one.
    pub(super) held: Vec<u8>,
    /// Finds the end of a head at their front, once they were looked at.
    end: Option<HeadEnd>,
    /// The request at the front of `held`, whose body is not here.
    pub(super) pending: Option<Box<PendingRequest>>,
    /// When the latest bytes came.
    pub(super) came: Timestamp,
    /// When the phase began: idle, a head, a body.
    since: Timestamp,
    /// The client sends no more.
    has_ended: bool,
    watches_stop: bool,
    /// The kernel was asked for a last request.
    asks_kernel: bool,
    /// No request of this connection was served.
    pub(super) is_first: bool,
}

/// A request whose head is here, and its body in part.
pub(super) struct PendingRequest {
    pub(super) head: KnownHead,
    /// When its body began to be waited for.
    since: Option<Timestamp>,
    need: BodyNeed,
    /// The client waits for the permission to send, which it gets with the call's turn.
    waits: bool,
    /// Bytes of the permission that have not left, if the client gets it at once.
    permission: Vec<u8>,
}

/// A request that is ready to queue.
pub(super) struct ReadyRequest {
    pub(super) call: Box<HttpCall>,
    pub(super) upload: Option<Box<Upload>>,
    pub(super) form: ReplyForm,
    pub(super) max_forwards: Option<u32>,
}

/// The result of reading.
pub(super) enum ReadOutcome {
    Request(ReadyRequest),
    /// A head that cannot be passed on.
    BadHead(Box<BadHead>),
    /// The body of the pending request failed.
    Refused(Box<Refusal>),
    /// The client has ended, or the sidecar stops.
    End,
    /// The time is over.
    Late,
}

/// The result of reading some bytes.
enum ReadProgress {
    /// An outcome, and how many bytes it takes.
    Outcome(ReadOutcome, usize),
    Partial,
}

impl RequestReader {
    /// The reader of a connection whose first bytes came at this moment.
    pub(super) fn new(bytes: Vec<u8>, came: Timestamp) -> Self {
        Self {
            held: bytes,
            end: None,
            pending: None,
            came,
            since: came,
            has_ended: false,
            watches_stop: false,
            asks_kernel: false,
            is_first: true,
        }
    }

    /// The connection is idle from this moment on.
    pub(super) fn restart(&mut self, since: Timestamp) {
        self.since = since;
        self.asks_kernel = false;
    }

    /// The next request, as much of it as is needed before it queues.
    pub(super) fn poll_request<S: Serve>(
        &mut self,
        socket: &mut ClientSocket,
        conversation: &Conversation<S>,
        cx: &mut Context<'_>,
        mut stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<ReadOutcome> {
        if !self.held.is_empty()
            && self.pending.is_none()
            && let Some(outcome) = self.take_held(socket, conversation)
        {
            return Poll::Ready(outcome);
        }
        loop {
            if self.has_ended {
                return Poll::Ready(self.ended());
            }
            if let Some(pending) = &mut self.pending
                && !pending.permission.is_empty()
            {
                // An error shows again at the next read.
                let _ = socket.stream.write_ahead(&mut pending.permission, cx);
            }
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut socket.stream).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => {
                    self.has_ended = true;
                    continue;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(ReadOutcome::Late),
                Poll::Pending => match self.poll_over(socket, conversation, cx, stop.as_mut()) {
                    Poll::Ready(WaitEnd::Late) => {
                        return Poll::Ready(self.late(&conversation.settings));
                    }
                    // The kernel may have what the runtime does not know of yet.
                    Poll::Ready(WaitEnd::AskKernel) => {
                        self.asks_kernel = true;
                        socket.stream.look();
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
            self.came = conversation.clock.now();
            let bytes = chunk.filled();
            if self.held.is_empty() {
                match self.read(socket, conversation, bytes) {
                    ReadProgress::Outcome(outcome, taken) => {
                        self.held = bytes[taken..].to_vec();
                        return Poll::Ready(self.give_rest_to_upload(outcome));
                    }
                    ReadProgress::Partial => {
                        self.hold(bytes);
                        self.end.get_or_insert_default().is_in(bytes);
                        self.begin_phase();
                    }
                }
            } else {
                self.hold(bytes);
                if let Some(outcome) = self.take_held(socket, conversation) {
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// A part of a request is here: its time begins.
    fn begin_phase(&mut self) {
        self.since = self.came;
        self.asks_kernel = false;
    }

    /// Keeps bytes of a request that is not whole.
    fn hold(&mut self, bytes: &[u8]) {
        if let Some(pending) = &self.pending
            && let BodyNeed::Bytes(needed) = pending.need
        {
            let more = needed.saturating_sub(self.held.len());
            self.held.reserve_exact(more.max(bytes.len()));
        }
        self.held.extend_from_slice(bytes);
    }

    /// Reads the request at the front of what is held.
    fn take_held<S: Serve>(
        &mut self,
        socket: &ClientSocket,
        conversation: &Conversation<S>,
    ) -> Option<ReadOutcome> {
        let held = std::mem::take(&mut self.held);
        let progressed = match self.pending.is_some() || self.is_worth_a_look(&held) {
            true => self.read(socket, conversation, &held),
            false => ReadProgress::Partial,
        };
        self.held = held;
        match progressed {
            ReadProgress::Outcome(outcome, taken) => {
                self.end = None;
                if taken == self.held.len() {
                    self.held = Vec::new();
                } else {
                    self.held.drain(..taken);
                }
                Some(self.give_rest_to_upload(outcome))
            }
            ReadProgress::Partial => None,
        }
    }

    /// Gives an upload the bytes that came behind the part of its body that was read.
    fn give_rest_to_upload(&mut self, mut outcome: ReadOutcome) -> ReadOutcome {
        if let ReadOutcome::Request(ReadyRequest {
            upload: Some(upload),
            ..
        }) = &mut outcome
        {
            upload.take(std::mem::take(&mut self.held));
        }
        outcome
    }

    /// Whether a head is whole, or was not looked at before: most bad ones show at once. Looks at each byte once,
    /// so that a client that sends byte by byte does not cost a parse for each.
    fn is_worth_a_look(&mut self, held: &[u8]) -> bool {
        let is_first = self.end.is_none();
        let is_whole = self.end.get_or_insert_default().is_in(held);
        is_first || is_whole || held.len() > HEAD_BYTES
    }

    /// Reads the request at the front of these bytes.
    fn read<S: Serve>(
        &mut self,
        socket: &ClientSocket,
        conversation: &Conversation<S>,
        bytes: &[u8],
    ) -> ReadProgress {
        let mut pending = match self.pending.take() {
            Some(pending) => *pending,
            None => match Self::read_head(socket, conversation, bytes) {
                Ok(Some(pending)) => pending,
                Ok(None) => return ReadProgress::Partial,
                // A client of HTTP/2 would not read an answer to a part of its preface.
                Err(_) if self.is_first && http2::is_begun(bytes) => return ReadProgress::Partial,
                Err(bad) => {
                    // Its fields are parts of these bytes.
                    self.held = bytes.to_vec();
                    return ReadProgress::Outcome(ReadOutcome::BadHead(bad), 0);
                }
            },
        };
        let PendingRequest {
            head, need, waits, ..
        } = &mut pending;
        match need.read(head, *waits, bytes, &conversation.settings) {
            ReadBody::Ready(body, upload, length) => {
                let request = ReadyRequest {
                    form: ReplyForm::of(head),
                    max_forwards: head.max_forwards,
                    call: Box::new(HttpCall::new(Arc::clone(&head.head), body)),
                    upload,
                };
                ReadProgress::Outcome(ReadOutcome::Request(request), length)
            }
            ReadBody::Malformed => {
                self.pending = Some(Box::new(pending));
                let refusal = Box::new(received::bad_chunks());
                ReadProgress::Outcome(ReadOutcome::Refused(refusal), 0)
            }
            ReadBody::Partial => {
                pending.since.get_or_insert(self.came);
                self.pending = Some(Box::new(pending));
                ReadProgress::Partial
            }
        }
    }

    /// Reads a head, and what its body needs.
    fn read_head<S: Serve>(
        socket: &ClientSocket,
        conversation: &Conversation<S>,
        bytes: &[u8],
    ) -> Result<Option<PendingRequest>, Box<BadHead>> {
        let bounds = HeadBounds {
            fields: conversation.settings.max_request_fields,
            bytes: HEAD_BYTES,
        };
        let local = || received::local_host(socket.stream.tcp());
        let Some(head) = head_cache::read(bytes, bounds, local)? else {
            return Ok(None);
        };
        let expects = head.expects_continue && bytes.len() == head.length;
        let is_large = match head.framing {
            Framing::Length(length) => length > conversation.settings.buffer_bytes as u64,
            Framing::None | Framing::Chunked | Framing::Close => false,
        };
        // A body that is needed and too large to be held is not asked for: its call is refused.
        let waits = expects && (is_large || !conversation.serve.needs_body(&head.head));
        let permission = match expects && !waits {
            true => write::CONTINUE.to_vec(),
            false => Vec::new(),
        };
        Ok(Some(PendingRequest {
            need: BodyNeed::of(&head, waits, &conversation.settings),
            head,
            since: None,
            waits,
            permission,
        }))
    }

    /// The client sends no more.
    fn ended(&mut self) -> ReadOutcome {
        match self.pending {
            Some(_) => ReadOutcome::Refused(Box::new(cut_body())),
            None => ReadOutcome::End,
        }
    }

    /// The time for the next bytes is over.
    fn late(&mut self, settings: &ClientSettings) -> ReadOutcome {
        match self.pending {
            Some(_) => ReadOutcome::Refused(Box::new(slow_body(settings.request_timeout))),
            None if self.asks_kernel && self.held.is_empty() => ReadOutcome::End,
            None => ReadOutcome::Late,
        }
    }

    /// Ready when nothing more is waited for.
    fn poll_over<S: Serve>(
        &mut self,
        socket: &mut ClientSocket,
        conversation: &Conversation<S>,
        cx: &mut Context<'_>,
        stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<WaitEnd> {
        let over = match self.asks_kernel {
            true => WaitEnd::Late,
            false => WaitEnd::AskKernel,
        };
        let due = match (&self.pending, self.held.is_empty()) {
            (Some(pending), _) => {
                let since = pending.since.unwrap_or(self.since);
                since + conversation.settings.request_timeout
            }
            (None, false) => self.since + conversation.settings.request_timeout,
            (None, true) => self.since + conversation.settings.idle_timeout,
        };
        if self.held.is_empty() && self.pending.is_none() {
            // Asked once, a token wakes this task by itself; after that its flag says enough.
            let is_stopped = if self.watches_stop {
                conversation.stop.is_set()
            } else {
                self.watches_stop = true;
                stop.poll(cx).is_ready()
            };
            if is_stopped {
                // An idle connection is closed only if the kernel has no request either.
                return Poll::Ready(over);
            }
        }
        let due = conversation.clock.instant(due);
        ready!(socket.timer.poll_until(due, cx));
        Poll::Ready(over)
    }
}

/// Why the wait for more bytes is over.
enum WaitEnd {
    /// The kernel is asked once more.
    AskKernel,
    /// No bytes came in time.
    Late,
}
