//! A shared call upstream for many identical reads.
//!
//! Reads with the same [`Key`] share a call that belongs to none of them. It runs in a task of
//! its own. It waits until the last of their deadlines, in the most urgent of their classes. Each
//! read leaves when its client does or when its own deadline passes. If the last one leaves
//! before the call was sent, the call is not sent.
//!
//! An answer goes to all reads that wait when it arrives. A good answer may be kept for a while.
//! A write about the same guest removes it, and later reads never join a call from before the
//! write. Nothing else is ever kept.
//!
//! A shared call draws once: from the limits of the read whose turn came first, its *payer*
//! (docs/decisions/0037-who-pays-for-a-shared-call.md). It is reported once: in the record of the
//! payer, or if that has left, of the first read that still waits. The records of the others say
//! that they shared.

mod answer;
mod key;
pub mod metrics;
mod store;
mod upstream;
mod waiter;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::HeaderName;
use tidegate_limits::{Class, Timestamp};
use tidegate_runtime::{Clock, lock};
use tokio::sync::oneshot;

pub use self::key::Key;
use self::key::{Guest, KeyHeaders};
pub use self::store::{CoalesceNow, PayingClient, ReadDeadlines, SharedResult};
use self::store::{Seat, SeatId, SharedCalls, SharedLookup};
pub use self::upstream::SharedCall;
pub use self::waiter::SharedCallWaiter;
use crate::call::{
    Claim, Destination, Facts, Identity, Message, Observe, Record, Refusal, Rejection, Reply,
    TlsCause,
};
use crate::options::kind::{
    GIB, HOUR, KIB, distinct, duration, function, integer, list, size, text,
};
use crate::options::shown::quoted;
use crate::options::{Mistake, ValueKind, options};

