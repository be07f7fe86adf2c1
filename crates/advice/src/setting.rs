//! An answer: a value with its interval and reason, or what is missing for one.

use std::fmt;

use crate::breaking::{BreakingPoint, Sign};
use crate::draw::Draw;
use crate::runs::PARTS;

/// The answer of the log about a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingAnswer<T> {
    /// A value.
    Set(Setting<T>),
    /// The backend showed no strain up to this level, and calls did not wait at it. So the log does
    /// not say what the backend can take.
    NoEvidenceBeyond(u32),
    /// The log is not enough.
    NotEnough(Vec<Need>),
}

/// A value and the interval in which the right one may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// The value to set.
    pub value: T,
    /// The lower bound.
    pub low: T,
    /// The upper bound.
    pub high: T,
    /// The calls that show it.
    pub calls: usize,
    /// Why.
    pub why: Reason,
}

impl<T> SettingAnswer<T> {
    /// The value, if there is one.
    pub const fn setting(&self) -> Option<&Setting<T>> {
        match self {
            Self::Set(setting) => Some(setting),
            Self::NoEvidenceBeyond(_) | Self::NotEnough(_) => None,
        }
    }
}

/// The reason for a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// More at once complete hardly more.
    Knee,
    /// At most 1 % more calls end in time with any other number.
    InTime {
        /// The share of the calls that do, by the fitted curve.
        share: f64,
        /// The most at once that the curve is known for.
        most: u32,
        /// The share with that many.
        at_most: f64,
    },
    /// The backend breaks above it.
    Breaks(BreakingPoint),
    /// Calls waited at this level, and the backend showed no strain. It may take more: there is no
    /// evidence beyond this.
    Waited,
    /// The most that the backend has taken, in several parts of the log.
    Taken,
    /// A window holds at least ten calls.
    Window,
    /// The value is today's.
    Kept,
    /// The deepest queue at the advised limit.
    Depth,
    /// A call further back would wait longer than clients do.
    Patience,
    /// Nineteen of twenty clients that left waited longer.
    Left,
    /// The bound on times leaves this after the time at the backend.
    Slo,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Knee => f.write_str(
                "it has 95 % of the highest throughput: more at once take longer and complete hardly more",
            ),
            Self::InTime {
                share,
                most,
                at_most,
            } => write!(
                f,
                "nearly the most calls end in time: by the fitted curve {:.1} %, and with {most} at once {:.1} %",
                share * 100.0,
                at_most * 100.0
            ),
            Self::Breaks(at) => match at.sign {
                Sign::Failures { share, below } => write!(
                    f,
                    "from {} at once, {:.1} % of {} calls failed, below it {:.1} %",
                    at.from,
                    share * 100.0,
                    at.calls,
                    below * 100.0
                ),
                Sign::Times { times } => write!(
                    f,
                    "from {} at once, calls took {times:.1} times as long ({} calls)",
                    at.from, at.calls
                ),
            },
            Self::Waited => f.write_str(
                "calls waited at this number, and the backend showed no strain; no evidence beyond it",
            ),
            Self::Taken => {
                f.write_str("the backend has taken this many, in several parts of the log; no evidence beyond it")
            }
            Self::Window => f.write_str("the shortest that holds ten calls of the busiest part of the log"),
            Self::Kept => f.write_str("today's length"),
            Self::Depth => f.write_str("the most that wait at the advised limit"),
            Self::Patience => f.write_str("a call behind more would wait longer than its client does"),
            Self::Left => f.write_str("19 of 20 clients that left had waited longer"),
            Self::Slo => f.write_str("the bound on times, less the time at the backend"),
        }
    }
}

/// A thing that a log lacks.
#[derive(Clone, Debug, PartialEq)]
pub enum Need {
    /// Calls that were sent and ended.
    Calls {
        /// How many the log has.
        has: usize,
        /// How many it needs.
        needs: usize,
    },
    /// Time.
    Span {
        /// ns
        has: u64,
        /// ns
        needs: u64,
    },
    /// Fortieths of the log's time in which there are calls.
    Parts {
        /// How many have calls.
        has: usize,
        /// How many must.
        needs: usize,
    },
    /// Calls that the backend served.
    Served {
        /// The share that it served.
        share: f64,
    },
    /// Times finer than most calls take.
    FinerTimes,
    /// The log lacks the same concurrency in several of its parts.
    Repeated,
    /// Calls that start at different levels.
    Variety,
    /// Calls that wait.
    Waits,
    /// A bound on times, or clients that leave.
    Bound {
        /// Clients that left while they waited.
        left: usize,
        /// How many are needed.
        needs: usize,
    },
    /// An answer for calls at once.
    Outstanding,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calls { has, needs } => write!(f, "{needs} calls at the backend (it has {has})"),
            Self::Span { has, needs } => write!(
                f,
                "{:.0} minutes of calls besides its ends (it has {:.1})",
                *needs as f64 / 60e9,
                *has as f64 / 60e9
            ),
            Self::Parts { has, needs } => write!(
                f,
                "calls in {needs} of {PARTS} equal parts of its time (it has them in {has})"
            ),
            Self::Served { share } => write!(
                f,
                "a backend that serves most calls (it served {:.0} %)",
                share * 100.0
            ),
            Self::FinerTimes => f.write_str("finer times: most calls seem to take no time"),
            Self::Repeated => f.write_str("60 calls at the same level, in 3 parts of its time"),
            Self::Variety => f.write_str("calls that start among few and among many others"),
            Self::Waits => f.write_str("calls that wait at the advised limit; none would"),
            Self::Bound { left, needs } => write!(
                f,
                "--slo, or {needs} clients that left while they waited (it has {left})"
            ),
            Self::Outstanding => f.write_str("an answer for calls at once first"),
        }
    }
}

/// The highest value of all parts, and the lower bound of that by the bootstrap.
pub(crate) fn resampled_highest(parts: &[f64; PARTS], draw: &mut Draw) -> (f64, f64) {
    const DRAWS: usize = 200;
    let highest = |parts: &mut dyn Iterator<Item = f64>| parts.fold(0.0, f64::max);
    let mut drawn: Vec<f64> = (0..DRAWS)
        .map(|_| highest(&mut (0..PARTS).map(|_| parts[draw.below(PARTS)])))
        .collect();
    drawn.sort_unstable_by(f64::total_cmp);
    (drawn[DRAWS / 40], highest(&mut parts.iter().copied()))
}

/// The least number of this many digits that is not below `value`, which is above 0.
pub(crate) fn round_up(value: f64, digits: i32) -> f64 {
    let power = value.log10().floor() as i32 + 1 - digits;
    // Powers of ten are exact only if they are whole.
    let scale = 10_f64.powi(power.abs());
    let (scaled, back) = match power >= 0 {
        true => (value / scale, scale),
        false => (value * scale, 1.0 / scale),
    };
    let whole = (scaled * (1.0 - 1e-12)).ceil();
    match power >= 0 {
        true => whole * back,
        false => whole / scale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_up_to_few_digits() {
        for (value, digits, rounded) in [
            (60.0, 2, 60.0),
            (61.2, 2, 62.0),
            (1_234.0, 2, 1_300.0),
            (0.01234, 2, 0.013),
            (1.0, 2, 1.0),
            (20.000_000_000_001, 2, 20.0),
            (99.5, 2, 100.0),
        ] {
            assert_eq!(round_up(value, digits), rounded, "{value}");
        }
    }
}
