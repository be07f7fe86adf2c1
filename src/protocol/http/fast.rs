//! A connection whose requests have the usual form, without a library between its bytes and the pipeline.
//!
//! A request is read whole, head and body, before anything is done with it. So until then it can be left
//! to hyper with every byte that came: if its head is odd, its body is larger than `buffer_bytes`, or a chunk has
//! more than a size and data. hyper then keeps the connection.
//!
//! One timer serves all phases. It is set only for a wait. If it fires too early, because a later phase has
//! begun, it is set again.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::Body as _;
use tidegate_h1::chunks::{Chunks, Extras};
use tidegate_h1::request::{Bounds, Odd};
use tidegate_h1::{Framing, HeadEnd, write};
use tidegate_limits::Timestamp;
use tidegate_runtime::{Timer, with_scratch};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFuture;

use super::super::io::{LINGER, Unread};
use super::super::stream::Stream;
use super::super::turn::others_are_read;
use super::super::wire::OnEof;
use super::super::{Conversation, Settings, Then, Whence};
use super::answer::tell_quota;
use super::by_hyper;
use super::identity::Identities;
use super::known::{self, Read};
use super::received::{Received, cut_body, read_array, slow_body};
use super::written::{Answer, Rest};
use crate::call::{
    self, ByteStream, Dialect, HttpCall, Identity, Listener, Message, Origin, Progress, Refusal,
    Reply, RequestBody, Serve,
};

/// Most bytes of one read. Most requests are smaller.
const READ_BYTES: usize = 8 * 1024;

/// The end of a chunk.
const BEHIND_CHUNK: &[u8] = b"\r\n";

/// Serves the calls of a connection, until hyper has to go on.
pub(super) fn serve<S: Serve>(
    received: Received,
    whence: Whence,
    conversation: Arc<Conversation<S>>,
) -> impl Future<Output = Then> + Send {
    let Received {
        stream,
        bytes,
        came,
    } = received;
    let identities = Identities::new(
        whence.origin.identity,
        &whence.listener,
        stream.is_tls(),
        &conversation.settings,
    );
    let mut client = Client {
        stream,
        held: bytes,
        end: None,
        part: None,
        came,
        since: came,
        timer: Timer::default(),
        has_ended: false,
        watches_stop: false,
        looks: false,
        is_first: true,
        identities,
        listener: whence.listener,
        conversation: Arc::clone(&conversation),
    };
    // Made before, so that the future has room for the client and not also for its parts: 10,000 of them may be idle.
    async move {
        let mut stop = pin!(conversation.stop.wait());
        loop {
            let got = poll_fn(|cx| client.poll_request(cx, stop.as_mut())).await;
            let doing = match client.begin(got) {
                Next::Does(doing) => doing,
                Next::Odd => break,
                Next::End => return Then::End,
            };
            match doing.await {
                After::Open => {}
                After::End => return Then::End,
            }
        }
        let (received, whence, conversation) = client.into_parts();
        Then::Last(Box::pin(by_hyper::serve(received, whence, conversation)))
    }
}

/// What is done with what came.
enum Next<'a> {
    /// This. Boxed, so that an idle connection has no room for a call.
    Does(Pin<Box<dyn Future<Output = After> + Send + 'a>>),
    /// hyper goes on.
    Odd,
    /// The connection ends.
    End,
}

/// A client's connection.
struct Client<S> {
    stream: Stream,
    /// What came and was not read: pipelined requests, or part of one.
    held: Vec<u8>,
    /// Finds the end of a head at their front, once they were looked at.
    end: Option<HeadEnd>,
    /// The request at the front of `held`, whose body is not whole.
    part: Option<Box<Part>>,
    /// When the latest bytes came.
    came: Timestamp,
    /// When the phase began: idle, a head, a body.
    since: Timestamp,
    timer: Timer,
    /// The client sends no more.
    has_ended: bool,
    watches_stop: bool,
    /// The kernel was asked for a last request.
    looks: bool,
    /// No request of this connection was served.
    is_first: bool,
    identities: Identities,
    listener: Arc<Listener>,
    conversation: Arc<Conversation<S>>,
}

