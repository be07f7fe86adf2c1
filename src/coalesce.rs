//! One call upstream for many identical reads.
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
//! A shared call draws once, and is reported once: in the record of the first read that still
//! waits. The records of the others say that they shared.

mod answer;
mod key;
pub mod metrics;
mod store;
mod upstream;
mod waiter;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::HeaderName;
use tidegate_limits::{Class, Timestamp};
use tidegate_runtime::Clock;
use tokio::sync::{Notify, oneshot, watch};

pub use self::key::Key;
use self::key::{Apart, Guest};
pub use self::store::{CoalesceNow, Told, Wanted};
use self::store::{Found, Seat, SeatId, SharedCalls};
pub use self::upstream::SharedCall;
pub use self::waiter::Waiter;
use crate::call::{
    Destination, Facts, Identity, Message, Observe, Record, Refusal, Rejection, Reply,
};

/// The settings of this stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The functions whose identical reads share a call.
    pub functions: Vec<Arc<str>>,
    /// Headers that are ignored when reads on the operator's own routes are compared.
    pub ignored_headers: Arc<[HeaderName]>,
    /// How long a good answer is kept; zero keeps none.
    pub fresh_for: Duration,
    /// The most calls under way that are shared, plus answers kept.
    pub entries_max: usize,
    /// The most bytes of their keys and answers.
    pub bytes_max: usize,
}

/// Lets identical reads share a call. Clones share one state.
#[derive(Clone)]
pub struct Coalescer {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    /// Whether any function is shared. Readable without the lock.
    on: AtomicBool,
    store: Mutex<SharedCalls>,
}

/// One client's part in a shared call.
#[derive(Debug)]
pub struct Joining {
    /// Until when it may wait for the call's turn; `None` without a bound.
    pub deadline: Option<Timestamp>,
    /// How urgent it is.
    pub class: Class,
    /// Its own record.
    pub record: Arc<Record>,
}

/// The result of joining.
pub enum Joined {
    /// Its answer is already here.
    Kept(Result<Reply, Refusal>),
    /// It is the first. Run the call, and wait for the answer.
    First(SharedCall, Waiter),
    /// An identical one is under way.
    Other(Waiter),
    /// The bounds are reached: the read is sent on its own.
    Alone,
}

impl Coalescer {
    /// Nothing is shared or kept yet.
    #[must_use]
    pub fn new(settings: Settings, clock: Clock) -> Self {
        Self {
            shared: Arc::new(Shared {
                clock,
                on: AtomicBool::new(!settings.functions.is_empty()),
                store: Mutex::new(SharedCalls::new(settings)),
            }),
        }
    }

    /// Takes new settings. Drops kept answers, and lets no read join calls that are under way,
    /// because the backend may be another one.
    pub fn apply(&self, settings: Settings) {
        let on = !settings.functions.is_empty();
        self.shared.lock().apply(settings);
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
        function: &str,
        destination: Destination,
        guest: Option<&str>,
        message: &Message,
        of_table: bool,
    ) -> Option<Key> {
        let settings = Arc::clone(self.shared.lock().settings());
        if !settings
            .functions
            .iter()
            .any(|shared| **shared == *function)
        {
            return None;
        }
        let apart = if of_table {
            Apart::Known
        } else {
            Apart::AllBut(Arc::clone(&settings.ignored_headers))
        };
        Key::of(function, destination, guest, message, apart)
    }

    /// Joins an identical read, or makes a new call if there is none.
    #[must_use]
    pub fn join(&self, key: Key, joining: Joining) -> Joined {
        let Joining {
            deadline,
            class,
            record,
        } = joining;
        let (tell, told) = oneshot::channel();
        let seat = Seat {
            deadline,
            class,
            record: Arc::clone(&record),
            tell,
        };
        let mut store = self.shared.lock();
        let now = self.shared.clock.now();
        match store.find(key, now) {
            Found::Kept(answer, at) => {
                drop(store);
                Joined::Kept(upstream::kept(&answer, now.since(at), &record))
            }
            Found::Running(id) => {
                let (number, admitted) = store.join(id, seat);
                let shared = Arc::clone(&self.shared);
                Joined::Other(Waiter::new(shared, id, number, told, admitted))
            }
            Found::Free(key) => {
                let changed = Arc::new(Notify::new());
                let (admit, admitted) = watch::channel(false);
                let id = store.begin(&key, seat, Arc::clone(&changed), admitted.clone());
                drop(store);
                let shared = Arc::clone(&self.shared);
                let apart = key.apart.clone();
                let own = Arc::clone(&shared);
                let call = SharedCall::new(own, id, &record, changed, admit, apart);
                let first = Waiter::new(shared, id, SeatId::FIRST, told, admitted);
                Joined::First(call, first)
            }
            Found::Full => Joined::Alone,
        }
    }

    /// A write has arrived, about one guest or any. Removes the answers that it makes old, now and
    /// again when the returned observer sees the end of the write.
    #[must_use]
    pub fn write(&self, guest: Option<&str>, observer: Arc<dyn Observe>) -> Arc<dyn Observe> {
        let write = Write {
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
        self.shared.lock().now(now)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SharedCalls> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The observer of a write under way.
struct Write {
    shared: Arc<Shared>,
    guest: Option<Guest>,
    observer: Arc<dyn Observe>,
}

impl Write {
    fn end_answers(&self) {
        self.shared.lock().end_about(self.guest);
    }
}

impl Observe for Write {
    fn next_id(&self) -> u64 {
        self.observer.next_id()
    }

    fn begun(&self, id: u64, record: Weak<Record>) {
        self.observer.begun(id, record);
    }

    fn ended(&self, facts: &Facts) {
        self.end_answers();
        self.observer.ended(facts);
    }

    fn rejected(&self, identity: &Identity, rejection: Rejection) {
        self.observer.rejected(identity, rejection);
    }
}
