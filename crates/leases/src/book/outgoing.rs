//! Capacity that a holder may still use of earlier, larger leases.
//!
//! A staircase: each step is an amount that counts until a moment, and larger amounts end first.
//! A few steps are enough, because a step may always be extended to a later moment. That frees
//! late, and never early.

use tidegate_limits::Timestamp;

/// With their number they fill 64 bytes with the allocator's own.
const STEPS: usize = 3;

#[derive(Clone, Debug, Default)]
pub(super) struct EarlierLeases {
    /// From the largest amount and the earliest moment to the smallest and the latest.
    pub(super) steps: [AmountStep; STEPS],
    pub(super) len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AmountStep {
    pub(super) amount: f64,
    pub(super) until: Timestamp,
}

impl EarlierLeases {
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most that may still be in use.
    pub(super) fn amount(&self) -> f64 {
        self.steps().first().map_or(0.0, |step| step.amount)
    }

    /// When that decreases.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.steps().first().map(|step| step.until)
    }

    /// Adds an amount that counts until this moment.
    pub(super) fn add(&mut self, amount: f64, until: Timestamp) {
        if amount <= 0.0 {
            return;
        }
        let step = AmountStep { amount, until };
        if self.steps().iter().any(|other| other.covers(step)) {
            return;
        }
        let mut steps = [AmountStep::default(); STEPS + 1];
        let mut len = 0;
        let kept = self.steps().iter().filter(|other| !step.covers(**other));
        for &other in kept {
            steps[len] = other;
            len += 1;
        }
        // The remaining ones are either larger and end sooner, or smaller and end later.
        let place = steps[..len].partition_point(|other| other.amount > amount);
        steps.copy_within(place..len, place + 1);
        steps[place] = step;
        len += 1;
        if len > STEPS {
            round_up_the_cheapest(&mut steps);
            len = STEPS;
        }
        self.steps.copy_from_slice(&steps[..STEPS]);
        self.len = len;
    }

    /// The holder reports that it uses no more than this, so a larger amount counts only until
    /// then.
    pub(super) fn limit(&mut self, amount: f64, until: Timestamp) {
        let before = core::mem::take(self);
        for step in before.steps() {
            self.add(step.amount, step.until.min(until));
            self.add(step.amount.min(amount), step.until);
        }
    }

    /// Forgets what no longer counts.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let passed = self.steps().iter().take_while(|step| step.until <= now);
        let passed = passed.count();
        self.steps.copy_within(passed..self.len, 0);
        self.len -= passed;
    }

    pub(super) fn steps(&self) -> &[AmountStep] {
        &self.steps[..self.len]
    }
}

impl AmountStep {
    /// Whether this one covers another.
    fn covers(self, other: Self) -> bool {
        self.amount >= other.amount && self.until >= other.until
    }
}

/// Merges two neighbouring steps into one, with the larger amount and the later end: those
/// neighbours for which the least is lost.
fn round_up_the_cheapest(steps: &mut [AmountStep; STEPS + 1]) {
    let cost = |index: usize| {
        let (high, low) = (steps[index], steps[index + 1]);
        (high.amount - low.amount) * low.until.since(high.until).as_nanos() as f64
    };
    let cheapest = (0..STEPS).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
    let cheapest = cheapest.expect("there are neighbours");
    steps[cheapest].until = steps[cheapest + 1].until;
    steps.copy_within(cheapest + 2.., cheapest + 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};
    use alloc::vec::Vec;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// The amount that counts at a moment, of all reports.
    fn exact(said: &[AmountStep], now: Timestamp) -> f64 {
        let counts = said.iter().filter(|step| step.until > now);
        counts.map(|step| step.amount).fold(0.0, f64::max)
    }

    #[test]
    fn a_greater_amount_hides_the_lesser_until_it_ends() {
        let mut outgoing = EarlierLeases::default();
        outgoing.add(50.0, at(10));
        outgoing.add(30.0, at(20));
        outgoing.add(20.0, at(15));
        assert_eq!((outgoing.amount(), outgoing.next()), (50.0, Some(at(10))));
        outgoing.expire(at(10));
        assert_eq!((outgoing.amount(), outgoing.next()), (30.0, Some(at(20))));
        outgoing.limit(5.0, at(12));
        assert_eq!((outgoing.amount(), outgoing.next()), (30.0, Some(at(12))));
        outgoing.expire(at(12));
        assert_eq!((outgoing.amount(), outgoing.next()), (5.0, Some(at(20))));
        outgoing.expire(at(20));
        assert!(outgoing.is_empty());
    }

    #[test]
    fn never_less_counts_than_was_said_and_after_the_last_moment_nothing() {
        for seed in seeds(0..2000) {
            let mut random = Random::new(seed);
            let mut outgoing = EarlierLeases::default();
            let mut said: Vec<AmountStep> = Vec::new();
            for now in 0..60 {
                if random.one_in(2) {
                    let step = AmountStep {
                        amount: random.between(1, 20) as f64,
                        until: at(now + random.between(1, 30)),
                    };
                    outgoing.add(step.amount, step.until);
                    said.push(step);
                } else if random.one_in(6) {
                    let (most, until) = (random.below(20) as f64, at(now + random.below(10)));
                    outgoing.limit(most, until);
                    for step in core::mem::take(&mut said) {
                        let until = step.until.min(until);
                        said.push(AmountStep { until, ..step });
                        let amount = step.amount.min(most);
                        said.push(AmountStep { amount, ..step });
                    }
                }
                outgoing.expire(at(now));
                let exact = exact(&said, at(now));
                assert!(
                    outgoing.amount() >= exact,
                    "seed {seed}, {now}: {exact} of {said:?} is {outgoing:?}"
                );
                let last = said.iter().map(|step| step.until).max();
                if last.is_none_or(|last| last <= at(now)) {
                    assert!(outgoing.is_empty(), "seed {seed}, {now}: {outgoing:?}");
                }
            }
        }
    }
}
