//! Answers to an HTTP client: the head of a reply, and fields of our own in it.

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use super::super::dialect;
use crate::call::ticket::QUEUE_TICKET;
use crate::call::{BackendKind, RateLimitStatus, Refusal, Reply, ReplyBody, ReplyHead, sdk};

// As in draft-ietf-httpapi-ratelimit-headers-05 and before, which is what clients read: later
// drafts put all of it into one structured field.
/// The id of a call that was refused or waited, for `tidegate explain`.
pub(super) const CALL: HeaderName = HeaderName::from_static("x-tidegate-call");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// The id of the caller for which a call was counted. Nothing else about a caller is shown.
const LIMITER_CALLER: HeaderName = HeaderName::from_static("x-limiter-caller");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static(dialect::PROBLEM);

/// Makes the answer to an HTTP client.
#[must_use]
pub fn answer(reply: Result<Reply, Refusal>, kind: BackendKind) -> (Box<ReplyHead>, ReplyBody) {
    match reply {
        Ok(Reply {
            head: Some(head),
            body,
            ..
        }) => (head, body),
        Ok(Reply {
            head: None, body, ..
        }) => own(json(status_of(&body), body)),
        Err(refusal) => own(refused_with(refusal.reason.status(), &refusal, kind)),
    }
}

/// A response of our own, in its parts.
pub(super) fn own(response: Response<ReplyBody>) -> (Box<ReplyHead>, ReplyBody) {
    let (parts, body) = response.into_parts();
    (Box::new(parts.into()), body)
}

/// The status for an object of the socket backend.
fn status_of(body: &ReplyBody) -> StatusCode {
    let overall_rc = match body {
        ReplyBody::Whole(bytes) => bytes.as_deref().and_then(sdk::reply::overall_rc),
        // Too large to read first. The client reads the code in it anyway.
        ReplyBody::Stream(_) | ReplyBody::Tunnel(_) => None,
    };
    let status = sdk::reply::http_status(overall_rc.unwrap_or(0));
    StatusCode::from_u16(status).unwrap_or(StatusCode::OK)
}

/// A refusal with this status, in the form that clients of this kind of backend read.
#[must_use]
pub fn refused_with(
    status: StatusCode,
    refusal: &Refusal,
    kind: BackendKind,
) -> Response<ReplyBody> {
    let mut response = match (&refusal.refused_as, kind.has_errors_of_its_own()) {
        (Some(refused_as), _) => {
            let formed = dialect::in_form(refusal, status, refused_as);
            let mut response = json(formed.status, ReplyBody::whole(formed.body));
            let kind = HeaderValue::from_static(formed.kind);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        (None, true) => json(status, ReplyBody::whole(dialect::refusal_json(refusal))),
        (None, false) => {
            let body = ReplyBody::whole(dialect::problem_json(refusal, status));
            let mut response = json(status, body);
            response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
            response
        }
    };
    if let Some(after) = refusal.retry_after {
        let seconds = HeaderValue::from(dialect::retry_after_seconds(after));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    if let Some(ticket) = &refusal.ticket {
        let ticket = HeaderValue::from_str(ticket).expect("a ticket is in base64");
        response.headers_mut().insert(QUEUE_TICKET, ticket);
    }
    if let Some(id) = refusal.call {
        tell_call(id, &mut response);
    }
    response
}

/// Adds the call's id, instead of one that the backend may have sent.
fn tell_call(id: u64, response: &mut Response<ReplyBody>) {
    let id = HeaderValue::try_from(dialect::call_id(id));
    let id = id.expect("hexadecimal digits");
    response.headers_mut().insert(CALL, id);
}

/// Says what the rate limit has left that a call met, in the headers that clients know.
pub(super) fn tell_quota(quota: &RateLimitStatus, headers: &mut HeaderMap) {
    headers.insert(RATE_LIMIT, HeaderValue::from(quota.limit));
    headers.insert(RATE_LIMIT_REMAINING, HeaderValue::from(quota.remaining));
    let reset = quota.reset.as_secs() + u64::from(quota.reset.subsec_nanos() > 0);
    headers.insert(RATE_LIMIT_RESET, HeaderValue::from(reset));
    let caller = HeaderValue::try_from(quota.caller.to_string());
    let caller = caller.expect("an id is a letter and a number");
    headers.insert(LIMITER_CALLER, caller);
}

/// A response with a body in JSON.
pub fn json(status: StatusCode, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}
