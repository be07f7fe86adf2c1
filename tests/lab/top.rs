//! `tidegate top`: its screens as text, and that the terminal is given back in every case.
//!
//! `TOP_SCREENS=1` writes the files in tests/lab/top again.

mod process;
pub(crate) mod terminal;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ratatui::layout::Rect;
use ratatui::style::Color;
use serde_json::{Value, json};
use tidegate_lab::top::{Model, PressedKey, Screen, ScreenLook, draw, plain};

use self::terminal::{Terminal, ended};
use crate::sidecar::with_programs;

const NOW: &str = include_str!("top/now.json");
const UNICODE: ScreenLook = ScreenLook {
    ascii: false,
    colours: true,
};
const ASCII: ScreenLook = ScreenLook {
    ascii: true,
    colours: false,
};
const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);
const TALL: (u16, u16) = (120, 50);
const WIDE: (u16, u16) = (180, 40);

fn now() -> Value {
    serde_json::from_str(NOW).expect("JSON")
}

/// Ten minutes: a storm, and a minute without the process.
fn series() -> Value {
    let waiting = |at: u64| match at {
        0..60 => Value::Null,
        200..400 => (at - 200).min(400 - at).into(),
        _ => (at % 3).into(),
    };
    let waiting: Vec<Value> = (0..600).map(waiting).collect();
    let used = |at: u64| match at {
        0..60 => Value::Null,
        180..420 => 30.into(),
        _ => (at % 12).into(),
    };
    let used: Vec<Value> = (0..600).map(used).collect();
    // It is lower for a while.
    let allowed = |at: u64| match at {
        0..60 => Value::Null,
        420..500 => 15.into(),
        _ => 30.into(),
    };
    let allowed: Vec<Value> = (0..600).map(allowed).collect();
    let mark = |second: u64, kind: &str, text: &str| {
        let at = 1_763_999_400_000_u64 + second * 1000;
        json!({"at_unix_ms": at, "kind": kind, "text": text})
    };
    let marks = [
        mark(60, "start", "tidegate 0.1.0 started"),
        mark(100, "reload", "a config was taken"),
        mark(130, "reload_refused", "a config was refused"),
        mark(200, "backend_down", "the http backend is down"),
        mark(280, "backend_up", "the http backend is up"),
        mark(420, "limit", "limit total is at most 15, by ops: slow"),
        mark(530, "pause", "paused by ops: \u{1b}[2J"),
        mark(560, "resume", "resumed by ops"),
    ];
    json!({"step_seconds": 1, "start_unix_ms": 1_763_999_400_000_u64, "points": 600,
        "series": {"waiting": waiting}, "marks": marks,
        "limits": [{"name": "total", "kind": "window", "used": used, "allowed": allowed}]})
}

fn model(look: ScreenLook) -> Model {
    let mut model = Model::new("gate.example:9180".to_owned(), look);
    model.clock_unix_ms = 1_764_000_000_000;
    model.load(&series());
    model.take(Ok(now()));
    model
}

#[track_caller]
fn check(name: &str, model: &Model, (width, height): (u16, u16)) {
    let text = plain(&draw(model, Rect::new(0, 0, width, height)));
    let path = format!("{}/tests/lab/top/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TOP_SCREENS").is_some() {
        fs::write(&path, &text).expect("the file can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{path} is old: run with TOP_SCREENS=1");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= usize::from(height), "{text}");
    for line in lines {
        assert!(line.chars().count() <= usize::from(width), "{line}");
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(!model.look.ascii || line.is_ascii(), "{line}");
    }
}

#[test]
fn a_screen_shows_what_waits_and_why() {
    check("small", &model(UNICODE), SMALL);
    check("small_ascii", &model(ASCII), SMALL);
    check("large", &model(UNICODE), LARGE);
    check("large_ascii", &model(ASCII), LARGE);
    check("tall", &model(UNICODE), TALL);
    check("wide", &model(UNICODE), WIDE);
}

#[test]
fn each_pane_is_shown_on_a_small_screen() {
    let mut model = model(ASCII);
    for name in ["callers", "calls", "backends", "events", "limits"] {
        assert!(model.press(PressedKey::Next));
        check(&format!("small_{name}"), &model, SMALL);
    }
    assert!(model.press(PressedKey::Letter('c')));
    check("small_limit", &model, SMALL);
    assert!(model.press(PressedKey::Letter('?')));
    check("small_help", &model, SMALL);
}

#[test]
fn a_screen_without_an_answer_says_since_when() {
    let mut lost = model(ASCII);
    lost.take(Err(
        "no answer from gate.example:9180: tried 10.0.0.1:9180: Connection refused".into(),
    ));
    lost.clock_unix_ms += 75_000;
    check("small_lost", &lost, SMALL);
    let mut idle = Model::new("gate.example:9180".to_owned(), ASCII);
    idle.take(Ok(
        json!({"at_unix_ms": 1_764_000_000_000_u64, "version": "0.1.0",
        "sentence": "nothing waits", "queue": {"waiting": 0, "capacity": 10000, "in_flight": 0}}),
    ));
    check("small_idle", &idle, SMALL);
}

#[test]
fn without_colours_no_cell_has_one_and_the_text_is_the_same() {
    for (width, height) in [SMALL, LARGE] {
        let area = Rect::new(0, 0, width, height);
        let coloured = draw(&model(UNICODE), area);
        let plain_look = ScreenLook {
            colours: false,
            ..UNICODE
        };
        let without = draw(&model(plain_look), area);
        assert_eq!(plain(&coloured), plain(&without));
        let is_plain = |colour: Color| colour == Color::Reset;
        assert!(
            without
                .content
                .iter()
                .all(|it| is_plain(it.fg) && is_plain(it.bg))
        );
        assert!(coloured.content.iter().any(|it| !is_plain(it.fg)));
    }
}

