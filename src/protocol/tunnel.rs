//! The two directions of a TCP tunnel, and the report of its end.
//!
//! Each kind of end is passed on. If one side closes its direction, the other side's is closed,
//! and the other direction continues. If one side breaks, the other side is reset, so that a part
//! of the bytes never looks like all of them. Until the tunnel has ended completely, both sockets
//! are set to reset on close. That also applies if the process dies.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::stream::ClientStream;
use super::streams::StreamWatch;
use super::wire::Wire;
use crate::call::{Link, Reason, Record, Tunnel, Verdict};

/// The most of one read, in each direction.
const CHUNK_BYTES: usize = 8 * 1024;

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TunnelEnd {
    /// Both sides ended their bytes, and all of them were passed on.
    Whole,
    /// The client's connection broke.
    ByClient,
    /// The backend's connection broke.
    ByBackend,
    /// No byte moved for too long.
    Idle,
    /// The proxy stops.
    Drained,
}

/// Passes bytes in both directions until the tunnel ends, and records how it ended.
/// `first` came from the client before.
pub(super) async fn run(
    mut client: ClientStream,
    first: Vec<u8>,
    tunnel: Tunnel,
    idle_timeout: Duration,
    mut watch: StreamWatch,
) {
    let Tunnel {
        link,
        first: from_backend,
        slot,
        record,
    } = tunnel;
    let mut backend = BackendStream::new(link);
    backend.breaks_off(true);
    reset_when_closed(client.tcp(), backend.tcp());
    let mut ways = TunnelDirections {
        up: TunnelDirection::with(&first),
        down: TunnelDirection::with(&from_backend),
        moved: Instant::now(),
        ended: TunnelEnd::Drained,
        record,
    };
    let ended = {
        let mut idle = pin!(sleep_until(ways.moved + idle_timeout));
        poll_fn(|cx| {
            if watch.poll_end(cx).is_ready() {
                return Poll::Ready(TunnelEnd::Drained);
            }
            if let Poll::Ready(ended) = ways.poll(cx, &mut client, &mut backend) {
                return Poll::Ready(ended);
            }
            // Set again only when it has expired, because bytes move far more often.
            while idle.as_mut().poll(cx).is_ready() {
                let until = ways.moved + idle_timeout;
                if until <= Instant::now() {
                    return Poll::Ready(TunnelEnd::Idle);
                }
                idle.as_mut().reset(until);
            }
            Poll::Pending
        })
        .await
    };
    ways.ended = ended;
    if ended == TunnelEnd::Whole {
        backend.breaks_off(false);
        close_as_usual(client.tcp());
        close_as_usual(backend.tcp());
    }
    // The slot first, so that a client that sees the end and connects again at once finds it free.
    drop(slot);
    drop((client, backend));
    // This also reports the call.
    drop(ways);
}

fn reset_when_closed(client: &TcpStream, backend: &TcpStream) {
    // A socket that cannot be told so is closed the ordinary way.
    let _ = client.set_zero_linger();
    let _ = backend.set_zero_linger();
}

fn close_as_usual(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(None);
}

/// The connection to the backend.
enum BackendStream {
    Plain(Wire),
    Tls(Link),
}

impl BackendStream {
    fn new(link: Link) -> Self {
        match link {
            Link::Plain(tcp) => Self::Plain(Wire::new(tcp)),
            link @ Link::Tls(_) => Self::Tls(link),
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(wire) => wire.tcp(),
            Self::Tls(link) => link.tcp(),
        }
    }

    /// The end of TLS is not announced if the tunnel breaks: it would look like a whole end.
    fn breaks_off(&mut self, breaks_off: bool) {
        if let Self::Tls(link) = self {
            link.breaks_off(breaks_off);
        }
    }

    /// Ready when the connection is closed in both directions. With TLS only a write shows that.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(wire) => wire.poll_reset(cx),
            Self::Tls(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for BackendStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_read(cx, buf),
            Self::Tls(link) => Pin::new(link).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_write(cx, buf),
            Self::Tls(link) => Pin::new(link).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_flush(cx),
            Self::Tls(link) => Pin::new(link).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_shutdown(cx),
            Self::Tls(link) => Pin::new(link).poll_shutdown(cx),
        }
    }
}

/// Both directions. When it is dropped, it records their progress.
struct TunnelDirections {
    /// From the client to the backend.
    up: TunnelDirection,
    /// From the backend to the client.
    down: TunnelDirection,
    /// When a byte last moved.
    moved: Instant,
    /// How the tunnel ended; drained, if the process stopped it.
    ended: TunnelEnd,
    record: Arc<Record>,
}

