//! Listening sockets that were open before this process: those of systemd's socket units, and those that a process
//! before this one gave to the service manager (sd_listen_fds(3), `FDSTORE=` in sd_notify(3)).
//!
//! While a process is exchanged they stay open, and the kernel holds the connections that come meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use listenfd::ListenFd;
use socket2::{Domain, SockAddr, Socket};
use tidegate_runtime::lock;

use super::BACKLOG;
use crate::call::Bind;
use crate::call::loopback::without_pacing;

/// Listening sockets that were open before this process, and have no listener yet.
#[derive(Debug, Default)]
pub struct InheritedSockets(Mutex<Vec<ListeningSocket>>);

/// A listening socket that another process has opened, or is to have.
#[derive(Debug)]
pub struct ListeningSocket {
    socket: Socket,
    /// The file of a Unix socket goes with the process, and not with the service manager.
    owns_file: bool,
}

impl ListeningSocket {
    /// A socket. `owns_file`: its file goes with the process.
    #[must_use]
    pub fn new(socket: OwnedFd, owns_file: bool) -> Self {
        let socket = socket.into();
        Self { socket, owns_file }
    }

    /// A socket that a process before this one has handed over, with the files that went with that process.
    #[must_use]
    pub fn handed_over(socket: OwnedFd, files: &[PathBuf]) -> Self {
        let socket = Socket::from(socket);
        let address = socket.local_addr().ok();
        let path = address.as_ref().and_then(SockAddr::as_pathname);
        let owns_file = path.is_some_and(|path| files.iter().any(|file| file == path));
        Self { socket, owns_file }
    }

    /// The file of the socket, if that goes with the process.
    #[must_use]
    pub fn own_file(&self) -> Option<PathBuf> {
        let address = self.owns_file.then(|| self.socket.local_addr().ok())?;
        Some(address?.as_pathname()?.to_owned())
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// The error of the system: too many open files.
    pub fn duplicate(&self) -> io::Result<Self> {
        let socket = self.socket.try_clone()?;
        let owns_file = self.owns_file;
        Ok(Self { socket, owns_file })
    }

    /// The socket, and whether its file goes with the process.
    pub(super) fn into_parts(self) -> (Socket, bool) {
        (self.socket, self.owns_file)
    }
}

impl From<ListeningSocket> for OwnedFd {
    fn from(socket: ListeningSocket) -> Self {
        socket.socket.into()
    }
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
            sockets.extend(socket.map(|socket| ListeningSocket {
                socket,
                owns_file: false,
            }));
        }
        Self(Mutex::new(sockets))
    }

    /// Adds sockets that a process before this one has handed over.
    #[must_use]
    pub fn and_handed_over(self, sockets: Vec<ListeningSocket>) -> Self {
        // What both have is open twice, and one is enough.
        lock(&self.0).splice(..0, sockets);
        self
    }

    /// Other descriptors of those that have no listener.
    #[must_use]
    pub fn duplicates(&self) -> Vec<ListeningSocket> {
        let sockets = lock(&self.0);
        sockets
            .iter()
            .filter_map(|it| it.duplicate().ok())
            .collect()
    }

    /// The socket that listens there, if there is one.
    pub(super) fn find(&self, bind: &Bind) -> Option<ListeningSocket> {
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
