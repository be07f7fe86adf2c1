//! One call on HTTP: a pooled connection, the request with exactly one framing, the reply
//! to its end.
//!
//! The connection is driven by the call's own future, not by a task beside it: one wake-up
//! an exchange instead of two.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate_limits::Outcome;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::backend::ConnectError;
use super::carry::{Carry, Committed, carry_on};
use super::pool::{Pool, SentBody, Upstream};
use super::{Outgoing, Settings, Unsent, exchange};
use crate::call::{
    BodyError, HttpCall, Reason, Record, Refusal, Reply, ReplyBody, RequestBody, Slot,
};

/// Sends one request over an idle connection, or a new one.
pub(super) async fn send<S: Slot>(
    pool: &Pool,
    call: Box<HttpCall>,
    slot: S,
    record: Arc<Record>,
    settings: Arc<Settings>,
) -> Result<Reply, Unsent<S>> {
    let upstream = match pool.take(&settings) {
        Some(upstream) => upstream,
        None => match Upstream::open(&settings).await {
            Ok(upstream) => upstream,
            Err(cause) => {
                return Err(Unsent {
                    outgoing: Outgoing::Http(call),
                    slot,
                    cause,
                });
            }
        },
    };
    let pool = pool.clone();
    Carry::new(Arc::clone(&record), |committed| {
        exchange(pool, upstream, call, slot, record, settings, committed)
    })
    .await
}

async fn exchange<S: Slot>(
    pool: Pool,
    mut upstream: Box<Upstream>,
    call: Box<HttpCall>,
    mut slot: S,
    record: Arc<Record>,
    settings: Arc<Settings>,
    committed: Committed,
) -> Result<Reply, Unsent<S>> {
    let mut request = outgoing_request(*call, &upstream);
    let is_head = request.method() == Method::HEAD;
    let deadline = Instant::now() + settings.response_timeout;
    let mut reopened = false;
    let response = loop {
        let mut sent = Sent {
            upstream: &mut upstream,
            slot: &mut slot,
            record: &record,
            committed: &committed,
            stamped: false,
            over: false,
        };
        let response = sent.request(request);
        match timeout_at(deadline, response).await {
            Ok(Ok(response)) => break response,
            Ok(Err(mut failure)) => match failure.take_message() {
                // Not a byte of it was taken: the connection had been closed meanwhile.
                Some(unsent) => match reopen(&settings, &mut reopened).await {
                    Ok(fresh) => {
                        upstream = fresh;
                        let signals = Arc::clone(&upstream.signals);
                        request = unsent.map(|body| body.moved_to(signals));
                    }
                    Err(cause) => {
                        let (head, body) = unsent.into_parts();
                        let Some(body) = body.into_request_body() else {
                            slot.finish(Outcome::Failed);
                            return Ok(Reply::Refused(exchange::closed()));
                        };
                        let call = HttpCall {
                            head,
                            body,
                            array: None,
                        };
                        return Err(Unsent {
                            outgoing: Outgoing::Http(Box::new(call)),
                            slot,
                            cause,
                        });
                    }
                },
                None => {
                    slot.finish(Outcome::Failed);
                    return Ok(Reply::Refused(explain(&failure.into_error())));
                }
            },
            Err(_) => {
                slot.finish(Outcome::Failed);
                return Ok(Reply::Refused(exchange::slow(&settings)));
            }
        }
    };
    slot.replied();
    let (mut head, body) = response.into_parts();
    strip_hop_by_hop(&mut head.headers);
    record.note(|facts| facts.status = Some(head.status.as_u16()));
    let reply = RunningReply {
        upstream,
        body,
        slot,
        record,
        pool,
        settings,
        deadline,
        timer: None,
        read: 0,
    };
    let length = reply.body.size_hint().exact();
    if is_head || length.is_some_and(|length| length <= reply.settings.reply_buffer_bytes as u64) {
        return Ok(reply.hold_whole(head, length.unwrap_or(0)).await);
    }
    let body = StreamedReply(Some(reply));
    Ok(Reply::Http(Response::from_parts(
        head,
        ReplyBody::stream(body),
    )))
}

