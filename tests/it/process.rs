//! The process under its operating system: a log reader that stalls, a disk that hangs, few
//! descriptors, signals at any moment, and reloads that are whole or nothing.

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use tidegate::admit::{Admission, Ask, Gate};
use tidegate::call::{Destination, Origin, Record};
use tidegate::callers::Callers;
use tidegate_runtime::Clock;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::sidecar::{Log, Said, Sidecar, TIDEGATE, field, get, run};
use crate::support::{
    Held, OK, PATIENCE, Scripted, Seen, admitted, array, ask, asking, closed_port, connect,
    identity, json, one_listener, read_all, until,
};

/// A config with one listener, `test`, before one backend for everything.
fn config(backend: SocketAddr, more: &str) -> String {
    one_listener(backend, "", more)
}

/// Makes a call on the socket protocol that the backend answers.
async fn call(addr: SocketAddr) {
    let answer = ask(addr, array("guest_get_info", "X")).await;
    assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
}

/// Makes a FIFO: a file whose opening waits, as on a disk that hangs.
fn fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("there is a mkfifo command").success());
}

/// Waits until a process has opened the FIFO to read it, and opens it for writing. From there on
/// that process waits for its end.
async fn read_by_now(path: &Path) -> std::fs::File {
    use rustix::fs::{Mode, OFlags, open};
    let opened = Cell::new(None);
    let is_read = || {
        // Without a reader it is refused, so nothing here waits.
        let end = open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        end.map(|end| opened.set(Some(end))).is_ok()
    };
    until(is_read, || format!("a reader of {}", path.display())).await;
    opened.into_inner().expect("it was just opened").into()
}

/// Waits until a process reads the FIFO, and writes this to it.
async fn feed(path: &Path, text: &str) {
    let mut file = read_by_now(path).await;
    file.write_all(text.as_bytes()).expect("it is read");
}