/// A request whose head is here, and its body in part.
struct Part {
    read: Read,
    /// When it began.
    since: Option<Timestamp>,
    needs: Needs,
}

/// What its body needs.
#[derive(Clone, Copy)]
enum Needs {
    /// This number of bytes of head and body.
    Length(usize),
    Chunks {
        chunks: Chunks,
        /// Read up to here.
        at: usize,
        /// Bytes of data so far.
        data: usize,
    },
}

/// What came of reading.
enum Got {
    Request {
        call: Box<HttpCall>,
        closes: bool,
    },
    /// hyper must go on, for this reason.
    Odd(&'static str),
    /// The request ends here, with an answer.
    Refused(Box<Refusal>),
    /// The client has ended, or the sidecar stops.
    End,
    /// The time is over.
    Late,
}

/// What came of bytes.
enum Taken {
    Got(Got, usize),
    Partial,
}

/// What becomes of a connection.
enum After {
    Open,
    End,
}

/// What remains of an answer.
struct Unsent {
    first: Vec<u8>,
    rest: Rest,
}

/// The client has left.
struct Gone;

impl<S: Serve> Client<S> {
    fn into_parts(self) -> (Received, Whence, Arc<Conversation<S>>) {
        let received = Received {
            stream: self.stream,
            bytes: self.held,
            came: self.came,
        };
        let whence = Whence {
            origin: Origin {
                identity: self.identities.into_connection(),
                arrived: self.came,
            },
            listener: self.listener,
        };
        (received, whence, self.conversation)
    }

    fn settings(&self) -> &Settings {
        &self.conversation.settings
    }

    fn on_eof(&self) -> OnEof {
        OnEof::new(self.listener.cancel_on_eof)
    }

    /// Begins with what came.
    fn begin(&mut self, got: Got) -> Next<'_> {
        let (mut call, closes) = match got {
            Got::Request { call, closes } => (call, closes),
            Got::Odd(reason) => {
                self.conversation.serve.left_to_hyper(reason);
                return Next::Odd;
            }
            Got::Refused(refusal) => {
                let identity = match self.part.take() {
                    Some(part) => self.identities.of(&part.read.head),
                    None => Arc::clone(self.identities.connection()),
                };
                self.held = Vec::new();
                return Next::Does(Box::pin(self.refuse(identity, *refusal)));
            }
            Got::End => {
                return Next::Does(Box::pin(async move {
                    self.close().await;
                    After::End
                }));
            }
            Got::Late => return Next::End,
        };
        let identity = self.identities.of(&call.head);
        call.forwarded = self.identities.forwarded();
        if self.has_left_before() {
            // Recorded as aborted, and never sent.
            let progress = Progress::default();
            let request = self.request(identity, call);
            drop(self.conversation.serve.serve(request, &progress));
            return Next::End;
        }
        self.is_first = false;
        match read_array(self.settings(), &mut call) {
            Ok(()) => Next::Does(Box::pin(self.call(identity, call, closes))),
            Err(refusal) => Next::Does(Box::pin(self.refuse(identity, refusal))),
        }
    }

    fn request(&self, identity: Arc<Identity>, call: Box<HttpCall>) -> call::Request {
        let arrived = self.came;
        call::Request {
            origin: Origin { identity, arrived },
            message: Message::Http(call),
        }
    }

