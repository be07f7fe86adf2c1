//! The stores of shared quotas' records: one small trait, four engines.
//!
//! A store keeps a text per key, and replaces only the version that was read. It knows no
//! algorithm: [`tidegate_limits::quota`] decides what the texts say and what can be spent. An
//! engine adds its clock, the number of live nodes, and the news of changed keys.
//!
//! | engine | promise | clock |
//! |---|---|---|
//! | `memory` | exact; one process | the process's own |
//! | `zookeeper` | nothing that was confirmed is forgotten while a quorum survives | the leader's, in each reply |
//! | `etcd` | the same; of nodes' own shares as long as a node that knows the time lives | none: the master of an election keeps one |
//! | `redis` | nothing that was confirmed is forgotten while the primary survives | the primary's, in each reply |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(any(feature = "etcd", feature = "redis", feature = "zookeeper")),
    allow(dead_code, unused_variables, reason = "memory needs no connection")
)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

#[cfg(feature = "etcd")]
pub mod etcd;
mod key;
pub mod memory;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod node;
mod obstacle;
mod probe;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod remote;
mod settings;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod waiters;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{RecordVersion, StoreTime, StoredRecord};
use tokio::sync::watch;

pub use self::key::{KeyError, RecordKey};
pub use self::obstacle::{Obstacle, StoreStep};
pub use self::settings::{QuotaLimit, QuotaSettings};
use tidegate_runtime::Clock;

/// The result of a call to a store. Draws are rare, so a box for each costs almost nothing, and
/// the config can choose the engine.
pub type StoreCall<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The store of the records, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
// One per process.
#[allow(clippy::large_enum_variant)]
pub enum Engine {
    /// Only this process.
    Memory,
    /// ZooKeeper.
    #[cfg(feature = "zookeeper")]
    ZooKeeper(zookeeper::ZooKeeperStoreSettings),
    /// etcd.
    #[cfg(feature = "etcd")]
    Etcd(etcd::EtcdStoreSettings),
    /// Redis or Valkey.
    #[cfg(feature = "redis")]
    Redis(redis::RedisSettings),
}

impl Engine {
    /// Connects, in the background, as one more node; needs a tokio runtime.
    #[must_use]
    pub fn open(&self, clock: Clock) -> Arc<dyn QuotaStore> {
        match self {
            Self::Memory => Arc::new(memory::Memory::new(clock).node()),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => Arc::new(zookeeper::start(settings.clone(), clock)),
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => Arc::new(etcd::start(settings.clone(), clock)),
            #[cfg(feature = "redis")]
            Self::Redis(settings) => Arc::new(redis::start(settings.clone(), clock)),
        }
    }

    /// The engine as a member of this name, which a restart keeps: so the members are not counted twice until the
    /// store gives up on a process that was killed. `None`: of a random one.
    #[must_use]
    pub fn with_member(mut self, name: Option<Arc<str>>) -> Self {
        match &mut self {
            Self::Memory => {}
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => settings.member = name,
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => settings.member = name,
            #[cfg(feature = "redis")]
            Self::Redis(settings) => settings.member = name,
        }
        self
    }

    /// Takes over the certificates, users and passwords of other settings, if these are the same apart from
    /// them. Later connections of a store that is open use them; an open connection with another user or
    /// password is replaced.
    pub fn renew_secrets(&self, other: &Self) {
        if self != other {
            return;
        }
        #[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
        if let (Some(own), Some(other)) = (self.tls(), other.tls()) {
            own.renew(other);
        }
        match (self, other) {
            #[cfg(feature = "etcd")]
            (Self::Etcd(own), Self::Etcd(other)) => {
                own.store.credentials.renew(&other.store.credentials);
            }
            #[cfg(feature = "redis")]
            (Self::Redis(own), Self::Redis(other)) => own.renew_logins(other),
            #[cfg(feature = "zookeeper")]
            (Self::ZooKeeper(own), Self::ZooKeeper(other)) => {
                own.store.auth.renew(&other.store.auth);
            }
            _ => {}
        }
    }

    #[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
    fn tls(&self) -> Option<&tidegate_runtime::tls::TlsClient> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => settings.store.tls.as_ref(),
            #[cfg(feature = "redis")]
            Self::Redis(settings) => settings.tls.as_ref(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => settings.store.tls.as_ref(),
            Self::Memory => None,
        }
    }

    /// The word for it in configs and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.names().0
    }

    /// The engine's name for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.names().1
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => ("memory", "memory"),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => ("zookeeper", "ZooKeeper"),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => ("etcd", "etcd"),
            #[cfg(feature = "redis")]
            Self::Redis(_) => ("redis", "Redis"),
        }
    }
}

/// A store of quota records, as one node sees it. The node is a member while the value exists.
///
/// Every future can be dropped at any time; a dropped write may be done, or may still be.
pub trait QuotaStore: Send + Sync {
    /// The value at a key, possibly slightly old: another node's last write may be missing.
    ///
    /// # Errors
    ///
    /// Any except [`StoreError::Unknown`].
    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreCall<'a, Option<StoreEntry>>;

