//! The allowance of a resource: a lease while it lasts, and afterwards the owner's choice.

use std::time::Duration;

use tidegate_limits::Timestamp;

/// The amount of a resource that may be used: operations a second, or holders at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowance {
    /// At most this; a finite number from 0 up.
    UpTo(f64),
    /// Without a limit.
    Unlimited,
}

impl Allowance {
    /// An allowance of zero.
    pub const NOTHING: Self = Self::UpTo(0.0);
}

/// A number that is not a capacity: negative, infinite or not a number.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{what} must be a finite number from 0 up, not {given}")]
pub struct NotACapacity {
    /// The meaning that the number should have had.
    pub what: &'static str,
    /// The number that was given.
    pub given: f64,
}

/// `given`, if it is a capacity.
pub(super) fn capacity(what: &'static str, given: f64) -> Result<f64, NotACapacity> {
    if given.is_finite() && given >= 0.0 {
        Ok(given)
    } else {
        Err(NotACapacity { what, given })
    }
}

/// The capacity of a resource that a client may use when its lease has ended and no server answers.
///
/// Doorman's `safe_capacity`: 0 blocks, -1 is no limit, anything above 0 is that much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SafeCapacity(Allowance);

impl SafeCapacity {
    /// Without a limit.
    pub const UNLIMITED: Self = Self(Allowance::Unlimited);

    /// As it stands on the wire: -1 is no limit, anything else that much.
    ///
    /// # Errors
    ///
    /// If it is neither -1 nor a finite number from 0 up.
    pub fn new(given: f64) -> Result<Self, NotACapacity> {
        if given == -1.0 {
            return Ok(Self::UNLIMITED);
        }
        capacity("a safe capacity other than -1", given).map(|up_to| Self(Allowance::UpTo(up_to)))
    }

    /// The amount that may be used.
    #[must_use]
    pub const fn allowance(self) -> Allowance {
        self.0
    }
}

/// The client's use of a resource when its lease has ended and no server has granted another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterExpiry {
    /// The demand is used, as if it were granted.
    Optimistic,
    /// The client uses no capacity.
    Pessimistic,
    /// The safe capacity is used: the value that the server sent last, before that the value of the
    /// resource's options, and nothing without either.
    #[default]
    Safe,
}

/// A lease, at its holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LastLease {
    /// A finite number from 0 up.
    pub(super) capacity: f64,
    /// The moment after which the lease must not be used.
    pub(super) expires: Timestamp,
    /// The expiry as the server sent it, for the next request.   seconds since 1970
    pub(super) expiry_time: i64,
    /// As the server sent it.   seconds
    pub(super) refresh_interval: i64,
}

/// All that decides what a resource may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entitlement {
    pub(super) lease: Option<LastLease>,
    pub(super) after_expiry: AfterExpiry,
    pub(super) safe: Option<SafeCapacity>,
}

impl Entitlement {
    /// The amount that may be used at `now` with this demand.
    pub(super) fn allowance(&self, now: Timestamp, wants: f64) -> Allowance {
        match self.live(now) {
            Some(lease) => Allowance::UpTo(lease.capacity),
            None => match self.after_expiry {
                AfterExpiry::Optimistic => Allowance::UpTo(wants),
                AfterExpiry::Pessimistic => Allowance::NOTHING,
                AfterExpiry::Safe => self
                    .safe
                    .map_or(Allowance::NOTHING, SafeCapacity::allowance),
            },
        }
    }

    /// The lease, unless it has ended.
    pub(super) fn live(&self, now: Timestamp) -> Option<LastLease> {
        self.lease.filter(|lease| now < lease.expires)
    }
}

/// How long a lease lasts, from the moment its request was sent.
///
/// `server_now_ms` is the server's clock when it decided. That was after the request was sent, so
/// the lease is never overestimated, for any delay of the answer. `None` if the lease has already
/// ended.
pub(super) fn length(expiry_time: i64, server_now_ms: i64) -> Option<Duration> {
    /// A longer lease is a mistake of a server, and must not be used.
    const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
    let left = expiry_time
        .saturating_mul(1000)
        .saturating_sub(server_now_ms);
    let left = u64::try_from(left).ok().filter(|&left| left > 0)?;
    Some(Duration::from_millis(left).min(LEASE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_safe_capacity_blocks_limits_or_lets_all_through() {
        let check = |given: f64, expected| {
            let safe = SafeCapacity::new(given).ok().map(SafeCapacity::allowance);
            assert_eq!(safe, expected, "{given}");
        };
        check(0.0, Some(Allowance::NOTHING));
        check(-1.0, Some(Allowance::Unlimited));
        check(2.5, Some(Allowance::UpTo(2.5)));
        check(-2.0, None);
        check(f64::NAN, None);
        check(f64::INFINITY, None);
    }

    #[test]
    fn a_lease_is_counted_from_the_servers_clock_and_never_longer_than_a_day() {
        let check = |expiry_time, now_ms, expected| {
            assert_eq!(length(expiry_time, now_ms), expected);
        };
        check(1015, 1_000_000, Some(15 * SECOND));
        check(1015, 1_000_250, Some(Duration::from_millis(14_750)));
        check(1015, 1_015_000, None);
        check(1015, 2_000_000, None);
        check(i64::MAX, 0, Some(86_400 * SECOND));
        check(i64::MIN, i64::MAX, None);
    }

    #[test]
    fn after_the_expiry_it_is_what_was_chosen_and_before_it_the_lease() {
        let at = |seconds| Timestamp::ZERO + seconds * SECOND;
        let check = |after_expiry, safe: Option<f64>, expected| {
            let entitlement = Entitlement {
                lease: Some(LastLease {
                    capacity: 50.0,
                    expires: at(15),
                    expiry_time: 15,
                    refresh_interval: 5,
                }),
                after_expiry,
                safe: safe.map(|safe| SafeCapacity::new(safe).expect("a safe capacity")),
            };
            let before = at(15).as_nanos() - 1;
            let before = entitlement.allowance(Timestamp::from_nanos(before), 70.0);
            assert_eq!(before, Allowance::UpTo(50.0));
            assert_eq!(entitlement.allowance(at(15), 70.0), expected);
        };
        check(AfterExpiry::Optimistic, Some(5.0), Allowance::UpTo(70.0));
        check(AfterExpiry::Pessimistic, Some(5.0), Allowance::NOTHING);
        check(AfterExpiry::Safe, Some(5.0), Allowance::UpTo(5.0));
        check(AfterExpiry::Safe, Some(-1.0), Allowance::Unlimited);
        check(AfterExpiry::Safe, Some(0.0), Allowance::NOTHING);
        check(AfterExpiry::Safe, None, Allowance::NOTHING);
    }
}
