//! The words that the stages share: a request, what is known of it, the reply, the refusal, and the
//! record of what happened.
//!
//! What a client speaks is decided once, at its first byte ([`Protocol::dialect`]). From there on the
//! types carry it: a [`Message`] is answered with a [`Reply`] that every protocol can write, and a TCP
//! connection with a [`Tunnel`].

/// Defines a type whose values have a word each in metrics and logs.
macro_rules! labels {
    (
        $(#[$meta:meta])*
        pub enum $Type:ident { $($(#[$about:meta])* $value:ident = $label:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Type { $($(#[$about])* $value,)* }

        impl $Type {
            /// Every value, in order.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$value),*];

            /// The word used in metrics and logs.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$value => $label,)*
                }
            }
        }
    };
}

mod answer;
pub mod claim;
pub mod costs;
mod forwarded_fields;
mod head;
pub mod identity;
pub mod job;
pub mod job_meter;
pub mod jobs;
pub(crate) mod link;
pub mod listener;
pub(crate) mod loopback;
mod meter;
pub(crate) mod observe;
pub mod pace;
pub mod prefer;
pub mod rate_limit;
mod record;
pub(crate) mod refusal;
mod reply;
mod request;
pub mod sdk;
mod server;
pub mod session;
mod signs;
pub mod steps;
pub mod ticket;
mod trace;
mod wakers;
mod would;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::TcpKeepalive;
use tidegate_callers::CallerId;
use tidegate_limits::Timestamp;
use tidegate_limits::call::ServerNumber;
use tidegate_limits::scheduler::Outcome;
use tokio::time::Instant;

use self::job_meter::StartedJob;
use crate::options::words;

pub use self::answer::AnswerPlace;
pub use self::claim::Claim;
pub use self::forwarded_fields::{FieldAction, ForwardedField, ForwardedFields};
pub use self::head::{Head, HeadMemo, Headers, RepeatedField, ReplyHead};
pub use self::identity::{Identity, Peer};
pub use self::link::{Link, PinnedConnection, TlsCause};
pub use self::listener::{Bind, Listener, Protocol, Rejection, UserFrom};
pub use self::meter::{AnswerMeter, AnswerReading};
pub use self::observe::{NoObserver, Observe};
pub use self::rate_limit::LimitMode;
pub use self::record::{Facts, RareFacts, Record, Verdict};
pub use self::refusal::{Reason, Refusal, RefusalForm};

pub use self::reply::{
    BodyError, BufferedReply, ByteStream, ClientLeft, PolledFrame, Reply, ReplyBody, Tunnel,
    data_bytes,
};
pub use self::request::{HttpCall, Message, Origin, Request, RequestBody};
pub use self::sdk::{ArrayCall, BackendKind};
pub use self::server::{key_of, server_named};
pub use self::signs::{LooksExceeded, QueueStanding, Sign, SignsOfLife};
pub use self::ticket::{CallDigest, ClientPatience, TicketMode, TicketRule};
pub use self::trace::{Trace, TraceId};
pub use self::wakers::{TaskWakers, WatchedTask};
pub use self::would::{Would, WouldEnd};

/// How the kernel detects a dead silent peer: after a minute it sends probes, and closes after six
/// without an answer.
pub(crate) const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(10))
    .with_retries(6);

labels! {
    /// The protocol of a client.
    pub enum Dialect {
        /// The socket protocol: one JSON array per connection.
        Socket = "socket",
        /// HTTP/1.1.
        Http = "http",
        /// Any bytes; one connection is one call.
        Tcp = "tcp",
    }
}

/// The role of a call for promotion: how it relates to user work on its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The call is user work on the guest.
    Acts,
    /// The call reads the guest, and moves to the class of users while they act on it.
    Follows,
    /// Neither.
    Apart,
}

