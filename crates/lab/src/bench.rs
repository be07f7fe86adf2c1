//! Puts load on any program that speaks the socket protocol or HTTP, and measures the answers.
//!
//! Four kinds of load:
//!
//! - closed loop: each connection sends its next call after the answer to the last;
//! - open loop (`--rate`): calls start on a schedule, independent of earlier calls. A call's
//!   latency counts from its scheduled start, so it includes the wait for a free connection.
//!   Otherwise a stalled server gets only one call, and is slow only once (Tene's "coordinated
//!   omission");
//! - storm (`--storm`): that many clients at once, one call each;
//! - hold (`--hold`): that many connections that never send a byte.
//!
//! The runtime's timer ticks in milliseconds, too coarse for a schedule, so a separate thread
//! paces the open loop. The remaining delay is reported as `lag`.

pub(crate) mod client;
mod tally;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::{Resource, getrlimit};
use tidegate_runtime::command::{executor, exit_code, print};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::client::{LoadClient, Requests};
use self::tally::LoadTally;

use crate::framing::is_readable;

pub use self::client::CallFailure;
pub use self::tally::LoadReport;

/// Descriptors that the process needs in addition to its connections.
const OTHER_DESCRIPTORS: u64 = 32;
/// Maximum number of calls in one open-loop run.
const SCHEDULE_MAX: f64 = 1e9;

/// The protocol of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TargetProtocol {
    /// A connection and a JSON array for each call
    #[default]
    Socket,
    /// HTTP/1.1 on persistent connections
    Http,
}

/// The load and its target.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// Address of the target
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2000")]
    pub target: SocketAddr,
    /// Protocol of the target
    #[arg(long, value_enum, default_value_t)]
    pub protocol: TargetProtocol,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub connections: u32,
    /// Calls in all; without it, only time ends the run
    #[arg(long, value_name = "N")]
    pub calls: Option<u64>,
    /// No call starts after this many seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = crate::parse_seconds)]
    pub seconds: Duration,
    /// Open loop: calls per second, started on schedule
    #[arg(long, value_name = "R", conflicts_with_all = ["storm", "hold"])]
    pub rate: Option<f64>,
    /// That many clients at once, one call each
    #[arg(long, value_name = "N", conflicts_with_all = ["hold", "calls"])]
    pub storm: Option<u32>,
    /// That many connections that send nothing, kept for --seconds
    #[arg(long, value_name = "N", conflicts_with = "calls")]
    pub hold: Option<u32>,
    /// How long clients wait before they leave
    #[arg(long, value_name = "S", value_parser = crate::parse_seconds)]
    pub leave_after: Option<Duration>,
    /// Every Nth client leaves
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub leave_every: u32,
    /// A call that takes longer has failed
    #[arg(long, value_name = "S", default_value = "120", value_parser = crate::parse_seconds)]
    pub timeout: Duration,
    /// Function to call; those without a well-known route go over HTTP as POST /
    #[arg(long, default_value = "guest_get_info")]
    pub function: String,
    /// Userid of the guest
    #[arg(long, default_value = "HRX00001")]
    pub userid: String,
    /// Alternate between --function and guest_start, a read and a write
    #[arg(long)]
    pub mix: bool,
    /// Calls over HTTP belong to a trace (traceparent), and every Nth is sampled
    #[arg(long, value_name = "N")]
    pub sampled_every: Option<NonZeroU64>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

impl Default for BenchOptions {
    fn default() -> Self {
        crate::defaults()
    }
}

/// The kind of load, after the options are checked.
#[derive(Clone, Copy, Debug)]
enum LoadShape {
    Closed,
    Open { rate: f64 },
    Storm { clients: u32 },
    Hold { connections: u32 },
}

impl BenchOptions {
    fn load(&self) -> io::Result<LoadShape> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.connections == 0 || self.leave_every == 0 {
            return wrong("--connections and --leave-every must be at least 1");
        }
        match (self.rate, self.storm, self.hold) {
            (None, None, None) => Ok(LoadShape::Closed),
            (Some(rate), None, None) if rate > 0.0 && rate.is_finite() => {
                Ok(LoadShape::Open { rate })
            }
            (Some(_), None, None) => wrong("--rate must be above 0"),
            (None, Some(clients), None) => Ok(LoadShape::Storm { clients }),
            (None, None, Some(connections)) => Ok(LoadShape::Hold { connections }),
            _ => wrong("only one of --rate, --storm and --hold can be given"),
        }
    }
}

