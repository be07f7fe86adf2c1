//! `tidegate top` before a real sidecar, in a storm.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::terminal::Terminal;
use super::{LARGE, SMALL, TALL};
use crate::sidecar::{Said, Sidecar, run, with_programs};
use crate::storm::{clients, slow_backend};
use crate::support::{PATIENCE, Scripted, both, closed_port, json as parsed, listens};

/// A sidecar whose backend takes 300 ms for a call, with more clients than its limits admit.
struct Storm {
    sidecar: Sidecar,
    text: String,
    _backend: Scripted,
    clients: JoinSet<()>,
}

impl Storm {
    async fn start() -> Self {
        let backend = slow_backend().await;
        let sections = format!(
            r#"
            [queue]
            postpone = "in_turn"
            [limits]
            per_window = "total:5,guest_list:2"
            [admin]
            bind = "{}"
            "#,
            closed_port()
        );
        let text = listens("", &both(backend.addr, backend.addr), &sections);
        let sidecar = Sidecar::start(&text).await;
        let mut storm = Self {
            sidecar,
            text,
            _backend: backend,
            clients: JoinSet::new(),
        };
        storm.call().await;
        storm
    }

    async fn call(&mut self) {
        let addr = self.sidecar.listener("test").await;
        self.clients = clients(addr);
        let is_busy = |now: &Value| {
            let waiting = now["queue"]["waiting"].as_u64();
            waiting >= Some(9) && now["oldest_calls"][9].is_object()
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_busy(&parsed(&self.sidecar.get("/v1/now").await.1)) {
            assert!(Instant::now() < deadline, "the storm does not begin");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn command(admin: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(with_programs());
    command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
    command.env("TIDEGATE_ADMIN", admin.to_string());
    command.env("LC_ALL", "C.UTF-8").env_remove("TERM");
    command
}

async fn tidegate(admin: SocketAddr, arguments: &[&str]) -> Said {
    run(&mut command(admin, arguments)).await
}

/// The screen at its size, in a terminal.
async fn once(admin: SocketAddr, size: (u16, u16)) -> String {
    let terminal = Terminal::open(size);
    let mut top = std::process::Command::new(with_programs());
    top.args(["top", "--once", "--admin", &admin.to_string()]);
    top.env_remove("TIDEGATE_TOKEN_FILE");
    let mut child = terminal.run(top);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(status.success(), "{}", terminal.written());
            break;
        }
        assert!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Its last line has come when a whole screen has: the end of the events.
    loop {
        let screen = terminal.written().replace('\r', "");
        if screen.ends_with('\n') {
            return screen;
        }
        assert!(Instant::now() < deadline, "{screen}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[track_caller]
fn check_fits(screen: &str, (width, height): (u16, u16)) {
    assert!(
        screen.lines().count() <= usize::from(height),
        "more than {height} lines:\n{screen}"
    );
    for line in screen.lines() {
        let wide = line.chars().count();
        assert!(wide <= usize::from(width), "{wide}: {line}\n{screen}");
    }
}

/// The line of a table that begins with this name, in its words.
#[track_caller]
fn row<'a>(screen: &'a str, name: &str) -> Vec<&'a str> {
    let mut lines = screen.lines().map(|line| line.split_whitespace());
    let row = lines.find(|line| line.clone().next() == Some(name));
    row.unwrap_or_else(|| panic!("no row {name} in\n{screen}"))
        .collect()
}

#[tokio::test]
async fn a_storm_is_shown_at_both_sizes_with_its_pause_and_its_lower_limit() {
    let storm = Storm::start().await;
    let admin = storm.sidecar.admin;
    let (small, large) = (once(admin, SMALL).await, once(admin, LARGE).await);
    println!("{small}\n{large}");
    for (screen, size) in [(&small, SMALL), (&large, LARGE)] {
        check_fits(screen, size);
        assert!(screen.contains(" waiting, oldest "), "{screen}");
        assert!(screen.contains(" in flight │ "), "{screen}");
        assert!(screen.contains("no reload yet"), "{screen}");
        assert!(screen.contains('█'), "no bar of the queue in\n{screen}");
        assert_eq!(row(screen, "total")[1], "window");
        assert_eq!(row(screen, "total")[3], "5", "{screen}");
        let listed = row(screen, "guest_list");
        let waiting: u64 = listed[2].parse().expect("a number");
        assert!(waiting > 0, "{screen}");
        assert!(!screen.contains("PAUSED"), "{screen}");
    }
    let now = parsed(&storm.sidecar.get("/v1/now").await.1);
    let id = now["oldest_calls"][0]["id"].as_str().expect("an id");
    assert_eq!(id.len(), 16);
    // A call's whole id is there, to be copied for `explain`.
    let is_id = |word: &str| word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let ids = large.split_whitespace().filter(|word| is_id(word)).count();
    assert!(ids > 0, "{large}");

    let printed = tidegate(admin, &["top", "--json"]).await;
    let printed = parsed(&printed.out);
    assert_eq!(printed["pause"], Value::Null);
    assert!(printed["queue"]["waiting"].as_u64() > Some(0), "{printed}");

    let said = tidegate(admin, &["lower", "guest_list", "1", "--for", "30m"]).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    for (limit, is_lower) in [("function:guest_list", 1.0), ("total", 0.0)] {
        let name = format!("tidegate_limit_overridden{{limit=\"{limit}\"}}");
        assert_eq!(storm.sidecar.metric(&name).await, is_lower, "{limit}");
    }
    assert_eq!(storm.sidecar.metric("tidegate_ready").await, 1.0);
    let said = tidegate(admin, &["pause", "--hold", "300s"]).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    for size in [SMALL, LARGE] {
        let screen = once(admin, size).await;
        println!("{screen}");
        check_fits(&screen, size);
        let paused = screen.find("\nPAUSED since").map(|at| &screen[at + 1..]);
        let paused = paused.unwrap_or_else(|| panic!("no pause in\n{screen}"));
        assert!(paused.contains(", ends in 4 min 5"), "{paused}");
        let by = ", by 127.0.0.1, without a token\n";
        assert!(paused.replace('\n', " ").contains(by.trim()), "{paused}");
        let lowered = "\nLOWERED: function:guest_list to 1 for 29 min 5";
        assert!(screen.contains(lowered), "{screen}");
        let name = row(&screen, "function:guest_list");
        assert_eq!(name[3], "1", "{screen}");
    }
    let large = once(admin, TALL).await;
    check_fits(&large, TALL);
    assert!(
        large.contains("Use of total, last 10 minutes (now 5 of 5)"),
        "{large}"
    );
    assert!(large.contains("UTC, pause "), "{large}");
    assert!(large.contains("limit function:guest_list is 1"), "{large}");
    assert!(large.contains("for 29 min 5"), "{large}");
    let said = tidegate(admin, &["resume", "--ramp", "60s", "--why", "it is back"]).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let screen = once(admin, SMALL).await;
    assert!(screen.contains("RAMP: limits at 1"), "{screen}");
    assert!(screen.contains(": it is back (by 127.0.0.1"), "{screen}");
}

/// Asks for a stream: the status, and the connection that holds its place.
async fn view(admin: SocketAddr) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(admin).await.expect("it listens");
    let request = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).await.expect("it reads");
    let mut head = [0; "HTTP/1.1 200".len()];
    stream.read_exact(&mut head).await.expect("a head");
    let status = str::from_utf8(&head[9..]).expect("ASCII");
    (status.parse().expect("a number"), stream)
}

#[tokio::test]
async fn one_stream_is_followed_or_questions_are_asked_while_others_have_all_streams() {
    let storm = Storm::start().await;
    let admin = storm.sidecar.admin;
    let top = |terminal: &Terminal| {
        let mut top = std::process::Command::new(with_programs());
        top.args(["top", "--admin", &admin.to_string()]);
        top.env_remove("TIDEGATE_TOKEN_FILE");
        terminal.run(top)
    };
    let (first, second) = (Terminal::open(SMALL), Terminal::open(SMALL));
    let mut followed = top(&first);
    until_seen(&first, " waiting, oldest ", true).await;
    let said = tidegate(admin, &["pause", "--hold", "60s", "--why", "re-IPL"]).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    until_seen(&first, ": re-IPL (by ", true).await;
    // The stream brings marks.
    let is_marked = |line: &str| {
        let others = line.chars().filter(|it| !matches!(it, 'P' | 'S'));
        line.contains('P') && others.into_iter().all(|it| !it.is_alphanumeric())
    };
    let has_mark = |terminal: &Terminal| terminal.seen().lines().any(is_marked);
    let deadline = Instant::now() + PATIENCE;
    while !has_mark(&first) {
        assert!(Instant::now() < deadline, "{}", first.seen());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It has one of the eight places.
    let mut viewers = Vec::new();
    for nth in 0..8 {
        let (status, viewer) = view(admin).await;
        assert_eq!(status, if nth < 7 { 200 } else { 503 }, "viewer {nth}");
        viewers.push(viewer);
    }
    let mut asked = top(&second);
    until_seen(&second, ": re-IPL (by ", true).await;
    let said = tidegate(admin, &["resume", "--ramp", "0s"]).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    for terminal in [&first, &second] {
        until_seen(terminal, "PAUSED since", false).await;
        assert!(!terminal.seen().contains("NO ANSWER"));
    }
    for child in [&mut followed, &mut asked] {
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
    }
}

/// Waits until a text is seen, or no longer.
async fn until_seen(terminal: &Terminal, what: &str, is_there: bool) {
    let deadline = Instant::now() + PATIENCE;
    while terminal.seen().contains(what) != is_there {
        let seen = terminal.seen();
        assert!(
            Instant::now() < deadline,
            "{what:?} is not {is_there} in\n{seen}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_sidecar_that_ends_and_comes_back_is_followed_again() {
    let mut storm = Storm::start().await;
    let mut terminal = Terminal::open(LARGE);
    let mut top = std::process::Command::new(with_programs());
    top.args(["top", "--admin", &storm.sidecar.admin.to_string()]);
    top.env_remove("TIDEGATE_TOKEN_FILE");
    let mut child = terminal.run(top);
    until_seen(&terminal, " waiting, oldest ", true).await;
    let body = json!({"hold_seconds": 60, "why": "re-IPL"});
    let path = "/v1/backend/pause";
    let (status, said) = storm.sidecar.ask("POST", path, &body.to_string()).await;
    assert_eq!(status, 200, "{said}");
    until_seen(&terminal, "PAUSED since", true).await;

    storm.clients.shutdown().await;
    storm.sidecar.signal("KILL");
    let text = storm.text.clone();
    until_seen(&terminal, "NO ANSWER since", true).await;
    until_seen(&terminal, "PAUSED since", true).await;
    // The port is the same. The pause was not kept: no state file.
    storm.sidecar = Sidecar::start(&text).await;
    storm.call().await;
    until_seen(&terminal, "NO ANSWER since", false).await;
    until_seen(&terminal, "PAUSED since", false).await;
    until_seen(&terminal, " waiting, oldest ", true).await;
    terminal.type_in("q");
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(status.code(), Some(0));
    terminal.check_given_back();
}
