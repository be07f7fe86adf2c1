//! The store's clock, as far as it can be known from outside.

use core::time::Duration;

use crate::time::{Timestamp, nanos};

/// The largest drift between two clocks, as one part in this number: 200 ppm, twice the
/// specification of server quartz clocks.
const DRIFT_ONE_IN: u64 = 5_000;

/// The store's time at a local moment, as an interval: it is not before `earliest` and not after
/// `latest`.
///
/// It gets wider as local time goes by, because the two clocks may run at different rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime {
    at: Timestamp,
    earliest: Duration,
    latest: Duration,
}

/// A store's time that is unknown from the start of the clock.
impl Default for StoreTime {
    fn default() -> Self {
        Self::unknown(Timestamp::ZERO)
    }
}

impl StoreTime {
    /// A store's time that is unknown.
    #[must_use]
    pub const fn unknown(at: Timestamp) -> Self {
        Self {
            at,
            earliest: Duration::ZERO,
            latest: Duration::MAX,
        }
    }

    /// The store's time is between these two at the local moment `at`, in whichever order they
    /// are given.
    #[must_use]
    pub fn between(at: Timestamp, one: Duration, other: Duration) -> Self {
        Self {
            at,
            earliest: one.min(other),
            latest: one.max(other),
        }
    }

    /// The knowledge from a reply that the store stamped by its clock, after the request was sent
    /// and before the reply arrived. The store's clock is read to `resolution`, rounded down.
    #[must_use]
    pub fn from_reply(
        sent: Timestamp,
        received: Timestamp,
        stamp: Duration,
        resolution: Duration,
    ) -> Self {
        let underway = received.since(sent);
        Self {
            at: received,
            earliest: stamp,
            latest: stamp
                .saturating_add(resolution)
                .saturating_add(underway)
                .saturating_add(drift(underway)),
        }
    }

    /// The time as seen from a later local moment. For an earlier one it is unchanged.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        if now <= self.at {
            return *self;
        }
        let passed = now.since(self.at);
        let drift = drift(passed);
        Self {
            at: now,
            earliest: self.earliest.saturating_add(passed).saturating_sub(drift),
            latest: self.latest.saturating_add(passed).saturating_add(drift),
        }
    }

    /// The knowledge of both. If they contradict each other, the store's clock was set in between,
    /// or another store answered, and the later one is right.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (old, new) = if self.at <= other.at {
            (self, other)
        } else {
            (other, self)
        };
        let old = old.at(new.at);
        let earliest = old.earliest.max(new.earliest);
        let latest = old.latest.min(new.latest);
        if earliest > latest {
            return *new;
        }
        Self {
            at: new.at,
            earliest,
            latest,
        }
    }

    /// The local moment of this knowledge.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.at
    }

    /// The store's time is not before this.
    #[must_use]
    pub const fn earliest(&self) -> Duration {
        self.earliest
    }

    /// The store's time is not after this.
    #[must_use]
    pub const fn latest(&self) -> Duration {
        self.latest
    }

    /// How much is not known.
    #[must_use]
    pub fn width(&self) -> Duration {
        self.latest.saturating_sub(self.earliest)
    }

    /// The local moment from which on the store's time is surely not before `moment`.
    #[must_use]
    pub fn surely_at(&self, moment: Duration) -> Timestamp {
        let missing = nanos(moment.saturating_sub(self.earliest));
        if missing == 0 {
            return self.at;
        }
        // A clock that is slow by the drift needs this much longer, rounded up.
        let longer = missing / (DRIFT_ONE_IN - 1) + 2;
        self.at + Duration::from_nanos(missing.saturating_add(longer))
    }
}

/// By how much two clocks can have drifted apart, rounded up.
pub(super) fn drift(passed: Duration) -> Duration {
    Duration::from_nanos(nanos(passed) / DRIFT_ONE_IN + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_reply_bounds_the_stores_time_by_its_way() {
        let time = StoreTime::from_reply(at(10), at(14), ms(1_000), ms(1));
        assert_eq!(time.earliest(), ms(1_000));
        let latest = ms(1_005) + Duration::from_nanos(801);
        assert_eq!((time.latest(), time.now()), (latest, at(14)));
    }

    #[test]
    fn the_interval_widens_by_the_drift() {
        let time = StoreTime::between(at(0), ms(500), ms(500)).at(at(10_000));
        let drift = ms(2) + Duration::from_nanos(1);
        assert_eq!(time.earliest(), ms(10_500) - drift);
        assert_eq!(time.latest(), ms(10_500) + drift);
        assert_eq!(time.at(at(1)), time, "an earlier moment teaches nothing");
    }

    #[test]
    fn two_replies_say_what_both_say_unless_the_clock_was_set() {
        let wide = StoreTime::between(at(5), ms(100), ms(120));
        let other = StoreTime::between(at(5), ms(110), ms(130));
        assert_eq!(
            wide.and(&other),
            StoreTime::between(at(5), ms(110), ms(120))
        );
        assert_eq!(StoreTime::unknown(at(5)).and(&other), other);
        let set_back = StoreTime::between(at(6), ms(10), ms(11));
        assert_eq!(set_back.and(&other), set_back);
        assert_eq!(other.and(&set_back), set_back);
    }

    #[test]
    fn from_surely_at_on_and_not_long_before_the_moment_is_past() {
        let mut random = Random::new(2);
        for _ in 0..10_000 {
            let start = Duration::from_nanos(random.below(1 << 50));
            let time = StoreTime::between(at(3), start, start + ms(random.below(50)));
            let span = 1 << random.below(50);
            let moment = start + Duration::from_nanos(random.below(span));
            let then = time.surely_at(moment);
            assert!(time.at(then).earliest() >= moment, "seed 2");
            let slack = time.at(then).earliest().saturating_sub(moment);
            assert!(slack <= Duration::from_nanos(2), "{slack:?}, seed 2");
        }
        assert_eq!(
            StoreTime::unknown(at(1)).surely_at(Duration::MAX),
            Timestamp::MAX
        );
    }

    #[test]
    fn an_unknown_time_stays_unknown_until_a_reply() {
        let time = StoreTime::unknown(at(0)).at(at(1 << 40));
        assert_eq!(time.latest(), Duration::MAX);
        assert!(time.earliest() < ms(1 << 40));
    }
}
