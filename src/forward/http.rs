//! A call on HTTP: the request is written with one framing, and the reply is read to its end.
//!
//! Until the first byte of a request has left, it can go to another connection. What is read is judged by
//! `tidegate-h1`.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tidegate_h1::{BodyLeft, Framing};
use tidegate_limits::scheduler::Outcome;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::backend::BackendHandle;
use super::client_left::{Carried, Carry, finish_after_close};
use super::connect::ConnectError;
use super::deadline::ExchangeDeadline;
use super::failure::Failure;
use super::outgoing::{Interruption, Outgoing};
use super::pinned::{self, ConnectionFate};
use super::reply_head::{ReplyReader, ReplyStart};
use super::running_reply::{BODY_BYTES, LateUpload, RunningReply};
use super::streamed::StreamedBody;
use super::tls::refused_after_the_handshake;
use super::tls_failure::TlsFailure;
use super::tunnel::TunnelSlot;
use super::upstream::Upstream;
use super::{ExchangeResult, Sending, UnsentCall};
use crate::call::{
    HttpCall, Link, Message, OnClientLeft, PinnedConnection, Record, Refusal, Reply, ReplyBody,
    ReplyHead, Slot, Tunnel,
};

/// Most bytes of one read while a head is awaited. Most replies are smaller.
const READ_BYTES: usize = 8 * 1024;

/// Sends one request over an idle connection, or a new one.
pub(super) fn send<S: Slot>(
    backend: Arc<BackendHandle>,
    call: Box<HttpCall>,
    slot: S,
    record: Arc<Record>,
) -> Sending<S> {
    // An idle connection that has ended is never replaced by another idle one, which may have ended too.
    let idle = match &call.pinned {
        Some(pinned) => pinned::take(pinned, &backend),
        None => backend
            .pool
            .take(Instant::now())
            .and_then(|(mut upstream, idle_for)| upstream.is_quiet(idle_for).then_some(upstream)),
    };
    match idle {
        Some(upstream) => {
            let exchange = Exchange::new(upstream, false, backend, call, slot, record);
            Sending::http(exchange)
        }
        None => Sending::boxed(async move {
            match backend.connect().await {
                Ok(link) => {
                    let upstream = Upstream::new(link, &backend.bounds);
                    let exchange = Exchange::new(upstream, true, backend, call, slot, record);
                    Carry::new(exchange).await
                }
                Err(cause) => Err(UnsentCall::new(Message::Http(call), slot, cause)),
            }
        }),
    }
}

/// An exchange on HTTP, from its first write to the head of the reply or a whole reply.
pub(super) struct Exchange<S: Slot> {
    /// `None` while a new one is opened, and at the end.
    upstream: Option<Upstream>,
    /// The connection was opened for this call.
    is_new: bool,
    opening: Option<Opening>,
    outgoing: Outgoing,
    /// Set if the client's side of the upload failed: how the exchange ends, unless the backend has answered.
    has_lost_client: bool,
    deadline: ExchangeDeadline,
    reader: ReplyReader,
    /// A small reply, of which more is to come.
    body: Option<Box<WholeBody>>,
    /// Until the end.
    pending: Option<HeldCall<S>>,
    record: Arc<Record>,
    backend: Arc<BackendHandle>,
}

/// A connect under way.
type Opening = Pin<Box<dyn Future<Output = Result<Link, ConnectError>> + Send>>;

/// The call and its slot, until the exchange ends.
struct HeldCall<S> {
    call: Box<HttpCall>,
    slot: S,
}

/// A reply that is held whole.
struct WholeBody {
    head: Box<ReplyHead>,
    bytes: BytesMut,
    length: usize,
    keeping: Option<ConnectionFate>,
}