/// `tidegate serve` before it is ready.
fn spawn(config: &Path) -> (Child, Log) {
    let mut child = Command::new(TIDEGATE)
        .arg("serve")
        .arg("--config")
        .arg(config)
        .env("TIDEGATE_RUNTIME_DIR", config.with_extension("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary runs");
    let (log, _) = Log::read(child.stderr.take().expect("it is piped"));
    (child, log)
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().expect("it runs").to_string();
    let sent = std::process::Command::new("kill")
        .args([&format!("-{name}"), &pid])
        .status()
        .expect("there is a kill command");
    assert!(sent.success(), "kill -{name}");
}

// The log.

#[tokio::test]
async fn a_log_reader_that_stalls_holds_up_no_call_no_reload_and_no_drain() {
    let backend = Scripted::in_both_dialects().await;
    let text = config(backend.addr, "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    sidecar.log().stall();
    // A pipe holds 64 KiB; the access lines of these calls are more, and the writer waits.
    for _ in 0..400 {
        call(addr).await;
    }
    // Each of these is an event, and the second has ten.
    sidecar.signal("HUP");
    let reloads = r#"tidegate_config_reloads_total{outcome="taken"}"#;
    until_metric(sidecar.admin, reloads, 1.0).await;
    sidecar.write_config("[[listen]]\nname = 1\nbind = 2\nprotocol = 3\n[queue]\nworkers = 4\n");
    sidecar.signal("HUP");
    let reloads = r#"tidegate_config_reloads_total{outcome="refused"}"#;
    until_metric(sidecar.admin, reloads, 1.0).await;
    call(addr).await;
    assert_eq!(sidecar.get("/livez").await.0, 200);
    sidecar.signal("TERM");
    let log = sidecar.log().clone();
    let status = sidecar.exited().await;
    assert_eq!(status.code(), Some(0));
    log.go_on();
}

/// Waits until a metric has a value.
async fn until_metric(admin: SocketAddr, name: &str, value: f64) {
    let shows = async {
        loop {
            let (_, metrics) = get(admin, "/metrics").await;
            let shown = metrics
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            if shown == Some(value) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let shows = tokio::time::timeout(PATIENCE, shows).await;
    shows.unwrap_or_else(|_| panic!("{name} is never {value}"));
}

#[tokio::test]
async fn why_it_does_not_start_is_one_line_of_json_where_the_log_is_json() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    let said = async |text: &str| -> Said {
        std::fs::write(&path, text).expect("it can be written to");
        let mut command = Command::new(TIDEGATE);
        let said = run(command.args(["serve", "--config"]).arg(&path)).await;
        assert_eq!(said.code, Some(1), "{}", said.err);
        said
    };
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let other = other.expect("a free port");
    let taken = other.local_addr().expect("it is bound").to_string();
    let good = config(closed_port(), "");
    for (text, words) in [
        (good.replacen("127.0.0.1:0", &taken, 1), "port is in use"),
        (
            good.replace("[queue]", "[queue]\nworkers = 0"),
            "queue.workers",
        ),
    ] {
        let said = said(&text).await;
        let errors = said
            .err
            .lines()
            .map(json)
            .filter(|it| it["level"] == "ERROR");
        let errors: Vec<_> = errors.map(|it| it["message"].to_string()).collect();
        assert!(errors.iter().any(|it| it.contains(words)), "{}", said.err);
    }
    // Even a broken file says which form the log has.
    let text = good.replace("[queue]", "[log]\nformat = \"text\"\n[queue]\nworkers = 0");
    let said = said(&text).await;
    assert!(said.err.contains("queue.workers"), "{}", said.err);
    assert!(!said.err.contains("\"level\""), "{}", said.err);
}

#[tokio::test]
async fn a_probe_that_finds_a_drain_logs_no_error() {
    let mut held = Held::start(OK).await;
    let sidecar = Sidecar::start(&config(held.backend.addr, "")).await;
    let addr = sidecar.listener("test").await;
    let mut running = connect(addr).await;
    let request = array("guest_get_info", "X");
    running
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    held.next().await;
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    for path in ["/readyz", "/healthz"] {
        assert_eq!(sidecar.get(path).await.0, 503);
    }
    held.go.notify_one();
    read_all(&mut running).await;
    let (_, log) = sidecar.ended().await;
    let is_bad = |line: &&String| line.contains("\"ERROR\"") || line.contains("\"WARN\"");
    let drain = log.iter().position(|line| line.contains("draining"));
    let bad: Vec<_> = log[drain.expect("it drained")..]
        .iter()
        .filter(is_bad)
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

// A disk that hangs.

#[tokio::test]
async fn a_save_that_hangs_holds_up_no_call_no_reload_and_no_probe() {
    let backend = Scripted::in_both_dialects().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state = dir.path().join("callers.json");
    fifo(&dir.path().join("callers.json.new"));
    let more = format!("[callers]\nstate_file = \"{}\"", state.display());
    let text = config(backend.addr, &more);
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..3 {
        call(addr).await;
        sidecar.signal("HUP");
        call(addr).await;
        assert_eq!(sidecar.get("/livez").await.0, 200);
        sidecar.reload(&text).await;
    }
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    // The drain has nothing to wait for, and the last save never ends: a second signal does.
    sidecar.log().wait(&["saving"]).await;
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1), "{log:#?}");
}

#[tokio::test]
async fn a_config_that_is_slow_to_read_holds_up_no_call_no_probe_and_no_drain() {
    let backend = Scripted::in_both_dialects().await;
    let text = config(backend.addr, "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    let path = sidecar.config_path().to_owned();
    std::fs::remove_file(&path).expect("it is ours");
    fifo(&path);
    sidecar.signal("HUP");
    let mut config = read_by_now(&path).await;
    call(addr).await;
    assert_eq!(sidecar.get("/livez").await.0, 200);
    let from = sidecar.log().lines().len();
    config.write_all(text.as_bytes()).expect("it is read");
    drop(config);
    sidecar.log().wait_from(from, &["config reloaded"]).await;
    sidecar.signal("HUP");
    let _config = read_by_now(&path).await;
    sidecar.signal("TERM");
    assert_eq!(sidecar.ended().await.0.code(), Some(0));
}

// Reloads.

#[tokio::test]
async fn a_reload_that_the_callers_refuse_changes_not_even_the_log_level() {
    let backend = Scripted::in_both_dialects().await;
    let text = config(backend.addr, "");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    // As many groups as there may be.
    for number in 0..64 {
        let groups: Vec<_> = (0..16).map(|it| format!("g{number}x{it}")).collect();
        let body = serde_json::json!({
            "label": format!("made {number}"), "groups": groups,
            "match": {"user": format!("user{number}")},
        });
        let body = body.to_string();
        let request = format!(
            "POST /v1/callers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = ask(sidecar.admin, request).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
    let one_more = "[log]\nlevel = \"off\"\naccess = false\n[[caller]]\nlabel = \"one\"\n\
                    match = { user = \"one\" }\ngroups = [\"more\"]\n";
    sidecar.write_config(&format!("{text}\n{one_more}"));
    let said = sidecar.hang_up("the old config stays").await.join("\n");
    assert!(said.contains("groups"), "{said}");
    call(addr).await;
    sidecar.log().wait(&["\"target\":\"access\""]).await;
}

#[tokio::test]
async fn a_refused_reload_is_counted_and_shown_with_its_errors_until_one_is_taken() {
    let backend = Scripted::in_both_dialects().await;
    let text = config(backend.addr, "");
    let sidecar = Sidecar::start(&text).await;
    let total = |outcome: &str| format!("tidegate_config_reloads_total{{outcome=\"{outcome}\"}}");
    assert_eq!(sidecar.metric(&total("refused")).await, 0.0);
    let started = sidecar.metric(&total("taken")).await;
    sidecar.write_config(&text.replace("[queue]", "[queue]\nworkers = 0\ncapacity = -1"));
    sidecar.hang_up("the old one stays").await;
    for (path, told) in [
        ("/healthz?verbose", "refused"),
        ("/v1/now", "\"taken\":false"),
    ] {
        let (status, shown) = sidecar.get(path).await;
        assert_eq!(status, 200, "{shown}");
        for word in [told, "queue.workers", "queue.capacity"] {
            assert!(shown.contains(word), "no {word} in {shown}");
        }
    }
    // Only on request: a probe reads one line.
    assert_eq!(sidecar.get("/healthz").await, (200, "ok\n".to_owned()));
    sidecar.reload(&text).await;
    assert_eq!(sidecar.metric(&total("refused")).await, 1.0);
    assert_eq!(sidecar.metric(&total("taken")).await, started + 1.0);
    for (path, told) in [
        ("/healthz?verbose", "refused"),
        ("/v1/now", "\"taken\":false"),
    ] {
        let (_, shown) = sidecar.get(path).await;
        for word in [told, "queue.workers"] {
            assert!(!shown.contains(word), "{word} in {shown}");
        }
    }
}

#[tokio::test]
async fn a_call_that_a_limit_held_is_delayed_even_if_a_reload_opens_the_limit() {
    let mut held = Held::start(OK).await;
    let more = |calls: u32| format!("[limits]\noutstanding = {calls}\n");
    let limits = "[limits]\n        per_window";
    let text = |calls| {
        let all = config(held.backend.addr, "");
        assert!(all.contains(limits), "{all}");
        all.replace("[limits]\n", &more(calls))
    };
    let (one, two) = (text(1), text(2));
    let sidecar = Sidecar::start(&one).await;
    let addr = sidecar.listener("test").await;
    let calling = async |userid: &str| {
        let mut stream = connect(addr).await;
        let request = array("guest_get_info", userid);
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        stream
    };
    let mut first = calling("FIRST").await;
    held.next().await;
    let mut second = calling("SECOND").await;
    until_metric(sidecar.admin, "tidegate_queue_depth", 1.0).await;
    sidecar.reload(&two).await;
    held.next().await;
    for stream in [&mut first, &mut second] {
        held.answer_until(read_all(stream)).await;
    }
    let line = sidecar.log().wait(&["\"userid\":\"SECOND\""]).await;
    assert_eq!(field(&line, "verdict"), "delayed", "{line}");
    assert_eq!(field(&line, "limit"), "outstanding", "{line}");
}

#[tokio::test]
async fn a_socket_file_that_was_deleted_is_made_again_by_a_reload() {
    let backend = Scripted::in_both_dialects().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("t.sock");
    let more = format!(
        "[[listen]]\nname = \"file\"\nbind = \"unix:{}\"\nprotocol = \"socket\"\n",
        path.display()
    );
    let text = config(backend.addr, &more);
    let sidecar = Sidecar::start(&text).await;
    let call = async || {
        use tokio::io::AsyncReadExt as _;
        let mut stream = tokio::net::UnixStream::connect(&path)
            .await
            .expect("a listener");
        let request = array("guest_get_info", "X");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("no reset");
        assert_eq!(json(&answer)["overallRC"], 0, "{answer}");
    };
    call().await;
    std::fs::remove_file(&path).expect("it is ours");
    sidecar.reload(&text).await;
    call().await;
    // And again, and it goes with the process.
    std::fs::remove_file(&path).expect("it was made again");
    sidecar.reload(&text).await;
    sidecar.reload(&text).await;
    call().await;
    sidecar.signal("TERM");
    assert_eq!(sidecar.ended().await.0.code(), Some(0));
    assert!(!path.exists());
}

// Signals.

#[tokio::test]
async fn a_hang_up_while_the_config_is_first_read_is_a_reload_and_no_end() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    fifo(&path);
    let text = config(closed_port(), "");
    let (child, log) = spawn(&path);
    let mut config = read_by_now(&path).await;
    signal(&child, "HUP");
    config.write_all(text.as_bytes()).expect("it is read");
    drop(config);
    log.wait(&["\"message\":\"ready\""]).await;
    feed(&path, &text).await;
    log.wait(&["config reloaded"]).await;
}

#[tokio::test]
async fn it_can_be_ended_while_the_config_is_first_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    fifo(&path);
    let (mut child, _log) = spawn(&path);
    let _config = read_by_now(&path).await;
    signal(&child, "TERM");
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    assert_eq!(ended.expect("it ends").expect("our child").code(), Some(0));
}

#[tokio::test]
async fn a_signal_without_a_meaning_is_logged_and_quit_drains() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, "")).await;
    let addr = sidecar.listener("test").await;
    sidecar.signal("USR1");
    let line = sidecar.log().wait(&["SIGUSR1"]).await;
    assert!(line.contains("SIGHUP"), "{line}");
    call(addr).await;
    sidecar.signal("QUIT");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0), "{log:#?}");
    assert!(log.iter().any(|line| line.contains("draining")), "{log:#?}");
}

