//! Messages as bytes: a head of eight bytes, and a body.
//!
//! | bytes | content |
//! |---|---|
//! | 0, 1 | `TG` |
//! | 2 | the layout of frames, 1 |
//! | 3 | the kind: 1 is a message in JSON, 2 is a part of the state |
//! | 4 to 7 | the length of the body, little-endian |
//!
//! A part of the state has the length of its name in one byte, the name, and its bytes. The reader does not trust the other
//! side: a length is checked before memory is taken for it, and after an error nothing more is read.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::{StatePart, ToNew, ToOld};

/// The largest body of a frame.   bytes
pub const FRAME_BYTES_MAX: usize = 1 << 16;

/// The length of a frame's head.   bytes
pub const HEAD_BYTES: usize = 8;

const MARK: [u8; 3] = *b"TG\x01";
const JSON: u8 = 1;
const STATE: u8 = 2;

/// Why bytes are not a message. The connection is of no use afterwards.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The head has another mark, layout or kind.
    #[error("not a frame of a hand-over: it begins with {0:02x?}")]
    Foreign([u8; 4]),
    /// The body is longer than [`FRAME_BYTES_MAX`].
    #[error("a frame of {0} bytes, and at most {FRAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The body is not a message.
    #[error("a frame is not a message that this version knows")]
    Unknown(#[source] serde_json::Error),
    /// The name of a part of the state is cut off, too long, or not UTF-8.
    #[error("a part of the state has no name")]
    NoName,
}

/// A message that has a form on the wire.
pub trait WireMessage: Sized {
    /// Appends the frame of this message to `into`, which is unchanged after an error.
    ///
    /// # Errors
    /// If the message is too long, or a part of the state has a name of more than 255 bytes.
    fn write(&self, into: &mut Vec<u8>) -> Result<(), FrameError>;

    /// Reads the body of a frame of this kind; `None` if messages of this direction have no such kind.
    ///
    /// # Errors
    /// If the body is not a message.
    fn read(kind: u8, body: &[u8]) -> Option<Result<Self, FrameError>>;
}

impl WireMessage for ToOld {
    fn write(&self, into: &mut Vec<u8>) -> Result<(), FrameError> {
        write_frame(into, JSON, |body| write_json(body, self))
    }

    fn read(kind: u8, body: &[u8]) -> Option<Result<Self, FrameError>> {
        (kind == JSON).then(|| read_json(body))
    }
}

impl WireMessage for ToNew {
    fn write(&self, into: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            Self::State(part) => write_frame(into, STATE, |body| {
                let length = u8::try_from(part.name.len()).map_err(|_| FrameError::NoName)?;
                body.push(length);
                body.extend_from_slice(part.name.as_bytes());
                body.extend_from_slice(&part.bytes);
                Ok(())
            }),
            message => write_frame(into, JSON, |body| write_json(body, message)),
        }
    }

    fn read(kind: u8, body: &[u8]) -> Option<Result<Self, FrameError>> {
        match kind {
            JSON => Some(read_json(body)),
            STATE => Some(read_state(body).ok_or(FrameError::NoName)),
            _ => None,
        }
    }
}

fn write_json(body: &mut Vec<u8>, message: &impl Serialize) -> Result<(), FrameError> {
    serde_json::to_writer(body, message).map_err(FrameError::Unknown)
}

fn read_json<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    serde_json::from_slice(body).map_err(FrameError::Unknown)
}

fn read_state(body: &[u8]) -> Option<ToNew> {
    let (&length, rest) = body.split_first()?;
    let (name, bytes) = rest.split_at_checked(length.into())?;
    Some(ToNew::State(StatePart {
        name: std::str::from_utf8(name).ok()?.into(),
        bytes: bytes.to_vec(),
    }))
}

fn write_frame(
    into: &mut Vec<u8>,
    kind: u8,
    write_body: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    let start = into.len();
    into.extend_from_slice(&MARK);
    into.extend_from_slice(&[kind, 0, 0, 0, 0]);
    let written = write_body(into).and_then(|()| {
        let length = into.len() - start - HEAD_BYTES;
        match u32::try_from(length) {
            Ok(short) if length <= FRAME_BYTES_MAX => Ok(short),
            _ => Err(FrameError::TooLong(length)),
        }
    });
    match written {
        Ok(length) => {
            into[start + 4..start + HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        Err(error) => {
            into.truncate(start);
            Err(error)
        }
    }
}

/// Bytes that have arrived, until they are messages. The buffer holds at most one frame and what came with it.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// How much of the bytes has been read.
    read: usize,
}

impl FrameReader {
    /// Takes bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message; `None` until more bytes arrive.
    ///
    /// # Errors
    /// If the bytes are not a message. Each further call returns an error too.
    pub fn next_message<M: WireMessage>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.bytes[self.read..];
        let mark = rest.len().min(MARK.len());
        if rest[..mark] != MARK[..mark] {
            let mut shown = [0; 4];
            let length = rest.len().min(shown.len());
            shown[..length].copy_from_slice(&rest[..length]);
            return Err(FrameError::Foreign(shown));
        }
        let Some((&[m, a, r, kind, b0, b1, b2, b3], rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = M::read(kind, body).ok_or(FrameError::Foreign([m, a, r, kind]))??;
        self.read += HEAD_BYTES + length;
        Ok(Some(message))
    }

    /// Whether the connection could end here without cutting off a message.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.read == self.bytes.len()
    }
}
