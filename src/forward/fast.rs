//! One call on HTTP, without a library between its bytes and the socket: the request is written with one
//! framing, and the reply is read to its end.
//!
//! The request is here as a whole, so it can go to another connection until its first byte has left. What is
//! read is judged by `tidegate-h1`.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tidegate_h1::chunks::{Chunks, Extras};
use tidegate_h1::response::{self, Broken, Response};
use tidegate_h1::write::ONE_BUFFER;
use tidegate_h1::{Framing, HeadEnd};
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::with_scratch;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::backend::Backend;
use super::carry::{Carried, Carry};
use super::connect::ConnectError;
use super::deadline::Deadline;
use super::failure;
use super::streamed::{Source, Streamed};
use super::tls::refused_after_the_handshake;
use super::tls_failure::TlsFailure;
use super::upstream::Upstream;
use super::{Exchanged, Sending, Unsent};
use crate::call::{
    BodyError, HttpCall, Link, Message, PolledFrame, Reason, Record, Refusal, Reply, ReplyBody,
    ReplyHead, RequestBody, Slot,
};

/// Most fields of a reply.
const REPLY_FIELDS: usize = 256;

/// Most bytes of one read while a head is awaited. Most replies are smaller.
const READ_BYTES: usize = 8 * 1024;

/// Most bytes of one read of a long body.
const BODY_BYTES: usize = 16 * 1024;

/// Sends one request over an idle connection, or a new one.
pub(super) fn send<S: Slot>(
    backend: Arc<Backend>,
    call: Box<HttpCall>,
    slot: S,
    record: Arc<Record>,
) -> Sending<S> {
    let pooled = backend.pool.take(Instant::now());
    let pooled = pooled.and_then(|(mut upstream, idle_for)| {
        // It is never replaced by another idle one, which may have ended too.
        upstream.is_quiet(idle_for).then_some(upstream)
    });
    match pooled {
        Some(upstream) => {
            let exchange = Exchange::new(upstream, false, backend, call, slot, record);
            Sending::fast(exchange)
        }
        None => Sending::boxed(async move {
            match backend.connect().await {
                Ok(link) => {
                    let upstream = Upstream::new(link);
                    let exchange = Exchange::new(upstream, true, backend, call, slot, record);
                    Carry::new(exchange).await
                }
                Err(cause) => Err(Unsent::new(Message::Http(call), slot, cause)),
            }
        }),
    }
}

/// One exchange.
pub(super) struct Exchange<S: Slot> {
    /// `None` while a new one is opened, and at the end.
    upstream: Option<Upstream>,
    /// The connection was opened for this call.
    is_new: bool,
    opening: Option<Opening>,
    outgoing: Outgoing,
    deadline: Deadline,
    /// What has come of a head that is not whole.
    held: Vec<u8>,
    end: HeadEnd,
    /// A byte of the reply has come.
    has_begun: bool,
    to_head: bool,
    /// A small reply, of which more is to come.
    body: Option<Box<WholeBody>>,
    /// Until the end.
    held_back: Option<HeldBack<S>>,
    record: Arc<Record>,
    backend: Arc<Backend>,
}

/// A connect under way.
type Opening = Pin<Box<dyn Future<Output = Result<Link, ConnectError>> + Send>>;

/// What goes back if nothing was sent.
struct HeldBack<S> {
    call: Box<HttpCall>,
    slot: S,
}

/// A reply that is held whole.
struct WholeBody {
    head: Box<ReplyHead>,
    bytes: BytesMut,
    length: usize,
    closes: bool,
}

/// A request on its way.
struct Outgoing {
    /// The head, and a small body. Written when it is first sent, and kept if not all of it left at once.
    first: Vec<u8>,
    first_length: usize,
    /// A larger body.
    second: Bytes,
    body_length: u64,
    written: usize,
    /// A write failed behind the first byte. The backend may have answered before it closed.
    is_cut: bool,
}

/// Why there is no reply.
enum Failure {
    /// No byte of the request has left.
    Nothing(io::Error),
    /// The deadline has passed.
    Late,
    /// The backend has closed.
    Closed,
    /// What it sent is not a reply that can be passed on.
    Broken(Broken),
    /// There is no TLS with it, or TLS alone.
    Refused(Box<TlsFailure>),
}

