//! Any bytes: one connection is one call, forwarded in both directions after admission.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::io::Client;
use super::stream::ClientStream;
use super::streams::StreamKind;
use super::wire::OnEof;
use super::{ConnectionOrigin, Conversation, tunnel};
use crate::call::{Origin, Progress, Refusal, Serve, Tunnel};

pub(super) async fn serve<S: Serve>(
    client: Client,
    from: ConnectionOrigin,
    conversation: Arc<Conversation<S>>,
) {
    let Ok(mut stream) = client.into_watched() else {
        return;
    };
    let on_eof = OnEof::new(from.listener.cancel_on_eof);
    let progress = Progress::of(&from.listener);
    let Some(tunnel) = turn(&conversation, from.origin, &mut stream, on_eof, &progress).await
    else {
        return;
    };
    // Refused: this protocol has no form for a refusal, so the connection just closes.
    let Ok(tunnel) = tunnel else {
        return;
    };
    // The protocol drops the record, so that the tunnel is its last owner.
    drop(progress);
    let idle_timeout = conversation.settings.tunnel_idle_timeout;
    let watch = conversation.streams.watch(StreamKind::Tunnel);
    tunnel::run(stream, Vec::new(), tunnel, idle_timeout, watch).await;
}

/// Waits for the turn of the call; `None` if it is over before: the client has left, or the process ends.
async fn turn<S: Serve>(
    conversation: &Conversation<S>,
    origin: Origin,
    stream: &mut ClientStream,
    on_eof: OnEof,
    progress: &Progress,
) -> Option<Result<Tunnel, Refusal>> {
    let mut tunnel = pin!(conversation.serve.tunnel(origin, progress));
    // One that need not wait begins before a half-close that came with it is looked at.
    let at_once = poll_fn(|cx| Poll::Ready(tunnel.as_mut().poll(cx))).await;
    if let Poll::Ready(tunnel) = at_once {
        return Some(tunnel);
    }
    tokio::select! {
        biased;
        // First, because the client's end may have come together with the turn of the call.
        () = gone(stream, on_eof, progress) => None,
        tunnel = tunnel => Some(tunnel),
        // A tunnel that began now would end at once.
        () = conversation.streams.wait() => {
            let mut refusal = Refusal::draining();
            progress.refuse(&mut refusal);
            None
        }
    }
}

/// Ends when the client has left before its turn, for any amount of sent bytes. Those stay in the
/// kernel.
async fn gone(stream: &mut ClientStream, on_eof: OnEof, progress: &Progress) {
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
