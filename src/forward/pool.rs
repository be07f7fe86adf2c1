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
use super::carry::carry_on;

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
            carry_on(sweep(Arc::downgrade(self)));
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
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection to one address of a name, which is counted while it is open.
    struct Counted {
        life: Life,
        peer: SocketAddr,
        open: Arc<AtomicU32>,
    }

    impl Pooled for Counted {
        fn life(&self) -> Life {
            self.life
        }

        fn peer(&self) -> Option<SocketAddr> {
            Some(self.peer)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    struct Opener {
        open: Arc<AtomicU32>,
        bounds: Bounds,
    }

    impl Opener {
        fn new(bounds: &Bounds) -> Self {
            Self {
                open: Arc::default(),
                bounds: bounds.clone(),
            }
        }

        fn open(&self, last: u8, entropy: u32) -> Counted {
            self.open.fetch_add(1, Ordering::SeqCst);
            Counted {
                life: Life::begin(Instant::now(), &self.bounds, entropy),
                peer: address(last),
                open: Arc::clone(&self.open),
            }
        }

        fn count(&self) -> u32 {
            self.open.load(Ordering::SeqCst)
        }
    }

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 80).into()
    }

    fn bounds(max_age: Duration, idle_timeout: Duration) -> Bounds {
        Bounds {
            pool_max_idle: 64,
            pool_idle_timeout: idle_timeout,
            pool_max_age: max_age,
            ..crate::forward::deadline::tests::bounds()
        }
    }

    fn retirement(opened_before: Instant, last: &[u8]) -> Retirement {
        Retirement {
            asked_at: Instant::now(),
            addresses: last.iter().copied().map(address).collect(),
            opened_before,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_ages_of_connections_are_spread_by_a_fifth_to_both_sides() {
        let bounds = bounds(60 * SECOND, SECOND);
        let opened = Instant::now();
        let check = |entropy: u32, seconds: u32| {
            let end = Life::begin(opened, &bounds, entropy)
                .end(&bounds)
                .expect("a limit");
            let apart = (end - opened).abs_diff(seconds * SECOND);
            assert!(apart < Duration::from_millis(1), "{:?}", end - opened);
        };
        check(0, 48);
        check(u32::MAX / 2, 60);
        check(u32::MAX, 72);
        let unlimited = Bounds {
            pool_max_age: Duration::ZERO,
            ..bounds.clone()
        };
        assert_eq!(Life::begin(opened, &unlimited, 0).end(&unlimited), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_in_steady_use_ends_by_its_age() {
        let bounds = bounds(60 * SECOND, 4 * SECOND);
        let (pool, opener) = (Arc::new(ConnectionPool::default()), Opener::new(&bounds));
        let opened = Instant::now();
        pool.put(opener.open(1, u32::MAX / 2), opened, &bounds);
        // A call every half second, which ends at once.
        while let Some((upstream, _)) = pool.take(Instant::now()) {
            tokio::time::advance(SECOND / 2).await;
            pool.put(upstream, Instant::now(), &bounds);
            assert!(opened.elapsed() <= 61 * SECOND);
        }
        assert!(opened.elapsed() >= 59 * SECOND, "{:?}", opened.elapsed());
        assert_eq!(opener.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_does_not_hide_a_younger_one_below_it() {
        let bounds = bounds(10 * SECOND, 3600 * SECOND);
        let (pool, opener) = (Arc::new(ConnectionPool::default()), Opener::new(&bounds));
        let old = opener.open(1, u32::MAX / 2);
        tokio::time::advance(8 * SECOND).await;
        let young = opener.open(2, u32::MAX / 2);
        pool.put(young, Instant::now(), &bounds);
        pool.put(old, Instant::now(), &bounds);
        let later = Instant::now() + 3 * SECOND;
        let (taken, idle_for) = pool.take(later).expect("the young one");
        assert_eq!((taken.peer, idle_for), (address(2), 3 * SECOND));
        assert!(pool.take(later).is_none());
        assert_eq!(opener.count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_at_the_end_of_their_age() {
        let bounds = bounds(10 * SECOND, 3600 * SECOND);
        let (pool, opener) = (Arc::new(ConnectionPool::default()), Opener::new(&bounds));
        for entropy in [0, u32::MAX / 2, u32::MAX] {
            pool.put(opener.open(1, entropy), Instant::now(), &bounds);
        }
        for (after, open) in [(7, 3), (2, 2), (2, 1), (2, 0)] {
            tokio::time::sleep(after * SECOND).await;
            assert_eq!(opener.count(), open, "{after} s later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retirement_closes_idle_connections_to_other_addresses_and_takes_none_back() {
        let bounds = bounds(3600 * SECOND, 3600 * SECOND);
        let (pool, opener) = (Arc::new(ConnectionPool::default()), Opener::new(&bounds));
        let busy = [opener.open(1, 0), opener.open(2, 0)];
        for last in [1, 2, 3] {
            pool.put(opener.open(last, 0), Instant::now(), &bounds);
        }
        tokio::time::advance(SECOND).await;
        let asked_at = Instant::now();
        let retired = pool.retire(&retirement(asked_at, &[2]));
        assert_eq!((retired, opener.count()), (2, 3));
        for upstream in busy {
            pool.put(upstream, Instant::now(), &bounds);
        }
        assert_eq!(opener.count(), 2, "both lead to the second address");
        // The name has moved once more, and new connections follow it without a reload.
        tokio::time::advance(SECOND).await;
        pool.put(opener.open(3, 0), Instant::now(), &bounds);
        assert_eq!(opener.count(), 3);
        assert_eq!(pool.kept.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_began_before_another_does_not_replace_its_result() {
        let bounds = bounds(3600 * SECOND, 3600 * SECOND);
        let (pool, opener) = (Arc::new(ConnectionPool::default()), Opener::new(&bounds));
        pool.put(opener.open(2, 0), Instant::now(), &bounds);
        let slow = retirement(Instant::now() + SECOND, &[1]);
        tokio::time::advance(SECOND).await;
        assert_eq!(pool.retire(&retirement(Instant::now(), &[2])), 0);
        assert_eq!(pool.retire(&slow), 0);
        assert_eq!(opener.count(), 1);
    }
}