/// A head, and what came behind it.
struct Begun {
    head: Box<ReplyHead>,
    framing: Framing,
    closes: bool,
    /// The first part of the body, or all of it.
    body: Bytes,
    /// More came than belongs to the reply.
    has_surplus: bool,
}

impl Outgoing {
    fn new(call: &HttpCall) -> Self {
        let RequestBody::Whole(body) = &call.body else {
            unreachable!("a body that is not here is left to hyper")
        };
        let second = match body.len() {
            0..=ONE_BUFFER => Bytes::new(),
            _ => body.clone(),
        };
        Self {
            first: Vec::new(),
            first_length: 0,
            second,
            body_length: body.len() as u64,
            written: 0,
            is_cut: false,
        }
    }

    /// Whether all of it has left.
    fn is_sent(&self) -> bool {
        self.first_length > 0 && self.written == self.first_length + self.second.len()
    }

    /// Writes the call's head, with the body if that is small, and sends it.
    fn poll_begin(
        &mut self,
        call: &HttpCall,
        link: &mut Link,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first_length > 0 {
            return self.poll_write(link, cx);
        }
        with_scratch(|first| {
            let RequestBody::Whole(body) = &call.body else {
                unreachable!("a body that is not here is left to hyper")
            };
            call.head.write(body, call.forwarded.as_deref(), first);
            if self.second.is_empty() {
                first.extend_from_slice(body);
            }
            self.first_length = first.len();
            std::mem::swap(first, &mut self.first);
            let written = self.poll_write(link, cx);
            std::mem::swap(first, &mut self.first);
            if self.written < self.first_length {
                self.first = first.clone();
            }
            written
        })
    }

