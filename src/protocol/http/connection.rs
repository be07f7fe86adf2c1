//! A client's HTTP connection: requests are read, dispatched one after the other, and answered; a drain ends it.
//!
//! One timer serves all phases. It is set only for a wait. If it fires too early, because a later phase has
//! begun, it is set again.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_h1::request::{BadHead, Bounds, Version};
use tidegate_h1::{Framing, HeadEnd, write};
use tidegate_limits::Timestamp;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::WaitForCancellationFuture;

use super::super::stream::Stream;
use super::super::streams::StreamKind;
use super::super::turn::others_are_read;
use super::super::wire::OnEof;
use super::super::{Conversation, Settings, Then, Whence, tunnel};
use super::client_socket::ClientSocket;
use super::head_cache::{self, KnownHead};
use super::http2;
use super::identity::Identities;
use super::received::{self, HEAD_BYTES, cut_body, read_array, slow_body};
use super::request_body::{BodyNeed, ReadBody, Upload};
use super::respond::{Answer, Form, Gone, Sent};
use crate::call::{
    self, Dialect, Head, HttpCall, Identity, Message, Origin, PinnedConnection, Progress, Refusal,
    Rejection, RequestBody, Serve, Tunnel,
};

/// Most bytes of one read. Most requests are smaller.
const READ_BYTES: usize = 8 * 1024;

/// Serves the calls of a connection that has sent these bytes.
pub(super) fn serve<S: Serve>(
    stream: Stream,
    bytes: Vec<u8>,
    whence: Whence,
    conversation: Arc<Conversation<S>>,
) -> impl Future<Output = Then> + Send {
    let came = whence.origin.arrived;
    let identities = Identities::new(
        whence.origin.identity,
        &whence.listener,
        stream.is_tls(),
        &conversation.settings,
    );
    let cancel_on_eof = whence.listener.cancel_on_eof;
    let mut connection = Connection {
        socket: ClientSocket::new(stream, cancel_on_eof, &conversation.settings),
        held: bytes,
        end: None,
        pending: None,
        pinned: None,
        came,
        since: came,
        has_ended: false,
        watches_stop: false,
        asks_kernel: false,
        is_first: true,
        identities,
        conversation: Arc::clone(&conversation),
    };
    // Made before, so that the future has room for the connection and not also for its parts: 10,000 of them may be
    // idle.
    async move {
        let mut stop = pin!(conversation.stop.wait());
        loop {
            let read = poll_fn(|cx| connection.poll_request(cx, stop.as_mut())).await;
            let Some(answering) = connection.dispatch(read) else {
                return Then::End;
            };
            match answering.await {
                Next::Request => {}
                Next::End => return Then::End,
                Next::Tunnel(tunnel) => {
                    let (stream, held) = (connection.socket.stream, connection.held);
                    let conversation = Arc::clone(&conversation);
                    return Then::Last(Box::pin(async move {
                        let idle_timeout = conversation.settings.tunnel_idle_timeout;
                        let watch = conversation.streams.watch(StreamKind::Tunnel);
                        tunnel::run(stream, held, *tunnel, idle_timeout, watch).await;
                    }));
                }
            }
        }
    }
}

/// What follows an answer.
enum Next {
    /// Another request.
    Request,
    /// The end of the connection.
    End,
    /// Another protocol, to the end of the connection.
    Tunnel(Box<Tunnel>),
}

/// A request that is being answered. Boxed, so that an idle connection has no room for a call.
type Answering<'a> = Pin<Box<dyn Future<Output = Next> + Send + 'a>>;

/// A client's connection.
pub(super) struct Connection<S> {
    socket: ClientSocket,
    /// Bytes that came and were not read: pipelined requests, or a part of one.
    held: Vec<u8>,
    /// Finds the end of a head at their front, once they were looked at.
    end: Option<HeadEnd>,
    /// The request at the front of `held`, whose body is not here.
    pending: Option<Box<PendingRequest>>,
    /// The backend connection that this client has logged in.
    pinned: Option<PinnedConnection>,
    /// When the latest bytes came.
    came: Timestamp,
    /// When the phase began: idle, a head, a body.
    since: Timestamp,
    /// The client sends no more.
    has_ended: bool,
    watches_stop: bool,
    /// The kernel was asked for a last request.
    asks_kernel: bool,
    /// No request of this connection was served.
    is_first: bool,
    identities: Identities,
    conversation: Arc<Conversation<S>>,
}

