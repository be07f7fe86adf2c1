//! The verdict of a limit on a call that would draw from it.

use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

use crate::time::Timestamp;

/// How much of a window one call draws. An outstanding limit counts calls, whatever their cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU32);

impl Cost {
    /// The cost of an ordinary call.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// A cost of `units`; `None` for zero, since a call that draws nothing is not limited.
    #[must_use]
    pub const fn new(units: u32) -> Option<Self> {
        match NonZeroU32::new(units) {
            Some(units) => Some(Self(units)),
            None => None,
        }
    }

    /// The cost in units, at least 1.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// Mildest first, so the strictest of several verdicts is their `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// There is room now.
    Ready,
    /// There will be room at this moment, unless something else draws or gives back first.
    NotBefore(Timestamp),
    /// Something must be released or supplied first; there is nothing to wait for on a clock.
    WhenTold,
    /// The cost is above the limit. The call never fits under this policy.
    Never,
}

/// Why a limiter admits nothing now, and when it will: any [`Verdict`] except
/// [`Ready`](Verdict::Ready).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotNow {
    /// From this moment on, unless something else is taken or given back before.
    NotBefore(Timestamp),
    /// Something must be released, supplied or started first.
    WhenTold,
    /// It costs more than the limit.
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
            Self::WhenTold => f.write_str("there is no room until something changes"),
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
            Verdict::WhenTold => Err(NotNow::WhenTold),
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
            Verdict::WhenTold,
            soon,
        ];
        verdicts.sort();
        assert_eq!(
            verdicts,
            [
                Verdict::Ready,
                soon,
                late,
                Verdict::WhenTold,
                Verdict::Never
            ]
        );
    }

    #[test]
    fn a_cost_of_nothing_does_not_exist() {
        assert_eq!(Cost::new(0), None);
        assert_eq!(Cost::new(7).map(Cost::get), Some(7));
    }
}
