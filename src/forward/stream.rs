//! Socket options of connections to backends.

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::call::{KEEPALIVE, Link};

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
