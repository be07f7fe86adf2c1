//! The register that candidates contend for: one record of a store, written only over the very
//! version that was read.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a candidate writes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Where the master is to be found.
    pub(super) address: String,
    /// The candidate that wrote it: random for each start of a process, so that no process takes a
    /// record of its predecessor at the same address for its own.
    pub(super) candidate: String,
    /// How many records this candidate has sent, this one included: tells it which of its writes
    /// took effect, where no answer did.
    pub(super) write: u64,
    /// How long the record must be left alone by others, in milliseconds; 0 is a resignation.
    pub(super) ttl_ms: u64,
}

impl Record {
    /// How long others leave it alone after they saw it.
    pub(super) fn time_to_live(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// As the store keeps it.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are always JSON")
    }

    /// From what the store keeps.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Trouble> {
        serde_json::from_slice(bytes).map_err(Trouble::Foreign)
    }
}

/// Which write a record came from, in the store's own counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Of the whole store; grows with every write: `mod_revision`, `mzxid`.
    pub(super) revision: u64,
    /// Writes to this record since it was made, where the store compares these: `version`.
    pub(super) writes: i32,
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) version: Version,
    pub(super) record: Record,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Swapped {
    /// It took effect, as this version.
    Done(Version),
    /// It did not, and never will: there is another version than was expected.
    Refused(Option<Entry>),
}

/// Why nothing is known of the register. A write that met it may have taken effect, or may yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("no answer in time")]
    Late,
    /// Left alone: it may be anything.
    #[error("the election's place holds something else")]
    Foreign(#[source] serde_json::Error),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::Error),
    #[cfg(feature = "zookeeper")]
    #[error(transparent)]
    ZooKeeper(#[from] crate::zookeeper::Error),
}

/// One record of a store. Every future may be dropped at any time.
pub(super) trait Register: Send {
    /// What is there, as of a moment after this was called or earlier; never something that was
    /// not there.
    fn read(&mut self) -> impl Future<Output = Result<Option<Entry>, Trouble>> + Send;

    /// Writes a record over the version expected, nothing for a record that does not exist.
    ///
    /// Atomic, and durable once answered. A record may vanish by itself, but not before its time
    /// to live has passed since this was called.
    fn swap(
        &mut self,
        expected: Option<Version>,
        record: &Record,
    ) -> impl Future<Output = Result<Swapped, Trouble>> + Send;

    /// Comes back when the register may have changed since it was read; may miss changes.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Waits until what was written need not be looked after any more.
    fn settle(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}
