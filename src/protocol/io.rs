//! Reading from and writing to a client, within bounds.
//!
//! With TLS every read and write goes through the runtime; the short ways below are for
//! connections without it.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream as BareStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::stream::ClientStream;
use super::wire::Wire;

/// Largest number of bytes that one read takes.
const READ_BYTES: usize = 4 * 1024;

/// How long a client is still read after its answer, so that closing does not reset the connection
/// and destroy an answer on its way.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// The bytes that may still be read in that time.
pub(super) struct UnreadBytes {
    left: usize,
    seen: u64,
}

impl Default for UnreadBytes {
    fn default() -> Self {
        Self {
            left: 64 * 1024,
            seen: 0,
        }
    }
}

impl UnreadBytes {
    /// No bound on bytes; time bounds them.
    pub(super) fn all() -> Self {
        Self {
            left: usize::MAX,
            seen: 0,
        }
    }

    /// Bytes that were read and discarded.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Reads and discards; ready at the end of the client's bytes, or when they are too many.
    pub(super) fn poll_discard(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut ClientStream,
    ) -> Poll<()> {
        let mut scrap = [MaybeUninit::uninit(); READ_BYTES];
        while self.left > 0 {
            let mut room = ReadBuf::uninit(&mut scrap);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut room));
            if read.is_err() || room.filled().is_empty() {
                break;
            }
            self.left = self.left.saturating_sub(room.filled().len());
            self.seen += room.filled().len() as u64;
        }
        Poll::Ready(())
    }
}

/// A client's connection. It is watched only from the first moment on at which it has to be
/// waited for: a call that is here whole and need not wait costs no watching.
pub(super) struct Client(Socket);

enum Socket {
    /// Asked directly.
    Bare(BareStream),
    /// Known to the runtime.
    Watched(ClientStream),
    /// On its way from one to the other.
    Between,
}

impl Client {
    /// Takes over a connection that is non-blocking and registered nowhere.
    pub(super) fn new(stream: BareStream) -> Self {
        Self(Socket::Bare(stream))
    }

    pub(super) fn secured(stream: ClientStream) -> Self {
        Self(Socket::Watched(stream))
    }

