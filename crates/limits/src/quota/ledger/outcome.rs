//! Takes the outcome of a question, and what it shows.

use core::time::Duration;

use super::page::CurrentWindow;
use super::{Ledger, Purse, QuestionId, QuestionKind, RecordChange, StoreView, WindowId};
use crate::quota::record::{QuotaRecord, RecordError};
use crate::quota::store_time::StoreTime;
use crate::quota::{RecordVersion, StoredRecord};
use crate::time::{Timestamp, nanos};

/// After a conflict is waited at random up to this, twice as long after each further one.
const CONFLICT_WAIT: Duration = Duration::from_micros(300);
pub(super) const CONFLICT_DOUBLINGS: u32 = 5;
/// After a failure is waited at random from half of this up to this, twice as long after each further one.
const FAILURE_WAIT: Duration = Duration::from_millis(50);
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(1);
pub(super) const FAILURE_DOUBLINGS: u32 = 5;
/// A record is followed if its window begins no later than this and its own length from now.
const AHEAD_MAX: Duration = Duration::from_secs(3_600);
/// A record that can't be read is looked at again after this.
const UNREADABLE_WAIT: Duration = Duration::from_secs(1);

/// The outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// The store's time is known.
    Time,
    /// The write did not happen, and the store contains this.
    Stands(StoredRecord),
    /// The record was written, and has this version.
    Written(RecordVersion),
    /// Unknown: the connection was lost, or the time was up, after the question was sent.
    Unknown,
    /// The store can't be reached, and did nothing.
    Unavailable,
    /// No reply arrived in time, but the store may be available, and the write may have happened.
    /// The ledger asks again.
    Late,
    /// No reply arrived in time, and the store did nothing.
    NotYet,
    /// The question was not sent: no call waits for it any more, or others went first.
    Dropped,
}

impl Ledger {
    /// Takes the answer to a question; one to another question than the present one is too late,
    /// and forgotten. An outcome of another kind than the question, such as that a read was written,
    /// counts as [`StoreReply::Unknown`]. `entropy` is any number, another one each time.
    pub fn done(
        &mut self,
        question: QuestionId,
        outcome: StoreReply,
        time: &StoreTime,
        entropy: u64,
    ) {
        let Some(flight) = self.flight.take_if(|flight| flight.question == question) else {
            return;
        };
        let now = time.now();
        match outcome {
            StoreReply::Unknown
            | StoreReply::Unavailable
            | StoreReply::Late
            | StoreReply::NotYet => self.unanswered(flight.kind, outcome, now, entropy),
            StoreReply::Time => {
                // An answer of another kind than the question is none.
                let answers = matches!(flight.kind, QuestionKind::Time);
                if !answers || matches!(self.page(time), CurrentWindow::NotKnown) {
                    // Its replies take too long to tell one window from the next.
                    self.unanswered(flight.kind, StoreReply::Unknown, now, entropy);
                }
            }
            StoreReply::Dropped => self.dropped(flight.kind, now),
            StoreReply::Stands(_) | StoreReply::Written(_) => {
                self.away_since = None;
                self.late = false;
                self.failures_in_a_row = 0;
                let reply = now.since(flight.asked_at);
                self.pace.reply = match self.pace.reply {
                    Duration::ZERO => reply,
                    mean => (mean * 7 + reply) / 8,
                };
                self.answered(flight.kind, outcome, time, entropy);
            }
        }
    }