    /// The next request, whole.
    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        mut stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<Got> {
        if !self.held.is_empty()
            && self.part.is_none()
            && let Some(got) = self.take_held()
        {
            return Poll::Ready(got);
        }
        loop {
            if self.has_ended {
                return Poll::Ready(self.ended());
            }
            let mut chunk = [MaybeUninit::uninit(); READ_BYTES];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => {
                    self.has_ended = true;
                    continue;
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Got::Late),
                Poll::Pending => match self.poll_over(cx, stop.as_mut()) {
                    Poll::Ready(None) => return Poll::Ready(self.late()),
                    // The kernel may have what the runtime does not know of yet.
                    Poll::Ready(Some(Looks)) => {
                        self.looks = true;
                        self.stream.look();
                        continue;
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
            self.came = self.conversation.clock.now();
            let bytes = chunk.filled();
            if self.held.is_empty() {
                match self.take(bytes) {
                    Taken::Got(got, taken) => {
                        self.held = bytes[taken..].to_vec();
                        return Poll::Ready(got);
                    }
                    Taken::Partial => {
                        self.hold(bytes);
                        self.end.get_or_insert_default().is_in(bytes);
                        self.begins();
                    }
                }
            } else {
                self.hold(bytes);
                if let Some(got) = self.take_held() {
                    return Poll::Ready(got);
                }
            }
        }
    }

    /// A part of a request is here: its time begins.
    fn begins(&mut self) {
        self.since = self.came;
        self.looks = false;
    }

    /// Keeps bytes of a request that is not whole.
    fn hold(&mut self, bytes: &[u8]) {
        if let Some(part) = &self.part
            && let Needs::Length(length) = part.needs
        {
            let more = length.saturating_sub(self.held.len());
            self.held.reserve_exact(more.max(bytes.len()));
        }
        self.held.extend_from_slice(bytes);
    }

    /// Reads the request at the front of what is held.
    fn take_held(&mut self) -> Option<Got> {
        let held = std::mem::take(&mut self.held);
        if let Some(part) = self
            .part
            .take_if(|part| matches!(part.needs, Needs::Length(length) if length == held.len()))
        {
            self.end = None;
            // It is exactly as large as its memory, so it is not copied.
            let mut body = Bytes::from(held);
            body.advance(part.read.length);
            return Some(Got::request(part.read, body));
        }
        let taken = match self.part.is_some() || self.is_worth_a_look(&held) {
            true => self.take(&held),
            false => Taken::Partial,
        };
        match taken {
            Taken::Got(got, taken) => {
                self.end = None;
                self.held = held;
                if taken == self.held.len() {
                    self.held = Vec::new();
                } else {
                    self.held.drain(..taken);
                }
                Some(got)
            }
            Taken::Partial => {
                self.held = held;
                None
            }
        }
    }

    /// Whether a head is whole, or was not looked at before: most odd ones show at once. Looks at each byte once,
    /// so that a client that sends byte by byte does not cost a parse for each.
    fn is_worth_a_look(&mut self, held: &[u8]) -> bool {
        let is_first = self.end.is_none();
        let is_whole = self.end.get_or_insert_default().is_in(held);
        is_first || is_whole || held.len() > super::heads::HEAD_BYTES
    }

    /// Reads the request at the front of these bytes. Of one that is taken, it says how many bytes it has.
    fn take(&mut self, bytes: &[u8]) -> Taken {
        let part = match self.part.take() {
            Some(part) => *part,
            None => match self.read_head(bytes) {
                Ok(Some(part)) => part,
                Ok(None) => return Taken::Partial,
                Err(odd) => return Taken::Got(Got::Odd(odd), 0),
            },
        };
        self.go_on(part, bytes)
    }

    /// Reads a head, and what its body needs.
    fn read_head(&self, bytes: &[u8]) -> Result<Option<Part>, &'static str> {
        let bounds = Bounds {
            fields: self.settings().max_request_fields,
            bytes: super::heads::HEAD_BYTES,
        };
        let Some(read) = known::read(bytes, bounds).map_err(Odd::label)? else {
            return Ok(None);
        };
        let needs = match read.framing {
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= self.settings().buffer_bytes => {
                    Needs::Length(read.length + length)
                }
                _ => return Err(LARGE_BODY),
            },
            Framing::Chunked => Needs::Chunks {
                chunks: Chunks::new(Extras::Refused),
                at: read.length,
                data: 0,
            },
            Framing::None | Framing::Close => Needs::Length(read.length),
        };
        Ok(Some(Part {
            read,
            since: None,
            needs,
        }))
    }

