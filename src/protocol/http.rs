//! HTTP/1.1: keep-alive, pipelining, chunked bodies, `Expect: 100-continue`, as hyper
//! parses them; every request whole, or as much of it as may be held, before it waits.
//!
//! What hyper takes and a backend might read differently is refused: two framings, two
//! lengths, two hosts, any transfer coding but `chunked`, a user in the target. `heads` looks for
//! that in the bytes as they came. What is forwarded is written anew, with exactly one framing.

mod body;
mod client;
mod heads;
mod identity;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use self::body::PacedBody;
use self::client::{ClientIo, Phases};
use self::heads::HEAD_BYTES;
use self::identity::Identities;
use super::wire::OnEof;
use super::{Conversation, Whence, dialect};
use crate::call::sdk::{self, Malformed};
use crate::call::{
    self, ByteStream, Dialect, Gathered, HttpCall, Message, Origin, Progress, Quota, Reason,
    Refusal, Reply, ReplyBody, RequestBody, Serve,
};

// As in draft-ietf-httpapi-ratelimit-headers-05 and before, which is what clients read: later
// drafts put all of it into one structured field.
/// The id of a call that was refused or waited, for `tidegate explain`.
const CALL: HeaderName = HeaderName::from_static("x-tidegate-call");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// The id of the caller for which a call was counted. Nothing else about a caller is shown.
const LIMITER_CALLER: HeaderName = HeaderName::from_static("x-limiter-caller");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Serves the calls of one connection that has sent its first bytes.
pub(super) async fn serve<S: Serve>(
    client: super::io::Client,
    whence: Whence,
    conversation: Arc<Conversation<S>>,
    first: Vec<u8>,
) {
    let Ok(stream) = client.into_watched() else {
        return;
    };
    let origin = whence.origin;
    let settings = &conversation.settings;
    let fields_max = settings.max_request_fields;
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
        OnEof::new(whence.listener.cancel_on_eof),
        settings,
    );
    let drained = Arc::clone(&phases);
    let client = Arc::new(Client {
        identities: Identities::new(origin.identity, &whence.listener, settings),
        conversation,
        phases,
    });
    let service = service_fn(move |request: Request<Incoming>| {
        let (call, body) = Client::<S>::begin(request);
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.handle(call, body).await) }
    });
    let connection = Builder::new()
        // ClientIo says when a client has left.
        .half_close(true)
        .header_read_timeout(None)
        .max_headers(fields_max)
        .max_header_size(HEAD_BYTES)
        // Asked for only between two reads, so it bounds what is held of a head without end.
        .max_buf_size(HEAD_BYTES)
        // One buffer: what is small goes out quicker than as a list of pieces.
        .writev(false)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut stopped = pin!(stop.cancelled());
    let mut watches_stop = false;
    let mut is_stopping = false;
    // How a connection ends is the client's business; every call in it has its own record.
    poll_fn(|cx| {
        // Polled before the shutdown, so that a request that is known to be here is served.
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // Asked once, a token wakes this task by itself; after that its flag says enough.
        let is_stopped = if watches_stop {
            stop.is_cancelled()
        } else {
            watches_stop = true;
            stopped.as_mut().poll(cx).is_ready()
        };
        if !is_stopped || is_stopping || drained.lock().is_mid_head {
            return Poll::Pending;
        }
        // An idle connection is closed only if the kernel has no request either.
        drained.lock().looks = true;
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if drained.lock().is_mid_head {
            return Poll::Pending;
        }
        is_stopping = true;
        connection.as_mut().graceful_shutdown();
        connection.as_mut().poll(cx).map(drop)
    })
    .await;
}

/// One connection, as its requests see it.
struct Client<S> {
    conversation: Arc<Conversation<S>>,
    identities: Identities,
    phases: Arc<Phases>,
}

impl<S: Serve> Client<S> {
    /// Puts a request where it stays: a head weighs a quarter of a kilobyte, and each future
    /// that it went through would keep room for it.
    fn begin(request: Request<Incoming>) -> (Box<HttpCall>, Incoming) {
        let (head, body) = request.into_parts();
        let call = HttpCall {
            head,
            body: RequestBody::Whole(Bytes::new()),
            array: None,
        };
        (Box::new(call), body)
    }

