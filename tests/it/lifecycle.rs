//! From start to end of the real process: refused starts, what a reload keeps, and how it leaves.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

use crate::sidecar::{Said, Sidecar, TIDEGATE, field, get, run};
use crate::support::{
    Held, OK, array, cannot_run, closed_port, json, read_all, read_until, sending,
};

/// A config on free ports; `limits` is what differs between two of them.
fn config(backend: SocketAddr, limits: &str) -> String {
    format!(
        r#"
        [server]
        drain_timeout = "20s"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        kind = "zvm"
        http = "http://{backend}"
        [queue]
        postpone = "in_turn"
        [limits]
        {limits}
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

fn outstanding(calls: u32) -> String {
    format!("per_window = \"total:1000\"\noutstanding = {calls}")
}

/// A window that does not come back within a test, and no call waits for it.
fn per_hour(calls: u32) -> String {
    format!("window = \"3600s\"\nper_window = \"total:{calls}\"\nmax_wait = \"0s\"")
}

/// A backend that answers at once.
async fn answering() -> Held {
    let held = Held::start(OK).await;
    // A permit for a later call. Each request renews it.
    held.go.notify_one();
    held
}

/// A connection with one call sent over it.
async fn calling(addr: SocketAddr, userid: &str) -> TcpStream {
    sending(addr, array("guest_get_info", userid)).await
}

/// Sends one call to a backend that answers at once; returns its `overallRC`.
async fn call(addr: SocketAddr, backend: &Held) -> i64 {
    backend.go.notify_one();
    let answer = read_all(&mut calling(addr, "X").await).await;
    json(&answer)["overallRC"].as_i64().expect("a number")
}

/// Waits until N calls are at the backend and M wait.
async fn busy(sidecar: &Sidecar, outstanding: u32, waiting: u32) {
    let started = Instant::now();
    loop {
        let now = (
            sidecar.metric("tidegate_outstanding").await,
            sidecar.metric("tidegate_queue_depth").await,
        );
        if now == (f64::from(outstanding), f64::from(waiting)) {
            return;
        }
        assert!(
            started.elapsed() < crate::support::PATIENCE,
            "{now:?}, not {:?}",
            (outstanding, waiting)
        );
    }
}

const RELOADED: &str = "tidegate_config_last_reload_successful";

// What does not start.

async fn does_not_start(config: &str, words: &[&str]) -> Said {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, config).expect("it can be written to");
    let said = run(Command::new(TIDEGATE)
        .args(["serve", "--config"])
        .arg(&path))
    .await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    for word in words {
        assert!(said.err.contains(word), "no {word:?} in {}", said.err);
    }
    assert!(!said.err.contains("\"listening\""), "{}", said.err);
    said
}

/// Lines that are no warnings: those are written before anything is tried.
fn complaints(said: &Said) -> Vec<&str> {
    let lines = said.err.lines();
    lines.filter(|line| !line.contains("\"WARN\"")).collect()
}

#[tokio::test]
async fn a_port_in_use_is_reported_in_one_line_with_address_and_option() {
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let taken = other.local_addr().expect("it is bound").to_string();
    let backend = closed_port();
    let listener = config(backend, &outstanding(1)).replacen("127.0.0.1:0", &taken, 1);
    let said = does_not_start(&listener, &["port is in use", &taken, "listener test"]).await;
    assert_eq!(complaints(&said).len(), 1, "{}", said.err);
    let admin = config(backend, &outstanding(1)).replace(
        "[admin]\n        bind = \"127.0.0.1:0\"",
        &format!("[admin]\n        bind = \"{taken}\""),
    );
    // The listener was had, and is given up with the rest.
    let said = does_not_start(&admin, &["port is in use", &taken, "admin"]).await;
    assert_eq!(complaints(&said).len(), 1, "{}", said.err);
}

/// Runs the binary as a user without any privilege, which only root can arrange.
fn unprivileged(dir: &std::path::Path) -> Option<Command> {
    let mut id = std::process::Command::new("id");
    let root = id.arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !root {
        return Some(Command::new(TIDEGATE));
    }
    // Not every build directory is open to others.
    let binary = dir.join("tidegate");
    std::fs::copy(TIDEGATE, &binary).expect("a copy");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--inh-caps=-all", "--bounding-set=-all"])
        .arg(binary);
    let is_there = std::process::Command::new("setpriv")
        .arg("--version")
        .output()
        .is_ok();
    is_there.then_some(command)
}

#[tokio::test]
async fn missing_permission_is_reported_in_one_line_with_cause() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("it is ours");
    let Some(mut command) = unprivileged(dir.path()) else {
        let why = "nothing is forbidden to root, and setpriv is not installed";
        return cannot_run("lifecycle: missing permissions", why);
    };
    let first_free = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let path = dir.path().join("config.toml");
    let low = config(closed_port(), &outstanding(1)).replacen("127.0.0.1:0", "127.0.0.1:1", 1);
    std::fs::write(&path, low).expect("it can be written to");
    if first_free.is_ok_and(|port| port.trim() == "0") {
        cannot_run("lifecycle: a low port", "every user may bind every port");
    } else {
        let said = run(command.args(["serve", "--config"]).arg(&path)).await;
        assert_eq!(said.code, Some(1), "{}", said.err);
        let complaints = complaints(&said);
        assert_eq!(complaints.len(), 1, "{}", said.err);
        assert!(complaints[0].contains("no permission"), "{}", said.err);
        assert!(complaints[0].contains("127.0.0.1:1 "), "{}", said.err);
        assert!(complaints[0].contains("listener test"), "{}", said.err);
    }
    let closed = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(&path, closed).expect("it is ours");
    let mut command = unprivileged(dir.path()).expect("as before");
    let said = run(command.args(["serve", "--config"]).arg(&path)).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    assert!(said.err.contains("Permission denied"), "{}", said.err);
    assert!(said.err.contains("config.toml"), "{}", said.err);
}