impl<S: Slot> Future for Exchange<S> {
    type Output = ExchangeResult<S>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ExchangeResult<S>> {
        let this = &mut *self;
        loop {
            if let Some(opening) = &mut this.opening {
                let opened = ready!(opening.as_mut().poll(cx));
                this.opening = None;
                match opened {
                    Ok(link) => this.upstream = Some(Upstream::new(link, &this.backend.bounds)),
                    Err(cause) => return Poll::Ready(Err(this.unsent(cause))),
                }
            }
            if this.body.is_some() {
                return this.poll_body(cx).map(Ok);
            }
            match ready!(this.poll_head(cx)) {
                Ok(start) if start.has_bad_chunk() => {
                    return Poll::Ready(Ok(Err(this.fail(&Failure::Chunks))));
                }
                Ok(start) => match this.begin_body(start) {
                    Some(reply) => return Poll::Ready(Ok(Ok(reply))),
                    None => continue,
                },
                // An idle connection that has ended is replaced once by a new one. If the backend closes that
                // too, it takes no calls.
                Err(Failure::Unwritten(_)) if !std::mem::replace(&mut this.is_new, true) => {
                    this.upstream = None;
                    let backend = Arc::clone(&this.backend);
                    this.opening = Some(Box::pin(async move { backend.connect().await }));
                }
                Err(Failure::Unwritten(error)) => {
                    let cause = ConnectError::ClosedBefore(error);
                    return Poll::Ready(Err(this.unsent(cause)));
                }
                Err(failure) => return Poll::Ready(Ok(Err(this.fail(&failure)))),
            }
        }
    }
}

impl<S: Slot> Carried for Box<Exchange<S>> {
    fn on_client_left(&self) -> OnClientLeft {
        Exchange::on_client_left(self)
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn abandon(mut self) {
        if let Some(HeldCall { slot, .. }) = self.pending.take() {
            self.upstream = None;
            finish_after_close(slot, self.backend.bounds.after_close);
        }
    }
}

impl<S: Slot> Exchange<S> {
    fn new(
        upstream: Upstream,
        is_new: bool,
        backend: Arc<BackendHandle>,
        call: Box<HttpCall>,
        slot: S,
        record: Arc<Record>,
    ) -> Box<Self> {
        Box::new(Self {
            outgoing: Outgoing::new(),
            upstream: Some(upstream),
            is_new,
            opening: None,
            has_lost_client: false,
            deadline: ExchangeDeadline::new(&backend.bounds),
            reader: ReplyReader::default(),
            body: None,
            pending: Some(HeldCall { call, slot }),
            record,
            backend,
        })
    }

    fn on_client_left(&self) -> OnClientLeft {
        let pending = self.pending.as_ref();
        let own = pending.and_then(|pending| pending.call.on_client_left);
        own.unwrap_or(self.backend.bounds.on_client_left)
    }

    fn unsent(&mut self, cause: ConnectError) -> UnsentCall<Message, S> {
        let HeldCall { call, slot } = self.end();
        UnsentCall::new(Message::Http(call), slot, cause)
    }

    /// What it holds, at its end.
    fn end(&mut self) -> HeldCall<S> {
        let pending = self.pending.take();
        pending.expect("an exchange is not polled after its end")
    }

    fn pending(&mut self) -> &mut HeldCall<S> {
        let pending = self.pending.as_mut();
        pending.expect("an exchange is not polled after its end")
    }

    fn upstream(&mut self) -> &mut Upstream {
        self.upstream.as_mut().expect("it is open")
    }

    /// Ends without a reply.
    fn fail(&mut self, failure: &Failure) -> Refusal {
        let refusal = failure.refusal(&self.backend, &self.record);
        let HeldCall { call, slot } = self.end();
        // The slot of a call that was not sent is given back undrawn when it is dropped.
        if self.outgoing.written() > 0 {
            self.note_request(&call);
            slot.finish(Outcome::Failed);
        }
        refusal
    }

    /// Records the size of a request that was here as a whole. A streamed one is counted as it leaves.
    fn note_request(&self, call: &HttpCall) {
        if let Some(length) = call.body.whole_length() {
            self.record.note(|facts| facts.bytes_in = length);
        }
    }

    /// Sends what the backend takes, and reads up to the head of the reply. A backend may answer before it has
    /// read all of the request, and a failed write does not hide an answer that is there to be read.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReplyStart, Failure>> {
        self.poll_send(cx)?;
        if self.outgoing.written() > 0
            && let ready @ Poll::Ready(_) = self.poll_read_head(cx)
        {
            return ready;
        }
        if self.has_lost_client {
            return Poll::Ready(Err(Failure::CutUpload));
        }
        let (written, is_owed) = (self.outgoing.written(), self.outgoing.is_owed());
        if let Some(due) = self.deadline.due(written, is_owed) {
            ready!(self.upstream().timer.poll_until(due, cx));
            return Poll::Ready(Err(self.late()));
        }
        Poll::Pending
    }

