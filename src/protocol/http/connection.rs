//! A client's HTTP connection: requests are read, dispatched one after the other, and answered; a drain ends it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};

use tidegate_h1::request::{BadHead, HttpVersion};

use super::super::stream::ClientStream;
use super::super::streams::StreamKind;
use super::super::yield_once::yield_once;
use super::super::{ClientSettings, ConnectionOrigin, ConnectionPhase, Conversation, tunnel};
use super::client_socket::ClientSocket;
use super::http2;
use super::identity::Identities;
use super::place;
use super::received::{self, read_array};
use super::request_reader::{ReadOutcome, ReadyRequest, RequestReader};
use super::respond::{HttpAnswer, ReplyForm, WriteError, WriteProgress};
use super::signs::Signs;
use super::upload::Upload;
use crate::call::{
    self, Dialect, Head, HttpCall, Identity, Listener, Message, Origin, PinnedConnection, Progress,
    Refusal, Rejection, RequestBody, Serve, Tunnel,
};

/// Serves the calls of a connection that has sent these bytes.
pub(super) fn serve<S: Serve>(
    stream: ClientStream,
    bytes: Vec<u8>,
    from: ConnectionOrigin,
    conversation: Arc<Conversation<S>>,
) -> impl Future<Output = ConnectionPhase> + Send {
    let came = from.origin.arrived;
    let identities = Identities::new(
        from.origin.identity,
        &from.listener,
        stream.is_tls(),
        &conversation.settings,
    );
    let cancel_on_eof = from.listener.cancel_on_eof;
    let mut connection = HttpConnection {
        socket: ClientSocket::new(stream, cancel_on_eof, &conversation.settings),
        reader: RequestReader::new(bytes, came),
        listener: from.listener,
        pinned: None,
        identities,
        conversation: Arc::clone(&conversation),
    };
    // Made before, so that the future has room for the connection and not also for its parts: 10,000 of them may be
    // idle.
    async move {
        let mut stop = pin!(conversation.stop.wait());
        loop {
            let read = poll_fn(|cx| {
                let HttpConnection { reader, socket, .. } = &mut connection;
                reader.poll_request(socket, &conversation, cx, stop.as_mut())
            })
            .await;
            let Some(answering) = connection.dispatch(read) else {
                return ConnectionPhase::Ended;
            };
            match answering.await {
                ConnectionStep::Request => {}
                ConnectionStep::End => return ConnectionPhase::Ended,
                ConnectionStep::Tunnel(tunnel) => {
                    let (stream, held) = (connection.socket.stream, connection.reader.held);
                    let conversation = Arc::clone(&conversation);
                    return ConnectionPhase::Final(Box::pin(async move {
                        let idle_timeout = conversation.settings.tunnel_idle_timeout;
                        let watch = conversation.streams.watch(StreamKind::Tunnel);
                        tunnel::run(stream, held, *tunnel, idle_timeout, watch).await;
                    }));
                }
            }
        }
    }
}

/// The state of a connection after an answer.
enum ConnectionStep {
    /// Another request.
    Request,
    /// The end of the connection.
    End,
    /// Another protocol, to the end of the connection.
    Tunnel(Box<Tunnel>),
}

/// A request that is being answered. Boxed, so that an idle connection has no room for a call.
type AnswerFuture<'a> = Pin<Box<dyn Future<Output = ConnectionStep> + Send + 'a>>;

/// A client's connection.
pub(super) struct HttpConnection<S> {
    socket: ClientSocket,
    reader: RequestReader,
    listener: Arc<Listener>,
    /// The backend connection that this client has logged in.
    pinned: Option<PinnedConnection>,
    identities: Identities,
    conversation: Arc<Conversation<S>>,
}

impl<S: Serve> HttpConnection<S> {
    fn settings(&self) -> &ClientSettings {
        &self.conversation.settings
    }