// Whether it is healthy.

/// `tidegate healthcheck`, in a separate environment.
async fn healthcheck(config: &Path, arguments: &[&str], runtime: &Path) -> Said {
    let mut command = Command::new(TIDEGATE);
    command
        .args(["healthcheck", "--config"])
        .arg(config)
        .args(arguments)
        .env("TIDEGATE_RUNTIME_DIR", runtime);
    run(&mut command).await
}

#[tokio::test]
async fn a_healthy_process_stays_healthy_whatever_becomes_of_its_config_file() {
    let backend = Scripted::in_both_dialects().await;
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let text = config(backend.addr, "");
    let sidecar = Sidecar::start_with(&text, |binary| {
        let mut command = Command::new(binary);
        command.env("TIDEGATE_RUNTIME_DIR", runtime.path());
        command
    })
    .await;
    let path = sidecar.config_path().to_owned();
    let admin = sidecar.admin.to_string();
    for text in ["no = toml =", "", "[admin]\nbind = \"127.0.0.1:1\"\n"] {
        sidecar.write_config(text);
        for arguments in [&[][..], &["--admin", &admin]] {
            let said = healthcheck(&path, arguments, runtime.path()).await;
            assert_eq!(said.code, Some(0), "{text:?} {arguments:?}: {}", said.err);
        }
        // Every other command finds it in the same way, named by an argument or by the environment.
        for argument in [Some("--config"), None] {
            let mut command = Command::new(TIDEGATE);
            command.arg("limits");
            if let Some(argument) = argument {
                command.arg(argument).arg(&path);
            }
            command
                .env("TIDEGATE_RUNTIME_DIR", runtime.path())
                .env("TIDEGATE_CONFIG", &path);
            let said = run(&mut command).await;
            assert_eq!(said.code, Some(0), "{text:?} {argument:?}: {}", said.err);
            assert!(said.out.contains("outstanding"), "{}", said.out);
        }
    }
    std::fs::remove_file(&path).expect("it is ours");
    let said = healthcheck(&path, &[], runtime.path()).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let wrong = closed_port().to_string();
    let said = healthcheck(&path, &["--admin", &wrong], runtime.path()).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains(&wrong), "{}", said.err);
    // One that runs without an admin address is found out, too.
    let files = std::fs::read_dir(runtime.path()).expect("it is ours");
    let mut files = files.map(|file| file.expect("it is ours").path());
    let file = files.find(|file| file.extension().is_some_and(|it| it == "admin"));
    let file = file.expect("a runtime file");
    let written = std::fs::read_to_string(&file).expect("it is text");
    std::fs::write(&file, "off\n").expect("it is ours");
    let said = healthcheck(&path, &[], runtime.path()).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("admin.bind"), "{}", said.err);
    std::fs::write(&file, written).expect("it is ours");
    // Its records go with it.
    sidecar.signal("TERM");
    assert_eq!(sidecar.ended().await.0.code(), Some(0));
    assert!(!file.exists(), "{file:?}");
}

