//! Reports the state of the process to the service manager that started it, if that wants it
//! (`Type=notify` in systemd, sd_notify(3)).
//!
//! If the service manager cannot be reached, the process continues.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::env;
use std::ffi::OsStr;
use std::future::pending;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::process;
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};
use rustix::time::{ClockId, clock_gettime};
use tidegate_runtime::lock;
use tokio::time::MissedTickBehavior;

/// The socket of the service manager: a path, or `@` and a name that no file has.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The time within which the service manager wants a sign of life.   microseconds
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that it wants this of.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
/// Descriptors that it keeps for the next process.
const STORE: &str = "FDSTORE";
/// The names of the sockets that it got from this process.
static KEPT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Reports that the process serves, also after a reload.
pub fn ready() {
    report("READY=1\n");
}

/// Reports that another process serves now: the one with this pid.
pub fn hand_over(pid: u32) {
    report(&format!("READY=1\nMAINPID={pid}\n"));
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

/// Gives listening sockets to the service manager, which passes them to the next process, so that no connect is refused
/// between the two (`FileDescriptorStoreMax=` in systemd, which says since version 254 that it does so). One that it has
/// already changes nothing.
///
/// It forgets those that it got before and that are not among these, or clients of a listener that is gone would wait
/// for ever.
pub fn keep_sockets(sockets: Vec<(String, OwnedFd)>) {
    if env::var_os(STORE).is_none() {
        return;
    }
    let mut kept = lock(&KEPT);
    kept.retain(|name| {
        let listens = sockets.iter().any(|(it, _)| it == name);
        if !listens {
            report(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
        }
        listens
    });
    for (name, socket) in sockets {
        let state = format!("FDSTORE=1\nFDNAME={name}\n");
        match send_with(&state, &[socket.as_fd()]) {
            Ok(()) => drop(kept.insert(name)),
            Err(error) => {
                tracing::debug!(%error, "cannot give a socket to the service manager");
            }
        }
    }
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
    send_with(state, &[])
}

fn send_with(state: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some(socket) = env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else {
        return Ok(());
    };
    let from = UnixDatagram::unbound()?;
    // A service manager that hangs must not hold up the calls.
    from.set_nonblocking(true)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let message = [IoSlice::new(state.as_bytes())];
    sendmsg_addr(
        &from,
        &address(&socket)?,
        &message,
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}

fn address(socket: &OsStr) -> io::Result<SocketAddrUnix> {
    match socket.as_bytes() {
        [b'@', name @ ..] => Ok(SocketAddrUnix::new_abstract_name(name)?),
        [b'/', ..] => Ok(SocketAddrUnix::new(socket)?),
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
        assert_eq!(path.path_bytes(), Some(&b"/run/systemd/notify"[..]));
        let name = address(OsStr::new("@a/name")).expect("a name");
        assert_eq!(name.abstract_name(), Some(&b"a/name"[..]));
        for other in ["vsock:2:1234", "notify", ""] {
            address(OsStr::new(other)).expect_err(other);
        }
    }
}
