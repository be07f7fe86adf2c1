//! What we say ourselves, in the form of the SDK server.
//!
//! Both dialects carry the same body; docs/errors.md lists what can be said.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;

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
