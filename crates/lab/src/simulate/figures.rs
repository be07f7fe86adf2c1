//! The figures of a run: counts, times, and the densest window.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate_limits::Timestamp;

/// The figures of some calls: all of a scenario, one group, or one function. Times are in
/// seconds. A time without any measurement is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallFigures {
    /// Calls that arrived.
    pub calls: u64,
    /// Calls whose client got the backend's answer.
    pub answered: u64,
    /// Calls refused when they arrived.
    pub refused: u64,
    /// Calls refused after a wait.
    pub expired: u64,
    /// Calls whose client left before there was an answer.
    pub left: u64,
    /// Calls that the backend was working on when it went down, or that it reset.
    pub failed: u64,
    /// Calls that were sent to the backend.
    pub sent: u64,
    /// From the first arrival to the last answer.
    pub makespan_seconds: Option<f64>,
    /// The shortest wait, from arrival to being sent, of calls that were sent.
    pub wait_seconds_min: Option<f64>,
    /// The wait that half of them did not exceed.
    pub wait_seconds_p50: Option<f64>,
    /// The wait that 95 in 100 of them did not exceed.
    pub wait_seconds_p95: Option<f64>,
    /// The longest wait of them.
    pub wait_seconds_max: Option<f64>,
    /// The time at the backend that half of the calls that it served did not exceed.
    pub service_seconds_p50: Option<f64>,
    /// The time that 95 in 100 of them did not exceed.
    pub service_seconds_p95: Option<f64>,
    /// The longest of them.
    pub service_seconds_max: Option<f64>,
    /// The longest time from arrival to a refusal.
    pub told_no_seconds_max: Option<f64>,
    /// The shortest time to come back in any refusal.
    pub retry_after_seconds_min: Option<f64>,
    /// The longest of them.
    pub retry_after_seconds_max: Option<f64>,
    /// Most calls sent in any span of a window's length, wherever it starts.
    pub densest_window: u64,
    /// Most calls that reached the backend in any such span.
    pub densest_at_backend: u64,
    /// The most calls at once that were sent and had not ended.
    pub in_flight: u64,
    /// Whether they were sent in the order of their arrival.
    pub in_order: bool,
}

/// The end of a call. A client that leaves while its call runs has left, though the call
/// continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedEnding {
    Answered,
    ToldNo { retry_after: Duration },
    Left,
    Failed,
}

/// Counts during the run.
#[derive(Clone, Debug, Default)]
pub(super) struct CallTally {
    /// The counts. The other figures are computed at the end.
    counted: CallFigures,
    first_arrival: Option<Timestamp>,
    last_answer: Option<Timestamp>,
    waits: Vec<Duration>,
    /// How long the backend took for each call that it served.
    services: Vec<Duration>,
    told_no_after_max: Option<Duration>,
    retry_after: Option<(Duration, Duration)>,
    sent: Vec<Timestamp>,
    reached: Vec<Timestamp>,
    in_flight: u64,
    last_sent: usize,
    is_out_of_order: bool,
}

impl CallTally {
    pub(super) fn arrives(&mut self, now: Timestamp) {
        self.counted.calls += 1;
        self.first_arrival.get_or_insert(now);
    }

    /// A call is sent: the `nth` that arrived. It reaches the backend at `reaches`.
    pub(super) fn sent(
        &mut self,
        now: Timestamp,
        nth: usize,
        waited: Duration,
        reaches: Timestamp,
    ) {
        self.waits.push(waited);
        self.sent.push(now);
        self.reached.push(reaches);
        self.in_flight += 1;
        self.counted.in_flight = self.counted.in_flight.max(self.in_flight);
        self.is_out_of_order |= nth < self.last_sent;
        self.last_sent = nth;
    }

    /// A call that was sent has ended, also if its client has left. `service` is how long the backend took, if it
    /// served the call.
    pub(super) fn landed(&mut self, service: Option<Duration>) {
        self.in_flight -= 1;
        self.services.extend(service);
    }

    pub(super) fn ends(&mut self, now: Timestamp, arrived: Timestamp, ending: SimulatedEnding) {
        match ending {
            SimulatedEnding::Answered => {
                self.counted.answered += 1;
                self.last_answer = Some(now);
            }
            SimulatedEnding::Left => self.counted.left += 1,
            SimulatedEnding::Failed => self.counted.failed += 1,
            SimulatedEnding::ToldNo { retry_after } => {
                let after = now.since(arrived);
                if after.is_zero() {
                    self.counted.refused += 1;
                } else {
                    self.counted.expired += 1;
                }
                self.told_no_after_max = self.told_no_after_max.max(Some(after));
                let (min, max) = self.retry_after.unwrap_or((retry_after, retry_after));
                self.retry_after = Some((min.min(retry_after), max.max(retry_after)));
            }
        }
    }