    /// Reads a body.
    fn go_on(&mut self, mut part: Part, bytes: &[u8]) -> Taken {
        match &mut part.needs {
            Needs::Length(length) if bytes.len() >= *length => {
                let length = *length;
                let body = Bytes::copy_from_slice(&bytes[part.read.length..length]);
                return Taken::Got(Got::request(part.read, body), length);
            }
            Needs::Length(_) => {}
            Needs::Chunks { chunks, at, data } => {
                while *at < bytes.len() && !chunks.has_ended() {
                    let Ok(step) = chunks.step(&bytes[*at..]) else {
                        return Taken::Got(Got::Odd(CHUNKS), 0);
                    };
                    *at += step.framing + step.data;
                    *data += step.data;
                }
                if chunks.has_ended() {
                    let length = *at;
                    let body = data_of(&bytes[part.read.length..length], *data);
                    return Taken::Got(Got::request(part.read, body), length);
                }
                // A chunk of one byte has five bytes of framing.
                let max = self.settings().buffer_bytes.saturating_mul(6);
                if *data > self.settings().buffer_bytes || bytes.len() - part.read.length > max {
                    return Taken::Got(Got::Odd(LARGE_BODY), 0);
                }
            }
        }
        part.since.get_or_insert(self.came);
        self.part = Some(Box::new(part));
        Taken::Partial
    }

    /// The client sends no more.
    fn ended(&mut self) -> Got {
        match self.part {
            Some(_) => Got::Refused(Box::new(cut_body())),
            None => Got::End,
        }
    }

    /// The time for the next bytes is over.
    fn late(&mut self) -> Got {
        match self.part {
            Some(_) => Got::Refused(Box::new(slow_body(self.settings().request_timeout))),
            None if self.looks && self.held.is_empty() => Got::End,
            None => Got::Late,
        }
    }

    /// Ready when nothing more is waited for, or with a last look.
    fn poll_over(
        &mut self,
        cx: &mut Context<'_>,
        stop: Pin<&mut WaitForCancellationFuture<'_>>,
    ) -> Poll<Option<Looks>> {
        let due = match (&self.part, self.held.is_empty()) {
            (Some(part), _) => {
                let since = part.since.unwrap_or(self.since);
                since + self.settings().request_timeout
            }
            (None, false) => self.since + self.settings().request_timeout,
            (None, true) => self.since + self.settings().idle_timeout,
        };
        if self.held.is_empty() {
            // Asked once, a token wakes this task by itself; after that its flag says enough.
            let is_stopped = if self.watches_stop {
                self.conversation.stop.is_set()
            } else {
                self.watches_stop = true;
                stop.poll(cx).is_ready()
            };
            if is_stopped {
                // An idle connection is closed only if the kernel has no request either.
                return Poll::Ready((!self.looks).then_some(Looks));
            }
        }
        let due = self.conversation.clock.instant(due);
        ready!(self.timer.poll_until(due, cx));
        Poll::Ready((!self.looks).then_some(Looks))
    }

    /// Whether the client's end was already here when the request was read. The first request of a connection is
    /// always served, because a client may send it together with its end.
    fn has_left_before(&self) -> bool {
        !self.is_first && self.on_eof() == OnEof::Left && self.stream.has_ended()
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
        closes: bool,
    ) -> impl Future<Output = After> + Send {
        async move {
            others_are_read().await;
            let progress = Progress::default();
            let to_head = call.head.method == http::Method::HEAD;
            let on_eof = self.on_eof();
            let answer = {
                let request = self.request(identity, call);
                let mut serving = pin!(self.conversation.serve.serve(request, &progress));
                let reply = poll_fn(|cx| {
                    if let Poll::Ready(reply) = serving.as_mut().poll(cx) {
                        return Poll::Ready(Some(reply));
                    }
                    // Dropping the call cancels it, if nothing was sent.
                    self.stream.poll_left(cx, on_eof).map(|()| None)
                });
                let Some(reply) = reply.await else {
                    return After::End;
                };
                self.answer(reply, &progress, to_head, closes)
            };
            // The connection is idle from then on, unless the answer does not leave at once.
            let answered = progress.answered().map(|at| at.max(self.came));
            self.since = answered.unwrap_or_else(|| self.conversation.clock.now());
            let closes = answer.closes;
            let sent = self.send(answer).await;
            // Now it is reported.
            drop(progress);
            if sent.is_err() {
                return After::End;
            }
            if closes {
                Box::pin(self.close()).await;
                return After::End;
            }
            self.looks = false;
            After::Open
        }
    }

