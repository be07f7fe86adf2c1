//! A chunked body (RFC 9112, 7.1).

use crate::octets;

/// Most bytes of all extensions of a body, and of its trailers. hyper counts the end of the trailers, too.
const EXTRA_BYTES: u32 = 16 * 1024 - 3;

/// Most trailers, as in hyper.
const TRAILERS: u8 = 100;

/// Reads one chunked body, piece by piece. Extensions, spaces behind a size, and trailers are read and dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunks {
    state: State,
    extra_bytes: u32,
    trailers: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
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
pub struct Step {
    /// The number of bytes of framing at the front.
    pub framing: usize,
    /// The number of bytes of data behind them; 0 at the end, or if more bytes are needed.
    pub data: usize,
}

impl Step {
    pub(crate) fn data(data: usize) -> Self {
        Self { framing: 0, data }
    }
}

/// The body is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Chunks {
    /// Whether the body has ended. Bytes behind it are not its own.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == State::End
    }

    /// Reads up to the end of the data at the front of these bytes.
    ///
    /// # Errors
    /// If they are no part of a chunked body.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Malformed> {
        let mut at = 0;
        loop {
            if let State::Data(left) = self.state {
                let here = bytes.len() - at;
                let data = usize::try_from(left).map_or(here, |left| left.min(here));
                self.state = match left - data as u64 {
                    0 => State::DataCr,
                    left => State::Data(left),
                };
                return Ok(Step { framing: at, data });
            }
            if self.state == State::End || at == bytes.len() {
                return Ok(Step {
                    framing: at,
                    data: 0,
                });
            }
            self.state = self.behind(bytes[at])?;
            at += 1;
        }
    }

    /// The state behind a byte of framing.
    fn behind(&mut self, byte: u8) -> Result<State, Malformed> {
        let is_text = byte == b'\t' || byte >= b' ' && byte != 127;
        let next = match (self.state, byte) {
            (State::Start, _) => State::Size(digit(byte).ok_or(Malformed)?),
            (State::Size(size), b'\r') => State::SizeLf(size),
            (State::Size(size), b' ' | b'\t') => self.extra(State::Space(size))?,
            (State::Size(size), b';') => self.extra(State::Extension(size))?,
            (State::Size(size), _) => {
                let digit = digit(byte).ok_or(Malformed)?;
                State::Size(size.checked_mul(16).ok_or(Malformed)? + digit)
            }
            (State::Space(size) | State::Extension(size), b'\r') => State::SizeLf(size),
            (State::Space(size), b' ' | b'\t') => self.extra(State::Space(size))?,
            (State::Space(size), b';') => self.extra(State::Extension(size))?,
            (State::Extension(size), _) if is_text => self.extra(State::Extension(size))?,
            (State::SizeLf(0), b'\n') => State::Line,
            (State::SizeLf(size), b'\n') => State::Data(size),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Start,
            (State::Line, b'\r') => State::LastLf,
            (State::LastLf, b'\n') => State::End,
            (State::TrailerName, b':') => self.extra(State::TrailerValue)?,
            (State::Line | State::TrailerName, _) if octets::is_of_token(byte) => {
                self.extra(State::TrailerName)?
            }
            (State::TrailerValue, b'\r') => self.extra(State::TrailerLf)?,
            (State::TrailerValue, _) if is_text => self.extra(State::TrailerValue)?,
            (State::TrailerLf, b'\n') => {
                self.trailers += 1;
                if self.trailers > TRAILERS {
                    return Err(Malformed);
                }
                self.extra(State::Line)?
            }
            _ => return Err(Malformed),
        };
        Ok(next)
    }

    /// Counts a byte that is dropped.
    fn extra(&mut self, next: State) -> Result<State, Malformed> {
        self.extra_bytes += 1;
        match self.extra_bytes <= EXTRA_BYTES {
            true => Ok(next),
            false => Err(Malformed),
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
    fn read(bytes: &[u8], pieces: usize) -> Result<Option<(Vec<u8>, usize)>, Malformed> {
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
                    Err(Malformed)
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
            Ok(Step {
                framing: 18,
                data: 2
            })
        );
        assert_eq!(chunks.state, State::Data(u64::MAX - 2));
    }
}
