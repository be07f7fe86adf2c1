//! The subject of the test: the crate as it is, or with a planted fault.

use smallvec::SmallVec;
use tidegate_h1::chunks::{BadChunk, ChunkPart, Chunks};
use tidegate_h1::request::{self, BadHead, HeadBounds, RequestHead};
use tidegate_h1::response::{self, ResponseFlaw, ResponseHead};
use tidegate_h1::{Framing, HeadEnd, write};

use super::inputs::Random;

/// The work of the crate for a proxy. A planted fault replaces one of these.
pub(crate) trait Subject {
    fn request(
        &self,
        bytes: &[u8],
        bounds: HeadBounds,
    ) -> Result<Option<RequestHead>, Box<BadHead>> {
        request::read(bytes, bounds)
    }

    fn response(
        &self,
        bytes: &[u8],
        to_head: bool,
        fields_max: usize,
    ) -> Result<Option<ResponseHead>, ResponseFlaw> {
        response::read(bytes, to_head, fields_max)
    }

    fn step(&self, chunks: &mut Chunks, bytes: &[u8]) -> Result<ChunkPart, BadChunk> {
        chunks.step(bytes)
    }

    fn is_in(&self, end: &mut HeadEnd, bytes: &[u8]) -> bool {
        end.is_in(bytes)
    }

    /// Writes the framing of a message. `head` is the one that was read.
    fn write_framing(&self, _head: &[u8], framing: Framing, into: &mut Vec<u8>) {
        match framing {
            Framing::None | Framing::Close => {}
            Framing::Length(length) => write::content_length(length, into),
            Framing::Chunked => write::chunked(into),
        }
    }
}

/// The crate as it is.
pub(crate) struct AsItIs;

impl Subject for AsItIs {}

/// How closely an input is looked at. What is slow is asked about a part of the inputs only.
pub(crate) struct Effort {
    pub(crate) random: Random,
    /// Every question is asked about every input.
    pub(crate) is_full: bool,
}

impl Effort {
    /// True once in `n` times, or always.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.is_full || self.random.one_in(n)
    }

    /// Some places below `end` at which an input is cut; sometimes all of them.
    pub(crate) fn cuts(&mut self, end: usize) -> SmallVec<[usize; 2]> {
        if end == 0 {
            return SmallVec::new();
        }
        if end <= 512 && self.one_in(256) {
            return (0..end).collect();
        }
        let mut below = || self.random.below(end as u64) as usize;
        SmallVec::from_buf([below(), below()])
    }
}

/// The result of a check: the place that an input reached, or what is wrong about it.
pub(crate) type Checked = Result<Reached, String>;

/// The verdicts on an input, as a number for each distinct combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reached(pub(crate) u32);

/// Bytes as a text in which each character is one byte.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text: String = bytes.iter().copied().map(char::from).collect();
    format!("{text:?}")
}

/// Whether two lists of fields have the same names and values in the same order.
pub(crate) fn are_same<'a, 'b>(
    mut one: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    other: impl IntoIterator<Item = (&'b [u8], &'b [u8])>,
) -> bool {
    other.into_iter().all(|it| one.next() == Some(it)) && one.next().is_none()
}
