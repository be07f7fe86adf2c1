//! A paced limiter that threads and tasks share: a rate that lets the late catch up.
//!
//! [`PacedLimiter`] is [`Paced`] with a lock, a clock and a queue around it, for any program: ask
//! and go on ([`try_acquire`](PacedLimiter::try_acquire)), ask when
//! ([`acquire_at`](PacedLimiter::acquire_at)), wait in a task
//! ([`acquire`](PacedLimiter::acquire)) or in a thread
//! ([`acquire_blocking`](PacedLimiter::acquire_blocking)). Module
//! [`keyed`](crate::keyed) has a limiter for each of a million keys.
//!
//! - **A grant reads no clock and takes no lock**; only who finds nothing left does.
//! - **Who waits, waits in a queue**, first come first served whatever they cost, and takes nothing
//!   before it is their turn: whoever gives up waiting has cost nobody anything.
//! - **No runtime is needed.** The first in the queue sleeps on a thread that a process shares, or on
//!   any [`Timer`]; the others sleep until they are woken.
//!
//! [`Paced`]: crate::Paced

mod acquire;
mod clock;
mod shared;
mod slice;
mod sync;
mod timer;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use core::fmt;
use core::num::NonZeroUsize;

pub use acquire::Acquire;
#[cfg(feature = "fast-clock")]
pub use clock::FastClock;
pub use clock::{Clock, MonotonicClock};
pub use shared::PacedNow;
use shared::Shared;
pub use slice::Slice;
#[cfg(feature = "tokio")]
pub use timer::TokioTimer;
pub use timer::{ThreadSleep, Timer, TimerThread};

use crate::limiter::paced::{AlreadyRunning, ApplyError, Pace, PaceSpec};
use crate::time::Timestamp;
use crate::verdict::NotNow;

/// Why operations can't be had now, or never as they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireError {
    /// A try is too early, or the limiter is stopped.
    NotNow(NotNow),
    /// None were asked for.
    Nothing,
    /// More at once than the largest operation.
    TooMany {
        /// How many were asked for.
        n: u32,
        /// The largest operation, [`Pace::largest`].
        largest: u32,
    },
    /// As many wait as may.
    TooManyWait {
        /// How many may wait.
        max: usize,
    },
    /// The operating system gave no thread for the timer.
    NoTimer,
}

impl AcquireError {
    #[cold]
    fn of(n: u32, largest: u32) -> Self {
        if n == 0 {
            Self::Nothing
        } else {
            Self::TooMany { n, largest }
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("at least 1 operation must be asked for, not 0"),
            Self::TooMany { n, largest } => {
                write!(f, "at most {largest} operations may go at once, not {n}")
            }
            Self::TooManyWait { max } => {
                write!(f, "{max} wait already, and no more may")
            }
            Self::NoTimer => f.write_str("there is no thread for the timer"),
            Self::NotNow(_) => f.write_str("the operations can't be had now"),
        }
    }
}

impl core::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::NotNow(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<NotNow> for AcquireError {
    fn from(cause: NotNow) -> Self {
        Self::NotNow(cause)
    }
}

/// A paced limiter that threads and tasks share.
///
/// ```
/// # use tidegate_limits::{BurstRatio, Pace, Rate};
/// # use tidegate_limits::paced::{AcquireError, PacedLimiter};
/// let limiter = PacedLimiter::new(Pace::new(Rate::new(1000.0)?, BurstRatio::default()));
/// assert_eq!(limiter.try_acquire(1), Ok(()));
/// // The error says from when on.
/// assert!(matches!(limiter.try_acquire(1), Err(AcquireError::NotNow(_))));
/// assert_eq!(limiter.acquire_blocking(1), Ok(()));
/// # Ok::<(), tidegate_limits::OutOfRange>(())
/// ```
#[derive(Debug)]
pub struct PacedLimiter<C: Clock = MonotonicClock> {
    shared: Shared,
    clock: C,
}

impl PacedLimiter {
    /// How many may wait, if nothing else is said.
    pub const WAITING_MAX: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

    /// A limiter that runs, in which one operation may go at once.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self::with_clock(pace, MonotonicClock::new())
    }
}

impl<C: Clock> PacedLimiter<C> {
    /// A limiter on another clock.
    #[must_use]
    pub fn with_clock(pace: Pace, clock: C) -> Self {
        Self::with_waiting_max(pace, clock, PacedLimiter::WAITING_MAX)
    }

    /// A limiter for which at most so many may wait.
    #[must_use]
    pub fn with_waiting_max(pace: Pace, clock: C, waiting_max: NonZeroUsize) -> Self {
        let shared = Shared::new(pace, waiting_max.get(), clock.now());
        Self { shared, clock }
    }

