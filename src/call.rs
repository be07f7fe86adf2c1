//! The vocabulary that the stages pass to one another: a request, what is known of it,
//! the reply, the refusal, and the record of what happened.
//!
//! A [`Record`] is reported exactly once, when its last owner drops it. So a call that is dropped
//! anywhere on its way still has a line in the log, as aborted.

pub mod claim;
pub mod identity;
pub mod listener;
pub mod pace;
pub mod path;
pub mod python_json;

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use tidegate_callers::CallerId;
use tidegate_callers::Settled;
use tidegate_limits::{Delays, Outcome, QuotaSpent, Timestamp, TokenCount};
use tokio::net::TcpStream;

pub use self::claim::Claim;
pub use self::identity::{Identity, Peer};
pub use self::listener::{Bind, Listener, Rejection, UserFrom};

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Told apart by the first byte: an upper-case letter is HTTP, 0x16 is TLS where there
    /// is a certificate, anything else the socket.
    Auto,
    /// The sdkserver's own: one JSON array per connection.
    Socket,
    /// HTTP/1.1.
    Http,
    /// Any bytes; one connection is one call.
    Tcp,
}

/// Where a call came in.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Who it comes from.
    pub identity: Arc<Identity>,
    /// When its clock started: when the last byte came of its request, or of the part of a large body
    /// that is read before the call queues.
    pub arrived: Timestamp,
}

/// What a call has to do with what users do to the guest that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is what a user does to it.
    Acts,
    /// It reads about it, and rides in the class of users while they act on it.
    Follows,
    /// Neither.
    Apart,
}

/// One whole request, as a protocol hands it over.
#[derive(Debug)]
pub struct Request {
    /// Where and when it came in.
    pub origin: Origin,
    /// What was asked.
    pub message: Message,
}

/// What was asked, in the client's dialect.
#[derive(Debug)]
pub enum Message {
    /// One array of the socket protocol.
    Socket(ArrayCall),
    /// An HTTP request.
    Http(Box<HttpCall>),
    /// A TCP connection that wants through to the TCP backend.
    Tcp,
}

/// A text, if it can be a z/VM userid. Nothing else of a call's arguments is ever told: they
/// carry passwords.
#[must_use]
pub fn userid(text: &str) -> Option<&str> {
    let fits = matches!(text.len(), 1..=8);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"$#@_-".contains(&byte);
    (fits && text.bytes().all(is_part)).then_some(text)
}

/// `[function, args, kwargs]`, checked and ready to be written in one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayCall {
    /// The array's own bytes, without white space around it, compacted where it had to fit.
    pub bytes: Bytes,
    /// Its first element.
    pub function: Box<str>,
    /// The z/VM userid it is about, where the first argument names one.
    pub target: Option<Box<str>>,
}

/// An HTTP request: its head, and as much of its body as had to be read.
#[derive(Debug)]
pub struct HttpCall {
    /// Method, target, headers.
    pub head: http::request::Parts,
    /// The body.
    pub body: RequestBody,
    /// Set where this is the socket protocol's array in HTTP dress: a `POST /` whose body
    /// is one.
    pub array: Option<ArrayCall>,
}

impl HttpCall {
    /// What it holds of its request: target, headers, and what is here of the body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.head.headers.iter();
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
        let target = self
            .head
            .uri
            .path_and_query()
            .map_or(0, |it| it.as_str().len());
        let body = match &self.body {
            RequestBody::Whole(bytes) => bytes.len(),
            RequestBody::Streamed { read, .. } => read.iter().map(Bytes::len).sum(),
        };
        target + headers.sum::<usize>() + body
    }

    /// Copies what still lies in the buffer that the request was read into, so that a call
    /// that waits does not keep all of that.
    pub fn compact(&mut self) {
        self.head.headers = compact_headers(&self.head.headers);
        if let Ok(uri) = http::Uri::try_from(self.head.uri.to_string()) {
            self.head.uri = uri;
        }
        self.head.extensions.clear();
        if let RequestBody::Whole(bytes) = &mut self.body
            && !bytes.is_unique()
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// A copy of headers that holds nothing of the buffer in which they came.
#[must_use]
pub fn compact_headers(headers: &http::HeaderMap) -> http::HeaderMap {
    let mut compact = http::HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
        let mut copy = http::HeaderValue::from_bytes(value.as_bytes());
        if let Ok(copy) = &mut copy {
            copy.set_sensitive(value.is_sensitive());
        }
        // Both were valid a moment ago.
        if let (Ok(name), Ok(copy)) = (name, copy) {
            compact.append(name, copy);
        }
    }
    compact
}

