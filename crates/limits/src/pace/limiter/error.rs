//! Why operations were not granted.

use core::fmt;

use crate::verdict::NotNow;

/// Why operations were not granted, for now or for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The attempt is too early, or the limiter is stopped.
    NotNow(NotNow),
    /// The number of operations was 0.
    Nothing,
    /// More operations than the largest one allows at once.
    TooMany {
        /// The number asked for.
        n: u32,
        /// The largest operation, [`Pace::largest`](crate::pace::Pace::largest).
        largest: u32,
    },
    /// The queue is full.
    TooManyWait {
        /// The capacity of the queue.
        max: usize,
    },
    /// The operating system did not start a thread for the timer.
    NoTimer,
}

impl AcquireError {
    #[cold]
    pub(super) fn of(n: u32, largest: u32) -> Self {
        if n == 0 {
            Self::Nothing
        } else {
            Self::TooMany { n, largest }
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("the number of operations must be at least 1, not 0"),
            Self::TooMany { n, largest } => {
                write!(
                    f,
                    "at most {largest} operations are possible at once, not {n}"
                )
            }
            Self::TooManyWait { max } => write!(f, "the queue is full: {max} are waiting"),
            Self::NoTimer => f.write_str("no thread could be started for the timer"),
            Self::NotNow(_) => f.write_str("no operations are available now"),
        }
    }
}

impl core::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NotNow(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<NotNow> for AcquireError {
    fn from(cause: NotNow) -> Self {
        Self::NotNow(cause)
    }
}
