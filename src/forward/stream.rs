//! A connection to a backend, over any transport.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use bytes::BytesMut;
use rustix::net::RecvFlags;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

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
pub(super) struct Stream(pub(super) Either<TcpStream, UnixStream>);

impl Stream {
    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match &self.0 {
            Either::Left(tcp) => tcp.ready(interest).await,
            Either::Right(unix) => unix.ready(interest).await,
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Either::Left(tcp) => tcp.try_write(bytes),
            Either::Right(unix) => unix.try_write(bytes),
        }
    }

    pub(super) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match &self.0 {
            Either::Left(tcp) => tcp.try_read_buf(into),
            Either::Right(unix) => unix.try_read_buf(into),
        }
    }

    /// Sends small writes at once. Only TCP needs the option.
    pub(super) fn set_nodelay(&self) -> io::Result<()> {
        match &self.0 {
            Either::Left(tcp) => tcp.set_nodelay(true),
            Either::Right(_) => Ok(()),
        }
    }

    /// Makes the kernel detect a backend that dies silently. Only TCP needs the option.
    pub(super) fn keep_alive(&self) {
        if let Either::Left(tcp) = &self.0 {
            // Without this option the socket still works.
            let _ = SockRef::from(tcp).set_tcp_keepalive(&KEEPALIVE);
        }
    }

    /// Closes without TIME_WAIT, which would hold one of our ports.
    pub(super) fn reset_when_closed(&self) {
        if let Either::Left(tcp) = &self.0 {
            // If the socket refuses, it is closed in the ordinary way.
            let _ = tcp.set_zero_linger();
        }
    }

    /// Reads what the kernel has, even if the runtime has not reported it.
    pub(super) fn read_now(&self, into: &mut ReadBuf<'_>) -> io::Result<()> {
        // Into a small buffer of its own: to zero hyper's buffer would cost more than the call.
        let mut chunk = [MaybeUninit::uninit(); LOOK_BYTES];
        let room = &mut chunk[..into.remaining().min(LOOK_BYTES)];
        let ((read, _), _) = match &self.0 {
            Either::Left(tcp) => rustix::net::recv(tcp, room, RecvFlags::DONTWAIT),
            Either::Right(unix) => rustix::net::recv(unix, room, RecvFlags::DONTWAIT),
        }?;
        into.put_slice(read);
        Ok(())
    }
}