/// A request body: held whole while the call waits, or streamed once it may go.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it.
    Whole(Bytes),
    /// Too large to hold: what was read so far, and the rest still at the client.
    Streamed {
        /// Frames already read.
        read: Vec<Bytes>,
        /// What is still to come; it ends in an error if the client is too slow.
        rest: ByteStream,
    },
}

impl RequestBody {
    /// Counts the bytes of a streamed body into the record as they leave.
    pub fn count_into(&mut self, record: &Arc<Record>) {
        if let Self::Streamed { read, rest } = self {
            let counted = Counted {
                rest: std::mem::take(rest),
                before: read.iter().map(|bytes| bytes.len() as u64).sum(),
                record: Arc::clone(record),
            };
            *rest = ByteStream::new(counted);
        }
    }
}

/// The rest of a streamed body. When it is first polled, the part that was read before has left.
struct Counted {
    rest: ByteStream,
    before: u64,
    record: Arc<Record>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.rest).poll_frame(cx);
        let mut more = std::mem::take(&mut self.before);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            more += bytes.len() as u64;
        }
        if more > 0 {
            self.record.note(|facts| facts.bytes_in += more);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.rest.size_hint()
    }
}

/// What the pipeline answers; the protocol puts it in the client's dialect.
pub enum Reply {
    /// The whole reply of the socket backend: one JSON object.
    Whole(Bytes),
    /// A reply of the socket backend too large to hold whole: bytes as they come.
    Stream(ReplyBody),
    /// The HTTP backend's response.
    Http(http::Response<ReplyBody>),
    /// A way through to the TCP backend.
    Tunnel(Tunnel),
    /// No.
    Refused(Refusal),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
            Self::Http(response) => write!(f, "Http({})", response.status()),
            Self::Tunnel(_) => f.write_str("Tunnel"),
            Self::Refused(refusal) => write!(f, "Refused({refusal:?})"),
        }
    }
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BodyError(Box<dyn std::error::Error + Send + Sync>);

impl BodyError {
    /// For this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }

    /// The client left before it had sent the whole body.
    #[must_use]
    pub fn client_left() -> Self {
        Self::new(ClientLeft)
    }

    /// Whether the client left.
    #[must_use]
    pub fn is_client_left(&self) -> bool {
        self.0.is::<ClientLeft>()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the client left before it had sent the whole body")]
struct ClientLeft;

impl From<&'static str> for BodyError {
    fn from(reason: &'static str) -> Self {
        Self::new(reason)
    }
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        Self::new(error)
    }
}

impl From<std::io::Error> for BodyError {
    fn from(error: std::io::Error) -> Self {
        Self::new(error)
    }
}

/// A body as it comes.
pub type ByteStream = UnsyncBoxBody<Bytes, BodyError>;

/// The body of a reply on its way to the client. Dropping it halfway drops the client, not the
/// call: its owner reads the backend to the end.
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// As it comes.
    Stream(ByteStream),
}

impl ReplyBody {
    /// A body that is all here.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }

    /// A body that is still to come.
    pub fn stream(
        body: impl http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static,
    ) -> Self {
        Self::Stream(ByteStream::new(body))
    }
}

/// A connection to the TCP backend, together with the slot it holds.
pub struct Tunnel {
    /// The connection.
    pub stream: TcpStream,
    /// The slot. The connection is the call, so dropping both ends it.
    pub slot: Box<dyn Send>,
    /// What happened.
    pub record: Arc<Record>,
}

/// Answers requests: the pipeline, as the protocols see it.
pub trait Serve: Clone + Send + Sync + 'static {
    /// Answers one request. Dropping the future means that the client has gone.
    fn serve<'a>(
        &'a self,
        request: Request,
        progress: &'a Progress,
    ) -> impl Future<Output = Reply> + Send + 'a;

    /// Takes note of a request that was refused before it was one: malformed, too large,
    /// too slow.
    fn refused(&self, origin: Origin, dialect: &'static str, refusal: &Refusal);

    /// Takes note of a connection that was closed before its first request.
    fn rejected(&self, identity: &Identity, rejection: Rejection);
}

/// How far a call has come, for the protocol that watches its client meanwhile.
#[derive(Debug, Default)]
pub struct Progress {
    admitted: AtomicBool,
    quota: OnceLock<Box<Quota>>,
    refused: OnceLock<Box<Refusal>>,
    record: OnceLock<Arc<Record>>,
}

