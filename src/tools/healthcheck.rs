//! `tidegate healthcheck`: asks a running sidecar whether it takes calls.
//!
//! For images that hold nothing but this program, so it speaks just enough HTTP by itself. It
//! takes the address from the sidecar's own config, and asks for `/readyz`, which wants no
//! token.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::config;

/// How long connecting, asking and the answer may take together.
const BOUND: Duration = Duration::from_secs(2);
/// An answer is a line or two; more is not read.   bytes
const ANSWER_MAX: usize = 4096;

/// Why a sidecar counts as unhealthy.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// Nobody answers there.
    #[error("no answer from {address} within {BOUND:?}: {cause}")]
    NoAnswer {
        /// The admin address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// It answers, and takes no calls.
    #[error("{address} is not ready: {said}")]
    NotReady {
        /// The admin address.
        address: SocketAddr,
        /// The last line of its answer.
        said: String,
    },
}

/// Runs the command: exit code 0 if the sidecar takes calls, 1 if not or if the config names no
/// admin address. `graphical` draws the lines of a bad config.
#[must_use]
pub fn run(path: &Path, graphical: bool) -> ExitCode {
    let bind = match config::load(path) {
        Ok(checked) => checked.config.admin.bind,
        Err(error) => {
            eprintln!("{}", error.render(graphical).trim_end());
            return ExitCode::FAILURE;
        }
    };
    let Some(bind) = bind else {
        eprintln!("tidegate: admin.bind is off in {}", path.display());
        return ExitCode::FAILURE;
    };
    match ask(bind) {
        Ok(()) => ExitCode::SUCCESS,
        Err(unhealthy) => {
            eprintln!("tidegate: {unhealthy}");
            ExitCode::FAILURE
        }
    }
}

/// Asks the sidecar whose admin address is bound like this.
///
/// # Errors
/// If it does not answer in time, or says that it is not ready.
pub fn ask(bind: SocketAddr) -> Result<(), Unhealthy> {
    let address = reachable(bind);
    let answer = read_answer(address).map_err(|cause| Unhealthy::NoAnswer { address, cause })?;
    let status = answer.split(' ').nth(1);
    if answer.starts_with("HTTP/1.1 ") && status == Some("200") {
        return Ok(());
    }
    let said = answer.trim_end().lines().next_back().unwrap_or_default();
    Err(Unhealthy::NotReady {
        address,
        said: said.escape_debug().to_string(),
    })
}

/// What is bound to every address is reached on loopback.
fn reachable(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
}

fn read_answer(address: SocketAddr) -> io::Result<String> {
    let deadline = Instant::now() + BOUND;
    let mut stream = TcpStream::connect_timeout(&address, BOUND)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    write!(
        stream,
        "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    let mut chunk = [0; 512];
    while answer.len() < ANSWER_MAX {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            read => answer.extend_from_slice(&chunk[..read]),
        }
    }
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Time until the deadline, never none: a timeout of zero would mean for ever.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}
