//! Where the time comes from.

use std::sync::Arc;
use std::time::Instant;

use crate::time::Timestamp;

/// A clock that counts nanoseconds from a start of its own.
///
/// It should never step back. Where it does, nothing accrues until it is where it was.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The operating system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let passed = self.start.elapsed();
        // One step less than through a `Duration`.
        Timestamp::from_nanos(passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos()))
    }
}

/// The processor's own counter, scaled: a fraction of the cost of the operating system's clock
/// where that needs more than a read of it. Where the counter does not run evenly it is the
/// operating system's clock after all. With feature `quanta`.
#[cfg(feature = "quanta")]
#[derive(Clone, Debug)]
pub struct QuantaClock {
    clock: quanta::Clock,
    start: u64,
}

#[cfg(feature = "quanta")]
impl QuantaClock {
    /// A clock that starts now. The first one of a process measures the counter, for up to
    /// 200 ms.
    #[must_use]
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Self { clock, start }
    }
}

#[cfg(feature = "quanta")]
impl Default for QuantaClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "quanta")]
impl Clock for QuantaClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.clock.delta_as_nanos(self.start, self.clock.raw()))
    }
}