    /// Begins to answer what was read; none if the connection just ends.
    fn dispatch(&mut self, read: ReadOutcome) -> Option<AnswerFuture<'_>> {
        let request = match read {
            ReadOutcome::Request(request) => request,
            ReadOutcome::BadHead(_)
                if self.reader.is_first && self.reader.held.starts_with(http2::PREFACE) =>
            {
                return Some(Box::pin(self.refuse_http2()));
            }
            ReadOutcome::BadHead(bad) => {
                let form = ReplyForm::of_refused(bad.to_head);
                let identity = self.identity_of_bad(&bad);
                let refusal = received::bad_head(&bad);
                self.reader.held = Vec::new();
                return Some(Box::pin(self.refuse(identity, refusal, form)));
            }
            ReadOutcome::Refused(refusal) => {
                let (identity, form) = match self.reader.pending.take() {
                    Some(pending) => (
                        self.identities.of(&pending.head.head),
                        ReplyForm::of(&pending.head).closing(),
                    ),
                    None => (
                        Arc::clone(self.identities.connection()),
                        ReplyForm::of_refused(false),
                    ),
                };
                self.reader.held = Vec::new();
                return Some(Box::pin(self.refuse(identity, *refusal, form)));
            }
            ReadOutcome::End => {
                return Some(Box::pin(async move {
                    self.socket.close(None).await;
                    ConnectionStep::End
                }));
            }
            ReadOutcome::Late => return None,
        };
        let ReadyRequest {
            mut call,
            upload,
            form,
            max_forwards,
        } = request;
        let identity = self.identities.of(&call.head);
        if self.listener.queue_status
            && let Some(asked) = place::asked_call(&call.head)
        {
            let (head, body) = place::answer(&self.conversation.serve, &identity, asked);
            let form = match &call.body {
                RequestBody::Whole(_) => form,
                RequestBody::Streamed { .. } => form.closing(),
            };
            return Some(Box::pin(
                self.answer_at_once(HttpAnswer::new(head, body, form)),
            ));
        }
        if self.has_left_before() {
            // Recorded as aborted, and never sent.
            let progress = Progress::of(&self.listener);
            let request = self.request(identity, call);
            drop(self.conversation.serve.serve(request, &progress));
            return None;
        }
        self.reader.is_first = false;
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
        let head = Head::of_refused(&self.reader.held, &bad.fields);
        self.identities.of(&Arc::new(head))
    }

    fn request(&self, identity: Arc<Identity>, call: Box<HttpCall>) -> call::Request {
        let arrived = self.reader.came;
        call::Request {
            origin: Origin { identity, arrived },
            message: Message::Http(call),
        }
    }

    /// Whether the client had already left when the request was read. The first request of a connection is always
    /// served, because a client may send it together with its end.
    fn has_left_before(&self) -> bool {
        !self.reader.is_first && self.socket.has_left()
    }

    /// Serves a call: waits for its turn, and answers it.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async function has room for its arguments twice"
    )]
    fn call(
        &mut self,
        identity: Arc<Identity>,
        mut call: Box<HttpCall>,
        mut upload: Option<Box<Upload>>,
        form: ReplyForm,
    ) -> impl Future<Output = ConnectionStep> + Send {
        async move {
            yield_once().await;
            let progress = Progress::of(&self.listener);
            let mut interim = Vec::new();
            let mut answer = {
                let upload_now = upload.as_deref();
                let mut signs = Signs::of(&self.listener, &identity, &mut call, form, upload_now);
                let request = self.request(identity, call);
                let serve = &self.conversation.serve;
                let mut serving = pin!(serve.serve(request, &progress));
                let mut has_waited = false;
                let reply = poll_fn(|cx| {
                    loop {
                        // The client's end may have come together with the turn of the call.
                        if has_waited && !progress.is_admitted() && self.socket.has_left() {
                            return Poll::Ready(None);
                        }
                        has_waited = true;
                        let served = serving.as_mut().poll(cx);
                        if let Some(more) = progress.take_interim()
                            && form.version == HttpVersion::Http11
                            && signs.as_ref().is_none_or(|signs| signs.pass_interim())
                        {
                            interim.extend_from_slice(&more);
                        }
                        if let Poll::Ready(reply) = served {
                            return Poll::Ready(Some(reply));
                        }
                        if let Some(upload) = &mut upload
                            && self
                                .socket
                                .poll_upload_of_waiting(upload, &mut interim, cx)
                                .is_ready()
                        {
                            continue;
                        }
                        // Dropping the call cancels it, or closes it, or leaves it to itself.
                        let (signs, call) = (signs.as_deref_mut(), (serve, &progress));
                        return self
                            .socket
                            .poll_left(signs, &mut interim, call, cx)
                            .map(|()| None);
                    }
                });
                let Some(reply) = reply.await else {
                    return ConnectionStep::End;
                };
                let is_refused = reply.is_err();
                let kind = self.conversation.settings.backend_kind;
                let mut answer = HttpAnswer::of(reply, form, kind);
                if let Some(signs) = &signs {
                    signs.complete(&mut answer, is_refused, serve, &progress);
                }
                answer
            };
            answer.ahead = interim;
            self.complete_answer(&mut answer, &mut upload, &progress);
            let closes = answer.form.closes;
            let sent = match answer.is_stream() {
                // Boxed, so that no other call pays for it.
                true => Box::pin(self.send_stream(answer, &mut upload, &progress)).await,
                false => self.socket.send(answer, &mut upload).await,
            };
            // Now it is reported, unless a tunnel does that.
            drop(progress);
            let step = self.step_behind(sent, form);
            if closes && matches!(step, ConnectionStep::Request) {
                Box::pin(self.socket.close(upload)).await;
                return ConnectionStep::End;
            }
            step
        }
    }

    /// The state of the connection after an answer that was written, or broke off.
    fn step_behind(
        &mut self,
        sent: Result<WriteProgress, WriteError>,
        form: ReplyForm,
    ) -> ConnectionStep {
        match sent {
            Err(_) => {
                if form.version == HttpVersion::Http10 {
                    // A plain end would make a part of the body look like all of it.
                    self.socket.stream.reset_when_closed();
                }
                return ConnectionStep::End;
            }
            Ok(WriteProgress::Tunnel(tunnel)) => return ConnectionStep::Tunnel(tunnel),
            Ok(WriteProgress::Later) => self.reader.restart(self.conversation.clock.now()),
            Ok(WriteProgress::AtOnce) => {}
        }
        ConnectionStep::Request
    }

    /// Completes an answer by the state of its call and of the connection, which is ready for the next request.
    fn complete_answer(
        &mut self,
        answer: &mut HttpAnswer,
        upload: &mut Option<Box<Upload>>,
        progress: &Progress,
    ) {
        if let Some(pinned) = answer.pinned.take() {
            self.pinned = Some(pinned);
        }
        if let Some(upload) = upload
            && upload.has_ended()
        {
            self.reader.held = upload.take_surplus();
        }
        let (waited, answered) = progress.waited_and_answered();
        answer.add(progress.quota(), waited);
        let owes_body = upload.as_ref().is_some_and(|upload| !upload.has_ended());
        let stops = self.conversation.stop.ends_after_answer() && self.reader.held.is_empty();
        answer.form.closes |= owes_body || stops;
        answer.set_framing();
        // The connection is idle from then on, unless the answer does not leave at once.
        let idle_since = match answered {
            Some(at) => at.max(self.reader.came),
            None => self.conversation.clock.now(),
        };
        self.reader.restart(idle_since);
    }

    /// Sends an answer of unknown length, which a drain may end.
    async fn send_stream(
        &mut self,
        answer: HttpAnswer,
        upload: &mut Option<Box<Upload>>,
        progress: &Progress,
    ) -> Result<WriteProgress, WriteError> {
        let mut watch = self.conversation.streams.watch(StreamKind::Reply);
        let mut sending = pin!(self.socket.send(answer, upload));
        poll_fn(|cx| {
            if let Poll::Ready(sent) = sending.as_mut().poll(cx) {
                return Poll::Ready(sent);
            }
            ready!(watch.poll_end(cx));
            progress.end_by_drain();
            Poll::Ready(Err(WriteError))
        })
        .await
    }

    /// Answers a request that may not be forwarded any more (RFC 9110, 7.6.2).
    async fn answer_as_last(&mut self, call: Box<HttpCall>, form: ReplyForm) -> ConnectionStep {
        let form = match &call.body {
            RequestBody::Whole(_) => form,
            RequestBody::Streamed { .. } => form.closing(),
        };
        self.answer_at_once(HttpAnswer::as_last(&call.head, form))
            .await
    }

    /// Sends an answer to a request that is no call.
    async fn answer_at_once(&mut self, answer: HttpAnswer) -> ConnectionStep {
        let closes = answer.form.closes;
        if self.socket.send(answer, &mut None).await.is_err() {
            return ConnectionStep::End;
        }
        if closes {
            self.socket.close(None).await;
            return ConnectionStep::End;
        }
        ConnectionStep::Request
    }

    /// Ends a connection of HTTP/2 in a way that its client can read.
    async fn refuse_http2(&mut self) -> ConnectionStep {
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
        ConnectionStep::End
    }

    /// Answers a request that is no call, and closes: where its request ends is not known, or not worth
    /// reading to.
    async fn refuse(
        &mut self,
        identity: Arc<Identity>,
        mut refusal: Refusal,
        form: ReplyForm,
    ) -> ConnectionStep {
        let arrived = self.reader.came;
        let origin = Origin { identity, arrived };
        let serve = &self.conversation.serve;
        refusal.call = Some(serve.refused(origin, Dialect::Http, &refusal));
        let answer = HttpAnswer::of(Err(refusal), form, self.conversation.settings.backend_kind);
        if self.socket.send(answer, &mut None).await.is_ok() {
            self.socket.close(None).await;
        }
        ConnectionStep::End
    }
}
