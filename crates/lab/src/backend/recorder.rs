//! The backend's statistics, and whether it has fallen.
//!
//! The densest window is exact: every start is compared with all starts of the second before it.
//! Starts get their time under the lock, so they are in order and the window is a range of one
//! queue.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use tidegate_backends::ServiceDemand;
use tidegate_runtime::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::StandInOptions;

/// The number of starts to remember. A denser window is reported as this dense.
const STARTS_MAX: usize = 1_000_000;
/// Length of the window; the densest one is reported.
const WINDOW: Duration = Duration::from_secs(1);

/// A backend's statistics since its start or last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackendStatistics {
    /// Connections accepted.
    pub connections: u64,
    /// Calls started.
    pub calls: u64,
    /// Calls in flight now.
    pub in_flight: u32,
    /// Most calls in flight at once.
    pub peak_in_flight: u32,
    /// Most calls started within any second. Calls that start exactly a second apart share none.
    pub densest_second: u32,
    /// Successful calls.
    pub answered: u64,
    /// Calls answered with an error, by chance or because of their userid.
    pub failed: u64,
    /// Calls answered with an error because the backend had fallen over.
    pub fallen: u64,
    /// Calls without a complete answer: cut, closed, silent.
    pub broken: u64,
    /// Unreadable requests, answered with an error; they are not calls.
    pub malformed: u64,
    /// Number of falls.
    pub falls: u32,
}

impl fmt::Display for BackendStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = [
            ("connections", self.connections),
            ("calls", self.calls),
            ("  answered", self.answered),
            ("  failed", self.failed),
            ("  fallen", self.fallen),
            ("  broken", self.broken),
            ("  in flight", self.in_flight.into()),
            ("peak in flight", self.peak_in_flight.into()),
            ("densest second", self.densest_second.into()),
            ("malformed", self.malformed),
            ("times it fell", self.falls.into()),
        ];
        let lines = lines.map(|(name, count)| format!("{name:<16}{count:>10}"));
        f.write_str(&lines.join("\n"))
    }
}

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    Answered,
    Failed,
    /// With an error, because the backend fell while it ran or before.
    Fallen,
    /// Without a complete answer.
    Broken,
}

/// Counts calls behind one lock.
#[derive(Debug)]
pub(super) struct Recorder {
    epoch: Instant,
    pub(super) options: StandInOptions,
    /// How long a call takes.
    service: ServiceDemand,
    state: Mutex<RecorderState>,
    changed: Notify,
}

#[derive(Debug)]
struct RecorderState {
    report: BackendStatistics,
    /// Counted from the epoch, in order.
    starts: VecDeque<Duration>,
    /// The number of the last starts within the window that ends now.
    in_window: usize,
    /// Down until this time.
    down_until: Option<Instant>,
    /// Falls since the recorder was made. A reset keeps the number: a call in flight compares it.
    falls: u64,
    rng: StdRng,
}

