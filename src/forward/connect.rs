//! Connects to a backend.
//!
//! A name is resolved once for each connect, before the first try and with its own bound.
//! Simultaneous lookups of one backend are one lookup, which continues when its callers give up.
//! So a slow resolver still serves the next connect. All addresses are tried, each a moment after
//! the one before it (RFC 8305), so one that drops packets does not hide the next. An address that
//! failed lately is tried last.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, SockAddr, Socket, Type};
use tidegate_runtime::lock;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::BackendAddress;
use super::addresses::{AddressBook, LookupResult};
use super::tls_failure::TlsFailure;
use crate::call::Fault;

/// Why no byte of a call could be sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connect failed.
    #[error("cannot connect to the backend")]
    Refused(#[source] io::Error),
    /// The connect took longer than `connect_timeout`.
    #[error("the backend took no connection within {0:?}")]
    TimedOut(Duration),
    /// The backend accepted the connection, and then no byte.
    #[error("the backend closed before a byte was written")]
    ClosedBefore(#[source] io::Error),
    /// The backend's name has no address.
    #[error("cannot look up the backend's name")]
    Unknown(#[source] Arc<io::Error>),
    /// The backend's address leads back to this sidecar.
    #[error("the backend's address {0} is an address of this sidecar: use the backend's own")]
    Itself(SocketAddr),
    /// The backend accepted the connection, and there is no TLS with it.
    #[error("no TLS with the backend")]
    Tls(#[source] Box<TlsFailure>),
    /// The lookup took longer than `connect_timeout`.
    #[error("the backend's name was not looked up within {0:?}")]
    LookupTimedOut(Duration),
}

impl ConnectError {
    /// The party at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Refused(error) | Self::ClosedBefore(error) => fault(error),
            Self::Unknown(error) => match fault(error) {
                Fault::Backend => Fault::Network,
                other => other,
            },
            Self::TimedOut(_) | Self::LookupTimedOut(_) => Fault::Network,
            Self::Itself(_) | Self::Tls(_) => Fault::Backend,
        }
    }
}

fn fault(error: &io::Error) -> Fault {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::NOSPC
            | Errno::ADDRNOTAVAIL,
        ) => Fault::Own,
        Some(
            Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::TIMEDOUT,
        ) => Fault::Network,
        _ => Fault::Backend,
    }
}

/// Resolves names.
pub trait Resolve: Send + Sync + 'static {
    /// The addresses of a name, best first.
    fn resolve(&self, name: &str, port: u16) -> Resolving;
}

/// A lookup under way.
pub type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Resolves names as the system does, on a thread that may block.
pub(super) struct System;

impl Resolve for System {
    fn resolve(&self, name: &str, port: u16) -> Resolving {
        let name = name.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((name, port)).await?.collect()) })
    }
}

/// The time after which a second try of a connect starts.
const FIRST_TRY: Duration = Duration::from_millis(100);
/// The time after one address until the next is tried, unless the first has failed by then.
const NEXT_ADDRESS: Duration = Duration::from_millis(100);
/// The pause before another try on a Unix socket with a full backlog.
const BACKLOG_FULL: Duration = Duration::from_millis(5);

/// Connects to one backend.
pub(super) struct Connector {
    pub(super) address: BackendAddress,
    pub(super) resolve: Arc<dyn Resolve>,
    /// The current lookup, if any.
    pub(super) lookup: Mutex<Option<Lookup>>,
    /// Addresses of the name, with the results of lookups and connects.
    pub(super) book: Arc<AddressBook>,
}

/// A lookup that continues when its callers give up.
type Lookup = watch::Receiver<Option<LookupResult>>;

impl Connector {
    /// Connects within a bound.
    pub(super) async fn connect(&self, bound: Duration) -> Result<TcpStream, ConnectError> {
        match &self.address {
            BackendAddress::Ip(address) => connect_after(*address, FIRST_TRY, bound).await,
            BackendAddress::Name(name, port) => {
                let lookup = self.join_lookup(name, *port);
                let addresses = addresses_of(lookup, bound).await?;
                match *addresses {
                    [address] => {
                        let connected = connect_after(address, FIRST_TRY, bound).await;
                        self.record(address, &connected);
                        connected
                    }
                    _ => connect_to_any(&addresses, bound, &self.book).await,
                }
            }
            BackendAddress::Unix(path) => connect_unix(path, bound).await,
        }
    }

    /// Connects and writes what it can at once. On the same machine the handshake is over before
    /// the connect returns, so the whole call takes one round through the reactor. Returns the
    /// connection and the number of bytes written, which may be 0.
    pub(super) async fn connect_and_write(
        &self,
        bytes: &[u8],
        bound: Duration,
    ) -> Result<(TcpStream, usize), ConnectError> {
        let BackendAddress::Ip(address) = self.address else {
            return Ok((self.connect(bound).await?, 0));
        };
        let (stream, written) = begin(address, bytes).map_err(ConnectError::Refused)?;
        let stream = TcpStream::from_std(stream).map_err(ConnectError::Refused)?;
        if written > 0 {
            return Ok((stream, written));
        }
        match timeout(FIRST_TRY.min(bound), established(&stream)).await {
            Ok(Ok(())) => return Ok((stream, 0)),
            Ok(Err(error)) => return Err(ConnectError::Refused(error)),
            Err(_) => {}
        }
        let rest = bound.saturating_sub(FIRST_TRY);
        Ok((connect_after(address, FIRST_TRY * 2, rest).await?, 0))
    }