#[tokio::test]
async fn an_unreadable_config_is_reported_in_one_line_with_path_and_cause() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let latin = dir.path().join("latin.toml");
    std::fs::write(&latin, b"# Z\xfcrich").expect("it can be written to");
    let large = dir.path().join("large.toml");
    std::fs::write(&large, vec![b' '; (1 << 20) + 1]).expect("it can be written to");
    for command in ["serve", "check"] {
        for (path, why) in [
            (&dir.path().join("missing.toml"), "No such file"),
            (&dir.path().to_owned(), "directory"),
            (&latin, "UTF-8"),
            (&large, "larger than 1 MiB"),
        ] {
            let said = run(Command::new(TIDEGATE).args([command, "--config"]).arg(path)).await;
            assert_eq!(said.code, Some(1), "{}", said.err);
            assert_eq!(said.err.lines().count(), 1, "{}", said.err);
            assert!(said.err.contains(why), "{}", said.err);
            let path = path.display().to_string();
            assert!(said.err.contains(&path), "{}", said.err);
        }
    }
}

const TEN_MISTAKES: &str = r#"
[[listen]]
name = "a b"
bind = "127.0.0.1:99999"
protocol = "ftp"
[backend]
socket = "nowhere"
[queue]
capacity = 0
workers = "many"
when_full = "explode"
colour = "red"
[limits]
window = "1s"
per_window = "guest_list:10"
outstanding = -1
"#;

#[tokio::test]
async fn ten_mistakes_are_ten_messages_and_nothing_is_started() {
    let said = does_not_start(TEN_MISTAKES, &[]).await;
    let lines: Vec<_> = said.err.lines().collect();
    let messages = lines.iter().filter(|line| line.contains("config.toml:"));
    assert_eq!(messages.count(), 10, "{}", said.err);
    for key in [
        "listen[0].name",
        "listen[0].bind",
        "listen[0].protocol",
        "backend.socket",
        "queue.capacity",
        "queue.workers",
        "queue.when_full",
        "queue.colour",
        "limits.per_window",
        "limits.outstanding",
    ] {
        assert!(said.err.contains(key), "no {key} in {}", said.err);
    }
}

#[tokio::test]
async fn the_exit_code_of_check_says_whether_the_config_is_good() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    let check = |arguments: &[&str]| {
        let mut command = Command::new(TIDEGATE);
        command.args(arguments).arg(&path);
        command
    };
    std::fs::write(&path, config(closed_port(), &outstanding(7))).expect("written");
    let good = run(&mut check(&["check", "--config"])).await;
    assert_eq!(good.code, Some(0), "{}", good.err);
    assert!(good.out.contains("7 calls at once"), "{}", good.out);
    std::fs::write(&path, TEN_MISTAKES).expect("written");
    let bad = run(&mut check(&["check", "--config"])).await;
    assert_eq!(bad.code, Some(1), "{}", bad.err);
    assert_eq!(bad.out, "");
    for wrong in [
        &["check", "--colour"][..],
        &["frobnicate"],
        &["check"],
        &["serve", "--config", "x", "--config"],
    ] {
        // The path at its end is one word too many, or a second file.
        let usage = run(&mut check(wrong)).await;
        assert_eq!(usage.code, Some(2), "{wrong:?}: {}", usage.err);
    }
}

