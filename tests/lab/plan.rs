//! `tidegate plan` on logs of the real process.

mod carried;
mod changes;
mod matched;
mod spellings;
mod unknown;

use std::time::Duration;

use serde_json::Value;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::task::JoinSet;

use crate::sidecar::{Sidecar, plan, plan_with};
use crate::support::{array, ask, sending};

fn config(backend: &str, postpone: &str, total: u32, burst: u32) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        [queue]
        postpone = "{postpone}"
        postpone_jitter = ["50ms", "150ms"]
        capacity = 60
        when_full = "refuse"
        [limits]
        per_window = "total:{total}, guest_list:4"
        outstanding = 3
        max_wait = "2s"
        ledger_lost = "assume_empty"
        [[class]]
        name = "user"
        weight = 3
        reserve_outstanding = 1
        [[bucket]]
        name = "all"
        burst = {burst}
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

async fn backend() -> RunningBackend {
    let options = StandInOptions {
        delay: Duration::from_millis(20),
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

/// A storm with clients that leave, reloads, and a backend that is unreachable in the middle.
async fn stormy(postpone: &str, burst: u32) -> String {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nowhere = closed.local_addr().expect("it is bound").to_string();
    drop(closed);
    let sidecar = Sidecar::start(&config(&address, postpone, 10, burst)).await;
    let addr = sidecar.listener("test").await;
    let mut storm = JoinSet::new();
    for number in 0..90 {
        let function = ["guest_get_info", "guest_list", "guest_start"][number % 3];
        storm.spawn(async move {
            let call = array(function, &format!("U{number}"));
            match number % 10 {
                // Its client leaves while it waits.
                7 => drop(sending(addr, call).await),
                _ => drop(ask(addr, call).await),
            }
        });
    }
    sidecar.log().wait_from(0, &[r#"["served""#]).await;
    sidecar.reload(&config(&nowhere, postpone, 10, burst)).await;
    let down = [r#""event":"supply""#, r#""capacity":0"#];
    sidecar.log().wait_from(0, &down).await;
    sidecar.reload(&config(&address, postpone, 20, burst)).await;
    storm.join_all().await;
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());
    lines.join("\n")
}

/// A storm and then a steady load, in turn, with enough time for every call.
async fn steady() -> String {
    let backend = backend().await;
    let address = backend.socket_addr().to_string();
    let sidecar = Sidecar::start(&config(&address, "in_turn", 40, 1000)).await;
    let addr = sidecar.listener("test").await;
    let mut storm = JoinSet::new();
    for number in 0..55 {
        let call = array("guest_get_info", &format!("U{number}"));
        storm.spawn(async move { ask(addr, call).await });
    }
    storm.join_all().await;
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    lines.join("\n")
}

#[tokio::test]
async fn arrivals_and_service_times_alone_give_the_same_verdicts_and_waits() {
    let log = steady().await;
    let said = plan_with(&log, "", &["--json"]).await;
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let free = &report["free"];
    assert_eq!(free["same"], 55, "{}", said.out);
    for quantile in ["p50", "p95", "p99"] {
        let wait = |of: &str| free[of]["wait_seconds"][quantile].as_f64();
        let (logged, ran) = (wait("before"), wait("after"));
        let (logged, ran) = logged.zip(ran).expect("two numbers");
        // Timers of a loaded machine are late by a few milliseconds.
        let bound = (0.03 * logged).max(0.05);
        assert!((logged - ran).abs() <= bound, "{quantile}: {}", said.out);
    }
}

#[tokio::test]
async fn a_plan_shows_what_another_config_would_have_done() {
    let log = steady().await;
    // A queue of 3 refuses what a queue of 60 let wait.
    let new = config("127.0.0.1:1", "in_turn", 40, 1000).replace("capacity = 60", "capacity = 3");
    let arguments = ["--config=new.toml", "--clients=open", "--json"];
    let said = plan_with(&log, &new, &arguments).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let open = &report["plan"]["open"];
    assert_eq!(open["before"]["refused"], 0);
    let refused = open["after"]["refused"].as_u64().expect("a number");
    // One call goes as one ends, and 3 wait: nearly all of a storm find no place.
    assert!((30..=52).contains(&refused), "{open}");
    assert_eq!(open["now_refused"], refused);
    assert_eq!(
        open["function"]["guest_get_info"]["after"]["refused"],
        refused
    );
    assert_eq!(open["limit"]["queue"]["after"]["refused"], refused);
    assert_eq!(report["plan"]["closed"], Value::Null);

    let bounded = |bound: &'static str| {
        let (log, new) = (log.clone(), new.clone());
        async move { plan_with(&log, &new, &["--config=new.toml", bound]).await }
    };
    assert_eq!(bounded("--max-refused=100%").await.code, Some(0));
    assert_eq!(bounded("--max-refused=0.1%").await.code, Some(1));
    assert_eq!(bounded("--max-p95-wait=60s").await.code, Some(0));
    assert_eq!(bounded("--max-refused=2x").await.code, Some(2));
    let both = bounded("--max-p95-wait=60s").await.out;
    for assumption in [
        "open clients: calls arrive",
        "closed clients: a client asks again",
    ] {
        assert!(both.contains(assumption), "{both}");
    }

    // The same config changes nothing.
    let same = config("127.0.0.1:1", "in_turn", 40, 1000);
    let said = plan_with(&log, &same, &arguments).await;
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let open = &report["plan"]["open"];
    assert_eq!(open["before"], open["after"]);

    // Without an identity there is no plan.
    let changed = log.replace("outstanding = 3", "outstanding = 2");
    let said = plan_with(&changed, &same, &["--config=new.toml"]).await;
    assert_eq!(said.code, Some(2));
    assert!(said.out.contains("no plan is made"), "{}", said.out);
    let said = plan_with(&changed, &same, &["--config=new.toml", "--force"]).await;
    assert!(said.out.contains("open clients"), "{}", said.out);
}

#[tokio::test]
async fn a_scheduler_that_is_fed_with_a_log_takes_the_same_decision_in_every_line() {
    for postpone in ["jitter", "in_turn"] {
        let log = stormy(postpone, 30).await;
        for word in ["requeued", "expired", "refused", "left", "admitted"] {
            assert!(
                log.contains(&format!(r#"["{word}""#)),
                "{postpone}: no call {word}"
            );
        }
        let said = plan(&log).await;
        let told = "identity: the same decision in all 90 lines";
        assert!(
            said.out.contains(told),
            "{postpone}: {}{}",
            said.out,
            said.err
        );
        assert_eq!(said.code, Some(0));
    }
}

#[tokio::test]
async fn the_first_line_that_differs_is_shown_with_the_reason() {
    let log = stormy("jitter", 200).await;
    // A limit that was another one, a delay that was not drawn, a call that is missing.
    let start = log.find("outstanding = 3").expect("it is in the config");
    let mut limit = log.clone();
    limit.replace_range(start..start + 34, "outstanding = 2");
    // Of a call that was admitted later: one whose client has left is not asked again.
    let line = log
        .lines()
        .find(|line| line.contains(r#"["postponed""#) && line.contains(r#"["admitted""#));
    let line = line.expect("a call was set aside");
    let (before, rest) = line.split_once(r#"["postponed","#).expect("it was");
    let (at, rest) = rest.split_once(',').expect("an instant");
    let (_, rest) = rest.split_once(']').expect("a time");
    let delay = log.replace(line, &format!(r#"{before}["postponed",{at},1]{rest}"#));
    let mut lines: Vec<&str> = log.lines().collect();
    let served = lines.iter().position(|line| line.contains(r#"["served""#));
    lines.remove(served.expect("a call was served"));
    let expired = log.lines().find(|line| line.contains(r#"["expired""#));
    let expired = expired.expect("a call waited too long");
    let reason = expired.replace("deadline_passed", "queue_full");
    let reason = log.replace(expired, &reason);
    for (what, changed) in [
        ("reason", reason),
        ("limit", limit),
        ("delay", delay),
        ("line", lines.join("\n")),
    ] {
        assert_ne!(changed, log);
        let said = plan(&changed).await;
        assert_eq!(said.code, Some(1), "{what}: {}{}", said.out, said.err);
        assert!(said.out.contains("access.log:"), "{}", said.out);
        assert!(said.out.contains("decided: "), "{}", said.out);
    }
}

#[tokio::test]
async fn a_page_shows_both_configs_over_each_other() {
    let log = steady().await;
    let new = config("127.0.0.1:1", "in_turn", 40, 1000).replace("capacity = 60", "capacity = 3");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let page = dir.path().join("plan.html");
    let to = format!("--html={}", page.display());
    let said = plan_with(&log, &new, &["--config=new.toml", &to]).await;
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let page = std::fs::read_to_string(&page).expect("it was written");
    // Five charts for each assumption about clients, with two lines each.
    assert_eq!(page.matches("<svg").count(), 10);
    assert_eq!(page.matches("class=\"old\"").count(), 10);
    assert_eq!(page.matches("class=\"new\"").count(), 10);
    assert!(!page.contains("NaN") && !page.contains(" inf"));
    assert!(!page.contains("<script") && !page.contains("://"), "{page}");
    assert!(page.contains("function guest_get_info"));
    let said = plan_with(
        &log,
        &new,
        &["--config=new.toml", "--html=/nowhere/plan.html"],
    )
    .await;
    assert_eq!(said.code, Some(2));
    assert!(
        said.err.contains("cannot write /nowhere/plan.html"),
        "{}",
        said.err
    );
}
