//! Any bytes: one connection is one call, forwarded in both directions after admission.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::io::Client;
use super::stream::ClientStream;
use super::streams::StreamKind;
use super::wire::OnEof;
use super::{ConnectionOrigin, Conversation, tunnel};
use crate::call::{Progress, Refusal, Serve};

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
    let tunnel = tokio::select! {
        biased;
        tunnel = conversation.serve.tunnel(from.origin, &progress) => tunnel,
        () = gone(&mut stream, on_eof, &progress) => return,
        // A tunnel that began now would end at once.
        () = conversation.streams.wait() => {
            let mut refusal = Refusal::draining();
            return progress.refuse(&mut refusal);
        }
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
