//! HTTP/1.1: keep-alive, pipelining, chunked bodies, `Expect: 100-continue`, as hyper
//! parses them; every request whole, or as much of it as may be held, before it waits.
//!
//! What hyper takes and a backend might read differently is refused here: two framings, two
//! lengths, two hosts, any transfer coding but `chunked`. What is forwarded is written
//! anew, with exactly one framing.

mod body;
mod client;
mod identity;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use self::body::PacedBody;
use self::client::{ClientIo, Phases};
use self::identity::Identities;
use super::{Conversation, Settings, Whence, array_call, dialect};
use crate::call::{
    self, ByteStream, HttpCall, Message, Origin, Progress, Reason, Refusal, Reply, ReplyBody,
    RequestBody, Serve,
};

/// Largest head of a request.   bytes
const HEAD_BYTES: usize = 64 * 1024;
/// Most header fields of a request.
const HEADERS: usize = 128;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Serves the calls of one connection that has sent its first bytes.
pub(super) async fn serve<S: Serve>(
    client: super::io::Client,
    whence: Whence,
    conversation: Conversation<S>,
    first: Vec<u8>,
) {
    let Ok(stream) = client.into_watched() else {
        return;
    };
    let origin = whence.origin;
    let settings = Arc::clone(&conversation.settings);
    let stop = conversation.stop.clone();
    let phases = Arc::new(Phases::begun(origin.arrived, conversation.clock.now()));
    // Without this the reply to a pipelined request would wait for the last one's ACK. A
    // socket that cannot be told so is only slower.
    let _ = stream.tcp().set_nodelay(true);
    let io = ClientIo::new(
        stream,
        first,
        Arc::clone(&phases),
        conversation.clock,
        &settings,
    );
    let client = Arc::new(Client {
        conversation,
        identities: Identities::new(origin.identity, &whence.listener, &settings),
        phases,
    });
    let service = service_fn(move |request: Request<Incoming>| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.handle(request).await) }
    });
    let connection = Builder::new()
        // ClientIo says when a client has left.
        .half_close(true)
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES)
        // Asked for only between two reads, so it bounds what is held of a head without end.
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    // How a connection ends is the client's business; every call in it has its own record.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

/// One connection, as its requests see it.
struct Client<S> {
    conversation: Conversation<S>,
    identities: Identities,
    phases: Arc<Phases>,
}

impl<S: Serve> Client<S> {
    async fn handle(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let now = self.conversation.clock.now();
        let origin = Origin {
            arrived: self.phases.begin_request(now),
            identity: self.identities.of(request.headers()),
        };
        let response = match self.read(request).await {
            Ok(http) => {
                let request = call::Request {
                    origin,
                    message: Message::Http(Box::new(http)),
                };
                let progress = Progress::default();
                let reply = self.conversation.serve.serve(request, &progress).await;
                dress(reply)
            }
            Err(refusal) => {
                self.conversation.serve.refused(origin, "http", &refusal);
                let mut response = refused(&refusal);
                // Where its request ends is not known, or not worth reading to.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
                response
            }
        };
        self.phases.end_request(self.conversation.clock.now());
        response
    }

    async fn read(&self, request: Request<Incoming>) -> Result<HttpCall, Refusal> {
        let (head, body) = request.into_parts();
        check_framing(&head.method, head.version, &head.headers)?;
        let settings = &self.conversation.settings;
        // Boxed, so that a call that waits has no room kept for it.
        let body = if body.is_end_stream() {
            RequestBody::Whole(Bytes::new())
        } else {
            Box::pin(read_body(body, settings)).await?
        };
        self.phases.body_read();
        let array = match &body {
            RequestBody::Whole(bytes) if is_array_call(&head, bytes) => {
                // The backend that gets it as HTTP has no such bound, but the socket
                // backend has; the classifier does not choose by size.
                let parsed = array_call::parse(bytes.trim_ascii(), settings.max_request_bytes);
                Some(parsed.map_err(|why| match why {
                    array_call::Malformed::TooLarge { .. } => {
                        super::zvm_socket::too_large(settings.max_request_bytes)
                    }
                    why => Refusal::new(Reason::BadRequest, why.to_string()),
                })?)
            }
            _ => None,
        };
        Ok(HttpCall { head, body, array })
    }
}

