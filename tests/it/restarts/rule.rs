//! The rules of limits, as a backend sees them, whatever happens to the sidecar.

use std::time::Duration;

/// How much later than another one the backend notes a call, on a busy machine.
const NOTED_WITHIN: Duration = Duration::from_millis(200);

/// The rule of a limit on rates, seen from the backend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Any second has at most this many calls.
    Second(u32),
    /// Any time has at most `burst` calls, and `rate` more for each second.
    Fills { burst: u32, rate: u32 },
    /// Each window of two seconds has at most this many calls, by a clock that the backend does not see. A time touches two
    /// windows more than it has lengths.
    TwoSeconds(u32),
}

impl Rule {
    /// Most calls in any second.
    pub(super) fn densest_second(self) -> u32 {
        match self {
            Self::Second(most) => most,
            Self::Fills { burst, rate } => burst + rate,
            // The end of one window and the beginning of the next.
            Self::TwoSeconds(total) => 2 * total,
        }
    }

    /// Calls, by their moments in order, that were one too many when they came.
    pub(super) fn calls_over(self, starts: &[Duration]) -> usize {
        match self {
            Self::Second(most) => {
                let over = starts.iter().enumerate().filter(|&(index, &at)| {
                    let before = index.checked_sub(most as usize);
                    before.is_some_and(|it| at - starts[it] < Duration::from_secs(1))
                });
                over.count()
            }
            Self::Fills { burst, rate } => over_level(starts, burst, rate),
            Self::TwoSeconds(total) => over_level(starts, 2 * total, total / 2),
        }
    }
}

/// Calls for which a level that fills had no token.
fn over_level(starts: &[Duration], burst: u32, rate: u32) -> usize {
    let (burst, rate) = (f64::from(burst), f64::from(rate));
    let (mut level, mut since, mut over) = (burst, Duration::ZERO, 0);
    for &at in starts {
        level = burst.min(level + rate * (at - since).as_secs_f64());
        since = at;
        if level + rate * NOTED_WITHIN.as_secs_f64() < 1.0 {
            over += 1;
        } else {
            level -= 1.0;
        }
    }
    over
}

#[test]
fn a_call_that_is_one_too_many_is_found() {
    let at = |millis: &[u64]| -> Vec<_> {
        let starts = millis.iter();
        starts.map(|&it| Duration::from_millis(it)).collect()
    };
    let second = |starts: &[u64]| Rule::Second(2).calls_over(&at(starts));
    assert_eq!(second(&[0, 10, 1_000, 1_010]), 0);
    assert_eq!(second(&[0, 10, 999, 1_000]), 2);
    let fills = Rule::Fills { burst: 3, rate: 2 };
    let fills = |starts: &[u64]| fills.calls_over(&at(starts));
    assert_eq!(fills(&[0, 0, 0, 500, 1_000]), 0);
    assert_eq!(fills(&[0, 0, 0, 100, 500, 1_000]), 1);
    let windows = |starts: &[u64]| Rule::TwoSeconds(2).calls_over(&at(starts));
    assert_eq!(windows(&[1_900, 1_900, 2_100, 2_100, 4_200]), 0);
    assert_eq!(windows(&[1_900, 1_900, 2_100, 2_100, 2_200]), 1);
}
