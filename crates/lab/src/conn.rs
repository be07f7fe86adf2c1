//! TCP connections with as few system calls as possible, since the measured program runs on the
//! same machine.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream as BareStream};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use socket2::{Domain, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream};

/// The most that one read takes.   bytes
const READ_BYTES: usize = 4 * 1024;

/// A listener that the runtime watches itself, so that accepted connections need no watching.
pub(crate) type Watched = AsyncFd<std::net::TcpListener>;

/// Watches a listener in this way.
///
/// # Errors
/// The error of the system.
pub(crate) fn watched(listener: TcpListener) -> io::Result<Watched> {
    #[expect(
        deprecated,
        reason = "safe for what keeps its descriptor, as the standard library's does"
    )]
    AsyncFd::with_interest(listener.into_std()?, Interest::READABLE)
}

/// Accepts a connection that the runtime does not watch yet.
///
/// # Errors
/// The error of the system; `WouldBlock` if no client has connected.
pub(crate) fn accept(listener: &impl AsFd) -> io::Result<BareStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::accept_with(listener, flags)?.into())
}

/// Connects, and writes at once as much as fits: on one machine a call then takes one wake-up.
///
/// # Errors
/// The error of the system. In that case no byte was written.
pub(crate) async fn connect_and_write(
    address: SocketAddr,
    bytes: &[u8],
) -> io::Result<(TcpStream, usize)> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    let written = match socket.send(bytes) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    let stream = TcpStream::from_std(socket.into())?;
    if written == 0 {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    Ok((stream, written))
}

/// An accepted connection. The runtime watches it only from its first wait: a complete call with
/// an answer that fits needs no watching.
pub(crate) struct Conn {
    /// Until it is watched.
    bare: Option<BareStream>,
    watched: Option<TcpStream>,
}

impl Conn {
    pub(crate) fn new(stream: BareStream) -> Self {
        Self {
            bare: Some(stream),
            watched: None,
        }
    }

    /// Reads the available bytes, or waits for some. Zero at the end.
    pub(crate) async fn read_some(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        if let Some(stream) = &mut self.bare {
            let mut chunk = [0; READ_BYTES];
            match stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => {
                    let read = read?;
                    into.extend_from_slice(&chunk[..read]);
                    return Ok(read);
                }
            }
        }
        self.watched()?.read_buf(into).await
    }

    /// Writes all bytes, without a time limit.
    pub(crate) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if let Some(stream) = &mut self.bare {
            match stream.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => bytes = &bytes[written?..],
            }
            if bytes.is_empty() {
                return Ok(());
            }
        }
        self.watched()?.write_all(bytes).await
    }

    /// Closes with a reset.
    pub(crate) fn reset(mut self) -> io::Result<()> {
        self.watched()?.set_zero_linger()
    }

    fn watched(&mut self) -> io::Result<&mut TcpStream> {
        if let Some(stream) = self.bare.take() {
            self.watched = Some(TcpStream::from_std(stream)?);
        }
        self.watched
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