#[tokio::test]
async fn a_process_whose_only_admin_address_is_a_socket_file_is_found() {
    let backend = Scripted::in_both_dialects().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (path, socket) = (dir.path().join("config.toml"), dir.path().join("admin"));
    let file = format!("socket = \"unix:{}\"", socket.display());
    let text = config(backend.addr, &file);
    let (before, after) = text.split_once("[admin]").expect("it has the section");
    let after = after.replacen("bind = \"127.0.0.1:0\"", "bind = false", 1);
    let text = format!("{before}[admin]{after}");
    std::fs::write(&path, text).expect("it is ours");
    let mut command = Command::new(TIDEGATE);
    command
        .args(["serve", "--config"])
        .arg(&path)
        .env("TIDEGATE_RUNTIME_DIR", dir.path())
        .kill_on_drop(true);
    let _child = command.spawn().expect("it runs");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = healthcheck(&path, &[], dir.path()).await;
        if said.code == Some(0) {
            break;
        }
        assert!(Instant::now() < deadline, "{}", said.err);
    }
    let address = format!("unix:{}", socket.display());
    let said = healthcheck(&path, &["--admin", &address], dir.path()).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
}

#[tokio::test]
async fn an_address_from_the_environment_is_asked_where_nothing_could_be_written_down() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start(&config(backend.addr, "")).await;
    let nowhere = Path::new("/dev/null/nowhere");
    let mut command = Command::new(TIDEGATE);
    command
        .arg("healthcheck")
        .env("TIDEGATE_CONFIG", "/dev/null/config.toml")
        .env("TIDEGATE_RUNTIME_DIR", nowhere)
        .env("TIDEGATE_ADMIN__BIND", sidecar.admin.to_string());
    let said = run(&mut command).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    // The sidecar of one config is not healthy because another one answers.
    command.args(["--config", "/dev/null/outer.toml"]);
    let said = run(&mut command).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    for word in ["/dev/null/outer.toml does not run", "--admin"] {
        assert!(said.err.contains(word), "no {word:?} in {}", said.err);
    }
    let text = config(backend.addr, "");
    let started = Sidecar::start_with(&text, |binary| {
        let mut command = Command::new(binary);
        command.env("TIDEGATE_RUNTIME_DIR", nowhere);
        command
    });
    started
        .await
        .log()
        .wait(&["WARN", "/dev/null/nowhere", "--admin"])
        .await;
}