#[tokio::test]
async fn the_version_shows_the_commit() {
    let said = run(Command::new(TIDEGATE).arg("--version")).await;
    assert_eq!(said.code, Some(0));
    let expected = format!(
        "tidegate {} ({})\n",
        env!("CARGO_PKG_VERSION"),
        tidegate::app::REVISION
    );
    assert_eq!(said.out, expected);
    let is_hash = |text: &str| text.len() == 12 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(".git")
        .exists()
    {
        assert!(is_hash(tidegate::app::REVISION), "{}", said.out);
    }
}

#[tokio::test]
async fn the_environment_wins_over_the_file() {
    let held = answering().await;
    let text = config(held.backend.addr, &per_hour(5));
    let sidecar = Sidecar::start_with(&text, |binary| {
        let mut command = Command::new(binary);
        command
            .env("TIDEGATE_LIMITS__PER_WINDOW", "total:1")
            .env("TIDEGATE_LISTEN__0__NAME", "renamed")
            .env("TIDEGATE_QUEUE__CAPACITY", "77");
        command
    })
    .await;
    let addr = sidecar.listener("renamed").await;
    assert_eq!(sidecar.metric("tidegate_queue_capacity").await, 77.0);
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 503);
    // It still wins after a reload.
    sidecar.reload(&text.replace("total:5", "total:9")).await;
    let limit = sidecar
        .metric("tidegate_window_limit{limit=\"total\"}")
        .await;
    assert_eq!(limit, 1.0);
    let path = sidecar.config_path();
    let wrong = run(Command::new(TIDEGATE)
        .arg("check")
        .env("TIDEGATE_CONFIG", path)
        .env("TIDEGATE_QUEUE__CAPACITY", "none"))
    .await;
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.err.contains("TIDEGATE_QUEUE__CAPACITY"),
        "{}",
        wrong.err
    );
}

// What a reload keeps.

#[tokio::test]
async fn a_lowered_limit_applies_to_later_calls_and_used_slots_stay_used() {
    let held = answering().await;
    let text = |calls| config(held.backend.addr, &per_hour(calls));
    let sidecar = Sidecar::start(&text(5)).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..3 {
        assert_eq!(call(addr, &held).await, 0);
    }
    sidecar.reload(&text(4)).await;
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 503);
    sidecar.reload(&text(2)).await;
    assert_eq!(call(addr, &held).await, 503);
    let used = "tidegate_window_used{limit=\"total\"}";
    assert_eq!(sidecar.metric(used).await, 4.0);
    sidecar.reload(&text(6)).await;
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 503);
    assert_eq!(sidecar.metric(used).await, 6.0);
    // No counter restarted.
    let passed = "tidegate_calls_total{class=\"polling\",function=\"guest_get_info\",listener=\"test\",verdict=\"passed\"}";
    assert_eq!(sidecar.metric(passed).await, 6.0);
    assert_eq!(
        sidecar.metric(&passed.replace("passed", "refused")).await,
        3.0
    );
}

#[tokio::test]
async fn a_raised_limit_lets_waiting_calls_go_at_once_and_a_lowered_one_holds_the_next() {
    let mut held = Held::start(OK).await;
    let text = |calls| config(held.backend.addr, &outstanding(calls));
    let (one, three, two) = (text(1), text(3), text(2));
    let sidecar = Sidecar::start(&one).await;
    let addr = sidecar.listener("test").await;
    let mut calls = Vec::new();
    for number in 0..6 {
        calls.push(calling(addr, &format!("U{number}")).await);
        // One after the other, so that their order is known.
        busy(&sidecar, 1, number).await;
    }
    assert!(held.next().await.contains("U0"));
    sidecar.reload(&three).await;
    let went = [held.next().await, held.next().await];
    assert!(went.iter().any(|call| call.contains("U1")), "{went:?}");
    assert!(went.iter().any(|call| call.contains("U2")), "{went:?}");
    busy(&sidecar, 3, 3).await;
    // Lowered below the calls in flight: none is cut off, and none follows until it fits.
    sidecar.reload(&two).await;
    held.go.notify_one();
    busy(&sidecar, 2, 3).await;
    held.go.notify_one();
    assert!(held.next().await.contains("U3"));
    busy(&sidecar, 2, 2).await;
    for call in &mut calls {
        let answer = held.answer_until(read_all(call)).await;
        assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
    }
    assert_eq!(held.done(), 6);
    busy(&sidecar, 0, 0).await;
}

