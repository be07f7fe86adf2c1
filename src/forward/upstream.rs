//! A connection to the HTTP backend, between two calls.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::RecvFlags;
use tidegate_runtime::Timer;
use tokio::io::Interest;
use tokio::time::Instant;

use super::Bounds;
use super::pool::{LOOK_AFTER, Life, Pooled};
use super::stream::for_many;
use crate::call::Link;

/// A connection to a backend, for one request at a time.
pub(super) struct Upstream {
    pub(super) link: Link,
    /// Bounds the exchange under way. It is kept from one exchange to the next: to set a timer
    /// costs more than one that occasionally fires early.
    pub(super) timer: Timer,
    life: Life,
}

impl Pooled for Upstream {
    fn life(&self) -> Life {
        self.life
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.link.tcp().peer_addr().ok()
    }
}

impl Upstream {
    /// On a new connection.
    pub(super) fn new(link: Link, bounds: &Bounds) -> Self {
        Self {
            link: for_many(link),
            timer: Timer::default(),
            life: Life::begin(Instant::now(), bounds, rand::random()),
        }
    }

    /// Whether nothing has come while it was idle: neither an end nor a reply that was not asked for.
    pub(super) fn is_quiet(&mut self, idle_for: Duration) -> bool {
        let tcp = match &mut self.link {
            Link::Plain(tcp) => tcp,
            Link::Tls(secured) => return secured.is_quiet(),
        };
        let look = || {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let (length, _) = rustix::net::recv(&*tcp, &mut [0; 1], flags)?;
            Ok(length)
        };
        let looked = match idle_for >= LOOK_AFTER {
            true => look(),
            // Without news this makes no system call.
            false => tcp.try_io(Interest::READABLE, look),
        };
        matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use tokio::io::AsyncWrite;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_connection_on_which_something_came_is_not_quiet() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).await.expect("it listens");
        let (mut other, _) = listener.accept().await.expect("it connected");
        let mut upstream = Upstream::new(
            Link::Plain(stream),
            &crate::forward::deadline::tests::bounds(),
        );
        assert!(upstream.is_quiet(Duration::ZERO));
        assert!(upstream.is_quiet(LOOK_AFTER));
        let written = std::future::poll_fn(|cx| Pin::new(&mut other).poll_write(cx, b"x")).await;
        written.expect("it takes a byte");
        upstream.link.readable().await.expect("a byte came");
        assert!(!upstream.is_quiet(Duration::ZERO));
        assert!(!upstream.is_quiet(LOOK_AFTER));
    }
}