    /// The connection as the runtime has it.
    ///
    /// # Errors
    /// If the runtime cannot take it.
    fn watched(&mut self) -> io::Result<&mut ClientStream> {
        if let Socket::Bare(_) = self.0 {
            let bare = Self(std::mem::replace(&mut self.0, Socket::Between));
            self.0 = Socket::Watched(bare.into_watched()?);
        }
        match &mut self.0 {
            Socket::Watched(stream) => Ok(stream),
            Socket::Bare(_) | Socket::Between => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Takes the connection as the runtime has it, for good.
    ///
    /// # Errors
    /// If the runtime cannot take it.
    pub(super) fn into_watched(self) -> io::Result<ClientStream> {
        match self.0 {
            Socket::Bare(bare) => Ok(ClientStream::Plain(Wire::new(TcpStream::from_std(bare)?))),
            Socket::Watched(stream) => Ok(stream),
            Socket::Between => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The socket, for a system call.
    fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.0 {
            Socket::Bare(stream) => Ok(stream.as_fd()),
            Socket::Watched(stream) => Ok(stream.tcp().as_fd()),
            Socket::Between => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Kept out of the futures: its buffer lives on the stack of one call.
    fn read_now(&mut self, into: &mut Vec<u8>, flags: RecvFlags) -> io::Result<usize> {
        let mut chunk = [MaybeUninit::<u8>::uninit(); READ_BYTES];
        let mut receive = |stream: BorrowedFd<'_>| {
            let (read, _) = rustix::net::recv(stream, &mut chunk, flags)?.0;
            into.extend_from_slice(read);
            Ok(read.len())
        };
        match &mut self.0 {
            Socket::Bare(stream) => receive(stream.as_fd()),
            Socket::Watched(ClientStream::Plain(wire)) => wire.try_read(receive),
            Socket::Watched(ClientStream::Tls(_)) => Err(io::ErrorKind::WouldBlock.into()),
            Socket::Between => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Whether nothing unread is left, as far as can be known now.
    fn is_drained(&self) -> bool {
        if let Socket::Watched(ClientStream::Tls(_)) = self.0 {
            return false;
        }
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let unread = |socket| rustix::net::recv(socket, &mut [0; 1], peek);
        !self
            .socket()
            .is_ok_and(|socket| matches!(unread(socket), Ok((1.., _))))
    }

    fn write_now(&mut self, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
        let send = |stream: BorrowedFd<'_>| {
            let flags = flags | SendFlags::NOSIGNAL;
            Ok(rustix::net::send(stream, bytes, flags)?)
        };
        match &mut self.0 {
            Socket::Bare(stream) => send(stream.as_fd()),
            Socket::Watched(ClientStream::Plain(wire)) => wire.try_write(send),
            Socket::Watched(ClientStream::Tls(_)) => Err(io::ErrorKind::WouldBlock.into()),
            Socket::Between => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The first byte, without taking it; none at the end.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) async fn peek_first(&mut self) -> io::Result<Option<u8>> {
        let mut bytes = Vec::new();
        self.peek_some(&mut bytes).await?;
        Ok(bytes.first().copied())
    }

    /// Appends what has come in without taking it, at least one byte unless at the end. Only
    /// before TLS.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) async fn peek_some(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            match self.read_now(into, RecvFlags::PEEK) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.watched()?.tcp().readable().await?;
                }
                read => return read,
            }
        }
    }

    /// Takes this many bytes that were peeked at. Only before TLS.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) fn discard(&self, bytes: usize) -> io::Result<()> {
        let mut scrap = vec![0; bytes];
        match rustix::net::recv(self.socket()?, &mut *scrap, RecvFlags::empty())? {
            (taken, _) if taken == bytes => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Appends what has come in by now; none if that is nothing.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) fn read_at_once(&mut self, into: &mut Vec<u8>) -> Option<io::Result<usize>> {
        match self.read_now(into, RecvFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read),
        }
    }

    /// Writes an answer and closes, if both can be done without waiting. Otherwise says how
    /// much has been written, for [`write_all`](Self::write_all) to go on from.
    pub(super) fn answer_at_once(mut self, bytes: &[u8]) -> Result<(), (Self, usize)> {
        // More comes, and that is the end: both travel in one packet, and the client wakes up
        // once for both.
        match self.write_now(bytes, SendFlags::MORE) {
            Ok(written) if written == bytes.len() && self.is_drained() => Ok(()),
            Ok(written) => Err((self, written)),
            // The other way meets the error again, and knows what to do with it.
            Err(_) => Err((self, 0)),
        }
    }

    /// Ready when the connection is closed in both directions.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.watched() {
            Ok(stream) => stream.poll_reset(cx),
            Err(_) => Poll::Ready(()),
        }
    }

    /// Appends what has come in, at least one byte unless at the end. Holds no buffer of
    /// its own while it waits.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) fn poll_some(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.read_now(into, RecvFlags::empty()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
            match self.watched()? {
                ClientStream::Plain(wire) => ready!(wire.tcp().poll_read_ready(cx))?,
                stream @ ClientStream::Tls(_) => {
                    let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
                    let mut chunk = ReadBuf::uninit(&mut chunk);
                    ready!(Pin::new(stream).poll_read(cx, &mut chunk))?;
                    into.extend_from_slice(chunk.filled());
                    return Poll::Ready(Ok(chunk.filled().len()));
                }
            }
        }
    }

    /// Waits for bytes and reads them, as [`Self::poll_some`] does.
    ///
    /// # Errors
    /// As the socket has it.
    pub(super) async fn read_some(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|cx| self.poll_some(cx, into)).await
    }

    /// Writes all, as long as each write makes progress in time.
    ///
    /// # Errors
    /// As the socket has it, or `TimedOut`.
    pub(super) async fn write_all(
        &mut self,
        mut bytes: &[u8],
        write_timeout: Duration,
    ) -> io::Result<()> {
        if let Socket::Watched(ClientStream::Tls(_)) = self.0 {
            return Box::pin(self.write_encrypted(bytes, write_timeout)).await;
        }
        while !bytes.is_empty() {
            match self.write_now(bytes, SendFlags::empty()) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    timeout(write_timeout, self.watched()?.tcp().writable())
                        .await
                        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn write_encrypted(
        &mut self,
        mut bytes: &[u8],
        write_timeout: Duration,
    ) -> io::Result<()> {
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let stream = self.watched()?;
        while !bytes.is_empty() {
            let written = timeout(write_timeout, stream.write(bytes));
            bytes = &bytes[written.await.map_err(late)??..];
        }
        timeout(write_timeout, stream.flush()).await.map_err(late)?
    }

    /// Closes after an answer. If nothing is unread, that is a plain close. Otherwise it sends the
    /// end of the answer first, and reads what the client still sends, within bounds.
    pub(super) async fn close(mut self, expect_more: bool) {
        if !expect_more && self.is_drained() {
            return;
        }
        let Ok(stream) = self.watched() else {
            return;
        };
        let lingering = async {
            if stream.shutdown().await.is_ok() {
                let mut unread = UnreadBytes::default();
                poll_fn(|cx| unread.poll_discard(cx, stream)).await;
            }
        };
        // The connection is closed in either case.
        let _ = timeout(LINGER, lingering).await;
    }

    /// Closes with a reset, so that no client takes half an answer for a whole one.
    pub(super) fn abandon(mut self) {
        if let Ok(stream) = self.watched() {
            // A socket that cannot be told so is closed the ordinary way.
            let _ = stream.tcp().set_zero_linger();
        }
    }
}
