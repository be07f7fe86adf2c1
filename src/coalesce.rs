//! One call upstream for many identical reads.
//!
//! Reads with the same [`Key`] share a call that belongs to none of them: it runs in a task of
//! its own, and waits until the last of their deadlines, in the most urgent of their classes.
//! Each leaves when its client does or when its own deadline has passed. When the last one
//! has left before the call was sent, it is not sent.
//!
//! An answer is given to those who wait when it comes. A good one may be kept for a while
//! after that; a write about the same guest ends it, and keeps everybody who comes after the
//! write from joining a call that was there before. Nothing else is kept, ever.
//!
//! What is sent draws once, and is told once: in the record of the first who still waits. The
//! others' records say that they shared.

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
pub use self::store::{CoalesceNow, Wanted};
use self::store::{Found, Seat, SeatId, Store};
pub use self::upstream::SharedCall;
pub use self::waiter::{Told, Waiter};
use crate::call::{Destination, Facts, Identity, Message, Observe, Record, Rejection, Reply};

/// What this stage is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The functions whose identical reads share a call.
    pub functions: Vec<Arc<str>>,
    /// Headers by which reads on routes of the operator's own are not told apart.
    pub ignored_headers: Arc<[HeaderName]>,
    /// How long a good answer is kept after it came; zero keeps none.
    pub fresh_for: Duration,
    /// Calls under way that are shared, and answers kept.
    pub entries_max: usize,
    /// Bytes of their keys and answers.
    pub bytes_max: usize,
}

/// Lets identical reads share a call. Cloned, it is the same.
#[derive(Clone)]
pub struct Coalescer {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    /// Whether any function is shared, for the many that ask without the lock.
    on: AtomicBool,
    store: Mutex<Store>,
}

/// One client's part in a shared call.
#[derive(Debug)]
pub struct Joining {
    /// Until when it may wait for the call's turn; `None` for as long as it takes.
    pub deadline: Option<Timestamp>,
    /// How urgent it is.
    pub class: Class,
    /// Its own record.
    pub record: Arc<Record>,
}

/// What becomes of a read.
pub enum Joined {
    /// Its answer is here already.
    Kept(Reply),
    /// It is the first: the call is to be run, and the answer waited for.
    First(SharedCall, Waiter),
    /// An identical one is under way.
    Other(Waiter),
    /// There are more than may be held: it goes on its own.
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
                store: Mutex::new(Store::new(settings)),
            }),
        }
    }

    /// Takes new settings. What is kept is dropped and what is under way is not joined any
    /// more, because they may come with another backend.
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

    /// The key of a read, about one guest or none in particular; `None` if it is not to be
    /// shared. It is known on which headers the answers of the built-in table depend.
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

    /// Looks for an identical read and joins it; if there is none, makes a new call for it.
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

    /// A write has come in, about one guest or any: ends the answers it makes old, now and
    /// again when the observer given back hears that it has ended.
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
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write under way, as what hears of its end.
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
