//! Moments of the wire, whole seconds since 1970, and moments of this process.

use std::time::Duration;

use tidegate_limits::Timestamp;

/// The process's clock at the reading of the wall clock.
///
/// Made once, at start: from then on both run together, so a later jump of the wall clock makes
/// no lease longer or shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// From 1970 to the process's start.
    start: Duration,
}

impl Epoch {
    /// Both clocks at one moment: the process's, and the time since 1970.
    #[must_use]
    pub fn new(now: Timestamp, unix: Duration) -> Self {
        Self {
            start: unix.saturating_sub(now.since(Timestamp::ZERO)),
        }
    }

    /// Whole seconds since 1970, rounded down, so that a lease is never overestimated.
    #[must_use]
    pub fn seconds(&self, at: Timestamp) -> i64 {
        i64::try_from(self.since_1970(at).as_secs()).unwrap_or(i64::MAX)
    }

    /// Milliseconds since 1970, rounded down.
    #[must_use]
    pub fn millis(&self, at: Timestamp) -> i64 {
        i64::try_from(self.since_1970(at).as_millis()).unwrap_or(i64::MAX)
    }

    /// The moment that a second since 1970 begins; the start for every second before it.
    #[must_use]
    pub fn timestamp(&self, seconds: i64) -> Timestamp {
        let since_1970 = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Timestamp::ZERO + since_1970.saturating_sub(self.start)
    }

    fn since_1970(&self, at: Timestamp) -> Duration {
        self.start.saturating_add(at.since(Timestamp::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_lease_never_seems_longer_than_it_is() {
        // The process began at 997.5 s since 1970.
        let epoch = Epoch::new(at(2_500), Duration::from_secs(1_000));
        assert_eq!(epoch.seconds(at(2_500)), 1_000);
        assert_eq!(epoch.seconds(at(3_499)), 1_000);
        assert_eq!(epoch.seconds(at(3_500)), 1_001);
        assert_eq!(epoch.millis(at(3_499)), 1_000_999);
        for millis in 0..5_000 {
            assert!(epoch.timestamp(epoch.seconds(at(millis))) <= at(millis));
        }
    }

    #[test]
    fn a_second_of_the_wire_comes_back_as_it_went() {
        let epoch = Epoch::new(at(250), Duration::from_millis(1_700_000_000_999));
        for second in [1_700_000_001, 1_700_000_300, 9_000_000_000] {
            assert_eq!(epoch.seconds(epoch.timestamp(second)), second);
        }
    }

    #[test]
    fn seconds_beyond_either_end_stop_there() {
        let epoch = Epoch::new(at(0), Duration::from_secs(1_000));
        for past in [i64::MIN, -1, 0, 999] {
            assert_eq!(epoch.timestamp(past), Timestamp::ZERO);
        }
        assert_eq!(epoch.timestamp(i64::MAX), Timestamp::MAX);
        assert!(epoch.seconds(Timestamp::MAX) > 0);
        // A wall clock that was never set counts from 1970.
        assert_eq!(Epoch::new(at(9_000), Duration::ZERO).seconds(at(9_000)), 9);
    }
}
