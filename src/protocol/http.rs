//! HTTP/1.1: every request whole, or as much of it as may be held, before it waits.
//!
//! A connection begins in `fast`, which reads requests of the usual form. The first other request, and all
//! behind it, are left to hyper (`by_hyper`), with every byte of it.
//!
//! What hyper takes and a backend might read differently is refused: two framings, two
//! lengths, two hosts, any transfer coding but `chunked`, a user in the target. `heads` looks for
//! that in the bytes as they came. What is forwarded is written anew, with exactly one framing.

mod answer;
mod body;
mod by_hyper;
mod client;
mod date;
mod fast;
mod heads;
mod http2;
mod identity;
mod known;
mod received;
mod written;

use std::sync::Arc;

pub use self::answer::{answer, json, refused_with};
use self::received::Received;
use super::{Conversation, Then, Whence};
use crate::call::{HttpEngine, Serve};

/// Serves the calls of one connection that has sent its first bytes.
pub(super) fn serve<S: Serve>(
    client: super::io::Client,
    whence: Whence,
    conversation: Arc<Conversation<S>>,
    first: Vec<u8>,
) -> Then {
    let Ok(stream) = client.into_watched() else {
        return Then::End;
    };
    // Without this the reply to a pipelined request would wait for the last one's ACK. A
    // socket that cannot be told so is only slower.
    let _ = stream.tcp().set_nodelay(true);
    let received = Received {
        stream,
        bytes: first,
        came: whence.origin.arrived,
    };
    match conversation.settings.http_engine {
        HttpEngine::Fast => Then::Goes(Box::pin(fast::serve(received, whence, conversation))),
        HttpEngine::Hyper => Then::Last(Box::pin(by_hyper::serve(received, whence, conversation))),
    }
}