impl TunnelDirections {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientStream,
        backend: &mut BackendStream,
    ) -> Poll<TunnelEnd> {
        let before = self.up.bytes + self.down.bytes;
        let up = match self.up.poll(cx, client, backend) {
            Ok(up) => up,
            // The other direction is not read any more: after a failed write, a reset looks like an end there.
            Err(BrokenEnd::From) => return Poll::Ready(TunnelEnd::ByClient),
            Err(BrokenEnd::To) => return Poll::Ready(TunnelEnd::ByBackend),
        };
        let down = match self.down.poll(cx, backend, client) {
            Ok(down) => down,
            Err(BrokenEnd::From) => return Poll::Ready(TunnelEnd::ByBackend),
            Err(BrokenEnd::To) => return Poll::Ready(TunnelEnd::ByClient),
        };
        if self.up.bytes + self.down.bytes != before {
            self.moved = Instant::now();
        }
        match (up, down) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(TunnelEnd::Whole),
            // A side that is no longer read may still be reset.
            (Poll::Ready(()), _) if client.poll_reset(cx).is_ready() => {
                Poll::Ready(TunnelEnd::ByClient)
            }
            (_, Poll::Ready(())) if backend.poll_reset(cx).is_ready() => {
                Poll::Ready(TunnelEnd::ByBackend)
            }
            _ => Poll::Pending,
        }
    }
}

impl Drop for TunnelDirections {
    fn drop(&mut self) {
        let (verdict, reason) = match self.ended {
            TunnelEnd::Whole => (None, None),
            TunnelEnd::ByClient => (Some(Verdict::Aborted), None),
            TunnelEnd::ByBackend => (Some(Verdict::Failed), Some(Reason::BackendCut)),
            TunnelEnd::Idle => (Some(Verdict::Failed), Some(Reason::TunnelIdle)),
            TunnelEnd::Drained => (Some(Verdict::Failed), Some(Reason::Draining)),
        };
        self.record.note(|facts| {
            facts.bytes_in = self.up.bytes;
            facts.bytes_out = self.down.bytes;
            facts.left |= self.ended == TunnelEnd::ByClient;
            if let Some(verdict) = verdict {
                facts.verdict = verdict;
            }
            facts.reason = facts.reason.or(reason);
        });
    }
}

/// The end of a direction that broke.
enum BrokenEnd {
    From,
    To,
}

/// A direction: bytes that were read and not written yet.
#[derive(Default)]
struct TunnelDirection {
    /// `None` while it is empty.
    held: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    /// Number of bytes that have been written.
    bytes: u64,
    /// Whether something was written that may not have been sent.
    unflushed: bool,
    /// The end of the bytes was read.
    is_read: bool,
    /// The end was passed on.
    is_over: bool,
}

impl TunnelDirection {
    /// A direction in which these bytes are the first.
    fn with(first: &[u8]) -> Self {
        Self {
            held: (!first.is_empty()).then(|| first.into()),
            end: first.len(),
            ..Self::default()
        }
    }

    /// Passes on what it can. Ready when the end of the bytes was passed on.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Result<Poll<()>, BrokenEnd>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.is_over {
            return Ok(Poll::Ready(()));
        }
        loop {
            if self.start == self.end && !self.is_read {
                match self.poll_read(cx, from).map_err(|_| BrokenEnd::From)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => {
                        if self.unflushed {
                            let flushed = Pin::new(&mut *to).poll_flush(cx);
                            self.unflushed = flushed.map_err(|_| BrokenEnd::To)?.is_pending();
                        }
                        return Ok(Poll::Pending);
                    }
                }
            }
            while self.start < self.end {
                let held = self.held.as_deref().expect("what is held has a place");
                let writing = Pin::new(&mut *to).poll_write(cx, &held[self.start..self.end]);
                match writing.map_err(|_| BrokenEnd::To)? {
                    Poll::Ready(0) => return Err(BrokenEnd::To),
                    Poll::Ready(written) => {
                        self.start += written;
                        self.bytes += written as u64;
                        self.unflushed = true;
                    }
                    Poll::Pending => return Ok(Poll::Pending),
                }
            }
            if self.is_read {
                let shutting = Pin::new(&mut *to).poll_shutdown(cx);
                return match shutting.map_err(|_| BrokenEnd::To)? {
                    Poll::Ready(()) => {
                        self.is_over = true;
                        Ok(Poll::Ready(()))
                    }
                    Poll::Pending => Ok(Poll::Pending),
                };
            }
        }
    }

    /// Reads some bytes, or their end. Without bytes it keeps no buffer, because most tunnels are
    /// usually silent.
    fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
    ) -> Poll<io::Result<()>> {
        let mut held = self
            .held
            .take()
            .filter(|held| held.len() == CHUNK_BYTES)
            .unwrap_or_else(|| Box::new([0; CHUNK_BYTES]));
        let mut chunk = ReadBuf::new(&mut held[..]);
        let read = Pin::new(from).poll_read(cx, &mut chunk)?;
        if read.is_pending() {
            return Poll::Pending;
        }
        (self.start, self.end) = (0, chunk.filled().len());
        self.is_read = self.end == 0;
        self.held = (!self.is_read).then_some(held);
        Poll::Ready(Ok(()))
    }
}
