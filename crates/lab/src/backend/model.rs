//! A model of a fragile backend, in real time.
//!
//! One task holds the model and wakes at each of its events. It computes ends exactly, so a late timer
//! delays one reply, and no later end. The moments of steps count from the first call.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidegate_backends::{
    BackendModel, BreakBehaviour, CallStart, Model, Scalability, ServiceOutcome, Sharing,
    ValueProfile, Weight,
};
use tidegate_runtime::command::parse_duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

/// Calls that may be on their way to the task.
const ASKS_MAX: usize = 1024;

/// How calls at the backend slow one another, and when it breaks. Without any of these, they do not.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Model of a fragile backend")]
pub struct ModelOptions {
    /// Calls that run at full speed at once; more calls share these servers evenly
    #[arg(long, value_name = "CALLS", conflicts_with_all = ["sigma", "kappa"])]
    pub servers: Option<NonZeroU32>,
    /// Universal scalability: the share of the work that only one call at a time can do, 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub sigma: Option<f64>,
    /// Universal scalability: the cost of each pair of calls, 0 to 1
    #[arg(long, value_name = "COST")]
    pub kappa: Option<f64>,
    /// The highest load that it bears; the next call breaks it
    #[arg(long, value_name = "CALLS")]
    pub breaks_at: Option<NonZeroU32>,
    /// What happens then; a collapse lasts as long as --recover says
    #[arg(long, value_enum, default_value = "reset", requires = "breaks_at")]
    pub breaks: OverloadReaction,
    /// How much a function counts in the load, such as `guest_start=4`; can be repeated
    #[arg(long = "weight", value_name = "FUNCTION=CALLS", value_parser = parse_weight)]
    pub weights: Vec<(String, Weight)>,
    /// A share of the capacity from a time after the first call on, such as `30s=0.5`; can be repeated
    #[arg(long = "step", value_name = "TIME=SHARE", value_parser = parse_step)]
    pub steps: Vec<(Duration, f64)>,
    /// The steps repeat after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "steps")]
    pub day: Option<Duration>,
}

/// The backend's reaction to a call above the load that it bears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OverloadReaction {
    /// Reset the connection of the new call
    #[default]
    Reset,
    /// Reset the connections of all calls, and accept none for a time
    Collapse,
}

impl ModelOptions {
    /// The backend that they describe, if they describe one.
    fn backend(&self, restart: Duration) -> io::Result<Option<BackendModel>> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let slows = self.servers.is_some() || self.sigma.is_some() || self.kappa.is_some();
        if !slows && !self.steps.is_empty() {
            let why = "steps change nothing without --servers, --sigma or --kappa";
            return Err(wrong(why.to_owned()));
        }
        if !slows && self.breaks_at.is_none() {
            return Ok(None);
        }
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|(at, it)| (nanos(*at), *it))
            .collect();
        let (sigma, kappa) = (self.sigma.unwrap_or(0.0), self.kappa.unwrap_or(0.0));
        let backend = || {
            let sharing = match self.servers {
                Some(servers) => Sharing::Servers(servers),
                None => Sharing::Scalability(Scalability::new(sigma, kappa)?),
            };
            let capacity = ValueProfile::steps(1.0, &steps)?;
            let capacity = match self.day {
                Some(day) => capacity.every(nanos(day))?,
                None => capacity,
            };
            let mut backend = BackendModel::new(sharing);
            backend.capacity = capacity;
            backend.weights = self.weights.iter().map(|(_, weight)| *weight).collect();
            let then = match self.breaks {
                OverloadReaction::Reset => BreakBehaviour::Reset,
                OverloadReaction::Collapse => BreakBehaviour::Collapse {
                    restart: nanos(restart),
                },
            };
            Ok(match self.breaks_at {
                Some(above) => backend.breaks(above, then),
                None => backend,
            })
        };
        let backend: Result<_, tidegate_backends::OutOfRange> = backend();
        backend.map(Some).map_err(|error| wrong(error.to_string()))
    }
}

fn parse_weight(text: &str) -> Result<(String, Weight), String> {
    let wrong = || format!("`{text}` is not a function and its weight, such as guest_start=4");
    let (function, calls) = text.rsplit_once('=').ok_or_else(wrong)?;
    let calls = calls.parse().map_err(|_| wrong())?;
    let weight = Weight::new(calls).map_err(|error| error.to_string())?;
    Ok((function.to_owned(), weight))
}

