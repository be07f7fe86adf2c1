//! A client's connection in the runtime, with or without TLS.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tls::{self, Session};
use super::wire::{OnEof, Wire};

/// The most that is decrypted ahead of time.   bytes
const AHEAD_BYTES: usize = 4 * 1024;

/// A client's byte stream, encrypted or not. Its users read and write the same bytes either way.
pub(super) enum ClientStream {
    /// Unencrypted.
    Plain(Wire),
    /// Encrypted. Boxed, so that a connection without TLS needs no room for it.
    Tls(Box<ClientTlsStream>),
}

/// A connection with TLS.
pub(super) struct ClientTlsStream {
    tls: Session,
    /// Decrypted only to check whether the client is still there, and not read yet.
    ahead: Vec<u8>,
    /// After that, the client sends no more.
    has_ended: bool,
}

impl ClientStream {
    pub(super) fn secured(tls: Session) -> Self {
        Self::Tls(Box::new(ClientTlsStream {
            tls,
            ahead: Vec::new(),
            has_ended: false,
        }))
    }

    /// The connection below.
    pub(super) fn tcp(&self) -> &TcpStream {
        self.wire().tcp()
    }

    fn wire(&self) -> &Wire {
        match self {
            Self::Plain(wire) => wire,
            Self::Tls(secured) => tls::below(&secured.tls),
        }
    }

    fn wire_mut(&mut self) -> &mut Wire {
        match self {
            Self::Plain(wire) => wire,
            Self::Tls(secured) => tls::below_mut(&mut secured.tls),
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// From now on a close resets the connection, so that what was sent does not look whole.
    pub(super) fn reset_when_closed(&self) {
        // A socket that cannot be told so is closed the ordinary way.
        let _ = self.tcp().set_zero_linger();
    }

    /// Writes what leaves without a wait, and returns how much that is. Any error shows again at the next write. With
    /// TLS it is nothing, because written bytes may still wait to be encrypted and sent.
    pub(super) fn write_at_once(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> usize {
        if self.is_tls() {
            return 0;
        }
        match Pin::new(self).poll_write(cx, bytes) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        }
    }

    /// Writes what leaves without a wait, with TLS too, and keeps the rest.
    ///
    /// # Errors
    /// If the client has left.
    pub(super) fn write_ahead(
        &mut self,
        bytes: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        if let Poll::Ready(written) = Pin::new(&mut *self).poll_write(cx, bytes) {
            bytes.drain(..written?);
        }
        match self.is_tls() {
            true => match Pin::new(self).poll_flush(cx) {
                Poll::Ready(flushed) => flushed,
                Poll::Pending => Ok(()),
            },
            false => Ok(()),
        }
    }

    /// The next read asks the kernel, which may have bytes that the runtime does not know of yet.
    pub(super) fn look(&mut self) {
        self.wire_mut().look();
    }

    /// Ready when the client has left, for any amount of unread bytes.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>, on_eof: OnEof) -> Poll<()> {
        match self {
            Self::Plain(wire) => wire.poll_left(cx, on_eof),
            Self::Tls(secured) => secured.poll_left(cx, on_eof),
        }
    }

    /// Ready when the connection is closed in both directions.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wire_mut().poll_reset(cx)
    }

    /// Whether the client has left, as of the latest event. With TLS, bytes that are not decrypted yet may say so, too.
    pub(super) fn has_left(&self, on_eof: OnEof) -> bool {
        self.wire().has_left(on_eof)
    }
}

impl ClientTlsStream {
    /// The end of TLS is a message, so received bytes must be decrypted to see it. Beyond the bytes
    /// that are decrypted ahead, only the end of the connection below is visible.
    fn poll_left(&mut self, cx: &mut Context<'_>, on_eof: OnEof) -> Poll<()> {
        while !self.has_ended && self.ahead.len() < AHEAD_BYTES {
            let mut chunk = [MaybeUninit::uninit(); AHEAD_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk[self.ahead.len()..]);
            match Pin::new(&mut self.tls).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) => {
                    self.has_ended = chunk.filled().is_empty();
                    self.ahead.extend_from_slice(chunk.filled());
                }
                // The connection below has ended, without the end of TLS.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.has_ended = true;
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        let wire = tls::below_mut(&mut self.tls);
        match (self.has_ended, on_eof) {
            (true, OnEof::Left) => Poll::Ready(()),
            (true, OnEof::Stays) => wire.poll_reset(cx),
            (false, _) => wire.poll_left(cx, on_eof),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_read(cx, buf),
            Self::Tls(secured) if secured.ahead.is_empty() => {
                Pin::new(&mut secured.tls).poll_read(cx, buf)
            }
            Self::Tls(secured) => {
                let taken = secured.ahead.len().min(buf.remaining());
                buf.put_slice(&secured.ahead[..taken]);
                secured.ahead.drain(..taken);
                if secured.ahead.is_empty() {
                    secured.ahead = Vec::new();
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_write(cx, buf),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_write_vectored(cx, bufs),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_flush(cx),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(wire) => Pin::new(wire).poll_shutdown(cx),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_shutdown(cx),
        }
    }
}
