//! The backend of a scenario, and what the proxy assumes about it.
//!
//! A backend that accepts no connection holds the queue and does not flush it. One call at a time
//! is admitted to find out whether it is back, 100 ms to 2 s apart.

use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::BackOff;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What the proxy assumes about the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Belief {
    #[default]
    Up,
    /// No call is admitted for now.
    Down { back_off: BackOff },
    /// One call may be sent as a probe.
    Probing { back_off: BackOff },
}

impl Belief {
    /// A connect failed. Returns when to try again, unless that is already planned. `spread` in
    /// 0.5..1.0 keeps several proxies from probing in step.
    pub(super) fn failed(&mut self, now: Timestamp, spread: f64) -> Option<Timestamp> {
        let mut back_off = match *self {
            Self::Up => BackOff::doubling(PAUSE_MIN, PAUSE_MAX),
            Self::Probing { back_off } => back_off,
            Self::Down { .. } => return None,
        };
        let pause = PAUSE_MIN.max(back_off.pause().mul_f64(spread));
        *self = Self::Down { back_off };
        Some(now + pause)
    }

    /// The time to try again has come.
    pub(super) fn probe(&mut self) {
        if let Self::Down { back_off } = *self {
            *self = Self::Probing { back_off };
        }
    }

    /// A call was sent. Returns whether the backend had been down until then.
    pub(super) fn succeeded(&mut self) -> bool {
        std::mem::take(self) != Self::Up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_stays_down_is_probed_every_two_seconds_at_last() {
        let mut belief = Belief::default();
        let mut waits = Vec::new();
        for _ in 0..7 {
            let next = belief
                .failed(Timestamp::ZERO, 1.0)
                .expect("a probe is planned");
            waits.push(next.since(Timestamp::ZERO).as_millis());
            assert_eq!(belief.failed(Timestamp::ZERO, 1.0), None);
            belief.probe();
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert!(belief.succeeded());
        assert!(!belief.succeeded(), "it was up already");
    }
}
