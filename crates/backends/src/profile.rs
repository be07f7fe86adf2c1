//! A value that changes at given moments: capacity in steps, or the rate of arrivals by day and
//! by night.

use crate::{OutOfRange, SECOND, within};

/// A value above 0 that is constant between given moments.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueProfile {
    /// From this moment on, this value. The first moment is 0, and moments increase.
    steps: Vec<(u64, f64)>,
    /// After this time it begins again.
    period: Option<u64>,
}

impl ValueProfile {
    /// A profile of one value for ever.
    ///
    /// # Errors
    ///
    /// A value that is not above 0.
    pub fn constant(value: f64) -> Result<Self, OutOfRange> {
        Self::steps(value, &[])
    }

    /// A profile of this value at first, then from each of these moments on another one.   ns
    ///
    /// # Errors
    ///
    /// A value that is not above 0, or moments that do not increase from above 0.
    pub fn steps(first: f64, then: &[(u64, f64)]) -> Result<Self, OutOfRange> {
        let mut steps: Vec<(u64, f64)> = Vec::with_capacity(then.len() + 1);
        for (at, value) in std::iter::once((0, first)).chain(then.iter().copied()) {
            let value = within(value, value > 0.0, "a value of a profile", "above 0")?;
            if steps.last().is_some_and(|(before, _)| *before >= at) {
                let (what, range) = ("a moment of a profile", "later than the one before it");
                return Err(OutOfRange { what, range });
            }
            steps.push((at, value));
        }
        let period = None;
        Ok(Self { steps, period })
    }

    /// A profile that repeats: after this time it begins anew, like a day.   ns
    ///
    /// # Errors
    ///
    /// A time that is not later than the last change.
    pub fn every(mut self, period: u64) -> Result<Self, OutOfRange> {
        let (last, _) = *self.steps.last().expect("a profile has a first value");
        if period <= last {
            let (what, range) = ("the period of a profile", "later than its last change");
            return Err(OutOfRange { what, range });
        }
        self.period = Some(period);
        Ok(self)
    }

    /// The value at a moment, and when the next step is; `None` if there is none.
    #[must_use]
    pub fn at(&self, now: u64) -> (f64, Option<u64>) {
        let begun = self.period.map_or(0, |period| now - now % period);
        let inside = now - begun;
        let next = self.steps.partition_point(|(at, _)| *at <= inside);
        let (_, value) = self.steps[next - 1];
        let change = match (self.steps.get(next), self.period) {
            (Some((at, _)), _) => begun.checked_add(*at),
            (None, Some(period)) => begun.checked_add(period),
            (None, None) => None,
        };
        (value, change)
    }

    /// If this is a rate a second: when the next of random events is, after one at `now`. `unit` is
    /// an even random number in `0.0..1.0`. The events are a Poisson process with this rate.
    #[must_use]
    pub fn next_event(&self, now: u64, unit: f64) -> u64 {
        // The integral of the rate between two events is exponential with mean 1.
        let mut left = -(1.0 - unit).ln();
        let mut now = now;
        loop {
            let (per_second, change) = self.at(now);
            let gap = left / per_second * SECOND as f64;
            let event = now.saturating_add(gap.round() as u64);
            match change {
                Some(change) if change < event => {
                    left -= (change - now) as f64 / SECOND as f64 * per_second;
                    left = left.max(0.0);
                    now = change;
                }
                _ => return event,
            }
        }
    }
}
