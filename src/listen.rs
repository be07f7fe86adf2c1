//! Accepts connections, under all conditions.
//!
//! The backlog is deep and the loop only accepts, so a flood waits here and not in SYN retries.
//! If an accept fails for lack of files or memory, it is retried after a pause. The loop neither
//! spins nor ends.

pub mod descriptors;
#[expect(
    clippy::disallowed_methods,
    reason = "listeners are bound at start and by a reload, on threads that wait"
)]
mod inherited;
pub mod metrics;
pub mod threads;
#[expect(
    clippy::disallowed_methods,
    reason = "listeners are bound at start and by a reload, and dropped on threads that wait"
)]
mod unix;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::{SocketFlags, sockopt};
use socket2::{Domain, Socket, Type};
use tidegate_runtime::BackOff;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::inherited::{InheritedSockets, ListeningSocket};
pub use self::unix::{SocketFile, SocketFileId};
use crate::call::loopback::without_pacing;
use crate::call::{Bind, Listener, Peer};
use crate::options::kind::{HOUR, SECOND, duration, integer};
use crate::options::options;

/// Connections that the kernel holds while the loop does not accept.
pub const BACKLOG: i32 = 4096;

/// The pause after an accept that failed for lack of something.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. Each one in a row is twice as long as the last.
const PAUSE_MAX: Duration = Duration::from_secs(1);

options! {
    /// The process: threads, connections, and how it ends.
    pub struct ServerSection => ServerSettings + {
        /// The listeners, at least one.
        listeners: Vec<Listener>,
    } {
        /// The most threads that serve connections. A connection stays on one thread, and all threads share
        /// the limits. Another one is started when each that runs has 8 connections, up to the number of
        /// processors. Calls of the socket protocol stay on the first. With 1, a call takes a little less
        /// CPU, and a busy sidecar makes fewer calls a second.
        threads: usize = integer(1..=64).of("threads").or(2).restart();

        /// Connections open at once, over all listeners. The next one is accepted when one closes. Each
        /// needs a file descriptor, and one more while its call is at the backend.
        max_connections: u32 = integer(1..=1_000_000).of("connections").or(16384);

        /// How long calls may still finish after SIGTERM. Keep it below the time that the service manager
        /// waits before it kills the process (systemd: 90 s).
        drain_timeout: Duration = duration(Duration::ZERO..=HOUR).or(30 * SECOND);

        /// How long after SIGTERM replies of unknown length, such as event streams, and tunnels (WebSockets, and
        /// connections with protocol = "tcp") may continue. Then they are cut off, so that a drain with an open
        /// stream ends in time. At most drain_timeout. Raise it if clients fetch large files without a length;
        /// 0s ends all of them at once.
        drain_streams: Duration = duration(Duration::ZERO..=HOUR).or(5 * SECOND);
    }
}

/// A listening socket. Its file, if any, is removed with it.
#[derive(Debug)]
pub struct Bound {
    socket: OwnedFd,
    address: Bind,
    file: Option<unix::SocketFile>,
}

impl Bound {
    /// The address, with the real port.
    #[must_use]
    pub fn address(&self) -> &Bind {
        &self.address
    }

    /// Another descriptor of the socket.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// The file of the listener, if it has one that goes with it.
    #[must_use]
    pub fn file(&self) -> Option<SocketFileId> {
        self.file.as_ref().map(|file| file.id().clone())
    }
}

/// Binds the address of a listener, or takes the inherited socket that listens there.
///
/// # Errors
/// The error of the system: in use, no permission, no such address, no such directory.
pub fn bind(listener: &Listener, inherited: &InheritedSockets) -> io::Result<Bound> {
    let (socket, address, file): (OwnedFd, _, _) = match &listener.bind {
        Bind::Tcp(address) => {
            let socket = bind_tcp(*address, inherited)?;
            let address = socket.local_addr().unwrap_or(*address);
            (socket.into(), Bind::Tcp(address), None)
        }
        Bind::Unix(path) => {
            let (socket, file) = bind_file(path, listener.unix_mode, inherited)?;
            (socket.into(), listener.bind.clone(), file)
        }
    };
    Ok(Bound {
        socket,
        address,
        file,
    })
}

/// Binds a socket file with these permissions, or takes the inherited socket that listens there. The file is removed
/// when the second value is dropped; that of an inherited socket belongs to the service manager.
///
/// # Errors
/// The error of the system: in use, no permission, no such directory.
pub fn bind_file(
    path: &Arc<Path>,
    mode: u32,
    inherited: &InheritedSockets,
) -> io::Result<(UnixListener, Option<SocketFile>)> {
    if let Some(found) = inherited.find(&Bind::Unix(Arc::clone(path))) {
        let (socket, owns_file) = found.into_parts();
        inherited::adopt(&socket)?;
        let file = match owns_file {
            true => Some(SocketFile::handed_over(path)?),
            false => None,
        };
        return Ok((socket.into(), file));
    }
    let (socket, file) = unix::bind(path, mode)?;
    Ok((socket.into(), Some(file)))
}

