//! A client's socket in the runtime, which also tells whether the client has left.
//!
//! A peek sees the first unread byte and nothing behind it. So this asks the kernel, which knows
//! of an end or a reset before the bytes in front of it are read. The runtime reports each event
//! once: to hear of the next one, its note that the socket can be read has to be cleared, although
//! there are bytes to read. From then on, reads ask the socket first and the runtime second; the
//! same holds for writes. What a client sent behind a full receive buffer is still at the client,
//! and its end with it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// What an end of the client's bytes means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnEof {
    /// The client has left.
    Left,
    /// The client sends no more, and still reads.
    Stays,
}

impl OnEof {
    /// As the listener's option says.
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
    /// Its sending side is closed, perhaps behind bytes that are unread.
    Ended,
    /// Both directions are closed.
    Reset,
}

/// A stream socket, TCP or Unix.
pub(crate) struct Wire {
    tcp: TcpStream,
    /// The runtime may not know that there is something to read.
    read_unknown: bool,
    /// The runtime may not know that there is room to write.
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

    /// The socket, for its options and for waiting. Whoever reads or writes past this type may
    /// wait for an event that has passed.
    pub(super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Reads with a system call of the caller's own.
    ///
    /// # Errors
    /// As that call, and `WouldBlock` until [`tcp`](Self::tcp) is readable.
    pub(super) fn try_read<R>(
        &mut self,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        if self.read_unknown {
            match read(self.tcp.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.read_unknown = false;
                }
                done => return done,
            }
        }
        let tcp = &self.tcp;
        tcp.try_io(Interest::READABLE, || read(tcp.as_fd()))
    }

    /// Writes with a system call of the caller's own.
    ///
    /// # Errors
    /// As that call, and `WouldBlock` until [`tcp`](Self::tcp) is writable.
    pub(super) fn try_write<R>(
        &mut self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        if self.write_unknown {
            match write(self.tcp.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.write_unknown = false;
                }
                done => return done,
            }
        }
        let tcp = &self.tcp;
        tcp.try_io(Interest::WRITABLE, || write(tcp.as_fd()))
    }

    /// Ready when the client has left, however much it sent before. Takes none of its bytes.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>, on_eof: OnEof) -> Poll<()> {
        loop {
            // Without an event since the last look this is no system call.
            if ready!(self.tcp.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            self.forget_readable();
            // After that, so that an event in between is one more to look at.
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
            // The end of what is read stays reported for ever, so only the other side tells more.
            if ready!(self.tcp.poll_write_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            self.forget_writable();
            if self.side() == Side::Reset {
                return Poll::Ready(());
            }
        }
    }

    /// Whether the client's sending side is closed, as far as the runtime has heard. Mostly no
    /// system call.
    pub(super) fn has_ended(&self) -> bool {
        let has_news = self.tcp.try_io(Interest::READABLE, || Ok(())).is_ok();
        has_news && self.side() != Side::Open
    }

    fn side(&self) -> Side {
        let mut asked = [PollFd::new(&self.tcp, PollFlags::IN | PollFlags::RDHUP)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A socket that cannot be asked is taken for one that is open: reading will tell.
        let _ = rustix::event::poll(&mut asked, Some(&at_once));
        let told = asked[0].revents();
        if told.intersects(PollFlags::HUP | PollFlags::ERR) {
            Side::Reset
        } else if told.contains(PollFlags::RDHUP) {
            Side::Ended
        } else {
            Side::Open
        }
    }

    fn forget_readable(&mut self) {
        self.read_unknown = true;
        let _ = self.tcp.try_io(Interest::READABLE, would_block);
    }

    fn forget_writable(&mut self) {
        self.write_unknown = true;
        let _ = self.tcp.try_io(Interest::WRITABLE, would_block);
    }
}

/// What makes the runtime clear its note of an event.
fn would_block() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_unknown {
            let mut chunk = [MaybeUninit::uninit(); 4096];
            let wanted = buf.remaining().min(chunk.len());
            match rustix::net::recv(&self.tcp, &mut chunk[..wanted], RecvFlags::DONTWAIT) {
                Ok(((read, _), _)) => {
                    buf.put_slice(read);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::AGAIN) => self.read_unknown = false,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write_unknown {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.tcp, buf, flags) {
                Ok(written) => return Poll::Ready(Ok(written)),
                Err(rustix::io::Errno::AGAIN) => self.write_unknown = false,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Pin::new(&mut self.tcp).poll_write(cx, buf)
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
