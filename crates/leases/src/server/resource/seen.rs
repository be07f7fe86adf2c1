//! Facts that are kept of each holder beside the book.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::book::Lease;

/// The data of a holder beside the book, in 24 bytes, because there is one for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderRecord {
    /// The lease as it was sent, by which the holder identifies it: the capacity, and the end in
    /// whole seconds.
    pub(super) capacity: f64,
    pub(super) expires: Timestamp,
    /// How long before the end it may ask again, rounded up.   hundredths of a second
    pub(super) asks_before: u32,
    /// When everything that it was granted has ended, if a part outlasts the last lease: in seconds
    /// after the process's start, rounded up.
    pub(super) outlasts: Option<NonZeroU32>,
}

impl HolderRecord {
    /// Records a sent lease. Earlier leases last until `before`. A request before `early_until` is
    /// too early.
    pub(super) fn new(lease: Lease, early_until: Timestamp, before: Timestamp) -> Self {
        let ahead = lease.expires.since(early_until).as_nanos();
        Self {
            capacity: lease.capacity.get(),
            expires: lease.expires,
            // No lease is longer than a year, which fits.
            asks_before: u32::try_from(ahead.div_ceil(10_000_000)).unwrap_or(u32::MAX),
            outlasts: Self::outlasts(before, lease.expires),
        }
    }

    /// Before this it need not ask again; at the latest the end of the lease.
    pub(super) fn early_until(&self) -> Timestamp {
        let ahead = Duration::from_millis(u64::from(self.asks_before) * 10);
        Timestamp::ZERO + self.expires.since(Timestamp::ZERO + ahead)
    }

    /// The latest end of all its grants.
    pub(super) fn until(&self) -> Timestamp {
        let outlasts = self.outlasts.map_or(0, NonZeroU32::get);
        let outlasts = Timestamp::ZERO + Duration::from_secs(outlasts.into());
        outlasts.max(self.expires)
    }

    /// The stored form of `until`: only if it is later than the end of the last lease.
    fn outlasts(until: Timestamp, expires: Timestamp) -> Option<NonZeroU32> {
        if until <= expires {
            return None;
        }
        let seconds = until
            .since(Timestamp::ZERO)
            .as_nanos()
            .div_ceil(1_000_000_000);
        // A hundred years after the start count as never.
        NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Capacity;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn seen(expires: Timestamp, early_until: Timestamp, before: Timestamp) -> HolderRecord {
        let lease = Lease {
            capacity: Capacity::ZERO,
            expires,
            refresh: Duration::ZERO,
        };
        HolderRecord::new(lease, early_until, before)
    }

    #[test]
    fn what_is_seen_of_a_holder_takes_24_bytes() {
        assert_eq!(size_of::<HolderRecord>(), 24);
    }

    #[test]
    fn leases_that_outlast_the_last_one_never_end_early() {
        let until = |before, expires| seen(expires, at(0), before).until();
        assert_eq!(until(at(2_300), at(2_300)), at(2_300));
        assert_eq!(until(at(2_300), at(2_400)), at(2_400));
        assert_eq!(until(at(2_300), at(1_000)), at(3_000));
        // Repeating it does not make it later.
        assert_eq!(until(until(at(2_300), at(1_000)), at(1_700)), at(3_000));
    }

    #[test]
    fn early_requests_are_detected_for_any_lease() {
        let early_until = |expires, early| seen(expires, early, at(0)).early_until();
        let year = 366 * 24 * 3_600_000;
        assert_eq!(early_until(at(60_000), at(4_950)), at(4_950));
        assert_eq!(early_until(at(4_950 + year), at(4_950)), at(4_950));
        // A hundredth of a second is tolerated, and any time when the lease has ended.
        assert_eq!(early_until(at(60_004), at(4_951)), at(4_944));
        assert_eq!(early_until(at(300), at(950)), at(300));
    }
}