fn parse_step(text: &str) -> Result<(Duration, f64), String> {
    let wrong = || format!("`{text}` is not a time and a share, such as 30s=0.5");
    let (at, share) = text.rsplit_once('=').ok_or_else(wrong)?;
    Ok((parse_duration(at)?, share.parse().map_err(|_| wrong())?))
}

/// Nanoseconds; a time of 584 years stands for a longer one.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A model at work. Its task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Worked {
    asks: mpsc::Sender<ModelCall>,
    /// The functions with weights, by their numbers in the model.
    functions: Vec<String>,
    down: watch::Receiver<Option<Instant>>,
}

/// A call for the task.
#[derive(Debug)]
struct ModelCall {
    function: usize,
    /// How long it would take alone.   ns
    work: u64,
    /// Dropped if the backend is down.
    ends: oneshot::Sender<ServiceOutcome>,
}

impl Worked {
    /// Starts the task, if the options describe a model. A collapse lasts for `restart`.
    ///
    /// # Errors
    ///
    /// An option that makes no sense.
    pub(super) fn start(options: &ModelOptions, restart: Duration) -> io::Result<Option<Self>> {
        let Some(backend) = options.backend(restart)? else {
            return Ok(None);
        };
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let (tell, down) = watch::channel(None);
        let functions = options.weights.iter().map(|(name, _)| name.clone());
        let functions = functions.collect();
        tokio::spawn(work(Model::new(backend), asked, tell));
        Ok(Some(Self {
            asks,
            functions,
            down,
        }))
    }

    /// Works on a call that would take this long alone. Returns how it ended; `None` if the backend
    /// is down.
    pub(super) async fn works(&self, function: &str, work: Duration) -> Option<ServiceOutcome> {
        let mut functions = self.functions.iter();
        // One without a weight counts as one call: its number is beyond the list.
        let function = functions.position(|name| name == function);
        let (ends, ended) = oneshot::channel();
        let ask = ModelCall {
            function: function.unwrap_or(usize::MAX),
            work: nanos(work),
            ends,
        };
        self.asks.send(ask).await.ok()?;
        ended.await.ok()
    }

    /// Returns a receiver that reports when the model collapses.
    pub(super) fn collapses(&self) -> Collapses {
        let mut down = self.down.clone();
        // Earlier ones do not count.
        down.mark_unchanged();
        Collapses(down)
    }
}

/// Says when a backend collapses.
#[derive(Debug)]
pub(super) struct Collapses(watch::Receiver<Option<Instant>>);

/// The next collapse of a backend that can collapse. Returns when it is up again.
pub(super) async fn next(collapses: &mut Option<Collapses>) -> Instant {
    while let Some(Collapses(down)) = collapses {
        if down.changed().await.is_err() {
            // Its task has ended, so it does not collapse any more.
            *collapses = None;
        } else if let Some(up) = *down.borrow_and_update() {
            return up;
        }
    }
    std::future::pending().await
}

