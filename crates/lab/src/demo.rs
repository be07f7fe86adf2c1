//! The demonstration for new users: a storm breaks a backend, and then it does not.
//!
//! The same calls come at once three times, each time to a new backend that falls over under too
//! many calls: directly, and through the sidecar with each of its two ways to postpone. The
//! backend and the clients count the printed figures, not the sidecar.

mod progress;
mod sidecar;

use std::fmt;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tidegate_runtime::command::{executor, exit_code, print, wants_colours};
use tokio::task::JoinSet;

use self::progress::StormCounts;
use crate::backend::{self, BackendStatistics, RunningBackend, StandInBackend};
use crate::bench;
use crate::bench::client::{CallAnswer, LoadClient, Requests};

pub use self::progress::StormProgress;

/// A client that waits longer gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of the demonstration.
#[derive(Args, Clone, Debug)]
pub struct DemoOptions {
    /// End after the storms; exit code 0 if all promises were kept
    #[arg(long)]
    pub once: bool,
    /// Calls at once
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub calls: u32,
}

/// Loads at which the backend falls over, and the sidecar's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls in flight at once: the limit.
    pub in_flight: u32,
    /// The backend falls over when more than this are in flight.
    pub in_flight_breaks: u32,
    /// Calls forwarded in any window: the limit.
    pub per_window: u32,
    /// The backend falls over when more than this start within a window. Forwarded calls may start
    /// late there, but only as many as are in flight.
    pub per_window_breaks: u32,
    /// Length of the window.
    pub window: Duration,
    /// The backend's time for one call.
    pub delay: Duration,
}

/// The figures of the z/VM design: 30 calls per second, 10 at once.
pub const LIMITS: Limits = Limits {
    in_flight: 10,
    in_flight_breaks: 12,
    per_window: 30,
    per_window_breaks: 40,
    window: Duration::from_secs(1),
    delay: Duration::from_millis(50),
};

impl Limits {
    /// The least time to answer this many calls that come at once: the last window must open and
    /// its calls must be served, and the calls in flight run in rounds.
    #[must_use]
    pub fn best(&self, calls: u32) -> Duration {
        let windows = calls.div_ceil(self.per_window);
        let by_window = self.window * windows.saturating_sub(1) + self.delay;
        let by_in_flight = self.delay * calls.div_ceil(self.in_flight);
        if calls == 0 {
            Duration::ZERO
        } else {
            by_window.max(by_in_flight)
        }
    }
}

/// How the sidecar postpones calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Postpone {
    /// In the order of arrival.
    InTurn,
    /// Each for a random time.
    Jitter,
}

/// The settings of the demonstration's sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The socket backend behind it.
    pub backend: SocketAddr,
    /// The sidecar's limits.
    pub limits: Limits,
    /// How the sidecar postpones calls above its limits.
    pub postpone: Postpone,
}

/// A running sidecar.
pub struct DemoProxy {
    /// The sidecar's address for the socket protocol.
    pub addr: SocketAddr,
    /// Ends it when awaited.
    pub stop: Pin<Box<dyn Future<Output = ()>>>,
}

/// The command: the storms through the sidecar itself.
///
/// # Errors
/// No free port, or the sidecar does not start.
pub fn main(options: DemoOptions) -> io::Result<ExitCode> {
    executor(1)?.block_on(async {
        let progress = StormProgress::to_stderr();
        let outcome = run(options.calls, &LIMITS, progress, &sidecar::start).await?;
        let colours = wants_colours(&io::stdout());
        print(&format!("{}\n", outcome.table(colours)))?;
        // Without a terminal, no user is there to end it.
        if !options.once && io::stdin().is_terminal() {
            stay().await?;
        }
        Ok(exit_code(outcome.kept()))
    })
}

/// Keeps a sidecar and its backend running for experiments, until ctrl-c.
async fn stay() -> io::Result<()> {
    let backend = fragile(&LIMITS).await?;
    let wish = Wish {
        backend: backend.socket_addr(),
        limits: LIMITS,
        postpone: Postpone::InTurn,
    };
    let proxy = sidecar::start(wish).await?;
    let addr = proxy.addr;
    print(&format!(
        "The sidecar stays up on {addr}, until ctrl-c. Try:\n  \
         tidegate bench --target {addr} --storm 100\n  \
         tidegate bench --target {} --storm 100   # past it\n",
        backend.socket_addr()
    ))?;
    tokio::signal::ctrl_c().await?;
    proxy.stop.await;
    print(&format!(
        "\nWhat its backend saw:\n{}\n",
        backend.stop().await
    ))
}

