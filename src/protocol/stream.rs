//! A client's connection as the runtime has it, with or without TLS.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// What is decrypted ahead of time at most.   bytes
const AHEAD_BYTES: usize = 4 * 1024;

/// Either way the same bytes to whoever reads and writes.
pub(super) enum Stream {
    /// As they are.
    Plain(TcpStream),
    /// Encrypted. Boxed, so that a connection without TLS keeps no room for it.
    Tls(Box<Secured>),
}

/// A connection with TLS.
pub(super) struct Secured {
    tls: TlsStream<TcpStream>,
    /// Decrypted only to see whether the client is still there, and not asked for yet.
    ahead: Vec<u8>,
}

impl Stream {
    pub(super) fn secured(tls: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(Secured {
            tls,
            ahead: Vec::new(),
        }))
    }

    /// The connection below.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(secured) => secured.tls.get_ref().0,
        }
    }

    /// Looks without taking anything: 0 at the end, else how much is there, at least.
    pub(super) fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => {
                let mut byte = [MaybeUninit::uninit(); 1];
                tcp.poll_peek(cx, &mut ReadBuf::uninit(&mut byte))
            }
            Self::Tls(secured) => secured.poll_peek(cx),
        }
    }
}

impl Secured {
    /// The end of TLS is a message of its own, so what has come in has to be decrypted to see
    /// it.
    fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.ahead.is_empty() {
            let mut chunk = [MaybeUninit::uninit(); AHEAD_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            ready!(Pin::new(&mut self.tls).poll_read(cx, &mut chunk))?;
            self.ahead.extend_from_slice(chunk.filled());
        }
        Poll::Ready(Ok(self.ahead.len()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
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

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(secured) => secured.tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(secured) => Pin::new(&mut secured.tls).poll_shutdown(cx),
        }
    }
}
