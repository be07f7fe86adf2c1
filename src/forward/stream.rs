//! A connection to a backend, over any transport.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::RecvFlags;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

/// How the kernel detects a dead silent backend: after a minute it sends probes, and closes after
/// six without an answer.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

/// The most bytes of a read past the runtime, which usually finds none.
const LOOK_BYTES: usize = 1024;

/// The same bytes over either transport.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(tcp) => tcp.ready(interest).await,
            Self::Unix(unix) => unix.ready(interest).await,
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_write(bytes),
            Self::Unix(unix) => unix.try_write(bytes),
        }
    }

    pub(super) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_read_buf(into),
            Self::Unix(unix) => unix.try_read_buf(into),
        }
    }

    /// Sends small writes at once. Only TCP needs the option.
    pub(super) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }

    /// Makes the kernel detect a backend that dies silently. Only TCP needs the option.
    pub(super) fn keep_alive(&self) {
        if let Self::Tcp(tcp) = self {
            // Without this option the socket still works.
            let _ = SockRef::from(tcp).set_tcp_keepalive(&KEEPALIVE);
        }
    }

    /// Closes without TIME_WAIT, which would hold one of our ports.
    pub(super) fn reset_when_closed(&self) {
        if let Self::Tcp(tcp) = self {
            // If the socket refuses, it is closed in the ordinary way.
            let _ = tcp.set_zero_linger();
        }
    }

    /// Reads what the kernel has, even if the runtime has not reported it.
    pub(super) fn read_now(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        // Into a small buffer of its own: to zero hyper's buffer would cost more than the call.
        let mut chunk = [MaybeUninit::uninit(); LOOK_BYTES];
        let room = &mut chunk[..into.remaining().min(LOOK_BYTES)];
        let ((read, _), _) = match self {
            Self::Tcp(tcp) => rustix::net::recv(tcp, room, RecvFlags::DONTWAIT),
            Self::Unix(unix) => rustix::net::recv(unix, room, RecvFlags::DONTWAIT),
        }?;
        into.put_slice(read);
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Unix(unix) => Pin::new(unix).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_write_vectored(),
            Self::Unix(unix) => unix.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Unix(unix) => Pin::new(unix).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
        }
    }
}