    fn poll_write(&mut self, link: &mut Link, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_sent() {
            let link = Pin::new(&mut *link);
            let behind = self.written.saturating_sub(self.first_length);
            let rest = &self.second[behind..];
            let written = match self.first.get(self.written..) {
                Some(first) if rest.is_empty() => link.poll_write(cx, first),
                Some(first) if !first.is_empty() => {
                    let both = [IoSlice::new(first), IoSlice::new(rest)];
                    link.poll_write_vectored(cx, &both)
                }
                _ => link.poll_write(cx, rest),
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => self.written += more,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Slot> Future for Exchange<S> {
    type Output = Exchanged<S>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Exchanged<S>> {
        let this = &mut *self;
        loop {
            if let Some(opening) = &mut this.opening {
                let opened = ready!(opening.as_mut().poll(cx));
                this.opening = None;
                match opened {
                    Ok(link) => this.upstream = Some(Upstream::new(link)),
                    Err(cause) => return Poll::Ready(Err(this.unsent(cause))),
                }
            }
            if this.body.is_some() {
                return this.poll_body(cx).map(Ok);
            }
            match ready!(this.poll_head(cx)) {
                Ok(begun) => match this.begin_body(begun) {
                    Some(reply) => return Poll::Ready(Ok(Ok(reply))),
                    None => continue,
                },
                // An idle connection that has ended is replaced once by a new one. If the backend closes that
                // too, it takes no calls.
                Err(Failure::Nothing(_)) if !std::mem::replace(&mut this.is_new, true) => {
                    this.upstream = None;
                    let backend = Arc::clone(&this.backend);
                    this.opening = Some(Box::pin(async move { backend.connect().await }));
                }
                Err(Failure::Nothing(error)) => {
                    let cause = ConnectError::ClosedBefore(error);
                    return Poll::Ready(Err(this.unsent(cause)));
                }
                Err(failure) => {
                    let refusal = this.explain(&failure);
                    return Poll::Ready(Ok(Err(this.fail(refusal))));
                }
            }
        }
    }
}

impl<S: Slot> Carried for Box<Exchange<S>> {
    fn is_committed(&self) -> bool {
        self.outgoing.written > 0
    }

    fn record(&self) -> &Record {
        &self.record
    }
}

impl<S: Slot> Exchange<S> {
    fn new(
        upstream: Upstream,
        is_new: bool,
        backend: Arc<Backend>,
        call: Box<HttpCall>,
        slot: S,
        record: Arc<Record>,
    ) -> Box<Self> {
        Box::new(Self {
            outgoing: Outgoing::new(&call),
            to_head: call.head.method == http::Method::HEAD,
            upstream: Some(upstream),
            is_new,
            opening: None,
            deadline: Deadline::new(&backend.bounds),
            held: Vec::new(),
            end: HeadEnd::default(),
            has_begun: false,
            body: None,
            held_back: Some(HeldBack { call, slot }),
            record,
            backend,
        })
    }

    fn unsent(&mut self, cause: ConnectError) -> Unsent<Message, S> {
        let HeldBack { call, slot } = self.end();
        Unsent::new(Message::Http(call), slot, cause)
    }

    /// What it holds, at its end.
    fn end(&mut self) -> HeldBack<S> {
        let held_back = self.held_back.take();
        held_back.expect("an exchange is not polled after its end")
    }

    fn slot(&mut self) -> &mut S {
        let held_back = self.held_back.as_mut();
        &mut held_back
            .expect("an exchange is not polled after its end")
            .slot
    }

    fn upstream(&mut self) -> &mut Upstream {
        self.upstream.as_mut().expect("it is open")
    }

    /// Ends without a reply.
    fn fail(&mut self, refusal: Refusal) -> Refusal {
        let HeldBack { slot, .. } = self.end();
        // The slot of a call that was not sent is given back undrawn when it is dropped.
        if self.outgoing.written > 0 {
            let length = self.outgoing.body_length;
            self.record.note(|facts| facts.bytes_in = length);
            slot.finish(Outcome::Failed);
        }
        refusal
    }

    fn explain(&self, failure: &Failure) -> Refusal {
        let bounds = &self.backend.bounds;
        match failure {
            Failure::Late if self.outgoing.written == 0 => {
                failure::not_sent("the backend took no byte of the call in time")
            }
            Failure::Late if self.outgoing.is_sent() || self.has_begun => failure::slow(bounds),
            Failure::Late => failure::slow_to_take(),
            Failure::Broken(Broken::Switches) => failure::switched(),
            Failure::Broken(Broken::Coding) => failure::wrong_coding(),
            Failure::Refused(failure) => failure::no_tls(failure, &self.backend, &self.record),
            Failure::Broken(broken) => {
                let how = format!("the backend's answer is {broken}");
                failure::failed(Reason::BackendCut, how)
            }
            Failure::Nothing(_) | Failure::Closed if self.has_begun => {
                let how = "the backend's answer broke off in its head";
                failure::failed(Reason::BackendCut, how)
            }
            Failure::Nothing(_) | Failure::Closed => failure::closed(),
        }
    }

    /// Writes the request, and reads up to the head of the reply. A backend may answer before it has read all
    /// of the request.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Begun, Failure>> {
        if !self.outgoing.is_sent() && !self.outgoing.is_cut {
            let upstream = self.upstream.as_mut().expect("it is open");
            let held_back = self.held_back.as_ref();
            let call = &held_back.expect("it has not ended").call;
            match self.outgoing.poll_begin(call, &mut upstream.link, cx) {
                Poll::Ready(Ok(())) => self.has_left(),
                Poll::Ready(Err(error)) if self.outgoing.written == 0 => {
                    return Poll::Ready(Err(Failure::Nothing(error)));
                }
                Poll::Ready(Err(_)) => self.outgoing.is_cut = true,
                Poll::Pending => {}
            }
        }
        if self.outgoing.written > 0
            && let ready @ Poll::Ready(_) = self.poll_read_head(cx)
        {
            return ready;
        }
        let due = self.deadline.due(self.outgoing.written as u64, false);
        let due = due.expect("nothing is owed by a client whose request is here");
        ready!(self.upstream().timer.poll_until(due, cx));
        Poll::Ready(Err(Failure::Late))
    }

    /// The request has left, or the backend has answered.
    fn has_left(&mut self) {
        let at = self.slot().sent();
        self.deadline.sent(at, &self.backend.bounds);
    }

    fn poll_read_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Begun, Failure>> {
        loop {
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            let link = Pin::new(&mut self.upstream().link);
            match link.poll_read(cx, &mut chunk) {
                Poll::Pending => {
                    // If the whole reply is here, the slot is given back at once, which has the same effect.
                    if self.has_begun {
                        self.slot().replied();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    let refused = refused_after_the_handshake(&error).map(Box::new);
                    let failure = refused.map_or(Failure::Closed, Failure::Refused);
                    return Poll::Ready(Err(failure));
                }
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => {
                    return Poll::Ready(Err(Failure::Closed));
                }
                Poll::Ready(Ok(())) => {}
            }
            self.has_begun = true;
            match self.take(chunk.filled()) {
                Ok(None) => {}
                Ok(Some(begun)) => {
                    if !self.outgoing.is_sent() {
                        self.has_left();
                    }
                    return Poll::Ready(Ok(begun));
                }
                Err(broken) => {
                    let tls = TlsFailure::of_answer(chunk.filled()).map(Box::new);
                    let failure = tls.map_or(Failure::Broken(broken), Failure::Refused);
                    return Poll::Ready(Err(failure));
                }
            }
        }
    }

    /// Takes bytes of the reply; returns its head once that is whole.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<Begun>, Broken> {
        if self.held.is_empty() {
            let (rest, begun) = self.begin(bytes)?;
            if begun.is_none() {
                self.hold(rest.to_vec());
            }
            return Ok(begun);
        }
        self.held.extend_from_slice(bytes);
        // Looks at each byte once, so that a backend that sends byte by byte does not cost a parse for each.
        if !self.end.is_in(&self.held) && self.held.len() <= tidegate_h1::HEAD_BYTES_MAX {
            return Ok(None);
        }
        let held = std::mem::take(&mut self.held);
        let (rest, begun) = self.begin(&held)?;
        if begun.is_none() {
            self.hold(rest.to_vec());
        }
        Ok(begun)
    }

    /// Keeps a part of a head.
    fn hold(&mut self, part: Vec<u8>) {
        self.held = part;
        self.end = HeadEnd::default();
        self.end.is_in(&self.held);
    }

    /// Reads a head at the front of these bytes. Interim answers are passed over, and what is behind them is
    /// returned.
    fn begin<'a>(&self, mut bytes: &'a [u8]) -> Result<(&'a [u8], Option<Begun>), Broken> {
        loop {
            let Some(response) = response::read(bytes, self.to_head, REPLY_FIELDS)? else {
                return Ok((bytes, None));
            };
            if matches!(response.status, 100..=199) {
                bytes = &bytes[response.length..];
                if bytes.is_empty() {
                    return Ok((bytes, None));
                }
                continue;
            }
            return Ok((&[], Some(Begun::new(bytes, response)?)));
        }
    }

    /// The reply, if it is here as a whole, or too large to hold. A small one is read to its end.
    fn begin_body(&mut self, begun: Begun) -> Option<Reply> {
        let Begun {
            head,
            framing,
            closes,
            body,
            has_surplus,
        } = begun;
        let closes = closes || has_surplus || !self.outgoing.is_sent();
        let max = self.backend.bounds.reply_buffer_bytes as u64;
        let length = match framing {
            Framing::None => 0,
            Framing::Length(length) => length,
            Framing::Chunked | Framing::Close => u64::MAX,
        };
        if length > max {
            return Some(self.stream(head, framing, closes, body));
        }
        let length = usize::try_from(length).expect("it is no more than is held");
        if body.len() == length {
            return Some(self.finish(head, body, closes));
        }
        let mut bytes = BytesMut::with_capacity(length.min(64 * 1024));
        bytes.extend_from_slice(&body);
        self.body = Some(Box::new(WholeBody {
            head,
            bytes,
            length,
            closes,
        }));
        None
    }

    /// Reads a small reply whole. So no slow reader holds the slot, and no cut reply reaches the
    /// client.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Refusal>> {
        let due = self.deadline.of_reply(&self.backend.bounds);
        let mut body = self.body.take().expect("there is one");
        let upstream = self.upstream.as_mut().expect("it is open");
        while body.bytes.len() < body.length {
            if body.bytes.capacity() == body.bytes.len() {
                let left = body.length - body.bytes.len();
                body.bytes
                    .reserve(left.min(body.bytes.len().max(BODY_BYTES)));
            }
            let link = Pin::new(&mut upstream.link);
            match poll_read_buf(link, cx, &mut body.bytes) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0) | Err(_)) => {
                    let read = body.bytes.len();
                    let how = format!("the backend's answer broke off after {read} bytes");
                    let refusal = failure::failed(Reason::BackendCut, how);
                    return Poll::Ready(Err(self.fail(refusal)));
                }
                Poll::Pending if upstream.timer.poll_until(due, cx).is_ready() => {
                    let refusal = failure::slow(&self.backend.bounds);
                    return Poll::Ready(Err(self.fail(refusal)));
                }
                Poll::Pending => {
                    self.body = Some(body);
                    self.slot().replied();
                    return Poll::Pending;
                }
            }
        }
        let WholeBody {
            head,
            mut bytes,
            length,
            closes,
        } = *body;
        let closes = closes || bytes.len() > length;
        bytes.truncate(length);
        Poll::Ready(Ok(self.finish(head, bytes.freeze(), closes)))
    }

    /// Gives the slot back, and the connection if it can be used again.
    fn finish(&mut self, head: Box<ReplyHead>, body: Bytes, closes: bool) -> Reply {
        self.record.note(|facts| {
            facts.bytes_in = self.outgoing.body_length;
            facts.status = Some(head.status.as_u16());
            facts.bytes_out = body.len() as u64;
        });
        let HeldBack { slot, .. } = self.end();
        let since = slot.finish(Outcome::Served);
        if let Some(upstream) = self.upstream.take_if(|_| !closes) {
            self.backend.pool.put(upstream, since, &self.backend.bounds);
        }
        Reply::with_head(head, ReplyBody::whole(body))
    }

    /// Passes a reply on as it arrives.
    fn stream(
        &mut self,
        head: Box<ReplyHead>,
        framing: Framing,
        closes: bool,
        here: Bytes,
    ) -> Reply {
        self.record.note(|facts| {
            facts.bytes_in = self.outgoing.body_length;
            facts.status = Some(head.status.as_u16());
        });
        let deadline = self.deadline.of_reply(&self.backend.bounds);
        let HeldBack { mut slot, .. } = self.end();
        slot.replied();
        let readers = self.backend.readers();
        let reply = RunningReply {
            upstream: self.upstream.take().expect("it is open"),
            keeps: !closes,
            slot,
            record: Arc::clone(&self.record),
            backend: Arc::clone(&self.backend),
            deadline,
            read: 0,
            here,
            left: Left::of(framing),
        };
        let body = Streamed::new(reply, readers);
        Reply::with_head(head, ReplyBody::stream(body))
    }
}

