//! An answer as bytes: its head with one framing, and its body.

use bytes::Bytes;
use http_body::Body as _;
use tidegate_h1::write::{self, ONE_BUFFER};

use super::super::dialect;
use super::answer::{self, refused, status_of};
use super::date;
use crate::call::{BackendKind, ByteStream, Reason, Refusal, Reply, ReplyBody, ReplyHead};

/// An answer, up to its last byte.
pub(super) struct Answer {
    head: Box<ReplyHead>,
    body: ReplyBody,
    /// Fields of our own, as lines.
    more: Vec<u8>,
    to_head: bool,
    /// Whether the connection ends behind it.
    pub(super) closes: bool,
}

/// A response of our own, in its parts.
fn own(response: http::Response<ReplyBody>) -> (Box<ReplyHead>, ReplyBody) {
    let (parts, body) = response.into_parts();
    (Box::new(parts.into()), body)
}

/// What follows the first bytes of an answer.
pub(super) enum Rest {
    None,
    Whole(Bytes),
    /// As many bytes as the head says.
    Counted(ByteStream),
    Chunked(ByteStream),
}

impl Answer {
    /// The answer to a call; `to_head` if that was a HEAD, which gets no body.
    pub(super) fn of(reply: Result<Reply, Refusal>, to_head: bool, kind: BackendKind) -> Self {
        let mut closes = false;
        let (head, body) = match reply {
            Ok(Reply {
                head: Some(head),
                body,
            }) => (head, body),
            Ok(Reply { head: None, body }) => own(answer::json(status_of(&body), body)),
            Err(refusal) => {
                // The rest of the request was not read.
                closes =
                    refusal.reason == Reason::TooLarge || refusal.reason == Reason::RequestSlow;
                own(refused(&refusal, kind))
            }
        };
        Self {
            head,
            body,
            more: Vec::new(),
            to_head,
            closes,
        }
    }

    /// Whether its length is not known when it begins.
    pub(super) fn is_stream(&self) -> bool {
        matches!(&self.body, ReplyBody::Stream(body) if body.size_hint().exact().is_none())
    }

    /// Adds fields, instead of those with the same names.
    pub(super) fn more(&mut self, headers: &http::HeaderMap) {
        for (name, value) in headers {
            self.head.headers.remove(name.as_str());
            write::field(name.as_str().as_bytes(), value.as_bytes(), &mut self.more);
        }
    }

    /// Adds the call's id, instead of one that the backend may have sent.
    pub(super) fn tell_call(&mut self, id: u64) {
        let id = dialect::call_id(id);
        self.head.headers.remove(answer::CALL.as_str());
        write::field(
            answer::CALL.as_str().as_bytes(),
            id.as_bytes(),
            &mut self.more,
        );
    }

    /// Writes the head with one framing, and a small body behind it.
    pub(super) fn begin(self, first: &mut Vec<u8>) -> Rest {
        let Self {
            head,
            body,
            more,
            to_head,
            closes,
        } = self;
        let status = head.status.as_u16();
        let has_no_body = matches!(status, 100..=199 | 204 | 304);
        head.write(first);
        if !head.headers.contains("date") {
            write::field(b"date", &date::now(), first);
        }
        first.extend_from_slice(&more);
        if closes {
            write::field(b"connection", b"close", first);
        }
        let rest = match body {
            body if to_head || has_no_body => {
                let whole = match &body {
                    ReplyBody::Whole(Some(bytes)) if to_head => Some(bytes.len() as u64),
                    ReplyBody::Whole(_) | ReplyBody::Stream(_) => None,
                };
                let length = head.length.filter(|_| to_head);
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
            ReplyBody::Stream(body) => match body.size_hint().exact() {
                Some(length) => {
                    write::content_length(length, first);
                    Rest::Counted(body)
                }
                None => {
                    write::chunked(first);
                    Rest::Chunked(body)
                }
            },
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