    /// Takes an answer that shows what the store contains.
    fn answered(
        &mut self,
        kind: QuestionKind,
        outcome: StoreReply,
        time: &StoreTime,
        entropy: u64,
    ) {
        let now = time.now();
        match (kind, outcome) {
            (QuestionKind::Read, StoreReply::Stands(standing)) => {
                self.counts.reads += 1;
                self.learn(standing, time);
            }
            (QuestionKind::Write(..), StoreReply::Stands(standing)) => {
                self.conflict(standing, time, entropy);
                self.keep(kind, now);
            }
            (QuestionKind::Write(change, record), StoreReply::Written(version)) => {
                self.stands = StoreView::Is(version);
                self.turn_to(record);
                self.lost = false;
                self.conflicts_in_a_row = 0;
                match change {
                    RecordChange::Draw { grant, opens } => {
                        self.counts.draws += 1;
                        self.counts.opened += u64::from(opens);
                        self.granted(grant, &record, now);
                    }
                    RecordChange::Relinquish { .. } => self.counts.relinquished += 1,
                    RecordChange::Close => {}
                }
            }
            // The driver mixed up two questions: the outcome of this one is unknown.
            (kind, _) => self.unanswered(kind, StoreReply::Unknown, now, entropy),
        }
    }

    fn granted(&mut self, grant: u64, record: &QuotaRecord, now: Timestamp) {
        let purse = self.purse.get_or_insert(Purse {
            window: WindowId::of(record),
            held: 0,
            grant: 0,
            drawn: 0,
            granted_at: now,
            alone: 0,
            relinquish_at: now + self.rule.relinquish_every(),
        });
        if purse.drawn >= record.total() / self.nodes {
            purse.alone += 1;
        }
        purse.held += grant;
        purse.grant = grant;
        purse.drawn += grant;
        purse.granted_at = now;
        self.pace.since = Some(now);
        self.pace.spent = self.pay_debt();
    }

    /// Pays what is owed from what is held. Returns how much.
    pub(super) fn pay_debt(&mut self) -> u64 {
        let (Some(account), Some(purse)) = (&mut self.account, &mut self.purse) else {
            return 0;
        };
        if account.window != purse.window {
            return 0;
        }
        let paid = account.owed.min(purse.held);
        account.owed -= paid;
        purse.held -= paid;
        paid
    }

    fn conflict(&mut self, standing: StoredRecord, time: &StoreTime, entropy: u64) {
        self.counts.conflicts += 1;
        let doublings = self.conflicts_in_a_row.min(CONFLICT_DOUBLINGS);
        self.conflicts_in_a_row += 1;
        let most = CONFLICT_WAIT.saturating_mul(1 << doublings);
        self.retry_at = time.now() + part(most, entropy);
        self.learn(standing, time);
    }

    /// Handles a question that may have been carried out, or not: the ledger asks again.
    fn unanswered(
        &mut self,
        kind: QuestionKind,
        outcome: StoreReply,
        now: Timestamp,
        entropy: u64,
    ) {
        if matches!(outcome, StoreReply::Late | StoreReply::NotYet) {
            self.late = true;
        } else {
            self.away_since.get_or_insert(now);
        }
        self.back_off(now, entropy);
        if matches!(outcome, StoreReply::Unavailable | StoreReply::NotYet) {
            self.counts.unavailable += 1;
            // If all of it is to be given back, the next question is another attempt.
            let again_at = if self.leaves {
                now
            } else {
                now + self.rule.relinquish_every()
            };
            self.keep(kind, again_at);
        } else {
            self.counts.unknown += 1;
            if !matches!(kind, QuestionKind::Time) {
                self.stands = StoreView::NotKnown;
            }
        }
    }

    /// Waits before the next question, longer after each failure.
    fn back_off(&mut self, now: Timestamp, entropy: u64) {
        let doublings = self.failures_in_a_row.min(FAILURE_DOUBLINGS);
        self.failures_in_a_row += 1;
        let most = FAILURE_WAIT.saturating_mul(1 << doublings);
        let half = most.min(FAILURE_WAIT_MAX) / 2;
        self.retry_at = now + half + part(half, entropy);
    }

    /// Handles a question that was not sent: the ledger asks again when a call needs it.
    fn dropped(&mut self, kind: QuestionKind, now: Timestamp) {
        self.keep(kind, now + self.rule.relinquish_every());
        if matches!(kind, QuestionKind::Read) && !matches!(self.stands, StoreView::NotKnown) {
            // It is still to be read, but only once a call asks.
            self.told = true;
            self.short = false;
        }
        if self.is_unavailable() {
            self.retry_at = now + FAILURE_WAIT_MAX;
        }
    }

