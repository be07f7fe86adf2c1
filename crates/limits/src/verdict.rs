//! The verdict of a limit on a call that would draw from it.

use core::fmt;
use core::time::Duration;

use crate::time::Timestamp;

/// Mildest first, so the strictest of several verdicts is their `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// There is room now.
    Ready,
    /// There will be room at this moment, unless something else draws or gives back first.
    NotBefore(Timestamp),
    /// Something must be released or supplied first; there is nothing to wait for on a clock.
    OnChange,
    /// The cost is above the limit. The call never fits under this policy.
    Never,
}

/// `None` is a moment that is not known.
impl From<Option<Timestamp>> for Verdict {
    fn from(opens: Option<Timestamp>) -> Self {
        opens.map_or(Self::OnChange, Self::NotBefore)
    }
}

/// Why a limiter admits nothing now, and when it will: any [`Verdict`] except
/// [`Ready`](Verdict::Ready).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotNow {
    /// From this moment on, unless something else is taken or given back before.
    NotBefore(Timestamp),
    /// Something must be released, supplied or started first.
    OnChange,
    /// The call costs more than the limit.
    Never,
}

impl fmt::Display for NotNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBefore(moment) => write!(
                f,
                "there is no room before {:?} after the start of the clock",
                Duration::from_nanos(moment.as_nanos())
            ),
            Self::OnChange => f.write_str("there is no room until something changes"),
            Self::Never => f.write_str("it costs more than the limit"),
        }
    }
}

impl core::error::Error for NotNow {}

impl From<Verdict> for Result<(), NotNow> {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Ready => Ok(()),
            Verdict::NotBefore(moment) => Err(NotNow::NotBefore(moment)),
            Verdict::OnChange => Err(NotNow::OnChange),
            Verdict::Never => Err(NotNow::Never),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_verdict_is_the_largest() {
        let soon = Verdict::NotBefore(Timestamp::from_nanos(1));
        let late = Verdict::NotBefore(Timestamp::from_nanos(2));
        let mut verdicts = [
            Verdict::Never,
            late,
            Verdict::Ready,
            Verdict::OnChange,
            soon,
        ];
        verdicts.sort();
        assert_eq!(
            verdicts,
            [
                Verdict::Ready,
                soon,
                late,
                Verdict::OnChange,
                Verdict::Never
            ]
        );
    }
}
