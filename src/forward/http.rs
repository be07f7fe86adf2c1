//! One call on HTTP: a pooled connection, the request with exactly one framing, the reply
//! to its end.
//!
//! The call's own future drives the connection, not a task beside it: one wake-up for an exchange
//! instead of two.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tidegate_limits::scheduler::Outcome;
use tokio::time::Instant;

use super::backend::Backend;
use super::carry::{Carry, Committed, Flagged};
use super::connect::ConnectError;
use super::deadline::Deadline;
use super::doorbell::quietly;
use super::failure;
use super::hyper_upstream::{SentBody, Upstream};
use super::streamed::{Source, Streamed};
use super::tls::refused_after_the_handshake;
use super::tls_failure::TlsFailure;
use super::{Bounds, Exchanged, Unsent};
use crate::call::{
    BodyError, ClientLeft, Gathered, HttpCall, Message, PolledFrame, Reason, Record, Refusal,
    Reply, ReplyBody, RequestBody, Slot, data_bytes,
};

/// The connection ended after hyper had taken the request and before a byte was written. The request cannot be
/// recovered.
const UNSENT: &str = "the backend closed the connection before the call was sent";

/// Sends one request over an idle connection, or a new one.
pub(super) async fn send<S: Slot>(
    backend: Arc<Backend>,
    call: Box<HttpCall>,
    slot: S,
    record: Arc<Record>,
) -> Exchanged<S> {
    let now = Instant::now();
    let upstream = match backend.hyper_pool.take(now) {
        Some((upstream, idle_for)) => {
            upstream.rearm(idle_for);
            upstream
        }
        None => match Box::pin(Upstream::open(backend.connect())).await {
            Ok(upstream) => upstream,
            Err(cause) => return Err(Unsent::new(Message::Http(call), slot, cause)),
        },
    };
    Carry::new(Flagged::new(Arc::clone(&record), |committed| {
        exchange(backend, upstream, call, slot, record, committed)
    }))
    .await
}

async fn exchange<S: Slot>(
    backend: Arc<Backend>,
    mut upstream: Box<Upstream>,
    call: Box<HttpCall>,
    mut slot: S,
    record: Arc<Record>,
    committed: Committed,
) -> Exchanged<S> {
    let is_head = call.head.method == Method::HEAD;
    let mut deadline = Deadline::new(&backend.bounds);
    let request = match outgoing_request(*call) {
        Ok(request) => request,
        // hyper and the whitelist accept fewer heads than this.
        Err(error) => {
            let detail = format!("the request cannot be sent ({error})");
            return Ok(Err(Refusal::new(Reason::BadRequest, detail)));
        }
    };
    let weight = request.body().whole_length().unwrap_or(0);
    record.note(|facts| facts.bytes_in = weight);
    let sending = Sending {
        slot: &mut slot,
        committed: &committed,
        deadline: &mut deadline,
        record: &record,
        bounds: &backend.bounds,
        has_left: false,
    };
    let (mut head, body) = match send_once(&mut upstream, request, sending, &backend).await {
        Ok(response) => response.into_parts(),
        Err(none) => return unanswered(none, &upstream, slot),
    };
    if let Err(refusal) = settle_head(&mut head) {
        slot.finish(Outcome::Failed);
        return Ok(Err(refusal));
    }
    record.note(|facts| facts.status = Some(head.status.as_u16()));
    let mut reply = RunningReply {
        upstream,
        body,
        slot,
        record,
        deadline: deadline.of_reply(&backend.bounds),
        backend,
        read: 0,
    };
    let length = reply.body.size_hint().exact();
    if is_head
        || length.is_some_and(|length| length <= reply.backend.bounds.reply_buffer_bytes as u64)
    {
        return Ok(match reply.read_whole(length.unwrap_or(0)).await {
            Ok(body) => {
                reply.end(Outcome::Served);
                Ok(Reply::with_head(
                    Box::new(head.into()),
                    ReplyBody::whole(body),
                ))
            }
            Err(refusal) => {
                reply.slot.finish(Outcome::Failed);
                Err(refusal)
            }
        });
    }
    reply.slot.replied();
    let readers = reply.backend.readers();
    let body = Streamed::new(reply, readers);
    Ok(Ok(Reply::with_head(
        Box::new(head.into()),
        ReplyBody::stream(body),
    )))
}

