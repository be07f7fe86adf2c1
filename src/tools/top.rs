//! `tidegate top`: what waits, why and until when, on a screen that follows the sidecar.
//!
//! A thread asks once a second. Another reads keys, and a third waits for signals. All of them send
//! events to the thread that draws, so nothing is drawn while nothing happens.

mod draw;
mod look;
mod model;
mod panes;
mod terminal;

use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ratatui::layout::Rect;
use serde_json::Value;

pub use self::draw::{draw, plain};
pub use self::look::Look;
pub use self::model::{Answers, History, Key, Model, Trouble};
pub use self::terminal::Screen;
use self::terminal::{read_keys, read_signals};
use super::client::{Admin, ClientError, Target, print};
use super::failed;

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// Events that wait to be drawn. A thread with one more waits.
const EVENTS_MAX: usize = 64;
/// The size of `--once` where stdout is no terminal: every pane has room.   columns, rows
const PRINTED: (u16, u16) = (120, 40);

/// `tidegate top`
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    /// The sidecar to ask.
    pub admin: Admin,
    /// Print one screen as plain text, and exit
    #[arg(long, conflicts_with = "json")]
    pub once: bool,
    /// Draw with ASCII alone. Without it, TERM and the locale decide
    #[arg(long)]
    pub ascii: bool,
}

/// What the screen reacts to.
enum Event {
    Answer(Box<Result<Value, String>>),
    Key(Key),
    Resized,
    /// Exit with this code.
    Stop(u8),
}

/// Runs the command: exit code 0, or 1 if there is no answer at the start.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let target = match arguments.admin.target() {
        Ok(target) => target,
        Err(error) => return failed(error),
    };
    if arguments.admin.json {
        let answer = target.get("/v1/now").map_err(explained);
        return print(&arguments.admin, answer, Value::to_string);
    }
    let look = Look::of_the_terminal(arguments.ascii);
    let mut model = Model::new(target.address.to_string(), look);
    model.clock_unix_ms = unix_ms();
    // A wrong address or token is reported before the terminal becomes a screen.
    match target.get("/v1/now") {
        Ok(now) => {
            if let Ok(series) = target.get("/v1/series?span=10m") {
                model.load(&series);
            }
            model.take(Ok(now));
        }
        Err(error) => return failed(explained(error)),
    }
    if arguments.once {
        model.printed = true;
        let (width, height) = size();
        let text = plain(&draw(&model, Rect::new(0, 0, width, height)));
        // The reader may have closed the pipe.
        let _ = stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return failed("`tidegate top` needs a terminal; use --once or --json without one");
    }
    match follow(target, &mut model) {
        Ok(code) => ExitCode::from(code),
        Err(error) => failed(format!("cannot use the terminal: {error}")),
    }
}

/// A sidecar from before `/v1/now` is named as such.
fn explained(error: ClientError) -> ClientError {
    match error {
        ClientError::Refused {
            address,
            status: 404,
            ..
        } => ClientError::Refused {
            address,
            status: 404,
            message: "this sidecar is older than `tidegate top` and has no /v1/now; update it, or \
                      use `tidegate limits` and `tidegate callers`"
                .to_owned(),
        },
        error => error,
    }
}

/// The size of the terminal; of a screen that shows everything without one.
fn size() -> (u16, u16) {
    let size = stdout().is_terminal().then(crossterm::terminal::size);
    let (width, height) = size.and_then(Result::ok).unwrap_or(PRINTED);
    (width.max(draw::LEAST.0), height.max(draw::LEAST.1))
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Shows the sidecar until the user or a signal quits.
fn follow(target: Target, model: &mut Model) -> std::io::Result<u8> {
    let (sender, events) = mpsc::sync_channel(EVENTS_MAX);
    read_signals(sender.clone())?;
    let mut screen = Screen::open()?;
    read_keys(sender.clone());
    ask_again(target, sender);
    screen.show(model)?;
    loop {
        // One frame for all that has happened.
        let Some(first) = next(&events) else {
            return Ok(1);
        };
        model.clock_unix_ms = unix_ms();
        for event in [first]
            .into_iter()
            .chain(events.try_iter().take(EVENTS_MAX))
        {
            match event {
                Event::Answer(answer) => model.take(*answer),
                Event::Key(key) if !model.press(key) => return Ok(0),
                Event::Stop(code) => return Ok(code),
                Event::Key(_) | Event::Resized => {}
            }
        }
        screen.show(model)?;
    }
}

/// The next event; after a second without one, the time has changed.
fn next(events: &Receiver<Event>) -> Option<Event> {
    match events.recv_timeout(EVERY) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => Some(Event::Resized),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// Asks once a second, also while there is no answer.
fn ask_again(target: Target, events: SyncSender<Event>) {
    thread::spawn(move || {
        let mut due = Instant::now() + EVERY;
        loop {
            while let Some(left) = due.checked_duration_since(Instant::now()) {
                thread::park_timeout(left);
            }
            let answer = target.get("/v1/now");
            let answer = answer.map_err(|error| explained(error).to_string());
            if events.send(Event::Answer(Box::new(answer))).is_err() {
                return;
            }
            due = (due + EVERY).max(Instant::now());
        }
    });
}