/// The task that holds the model.
async fn work(
    mut model: Model,
    mut asks: mpsc::Receiver<ModelCall>,
    down: watch::Sender<Option<Instant>>,
) {
    let Some(mut first) = asks.recv().await.map(Some) else {
        return;
    };
    let begun = Instant::now();
    let mut inside = HashMap::new();
    let mut broken = 0;
    for id in 0.. {
        let wake = model.wake().map(|at| begun + Duration::from_nanos(at));
        let asked = match first.take() {
            Some(asked) => Some(asked),
            None => tokio::select! {
                asked = asks.recv() => match asked {
                    Some(asked) => Some(asked),
                    None => return,
                },
                () = sleep_until(wake.unwrap_or(begun)), if wake.is_some() => None,
            },
        };
        let now = nanos(begun.elapsed());
        if let Some(ask) = asked
            && model.starts(now, id, ask.function, ask.work) == CallStart::Taken
        {
            inside.insert(id, ask.ends);
        }
        // The port closes before a client can call again.
        if model.times_broken() > broken {
            broken = model.times_broken();
            let up = model.down_until(now);
            down.send_replace(up.map(|at| begun + Duration::from_nanos(at)));
        }
        for ended in model.due(now) {
            if let Some(ends) = inside.remove(&ended.id) {
                // Its connection may have ended with the backend.
                let _ = ends.send(ended.outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    fn options(arguments: &[&str]) -> ModelOptions {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            model: ModelOptions,
        }
        let arguments = std::iter::once("backend").chain(arguments.iter().copied());
        let line: Line = clap::Parser::try_parse_from(arguments).expect("good arguments");
        line.model
    }

    fn start(arguments: &[&str]) -> Worked {
        let worked = Worked::start(&options(arguments), Duration::from_secs(5));
        worked.expect("good options").expect("a model")
    }

    /// Starts calls of `guest_start` at these milliseconds, of 100 ms each. Returns how each ended, and after how
    /// many milliseconds.
    async fn ends(arguments: &[&str], starts: &[u64]) -> Vec<(Option<ServiceOutcome>, u128)> {
        let worked = std::sync::Arc::new(start(arguments));
        let mut calls = JoinSet::new();
        for (nth, at) in starts.iter().copied().enumerate() {
            let worked = std::sync::Arc::clone(&worked);
            calls.spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                let begun = Instant::now();
                let ended = worked
                    .works("guest_start", Duration::from_millis(100))
                    .await;
                (nth, ended, begun.elapsed().as_millis())
            });
        }
        let mut all = calls.join_all().await;
        all.sort_unstable_by_key(|(nth, ..)| *nth);
        all.into_iter()
            .map(|(_, ended, took)| (ended, took))
            .collect()
    }

    const SERVED: Option<ServiceOutcome> = Some(ServiceOutcome::Served);

    #[tokio::test(start_paused = true)]
    async fn calls_share_the_servers() {
        let two = ends(&["--servers=1"], &[0, 0]).await;
        assert_eq!(two, [(SERVED, 200), (SERVED, 200)]);
        // Alone for 50 ms, then the two share.
        let late = ends(&["--servers=1"], &[0, 50]).await;
        assert_eq!(late, [(SERVED, 150), (SERVED, 150)]);
        let apart = ends(&["--servers=2"], &[0, 0]).await;
        assert_eq!(apart, [(SERVED, 100), (SERVED, 100)]);
    }

    #[tokio::test(start_paused = true)]
    async fn steps_count_from_the_first_call() {
        let steps = ["--sigma=0", "--step=50ms=0.5"];
        assert_eq!(ends(&steps, &[1000]).await, [(SERVED, 150)]);
        let day = ["--sigma=0", "--step=50ms=0.5", "--day=100ms"];
        // 50 ms at full speed, 50 ms at half speed, 25 ms at full speed.
        assert_eq!(ends(&day, &[1000]).await, [(SERVED, 125)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_above_the_breaking_point_resets_the_new_call_or_all_calls() {
        let reset = ends(&["--breaks-at=2"], &[0, 1, 2]).await;
        assert_eq!(reset[0], (SERVED, 100));
        assert_eq!(reset[2], (Some(ServiceOutcome::Reset), 0));
        // The second call is too heavy.
        let heavy = ends(&["--breaks-at=3", "--weight=guest_start=2"], &[0, 1]).await;
        assert_eq!(heavy, [(SERVED, 100), (Some(ServiceOutcome::Reset), 0)]);
        let collapse = ["--breaks-at=1", "--breaks=collapse"];
        let all = ends(&collapse, &[0, 40, 60, 5041]).await;
        let collapsed = Some(ServiceOutcome::Collapsed);
        assert_eq!(
            all,
            [(collapsed, 40), (collapsed, 0), (None, 0), (SERVED, 100)]
        );
    }

    #[tokio::test]
    async fn options_without_a_meaning_are_refused() {
        let refused = |arguments: &[&str]| {
            let error = Worked::start(&options(arguments), Duration::ZERO).expect_err("no meaning");
            error.to_string()
        };
        assert_eq!(refused(&["--sigma=2"]), "σ must be 0 to 1");
        assert!(refused(&["--step=1s=0.5"]).contains("without --servers"));
        let nothing = Worked::start(&ModelOptions::default(), Duration::ZERO);
        assert!(nothing.expect("good options").is_none());
    }
}
