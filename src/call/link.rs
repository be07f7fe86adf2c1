//! A connection to a backend: plain, or with TLS.
//!
//! A connection to a socket file is a `TcpStream` too, because both are stream sockets. Options of
//! TCP have no effect on it.

#[cfg_attr(not(feature = "tls"), path = "link/without_tls.rs")]
mod secured;

use std::any::Any;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tidegate_runtime::lock;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

pub(crate) use self::secured::TlsLink;

/// A connection to a backend.
pub enum Link {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Encrypted. Boxed, so that a connection without TLS needs no room for it.
    Tls(Box<TlsLink>),
}

impl Link {
    /// The socket, for its options and for waiting.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(secured) => secured.tcp(),
        }
    }

    /// Whether the bytes are encrypted. Then a connection that just closes may have been cut by anybody.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes what it can at once.
    ///
    /// # Errors
    /// As the connection, and `WouldBlock` until [`tcp`](Self::tcp) is writable.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.try_write(bytes),
            Self::Tls(secured) => at_once(secured.poll_write(&mut noop_context(), bytes)),
        }
    }

    /// Reads what is here.
    ///
    /// # Errors
    /// As the connection, and `WouldBlock` until it is [`readable`](Self::readable).
    pub(crate) fn try_read(&mut self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.try_read_buf(into),
            Self::Tls(secured) => at_once(poll_read_buf(
                Pin::new(&mut **secured),
                &mut noop_context(),
                into,
            )),
        }
    }

    /// Waits for something to read. Returns whether the end is known to be behind it.
    ///
    /// # Errors
    /// As the connection.
    pub(crate) async fn readable(&self) -> io::Result<bool> {
        match self {
            Self::Plain(tcp) => Ok(tcp.ready(Interest::READABLE).await?.is_read_closed()),
            Self::Tls(secured) => {
                if !secured.has_decrypted() {
                    secured.tcp().readable().await?;
                }
                Ok(false)
            }
        }
    }

    /// A connection that is closed from now on has broken: its end is not announced.
    pub(crate) fn breaks_off(&mut self, breaks_off: bool) {
        if let Self::Tls(secured) = self {
            secured.breaks_off(breaks_off);
        }
    }
}

/// The backend connection that a client has logged in, which serves no other client. The client's connection and
/// its calls share it, and it is closed with the last of them.
#[derive(Clone, Default)]
pub struct PinnedConnection(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

impl PinnedConnection {
    /// Takes the connection, if it is idle. Only the stage that has put it knows what it is.
    pub(crate) fn take(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.0).take()
    }

    /// Puts an idle connection.
    pub(crate) fn put(&self, connection: Box<dyn Any + Send>) {
        *lock(&self.0) = Some(connection);
    }
}

impl fmt::Debug for PinnedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedConnection").finish_non_exhaustive()
    }
}

labels! {
    /// Why there is no TLS with a backend.
    pub enum TlsCause {
        /// No known authority signed its certificate.
        Untrusted = "untrusted",
        /// The certificate is for another name.
        WrongName = "wrong_name",
        /// The certificate has expired.
        Expired = "expired",
        /// The certificate is not valid yet.
        NotValidYet = "not_valid_yet",
        /// The certificate is wrong in another way.
        BadCertificate = "bad_certificate",
        /// The server does not accept the client certificate, or requires one.
        ClientCertificate = "client_certificate",
        /// The server does not speak TLS.
        NotTls = "not_tls",
        /// The server speaks TLS, and the config says that it does not.
        SpeaksTls = "speaks_tls",
        /// The server has no version, suite or protocol in common with this sidecar.
        NothingInCommon = "nothing_in_common",
        /// The connection closed in the handshake.
        Closed = "closed",
        /// The handshake took longer than `connect_timeout`.
        TimedOut = "timed_out",
        /// Anything else.
        Other = "other",
    }
}

impl TlsCause {
    /// Whether it stays until an operator acts.
    pub(crate) fn stays(self) -> bool {
        !matches!(self, Self::Closed | Self::TimedOut | Self::Other)
    }
}

/// The waker of a task that waits for the socket itself.
fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn at_once<T>(done: Poll<io::Result<T>>) -> io::Result<T> {
    match done {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl AsyncRead for Link {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(secured) => Pin::new(&mut **secured).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Link {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(secured) => secured.poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(secured) => {
                let first = bufs.iter().find(|buf| !buf.is_empty());
                secured.poll_write(cx, first.map_or(&[], |buf| &**buf))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        !self.is_tls()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A write is over only when the kernel has all of it, also with TLS.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(secured) => secured.poll_shutdown(cx),
        }
    }
}
