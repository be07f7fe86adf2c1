//! A call of the past, as any log shows it.

use std::sync::Arc;

/// A call of the past.
///
/// Times are in nanoseconds from any moment that all samples of one analysis share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The function that was called: a function of z/VM, or method and path of a request.
    pub function: Arc<str>,
    /// Who called, if the log says so.
    pub caller: Option<Arc<str>>,
    /// When it arrived at whatever wrote the log.   ns
    pub arrived: u64,
    /// When it was sent to the backend; `None` if it never was.   ns
    pub started: Option<u64>,
    /// When the backend was done with it, or its wait was over.   ns
    pub ended: u64,
    /// How it ended.
    pub ending: SampleEnding,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SampleEnding {
    /// The backend did what was asked.
    Served,
    /// The backend says that it is overloaded.
    Overloaded,
    /// The backend failed: a reset, a cut answer, a time-out, a server error.
    Failed,
    /// The client left first. This says nothing about the backend.
    Left,
    /// A limit in front of the backend refused it.
    Refused,
}

impl Sample {
    /// How long the backend took; `None` if it was never sent.   ns
    #[must_use]
    pub fn took(&self) -> Option<u64> {
        self.started
            .map(|started| self.ended.saturating_sub(started))
    }
}
