//! The only place that reads the time.
//!
//! Code below the stages gets `now` as an argument. Time goes on while the machine is suspended (`CLOCK_BOOTTIME`),
//! because the others who count it, a lease server, a store, the backend, go on too. The runtime's timers stand still
//! meanwhile, so what waits for a moment looks again each second.

use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tidegate_limits::Timestamp;
use tokio::time::{Instant, Sleep, sleep_until};

/// How often a wait asks whether the machine was suspended meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The shortest suspension that is noticed. What is shorter may be a thread that lost its processor between two
/// readings.   ns
const NOTICED: u64 = 100_000_000;

/// By how much two readings of the time of day may differ without a clock that was set.   ns
const SAME: u64 = 1_000_000;

/// When the machine was booted, in nanoseconds since the epoch, as last asked.
static BOOTED: AtomicU64 = AtomicU64::new(0);

/// How long the machine was suspended since this process first asked, as far as it was noticed, in nanoseconds.
static SUSPENDED: AtomicU64 = AtomicU64::new(0);

/// Time since a start, with the time in which the machine was suspended, and the time of day.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    reading: ClockReading,
    /// When the process began, by this clock.
    began: Timestamp,
    /// The runtime's clock at the start.
    started: Instant,
    /// The time of day at the start, as it was known then.
    started_wall: SystemTime,
}

#[derive(Clone, Copy, Debug)]
enum ClockReading {
    /// `CLOCK_BOOTTIME`; what it shows where this clock has its zero, which may lie before the boot, and how long the
    /// machine had been suspended when the process began.   ns
    Boot { zero: i64, suspended: u64 },
    /// The runtime's clock, which a test can pause; what the boot clock shows where this one has its zero.   ns
    Runtime { zero: i64 },
}

impl Clock {
    /// Starts counting now.
    #[must_use]
    pub fn start() -> Self {
        Self::with_past(Duration::ZERO)
    }

    /// Has counted for this long already, so that it has moments for what a process before this one did.
    #[must_use]
    pub fn with_past(past: Duration) -> Self {
        let suspended = look();
        // First, so that a timer that fires at an instant finds its moment past.
        let now = boot_time();
        let zero = now.cast_signed() - nanos(past).cast_signed();
        Self {
            reading: ClockReading::Boot { zero, suspended },
            began: Timestamp::ZERO + past,
            started: Instant::now(),
            started_wall: UNIX_EPOCH + Duration::from_nanos(booted() + now),
        }
    }

    /// Starts counting now, on the runtime's clock, which stands still where a test pauses time or the machine is
    /// suspended.
    #[must_use]
    pub fn of_runtime() -> Self {
        Self::simulated(Duration::ZERO, Duration::ZERO, SystemTime::now())
    }

    /// Counts on the runtime's clock, on a machine that was booted `up` ago, at this time of day. It has counted for the
    /// `past` already, as one [`with_past`](Self::with_past). So a simulation goes on with its time where it exchanges a
    /// process.
    #[must_use]
    pub fn simulated(past: Duration, up: Duration, wall: SystemTime) -> Self {
        let zero = nanos(up).cast_signed() - nanos(past).cast_signed();
        Self {
            reading: ClockReading::Runtime { zero },
            began: Timestamp::ZERO + past,
            started: Instant::now(),
            started_wall: wall,
        }
    }

