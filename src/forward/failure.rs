//! Refusals for calls whose exchange with the backend failed: what happened, and whether the call may have run.

use std::fmt::Display;
use std::time::Duration;

use super::Bounds;
use super::backend::Backend;
use super::tls_failure::TlsFailure;
use crate::call::{Reason, Record, Refusal};

/// There is no TLS with the backend, as it has shown after the call was written. It has not read the call.
pub(super) fn no_tls(failure: &TlsFailure, backend: &Backend, record: &Record) -> Refusal {
    backend.complain_of(failure);
    record.lacks_tls(backend.destination, failure.cause);
    failure.not_done(backend.destination.label())
}

/// The failure of a call of which it is unknown whether it was done.
pub(super) fn failed(reason: Reason, how: impl Display) -> Refusal {
    let detail = format!("{how}; it is unknown whether the call was done");
    Refusal::new(reason, detail)
}

/// No byte of the call has left, and it is not sent any more.
pub(super) fn not_sent(why: &str) -> Refusal {
    Refusal {
        retry_after: Some(Duration::from_secs(1)),
        ..Refusal::new(
            Reason::BackendUnreachable,
            format!("{why}; the call was not done"),
        )
    }
}

pub(super) fn switched() -> Refusal {
    Refusal::new(
        Reason::BackendCut,
        "the backend switched to another protocol, which was not asked for",
    )
}

pub(super) fn wrong_coding() -> Refusal {
    Refusal::new(
        Reason::BackendCut,
        "the backend's answer has a transfer coding that was not asked for",
    )
}

pub(super) fn closed() -> Refusal {
    let how = "the backend closed the connection without an answer";
    failed(Reason::BackendClosed, how)
}

pub(super) fn slow(bounds: &Bounds) -> Refusal {
    let within = bounds.response_timeout.as_secs_f64();
    let how = format!("no whole answer from the backend within {within} s");
    failed(Reason::BackendSlow, how)
}

pub(super) fn slow_to_take() -> Refusal {
    Refusal::new(
        Reason::BackendSlow,
        "the backend took the request too slowly; it got part of it, and may have done the call",
    )
}
