//! Answers of our own: to clients of the SDK server in its form, on both protocols; to any other
//! HTTP client as problem details. docs/reference/errors.md lists every answer.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use crate::call::Refusal;
use crate::call::sdk::reply::{ErrorReply, MODULE_ID};

/// The body of a refusal: one JSON object.
#[must_use]
pub fn refusal_json(refusal: &Refusal) -> Bytes {
    let overall_rc = refusal.reason.overall_rc();
    let retry_after = refusal.retry_after.map(retry_after_seconds);
    let reply = ErrorReply {
        overall_rc,
        module: MODULE_ID,
        rc: overall_rc.into(),
        rs: refusal.reason.rs(),
        errmsg: &errmsg(refusal, retry_after),
        retry_after,
    };
    reply.to_json().into()
}

/// The body of a refusal as problem details (RFC 9457). No type is given, so the title is that of the
/// status; `reason` is what programs decide by.
#[derive(Serialize)]
struct ProblemDetails<'a> {
    title: &'static str,
    status: u16,
    detail: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
}

/// The body of a refusal as problem details: one JSON object.
#[must_use]
pub fn problem_json(refusal: &Refusal, status: StatusCode) -> Bytes {
    let problem = ProblemDetails {
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        detail: &refusal.detail,
        reason: refusal.reason.label(),
        limit: refusal.limit.as_deref(),
        retry_after: refusal.retry_after.map(retry_after_seconds),
        call: refusal.call.map(call_id),
    };
    let json = serde_json::to_vec(&problem);
    json.expect("texts and numbers can always be written")
        .into()
}

/// Whole seconds until it is worth coming back, rounded up and at least 1: the number for
/// `retryAfter` and for the `Retry-After` header.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(begun).max(1)
}

/// The id of a call as in its access line, which `tidegate explain` takes.
pub(super) fn call_id(id: u64) -> String {
    format!("{id:016x}")
}

/// The sentence for a person: what happened, which limit and reason in the words of the
/// config and the metrics, and when to come back.
fn errmsg(refusal: &Refusal, retry_after: Option<u64>) -> String {
    let mut errmsg = String::with_capacity(128);
    errmsg.push_str("tidegate: ");
    errmsg.push_str(&refusal.detail);
    let reason = refusal.reason.label();
    let written = match &refusal.limit {
        Some(limit) => write!(errmsg, " (limit {limit}: {reason})"),
        None => write!(errmsg, " ({reason})"),
    };
    written.expect("a String takes everything");
    if let Some(seconds) = retry_after {
        write!(errmsg, "; come back in {seconds} s").expect("a String takes everything");
    }
    if let Some(id) = refusal.call {
        write!(errmsg, "; call {}", call_id(id)).expect("a String takes everything");
    }
    errmsg
}
