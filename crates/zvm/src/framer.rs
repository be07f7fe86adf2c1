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
pub enum FrameStatus {
    /// More bytes are needed.
    More,
    /// The array has ended. The index just past its closing bracket, counted from the first byte
    /// pushed. Bytes behind it are not read.
    End(usize),
    /// The bytes can never become an array.
    Bad(FrameError),
}

/// Why bytes can never become an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
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
    state: FramerState,
    depth: u32,
    /// The open brackets, a bit for each, the innermost lowest; 1 is an object.
    nesting: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramerState {
    Leading,
    Outside,
    InString,
    Escaped,
    Done(FrameStatus),
}

/// The class of a byte outside strings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    Plain,
    Quote,
    Open,
    Close,
    Stray,
}

/// All letters are plain: the parser judges words such as `true` and Python's `NaN`.
const CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Stray; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let class = match byte as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'+' | b'-' | b'.' => ByteClass::Plain,
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => ByteClass::Plain,
            b'"' => ByteClass::Quote,
            b'[' | b'{' => ByteClass::Open,
            b']' | b'}' => ByteClass::Close,
            _ => ByteClass::Stray,
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
            state: FramerState::Leading,
            depth: 0,
            nesting: 0,
        }
    }

    /// Whether any byte except white space has arrived.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.state != FramerState::Leading
    }

    /// Reads the next bytes. After `End` or `Bad`, every further call returns the same.
    pub fn push(&mut self, chunk: &[u8]) -> FrameStatus {
        if let FramerState::Done(framed) = self.state {
            return framed;
        }
        let room = self.bytes_max - self.seen;
        let framed = match self.scan(&chunk[..chunk.len().min(room)]) {
            // Full, and the array has not ended: any further byte is too many.
            FrameStatus::More if chunk.len() >= room => FrameStatus::Bad(FrameError::TooLarge),
            framed => framed,
        };
        if framed != FrameStatus::More {
            self.state = FramerState::Done(framed);
        }
        framed
    }

    fn scan(&mut self, chunk: &[u8]) -> FrameStatus {
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
                ByteClass::Plain => {}
                ByteClass::Quote => match end_of_string(chunk, at) {
                    Ok(end) => at = end,
                    Err(state) => {
                        self.state = state;
                        break;
                    }
                },
                ByteClass::Open => {
                    if depth == DEPTH_MAX {
                        return FrameStatus::Bad(FrameError::TooDeep);
                    }
                    depth += 1;
                    nesting = nesting << 1 | u64::from(byte == b'{');
                }
                ByteClass::Close => {
                    if nesting & 1 != u64::from(byte == b'}') {
                        return FrameStatus::Bad(FrameError::Unmatched);
                    }
                    depth -= 1;
                    nesting >>= 1;
                    if depth == 0 {
                        return FrameStatus::End(self.seen + at);
                    }
                }
                ByteClass::Stray => return FrameStatus::Bad(FrameError::StrayByte),
            }
        }
        self.depth = depth;
        self.nesting = nesting;
        self.seen += chunk.len();
        FrameStatus::More
    }

    /// Continues where the last chunk ended. Returns the index of the first byte outside strings.
    fn resume(&mut self, chunk: &[u8]) -> Result<usize, FrameStatus> {
        let string_from = match self.state {
            FramerState::Outside => return Ok(0),
            FramerState::Done(framed) => return Err(framed),
            FramerState::Leading => return self.open(chunk),
            FramerState::InString => 0,
            FramerState::Escaped => 1,
        };
        if chunk.is_empty() {
            return Ok(0);
        }
        match end_of_string(chunk, string_from) {
            Ok(end) => {
                self.state = FramerState::Outside;
                Ok(end)
            }
            Err(state) => {
                self.state = state;
                Ok(chunk.len())
            }
        }
    }

    /// Skips white space up to the outermost bracket, and reads that.
    fn open(&mut self, chunk: &[u8]) -> Result<usize, FrameStatus> {
        let Some(at) = chunk
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        else {
            return Ok(chunk.len());
        };
        if chunk[at] != b'[' {
            return Err(FrameStatus::Bad(FrameError::NotAnArray));
        }
        self.depth = 1;
        self.state = FramerState::Outside;
        Ok(at + 1)
    }
}

/// Where the string that `at` is in ends: just past its closing quote. If it does not end in this
/// chunk, the state after the chunk.
#[inline]
pub(crate) fn end_of_string(chunk: &[u8], mut at: usize) -> Result<usize, FramerState> {
    loop {
        let rest = &chunk[at..];
        let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
        let run = match rest.iter().take(WALK).position(ends) {
            Some(run) => run,
            None if rest.len() <= WALK => return Err(FramerState::InString),
            None => match memchr2(b'"', b'\\', &rest[WALK..]) {
                Some(run) => WALK + run,
                None => return Err(FramerState::InString),
            },
        };
        let end = at + run;
        if chunk[end] == b'"' {
            return Ok(end + 1);
        }
        // Skips the escaped byte. The digits of \u end no string either.
        at = end + 2;
        if at > chunk.len() {
            return Err(FramerState::Escaped);
        }
    }
}