impl Begun {
    /// The head of these bytes, and the part of the body that is among them, in one piece of memory.
    fn new(bytes: &[u8], response: Response) -> Result<Self, Broken> {
        let Response {
            framing,
            closes,
            length,
            ..
        } = response;
        let behind = bytes.len() - length;
        let of_body = match framing {
            Framing::None => 0,
            Framing::Length(body) => usize::try_from(body).map_or(behind, |body| body.min(behind)),
            Framing::Chunked | Framing::Close => behind,
        };
        let head = Bytes::copy_from_slice(&bytes[..length]);
        let body = Bytes::copy_from_slice(&bytes[length..length + of_body]);
        let malformed = |_| Broken::Malformed(httparse::Error::Status);
        Ok(Self {
            head: Box::new(ReplyHead::read(head, response).map_err(malformed)?),
            framing,
            closes,
            body,
            has_surplus: of_body < behind,
        })
    }
}

/// A reply whose head has arrived.
struct RunningReply<S: Slot> {
    upstream: Upstream,
    /// Whether the connection can be used again, by what is known so far.
    keeps: bool,
    slot: S,
    record: Arc<Record>,
    backend: Arc<Backend>,
    deadline: Instant,
    /// Bytes of the body so far.
    read: u64,
    /// Bytes that came and were not passed on.
    here: Bytes,
    left: Left,
}

