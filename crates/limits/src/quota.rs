//! One quota per key and window, shared by many nodes through a store.
//!
//! A node never asks the store about a call. It draws a grant of tokens, spends it call by call,
//! and draws the next before the last is gone. What is left of a key's window stands in the store
//! as one versioned [`Record`], and every change of it is one compare-and-set: drawing and
//! opening a new window are the same write, so no window is opened twice and no crash comes in
//! between. A [`Ledger`] is what one node knows of one key: what it may spend now, when to draw
//! and how much, and what came of it.
//!
//! What is promised, whatever is lost, late, paused or killed: all nodes together never spend
//! more than the total in one window of the store's time, but for two modes that say so
//! ([`Mode::Optimistic`], [`Away::Allow`]). It rests on four rules:
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
    Answer, Counts, Ledger, LedgerNow, Outcome, Question, Spent, Step, Trouble, Waiting, Write,
    take_all,
};
pub use record::{FORMAT, Record, RecordError, TEXT_BYTES_MAX};
pub use rule::{Away, LENGTH_MAX, LENGTH_MIN, Mode, Rule, RuleError, Settings, TOTAL_MAX};
pub use store_time::StoreTime;

/// Which write of a key stands in the store, in the store's own counting.
///
/// Two writes of a key never have the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// What stands in the store for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Absent,
    /// A record of ours.
    Record {
        /// Which write it is.
        version: Version,
        /// What it says.
        record: Record,
    },
    /// Something that is no record of ours: never written over.
    Unreadable {
        /// Why not.
        error: RecordError,
    },
}

impl Standing {
    /// Reads what stands there.
    #[must_use]
    pub fn read(version: Version, text: &[u8]) -> Self {
        match Record::parse(text) {
            Ok(record) => Self::Record { version, record },
            Err(error) => Self::Unreadable { error },
        }
    }
}
