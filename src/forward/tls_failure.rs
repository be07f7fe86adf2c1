//! Why there is no TLS with a backend, in words for the log and for the client.

use std::borrow::Cow;
use std::time::Duration;

use crate::call::{Reason, Refusal, TlsCause};

/// Why there is no TLS with a backend.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub struct TlsFailure {
    /// The word for metrics.
    pub cause: TlsCause,
    /// Failure in words, about the backend: "its certificate has expired". ASCII.
    pub(super) said: Cow<'static, str>,
    /// Cure for the operator.
    pub(super) cure: &'static str,
}

impl TlsFailure {
    pub(super) fn new(
        cause: TlsCause,
        said: impl Into<Cow<'static, str>>,
        cure: &'static str,
    ) -> Self {
        Self {
            cause,
            said: said.into(),
            cure,
        }
    }

    /// Recognizes TLS in an answer of another protocol: a backend that speaks TLS reports so
    /// to a client that does not.
    pub(super) fn of_answer(bytes: &[u8]) -> Option<Self> {
        // An alert or a handshake, of any version of TLS (RFC 8446, 5.1).
        let is_tls = matches!(bytes, [0x15 | 0x16, 3, ..]);
        is_tls.then(Self::speaks_tls)
    }

    pub(super) fn speaks_tls() -> Self {
        Self::new(
            TlsCause::SpeaksTls,
            "it speaks TLS, and the config gives its address without",
            "write the address with https://, for a socket or tcp backend with tls://",
        )
    }

    /// The answer to a call that was not sent, if to wait would not help.
    #[must_use]
    pub fn refusal(&self, backend: &'static str) -> Option<Refusal> {
        self.cause.stays().then(|| self.not_done(backend))
    }

    /// The answer to a call that was not done.
    pub(super) fn not_done(&self, backend: &'static str) -> Refusal {
        let said = &self.said;
        Refusal {
            retry_after: Some(Duration::from_secs(1)),
            ..Refusal::new(
                Reason::BackendTls,
                format!("no TLS with the {backend} backend: {said}; the call was not done"),
            )
        }
    }
}
