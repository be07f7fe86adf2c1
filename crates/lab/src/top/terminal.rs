//! The terminal: how it becomes a screen, and how it is given back in every case.

use std::io::{self, Write as _, stdout};
use std::mem::ManuallyDrop;
use std::panic;
use std::process;
use std::sync::mpsc::SyncSender;
use std::thread;

use crossterm::cursor::{Hide, Show};
use crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tidegate_runtime::command::executor;
use tokio::signal::unix::{SignalKind, signal};

use super::ScreenEvent;
use super::draw::draw;
use super::model::{Model, PressedKey};

/// The exit code after a panic, as that of the standard library.
const PANICKED: i32 = 101;

/// A terminal that shows a screen; it is given back when this is dropped.
pub struct Screen {
    // Never dropped: the library's drop prints to stderr and panics if the terminal is gone. What it does beside that,
    // `give_back` does.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<io::Stdout>>>,
}

impl Screen {
    /// Takes the terminal. A panic of any thread gives it back, reports itself on it, and ends the
    /// process.
    ///
    /// # Errors
    ///
    /// If stdin or stdout is no terminal.
    pub fn open() -> io::Result<Self> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |why| {
            give_back();
            report(why);
            process::exit(PANICKED);
        }));
        enable_raw_mode()?;
        let taken = execute!(stdout(), EnterAlternateScreen, Hide);
        let terminal = taken.and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match terminal {
            Ok(terminal) => Ok(Self {
                terminal: ManuallyDrop::new(terminal),
            }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Shows a model. Only cells that changed are written.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub fn show(&mut self, model: &Model) -> io::Result<()> {
        let shown = self.terminal.draw(|frame| {
            let drawn = draw(model, frame.area());
            *frame.buffer_mut() = drawn;
        });
        shown.map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Makes the screen a terminal again. Without a terminal, there is nothing to give back.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = stdout().flush();
}

/// Sends keys, and that the size has changed.
pub(super) fn read_keys(events: SyncSender<ScreenEvent>) {
    thread::spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    match meaning(key.code, control) {
                        Some(event) => event,
                        None => continue,
                    }
                }
                Ok(event::Event::Resize(..)) => ScreenEvent::Resized,
                Ok(_) => continue,
                // The terminal is gone.
                Err(_) => ScreenEvent::Stop(1),
            };
            let is_last = matches!(event, ScreenEvent::Stop(_));
            if events.send(event).is_err() || is_last {
                return;
            }
        }
    });
}

fn meaning(code: KeyCode, control: bool) -> Option<ScreenEvent> {
    let key = match code {
        KeyCode::Char('c') if control => return Some(ScreenEvent::Stop(0)),
        KeyCode::Char(c) if !control => PressedKey::Letter(c),
        KeyCode::Enter => PressedKey::Enter,
        KeyCode::Esc => PressedKey::Escape,
        KeyCode::Backspace => PressedKey::Erase,
        KeyCode::Tab | KeyCode::Right => PressedKey::Next,
        KeyCode::BackTab | KeyCode::Left => PressedKey::Previous,
        KeyCode::Up => PressedKey::Move(-1),
        KeyCode::Down => PressedKey::Move(1),
        KeyCode::PageUp => PressedKey::Move(-10),
        KeyCode::PageDown => PressedKey::Move(10),
        _ => return None,
    };
    Some(ScreenEvent::Key(key))
}

/// Sends that the process should exit when it gets SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
///
/// The error of the system.
pub(super) fn read_signals(events: SyncSender<ScreenEvent>) -> io::Result<()> {
    let runtime = executor(1)?;
    let entered = runtime.enter();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    drop(entered);
    thread::spawn(move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => 15,
                _ = interrupt.recv() => 2,
                _ = hang_up.recv() => 1,
            }
        });
        // As a shell reports a signal.
        let _ = events.send(ScreenEvent::Stop(128 + number));
    });
    Ok(())
}
