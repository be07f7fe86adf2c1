//! Servers that die and return under load, and what they and their clients saw.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_lab::backend::RunningBackend;
use tokio::task::JoinSet;

use super::{AT_ONCE, request, server};
use crate::coming_from::call;
use crate::support::PATIENCE;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Clients that always wait: more than all servers take.
const CLIENTS: usize = 40;

/// Servers with the same delay.
pub(super) struct Farm {
    servers: Vec<Life>,
    delay: Duration,
    seen: Seen,
    /// Of all lives that are over: how long calls ran there, and could have.
    busy: f64,
    available: f64,
}

/// A server from its start until it dies.
struct Life {
    backend: RunningBackend,
    addr: SocketAddr,
    began: Instant,
}

/// Counts of the servers and the clients.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The most calls at once at any server, by its own record.
    pub(super) most_at_once: u32,
    /// Calls that ended with 200.
    pub(super) answered: u64,
    /// Calls that ended with an error.
    pub(super) failed: u64,
    /// Calls without an answer.
    pub(super) lost: u64,
    /// Calls that were at a server when it died.
    pub(super) cut: u64,
    /// The part of what the servers bore that was used, from the first call of each life on.
    pub(super) used: f64,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

impl Farm {
    pub(super) async fn start(count: usize, delay: Duration) -> Self {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Life::begin(None, delay).await);
        }
        Self {
            servers,
            delay,
            seen: Seen::default(),
            busy: 0.0,
            available: 0.0,
        }
    }

    pub(super) fn addrs(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let addrs = self.servers.iter().map(|life| life.addr);
        NAMES.into_iter().zip(addrs)
    }

    /// A server dies. Others answer meanwhile, and it comes back.
    async fn die(&mut self, place: usize, calls: u64) {
        let Life { addr, .. } = self.servers[place];
        let life = self.servers.swap_remove(place);
        self.end(life).await;
        self.answer_more(calls).await;
        self.servers.push(Life::begin(Some(addr), self.delay).await);
        let back = &self.servers.last().expect("it was just pushed").backend;
        back.wait_until(|seen| seen.answered >= calls).await;
    }

    /// Waits until each server has answered as many calls more.
    async fn answer_more(&self, more: u64) {
        for Life { backend, .. } in &self.servers {
            let before = backend.report().answered;
            backend
                .wait_until(|seen| seen.answered >= before + more)
                .await;
        }
    }

    async fn end(&mut self, life: Life) {
        let starts = life.backend.starts();
        let lasted = life.began.elapsed();
        let seen = life.backend.stop().await;
        self.seen.most_at_once = self.seen.most_at_once.max(seen.peak_in_flight);
        self.seen.cut += seen.calls - seen.answered;
        let Some(first) = starts.first() else { return };
        let ran = starts
            .iter()
            .map(|start| lasted.saturating_sub(*start).min(self.delay));
        self.busy += ran.sum::<Duration>().as_secs_f64();
        let time = lasted.saturating_sub(*first).as_secs_f64();
        self.available += time * f64::from(AT_ONCE);
    }
}

impl Life {
    async fn begin(at: Option<SocketAddr>, delay: Duration) -> Self {
        let began = Instant::now();
        let backend = server(at, delay).await;
        let addr = backend.http_addr();
        Self {
            backend,
            addr,
            began,
        }
    }
}

/// Clients that always wait, while one server after another dies and returns this many times.
/// Each time, the others answer this many `calls` meanwhile, and then the one that is back.
pub(super) async fn storm(mut farm: Farm, addr: SocketAddr, (deaths, calls): (usize, u64)) -> Seen {
    let counts = Arc::new(Counts::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (counts, is_over) = (Arc::clone(&counts), Arc::clone(&is_over));
        clients.spawn(async move {
            let request = request("/a", "");
            while !is_over.load(Ordering::Relaxed) {
                let called = tokio::time::timeout(PATIENCE, call(addr, &request));
                let count = match called.await.ok().flatten() {
                    Some(200) => &counts.answered,
                    Some(_) => &counts.failed,
                    None => &counts.lost,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    farm.answer_more(8).await;
    for _ in 0..deaths {
        // The first of the list: the one that came back goes to its end.
        farm.die(0, calls).await;
    }
    let measured = (farm.busy, farm.available);
    is_over.store(true, Ordering::Relaxed);
    clients.join_all().await;
    for life in std::mem::take(&mut farm.servers) {
        farm.end(life).await;
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Seen {
        answered: count(&counts.answered),
        failed: count(&counts.failed),
        lost: count(&counts.lost),
        // Without the end, in which no client calls again.
        used: measured.0 / measured.1,
        ..farm.seen
    }
}
