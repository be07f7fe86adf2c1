//! The calls of a scenario: when each comes, for what, and how long the backend takes for it alone.
//!
//! A call is about the userid `WORK<n>`, which the stand-in backend takes as n milliseconds of work. So the load
//! decides about every service time, and two runs have the same.

use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tidegate_backends::{ServiceDemand, ValueProfile, drive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::support::array;

const SECOND: u64 = 1_000_000_000;

/// A call of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) function: &'static str,
    /// The name of the listener that it comes to.
    pub(super) listener: &'static str,
    pub(super) work_ms: u64,
}

impl Call {
    /// A read of the first listener.
    pub(super) const READ: Self = Self {
        function: "guest_get_info",
        listener: "test",
        work_ms: 0,
    };
}

/// When calls come.
#[derive(Clone, Debug)]
pub(super) enum Load {
    /// Each at its moment.
    Open(Vec<(Duration, Call)>),
    /// Each client has these calls, and waits this time before each.
    Closed(Vec<Vec<(Duration, Call)>>),
}

/// How calls come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Socket,
    /// The sidecar keeps its connections to the backend.
    Http,
}

/// Makes loads with one seed.
pub(super) struct Maker {
    random: StdRng,
    calls: Vec<(Duration, Call)>,
}

impl Maker {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            calls: Vec::new(),
        }
    }

    /// Adds this many calls at the beginning.
    pub(super) fn burst(mut self, calls: usize, like: Call, work: ServiceDemand) -> Self {
        for _ in 0..calls {
            let work_ms = millis(work.quantile(self.random.random()));
            self.calls.push((Duration::ZERO, Call { work_ms, ..like }));
        }
        self
    }

    /// Calls at random moments, this many a second on average, for some seconds.
    pub(super) fn steady(
        mut self,
        per_second: f64,
        seconds: u64,
        like: Call,
        work: ServiceDemand,
    ) -> Self {
        let rate = ValueProfile::constant(per_second).expect("a rate");
        let mut unit = || self.random.random();
        let arrivals = drive::poisson(&rate, seconds * SECOND, 0, work, &mut unit);
        let calls = arrivals.iter().map(|it| {
            let work_ms = millis(it.demand);
            (Duration::from_nanos(it.at), Call { work_ms, ..like })
        });
        self.calls.extend(calls);
        self
    }

    pub(super) fn open(self) -> Load {
        Load::Open(self.calls)
    }

    /// Clients that think for a random time before each call.
    pub(super) fn closed(
        mut self,
        clients: usize,
        calls: usize,
        think: ServiceDemand,
        work: ServiceDemand,
        like: Call,
    ) -> Load {
        let clients = (0..clients).map(|_| {
            let calls = (0..calls).map(|_| {
                let think = think.quantile(self.random.random());
                let work_ms = millis(work.quantile(self.random.random()));
                (Duration::from_nanos(think), Call { work_ms, ..like })
            });
            calls.collect()
        });
        Load::Closed(clients.collect())
    }
}

fn millis(nanos: u64) -> u64 {
    (nanos / 1_000_000).max(1)
}

/// Sends all calls to the listeners that `addr` finds by name, and reads all answers. Returns by how much the
/// latest call was late.
pub(super) async fn send(load: &Load, wire: Wire, addr: impl Fn(&str) -> SocketAddr) -> Duration {
    let mut clients = JoinSet::new();
    let begun = Instant::now();
    match load {
        Load::Open(calls) => {
            for &(at, call) in calls {
                let to = addr(call.listener);
                clients.spawn(async move {
                    let late = sleep_late(begun + at).await;
                    ask(to, wire, call).await;
                    late
                });
            }
        }
        Load::Closed(all) => {
            for calls in all.iter().cloned() {
                let to: Vec<_> = calls.iter().map(|(_, it)| addr(it.listener)).collect();
                clients.spawn(async move {
                    let mut latest = Duration::ZERO;
                    for ((think, call), to) in calls.into_iter().zip(to) {
                        latest = latest.max(sleep_late(Instant::now() + think).await);
                        ask(to, wire, call).await;
                    }
                    latest
                });
            }
        }
    }
    let late = clients.join_all().await;
    late.into_iter().max().unwrap_or_default()
}

/// Sleeps until then, and says by how much it was late.
async fn sleep_late(until: Instant) -> Duration {
    sleep_until(until).await;
    until.elapsed()
}

/// Makes a call, whose result is in the log. What became of it is in the log.
async fn ask(to: SocketAddr, wire: Wire, call: Call) {
    let userid = format!("WORK{}", call.work_ms);
    let request = match wire {
        Wire::Socket => array(call.function, &userid),
        Wire::Http => {
            format!("GET /guests/{userid}/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        }
    };
    let mut stream = TcpStream::connect(to).await.expect("the sidecar listens");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("it answers");
}
