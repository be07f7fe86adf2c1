//! When the store is asked, for what, and for how much.

use super::page::CurrentWindow;
use super::{
    Ledger, OpenQuestion, Purse, QuestionKind, RecordChange, Speed, StoreReply, StoreView, WindowId,
};
use crate::bucket::TokenCount;
use crate::quota::RecordVersion;
use crate::quota::record::QuotaRecord;
use crate::quota::rule::DrawRequest;
use crate::quota::store_time::StoreTime;
use crate::time::{Timestamp, nanos};

/// The calls that wait for tokens of this key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCost {
    /// The cost of the first waiting call; 0 if there is none.
    pub next: u64,
    /// The sum of the costs, the first one included.
    pub sum: u64,
}

/// The question that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionId(u64);

impl QuestionId {
    /// The question of this number, as a log has it.
    #[must_use]
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// The number of the question: the key's questions are counted.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The next action of a ledger's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wait until this moment, unless something happens: a call that is not covered, tokens spent, a reply, or
    /// [`Ledger::told`].
    Sleep(Timestamp),
    /// Learn the store's time.
    Time(QuestionId),
    /// Read the record in the store.
    Read(QuestionId),
    /// Write this, if the store still contains what it replaces.
    Write(QuestionId, RecordWrite),
}

/// A compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    /// The version that the store must contain; `None` for no record.
    pub replaces: Option<RecordVersion>,
    /// The new contents.
    pub record: QuotaRecord,
}

impl Ledger {
    /// Chooses the next action, where these calls wait.
    pub fn next(&mut self, waiting: WaitingCost, time: &StoreTime) -> Action {
        let now = time.now();
        self.expire(time);
        if let Some(flight) = self.flight {
            if now < flight.overdue_at {
                return Action::Sleep(flight.overdue_at);
            }
            // The driver has forgotten the question, or is late itself. Neither is a sign about the
            // store.
            self.done(flight.question, StoreReply::Late, time, u64::MAX / 2);
        }
        if self.leaves && self.lost {
            // The record for the return does not exist any more.
            self.purse = None;
        }
        let page = self.page(time);
        let owed = self.account.map_or(0, |account| account.owed);
        let covered = self.safe_now(time) + self.held_now(time);
        let missing = (waiting.sum + owed).saturating_sub(covered);
        let need = (waiting.next + owed).saturating_sub(covered);
        // An account is paid as far as the rest goes; calls are not served in part.
        let needs = need > 0 || (self.wanted && self.is_unavailable());
        let purse = self.purse_in(page);
        let is_low =
            |(record, purse): (QuotaRecord, &Purse)| record.left() > 0 && self.is_low(purse);
        let prefetches = !self.leaves && purse.is_some_and(is_low);
        // When a surplus is looked for.
        let held = purse.filter(|(_, purse)| purse.held > 0);
        let relinquishes = held.map_or(Timestamp::MAX, |(_, purse)| purse.relinquish_at);
        // A read that shows no record may be old. If calls lack the lost tokens, a write that
        // expects no record gives certainty.
        let misses = self.wanted || self.short;
        let probes = (self.told && (misses || self.is_unavailable())) || (self.lost && misses);
        if !needs && !prefetches && !probes && relinquishes > now {
            return Action::Sleep(relinquishes);
        }
        if now < self.retry_at {
            return Action::Sleep(self.retry_at);
        }
        if let CurrentWindow::NotKnown = page {
            return Action::Time(self.fly(QuestionKind::Time, now));
        }
        if self.told || matches!(self.stands, StoreView::NotKnown | StoreView::Unreadable(_)) {
            self.told = false;
            return Action::Read(self.fly(QuestionKind::Read, now));
        }
        let (record, opens) = match page {
            CurrentWindow::Running(record) => (record, false),
            CurrentWindow::Open(record) => (record, true),
            CurrentWindow::Between(until) => return Action::Sleep(until),
            CurrentWindow::NotKnown => unreachable!("the store's time was asked for"),
        };
        if self.lost && !opens {
            return self.write(RecordChange::Close, record, now);
        }
        if needs || prefetches {
            self.measure(now);
            let ask = self.ask(missing, need);
            if let Some(action) = self.draw(ask, owed, record, opens, now) {
                return action;
            }
            if self.is_unavailable() && needs {
                // Nothing to draw, but whether the store is back can be found out.
                return Action::Read(self.fly(QuestionKind::Read, now));
            }
        }
        if relinquishes <= now {
            return self.relinquish(record, waiting, now);
        }
        let end = time.surely_at(record.end());
        Action::Sleep(if need > 0 { end } else { relinquishes })
    }

    /// A grant for calls that lack this much, and cannot go without `need`.
    fn ask(&self, missing: u64, need: u64) -> DrawRequest {
        DrawRequest {
            nodes: self.nodes,
            drawn: 0,
            alone: 0,
            rate: self.pace.rate,
            reply: self.pace.reply,
            missing,
            need,
        }
    }

    /// Draws what a node may draw now for these needs, or at least what pays its account. Nothing if
    /// there is no grant.
    fn draw(
        &mut self,
        mut ask: DrawRequest,
        owed: u64,
        record: QuotaRecord,
        opens: bool,
        now: Timestamp,
    ) -> Option<Action> {
        if let Some(purse) = self.purse_of(&record) {
            (ask.drawn, ask.alone) = (purse.drawn, purse.alone);
            let next = purse.granted_at + self.rule.yields(self.nodes, self.pace.reply);
            if purse.drawn >= record.total() / self.nodes && now < next {
                return Some(Action::Sleep(next));
            }
        }
        let whole = if self.leaves {
            None
        } else {
            ask.grant(&self.rule, &record)
        };
        let grant = whole.or_else(|| {
            (ask.need, ask.missing) = (0, owed);
            let pays = ask.grant(&self.rule, &record)?.min(owed);
            (pays > 0).then_some(pays)
        })?;
        let record = record
            .less(grant)
            .expect("a grant is not above what is left");
        Some(self.write(RecordChange::Draw { grant, opens }, record, now))
    }