/// Ends a call that has no response.
fn unanswered<S: Slot>(none: NoResponse, upstream: &Upstream, slot: S) -> Exchanged<S> {
    let (request, cause) = match none {
        NoResponse::Refused(refusal) => {
            // The slot of a call that was not sent is given back undrawn when it is dropped.
            if upstream.signals.wrote() {
                slot.finish(Outcome::Failed);
            }
            return Ok(Err(refusal));
        }
        NoResponse::Unsent { request, cause } => (request, cause),
    };
    let (head, body) = request.into_parts();
    // hyper returns only what it has not begun to take.
    let Some(body) = body.into_request_body() else {
        return Ok(Err(failure::not_sent(UNSENT)));
    };
    let call = HttpCall {
        head: Arc::new(head.into()),
        // The head has them already.
        forwarded: None,
        body,
        array: None,
    };
    Err(Unsent::new(Message::Http(Box::new(call)), slot, cause))
}

/// Why there is no response.
enum NoResponse {
    /// It was sent and failed, or it was not sent and cannot be recovered.
    Refused(Refusal),
    /// No byte was written.
    Unsent {
        request: Box<Request<SentBody>>,
        cause: ConnectError,
    },
}

/// Why an exchange stops before hyper has an answer.
enum Stopped {
    /// The deadline has passed.
    Late,
    /// The first write failed, and hyper waits for a new stream.
    NothingWritten,
}

/// The backend also closes a new connection.
fn closes_all() -> ConnectError {
    ConnectError::ClosedBefore(std::io::ErrorKind::ConnectionAborted.into())
}

/// What changes while a request is sent.
struct Sending<'a, S> {
    slot: &'a mut S,
    committed: &'a Committed,
    deadline: &'a mut Deadline,
    record: &'a Record,
    bounds: &'a Bounds,
    /// Whether the last byte has left, or the backend has answered.
    has_left: bool,
}

impl<S: Slot> Sending<'_, S> {
    /// Drives the connection and waits for the response.
    fn poll<F: Future<Output = Result<Response<Incoming>, TrySendError<Request<SentBody>>>>>(
        &mut self,
        upstream: &mut Upstream,
        response: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<F::Output, Stopped>> {
        if upstream.poll_connection(cx).is_ready() {
            // A connection that ended while it was idle has not taken the request, and returns it
            // only now.
            upstream.end();
        }
        if upstream.signals.wrote() {
            self.committed.set(true);
        }
        let mut own = Context::from_waker(Waker::noop());
        let response = quietly(|| response.poll(&mut own));
        // A backend may answer before it has read all of the request.
        let has_answered = matches!(response, Poll::Ready(Ok(_)));
        if !self.has_left && (has_answered || upstream.signals.flushed.get()) {
            self.has_left = true;
            let at = self.slot.sent();
            self.deadline.sent(at, self.bounds);
        }
        if let Poll::Ready(response) = response {
            return Poll::Ready(Ok(response));
        }
        let signals = &upstream.signals;
        if signals.has_failed.get() {
            return Poll::Ready(Err(Stopped::NothingWritten));
        }
        let client_owes = signals.client_owes.get();
        match self.deadline.due(signals.written(), client_owes) {
            Some(due) => {
                let late = upstream.timer.poll_until(due, cx);
                late.map(|()| Err(Stopped::Late))
            }
            None => Poll::Pending,
        }
    }
}

impl<S> Sending<'_, S> {
    /// The deadline has passed without a response.
    fn late(&self, upstream: &Upstream) -> Refusal {
        match (upstream.signals.wrote(), self.has_left) {
            (false, _) => failure::not_sent(UNSENT),
            (true, true) => failure::slow(self.bounds),
            (true, false) => failure::slow_to_take(),
        }
    }

    /// hyper has failed, and does not return the request.
    fn explain(&self, error: &hyper::Error, upstream: &Upstream) -> Refusal {
        if error.source().is_some_and(|cause| cause.is::<ClientLeft>()) {
            self.record.note(|facts| facts.left = true);
            return cut_upload();
        }
        if !upstream.signals.wrote() {
            return failure::not_sent(UNSENT);
        }
        if error.is_parse() {
            let how = format!("the backend's answer is not valid HTTP ({error})");
            failure::failed(Reason::BackendCut, how)
        } else if error.is_body_write_aborted() || error.is_user() && !is_dispatch_gone(error) {
            cut_upload()
        } else if upstream.signals.read.get() {
            let how = "the backend's answer broke off in its head";
            failure::failed(Reason::BackendCut, how)
        } else {
            failure::closed()
        }
    }
}

