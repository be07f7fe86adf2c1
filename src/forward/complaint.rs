//! Logs why a backend takes no connection: its address, the cause and the cure.

use std::error::Error;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::sync::Mutex;
use std::time::Duration;

use tidegate_runtime::lock;
use tokio::time::Instant;

use super::BackendAddress;
use super::connect::ConnectError;
use super::tls_failure::TlsFailure;
use crate::call::{Destination, Fault, TlsCause};

/// The time between two log events of the same cause.
const EVERY: Duration = Duration::from_secs(10);

/// The latest log event about a backend.
#[derive(Debug, Default)]
pub(super) struct Complaint(Mutex<Option<LoggedCause>>);

#[derive(Debug)]
struct LoggedCause {
    at: Instant,
    cause: Cause,
}

/// Distinguishes causes: a failure with another one is logged at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Tls(TlsCause),
    Connect(Discriminant<ConnectError>, Option<io::ErrorKind>),
}

impl Complaint {
    /// Logs a connect that failed, unless the same was logged lately. A lack of our own is logged
    /// where it is counted.
    pub(super) fn log(&self, backend: Destination, address: &BackendAddress, error: &ConnectError) {
        let kind = match error {
            ConnectError::Tls(failure) => return self.log_tls(backend, address, failure),
            ConnectError::Refused(error) => Some(error.kind()),
            _ => None,
        };
        if error.fault() != Fault::Own && self.is_news(Cause::Connect(discriminant(error), kind)) {
            tracing::warn!(
                backend = backend.label(),
                %address,
                error = chain(error),
                "the backend takes no connection; its calls wait until it does; check that it runs \
                 and where [backend] points"
            );
        }
    }

    /// Logs that there is no TLS, unless the same was logged lately.
    pub(super) fn log_tls(
        &self,
        backend: Destination,
        address: &BackendAddress,
        failure: &TlsFailure,
    ) {
        if !self.is_news(Cause::Tls(failure.cause)) {
            return;
        }
        let what = match failure.cause.stays() {
            true => "its calls are refused",
            false => "its calls wait until there is",
        };
        tracing::warn!(
            backend = backend.label(),
            %address,
            cause = failure.cause.label(),
            "no TLS with the backend: {failure}; {what}; {}",
            failure.cure
        );
    }

    fn is_news(&self, cause: Cause) -> bool {
        let (mut last, at) = (lock(&self.0), Instant::now());
        let is_old = |last: &LoggedCause| last.cause == cause && at < last.at + EVERY;
        if last.as_ref().is_some_and(is_old) {
            return false;
        }
        *last = Some(LoggedCause { at, cause });
        true
    }
}

/// An error with its causes.
pub(super) fn chain(error: &ConnectError) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said.push_str(": ");
        said.push_str(&error.to_string());
        cause = error.source();
    }
    said
}
