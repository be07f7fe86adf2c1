//! An answer to a request: its head with one framing, its body, and how it leaves.
//!
//! A small answer leaves in one write. A body that breaks off never looks whole: chunks end without the last one, and
//! a body that ends with the connection ends in a reset.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use tidegate_h1::request::HttpVersion;
use tidegate_h1::write::{self, ONE_BUFFER};
use tidegate_runtime::{poll_write_both, with_scratch};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::super::dialect;
use super::super::io::{LINGER, UnreadBytes};
use super::answer::{self, tell_quota};
use super::client_socket::ClientSocket;
use super::date;
use super::head_cache::KnownHead;
use super::request_body::Upload;
use crate::call::{
    BackendKind, ByteStream, Head, PinnedConnection, RateLimitStatus, Reason, Refusal, Reply,
    ReplyBody, ReplyHead, Tunnel,
};

/// The end of a chunk.
const BEHIND_CHUNK: &[u8] = b"\r\n";

/// How long a client may still send a body that was not read, so that it sees the answer first: in all, and without
/// a byte.
const LINGER_UPLOAD: Duration = Duration::from_secs(30);
const LINGER_SILENCE: Duration = Duration::from_secs(5);

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
    head: Box<ReplyHead>,
    body: ReplyBody,
    pub(super) form: ReplyForm,
    /// Interim answers that have not left.
    pub(super) ahead: Vec<u8>,
    /// Fields of our own, as lines.
    more: Vec<u8>,
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

    fn new(head: Box<ReplyHead>, body: ReplyBody, form: ReplyForm) -> Self {
        Self {
            head,
            body,
            form,
            ahead: Vec::new(),
            more: Vec::new(),
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
    fn add_field(&mut self, name: &http::HeaderName, value: &[u8]) {
        self.head.headers.remove(name.as_str());
        write::field(name.as_str().as_bytes(), value, &mut self.more);
    }

    /// Sets how the end of the body is signalled: a client of HTTP/1.0 knows no chunks, so it sees the end of the
    /// connection.
    pub(super) fn settle(&mut self) {
        if self.form.version == HttpVersion::Http10 && !self.form.to_head && self.is_stream() {
            self.form.closes = true;
        }
    }

    /// Writes the head with one framing, and a small body behind it.
    fn begin(self, first: &mut Vec<u8>) -> Rest {
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

    async fn send_rest(
        &mut self,
        unsent: Box<UnsentAnswer>,
        upload: &mut Option<Box<Upload>>,
    ) -> Result<WriteProgress, WriteError> {
        let UnsentAnswer { first, rest } = *unsent;
        match rest {
            Rest::None => self.write(&first, &[], upload).await?,
            Rest::Whole(bytes) => self.write(&first, &bytes, upload).await?,
            Rest::Stream(body, streamed_as) => {
                self.stream_body(first, body, streamed_as, upload).await?;
            }
            Rest::Tunnel(tunnel) => {
                self.write(&first, &[], upload).await?;
                return Ok(WriteProgress::Tunnel(tunnel));
            }
        }
        Ok(WriteProgress::Later)
    }

    /// Writes a body as it arrives. If it breaks off, so does the answer. If the client leaves, the body is dropped.
    async fn stream_body(
        &mut self,
        mut first: Vec<u8>,
        mut body: ByteStream,
        streamed_as: StreamFraming,
        upload: &mut Option<Box<Upload>>,
    ) -> Result<(), WriteError> {
        let chunked = streamed_as == StreamFraming::Chunks;
        loop {
            let frame = poll_fn(|cx| {
                self.poll_upload(upload, cx);
                if let ready @ Poll::Ready(_) = Pin::new(&mut body).poll_frame(cx) {
                    return ready;
                }
                // What is here goes out before the wait.
                if !first.is_empty() {
                    return Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::new()))));
                }
                self.stream
                    .poll_left(cx, self.on_eof)
                    .map(|()| Some(Err("the client has left".into())))
            })
            .await;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| WriteError)?.into_data() else {
                continue;
            };
            if chunked && !data.is_empty() {
                write::chunk_size(data.len(), &mut first);
                self.write(&first, &data, upload).await?;
                first.clear();
                first.extend_from_slice(BEHIND_CHUNK);
                if !body.is_end_stream() {
                    continue;
                }
                break;
            }
            self.write(&first, &data, upload).await?;
            first.clear();
        }
        if chunked {
            first.extend_from_slice(write::LAST_CHUNK);
        }
        self.write(&first, &[], upload).await
    }

    /// Goes on reading a body while its answer leaves already.
    fn poll_upload(&mut self, upload: &mut Option<Box<Upload>>, cx: &mut Context<'_>) {
        if let Some(upload) = upload {
            // The exchange is woken, in this task, and takes what was read.
            let _ = upload.poll(&mut self.stream, self.on_eof, &mut self.timer, cx);
        }
    }

    pub(super) async fn write(
        &mut self,
        first: &[u8],
        second: &[u8],
        upload: &mut Option<Box<Upload>>,
    ) -> Result<(), WriteError> {
        let mut written = 0;
        let mut stalled_since = None;
        poll_fn(|cx| {
            while written < first.len() + second.len() {
                let stream = Pin::new(&mut self.stream);
                let first_left = first.get(written..).unwrap_or_default();
                let second_left = &second[written.saturating_sub(first.len())..];
                match poll_write_both(stream, first_left, second_left, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(WriteError)),
                    Poll::Ready(Ok(more)) => {
                        written += more;
                        stalled_since = None;
                    }
                    Poll::Pending => {
                        self.poll_upload(upload, cx);
                        return self.poll_stalled(&mut stalled_since, cx);
                    }
                }
            }
            if self.stream.is_tls() {
                // Written bytes may still wait to be encrypted and sent.
                return match Pin::new(&mut self.stream).poll_flush(cx) {
                    Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| WriteError)),
                    Poll::Pending => self.poll_stalled(&mut stalled_since, cx),
                };
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Ready when a write has made no progress for too long.
    fn poll_stalled(
        &mut self,
        since: &mut Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteError>> {
        let since = *since.get_or_insert_with(Instant::now);
        let due = since + self.write_timeout;
        ready!(self.timer.poll_until(due, cx));
        Poll::Ready(Err(WriteError))
    }

    /// Sends the end, then reads what the client still sends, within bounds. An immediate close
    /// would reset the connection and destroy an answer on its way. A client in the middle of its body has longer: many
    /// read no answer before they have sent all of it.
    pub(super) async fn close(&mut self, upload: Option<Box<Upload>>) {
        let owes_body = upload.is_some_and(|upload| !upload.has_ended());
        let (whole, silence, mut unread) = match owes_body {
            true => (LINGER_UPLOAD, LINGER_SILENCE, UnreadBytes::all()),
            false => (LINGER, LINGER, UnreadBytes::default()),
        };
        let until = Instant::now() + whole;
        let mut silent_until = Instant::now() + silence;
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
                if shut.is_pending() {
                    return self.timer.poll_until(until, cx);
                }
                is_shut = true;
            }
            let before = unread.seen();
            if unread.poll_discard(cx, &mut self.stream).is_ready() {
                return Poll::Ready(());
            }
            if unread.seen() > before {
                silent_until = Instant::now() + silence;
            }
            self.timer.poll_until(silent_until.min(until), cx)
        })
        .await;
    }
}