/// Answers requests: the pipeline, as the protocols see it.
pub trait Serve: Clone + Send + Sync + 'static {
    /// Answers one request. Dropping the future means that the client has left.
    fn serve<'a>(
        &'a self,
        request: Request,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Reply, Refusal>> + Send + 'a;

    /// Connects one TCP client with the backend. Dropping the future means that the client has left.
    fn tunnel<'a>(
        &'a self,
        origin: Origin,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Tunnel, Refusal>> + Send + 'a;

    /// Records a request that was refused before it was complete: malformed, too large, too slow.
    /// Returns the id of its access line.
    fn refused(&self, origin: Origin, dialect: Dialect, refusal: &Refusal) -> u64;

    /// Records a connection that was closed before its first request.
    fn rejected(&self, identity: &Identity, rejection: Rejection);

    /// Where the call with this id stands in the queue; `None` if it does not wait, or if it is not a call of this
    /// client.
    ///
    /// # Errors
    /// If clients ask too often.
    fn standing(
        &self,
        call: u64,
        client: Option<&Identity>,
    ) -> Result<Option<QueueStanding>, LooksExceeded>;

    /// How many calls wait.
    fn waiting(&self) -> usize;

    /// Whether the body decides what this request asks, so that it must be here before the call queues.
    fn needs_body(&self, head: &Head) -> bool;
}

words! {
    /// The fate of a call at the backend when its client leaves.
    #[derive(Default)]
    pub enum OnClientLeft {
        /// The connection to the backend is closed, and the slot comes back at once.
        Close = "close",
        /// The reply is read to its end, and the slot comes back when the backend is done.
        #[default]
        Finish = "finish",
    }
}

/// The progress of a call, for the protocol that watches its client.
#[derive(Debug, Default)]
pub struct Progress {
    admitted: AtomicBool,
    quota: OnceLock<Box<RateLimitStatus>>,
    record: OnceLock<Arc<Record>>,
    /// The tickets of its listener.
    tickets: TicketRule,
    patience: OnceLock<Box<ClientPatience>>,
}

impl Progress {
    /// The progress of a call of this listener.
    #[must_use]
    pub fn of(listener: &Listener) -> Self {
        Self {
            tickets: TicketRule::of(listener),
            ..Self::default()
        }
    }

    /// The tickets of its listener.
    #[must_use]
    pub const fn tickets(&self) -> TicketRule {
        self.tickets
    }

    /// Notes how long its client waits.
    pub fn wait_at_most(&self, patience: ClientPatience) {
        // Set once, at the beginning.
        let _ = self.patience.set(Box::new(patience));
    }

    /// How long its client waits; `None` if that is not known.
    #[must_use]
    pub fn patience(&self) -> Option<ClientPatience> {
        self.patience.get().map(|patience| **patience)
    }

    /// The call is past the gate.
    pub fn admit(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// The call is back in the queue: it could not be sent.
    pub fn wait(&self) {
        self.admitted.store(false, Ordering::Relaxed);
    }

    /// Whether the call is past the gate. Before that, a client that half-closes has left.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Relaxed)
    }

    /// The protocol refuses the call, and drops it. The refusal gets the call's id.
    pub fn refuse(&self, refusal: &mut Refusal) {
        if let Some(record) = self.record.get() {
            record.refuse(refusal);
            refusal.call = Some(record.id());
        }
    }

    /// The proxy goes down, and ends the call in the middle of its reply. Called before the reply is dropped, which
    /// then is not read to its end.
    pub fn end_by_drain(&self) {
        if let Some(record) = self.record.get() {
            record.note(|facts| {
                facts.verdict = Verdict::Failed;
                facts.reason = Some(Reason::Draining);
            });
        }
    }

    /// Sets what its rate limit has left, after the charge.
    pub fn charge(&self, quota: RateLimitStatus) {
        // Set once, at the end.
        let _ = self.quota.set(Box::new(quota));
    }

    /// Keeps the record of the call. Dropping it reports the call, which can wait until the answer
    /// has been written.
    pub fn begins(&self, record: Arc<Record>) -> &Arc<Record> {
        self.record.get_or_init(|| record)
    }

