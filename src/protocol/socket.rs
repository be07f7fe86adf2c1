//! The socket protocol: one JSON array per connection, without newline, length or half-close. The
//! answer is one JSON object, then the connection closes.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::io::Client;
use super::wire::OnEof;
use super::{ClientSettings, ConnectionOrigin, Conversation, dialect};
use crate::call::sdk::{BadArray, FrameError, FrameStatus, Framer, array};
use crate::call::{
    ArrayCall, Dialect, Message, Progress, Reason, Refusal, Reply, ReplyBody, Request, Serve,
};

/// Serves the one call of a connection that has sent its first bytes.
pub(super) async fn serve<S: Serve>(
    mut client: Client,
    mut from: ConnectionOrigin,
    conversation: Arc<Conversation<S>>,
    first: Vec<u8>,
) {
    let settings = &conversation.settings;
    let read = {
        let mut reading = IncomingRequest::new(first, settings);
        match reading.look(settings) {
            Some(read) => Some(read),
            None => {
                let read = Box::pin(reading.read_on(&mut client, settings)).await;
                // The clock of the queue starts when the request is whole.
                from.origin.arrived = conversation.clock.now();
                read
            }
        }
    };
    let request = match read {
        Some(Ok(call)) => Request {
            origin: from.origin.clone(),
            message: Message::Socket(Box::new(call)),
        },
        Some(Err(mut refusal)) => {
            let serve = &conversation.serve;
            refusal.call = Some(serve.refused(from.origin, Dialect::Socket, &refusal));
            return Box::pin(refuse(client, &refusal, settings)).await;
        }
        None => return,
    };
    let progress = Progress::of(&from.listener);
    let on_eof = OnEof::new(from.listener.cancel_on_eof);
    let reply = {
        // Dropped with this block, so a call that is refused here leaves the queue before its
        // refusal is written.
        let mut reply = pin!(conversation.serve.serve(request, &progress));
        // Once past the gate, a call goes on whether its client stays or not, so there is
        // nothing to watch for until the answer; and one that need not wait is past the gate at
        // once, before a half-close that came with it is looked at.
        let answered = std::future::poll_fn(|cx| match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending if progress.is_admitted() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        let outcome = match answered.await {
            Some(reply) => Ok(reply),
            None => tokio::select! {
                biased;
                // First, because the client's end may have come together with the turn of the call.
                left = watch(&mut client, on_eof, &progress) => Err(left),
                reply = reply => Ok(reply),
            },
        };
        match outcome {
            Ok(reply) => reply,
            Err(Presence::Left) => return,
            Err(Presence::SentMore) => {
                let mut refusal = extra_data();
                progress.refuse(&mut refusal);
                Err(refusal)
            }
        }
    };
    match reply {
        Ok(Reply {
            body: ReplyBody::Whole(bytes),
            ..
        }) => {
            let bytes = bytes.unwrap_or_default();
            if let Err((client, written)) = client.answer_at_once(&bytes) {
                Box::pin(answer(client, bytes.slice(written..), settings)).await;
            }
        }
        Ok(reply) => Box::pin(relay(client, reply.body, settings)).await,
        Err(refusal) => Box::pin(refuse(client, &refusal, settings)).await,
    }
}

/// A request as it comes in.
struct IncomingRequest {
    framer: Framer,
    bytes: Vec<u8>,
    /// Number of bytes that the framer has seen.
    seen: usize,
}

impl IncomingRequest {
    fn new(first: Vec<u8>, settings: &ClientSettings) -> Self {
        Self {
            // White space makes up at most half of what json.dumps writes, so what is more
            // than twice too large cannot be compacted to fit.
            framer: Framer::new(settings.max_request_bytes.saturating_mul(2)),
            bytes: first,
            seen: 0,
        }
    }

    /// Looks at what has come in; none if more must come.
    fn look(&mut self, settings: &ClientSettings) -> Option<Result<ArrayCall, Refusal>> {
        let max = settings.max_request_bytes;
        let end = match self.framer.push(&self.bytes[self.seen..]) {
            FrameStatus::End(end) => end,
            FrameStatus::Bad(FrameError::TooLarge) => return Some(Err(too_large(max))),
            FrameStatus::Bad(why) => return Some(Err(bad(&why))),
            FrameStatus::More => {
                self.seen = self.bytes.len();
                return None;
            }
        };
        if !self.bytes[end..].iter().all(u8::is_ascii_whitespace) {
            return Some(Err(extra_data()));
        }
        Some(
            array::parse(&self.bytes[..end], max).map_err(|why| match why {
                BadArray::TooLarge { .. } => too_large(max),
                why => bad(&why),
            }),
        )
    }

    /// Reads until it is whole, or its time is up. `None` if the client closed before, and sent
    /// nothing worth an answer.
    async fn read_on(
        &mut self,
        client: &mut Client,
        settings: &ClientSettings,
    ) -> Option<Result<ArrayCall, Refusal>> {
        let deadline = Instant::now() + settings.request_timeout;
        loop {
            match timeout_at(deadline, client.read_some(&mut self.bytes)).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0)) if self.framer.has_begun() => {
                    return Some(Err(bad(&"the request ends in the middle")));
                }
                Ok(Ok(0) | Err(_)) => return None,
                Err(_) => {
                    let within = settings.request_timeout.as_secs_f64();
                    let detail = format!("the request did not come in whole within {within} s");
                    return Some(Err(Refusal::new(Reason::RequestSlow, detail)));
                }
            }
            if let Some(read) = self.look(settings) {
                return Some(read);
            }
        }
    }
}

