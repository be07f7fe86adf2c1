//! Keep-alive connections to the HTTP backend.
//!
//! Last in, first out, so that in a quiet time the surplus stays idle and is closed. A connection
//! is never used after `pool_idle_timeout`, which should be shorter than the backend's own
//! keep-alive (Apache closes after 5 s). A connection that was idle for a moment is checked
//! before it is used again, because a backend that restarts closes all of them at once.
//!
//! Steady calls would use one connection for ever, also when the backend's name has moved. So a
//! connection is not used after `pool_max_age` either. After a reload, connections to addresses
//! that the name no longer has are retired.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_runtime::PerThread;
use tokio::time::{Instant, sleep_until};

use super::Bounds;
use super::client_left::spawn_to_end;

/// A connection that was idle for longer is checked before it is used again. Even a runtime with
/// some hundreds of calls notices a close within this time, and a check costs each call a system
/// call.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(10);

/// The shortest time between two sweeps. Each looks at all idle connections, whose ages end one by one.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// A connection that a pool can keep.
pub(super) trait Pooled: Send + 'static {
    /// When it was opened, and its share of `pool_max_age`.
    fn life(&self) -> Life;

    /// The address that it leads to. `None` for a socket file, and for a connection that has ended.
    fn peer(&self) -> Option<SocketAddr>;
}

/// The age of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    opened: Instant,
    /// From 0.8 to 1.2, so that connections that were opened together do not end together.
    share: f32,
    /// `pool_max_age` when it was opened, and the end that follows from it. A call is spared the arithmetic.
    max_age: Duration,
    end: Option<Instant>,
}

impl Life {
    pub(super) fn begin(now: Instant, bounds: &Bounds, entropy: u32) -> Self {
        let mut life = Self {
            opened: now,
            share: 0.8 + 0.4 * (entropy as f32 / u32::MAX as f32),
            max_age: bounds.pool_max_age,
            end: None,
        };
        life.end = life.end_with(bounds.pool_max_age);
        life
    }

    /// The moment from which the connection takes no more calls. `None` without a limit.
    fn end(&self, bounds: &Bounds) -> Option<Instant> {
        // A reload can set another limit.
        match bounds.pool_max_age == self.max_age {
            true => self.end,
            false => self.end_with(bounds.pool_max_age),
        }
    }

    fn end_with(&self, max_age: Duration) -> Option<Instant> {
        (!max_age.is_zero()).then(|| self.opened + max_age.mul_f32(self.share))
    }
}

/// The addresses of a name after a reload. Older connections to any other address take no more calls.
#[derive(Clone)]
pub(super) struct Retirement {
    /// When the name was looked up.
    pub(super) asked_at: Instant,
    pub(super) addresses: Arc<[SocketAddr]>,
    /// A connect that began before the lookup has ended by then. Later connections lead where the name leads.
    pub(super) opened_before: Instant,
}

impl Retirement {
    fn concerns(&self, upstream: &impl Pooled) -> bool {
        let is_at = |peer: SocketAddr, address: &SocketAddr| {
            (peer.ip(), peer.port()) == (address.ip(), address.port())
        };
        upstream.life().opened < self.opened_before
            && upstream.peer().is_some_and(|peer| {
                let mut addresses = self.addresses.iter();
                !addresses.any(|address| is_at(peer, address))
            })
    }
}

/// The idle connections of one backend. Those of one thread are kept apart from those of others, because what
/// comes on a connection wakes the thread that opened it.
pub(super) struct ConnectionPool<U> {
    idle: PerThread<Idle<U>>,
    /// Connections of all of them.
    kept: AtomicUsize,
    /// A task closes those that no call takes.
    is_swept: AtomicBool,
}

struct Idle<U> {
    /// Oldest first.
    kept: Vec<IdleUpstream<U>>,
    /// The backend was replaced.
    closed: bool,
    /// The latest of a reload, if there was one.
    retirement: Option<Retirement>,
}

struct IdleUpstream<U> {
    upstream: U,
    since: Instant,
    /// The connection is not used from this moment on.
    usable_until: Instant,
}

impl<U> Default for ConnectionPool<U> {
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
            retirement: None,
        }
    }
}

impl<U: Pooled> ConnectionPool<U> {
    /// Takes the connection that was used last and is not too old, and how long it was idle. Whether it has
    /// ended shows before anything is written on it.
    pub(super) fn take(&self, now: Instant) -> Option<(U, Duration)> {
        loop {
            // A socket is closed outside the lock.
            let kept = self.idle.own().kept.pop()?;
            self.kept.fetch_sub(1, Ordering::Relaxed);
            if kept.usable_until > now {
                let idle_for = now.saturating_duration_since(kept.since);
                return Some((kept.upstream, idle_for));
            }
        }
    }

    /// Returns a connection whose reply was read to its end, now. One that is too old, or leads to an address
    /// that was retired, is closed.
    pub(super) fn put(self: &Arc<Self>, upstream: U, since: Instant, bounds: &Bounds) {
        let cold_at = since + bounds.pool_idle_timeout;
        let usable_until = match upstream.life().end(bounds) {
            Some(end) if end < cold_at => end,
            _ => cold_at,
        };
        if usable_until <= since {
            return;
        }
        if self.kept.fetch_add(1, Ordering::SeqCst) >= bounds.pool_max_idle {
            self.kept.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let kept = IdleUpstream {
            upstream,
            since,
            usable_until,
        };
        let mut idle = self.idle.own();
        let retirement = idle.retirement.as_ref();
        if idle.closed || retirement.is_some_and(|it| it.concerns(&kept.upstream)) {
            // A socket is closed outside the lock.
            drop(idle);
            self.kept.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        idle.kept.push(kept);
        drop(idle);
        if !self.is_swept.load(Ordering::SeqCst) && !self.is_swept.swap(true, Ordering::SeqCst) {
            spawn_to_end(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes the connections that a retirement concerns, and takes none of them back. Returns how many were idle.
    pub(super) fn retire(&self, retirement: &Retirement) -> usize {
        let of_threads = self.idle.each(|idle| {
            let before = idle.retirement.as_ref();
            if before.is_some_and(|before| before.asked_at > retirement.asked_at) {
                return Vec::new();
            }
            idle.retirement = Some(retirement.clone());
            let concerned = |kept: &mut IdleUpstream<U>| retirement.concerns(&kept.upstream);
            idle.kept.extract_if(.., concerned).collect()
        });
        // Sockets are closed outside the locks.
        let retired: Vec<IdleUpstream<U>> = of_threads.flatten().collect();
        self.kept.fetch_sub(retired.len(), Ordering::SeqCst);
        retired.len()
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

impl<U> ConnectionPool<U> {
    /// Closes connections that no call took. Returns when the next may be closed.
    fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let of_threads = self.idle.each(|idle| {
            let is_over = |kept: &mut IdleUpstream<U>| kept.usable_until <= now;
            let over: Vec<_> = idle.kept.extract_if(.., is_over).collect();
            let next = idle.kept.iter().map(|kept| kept.usable_until).min();
            (over, next)
        });
        let mut due: Option<Instant> = None;
        for (over, next) in of_threads {
            self.kept.fetch_sub(over.len(), Ordering::SeqCst);
            due = due.into_iter().chain(next).min();
        }
        due.map(|due| due.max(now + SWEEP_PAUSE))
    }
}

/// Closes connections that no call took. Ends when none is left.
async fn sweep<U>(pool: Weak<ConnectionPool<U>>) {
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

#[cfg(test)]
mod tests;
