//! Converts a lease for a limit, and a limit's state for the lease client: plain values in both
//! directions.
//!
//! A limit may give out the larger of its lease and its safe share. The safe share is a standing
//! reservation, so this is never more than the servers expect. The rule itself stays the maximum;
//! the scheduler ensures that.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_limits::scheduler::{LimitNow, Supply};
use tidegate_limits::{Fill, Timestamp};

use crate::client::{ShareLease, ShareReport};

/// The time over which a rate is measured, and within which all waiting calls should be served.
pub const RATE_OVER: Duration = Duration::from_secs(10);
/// The rounding tolerance for a lease that is a whole number.
const ROUNDING: f64 = 1e-6;
/// Parts of a token in which a pace counts what waits for it.
const UNITS_PER_TOKEN: f64 = (1 << 20) as f64;

/// The supply of a counting limit: whole calls of its lease, and always its safe share.
pub fn whole(
    lease: Option<ShareLease>,
    safe: NonZeroU32,
    quiet_until: Option<Timestamp>,
) -> Supply {
    let safe = safe.get();
    if let Some(quiet_until) = quiet_until {
        return Supply::until(0, quiet_until, safe);
    }
    lease.map_or(Supply::capacity(safe), |lease| {
        // A conversion to an integer saturates.
        let capacity = (lease.capacity + ROUNDING) as u32;
        Supply::until(capacity.max(safe), lease.expires, safe)
    })
}

/// The fill rate of a bucket.
pub fn rate(lease: Option<ShareLease>, safe: Fill) -> Supply<Fill> {
    let leased = lease.and_then(|lease| {
        let fill = Fill::new(lease.capacity.min(1e9)).ok()?;
        (fill.get() > safe.get()).then_some((fill, lease.expires))
    });
    leased.map_or(Supply::capacity(safe), |(fill, expires)| {
        Supply::until(fill, expires, safe)
    })
}

/// The need and use of a limit. The need is at most its rule, because more could not be used.
pub fn use_of(state: &LimitNow) -> ShareReport {
    let configured = f64::from(state.configured);
    let needs = match &state.paced {
        Some(paced) => {
            let waiting = state.need as f64 / UNITS_PER_TOKEN;
            paced.achieved + waiting / RATE_OVER.as_secs_f64()
        }
        None => state.need as f64,
    };
    ShareReport {
        needs: needs.min(configured),
        in_force: f64::from(state.max),
        in_use: state.used as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn leased(capacity: f64) -> Option<ShareLease> {
        Some(ShareLease {
            capacity,
            expires: at(3_000),
        })
    }

    #[test]
    fn whole_limits_take_the_floor_of_a_lease_and_never_less_than_the_safe_share() {
        let safe = NonZeroU32::new(5).expect("above zero");
        let check = |lease, expected| assert_eq!(whole(lease, safe, None), expected, "{lease:?}");
        check(None, Supply::capacity(5));
        check(leased(9.99), Supply::until(9, at(3_000), 5));
        // A third of thirty, as floating numbers have it.
        check(leased(9.999_999_999_8), Supply::until(10, at(3_000), 5));
        check(leased(0.0), Supply::until(5, at(3_000), 5));
        check(leased(1e18), Supply::until(u32::MAX, at(3_000), 5));
    }

    #[test]
    fn a_window_is_closed_while_it_may_be_full_of_what_was_before() {
        let safe = NonZeroU32::new(5).expect("above zero");
        let closed = Supply::until(0, at(1_005), 5);
        assert_eq!(whole(leased(9.0), safe, Some(at(1_005))), closed);
        assert_eq!(whole(None, safe, Some(at(1_005))), closed);
    }

    #[test]
    fn a_bucket_takes_all_of_a_lease() {
        let fill = |rate| Fill::new(rate).expect("a rate");
        let safe = fill(0.5);
        let check = |lease, expected| assert_eq!(rate(lease, safe), expected, "{lease:?}");
        check(None, Supply::capacity(safe));
        check(leased(2.25), Supply::until(fill(2.25), at(3_000), safe));
        check(leased(0.25), Supply::capacity(safe));
        check(leased(0.0), Supply::capacity(safe));
        check(leased(1e18), Supply::until(fill(1e9), at(3_000), safe));
    }
}