fn bad(why: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(Reason::BadRequest, why.to_string())
}

fn extra_data() -> Refusal {
    bad(&"extra data after the request: one connection carries one array")
}

pub(super) fn too_large(max: usize) -> Refusal {
    Refusal::new(
        Reason::TooLarge,
        format!("the request is larger than {max} bytes, which is all that the backend reads"),
    )
}

enum Presence {
    Left,
    SentMore,
}

/// Ends when the client has left, or has sent a second request.
async fn watch(client: &mut Client, on_eof: OnEof, progress: &Progress) -> Presence {
    let mut more = Vec::new();
    loop {
        more.clear();
        match client.read_some(&mut more).await {
            Ok(0) => break,
            Ok(_) if more.iter().all(u8::is_ascii_whitespace) => {}
            Ok(_) if progress.is_admitted() => {}
            Ok(_) => return Presence::SentMore,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Presence::Left,
        }
    }
    // A half-close: a client that waits has left, also one that waits again; one whose call runs
    // will still read.
    std::future::poll_fn(|cx| {
        if on_eof == OnEof::Left && !progress.is_admitted() {
            return Poll::Ready(());
        }
        client.poll_reset(cx)
    })
    .await;
    Presence::Left
}

async fn answer(mut client: Client, bytes: Bytes, settings: &ClientSettings) {
    match client.write_all(&bytes, settings.write_timeout).await {
        Ok(()) => client.close(false).await,
        Err(_) => client.abandon(),
    }
}

async fn refuse(mut client: Client, refusal: &Refusal, settings: &ClientSettings) {
    let answer = dialect::refusal_json(refusal);
    let written = client.write_all(&answer, settings.write_timeout).await;
    if written.is_ok() {
        // The client of an invalid request may still be sending.
        let expect_more = refusal.reason.overall_rc() == 400;
        client.close(expect_more).await;
    }
}

/// Passes a large reply on as it comes.
async fn relay(mut client: Client, mut body: ReplyBody, settings: &ClientSettings) {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return client.abandon();
        };
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        let written = client.write_all(&bytes, settings.write_timeout).await;
        if written.is_err() {
            return client.abandon();
        }
    }
    client.close(false).await;
}
