//! A stand-in z/VM SDK server: answers at once or after a pause, counts what it sees, and falls
//! over under too many calls, as the real one's SMAPI does.
//!
//! It speaks the socket protocol of sdkserver and the HTTP of sdkwsgi on two ports, with one
//! recorder behind both. Benchmarks measure the program in front of it, so a call costs two short
//! locks, no log line and, for an immediate answer, no timer.
//!
//! With a model ([`ModelOptions`]), how long a call takes depends on the other calls at the backend.
//!
//! Some userids have a meaning, on both protocols:
//!
//! | userid | what happens |
//! |---|---|
//! | `SLOW<n>` | the call takes `n` seconds longer |
//! | `WORK<n>` | the call takes `n` milliseconds, whatever the other calls of its kind take |
//! | `NOEXIST` | 404/10/404/1, as for a guest that does not exist |
//! | `BIG` | the output is 1 MiB long |
//! | `CUT` | the connection closes in the middle of the JSON |
//! | `CLOSE` | the connection closes without a byte |
//! | `SILENT` | nothing, until the client leaves |

mod accept;
mod model;
mod recorder;
mod reply;
mod serve;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate_runtime::command::{executor, listen, note, parse_duration, print};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::accept::{Port, accept};
use self::model::{Collapses, Worked};
use self::recorder::Recorder;

pub use self::model::{ModelOptions, OverloadReaction};
pub use self::recorder::BackendStatistics;

/// How the backend behaves.
#[derive(Args, Clone, Debug)]
pub struct StandInOptions {
    /// Address of the socket protocol; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2001")]
    pub socket: SocketAddr,
    /// Address of HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,
    /// Address of GET /stats and POST /reset
    #[arg(long, value_name = "ADDR")]
    pub stats: Option<SocketAddr>,
    /// How long a call takes
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    pub delay: Duration,
    /// Each call takes up to this much longer, uniformly
    #[arg(long, default_value = "0ms", value_parser = parse_duration)]
    pub jitter: Duration,
    /// Times are lognormal: half of the calls take less than --delay, and this is the standard deviation of the logarithm
    #[arg(long, value_name = "SIGMA", conflicts_with = "jitter")]
    pub tail: Option<f64>,
    /// Share of calls that fail by chance (500/1/-110/0)
    #[arg(long, default_value = "0.0", value_parser = crate::parse_share)]
    pub fail_rate: f64,
    /// Seed of jitter and chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Falls over when more calls than this are in flight; 0 means never
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    pub break_in_flight: u32,
    /// Falls over when more calls than this start within any second; 0 means never
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    pub break_per_second: u32,
    /// How long it stays down; meanwhile every call fails at once (500/1/-110/0)
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub recover: Duration,
    /// Padding in each answer
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub reply_bytes: usize,
    /// Connections that may wait to be accepted; the real server has 5
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 4096)]
    pub backlog: u32,
    /// Threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// How calls slow one another.
    #[command(flatten)]
    pub model: ModelOptions,
}

impl Default for StandInOptions {
    fn default() -> Self {
        crate::defaults()
    }
}

impl StandInOptions {
    /// The defaults, on free ports of the loopback address.
    #[must_use]
    pub fn on_free_ports() -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            socket: free,
            http: free,
            ..Self::default()
        }
    }
}

/// The command: serves until ctrl-c, then prints the statistics.
///
/// # Errors
/// An address that cannot be listened on, or options of a model that make no sense.
pub fn main(options: StandInOptions) -> io::Result<ExitCode> {
    executor(options.threads)?.block_on(async {
        let running = StandInBackend::start(options).await?;
        let mut line = format!(
            "backend: socket protocol on {}, HTTP on {}",
            running.socket_addr(),
            running.http_addr()
        );
        if let Some(stats) = running.stats_addr() {
            line.push_str(&format!(", GET /stats and POST /reset on {stats}"));
        }
        note(format_args!("{line}; ctrl-c ends it\n"));
        tokio::signal::ctrl_c().await?;
        print(&format!("{}\n", running.stop().await))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The stand-in server.
#[derive(Debug)]
pub struct StandInBackend {
    recorder: Recorder,
    model: Option<Worked>,
}

impl StandInBackend {
    /// Listens and serves in the current runtime.
    ///
    /// # Errors
    /// An address that cannot be listened on, or options of a model that make no sense.
    // Async although it never waits: to listen needs a runtime.
    #[allow(clippy::unused_async)]
    pub async fn start(options: StandInOptions) -> io::Result<RunningBackend> {
        let model = Worked::start(&options.model, options.recover)?;
        let recorder = Recorder::new(options)?;
        let backend = Arc::new(Self { recorder, model });
        let options = &backend.recorder.options;
        let stop = CancellationToken::new();
        let mut acceptors = JoinSet::new();
        let mut open = |address, port| {
            let listener = listen(address, options.backlog)?;
            let address = listener.local_addr()?;
            acceptors.spawn(accept(listener, port, Arc::clone(&backend), stop.clone()));
            io::Result::Ok(address)
        };
        let socket_addr = open(options.socket, Port::Socket)?;
        let http_addr = open(options.http, Port::Http)?;
        let stats_addr = options.stats.map(|at| open(at, Port::Stats)).transpose()?;
        Ok(RunningBackend {
            backend,
            acceptors,
            stop: stop.drop_guard(),
            socket_addr,
            http_addr,
            stats_addr,
        })
    }

    /// Returns the receiver that reports when the backend of a port collapses. The statistics stay up.
    fn collapses(&self, port: Port) -> Option<Collapses> {
        let model = self.model.as_ref().filter(|_| port != Port::Stats);
        model.map(Worked::collapses)
    }
}

/// A running backend. A drop ends it.
#[derive(Debug)]
pub struct RunningBackend {
    backend: Arc<StandInBackend>,
    acceptors: JoinSet<()>,
    stop: DropGuard,
    socket_addr: SocketAddr,
    http_addr: SocketAddr,
    stats_addr: Option<SocketAddr>,
}

impl RunningBackend {
    /// The address of the socket protocol.
    #[must_use]
    pub fn socket_addr(&self) -> SocketAddr {
        self.socket_addr
    }

    /// The address of HTTP.
    #[must_use]
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// The address of the statistics, if there is one.
    #[must_use]
    pub fn stats_addr(&self) -> Option<SocketAddr> {
        self.stats_addr
    }

    /// The statistics so far.
    #[must_use]
    pub fn report(&self) -> BackendStatistics {
        self.backend.recorder.report()
    }

    /// When each call started, from the start of the backend; the last million, in order.
    #[must_use]
    pub fn starts(&self) -> Vec<Duration> {
        self.backend.recorder.starts()
    }

    /// Waits until the statistics satisfy `is_so`. Checks again at each accepted connection, and at
    /// each start and end of a call.
    pub async fn wait_until(
        &self,
        is_so: impl Fn(&BackendStatistics) -> bool,
    ) -> BackendStatistics {
        self.backend.recorder.wait_until(is_so).await
    }

    /// Clears the statistics, and recovers from a fall.
    pub fn reset(&self) {
        self.backend.recorder.reset();
    }

    /// Stops listening, ends all connections and returns the statistics. The ports are free when
    /// this returns.
    pub async fn stop(mut self) -> BackendStatistics {
        drop(self.stop);
        while self.acceptors.join_next().await.is_some() {}
        self.backend.recorder.report()
    }
}