#[test]
fn any_size_and_any_answer_can_be_drawn() {
    for answer in [
        now(),
        Value::Null,
        json!({"limits": 7, "pause": {}, "reload": []}),
    ] {
        let mut model = Model::new("gate.example:9180".to_owned(), UNICODE);
        model.take(Ok(answer));
        for width in [0, 1, 79, 80, 109, 110, 300] {
            for height in [0, 1, 23, 24, 35, 36, 100] {
                let area = Rect::new(0, 0, width, height);
                assert_eq!(draw(&model, area).area, area);
            }
        }
    }
}

/// An admin address that answers what `/v1/now` answers, until it is dropped.
struct Served {
    address: SocketAddr,
    answers: Arc<AtomicBool>,
}

impl Served {
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let answers = Arc::new(AtomicBool::new(true));
        let is_up = Arc::clone(&answers);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                if !is_up.load(Ordering::SeqCst) {
                    continue;
                }
                let mut head = [0; 4096];
                let read = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]);
                // A sidecar from before the stream.
                let (status, body) = match head.split(' ').nth(1) {
                    Some("/v1/now") => (status, NOW.to_owned()),
                    Some("/v1/stream") => ("404 Not Found", "{}".to_owned()),
                    _ => (status, series().to_string()),
                };
                let length = body.len();
                // The client may have left.
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\
                     Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
            }
        });
        Self { address, answers }
    }
}

fn top(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(with_programs());
    command.args(["top", "--admin", &address.to_string()]);
    command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
    command
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let served = Served::start("200 OK");
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let terminal = Terminal::open(SMALL);
        let mut child = terminal.run(top(served.address, &[]));
        terminal.wait_seen("12 waiting, oldest 4.1 s", true);
        assert!(terminal.is_raw());
        let kill = Command::new("kill")
            .args([&format!("-{name}"), &child.id().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
        assert_eq!(ended(&mut child).code(), Some(code), "{name}");
        terminal.check_given_back();
    }
}

#[test]
fn a_lost_connection_is_shown_and_comes_back() {
    let served = Served::start("200 OK");
    let mut terminal = Terminal::open(SMALL);
    let mut child = terminal.run(top(served.address, &["--ascii"]));
    terminal.wait_seen("12 waiting, oldest 4.1 s", true);
    served.answers.store(false, Ordering::SeqCst);
    terminal.wait_seen("NO ANSWER since", true);
    served.answers.store(true, Ordering::SeqCst);
    terminal.wait_seen("NO ANSWER since", false);
    terminal.type_in("?");
    terminal.wait_seen("freeze the screen", true);
    terminal.type_in("xq");
    assert_eq!(ended(&mut child).code(), Some(0));
    terminal.check_given_back();
}

/// The program that [`a_panic_gives_the_terminal_back`] runs in a process and a terminal of its own.
#[test]
#[ignore = "it takes the terminal and panics"]
fn a_screen_that_panics() {
    let mut screen = Screen::open().expect("a terminal");
    screen.show(&model(ASCII)).expect("it is shown");
    // A thread other than the one that draws.
    let panicking = thread::spawn(|| panic!("the bug of a test"));
    panicking.join().expect("the process has ended before");
}

#[test]
fn a_panic_gives_the_terminal_back() {
    let own = std::env::current_exe().expect("this program");
    let mut tests = Command::new(own);
    tests.args(["--ignored", "--exact", "--nocapture", "--test-threads=1"]);
    tests.arg("top::a_screen_that_panics");
    let terminal = Terminal::open(SMALL);
    let status = ended(&mut terminal.run(tests));
    assert_eq!(status.code(), Some(101));
    terminal.wait("the bug of a test");
    terminal.check_given_back();
    let written = terminal.written();
    let left = written.rfind("\u{1b}[?1049l").expect("it was left");
    let told = written.find("the bug of a test").expect("it is reported");
    assert!(
        left < told,
        "reported on the screen that is gone: {written:?}"
    );
}

#[test]
fn one_screen_or_the_answer_is_printed_without_a_terminal() {
    let served = Served::start("200 OK");
    let said = |arguments: &[&str]| {
        let mut command = top(served.address, arguments);
        command.env("LC_ALL", "C.UTF-8").env_remove("TERM");
        let output = command.output().expect("it runs");
        let err = String::from_utf8(output.stderr).expect("UTF-8");
        let out = String::from_utf8(output.stdout).expect("UTF-8");
        (output.status.code(), out, err)
    };
    let (code, out, err) = said(&["--once"]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(out.contains("because `total` is used up"), "{out}");
    assert!(out.contains("guest_start") && out.contains('█'), "{out}");
    assert!(!out.contains('\u{1b}') && !out.contains("q quit"), "{out}");
    let (code, out, _) = said(&["--once", "--ascii"]);
    assert!(code == Some(0) && out.is_ascii(), "{out}");
    let (code, out, _) = said(&["--json"]);
    assert_eq!(code, Some(0));
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), now());
    let (code, _, err) = said(&[]);
    assert_eq!(code, Some(1));
    assert!(err.contains("--once"), "{err}");
}

#[test]
fn a_sidecar_without_the_path_is_reported_as_older() {
    let served = Served::start("404 Not Found");
    let output = top(served.address, &["--once"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(err.contains("older than `tidegate top`"), "{err}");
}
