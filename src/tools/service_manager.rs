//! Reports the state of the process to the service manager that started it, if that wants it
//! (`Type=notify` in systemd, sd_notify(3)).
//!
//! If the service manager cannot be reached, the process continues.

use std::convert::Infallible;
use std::env;
use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::MissedTickBehavior;

/// The socket of the service manager: a path, or `@` and a name that no file has.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The time within which the service manager wants a sign of life.   microseconds
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that it wants this of.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// Reports that the process serves, also after a reload.
pub fn ready() {
    report("READY=1\n");
}

/// Reports that the process reads its config again. [`ready`] ends that, also if the new config was refused.
pub fn reloading() {
    // systemd requires the time since version 253.
    let now = clock_gettime(ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    report(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
}

/// Reports that the process drains.
pub fn stopping() {
    report("STOPPING=1\n");
}

/// Sends signs of life, if the service manager wants them (`WatchdogSec=` in systemd). Each is sent
/// after `is_alive` has shown that the process does its work. Never ends.
pub async fn keep_alive(is_alive: impl AsyncFn() -> bool) -> Infallible {
    let Some(within) = watchdog() else {
        return pending().await;
    };
    // systemd recommends half of the time.
    let mut beats = tokio::time::interval(within / 2);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        if is_alive().await {
            report("WATCHDOG=1\n");
        }
    }
}

/// The time between two signs of life that this process owes.
fn watchdog() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = env::var_os(WATCHDOG_PROCESS).is_none()
        || number(WATCHDOG_PROCESS) == Some(process::id().into());
    let micros = number(WATCHDOG).filter(|micros| is_ours && *micros > 0)?;
    Some(Duration::from_micros(micros))
}

fn report(state: &str) {
    if let Err(error) = send(state) {
        tracing::debug!(%error, "cannot report to the service manager");
    }
}

fn send(state: &str) -> io::Result<()> {
    let Some(socket) = env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else {
        return Ok(());
    };
    let from = UnixDatagram::unbound()?;
    // A service manager that hangs must not hold up the calls.
    from.set_nonblocking(true)?;
    from.send_to_addr(state.as_bytes(), &address(&socket)?)?;
    Ok(())
}

fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(socket),
        _ => {
            let message = format!("{SOCKET} is neither a path nor @NAME");
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_a_path_or_an_abstract_name() {
        let path = address(OsStr::new("/run/systemd/notify")).expect("a path");
        assert_eq!(
            path.as_pathname(),
            Some(std::path::Path::new("/run/systemd/notify"))
        );
        let name = address(OsStr::new("@a/name")).expect("a name");
        assert_eq!(name.as_abstract_name(), Some(&b"a/name"[..]));
        for other in ["vsock:2:1234", "notify", ""] {
            address(OsStr::new(other)).expect_err(other);
        }
    }
}
