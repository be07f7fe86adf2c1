//! The demand of a resource's users, measured from their operations.
//!
//! Of a rate: the mean of what arrived in each of the last ten seconds, the newest weighed most
//! (weights 10, 9, … 1, divided by their sum) and a tenth more, after Doorman's adaptive limiter. Its code
//! divides by the number of entries instead, so what it asks for is far too little, and not a
//! number when nothing happens.
//!
//! If operations wait, their rate of arrival says little: a program that waits for each operation
//! before the next arrives only as fast as it is admitted. So the mean of waiting operations over
//! the same time is added, to run within [`PATIENCE`]. That is at most [`GROWTH`] times the
//! demand or the lease, so that one storm does not request the whole capacity.
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

/// Waiting operations should run within this time: the length of a pacer's pool, below which
/// timers decide.
const PATIENCE: Duration = Duration::from_millis(10);
/// From one request to the next, demand grows by at most this factor.
const GROWTH: f64 = 10.0;

/// How long events are remembered.
pub(super) const REMEMBERED: Duration = Duration::from_secs(WINDOW);

/// The slot of time that `now` falls in.
pub(super) fn slot(now: Timestamp) -> u64 {
    now.as_nanos() / SLOT.as_nanos() as u64
}

/// The arrivals of the last time, and the demand that waited.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    slots: [f64; SLOTS],
    /// Operations that waited, times the seconds for which they did.
    waited: [f64; SLOTS],
    newest: u64,
    /// The slot of the first arrival of those that count.
    since: Option<u64>,
    /// When that was.
    began: Timestamp,
    /// The demand that waits, and up to when that is in `waited`.
    waiting: f64,
    counted: Timestamp,
}

impl Arrivals {
    pub(super) const fn new() -> Self {
        Self {
            slots: [0.0; SLOTS],
            waited: [0.0; SLOTS],
            newest: 0,
            since: None,
            began: Timestamp::ZERO,
            waiting: 0.0,
            counted: Timestamp::ZERO,
        }
    }

    /// An operation of `cost` has arrived.
    pub(super) fn record(&mut self, now: Timestamp, cost: f64) {
        self.count(now);
        if self.since.is_none() {
            self.since = Some(self.newest);
            self.began = now;
        }
        self.slots[(self.newest % SLOTS as u64) as usize] += cost;
    }

    /// Sets the amount that waits from now on.
    pub(super) fn set_waiting(&mut self, now: Timestamp, waiting: f64) {
        self.count(now);
        self.waiting = waiting;
    }

    /// The weighted mean of a second.
    pub(super) fn per_second(&mut self, now: Timestamp) -> f64 {
        self.count(now);
        let Some(since) = self.since else { return 0.0 };
        // If it began less than a window ago, earlier time would only dilute the mean.
        let slots = (self.newest - since + 1).clamp(SLOTS_PER_SECOND, SLOTS as u64);
        let weights: u64 = (0..slots).map(weight).sum();
        let weighed: f64 = (0..SLOTS as u64)
            .filter_map(|age| {
                let slot = self.newest.checked_sub(age)?;
                Some(self.slots[(slot % SLOTS as u64) as usize] * weight(age) as f64)
            })
            .sum();
        weighed * SLOTS_PER_SECOND as f64 / weights as f64
    }

    /// The mean of what waited, weighted like arrivals.
    fn waited(&mut self, now: Timestamp) -> f64 {
        self.count(now);
        if self.since.is_none() {
            return 0.0;
        }
        let (mut waited, mut seconds) = (0.0, 0.0);
        for age in 0..SLOTS as u64 {
            let Some(slot) = self.newest.checked_sub(age) else {
                break;
            };
            let begins = Timestamp::from_nanos(slot * SLOT.as_nanos() as u64);
            let lasted = (begins + SLOT).min(now).since(begins.max(self.began));
            let weight = weight(age) as f64;
            waited += self.waited[(slot % SLOTS as u64) as usize] * weight;
            seconds += lasted.as_secs_f64() * weight;
        }
        if seconds > 0.0 {
            waited / seconds
        } else {
            self.waiting
        }
    }

    /// The demand, in operations a second, of which this many are leased.
    pub(super) fn wants(&mut self, now: Timestamp, leased: f64) -> f64 {
        let arrived = self.per_second(now);
        // With a lease on only the rate of arrivals, a random line would never shrink.
        let spare = arrived / 10.0;
        let most = (GROWTH - 1.0) * arrived.max(leased);
        let each = 1.0 / PATIENCE.as_secs_f64();
        arrived + spare + (self.waited(now) * each).min(most.max(each))
    }