    /// Writes a key over the expected version; `None` for a key that must not exist. The store keeps
    /// it up to `kept_until` of its own time, and removes it some time later, if it is not written
    /// again. No later value of the key has a version of a removed one.
    ///
    /// # Errors
    ///
    /// Any. If [`StoreError::is_open`], it may have been written, or may still be.
    fn compare_and_set<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<RecordVersion>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> StoreCall<'a, SwapResult>;

    /// The last known time of the store, in a channel that gets each reply's time.
    fn time(&self) -> watch::Receiver<StoreTime>;

    /// The store's time at the moment `at` of this process's clock.
    fn now(&self, at: Timestamp) -> StoreTime {
        self.time().borrow().at(at)
    }

    /// Waits until a key has another version than this one (`None`: no value). Returns once, and is
    /// for exhausted keys: a node that draws from a key sees changes in its draws.
    ///
    /// # Errors
    ///
    /// Any except [`StoreError::Unknown`], when the key cannot be watched now.
    fn changed<'a>(&'a self, key: &'a RecordKey, since: Option<RecordVersion>)
    -> StoreCall<'a, ()>;

    /// The number of live nodes, this one included; 0 until the store has answered. Only for the
    /// size of grants: no guarantee depends on it.
    fn members(&self) -> watch::Receiver<usize>;

    /// How long a dead node counts as live.
    fn member_lifetime(&self) -> Duration;

    /// The store's failure and its beginning, from its regular checks; `None` while they succeed,
    /// and before the first.
    fn trouble(&self) -> Option<(Timestamp, Arc<str>)>;

    /// Whether it does what nodes ask of it: it reads and writes a record that belongs to no quota. A
    /// store that fails here serves no key.
    ///
    /// # Errors
    ///
    /// Any.
    fn try_out(&self) -> StoreCall<'_, ()> {
        Box::pin(async { self.get(&RecordKey::trial()).await.map(drop) })
    }

    /// The keys that the store has removed to make room, since this node asked first; `None` while that is
    /// unknown.
    fn evictions(&self) -> Option<u64>;

    /// Whether it has settings for the quotas of keys.
    fn configures(&self) -> bool;

    /// The store's own settings for a key's quota, possibly slightly old. `known` are the earlier
    /// settings, which stay for each invalid value.
    ///
    /// # Errors
    ///
    /// Any except [`StoreError::Unknown`].
    fn configured<'a>(
        &'a self,
        key: &'a RecordKey,
        known: &'a StoredSettings,
    ) -> StoreCall<'a, StoredSettings>;
}

/// The value at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// The version of its write.
    pub version: RecordVersion,
    /// The written text; any text, if another program wrote it.
    pub text: Vec<u8>,
}

impl StoreEntry {
    /// The version of a key with or without an entry.
    #[must_use]
    pub fn standing(entry: Option<&Self>) -> StoredRecord {
        entry.map_or(StoredRecord::Absent, |entry| {
            StoredRecord::read(entry.version, &entry.text)
        })
    }
}

/// The result of a [`QuotaStore::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapResult {
    /// The value is written, as this version.
    Done(RecordVersion),
    /// The value is not written, and will not be. The value at the key a moment later.
    Conflict(Option<StoreEntry>),
}

/// A store's settings for a key's quota. A value that it does not set is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSettings {
    /// Tokens per window.
    pub total: Option<u64>,
    /// Tokens of the smallest draw.
    pub base: Option<u64>,
    /// Invalid settings: the earlier value stays.
    pub mistake: Option<Box<str>>,
    /// A place where another kind of program wrote while this key was followed. No sum contains
    /// what it spends.
    pub foreign_writer: Option<Box<str>>,
    /// The first check of the place where such a program writes.
    pub marks: [ForeignMark; 2],
}

/// The state of a place where another kind of program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignMark {
    /// Not checked.
    #[default]
    Unseen,
    /// The key has no mark.
    Nothing,
    /// A value, from that write.
    Written(i64),
}

/// The engine's own error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store does not answer, or cannot serve. The call had no effect.
    #[error("the store is unavailable")]
    Unavailable(#[source] Cause),
    /// The answer did not come. It may have been done, or may still be.
    #[error("the store did not say whether it was done")]
    Unknown(#[source] Cause),
    /// The store requires a user or a password, or rejects those given. The call had no effect.
    #[error("the store wants other credentials")]
    Unauthenticated(#[source] Cause),
    /// The user is known, but has no permission for this at this key. The call had no effect.
    #[error("the store denies access to this key")]
    Denied(#[source] Cause),
    /// The store refuses the call itself, or the key has a value of another type. The call had no effect.
    #[error("the store refused")]
    Refused(#[source] Cause),
    /// The server is such a store, but of a form that cannot hold quotas, such as one part of a cluster. The call
    /// had no effect.
    #[error("this server cannot hold quotas")]
    Unsuitable(#[source] Cause),
    /// The server is not such a store. A write may have been done or not.
    #[error("an answer that the store does not give")]
    Garbage(#[source] Cause),
}

impl StoreError {
    /// The error with its cause, as operators see it.
    #[must_use]
    pub fn with_cause(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    /// Whether a write with this error may have been done, or may still be.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Garbage(_))
    }
}