    /// The call's id, if it has waited; and when the backend was done with it, if it was sent.
    #[must_use]
    pub fn waited_and_answered(&self) -> (Option<u64>, Option<Timestamp>) {
        self.record.get().map_or((None, None), |record| {
            record.note(|facts| (facts.waited().then_some(facts.id), facts.answered))
        })
    }

    /// Interim replies of the backend that came since the last call of this.
    pub fn take_interim(&self) -> Option<Vec<u8>> {
        self.record.get()?.take_interim()
    }

    /// The id of the call, if it has begun.
    #[must_use]
    pub fn call(&self) -> Option<u64> {
        self.record.get().map(|record| record.id())
    }

    /// The form of a refusal of the call, which its route decides.
    #[must_use]
    pub fn refusal_form(&self) -> RefusalForm {
        let form = |facts: &mut Facts| Some(facts.rare().refused_as.as_ref()?.form);
        self.record
            .get()
            .and_then(|record| record.note(form))
            .unwrap_or_default()
    }

    /// The client got a sign of life.
    pub fn note_sign(&self, sign: Sign) {
        if let Some(record) = self.record.get() {
            record.note(|facts| facts.rare_mut().note_sign(sign));
        }
    }

    /// The record of the call, if it has begun.
    #[must_use]
    pub fn into_record(self) -> Option<Arc<Record>> {
        self.record.into_inner()
    }

    /// The rest of the call's rate limit; `None` if it met no rate limit.
    #[must_use]
    pub fn quota(&self) -> Option<&RateLimitStatus> {
        self.quota.get().map(|quota| &**quota)
    }
}

/// The state of the call's rate limit, for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// The caller for which it was counted first.
    pub caller: CallerId,
    /// The most whole tokens at once.
    pub limit: u64,
    /// The whole tokens left now.
    pub remaining: u64,
    /// The time until it is full.
    pub reset: Duration,
}

/// The worker and the share of every limit that a call holds while it is past the gate.
///
/// If it is dropped before [`Slot::sent`], it is given back undrawn. If it is dropped later, it
/// is finished as failed. So every path ends in exactly one of given back, finished.
pub trait Slot: Send + Unpin + 'static {
    /// Sets the backend of the call, among those that its destination has had.
    fn goes_to(&mut self, generation: Generation);
    /// The server to which the call is bound, if its backend has several.
    fn server(&self) -> Option<ServerNumber>;
    /// The call's last byte has left for the backend. Returns this moment, so that the clock is read once.
    fn sent(&mut self) -> Instant;
    /// The first byte of the reply has arrived.
    fn replied(&mut self);
    /// The answer says how many tokens the call has cost.
    fn charge(&mut self, tokens: u64);
    /// How many calls the smallest limit on calls at once that it holds lets run; `None` if it holds none.
    fn narrowest(&self) -> Option<u32>;
    /// The backend is done with the call. Returns this moment.
    fn finish(self, outcome: Outcome) -> Instant;
    /// The backend has answered, and works on: the slot belongs to the job, until that ends. Returns this moment.
    fn hand_to_job(self, job: StartedJob) -> Instant;
}

/// Numbers the backends of one destination. A reload that moves the backend makes the next one,
/// and the health of an earlier one does not apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The one at the start of the process.
    pub const FIRST: Self = Self(0);

    /// The one after a reload.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Who is at fault that a call could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The backend: it accepts no connection.
    Backend,
    /// The network: the backend cannot be reached, or its name not resolved.
    Network,
    /// The fault is this process's: no descriptor, port or memory is left for a connection. The backend may be
    /// healthy.
    Own,
}

labels! {
    /// The backend of a call.
    pub enum Destination {
        /// The sdkserver.
        Socket = "socket",
        /// The HTTP backend.
        Http = "http",
        /// The TCP backend.
        Tcp = "tcp",
        /// The call has no backend configured for it.
        Nowhere = "none",
    }
}

impl Destination {
    /// Every possible backend.
    pub const BACKENDS: [Self; 3] = [Self::Socket, Self::Http, Self::Tcp];
}
