//! `tidegate top`: what waits, why and until when, on a screen that follows the sidecar.
//!
//! A thread follows the sidecar. Another reads keys, and a third waits for signals. All of them send
//! events to the thread that draws, so nothing is drawn while nothing happens.

mod draw;
mod follow;
mod history;
mod look;
mod model;
mod panes;
mod terminal;

use std::io::{IsTerminal as _, stdin, stdout};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::layout::Rect;
use serde_json::Value;
use tidegate_runtime::command::printed;

pub use self::draw::{draw, plain};
use self::follow::News;
pub use self::history::{Answers, History};
pub use self::look::ScreenLook;
pub use self::model::{Model, PressedKey, Trouble};
pub use self::terminal::Screen;
use self::terminal::{read_keys, read_signals};
use tidegate::tools::client::{Admin, AdminTarget, ClientError, print};
use tidegate::tools::failed;

/// A screen is drawn again after this time, since times on it change.
const EVERY: Duration = Duration::from_secs(1);
/// Events that wait to be drawn. A thread with one more waits.
const EVENTS_MAX: usize = 64;
/// The size of `--once` where stdout is no terminal: every pane has room.   columns, rows
const PRINTED: (u16, u16) = (120, 40);

/// `tidegate top`
#[derive(Clone, Debug, clap::Args)]
pub struct TopArguments {
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

/// Events that the screen reacts to.
enum ScreenEvent {
    News(Box<News>),
    Key(PressedKey),
    Resized,
    /// Exit with this code.
    Stop(u8),
}

/// Runs the command: exit code 0, or 1 if there is no answer at the start.
pub(crate) fn run(arguments: &TopArguments) -> ExitCode {
    let target = match arguments.admin.target() {
        Ok(target) => target,
        Err(error) => return failed(error),
    };
    if arguments.admin.json {
        let answer = target.get("/v1/now").map_err(explained);
        return print(&arguments.admin, answer, Value::to_string);
    }
    let look = ScreenLook::of_the_terminal(arguments.ascii);
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
        return printed(&text, ExitCode::SUCCESS);
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
fn follow(target: AdminTarget, model: &mut Model) -> std::io::Result<u8> {
    let (sender, events) = mpsc::sync_channel(EVENTS_MAX);
    read_signals(sender.clone())?;
    let mut screen = Screen::open()?;
    read_keys(sender.clone());
    follow::follow(target, move |news| {
        match sender.send(ScreenEvent::News(Box::new(news))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
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
                ScreenEvent::News(news) => match *news {
                    News::Series(series) => model.load(&series),
                    News::Frame(frame) => model.take_frame(frame),
                    News::Now(now) => model.take(Ok(now)),
                    News::Lost(error) => model.take(Err(explained(error).to_string())),
                },
                ScreenEvent::Key(key) if !model.press(key) => return Ok(0),
                ScreenEvent::Stop(code) => return Ok(code),
                ScreenEvent::Key(_) | ScreenEvent::Resized => {}
            }
        }
        screen.show(model)?;
    }
}

/// The next event; after a second without one, the time has changed.
fn next(events: &Receiver<ScreenEvent>) -> Option<ScreenEvent> {
    match events.recv_timeout(EVERY) {
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout) => Some(ScreenEvent::Resized),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}