#[tokio::test]
async fn connections_stay_open_through_a_reload_and_their_listener_may_even_be_gone() {
    let held =
        Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}").await;
    let first = config(held.backend.addr, &outstanding(5));
    let sidecar = Sidecar::start(&first).await;
    let old = sidecar.listener("test").await;
    let mut kept = TcpStream::connect(old).await.expect("it listens");
    let request = "GET /host HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut ask_again = async |expected: &str| {
        held.go.notify_one();
        kept.write_all(request.as_bytes()).await.expect("it reads");
        let answer = read_until(&mut kept, "\"overallRC\": 0}").await;
        assert!(answer.starts_with(expected), "{answer}");
    };
    ask_again("HTTP/1.1 200").await;
    // One more listener.
    let more = first.replacen(
        "[backend]",
        "[[listen]]\nname = \"more\"\nbind = \"127.0.0.2:0\"\n[backend]",
        1,
    );
    sidecar.reload(&more).await;
    ask_again("HTTP/1.1 200").await;
    let new = sidecar.listener("more").await;
    held.go.notify_one();
    let answer = crate::support::ask(
        new,
        request.replace("Host: t", "Host: t\r\nConnection: close"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // The first one closes; its accepted connections stay.
    let only = first
        .replacen("127.0.0.1:0", "127.0.0.2:0", 1)
        .replacen("\"test\"", "\"more\"", 1);
    sidecar.reload(&only).await;
    refused(old).await;
    ask_again("HTTP/1.1 200").await;
    held.go.notify_one();
    let answer = crate::support::ask(
        new,
        request.replace("Host: t", "Host: t\r\nConnection: close"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Waits until connections are refused: a listener closes a moment after the reload.
async fn refused(addr: SocketAddr) {
    let started = Instant::now();
    while TcpStream::connect(addr).await.is_ok() {
        assert!(
            started.elapsed() < crate::support::PATIENCE,
            "{addr} still accepts"
        );
    }
}

#[tokio::test]
async fn a_changed_backend_gets_the_calls_that_wait() {
    let mut before = Held::start(OK).await;
    let mut after = Held::start(OK).await;
    let sidecar = Sidecar::start(&config(before.backend.addr, &outstanding(1))).await;
    let addr = sidecar.listener("test").await;
    let mut running = calling(addr, "OLD").await;
    assert!(before.next().await.contains("OLD"));
    let mut waiting = calling(addr, "NEW").await;
    busy(&sidecar, 1, 1).await;
    sidecar
        .reload(&config(after.backend.addr, &outstanding(1)))
        .await;
    before.go.notify_one();
    assert_eq!(json(&read_all(&mut running).await)["overallRC"], 0);
    assert!(after.next().await.contains("NEW"));
    after.go.notify_one();
    assert_eq!(json(&read_all(&mut waiting).await)["overallRC"], 0);
    assert_eq!((before.done(), after.done()), (1, 1));
}

#[tokio::test]
async fn a_bad_config_changes_nothing_and_every_mistake_is_reported() {
    let held = answering().await;
    let good = config(held.backend.addr, &per_hour(3));
    let sidecar = Sidecar::start(&good).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(sidecar.metric(RELOADED).await, 1.0);
    let before = sidecar.get("/v1/config").await.1;
    assert_eq!(call(addr, &held).await, 0);

    sidecar.write_config(TEN_MISTAKES);
    let said = sidecar.hang_up("the old one stays").await;
    let mistakes = said.iter().filter(|line| line.contains("config.toml:"));
    assert_eq!(mistakes.count(), 10, "{said:#?}");
    assert_eq!(sidecar.metric(RELOADED).await, 0.0);
    assert_eq!(sidecar.get("/v1/config").await.1, before);
    assert_eq!(call(addr, &held).await, 0);

    // Good in itself, but one of its addresses cannot be had: none of it is taken.
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let taken = other.local_addr().expect("it is bound").to_string();
    sidecar.write_config(
        &good
            .replace("total:3", "total:9")
            .replacen("127.0.0.1:0", &taken, 1),
    );
    let said = sidecar.hang_up("the old config stays").await.join("\n");
    assert!(said.contains(&taken) && said.contains("in use"), "{said}");
    assert_eq!(sidecar.metric(RELOADED).await, 0.0);
    assert_eq!(sidecar.get("/v1/config").await.1, before);

    std::fs::remove_file(sidecar.config_path()).expect("it is ours");
    let said = sidecar.hang_up("the old config stays").await.join("\n");
    assert!(said.contains("config.toml"), "{said}");
    assert!(said.contains("No such file"), "{said}");
    assert_eq!(sidecar.metric(RELOADED).await, 0.0);
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 503);

    sidecar.reload(&good.replace("total:3", "total:4")).await;
    assert_eq!(sidecar.metric(RELOADED).await, 1.0);
    assert_eq!(call(addr, &held).await, 0);
    assert_eq!(call(addr, &held).await, 503);
}

#[tokio::test]
async fn a_reload_reports_options_that_need_a_restart_and_applies_the_rest() {
    let held = answering().await;
    let good = config(held.backend.addr, &per_hour(1));
    let sidecar = Sidecar::start(&good).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(call(addr, &held).await, 0);
    sidecar.write_config(
        &good
            .replace("total:1", "total:2")
            .replace("[server]", "[server]\nthreads = 3"),
    );
    let said = sidecar.hang_up("config reloaded").await.join("\n");
    assert!(said.contains("server.threads"), "{said}");
    assert!(said.contains("restart"), "{said}");
    assert_eq!(call(addr, &held).await, 0);
}

// How it leaves.

#[tokio::test]
async fn terminated_it_is_not_ready_accepts_no_more_and_finishes_what_waits() {
    for signal in ["TERM", "INT"] {
        let mut held = Held::start(OK).await;
        let sidecar = Sidecar::start(&config(held.backend.addr, &outstanding(1))).await;
        let addr = sidecar.listener("test").await;
        let admin = sidecar.admin;
        assert_eq!(get(admin, "/readyz").await.0, 200);
        let mut calls = Vec::new();
        for number in 0..3 {
            calls.push(calling(addr, &format!("U{number}")).await);
            busy(&sidecar, 1, number).await;
        }
        let mut idle = TcpStream::connect(addr).await.expect("it listens");
        held.next().await;
        sidecar.signal(signal);
        sidecar.log().wait(&["draining"]).await;
        let (status, body) = get(admin, "/readyz").await;
        assert_eq!(status, 503, "{body}");
        assert_eq!(get(admin, "/livez").await.0, 200);
        refused(addr).await;
        assert_eq!(read_all(&mut idle).await, "");
        for call in &mut calls {
            held.go.notify_one();
            let answer = read_all(call).await;
            assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
        }
        let (status, log) = sidecar.ended().await;
        assert_eq!(status.code(), Some(0), "{log:#?}");
        // The lines of the last calls are not lost with the process.
        let calls = log
            .iter()
            .filter(|line| line.contains("\"guest_get_info\""));
        assert_eq!(calls.count(), 3, "{log:#?}");
    }
}

#[tokio::test]
async fn connections_in_the_backlog_of_a_removed_listener_are_served() {
    for goes in ["with the process", "by a reload"] {
        let mut held = Held::start(OK).await;
        let first = config(held.backend.addr, &outstanding(1)).replace(
            "bind = \"127.0.0.1:0\"\n        [backend]",
            "bind = \"127.0.0.1:0\"\n        protocol = \"socket\"\n        [backend]",
        );
        let full = first.replace("[queue]", "[queue]\n        capacity = 1");
        let sidecar = Sidecar::start(&full).await;
        let addr = sidecar.listener("test").await;
        let mut calls = Vec::new();
        for number in 0..2 {
            calls.push(calling(addr, &format!("U{number}")).await);
            busy(&sidecar, 1, number).await;
        }
        held.next().await;
        // The queue is full, so these are the kernel's.
        for number in 2..12 {
            calls.push(calling(addr, &format!("U{number}")).await);
        }
        if goes == "by a reload" {
            sidecar
                .reload(&full.replacen("127.0.0.1:0", "127.0.0.2:0", 1))
                .await;
            refused(addr).await;
        } else {
            sidecar.signal("TERM");
            sidecar.log().wait(&["draining"]).await;
        }
        for call in &mut calls {
            let answer = held.answer_until(read_all(call)).await;
            assert_eq!(json(&answer)["overallRC"], 0, "{goes}: {answer}");
        }
    }
}

#[tokio::test]
async fn calls_that_wait_beyond_the_drain_timeout_are_refused_and_the_exit_code_shows_it() {
    let mut held = Held::start(OK).await;
    let text = config(held.backend.addr, &outstanding(1)).replace("\"20s\"", "\"300ms\"");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let mut running = calling(addr, "RUNS").await;
    held.next().await;
    let mut on_socket = calling(addr, "WAITS").await;
    let mut on_http = sending(addr, b"GET /host HTTP/1.1\r\nHost: t\r\n\r\n").await;
    busy(&sidecar, 1, 2).await;
    sidecar.signal("TERM");
    let answer = json(&read_all(&mut on_socket).await);
    assert_eq!(answer["overallRC"], 503, "{answer}");
    assert_eq!(answer["modID"], 130, "{answer}");
    assert_eq!(answer["rs"], 5, "{answer}");
    let answer = read_all(&mut on_http).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("draining"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    // It ran at the backend; its result is unknown.
    let answer = json(&read_all(&mut running).await);
    assert_eq!(
        (&answer["overallRC"], &answer["rs"]),
        (&500.into(), &29.into()),
        "{answer}"
    );
    assert!(
        answer["errmsg"]
            .as_str()
            .is_some_and(|it| it.contains("may still run")),
        "{answer}"
    );
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1), "{log:#?}");
    let refused = log.iter().filter(|line| line.contains("\"draining\""));
    assert_eq!(refused.count(), 2, "{log:#?}");
    let given_up = |line: &&String| line.contains("\"reason\":\"drain_timeout\"");
    let given_up: Vec<_> = log.iter().filter(given_up).collect();
    assert_eq!(given_up.len(), 1, "{log:#?}");
    assert!(
        given_up[0].contains("\"verdict\":\"failed\""),
        "{}",
        given_up[0]
    );
}

#[tokio::test]
async fn an_http_call_at_the_backend_is_answered_when_the_drain_time_is_over() {
    let mut held = Held::start(OK).await;
    let text = config(held.backend.addr, &outstanding(1))
        .replace("\"20s\"", "\"300ms\"")
        .replace("kind = \"zvm\"", "kind = \"http\"");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let mut running = sending(addr, b"GET /host HTTP/1.1\r\nHost: t\r\n\r\n").await;
    held.next().await;
    sidecar.signal("TERM");
    let answer = read_all(&mut running).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert!(answer.contains("\"reason\":\"drain_timeout\""), "{answer}");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1), "{log:#?}");
    let call = log.iter().find(|line| line.contains("\"drain_timeout\""));
    let call = call.expect("its line");
    assert!(call.contains("\"verdict\":\"failed\""), "{call}");
    assert!(!call.contains("\"left\":true"), "{call}");
}

