//! What came on a connection, and the requests that it cannot be.

use std::time::Duration;

use http::Method;
use tidegate_limits::Timestamp;

use super::super::stream::Stream;
use super::super::{Settings, socket};
use crate::call::sdk::{self, Malformed};
use crate::call::{Head, HttpCall, Reason, Refusal, RequestBody};

/// A connection, and what came and was not read.
pub(super) struct Received {
    pub(super) stream: Stream,
    pub(super) bytes: Vec<u8>,
    /// When the last byte came.
    pub(super) came: Timestamp,
}

pub(super) fn cut_body() -> Refusal {
    Refusal::new(Reason::BadRequest, "the request's body ends in the middle")
}

pub(super) fn slow_body(within: Duration) -> Refusal {
    let within = within.as_secs_f64();
    let detail = format!("the request's body did not come in within {within} s");
    Refusal::new(Reason::RequestSlow, detail)
}

/// Looks whether the body is the socket protocol's array.
pub(super) fn read_array(settings: &Settings, call: &mut HttpCall) -> Result<(), Refusal> {
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
        Malformed::TooLarge { .. } => socket::too_large(max),
        why => Refusal::new(Reason::BadRequest, why.to_string()),
    })?;
    call.array = Some(Box::new(array));
    Ok(())
}

/// Whether this is the socket protocol's array in HTTP dress.
pub(super) fn is_array_call(head: &Head, body: &[u8]) -> bool {
    head.method == Method::POST
        && head.path() == "/"
        && body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}
