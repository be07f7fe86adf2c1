//! Keep-alive connections to the HTTP backend.
//!
//! Last in, first out, so that in a quiet time the surplus stays idle and is closed. A connection
//! is never used after `pool_idle_timeout`, which should be shorter than the backend's own
//! keep-alive (Apache closes after 5 s). A connection that was idle for a moment is checked
//! before it is used again, because a backend that restarts closes all of them at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_runtime::PerThread;
use tokio::time::{Instant, sleep_until};

use super::Bounds;
use super::carry::carry_on;

/// A connection that was idle for longer is checked before it is used again. Even a runtime with
/// some hundreds of calls notices a close within this time, and a check costs each call a system
/// call.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(10);

/// The idle connections of one backend. Those of one thread are kept apart from those of others, because what
/// comes on a connection wakes the thread that opened it.
pub(super) struct Pool<U> {
    idle: PerThread<Idle<U>>,
    /// Connections of all of them.
    kept: AtomicUsize,
    /// A task closes those that no call takes.
    is_swept: AtomicBool,
}

struct Idle<U> {
    /// Oldest first.
    kept: Vec<Kept<U>>,
    /// The backend was replaced.
    closed: bool,
}

struct Kept<U> {
    upstream: U,
    since: Instant,
    /// It is not used after this moment.
    cold_at: Instant,
}

impl<U> Default for Pool<U> {
    fn default() -> Self {
        Self {
            idle: PerThread::default(),
            kept: AtomicUsize::new(0),
            is_swept: AtomicBool::new(false),
        }
    }
}

impl<U> Default for Idle<U> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            closed: false,
        }
    }
}

impl<U: Send + 'static> Pool<U> {
    /// Takes the connection that was used last, unless it is too old, and how long it was idle. Whether it has
    /// ended shows before anything is written on it.
    pub(super) fn take(&self, now: Instant) -> Option<(U, Duration)> {
        let kept = self.idle.own().kept.pop()?;
        self.kept.fetch_sub(1, Ordering::Relaxed);
        // Those below it are even older; the sweep closes them.
        let is_warm = kept.cold_at > now;
        is_warm.then(|| (kept.upstream, now.saturating_duration_since(kept.since)))
    }

    /// Returns a connection whose reply was read to its end, now.
    pub(super) fn put(self: &Arc<Self>, upstream: U, since: Instant, bounds: &Bounds) {
        let kept = Kept {
            upstream,
            since,
            cold_at: since + bounds.pool_idle_timeout,
        };
        if self.kept.fetch_add(1, Ordering::SeqCst) >= bounds.pool_max_idle {
            self.kept.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let mut idle = self.idle.own();
        if idle.closed {
            // A socket is closed outside the lock.
            drop(idle);
            return;
        }
        idle.kept.push(kept);
        drop(idle);
        if !self.is_swept.load(Ordering::SeqCst) && !self.is_swept.swap(true, Ordering::SeqCst) {
            carry_on(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes all, and takes none back from now on.
    pub(super) fn close(&self) {
        let all = self.idle.each(|idle| {
            idle.closed = true;
            std::mem::take(&mut idle.kept)
        });
        // Sockets are closed outside the locks.
        drop(Vec::from_iter(all));
    }
}

impl<U> Pool<U> {
    /// Closes connections that no call took. Returns when the next may be closed.
    fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let of_threads = self.idle.each(|idle| {
            let cold = idle.kept.iter().take_while(|it| it.cold_at <= now).count();
            let cold: Vec<_> = idle.kept.drain(..cold).collect();
            (cold, idle.kept.first().map(|oldest| oldest.cold_at))
        });
        let mut due: Option<Instant> = None;
        for (cold, next) in of_threads {
            self.kept.fetch_sub(cold.len(), Ordering::SeqCst);
            due = due.into_iter().chain(next).min();
        }
        due
    }
}

/// Closes connections that no call took. Ends when none is left.
async fn sweep<U>(pool: Weak<Pool<U>>) {
    loop {
        let due = {
            let Some(pool) = pool.upgrade() else { return };
            match pool.sweep() {
                Some(due) => due,
                None => {
                    pool.is_swept.store(false, Ordering::SeqCst);
                    // One that has come meanwhile has found this task, or starts another one.
                    if pool.kept.load(Ordering::SeqCst) == 0
                        || pool.is_swept.swap(true, Ordering::SeqCst)
                    {
                        return;
                    }
                    Instant::now()
                }
            }
        };
        sleep_until(due).await;
    }
}
