//! Any bytes: one connection is one call, let through both ways once it may go.

use std::future::poll_fn;
use std::io::ErrorKind;

use tokio::io::copy_bidirectional;

use super::io::Client;
use super::stream::Stream;
use super::{Conversation, Whence};
use crate::call::{Message, Progress, Reply, Request, Serve};

pub(super) async fn serve<S: Serve>(
    client: Client,
    whence: Whence,
    conversation: &Conversation<S>,
) {
    let Ok(mut stream) = client.into_watched() else {
        return;
    };
    let request = Request {
        origin: whence.origin,
        message: Message::Tcp,
    };
    let progress = Progress::default();
    let reply = tokio::select! {
        biased;
        reply = conversation.serve.serve(request, &progress) => reply,
        () = gone(&mut stream, &progress) => return,
    };
    // Refused: these bytes have no dialect to say it in, so the connection just closes.
    let Reply::Tunnel(mut tunnel) = reply else {
        return;
    };
    let copied = copy_bidirectional(&mut stream, &mut tunnel.stream).await;
    if let Ok((bytes_in, bytes_out)) = copied {
        tunnel.record.note(|facts| {
            facts.bytes_in = bytes_in;
            facts.bytes_out = bytes_out;
        });
    }
}

/// Ends when the client has left before its turn. What it has sent stays in the kernel, so
/// behind it only a reset can be seen.
async fn gone(stream: &mut Stream, progress: &Progress) {
    loop {
        match poll_fn(|cx| stream.poll_peek(cx)).await {
            Ok(0) if progress.is_admitted() => std::future::pending().await,
            Ok(0) => return,
            Ok(_) => match stream.tcp().ready(tokio::io::Interest::ERROR).await {
                Ok(_) | Err(_) => return,
            },
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