    /// Keeps tokens that were to be given back, if their window lasts, because the store did nothing.
    fn keep(&mut self, kind: QuestionKind, again_at: Timestamp) {
        if let QuestionKind::Write(RecordChange::Relinquish { back }, record) = kind
            && let Some(purse) = &mut self.purse
            && purse.window == WindowId::of(&record)
        {
            purse.held += back;
            purse.relinquish_at = again_at;
        }
    }

    /// The store answers again: what was concluded from its silence holds no more. A call that
    /// comes now asks, and nothing is asked before.
    pub fn store_is_back(&mut self) {
        self.away_since = None;
        self.late = false;
        self.failures_in_a_row = 0;
        self.retry_at = Timestamp::ZERO;
        self.wanted = false;
        // Its watch may be lost.
        self.told |= self.short;
    }

    /// The store may contain something else. It is read before a call is refused because of it. For
    /// a watch on an exhausted key.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// Stores what the store contains.
    fn learn(&mut self, standing: StoredRecord, time: &StoreTime) {
        let standing = match standing {
            StoredRecord::Record { record, .. } if is_too_far(&record, time) => {
                StoredRecord::Unreadable {
                    error: RecordError::TooFarAhead(record.window()),
                }
            }
            standing => standing,
        };
        match standing {
            StoredRecord::Record { version, record } => {
                self.stands = StoreView::Is(version);
                if record.end() < self.opened_until {
                    self.lose(time);
                } else {
                    self.lost = false;
                    self.turn_to(record);
                }
            }
            StoredRecord::Absent => {
                self.stands = StoreView::Absent;
                self.lose(time);
            }
            StoredRecord::Unreadable { error } => {
                self.stands = StoreView::Unreadable(error);
                self.retry_at = time.now() + UNREADABLE_WAIT;
            }
        }
    }

    /// The window of this record is the one that counts. Tokens of another one are worth nothing.
    fn turn_to(&mut self, record: QuotaRecord) {
        self.record = Some(record);
        self.short = false;
        self.opened_until = self.opened_until.max(record.end());
        let window = WindowId::of(&record);
        self.purse = self.purse.filter(|purse| purse.window == window);
        self.settle(record.start());
    }

    /// A debt of a window that ended before `moment` of the store's time is void.
    pub(super) fn settle(&mut self, moment: Duration) {
        if let Some(account) = self.account.take_if(|account| account.window.end <= moment) {
            self.counts.overshot = self.counts.overshot.saturating_add(account.owed);
        }
    }

    /// The record has vanished. If its window may still run, or ran beyond the store's time, its
    /// rest may have been drawn, so it counts as nothing.
    fn lose(&mut self, time: &StoreTime) {
        if self.record.is_none() || self.opened_until <= time.earliest() {
            return;
        }
        let blank = match self.record {
            Some(record) if record.start() <= time.latest() => Some(record),
            _ => self.rule.window_at(time.earliest()),
        };
        let blank = blank.and_then(|record| record.less(record.left()));
        self.lost = blank.is_some();
        self.opened_until = blank.map_or(Duration::ZERO, |record| record.end());
        self.record = blank;
    }
}

/// Whether the window of a record is so far ahead that no clock that was set can be the reason. To
/// follow it would keep the key closed until then.
fn is_too_far(record: &QuotaRecord, time: &StoreTime) -> bool {
    let most = record.length().saturating_add(AHEAD_MAX);
    record.start() > time.latest().saturating_add(most)
}

/// A random part of a span.
fn part(span: Duration, entropy: u64) -> Duration {
    let part = (u128::from(nanos(span)) * u128::from(entropy)) >> 64;
    Duration::from_nanos(u64::try_from(part).expect("a part is not above the whole"))
}
