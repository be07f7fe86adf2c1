//! Listening sockets that were open before this process: those of systemd's socket units, and those that a process
//! before this one gave to the service manager (sd_listen_fds(3), `FDSTORE=` in sd_notify(3)).
//!
//! While a process is exchanged they stay open, and the kernel holds the connections that come meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use listenfd::ListenFd;
use socket2::{Domain, SockAddr, Socket};
use tidegate_runtime::lock;

use super::BACKLOG;
use crate::call::Bind;
use crate::call::loopback::without_pacing;

/// Listening sockets that were open before this process, and have no listener yet.
#[derive(Debug, Default)]
pub struct InheritedSockets(Mutex<Vec<InheritedSocket>>);

/// A listening socket that was open before this process.
#[derive(Debug)]
pub(super) struct InheritedSocket {
    pub(super) socket: Socket,
    /// Whether the file of a Unix socket goes with this process, and not with the service manager.
    pub(super) owns_file: bool,
}

impl InheritedSockets {
    /// Takes the sockets that were passed to this process. Comes before any thread, because it changes the environment, so that
    /// no other process takes them for its own.
    #[must_use]
    pub fn take() -> Self {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for place in 0..passed.len() {
            let tcp = passed.take_tcp_listener(place).ok().flatten();
            let socket = match tcp {
                Some(listener) => Some(Socket::from(listener)),
                None => {
                    let file = passed.take_unix_listener(place).ok().flatten();
                    file.map(Socket::from)
                }
            };
            sockets.extend(socket.map(|socket| InheritedSocket {
                socket,
                owns_file: false,
            }));
        }
        Self(Mutex::new(sockets))
    }

    /// Adds sockets that a process before this one has handed over.
    #[must_use]
    pub fn and_handed_over(self, sockets: Vec<OwnedFd>) -> Self {
        let handed = sockets.into_iter().map(|socket| InheritedSocket {
            socket: socket.into(),
            owns_file: true,
        });
        // What both have is open twice, and one is enough.
        let mut all = lock(&self.0);
        all.splice(..0, handed);
        drop(all);
        self
    }

    /// The socket that listens there, if there is one.
    pub(super) fn find(&self, bind: &Bind) -> Option<InheritedSocket> {
        let mut sockets = lock(&self.0);
        let place = sockets.iter().position(|it| {
            let address = it.socket.local_addr();
            address.is_ok_and(|address| listens_there(&address, bind))
        })?;
        Some(sockets.remove(place))
    }

    /// Addresses where no listener is configured: connections there would never be accepted.
    #[must_use]
    pub fn rest(&self) -> Vec<String> {
        let sockets = lock(&self.0);
        let shown = sockets.iter().map(|it| match it.socket.local_addr() {
            Ok(address) => shown(&address),
            Err(error) => error.to_string(),
        });
        shown.collect()
    }
}

/// Whether clients of this address reach the socket with that one.
fn listens_there(address: &SockAddr, bind: &Bind) -> bool {
    match bind {
        Bind::Tcp(wanted) => address.as_socket() == Some(*wanted),
        // Without its file no client can connect.
        Bind::Unix(path) => address.as_pathname() == Some(&**path) && path.exists(),
    }
}

fn shown(address: &SockAddr) -> String {
    let path = address.as_pathname().map(Path::display);
    match (address.as_socket(), path) {
        (Some(address), _) => address.to_string(),
        (None, Some(path)) => format!("unix:{path}"),
        (None, None) => "an address of another kind".to_owned(),
    }
}

/// Sets what a listening socket of this process has, also if another process has bound it.
pub(super) fn adopt(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    if socket.domain()? != Domain::UNIX {
        socket.set_tcp_keepalive(&crate::call::KEEPALIVE)?;
        if let Some(address) = socket.local_addr()?.as_socket() {
            without_pacing(socket.as_fd(), address.ip());
        }
    }
    // Sets the backlog of a socket that listens already.
    socket.listen(BACKLOG)
}
