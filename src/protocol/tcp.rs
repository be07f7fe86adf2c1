//! Any bytes: one connection is one call, let through both ways once it may go.

use std::future::poll_fn;
use std::task::Poll;

use super::io::Client;
use super::stream::Stream;
use super::wire::OnEof;
use super::{Conversation, Whence, tunnel};
use crate::call::{Progress, Serve};

pub(super) async fn serve<S: Serve>(
    client: Client,
    whence: Whence,
    conversation: &Conversation<S>,
) {
    let Ok(mut stream) = client.into_watched() else {
        return;
    };
    let on_eof = OnEof::new(whence.listener.cancel_on_eof);
    let progress = Progress::default();
    let tunnel = tokio::select! {
        biased;
        tunnel = conversation.serve.tunnel(whence.origin, &progress) => tunnel,
        () = gone(&mut stream, on_eof, &progress) => return,
    };
    // Refused: these bytes have no dialect to say it in, so the connection just closes.
    let Ok(tunnel) = tunnel else {
        return;
    };
    // The protocol's own hold on the record goes, so that the tunnel's is the last.
    drop(progress);
    let idle_timeout = conversation.settings.tunnel_idle_timeout;
    tunnel::run(stream, tunnel, idle_timeout, &conversation.cut).await;
}

/// Ends when the client has left before its turn, however much it has sent. What it sent stays
/// in the kernel.
async fn gone(stream: &mut Stream, on_eof: OnEof, progress: &Progress) {
    poll_fn(|cx| stream.poll_left(cx, on_eof)).await;
    // A call that has begun ends with its tunnel.
    poll_fn(|cx| {
        if progress.is_admitted() {
            stream.poll_reset(cx)
        } else {
            Poll::Ready(())
        }
    })
    .await;
}
