//! What a connection to a backend is asked beside reading and writing.

use std::io;
use std::mem::MaybeUninit;

use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

use crate::call::{KEEPALIVE, Link};

/// The most bytes of a read past the runtime, which usually finds none.
const LOOK_BYTES: usize = 1024;

/// Makes the kernel detect a backend that dies silently.
pub(super) fn keep_alive(stream: &TcpStream) {
    // Without this option the socket still works.
    let _ = SockRef::from(stream).set_tcp_keepalive(&KEEPALIVE);
}

/// Sets a connection up for more than one call.
pub(super) fn for_many(link: Link) -> Link {
    // Without this option a small body would wait for the ACK of the head. A socket that cannot be
    // told so is only slower.
    let _ = link.tcp().set_nodelay(true);
    keep_alive(link.tcp());
    link
}

/// Closes without TIME_WAIT, which would hold one of our ports.
pub(super) fn reset_when_closed(stream: &TcpStream) {
    // If the socket refuses, it is closed in the ordinary way.
    let _ = stream.set_zero_linger();
}

/// Reads what the kernel has, even if the runtime has not reported it.
pub(super) fn read_now(stream: &TcpStream, into: &mut ReadBuf<'_>) -> io::Result<()> {
    // Into a small buffer of its own: to zero hyper's buffer would cost more than the call.
    let mut chunk = [MaybeUninit::uninit(); LOOK_BYTES];
    let room = &mut chunk[..into.remaining().min(LOOK_BYTES)];
    let ((read, _), _) = rustix::net::recv(stream, room, RecvFlags::DONTWAIT)?;
    into.put_slice(read);
    Ok(())
}