/// One new connection for one that had gone cold; a backend that closes that one too takes
/// no calls.
async fn reopen(settings: &Settings, reopened: &mut bool) -> Result<Box<Upstream>, ConnectError> {
    if std::mem::replace(reopened, true) {
        return Err(ConnectError::ClosedBefore(
            std::io::ErrorKind::ConnectionAborted.into(),
        ));
    }
    Upstream::open(settings).await
}

/// Drives the connection until the head of the response is here.
struct Sent<'a, S> {
    upstream: &'a mut Upstream,
    slot: &'a mut S,
    record: &'a Record,
    committed: &'a Committed,
    stamped: bool,
    over: bool,
}

impl<S: Slot> Sent<'_, S> {
    async fn request(
        &mut self,
        request: Request<SentBody>,
    ) -> Result<Response<Incoming>, hyper::client::conn::TrySendError<Request<SentBody>>> {
        let weight = request.body().size_hint().exact().unwrap_or(0);
        self.record.note(|facts| facts.bytes_in = weight);
        let mut response = pin!(self.upstream.sender.try_send_request(request));
        std::future::poll_fn(|cx| {
            if !self.over {
                self.over = Pin::new(&mut self.upstream.connection).poll(cx).is_ready();
            }
            if self.upstream.signals.wrote() {
                self.committed.set();
            }
            if !self.stamped && self.upstream.signals.flushed() {
                self.stamped = true;
                self.slot.sent();
            }
            response.as_mut().poll(cx)
        })
        .await
    }
}

/// A response whose head has come.
struct RunningReply<S: Slot> {
    upstream: Box<Upstream>,
    body: Incoming,
    slot: S,
    record: Arc<Record>,
    pool: Pool,
    settings: Arc<Settings>,
    deadline: Instant,
    /// Set only if the reply has to be waited for.
    timer: Option<Pin<Box<Sleep>>>,
    read: u64,
}

impl<S: Slot> RunningReply<S> {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // The body says how the connection ended; whether it did is asked again in `put`.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(self.saw(frame));
        }
        let over = Pin::new(&mut self.upstream.connection).poll(cx).is_ready();
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(self.saw(frame));
        }
        if over {
            return Poll::Ready(Some(Err("the backend closed in mid-answer".into())));
        }
        let deadline = self.deadline;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Some(Err("the backend is too slow".into())))
    }

    fn saw(
        &mut self,
        frame: Option<Result<Frame<Bytes>, hyper::Error>>,
    ) -> Option<Result<Frame<Bytes>, BodyError>> {
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.read += bytes.len() as u64;
        }
        frame.map(|frame| frame.map_err(Into::into))
    }

    /// Reads a small reply whole, so that neither a slow reader holds the slot nor a cut
    /// reply reaches the client.
    async fn hold_whole(mut self, head: http::response::Parts, length: u64) -> Reply {
        let mut whole: Option<Bytes> = None;
        let mut more = BytesMut::new();
        loop {
            match std::future::poll_fn(|cx| self.poll_frame(cx)).await {
                None => break,
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        match &whole {
                            None => whole = Some(bytes),
                            Some(first) => {
                                if more.is_empty() {
                                    more.reserve(usize::try_from(length).unwrap_or(0));
                                    more.extend_from_slice(first);
                                }
                                more.extend_from_slice(&bytes);
                            }
                        }
                    }
                }
                Some(Err(error)) => {
                    let refusal = if self.deadline <= Instant::now() {
                        exchange::slow(&self.settings)
                    } else {
                        Refusal::new(
                            Reason::BackendCut,
                            format!(
                                "the backend's answer broke off after {} bytes ({error}); whether it did the call is not known",
                                self.read
                            ),
                        )
                    };
                    self.slot.finish(Outcome::Failed);
                    return Reply::Refused(refusal);
                }
            }
        }
        self.end(Outcome::Served);
        let body = if more.is_empty() {
            whole.unwrap_or_default()
        } else {
            more.freeze()
        };
        Reply::Http(Response::from_parts(head, ReplyBody::whole(body)))
    }

    /// Gives the slot back before the answer is written.
    fn end(self, outcome: Outcome) {
        self.record.note(|facts| facts.bytes_out = self.read);
        self.slot.finish(outcome);
        if outcome == Outcome::Served {
            self.pool.put(self.upstream, &self.settings);
        }
    }
}

