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