/// A request whose head is here, and its body in part.
struct PendingRequest {
    head: KnownHead,
    /// When its body began to be waited for.
    since: Option<Timestamp>,
    need: BodyNeed,
    /// Its client waits for the permission to send, which it gets with its turn.
    waits: bool,
    /// What has not left of the permission that it gets at once.
    permission: Vec<u8>,
}

/// A request that is ready to queue.
struct ReadyRequest {
    call: Box<HttpCall>,
    upload: Option<Box<Upload>>,
    form: Form,
    max_forwards: Option<u32>,
}

/// The result of reading.
enum Outcome {
    Request(ReadyRequest),
    /// A head that cannot be passed on.
    BadHead(Box<BadHead>),
    /// The body of the pending request failed.
    Refused(Box<Refusal>),
    /// The client has ended, or the sidecar stops.
    End,
    /// The time is over.
    Late,
}

/// The result of reading some bytes.
enum Progressed {
    /// An outcome, and how many bytes it takes.
    Outcome(Outcome, usize),
    Partial,
}

impl<S: Serve> Connection<S> {
    fn settings(&self) -> &Settings {
        &self.conversation.settings
    }

    /// The connection is idle from now on.
    fn restart_idle(&mut self) {
        self.since = self.conversation.clock.now();
    }