impl Recorder {
    /// # Errors
    /// A `tail` that makes no sense.
    pub(super) fn new(options: StandInOptions) -> io::Result<Self> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let shortest = nanos(options.delay);
        let service = match options.tail {
            None => ServiceDemand::even(
                shortest,
                nanos(options.delay.saturating_add(options.jitter)),
            ),
            Some(sigma) => ServiceDemand::lognormal(shortest, sigma),
        };
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        Ok(Self {
            service: service.map_err(wrong)?,
            epoch: Instant::now(),
            state: Mutex::new(RecorderState {
                report: BackendStatistics::default(),
                starts: VecDeque::new(),
                in_window: 0,
                down_until: None,
                falls: 0,
                rng: StdRng::seed_from_u64(options.seed),
            }),
            changed: Notify::new(),
            options,
        })
    }

    pub(super) fn connected(&self) {
        self.change(|state| state.report.connections += 1);
    }

    pub(super) fn malformed(&self) {
        self.change(|state| state.report.malformed += 1);
    }

    /// Starts a call. It may be the one that makes the backend fall.
    pub(super) fn begin(&self) -> RecordedCall<'_> {
        let options = &self.options;
        self.change(|state| {
            // Read under the lock, so that starts are in order.
            let now = Instant::now();
            state.start(now.duration_since(self.epoch));
            let down = state.down_until.is_some_and(|until| now < until);
            let breaks = |calls: usize, max: u32| max > 0 && calls > max as usize;
            let fell = !down
                && (breaks(state.report.in_flight as usize, options.break_in_flight)
                    || breaks(state.in_window, options.break_per_second));
            if fell {
                state.falls += 1;
                state.report.falls += 1;
                state.down_until = Some(now + options.recover);
            }
            let is_down = down || fell;
            let pause = match (is_down, options.jitter, options.tail) {
                (true, ..) => Duration::ZERO,
                (false, Duration::ZERO, None) => options.delay,
                _ => Duration::from_nanos(self.service.quantile(state.rng.random())),
            };
            RecordedCall {
                recorder: self,
                falls_before: state.falls,
                is_down,
                pause,
                fails_by_chance: options.fail_rate > 0.0
                    && state.rng.random_bool(options.fail_rate),
                ended: false,
            }
        })
    }

    pub(super) fn report(&self) -> BackendStatistics {
        lock(&self.state).report.clone()
    }

    pub(super) fn starts(&self) -> Vec<Duration> {
        lock(&self.state).starts.iter().copied().collect()
    }

    pub(super) async fn wait_until(
        &self,
        is_so: impl Fn(&BackendStatistics) -> bool,
    ) -> BackendStatistics {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registers before it checks, so that it misses no change.
            changed.as_mut().enable();
            let report = self.report();
            if is_so(&report) {
                return report;
            }
            changed.await;
        }
    }

    pub(super) fn reset(&self) {
        self.change(|state| {
            let in_flight = state.report.in_flight;
            state.report = BackendStatistics {
                in_flight,
                peak_in_flight: in_flight,
                ..BackendStatistics::default()
            };
            state.starts.clear();
            state.in_window = 0;
            state.down_until = None;
        });
    }

    /// Changes the statistics, and wakes those that wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut RecorderState) -> T) -> T {
        let done = change(&mut lock(&self.state));
        self.changed.notify_waiters();
        done
    }
}

impl RecorderState {
    fn start(&mut self, at: Duration) {
        self.report.calls += 1;
        self.report.in_flight += 1;
        self.report.peak_in_flight = self.report.peak_in_flight.max(self.report.in_flight);

        if self.starts.len() == STARTS_MAX {
            self.starts.pop_front();
            self.in_window = self.in_window.min(self.starts.len());
        }
        self.starts.push_back(at);
        self.in_window += 1;
        while self.starts[self.starts.len() - self.in_window] + WINDOW <= at {
            self.in_window -= 1;
        }
        let in_window = u32::try_from(self.in_window).expect("at most STARTS_MAX");
        self.report.densest_second = self.report.densest_second.max(in_window);
    }
}

/// A call in flight. Dropped before its end, it counts as broken.
#[derive(Debug)]
pub(super) struct RecordedCall<'a> {
    recorder: &'a Recorder,
    falls_before: u64,
    /// Whether the backend had fallen when it started.
    pub(super) is_down: bool,
    /// How long it takes.
    pub(super) pause: Duration,
    pub(super) fails_by_chance: bool,
    ended: bool,
}

impl RecordedCall<'_> {
    /// Ends the call with its outcome, unless a fall came in between.
    pub(super) fn end(mut self, due: CallEnd) -> CallEnd {
        self.leave(due)
    }

    fn leave(&mut self, due: CallEnd) -> CallEnd {
        self.ended = true;
        self.recorder.change(|state| {
            let fell = self.is_down || state.falls != self.falls_before;
            let outcome = if fell { CallEnd::Fallen } else { due };
            let report = &mut state.report;
            report.in_flight -= 1;
            match outcome {
                CallEnd::Answered => report.answered += 1,
                CallEnd::Failed => report.failed += 1,
                CallEnd::Fallen => report.fallen += 1,
                CallEnd::Broken => report.broken += 1,
            }
            outcome
        })
    }
}

