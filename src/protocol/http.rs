//! HTTP/1.1: every request whole, or as much of it as may be held, before it waits.
//!
//! A connection (`connection`) reads requests (`request_reader`): heads, which are read once if they come again
//! (`head_cache`), and bodies (`request_body`). It answers in order (`respond`).
//!
//! What a backend might read differently is refused: two framings, two lengths, two hosts, any transfer coding but
//! `chunked`, a user in the target. `tidegate-h1` decides that. What is forwarded is written anew, with exactly one
//! framing.

mod answer;
mod client_socket;
mod connection;
mod date;
mod events;
mod head_cache;
mod http2;
mod identity;
mod place;
mod received;
mod request_body;
mod request_reader;
mod respond;
mod signs;
mod upload;

use std::sync::Arc;

pub use self::answer::{answer, json, refused_with};
use super::{ConnectionOrigin, ConnectionPhase, Conversation};
use crate::call::Serve;

/// Serves the calls of one connection that has sent its first bytes.
pub(super) fn serve<S: Serve>(
    client: super::io::Client,
    from: ConnectionOrigin,
    conversation: Arc<Conversation<S>>,
    first: Vec<u8>,
) -> ConnectionPhase {
    let Ok(stream) = client.into_watched() else {
        return ConnectionPhase::Ended;
    };
    // Without this the reply to a pipelined request would wait for the last one's ACK. A
    // socket that cannot be told so is only slower.
    let _ = stream.tcp().set_nodelay(true);
    ConnectionPhase::Interim(Box::pin(connection::serve(
        stream,
        first,
        from,
        conversation,
    )))
}
