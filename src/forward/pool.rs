//! Keep-alive connections to the HTTP backend.
//!
//! Last in, first out, so that in a quiet time the surplus stays idle and is closed. A connection
//! is never used after `pool_idle_timeout`, which should be shorter than the backend's own
//! keep-alive (Apache closes after 5 s). A connection that was idle for a moment is checked
//! before it is used again, because a backend that restarts closes all of them at once.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate_runtime::lock;
use tokio::time::{Instant, sleep_until};

use super::Bounds;
use super::carry::carry_on;

/// A connection that was idle for longer is checked before it is used again. Even a runtime with
/// some hundreds of calls notices a close within this time, and a check costs each call a system
/// call.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(10);

/// The idle connections of one backend.
pub(super) struct Pool<U> {
    idle: Mutex<Idle<U>>,
}

struct Idle<U> {
    /// Oldest first.
    kept: Vec<Kept<U>>,
    sweeping: bool,
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
            idle: Mutex::new(Idle {
                kept: Vec::new(),
                sweeping: false,
                closed: false,
            }),
        }
    }
}

impl<U: Send + 'static> Pool<U> {
    /// Takes the connection that was used last, unless it is too old, and how long it was idle. Whether it has
    /// ended shows before anything is written on it.
    pub(super) fn take(&self, now: Instant) -> Option<(U, Duration)> {
        let kept = lock(&self.idle).kept.pop()?;
        // Those below it are even older; the sweep closes them.
        let is_warm = kept.cold_at > now;
        is_warm.then(|| (kept.upstream, now.saturating_duration_since(kept.since)))
    }

    /// Returns a connection whose reply was read to its end.
    pub(super) fn put(self: &Arc<Self>, upstream: U, bounds: &Bounds) {
        let since = Instant::now();
        let kept = Kept {
            upstream,
            since,
            cold_at: since + bounds.pool_idle_timeout,
        };
        let mut idle = lock(&self.idle);
        if idle.closed || idle.kept.len() >= bounds.pool_max_idle {
            // A socket is closed outside the lock.
            drop(idle);
            return;
        }
        idle.kept.push(kept);
        if !idle.sweeping {
            idle.sweeping = true;
            carry_on(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes all, and takes none back from now on.
    pub(super) fn close(&self) {
        let mut idle = lock(&self.idle);
        idle.closed = true;
        let kept = std::mem::take(&mut idle.kept);
        drop(idle);
        // Sockets are closed outside the lock.
        drop(kept);
    }
}

/// Closes connections that no call took. Ends when none is left.
async fn sweep<U>(pool: Weak<Pool<U>>) {
    loop {
        let due = {
            let Some(pool) = pool.upgrade() else { return };
            let mut idle = lock(&pool.idle);
            let now = Instant::now();
            let cold = idle.kept.iter().take_while(|it| it.cold_at <= now);
            let cold = cold.count();
            let cold: Vec<_> = idle.kept.drain(..cold).collect();
            let due = idle.kept.first().map(|oldest| oldest.cold_at);
            idle.sweeping = due.is_some();
            drop(idle);
            drop(cold);
            match due {
                Some(due) => due,
                None => return,
            }
        };
        sleep_until(due).await;
    }
}
