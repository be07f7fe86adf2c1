//! What the commands of all programs share: threads, listeners, durations as arguments, colours,
//! exit codes, and other programs that are installed beside them.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};

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

/// Reads `50ms`, `1.5s`, `2m`, `250us`; `0` needs no unit.
///
/// # Errors
///
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 50ms, 1.5s or 2m");
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// Whether a stream is for people who want colours: a terminal, without `NO_COLOR`.
#[must_use]
pub fn wants_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && allows_colours()
}

/// Whether `NO_COLOR` is not set, or empty (no-color.org).
#[must_use]
pub fn allows_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_carries_its_unit() {
        let check = |text, expected| assert_eq!(parse_duration(text).ok(), expected, "{text}");
        check("50ms", Some(Duration::from_millis(50)));
        check("1.5s", Some(Duration::from_millis(1500)));
        check("2m", Some(Duration::from_secs(120)));
        check("250us", Some(Duration::from_micros(250)));
        check("0", Some(Duration::ZERO));
        check("5", None);
        check("-1s", None);
        check("s", None);
        check("1h", None);
        check("1e30s", None);
    }
}
