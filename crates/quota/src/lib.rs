//! Where the records of shared quotas stand: one small trait, four engines.
//!
//! A store keeps a text per key, writes several at once or none of them, and only over the very
//! versions that were read. It knows no algorithm: what the texts say and what may be spent is
//! decided in [`tidegate_limits::quota`]. What an engine adds is its clock, the number of nodes
//! that live, and the news that a key has changed.
//!
//! | engine | promise | clock |
//! |---|---|---|
//! | [`memory`] | exact; one process | the process's own |
//! | [`zookeeper`] | nothing that was confirmed is forgotten while a quorum survives | the leader's, in each reply |
//! | [`etcd`] | the same; of nodes' own shares as long as anybody who knows the time lives | none: the master of an election keeps one |
//! | [`redis`] | nothing that was confirmed is forgotten while the primary survives | the primary's, in each reply |

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

#[cfg(feature = "etcd")]
pub mod etcd;
mod key;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod settings;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod waiters;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{Standing, StoreTime, Version};
use tokio::sync::watch;

pub use self::key::{Key, KeyError};
pub use self::settings::{QuotaLimit, Quotas};
use tidegate_runtime::Clock;

/// What a call to a store comes to. Draws are rare enough that a box for each costs nothing,
/// and it lets the engine be chosen by the config.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// The most keys that one call may name.
pub const KEYS_MAX: usize = 64;

/// Which store keeps the records, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
// There is one in a process.
#[allow(clippy::large_enum_variant)]
pub enum Engine {
    /// This process alone.
    Memory,
    /// ZooKeeper.
    #[cfg(feature = "zookeeper")]
    ZooKeeper(zookeeper::Settings),
    /// etcd.
    #[cfg(feature = "etcd")]
    Etcd(etcd::Settings),
    /// Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(redis::Settings),
}

impl Engine {
    /// Connects, in the background, as one more node; needs a tokio runtime.
    #[must_use]
    pub fn open(&self, clock: Clock) -> Arc<dyn QuotaStore> {
        match self {
            Self::Memory => Arc::new(memory::Memory::new().node()),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => {
                Arc::new(zookeeper::ZooKeeper::start(settings.clone(), clock))
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => Arc::new(etcd::Etcd::start(settings.clone(), clock)),
            #[cfg(feature = "redis")]
            Self::Redis(settings) => Arc::new(redis::Redis::start(settings.clone(), clock)),
        }
    }

    /// The word for it in configs and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => "zookeeper",
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => "etcd",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
        }
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => "ZooKeeper",
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => "etcd",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "Redis",
        }
    }
}

/// A store of quota records, as one node sees it. The node is a member for as long as the value
/// lives.
///
/// Every future may be dropped at any time; a write that was dropped may be done, or may yet be.
pub trait QuotaStore: Send + Sync + fmt::Debug {
    /// What stands at each key, in their order, as of a moment ago: what is long past is not
    /// told, but another node's last write may be missing.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
    fn get<'a>(&'a self, keys: &'a [Key]) -> Answer<'a, Vec<Option<Entry>>>;

    /// Writes all or nothing: each key over the version that is expected there.
    ///
    /// # Errors
    ///
    /// Any. Where [`Error::is_open`], it may have been written, or may yet be.
    fn compare_and_set<'a>(&'a self, writes: &'a [Write]) -> Answer<'a, Swapped>;

    /// The last known time of the store, to wait for: it is sent again with each reply that
    /// contains it.
    fn time(&self) -> watch::Receiver<StoreTime>;

    /// The store's time at the moment `at` of this process's clock.
    fn now(&self, at: Timestamp) -> StoreTime {
        self.time().borrow().at(at)
    }

    /// Waits until something else stands at a key than this version, or than nothing. Told once,
    /// and meant for keys that are exhausted: who draws from a key learns of changes by drawing.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`], when the key cannot be watched now.
    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()>;

    /// How many nodes are alive, this one included; 0 until the store has told. It is for sizing
    /// grants only: nothing that must hold rests on it.
    fn members(&self) -> watch::Receiver<usize>;

    /// For how long a node that died is counted as alive.
    fn member_lifetime(&self) -> Duration {
        Duration::ZERO
    }

