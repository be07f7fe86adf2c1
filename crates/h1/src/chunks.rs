//! A chunked body (RFC 9112, 7.1).

use crate::octets;

/// Most bytes of all extensions of a body, and of its trailers. hyper counts the end of the trailers, too.
const EXTRA_BYTES: u32 = 16 * 1024 - 3;

/// Most trailers, as in hyper.
const TRAILERS: u8 = 100;

/// Reads one chunked body, piece by piece. Extensions, spaces behind a size, and trailers are read and dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunks {
    state: ChunkState,
    extra_bytes: u32,
    trailers: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// Before the first digit.
    #[default]
    Start,
    /// Behind a digit.
    Size(u64),
    /// Behind a space.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// Behind the line of the last chunk, or of a trailer.
    Line,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    End,
}

/// The meaning of the front of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkPart {
    /// The number of bytes of framing at the front.
    pub framing: usize,
    /// The number of bytes of data behind them; 0 at the end, or if more bytes are needed.
    pub data: usize,
}

impl ChunkPart {
    pub(crate) fn data(data: usize) -> Self {
        Self { framing: 0, data }
    }
}

/// The body is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadChunk;

impl Chunks {
    /// Whether the body has ended. Bytes behind it are not its own.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == ChunkState::End
    }

    /// Reads up to the end of the data at the front of these bytes.
    ///
    /// # Errors
    /// If they are no part of a chunked body.
    pub fn step(&mut self, bytes: &[u8]) -> Result<ChunkPart, BadChunk> {
        let mut at = 0;
        loop {
            if let ChunkState::Data(left) = self.state {
                let here = bytes.len() - at;
                let data = usize::try_from(left).map_or(here, |left| left.min(here));
                self.state = match left - data as u64 {
                    0 => ChunkState::DataCr,
                    left => ChunkState::Data(left),
                };
                return Ok(ChunkPart { framing: at, data });
            }
            if self.state == ChunkState::End || at == bytes.len() {
                return Ok(ChunkPart {
                    framing: at,
                    data: 0,
                });
            }
            self.state = self.behind(bytes[at])?;
            at += 1;
        }
    }

    /// The state behind a byte of framing.
    fn behind(&mut self, byte: u8) -> Result<ChunkState, BadChunk> {
        let is_text = byte == b'\t' || byte >= b' ' && byte != 127;
        let next = match (self.state, byte) {
            (ChunkState::Start, _) => ChunkState::Size(digit(byte).ok_or(BadChunk)?),
            (ChunkState::Size(size), b'\r') => ChunkState::SizeLf(size),
            (ChunkState::Size(size), b' ' | b'\t') => self.extra(ChunkState::Space(size))?,
            (ChunkState::Size(size), b';') => self.extra(ChunkState::Extension(size))?,
            (ChunkState::Size(size), _) => {
                let digit = digit(byte).ok_or(BadChunk)?;
                ChunkState::Size(size.checked_mul(16).ok_or(BadChunk)? + digit)
            }
            (ChunkState::Space(size) | ChunkState::Extension(size), b'\r') => {
                ChunkState::SizeLf(size)
            }
            (ChunkState::Space(size), b' ' | b'\t') => self.extra(ChunkState::Space(size))?,
            (ChunkState::Space(size), b';') => self.extra(ChunkState::Extension(size))?,
            (ChunkState::Extension(size), _) if is_text => {
                self.extra(ChunkState::Extension(size))?
            }
            (ChunkState::SizeLf(0), b'\n') => ChunkState::Line,
            (ChunkState::SizeLf(size), b'\n') => ChunkState::Data(size),
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::Start,
            (ChunkState::Line, b'\r') => ChunkState::LastLf,
            (ChunkState::LastLf, b'\n') => ChunkState::End,
            (ChunkState::TrailerName, b':') => self.extra(ChunkState::TrailerValue)?,
            (ChunkState::Line | ChunkState::TrailerName, _) if octets::is_of_token(byte) => {
                self.extra(ChunkState::TrailerName)?
            }
            (ChunkState::TrailerValue, b'\r') => self.extra(ChunkState::TrailerLf)?,
            (ChunkState::TrailerValue, _) if is_text => self.extra(ChunkState::TrailerValue)?,
            (ChunkState::TrailerLf, b'\n') => {
                self.trailers += 1;
                if self.trailers > TRAILERS {
                    return Err(BadChunk);
                }
                self.extra(ChunkState::Line)?
            }
            _ => return Err(BadChunk),
        };
        Ok(next)
    }

    /// Counts a byte that is dropped.
    fn extra(&mut self, next: ChunkState) -> Result<ChunkState, BadChunk> {
        self.extra_bytes += 1;
        match self.extra_bytes <= EXTRA_BYTES {
            true => Ok(next),
            false => Err(BadChunk),
        }
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data, and how many bytes the body has; `Ok(None)` if it goes on.
    fn read(bytes: &[u8], pieces: usize) -> Result<Option<(Vec<u8>, usize)>, BadChunk> {
        let mut chunks = Chunks::default();
        let mut data = Vec::new();
        let mut taken = 0;
        for piece in bytes.chunks(pieces) {
            let mut rest = piece;
            while !rest.is_empty() && !chunks.has_ended() {
                let step = chunks.step(rest)?;
                data.extend_from_slice(&rest[step.framing..step.framing + step.data]);
                taken += step.framing + step.data;
                rest = &rest[step.framing + step.data..];
            }
        }
        Ok(chunks.has_ended().then_some((data, taken)))
    }

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        let body = b"3\r\nabc\r\n0A\r\n0123456789\r\n0\r\n\r\nrest";
        for pieces in 1..body.len() {
            let read = read(body, pieces);
            assert_eq!(
                read,
                Ok(Some((b"abc0123456789".to_vec(), body.len() - 4))),
                "{pieces}"
            );
        }
        for cut in 0..body.len() - 4 {
            assert_eq!(read(&body[..cut], 7), Ok(None), "{cut}");
        }
    }

    #[test]
    fn extras_are_dropped() {
        for body in [
            "3;a=b\r\nabc\r\n0\r\n\r\n",
            "3 \t ;a\r\nabc\r\n0;x\r\n\r\n",
            "3\r\nabc\r\n0\r\nX: y\r\nZ:\r\n\r\n",
        ] {
            assert_eq!(
                read(body.as_bytes(), 2),
                Ok(Some((b"abc".to_vec(), body.len()))),
                "{body}"
            );
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        for body in [
            "",
            "x",
            "+3\r\n",
            "0x3\r\n",
            "-1\r\n",
            " 3\r\n",
            "\r\n",
            "3\n",
            "3\r\r\n",
            "3\r\nabcd",
            "3\r\nabc\n",
            "3;a\nabc",
            "3;a\rb",
            "3;a\0\r\n",
            "0\r\n\n",
            "0\r\nX: y\n",
            "0\r\nX y\r\n",
            "0\r\n X: y\r\n",
            "0\r\nX: a\0\r\n",
            "f0000000000000003\r\n",
            "3 3\r\n",
        ] {
            let read = read(body.as_bytes(), 3);
            assert_eq!(
                read,
                if body.is_empty() {
                    Ok(None)
                } else {
                    Err(BadChunk)
                },
                "{body:?}"
            );
        }
    }

    #[test]
    fn extras_have_a_bound() {
        let max = EXTRA_BYTES as usize;
        for (extras, is_good) in [(max, true), (max + 1, false)] {
            let body = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(extras - 1));
            assert_eq!(read(body.as_bytes(), 4096).is_ok(), is_good);
            let body = format!("0\r\nX:{}\r\n\r\n", "x".repeat(extras - 4));
            assert_eq!(read(body.as_bytes(), 4096).is_ok(), is_good);
        }
        for (trailers, is_good) in [(100, true), (101, false)] {
            let body = format!("0\r\n{}\r\n", "X: y\r\n".repeat(trailers));
            assert_eq!(read(body.as_bytes(), 4096).is_ok(), is_good);
        }
    }

    #[test]
    fn the_largest_size_is_read() {
        let mut chunks = Chunks::default();
        let step = chunks.step(b"ffffffffffffffff\r\nab");
        assert_eq!(
            step,
            Ok(ChunkPart {
                framing: 18,
                data: 2
            })
        );
        assert_eq!(chunks.state, ChunkState::Data(u64::MAX - 2));
    }
}
