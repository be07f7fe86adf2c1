//! Why a key takes nothing.

use core::error::Error;
use core::fmt;
use core::num::NonZeroU32;

use crate::time::Timestamp;
use crate::verdict::NotNow;

/// Why a key takes nothing now, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The limiter of the key admits nothing now.
    NotNow(NotNow),
    /// The key is not remembered, and there is no place for it.
    TooManyKeys(TooManyKeys),
    /// As many calls wait as may.
    TooManyWait {
        /// [`WAITING_MAX`](super::WAITING_MAX).
        max: usize,
    },
    /// The operating system started no thread for the timer.
    NoTimer,
}

/// Every key that is remembered is in use, and there may be no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyKeys {
    /// How many keys may be remembered.
    pub max: NonZeroU32,
    /// When a place may be free: with up to 1,024 keys the first moment at which one rests, if nothing
    /// is taken from it before; with more, when all of them are looked at next. Sooner, where many come
    /// to rest.
    pub retry_at: Timestamp,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotNow(_) | Self::TooManyKeys(_) => f.write_str("the key takes nothing now"),
            Self::TooManyWait { max } => write!(f, "{max} calls wait, and there may be no more"),
            Self::NoTimer => f.write_str("there is no thread for the timer"),
        }
    }
}

impl Error for KeyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::NotNow(cause) => cause,
            Self::TooManyKeys(cause) => cause,
            Self::TooManyWait { .. } | Self::NoTimer => return None,
        })
    }
}

impl fmt::Display for TooManyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys are in use, and there may be no more", self.max)
    }
}

impl Error for TooManyKeys {}