    /// Begins to answer what was read; none if the connection just ends.
    fn dispatch(&mut self, read: Outcome) -> Option<Answering<'_>> {
        let request = match read {
            Outcome::Request(request) => request,
            Outcome::BadHead(_) if self.is_first && self.held.starts_with(http2::PREFACE) => {
                return Some(Box::pin(self.refuse_http2()));
            }
            Outcome::BadHead(bad) => {
                let form = Form::of_refused(bad.to_head);
                let identity = self.identity_of_bad(&bad);
                let refusal = received::bad_head(&bad);
                self.held = Vec::new();
                return Some(Box::pin(self.refuse(identity, refusal, form)));
            }
            Outcome::Refused(refusal) => {
                let (identity, form) = match self.pending.take() {
                    Some(pending) => (
                        self.identities.of(&pending.head.head),
                        Form::of(&pending.head).closing(),
                    ),
                    None => (
                        Arc::clone(self.identities.connection()),
                        Form::of_refused(false),
                    ),
                };
                self.held = Vec::new();
                return Some(Box::pin(self.refuse(identity, *refusal, form)));
            }
            Outcome::End => {
                return Some(Box::pin(async move {
                    self.socket.close(None).await;
                    Next::End
                }));
            }
            Outcome::Late => return None,
        };
        let ReadyRequest {
            mut call,
            upload,
            form,
            max_forwards,
        } = request;
        let identity = self.identities.of(&call.head);
        if self.has_left_before() {
            // Recorded as aborted, and never sent.
            let progress = Progress::default();
            let request = self.request(identity, call);
            drop(self.conversation.serve.serve(request, &progress));
            return None;
        }
        self.is_first = false;
        if let Some(left) = max_forwards {
            match left.checked_sub(1) {
                None => return Some(Box::pin(self.answer_as_last(call, form))),
                Some(left) => received::set_max_forwards(&mut call.head, left),
            }
        }
        call.pinned.clone_from(&self.pinned);
        call.forwarded = self.identities.forwarded();
        match read_array(self.settings(), &mut call) {
            Ok(()) => Some(Box::pin(self.call(identity, call, upload, form))),
            Err(refusal) => Some(Box::pin(self.refuse(identity, refusal, form.closing()))),
        }
    }

    /// The identity of a request whose head is bad: by its fields, as far as they could be read.
    fn identity_of_bad(&self, bad: &BadHead) -> Arc<Identity> {
        if bad.fields.is_empty() {
            return Arc::clone(self.identities.connection());
        }
        let head = Head::of_refused(&self.held, &bad.fields);
        self.identities.of(&Arc::new(head))
    }

    fn request(&self, identity: Arc<Identity>, call: Box<HttpCall>) -> call::Request {
        let arrived = self.came;
        call::Request {
            origin: Origin { identity, arrived },
            message: Message::Http(call),
        }
    }

    /// The next request, as much of it as is needed before it queues.
    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        mut stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<Outcome> {
        if !self.held.is_empty()
            && self.pending.is_none()
            && let Some(outcome) = self.take_held()
        {
            return Poll::Ready(outcome);
        }
        loop {
            if self.has_ended {
                return Poll::Ready(self.ended());
            }
            if let Some(pending) = &mut self.pending
                && !pending.permission.is_empty()
            {
                self.socket.stream.write_ahead(&mut pending.permission, cx);
            }
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut self.socket.stream).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => {
                    self.has_ended = true;
                    continue;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Outcome::Late),
                Poll::Pending => match self.poll_over(cx, stop.as_mut()) {
                    Poll::Ready(Over::Late) => return Poll::Ready(self.late()),
                    // The kernel may have what the runtime does not know of yet.
                    Poll::Ready(Over::AskKernel) => {
                        self.asks_kernel = true;
                        self.socket.stream.look();
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
            self.came = self.conversation.clock.now();
            let bytes = chunk.filled();
            if self.held.is_empty() {
                match self.read(bytes) {
                    Progressed::Outcome(outcome, taken) => {
                        self.held = bytes[taken..].to_vec();
                        return Poll::Ready(self.hand_over(outcome));
                    }
                    Progressed::Partial => {
                        self.hold(bytes);
                        self.end.get_or_insert_default().is_in(bytes);
                        self.begin_phase();
                    }
                }
            } else {
                self.hold(bytes);
                if let Some(outcome) = self.take_held() {
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// A part of a request is here: its time begins.
    fn begin_phase(&mut self) {
        self.since = self.came;
        self.asks_kernel = false;
    }

    /// Keeps bytes of a request that is not whole.
    fn hold(&mut self, bytes: &[u8]) {
        if let Some(pending) = &self.pending
            && let BodyNeed::Bytes(needed) = pending.need
        {
            let more = needed.saturating_sub(self.held.len());
            self.held.reserve_exact(more.max(bytes.len()));
        }
        self.held.extend_from_slice(bytes);
    }

    /// Reads the request at the front of what is held.
    fn take_held(&mut self) -> Option<Outcome> {
        let held = std::mem::take(&mut self.held);
        let progressed = match self.pending.is_some() || self.is_worth_a_look(&held) {
            true => self.read(&held),
            false => Progressed::Partial,
        };
        self.held = held;
        match progressed {
            Progressed::Outcome(outcome, taken) => {
                self.end = None;
                if taken == self.held.len() {
                    self.held = Vec::new();
                } else {
                    self.held.drain(..taken);
                }
                Some(self.hand_over(outcome))
            }
            Progressed::Partial => None,
        }
    }

    /// What came behind the part of a body that was read belongs to its upload.
    fn hand_over(&mut self, mut outcome: Outcome) -> Outcome {
        if let Outcome::Request(ReadyRequest {
            upload: Some(upload),
            ..
        }) = &mut outcome
        {
            upload.take(std::mem::take(&mut self.held));
        }
        outcome
    }

    /// Whether a head is whole, or was not looked at before: most bad ones show at once. Looks at each byte once,
    /// so that a client that sends byte by byte does not cost a parse for each.
    fn is_worth_a_look(&mut self, held: &[u8]) -> bool {
        let is_first = self.end.is_none();
        let is_whole = self.end.get_or_insert_default().is_in(held);
        is_first || is_whole || held.len() > HEAD_BYTES
    }

    /// Reads the request at the front of these bytes.
    fn read(&mut self, bytes: &[u8]) -> Progressed {
        let mut pending = match self.pending.take() {
            Some(pending) => *pending,
            None => match self.read_head(bytes) {
                Ok(Some(pending)) => pending,
                Ok(None) => return Progressed::Partial,
                // A client of HTTP/2 would not read an answer to a part of its preface.
                Err(_) if self.is_first && http2::is_begun(bytes) => return Progressed::Partial,
                Err(bad) => {
                    // Its fields are parts of these bytes.
                    self.held = bytes.to_vec();
                    return Progressed::Outcome(Outcome::BadHead(bad), 0);
                }
            },
        };
        let settings = &self.conversation.settings;
        let PendingRequest {
            head, need, waits, ..
        } = &mut pending;
        match need.read(head, *waits, bytes, settings) {
            ReadBody::Ready(body, upload, length) => {
                let request = ReadyRequest {
                    form: Form::of(head),
                    max_forwards: head.max_forwards,
                    call: Box::new(HttpCall::new(Arc::clone(&head.head), body)),
                    upload,
                };
                Progressed::Outcome(Outcome::Request(request), length)
            }
            ReadBody::Malformed => {
                self.pending = Some(Box::new(pending));
                let refusal = Box::new(received::bad_chunks());
                Progressed::Outcome(Outcome::Refused(refusal), 0)
            }
            ReadBody::Partial => {
                pending.since.get_or_insert(self.came);
                self.pending = Some(Box::new(pending));
                Progressed::Partial
            }
        }
    }

    /// Reads a head, and what its body needs.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<PendingRequest>, Box<BadHead>> {
        let bounds = Bounds {
            fields: self.settings().max_request_fields,
            bytes: HEAD_BYTES,
        };
        let local = || received::local_host(self.socket.stream.tcp());
        let Some(head) = head_cache::read(bytes, bounds, local)? else {
            return Ok(None);
        };
        let expects = head.expects_continue && bytes.len() == head.length;
        let is_large = matches!(head.framing, Framing::Length(length) if length > self.settings().buffer_bytes as u64);
        // A body that is needed and too large to be held is not asked for: its call is refused.
        let waits = expects && (is_large || !self.conversation.serve.needs_body(&head.head));
        let permission = match expects && !waits {
            true => write::CONTINUE.to_vec(),
            false => Vec::new(),
        };
        Ok(Some(PendingRequest {
            need: BodyNeed::of(&head, waits, self.settings()),
            head,
            since: None,
            waits,
            permission,
        }))
    }

    /// The client sends no more.
    fn ended(&mut self) -> Outcome {
        match self.pending {
            Some(_) => Outcome::Refused(Box::new(cut_body())),
            None => Outcome::End,
        }
    }

    /// The time for the next bytes is over.
    fn late(&mut self) -> Outcome {
        match self.pending {
            Some(_) => Outcome::Refused(Box::new(slow_body(self.settings().request_timeout))),
            None if self.asks_kernel && self.held.is_empty() => Outcome::End,
            None => Outcome::Late,
        }
    }

    /// Ready when nothing more is waited for.
    fn poll_over(
        &mut self,
        cx: &mut Context<'_>,
        stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<Over> {
        let over = match self.asks_kernel {
            true => Over::Late,
            false => Over::AskKernel,
        };
        let due = match (&self.pending, self.held.is_empty()) {
            (Some(pending), _) => {
                let since = pending.since.unwrap_or(self.since);
                since + self.settings().request_timeout
            }
            (None, false) => self.since + self.settings().request_timeout,
            (None, true) => self.since + self.settings().idle_timeout,
        };
        if self.held.is_empty() && self.pending.is_none() {
            // Asked once, a token wakes this task by itself; after that its flag says enough.
            let is_stopped = if self.watches_stop {
                self.conversation.stop.is_set()
            } else {
                self.watches_stop = true;
                stop.poll(cx).is_ready()
            };
            if is_stopped {
                // An idle connection is closed only if the kernel has no request either.
                return Poll::Ready(over);
            }
        }
        let due = self.conversation.clock.instant(due);
        ready!(self.socket.timer.poll_until(due, cx));
        Poll::Ready(over)
    }

    /// Whether the client's end was already here when the request was read. The first request of a connection is
    /// always served, because a client may send it together with its end.
    fn has_left_before(&self) -> bool {
        !self.is_first && self.socket.on_eof == OnEof::Left && self.socket.stream.has_ended()
    }

    /// One call: its wait, its answer.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async function has room for its arguments twice"
    )]
    fn call(
        &mut self,
        identity: Arc<Identity>,
        call: Box<HttpCall>,
        mut upload: Option<Box<Upload>>,
        form: Form,
    ) -> impl Future<Output = Next> + Send {
        async move {
            others_are_read().await;
            let progress = Progress::default();
            let on_eof = self.socket.on_eof;
            let mut interim = Vec::new();
            let mut answer = {
                let request = self.request(identity, call);
                let mut serving = pin!(self.conversation.serve.serve(request, &progress));
                let reply = poll_fn(|cx| {
                    loop {
                        let served = serving.as_mut().poll(cx);
                        if let Some(more) = progress.take_interim()
                            && form.version == Version::Http11
                        {
                            interim.extend_from_slice(&more);
                        }
                        if let Poll::Ready(reply) = served {
                            return Poll::Ready(Some(reply));
                        }
                        if let Some(upload) = &mut upload {
                            if upload.takes_permission() {
                                interim.extend_from_slice(write::CONTINUE);
                            }
                            if upload
                                .poll(&mut self.socket.stream, on_eof, &mut self.socket.timer, cx)
                                .is_ready()
                            {
                                continue;
                            }
                        }
                        if !interim.is_empty() {
                            self.socket.stream.write_ahead(&mut interim, cx);
                        }
                        // Dropping the call cancels it, or closes it, or leaves it to itself.
                        return self.socket.stream.poll_left(cx, on_eof).map(|()| None);
                    }
                });
                let Some(reply) = reply.await else {
                    return Next::End;
                };
                Answer::of(reply, form, self.conversation.settings.backend_kind)
            };
            if let Some(pinned) = answer.pinned.take() {
                self.pinned = Some(pinned);
            }
            if let Some(upload) = &mut upload
                && upload.has_ended()
            {
                self.held = upload.take_surplus();
            }
            answer.ahead = interim;
            answer.add(&progress);
            let owes_body = upload.as_ref().is_some_and(|upload| !upload.has_ended());
            let stops = self.conversation.stop.is_set() && self.held.is_empty();
            answer.form.closes |= owes_body || stops;
            answer.settle();
            // The connection is idle from then on, unless the answer does not leave at once.
            let answered = progress.answered().map(|at| at.max(self.came));
            self.since = answered.unwrap_or_else(|| self.conversation.clock.now());
            let closes = answer.form.closes;
            let streams = &self.conversation.streams;
            let mut watch = answer.is_stream().then(|| streams.watch(StreamKind::Reply));
            let sent = {
                let mut sending = pin!(self.socket.send(answer, &mut upload));
                let sent = poll_fn(|cx| {
                    if let Poll::Ready(sent) = sending.as_mut().poll(cx) {
                        return Poll::Ready(sent);
                    }
                    let watch = watch.as_mut().map(|it| it.poll_end(cx));
                    if watch.is_some_and(|end| end.is_ready()) {
                        progress.end_by_drain();
                        return Poll::Ready(Err(Gone));
                    }
                    Poll::Pending
                });
                sent.await
            };
            // Now it is reported, unless a tunnel does that.
            drop(progress);
            match sent {
                Err(_) => {
                    if form.version == Version::Http10 {
                        // A plain end would make a part of the body look like all of it.
                        self.socket.stream.reset_when_closed();
                    }
                    return Next::End;
                }
                Ok(Sent::Tunnel(tunnel)) => return Next::Tunnel(tunnel),
                Ok(Sent::Later) => self.restart_idle(),
                Ok(Sent::AtOnce) => {}
            }
            if closes {
                Box::pin(self.socket.close(upload)).await;
                return Next::End;
            }
            self.asks_kernel = false;
            Next::Request
        }
    }

    /// Answers a request that may not be forwarded any more (RFC 9110, 7.6.2).
    async fn answer_as_last(&mut self, call: Box<HttpCall>, form: Form) -> Next {
        let form = match &call.body {
            RequestBody::Whole(_) => form,
            RequestBody::Streamed { .. } => form.closing(),
        };
        let answer = Answer::as_last(&call.head, form);
        let closes = answer.form.closes;
        if self.socket.send(answer, &mut None).await.is_err() {
            return Next::End;
        }
        if closes {
            self.socket.close(None).await;
            return Next::End;
        }
        Next::Request
    }

    /// Ends a connection of HTTP/2 in a way that its client can read.
    async fn refuse_http2(&mut self) -> Next {
        let identity = self.identities.connection();
        self.conversation.serve.rejected(identity, Rejection::Http2);
        if self
            .socket
            .write(&http2::refusal(), &[], &mut None)
            .await
            .is_ok()
        {
            self.socket.close(None).await;
        }
        Next::End
    }

    /// Answers a request that is no call, and closes: where its request ends is not known, or not worth
    /// reading to.
    async fn refuse(&mut self, identity: Arc<Identity>, mut refusal: Refusal, form: Form) -> Next {
        let arrived = self.came;
        let origin = Origin { identity, arrived };
        let serve = &self.conversation.serve;
        refusal.call = Some(serve.refused(origin, Dialect::Http, &refusal));
        let answer = Answer::of(Err(refusal), form, self.conversation.settings.backend_kind);
        if self.socket.send(answer, &mut None).await.is_ok() {
            self.socket.close(None).await;
        }
        Next::End
    }
}

/// Why the wait for more bytes is over.
enum Over {
    /// The kernel is asked once more.
    AskKernel,
    /// Nothing came.
    Late,
}