/// Whether this is the socket protocol's array in HTTP dress.
fn is_array_call(head: &http::request::Parts, body: &[u8]) -> bool {
    head.method == Method::POST
        && head.uri.path() == "/"
        && body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// Refuses a head of which somebody could think that the request ends elsewhere, or goes
/// elsewhere, than hyper thinks (RFC 9112, 6.3 and 11.2).
fn check_framing(method: &Method, version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    let bad = |why: &'static str| Err(Refusal::new(Reason::BadRequest, why));
    let count = |name: header::HeaderName| headers.get_all(name).iter().count();
    let lengths = count(header::CONTENT_LENGTH);
    let codings = count(header::TRANSFER_ENCODING);
    if lengths > 0 && codings > 0 {
        return bad("both Content-Length and Transfer-Encoding");
    }
    if lengths > 1 {
        return bad("more than one Content-Length");
    }
    if codings > 1
        || headers
            .get(header::TRANSFER_ENCODING)
            .is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return bad("a Transfer-Encoding other than chunked");
    }
    if codings > 0 && version < Version::HTTP_11 {
        return bad("Transfer-Encoding before HTTP/1.1");
    }
    let hosts = count(header::HOST);
    if hosts > 1 {
        return bad("more than one Host");
    }
    if hosts == 0 && version >= Version::HTTP_11 {
        return bad("no Host");
    }
    if *method == Method::CONNECT {
        return bad("CONNECT: this is no forward proxy");
    }
    Ok(())
}

/// Reads a body that may be held whole; begins to read one that may not.
async fn read_body(mut body: Incoming, settings: &Settings) -> Result<RequestBody, Refusal> {
    let max = settings.buffer_bytes;
    if body.size_hint().lower() > max as u64 {
        return Ok(RequestBody::Streamed {
            read: Vec::new(),
            rest: stream(body, settings),
        });
    }
    let reading = async {
        let mut frames: Vec<Bytes> = Vec::new();
        let mut total = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| {
                Refusal::new(Reason::BadRequest, "the request's body ends in the middle")
            })?;
            if let Ok(bytes) = frame.into_data() {
                total += bytes.len();
                frames.push(bytes);
            }
            if total > max {
                return Ok::<_, Refusal>((frames, false));
            }
        }
        Ok((frames, true))
    };
    let (mut frames, whole) = tokio::time::timeout(settings.request_timeout, reading)
        .await
        .map_err(|_| {
            Refusal::new(
                Reason::RequestSlow,
                format!(
                    "the request's body did not come in within {} s",
                    settings.request_timeout.as_secs_f64()
                ),
            )
        })??;
    if !whole {
        return Ok(RequestBody::Streamed {
            read: frames,
            rest: stream(body, settings),
        });
    }
    Ok(RequestBody::Whole(match frames.len() {
        0 => Bytes::new(),
        1 => frames.swap_remove(0),
        _ => frames.concat().into(),
    }))
}

fn stream(body: Incoming, settings: &Settings) -> ByteStream {
    ByteStream::new(PacedBody::new(
        body,
        settings.body_timeout,
        settings.body_min_rate,
    ))
}

/// Puts a reply in HTTP dress.
fn dress(reply: Reply) -> Response<ReplyBody> {
    match reply {
        Reply::Http(response) => response,
        Reply::Whole(bytes) => {
            let status = array_call::overall_rc(&bytes).map_or(StatusCode::OK, dialect::status_of);
            json(status, whole(bytes))
        }
        // Too large to look into first; the client looks at overallRC anyway.
        Reply::Stream(body) => json(StatusCode::OK, body),
        Reply::Refused(refusal) => {
            let mut response = refused(&refusal);
            if refusal.reason == Reason::TooLarge || refusal.reason == Reason::RequestSlow {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        Reply::Tunnel(_) => refused(&Refusal::new(
            Reason::Internal,
            "an answer of the wrong protocol",
        )),
    }
}

fn refused(refusal: &Refusal) -> Response<ReplyBody> {
    let body = dialect::refusal_json(refusal);
    let mut response = json(refusal.reason.status(), whole(body));
    if let Some(after) = refusal.retry_after {
        response.headers_mut().insert(
            header::RETRY_AFTER,
            HeaderValue::from(dialect::retry_after_seconds(after)),
        );
    }
    response
}

fn json(status: StatusCode, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

fn whole(bytes: Bytes) -> ReplyBody {
    ReplyBody::whole(bytes)
}