/// The command: runs the load and prints the report. The exit code is 1 if no call succeeds, so
/// that a script notices a missing target.
///
/// # Errors
/// As [`run`].
pub fn main(options: BenchOptions) -> io::Result<ExitCode> {
    let json = options.json;
    let report = executor(options.threads)?.block_on(run(options))?;
    let text = match json {
        true => serde_json::to_string(&report).expect("a report is numbers and words"),
        false => report.to_string(),
    };
    print(&format!("{text}\n"))?;
    Ok(exit_code(report.ok > 0 || report.held > 0))
}

/// Puts the load on the target. Ends without help: no call starts after `seconds` (in an open
/// loop that is late, `timeout` later), and none takes longer than `timeout`.
///
/// # Errors
/// Options that contradict each other, and more connections than the process may open. Failed
/// calls are in the report.
pub async fn run(options: BenchOptions) -> io::Result<LoadReport> {
    let load = options.load()?;
    let connections = match load {
        LoadShape::Closed | LoadShape::Open { .. } => options.connections,
        LoadShape::Storm { clients } => clients,
        LoadShape::Hold { connections } => connections,
    };
    check_descriptors(connections)?;
    if let LoadShape::Hold { connections } = load {
        return hold(options.target, connections, options.seconds).await;
    }

    let requests = Arc::new(Requests::new(&options));
    let mut clients = Vec::new();
    for _ in 0..connections {
        let mut client = LoadClient::new(options.target, Arc::clone(&requests));
        // A storm opens all its connections at once; otherwise the first call on a connection is
        // like any other.
        if options.protocol == TargetProtocol::Http && !matches!(load, LoadShape::Storm { .. }) {
            client.connect().await.map_err(|cause| {
                let what = format!("cannot connect to {}: {cause}", options.target);
                io::Error::new(cause.kind(), what)
            })?;
        }
        clients.push(client);
    }

    let run = Arc::new(LoadRun::new(options, load, clients.len()));
    let mut workers = JoinSet::new();
    for (index, client) in clients.into_iter().enumerate() {
        workers.spawn(Arc::clone(&run).work(index as u64, client));
    }
    let pacer = StopPacer(Arc::clone(&run));
    if let LoadShape::Open { .. } = load {
        let run = Arc::clone(&run);
        tokio::task::spawn_blocking(move || run.pace());
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("a worker does not panic and is not aborted");
    }
    drop(pacer);
    Ok(run.tally.report(run.unsent()))
}

/// The state of a load that runs: which call is next, and its scheduled start.
struct LoadRun {
    load: LoadShape,
    start: Instant,
    options: BenchOptions,
    /// Calls in all, if limited.
    calls: u64,
    next: AtomicU64,
    workers: usize,
    /// Calls of the open loop that are due.
    due: Semaphore,
    tally: LoadTally,
}

/// Ends the pacing thread at any end of the run.
struct StopPacer(Arc<LoadRun>);

impl Drop for StopPacer {
    fn drop(&mut self) {
        self.0.due.close();
    }
}

impl LoadRun {
    fn new(options: BenchOptions, load: LoadShape, workers: usize) -> Self {
        let calls = match load {
            LoadShape::Open { rate } => {
                let schedule = (rate * options.seconds.as_secs_f64()).ceil();
                // At most a thousand million, so the cast is exact.
                let schedule = schedule.clamp(1.0, SCHEDULE_MAX) as u64;
                options.calls.unwrap_or(u64::MAX).min(schedule)
            }
            LoadShape::Storm { clients } => u64::from(clients),
            LoadShape::Closed | LoadShape::Hold { .. } => options.calls.unwrap_or(u64::MAX),
        };
        let start = Instant::now();
        Self {
            load,
            start,
            options,
            calls,
            next: AtomicU64::new(0),
            workers,
            due: Semaphore::new(0),
            tally: LoadTally::new(start, matches!(load, LoadShape::Storm { .. })),
        }
    }