options! {
    /// One call to the backend for many identical reads: docs/how-to/coalesce.md.
    pub struct CoalesceSection => CoalesceSettings {
        /// Reads whose identical requests share one call while it is running. Pollers mostly ask for
        /// host_get_info, guest_get_info and guest_list. A function that changes anything is refused.
        functions: Vec<Arc<str>> = distinct(list(64, r#"["host_get_info", "guest_list"]"#, function()))
            .described("up to 64 function names in brackets").or(Vec::new());

        /// Headers that do not tell reads apart on your own routes ([[route]]). Such reads share an
        /// answer only if all their other headers are equal, because one of them may be a credential.
        /// Add headers that differ from client to client and change no answer. Reads of the z/VM table
        /// are compared by the headers that docs/how-to/coalesce.md lists.
        ignored_headers: Arc<[HeaderName]> = headers().or(HARMLESS.map(HeaderName::from_static).into())
            .key("ignore_headers");

        /// How long a good answer is given to identical reads that come later. A write about the same
        /// guest ends it. Raise it as far as pollers can do with an old answer.
        fresh_for: Duration = duration(Duration::ZERO..=HOUR).or(Duration::ZERO);

        /// Shared calls that are running, and answers that are kept. Beyond this, a call is sent as if
        /// nothing was shared. If guest_get_info is shared, set it above the number of guests.
        entries_max: usize = integer(1..=1_000_000).of("entries").or(1024).key("max_entries");

        /// Bytes that these take, including their requests and tokens.
        bytes_max: usize = size(KIB..=GIB).or(16 << 20).key("max_bytes");
    }
}

/// Headers that normally change no answer: the client's program, the connection, ids.
const HARMLESS: [&str; 10] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-openstack-request-id",
    "x-request-id",
];

fn headers() -> ValueKind<Arc<[HeaderName]>> {
    const CURE: &str = "give names of headers in brackets, such as [\"user-agent\"]";
    let header = text("the name of a header", "user-agent", |given| {
        // "*" has the form of a name, and would ignore no header.
        let name = HeaderName::try_from(given).ok().filter(|_| given != "*");
        name.ok_or_else(|| {
            Mistake::new(
                format!("{} is not the name of a header", quoted(given)),
                CURE,
            )
        })
    });
    let list = list(64, "[\"user-agent\"]", header).described("a list of header names");
    list.map(Arc::from, |headers: &Arc<[HeaderName]>| headers.to_vec())
}

/// Lets identical reads share a call. Clones share one state.
#[derive(Clone)]
pub struct Coalescer {
    shared: Arc<CoalescerState>,
}

struct CoalescerState {
    clock: Clock,
    /// Whether any function is shared. Readable without the lock.
    on: AtomicBool,
    store: Mutex<SharedCalls>,
}

/// The result of joining.
pub enum JoinOutcome {
    /// The answer is already here.
    Kept(Result<Reply, Refusal>),
    /// The read is the first: run the call, and wait for the answer.
    First(SharedCall, SharedCallWaiter),
    /// An identical one is under way.
    Other(SharedCallWaiter),
    /// The bounds are reached: the read is sent on its own.
    Alone,
}

impl Coalescer {
    /// A coalescer that shares and keeps no call yet.
    #[must_use]
    pub fn new(settings: CoalesceSettings, clock: Clock) -> Self {
        Self {
            shared: Arc::new(CoalescerState {
                clock,
                on: AtomicBool::new(!settings.functions.is_empty()),
                store: Mutex::new(SharedCalls::new(settings)),
            }),
        }
    }

    /// Takes new settings. Drops kept answers, and lets no read join calls that are under way,
    /// because the backend may be another one.
    pub fn apply(&self, settings: CoalesceSettings) {
        let on = !settings.functions.is_empty();
        lock(&self.shared.store).apply(settings);
        self.shared.on.store(on, Ordering::Relaxed);
    }

    /// Whether any function is shared at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// The key of a read, about one guest or none in particular; `None` if it must not be shared.
    /// For the built-in table it is known which headers an answer depends on.
    #[must_use]
    pub fn key(
        &self,
        function: &Arc<str>,
        destination: Destination,
        guest: Option<&str>,
        message: &Message,
        of_table: bool,
    ) -> Option<Key> {
        let settings = Arc::clone(&lock(&self.shared.store).settings);
        if !settings.functions.contains(function) {
            return None;
        }
        let apart = if of_table {
            KeyHeaders::Known
        } else {
            KeyHeaders::AllBut(Arc::clone(&settings.ignored_headers))
        };
        Key::of(function, destination, guest, message, apart)
    }

    /// Joins an identical read, or makes a new call if there is none. The read may wait until
    /// `deadline` for the call's turn, if that is set.
    #[must_use]
    pub fn join(
        &self,
        key: Key,
        deadline: Option<Timestamp>,
        class: Class,
        record: &Arc<Record>,
    ) -> JoinOutcome {
        let (tell, told) = oneshot::channel();
        let seat = Seat {
            deadline,
            class,
            payer: record
                .note(|facts| facts.claim.as_ref().map(Claim::payer))
                .unwrap_or_default(),
            record: Arc::clone(record),
            tell,
        };
        let mut store = lock(&self.shared.store);
        let now = self.shared.clock.now();
        let shared = Arc::clone(&self.shared);
        let waits = move |call, seat, admitted| SharedCallWaiter {
            shared,
            call,
            seat,
            told,
            admitted,
        };
        match store.find(key, now) {
            SharedLookup::Kept(answer, at) => {
                drop(store);
                JoinOutcome::Kept(upstream::kept(&answer, now.since(at), record))
            }
            SharedLookup::Running(id) => {
                let (seat, admitted) = store.join(id, seat);
                JoinOutcome::Other(waits(id, seat, admitted))
            }
            SharedLookup::Free(key) => {
                let begun = store.begin(&key, seat);
                drop(store);
                let first = waits(begun.id, SeatId::FIRST, begun.admit.subscribe());
                let shared = Arc::clone(&self.shared);
                JoinOutcome::First(
                    SharedCall::new(shared, begun, record, key.apart.clone()),
                    first,
                )
            }
            SharedLookup::Full => JoinOutcome::Alone,
        }
    }

    /// A write has arrived, about one guest or any. Removes the answers that it makes old: now, when the
    /// backend is done with the write, before its client reads the answer and asks again, and when the
    /// returned observer sees the end of the write.
    #[must_use]
    pub fn write(&self, guest: Option<&str>, observer: Arc<dyn Observe>) -> Arc<dyn Observe> {
        let write = WriteObserver {
            shared: Arc::clone(&self.shared),
            guest: guest.and_then(Guest::new),
            observer,
        };
        write.end_answers();
        Arc::new(write)
    }

    /// How much is shared and kept.
    #[must_use]
    pub fn snapshot(&self) -> CoalesceNow {
        let now = self.shared.clock.now();
        lock(&self.shared.store).now(now)
    }
}

/// The observer of a write under way.
struct WriteObserver {
    shared: Arc<CoalescerState>,
    guest: Option<Guest>,
    observer: Arc<dyn Observe>,
}

impl WriteObserver {
    fn end_answers(&self) {
        lock(&self.shared.store).end_about(self.guest);
    }
}

impl Observe for WriteObserver {
    fn next_id(&self) -> u64 {
        self.observer.next_id()
    }

    fn call_began(&self, id: u64, record: Weak<Record>) {
        self.observer.call_began(id, record);
    }

    fn backend_finished(&self) {
        self.end_answers();
        self.observer.backend_finished();
    }

    fn keeps_spans(&self) -> bool {
        self.observer.keeps_spans()
    }

    fn call_ended(&self, facts: &Facts) {
        self.end_answers();
        self.observer.call_ended(facts);
    }

    fn lacked_resources(&self, backend: Destination, cause: &(dyn Error + 'static)) {
        self.observer.lacked_resources(backend, cause);
    }

    fn tls_failed(&self, backend: Destination, cause: TlsCause) {
        self.observer.tls_failed(backend, cause);
    }

    fn connection_rejected(&self, identity: &Identity, rejection: Rejection) {
        self.observer.connection_rejected(identity, rejection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::observe::tests::{MethodLog, call_every_method, every_method};

    #[test]
    fn the_observer_of_a_write_forwards_every_method() {
        let settings = CoalesceSettings {
            functions: vec!["guest_list".into()],
            ignored_headers: Arc::default(),
            fresh_for: Duration::ZERO,
            entries_max: 1,
            bytes_max: 1024,
        };
        let coalescer = Coalescer::new(settings, Clock::of_runtime());
        let log = Arc::new(MethodLog::default());
        let inner = Arc::clone(&log) as Arc<dyn Observe>;
        let observer = coalescer.write(Some("A"), inner);
        call_every_method(&*observer);
        assert_eq!(log.take(), every_method());
    }
}