/// Binds an address, or takes the inherited socket that listens there.
///
/// # Errors
/// The error of the system: in use, no permission, no such address.
pub fn bind_tcp(address: SocketAddr, inherited: &InheritedSockets) -> io::Result<TcpListener> {
    if let Some(found) = inherited.find(&Bind::Tcp(address)) {
        let (socket, _) = found.into_parts();
        inherited::adopt(&socket)?;
        return Ok(socket.into());
    }
    let socket = bound(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Whether it could listen there. No client can connect meanwhile, and a listener that is there stays.
///
/// # Errors
/// The error of the system, as of [`bind`].
pub fn could_listen(bind: &Bind) -> io::Result<()> {
    match bind {
        Bind::Tcp(address) => bound(*address).map(drop),
        Bind::Unix(path) => unix::could_bind(path),
    }
}

/// A socket that has its address and does not listen yet.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A proxy that restarts must not wait until old connections time out.
    socket.set_reuse_address(true)?;
    // `[::]` accepts IPv4 too, for any `net.ipv6.bindv6only`. The check of the config assumes it as
    // well.
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Accepted connections inherit this, so a client that died silently is detected.
    socket.set_tcp_keepalive(&crate::call::KEEPALIVE)?;
    without_pacing(&socket, address.ip());
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Counts connections over all listeners and keeps them under a cap.
#[derive(Debug, Default)]
pub struct Connections {
    open: AtomicU32,
    max: AtomicU32,
    closed: Notify,
}

impl Connections {
    /// At most `max` at once.
    #[must_use]
    pub fn new(max: u32) -> Arc<Self> {
        let connections = Self::default();
        connections.apply(max);
        Arc::new(connections)
    }

    /// Changes the cap. Connections above it stay.
    pub fn apply(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
        self.closed.notify_waiters();
    }

    /// The current number of open connections.
    #[must_use]
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// The cap.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Waits for room for one more.
    async fn room(self: &Arc<Self>) -> Connection {
        loop {
            let closed = self.closed.notified();
            if let Some(connection) = self.room_now() {
                return connection;
            }
            closed.await;
        }
    }

    fn room_now(self: &Arc<Self>) -> Option<Connection> {
        if self.open.fetch_add(1, Ordering::Relaxed) < self.max() {
            return Some(Connection(Arc::clone(self)));
        }
        // Undone without a notice, which would only wake this task.
        self.open.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

/// An open connection; dropped when it closes.
#[derive(Debug)]
pub struct Connection(Arc<Connections>);

impl Drop for Connection {
    fn drop(&mut self) {
        let open = self.0.open.fetch_sub(1, Ordering::Relaxed);
        if open >= self.0.max() {
            self.0.closed.notify_waiters();
        }
    }
}

/// Stops a loop that accepts.
#[derive(Clone, Debug, Default)]
pub struct AcceptStop {
    token: CancellationToken,
    leaves: Arc<AtomicBool>,
}

impl From<CancellationToken> for AcceptStop {
    /// Closes with this token.
    fn from(token: CancellationToken) -> Self {
        Self {
            token,
            leaves: Arc::default(),
        }
    }
}

impl AcceptStop {
    /// The loop takes the clients that are connected, and closes its socket.
    pub fn close(&self) {
        self.token.cancel();
    }

    /// The loop leaves its socket, and the clients that wait there, to another process.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Release);
        self.token.cancel();
    }
}

/// Accepts until it is stopped, within the cap, and passes each connection to `handle`. Before each accept it waits for `gate`, which
/// holds the loop while the queue is full. At the end it takes what the kernel has accepted by
/// then, because those clients are already connected.
///
/// Connections are handed over as the kernel made them: non-blocking and not watched. Most calls
/// are read at once and never wait for their client again, so only those that do pay for
/// watching. A connection of a Unix socket is also a `TcpStream`: only reading, writing, peeking
/// and shutting down are used, which every stream socket has.
///
/// # Errors
/// If the listener cannot be watched.
pub async fn accept<G: Future<Output = ()>>(
    listener: Bound,
    connections: Arc<Connections>,
    stop: AcceptStop,
    gate: impl Fn() -> G,
    failed: impl Fn(&io::Error),
    handle: impl Fn(TcpStream, Peer, Connection),
) -> io::Result<()> {
    let Bound {
        socket,
        address,
        file,
    } = listener;
    let accept_one = |socket: &OwnedFd| accept_one(socket, &address);
    #[expect(
        deprecated,
        reason = "safe for what keeps its descriptor, as the standard library's does"
    )]
    let listener = AsyncFd::with_interest(socket, Interest::READABLE)?;
    let mut in_hand = None;
    let accepting = async {
        let mut back_off = BackOff::doubling(PAUSE, PAUSE_MAX);
        loop {
            gate().await;
            match listener.async_io(Interest::READABLE, accept_one).await {
                Ok(accepted) => {
                    // The place is taken after the accept: a listener that holds one without a
                    // client would withhold it from the others. So under a full cap each listener
                    // has one more connection in hand, and reads nothing of it.
                    in_hand = Some(accepted);
                    let connection = connections.room().await;
                    if let Some((stream, peer)) = in_hand.take() {
                        handle(stream, peer, connection);
                    }
                    back_off.reset();
                }
                Err(error) => {
                    failed(&error);
                    if !is_of_one_connection(&error) {
                        tokio::time::sleep(back_off.pause()).await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = stop.token.cancelled() => {}
        () = accepting => {}
    }
    if stop.leaves.load(Ordering::Acquire) {
        // Another process accepts there, so no client is turned away.
        if let Some(file) = file {
            file.leave();
        }
        if let Some((stream, peer)) = in_hand {
            let connection = connections.room().await;
            handle(stream, peer, connection);
        }
        return Ok(());
    }
    // Later clients are refused at once. Removing the file touches a disk, so it happens off the
    // loop.
    if let Some(file) = file {
        let _ = tokio::task::spawn_blocking(move || drop(file)).await;
    }
    let listener = listener.into_inner();
    accept_rest(listener, &address, in_hand, &connections, failed, handle).await;
    Ok(())
}

/// Takes the clients that the kernel has accepted by now.
async fn accept_rest(
    listener: OwnedFd,
    address: &Bind,
    mut in_hand: Option<(TcpStream, Peer)>,
    connections: &Arc<Connections>,
    failed: impl Fn(&io::Error),
    handle: impl Fn(TcpStream, Peer, Connection),
) {
    // Asked directly, because the runtime may not yet know of the last clients.
    for _ in 0..BACKLOG {
        let Some(connection) = connections.room_now() else {
            break;
        };
        // The one in hand arrived before all others.
        let next = in_hand
            .take()
            .map_or_else(|| accept_one(&listener, address), Ok);
        match next {
            Ok((stream, peer)) => handle(stream, peer, connection),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    failed(&error);
                }
                break;
            }
        }
    }
    if let Some((stream, peer)) = in_hand {
        // No further client arrives here while this one waits for a connection to close.
        drop(listener);
        let connection = connections.room().await;
        handle(stream, peer, connection);
    }
}

/// On a Unix socket a second system call identifies the peer.
fn accept_one(socket: &OwnedFd, address: &Bind) -> io::Result<(TcpStream, Peer)> {
    let (stream, peer) = accept_unwatched(socket)?;
    let peer = match address {
        Bind::Tcp(_) => peer
            .map(Peer::Tcp)
            .ok_or(io::ErrorKind::ConnectionAborted)?,
        Bind::Unix(_) => Peer::Unix {
            uid: sockopt::socket_peercred(&stream)?.uid.as_raw(),
        },
    };
    Ok((stream, peer))
}

/// Accepts a non-blocking connection that is not registered with the runtime, in one system call;
/// with the address of its client on TCP.
///
/// # Errors
/// The error of the system; `WouldBlock` if no client waits.
fn accept_unwatched(socket: &impl AsFd) -> io::Result<(TcpStream, Option<SocketAddr>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (stream, peer) = rustix::net::acceptfrom_with(socket, flags)?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok((stream.into(), peer))
}

/// Whether an accept failed because of that one connection. The next may succeed, so no pause is
/// needed.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn no_more_connections_than_the_cap_are_open_at_once() {
        let connections = Connections::new(2);
        let first = connections.room().await;
        let second = connections.room().await;
        let mut third = std::pin::pin!(connections.room());
        assert!(futures_poll(third.as_mut()).is_none());
        assert_eq!(connections.open(), 2);
        drop(first);
        let third = third.await;
        assert_eq!(connections.open(), 2);
        drop((second, third));
        assert_eq!(connections.open(), 0);
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn only_what_concerns_one_connection_is_tried_again_without_a_pause() {
        let check = |code: i32, alone: bool| {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(is_of_one_connection(&error), alone, "{error}");
        };
        check(103, true); // ECONNABORTED
        check(24, false); // EMFILE
        check(23, false); // ENFILE
        check(105, false); // ENOBUFS
        check(12, false); // ENOMEM
    }

    #[tokio::test]
    async fn the_loop_ends_when_stopped_and_hands_over_what_it_accepted() {
        let socket = bind_tcp(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            &InheritedSockets::default(),
        )
        .expect("a free port");
        let address = socket.local_addr().expect("bound");
        let listener = Bound {
            socket: socket.into(),
            address: Bind::Tcp(address),
            file: None,
        };
        let stop = AcceptStop::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let accepting = {
            let (seen, stop) = (Arc::clone(&seen), stop.clone());
            accept(
                listener,
                Connections::new(8),
                stop.clone(),
                || std::future::ready(()),
                |error| panic!("{error}"),
                move |_, peer, _| {
                    seen.lock().expect("not poisoned").push(peer);
                    stop.close();
                },
            )
        };
        let client = tokio::net::TcpStream::connect(address);
        let (accepted, client) = tokio::join!(accepting, client);
        accepted.expect("the listener can be watched");
        let local = client.expect("accepted").local_addr().expect("connected");
        assert_eq!(*seen.lock().expect("not poisoned"), [Peer::Tcp(local)]);
    }
}
