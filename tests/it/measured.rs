//! The metrics of a real process about a storm, against what its calls really waited.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::app::metrics::Metrics;
use tidegate::telemetry::calls::Durations;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_runtime::metric::TimeLimits;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, array, ask, json, sending};

/// A limit of a function that binds, and one of all calls that does not.
fn config(backend: &RunningBackend) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:1000, guest_list:5"
        max_wait = "3s"
        ledger_lost = "assume_empty"
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        "#,
        backend.socket_addr()
    )
}

async fn storm(addr: SocketAddr, calls: usize) {
    let mut storm = JoinSet::new();
    for number in 0..calls {
        storm.spawn(async move { ask(addr, array("guest_list", &format!("U{number}"))).await });
    }
    for answer in storm.join_all().await {
        assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
    }
}

/// Waits until a metric is at least this.
async fn reaches(sidecar: &Sidecar, name: &str, least: f64) -> f64 {
    let started = Instant::now();
    loop {
        let value = sidecar.metric(name).await;
        if value >= least {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "{name} {value} < {least}");
        tokio::task::yield_now().await;
    }
}

const HELD: &str = r#"tidegate_limit_held_seconds_total{limit="function:guest_list"}"#;

#[tokio::test]
async fn a_limit_of_a_function_shows_the_time_that_its_calls_waited() {
    let options = StandInOptions {
        delay: Duration::from_millis(5),
        ..StandInOptions::on_free_ports()
    };
    let backend = StandInBackend::start(options).await.expect("free ports");
    let sidecar = Sidecar::start(&config(&backend)).await;
    let addr = sidecar.listener("test").await;
    storm(addr, 15).await;
    // The access line of a call that was answered may come after its answer.
    let mut waits: Vec<f64> = Vec::new();
    let mut from = 0;
    while waits.len() < 15 {
        let (line, next) = sidecar.log().wait_from(from, &["\"queue_ms\":"]).await;
        waits.push(json(&line)["queue_ms"].as_f64().expect("a number") / 1000.0);
        from = next;
    }
    waits.sort_by(f64::total_cmp);
    let waited: f64 = waits.iter().sum();
    let held = sidecar.metric(HELD).await;
    // Five calls waited one window and five two.
    assert!(waited > 14.0, "{waits:?}");
    assert!((held - waited).abs() < 0.05 * waited, "{held} of {waited}");
    let (_, text) = sidecar.get("/metrics").await;
    let others = text
        .lines()
        .filter(|line| line.starts_with("tidegate_limit_held") && !line.starts_with(HELD));
    assert_eq!(others.count(), 0, "{text}");
    let real = waits[14];
    let (shown, from, to) = quantile(&text, "tidegate_queue_wait_seconds", 0.99);
    assert!(
        from < real && real <= to && to <= 2.25,
        "{real}: {from} {to}"
    );
    assert!(from < shown && shown <= to, "{shown} for {real}");

    // A call whose client leaves has waited as well.
    storm(addr, 5).await;
    let before = sidecar.metric(HELD).await;
    let client = sending(addr, array("guest_list", "U1")).await;
    let waited = reaches(&sidecar, "tidegate_queue_oldest_seconds", 0.1).await;
    drop(client);
    reaches(&sidecar, HELD, before + 0.9 * waited).await;
}

#[test]
fn a_percentile_near_the_threshold_is_in_the_bucket_of_the_real_one() {
    let longest = TimeLimits {
        wait: Duration::from_secs(10),
        reply: Duration::from_secs(60),
    };
    let metrics = Metrics::with(longest, "1", "r");
    // 1,000 calls that waited up to 9.99 s, and 4 s more at the backend.
    for call in 0..1000_u64 {
        let waited = Duration::from_millis(call * 10);
        let backend = Duration::from_secs(4);
        let took = Durations {
            total: waited + backend,
            waited: Some(waited),
            backend: Some(backend),
        };
        let calls = &metrics.calls;
        calls.count("nova", "guest_list", "default", "delayed", &took);
    }
    let text = metrics.scrape(|_| ());
    for (name, real, below) in [
        ("tidegate_queue_wait_seconds", 9.89, 10.0),
        ("tidegate_call_duration_seconds", 13.89, 15.0),
        ("tidegate_backend_duration_seconds", 4.0, 5.0),
    ] {
        let (shown, from, to) = quantile(&text, name, 0.99);
        assert!(
            from < real && real <= to,
            "{name}: {real} of {from} to {to}"
        );
        assert!(from < shown && shown <= below, "{name}: {shown}");
    }
}

/// A quantile of a histogram over all its labels, as `histogram_quantile` of Prometheus has it, and
/// the bounds of its bucket.
fn quantile(text: &str, name: &str, quantile: f64) -> (f64, f64, f64) {
    let mut counts: Vec<(f64, f64)> = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else {
            continue;
        };
        let Some(labels) = rest.strip_prefix("_bucket{") else {
            continue;
        };
        let (_, bound) = labels.split_once("le=\"").expect("a bound");
        let (bound, rest) = bound.split_once('"').expect("it ends");
        let (_, count) = rest.rsplit_once(' ').expect("a count");
        let bound = bound.replace("+Inf", "inf").parse().expect("a number");
        let count: f64 = count.parse().expect("a number");
        match counts.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += count,
            None => counts.push((bound, count)),
        }
    }
    counts.sort_by(|one, other| one.0.total_cmp(&other.0));
    let rank = quantile * counts.last().expect("it has buckets").1;
    let at = counts.iter().position(|(_, count)| *count >= rank);
    let at = at.expect("the last has all");
    let (to, upper) = counts[at];
    let (from, lower) = at
        .checked_sub(1)
        .map_or((0.0, 0.0), |before| counts[before]);
    (
        from + (to - from) * (rank - lower) / (upper - lower),
        from,
        to,
    )
}
