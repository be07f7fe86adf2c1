//! Where the store's time is among the windows.

use core::time::Duration;

use super::Ledger;
use crate::quota::record::Record;
use crate::quota::store_time::{StoreTime, drift};
use crate::time::Timestamp;

/// The store's time is asked for when its uncertainty exceeds one part in this number of the
/// window.
const WIDTH_ONE_IN: u32 = 8;

/// Where the store's time is among the windows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Page {
    /// In the window of the record that was last seen.
    Running(Record),
    /// In this window, which no node is known to have opened.
    Open(Record),
    /// It may be in one or in the next, until this local moment.
    Between(Timestamp),
    /// It is not known well enough.
    NotKnown,
}

impl Ledger {
    /// Where the store's time is among the windows.
    pub(super) fn page(&self, time: &StoreTime) -> Page {
        if let Some(record) = self.record
            && time.latest() < record.end()
        {
            return Page::Running(record);
        }
        if time.width() > self.rule.settings().length / WIDTH_ONE_IN {
            return Page::NotKnown;
        }
        let Some(window) = self.rule.window_at(time.earliest()) else {
            return Page::NotKnown;
        };
        if window.start() < self.opened_until {
            // A window of another length reaches into this one, or this one may be over.
            let next = window.end().max(self.opened_until);
            return Page::Between(time.surely_at(next));
        }
        if time.latest() >= window.end() {
            return Page::Between(time.surely_at(window.end()));
        }
        Page::Open(window)
    }
}

/// Whether the store's time at a local moment that is past was surely before `start`.
pub(super) fn surely_before(then: Timestamp, start: Duration, time: &StoreTime) -> bool {
    let passed = time.now().since(then);
    let latest = time
        .latest()
        .saturating_sub(passed)
        .saturating_add(drift(passed));
    time.latest() < Duration::MAX && latest < start
}
