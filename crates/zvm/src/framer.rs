//! Finds the end of one JSON array in a stream of bytes, at any split.
//!
//! The socket protocol has no length, no newline and no half-close: a request ends when its
//! outermost bracket closes, and that must be seen while the bytes arrive. Each byte is read
//! once. Whether the framed bytes are JSON is decided in [`array`](crate::array). The framer only
//! rejects bytes that no further byte can turn into JSON.

use memchr::memchr2;
use thiserror::Error;

/// How deep brackets may nest. No call of the sdkserver goes past 6; the bound keeps the
/// state of a connection in one machine word.
pub const DEPTH_MAX: u32 = 64;

/// The state after the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framed {
    /// More bytes are needed.
    More,
    /// The array has ended. The index just past its closing bracket, counted from the first byte
    /// pushed. Bytes behind it are not read.
    End(usize),
    /// The bytes can never become an array.
    Bad(Misframed),
}

/// Why bytes can never become an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misframed {
    /// The message begins with another byte.
    #[error("the request must be a JSON array")]
    NotAnArray,
    /// The message nests deeper than [`DEPTH_MAX`].
    #[error("the request nests more than 64 deep")]
    TooDeep,
    /// A bracket closes another kind of bracket.
    #[error("the brackets of the request do not match")]
    Unmatched,
    /// A byte that JSON does not allow outside strings.
    #[error("the request is not valid JSON")]
    StrayByte,
    /// Larger than `bytes_max`.
    #[error("the request is too large")]
    TooLarge,
}

/// Finds the end of one array. Each connection has its own.
#[derive(Clone, Debug)]
pub struct Framer {
    bytes_max: usize,
    seen: usize,
    state: State,
    depth: u32,
    /// The open brackets, a bit for each, the innermost lowest; 1 is an object.
    nesting: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Leading,
    Outside,
    InString,
    Escaped,
    Done(Framed),
}

/// The class of a byte outside strings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    Quote,
    Open,
    Close,
    Stray,
}

/// All letters are plain: the parser judges words such as `true` and Python's `NaN`.
const CLASSES: [Class; 256] = {
    let mut classes = [Class::Stray; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let class = match byte as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'+' | b'-' | b'.' => Class::Plain,
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => Class::Plain,
            b'"' => Class::Quote,
            b'[' | b'{' => Class::Open,
            b']' | b'}' => Class::Close,
            _ => Class::Stray,
        };
        classes[byte] = class;
        byte += 1;
    }
    classes
};

/// Strings shorter than this are read byte by byte. Most are, and a search has a fixed cost.
const WALK: usize = 16;

impl Framer {
    /// Waits for one array. White space before it counts against `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            seen: 0,
            state: State::Leading,
            depth: 0,
            nesting: 0,
        }
    }

    /// Whether any byte except white space has arrived.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.state != State::Leading
    }

    /// Reads the next bytes. After `End` or `Bad`, every further call returns the same.
    pub fn push(&mut self, chunk: &[u8]) -> Framed {
        if let State::Done(framed) = self.state {
            return framed;
        }
        let room = self.bytes_max - self.seen;
        let framed = match self.scan(&chunk[..chunk.len().min(room)]) {
            // Full, and the array has not ended: any further byte is too many.
            Framed::More if chunk.len() >= room => Framed::Bad(Misframed::TooLarge),
            framed => framed,
        };
        if framed != Framed::More {
            self.state = State::Done(framed);
        }
        framed
    }

    fn scan(&mut self, chunk: &[u8]) -> Framed {
        let mut at = match self.resume(chunk) {
            Ok(at) => at,
            Err(framed) => return framed,
        };
        let mut depth = self.depth;
        let mut nesting = self.nesting;
        // From here on `at` is outside strings, or past the end.
        while let Some(&byte) = chunk.get(at) {
            at += 1;
            match CLASSES[usize::from(byte)] {
                Class::Plain => {}
                Class::Quote => match end_of_string(chunk, at) {
                    Ok(end) => at = end,
                    Err(state) => {
                        self.state = state;
                        break;
                    }
                },
                Class::Open => {
                    if depth == DEPTH_MAX {
                        return Framed::Bad(Misframed::TooDeep);
                    }
                    depth += 1;
                    nesting = nesting << 1 | u64::from(byte == b'{');
                }
                Class::Close => {
                    if nesting & 1 != u64::from(byte == b'}') {
                        return Framed::Bad(Misframed::Unmatched);
                    }
                    depth -= 1;
                    nesting >>= 1;
                    if depth == 0 {
                        return Framed::End(self.seen + at);
                    }
                }
                Class::Stray => return Framed::Bad(Misframed::StrayByte),
            }
        }
        self.depth = depth;
        self.nesting = nesting;
        self.seen += chunk.len();
        Framed::More
    }

    /// Continues where the last chunk ended. Returns the index of the first byte outside strings.
    fn resume(&mut self, chunk: &[u8]) -> Result<usize, Framed> {
        let string_from = match self.state {
            State::Outside => return Ok(0),
            State::Done(framed) => return Err(framed),
            State::Leading => return self.open(chunk),
            State::InString => 0,
            State::Escaped => 1,
        };
        if chunk.is_empty() {
            return Ok(0);
        }
        match end_of_string(chunk, string_from) {
            Ok(end) => {
                self.state = State::Outside;
                Ok(end)
            }
            Err(state) => {
                self.state = state;
                Ok(chunk.len())
            }
        }
    }

    /// Skips white space up to the outermost bracket, and reads that.
    fn open(&mut self, chunk: &[u8]) -> Result<usize, Framed> {
        let Some(at) = chunk
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        else {
            return Ok(chunk.len());
        };
        if chunk[at] != b'[' {
            return Err(Framed::Bad(Misframed::NotAnArray));
        }
        self.depth = 1;
        self.state = State::Outside;
        Ok(at + 1)
    }
}

/// Where the string that `at` is in ends: just past its closing quote. If it does not end in this
/// chunk, the state after the chunk.
#[inline]
pub(crate) fn end_of_string(chunk: &[u8], mut at: usize) -> Result<usize, State> {
    loop {
        let rest = &chunk[at..];
        let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
        let run = match rest.iter().take(WALK).position(ends) {
            Some(run) => run,
            None if rest.len() <= WALK => return Err(State::InString),
            None => match memchr2(b'"', b'\\', &rest[WALK..]) {
                Some(run) => WALK + run,
                None => return Err(State::InString),
            },
        };
        let end = at + run;
        if chunk[end] == b'"' {
            return Ok(end + 1);
        }
        // Skips the escaped byte. The digits of \u end no string either.
        at = end + 2;
        if at > chunk.len() {
            return Err(State::Escaped);
        }
    }
}
