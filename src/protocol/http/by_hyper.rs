//! A connection whose requests hyper parses: keep-alive, pipelining, chunked bodies, `Expect: 100-continue`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::super::wire::OnEof;
use super::super::{Conversation, Whence};
use super::answer::{answer, closes, refused, tell_call, tell_quota};
use super::body::PacedBody;
use super::client::{ClientIo, Phases};
use super::heads::HEAD_BYTES;
use super::identity::Identities;
use super::received::{Received, cut_body, read_array, slow_body};
use crate::call::{
    self, ByteStream, Dialect, Gathered, Head, HttpCall, Message, Origin, Progress, Refusal,
    ReplyBody, RequestBody, Serve,
};

/// Serves the calls of one connection that has sent these bytes.
pub(super) async fn serve<S: Serve>(
    received: Received,
    whence: Whence,
    conversation: Arc<Conversation<S>>,
) {
    let Received {
        stream,
        bytes,
        came,
    } = received;
    let origin = whence.origin;
    let settings = &conversation.settings;
    let fields_max = settings.max_request_fields;
    let is_tls = stream.is_tls();
    let stop = conversation.stop.clone();
    let phases = Arc::new(Phases::begun(came, conversation.clock.now()));
    let io = ClientIo::new(
        stream,
        bytes,
        Arc::clone(&phases),
        conversation.clock,
        OnEof::new(whence.listener.cancel_on_eof),
        settings,
    );
    let drained = Arc::clone(&phases);
    let client = Arc::new(Client {
        identities: Identities::new(origin.identity, &whence.listener, is_tls, settings),
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
    let mut stopped = pin!(stop.wait());
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
            stop.is_set()
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
    fn begin(request: Request<Incoming>) -> (Box<http::request::Parts>, Incoming) {
        let (head, body) = request.into_parts();
        (Box::new(head), body)
    }

    async fn handle(
        &self,
        mut head: Box<http::request::Parts>,
        body: Incoming,
    ) -> Response<ReplyBody> {
        let (mut arrived, bad_head) = self.phases.begin_request();
        let mut read = bad_head.map_or(Ok(()), Err);
        let mut streams = false;
        if head.version < Version::HTTP_11 {
            self.complete_host(&mut head);
        }
        let mut call = Box::new(HttpCall {
            head: Arc::new(Head::from(*head)),
            forwarded: self.identities.forwarded(),
            body: RequestBody::Whole(Bytes::new()),
            array: None,
        });
        if read.is_ok() && !body.is_end_stream() {
            // Boxed, so that a call that waits has no room kept for it.
            read = Box::pin(self.read_body(&mut call, body)).await;
            streams = matches!(call.body, RequestBody::Streamed { .. });
            arrived = self.phases.body_read(streams);
        }
        let origin = Origin {
            arrived,
            identity: self.identities.of(&call.head),
        };
        let mut record = None;
        let kind = self.conversation.settings.backend_kind;
        let response = match read.and_then(|()| read_array(&self.conversation.settings, &mut call))
        {
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
                let mut response = answer(serving.await, kind);
                if streams && self.phases.lock().owes_body {
                    closes(&mut response);
                }
                if let Some(quota) = progress.quota() {
                    tell_quota(quota, response.headers_mut());
                }
                if let Some(id) = progress.waited() {
                    tell_call(id, &mut response);
                }
                record = progress.into_record();
                response
            }
            Err(mut refusal) => {
                let serve = &self.conversation.serve;
                refusal.call = Some(serve.refused(origin, Dialect::Http, &refusal));
                let mut response = refused(&refusal, kind);
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
                let frame = frame.map_err(|_| cut_body())?;
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
        let (read, is_whole) = timeout(within, reading)
            .await
            .map_err(|_| slow_body(within))??;
        if !is_whole {
            let rest = PacedBody::new(body, Arc::clone(&self.phases), settings);
            let rest = ByteStream::new(rest);
            call.body = RequestBody::Streamed { read, rest };
            return Ok(());
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
}
