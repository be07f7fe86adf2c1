//! The record of a call at its end, in metrics and in its line.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::app::metrics::Metrics;
use tidegate::app::teller::Teller;
use tidegate::call::{Dialect, Observe, Origin, Reason, Record, Verdict};
use tidegate::callers::{self, Callers};
use tidegate::telemetry::access::{AccessLog, LineFormat};
use tidegate::telemetry::spans::SpanQueue;
use tidegate_limits::scheduler::DelayCause;
use tidegate_runtime::Clock;

use super::{Out, at, peer};
use crate::support::{config, identity, in_turn};

/// A teller and its output.
struct RecordedTeller {
    teller: Arc<Teller>,
    metrics: Arc<Metrics>,
    out: Out,
}

impl RecordedTeller {
    fn start() -> Self {
        let metrics = Arc::new(Metrics::new("1.2.3", "abc"));
        let out = Out::default();
        let log = Arc::new(AccessLog::start(out.clone(), LineFormat::Json).expect("a thread"));
        let clock = Clock::of_runtime();
        let callers = Callers::start(&callers::CallersSettings::default(), None)
            .expect("there is no room")
            .value;
        let config = config(&in_turn("socket = \"127.0.0.1:1\"", ""));
        let spans = Arc::new(SpanQueue::new(config.trace));
        let teller = Arc::new(Teller::new(
            Arc::clone(&metrics),
            log,
            spans,
            callers,
            clock,
        ));
        Self {
            teller,
            metrics,
            out,
        }
    }

    fn record(&self) -> Arc<Record> {
        let origin = Origin {
            identity: identity("nova", peer()),
            arrived: at(0),
        };
        let observer = Arc::clone(&self.teller) as Arc<dyn Observe>;
        Record::open(
            origin,
            Dialect::Socket,
            "guest_create".into(),
            "user".into(),
            Some("ICIC0001".into()),
            observer,
        )
    }

    /// The metrics, and the lines, which are complete once there are no writers.
    fn end(self) -> (String, Vec<Value>) {
        drop(self.teller);
        let lines = self.out.text();
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("one object a line"));
        (self.metrics.scrape(|_| ()), lines.collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_reported_with_the_times_of_its_record() {
    let told = RecordedTeller::start();
    let record = told.record();
    tokio::time::advance(Duration::from_millis(250)).await;
    record.note(|facts| {
        facts.verdict = Verdict::Delayed;
        facts.limit = Some("total".into());
        facts.admitted = Some(at(100));
        facts.sent = Some(at(110));
        facts.answered = Some(at(190));
        facts.bytes_in = 7;
        facts.bytes_out = 9;
        facts.overall_rc = Some(0);
    });
    drop(record);
    let (metrics, lines) = told.end();
    let [line] = &lines[..] else {
        panic!("{} lines for one call", lines.len())
    };
    for (field, value) in [
        ("verdict", json!("delayed")),
        ("limit", json!("total")),
        ("reason", json!(null)),
        ("queue_ms", json!(100.0)),
        ("backend_ms", json!(80.0)),
        ("total_ms", json!(250.0)),
        ("sent_us", json!(110_000)),
        ("bytes_in", json!(7)),
        ("bytes_out", json!(9)),
        ("overallRC", json!(0)),
        ("userid", json!("ICIC0001")),
    ] {
        assert_eq!(line[field], value, "{field}");
    }
    for metric in [
        r#"tidegate_calls_total{class="user",function="guest_create",listener="nova",verdict="delayed"} 1"#,
        r#"tidegate_queue_wait_seconds_sum{class="user",function="guest_create"} 0.1"#,
        r#"tidegate_backend_duration_seconds_sum{class="user",function="guest_create"} 0.08"#,
        r#"tidegate_call_duration_seconds_sum{class="user",function="guest_create"} 0.25"#,
        r#"tidegate_limit_hits_total{limit="total"} 1"#,
    ] {
        assert!(
            metrics.lines().any(|line| line == metric),
            "no {metric} in\n{metrics}"
        );
    }
    assert!(!metrics.contains("tidegate_refusals_total{"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_got_a_worker_waited_all_its_time() {
    let told = RecordedTeller::start();
    let record = told.record();
    tokio::time::advance(Duration::from_secs(60)).await;
    record.note(|facts| {
        facts.verdict = Verdict::Expired;
        facts.reason = Some(Reason::DeadlinePassed);
        facts.limit = Some("guest_create".into());
    });
    drop(record);
    let (metrics, lines) = told.end();
    assert_eq!(lines[0]["queue_ms"], json!(60_000.0));
    assert_eq!(lines[0]["backend_ms"], json!(null));
    assert_eq!(lines[0]["sent_us"], json!(null));
    assert!(
        metrics.contains(
            r#"tidegate_refusals_total{limit="guest_create",reason="deadline_passed"} 1"#
        )
    );
    assert!(
        metrics.contains(
            r#"tidegate_queue_wait_seconds_count{class="user",function="guest_create"} 0"#
        ),
        "only calls that got a worker count there\n{metrics}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_its_own_part_of_a_wait_and_a_turn_counts_for_none() {
    let told = RecordedTeller::start();
    for verdict in [Verdict::Delayed, Verdict::Expired, Verdict::Aborted] {
        let record = told.record();
        record.note(|facts| {
            facts.verdict = verdict;
            for (cause, seconds) in [
                (DelayCause::Limit("total".into()), 3),
                (DelayCause::Limit("guest_create".into()), 2),
                (DelayCause::Turn, 7),
                (DelayCause::Others, 11),
            ] {
                facts.delays.add(cause, Duration::from_secs(seconds));
            }
        });
    }
    let (metrics, _) = told.end();
    let held: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("tidegate_limit_held_seconds_total"))
        .collect();
    assert_eq!(
        held,
        [
            r#"tidegate_limit_held_seconds_total{limit="guest_create"} 6"#,
            r#"tidegate_limit_held_seconds_total{limit="total"} 9"#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_answered_counts_for_as_long_as_it_was_waited_for() {
    let told = RecordedTeller::start();
    let record = told.record();
    record.note(|facts| {
        facts.verdict = Verdict::Failed;
        facts.reason = Some(Reason::BackendSlow);
        facts.admitted = Some(at(0));
        facts.sent = Some(at(0));
    });
    tokio::time::advance(Duration::from_secs(300)).await;
    drop(record);
    let (metrics, lines) = told.end();
    assert_eq!(lines[0]["backend_ms"], json!(300_000.0));
    assert!(metrics.contains(r#"tidegate_refusals_total{limit="none",reason="backend_slow"} 1"#));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_left_was_refused_nothing() {
    let told = RecordedTeller::start();
    let record = told.record();
    record.note(|facts| facts.reason = Some(Reason::DeadlinePassed));
    drop(record);
    let (metrics, lines) = told.end();
    assert_eq!(lines[0]["verdict"], json!("aborted"));
    assert!(!metrics.contains("tidegate_refusals_total{"), "{metrics}");
}