/// Sends a request and waits for the head of the response. A pooled connection that has ended is
/// replaced once by a new one. It is never replaced by another pooled one, which may have ended
/// too. If the backend closes the new one, it accepts no calls. If hyper has already taken the
/// request, only the stream below hyper is replaced.
async fn send_once<S: Slot>(
    upstream: &mut Box<Upstream>,
    mut request: Request<SentBody>,
    mut sending: Sending<'_, S>,
    backend: &Backend,
) -> Result<Response<Incoming>, NoResponse> {
    let mut reopened = false;
    loop {
        request.body_mut().goes_over(&upstream.signals);
        let whole = request.body().whole_length();
        let mut response = pin!(quietly(|| upstream.sender.try_send_request(request)));
        sending.has_left = false;
        let sent = loop {
            match poll_fn(|cx| sending.poll(upstream, response.as_mut(), cx)).await {
                Err(Stopped::NothingWritten) => {}
                sent => break sent,
            }
            let elsewhere = match std::mem::replace(&mut reopened, true) {
                true => Err(closes_all()),
                false => Box::pin(upstream.continue_elsewhere(backend.connect())).await,
            };
            if let Err(cause) = elsewhere {
                let bytes = upstream.signals.take_failed();
                let request = whole.and_then(|length| read_back(bytes, length));
                return Err(match request.map(Box::new) {
                    Some(request) => NoResponse::Unsent { request, cause },
                    None => NoResponse::Refused(failure::not_sent(UNSENT)),
                });
            }
        };
        let mut failure = match sent {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(failure)) => failure,
            Err(_) => return Err(NoResponse::Refused(sending.late(upstream))),
        };
        let Some(unsent) = failure.take_message() else {
            let error = failure.into_error();
            let refusal = match no_tls(&error, upstream) {
                Some(failure) => failure::no_tls(&failure, backend, sending.record),
                None => sending.explain(&error, upstream),
            };
            return Err(NoResponse::Refused(refusal));
        };
        let fresh = match std::mem::replace(&mut reopened, true) {
            true => Err(closes_all()),
            false => Box::pin(Upstream::open(backend.connect())).await,
        };
        match fresh {
            Ok(fresh) => *upstream = fresh,
            Err(cause) => {
                let request = Box::new(unsent);
                return Err(NoResponse::Unsent { request, cause });
            }
        }
        request = unsent;
    }
}

/// Whether the request met no TLS, or TLS alone.
fn no_tls(error: &hyper::Error, upstream: &Upstream) -> Option<TlsFailure> {
    let signals = &upstream.signals;
    if signals.read_tls.get() {
        return Some(TlsFailure::speaks_tls());
    }
    refused_after_the_handshake(error).filter(|_| !signals.read.get())
}

/// A response whose head has arrived.
struct RunningReply<S: Slot> {
    upstream: Box<Upstream>,
    body: Incoming,
    slot: S,
    record: Arc<Record>,
    backend: Arc<Backend>,
    deadline: Instant,
    read: u64,
}