#[tokio::test]
async fn all_clients_of_a_shared_call_are_answered_when_the_drain_time_is_over() {
    let mut held = Held::start(OK).await;
    let text = config(held.backend.addr, &outstanding(1)).replace("\"20s\"", "\"300ms\"")
        + "\n[coalesce]\nfunctions = [\"guest_get_info\"]\n";
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let mut first = calling(addr, "SAME").await;
    held.next().await;
    let mut second = calling(addr, "SAME").await;
    crate::support::until_read(&second).await;
    sidecar.signal("TERM");
    for client in [&mut first, &mut second] {
        let answer = json(&read_all(client).await);
        assert_eq!(answer["rs"], 29, "{answer}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut held = Held::start(OK).await;
    let text = config(held.backend.addr, &outstanding(1)).replace("\"20s\"", "\"1h\"");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let _running = calling(addr, "RUNS").await;
    held.next().await;
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1), "{log:#?}");
}

#[tokio::test]
async fn a_drain_ends_keep_alive_connections_with_their_next_answer() {
    let mut held =
        Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}").await;
    let sidecar = Sidecar::start(&config(held.backend.addr, &outstanding(5))).await;
    let addr = sidecar.listener("test").await;
    let mut client = sending(addr, b"GET /host HTTP/1.1\r\nHost: t\r\n\r\n").await;
    held.next().await;
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    held.go.notify_one();
    let answer = read_all(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0), "{log:#?}");
}