    /// What is wrong with the store, and since when, as its own signs of life found out; none while
    /// it answers them, and before the first of them.
    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        None
    }

    /// Whether it says anything about the quotas of keys.
    fn configures(&self) -> bool {
        false
    }

    /// What the store itself says about a key's quota, as of a moment ago. `known` is what it was
    /// known to say before, which stays where it says what cannot be.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
    fn configured<'a>(&'a self, _: &'a Key, known: &'a Configured) -> Answer<'a, Configured> {
        // Most engines keep no configuration: this never changes.
        Box::pin(async { Ok(known.clone()) })
    }
}

/// What stands at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which write it is.
    pub version: Version,
    /// The text that was written; any text, if another program wrote it.
    pub text: Vec<u8>,
}

impl Entry {
    /// What a key with or without an entry says.
    #[must_use]
    pub fn standing(entry: Option<&Self>) -> Standing {
        entry.map_or(Standing::Absent, |entry| {
            Standing::read(entry.version, &entry.text)
        })
    }
}

/// One key of a [`QuotaStore::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key; no other write of the same call may name it.
    pub key: Key,
    /// What must stand there; nothing for a key that must not exist.
    pub expected: Option<Version>,
    /// What is to stand there.
    pub text: Vec<u8>,
}

/// What came of a [`QuotaStore::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// All is written, as these versions, in the order of the writes.
    Done(Vec<Version>),
    /// Nothing is, and never will be. What stood at all of the keys a moment later, in the order
    /// of the writes.
    Conflict(Vec<Option<Entry>>),
}

/// What a store says about a key's quota. Absent is what it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// Tokens a window.
    pub total: Option<u64>,
    /// Tokens of the smallest draw.
    pub base: Option<u64>,
    /// What it says that cannot be: that value is the one before it.
    pub mistake: Option<Box<str>>,
    /// Where a program of another kind was seen to write while this key was followed. What it spends
    /// is in no sum.
    pub foreign_writer: Option<Box<str>>,
    /// What was found where such a program would write, when that was first looked at.
    pub marks: [Mark; 2],
}

/// What was found at a place where a program of another kind would write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// It was not looked at.
    #[default]
    Unseen,
    /// Nothing.
    Nothing,
    /// Something, by that write.
    Written(i64),
}

/// Whatever an engine says about its trouble.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not answer, or cannot serve. Nothing was done.
    #[error("the store is unavailable")]
    Unavailable(#[source] Cause),
    /// The answer did not come. It may have been done, or may yet be.
    #[error("the store did not say whether it was done")]
    Unknown(#[source] Cause),
    /// It wants a user or a password, or others. Nothing was done.
    #[error("the store wants other credentials")]
    Unauthenticated(#[source] Cause),
    /// The user is known, and may not do this at this key. Nothing was done.
    #[error("the store denies access to this key")]
    Denied(#[source] Cause),
    /// It says no to the call itself, or something stands at the key that it cannot keep a text
    /// in. Nothing was done.
    #[error("the store refused")]
    Refused(#[source] Cause),
    /// What answers is no such store. Of a write it says nothing about whether it was done.
    #[error("an answer that the store does not give")]
    Garbage(#[source] Cause),
}

impl Error {
    /// The error with its cause, as operators see it.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    /// Whether a write that met it may have been done, or may yet be.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Garbage(_))
    }
}

/// What the signs of life of an engine found out.
#[derive(Debug, Default)]
struct SignsOfLife(Mutex<Option<(Timestamp, Arc<str>)>>);

impl SignsOfLife {
    /// The last one failed, and so did all since the moment that is kept. Returns whether it is the
    /// first.
    fn failed(&self, now: Timestamp, why: &str) -> bool {
        let mut trouble = self.lock();
        match &mut *trouble {
            Some((_, known)) => {
                if **known != *why {
                    *known = why.into();
                }
                false
            }
            None => {
                *trouble = Some((now, why.into()));
                true
            }
        }
    }

    /// The last one was answered. Returns whether the one before was not.
    fn answered(&self) -> bool {
        self.lock().take().is_some()
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Timestamp, Arc<str>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what a reply says about the store's clock.
fn learn(time: &watch::Sender<StoreTime>, told: StoreTime) {
    time.send_modify(|known| *known = known.and(&told));
}

/// Whether a call keeps to what every engine can do.
fn assert_bounded<'a>(keys: impl Iterator<Item = &'a Key>) {
    let mut seen = Vec::new();
    for key in keys {
        assert!(!seen.contains(&key), "{key} is named twice in one call");
        seen.push(key);
    }
    assert!(seen.len() <= KEYS_MAX, "{} keys in one call", seen.len());
}
