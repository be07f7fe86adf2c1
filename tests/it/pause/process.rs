//! A pause through the real process: many clients, a kill, a reload, a drain, clients that leave, limits
//! that observe, and the commands.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::allowed;
use crate::sidecar::plan_with;
use crate::sidecar::{Said, Sidecar, TIDEGATE, run};
use crate::support::{
    Held, OK, PATIENCE, array, ask, closed_port, connect, json as parsed, listens, read_all,
    sending,
};

const WINDOW: u32 = 200;
const OUTSTANDING: u32 = 20;

fn config(backend: SocketAddr, limits: &str, sections: &str) -> String {
    let sections = format!(
        r#"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:{WINDOW}"
        outstanding = {OUTSTANDING}
        {limits}
        [admin]
        bind = "127.0.0.1:0"
        {sections}
        "#
    );
    listens("", &format!("socket = \"{backend}\""), &sections)
}

fn state_file(dir: &Path) -> String {
    let path = dir.join("state.json");
    format!("[callers]\nstate_file = \"{}\"", path.display())
}

async fn backend(delay: Duration) -> RunningBackend {
    let options = StandInOptions {
        delay,
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

/// A change through the admin address, which must be answered with 200.
async fn act(sidecar: &Sidecar, what: &str, body: &Value) -> Value {
    let path = format!("/v1/backend/{what}");
    let (status, answer) = sidecar.ask("POST", &path, &body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    parsed(&answer)
}

async fn pause(sidecar: &Sidecar, seconds: f64, extend: bool) -> Value {
    let body = json!({"hold_seconds": seconds, "why": "re-IPL", "extend_deadlines": extend});
    act(sidecar, "pause", &body).await
}

async fn resume(sidecar: &Sidecar, ramp: f64) -> Value {
    act(sidecar, "resume", &json!({"ramp_seconds": ramp})).await
}

async fn state(sidecar: &Sidecar) -> Value {
    parsed(&sidecar.get("/v1/backend").await.1)
}

async fn acts(sidecar: &Sidecar) -> Vec<Value> {
    let answer = parsed(&sidecar.get("/v1/acts").await.1);
    answer["acts"].as_array().expect("a list").clone()
}

/// Waits until a metric has this value.
async fn until_metric(sidecar: &Sidecar, name: &str, value: f64) {
    let deadline = Instant::now() + PATIENCE;
    while (sidecar.metric(name).await - value).abs() > 1e-9 {
        assert!(Instant::now() < deadline, "{name} is never {value}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn call(addr: SocketAddr) -> Value {
    parsed(&ask(addr, array("guest_get_info", "X")).await)
}

/// 1,000 clients ask while the backend is paused, some before; then the limits grow.
///
/// They all have their turn before the ramp is over, and in less time than a call may wait, which
/// is less than the pause takes.
async fn storm_over_a_pause(held: Duration, ramp: Duration, window_max: u32) {
    let epoch = Instant::now();
    let backend = backend(Duration::from_millis(50)).await;
    let outstanding_max = window_max / 10;
    let max_wait = held.as_secs() - 1;
    let limits = format!("max_wait = \"{max_wait}s\"");
    let text = config(backend.socket_addr(), &limits, "")
        .replace(&format!("total:{WINDOW}"), &format!("total:{window_max}"))
        .replace(
            &format!("outstanding = {OUTSTANDING}"),
            &format!("outstanding = {outstanding_max}"),
        )
        .replace("[queue]", "[queue]\nworkers = 200");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    // It would end by itself only later.
    pause(&sidecar, 2.0 * held.as_secs_f64() + 60.0, true).await;
    let mut clients = JoinSet::new();
    for _ in 0..1000 {
        clients.spawn(async move {
            let mut client = sending(addr, array("guest_get_info", "X")).await;
            let mut answer = Vec::new();
            let reading = tokio::io::AsyncReadExt::read_to_end(&mut client, &mut answer);
            reading.await.expect("no reset");
            parsed(&String::from_utf8(answer).expect("ASCII"))
        });
    }
    until_metric(&sidecar, "tidegate_queue_depth", 1000.0).await;
    // Longer than any of them may wait without the pause.
    tokio::time::sleep(held).await;
    assert_eq!(backend.report().calls, 0);
    let begin = epoch.elapsed();
    resume(&sidecar, ramp.as_secs_f64()).await;
    let answers = tokio::time::timeout(PATIENCE + 2 * ramp, clients.join_all());
    let answers = answers.await.expect("every client is answered");
    let errors = answers.iter().filter(|it| it["overallRC"] != 0).count();
    assert_eq!((answers.len(), errors), (1000, 0));

    let starts = backend.starts();
    assert_eq!(starts.len(), 1000);
    // A call leaves only after the answer of the one before, so this is exact at the backend. In the
    // window, two packets may come closer together than they left.
    let (service, window) = (Duration::from_millis(50), Duration::from_millis(900));
    let mut densest = 0.0_f64;
    for (nth, &at) in starts.iter().enumerate() {
        let within = |span: Duration| {
            let earlier = starts[..=nth].iter().rev();
            earlier.take_while(|it| **it + span > at).count()
        };
        for (span, full) in [(service, outstanding_max), (window, window_max)] {
            #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
            let found = within(span) as f64;
            let line = allowed(at, begin, ramp, full.into());
            assert!(
                found <= line,
                "{found} within {span:?} at {at:?}, and {line}"
            );
            densest = densest.max(found / line);
        }
    }
    let took = epoch.elapsed() - begin;
    println!(
        "1000 clients, paused for {held:?}, ramp {ramp:?}: 0 errors, all answered {took:?} after the \
         resume, at most {densest:.2} of the line"
    );
}

#[tokio::test]
async fn a_thousand_clients_wait_out_a_pause_and_the_backend_never_gets_more_than_the_ramp() {
    storm_over_a_pause(Duration::from_secs(6), Duration::from_secs(3), 1000).await;
}

#[tokio::test]
#[ignore = "takes three minutes; it gives the figures of docs/how-to/operating.md"]
async fn a_thousand_clients_wait_out_a_pause_of_two_minutes() {
    storm_over_a_pause(Duration::from_secs(120), Duration::from_secs(30), 100).await;
}

#[tokio::test]
async fn a_pause_goes_on_after_a_kill_and_ends_when_it_would_have() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let backend = backend(Duration::from_millis(20)).await;
    let text = config(backend.socket_addr(), "", &state_file(dir.path()));
    let sidecar = Sidecar::start(&text).await;
    let begun = Instant::now();
    let paused = pause(&sidecar, 8.0, true).await;
    assert_eq!(paused["survives_restart"], true);
    let addr = sidecar.listener("test").await;
    let mut cut = sending(addr, array("guest_get_info", "X")).await;
    until_metric(&sidecar, "tidegate_queue_depth", 1.0).await;
    sidecar.signal("KILL");
    sidecar.exited().await;
    // Its client sees the end, and connects again.
    let mut rest = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut cut, &mut rest).await;
    assert_eq!(rest, b"");

    let sidecar = Sidecar::start(&text).await;
    let log = sidecar.log();
    log.wait(&["still paused", "re-IPL"]).await;
    let again = state(&sidecar).await;
    for field in [
        "state",
        "since_unix_ms",
        "why",
        "author",
        "extend_deadlines",
    ] {
        assert_eq!(again[field], paused[field], "{field}");
    }
    let ends = |it: &Value| it["ends_unix_ms"].as_u64().expect("a time");
    assert!(ends(&again).abs_diff(ends(&paused)) <= 50, "{again}");
    let addr = sidecar.listener("test").await;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        clients.spawn(call(addr));
    }
    for answer in clients.join_all().await {
        assert_eq!(answer["overallRC"], 0, "{answer}");
    }
    let took = begun.elapsed();
    let expected = Duration::from_secs(8)..Duration::from_secs(12);
    assert!(expected.contains(&took), "{took:?}");
    log.wait(&["the backend is resumed", "the hold is over"])
        .await;
    assert_eq!(state(&sidecar).await["state"], "running");
    let done: Vec<_> = acts(&sidecar)
        .await
        .into_iter()
        .map(|it| it["act"].clone())
        .collect();
    assert_eq!(done, [json!("resume"), json!("pause")]);
    // What has ended stays so.
    sidecar.signal("KILL");
    sidecar.exited().await;
    let sidecar = Sidecar::start(&text).await;
    assert_eq!(state(&sidecar).await["state"], "running");
    assert_eq!(acts(&sidecar).await.len(), 2);
}

#[tokio::test]
async fn without_a_state_file_a_pause_ends_with_the_process_and_says_so() {
    let backend = backend(Duration::ZERO).await;
    let sidecar = Sidecar::start(&config(backend.socket_addr(), "", "")).await;
    let paused = pause(&sidecar, 60.0, false).await;
    assert_eq!(paused["survives_restart"], false);
    assert_eq!(paused["author"], "127.0.0.1, without a token");
}

#[tokio::test]
async fn a_pause_is_shown_everywhere_and_a_reload_keeps_it() {
    let backend = backend(Duration::ZERO).await;
    let text = config(backend.socket_addr(), "", "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(sidecar.metric("tidegate_paused").await, 0.0);
    pause(&sidecar, 60.0, false).await;
    let waiting = tokio::spawn(call(addr));
    until_metric(&sidecar, "tidegate_queue_depth", 1.0).await;
    let shown = async || {
        assert_eq!(sidecar.metric("tidegate_paused").await, 1.0);
        let limits = parsed(&sidecar.get("/v1/limits").await.1);
        for limit in limits["limits"].as_array().expect("a list") {
            assert_eq!(limit["in_force"], 0, "{limit}");
            assert!(limit["opens"]["in_seconds"].is_number(), "{limit}");
        }
        let now = parsed(&sidecar.get("/v1/now").await.1);
        assert_eq!(now["pause"]["state"], "paused", "{now}");
        let told = now["sentence"].as_str().expect("a sentence");
        assert!(
            told.contains("because the backend is paused (re-IPL)"),
            "{told}"
        );
        let series = parsed(&sidecar.get("/v1/series").await.1);
        let marks = series["marks"].as_array().expect("a list");
        assert!(marks.iter().any(|it| it["kind"] == "pause"), "{marks:?}");
        let (_, health) = sidecar.get("/healthz?verbose").await;
        assert!(health.contains("paused until"), "{health}");
    };
    shown().await;
    // The limits are others, and the backend is the same.
    sidecar
        .reload(&text.replace("total:200", "total:100"))
        .await;
    shown().await;
    assert!(!waiting.is_finished());
    resume(&sidecar, 30.0).await;
    assert_eq!(waiting.await.expect("no panic")["overallRC"], 0);
    let ramping = state(&sidecar).await;
    assert_eq!(ramping["state"], "ramping");
    let share = sidecar.metric("tidegate_ramp_share").await;
    assert!((0.1..0.5).contains(&share), "{share}");
    let limits = parsed(&sidecar.get("/v1/limits").await.1);
    let total = limits["limits"].as_array().expect("a list").iter();
    let total = total
        .clone()
        .find(|it| it["name"] == "total")
        .expect("it is there");
    let in_force = total["in_force"].as_u64().expect("a number");
    assert!((10..50).contains(&in_force), "{total}");
    resume(&sidecar, 0.0).await;
    assert_eq!(state(&sidecar).await["state"], "running");
    assert_eq!(sidecar.metric("tidegate_ramp_share").await, 1.0);
}

#[tokio::test]
async fn a_drain_during_a_pause_refuses_what_waits_and_the_pause_goes_on_after_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let backend = backend(Duration::ZERO).await;
    let sections = format!(
        "[server]\ndrain_timeout = \"1s\"\n{}",
        state_file(dir.path())
    );
    let text = config(backend.socket_addr(), "", &sections);
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    pause(&sidecar, 120.0, true).await;
    let waiting = tokio::spawn(ask(addr, array("guest_get_info", "X")));
    until_metric(&sidecar, "tidegate_queue_depth", 1.0).await;
    sidecar.signal("TERM");
    let answer = waiting.await.expect("no panic");
    assert!(answer.contains("draining"), "{answer}");
    let (status, _) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(backend.report().calls, 0);
    let sidecar = Sidecar::start(&text).await;
    assert_eq!(state(&sidecar).await["state"], "paused");
}

#[tokio::test]
async fn a_client_that_leaves_during_a_pause_is_never_sent() {
    let backend = backend(Duration::ZERO).await;
    let sidecar = Sidecar::start(&config(backend.socket_addr(), "", "")).await;
    let addr = sidecar.listener("test").await;
    pause(&sidecar, 60.0, true).await;
    let leaves = sending(addr, array("guest_get_info", "LEAVES")).await;
    let stays = tokio::spawn(call(addr));
    until_metric(&sidecar, "tidegate_queue_depth", 2.0).await;
    drop(leaves);
    until_metric(&sidecar, "tidegate_queue_depth", 1.0).await;
    resume(&sidecar, 0.0).await;
    assert_eq!(stays.await.expect("no panic")["overallRC"], 0);
    assert_eq!(backend.report().calls, 1);
}

#[tokio::test]
async fn limits_that_only_observe_hold_no_call_but_a_pause_does() {
    let backend = backend(Duration::ZERO).await;
    let text = config(backend.socket_addr(), "mode = \"observe\"", "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    pause(&sidecar, 60.0, true).await;
    let waiting = tokio::spawn(call(addr));
    until_metric(&sidecar, "tidegate_queue_depth", 1.0).await;
    // The shadow is paused too.
    until_metric(&sidecar, "tidegate_would_be_waiting", 1.0).await;
    assert!(!waiting.is_finished());
    resume(&sidecar, 1.0).await;
    assert_eq!(waiting.await.expect("no panic")["overallRC"], 0);
    until_metric(&sidecar, "tidegate_would_be_waiting", 0.0).await;
}

#[tokio::test]
async fn a_backend_that_was_down_comes_back_with_a_ramp_if_the_config_says_so() {
    let addr = closed_port();
    let text = config(addr, "", "").replace(
        &format!("socket = \"{addr}\""),
        &format!("socket = \"{addr}\"\nramp = \"30s\""),
    );
    let sidecar = Sidecar::start(&text).await;
    let listener = sidecar.listener("test").await;
    let waiting = tokio::spawn(call(listener));
    until_metric(&sidecar, "tidegate_backend_up{backend=\"socket\"}", 0.0).await;
    // One refused connect is no reason for a ramp: it takes a second.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let options = StandInOptions {
        socket: addr,
        ..StandInOptions::on_free_ports()
    };
    let _backend = StandInBackend::start(options)
        .await
        .expect("the port is free");
    assert_eq!(waiting.await.expect("no panic")["overallRC"], 0);
    sidecar.log().wait(&["the backend is back", "30 s"]).await;
    let now = state(&sidecar).await;
    assert_eq!(now["state"], "ramping", "{now}");
    assert_eq!(now["why"], "the socket backend was down");
    assert_eq!(acts(&sidecar).await[0]["act"], "backend_up");
}

async fn tidegate(sidecar: &Sidecar, arguments: &[&str]) -> Said {
    let mut command = Command::new(TIDEGATE);
    command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
    command.env("TIDEGATE_ADMIN", sidecar.admin.to_string());
    run(&mut command).await
}

#[tokio::test]
async fn the_commands_pause_wait_for_running_calls_and_resume() {
    let mut held = Held::start(OK).await;
    let sidecar = Sidecar::start(&config(held.backend.addr, "", "")).await;
    let addr = sidecar.listener("test").await;
    let mut running = sending(addr, array("guest_get_info", "X")).await;
    held.next().await;
    let arguments = [
        "pause",
        "--hold",
        "60s",
        "--why",
        "re-IPL",
        "--extend-deadlines",
        "--wait",
    ];
    let pausing = tidegate(&sidecar, &arguments);
    let end = async {
        until_metric(&sidecar, "tidegate_paused", 1.0).await;
        assert_eq!(state(&sidecar).await["in_flight"], 1);
        held.go.notify_one();
        read_all(&mut running).await
    };
    let (paused, answer) = tokio::join!(pausing, end);
    assert_eq!(parsed(&answer)["overallRC"], 0);
    assert_eq!(paused.code, Some(0), "{}", paused.err);
    assert!(paused.out.contains("0 calls still run"), "{}", paused.out);
    assert!(paused.err.contains("1 calls still run"), "{}", paused.err);
    assert!(paused.out.contains("callers.state_file"), "{}", paused.out);

    let again = tidegate(&sidecar, &["pause", "--hold", "30s", "--json"]).await;
    assert_eq!(parsed(&again.out)["state"], "paused", "{}", again.err);
    let resumed = tidegate(&sidecar, &["resume", "--ramp", "60s", "--why", "back"]).await;
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(
        resumed.out.contains("10 % of the limits"),
        "{}",
        resumed.out
    );
    let wrong = tidegate(&sidecar, &["pause", "--hold", "90000s"]).await;
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("hold_seconds"), "{}", wrong.err);
    let done = acts(&sidecar).await;
    let kinds: Vec<_> = done
        .iter()
        .map(|it| it["act"].as_str().expect("a word"))
        .collect();
    assert_eq!(kinds, ["resume", "pause", "pause"]);
    assert_eq!(done[0]["what"], "the limits grow for 60 s");
    assert_eq!(done[0]["why"], "back");
    sidecar
        .log()
        .wait(&["the backend is paused", "re-IPL", "without a token"])
        .await;
}

#[tokio::test]
async fn with_a_token_only_its_holder_pauses_and_the_act_has_its_name() {
    let backend = backend(Duration::ZERO).await;
    let text = config(backend.socket_addr(), "", "");
    let text = text.replace("[admin]", "[admin]\ntoken = \"secret\"");
    let sidecar = Sidecar::start(&text).await;
    let refused = tidegate(&sidecar, &["pause", "--hold", "60s"]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "secret\n").expect("it can be written to");
    let file = file.to_str().expect("text");
    let arguments = ["pause", "--hold", "60s", "--json", "--token-file", file];
    let paused = tidegate(&sidecar, &arguments).await;
    assert_eq!(
        parsed(&paused.out)["author"],
        "token admin",
        "{}",
        paused.err
    );
}

#[tokio::test]
async fn a_plan_takes_every_decision_of_a_log_with_a_pause_and_a_ramp_again() {
    let backend = backend(Duration::from_millis(20)).await;
    let limits = "max_wait = \"1s\"";
    let sections = "[log]\naccess = true\nreplay = true\nformat = \"json\"";
    let sidecar = Sidecar::start(&config(backend.socket_addr(), limits, sections)).await;
    let addr = sidecar.listener("test").await;
    let mut clients = JoinSet::new();
    for _ in 0..150 {
        clients.spawn(call(addr));
    }
    pause(&sidecar, 30.0, true).await;
    for _ in 0..150 {
        clients.spawn(call(addr));
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    resume(&sidecar, 1.0).await;
    let answers = clients.join_all().await;
    assert_eq!(answers.len(), 300);
    // A client that connects at the end leaves nothing open.
    drop(connect(addr).await);
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());
    let said = plan_with(&lines.join("\n"), "", &[]).await;
    assert!(
        said.out.contains("the same decision in all"),
        "{}{}",
        said.out,
        said.err
    );
}

#[tokio::test]
async fn a_limit_for_a_while_goes_on_after_a_reload_and_a_kill_and_is_listed() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let backend = backend(Duration::ZERO).await;
    let text = config(backend.socket_addr(), "", &state_file(dir.path()));
    let sidecar = Sidecar::start(&text).await;
    let arguments = ["lower", "total", "5", "--for", "30m", "--why", "slow"];
    let said = tidegate(&sidecar, &arguments).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("total is at most 5"), "{}", said.out);
    let in_force = async |sidecar: &Sidecar| {
        let limits = parsed(&sidecar.get("/v1/limits").await.1);
        let limits = limits["limits"].as_array().expect("a list").clone();
        let total = limits.into_iter().find(|it| it["name"] == "total");
        total.expect("it is there")["in_force"].clone()
    };
    assert_eq!(in_force(&sidecar).await, 5);
    sidecar
        .reload(&text.replace("total:200", "total:100"))
        .await;
    assert_eq!(in_force(&sidecar).await, 5);
    let listed = async |sidecar: &Sidecar| {
        let listed = parsed(&sidecar.get("/v1/acts").await.1);
        listed["overrides"].as_array().expect("a list").clone()
    };
    let before = listed(&sidecar).await;
    assert_eq!(before[0]["why"], "slow", "{before:?}");
    sidecar.signal("KILL");
    sidecar.exited().await;

    let sidecar = Sidecar::start(&text).await;
    assert_eq!(in_force(&sidecar).await, 5);
    assert_eq!(listed(&sidecar).await, before);
    let (_, now) = sidecar.get("/v1/now").await;
    let set = &parsed(&now)["overrides"][0];
    assert_eq!((&set["limit"], &set["value"]), (&"total".into(), &5.into()));
    let (_, health) = sidecar.get("/healthz?verbose").await;
    assert!(
        health.contains("limit total is at most 5 until"),
        "{health}"
    );
    let higher = tidegate(&sidecar, &["lower", "total", "201", "--for", "1m"]).await;
    assert_eq!(higher.code, Some(1));
    assert!(
        higher.err.contains("the config allows 200"),
        "{}",
        higher.err
    );
    let unknown = tidegate(&sidecar, &["lower", "totl", "2", "--for", "1m"]).await;
    assert!(
        unknown.err.contains("there is no limit totl"),
        "{}",
        unknown.err
    );
    // It ends by itself.
    tidegate(&sidecar, &["lower", "outstanding", "2", "--for", "200ms"]).await;
    sidecar
        .log()
        .wait(&["own value again", "outstanding"])
        .await;
    let (status, _) = sidecar.ask("DELETE", "/v1/limits/total", "").await;
    assert_eq!(status, 204);
    assert_eq!(in_force(&sidecar).await, 200);
    let done: Vec<_> = acts(&sidecar)
        .await
        .into_iter()
        .map(|it| it["act"].clone())
        .collect();
    assert_eq!(
        done,
        ["limit_end", "limit_end", "limit", "limit"].map(Value::from)
    );
}

#[tokio::test]
async fn a_pause_is_in_force_though_the_disk_fails_and_is_saved_later() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let backend = backend(Duration::ZERO).await;
    let text = config(backend.socket_addr(), "", &state_file(dir.path()));
    let sidecar = Sidecar::start(&text).await;
    // No state can be written to it.
    let in_the_way = dir.path().join("state.json.acts.new");
    std::fs::create_dir(&in_the_way).expect("a directory");
    let paused = pause(&sidecar, 120.0, true).await;
    assert_eq!(paused["state"], "paused");
    assert_eq!(paused["survives_restart"], false);
    sidecar
        .log()
        .wait(&["what operators did is not saved"])
        .await;
    std::fs::remove_dir(&in_the_way).expect("it is there");
    sidecar
        .log()
        .wait(&["what operators did is saved again"])
        .await;
    assert_eq!(state(&sidecar).await["survives_restart"], true);
    sidecar.signal("KILL");
    sidecar.exited().await;
    let sidecar = Sidecar::start(&text).await;
    assert_eq!(state(&sidecar).await["state"], "paused");
}
