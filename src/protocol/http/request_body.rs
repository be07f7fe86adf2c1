//! The body of a request, as much of it as must be here before its call can queue. The rest of a larger one is an
//! [`Upload`].

use bytes::Bytes;
use tidegate_h1::chunks::Chunks;
use tidegate_h1::{BodyLeft, Framing};

use super::super::ClientSettings;
use super::head_cache::KnownHead;
use super::upload::Upload;
use crate::call::RequestBody;

/// The part of a body that must be here before its call can queue.
#[derive(Clone, Copy)]
pub(super) enum BodyNeed {
    /// A number of bytes of head and body; all of the body, unless it is larger than may be held.
    Bytes(usize),
    /// Chunks up to the last one, or up to what may be held.
    Chunks {
        chunks: Chunks,
        /// How far they were read, in bytes of head and body.
        at: usize,
        /// Bytes of data so far.
        data: usize,
    },
}

/// A body as far as it was read.
pub(super) enum ReadBody {
    /// More bytes are needed.
    Partial,
    /// Enough of it is here. The message has this number of bytes so far.
    Ready(RequestBody, Option<Box<Upload>>, usize),
    /// The chunks are malformed.
    Malformed,
}

impl BodyNeed {
    /// Computes the need of this request's body. `waits` is whether its client waits for a permission to send it,
    /// which it gets when the call has its turn.
    pub(super) fn of(head: &KnownHead, waits: bool, settings: &ClientSettings) -> Self {
        match head.framing {
            Framing::Length(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let wanted = if waits { 0 } else { length };
                Self::Bytes(head.length + wanted.min(settings.buffer_bytes))
            }
            Framing::Chunked => Self::Chunks {
                chunks: Chunks::default(),
                at: head.length,
                data: 0,
            },
            Framing::None | Framing::Close => Self::Bytes(head.length),
        }
    }

    /// Reads the body behind a head.
    pub(super) fn read(
        &mut self,
        head: &KnownHead,
        waits: bool,
        bytes: &[u8],
        settings: &ClientSettings,
    ) -> ReadBody {
        match self {
            Self::Bytes(needed) if bytes.len() < *needed => ReadBody::Partial,
            Self::Bytes(_) => {
                let length = match head.framing {
                    Framing::Length(length) => length,
                    Framing::None | Framing::Chunked | Framing::Close => 0,
                };
                let here = (bytes.len() - head.length) as u64;
                let is_whole = length <= here && length <= settings.buffer_bytes as u64;
                let taken = match usize::try_from(length) {
                    Ok(length) if is_whole => length,
                    _ => (bytes.len() - head.length).min(settings.buffer_bytes),
                };
                let end = head.length + taken;
                let body = Bytes::copy_from_slice(&bytes[head.length..end]);
                if is_whole {
                    return ReadBody::Ready(RequestBody::Whole(body), None, end);
                }
                let left = BodyLeft::Length(length - taken as u64);
                let (body, upload) = Upload::start(body, left, waits, settings);
                ReadBody::Ready(body, Some(upload), end)
            }
            Self::Chunks { chunks, at, data } => {
                while *at < bytes.len() && !chunks.has_ended() {
                    let Ok(step) = chunks.step(&bytes[*at..]) else {
                        return ReadBody::Malformed;
                    };
                    *at += step.framing + step.data;
                    *data += step.data;
                }
                // A chunk of one byte has five bytes of framing.
                let most = settings.buffer_bytes.saturating_mul(6);
                let is_large = *data > settings.buffer_bytes || *at - head.length > most || waits;
                if !chunks.has_ended() && !is_large {
                    return ReadBody::Partial;
                }
                let body = data_of(&bytes[head.length..*at], *data);
                if chunks.has_ended() {
                    return ReadBody::Ready(RequestBody::Whole(body), None, *at);
                }
                let (body, upload) =
                    Upload::start(body, BodyLeft::Chunks(*chunks), waits, settings);
                ReadBody::Ready(body, Some(upload), *at)
            }
        }
    }
}

/// The data of chunks that were read before.
fn data_of(mut bytes: &[u8], length: usize) -> Bytes {
    let mut data = Vec::with_capacity(length);
    let mut chunks = Chunks::default();
    while !bytes.is_empty() {
        let Ok(step) = chunks.step(bytes) else { break };
        data.extend_from_slice(&bytes[step.framing..step.framing + step.data]);
        bytes = &bytes[step.framing + step.data..];
    }
    data.into()
}
