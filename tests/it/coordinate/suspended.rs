//! A machine that is suspended: its monotonic clock stands still, and the time of everybody else goes on.

use std::time::{Duration, Instant};

use super::{
    Load, Process, Recorded, RunningSidecar, SAFE, TOTAL, WINDOW, coordinate, server_that_lends,
    sidecar_text, wait_for,
};
use crate::faked_clock::FakedClock;

/// The most that one sidecar may use while the two others keep their safe share.
const MOST: u64 = TOTAL as u64 - 2 * SAFE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_was_suspended_uses_no_lease_that_others_have_by_then() {
    let backend = Recorded::start().await;
    let server = server_that_lends(0, "0s", "lease = \"8s\", refresh = \"5s\"").await;
    let text = sidecar_text(backend.backend.addr, &coordinate(server.it));
    let clock = FakedClock::new(Duration::ZERO, Duration::ZERO);
    let suspended = Process::start_with(&text, |binary| {
        // Another binary, to check that the test finds a violation.
        let binary = std::env::var("TIDEGATE_MEASURE").unwrap_or_else(|_| binary.to_owned());
        clock.command(&binary)
    })
    .await;
    let address = suspended.listener("test").await;
    let _load = Load::start(20, move || Some(address));
    let in_force = async || total(&suspended).await.0;
    // It will not ask for a new one for a while.
    wait_for(
        async || total(&suspended).await,
        |(max, left)| max == MOST && left > 7.0,
    )
    .await;

    // It stands still until its lease has gone to the other.
    suspended.signal("STOP");
    let stopped = Instant::now();
    let other = RunningSidecar::start(&text);
    let address = other.it.address;
    let _others_load = Load::start(20, move || Some(address));
    other.in_force("total", |max| max == MOST).await;
    clock.behind(Duration::ZERO, stopped.elapsed());
    let resumed = Instant::now();
    suspended.signal("CONT");
    backend.more(4 * TOTAL).await;

    let densest = backend.densest_after(resumed.checked_sub(WINDOW).unwrap_or(resumed));
    assert!(densest <= TOTAL, "{densest} within a window");
    // It says so, and shares again.
    suspended.log().wait(&["the machine was suspended"]).await;
    wait_for(in_force, |max| max > SAFE && max < MOST).await;
    assert!(resumed.elapsed() < Duration::from_secs(20));
}

/// The part of the total that the sidecar may use, and for how long it is granted.   seconds
async fn total(sidecar: &Process) -> (u64, f64) {
    let (_, body) = sidecar.get("/v1/limits").await;
    let all: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
    let limits = all["limits"].as_array().expect("a list");
    let total = limits.iter().find(|it| it["name"] == "total");
    let total = total.expect("there is one");
    let left = total["shared"]["expires_in_seconds"].as_f64();
    (
        total["in_force"].as_u64().expect("a number"),
        left.unwrap_or_default(),
    )
}