    async fn work(self: Arc<Self>, index: u64, mut client: LoadClient) {
        if let LoadShape::Storm { .. } = self.load {
            return self.call(&mut client, index, self.start).await;
        }
        while let Some((call, intended)) = self.next_call().await {
            self.call(&mut client, call, intended).await;
        }
    }

    async fn call(&self, client: &mut LoadClient, call: u64, intended: Instant) {
        let timeout = self.options.timeout;
        let every = u64::from(self.options.leave_every);
        let leaves = self
            .options
            .leave_after
            .filter(|_| call % every == every - 1);
        self.tally.started(intended);
        let patience = leaves.map_or(timeout, |after| after.min(timeout));
        match tokio::time::timeout(patience, client.call(call)).await {
            Ok(outcome) => self.tally.ended(call, intended, outcome),
            Err(_) if leaves.is_some() => self.tally.left(),
            Err(_) => self.tally.ended(call, intended, Err(CallFailure::Timeout)),
        }
    }

    /// The next call of a loop, when it is due.
    async fn next_call(&self) -> Option<(u64, Instant)> {
        let LoadShape::Open { rate } = self.load else {
            let now = Instant::now();
            if now.duration_since(self.start) >= self.options.seconds {
                return None;
            }
            let call = self.next.fetch_add(1, Relaxed);
            return (call < self.calls).then_some((call, now));
        };
        self.due.acquire().await.ok()?.forget();
        let call = self.next.fetch_add(1, Relaxed);
        if self.start.elapsed() >= self.options.seconds + self.options.timeout {
            return None;
        }
        (call < self.calls).then(|| (call, self.intended(rate, call)))
    }

    fn intended(&self, rate: f64, call: u64) -> Instant {
        // Below 2^53, so the cast is exact.
        self.start + Duration::from_secs_f64(call as f64 / rate)
    }

    /// Releases each call of the open loop when it is due. Runs on a separate thread.
    fn pace(&self) {
        let LoadShape::Open { rate } = self.load else {
            return;
        };
        let mut released = 0;
        while released < self.calls && !self.due.is_closed() {
            let now = Instant::now();
            let mut fresh = 0;
            while released < self.calls && self.intended(rate, released) <= now {
                released += 1;
                fresh += 1;
            }
            self.due.add_permits(fresh);
            if released < self.calls {
                // In pieces, so that the thread ends soon after an abandoned run.
                let until = self.intended(rate, released).saturating_duration_since(now);
                std::thread::sleep(until.min(Duration::from_millis(100)));
            }
        }
        // A client that asks for another call gets none.
        self.due.add_permits(self.workers);
    }

    /// Calls of the open loop that never started.
    fn unsent(&self) -> u64 {
        match self.load {
            LoadShape::Open { .. } => self.calls - self.tally.begun().min(self.calls),
            _ => 0,
        }
    }
}

/// Opens connections that send nothing and keeps them.
async fn hold(target: SocketAddr, connections: u32, seconds: Duration) -> io::Result<LoadReport> {
    let start = Instant::now();
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(TcpStream::connect(target).await?);
    }
    let opened = start.elapsed();
    tokio::time::sleep(seconds).await;
    let still_open = held.iter().filter(|stream| !is_readable(stream)).count();
    Ok(LoadReport::held(
        held.len(),
        still_open,
        opened,
        start.elapsed(),
    ))
}

/// Reports before the start that a run needs more descriptors than the process may have.
fn check_descriptors(connections: u32) -> io::Result<()> {
    let allowed = getrlimit(Resource::Nofile).current;
    let needed = u64::from(connections) + OTHER_DESCRIPTORS;
    match allowed {
        Some(allowed) if needed > allowed => Err(io::Error::other(format!(
            "{connections} connections need {needed} open files, and this process may have \
             {allowed}: raise it with `ulimit -n {needed}`"
        ))),
        _ => Ok(()),
    }
}