/// Runs the storms, one after the other, each with a new backend.
///
/// # Errors
/// No free port, or the sidecar does not start.
pub async fn run<F>(
    calls: u32,
    limits: &Limits,
    progress: StormProgress,
    start_proxy: &F,
) -> io::Result<Storms>
where
    F: AsyncFn(Wish) -> io::Result<DemoProxy>,
{
    let mut storms = Vec::new();
    for way in [
        Way::Straight,
        Way::Through(Postpone::InTurn),
        Way::Through(Postpone::Jitter),
    ] {
        let backend = fragile(limits).await?;
        let backend_addr = backend.socket_addr();
        let (target, stop) = match way {
            Way::Straight => (backend_addr, None),
            Way::Through(postpone) => {
                let wish = Wish {
                    backend: backend_addr,
                    limits: *limits,
                    postpone,
                };
                let proxy = start_proxy(wish).await?;
                (proxy.addr, Some(proxy.stop))
            }
        };
        storms.push(storm(way, calls, target, &backend, progress).await);
        if let Some(stop) = stop {
            stop.await;
        }
        backend.stop().await;
    }
    Ok(Storms {
        calls,
        limits: *limits,
        storms,
    })
}

async fn fragile(limits: &Limits) -> io::Result<RunningBackend> {
    StandInBackend::start(backend::StandInOptions {
        delay: limits.delay,
        break_in_flight: limits.in_flight_breaks,
        break_per_second: limits.per_window_breaks,
        ..backend::StandInOptions::on_free_ports()
    })
    .await
}

/// All calls at once, in the form of the real client.
async fn storm(
    way: Way,
    calls: u32,
    target: SocketAddr,
    backend: &RunningBackend,
    progress: StormProgress,
) -> Storm {
    let requests = Arc::new(Requests::new(&bench::BenchOptions {
        target,
        ..bench::BenchOptions::default()
    }));
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for call in 0..calls {
        let mut client = LoadClient::new(target, Arc::clone(&requests));
        clients.spawn(async move {
            let answer = tokio::time::timeout(PATIENCE, client.call(u64::from(call))).await;
            matches!(answer, Ok(Ok(CallAnswer::Ok)))
        });
    }
    let mut redraw = tokio::time::interval(progress.period());
    progress.begin(&way.to_string());
    let mut now = StormCounts {
        calls,
        answered: 0,
        failed: 0,
        in_flight: 0,
        passed: Duration::ZERO,
    };
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(Ok(true)) => now.answered += 1,
                // A client that panicked has no answer either.
                Some(_) => now.failed += 1,
                None => break,
            },
            _ = redraw.tick() => {
                now.in_flight = backend.report().in_flight;
                now.passed = begun.elapsed();
                progress.show(&now);
            }
        }
    }
    now.in_flight = 0;
    now.passed = begun.elapsed();
    progress.end(&now);
    Storm {
        way,
        answered: now.answered,
        failed: now.failed,
        took: now.passed,
        backend: backend.report(),
    }
}

/// The path of a storm to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Without the sidecar.
    Straight,
    /// Through it.
    Through(Postpone),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Straight => "straight at the backend",
            Self::Through(Postpone::InTurn) => "through Tidegate, in_turn",
            Self::Through(Postpone::Jitter) => "through Tidegate, jitter",
        })
    }
}

/// The result of one storm.
#[derive(Clone, Debug)]
pub struct Storm {
    /// The storm's path to the backend.
    pub way: Way,
    /// Successful calls.
    pub answered: u32,
    /// Calls that were not.
    pub failed: u32,
    /// Time until the last answer.
    pub took: Duration,
    /// The backend's statistics.
    pub backend: BackendStatistics,
}

/// The results of all storms.
#[derive(Clone, Debug)]
pub struct Storms {
    calls: u32,
    limits: Limits,
    /// The storms in the order of their runs.
    pub storms: Vec<Storm>,
}

impl Storms {
    /// Whether every storm through the sidecar kept every promise.
    #[must_use]
    pub fn kept(&self) -> bool {
        self.promises().iter().all(|(_, kept)| *kept)
    }

    /// Each promise, and whether every storm through the sidecar kept it.
    fn promises(&self) -> Vec<(String, bool)> {
        let Limits {
            in_flight,
            per_window,
            ..
        } = self.limits;
        let start_max = per_window + in_flight;
        let in_all = |holds: &dyn Fn(&Storm) -> bool| {
            let through = |storm: &&Storm| storm.way != Way::Straight;
            self.storms.iter().filter(through).all(holds)
        };
        let is_good = |figure: usize| in_all(&|storm| self.figures(storm)[figure].1);
        vec![
            (
                format!("all {} calls answered, none failed", self.calls),
                is_good(0) && is_good(1),
            ),
            (
                "the backend never fell over".to_owned(),
                in_all(&|storm| storm.backend.falls == 0),
            ),
            (format!("never more than {in_flight} in flight"), is_good(2)),
            (
                format!(
                    "never more than {per_window} leave in any second, so at most {start_max} \
                     start at the backend"
                ),
                is_good(3),
            ),
        ]
    }

