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

pub mod etcd;
mod key;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod waiters;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{Standing, StoreTime, Version};
use tokio::sync::watch;

pub use self::key::{Key, KeyError};
use crate::clock::Clock;

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

    /// What was learned of the store's clock last, to wait for it: it is told anew with each
    /// reply that says something.
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

    /// What the store itself says about a key's quota; nothing until it was asked. Followed until
    /// the receiver is dropped.
    fn configured(&self, _: &Key) -> watch::Receiver<Option<Configured>> {
        // Most engines keep no configuration: this never changes.
        watch::channel(Some(Configured::default())).1
    }
}

/// What stands at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which write it is.
    pub version: Version,
    /// The text that was written; anything, if somebody else wrote it.
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
    /// What it says that cannot be: the values above are those before it, which hold on.
    pub mistake: Option<Box<str>>,
    /// Where a program of another kind was seen to write while this key was followed. It spends
    /// tokens that nobody here knows of.
    pub foreign_writer: Option<Box<str>>,
}

/// Whatever an engine says about its trouble.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It does not answer, or cannot serve. Nothing was done.
    #[error("the store is away")]
    Unavailable(#[source] Cause),
    /// The answer did not come. It may have been done, or may yet be.
    #[error("the store did not say whether it was done")]
    Unknown(#[source] Cause),
    /// It wants a user or a password, or others, or does not allow this one. Nothing was done.
    #[error("the store wants other credentials")]
    Unauthenticated(#[source] Cause),
    /// It says no to the call itself, or something stands at the key that it cannot keep a text
    /// in. Nothing was done.
    #[error("the store refused")]
    Refused(#[source] Cause),
    /// What answers is no such store. Of a write it says nothing about whether it was done.
    #[error("an answer that the store does not give")]
    Garbage(#[source] Cause),
}

impl Error {
    /// Whether a write that met it may have been done, or may yet be.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Garbage(_))
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