impl Drop for RecordedCall<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.leave(CallEnd::Broken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::seeds;

    fn recorder(options: StandInOptions) -> Recorder {
        Recorder::new(options).expect("good options")
    }

    /// Starts calls at these moments (milliseconds) and returns the densest second.
    async fn densest(starts: &[u64]) -> u32 {
        let recorder = recorder(StandInOptions::default());
        for &at in starts {
            let at = recorder.epoch + Duration::from_millis(at);
            tokio::time::advance(at.saturating_duration_since(Instant::now())).await;
            recorder.begin().end(CallEnd::Answered);
        }
        recorder.report().densest_second
    }

    /// Each window that can be the densest begins at a start.
    fn densest_by_force(starts: &[u64]) -> u32 {
        let from = |begin: u64| {
            starts
                .iter()
                .filter(move |&&at| (begin..begin + 1000).contains(&at))
        };
        starts
            .iter()
            .map(|&begin| u32::try_from(from(begin).count()).expect("few"))
            .max()
            .unwrap_or(0)
    }

    #[tokio::test(start_paused = true)]
    async fn the_densest_second_is_what_counting_every_second_finds() {
        for seed in seeds(0..200) {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut at = 0;
            let starts: Vec<u64> = (0..rng.random_range(0..120))
                .map(|_| {
                    // Bursts, lulls and exact seconds.
                    at += *[0, 0, 1, 17, 250, 999, 1000, 1001]
                        .get(rng.random_range(0..8))
                        .expect("eight steps");
                    at
                })
                .collect();
            assert_eq!(
                densest(&starts).await,
                densest_by_force(&starts),
                "seed {seed}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_a_second_apart_share_no_second() {
        assert_eq!(densest(&[0, 1000]).await, 1);
        assert_eq!(densest(&[0, 999]).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fall_fails_calls_in_flight_and_new_calls_until_recovery() {
        let recorder = recorder(StandInOptions {
            break_in_flight: 2,
            recover: Duration::from_secs(5),
            ..StandInOptions::default()
        });
        let (first, second) = (recorder.begin(), recorder.begin());
        assert!(!second.is_down);
        let third = recorder.begin();
        assert!(third.is_down);
        assert!(third.pause.is_zero(), "what is down answers at once");
        for call in [first, second, third] {
            assert_eq!(call.end(CallEnd::Answered), CallEnd::Fallen);
        }
        tokio::time::advance(Duration::from_millis(4999)).await;
        assert_eq!(recorder.begin().end(CallEnd::Answered), CallEnd::Fallen);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(recorder.begin().end(CallEnd::Answered), CallEnd::Answered);
        let report = recorder.report();
        assert_eq!((report.falls, report.fallen, report.answered), (1, 4, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_too_many_in_any_second_makes_it_fall() {
        let recorder = recorder(StandInOptions {
            break_per_second: 3,
            ..StandInOptions::default()
        });
        for _ in 0..3 {
            assert_eq!(recorder.begin().end(CallEnd::Answered), CallEnd::Answered);
        }
        tokio::time::advance(Duration::from_millis(1000)).await;
        for _ in 0..3 {
            assert_eq!(recorder.begin().end(CallEnd::Answered), CallEnd::Answered);
        }
        assert_eq!(recorder.begin().end(CallEnd::Answered), CallEnd::Fallen);
        assert_eq!(recorder.report().densest_second, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_leaves_the_count() {
        let recorder = recorder(StandInOptions::default());
        drop(recorder.begin());
        let report = recorder.report();
        assert_eq!((report.in_flight, report.broken, report.calls), (0, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_pauses_and_failures() {
        let run = || {
            let recorder = recorder(StandInOptions {
                jitter: Duration::from_millis(100),
                fail_rate: 0.3,
                seed: 7,
                ..StandInOptions::default()
            });
            (0..100)
                .map(|_| {
                    let call = recorder.begin();
                    (call.pause, call.fails_by_chance)
                })
                .collect::<Vec<_>>()
        };
        let (pauses, failures): (Vec<_>, Vec<_>) = run().into_iter().unzip();
        assert_eq!(
            run(),
            pauses
                .iter()
                .copied()
                .zip(failures.clone())
                .collect::<Vec<_>>()
        );
        let (least, most) = (Duration::from_millis(50), Duration::from_millis(150));
        assert!(pauses.iter().all(|pause| (least..=most).contains(pause)));
        let failed = failures.iter().filter(|&&failed| failed).count();
        assert!((10..=50).contains(&failed), "{failed} of 100 failed");
    }
}
