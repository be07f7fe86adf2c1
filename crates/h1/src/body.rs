//! The rest of a body that is still to come, whatever its framing.

use crate::Framing;
use crate::chunks::{BadChunk, ChunkPart, Chunks};

/// The rest of a body that is still to come.
#[derive(Clone, Copy, Debug)]
pub enum BodyLeft {
    /// The body is complete.
    None,
    /// A number of bytes is still to come.
    Length(u64),
    /// Chunks up to the last one.
    Chunks(Chunks),
    /// All that comes, until the connection ends.
    Close,
}

impl BodyLeft {
    /// The body to come behind a head with this framing.
    #[must_use]
    pub fn of(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Self::None,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunks(Chunks::default()),
            Framing::Close => Self::Close,
        }
    }

    /// Whether nothing is to come. Bytes behind the body are not its own.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The number of bytes of data, if that is known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Length(left) => Some(*left),
            Self::Chunks(_) | Self::Close => None,
        }
    }

    /// Reads up to the end of the data at the front of these bytes.
    ///
    /// # Errors
    /// If they are no part of a chunked body.
    pub fn step(&mut self, bytes: &[u8]) -> Result<ChunkPart, BadChunk> {
        let (step, has_ended) = match self {
            Self::None => return Ok(ChunkPart::default()),
            Self::Close => (ChunkPart::data(bytes.len()), false),
            Self::Length(left) => {
                let data = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= data as u64;
                (ChunkPart::data(data), *left == 0)
            }
            Self::Chunks(chunks) => (chunks.step(bytes)?, chunks.has_ended()),
        };
        if has_ended {
            *self = Self::None;
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of a body of which `piece` bytes come at a time, and the bytes behind it. `None` for the end if more is
    /// needed.
    fn read(framing: Framing, mut bytes: &[u8], piece: usize) -> (Vec<u8>, Option<&[u8]>) {
        let (mut left, mut data) = (BodyLeft::of(framing), Vec::new());
        while !left.has_ended() && !bytes.is_empty() {
            let step = left.step(&bytes[..piece.min(bytes.len())]).expect("a body");
            data.extend_from_slice(&bytes[step.framing..step.framing + step.data]);
            bytes = &bytes[step.framing + step.data..];
        }
        (data, left.has_ended().then_some(bytes))
    }

    #[test]
    fn a_body_has_the_same_data_and_end_in_pieces_of_any_size() {
        for piece in 1..12 {
            let check = |framing, bytes, data: &[u8], behind: Option<&[u8]>| {
                assert_eq!(
                    read(framing, bytes, piece),
                    (data.to_vec(), behind),
                    "{piece}"
                );
            };
            check(Framing::None, b"next", b"", Some(b"next"));
            check(Framing::Length(0), b"next", b"", Some(b"next"));
            check(Framing::Length(3), b"abcnext", b"abc", Some(b"next"));
            check(Framing::Length(9), b"abc", b"abc", None);
            let chunks = b"2\r\nab\r\n1;x\r\nc\r\n0\r\nA: b\r\n\r\nnext";
            check(Framing::Chunked, chunks, b"abc", Some(b"next"));
            check(Framing::Chunked, &chunks[..8], b"ab", None);
            check(Framing::Close, b"abc", b"abc", None);
        }
    }

    #[test]
    fn a_length_is_known_only_where_the_head_gives_one() {
        let mut left = BodyLeft::of(Framing::Length(3));
        assert_eq!(left.length(), Some(3));
        left.step(b"a").expect("a part");
        assert_eq!(left.length(), Some(2));
        assert_eq!(BodyLeft::of(Framing::None).length(), Some(0));
        assert_eq!(BodyLeft::of(Framing::Chunked).length(), None);
        assert_eq!(BodyLeft::of(Framing::Close).length(), None);
    }

    #[test]
    fn malformed_chunks_are_an_error() {
        assert!(BodyLeft::of(Framing::Chunked).step(b"x").is_err());
    }
}