    /// The answer to a call.
    fn answer(
        &self,
        reply: Result<Reply, Refusal>,
        progress: &Progress,
        to_head: bool,
        closes: bool,
    ) -> Answer {
        let mut answer = Answer::of(reply, to_head, self.conversation.settings.backend_kind);
        answer.closes |= closes;
        answer.closes |= self.conversation.stop.is_set() && self.held.is_empty();
        if let Some(quota) = progress.quota() {
            let mut more = http::HeaderMap::new();
            tell_quota(quota, &mut more);
            answer.more(&more);
        }
        if let Some(id) = progress.waited() {
            answer.tell_call(id);
        }
        answer
    }

    /// Answers a request that is no call, and closes: where its request ends is not known, or not worth
    /// reading to.
    async fn refuse(&mut self, identity: Arc<Identity>, mut refusal: Refusal) -> After {
        let arrived = self.came;
        let origin = Origin { identity, arrived };
        let serve = &self.conversation.serve;
        refusal.call = Some(serve.refused(origin, Dialect::Http, &refusal));
        let mut answer = Answer::of(Err(refusal), false, self.conversation.settings.backend_kind);
        answer.closes = true;
        if self.send(answer).await.is_ok() {
            self.close().await;
        }
        After::End
    }

    /// Sends an answer.
    // Not an `async fn`, which has room for its arguments twice.
    fn send(&mut self, answer: Answer) -> impl Future<Output = Result<(), Gone>> + Send {
        let mut answer = Some(answer);
        async move {
            let rest = poll_fn(|cx| {
                let answer = answer.take().expect("it is sent once");
                Poll::Ready(self.write_first(answer, cx))
            });
            match rest.await {
                None => Ok(()),
                // Boxed, so that no other call pays for it.
                Some(rest) => {
                    Box::pin(self.send_rest(rest)).await?;
                    self.since = self.conversation.clock.now();
                    Ok(())
                }
            }
        }
    }

    /// Writes the first bytes of an answer. Returns what remains.
    fn write_first(&mut self, answer: Answer, cx: &mut Context<'_>) -> Option<Box<Unsent>> {
        with_scratch(|first| {
            let rest = answer.begin(first);
            let written = match rest {
                Rest::None => self.write_at_once(first, cx),
                _ => 0,
            };
            let is_sent = written == first.len() && matches!(rest, Rest::None);
            (!is_sent).then(|| {
                let first = first[written..].to_vec();
                Box::new(Unsent { first, rest })
            })
        })
    }

    async fn send_rest(&mut self, unsent: Box<Unsent>) -> Result<(), Gone> {
        let Unsent { first, rest } = *unsent;
        match rest {
            Rest::None => self.write(&first, &[]).await,
            Rest::Whole(bytes) => self.write(&first, &bytes).await,
            Rest::Counted(body) => self.stream_body(first, body, false).await,
            Rest::Chunked(body) => self.stream_body(first, body, true).await,
        }
    }

    /// Writes what leaves without a wait. Any error shows again at the next write.
    fn write_at_once(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> usize {
        // Written bytes may still wait to be encrypted and sent.
        if let Stream::Tls(_) = self.stream {
            return 0;
        }
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        }
    }

