//! A ledger as an operator sees it.

use core::time::Duration;

use super::page::CurrentWindow;
use super::{Ledger, StoreView};
use crate::quota::RecordVersion;
use crate::quota::record::{QuotaRecord, RecordError};
use crate::quota::store_time::StoreTime;
use crate::time::Timestamp;

/// A ledger as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerNow {
    /// The record last seen in the store, if any.
    pub record: Option<QuotaRecord>,
    /// Tokens that were drawn and may be spent.
    pub held: u64,
    /// Tokens of the node's own share that may be spent.
    pub safe: u64,
    /// Tokens that the next draw must pay.
    pub owed: u64,
    /// The present trouble of the key.
    pub trouble: Option<LedgerTrouble>,
    /// The events so far.
    pub counts: LedgerCounts,
}

/// A condition that operators should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// A scheduler keeps the discriminant for each key.
#[repr(u8)]
pub enum LedgerTrouble {
    /// The store is unavailable since this local moment.
    Away(Timestamp),
    /// The store contains no valid record.
    Unreadable(RecordError),
    /// The record vanished or went back to an older window. What was left of the window is lost.
    Lost,
    /// The window of the record begins later than the store's time can be. It is respected: no
    /// window begins before its end.
    Ahead(Duration),
    /// The node that opened the window reserved less than the safe shares need, so this node has
    /// none in it.
    OtherReserve {
        /// The amount that the record keeps.
        reserved: u64,
    },
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])* $count:ident)*) => {
        /// How often something happened since the ledger was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LedgerCounts {
            $($(#[doc = $doc])* pub $count: u64,)*
        }

        impl LedgerCounts {
            /// Adds what happened elsewhere.
            pub fn add(&mut self, other: &Self) {
                $(self.$count = self.$count.saturating_add(other.$count);)*
            }
        }
    };
}

counts! {
    /// Grants that the store confirmed.
    draws
    /// Of these, such as opened a window.
    opened
    /// Writes that were not applied, because another node was first.
    conflicts
    /// Questions without an answer.
    unknown
    /// Questions that could not be asked.
    unavailable
    /// Reads.
    reads
    /// Surpluses that the store took back.
    relinquished
    /// Calls that were covered by what was here.
    covered
    /// Calls that were refused by what was known here.
    refused
    /// Calls that were not covered, and had to wait for a draw or for a window.
    missed
    /// Tokens that are never paid (`Away::Allow`).
    allowed
    /// Tokens that were owed at a window's end ([`Mode::Optimistic`](crate::quota::DrawMode::Optimistic)).
    overshot
}

impl Ledger {
    /// A ledger as it is.
    #[must_use]
    pub fn now(&self, time: &StoreTime) -> LedgerNow {
        LedgerNow {
            record: self.record,
            held: self.held_now(time),
            safe: self.safe_now(time),
            owed: self.account.map_or(0, |account| account.owed),
            trouble: self.trouble(time),
            counts: self.counts,
        }
    }

    /// A condition that operators should know.
    pub(crate) fn trouble(&self, time: &StoreTime) -> Option<LedgerTrouble> {
        if let Some(since) = self.away_since {
            return Some(LedgerTrouble::Away(since));
        }
        if let StoreView::Unreadable(error) = self.stands {
            return Some(LedgerTrouble::Unreadable(error));
        }
        let CurrentWindow::Running(record) = self.page(time) else {
            return None;
        };
        if self.lost {
            return Some(LedgerTrouble::Lost);
        }
        if record.start() > time.latest() {
            return Some(LedgerTrouble::Ahead(record.start() - time.latest()));
        }
        let reserved = record.reserved();
        (reserved < self.rule.reserved()).then_some(LedgerTrouble::OtherReserve { reserved })
    }

    /// Takes the counts since they were last taken.
    pub fn take_counts(&mut self) -> LedgerCounts {
        core::mem::take(&mut self.counts)
    }

    /// The version of the record in the store, if known.
    #[must_use]
    pub const fn version(&self) -> Option<RecordVersion> {
        match self.stands {
            StoreView::Is(version) => Some(version),
            StoreView::NotKnown | StoreView::Absent | StoreView::Unreadable(_) => None,
        }
    }

    /// The window of a call that was paid from `spent_in`, with the total of that window. Without
    /// `spent_in`, the present window, if known.
    #[must_use]
    pub fn window(&self, time: &StoreTime, spent_in: Option<u64>) -> (Option<u64>, u64) {
        let total = self.rule.settings().total;
        match self.page(time) {
            CurrentWindow::Running(record)
                if spent_in.is_none_or(|window| window == record.window()) =>
            {
                (Some(record.window()), record.total())
            }
            CurrentWindow::Open(record) => (spent_in.or(Some(record.window())), total),
            CurrentWindow::Running(_) | CurrentWindow::Between(_) | CurrentWindow::NotKnown => {
                (spent_in, total)
            }
        }
    }

    /// How long ago the window that runs began, at most; `None` if that is not known.
    #[must_use]
    pub fn begun(&self, time: &StoreTime) -> Option<Duration> {
        match self.page(time) {
            CurrentWindow::Running(record) | CurrentWindow::Open(record) => {
                Some(time.latest().saturating_sub(record.start()))
            }
            CurrentWindow::Between(_) | CurrentWindow::NotKnown => None,
        }
    }

    /// Whether calls are refused only because nothing is left, so that a watch on the key would
    /// report a return by another node.
    #[must_use]
    pub fn watches(&self, time: &StoreTime) -> bool {
        self.short
            && !self.told
            && matches!(self.stands, StoreView::Is(_))
            && matches!(self.page(time), CurrentWindow::Running(_))
    }
}
