//! Requests that are no calls, and what is changed in one before it is a call.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::{HeaderName, HeaderValue};
use tidegate_h1::request::BadHead;
use tokio::net::TcpStream;

use super::super::{ClientSettings, socket};
use crate::call::sdk::{self, BadArray};
use crate::call::{Head, HttpCall, Reason, Refusal, RequestBody};

/// Largest head of a request.   bytes
pub(super) const HEAD_BYTES: usize = 64 * 1024;

const MAX_FORWARDS: HeaderName = HeaderName::from_static("max-forwards");

/// The refusal of a head that cannot be passed on.
pub(super) fn bad_head(bad: &BadHead) -> Refusal {
    let reason = match bad.flaw.is_too_large() {
        true => Reason::HeadTooLarge,
        false => Reason::BadRequest,
    };
    Refusal::new(reason, bad.flaw.to_string())
}

/// The refusal of a body whose chunks are malformed.
pub(super) fn bad_chunks() -> Refusal {
    Refusal::new(
        Reason::BadRequest,
        "the chunks of the request are malformed",
    )
}

/// The refusal of a body that ends early.
pub(super) fn cut_body() -> Refusal {
    Refusal::new(Reason::BadRequest, "the request's body ends in the middle")
}

/// The refusal of a body that comes too slowly.
pub(super) fn slow_body(within: Duration) -> Refusal {
    let within = within.as_secs_f64();
    let detail = format!("the request's body did not come in within {within} s");
    Refusal::new(Reason::RequestSlow, detail)
}

/// The host of a request of HTTP/1.0 that names none: the address that its client connected to. The request goes out
/// as HTTP/1.1, which needs one.
pub(super) fn local_host(tcp: &TcpStream) -> String {
    match tcp.local_addr() {
        Ok(address) => address.to_string(),
        Err(_) => "localhost".to_owned(),
    }
}

/// Sets how often a request may still be forwarded.
pub(super) fn set_max_forwards(head: &mut Arc<Head>, left: u32) {
    let value = HeaderValue::from(left);
    Arc::make_mut(head).headers.replace(&MAX_FORWARDS, &value);
}

/// Looks whether the body is the socket protocol's array.
pub(super) fn read_array(settings: &ClientSettings, call: &mut HttpCall) -> Result<(), Refusal> {
    let RequestBody::Whole(bytes) = &call.body else {
        return Ok(());
    };
    if !settings.backend_kind.takes_arrays_over_http() || !is_array_call(&call.head, bytes) {
        return Ok(());
    }
    // The backend that gets it as HTTP has no such bound, but the socket backend has; the
    // classifier does not choose by size.
    let max = settings.max_request_bytes;
    let parsed = sdk::array::parse(bytes.trim_ascii(), max);
    let array = parsed.map_err(|why| match why {
        BadArray::TooLarge { .. } => socket::too_large(max),
        why => Refusal::new(Reason::BadRequest, why.to_string()),
    })?;
    call.array = Some(Box::new(array));
    Ok(())
}

/// Whether this is the socket protocol's array in HTTP dress.
fn is_array_call(head: &Head, body: &[u8]) -> bool {
    head.method == Method::POST
        && head.path() == "/"
        && body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}
