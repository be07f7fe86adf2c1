//! The three pools and the step that fills them.
//!
//! The pools contain unclaimed time, in ticks of 1/65536 ns, which keeps odd rates exact. The
//! *active* pool contains the time that is available at once. The *burst* pool has no counter: it
//! is the part of the active pool above its regular size. Time that fits into neither goes to the
//! *waiting* pool.

use core::time::Duration;

use crate::time::Timestamp;

/// Ticks of a nanosecond: enough that the price of an operation at 50,000,000 a second is right
/// to four in ten million.
pub(crate) const TICKS_PER_NANO: i128 = 1 << 16;

/// How much the pools hold, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The active pool without its burst.
    pub(crate) active: i128,
    /// The active pool with its burst.
    pub(crate) over: i128,
}

impl Sizes {
    const fn burst(self) -> i128 {
        self.over - self.active
    }
}

/// The level of the pools, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolLevel {
    /// Can be claimed, the burst included; below zero in debt.
    pub(crate) active: i128,
    /// Waits to become burst.
    pub(crate) waiting: i128,
}

impl PoolLevel {
    /// The level of the pools once `elapsed` more has passed.
    ///
    /// New time goes to the active pool up to its regular size, and to the waiting pool from
    /// there. Then the burst is fed from the waiting pool, in proportion to the time that has
    /// passed, so that what is made up for is spread over time however irregularly this is
    /// called. Nothing is created and nothing lost: the sum grows by exactly `elapsed`.
    pub(crate) fn filled(self, elapsed: i128, sizes: Sizes) -> Self {
        let Self {
            mut active,
            mut waiting,
        } = self;
        let regular = elapsed.min((sizes.active - active).max(0));
        active += regular;
        waiting += elapsed - regular;

        // Past one whole pool there is no more burst: what a long silence left is made up for
        // at the pace of the ratio, not all at once. The same floating-point steps in the same
        // order as in the filler that this must agree with to the bit.
        let passed = (elapsed as f64 / sizes.active as f64).min(1.0);
        let share = (passed * sizes.burst() as f64) as i128;
        let burst = share.min(sizes.over - active).min(waiting).max(0);
        Self {
            active: active + burst,
            waiting: waiting - burst,
        }
    }

    /// The pools after a number of fills of one whole active pool each, and how long these fills
    /// take. There are as many as fit into `elapsed`, while all of their burst still goes to what
    /// the active pool lacks. A debt is repaid in such fills, so a late caller is repaid at the
    /// pace of the ratio, however large the debt is.
    ///
    /// The same as that number of calls of [`filled`](Self::filled), to the bit.
    pub(crate) fn filled_by_pools(self, elapsed: i128, sizes: Sizes) -> (Self, i128) {
        let burst = sizes.burst() as f64 as i128;
        let each = sizes.active + burst;
        let lacking = sizes.active - self.active;
        if lacking < each || burst == 0 {
            return (self, 0);
        }
        let fills = (lacking / each)
            .min(elapsed / sizes.active)
            .min(self.waiting / burst);
        let level = Self {
            active: self.active + fills * each,
            waiting: self.waiting - fills * burst,
        };
        (level, fills * sizes.active)
    }

    /// With `ticks` that were claimed and not used: they can be claimed again, and what the
    /// active pool has no room for waits.
    pub(crate) fn with_back(self, ticks: i128, sizes: Sizes) -> Self {
        let fits = ticks.min((sizes.over - self.active).max(0));
        Self {
            active: self.active + fits,
            waiting: self.waiting + (ticks - fits),
        }
    }

    /// The level in pools of another size: time that the active one no longer holds waits.
    pub(crate) fn within(self, sizes: Sizes) -> Self {
        let active = self.active.min(sizes.over);
        Self {
            active,
            waiting: self.waiting + (self.active - active),
        }
    }
}

