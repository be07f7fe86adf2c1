//! Decisions of the limits that only observe, for a call.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::scheduler::RefusalReason;

/// The decisions about a call if every limit held calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Would {
    /// How long it would have waited, from its first question until its turn or its refusal. While
    /// that is not known: so far.
    pub wait: Duration,
    /// The limit that would have held it longest, or refused it.
    pub limit: Option<Arc<str>>,
    /// How its wait would have ended.
    pub ending: WouldEnd,
}

/// How the wait of a call would have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WouldEnd {
    /// With its turn.
    Runs,
    /// With a refusal.
    Refused(RefusalReason),
    /// The client left first, limits no longer observe, or the process ended.
    Left,
    /// Not yet: the call has ended, and would still wait.
    Waits,
}

impl Would {
    /// The word for how its wait would have ended; `None` while it would go on.
    #[must_use]
    pub fn end(&self) -> Option<&'static str> {
        match self.ending {
            WouldEnd::Runs => Some("admitted"),
            WouldEnd::Refused(_) => Some("refused"),
            WouldEnd::Left => Some("left"),
            WouldEnd::Waits => None,
        }
    }

    /// The word for why it would have been refused.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match self.ending {
            WouldEnd::Refused(reason) => Some(reason.as_str()),
            WouldEnd::Runs | WouldEnd::Left | WouldEnd::Waits => None,
        }
    }
}