    /// Writes a body as it arrives. If it breaks off, so does the answer.
    async fn stream_body(
        &mut self,
        first: Vec<u8>,
        mut body: ByteStream,
        chunked: bool,
    ) -> Result<(), Gone> {
        let mut first = first;
        loop {
            let frame = poll_fn(|cx| {
                if let ready @ Poll::Ready(_) = Pin::new(&mut body).poll_frame(cx) {
                    return ready;
                }
                // What is here goes out before the wait.
                if !first.is_empty() {
                    return Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::new()))));
                }
                self.stream
                    .poll_reset(cx)
                    .map(|()| Some(Err("the client has left".into())))
            })
            .await;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| Gone)?.into_data() else {
                continue;
            };
            if chunked && !data.is_empty() {
                write::chunk_size(data.len(), &mut first);
                self.write(&first, &data).await?;
                first.clear();
                first.extend_from_slice(BEHIND_CHUNK);
                if !body.is_end_stream() {
                    continue;
                }
                break;
            }
            self.write(&first, &data).await?;
            first.clear();
        }
        if chunked {
            first.extend_from_slice(write::LAST_CHUNK);
        }
        self.write(&first, &[]).await
    }

    async fn write(&mut self, first: &[u8], second: &[u8]) -> Result<(), Gone> {
        let mut written = 0;
        let mut stalled_since = None;
        poll_fn(|cx| {
            while written < first.len() + second.len() {
                match self.poll_write(first, second, written, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Gone)),
                    Poll::Ready(Ok(more)) => {
                        written += more;
                        stalled_since = None;
                    }
                    Poll::Pending => return self.poll_stalled(&mut stalled_since, cx),
                }
            }
            if let Stream::Tls(_) = self.stream {
                // Written bytes may still wait to be encrypted and sent.
                return match Pin::new(&mut self.stream).poll_flush(cx) {
                    Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| Gone)),
                    Poll::Pending => self.poll_stalled(&mut stalled_since, cx),
                };
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    fn poll_write(
        &mut self,
        first: &[u8],
        second: &[u8],
        written: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        match first.get(written..) {
            Some(first) if second.is_empty() => stream.poll_write(cx, first),
            Some(first) if !first.is_empty() => {
                stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)])
            }
            _ => stream.poll_write(cx, &second[written - first.len()..]),
        }
    }

    /// Ready when a write has made no progress for too long.
    fn poll_stalled(
        &mut self,
        since: &mut Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Gone>> {
        let since = *since.get_or_insert_with(Instant::now);
        ready!(
            self.timer
                .poll_until(since + self.settings().write_timeout, cx)
        );
        Poll::Ready(Err(Gone))
    }

    /// Sends the end, then reads what the client still sends, within bounds. An immediate close
    /// would reset the connection and destroy an answer on its way.
    async fn close(&mut self) {
        let until = Instant::now() + LINGER;
        let mut unread = Unread::default();
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
                if shut.is_pending() {
                    return self.timer.poll_until(until, cx);
                }
                is_shut = true;
            }
            match unread.poll_discard(cx, &mut self.stream) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => self.timer.poll_until(until, cx),
            }
        })
        .await;
    }
}

/// The kernel is asked once more.
struct Looks;

/// The body is larger than is held.
pub(super) const LARGE_BODY: &str = "body";
/// A chunk has an extension, or something is malformed.
pub(super) const CHUNKS: &str = "chunks";

impl Got {
    fn request(read: Read, body: Bytes) -> Self {
        let closes = read.closes;
        let call = Box::new(HttpCall {
            head: read.head,
            forwarded: None,
            body: RequestBody::Whole(body),
            array: None,
        });
        Self::Request { call, closes }
    }
}

/// The data of a chunked body that was read before.
fn data_of(mut bytes: &[u8], length: usize) -> Bytes {
    let mut data = Vec::with_capacity(length);
    let mut chunks = Chunks::new(Extras::Refused);
    while !bytes.is_empty() {
        let Ok(step) = chunks.step(bytes) else { break };
        data.extend_from_slice(&bytes[step.framing..step.framing + step.data]);
        bytes = &bytes[step.framing + step.data..];
    }
    data.into()
}
