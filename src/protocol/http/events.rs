//! An event stream that begins before the call has its turn: its head, comments, and what becomes of another answer.
//!
//! The head says 200, whatever the answer will be. So any answer but an event stream becomes an event that says what it
//! was.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tidegate_h1::write;

use super::super::dialect;
use super::{date, place};
use crate::call::{Headers, HttpCall, QueueStanding, RefusalForm, ReplyHead, RequestBody};

/// The type of an event stream.
const EVENT_STREAM: &[u8] = b"text/event-stream";
/// The encodings of an answer that a client reads.
const ACCEPT_ENCODING: &str = "accept-encoding";

/// How a request says that it wants an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRequest {
    /// The request accepts nothing else.
    Only,
    /// The request accepts an event stream besides others. In dialects of JSON-RPC an answer can be an event.
    Besides,
    /// The body says `"stream": true`, as in the dialect of OpenAI.
    Body,
}

/// The part of a body that asks for a stream.
#[derive(Deserialize)]
struct StreamFlag {
    #[serde(default)]
    stream: bool,
}

impl StreamRequest {
    /// How this request asks for an event stream. Its answer must then be one that needs no other head, so it must
    /// not be encoded.
    pub(super) fn take(call: &mut HttpCall) -> Option<Self> {
        let RequestBody::Whole(body) = &call.body else {
            return None;
        };
        let headers = &call.head.headers;
        let asks = if has_item(headers, "accept", EVENT_STREAM) {
            match items(headers, "accept").nth(1) {
                None => Self::Only,
                Some(_) => Self::Besides,
            }
        } else {
            let flag = serde_json::from_slice(body).ok();
            flag.filter(|flag: &StreamFlag| flag.stream)
                .map(|_| Self::Body)?
        };
        // It is answered at once, with 202.
        if has_item(headers, "prefer", b"respond-async") {
            return None;
        }
        if headers.contains(ACCEPT_ENCODING) {
            let head = std::sync::Arc::make_mut(&mut call.head);
            head.headers.remove(ACCEPT_ENCODING);
        }
        Some(asks)
    }

    /// Whether a stream may begin for a call of this dialect.
    pub(super) fn may_begin(self, dialect: RefusalForm) -> bool {
        match self {
            Self::Only => true,
            Self::Besides => is_json_rpc(dialect),
            Self::Body => dialect == RefusalForm::OpenAi,
        }
    }
}

/// The items of a list in a field, in lower case and without parameters.
fn items<'a>(headers: &'a Headers, name: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    let values = headers.get_all(name);
    values
        .flat_map(|value| value.split(|&byte| byte == b','))
        .map(|item| {
            let bare = item.split(|&byte| byte == b';').next();
            bare.unwrap_or_default().trim_ascii().to_ascii_lowercase()
        })
}

fn has_item(headers: &Headers, name: &str, item: &[u8]) -> bool {
    items(headers, name).any(|it| it == item)
}

fn is_json_rpc(dialect: RefusalForm) -> bool {
    matches!(dialect, RefusalForm::JsonRpc | RefusalForm::Mcp)
}

/// Appends the head of a stream.
pub(super) fn begin(call: Option<u64>, closes: bool, into: &mut Vec<u8>) {
    write::status_line(200, b"OK", into);
    write::field(b"content-type", EVENT_STREAM, into);
    write::field(b"cache-control", b"no-store", into);
    write::field(b"date", &date::now(), into);
    place::append_call(call, into);
    if closes {
        write::field(b"connection", b"close", into);
    }
    write::chunked(into);
    into.extend_from_slice(b"\r\n");
}

/// Appends a comment, which may tell the place of the call.
pub(super) fn comment(place: Option<QueueStanding>, into: &mut Vec<u8>) {
    let text = place.map_or_else(String::new, place::in_words);
    chunk(format!(":{text}\n\n").as_bytes(), into);
}

