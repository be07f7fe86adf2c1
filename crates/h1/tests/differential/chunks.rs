//! Laws of a chunked body.
//!
//! - The crate and [`plain`], a second reader, see the same data, the same end, and the same faults.
//! - It makes no difference where the body is cut.

use tidegate_h1::chunks::Chunks;

use super::subject::{Checked, Effort, Reached, Subject, shown};

/// The front of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Whole { data: Vec<u8>, length: usize },
    Partial,
    Bad,
}

/// Checks the body at the front of these bytes.
pub(crate) fn check(subject: &impl Subject, bytes: &[u8], effort: &mut Effort) -> Checked {
    let body = read(subject, bytes, &[]);
    let (plain, fault) = plain(bytes);
    if body != plain {
        return Err(format!("it reads {body:?}, and it is {plain:?}"));
    }
    for cut in effort.cuts(bytes.len()) {
        let second = effort.random.between(cut as u64, bytes.len() as u64) as usize;
        let parts = read(subject, bytes, &[cut, second]);
        if parts != body {
            return Err(format!("{body:?}, cut at {cut} and {second} {parts:?}"));
        }
    }
    let verdict = match &body {
        Body::Whole { data, length } => {
            1 + u32::from(data.is_empty()) + 2 * u32::from(*length < bytes.len())
        }
        Body::Partial => 5,
        Body::Bad => 6,
    };
    Ok(Reached(verdict | fault << 8))
}

/// Reads a body in the pieces that these cuts make.
pub(crate) fn read(subject: &impl Subject, bytes: &[u8], cuts: &[usize]) -> Body {
    let mut chunks = Chunks::default();
    let mut data = Vec::new();
    let mut at = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        while at < end && !chunks.has_ended() {
            let Ok(step) = subject.step(&mut chunks, &bytes[at..end]) else {
                return Body::Bad;
            };
            let from = at + step.framing;
            let to = from + step.data;
            assert!(to <= end, "it takes no more than is here: {}", shown(bytes));
            assert!(to > at, "it takes something: {}", shown(bytes));
            data.extend_from_slice(&bytes[from..to]);
            at = to;
        }
    }
    match chunks.has_ended() {
        true => Body::Whole { data, length: at },
        false => Body::Partial,
    }
}

/// Why reading stops.
enum Stop {
    Partial,
    /// In this part of a body.
    Bad(u32),
}

struct Plain<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The body at the front of these bytes, after RFC 9112, 7.1: one rule, one function. And in which part the first
/// fault is; 0 if there is none.
fn plain(bytes: &[u8]) -> (Body, u32) {
    let mut data = Vec::new();
    let mut reader = Plain { bytes, at: 0 };
    match reader.body(&mut data) {
        Ok(()) => {
            let length = reader.at;
            (Body::Whole { data, length }, 0)
        }
        Err(Stop::Partial) => (Body::Partial, 0),
        Err(Stop::Bad(part)) => (Body::Bad, part),
    }
}

const PARTS: [&str; 9] = [
    "",
    "no size",
    "size too large",
    "behind a size",
    "extension",
    "line end",
    "data end",
    "trailer name",
    "trailer value",
];

impl Plain<'_> {
    fn body(&mut self, data: &mut Vec<u8>) -> Result<(), Stop> {
        while let Some(size) = self.size()? {
            let left = self.bytes.len() - self.at;
            let here = usize::try_from(size).map_or(left, |size| size.min(left));
            data.extend_from_slice(&self.bytes[self.at..self.at + here]);
            self.at += here;
            if (here as u64) < size {
                return Err(Stop::Partial);
            }
            self.line_end(6)?;
        }
        self.trailers()
    }

    /// The size of the next chunk, or none of the last.
    fn size(&mut self) -> Result<Option<u64>, Stop> {
        let mut size = u128::from(self.digit()?.ok_or(Stop::Bad(1))?);
        while let Some(digit) = self.digit()? {
            size = size * 16 + u128::from(digit);
            if size > u128::from(u64::MAX) {
                return Err(Stop::Bad(2));
            }
        }
        while matches!(self.peek()?, b' ' | b'\t') {
            self.at += 1;
        }
        if self.peek()? == b';' {
            self.at += 1;
            self.text()?;
            if self.peek()? != b'\r' {
                return Err(Stop::Bad(4));
            }
        }
        self.line_end(3)?;
        Ok(u64::try_from(size).ok().filter(|size| *size > 0))
    }

    fn trailers(&mut self) -> Result<(), Stop> {
        while self.peek()? != b'\r' {
            let from = self.at;
            while self.peek()?.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&self.peek()?)
            {
                self.at += 1;
            }
            if self.at == from || self.peek()? != b':' {
                return Err(Stop::Bad(7));
            }
            self.at += 1;
            self.text()?;
            self.line_end(8)?;
        }
        self.line_end(5)
    }

    /// Bytes of a value or an extension, up to another one.
    fn text(&mut self) -> Result<(), Stop> {
        while !self.peek()?.is_ascii_control() || self.peek()? == b'\t' {
            self.at += 1;
        }
        Ok(())
    }

    fn digit(&mut self) -> Result<Option<u32>, Stop> {
        let digit = char::from(self.peek()?).to_digit(16);
        self.at += usize::from(digit.is_some());
        Ok(digit)
    }

    fn line_end(&mut self, part: u32) -> Result<(), Stop> {
        for byte in *b"\r\n" {
            if self.peek()? != byte {
                return Err(Stop::Bad(part));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::Partial)
    }
}

/// The reached place, in words.
pub(crate) fn label(Reached(reached): Reached) -> String {
    let body = [
        "",
        "whole",
        "empty",
        "whole and more",
        "empty and more",
        "part",
        "bad",
    ];
    let mut text = body[(reached & 255) as usize].to_owned();
    if reached >> 8 > 0 {
        text += &format!(": {}", PARTS[(reached >> 8) as usize]);
    }
    text
}
