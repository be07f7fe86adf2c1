//! A connection to a backend on TLS, after the handshake.
//!
//! A write takes one record at most, and is over when the kernel has all of that record. So a write
//! that failed, or that was given up, has sent nothing that the backend could read: a record without
//! its end is discarded by TLS. That makes the first write of a call the moment from which it counts
//! as sent, as it is without TLS.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The content of the largest record (RFC 8446, 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// A connection on TLS.
pub struct TlsLink {
    tls: TlsStream<TcpStream>,
    /// Bytes of the write under way. They are encrypted, and the kernel has not all of them.
    owed: usize,
    /// A byte was read, so the backend had accepted the handshake.
    has_read: bool,
    /// Whether the end is not announced.
    breaks_off: bool,
}

impl TlsLink {
    /// After the handshake.
    pub(crate) fn new(tls: TlsStream<TcpStream>) -> Self {
        Self {
            tls,
            owed: 0,
            has_read: false,
            breaks_off: false,
        }
    }

    /// The connection below.
    pub(super) fn tcp(&self) -> &TcpStream {
        self.tls.get_ref().0
    }

    /// Whether there are bytes to read without the connection below.
    pub(super) fn has_decrypted(&self) -> bool {
        !self.tls.get_ref().1.wants_read()
    }

    pub(super) fn breaks_off(&mut self, breaks_off: bool) {
        self.breaks_off = breaks_off;
    }

    /// Whether neither an end nor any byte has come since the last read. Tickets for later handshakes may.
    pub(crate) fn is_quiet(&mut self) -> bool {
        if self.has_nothing() {
            return true;
        }
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let mut unwoken = Context::from_waker(Waker::noop());
        let read = Pin::new(&mut self.tls).poll_read(&mut unwoken, &mut byte);
        // What the runtime has not reported yet cannot be read yet.
        read.is_pending() && self.has_nothing()
    }

    /// Whether the kernel has nothing to read.
    fn has_nothing(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(self.tcp(), &mut [0; 1], flags);
        peeked.is_err_and(|error| io::Error::from(error).kind() == io::ErrorKind::WouldBlock)
    }

    /// Writes a record. Called again after a wait, it must be given the same bytes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.owed == 0 {
            let record = &bytes[..bytes.len().min(RECORD_BYTES)];
            self.owed = self.tls.get_mut().1.writer().write(record)?;
        }
        ready!(Pin::new(&mut self.tls).poll_flush(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut self.owed)))
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

impl AsyncRead for TlsLink {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        let read = Pin::new(&mut self.tls).poll_read(cx, buf);
        self.has_read |= buf.filled().len() > filled;
        match read {
            // An alert from now on is no verdict on the handshake: the backend has read what was sent.
            Poll::Ready(Err(error)) if self.has_read && error.get_ref().is_some() => {
                let kind = error.kind();
                Poll::Ready(Err(io::Error::new(kind, error.to_string())))
            }
            read => read,
        }
    }
}

/// Announces the end, as a side must before it closes (RFC 8446, 6.1), if that takes no wait.
impl Drop for TlsLink {
    fn drop(&mut self) {
        let (tcp, session) = self.tls.get_mut();
        // The rest of a record that was given up must never leave.
        if self.breaks_off || session.wants_write() {
            return;
        }
        session.send_close_notify();
        // The connection is closed in either case.
        let _ = session.write_tls(&mut NonBlockingWriter(tcp));
    }
}

/// Writes without waiting.
struct NonBlockingWriter<'a>(&'a TcpStream);

impl io::Write for NonBlockingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