    /// Counts what waited up to now.
    fn count(&mut self, now: Timestamp) {
        // Events older than a window have no slot any more.
        let window = Timestamp::ZERO + now.since(Timestamp::ZERO + REMEMBERED);
        let mut from = self.counted.max(window);
        while from < now && self.waiting > 0.0 {
            self.advance(from);
            let ends = Timestamp::from_nanos((slot(from) + 1) * SLOT.as_nanos() as u64).min(now);
            let lasted = ends.since(from).as_secs_f64();
            self.waited[(self.newest % SLOTS as u64) as usize] += self.waiting * lasted;
            from = ends;
        }
        self.counted = self.counted.max(now);
        self.advance(now);
    }

    fn advance(&mut self, now: Timestamp) {
        // A clock that steps back counts for the newest slot.
        let slot = slot(now).max(self.newest);
        let passed = (slot - self.newest).min(SLOTS as u64);
        for step in 0..passed {
            let slot = ((slot - step) % SLOTS as u64) as usize;
            (self.slots[slot], self.waited[slot]) = (0.0, 0.0);
        }
        self.newest = slot;
        // Slots are cleared exactly, so no rounding error stays.
        let nothing = |slots: &[f64]| slots.iter().all(|&it| it == 0.0);
        if passed > 0 && self.waiting == 0.0 && nothing(&self.slots) && nothing(&self.waited) {
            self.since = None;
        }
    }
}

/// The weight of a slot of this age.
const fn weight(age: u64) -> u64 {
    WINDOW - age / SLOTS_PER_SECOND
}

/// The recent maximum.
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

    /// The level is `level` now.
    pub(super) fn record(&mut self, now: Timestamp, level: f64) {
        self.advance(now);
        let second = &mut self.seconds[(self.newest % WINDOW) as usize];
        *second = second.max(level);
    }

    /// The recent maximum, with `level` now.
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
    fn new_demand_is_not_diluted_by_earlier_idle_time() {
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
    fn waiting_operations_count_as_demand_which_grows_at_most_tenfold() {
        // One arrives and waits: nothing else is known.
        let mut arrivals = Arrivals::new();
        arrivals.record(at(70_000), 1.0);
        arrivals.set_waiting(at(70_000), 1.0);
        assert_eq!(arrivals.wants(at(70_000), 0.0), 1.1 + 100.0);
        // Forty that come again as soon as they were admitted, at twenty a second.
        let mut arrivals = Arrivals::new();
        arrivals.set_waiting(at(0), 40.0);
        for n in 0..300 {
            arrivals.record(at(n * 50), 1.0);
        }
        let wants = arrivals.wants(at(14_999), 20.0);
        assert!((wants - 202.0).abs() < 1.0, "{wants}");
        // As many again where more is leased.
        let wants = arrivals.wants(at(14_999), 1000.0);
        assert!((wants - 4022.0).abs() < 1.0, "{wants}");
    }

    #[test]
    fn a_short_wait_adds_little_demand_for_a_short_time() {
        let mut arrivals = Arrivals::new();
        for n in 0..100 {
            arrivals.record(at(n * 100), 1.0);
            arrivals.set_waiting(at(n * 100), 1.0);
            arrivals.set_waiting(at(n * 100 + 1), 0.0);
        }
        // A millisecond in each hundred.
        let wants = arrivals.wants(at(9_999), 10.0);
        assert!((wants - 12.0).abs() < 0.05, "{wants}");
        assert_eq!(arrivals.wants(at(20_000), 10.0), 0.0);
    }

    #[test]
    fn demand_of_an_endless_wait_stays() {
        let mut arrivals = Arrivals::new();
        arrivals.record(at(0), 5.0);
        arrivals.set_waiting(at(0), 5.0);
        assert_eq!(arrivals.per_second(at(60_000)), 0.0);
        let wants = arrivals.wants(at(60_000), 0.0);
        assert!((wants - 100.0).abs() < 1e-6, "{wants}");
        arrivals.set_waiting(at(60_000), 0.0);
        assert!(arrivals.wants(at(65_000), 0.0) > 0.0);
        assert_eq!(arrivals.wants(at(75_000), 0.0), 0.0);
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
