//! An answer to a request: its head with one framing, its body, and how it leaves.
//!
//! A small answer leaves in one write. A body that breaks off never looks whole: chunks end without the last one, and
//! a body that ends with the connection ends in a reset.

mod later;

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as _;
use tidegate_h1::request::HttpVersion;
use tidegate_h1::write::{self, ONE_BUFFER};
use tidegate_runtime::with_scratch;

use super::super::dialect;
use super::answer::{self, tell_quota};
use super::client_socket::ClientSocket;
use super::head_cache::KnownHead;
use super::upload::Upload;
use super::{date, events};
use crate::call::{
    BackendKind, ByteStream, Head, PinnedConnection, RateLimitStatus, Reason, Refusal, Reply,
    ReplyBody, ReplyHead, Tunnel,
};

/// The form that the request requires of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyForm {
    pub(super) version: HttpVersion,
    /// The request was HEAD: the answer has no body.
    to_head: bool,
    /// The connection ends behind it.
    pub(super) closes: bool,
}

impl ReplyForm {
    /// The form of the answer to a request with this head.
    pub(super) fn of(head: &KnownHead) -> Self {
        Self {
            version: head.version,
            to_head: head.head.method == http::Method::HEAD,
            closes: head.closes,
        }
    }

    /// The form of the answer to a request that cannot be read.
    pub(super) fn of_refused(to_head: bool) -> Self {
        Self {
            version: HttpVersion::Http11,
            to_head,
            closes: true,
        }
    }

    /// Whether the answer may have a body.
    pub(super) fn has_body(self) -> bool {
        !self.to_head
    }

    /// The connection ends behind the answer.
    pub(super) fn closing(self) -> Self {
        Self {
            closes: true,
            ..self
        }
    }
}

/// An answer, up to its last byte.
pub(super) struct HttpAnswer {
    pub(super) head: Box<ReplyHead>,
    pub(super) body: ReplyBody,
    pub(super) form: ReplyForm,
    /// Interim answers that have not left.
    pub(super) ahead: Vec<u8>,
    /// Fields of our own, as lines.
    more: Vec<u8>,
    /// The head has left: this is the rest of an event stream.
    pub(super) is_continued: bool,
    pub(super) pinned: Option<PinnedConnection>,
}

/// The part of an answer after its first bytes.
enum Rest {
    None,
    Whole(Bytes),
    Stream(ByteStream, StreamFraming),
    /// Another protocol.
    Tunnel(Box<Tunnel>),
}

/// How the end of a streamed body is signalled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamFraming {
    /// The body has as many bytes as the head says.
    Length,
    Chunks,
    /// The body ends with the connection.
    Close,
}

/// How far an answer was written.
pub(super) enum WriteProgress {
    /// All of it has left, without a wait.
    AtOnce,
    /// All of it has left.
    Later,
    /// The head of the answer has left, and the connection speaks another protocol now.
    Tunnel(Box<Tunnel>),
}

/// The rest of an answer after its first bytes.
struct UnsentAnswer {
    first: Vec<u8>,
    rest: Rest,
}

/// The answer cannot be written to its end.
pub(super) struct WriteError;

impl HttpAnswer {
    /// The answer to a call.
    pub(super) fn of(
        mut reply: Result<Reply, Refusal>,
        mut form: ReplyForm,
        kind: BackendKind,
    ) -> Self {
        let pinned = match &mut reply {
            Ok(reply) => reply.pinned.take(),
            Err(refusal) => {
                // The rest of the request was not read.
                form.closes |= matches!(refusal.reason, Reason::TooLarge | Reason::RequestSlow);
                None
            }
        };
        let (head, body) = answer::answer(reply, kind);
        let mut answer = Self::new(head, body, form);
        answer.pinned = pinned;
        answer
    }

    /// An answer of these parts.
    pub(super) fn new(head: Box<ReplyHead>, body: ReplyBody, form: ReplyForm) -> Self {
        Self {
            head,
            body,
            form,
            ahead: Vec::new(),
            more: Vec::new(),
            is_continued: false,
            pinned: None,
        }
    }

