//! The sdkserver's own protocol: one JSON array per connection, without newline, length or
//! half-close; one JSON object back, then close.

use std::io::ErrorKind;
use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::framer::{Framed, Framer, Misframed};
use super::{Accepted, Conversation, Settings, array_call, dialect, io};
use crate::call::{
    ArrayCall, Message, Progress, Reason, Refusal, Reply, ReplyBody, Request, Serve,
};

/// Serves the one call of a connection that has sent its first bytes.
pub(super) async fn serve<S: Serve>(
    accepted: Accepted,
    conversation: &Conversation<S>,
    first: Vec<u8>,
) {
    let settings = Arc::clone(&conversation.settings);
    let origin = accepted.origin(accepted.at);
    let request = match read_request(&accepted.stream, first, &settings).await {
        Read::Request(call) => Request {
            origin,
            message: Message::Socket(call),
        },
        Read::Refused(refusal) => {
            conversation.serve.refused(origin, "socket", &refusal);
            return refuse(accepted.stream, &refusal, &settings).await;
        }
        Read::Left => return,
    };
    let progress = Progress::default();
    let outcome = {
        let presence = watch(&accepted.stream, accepted.cancel_on_eof, &progress);
        tokio::select! {
            // The call first: one that need not wait is past the gate before a half-close
            // that came with it is looked at.
            biased;
            reply = conversation.serve.serve(request, &progress) => Ok(reply),
            left = presence => Err(left),
        }
    };
    match outcome {
        Ok(reply) => answer(accepted.stream, reply, &settings).await,
        Err(Presence::Left) => {}
        Err(Presence::SentMore) => {
            let refusal = extra_data();
            conversation
                .serve
                .refused(accepted.origin(accepted.at), "socket", &refusal);
            refuse(accepted.stream, &refusal, &settings).await;
        }
    }
}

enum Read {
    Request(ArrayCall),
    Refused(Refusal),
    /// It closed before its request was whole, and said nothing worth an answer.
    Left,
}

async fn read_request(stream: &TcpStream, first: Vec<u8>, settings: &Settings) -> Read {
    let deadline = Instant::now() + settings.request_timeout;
    // White space makes up at most half of what json.dumps writes, so what is more than
    // twice too large cannot be compacted to fit.
    let mut framer = Framer::request(settings.max_request_bytes.saturating_mul(2));
    let mut bytes = first;
    let mut seen = 0;
    let end = loop {
        match framer.push(&bytes[seen..]) {
            Framed::End(end) => break end,
            Framed::Bad(Misframed::TooLarge) => {
                return Read::Refused(too_large(settings.max_request_bytes));
            }
            Framed::Bad(why) => return Read::Refused(bad(&why)),
            Framed::More => seen = bytes.len(),
        }
        match timeout_at(deadline, io::read_some(stream, &mut bytes)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) if framer.has_begun() => {
                return Read::Refused(bad(&"the request ends in the middle"));
            }
            Ok(Ok(0) | Err(_)) => return Read::Left,
            Err(_) => {
                return Read::Refused(Refusal::new(
                    Reason::RequestSlow,
                    format!(
                        "the request did not come in whole within {} s",
                        settings.request_timeout.as_secs_f64()
                    ),
                ));
            }
        }
    };
    if !bytes[end..].iter().all(u8::is_ascii_whitespace) {
        return Read::Refused(extra_data());
    }
    match array_call::parse(&bytes[..end], settings.max_request_bytes) {
        Ok(call) => Read::Request(call),
        Err(array_call::Malformed::TooLarge { .. }) => {
            Read::Refused(too_large(settings.max_request_bytes))
        }
        Err(why) => Read::Refused(bad(&why)),
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
async fn watch(stream: &TcpStream, cancel_on_eof: bool, progress: &Progress) -> Presence {
    let mut more = Vec::new();
    loop {
        more.clear();
        match io::read_some(stream, &mut more).await {
            // A half-close: whoever waits has left; whoever runs will still read.
            Ok(0) if cancel_on_eof && !progress.is_admitted() => return Presence::Left,
            Ok(0) => std::future::pending().await,
            Ok(_) if more.iter().all(u8::is_ascii_whitespace) => {}
            Ok(_) if progress.is_admitted() => {}
            Ok(_) => return Presence::SentMore,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Presence::Left,
        }
    }
}

async fn answer(stream: TcpStream, reply: Reply, settings: &Settings) {
    match reply {
        Reply::Whole(bytes) => {
            if io::write_all(&stream, &bytes, settings.write_timeout)
                .await
                .is_ok()
            {
                io::close(stream, false).await;
            } else {
                abandon(&stream);
            }
        }
        Reply::Stream(body) => relay(stream, body, settings).await,
        Reply::Refused(refusal) => refuse(stream, &refusal, settings).await,
        Reply::Http(_) | Reply::Tunnel(_) => {
            let refusal = Refusal::new(Reason::Internal, "an answer of the wrong protocol");
            refuse(stream, &refusal, settings).await;
        }
    }
}

async fn refuse(stream: TcpStream, refusal: &Refusal, settings: &Settings) {
    let answer = dialect::refusal_json(refusal);
    if io::write_all(&stream, &answer, settings.write_timeout)
        .await
        .is_ok()
    {
        // Whoever sent nonsense may still be sending it.
        let expect_more = refusal.reason.overall_rc() == 400;
        io::close(stream, expect_more).await;
    }
}

/// Passes a large reply on as it comes. A reply that breaks off ends in a reset, so that
/// nobody takes half an answer for a whole one.
async fn relay(stream: TcpStream, mut body: ReplyBody, settings: &Settings) {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return abandon(&stream);
        };
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        if io::write_all(&stream, &bytes, settings.write_timeout)
            .await
            .is_err()
        {
            return abandon(&stream);
        }
    }
    io::close(stream, false).await;
}

fn abandon(stream: &TcpStream) {
    // A socket that cannot be told so is closed the ordinary way.
    let _ = stream.set_zero_linger();
}
