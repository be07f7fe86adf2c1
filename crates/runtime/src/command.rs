//! The parts that the commands of all programs share: threads, listeners, durations as arguments, colours, the one
//! way to print, exit codes, and other programs that are installed beside them.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};

pub use crate::measure::parse_duration;

/// An executor with all features enabled. With one thread it runs in the caller, which costs least.
///
/// # Errors
///
/// The error of the system.
pub fn executor(threads: usize) -> io::Result<Runtime> {
    let mut builder = match threads {
        0 | 1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build()
}

/// Listens with a larger backlog, because the standard 128 loses part of a storm.
///
/// # Errors
///
/// The error of the system, with the address.
pub fn listen(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket
        .bind(addr)
        .and_then(|()| socket.listen(backlog))
        .map_err(|cause| io::Error::new(cause.kind(), format!("cannot listen on {addr}: {cause}")))
}

/// Whether a stream is for people who want colours: a terminal, without `NO_COLOR`.
#[must_use]
pub fn wants_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && allows_colours()
}

/// Whether a person at stderr sees progress, which is written over itself.
#[must_use]
pub fn shows_progress() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether `NO_COLOR` is not set, or empty (no-color.org), and `TERM` is not `dumb`.
#[must_use]
pub fn allows_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether lines and boxes can be drawn beyond ASCII: as the locale and `TERM` say.
#[must_use]
pub fn allows_unicode() -> bool {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    // POSIX: the first of these that is not empty counts.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(of);
    let locale = locale.map(|locale| locale.to_ascii_lowercase());
    let is_utf8 = locale.is_some_and(|it| it.contains("utf-8") || it.contains("utf8"));
    let term = of("TERM").unwrap_or_default();
    is_utf8 && term != "dumb" && !term.starts_with("vt")
}

/// Text from outside for a terminal: without what could speak to it or change the order of letters.
#[must_use]
pub fn cleaned(text: &str, ascii: bool) -> String {
    let is_hidden = |c: char| {
        matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
    };
    let shown = |c: char| match c.is_control() || is_hidden(c) || (ascii && !c.is_ascii()) {
        true => '?',
        false => c,
    };
    text.chars().map(shown).collect()
}

/// Writes the answer of a command to stdout, whole. A reader that closes the pipe has read enough: that is no error.
///
/// # Errors
///
/// The error of the system, such as a full disk.
pub fn print(text: &str) -> io::Result<()> {
    written(write(&mut io::stdout(), text))
}

/// Prints the answer of a command, and returns its exit code: `code` if all was written, else 1.
#[must_use]
pub fn printed(text: &str, code: ExitCode) -> ExitCode {
    match print(text) {
        Ok(()) => code,
        Err(error) => unprinted(error),
    }
}

/// Reports that the answer of a command could not be written, unless its reader has closed the pipe. Exit code 1.
#[must_use]
pub fn unprinted(error: io::Error) -> ExitCode {
    if let Err(error) = written(Err(error)) {
        tell(format_args!("the output is not complete: {error}"));
    }
    ExitCode::FAILURE
}

/// The result of writing an answer: a reader that closed the pipe has read enough.
fn written(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes a message of a command to stderr, as a line. If that fails, there is nowhere to report it.
pub fn tell(message: impl Display) {
    note(format_args!("tidegate: {message}\n"));
}

/// Writes a text to stderr as it is. If that fails, there is nowhere to report it.
pub fn note(text: impl Display) {
    let _ = write(&mut io::stderr(), &text.to_string());
}

fn write(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Exit code 0 if all is well, else 1.
#[must_use]
pub fn exit_code(is_well: bool) -> ExitCode {
    match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The program of this name in the directory of the running one. If there is none, the bare name,
/// which the system looks up in `PATH`.
#[must_use]
pub fn companion(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|own| own.with_file_name(name));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| name.into())
}