    /// The figures, with the densest windows of this length.
    pub(super) fn figures(&self, window: Duration) -> CallFigures {
        let (mut waits, mut reached) = (self.waits.clone(), self.reached.clone());
        let mut services = self.services.clone();
        services.sort_unstable();
        waits.sort_unstable();
        reached.sort_unstable();
        let seconds = |time: Duration| time.as_secs_f64();
        CallFigures {
            sent: self.sent.len() as u64,
            makespan_seconds: self
                .first_arrival
                .zip(self.last_answer)
                .map(|(first, last)| seconds(last.since(first))),
            wait_seconds_min: waits.first().copied().map(seconds),
            wait_seconds_p50: percentile(&waits, 50).map(seconds),
            wait_seconds_p95: percentile(&waits, 95).map(seconds),
            wait_seconds_max: waits.last().copied().map(seconds),
            service_seconds_p50: percentile(&services, 50).map(seconds),
            service_seconds_p95: percentile(&services, 95).map(seconds),
            service_seconds_max: services.last().copied().map(seconds),
            told_no_seconds_max: self.told_no_after_max.map(seconds),
            retry_after_seconds_min: self.retry_after.map(|(min, _)| seconds(min)),
            retry_after_seconds_max: self.retry_after.map(|(_, max)| seconds(max)),
            densest_window: densest(&self.sent, window),
            densest_at_backend: densest(&reached, window),
            in_order: !self.is_out_of_order,
            ..self.counted.clone()
        }
    }

    /// Calls that were sent between two moments, the first included and the second not.
    pub(super) fn sent_between(&self, from: Timestamp, to: Timestamp) -> &[Timestamp] {
        let first = self.sent.partition_point(|sent| *sent < from);
        let last = self.sent.partition_point(|sent| *sent < to);
        &self.sent[first..last.max(first)]
    }
}

/// The result of a run.
#[derive(Debug, Default)]
pub(super) struct ScenarioRun {
    pub(super) all: CallTally,
    /// In the order of the file.
    pub(super) groups: Vec<CallTally>,
    pub(super) functions: BTreeMap<Arc<str>, CallTally>,
    /// How long each limit held calls, summed over the calls.
    pub(super) held: BTreeMap<Arc<str>, Duration>,
    /// How many calls were refused, by reason and limit.
    pub(super) told_no: BTreeMap<(&'static str, Option<Arc<str>>), u64>,
    /// The backend, if it is a model.
    pub(super) at_backend: Option<ModelLoad>,
}

/// Load on a model of a backend, and how often it broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelLoad {
    /// The most calls that it worked on at once.
    pub most_at_once: usize,
    /// How often a call came above the load that it bears.
    pub times_broken: u64,
}

/// The nearest-rank percentile of sorted values.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// The most of these moments, which are sorted, in any half-open span of this length.
pub(super) fn densest(moments: &[Timestamp], span: Duration) -> u64 {
    let mut first = 0;
    let mut densest = 0;
    for (last, moment) in moments.iter().enumerate() {
        while first < last && moment.since(moments[first]) >= span {
            first += 1;
        }
        densest = densest.max(last + 1 - first);
    }
    densest as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_its_beginning_and_not_its_end() {
        let check = |millis: &[u64], expected| {
            let at = |millis: &u64| Timestamp::from_nanos(millis * 1_000_000);
            let moments: Vec<_> = millis.iter().map(at).collect();
            assert_eq!(
                densest(&moments, Duration::from_secs(1)),
                expected,
                "{millis:?}"
            );
        };
        check(&[], 0);
        check(&[5], 1);
        check(&[0, 1000], 1);
        check(&[0, 999], 2);
        check(&[0, 0, 400, 1000, 1100, 1399, 1400], 4);
    }

    #[test]
    fn a_percentile_is_a_measured_value() {
        let millis: Vec<_> = (1..=20).map(Duration::from_millis).collect();
        let check = |percent, expected| {
            let found = percentile(&millis, percent);
            assert_eq!(found, Some(Duration::from_millis(expected)), "{percent}");
        };
        check(50, 10);
        check(95, 19);
        check(100, 20);
        assert_eq!(percentile(&[], 50), None);
    }
}