/// A reply too large to hold, or of a length not told.
///
/// Dropped before its end, it reads the rest in a task of its own, and the slot comes back
/// at the end of that.
struct StreamedReply<S: Slot>(Option<RunningReply<S>>);

impl<S: Slot> Body for StreamedReply<S> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(reply) = self.0.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(reply.poll_frame(cx));
        let outcome = match &frame {
            Some(Ok(_)) => return Poll::Ready(frame),
            Some(Err(_)) => {
                reply
                    .record
                    .note(|facts| facts.reason = Some(Reason::BackendCut));
                Outcome::Failed
            }
            None => Outcome::Served,
        };
        if let Some(reply) = self.0.take() {
            reply.end(outcome);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(SizeHint::default, |reply| reply.body.size_hint())
    }
}

impl<S: Slot> Drop for StreamedReply<S> {
    fn drop(&mut self) {
        if let Some(mut reply) = self.0.take() {
            reply.record.note(|facts| facts.left = true);
            carry_on(async move {
                let outcome = loop {
                    match std::future::poll_fn(|cx| reply.poll_frame(cx)).await {
                        Some(Ok(_)) => {}
                        Some(Err(_)) => break Outcome::Failed,
                        None => break Outcome::Served,
                    }
                };
                reply.end(outcome);
            });
        }
    }
}

/// The request as it leaves: one framing, no hop-by-hop header, the target in origin form.
fn outgoing_request(call: HttpCall, upstream: &Upstream) -> Request<SentBody> {
    let HttpCall { mut head, body, .. } = call;
    let told = head.headers.get(header::CONTENT_LENGTH).cloned();
    strip_hop_by_hop(&mut head.headers);
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.remove(header::EXPECT);
    match &body {
        RequestBody::Whole(bytes) => {
            // A bodiless request says nothing, unless the client did: some backends want
            // the zero on a POST.
            if !bytes.is_empty() || told.is_some() {
                head.headers
                    .insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            }
        }
        // Not told means chunked, which hyper writes by itself.
        RequestBody::Streamed { .. } => {
            if let Some(told) = told {
                head.headers.insert(header::CONTENT_LENGTH, told);
            }
        }
    }
    if let Some(authority) = head.uri.authority().cloned() {
        // An absolute target overrides Host (RFC 9112, 3.2.2).
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            head.headers.insert(header::HOST, host);
        }
        if let Some(path) = head.uri.path_and_query().cloned() {
            head.uri = path.into();
        }
    }
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Request::from_parts(head, SentBody::new(body, Arc::clone(&upstream.signals)))
}

/// Removes what is meant for one hop only (RFC 9110, 7.6.1), also what `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    const HOP_BY_HOP: [HeaderName; 7] = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    if headers.contains_key(header::CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // Framing and routing are never up to one hop's list.
            .filter(|name| *name != header::CONTENT_LENGTH && *name != header::HOST)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

fn explain(error: &hyper::Error) -> Refusal {
    if error.is_parse() {
        Refusal::new(
            Reason::BackendCut,
            format!(
                "the backend's answer is no valid HTTP ({error}); whether it did the call is not known"
            ),
        )
    } else if error.is_user() || error.is_body_write_aborted() {
        Refusal::new(
            Reason::RequestSlow,
            "the request's body did not come in whole; the backend got only part of it",
        )
    } else {
        exchange::closed()
    }
}