    /// Each figure of a storm, and whether it is as promised: calls answered and failed, the most
    /// in flight, and the densest second.
    fn figures(&self, storm: &Storm) -> [(u32, bool); 4] {
        let (limits, seen) = (&self.limits, &storm.backend);
        let (at_once, densest) = (seen.peak_in_flight, seen.densest_second);
        [
            (storm.answered, storm.answered == self.calls),
            (storm.failed, storm.failed == 0),
            (at_once, at_once <= limits.in_flight),
            (densest, densest <= limits.per_window + limits.in_flight),
        ]
    }

    /// The table and the verdicts.
    #[must_use]
    pub fn table(&self, colours: bool) -> String {
        let paint = |text: String, good: bool| match (colours, good) {
            (false, _) => text,
            (true, true) => format!("\x1b[32m{text}\x1b[0m"),
            (true, false) => format!("\x1b[31m{text}\x1b[0m"),
        };
        let limits = &self.limits;
        let mut lines = vec![format!(
            "\n{:<27}{:>9}{:>8}{:>16}{:>17}{:>10}",
            format!("{} calls at once", self.calls),
            "answered",
            "failed",
            "most in flight",
            "densest second",
            "took"
        )];
        for storm in &self.storms {
            let cells = self.figures(storm).into_iter().zip([9, 8, 16, 17]);
            let cells: String = cells
                .map(|((count, good), width)| paint(format!("{count:>width$}"), good))
                .collect();
            let fell = match storm.backend.falls {
                0 => String::new(),
                _ => paint("  the backend fell over".to_owned(), false),
            };
            let took = storm.took.as_secs_f64();
            lines.push(format!("{:<27}{cells}{took:>8.2} s{fell}", storm.way));
        }
        lines.push(format!(
            "{:<27}{:>9}{:>8}{:>16}{:>17}{:>8.2} s",
            "what the limits allow",
            "",
            "",
            limits.in_flight,
            limits.per_window,
            limits.best(self.calls).as_secs_f64()
        ));
        lines.push(format!(
            "{:<27}{:>9}{:>8}{:>16}{:>17}\n",
            "the backend falls above", "", "", limits.in_flight_breaks, limits.per_window_breaks
        ));
        for (promise, kept) in self.promises() {
            let verdict = if kept { "kept  " } else { "BROKEN" };
            lines.push(format!("{}  {promise}", paint(verdict.to_owned(), kept)));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_time_is_the_longer_of_window_and_rounds() {
        let check = |calls, per_window, in_flight, delay_ms, expected_ms| {
            let limits = Limits {
                per_window,
                in_flight,
                delay: Duration::from_millis(delay_ms),
                ..LIMITS
            };
            assert_eq!(
                limits.best(calls),
                Duration::from_millis(expected_ms),
                "{calls} calls"
            );
        };
        check(300, 30, 10, 50, 9050);
        check(150, 30, 10, 50, 4050);
        check(1000, 10_000, 10, 100, 10_000);
        check(30, 30, 10, 50, 150);
        check(31, 30, 10, 50, 1050);
        check(0, 30, 10, 50, 0);
    }

    #[test]
    fn one_broken_promise_breaks_the_verdict() {
        let storm = |way, backend| Storm {
            way,
            answered: 300,
            failed: 0,
            took: Duration::from_secs(9),
            backend,
        };
        let good = BackendStatistics {
            peak_in_flight: 10,
            densest_second: 40,
            ..BackendStatistics::default()
        };
        let outcome = |jitter: BackendStatistics| Storms {
            calls: 300,
            limits: LIMITS,
            storms: vec![
                storm(
                    Way::Straight,
                    BackendStatistics {
                        falls: 1,
                        peak_in_flight: 300,
                        ..BackendStatistics::default()
                    },
                ),
                storm(Way::Through(Postpone::InTurn), good.clone()),
                storm(Way::Through(Postpone::Jitter), jitter),
            ],
        };
        assert!(
            outcome(good.clone()).kept(),
            "the storm past the sidecar promises nothing"
        );
        for bad in [
            BackendStatistics {
                falls: 1,
                ..good.clone()
            },
            BackendStatistics {
                peak_in_flight: 11,
                ..good.clone()
            },
            BackendStatistics {
                densest_second: 41,
                ..good.clone()
            },
        ] {
            let outcome = outcome(bad);
            assert!(!outcome.kept());
            assert!(outcome.table(false).contains("BROKEN"));
            assert!(!outcome.table(false).contains('\x1b'));
            assert!(outcome.table(true).contains('\x1b'));
        }
    }
}