    /// Looks the name up now, even if a lookup is under way, which may have an old answer. `None` if
    /// the address is not a name.
    pub(super) async fn look_up_anew(
        &self,
        bound: Duration,
    ) -> Option<Result<Arc<[SocketAddr]>, ConnectError>> {
        let BackendAddress::Name(name, port) = &self.address else {
            return None;
        };
        let lookup = self.begin_lookup(name, *port);
        *lock(&self.lookup) = Some(lookup.clone());
        Some(addresses_of(lookup, bound).await)
    }

    fn join_lookup(&self, name: &str, port: u16) -> Lookup {
        let mut lookup = lock(&self.lookup);
        if let Some(under_way) = &*lookup
            && under_way.borrow().is_none()
            && under_way.has_changed().is_ok()
        {
            return under_way.clone();
        }
        let begun = self.begin_lookup(name, port);
        *lookup = Some(begun.clone());
        begun
    }

    fn begin_lookup(&self, name: &str, port: u16) -> Lookup {
        let (tell, told) = watch::channel(None);
        let began = Instant::now();
        let resolving = self.resolve.resolve(name, port);
        let book = Arc::clone(&self.book);
        tokio::spawn(async move {
            let found = match resolving.await {
                Ok(addresses) if addresses.is_empty() => {
                    let kind = io::ErrorKind::NotFound;
                    Err(io::Error::new(kind, "the name has no address"))
                }
                found => found,
            };
            let found = found.map(Arc::from).map_err(Arc::new);
            book.record_lookup(began, &found);
            tell.send_replace(Some(found));
        });
        told
    }

    /// Records how the connect to the only address of a name ended.
    fn record(&self, address: SocketAddr, connected: &Result<TcpStream, ConnectError>) {
        match connected {
            Ok(_) => self.book.connected(address),
            Err(ConnectError::Refused(error)) => record_failure(&self.book, address, error),
            Err(error) => {
                let cause = error.to_string();
                self.book.failed(address, cause, Instant::now());
            }
        }
    }
}

/// Records a failure of an address, but no lack of our own: that says nothing about the address.
fn record_failure(book: &AddressBook, address: SocketAddr, error: &io::Error) {
    if fault(error) != Fault::Own {
        book.failed(address, error.to_string(), Instant::now());
    }
}

/// Waits for a lookup within a bound.
async fn addresses_of(
    mut lookup: Lookup,
    bound: Duration,
) -> Result<Arc<[SocketAddr]>, ConnectError> {
    let found = match timeout(bound, lookup.wait_for(Option::is_some)).await {
        Ok(found) => found.ok().and_then(|found| found.clone()),
        Err(_) => return Err(ConnectError::LookupTimedOut(bound)),
    };
    // Only the end of the whole runtime ends it without a message.
    let none = || Arc::new(io::ErrorKind::Interrupted.into());
    let found = found.unwrap_or_else(|| Err(none()));
    found.map_err(ConnectError::Unknown)
}

/// Refuses a connection that leads back to this sidecar. A call would go in circles, and take a
/// slot each time. Addresses in the config are checked before. A name, or another address of this
/// machine, shows only here.
pub(super) fn not_ours(stream: TcpStream, own: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
    match stream.peer_addr() {
        Ok(peer) if is_ours(&stream, peer, own) => Err(ConnectError::Itself(peer)),
        _ => Ok(stream),
    }
}

fn is_ours(tcp: &TcpStream, peer: SocketAddr, own: &[SocketAddr]) -> bool {
    let ip = peer.ip().to_canonical();
    let is_its_own = |local: SocketAddr| local.ip().to_canonical() == ip;
    // A connection within one machine has its own address at both ends.
    let is_here = || ip.is_loopback() || tcp.local_addr().is_ok_and(is_its_own);
    let mut same_port = own.iter().filter(|own| own.port() == peer.port());
    same_port.any(|own| is_its_own(*own) || own.ip().is_unspecified() && is_here())
}

async fn within<T>(
    bound: Duration,
    trying: impl Future<Output = io::Result<T>>,
) -> Result<T, ConnectError> {
    match timeout(bound, trying).await {
        Ok(connected) => connected.map_err(ConnectError::Refused),
        Err(_) => Err(ConnectError::TimedOut(bound)),
    }
}

/// Connects to one address within a bound. `patience` is the time of the first try.
async fn connect_after(
    address: SocketAddr,
    patience: Duration,
    bound: Duration,
) -> Result<TcpStream, ConnectError> {
    within(bound, connect_patiently(address, patience)).await
}

