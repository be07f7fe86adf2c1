//! The window that runs by the store's time, and the own share in it.

use core::time::Duration;

use super::Ledger;
use crate::quota::record::QuotaRecord;
use crate::quota::store_time::{StoreTime, drift};
use crate::time::Timestamp;

/// The store's time is asked for when its uncertainty exceeds one part in this number of the
/// window.
const WIDTH_ONE_IN: u32 = 8;

/// Where the store's time is among the windows.
#[derive(Clone, Copy, Debug)]
pub(super) enum CurrentWindow {
    /// In the window of the record that was last seen.
    Running(QuotaRecord),
    /// In this window, which no node is known to have opened.
    Open(QuotaRecord),
    /// The window may be this one or the next, until this local moment.
    Between(Timestamp),
    /// The window is not known well enough.
    NotKnown,
}

impl Ledger {
    /// Where the store's time is among the windows.
    pub(super) fn page(&self, time: &StoreTime) -> CurrentWindow {
        if let Some(record) = self.running(time) {
            return CurrentWindow::Running(record);
        }
        if time.width() > self.rule.settings().length / WIDTH_ONE_IN {
            return CurrentWindow::NotKnown;
        }
        let Some(window) = self.rule.window_at(time.earliest()) else {
            return CurrentWindow::NotKnown;
        };
        if window.start() < self.opened_until {
            // A window of another length reaches into this one, or this one may be over.
            let next = window.end().max(self.opened_until);
            return CurrentWindow::Between(time.surely_at(next));
        }
        if time.latest() >= window.end() {
            return CurrentWindow::Between(time.surely_at(window.end()));
        }
        CurrentWindow::Open(window)
    }

    /// The record that was last seen, unless its window may be over.
    fn running(&self, time: &StoreTime) -> Option<QuotaRecord> {
        self.record.filter(|record| time.latest() < record.end())
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

impl Ledger {
    /// How much of the node's own share may be spent. The share is renewed once it is certain that
    /// none of it was spent in the present window: all of it was spent before that window began, or
    /// one whole window length has passed. In both cases, none of it was spent in a window that was
    /// taken for this or a later one before the store's clock was set back.
    pub(super) fn safe_now(&self, time: &StoreTime) -> u64 {
        let mut share = self.rule.safe_share();
        let running = self.running(time);
        if let Some(record) = running
            && record.reserved() < self.rule.reserved()
        {
            share = record.reserved() / u64::from(self.rule.settings().nodes_expected);
        }
        let left = self.safe.left.min(share);
        if left == share {
            return share;
        }
        let length = self.rule.settings().length;
        let mut span = length;
        let start = match running {
            // It has begun for certain, or a node that knows the store's time better has opened it.
            Some(record) if record.length() == length && record.start() <= time.latest() => {
                Some(record.start())
            }
            _ => {
                let start = self.rule.start_at(time.earliest());
                let record = running.as_ref();
                span = record.map_or(span, |record| span.max(record.length()));
                start.map(|start| record.map_or(start, |record| start.min(record.start())))
            }
        };
        let spent_at = self.safe.spent_at;
        let passed = time.now().since(spent_at);
        let before = start.is_some_and(|start| match self.knows_past {
            true => time.latest() < Duration::MAX,
            false => surely_before(spent_at, start, time),
        });
        let is_later =
            time.latest() == Duration::MAX || start.is_none_or(|start| start >= self.safe.until);
        if is_later && (before || passed > span.saturating_add(drift(passed))) {
            share
        } else {
            left
        }
    }

    /// The end of the latest window that any of the own share may have been spent in, by the store's
    /// clock; the greatest if that is not known.
    #[must_use]
    pub(crate) fn own_share_spent_until(&self, time: &StoreTime) -> Duration {
        match time.latest() {
            Duration::MAX => Duration::MAX,
            _ => self.safe.until,
        }
    }

    /// The next local moment at which more of the node's own share may be there, without a word
    /// from the store; `None` if all of it is, or there is none.
    #[must_use]
    pub fn own_share_at(&self, time: &StoreTime) -> Option<Timestamp> {
        if self.safe_now(time) >= self.rule.safe_share() {
            return None;
        }
        let running = self.running(time);
        let length = self.rule.settings().length;
        let span = running.map_or(length, |record| length.max(record.length()));
        // As in `safe_now`: after a whole window, whatever the store's time, or in the next window.
        let whole = self.safe.spent_at + span + drift(span).saturating_mul(2);
        let next = self.rule.window_at(time.earliest());
        let next = next.map(|window| time.surely_at(window.end()));
        let later = match time.latest() {
            Duration::MAX => time.now(),
            _ => time.surely_at(self.safe.until),
        };
        let moments = [Some(whole), next].into_iter().flatten();
        let moments = moments.map(|moment| moment.max(later));
        moments.filter(|&moment| moment > time.now()).min()
    }

    /// The end of the latest window that may run, by the store's clock; zero if that is unknown.
    pub(super) fn latest_end(&self, time: &StoreTime) -> Duration {
        if time.latest() == Duration::MAX {
            return Duration::ZERO;
        }
        let window = self.rule.window_at(time.latest());
        let running = self.running(time);
        let ends = [window, running].into_iter().flatten().map(|one| one.end());
        ends.max().unwrap_or(Duration::ZERO)
    }
}
