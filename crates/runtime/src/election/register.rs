//! The register that candidates contend for: one record of a store, replaced only in the version
//! that was read.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The record that a candidate writes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CandidateRecord {
    /// The master's address.
    pub(super) address: String,
    /// The candidate that wrote it: random for each start of a process, so that no process takes a
    /// record of its predecessor at the same address for its own.
    pub(super) candidate: String,
    /// The number of records that this candidate has sent, with this one: shows which of its writes
    /// took effect when the answer was lost.
    pub(super) write: u64,
    /// How long others must not replace the record, in milliseconds; 0 is a resignation.
    pub(super) ttl_ms: u64,
}

impl CandidateRecord {
    /// How long others do not replace it after they saw it.
    pub(super) fn time_to_live(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// In the store's form.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are always JSON")
    }

    /// From the store's form.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, RegisterFailure> {
        serde_json::from_slice(bytes).map_err(RegisterFailure::Foreign)
    }
}

/// The write that made a record, in the store's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisterVersion {
    /// Of the whole store; increases with every write: `mod_revision`, `mzxid`.
    pub(super) revision: u64,
    /// Writes to this record since it was made, if the store compares these: `version`.
    pub(super) writes: i32,
}

/// A record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegisterEntry {
    pub(super) version: RegisterVersion,
    pub(super) record: CandidateRecord,
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegisterSwap {
    /// The write took effect, as this version.
    Done(RegisterVersion),
    /// The write did not happen, and never will: the version is not the expected one.
    Refused(Option<RegisterEntry>),
}

/// Why the register's state is unknown. A write that got this error may have taken effect, or may
/// still do so.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegisterFailure {
    #[error("no answer in time")]
    Late,
    /// Not replaced: it may belong to another program.
    #[error("the election's place holds something else: {0}")]
    Foreign(#[source] serde_json::Error),
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::etcd::EtcdError),
    #[cfg(feature = "zookeeper")]
    #[error(transparent)]
    ZooKeeper(#[from] crate::zookeeper::ZooKeeperError),
}

/// A single record of a store. Every future can be dropped at any time.
pub(super) trait Register: Send {
    /// The record, as of a moment after this call or earlier; never a record that did not exist.
    fn read(
        &mut self,
    ) -> impl Future<Output = Result<Option<RegisterEntry>, RegisterFailure>> + Send;

    /// Replaces the expected version with a record; `None` expects no record.
    ///
    /// Atomic, and durable after the answer. A record may expire, but not before its time to live
    /// has passed since this call.
    fn swap(
        &mut self,
        expected: Option<RegisterVersion>,
        record: &CandidateRecord,
    ) -> impl Future<Output = Result<RegisterSwap, RegisterFailure>> + Send;

    /// Returns when the register may have changed since it was read; may miss changes.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Waits until the written record needs no more work.
    fn settle(&mut self) -> impl Future<Output = ()> + Send;
}