/// The level of the pools and its time, in 32 bytes: small enough to keep one for each of a million keys beside a
/// [`Pace`](super::Pace) that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    active_nanos: i64,
    waiting_nanos: u64,
    /// When it was so.
    since: Timestamp,
    /// Ticks beyond the whole nanoseconds.
    active_rest: u16,
    waiting_rest: u16,
    running: bool,
}

impl Pools {
    pub(super) fn running_from(now: Timestamp, level: PoolLevel) -> Self {
        let mut pools = Self {
            active_nanos: 0,
            waiting_nanos: 0,
            since: now,
            active_rest: 0,
            waiting_rest: 0,
            running: true,
        };
        pools.set(now, level);
        pools
    }

    /// The level of the pools when it last changed.
    pub(crate) fn level(&self) -> PoolLevel {
        PoolLevel {
            active: i128::from(self.active_nanos) * TICKS_PER_NANO + i128::from(self.active_rest),
            waiting: i128::from(self.waiting_nanos) * TICKS_PER_NANO
                + i128::from(self.waiting_rest),
        }
    }

    /// Whether tokens accrue.
    pub(super) const fn is_running(&self) -> bool {
        self.running
    }

    pub(crate) const fn since(&self) -> Timestamp {
        self.since
    }

    /// The time that has accrued since something last changed, in ticks. None where the clock
    /// stepped back.
    pub(crate) fn elapsed(&self, now: Timestamp) -> i128 {
        if self.running {
            ticks(now.since(self.since))
        } else {
            0
        }
    }

    pub(super) fn set(&mut self, now: Timestamp, level: PoolLevel) {
        let (active, active_rest) = split(level.active);
        let (waiting, waiting_rest) = split(level.waiting);
        // Both are bounded: the active pool by its size and the greatest debt, the waiting pool
        // by the time since the start and what was in the active pool then.
        let longest = if active < 0 { i64::MIN } else { i64::MAX };
        self.active_nanos = i64::try_from(active).unwrap_or(longest);
        self.waiting_nanos = u64::try_from(waiting).unwrap_or(u64::MAX);
        (self.active_rest, self.waiting_rest) = (active_rest, waiting_rest);
        self.since = self.since.max(now);
    }

    /// The state of running pools in 28 bytes, to store very many.
    #[cfg(feature = "std")]
    pub(crate) const fn words(&self) -> [u32; 7] {
        let (active, waiting) = (self.active_nanos.cast_unsigned(), self.waiting_nanos);
        let since = self.since.as_nanos();
        [
            active as u32,
            (active >> 32) as u32,
            waiting as u32,
            (waiting >> 32) as u32,
            since as u32,
            (since >> 32) as u32,
            (self.active_rest as u32) << 16 | self.waiting_rest as u32,
        ]
    }

    /// Pools from their [`words`](Self::words).
    #[cfg(feature = "std")]
    pub(crate) const fn from_words(words: [u32; 7]) -> Self {
        const fn long(low: u32, high: u32) -> u64 {
            (high as u64) << 32 | low as u64
        }
        let [a, b, c, d, e, f, rests] = words;
        Self {
            active_nanos: long(a, b).cast_signed(),
            waiting_nanos: long(c, d),
            since: Timestamp::from_nanos(long(e, f)),
            active_rest: (rests >> 16) as u16,
            waiting_rest: rests as u16,
            running: true,
        }
    }

    pub(super) fn set_running(&mut self, running: bool) {
        self.running = running;
    }
}

fn split(ticks: i128) -> (i128, u16) {
    let rest = ticks.rem_euclid(TICKS_PER_NANO);
    let rest = u16::try_from(rest).expect("a rest is less than a nanosecond");
    (ticks.div_euclid(TICKS_PER_NANO), rest)
}

/// A span in ticks.
pub(crate) fn ticks(span: Duration) -> i128 {
    i128::from(crate::time::nanos(span)) * TICKS_PER_NANO
}

/// Ticks as a span, rounded down to nanoseconds; no span below zero.
pub(crate) fn span(ticks: i128) -> Duration {
    let nanos = (ticks / TICKS_PER_NANO).max(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
