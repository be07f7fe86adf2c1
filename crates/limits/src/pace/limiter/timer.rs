//! Timers that wake waiting calls.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Wakes a task after a while.
///
/// Only the first call in a limiter's queue sleeps, so each limiter has at most one sleep at a
/// time.
pub trait Timer {
    /// Is done when the time is over.
    type Sleep: Future<Output = ()>;

    /// A sleep of this length, from now on.
    fn sleep(&self, span: Duration) -> Self::Sleep;
}

impl<T: Timer + ?Sized> Timer for &T {
    type Sleep = T::Sleep;

    fn sleep(&self, span: Duration) -> T::Sleep {
        (**self).sleep(span)
    }
}

/// A thread that sleeps for others: works with any executor, and is late by as little as the
/// operating system is, some 0.1 ms, where a runtime's own timer may count in milliseconds.
///
/// The thread ends when the timer is dropped, and all its sleeps with it.
#[derive(Debug)]
pub struct TimerThread {
    alarms: Arc<Alarms>,
}

#[derive(Debug, Default)]
struct Alarms {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    /// By moment, and then in order of coming.
    due: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    ended: bool,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.ended {
            let first = state.due.first_key_value().map(|(&(moment, _), _)| moment);
            let left = first.map(|moment| moment.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => {
                    let (_, waker) = state.due.pop_first().expect("it is due");
                    drop(state);
                    waker.wake();
                    self.lock()
                }
                _ => {
                    let left = left.unwrap_or(Duration::MAX);
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl TimerThread {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the operating system gives no thread.
    pub fn start() -> io::Result<Self> {
        let alarms = Arc::new(Alarms::default());
        let own = Arc::clone(&alarms);
        let builder = thread::Builder::new().name("paced-timer".into());
        builder.spawn(move || own.run())?;
        Ok(Self { alarms })
    }

    /// The one that the whole process shares, started when first asked for; none if the
    /// operating system gave no thread then.
    #[must_use]
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<TimerThread>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().ok()).as_ref()
    }
}

impl Drop for TimerThread {
    fn drop(&mut self) {
        let mut state = self.alarms.lock();
        state.ended = true;
        // Nothing would wake tasks that still sleep.
        let left = std::mem::take(&mut state.due);
        drop(state);
        self.alarms.changed.notify_one();
        left.into_values().for_each(Waker::wake);
    }
}

impl Timer for TimerThread {
    type Sleep = ThreadSleep;

    fn sleep(&self, span: Duration) -> ThreadSleep {
        let now = Instant::now();
        ThreadSleep {
            alarms: Arc::clone(&self.alarms),
            // A century is as good as for ever, and no clock ends before.
            until: now + span.min(Duration::from_secs(100 * 365 * 86_400)),
            alarm: None,
        }
    }
}

/// A sleep that a [`TimerThread`] ends. It ends at once when that is dropped.
#[derive(Debug)]
pub struct ThreadSleep {
    alarms: Arc<Alarms>,
    until: Instant,
    alarm: Option<u64>,
}

impl Future for ThreadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        let alarms = Arc::clone(&self.alarms);
        let mut state = alarms.lock();
        if state.ended {
            return Poll::Ready(());
        }
        let number = *self.alarm.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let key = (self.until, number);
        state.due.insert(key, cx.waker().clone());
        if state.due.first_key_value().map(|(key, _)| *key) == Some(key) {
            drop(state);
            self.alarms.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for ThreadSleep {
    fn drop(&mut self) {
        if let Some(number) = self.alarm {
            self.alarms.lock().due.remove(&(self.until, number));
        }
    }
}

/// Tokio's timer. It is late by about a millisecond, so use pools of some milliseconds with it:
/// [`Pace::with_pool_min`](crate::pace::Pace::with_pool_min). With feature `tokio`. Use it within a
/// runtime that has its time enabled.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

#[cfg(feature = "tokio")]
impl Timer for TokioTimer {
    type Sleep = tokio::time::Sleep;

    fn sleep(&self, span: Duration) -> tokio::time::Sleep {
        tokio::time::sleep(span)
    }
}
