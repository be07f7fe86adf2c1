//! What we say ourselves, in the words of the sdkserver.
//!
//! Both dialects carry the same body. It is laid out as Python's `json.dumps` lays it out
//! and is pure ASCII, because the socket client decodes every block that it reads on its own.
//! docs/errors.md lists what can be said.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use crate::call::Refusal;

/// The `modID` of everything that comes from Tidegate. The sdkserver's own modules have 1
/// to 120 and 400.
pub const MODULE_ID: u16 = 130;

/// The body of a refusal: one JSON object.
#[must_use]
pub fn refusal_json(refusal: &Refusal) -> Bytes {
    let rc = refusal.reason.overall_rc();
    let rs = refusal.reason.rs();
    let retry_after = refusal.retry_after.map(retry_after_seconds);
    let mut json = format!(
        r#"{{"overallRC": {rc}, "modID": {MODULE_ID}, "rc": {rc}, "rs": {rs}, "errmsg": ""#
    );
    push_escaped(&mut json, &errmsg(refusal, retry_after));
    json.push_str(r#"", "output": """#);
    if let Some(seconds) = retry_after {
        write!(json, r#", "retryAfter": {seconds}"#).expect("a String takes everything");
    }
    json.push('}');
    json.into()
}

/// Whole seconds until it is worth coming back, rounded up and at least 1: the number for
/// `retryAfter` and for the `Retry-After` header.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(begun).max(1)
}

/// The HTTP status for a reply of the socket backend, as sdkwsgi maps it.
#[must_use]
pub fn status_of(overall_rc: i64) -> StatusCode {
    match overall_rc {
        0 => StatusCode::OK,
        100 | 400 => StatusCode::BAD_REQUEST,
        404 => StatusCode::NOT_FOUND,
        409 => StatusCode::CONFLICT,
        501 => StatusCode::NOT_IMPLEMENTED,
        503 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
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
    errmsg
}

/// Appends the inside of a JSON string in ASCII, escaped as Python escapes it.
fn push_escaped(json: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            ' '..='~' => json.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(json, "\\u{unit:04x}").expect("a String takes everything");
                }
            }
        }
    }
}