impl Progress {
    /// The call is past the gate.
    pub fn admit(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// The call is back in the queue: it could not be sent.
    pub fn wait(&self) {
        self.admitted.store(false, Ordering::Relaxed);
    }

    /// Whether the call is past the gate. Before, a client that half-closes has left.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    /// The protocol refuses the call, and drops it.
    pub fn refuse(&self, refusal: Refusal) {
        // A call is refused once.
        let _ = self.refused.set(Box::new(refusal));
    }

    /// The protocol's refusal, if there is one.
    #[must_use]
    pub fn refused(&self) -> Option<&Refusal> {
        self.refused.get().map(|refusal| &**refusal)
    }

    /// Says what its rate limit has left, once it has been charged.
    pub fn charge(&self, quota: Quota) {
        // Said once, at the end.
        let _ = self.quota.set(Box::new(quota));
    }

    /// Hands over the record of an answered call. Dropping it reports the call, which can wait
    /// until the answer has been written.
    pub fn answered(&self, record: Arc<Record>) {
        // A call is answered once.
        let _ = self.record.set(record);
    }

    /// The record of the call, if it is answered.
    #[must_use]
    pub fn into_record(self) -> Option<Arc<Record>> {
        self.record.into_inner()
    }

    /// What its rate limit has left; none if it met no rate limit.
    #[must_use]
    pub fn quota(&self) -> Option<&Quota> {
        self.quota.get().map(|quota| &**quota)
    }
}

/// What a client may know of the rate limit that its call met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The caller for which it was counted first.
    pub caller: CallerId,
    /// Whole tokens that can come in one go.
    pub limit: u64,
    /// Whole tokens left of them now.
    pub remaining: u64,
    /// Until it is full again.
    pub reset: Duration,
}

/// What a call holds while it is past the gate: a worker and its share of every limit.
///
/// Dropped before [`Slot::sent`] it is given back undrawn; dropped later it is finished as
/// failed. So every path ends in exactly one of given back, finished.
pub trait Slot: Send + Unpin + 'static {
    /// It is this backend that the call goes to, of those that its destination has led to.
    fn goes_to(&mut self, generation: Generation);
    /// The call's last byte has left for the backend.
    fn sent(&mut self);
    /// The first byte of the reply is here.
    fn replied(&mut self);
    /// The backend is done with the call.
    fn finish(self, outcome: Outcome);
}

