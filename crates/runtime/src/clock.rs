//! The only place that reads the time.
//!
//! Code below the stages gets `now` as an argument. The clock counts from the process's start and
//! follows tokio's, so a test that pauses time pauses this clock too.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_limits::Timestamp;
use tokio::time::{Instant, Sleep, sleep_until};

/// Monotonic time since the process started, and the wall clock it started at.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_wall: SystemTime,
}

impl Clock {
    /// Starts counting now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            started_wall: SystemTime::now(),
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.started.elapsed()
    }

    /// The instant of a timestamp, to sleep until.
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Instant {
        self.started
            .checked_add(at.since(Timestamp::ZERO))
            .unwrap_or_else(|| self.started + Duration::from_secs(60 * 60 * 24 * 365))
    }

    /// The wall clock at a timestamp, for logs, and to compare with another host if there is
    /// nothing better. It decides no call.
    #[must_use]
    pub fn wall(&self, at: Timestamp) -> SystemTime {
        self.started_wall + at.since(Timestamp::ZERO)
    }

    /// The wall clock's time since the epoch when counting began: the phase that aligns fixed
    /// windows as the sdkserver does.
    #[must_use]
    pub fn phase(&self) -> Duration {
        self.started_wall
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// A timer for one wait after another, set only when there is something to wait for.
///
/// A timer that fires early and is set again costs less than one set for each wait, since almost
/// no wait takes that long.
#[derive(Debug, Default)]
pub struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready once `due` has passed.
    pub fn poll_until(&mut self, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}