// Few descriptors.

/// A command that runs the binary with at most N descriptors, which it cannot raise.
fn few_descriptors(limit: u32) -> impl FnOnce(&str) -> Command {
    move |binary| {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!(
                "ulimit -Sn {limit}; ulimit -Hn {limit}; exec \"$0\" \"$@\""
            ))
            .arg(binary);
        command
    }
}

/// A backend that takes a moment for each call.
async fn unhurried() -> Scripted {
    Scripted::start(|_, mut stream| async move {
        use tokio::io::AsyncReadExt as _;
        let mut request = [0; 4096];
        while stream.read(&mut request).await.unwrap_or(0) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            if request.starts_with(b"[") {
                let _ = stream.write_all(OK).await;
                return;
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", OK.len());
            if stream
                .write_all(&[head.as_bytes(), OK].concat())
                .await
                .is_err()
            {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn with_few_descriptors_every_client_waits_and_no_call_fails() {
    for (limit, clients) in [(1024, 2000), (128, 300)] {
        may_open(2 * clients + 1000);
        let backend = unhurried().await;
        let text = config(
            backend.addr,
            "[[listen]]\nname = \"socket\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n",
        );
        let text = text.replace("[limits]\n", "[limits]\nmax_wait = \"20s\"\n");
        let sidecar = Sidecar::start_with(&text, few_descriptors(limit)).await;
        // Nor do clients of the admin address take what calls need.
        let mut silent = Vec::new();
        for _ in 0..60 {
            silent.push(connect(sidecar.admin).await);
        }
        for (listener, request) in [
            ("socket", array("guest_get_info", "X")),
            (
                "test",
                "GET /guests/X/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".to_owned(),
            ),
        ] {
            let addr = sidecar.listener(listener).await;
            let mut calls = Vec::new();
            for _ in 0..clients {
                calls.push(connect(addr).await);
            }
            let mut asked = Vec::new();
            for mut stream in calls {
                let request = request.clone();
                asked.push(tokio::spawn(async move {
                    stream
                        .write_all(request.as_bytes())
                        .await
                        .expect("it reads");
                    read_all(&mut stream).await
                }));
            }
            // An operator gets in, with any number of waiting clients.
            assert_eq!(sidecar.get("/livez").await.0, 200);
            for asked in asked {
                let answer = asked.await.expect("an answer");
                assert!(
                    answer.ends_with(std::str::from_utf8(OK).expect("text")),
                    "{answer}"
                );
            }
        }
        let warned = sidecar
            .log()
            .wait(&["WARN", "server.max_connections"])
            .await;
        assert!(warned.contains(&limit.to_string()), "{warned}");
        let (_, now) = sidecar.get("/v1/now").await;
        assert!(now.contains("server.max_connections"), "{now}");
        let errors = sidecar.metric("tidegate_accept_errors_total").await;
        assert_eq!(errors, 0.0, "an accept found no descriptor");
    }
}

#[tokio::test]
async fn a_lack_of_descriptors_at_a_connect_is_logged_and_counted() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    const COUNT: &str = "tidegate_connect_shortages_total{backend=\"socket\"}";
    let backend = unhurried().await;
    let sidecar = Sidecar::start(&config(backend.addr, "")).await;
    assert_eq!(sidecar.metric(COUNT).await, 0.0);
    let mut client = connect(sidecar.listener("test").await).await;
    let request = array("guest_get_info", "X");
    let (begins, rest) = request.split_at(1);
    client.write_all(begins.as_bytes()).await.expect("it reads");
    // Its connection has its descriptor before there are none left.
    let is_open = "tidegate_connections{listener=\"test\"} 1";
    while !sidecar.get("/metrics").await.1.contains(is_open) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pid = Pid::from_raw(i32::try_from(sidecar.pid).expect("a pid"));
    let allow = |files: Option<u64>, maximum| {
        let limit = Rlimit {
            current: files,
            maximum,
        };
        prlimit(pid, Resource::Nofile, limit).expect("it is our child")
    };
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let before = allow(Some(3), maximum);
    client.write_all(rest.as_bytes()).await.expect("it reads");
    let warned = sidecar
        .log()
        .wait(&["WARN", "no connection to the backend"])
        .await;
    assert!(warned.contains("Too many open files"), "{warned}");
    // The lack lasts 300 ms: the call tries again at most 80 ms later, and logs that at most every 10 s.
    tokio::time::sleep(Duration::from_millis(300)).await;
    allow(before.current, before.maximum);
    assert_eq!(json(&read_all(&mut client).await)["overallRC"], 0);
    assert!(sidecar.metric(COUNT).await >= 3.0);
    let warnings = sidecar.log().lines();
    let warnings = warnings
        .iter()
        .filter(|line| line.contains("no connection to the backend"));
    assert_eq!(warnings.count(), 1);
}

/// Lets this test have N descriptors.
fn may_open(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|soft| soft < files) {
        let raised = Rlimit {
            current: Some(now.maximum.map_or(files, |hard| hard.min(files))),
            maximum: now.maximum,
        };
        setrlimit(Resource::Nofile, raised).expect("the hard limit allows it");
    }
}

#[tokio::test]
async fn check_says_which_connections_the_descriptors_do_not_allow() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, config(closed_port(), "")).expect("it can be written to");
    let check = async |limit| {
        let mut command = few_descriptors(limit)(TIDEGATE);
        let said = run(command.args(["check", "--config"]).arg(&path)).await;
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.err
    };
    let said = check(1024).await;
    for words in ["server.max_connections", "1024", "LimitNOFILE", "ulimit -n"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    let text = std::fs::read_to_string(&path).expect("it is there");
    std::fs::write(&path, format!("[server]\nmax_connections = 100\n{text}")).expect("written");
    assert!(!check(1024).await.contains("max_connections"));
}

#[tokio::test]
async fn a_soft_limit_is_raised_to_the_hard_one() {
    let backend = Scripted::in_both_dialects().await;
    let sidecar = Sidecar::start_with(&config(backend.addr, ""), |binary| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn 128; exec \"$0\" \"$@\"", binary]);
        command
    })
    .await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", sidecar.pid));
    let limits = limits.expect("it is Linux");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = line.expect("a limit").split_whitespace().collect();
    assert_eq!(words[3], words[4], "{words:?}");
}