impl<S: Slot> RunningReply<S> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        // The body tells how the connection ended; `put` checks again whether it did.
        if let ready @ Poll::Ready(_) = self.poll_body() {
            return ready;
        }
        let over = self.upstream.poll_connection(cx).is_ready();
        if let ready @ Poll::Ready(_) = self.poll_body() {
            return ready;
        }
        if over {
            return Poll::Ready(Some(Err("the backend closed in mid-answer".into())));
        }
        ready!(self.upstream.timer.poll_until(self.deadline, cx));
        Poll::Ready(Some(Err("the backend is too slow".into())))
    }

    /// Only polling the connection brings more of it.
    fn poll_body(&mut self) -> PolledFrame {
        let mut own = Context::from_waker(Waker::noop());
        let frame = ready!(quietly(|| Pin::new(&mut self.body).poll_frame(&mut own)));
        self.read += data_bytes(frame.as_ref());
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    /// Reads a small reply whole. So no slow reader holds the slot, and no cut reply reaches the
    /// client.
    async fn read_whole(&mut self, length: u64) -> Result<Bytes, Refusal> {
        let mut gathered = Gathered::default();
        let mut replied = false;
        while let Some(frame) = poll_fn(|cx| {
            let frame = self.poll_frame(cx);
            // If the whole reply is here, the slot is given back at once, which has the same
            // effect.
            if frame.is_pending() && !std::mem::replace(&mut replied, true) {
                self.slot.replied();
            }
            frame
        })
        .await
        {
            let frame = frame.map_err(|error| self.broken(&error))?;
            if let Ok(bytes) = frame.into_data() {
                let left = length.saturating_sub(self.read);
                gathered.push(bytes, usize::try_from(left).unwrap_or(0));
            }
        }
        Ok(gathered.into_bytes())
    }

    fn broken(&self, error: &BodyError) -> Refusal {
        if self.deadline <= Instant::now() {
            return failure::slow(&self.backend.bounds);
        }
        let read = self.read;
        let how = format!("the backend's answer broke off after {read} bytes ({error})");
        failure::failed(Reason::BackendCut, how)
    }
}

/// A reply that is too large to hold, or of unknown length.
impl<S: Slot> Source for RunningReply<S> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let frame = ready!(self.poll_frame(cx));
        if let Some(Err(_)) = &frame {
            let reason = match self.deadline <= Instant::now() {
                true => Reason::BackendSlow,
                false => Reason::BackendCut,
            };
            self.record.note(|facts| facts.reason = Some(reason));
        }
        Poll::Ready(frame)
    }

    fn is_over(&self) -> bool {
        self.body.is_end_stream()
    }

    fn end(self, outcome: Outcome) {
        self.record.note(|facts| facts.bytes_out = self.read);
        let since = self.slot.finish(outcome);
        let mut upstream = self.upstream;
        if outcome == Outcome::Served && upstream.is_ready() {
            let backend = &self.backend;
            backend.hyper_pool.put(upstream, since, &backend.bounds);
        }
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The request as it is sent, with one framing. A streamed body uses the declared length; without one hyper
/// writes chunks.
fn outgoing_request(call: HttpCall) -> Result<Request<SentBody>, http::Error> {
    let body = SentBody::new(call.body);
    let length = body.size_hint().exact();
    call.head
        .to_request(length, call.forwarded.as_deref(), body)
}

/// Makes a request with a whole body of this length from the bytes that hyper wrote for it. hyper
/// does not return a request that it has taken.
fn read_back(bytes: Vec<u8>, length: u64) -> Option<Request<SentBody>> {
    let length = usize::try_from(length).ok()?;
    let bytes = Bytes::from(bytes);
    let head = bytes.len().checked_sub(length)?;
    let lines = bytes[..head].iter().filter(|byte| **byte == b'\n').count();
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut parsed = httparse::Request::new(&mut fields);
    if parsed.parse(&bytes[..head]) != Ok(httparse::Status::Complete(head)) {
        return None;
    }
    let mut request = Request::new(SentBody::new(RequestBody::Whole(bytes.slice(head..))));
    *request.method_mut() = parsed.method?.parse().ok()?;
    *request.uri_mut() = parsed.path?.parse().ok()?;
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(field.value).ok()?;
        request.headers_mut().append(name, value);
    }
    Some(request)
}

/// Leaves a reply one framing, as hyper has read it (RFC 9112, 6.3): chunks win over a length.
///
/// # Errors
/// If it is something that was not asked for and so cannot be passed on: another protocol, or a
/// transfer coding beside `chunked`.
fn settle_head(head: &mut http::response::Parts) -> Result<(), Refusal> {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(failure::switched());
    }
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err(failure::wrong_coding());
        }
        head.headers.remove(header::CONTENT_LENGTH);
    }
    Ok(())
}

fn cut_upload() -> Refusal {
    Refusal::new(
        Reason::RequestSlow,
        "the request body did not arrive completely; the backend got only part of it",
    )
}

/// The connection ended with the request in it. hyper reports that as a mistake of its user.
fn is_dispatch_gone(error: &hyper::Error) -> bool {
    error.to_string().starts_with("dispatch task is gone")
}