    /// Returns a surplus: tokens beyond one grant, if they are more than this number of grants; all
    /// tokens if the key is to be forgotten.
    fn relinquish(&mut self, record: QuotaRecord, waiting: WaitingCost, now: Timestamp) -> Action {
        let every = self.rule.relinquish_every();
        let above = u64::from(self.rule.settings().relinquish_above);
        let rate_now = self.pace.rate_now(now);
        let rate = self.pace.rate.map_or(rate_now, |rate| rate.min(rate_now));
        let mut ask = self.ask(waiting.sum, 0);
        let leaves = self.leaves;
        let purse = self
            .purse
            .as_mut()
            .expect("who relinquishes holds something");
        purse.relinquish_at = now + every;
        let again = Action::Sleep(purse.relinquish_at);
        // What is spent before one looks again is no surplus, however little is left for others.
        let soon = rate.whole_in(nanos(every).into());
        ask.drawn = purse.drawn;
        ask.rate = Some(rate);
        let grant = ask.size(&self.rule, record.left(), record.total());
        let keep = if leaves { 0 } else { grant.max(soon) };
        if !leaves && purse.held <= grant.saturating_mul(above).max(keep) {
            return again;
        }
        let back = purse.held - keep;
        let Some(record) = record.more(back) else {
            if leaves {
                self.purse = None;
            }
            return again;
        };
        // First it leaves the purse: what may be in the record must not be spent here.
        purse.held = keep;
        self.write(RecordChange::Relinquish { back }, record, now)
    }

    fn fly(&mut self, kind: QuestionKind, now: Timestamp) -> QuestionId {
        self.asked += 1;
        self.wanted = false;
        let question = QuestionId(self.asked);
        let timeout = self.rule.settings().draw_timeout;
        self.flight = Some(OpenQuestion {
            question,
            kind,
            asked_at: now,
            // A driver enforces the timeout itself. This is for one that does not answer at all.
            overdue_at: now + timeout.saturating_mul(2),
        });
        question
    }

    fn write(&mut self, change: RecordChange, record: QuotaRecord, now: Timestamp) -> Action {
        let replaces = match self.stands {
            StoreView::Is(version) => Some(version),
            StoreView::Absent => None,
            StoreView::NotKnown | StoreView::Unreadable(_) => {
                unreachable!("what stands there is read before it is replaced")
            }
        };
        let question = self.fly(QuestionKind::Write(change, record), now);
        Action::Write(question, RecordWrite { replaces, record })
    }

    /// Forgets what is over for certain.
    fn expire(&mut self, time: &StoreTime) {
        self.purse = self.purse.filter(|purse| time.latest() < purse.window.end);
        self.settle(time.latest());
    }

    /// Whether so little of the last grant is held that it is time for the next.
    pub(super) fn is_low(&self, purse: &Purse) -> bool {
        let percent = u128::from(self.rule.settings().prefetch_percent);
        u128::from(purse.held) * 100 <= u128::from(purse.grant) * percent
            || purse.held < self.reserve().min(purse.grant / 2)
    }

    /// The tokens needed so that the next calls do not wait for a draw: two of the most expensive
    /// calls, and the spending until the reply, with a conflict or two. At most a quarter of an
    /// equal share, so that little is stranded. Nothing in modes that do not draw in advance.
    fn reserve(&self) -> u64 {
        let settings = self.rule.settings();
        if settings.prefetch_percent == 0 {
            return 0;
        }
        let reply = u128::from(nanos(self.pace.reply)) * 4;
        let underway = self.pace.rate.unwrap_or_default().whole_in(reply);
        let calls = self.pace.costliest.saturating_mul(2);
        let most = settings.total / self.nodes / 4;
        calls.saturating_add(underway).min(most)
    }

    /// The tokens of the window that runs, unless its record was lost.
    fn purse_in(&self, page: CurrentWindow) -> Option<(QuotaRecord, &Purse)> {
        match page {
            CurrentWindow::Running(record) if !self.lost => Some((record, self.purse_of(&record)?)),
            _ => None,
        }
    }

    fn purse_of(&self, record: &QuotaRecord) -> Option<&Purse> {
        let window = WindowId::of(record);
        self.purse.as_ref().filter(|purse| purse.window == window)
    }

    /// Measures how fast the grant went that is drawn after now, once.
    pub(super) fn measure(&mut self, now: Timestamp) {
        if self.pace.since.is_none() {
            return;
        }
        let rate = self.pace.rate_now(now);
        let mean = self.pace.rate.map_or(rate, |before| before.mean(rate));
        self.pace.rate = Some(mean);
        self.pace.costliest -= self.pace.costliest / 16;
        self.pace.since = None;
    }
}

impl Speed {
    /// How fast the grant goes that is being spent, a second; what was measured last if none is.
    fn rate_now(&self, now: Timestamp) -> TokenCount {
        let Some(since) = self.since else {
            return self.rate.unwrap_or_default();
        };
        TokenCount::a_second(self.spent, nanos(now.since(since)).into())
    }
}