// What a panic would break.

/// Set in the environment of a test that runs again as a child process, which is to die.
const CHILD: &str = "TIDEGATE_TEST_CHILD";

/// Whether this process is to die.
fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test of this binary as a child process, and asserts that it aborts with a message.
fn aborts(test: &str, message: &str) {
    use std::os::unix::process::ExitStatusExt as _;
    let output = std::process::Command::new(std::env::current_exe().expect("a test binary"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "yes")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(6), "{} {said}", output.status);
    assert!(said.contains(message), "{said}");
}

/// A gate that lets one call through, and refuses others after 50 ms.
fn gate_for_one() -> (Gate, Clock) {
    let text = config(([127, 0, 0, 1], 1).into(), "");
    let text = text.replace("[limits]\n", "[limits]\noutstanding = 1\n");
    let mut settings = crate::support::config(&text).admit;
    settings.max_wait = Duration::from_millis(50);
    let clock = Clock::start();
    (Gate::new(&settings, clock), clock)
}

fn ask_of(clock: Clock) -> (Ask, Arc<Record>) {
    let seen = Seen::new(
        Callers::start(&tidegate::callers::CallersSettings::default(), None)
            .expect("there is no room")
            .value,
        clock,
    );
    let origin = Origin {
        identity: identity("test", ([127, 0, 0, 1], 50_000)),
        arrived: clock.now(),
    };
    let function: Arc<str> = "guest_get_info".into();
    let ask = asking(&function, Destination::Socket, clock.now());
    let class = Arc::clone(&ask.class);
    let record = Record::open(
        origin,
        tidegate::call::Dialect::Socket,
        function,
        class,
        None,
        Arc::new(seen),
    );
    (ask, record)
}

