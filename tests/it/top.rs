//! `tidegate top`: its screens as text, and that the terminal is given back in every case.
//!
//! `TOP_SCREENS=1` writes the files in tests/it/top again.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::layout::Rect;
use ratatui::style::Color;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tidegate::tools::top::{Key, Look, Model, Screen, draw, plain};

use crate::sidecar::TIDEGATE;

const NOW: &str = include_str!("top/now.json");
const UNICODE: Look = Look {
    ascii: false,
    colours: true,
};
const ASCII: Look = Look {
    ascii: true,
    colours: false,
};
const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (120, 40);
const WIDE: (u16, u16) = (180, 40);
/// The bound of everything that a test waits for.
const BOUND: Duration = Duration::from_secs(20);

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
    json!({"step_seconds": 1, "start_unix_ms": 1_763_999_400_000_u64, "points": 600,
        "series": {"waiting": waiting}})
}

fn model(look: Look) -> Model {
    let mut model = Model::new("gate.example:9180".to_owned(), look);
    model.clock_unix_ms = 1_764_000_000_000;
    model.load(&series());
    model.take(Ok(now()));
    model
}

#[track_caller]
fn check(name: &str, model: &Model, (width, height): (u16, u16)) {
    let text = plain(&draw(model, Rect::new(0, 0, width, height)));
    let path = format!("{}/tests/it/top/{name}.txt", env!("CARGO_MANIFEST_DIR"));
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
    check("wide", &model(UNICODE), WIDE);
}

#[test]
fn each_pane_is_shown_on_a_small_screen() {
    let mut model = model(ASCII);
    for name in ["callers", "calls", "backends", "events", "limits"] {
        assert!(model.press(Key::Next));
        check(&format!("small_{name}"), &model, SMALL);
    }
    assert!(model.press(Key::Letter('?')));
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
        let plain_look = Look {
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
                let body = match head.starts_with("GET /v1/now ") {
                    true => NOW.to_owned(),
                    false => series().to_string(),
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

/// A pseudo terminal, and what was written to it.
struct Terminal {
    controller: File,
    user: OwnedFd,
    written: Arc<Mutex<String>>,
}

impl Terminal {
    fn open() -> Self {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).expect("it is granted");
        unlockpt(&controller).expect("it is unlocked");
        let name = ptsname(&controller, Vec::new()).expect("it has a name");
        let name = Path::new(name.to_str().expect("UTF-8"));
        let user: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name)
            .expect("it opens")
            .into();
        let size = Winsize {
            ws_row: SMALL.1,
            ws_col: SMALL.0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&user, size).expect("it has a size");
        let controller = File::from(controller);
        let written = Arc::new(Mutex::new(String::new()));
        let mut reader = controller.try_clone().expect("a second descriptor");
        let into = Arc::clone(&written);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..read]);
                into.lock().expect("no panic").push_str(&text);
            }
        });
        Self {
            controller,
            user,
            written,
        }
    }

    fn run(&self, mut command: Command) -> Child {
        let end = || self.user.try_clone().expect("a descriptor");
        command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        command.stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("it runs")
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.user).expect("its modes").local_modes;
        !modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn written(&self) -> String {
        self.written.lock().expect("no panic").clone()
    }

    /// What the user sees: the text where the cursor was moved to. A program on a screen writes
    /// only what changes.
    fn seen(&self) -> String {
        let (columns, rows) = (usize::from(SMALL.0), usize::from(SMALL.1));
        let mut cells = vec![vec![' '; columns]; rows];
        let (mut row, mut column) = (0, 0);
        let written = self.written();
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            if c == '\u{1b}' {
                let mut text = String::new();
                for c in rest.by_ref() {
                    text.push(c);
                    if c.is_ascii_alphabetic() {
                        break;
                    }
                }
                if let Some(place) = text.strip_prefix('[').and_then(|it| it.strip_suffix('H')) {
                    let (y, x) = place.split_once(';').unwrap_or(("1", "1"));
                    row = y.parse::<usize>().map_or(0, |y| y - 1);
                    column = x.parse::<usize>().map_or(0, |x| x - 1);
                }
                continue;
            }
            if row < rows && column < columns && !c.is_control() {
                cells[row][column] = c;
                column += 1;
            }
        }
        let lines = cells.into_iter().map(String::from_iter);
        lines.collect::<Vec<String>>().join("\n")
    }

    /// Waits until a text is seen, or no longer.
    #[track_caller]
    fn wait_seen(&self, what: &str, is_there: bool) {
        until(what, || {
            (self.seen().contains(what) == is_there).then_some(())
        });
    }

    #[track_caller]
    fn wait(&self, what: &str) {
        until(what, || self.written().contains(what).then_some(()));
    }

    fn type_in(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).expect("written");
    }

    /// It is no screen any more, its cursor is shown, and it echoes.
    #[track_caller]
    fn check_given_back(&self) {
        self.wait("\u{1b}[?1049l");
        let written = self.written();
        let left = written.rfind("\u{1b}[?1049l").expect("it was left");
        assert!(written[left..].contains("\u{1b}[?25h"), "{written:?}");
        assert!(!self.is_raw());
    }
}

/// Polls for a condition, within a bound.
#[track_caller]
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < BOUND, "not within the bound: {what:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    until("the process ends", || child.try_wait().expect("a child"))
}

fn top(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.args(["top", "--admin", &address.to_string()]);
    command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
    command
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let served = Served::start("200 OK");
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let terminal = Terminal::open();
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
    let mut terminal = Terminal::open();
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

/// What [`a_panic_gives_the_terminal_back`] runs in a process and a terminal of its own.
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
    let terminal = Terminal::open();
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
