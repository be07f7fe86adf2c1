//! A quota per key and window, shared by many nodes through a store.
//!
//! A node does not ask the store for each call. It draws a grant of tokens, spends it call by call,
//! and draws the next grant before the last one is used up. The rest of a key's window is in the
//! store as one versioned [`StoredRecord`], and every change of it is one compare-and-set. Drawing and
//! opening a new window are the same write, so no window is opened twice and no crash can come in
//! between. A [`Ledger`] is the state of one key on one node: what it may spend now, when to draw,
//! how much, and the result.
//!
//! The guarantee, whatever is lost, late, paused or killed: together, all nodes never spend more
//! than the total in one window of the store's time, except in two modes that say so
//! ([`DrawMode::Optimistic`], `Away::Allow`). It rests on four rules:
//!
//! - Tokens exist only once the store has confirmed the write that took them from the record. An
//!   outcome that is not known counts as not granted.
//! - Tokens belong to the window that they were drawn from and die with it. They are spent only
//!   while the latest time that the store can have ([`StoreTime`]) is before its end, and a
//!   window is opened only when the earliest is past its start.
//! - What is given back leaves the ledger before it is written to the record.
//! - A record that is unreadable is left alone, and one that vanished is never filled again
//!   within the window.
//!
//! The design is that of the ZooKeeper quota of curator-go's example ("total", "base",
//! "refresh window"), without its lock and without its refresh. Sizes of grants are those of
//! guided self-scheduling: C. Polychronopoulos and D. Kuck, "Guided Self-Scheduling: A Practical
//! Scheduling Scheme for Parallel Supercomputers", IEEE Transactions on Computers, 1987: each
//! takes a part of what is left, so the first grants are large and cheap, and the last ones small
//! enough that little strands.

mod ledger;
mod record;
mod rule;
mod store_time;

pub use ledger::{
    Action, Coverage, Ledger, LedgerCounts, LedgerNow, LedgerTrouble, Payment, QuestionId,
    RecordWrite, StoreReply, WaitingCost,
};
pub use record::{FORMAT, QuotaRecord, RecordError, TEXT_BYTES_MAX};
pub use rule::{
    DrawMode, LENGTH_MAX, LENGTH_MIN, OutagePolicy, RuleError, RuleSettings, TOTAL_MAX, WindowRule,
};
pub use store_time::StoreTime;

/// The version of a record, as the store counts its writes.
///
/// Two writes of a key never have the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordVersion(pub u64);

/// The contents of the store for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredRecord {
    /// The store has no record.
    Absent,
    /// A record of ours.
    Record {
        /// The version of the write.
        version: RecordVersion,
        /// The contents.
        record: QuotaRecord,
    },
    /// Something that is no record of ours: never written over.
    Unreadable {
        /// Why not.
        error: RecordError,
    },
}

impl StoredRecord {
    /// Reads the contents of the store.
    #[must_use]
    pub fn read(version: RecordVersion, text: &[u8]) -> Self {
        match QuotaRecord::parse(text) {
            Ok(record) => Self::Record { version, record },
            Err(error) => Self::Unreadable { error },
        }
    }
}