    /// The moment at which the process began.
    #[must_use]
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self.reading {
            ClockReading::Boot { zero, .. } => Timestamp::from_nanos(since(zero, boot_time())),
            ClockReading::Runtime { .. } => self.began + self.started.elapsed(),
        }
    }

    /// The instant of a timestamp on the runtime's clock, to set a timer. If the machine is suspended before it, the
    /// timer fires late.
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Instant {
        let suspended = match self.reading {
            ClockReading::Boot { suspended, .. } => noticed() - suspended,
            ClockReading::Runtime { .. } => 0,
        };
        let ran = nanos(at.since(self.began)).saturating_sub(suspended);
        self.started
            .checked_add(Duration::from_nanos(ran))
            .unwrap_or_else(|| self.started + Duration::from_secs(60 * 60 * 24 * 365))
    }

    /// Waits until a moment. It comes at most a second late if the machine was suspended meanwhile.
    pub async fn sleep_until(&self, at: Timestamp) {
        while self.now() < at {
            let look_again = Instant::now() + LOOK_EVERY;
            sleep_until(self.instant(at).min(look_again)).await;
            self.notice_suspension();
        }
    }

    /// Asks whether the machine was suspended, so that timers that are set from now on are right. Returns for how long
    /// it was, all in all, since the start.
    pub fn notice_suspension(&self) -> Duration {
        match self.reading {
            ClockReading::Boot { suspended, .. } => Duration::from_nanos(look() - suspended),
            ClockReading::Runtime { .. } => Duration::ZERO,
        }
    }

    /// The time of day at a timestamp, as it is known now: a clock that was set meanwhile counts. For logs, and to
    /// compare with another host if there is nothing better. It decides no call.
    #[must_use]
    pub fn wall(&self, at: Timestamp) -> SystemTime {
        match self.reading {
            ClockReading::Boot { zero, .. } => {
                let nanos = booted().saturating_add_signed(zero);
                UNIX_EPOCH + Duration::from_nanos(nanos.saturating_add(at.as_nanos()))
            }
            ClockReading::Runtime { .. } => self.zero() + at.since(Timestamp::ZERO),
        }
    }

    /// The time of day when the process began, as it was known then. It names this life of the process.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        self.started_wall
    }

    /// A moment as each process of this boot knows it: since the machine was booted.   ns
    #[must_use]
    pub fn boot_time(&self, at: Timestamp) -> u64 {
        match self.reading {
            ClockReading::Boot { zero, .. } | ClockReading::Runtime { zero } => {
                at.as_nanos().saturating_add_signed(zero)
            }
        }
    }

    /// A moment that another process of this boot noted. What comes before the zero of this clock is at its zero.
    #[must_use]
    pub fn of_boot_time(&self, nanos: u64) -> Timestamp {
        match self.reading {
            ClockReading::Boot { zero, .. } | ClockReading::Runtime { zero } => {
                Timestamp::from_nanos(since(zero, nanos))
            }
        }
    }

    /// The time of day at the zero of this clock, as it was known when the process began.
    #[must_use]
    pub fn zero(&self) -> SystemTime {
        self.started_wall - self.began.since(Timestamp::ZERO)
    }

    /// The time from the epoch to the zero of this clock, by the time of day as it is known now: the phase that aligns
    /// fixed windows as the sdkserver does.
    #[must_use]
    pub fn phase(&self) -> Duration {
        self.wall(Timestamp::ZERO)
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// The time from a zero to a moment; none if the zero comes later.   ns
fn since(zero: i64, boot_time: u64) -> u64 {
    u64::try_from(i128::from(boot_time) - i128::from(zero)).unwrap_or_default()
}

/// The kernel's clock that goes on while the machine is suspended.   ns
fn boot_time() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// When the machine was booted, since the epoch, by the time of day as it is now. It differs from reading to reading by
/// what lies between two readings, so a difference that small is none.   ns
fn booted() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let asked = nanos(wall.unwrap_or_default()).saturating_sub(boot_time());
    let kept = BOOTED.load(Ordering::Relaxed);
    if asked.abs_diff(kept) < SAME {
        return kept;
    }
    BOOTED.store(asked, Ordering::Relaxed);
    asked
}

fn noticed() -> u64 {
    SUSPENDED.load(Ordering::Relaxed)
}

/// Compares the clock that goes on with the one that stands still.   ns
fn look() -> u64 {
    static FIRST: OnceLock<(std::time::Instant, u64)> = OnceLock::new();
    let &(monotonic, boot) = FIRST.get_or_init(|| (std::time::Instant::now(), boot_time()));
    let ran = nanos(monotonic.elapsed());
    let passed = boot_time().saturating_sub(boot);
    // Between the two readings this thread may have lost its processor.
    let is_sure = nanos(monotonic.elapsed()).saturating_sub(ran) < NOTICED / 2;
    let suspended = passed.saturating_sub(ran);
    if is_sure && suspended > noticed() + NOTICED {
        SUSPENDED.fetch_max(suspended, Ordering::Relaxed);
    }
    noticed()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