/// Connects to one address.
///
/// A backend with a short backlog, such as the sdkserver's of 5, silently drops the SYN of a
/// burst. The kernel would repeat it only after a second, while the call holds its slot. So a try
/// that hangs is replaced by a new one, each with twice the patience.
async fn connect_patiently(address: SocketAddr, mut patience: Duration) -> io::Result<TcpStream> {
    loop {
        match timeout(patience, TcpStream::connect(address)).await {
            Ok(done) => return done,
            Err(_) => patience *= 2,
        }
    }
}

/// Connects to the first address that accepts a connection. Addresses that failed lately come last.
async fn connect_to_any(
    addresses: &[SocketAddr],
    bound: Duration,
    book: &AddressBook,
) -> Result<TcpStream, ConnectError> {
    let mut ordered = by_turns(addresses);
    book.put_in_order(&mut ordered, Instant::now());
    let mut left = ordered.into_iter();
    let mut failed = None;
    // The tries under way, and when each began.
    let mut begun: Vec<(SocketAddr, Instant)> = Vec::new();
    let trying = async {
        let mut tries = JoinSet::new();
        loop {
            if let Some(address) = left.next() {
                begun.push((address, Instant::now()));
                tries.spawn(async move { (address, connect_patiently(address, FIRST_TRY).await) });
            }
            tokio::select! {
                biased;
                Some(tried) = tries.join_next() => {
                    let Ok((address, tried)) = tried else { continue };
                    begun.retain(|(begun, _)| *begun != address);
                    match tried {
                        Ok(stream) => {
                            book.connected(address);
                            return Some(stream);
                        }
                        Err(error) => {
                            record_failure(book, address, &error);
                            failed = Some(more_telling(failed.take(), error));
                        }
                    }
                }
                () = sleep(NEXT_ADDRESS), if left.len() > 0 => {}
                else => return None,
            }
        }
    };
    let connected = timeout(bound, trying).await;
    for (address, since) in begun {
        let took = since.elapsed();
        // One that had less than its head start may still be a good one.
        if took >= NEXT_ADDRESS {
            let cause = format!("took no connection within {} ms", took.as_millis());
            book.failed(address, cause, Instant::now());
        }
    }
    match (connected, failed) {
        (Ok(Some(stream)), _) => Ok(stream),
        (_, Some(error)) => Err(ConnectError::Refused(error)),
        (_, None) => Err(ConnectError::TimedOut(bound)),
    }
}

/// IPv6 and IPv4 alternately, beginning with the kind of the first.
fn by_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_like_first = |address: &SocketAddr| address.is_ipv4() == addresses[0].is_ipv4();
    let (like, unlike): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_like_first);
    let mut unlike = unlike.into_iter();
    let mut ordered = Vec::with_capacity(addresses.len());
    for address in like {
        ordered.push(address);
        ordered.extend(unlike.next());
    }
    ordered.extend(unlike);
    ordered
}

/// The more informative of two failures. A lack of our own stops every address, but "no such
/// local address" may concern only one kind of address.
fn more_telling(before: Option<io::Error>, error: io::Error) -> io::Error {
    let rank = |error: &io::Error| {
        let is_one_kind = error.kind() == io::ErrorKind::AddrNotAvailable;
        match fault(error) {
            _ if is_one_kind => 0,
            Fault::Backend | Fault::Network => 1,
            Fault::Own => 2,
        }
    };
    match before {
        Some(before) if rank(&before) >= rank(&error) => before,
        _ => error,
    }
}

/// Connects to a socket file. Its connection is kept as a `TcpStream` too: both are stream sockets.
async fn connect_unix(path: &Path, bound: Duration) -> Result<TcpStream, ConnectError> {
    let trying = async {
        let address = SockAddr::unix(path)?;
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::UNIX, kind, None)?;
        loop {
            match socket.connect(&address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sleep(BACKLOG_FULL).await;
                }
                Err(error) => return Err(error),
                Ok(()) => return TcpStream::from_std(socket.into()),
            }
        }
    };
    within(bound, trying).await
}

/// Begins to connect, and writes what it can at once: nothing if the handshake takes time. An
/// error means that nothing was written.
fn begin(address: SocketAddr, bytes: &[u8]) -> io::Result<(std::net::TcpStream, usize)> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    // The last packet of the handshake carries the first bytes: one packet less, and the server finds
    // the bytes when it accepts. A socket without this option only sends one more packet.
    let _ = sockopt::set_tcp_quickack(&socket, false);
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
        Err(error) => return Err(error),
    }
    match socket.send(bytes) {
        Ok(written) => Ok((socket.into(), written)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((socket.into(), 0)),
        Err(error) => Err(error),
    }
}

/// Waits until the handshake is over.
async fn established(stream: &TcpStream) -> io::Result<()> {
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(()), Err)
}

/// The error of Linux for a connect under way.
const IN_PROGRESS: i32 = Errno::INPROGRESS.raw_os_error();