/// A task that panics when it is woken, which is under the lock of the queue.
struct PanicsWhenWoken;

impl std::task::Wake for PanicsWhenWoken {
    fn wake(self: Arc<Self>) {
        panic!("a bug");
    }
}

/// Lets one call through, and another wait as a task that panics when it is woken.
fn one_waits<'a>(
    gate: &'a Gate,
    records: &'a [(Ask, Arc<Record>); 2],
) -> (
    tidegate::admit::Permit,
    Pin<Box<dyn Future<Output = ()> + 'a>>,
) {
    let [(first, first_record), (second, second_record)] = records;
    let Admission::Decided(Ok(permit)) = gate.ask(first.clone(), first_record) else {
        panic!("nothing is in its way");
    };
    let second = gate.ask(second.clone(), second_record);
    let mut waiting: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
        drop(admitted(second).await);
    });
    let waker = Arc::new(PanicsWhenWoken).into();
    let polled = waiting.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    (permit, waiting)
}

#[test]
fn a_panic_while_the_queue_is_changed_aborts_the_process() {
    if !is_child() {
        return aborts(
            "process::a_panic_while_the_queue_is_changed_aborts_the_process",
            "a task panicked while it changed the queue",
        );
    }
    let (gate, clock) = gate_for_one();
    let records = [ask_of(clock), ask_of(clock)];
    let (permit, waiting) = one_waits(&gate, &records);
    // Its turn comes with the end of the first, and waking it panics.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(permit)));
    assert!(panicked.is_err());
    std::mem::forget(waiting);
    // Whether the limits still hold is not known: no other call is let through.
    let _ = gate.busy();
    println!("it goes on");
}

#[test]
fn the_end_of_the_timer_aborts_the_process() {
    if !is_child() {
        return aborts(
            "process::the_end_of_the_timer_aborts_the_process",
            "the timer of the queue has ended",
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (gate, clock) = gate_for_one();
        let records = [ask_of(clock), ask_of(clock)];
        let (permit, waiting) = one_waits(&gate, &records);
        // Its deadline comes, and waking it panics in the timer.
        let timer = gate.clone();
        let timed = tokio::spawn(async move { timer.keep_time().await });
        let _ = tokio::time::timeout(PATIENCE, timed).await;
        std::mem::forget((permit, waiting));
    });
    println!("it goes on");
}
