//! Connections to a backend.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Address;

/// Why no byte of a call could be sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connect failed.
    #[error("cannot connect to the backend")]
    Refused(#[source] io::Error),
    /// The connect took longer than `connect_timeout`.
    #[error("the backend took no connection within {0:?}")]
    TimedOut(Duration),
    /// It connected and then took no byte.
    #[error("the backend closed before a byte was written")]
    ClosedBefore(#[source] io::Error),
}

/// How long the first try of a connect may take before a second is made.
const FIRST_TRY: Duration = Duration::from_millis(100);

/// Connects within a bound.
///
/// A backend with a short backlog, as the sdkserver's of 5, drops the SYN of a burst
/// silently, and the kernel would only repeat it after a second, while the call holds its
/// slot. So a try that hangs is given up for a new one, each twice as patient as the last.
pub(super) async fn connect(address: &Address, bound: Duration) -> Result<TcpStream, ConnectError> {
    connect_after(address, FIRST_TRY, bound).await
}

/// The same, with this patience for its first try.
async fn connect_after(
    address: &Address,
    mut patience: Duration,
    bound: Duration,
) -> Result<TcpStream, ConnectError> {
    let trying = async {
        loop {
            match timeout(patience, try_connect(address)).await {
                Ok(done) => return done,
                Err(_) => patience *= 2,
            }
        }
    };
    match timeout(bound, trying).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(ConnectError::Refused(error)),
        Err(_) => Err(ConnectError::TimedOut(bound)),
    }
}

async fn try_connect(address: &Address) -> io::Result<TcpStream> {
    match address {
        Address::Ip(address) => TcpStream::connect(address).await,
        Address::Name(name, port) => TcpStream::connect((&**name, *port)).await,
    }
}

/// Connects and writes what it can at once: on the same machine the handshake is over
/// before the connect returns, so one trip through the reactor carries the whole call.
/// Returns the connection and how much has been written, which may be nothing.
pub(super) async fn connect_and_write(
    address: &Address,
    bytes: &[u8],
    bound: Duration,
) -> Result<(TcpStream, usize), ConnectError> {
    if let Address::Ip(address) = address {
        let (stream, written) =
            begin(*address, bytes, Handshake::EndsWithData).map_err(ConnectError::Refused)?;
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
        let stream = connect_after(&Address::Ip(*address), FIRST_TRY * 2, rest).await?;
        return Ok((stream, 0));
    }
    Ok((connect(address, bound).await?, 0))
}

/// When the last packet of a handshake leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// As soon as it can.
    EndsAtOnce,
    /// With the first bytes, which have to follow at once: a packet less, and the server finds
    /// the bytes there when it accepts.
    EndsWithData,
}

/// Begins to connect, and writes what goes at once: nothing if the handshake takes its
/// time. An error means that nothing was written.
///
/// # Errors
/// As the system has it.
pub fn begin(
    address: SocketAddr,
    bytes: &[u8],
    handshake: Handshake,
) -> io::Result<(std::net::TcpStream, usize)> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    if handshake == Handshake::EndsWithData {
        // A socket that cannot be told so only sends a packet more.
        let _ = sockopt::set_tcp_quickack(&socket, false);
    }
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
///
/// # Errors
/// Why it failed.
pub async fn established(stream: &TcpStream) -> io::Result<()> {
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// What Linux says of a connect that goes on.
const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
