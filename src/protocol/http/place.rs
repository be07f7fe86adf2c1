//! The place of a waiting call, for its client: fields of signs and refusals, and an answer to a question by call id.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tidegate_h1::write;

use super::super::dialect;
use super::answer::{self, json as json_answer};
use crate::call::{Head, Identity, LooksExceeded, QueueStanding, ReplyBody, ReplyHead, Serve};

/// The path behind which a client asks for one of its calls.
const PATH: &str = "/v1/queue/";

pub(super) const POSITION: HeaderName = HeaderName::from_static("x-queue-position");
pub(super) const WAIT: HeaderName = HeaderName::from_static("x-queue-wait");

/// Appends the fields of a place, and the id of its call.
pub(super) fn fields(call: Option<u64>, place: QueueStanding, into: &mut Vec<u8>) {
    let position = position(place).to_string();
    write::field(b"x-queue-position", position.as_bytes(), into);
    if let Some(wait) = place.wait {
        write::field(b"x-queue-wait", seconds(wait).to_string().as_bytes(), into);
    }
    append_call(call, into);
}

/// Appends the field with the id of a call, if it has one.
pub(super) fn append_call(id: Option<u64>, into: &mut Vec<u8>) {
    if let Some(id) = id {
        let (name, id) = (answer::CALL, dialect::call_id(id));
        write::field(name.as_str().as_bytes(), id.as_bytes(), into);
    }
}

/// A place in the words of a comment.
pub(super) fn in_words(place: QueueStanding) -> String {
    let position = position(place);
    match place.wait {
        Some(wait) => format!("position {position}, starts in about {} s", seconds(wait)),
        None => format!("position {position}"),
    }
}

/// The call that a request asks for, if it is such a question; none if no call has that id.
pub(super) fn asked_call(head: &Head) -> Option<Option<u64>> {
    let id = head.path().strip_prefix(PATH)?;
    let is_question = matches!(head.method, Method::GET | Method::HEAD);
    is_question.then(|| {
        let is_id = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(id, 16).ok().filter(|_| is_id)
    })
}

/// The answer to a question.
pub(super) fn answer<S: Serve>(
    serve: &S,
    asker: &Identity,
    call: Option<u64>,
) -> (Box<ReplyHead>, ReplyBody) {
    let place = call.map_or(Ok(None), |call| serve.standing(call, Some(asker)));
    let (status, body) = match place {
        Ok(Some(place)) => {
            let body = json!({
                "queue_position": position(place),
                "estimated_wait_seconds": place.wait.map(seconds),
                "estimated_wait_error": place.error.map(|error| (f64::from(error) * 100.0).round() / 100.0),
            });
            (StatusCode::OK, body)
        }
        Ok(None) => problem(
            StatusCode::NOT_FOUND,
            "no call of this client with this id waits",
        ),
        Err(LooksExceeded) => problem(
            StatusCode::TOO_MANY_REQUESTS,
            "all clients together ask too often for places in the queue",
        ),
    };
    let mut response = json_answer(status, ReplyBody::whole(body.to_string().into()));
    let fields = response.headers_mut();
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::TOO_MANY_REQUESTS {
        fields.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer::own(response)
}

fn problem(status: StatusCode, detail: &str) -> (StatusCode, serde_json::Value) {
    let title = status.canonical_reason();
    (
        status,
        json!({ "title": title, "status": status.as_u16(), "detail": detail }),
    )
}

/// The first call in the queue has the position 1.
fn position(place: QueueStanding) -> u64 {
    place.ahead + 1
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