    async fn handle(&self, mut call: Box<HttpCall>, body: Incoming) -> Response<ReplyBody> {
        let (mut arrived, bad_head) = self.phases.begin_request();
        let mut read = bad_head.map_or(Ok(()), Err);
        let mut streams = false;
        if read.is_ok() && !body.is_end_stream() {
            // Boxed, so that a call that waits has no room kept for it.
            read = Box::pin(self.read_body(&mut call, body)).await;
            streams = matches!(call.body, RequestBody::Streamed { .. });
            arrived = self.phases.body_read(streams);
        }
        if call.head.version < Version::HTTP_11 {
            self.complete_host(&mut call.head);
        }
        let origin = Origin {
            arrived,
            identity: self.identities.of(&call.head.headers),
        };
        let mut record = None;
        let response = match read.and_then(|()| self.read_array(&mut call)) {
            Ok(()) => {
                let request = call::Request {
                    origin,
                    message: Message::Http(call),
                };
                let progress = Progress::default();
                let serving = self.conversation.serve.serve(request, &progress);
                if self.phases.lock().has_left {
                    // Recorded as aborted, and never sent.
                    drop(serving);
                    drop(progress);
                    return std::future::pending().await;
                }
                let mut response = answer(serving.await);
                if streams && self.phases.lock().owes_body {
                    closes(&mut response);
                }
                if let Some(quota) = progress.quota() {
                    tell_quota(quota, &mut response);
                }
                record = progress.into_record();
                if let Some(record) = &record
                    && let Some(id) = record.note(|facts| facts.waited().then_some(facts.id))
                {
                    tell_call(id, &mut response);
                }
                response
            }
            Err(mut refusal) => {
                let serve = &self.conversation.serve;
                refusal.call = Some(serve.refused(origin, Dialect::Http, &refusal));
                let mut response = refused(&refusal);
                // Where its request ends is not known, or not worth reading to.
                closes(&mut response);
                response
            }
        };
        self.phases
            .end_request(self.conversation.clock.now(), record);
        response
    }

    /// Reads a body of up to `buffer_bytes` whole. Of a larger one it reads that much, so a call asks
    /// for a slot only after its client has sent as much.
    async fn read_body(&self, call: &mut HttpCall, mut body: Incoming) -> Result<(), Refusal> {
        let settings = &self.conversation.settings;
        let max = settings.buffer_bytes;
        let reading = async {
            let mut gathered = Gathered::default();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|_| {
                    Refusal::new(Reason::BadRequest, "the request's body ends in the middle")
                })?;
                let Ok(bytes) = frame.into_data() else {
                    continue;
                };
                // Bytes still to come, as far as the length is known. For chunks it is not.
                let left = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
                gathered.push(bytes, left.min(max));
                let here = gathered.len();
                if here >= max && here.saturating_add(left) > max {
                    return Ok::<_, Refusal>((gathered.into_bytes(), false));
                }
            }
            Ok((gathered.into_bytes(), true))
        };
        let within = settings.request_timeout;
        let (read, is_whole) = timeout(within, reading).await.map_err(|_| {
            let within = within.as_secs_f64();
            let detail = format!("the request's body did not come in within {within} s");
            Refusal::new(Reason::RequestSlow, detail)
        })??;
        if !is_whole {
            let rest = PacedBody::new(body, Arc::clone(&self.phases), settings);
            let rest = ByteStream::new(rest);
            call.body = RequestBody::Streamed { read, rest };
            return Ok(());
        }
        if read.is_empty() {
            // The client announced a body, and it has no byte: that is a length of 0.
            let headers = &mut call.head.headers;
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(0));
        }
        call.body = RequestBody::Whole(read);
        Ok(())
    }

    /// HTTP/1.0 does not require Host. The request goes out as HTTP/1.1, which does, so the address
    /// that the client connected to is added.
    fn complete_host(&self, head: &mut http::request::Parts) {
        if head.headers.contains_key(header::HOST) || head.uri.authority().is_some() {
            return;
        }
        let local = self.phases.lock().local;
        let host = match local {
            Some(address) => HeaderValue::try_from(address.to_string()),
            None => Ok(HeaderValue::from_static("localhost")),
        };
        if let Ok(host) = host {
            head.headers.insert(header::HOST, host);
        }
    }

    /// Looks whether the body is the socket protocol's array.
    fn read_array(&self, call: &mut HttpCall) -> Result<(), Refusal> {
        let settings = &self.conversation.settings;
        let RequestBody::Whole(bytes) = &call.body else {
            return Ok(());
        };
        if !settings.backend_kind.takes_arrays_over_http() || !is_array_call(&call.head, bytes) {
            return Ok(());
        }
        // The backend that gets it as HTTP has no such bound, but the socket backend has; the
        // classifier does not choose by size.
        let max = settings.max_request_bytes;
        let parsed = sdk::array::parse(bytes.trim_ascii(), max);
        call.array = Some(parsed.map_err(|why| match why {
            Malformed::TooLarge { .. } => super::socket::too_large(max),
            why => Refusal::new(Reason::BadRequest, why.to_string()),
        })?);
        Ok(())
    }
}