    /// The answer to a request that may not be forwarded any more: to TRACE the request itself, without what may be
    /// secret (RFC 9110, 9.3.8), and to OPTIONS nothing.
    pub(super) fn as_last(head: &Head, form: ReplyForm) -> Self {
        let mut response = http::Response::new(ReplyBody::whole(Bytes::new()));
        if head.method == http::Method::TRACE {
            let mut seen = Vec::new();
            write::request_line(b"TRACE", head.target().as_bytes(), &mut seen);
            let is_secret = |name: &[u8]| {
                ["authorization", "cookie", "x-auth-token"]
                    .iter()
                    .any(|secret| name.eq_ignore_ascii_case(secret.as_bytes()))
            };
            for (name, value) in head.headers.iter().filter(|(name, _)| !is_secret(name)) {
                write::field(name, value, &mut seen);
            }
            seen.extend_from_slice(b"\r\n");
            *response.body_mut() = ReplyBody::whole(seen.into());
            let message = http::HeaderValue::from_static("message/http");
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, message);
        }
        let (head, body) = answer::own(response);
        Self::new(head, body, form)
    }

    /// Whether its length is not known when it begins.
    pub(super) fn is_stream(&self) -> bool {
        matches!(&self.body, ReplyBody::Stream(body) if body.size_hint().exact().is_none())
    }

    /// Adds what is known of the call: what its rate limit has left, and its id if it has waited.
    pub(super) fn add(&mut self, quota: Option<&RateLimitStatus>, waited: Option<u64>) {
        if let Some(quota) = quota {
            let mut more = http::HeaderMap::new();
            tell_quota(quota, &mut more);
            for (name, value) in &more {
                self.add_field(name, value.as_bytes());
            }
        }
        if let Some(id) = waited {
            self.add_field(&answer::CALL, dialect::call_id(id).as_bytes());
        }
    }

    /// Adds a field, instead of those with the same name.
    pub(super) fn add_field(&mut self, name: &http::HeaderName, value: &[u8]) {
        self.head.headers.remove(name.as_str());
        write::field(name.as_str().as_bytes(), value, &mut self.more);
    }

    /// Sets how the end of the body is signalled: a client of HTTP/1.0 knows no chunks, so it sees the end of the
    /// connection.
    pub(super) fn set_framing(&mut self) {
        if self.form.version == HttpVersion::Http10 && !self.form.to_head && self.is_stream() {
            self.form.closes = true;
        }
    }

    /// Writes what follows the head of an event stream.
    fn continue_stream(self, first: &mut Vec<u8>) -> Rest {
        first.extend_from_slice(&self.ahead);
        match self.body {
            ReplyBody::Stream(body) => return Rest::Stream(body, StreamFraming::Chunks),
            ReplyBody::Whole(events) => events::end_with(&events.unwrap_or_default(), first),
            ReplyBody::Tunnel(_) => {}
        }
        Rest::None
    }

    /// Writes the head with one framing, and a small body behind it.
    fn begin(self, first: &mut Vec<u8>) -> Rest {
        if self.is_continued {
            return self.continue_stream(first);
        }
        let Self {
            head,
            body,
            form,
            ahead,
            more,
            ..
        } = self;
        let status = head.status.as_u16();
        let has_no_body = matches!(status, 100..=199 | 204 | 304);
        first.extend_from_slice(&ahead);
        let at = first.len();
        head.write(first);
        if form.version == HttpVersion::Http10 {
            let minor = at + b"HTTP/1.".len();
            first[minor] = b'0';
        }
        if let ReplyBody::Tunnel(Some(tunnel)) = body {
            write::upgrade(head.upgrade().unwrap_or_default(), first);
            first.extend_from_slice(b"\r\n");
            return Rest::Tunnel(tunnel);
        }
        if !head.headers.contains("date") {
            write::field(b"date", &date::now(), first);
        }
        first.extend_from_slice(&more);
        match form.version {
            _ if form.closes => write::field(b"connection", b"close", first),
            HttpVersion::Http10 => write::field(b"connection", b"keep-alive", first),
            HttpVersion::Http11 => {}
        }
        let rest = match body {
            body if form.to_head || has_no_body => {
                let whole = match &body {
                    ReplyBody::Whole(Some(bytes)) if form.to_head => Some(bytes.len() as u64),
                    _ => None,
                };
                let length = head.length.filter(|_| form.to_head);
                if let Some(length) = length.or(whole) {
                    write::content_length(length, first);
                }
                Rest::None
            }
            ReplyBody::Whole(bytes) => {
                let bytes = bytes.unwrap_or_default();
                write::content_length(bytes.len() as u64, first);
                Rest::Whole(bytes)
            }
            ReplyBody::Stream(body) => {
                let streamed_as = match (body.size_hint().exact(), form.version) {
                    (Some(length), _) => {
                        write::content_length(length, first);
                        StreamFraming::Length
                    }
                    (None, HttpVersion::Http11) => {
                        write::chunked(first);
                        StreamFraming::Chunks
                    }
                    (None, HttpVersion::Http10) => StreamFraming::Close,
                };
                Rest::Stream(body, streamed_as)
            }
            ReplyBody::Tunnel(_) => Rest::None,
        };
        first.extend_from_slice(b"\r\n");
        match rest {
            Rest::Whole(bytes) if bytes.len() <= ONE_BUFFER => {
                first.extend_from_slice(&bytes);
                Rest::None
            }
            rest => rest,
        }
    }
}

impl ClientSocket {
    /// Sends an answer. Meanwhile an upload that the backend still reads goes on.
    // Not an `async fn`, which has room for its arguments twice.
    pub(super) fn send<'a>(
        &'a mut self,
        answer: HttpAnswer,
        upload: &'a mut Option<Box<Upload>>,
    ) -> impl Future<Output = Result<WriteProgress, WriteError>> + Send + 'a {
        let mut answer = Some(answer);
        async move {
            let rest = poll_fn(|cx| {
                let answer = answer.take().expect("it is sent once");
                Poll::Ready(self.write_first(answer, cx))
            });
            match rest.await {
                None => Ok(WriteProgress::AtOnce),
                // Boxed, so that no other call pays for it.
                Some(rest) => Box::pin(self.send_rest(rest, upload)).await,
            }
        }
    }

    /// Writes the first bytes of an answer. Returns what remains.
    fn write_first(
        &mut self,
        answer: HttpAnswer,
        cx: &mut Context<'_>,
    ) -> Option<Box<UnsentAnswer>> {
        with_scratch(|first| {
            let rest = answer.begin(first);
            let written = match rest {
                Rest::None => self.stream.write_at_once(first, cx),
                _ => 0,
            };
            let is_sent = written == first.len() && matches!(rest, Rest::None);
            (!is_sent).then(|| {
                let first = first[written..].to_vec();
                Box::new(UnsentAnswer { first, rest })
            })
        })
    }
}