    /// The failure of an exchange whose time is over.
    fn late(&self) -> Failure {
        match self.outgoing.written() {
            0 => Failure::NotTaken,
            _ if self.outgoing.is_sent() || self.reader.has_begun => {
                Failure::Late(self.backend.bounds.response_timeout)
            }
            _ => Failure::TakenSlowly,
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        if self.outgoing.is_over() {
            return Ok(());
        }
        let upstream = self.upstream.as_mut().expect("it is open");
        let pending = self.pending.as_mut();
        let call = &mut pending.expect("it has not ended").call;
        let sent = self.outgoing.poll(call, &mut upstream.link, cx);
        if self.outgoing.written() > 0 {
            self.record.commit();
        }
        match sent {
            Poll::Ready(Ok(())) => self.note_sent(),
            Poll::Ready(Err(Interruption::ByBackend(error))) if self.outgoing.written() == 0 => {
                return Err(Failure::Unwritten(error));
            }
            Poll::Ready(Err(Interruption::ByBackend(_))) | Poll::Pending => {}
            Poll::Ready(Err(interrupted)) => {
                if let Interruption::ClientLeft = interrupted {
                    self.record.note(|facts| facts.left = true);
                }
                self.has_lost_client = true;
            }
        }
        Ok(())
    }

    /// The request has left, or the backend has answered.
    fn note_sent(&mut self) {
        let at = self.pending().slot.sent();
        self.deadline.sent(at, &self.backend.bounds);
    }

    fn poll_read_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReplyStart, Failure>> {
        loop {
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            let link = Pin::new(&mut self.upstream().link);
            match link.poll_read(cx, &mut chunk) {
                Poll::Pending => {
                    // If the whole reply is here, the slot is given back at once, which has the same effect.
                    if self.reader.has_begun {
                        self.pending().slot.replied();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(read) if read.is_err() || chunk.filled().is_empty() => {
                    let refused = read.err().and_then(|it| refused_after_the_handshake(&it));
                    return Poll::Ready(Err(match refused {
                        Some(failure) => Failure::NoTls(Box::new(failure)),
                        None if self.reader.has_begun => Failure::CutHead,
                        None => Failure::Closed,
                    }));
                }
                Poll::Ready(_) => {}
            }
            let pending = self.pending.as_ref();
            let call = &pending.expect("it has not ended").call;
            match self.reader.take(chunk.filled(), call, &self.record) {
                Ok(None) => {}
                Ok(Some(start)) => {
                    if !self.outgoing.is_sent() {
                        self.note_sent();
                    }
                    return Poll::Ready(Ok(start));
                }
                Err(broken) => {
                    let tls = TlsFailure::of_answer(chunk.filled()).map(Box::new);
                    let failure = tls.map_or(Failure::Invalid(broken), Failure::NoTls);
                    return Poll::Ready(Err(failure));
                }
            }
        }
    }

    /// The reply, if it is here as a whole, or too large to hold. A small one is read to its end.
    fn begin_body(&mut self, start: ReplyStart) -> Option<Reply> {
        if start.switches {
            return Some(self.switch(start));
        }
        let keeping = self.keeping(&start);
        let ReplyStart {
            head,
            framing,
            body,
            ..
        } = start;
        let max = self.backend.bounds.reply_buffer_bytes as u64;
        let length = match framing {
            Framing::None => 0,
            Framing::Length(length) => length,
            Framing::Chunked | Framing::Close => u64::MAX,
        };
        if length > max {
            return Some(self.stream(head, framing, keeping, body));
        }
        let length = usize::try_from(length).expect("it is no more than is held");
        if body.len() == length {
            return Some(self.finish(head, body, keeping));
        }
        let mut bytes = BytesMut::with_capacity(length.min(64 * 1024));
        bytes.extend_from_slice(&body);
        self.body = Some(Box::new(WholeBody {
            head,
            bytes,
            length,
            keeping,
        }));
        None
    }

    /// Where the connection goes after this reply; `None` if it is of no further use.
    fn keeping(&mut self, start: &ReplyStart) -> Option<ConnectionFate> {
        if start.closes || start.has_surplus || !self.outgoing.is_sent() {
            return None;
        }
        let call = &mut self.pending().call;
        if !start.is_stateful && !call.head.is_stateful && call.pinned.is_none() {
            return Some(ConnectionFate::Pool);
        }
        let pinned = call.pinned.get_or_insert_with(PinnedConnection::default);
        Some(ConnectionFate::Pinned(pinned.clone()))
    }

    /// Reads a small reply whole. So no slow reader holds the slot, and no cut reply reaches the
    /// client.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reply, Refusal>> {
        // A failure of the request no longer matters.
        let _ = self.poll_send(cx);
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
            let failure = match poll_read_buf(link, cx, &mut body.bytes) {
                Poll::Ready(Ok(1..)) => continue,
                Poll::Ready(Ok(0) | Err(_)) => Failure::CutBody(body.bytes.len() as u64),
                Poll::Pending if upstream.timer.poll_until(due, cx).is_ready() => {
                    Failure::Late(self.backend.bounds.response_timeout)
                }
                Poll::Pending => {
                    self.body = Some(body);
                    self.pending().slot.replied();
                    return Poll::Pending;
                }
            };
            return Poll::Ready(Err(self.fail(&failure)));
        }
        let WholeBody {
            head,
            mut bytes,
            length,
            keeping,
        } = *body;
        let keeping = keeping.filter(|_| bytes.len() == length);
        bytes.truncate(length);
        Poll::Ready(Ok(self.finish(head, bytes.freeze(), keeping)))
    }

    /// Gives the slot back, and the connection if it can be used again.
    fn finish(
        &mut self,
        head: Box<ReplyHead>,
        body: Bytes,
        keeping: Option<ConnectionFate>,
    ) -> Reply {
        let HeldCall { mut call, mut slot } = self.end();
        let reading = call.meter.take().map(|it| it.read_whole(&head, &body));
        let reading = reading.unwrap_or_default();
        if let Some(tokens) = reading.cost {
            slot.charge(tokens);
        }
        self.record.note(|facts| {
            if let Some(length) = call.body.whole_length() {
                facts.bytes_in = length;
            }
            facts.status = Some(head.status.as_u16());
            facts.bytes_out = body.len() as u64;
        });
        let since = match reading.job {
            Some(job) => slot.hand_to_job(job),
            None => slot.finish(Outcome::Served),
        };
        if let Some(upstream) = self.upstream.take()
            && let Some(keeping) = keeping
        {
            keeping.keep(upstream, since, &self.backend);
        }
        Reply {
            pinned: call.pinned,
            ..Reply::with_head(head, ReplyBody::whole(body))
        }
    }

    fn note_head(&self, call: &HttpCall, head: &ReplyHead) {
        self.note_request(call);
        self.record
            .note(|facts| facts.status = Some(head.status.as_u16()));
    }

    /// Passes a reply on as it arrives.
    fn stream(
        &mut self,
        head: Box<ReplyHead>,
        framing: Framing,
        keeping: Option<ConnectionFate>,
        here: Bytes,
    ) -> Reply {
        let on_client_left = self.on_client_left();
        let deadline = self.deadline.of_reply(&self.backend.bounds);
        let HeldCall { mut call, mut slot } = self.end();
        self.note_head(&call, &head);
        slot.replied();
        let readers = self.backend.readers();
        let pinned = call.pinned.take();
        let meter = call.meter.take().map(|mut meter| {
            meter.begin(&head, self.backend.bounds.reply_buffer_bytes);
            meter
        });
        let outgoing = std::mem::replace(&mut self.outgoing, Outgoing::new());
        let upload = (!outgoing.is_over()).then(|| Box::new(LateUpload { outgoing, call }));
        let reply = RunningReply {
            upstream: self.upstream.take().expect("it is open"),
            keeping,
            upload,
            slot,
            record: Arc::clone(&self.record),
            backend: Arc::clone(&self.backend),
            on_client_left,
            deadline,
            meter,
            read: 0,
            here,
            left: BodyLeft::of(framing),
            room: BytesMut::new(),
        };
        let body = StreamedBody::new(reply, readers);
        Reply {
            pinned,
            ..Reply::with_head(head, ReplyBody::stream(body))
        }
    }

    /// Leaves the connection to the protocol that both sides have agreed on. It keeps its slot until it ends.
    fn switch(&mut self, start: ReplyStart) -> Reply {
        let HeldCall { call, mut slot } = self.end();
        self.note_head(&call, &start.head);
        slot.replied();
        let Upstream { link, .. } = self.upstream.take().expect("it is open");
        let tunnel = Tunnel {
            link,
            first: start.body,
            slot: Box::new(TunnelSlot(Some(slot))),
            record: Arc::clone(&self.record),
        };
        Reply::with_head(start.head, ReplyBody::Tunnel(Some(Box::new(tunnel))))
    }
}
