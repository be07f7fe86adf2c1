//! Finds the end of one JSON array or object in a stream of bytes, however they are split.
//!
//! The socket protocol has no length, no newline and no half-close: a request is over when
//! its outermost bracket closes, and that has to be seen while the bytes arrive. Every byte
//! is looked at once. Whether what was framed *is* JSON is not decided here, but in
//! [`array_call`](super::array_call); the framer only turns away what can never become JSON
//! by waiting for more of it.

use memchr::memchr2;
use thiserror::Error;

use crate::call::{Reason, Refusal};

/// How deep brackets may nest. No call of the sdkserver goes past 6; the bound keeps the
/// state of a connection in one machine word.
pub const DEPTH_MAX: u32 = 64;

/// What is known after the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framed {
    /// The value is not over yet.
    More,
    /// It is over; the index just past its closing bracket, counted from the first byte
    /// pushed. What follows it has not been looked at.
    End(usize),
    /// It can never become a value.
    Bad(Misframed),
}

/// Why bytes can never become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Misframed {
    /// It begins with something else.
    #[error("the request must be a JSON array")]
    NotAnArray,
    /// It begins with something else.
    #[error("the reply must be a JSON object")]
    NotAnObject,
    /// It nests deeper than [`DEPTH_MAX`].
    #[error("the request nests more than 64 deep")]
    TooDeep,
    /// A bracket closes another kind of bracket.
    #[error("the brackets of the request do not match")]
    Unmatched,
    /// A byte that JSON has no use for outside strings.
    #[error("the request is not valid JSON")]
    StrayByte,
    /// Larger than the framer was told to take.
    #[error("the request is too large")]
    TooLarge,
}

impl From<Misframed> for Refusal {
    fn from(misframed: Misframed) -> Self {
        let reason = match misframed {
            Misframed::TooLarge => Reason::TooLarge,
            _ => Reason::BadRequest,
        };
        Self::new(reason, misframed.to_string())
    }
}

/// Finds the end of one value; one for each connection.
#[derive(Clone, Debug)]
pub struct Framer {
    bytes_max: usize,
    seen: usize,
    state: State,
    depth: u32,
    /// One bit for each open bracket, the innermost lowest; 1 is an object.
    nesting: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Leading(Opening),
    Outside,
    InString,
    Escaped,
    Done(Framed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    Array,
    Object,
}

/// What a byte means outside strings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    Quote,
    Open,
    Close,
    Stray,
}

/// Letters are all let through: words such as `true` (and Python's `NaN` in a reply) are
/// the parser's business.
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

/// Strings shorter than this are walked byte by byte: most are, and a search has a fixed
/// price of its own.
const WALK: usize = 16;

impl Framer {
    /// Waits for one array, the form of a request. White space before it counts against
    /// `bytes_max`.
    #[must_use]
    pub fn request(bytes_max: usize) -> Self {
        Self::new(bytes_max, Opening::Array)
    }

    /// Waits for one object, the form of a reply. White space before it counts against
    /// `bytes_max`.
    #[must_use]
    pub fn reply(bytes_max: usize) -> Self {
        Self::new(bytes_max, Opening::Object)
    }

    fn new(bytes_max: usize, opening: Opening) -> Self {
        Self {
            bytes_max,
            seen: 0,
            state: State::Leading(opening),
            depth: 0,
            nesting: 0,
        }
    }

    /// Whether anything but white space has come in.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !matches!(self.state, State::Leading(_))
    }

    /// Looks at the next bytes. Once it has said `End` or `Bad` it says the same for ever.
    pub fn push(&mut self, chunk: &[u8]) -> Framed {
        if let State::Done(framed) = self.state {
            return framed;
        }
        let room = self.bytes_max - self.seen;
        let framed = match self.scan(&chunk[..chunk.len().min(room)]) {
            // Full and not over: waiting for the byte that is one too many gains nothing.
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

    /// Goes on where the last chunk left off, until outside strings; says how far that is.
    fn resume(&mut self, chunk: &[u8]) -> Result<usize, Framed> {
        let string_from = match self.state {
            State::Outside => return Ok(0),
            State::Done(framed) => return Err(framed),
            State::Leading(opening) => return self.open(opening, chunk),
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

    /// Skips white space up to the outermost bracket, and takes that.
    fn open(&mut self, opening: Opening, chunk: &[u8]) -> Result<usize, Framed> {
        let Some(at) = chunk
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        else {
            return Ok(chunk.len());
        };
        self.nesting = match (chunk[at], opening) {
            (b'[', Opening::Array) => 0,
            (b'{', Opening::Object) => 1,
            (_, Opening::Array) => return Err(Framed::Bad(Misframed::NotAnArray)),
            (_, Opening::Object) => return Err(Framed::Bad(Misframed::NotAnObject)),
        };
        self.depth = 1;
        self.state = State::Outside;
        Ok(at + 1)
    }
}

/// Where the string ends that `at` is in: just past its closing quote, or, if it is not
/// over, the state in which the chunk ends.
#[inline]
fn end_of_string(chunk: &[u8], mut at: usize) -> Result<usize, State> {
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
        // Whatever is escaped is passed over; the digits of \u end no string either.
        at = end + 2;
        if at > chunk.len() {
            return Err(State::Escaped);
        }
    }
}
