//! How much a resource's users want, measured from what they do.
//!
//! Of a rate: the mean of what arrived in each of the last ten seconds, the newest weighed most
//! (weights 10, 9, … 1, divided by their sum), after Doorman's adaptive limiter. Its code
//! divides by the number of entries instead, so what it asks for is far too little, and not a
//! number when nothing happens. Whoever waits is wanted as well: all of them within a window,
//! so that what came long ago and still waits is not forgotten.
//!
//! Of a gauge: the most that held it or waited for it at once within the window.

use std::time::Duration;

use tidegate_limits::Timestamp;

/// Seconds that count.
const WINDOW: u64 = 10;
/// Slots of a second, so that the second that has just begun counts as much as a whole one.
const SLOTS_PER_SECOND: u64 = 10;
const SLOTS: usize = (WINDOW * SLOTS_PER_SECOND) as usize;
const SLOT: Duration = Duration::from_millis(1000 / SLOTS_PER_SECOND);

/// How long what happened is remembered.
pub(super) const REMEMBERED: Duration = Duration::from_secs(WINDOW);

/// The slot of time that `now` falls in.
pub(super) fn slot(now: Timestamp) -> u64 {
    now.as_nanos() / SLOT.as_nanos() as u64
}

/// What arrived lately.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    slots: [f64; SLOTS],
    newest: u64,
    /// The slot of the first arrival of those that count.
    since: Option<u64>,
}

impl Arrivals {
    pub(super) const fn new() -> Self {
        Self {
            slots: [0.0; SLOTS],
            newest: 0,
            since: None,
        }
    }

    /// Somebody came who wants `cost`.
    pub(super) fn record(&mut self, now: Timestamp, cost: f64) {
        self.advance(now);
        self.since.get_or_insert(self.newest);
        self.slots[(self.newest % SLOTS as u64) as usize] += cost;
    }

    /// The weighted mean of a second.
    pub(super) fn per_second(&mut self, now: Timestamp) -> f64 {
        self.advance(now);
        let Some(since) = self.since else { return 0.0 };
        // Where it began less than a window ago, the seconds before that would only dilute.
        let seconds = (self.newest - since) / SLOTS_PER_SECOND + 1;
        let weights: u64 = (0..seconds.min(WINDOW)).map(|age| WINDOW - age).sum();
        let weighed: f64 = (0..SLOTS as u64)
            .filter_map(|age| {
                let slot = self.newest.checked_sub(age)?;
                let weight = WINDOW - age / SLOTS_PER_SECOND;
                Some(self.slots[(slot % SLOTS as u64) as usize] * weight as f64)
            })
            .sum();
        weighed / weights as f64
    }

    fn advance(&mut self, now: Timestamp) {
        // A clock that steps back counts for the newest slot.
        let slot = slot(now).max(self.newest);
        let passed = (slot - self.newest).min(SLOTS as u64);
        for step in 0..passed {
            self.slots[((slot - step) % SLOTS as u64) as usize] = 0.0;
        }
        self.newest = slot;
        // Sums of what was added and cleared again are exact: a slot is set to nothing.
        if self.since.is_some() && self.slots.iter().all(|&arrived| arrived == 0.0) {
            self.since = None;
        }
    }
}

/// The most there were at once lately.
#[derive(Clone, Debug)]
pub(super) struct Peaks {
    seconds: [f64; WINDOW as usize],
    newest: u64,
}

impl Peaks {
    pub(super) const fn new() -> Self {
        Self {
            seconds: [0.0; WINDOW as usize],
            newest: 0,
        }
    }

    /// There are `level` now.
    pub(super) fn record(&mut self, now: Timestamp, level: f64) {
        self.advance(now);
        let second = &mut self.seconds[(self.newest % WINDOW) as usize];
        *second = second.max(level);
    }

    /// The most there were, `level` being there now.
    pub(super) fn most(&mut self, now: Timestamp, level: f64) -> f64 {
        self.record(now, level);
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    fn advance(&mut self, now: Timestamp) {
        let second = (now.as_nanos() / 1_000_000_000).max(self.newest);
        for step in 0..(second - self.newest).min(WINDOW) {
            self.seconds[((second - step) % WINDOW) as usize] = 0.0;
        }
        self.newest = second;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_steady_rate_is_measured_as_it_is() {
        for per_second in [10_u64, 100, 1000] {
            let mut arrivals = Arrivals::new();
            for n in 0..20 * per_second {
                arrivals.record(at(n * 1000 / per_second), 1.0);
            }
            let measured = arrivals.per_second(at(19_999));
            let right = per_second as f64;
            assert!((measured - right).abs() < right * 0.001, "{measured}");
        }
    }

    #[test]
    fn what_has_begun_just_now_is_not_diluted_by_the_time_before() {
        let mut arrivals = Arrivals::new();
        for n in 0..200 {
            arrivals.record(at(50_000 + n * 10), 1.0);
        }
        assert!((arrivals.per_second(at(51_999)) - 100.0).abs() < 0.1);
    }

    #[test]
    fn newer_seconds_weigh_more_by_the_weights_of_the_source() {
        // 90 in the oldest second of the window, then 10 in the newest.
        let mut arrivals = Arrivals::new();
        arrivals.record(at(0), 90.0);
        arrivals.record(at(9_900), 10.0);
        let expected = (90.0 * 1.0 + 10.0 * 10.0) / 55.0;
        assert!((arrivals.per_second(at(9_900)) - expected).abs() < 1e-9);
    }

    #[test]
    fn silence_is_a_demand_of_nothing_and_a_number() {
        let mut arrivals = Arrivals::new();
        assert_eq!(arrivals.per_second(at(5_000)), 0.0);
        arrivals.record(at(5_000), 7.0);
        assert!(arrivals.per_second(at(14_900)) > 0.0);
        assert_eq!(arrivals.per_second(at(15_000)), 0.0);
        // A clock that steps back.
        assert_eq!(arrivals.per_second(at(1_000)), 0.0);
    }

    #[test]
    fn the_most_at_once_is_remembered_for_a_window() {
        let mut peaks = Peaks::new();
        peaks.record(at(500), 7.0);
        peaks.record(at(900), 2.0);
        assert_eq!(peaks.most(at(1_000), 2.0), 7.0);
        assert_eq!(peaks.most(at(9_999), 1.0), 7.0);
        assert_eq!(peaks.most(at(10_000), 1.0), 2.0);
        assert_eq!(peaks.most(at(60_000), 0.0), 0.0);
    }
}