#[tokio::test]
async fn a_log_without_a_reader_ends_nothing() {
    let held = answering().await;
    let text = config(held.backend.addr, &outstanding(5));
    let mut sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    sidecar.stop_reading_its_log().await;
    for _ in 0..3 {
        assert_eq!(call(addr, &held).await, 0);
    }
    sidecar.write_config(TEN_MISTAKES);
    sidecar.signal("HUP");
    let started = Instant::now();
    while sidecar.metric(RELOADED).await != 0.0 {
        assert!(started.elapsed() < crate::support::PATIENCE, "it took note");
    }
    assert_eq!(call(addr, &held).await, 0);
    sidecar.signal("TERM");
    assert_eq!(sidecar.ended().await.0.code(), Some(0));
    // The exit code is all that is left to say why it did not start.
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = Command::new(TIDEGATE)
        .args(["serve", "--config", "missing.toml"])
        .stderr(full.expect("it is Linux"))
        .status()
        .await
        .expect("the binary runs");
    assert_eq!(status.code(), Some(1));
}

#[tokio::test]
async fn a_rate_limit_is_raised_in_place_and_shown_in_metrics_and_access_lines() {
    let held = answering().await;
    let text = |fill: &str| {
        let limit = format!(
            "[[bucket]]\nname = \"all\"\nburst = 1\nfill = {fill}\nmax_wait = \"none\"\n\
             [[caller]]\nlabel = \"everybody\"\nmatch = {{ listener = \"test\" }}\n\
             groups = [\"all\"]\nrate_limit = \"all\"\n[admin]"
        );
        config(held.backend.addr, &outstanding(10)).replace("[admin]", &limit)
    };
    let sidecar = Sidecar::start(&text("0.001")).await;
    let addr = sidecar.listener("test").await;
    assert_eq!(call(addr, &held).await, 0);
    let mut second = calling(addr, "U2").await;
    busy(&sidecar, 0, 1).await;
    let queued = r#"tidegate_limiter_queued{limiter="all"}"#;
    assert!((sidecar.metric(queued).await - 1.0).abs() < f64::EPSILON);
    // In place: a waiting call goes on waiting, and gets the token that now flows in.
    sidecar.reload(&text("1000")).await;
    let answer = held.answer_until(read_all(&mut second)).await;
    assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
    let words = [r#""userid":"U2""#, r#""rate_limit":"all","tokens":1,"#];
    let (line, _) = sidecar.log().wait_from(0, &words).await;
    assert!(line.contains(r#""limit":"rate_limit:all""#), "{line}");
    for (metric, value) in [
        (r#"tidegate_limiter_delayed_total{limiter="all"}"#, 1.0),
        (r#"tidegate_limiter_wait_seconds_count{limiter="all"}"#, 2.0),
        (r#"tidegate_limit_hits_total{limit="rate_limit:all"}"#, 1.0),
        (r#"tidegate_group_calls_total{group="all"}"#, 2.0),
        (r#"tidegate_group_tokens_total{group="all"}"#, 2.0),
        (r#"tidegate_callers_registered{kind="config"}"#, 1.0),
        (r#"tidegate_callers_registered{kind="auto"}"#, 1.0),
    ] {
        let shown = sidecar.metric(metric).await;
        assert!((shown - value).abs() < f64::EPSILON, "{metric} {shown}");
    }
    // Gone with its rate limit.
    sidecar
        .reload(&config(held.backend.addr, &outstanding(10)))
        .await;
    let (_, metrics) = sidecar.get("/metrics").await;
    assert!(!metrics.contains("\"all\""), "{metrics}");
}

#[tokio::test]
async fn a_pace_for_all_calls_is_shown_in_limits_metrics_and_access_lines() {
    let held = answering().await;
    let text = |rate: &str| {
        let limit = format!(
            "[[pace]]\nname = \"all\"\nrate = {rate}\n\
             applies_to = \"total\"\n[admin]"
        );
        config(held.backend.addr, &outstanding(10)).replace("[admin]", &limit)
    };
    let sidecar = Sidecar::start(&text("0.02")).await;
    let addr = sidecar.listener("test").await;
    let all = async || {
        let limits = json(&sidecar.get("/v1/limits").await.1);
        let limits = limits["limits"].as_array().expect("a list").clone();
        let mut limits = limits.into_iter();
        limits.find(|it| it["name"] == "rate_limit:all")
    };
    assert_eq!(call(addr, &held).await, 0);
    let mut second = calling(addr, "U2").await;
    busy(&sidecar, 0, 1).await;
    let shown = all().await.expect("it is a limit");
    assert_eq!(
        (
            &shown["kind"],
            &shown["scope"],
            &shown["rate"],
            &shown["ratio"]
        ),
        (&"paced".into(), &"all".into(), &0.02.into(), &1.1.into())
    );
    assert_eq!(shown["pace"]["drawn"], 1.0);
    let opens = shown["opens"]["in_seconds"].as_f64();
    assert!(opens.is_some_and(|it| it > 40.0), "{shown}");
    for (metric, value) in [
        (r#"tidegate_limiter_queued{limiter="all"}"#, 1.0),
        (r#"tidegate_limiter_pace_rate{limiter="all"}"#, 0.02),
        (r#"tidegate_limiter_pace_achieved_rate{limiter="all"}"#, 0.1),
        (r#"tidegate_limiter_pace_burst_seconds{limiter="all"}"#, 0.0),
    ] {
        let shown = sidecar.metric(metric).await;
        assert!((shown - value).abs() < 0.05, "{metric} {shown}");
    }
    let (_, now) = sidecar.get("/v1/now").await;
    assert!(now.contains("rate_limit:all"), "{now}");
    // In place: a waiting call goes on waiting, and leaves at the new pace.
    sidecar.reload(&text("1000")).await;
    let answer = held.answer_until(read_all(&mut second)).await;
    assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
    let (line, _) = sidecar.log().wait_from(0, &[r#""userid":"U2""#]).await;
    assert!(line.contains(r#""limit":"rate_limit:all""#), "{line}");
    assert_eq!(all().await.expect("it is kept")["pace"]["drawn"], 2.0);
    let rate = sidecar
        .metric(r#"tidegate_limiter_pace_rate{limiter="all"}"#)
        .await;
    assert!((rate - 1000.0).abs() < f64::EPSILON);
    // Gone from everywhere.
    sidecar
        .reload(&config(held.backend.addr, &outstanding(10)))
        .await;
    assert_eq!(all().await, None);
    let (_, metrics) = sidecar.get("/metrics").await;
    assert!(!metrics.contains("\"all\""), "{metrics}");
}

#[tokio::test]
async fn a_call_that_waited_is_explained_limit_by_limit() {
    let mut held = Held::start(OK).await;
    let text = |fill: &str| {
        let limit = format!(
            "[[bucket]]\nname = \"all\"\nburst = 1\nfill = {fill}\n\
             max_wait = \"none\"\n[[caller]]\nlabel = \"everybody\"\n\
             match = {{ listener = \"test\" }}\nrate_limit = \"all\"\n[admin]"
        );
        config(held.backend.addr, &outstanding(1)).replace("[admin]", &limit)
    };
    let (poor, rich) = (text("0.001"), text("1000"));
    let sidecar = Sidecar::start(&poor).await;
    let addr = sidecar.listener("test").await;
    let read = async |path: &str| json(&sidecar.get(path).await.1);

    // The first takes the token and the slot.
    let mut first = calling(addr, "U1").await;
    held.next().await;
    let mut second = calling(addr, "U2").await;
    busy(&sidecar, 1, 1).await;
    let limits = read("/v1/limits").await;
    let bucket = &limits["buckets"][0];
    assert_eq!(bucket["name"], "rate_limit:all");
    assert_eq!(
        (&bucket["burst"], &bucket["queued"]),
        (&1.0.into(), &1.into())
    );
    let opens = bucket["opens"]["in_seconds"].as_f64();
    assert!(opens.is_some_and(|seconds| seconds > 900.0), "{bucket}");
    assert!(bucket["tokens"].as_f64().is_some_and(|tokens| tokens < 0.1));

    // With tokens there is still the slot.
    sidecar.reload(&rich).await;
    let started = Instant::now();
    while read("/v1/queue").await["functions"][0]["waits_for"] != "outstanding" {
        assert!(started.elapsed() < crate::support::PATIENCE);
    }
    held.go.notify_one();
    read_all(&mut first).await;
    held.next().await;
    held.go.notify_one();
    read_all(&mut second).await;

    let (line, _) = sidecar.log().wait_from(0, &[r#""userid":"U2""#]).await;
    let call = read(&format!("/v1/calls/{}", field(&line, "id"))).await;
    let parts = call["held"].as_array().expect("a list");
    let names: Vec<_> = parts
        .iter()
        .filter_map(|part| part["limit"].as_str())
        .collect();
    for name in ["rate_limit:all", "outstanding"] {
        assert!(names.contains(&name), "{call}");
    }
    let ms = |value: &serde_json::Value| value.as_f64().expect("a number");
    let together: f64 = parts.iter().map(|part| ms(&part["ms"])).sum();
    assert!((together - ms(&call["queued_ms"])).abs() < 0.01, "{call}");
    let longest_first = parts.is_sorted_by(|one, other| ms(&one["ms"]) >= ms(&other["ms"]));
    assert!(longest_first, "{call}");
}