/// What is still to come of a body.
enum Left {
    /// Nothing.
    None,
    /// This number of bytes.
    Length(u64),
    Chunks(Chunks),
    /// All that comes.
    Close,
}

impl Left {
    fn of(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::None,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunks(Chunks::new(Extras::Dropped)),
            Framing::Close => Self::Close,
        }
    }
}

impl<S: Slot> RunningReply<S> {
    /// The next part of the body that is here. `None` if more must be read first, or if it has ended.
    fn part(&mut self) -> Result<Option<Bytes>, BodyError> {
        while !self.here.is_empty() {
            let part = match &mut self.left {
                Left::None => {
                    // It belongs to no reply.
                    self.keeps = false;
                    self.here.clear();
                    return Ok(None);
                }
                Left::Close => std::mem::take(&mut self.here),
                Left::Length(left) => {
                    let part = usize::try_from(*left).unwrap_or(usize::MAX);
                    let part = self.here.split_to(part.min(self.here.len()));
                    *left -= part.len() as u64;
                    if *left == 0 {
                        self.left = Left::None;
                    }
                    part
                }
                Left::Chunks(chunks) => {
                    let step = chunks.step(&self.here);
                    let step =
                        step.map_err(|_| "the chunks of the backend's answer are malformed")?;
                    let has_ended = chunks.has_ended();
                    let _framing = self.here.split_to(step.framing);
                    let part = self.here.split_to(step.data);
                    if has_ended {
                        self.left = Left::None;
                    }
                    part
                }
            };
            if !part.is_empty() {
                self.read += part.len() as u64;
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        loop {
            if let Some(part) = self.part()? {
                // Also reads an end that is here.
                if let Left::Chunks(_) = self.left {
                    self.read_end()?;
                }
                return Poll::Ready(Ok(Some(part)));
            }
            if let Left::None = self.left {
                return Poll::Ready(Ok(None));
            }
            let mut chunk = BytesMut::with_capacity(BODY_BYTES);
            let link = Pin::new(&mut self.upstream.link);
            let read = poll_read_buf(link, cx, &mut chunk);
            match read {
                Poll::Ready(Ok(0) | Err(_)) => {
                    // With TLS, only an announced end is the backend's.
                    let is_cut = self.upstream.link.is_tls() && matches!(read, Poll::Ready(Err(_)));
                    let is_end = matches!(self.left, Left::Close) && !is_cut;
                    self.left = Left::None;
                    self.keeps = false;
                    return Poll::Ready(match is_end {
                        true => Ok(None),
                        false => Err("the backend closed in mid-answer".into()),
                    });
                }
                Poll::Ready(Ok(_)) => self.here = chunk.freeze(),
                Poll::Pending => {
                    ready!(self.upstream.timer.poll_until(self.deadline, cx));
                    return Poll::Ready(Err("the backend is too slow".into()));
                }
            }
        }
    }

    /// Reads the last chunk, if it is the next that is here.
    fn read_end(&mut self) -> Result<(), BodyError> {
        let Left::Chunks(chunks) = &self.left else {
            return Ok(());
        };
        let mut ahead = *chunks;
        let step = ahead.step(&self.here);
        if step.is_ok_and(|step| step.data == 0) && ahead.has_ended() {
            self.part()?;
        }
        Ok(())
    }
}

/// A reply that is too large to hold, or of unknown length.
impl<S: Slot> Source for RunningReply<S> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let part = ready!(self.poll_part(cx));
        if part.is_err() {
            let reason = match self.deadline <= Instant::now() {
                true => Reason::BackendSlow,
                false => Reason::BackendCut,
            };
            self.record.note(|facts| facts.reason = Some(reason));
        }
        Poll::Ready(part.map(|part| part.map(Frame::data)).transpose())
    }

    fn is_over(&self) -> bool {
        matches!(self.left, Left::None)
    }

    fn end(self, outcome: Outcome) {
        let keeps = self.keeps && self.here.is_empty() && outcome == Outcome::Served;
        self.record.note(|facts| facts.bytes_out = self.read);
        let since = self.slot.finish(outcome);
        if keeps {
            let backend = &self.backend;
            backend.pool.put(self.upstream, since, &backend.bounds);
        }
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            Left::None => SizeHint::with_exact(0),
            Left::Length(left) => SizeHint::with_exact(left),
            Left::Chunks(_) | Left::Close => SizeHint::default(),
        }
    }
}
