//! HTTP/1.1 messages on a connection: one head, one body.
//!
//! Just enough for a stand-in backend and a load generator, at a few hundred nanoseconds per
//! message. It is lenient; the product is strict.

use std::io;

use memchr::{memchr, memmem};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Largest HTTP head that is read.   bytes
const HEAD_MAX: usize = 64 * 1024;

/// A connection, and what was read from it and not used yet.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) stream: TcpStream,
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

    /// The next head, or `None` if the connection ends before it.
    ///
    /// # Errors
    /// Of the connection; `UnexpectedEof` if it ends within a head, `InvalidData` if that is too
    /// large.
    pub(crate) async fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(head) = Head::find(&self.bytes) {
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
        mut body: Body,
        kept: &mut Vec<u8>,
        most: usize,
    ) -> io::Result<()> {
        loop {
            let consumed = body.consume(&self.bytes, |payload| {
                let room = most.saturating_sub(kept.len());
                kept.extend_from_slice(&payload[..payload.len().min(room)]);
            });
            self.bytes
                .drain(..consumed.ok_or(io::ErrorKind::InvalidData)?);
            if body.is_done() {
                return Ok(());
            }
            if self.read().await? == 0 {
                return match body {
                    Body::UntilClose => Ok(()),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.bytes.reserve(4096);
        self.stream.read_buf(&mut self.bytes).await
    }
}

/// Whether a connection has bytes to read, has ended or has failed.
pub(crate) fn is_readable(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    !matches!(read, Err(cause) if cause.kind() == io::ErrorKind::WouldBlock)
}

/// The head of a request or a response.
#[derive(Debug)]
pub(crate) struct Head {
    /// Its length with the empty line.   bytes
    len: usize,
    /// The request line or status line; empty if it is not UTF-8.
    pub(crate) line: String,
    /// How the body is framed; none if no header says.
    pub(crate) body: Option<Body>,
    /// Whether it asks to close the connection.
    pub(crate) close: bool,
    /// Whether it waits for `100 Continue`.
    pub(crate) expects_continue: bool,
}

impl Head {
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
                    Ok(Ok(length)) => _ = head.body.get_or_insert(Body::Length(length)),
                    // The end of this message is unclear: read no other message after it.
                    _ => head.close = true,
                }
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                head.body = Some(Body::Chunked(Chunk::Size(0)));
            } else if name.eq_ignore_ascii_case(b"connection") {
                head.close |= value.eq_ignore_ascii_case(b"close");
            } else if name.eq_ignore_ascii_case(b"expect") {
                head.expects_continue = true;
            }
        }
        Some(head)
    }
}

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// This many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunk),
    /// Everything until the connection closes.
    UntilClose,
}

/// The place of the next byte in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// In a size; the value so far.
    Size(u64),
    /// After a size, before the end of its line.
    Extension(u64),
    /// In the data; the number of bytes left.
    Data(u64),
    /// After the data, before the end of the line.
    DataEnd,
    /// At the beginning of a trailer line.
    Trailer,
    /// Inside a trailer line.
    TrailerLine,
    /// After the last chunk.
    Done,
}

impl Body {
    /// Whether the body is complete.
    pub(crate) fn is_done(self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunk::Done))
    }

    /// Consumes the bytes of the body at the beginning of `bytes`, passes its payload to `payload`
    /// and returns the number of bytes consumed; none if malformed.
    fn consume(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> Option<usize> {
        match self {
            Self::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                payload(&bytes[..taken]);
                *left -= taken as u64;
                Some(taken)
            }
            Self::UntilClose => {
                payload(bytes);
                Some(bytes.len())
            }
            Self::Chunked(chunk) => {
                let mut taken = 0;
                while *chunk != Chunk::Done && taken < bytes.len() {
                    if let Chunk::Data(left) = chunk {
                        let rest = &bytes[taken..];
                        let n =
                            usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                        payload(&rest[..n]);
                        taken += n;
                        *left -= n as u64;
                        if *left == 0 {
                            *chunk = Chunk::DataEnd;
                        }
                        continue;
                    }
                    *chunk = chunk.after(bytes[taken])?;
                    taken += 1;
                }
                Some(taken)
            }
        }
    }
}

impl Chunk {
    /// The state after one byte that is not data; none if the byte is not allowed there.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Size(0) | Self::Extension(0), b'\n') => Self::Trailer,
            (Self::Size(size) | Self::Extension(size), b'\n') => Self::Data(size),
            (Self::Size(size), b'\r' | b';') => Self::Extension(size),
            (Self::Size(size), _) => {
                let digit = char::from(byte).to_digit(16)?;
                Self::Size(size.checked_mul(16)?.checked_add(u64::from(digit))?)
            }
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::DataEnd, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::Size(0),
            (Self::Trailer, b'\r') => Self::Trailer,
            (Self::Trailer, b'\n') => Self::Done,
            (Self::TrailerLine, b'\n') => Self::Trailer,
            (Self::Trailer | Self::TrailerLine, _) => Self::TrailerLine,
            (Self::DataEnd | Self::Data(_) | Self::Done, _) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_how_its_body_is_framed() {
        let check = |head: &[u8], body, close| {
            let found = Head::find(head).expect("a whole head");
            assert_eq!((found.body, found.close), (body, close));
            assert_eq!(found.len, head.len());
        };
        check(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", None, false);
        check(
            b"POST / HTTP/1.1\r\nCONTENT-length: 7\r\nConnection: Close\r\n\r\n",
            Some(Body::Length(7)),
            true,
        );
        check(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Some(Body::Chunked(Chunk::Size(0))),
            false,
        );
        assert!(Head::find(b"GET / HTTP/1.1\r\nHost: a\r\n").is_none());
    }

    #[test]
    fn chunks_give_the_same_payload_however_they_are_split() {
        let wire = b"5;ext=1\r\nhello\r\n10\r\n, sixteen bytes.\r\n0\r\nTrailer: x\r\n\r\nnext";
        for split in 0..wire.len() {
            let mut body = Body::Chunked(Chunk::Size(0));
            let mut payload = Vec::new();
            let mut taken = 0;
            for part in [&wire[..split], &wire[split..]] {
                let n = body
                    .consume(part, |bytes| payload.extend_from_slice(bytes))
                    .expect("well-formed chunks");
                taken += n;
                assert!(n == part.len() || body.is_done());
            }
            assert!(body.is_done());
            assert_eq!(payload, b"hello, sixteen bytes.", "split at {split}");
            assert_eq!(
                &wire[taken.min(wire.len() - 4)..],
                b"next",
                "split at {split}"
            );
        }
    }
}