    /// Takes `n` operations if they may go now and nobody waits.
    ///
    /// From 1,000,000 operations a second on, what flows in is looked at once a microsecond: an
    /// attempt may be refused that much too long.
    ///
    /// # Errors
    ///
    /// [`AcquireError::NotNow`] says by the limiter's [`clock`](Self::clock) before when a try is in
    /// vain. That needs no lock, so it goes by the most that can flow in: where the late catch up it can
    /// be too early by the part of the ratio above 1. A try at that moment is granted or says exactly
    /// when, behind all who wait, as [`acquire_at`](Self::acquire_at) does. Others if `n` is 0 or more
    /// than the largest operation. Nothing is taken then.
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<(), AcquireError> {
        let cost = self.shared.cost(n)?;
        if self.shared.claim(cost) {
            return Ok(());
        }
        self.try_acquire_slowly(n, cost)
    }

    #[inline(never)]
    fn try_acquire_slowly(&self, n: u32, cost: i64) -> Result<(), AcquireError> {
        let now = self.clock.now();
        self.shared.not_surely_in_vain(cost, now)?;
        Ok(self.shared.fill_and_claim(n, 0, now)?)
    }

    /// The first moment, by the limiter's [`clock`](Self::clock), at which `n` operations may go:
    /// behind all who wait now, if nobody comes before and nobody gives up. Takes nothing and
    /// waits for nothing; whoever comes then tries again. [`Timestamp::MAX`] while the limiter is
    /// stopped.
    ///
    /// # Errors
    ///
    /// If `n` is 0 or more than the largest operation.
    pub fn acquire_at(&self, n: u32) -> Result<Timestamp, AcquireError> {
        self.shared.cost(n)?;
        Ok(self.shared.available_at(n, self.clock.now()))
    }

    /// Waits, in a task of any runtime, until `n` operations may go: first come first served.
    /// Whoever drops it gives up its place and costs nobody anything. It sleeps on
    /// [`TimerThread::shared`], by real time whatever the limiter's clock.
    ///
    /// # Errors
    ///
    /// When polled: if `n` is 0 or more than the largest operation, which may be made smaller while it
    /// waits; if as many wait as may; or if there is no thread for the timer.
    pub fn acquire(&self, n: u32) -> Acquire<'_, C, TimerThread> {
        Acquire::new(self, TimerThread::shared(), n)
    }

    /// Like [`acquire`](Self::acquire), and sleeps on this timer.
    ///
    /// # Errors
    ///
    /// When polled: if `n` is 0 or more than the largest operation, which may be made smaller while it
    /// waits; or if as many wait as may.
    pub fn acquire_with<'a, T: Timer>(&'a self, timer: &'a T, n: u32) -> Acquire<'a, C, T> {
        Acquire::new(self, Some(timer), n)
    }

    /// Waits, in this thread, until `n` operations may go, in the same queue as the tasks. It
    /// sleeps by real time whatever the limiter's clock.
    ///
    /// # Errors
    ///
    /// If `n` is 0 or more than the largest operation, which may be made smaller while it waits; or if
    /// as many wait as may.
    pub fn acquire_blocking(&self, n: u32) -> Result<(), AcquireError> {
        let cost = self.shared.cost(n)?;
        if self.shared.claim(cost) {
            return Ok(());
        }
        self.park_until_granted(n)
    }

    /// A part of the limiter for one worker, for when several together want more than some
    /// millions of operations a second.
    #[must_use]
    pub fn slice(&self) -> Slice<'_, C> {
        Slice::new(self)
    }

    /// Changes the limit while it is used and waited for. Time is kept, in the pools that it was
    /// in. Who waits for more than the new largest operation is refused with
    /// [`AcquireError::TooMany`]: to let it go would close the limiter for all others until its debt is
    /// repaid.
    pub fn set_pace(&self, pace: Pace) {
        let now = self.clock.now();
        self.shared.change(now, |paced| paced.set_pace(now, pace));
    }

    /// Does what a line says: sets the numbers, and obeys the verb. Its scope is for whoever
    /// makes limiters.
    ///
    /// # Errors
    ///
    /// If it is told to start and runs, or if its largest operation would take too long.
    pub fn apply(&self, spec: &PaceSpec) -> Result<(), ApplyError> {
        let now = self.clock.now();
        self.shared.change(now, |paced| paced.apply(now, spec))
    }

    /// Lets no more time accrue. What is in the pools can still be taken; who waits for more
    /// waits until it is started.
    pub fn stop(&self) {
        let now = self.clock.now();
        self.shared.change(now, |paced| paced.stop(now));
    }

    /// Starts anew after a [`stop`](Self::stop): the pools hold one operation.
    ///
    /// # Errors
    ///
    /// If it runs.
    pub fn start(&self) -> Result<(), AlreadyRunning> {
        let now = self.clock.now();
        self.shared.change(now, |paced| paced.start(now))
    }

    /// Starts anew, whether it runs or not: the pools hold one operation.
    pub fn restart(&self) {
        let now = self.clock.now();
        self.shared.change(now, |paced| paced.restart(now));
    }

    /// What the limiter has done and has, for metrics.
    #[must_use]
    pub fn look(&self) -> PacedNow {
        self.shared.look(self.clock.now())
    }

    /// The clock that it goes by.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}
