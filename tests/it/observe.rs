//! Limits that only observe, through the real process: they hold no call, and what they would have
//! done agrees with `tidegate plan` on the same log.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::sidecar::Sidecar;
use crate::sidecar::plan_with;
use crate::support::{array, ask, sending};

fn config(backend: &str, postpone: &str, modes: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        [queue]
        postpone = "{postpone}"
        capacity = 60
        workers = 4
        when_full = "refuse"
        [limits]
        per_window = "total:40, guest_list:10"
        outstanding = 3
        max_wait = "2s"
        ledger_lost = "assume_empty"
        {modes}
        [[class]]
        name = "user"
        weight = 3
        reserve_outstanding = 1
        [[bucket]]
        name = "all"
        burst = 80
        fill = 40
        [[caller]]
        label = "everybody"
        match = {{ listener = "test" }}
        rate_limit = "all"
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

/// Five calls an hour: a call that waits for this limit waits longer than any test runs.
fn narrow(backend: &str, modes: &str, more: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:5"
        window = "3600s"
        max_wait = "7200s"
        {modes}
        {more}
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

async fn backend() -> RunningBackend {
    let options = StandInOptions {
        delay: Duration::from_millis(20),
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

/// Asks this many times at once.
async fn storm_at(addr: SocketAddr, calls: usize) {
    let mut storm = JoinSet::new();
    for number in 0..calls {
        let function = ["guest_get_info", "guest_list", "guest_start"][number % 3];
        storm.spawn(async move { ask(addr, array(function, &format!("U{number}"))).await });
    }
    storm.join_all().await;
}

/// Waits until this many lines have this.
async fn lines_with(sidecar: &Sidecar, text: &str, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let lines = sidecar.log().lines();
        let found = lines.iter().filter(|line| line.contains(text)).count();
        if found == count {
            return;
        }
        let may_come = found < count && Instant::now() < deadline;
        assert!(may_come, "{found} lines: {lines:?}");
        tokio::task::yield_now().await;
    }
}

/// Waits until this many calls have their line, and every line with more to come its last one.
async fn settled(sidecar: &Sidecar, calls: usize) {
    let call = |line: &&String| line.contains(r#""target":"access""#);
    let more = |line: &&String| line.contains(r#""would_more":true"#);
    let late = |line: &&String| line.contains(r#""event":"would""#);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let lines = sidecar.log().lines();
        let count = |is: &dyn Fn(&&String) -> bool| lines.iter().filter(is).count();
        if count(&call) == calls && count(&more) == count(&late) {
            return;
        }
        assert!(Instant::now() < deadline, "{lines:?}");
        tokio::task::yield_now().await;
    }
}

async fn log_of(sidecar: Sidecar) -> String {
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());
    lines.join("\n")
}

/// The log of a storm of 120 calls.
async fn storm(postpone: &str, modes: &str) -> String {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let sidecar = Sidecar::start(&config(&address, postpone, modes)).await;
    storm_at(sidecar.listener("test").await, 120).await;
    // The shadow catches up by itself.
    settled(&sidecar, 120).await;
    log_of(sidecar).await
}

fn of_target<'a>(log: &'a str, target: &'a str) -> impl Iterator<Item = Value> + 'a {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(move |line: &Value| line["target"] == target)
}

/// Sorted waits in seconds, and refusals, as the shadow reported them.
fn reported(log: &str) -> (Vec<f64>, u64) {
    let late = of_target(log, "shadow");
    let late: HashMap<_, _> = late.map(|it| (it["id"].to_string(), it)).collect();
    let (mut waits, mut refused) = (Vec::new(), 0);
    for line in of_target(log, "access") {
        let last = match line["would_more"] == true {
            true => &late[&line["id"].to_string()],
            false => &line,
        };
        match last["would_reason"].is_null() {
            true => waits.push(last["would_wait_ms"].as_f64().expect("a wait") / 1000.0),
            false => refused += 1,
        }
    }
    waits.sort_by(f64::total_cmp);
    (waits, refused)
}

/// Everything that `plan` says of the log under the limits as they would be.
async fn planned(log: &str, postpone: &str, seed: u32) -> Value {
    let enforced = config("127.0.0.1:1", postpone, "");
    let seed = format!("--seed={seed}");
    let arguments = ["--config=new.toml", "--clients=open", "--json", &seed];
    let said = plan_with(log, &enforced, &arguments).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    serde_json::from_str(&said.out).expect("one object")
}

#[tokio::test]
async fn observed_limits_hold_no_call_and_would_have_done_what_a_plan_says() {
    let log = storm("in_turn", r#"mode = "observe""#).await;
    let calls: Vec<_> = of_target(&log, "access").collect();
    assert_eq!(calls.len(), 120);
    for call in &calls {
        assert_eq!(call["verdict"], "passed", "{call}");
    }
    let report = planned(&log, "in_turn", 1).await;
    let open = &report["plan"]["open"];
    assert_eq!(open["before"]["refused"], 0);
    let (waits, refused) = reported(&log);
    assert!(refused > 0 && !waits.is_empty(), "{open}");
    assert_eq!(open["after"]["refused"], refused, "{open}");
    for (quantile, thousandth) in [("p50", 500), ("p95", 950), ("p99", 990)] {
        let planned = open["after"]["wait_seconds"][quantile].as_f64();
        let planned = planned.expect("a number");
        let nth = (waits.len() * thousandth).div_ceil(1000) - 1;
        assert!(
            (planned - waits[nth]).abs() <= 0.01 * planned,
            "{quantile}: {} instead of {planned}",
            waits[nth]
        );
    }
}

#[tokio::test]
async fn with_jitter_the_shadow_refuses_as_many_as_a_plan() {
    let log = storm("jitter", r#"mode = "observe""#).await;
    for call in of_target(&log, "access") {
        assert_eq!(call["verdict"], "passed", "{call}");
    }
    // Luck decides which calls find a place, so the plans differ as well.
    let mut planned_refusals = Vec::new();
    for seed in 1..=5 {
        let report = planned(&log, "jitter", seed).await;
        let refused = report["plan"]["open"]["after"]["refused"].as_u64();
        planned_refusals.push(refused.expect("a number"));
    }
    let (_, refused) = reported(&log);
    let (least, most) = (
        planned_refusals.iter().min().expect("five"),
        planned_refusals.iter().max().expect("five"),
    );
    let spread = (most - least).max(6);
    assert!(
        refused + spread >= *least && refused <= most + spread,
        "{refused} beside {planned_refusals:?}"
    );
}

#[tokio::test]
async fn one_limit_observes_while_another_holds() {
    let log = storm("in_turn", r#"outstanding_mode = "observe""#).await;
    for call in of_target(&log, "access") {
        let limit = call["limit"].as_str().unwrap_or_default();
        assert!(!["outstanding", "workers"].contains(&limit), "{call}");
    }
    let held = of_target(&log, "access").filter(|call| call["limit"] == "function:guest_list");
    assert!(held.count() > 0, "{log}");
    let said = plan_with(&log, "", &[]).await;
    assert!(
        said.out.contains("the same decision in all"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn a_reload_begins_to_observe_and_ends_it_and_no_call_is_without_its_last_line() {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let observing = narrow(&address, r#"mode = "observe""#, "");
    let sidecar = Sidecar::start(&narrow(&address, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut storm = tokio::spawn(storm_at(addr, 8));
    let held = "tidegate_queue_depth";
    while sidecar.metric(held).await < 3.0 {
        tokio::task::yield_now().await;
    }
    assert!(!storm.is_finished());
    // The limits hold no call from now on, also none that waits already.
    sidecar.reload(&observing).await;
    (&mut storm).await.expect("it ends");
    storm_at(addr, 8).await;
    assert_eq!(sidecar.metric("tidegate_would_be_waiting").await, 3.0);
    lines_with(&sidecar, r#""would_more":true"#, 3).await;
    // What would still wait ends with the shadow.
    sidecar
        .reload(&narrow(&address, r#"window_mode = "enforce""#, ""))
        .await;
    settled(&sidecar, 16).await;
    assert_eq!(sidecar.metric("tidegate_would_be_waiting").await, 0.0);
    // And again, with a new shadow, whose calls have no place in the old one.
    sidecar.reload(&observing).await;
    storm_at(addr, 7).await;
    assert_eq!(sidecar.metric("tidegate_would_be_waiting").await, 2.0);
    let log = log_of(sidecar).await;
    let waits = of_target(&log, "access").filter(|call| call["would_more"] == true);
    let left = of_target(&log, "shadow").filter(|late| late["would_end"] == "left");
    assert_eq!((waits.count(), left.count()), (5, 5), "{log}");
}

#[tokio::test]
async fn a_quota_that_observes_draws_for_its_calls_and_holds_none() {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let quota = |mode: &str| {
        format!(
            r#"
            [quota_store]
            [[quota]]
            name = "all"
            applies_to = "total"
            total = 10
            base = 5
            refresh_window = "1h"
            {mode}
            "#
        )
    };
    let config = |mode| {
        // Nothing else holds a call.
        let modes = "mode = \"observe\"\noutstanding = 1000";
        narrow(&address, modes, &quota(mode)).replace("total:5", "total:1000")
    };
    let sidecar = Sidecar::start(&config(r#"mode = "observe""#)).await;
    let addr = sidecar.listener("test").await;
    storm_at(addr, 30).await;
    let quotas = async || {
        let (_, body) = sidecar.get("/v1/quotas").await;
        let quotas: Value = serde_json::from_str(&body).expect("JSON");
        quotas["quotas"][0].clone()
    };
    // The draws run beside the calls.
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen = loop {
        let seen = quotas().await;
        let decisions = &seen["decisions"];
        let admitted = [&decisions["local"], &decisions["drew"]];
        let admitted: u64 = admitted.iter().filter_map(|it| it.as_u64()).sum();
        if admitted == 10 {
            break seen;
        }
        assert!(Instant::now() < deadline && admitted < 10, "{seen}");
        tokio::task::yield_now().await;
    };
    assert_eq!(seen["mode"], "observe", "{seen}");
    assert_eq!(seen["used_last"][0]["waiting"], 20, "{seen}");
    assert_eq!(sidecar.metric("tidegate_would_be_waiting").await, 20.0);
    // Its rule holds from a reload on; the tokens of this window are spent.
    sidecar
        .reload(&config("mode = \"enforce\"\non_excess = \"reject\""))
        .await;
    storm_at(addr, 3).await;
    let log = log_of(sidecar).await;
    let calls: Vec<_> = of_target(&log, "access").collect();
    let refused = calls.iter().filter(|call| call["reason"] == "rate_limited");
    assert_eq!((calls.len(), refused.count()), (33, 3), "{log}");
    let passed = calls.iter().filter(|call| call["verdict"] == "passed");
    assert_eq!(passed.count(), 30, "{log}");
    // The ten that had tokens may have ended before their draw: then they have a late line too.
    let of_quota = of_target(&log, "shadow")
        .filter(|late| late["would_limit"].to_string().contains("rate_limit:all"))
        .count();
    let ended_before = calls.iter().filter(|call| call["would_more"] == true);
    assert_eq!(of_quota, ended_before.count(), "{log}");
    assert!((20..=30).contains(&of_quota), "{of_quota}: {log}");
}

#[tokio::test]
async fn a_backend_that_restarts_and_clients_that_leave_stay_in_no_shadow() {
    // No other test has this address, so the port is free again after the backend has ended.
    let on = |socket: SocketAddr| StandInOptions {
        socket,
        delay: Duration::from_millis(20),
        ..StandInOptions::on_free_ports()
    };
    let free = "127.0.77.1:0".parse().expect("an address");
    let backend = StandInBackend::start(on(free)).await.expect("a free port");
    let at = backend.socket_addr();
    let config = config(&at.to_string(), "in_turn", r#"mode = "observe""#);
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    storm_at(addr, 30).await;
    drop(backend);
    let mut waiting = JoinSet::new();
    for number in 0..10 {
        waiting.spawn(async move {
            let call = array("guest_get_info", &format!("U{number}"));
            match number % 3 {
                // Its client leaves while it waits for the backend.
                0 => drop(sending(addr, call).await),
                _ => drop(ask(addr, call).await),
            }
        });
    }
    let down = [r#""event":"supply""#, r#""capacity":0"#];
    sidecar.log().wait_from(0, &down).await;
    // Time in which nothing happens but probes.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let options = StandInOptions {
        socket: at,
        ..StandInOptions::on_free_ports()
    };
    let _backend = StandInBackend::start(options)
        .await
        .expect("the port is free again");
    waiting.join_all().await;
    storm_at(addr, 10).await;
    settled(&sidecar, 50).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while sidecar.metric("tidegate_would_be_waiting").await > 0.0 {
        assert!(Instant::now() < deadline, "{:?}", sidecar.log().lines());
        tokio::task::yield_now().await;
    }
    let log = log_of(sidecar).await;
    // Only the backend itself held calls.
    for call in of_target(&log, "access") {
        let limit = call["limit"].as_str().unwrap_or("backend");
        assert!(limit.starts_with("backend"), "{call}");
    }
    let said = plan_with(&log, "", &[]).await;
    let same = "the same decision in all";
    assert!(said.out.contains(same), "{}", said.out);
}