/// Whether this is the socket protocol's array in HTTP dress.
fn is_array_call(head: &http::request::Parts, body: &[u8]) -> bool {
    head.method == Method::POST
        && head.uri.path() == "/"
        && body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
}

/// What an HTTP client is answered.
#[must_use]
pub fn answer(reply: Result<Reply, Refusal>) -> Response<ReplyBody> {
    match reply {
        Ok(Reply {
            head: Some(head),
            body,
        }) => Response::from_parts(head, body),
        Ok(Reply { head: None, body }) => json(status_of(&body), body),
        Err(refusal) => {
            let mut response = refused(&refusal);
            if refusal.reason == Reason::TooLarge || refusal.reason == Reason::RequestSlow {
                closes(&mut response);
            }
            response
        }
    }
}

/// The status for an object of the socket backend.
fn status_of(body: &ReplyBody) -> StatusCode {
    let overall_rc = match body {
        ReplyBody::Whole(bytes) => bytes.as_deref().and_then(sdk::reply::overall_rc),
        // Too large to read first. The client reads the code in it anyway.
        ReplyBody::Stream(_) => None,
    };
    let status = sdk::reply::http_status(overall_rc.unwrap_or(0));
    StatusCode::from_u16(status).unwrap_or(StatusCode::OK)
}

/// Announces that the connection closes after this answer.
fn closes(response: &mut Response<ReplyBody>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
}

fn refused(refusal: &Refusal) -> Response<ReplyBody> {
    let body = dialect::refusal_json(refusal);
    let mut response = json(refusal.reason.status(), ReplyBody::whole(body));
    if let Some(after) = refusal.retry_after {
        let seconds = HeaderValue::from(dialect::retry_after_seconds(after));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    if let Some(id) = refusal.call {
        tell_call(id, &mut response);
    }
    response
}

/// Adds the call's id, instead of one that the backend may have sent.
fn tell_call(id: u64, response: &mut Response<ReplyBody>) {
    let id = HeaderValue::try_from(dialect::call_id(id));
    let id = id.expect("hexadecimal digits");
    response.headers_mut().insert(CALL, id);
}

/// Says what the rate limit has left that a call met, in the headers that clients know.
fn tell_quota(quota: &Quota, response: &mut Response<ReplyBody>) {
    let headers = response.headers_mut();
    headers.insert(RATE_LIMIT, HeaderValue::from(quota.limit));
    headers.insert(RATE_LIMIT_REMAINING, HeaderValue::from(quota.remaining));
    let reset = quota.reset.as_secs() + u64::from(quota.reset.subsec_nanos() > 0);
    headers.insert(RATE_LIMIT_RESET, HeaderValue::from(reset));
    let caller = HeaderValue::try_from(quota.caller.to_string());
    let caller = caller.expect("an id is a letter and a number");
    headers.insert(LIMITER_CALLER, caller);
}

/// A response with a body in JSON.
pub fn json(status: StatusCode, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}
