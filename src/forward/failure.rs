//! How an exchange with a backend can fail: whose failure it is, whether anything was sent, and what the client is
//! answered.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use tidegate_h1::response::ResponseFlaw;

use super::backend::BackendHandle;
use super::tls_failure::TlsFailure;
use crate::call::{Reason, Record, Refusal};

/// Why an exchange has no whole reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The backend's: its connection ended before a byte of the request had left. The call may go over another one.
    #[error("the backend closed the connection before the call was sent")]
    Unwritten(#[source] io::Error),
    /// The backend's: it took no byte of the request in time, so the call was not sent.
    #[error("the backend took no byte of the call in time")]
    NotTaken,
    /// The backend's: it took only a part of the request in time.
    #[error("the backend took the request too slowly")]
    TakenSlowly,
    /// The backend's: the request was sent, and no whole reply came within this time.
    #[error("no whole answer from the backend within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The backend's: it closed without a byte of a reply.
    #[error("the backend closed the connection without an answer")]
    Closed,
    /// The backend's: its reply ended within the head.
    #[error("the backend's answer broke off in its head")]
    CutHead,
    /// The backend's: its reply ended after this number of bytes of the body.
    #[error("the backend's answer broke off after {0} bytes")]
    CutBody(u64),
    /// The backend's: the chunks of its reply are malformed.
    #[error("the chunks of the backend's answer are malformed")]
    Chunks,
    /// The backend's: its reply cannot be passed on.
    #[error("the backend's answer is {0}")]
    Invalid(ResponseFlaw),
    /// The backend's: it speaks no TLS, or TLS alone. It has not read the call.
    #[error("no TLS with the backend")]
    NoTls(#[source] Box<TlsFailure>),
    /// The client's: it left, or was too slow, in the middle of its body.
    #[error("the request body did not arrive completely")]
    CutUpload,
}

impl Failure {
    /// The word for metrics and logs.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::Unwritten(_) | Self::NotTaken => Reason::BackendUnreachable,
            Self::TakenSlowly | Self::Late(_) => Reason::BackendSlow,
            Self::Closed => Reason::BackendClosed,
            Self::CutHead | Self::CutBody(_) | Self::Chunks | Self::Invalid(_) => {
                Reason::BackendCut
            }
            Self::NoTls(_) => Reason::BackendTls,
            Self::CutUpload => Reason::RequestSlow,
        }
    }

    /// The answer to the client. Also counts and logs a failure of TLS.
    pub(super) fn refusal(&self, backend: &BackendHandle, record: &Record) -> Refusal {
        match self {
            Self::Unwritten(_) | Self::NotTaken => Refusal {
                retry_after: Some(Duration::from_secs(1)),
                ..Refusal::new(self.reason(), format!("{self}; the call was not done"))
            },
            Self::TakenSlowly => Refusal::new(
                self.reason(),
                format!("{self}; it got part of it, and may have done the call"),
            ),
            Self::Invalid(ResponseFlaw::Switches) => Refusal::new(
                self.reason(),
                "the backend switched to another protocol, which was not asked for",
            ),
            Self::Invalid(ResponseFlaw::Coding) => Refusal::new(
                self.reason(),
                "the backend's answer has a transfer coding that was not asked for",
            ),
            Self::CutUpload => Refusal::new(
                self.reason(),
                format!("{self}; the backend got only part of it"),
            ),
            Self::NoTls(failure) => {
                backend.complain_of(failure);
                record
                    .observer()
                    .tls_failed(backend.destination, failure.cause);
                failure.not_done(backend.destination.label())
            }
            Self::Late(_)
            | Self::Closed
            | Self::CutHead
            | Self::CutBody(_)
            | Self::Chunks
            | Self::Invalid(_) => unknown_end(self.reason(), self),
        }
    }
}

/// The refusal of a call of which it is unknown whether it was done.
fn unknown_end(reason: Reason, how: impl Display) -> Refusal {
    let detail = format!("{how}; it is unknown whether the call was done");
    Refusal::new(reason, detail)
}