/// Appends a chunk.
fn chunk(data: &[u8], into: &mut Vec<u8>) {
    write::chunk_size(data.len(), into);
    into.extend_from_slice(data);
    into.extend_from_slice(b"\r\n");
}

/// Appends the rest of a stream whose events are these, and its end.
pub(super) fn end_with(events: &[u8], into: &mut Vec<u8>) {
    if !events.is_empty() {
        chunk(events, into);
    }
    into.extend_from_slice(write::LAST_CHUNK);
}

/// Whether an answer continues a stream: it is one, and is not encoded.
pub(super) fn continues(head: &ReplyHead) -> bool {
    let is_plain = !head.headers.contains("content-encoding");
    head.status == StatusCode::OK && is_plain && media_type(head) == EVENT_STREAM
}

/// The media type of an answer, in lower case and without parameters.
pub(super) fn media_type(head: &ReplyHead) -> Vec<u8> {
    items(&head.headers, "content-type")
        .next()
        .unwrap_or_default()
}

/// The event that says what another answer was.
pub(super) fn event_of(
    status: StatusCode,
    media_type: &[u8],
    body: Option<Bytes>,
    dialect: RefusalForm,
) -> Bytes {
    let body = body.unwrap_or_default();
    let body = str::from_utf8(&body).unwrap_or_default();
    let is_json = media_type == b"application/json";
    let as_it_is = match dialect {
        RefusalForm::JsonRpc | RefusalForm::Mcp => is_json,
        RefusalForm::OpenAi => is_json && !status.is_success(),
        _ => false,
    };
    if as_it_is {
        return event("", body);
    }
    if media_type == dialect::PROBLEM.as_bytes() {
        return event("event: error\n", body);
    }
    let said = format!("the service answered {status} after the event stream had begun");
    if dialect == RefusalForm::OpenAi {
        let error = json!({
            "message": said,
            "type": "server_error",
            "param": null,
            "code": status.as_str(),
        });
        return event("", &json!({ "error": error }).to_string());
    }
    let problem = json!({
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": said,
        "content_type": String::from_utf8_lossy(media_type),
        "body": body,
    });
    event("event: error\n", &problem.to_string())
}

/// An event with this data, behind these fields.
fn event(fields: &str, data: &str) -> Bytes {
    let mut event = fields.to_owned();
    for line in data.split(['\r', '\n']).filter(|line| !line.is_empty()) {
        event += "data: ";
        event += line;
        event.push('\n');
    }
    event.push('\n');
    event.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_the_event_that_its_client_reads() {
        let check = |status: u16, kind: &str, body: &str, dialect, expected: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            let body = Some(Bytes::from(body.to_owned()));
            let event = event_of(status, kind.as_bytes(), body, dialect);
            assert_eq!(str::from_utf8(&event), Ok(expected));
        };
        let (problem, json) = ("application/problem+json", "application/json");
        let refused = "event: error\ndata: {\"status\":503}\n\n";
        check(
            503,
            problem,
            "{\"status\":503}",
            RefusalForm::Problem,
            refused,
        );
        let in_dialect = "data: {\"error\":{}}\n\n";
        check(503, json, "{\"error\":{}}", RefusalForm::OpenAi, in_dialect);
        let lines = "data: {\ndata: \"result\": 1}\n\n";
        check(200, json, "{\r\n\"result\": 1}", RefusalForm::Mcp, lines);
        let wrapped = "data: {\"error\":{\"code\":\"502\",\"message\":\"the service answered 502 Bad Gateway after \
                       the event stream had begun\",\"param\":null,\"type\":\"server_error\"}}\n\n";
        check(502, "text/html", "<p>", RefusalForm::OpenAi, wrapped);
        let other = "event: error\ndata: {\"body\":\"<p>\",\"content_type\":\"text/html\",\"detail\":\"the service \
                     answered 404 Not Found after the event stream had begun\",\"status\":404,\"title\":\"Not \
                     Found\"}\n\n";
        check(404, "text/html", "<p>", RefusalForm::Problem, other);
    }
}
