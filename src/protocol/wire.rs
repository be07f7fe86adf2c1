//! A client's socket in the runtime, with a check whether the client has left.
//!
//! A peek sees the first unread byte and not the end behind it. This module asks the kernel with
//! poll(2), which reports an end or a reset while bytes in front of it are unread. The runtime
//! wakes a task once per event. To get the next event, this module clears the runtime's readiness
//! although bytes are unread; from then on a read tries the socket before it asks the runtime.
//! Writes work the same way.
//!
//! One limit remains: if the receive buffer is full, the end is still in the client's kernel.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Most bytes of a read that does not go through the runtime.
const READ_BYTES: usize = 16 * 1024;

/// Meaning of the end of the client's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnEof {
    /// The client has left.
    Left,
    /// The client sends no more, and still reads.
    Stays,
}

impl OnEof {
    /// From the listener's option.
    pub(super) fn new(cancel_on_eof: bool) -> Self {
        if cancel_on_eof {
            Self::Left
        } else {
            Self::Stays
        }
    }
}

/// The client's side of a connection, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Open,
    /// The client has closed its sending side, perhaps behind bytes that are unread.
    Ended,
    /// Both directions are closed.
    Reset,
}

/// A stream socket, TCP or Unix.
pub(crate) struct Wire {
    tcp: TcpStream,
    /// Readiness was cleared, so there may be bytes to read without an event.
    read_unknown: bool,
    /// Readiness was cleared, so there may be room to write without an event.
    write_unknown: bool,
}

impl Wire {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Self {
            tcp,
            read_unknown: false,
            write_unknown: false,
        }
    }

    /// The socket, for its options and for waiting. Do not read or write through it: that may wait
    /// for an event that has passed.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The next read asks the kernel, which may have bytes that the runtime does not know of yet.
    pub(super) fn look(&mut self) {
        self.read_unknown = true;
    }

    /// Reads with a system call of the caller's own.
    ///
    /// # Errors
    /// As that call, and `WouldBlock` until [`tcp`](Self::tcp) is readable.
    pub(super) fn try_read<R>(
        &mut self,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let tcp = &self.tcp;
        at_once(&mut self.read_unknown, || read(tcp.as_fd()))
            .unwrap_or_else(|| tcp.try_io(Interest::READABLE, || read(tcp.as_fd())))
    }

    /// Writes with a system call of the caller's own.
    ///
    /// # Errors
    /// As that call, and `WouldBlock` until [`tcp`](Self::tcp) is writable.
    pub(super) fn try_write<R>(
        &mut self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let tcp = &self.tcp;
        at_once(&mut self.write_unknown, || write(tcp.as_fd()))
            .unwrap_or_else(|| tcp.try_io(Interest::WRITABLE, || write(tcp.as_fd())))
    }

    /// Ready when the client has left, however much it sent before. Takes none of its bytes.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>, on_eof: OnEof) -> Poll<()> {
        loop {
            // Without a new event this makes no system call.
            if ready!(self.tcp.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            self.read_unknown = true;
            let _ = self.tcp.try_io(Interest::READABLE, would_block);
            // Asked after the clearing, so that an event in between is not lost.
            match (self.side(), on_eof) {
                (Side::Open, _) => {}
                (Side::Ended, OnEof::Stays) => return self.poll_reset(cx),
                (Side::Ended, OnEof::Left) | (Side::Reset, _) => return Poll::Ready(()),
            }
        }
    }

    /// Ready when the connection is closed in both directions.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            // The runtime never clears a read end, so a reset is waited for on the write side.
            if ready!(self.tcp.poll_write_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            self.write_unknown = true;
            let _ = self.tcp.try_io(Interest::WRITABLE, would_block);
            if self.side() == Side::Reset {
                return Poll::Ready(());
            }
        }
    }

    /// Whether the client has left, as of the latest event. Makes a system call only if there was one.
    pub(super) fn has_left(&self, on_eof: OnEof) -> bool {
        let has_news = self.tcp.try_io(Interest::READABLE, || Ok(())).is_ok();
        has_news
            && match self.side() {
                Side::Open => false,
                Side::Ended => on_eof == OnEof::Left,
                Side::Reset => true,
            }
    }

    fn side(&self) -> Side {
        let mut asked = [PollFd::new(&self.tcp, PollFlags::IN | PollFlags::RDHUP)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // If poll fails the socket counts as open: the next read returns the error.
        let _ = rustix::event::poll(&mut asked, Some(&at_once));
        let events = asked[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            Side::Reset
        } else if events.contains(PollFlags::RDHUP) {
            Side::Ended
        } else {
            Side::Open
        }
    }
}

/// Returns the result that makes the runtime clear its readiness.
fn would_block() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// Makes a system call without asking the runtime, if its readiness was cleared. `None` if the
/// runtime must be asked.
fn at_once<R>(unknown: &mut bool, call: impl FnOnce() -> io::Result<R>) -> Option<io::Result<R>> {
    if !*unknown {
        return None;
    }
    let done = call();
    *unknown = !matches!(&done, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    unknown.then_some(done)
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            tcp, read_unknown, ..
        } = &mut *self;
        let received = at_once(read_unknown, || {
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let wanted = buf.remaining().min(chunk.len());
            let received = rustix::net::recv(&*tcp, &mut chunk[..wanted], RecvFlags::DONTWAIT);
            let ((read, _), _) = received?;
            buf.put_slice(read);
            Ok(())
        });
        match received {
            Some(received) => Poll::Ready(received),
            None => Pin::new(tcp).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self {
            tcp, write_unknown, ..
        } = &mut *self;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match at_once(write_unknown, || Ok(rustix::net::send(&*tcp, buf, flags)?)) {
            Some(written) => Poll::Ready(written),
            None => Pin::new(tcp).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.write_unknown {
            let first = bufs.iter().find(|buf| !buf.is_empty());
            return self.poll_write(cx, first.map_or(&[], |buf| &**buf));
        }
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