/// Why a call was not answered by the backend. The number is the `rs` of the answer;
/// docs/errors.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The queue holds as many calls as it may.
    QueueFull,
    /// It waited as long as a call may.
    DeadlinePassed,
    /// Its limits open only after its deadline, so it was told at once.
    DeadlineUnreachable,
    /// It asks for more than a limit will ever give.
    NeverPossible,
    /// The proxy is going down.
    Draining,
    /// The backend took no connection until the deadline.
    BackendUnreachable,
    /// The backend closed without a byte of reply.
    BackendClosed,
    /// The backend's reply ended in the middle.
    BackendCut,
    /// The backend took longer than it may.
    BackendSlow,
    /// The backend's reply is larger than `max_reply_bytes`.
    ReplyTooLarge,
    /// The request is malformed.
    BadRequest,
    /// The request is larger than the backend can read.
    TooLarge,
    /// The request did not come in whole in time.
    RequestSlow,
    /// No backend is configured for what it asks.
    NoBackend,
    /// Our own mistake.
    Internal,
    /// Its caller's rate limit has no tokens to spare, and calls may not wait for it.
    RateLimited,
    /// As many calls are handed over as may be, or take as many bytes.
    TasksFull,
    /// The same, of its caller.
    CallerTasksFull,
    /// There is no such task, or it is another's.
    TaskUnknown,
    /// The task is no longer here.
    TaskGone,
    /// The task's answer found no room.
    AnswerNotKept,
    /// The head of the request is larger than it may be.
    HeadTooLarge,
    /// No byte of a tunnel moved for as long as one may be silent.
    TunnelIdle,
    /// The store of its quota does not answer, or denies access to its key.
    QuotaStoreAway,
    /// The client took its reply too slowly while `max_slow_readers` other clients did.
    ClientSlow,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 25] = [
        Self::QueueFull,
        Self::DeadlinePassed,
        Self::DeadlineUnreachable,
        Self::NeverPossible,
        Self::Draining,
        Self::BackendUnreachable,
        Self::BackendClosed,
        Self::BackendCut,
        Self::BackendSlow,
        Self::ReplyTooLarge,
        Self::BadRequest,
        Self::TooLarge,
        Self::RequestSlow,
        Self::NoBackend,
        Self::Internal,
        Self::RateLimited,
        Self::TasksFull,
        Self::CallerTasksFull,
        Self::TaskUnknown,
        Self::TaskGone,
        Self::AnswerNotKept,
        Self::HeadTooLarge,
        Self::TunnelIdle,
        Self::QuotaStoreAway,
        Self::ClientSlow,
    ];

    /// The `rs` of the answer, from 1.
    #[must_use]
    pub fn rs(self) -> u16 {
        Self::ALL
            .iter()
            .position(|&reason| reason == self)
            .and_then(|index| u16::try_from(index + 1).ok())
            .expect("every reason stands in ALL")
    }

    /// The word used in metrics, logs and docs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::DeadlinePassed => "deadline_passed",
            Self::DeadlineUnreachable => "deadline_unreachable",
            Self::NeverPossible => "never_possible",
            Self::Draining => "draining",
            Self::BackendUnreachable => "backend_unreachable",
            Self::BackendClosed => "backend_closed",
            Self::BackendCut => "backend_cut",
            Self::BackendSlow => "backend_slow",
            Self::ReplyTooLarge => "reply_too_large",
            Self::BadRequest => "bad_request",
            Self::TooLarge => "too_large",
            Self::RequestSlow => "request_slow",
            Self::NoBackend => "no_backend",
            Self::Internal => "internal",
            Self::RateLimited => "rate_limited",
            Self::TasksFull => "tasks_full",
            Self::CallerTasksFull => "caller_tasks_full",
            Self::TaskUnknown => "task_unknown",
            Self::TaskGone => "task_gone",
            Self::AnswerNotKept => "answer_not_kept",
            Self::HeadTooLarge => "head_too_large",
            Self::TunnelIdle => "tunnel_idle",
            Self::QuotaStoreAway => "quota_store_away",
            Self::ClientSlow => "client_slow",
        }
    }

    /// The answer's `overallRC`: overload 503, bad input 400, a failure after sending 500. Never
    /// 404, which nova reads as "the guest does not exist", except for tasks, which nova never asks
    /// for.
    #[must_use]
    pub fn overall_rc(self) -> u16 {
        match self {
            Self::QueueFull
            | Self::DeadlinePassed
            | Self::DeadlineUnreachable
            | Self::Draining
            | Self::BackendUnreachable
            | Self::RateLimited
            | Self::TasksFull
            | Self::CallerTasksFull
            | Self::QuotaStoreAway => 503,
            Self::TaskUnknown => 404,
            Self::TaskGone => 410,
            Self::NeverPossible
            | Self::BadRequest
            | Self::TooLarge
            | Self::HeadTooLarge
            | Self::RequestSlow => 400,
            Self::NoBackend => 501,
            Self::BackendClosed
            | Self::BackendCut
            | Self::BackendSlow
            | Self::ReplyTooLarge
            | Self::AnswerNotKept
            | Self::TunnelIdle
            | Self::ClientSlow
            | Self::Internal => 500,
        }
    }

    /// The HTTP status that carries the answer.
    #[must_use]
    pub fn status(self) -> http::StatusCode {
        use http::StatusCode as S;
        match self {
            Self::QueueFull
            | Self::DeadlinePassed
            | Self::DeadlineUnreachable
            | Self::Draining
            | Self::BackendUnreachable
            | Self::TasksFull
            | Self::QuotaStoreAway => S::SERVICE_UNAVAILABLE,
            Self::RateLimited | Self::CallerTasksFull => S::TOO_MANY_REQUESTS,
            Self::TaskUnknown => S::NOT_FOUND,
            Self::TaskGone => S::GONE,
            Self::AnswerNotKept => S::INSUFFICIENT_STORAGE,
            Self::NeverPossible | Self::BadRequest => S::BAD_REQUEST,
            Self::TooLarge => S::PAYLOAD_TOO_LARGE,
            Self::HeadTooLarge => S::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::RequestSlow => S::REQUEST_TIMEOUT,
            Self::NoBackend => S::NOT_IMPLEMENTED,
            Self::BackendClosed | Self::BackendCut | Self::ReplyTooLarge => S::BAD_GATEWAY,
            Self::BackendSlow | Self::TunnelIdle | Self::ClientSlow => S::GATEWAY_TIMEOUT,
            Self::Internal => S::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A refusal, or what we say for a backend that failed: a value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The limit that said no, by its name in the config.
    pub limit: Option<Arc<str>>,
    /// When to come back, where that makes sense.
    pub retry_after: Option<Duration>,
    /// One sentence for the reader of the answer; ASCII.
    pub detail: Cow<'static, str>,
}

impl Refusal {
    /// What was asked has no backend in the config.
    #[must_use]
    pub fn no_backend(which: &'static str) -> Self {
        Self::new(
            Reason::NoBackend,
            format!("no {which} backend is configured"),
        )
    }

    /// A refusal that no limit decided.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            limit: None,
            retry_after: None,
            detail: detail.into(),
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Answered; no limit held it up.
    Passed,
    /// Answered, after it had waited.
    Delayed,
    /// Refused before it waited.
    Refused,
    /// Refused when its time was up.
    Expired,
    /// Its client left first.
    Aborted,
    /// Sent, and the backend failed it.
    Failed,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 6] = [
        Self::Passed,
        Self::Delayed,
        Self::Refused,
        Self::Expired,
        Self::Aborted,
        Self::Failed,
    ];

    /// The word used in metrics and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Delayed => "delayed",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
        }
    }
}

