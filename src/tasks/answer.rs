//! An answer that is kept until its client fetches it.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::{NotKept, Room};
use crate::call::{BodyError, BufferedReply, ByteStream, ReplyBody, ReplyHead};

/// Why an answer cannot be kept.
#[derive(Debug)]
pub enum KeepError {
    /// There is no room for it. It was read to its end.
    NoRoom(NotKept),
    /// The answer ended in the middle.
    Cut(BodyError),
}

/// Reads an answer to its end, within the bounds.
///
/// # Errors
/// [`KeepError`] if there is no room for it, or a part is missing.
pub async fn read(
    (mut head, body): (Box<ReplyHead>, ReplyBody),
    room: &Room,
) -> Result<BufferedReply, KeepError> {
    let body = match body {
        // A copy, so that the receive buffer is freed.
        ReplyBody::Whole(body) => Bytes::copy_from_slice(&body.unwrap_or_default()),
        ReplyBody::Stream(body) => read_stream(body, room).await?,
        // A call that is handed over offers no other protocol.
        ReplyBody::Tunnel(_) => Bytes::new(),
    };
    // It is set anew for each fetch. The answer to a HEAD has a length and no body.
    head.length = None;
    Ok(BufferedReply {
        head: Some(head),
        body,
    })
}

async fn read_stream(mut body: ByteStream, room: &Room) -> Result<Bytes, KeepError> {
    let mut whole = BytesMut::new();
    let mut read = 0;
    let mut fits = true;
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.map_err(KeepError::Cut)?.into_data() else {
            continue;
        };
        read += bytes.len();
        fits = fits && room.hold(bytes.len());
        if fits {
            whole.extend_from_slice(&bytes);
        } else {
            // An answer without room is not held. But the backend is read to its end, so that the
            // slot comes back when it is done, and the call is reported correctly.
            whole = BytesMut::new();
        }
    }
    if fits {
        Ok(whole.freeze())
    } else {
        Err(KeepError::NoRoom(NotKept { bytes: read }))
    }
}
