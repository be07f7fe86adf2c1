//! HTTP/1.1 messages on a connection: one head, one body.
//!
//! Just enough for a stand-in backend and a load generator, at a few hundred nanoseconds per
//! message. It is lenient; the product is strict.

use std::io;

use memchr::{memchr, memmem};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::TcpStream;

/// Largest HTTP head that is read.   bytes
const HEAD_MAX: usize = 64 * 1024;

/// A connection, and what was read from it and not used yet.
#[derive(Debug)]
pub(crate) struct Http<S = TcpStream> {
    pub(crate) stream: S,
    bytes: Vec<u8>,
}

impl Http {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let bytes = Vec::new();
        Ok(Self { stream, bytes })
    }

    /// Whether the peer has closed, or has sent bytes that no one asked for. Costs no system call
    /// unless either has happened.
    pub(crate) fn is_stale(&self) -> bool {
        !self.bytes.is_empty() || is_readable(&self.stream)
    }
}

impl<S: AsyncRead + Unpin> Http<S> {
    /// The next head, or `None` if the connection ends before it.
    ///
    /// # Errors
    /// Of the connection; `UnexpectedEof` if it ends within a head, `InvalidData` if that is too
    /// large.
    pub(crate) async fn head(&mut self) -> io::Result<Option<MessageHead>> {
        loop {
            if let Some(head) = MessageHead::find(&self.bytes) {
                self.bytes.drain(..head.len);
                return Ok(Some(head));
            }
            if self.bytes.len() > HEAD_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.read().await? == 0 {
                return match self.bytes.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Reads a body to its end, and appends at most `most` bytes of it to `kept`.
    ///
    /// # Errors
    /// Of the connection; `UnexpectedEof` if it ends within the body, `InvalidData` if that is
    /// malformed.
    pub(crate) async fn body(
        &mut self,
        body: BodyEnd,
        kept: &mut Vec<u8>,
        most: usize,
    ) -> io::Result<()> {
        match body {
            BodyEnd::Length(length) => self.pass(length, kept, most).await,
            BodyEnd::UntilClose => match self.pass(u64::MAX, kept, most).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
                ended => ended,
            },
            BodyEnd::Chunked => {
                loop {
                    let line = self.line().await?;
                    match chunk_size(&line).ok_or(io::ErrorKind::InvalidData)? {
                        0 => break,
                        size => self.pass(size, kept, most).await?,
                    }
                    if !self.line().await?.is_empty() {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
                // The trailer.
                while !self.line().await?.is_empty() {}
                Ok(())
            }
        }
    }

    /// Takes this many bytes, and appends them to `kept` while that has fewer than `most`.
    async fn pass(&mut self, mut left: u64, kept: &mut Vec<u8>, most: usize) -> io::Result<()> {
        loop {
            let here = self.bytes.len();
            let taken = usize::try_from(left).map_or(here, |left| left.min(here));
            let room = most.saturating_sub(kept.len());
            kept.extend_from_slice(&self.bytes[..taken.min(room)]);
            self.bytes.drain(..taken);
            left -= taken as u64;
            if left == 0 {
                return Ok(());
            }
            self.read_more().await?;
        }
    }

    /// The next line, without its end.
    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = memchr(b'\n', &self.bytes) {
                let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
                line.truncate(line.trim_ascii_end().len());
                return Ok(line);
            }
            if self.bytes.len() > HEAD_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> io::Result<()> {
        match self.read().await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.bytes.reserve(4096);
        self.stream.read_buf(&mut self.bytes).await
    }
}

/// The number in front of a chunk.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Whether a connection has bytes to read, has ended or has failed.
pub(crate) fn is_readable(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    !matches!(read, Err(cause) if cause.kind() == io::ErrorKind::WouldBlock)
}

/// The head of a request or a response.
#[derive(Debug)]
pub(crate) struct MessageHead {
    /// Length of the head with the empty line.   bytes
    len: usize,
    /// The request line or status line; empty if it is not UTF-8.
    pub(crate) line: String,
    /// How the body is framed; none if no header says.
    pub(crate) body: Option<BodyEnd>,
    /// Whether it asks to close the connection.
    pub(crate) close: bool,
    /// Whether it waits for `100 Continue`.
    pub(crate) expects_continue: bool,
}

impl MessageHead {
    /// The head at the beginning of `bytes`, if complete.
    fn find(bytes: &[u8]) -> Option<Self> {
        let len = memmem::find(bytes, b"\r\n\r\n")? + 4;
        let lines = bytes[..len - 4].split(|byte| *byte == b'\n');
        let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let line = lines.next().unwrap_or_default().to_owned();
        let mut head = Self {
            len,
            line: String::from_utf8(line).unwrap_or_default(),
            body: None,
            close: false,
            expects_continue: false,
        };
        for line in lines {
            let Some(colon) = memchr(b':', line) else {
                continue;
            };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                match std::str::from_utf8(value).map(str::parse) {
                    Ok(Ok(length)) => _ = head.body.get_or_insert(BodyEnd::Length(length)),
                    // The end of this message is unclear: read no other message after it.
                    _ => head.close = true,
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                head.body = Some(BodyEnd::Chunked);
            } else if name.eq_ignore_ascii_case(b"connection") {
                head.close |= value.eq_ignore_ascii_case(b"close");
            } else if name.eq_ignore_ascii_case(b"expect") {
                head.expects_continue = true;
            }
        }
        Some(head)
    }
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// After this many bytes.
    Length(u64),
    /// After the last of its chunks.
    Chunked,
    /// Where the connection closes.
    UntilClose,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_how_its_body_is_framed() {
        let check = |head: &[u8], body, close| {
            let found = MessageHead::find(head).expect("a whole head");
            assert_eq!((found.body, found.close), (body, close));
            assert_eq!(found.len, head.len());
        };
        check(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", None, false);
        check(
            b"POST / HTTP/1.1\r\nCONTENT-length: 7\r\nConnection: Close\r\n\r\n",
            Some(BodyEnd::Length(7)),
            true,
        );
        check(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Some(BodyEnd::Chunked),
            false,
        );
        assert!(MessageHead::find(b"GET / HTTP/1.1\r\nHost: a\r\n").is_none());
    }

    #[tokio::test]
    async fn chunks_give_the_same_payload_however_they_are_split() {
        let wire = b"5;ext=1\r\nhello\r\n10\r\n, sixteen bytes.\r\n0\r\nTrailer: x\r\n\r\nnext";
        for split in 0..wire.len() {
            let (first, second) = wire.split_at(split);
            let mut http = Http {
                stream: first.chain(second),
                bytes: Vec::new(),
            };
            let mut payload = Vec::new();
            let read = http.body(BodyEnd::Chunked, &mut payload, usize::MAX).await;
            read.expect("well-formed chunks");
            assert_eq!(payload, b"hello, sixteen bytes.", "split at {split}");
            let mut rest = http.bytes;
            let read = http.stream.read_to_end(&mut rest).await;
            read.expect("memory");
            assert_eq!(rest, b"next", "split at {split}");
        }
    }
}