/// The facts that are reported when a call has ended.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The id of its access line.
    pub id: u64,
    /// Where and when it came in.
    pub origin: Origin,
    /// `socket`, `http` or `tcp`.
    pub dialect: &'static str,
    /// Its function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// The class that it waited in; `none` if it was refused before it was a call.
    pub class: Arc<str>,
    /// The z/VM userid it is about.
    pub target: Option<Box<str>>,
    /// How it ended.
    pub verdict: Verdict,
    /// Whether its client left while it ran.
    pub left: bool,
    /// Whether it was answered with another call's answer, and has drawn nothing itself.
    pub shared: bool,
    /// Whether it was handed over, and so ran without its client.
    pub handed_over: bool,
    /// Whether it only reads, where that matters: `retry_reads`.
    pub is_read: bool,
    /// Whether it was sent once more after it had failed; the second send is reported separately.
    pub is_sent_again: bool,
    /// The call whose second send this is, by its id.
    pub retry_of: Option<u64>,
    /// Whether it meets limits and takes a worker.
    pub limited: bool,
    /// Why, if it was refused or failed.
    pub reason: Option<Reason>,
    /// The limit that held it longest or refused it.
    pub limit: Option<Arc<str>>,
    /// What it waited for in the queue, each time that it was there.
    pub delays: Delays,
    /// When it was let through.
    pub admitted: Option<Timestamp>,
    /// When its last byte left for the backend.
    pub sent: Option<Timestamp>,
    /// When the backend was done with it.
    pub answered: Option<Timestamp>,
    /// Bytes of the request that went to the backend.
    pub bytes_in: u64,
    /// Bytes of the reply.
    pub bytes_out: u64,
    /// The HTTP status answered, on HTTP.
    pub status: Option<u16>,
    /// The answer's `overallRC`, where it has one.
    pub overall_rc: Option<i64>,
    /// Who asked, and what it was charged to; none if it was no request.
    pub claim: Option<Claim>,
    /// What it was charged in the end, if that was settled by the time it took.
    pub settled: Option<Settled>,
    /// What it drew from its quotas, unless it gave that back.
    pub quotas: Vec<QuotaSpent>,
}

impl Facts {
    /// How long limits held it up, if it was let through after all.
    #[must_use]
    pub fn delayed_for(&self) -> Option<Duration> {
        let claim = self.claim.as_ref()?;
        self.limit.as_ref()?;
        Some(self.admitted?.since(claim.at))
    }

    /// What it cost: nothing if it got the answer of another call, what it was charged in the
    /// end if that was settled, or else what it was estimated to.
    #[must_use]
    pub fn cost(&self) -> Option<TokenCount> {
        let estimated = self.claim.as_ref()?.cost;
        if self.shared {
            return Some(TokenCount::ZERO);
        }
        Some(self.settled.map_or(estimated, |settled| settled.charged))
    }

    /// Whether the backend reports that it did what was asked: by `overallRC`, or by the status of
    /// an answer without one.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self.overall_rc {
            Some(rc) => rc == 0,
            None => self.status.is_some_and(|status| status / 100 == 2),
        }
    }

    /// How long the backend took, if it was sent and the backend is done with it.
    #[must_use]
    pub fn service(&self) -> Option<Duration> {
        Some(self.answered?.since(self.sent?))
    }
}

/// Hears of every call once, when it has ended, and of connections that came to none.
pub trait Observe: Send + Sync {
    /// An id for a call that has come in.
    fn next_id(&self) -> u64 {
        0
    }

    /// A call has come in, by this id.
    fn begun(&self, _: u64, _: Weak<Record>) {}

    /// One call has ended.
    fn ended(&self, facts: &Facts);

    /// This process lacks what a connection to a backend needs: descriptors, ports or memory. The
    /// call tries again.
    fn lacks(&self, _backend: Destination, _cause: &(dyn std::error::Error + 'static)) {}

    /// A connection was closed before its first request.
    fn rejected(&self, identity: &Identity, rejection: Rejection);
}

/// The facts of one call while it is under way. They are reported when it is dropped.
pub struct Record {
    facts: Mutex<Facts>,
    observer: Arc<dyn Observe>,
}

impl Record {
    /// Opens the record of a call that has just arrived. Until another verdict is set, it was
    /// aborted.
    #[must_use]
    pub fn open(
        origin: Origin,
        dialect: &'static str,
        function: Arc<str>,
        class: Arc<str>,
        target: Option<Box<str>>,
        observer: Arc<dyn Observe>,
    ) -> Arc<Self> {
        let id = observer.next_id();
        let facts = Facts {
            id,
            origin,
            dialect,
            function,
            class,
            target,
            verdict: Verdict::Aborted,
            left: false,
            shared: false,
            handed_over: false,
            is_read: false,
            is_sent_again: false,
            retry_of: None,
            limited: true,
            reason: None,
            limit: None,
            delays: Delays::default(),
            admitted: None,
            sent: None,
            answered: None,
            bytes_in: 0,
            bytes_out: 0,
            status: None,
            overall_rc: None,
            claim: None,
            settled: None,
            quotas: Vec::new(),
        };
        let record = Arc::new(Self {
            facts: Mutex::new(facts),
            observer,
        });
        record.observer.begun(id, Arc::downgrade(&record));
        record
    }

    /// The record of the same call, sent once more: a departure of its own, with its own report.
    /// The end of this one does not change.
    #[must_use]
    pub fn sent_again(&self) -> Arc<Self> {
        let first = self.note(|facts| {
            facts.is_sent_again = true;
            facts.clone()
        });
        let observer = Arc::clone(&self.observer);
        let Facts {
            id,
            origin,
            dialect,
            function,
            class,
            target,
            ..
        } = first;
        let second = Self::open(origin, dialect, function, class, target, observer);
        second.note(|facts| {
            facts.retry_of = Some(id);
            facts.is_read = first.is_read;
            facts.limited = first.limited;
            facts.handed_over = first.handed_over;
        });
        second
    }

    /// Writes something down.
    pub fn note<R>(&self, write: impl FnOnce(&mut Facts) -> R) -> R {
        write(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.observer.ended(facts);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").finish_non_exhaustive()
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
            }
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(bytes) => {
                http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, |it| it.len() as u64))
            }
            Self::Stream(body) => body.size_hint(),
        }
    }
}

/// What kind of server is behind, which says whether the built-in table applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// The z/VM SDK server: the table has its routes and functions.
    Zvm,
    /// Any other: no route and no function is known unless the config names it.
    Http,
}

/// Counts the backends that one destination has led to. A reload that moves it makes the next
/// one, and what is known of an earlier one says nothing of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The one that the process starts with.
    pub const FIRST: Self = Self(0);

    /// The one that a reload makes.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Whose failure it is that a call could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The backend's: it takes no connection.
    Backend,
    /// The network's: the backend cannot be reached, or its name not looked up.
    Network,
    /// Our own: no descriptor, port or memory is left for a connection. It says nothing of
    /// the backend.
    Own,
}

/// Which backend a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The sdkserver.
    Socket,
    /// The HTTP backend.
    Http,
    /// The TCP backend.
    Tcp,
    /// None is configured for it.
    Nowhere,
}

impl Destination {
    /// Every backend there can be.
    pub const BACKENDS: [Self; 3] = [Self::Socket, Self::Http, Self::Tcp];

    /// The word used in metrics, logs and limit names.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Nowhere => "none",
        }
    }
}
