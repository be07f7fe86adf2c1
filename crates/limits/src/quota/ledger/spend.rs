//! The answer of a ledger to a call, and how the call is paid.

use super::page::{CurrentWindow, surely_before};
use super::{Ledger, Overdraft, StoreView, WindowId};
use crate::quota::record::QuotaRecord;
use crate::quota::rule::{DrawMode, OutagePolicy};
use crate::quota::store_time::StoreTime;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// The answer of a ledger to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// The call is covered.
    Covered,
    /// Not yet: a draw is due or under way, and may cover it.
    Draw,
    /// Not enough is left in this window, which ends then.
    Exhausted {
        /// When the next one can be drawn from, by the local clock.
        until: Timestamp,
    },
    /// The present window may be over and the next one may not have begun: the store's time is not known better.
    Between {
        /// When that is past, by the local clock.
        until: Timestamp,
    },
    /// The store is unavailable or contains an unreadable record, and the rule lets nothing pass.
    Away {
        /// When the store is asked again, by the local clock.
        until: Timestamp,
    },
    /// The call costs more than a whole window has.
    Never,
}

impl From<Coverage> for Verdict {
    fn from(answer: Coverage) -> Self {
        match answer {
            Coverage::Covered => Self::Ready,
            Coverage::Draw | Coverage::Away { .. } => Self::OnChange,
            Coverage::Exhausted { until } | Coverage::Between { until } => Self::NotBefore(until),
            Coverage::Never => Self::Never,
        }
    }
}

/// The tokens that a call was paid with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a call that is not sent gives it back"]
pub struct Payment {
    /// The window whose tokens were spent or are owed; `None` without any.
    pub window: Option<u64>,
    /// Tokens that were drawn.
    pub drawn: u64,
    /// Tokens of the node's own share.
    pub safe: u64,
    /// How often that share had been renewed.
    pub share: u64,
    /// Tokens that the next draw must pay ([`DrawMode::Optimistic`]).
    pub owed: u64,
    /// Tokens that are never paid (`Away::Allow`).
    pub allowed: u64,
}

impl Payment {
    /// The part of it that was paid last.
    fn last(self, mut tokens: u64) -> Self {
        let mut part = |paid: u64| {
            let taken = paid.min(tokens);
            tokens -= taken;
            taken
        };
        let (allowed, owed, drawn, safe) = (
            part(self.allowed),
            part(self.owed),
            part(self.drawn),
            part(self.safe),
        );
        Self {
            drawn,
            safe,
            owed,
            allowed,
            ..self
        }
    }
}

impl Ledger {
    /// Whether a call of this cost could go now. `time` is the store's, as known at this moment.
    #[must_use]
    pub fn peek(&self, cost: u64, time: &StoreTime) -> Coverage {
        if self.rule.blocks() {
            return Coverage::Never;
        }
        if cost <= self.safe_now(time) + self.held_now(time) {
            return Coverage::Covered;
        }
        let away = self.is_unavailable();
        if away && self.rule.settings().away == OutagePolicy::Allow {
            return Coverage::Covered;
        }
        if cost > self.costliest() {
            return Coverage::Never;
        }
        let page = self.page(time);
        if let Some(until) = self.exhausted(cost, page, time) {
            return Coverage::Exhausted { until };
        }
        if away {
            return Coverage::Away {
                until: self.retry_at.max(time.now()),
            };
        }
        match page {
            CurrentWindow::Between(until) => Coverage::Between { until },
            CurrentWindow::Running(record) | CurrentWindow::Open(record)
                if self.may_owe(cost, &record, time) =>
            {
                Coverage::Covered
            }
            CurrentWindow::Running(_) | CurrentWindow::Open(_) | CurrentWindow::NotKnown => {
                Coverage::Draw
            }
        }
    }

    /// Takes the tokens of a call.
    ///
    /// # Errors
    ///
    /// Why they are not covered. Then nothing was taken.
    pub fn take(&mut self, cost: u64, time: &StoreTime) -> Result<Payment, Coverage> {
        match self.peek(cost, time) {
            Coverage::Covered => Ok(self.spend(cost, time)),
            answer => {
                self.missed(answer);
                Err(answer)
            }
        }
    }

    /// The answer as a verdict, for calls that wait for one.
    #[must_use]
    pub fn verdict(&self, cost: u64, time: &StoreTime) -> Verdict {
        match self.peek(cost, time).into() {
            Verdict::OnChange => {
                let own = self.own_share_at(time);
                own.map_or(Verdict::OnChange, Verdict::NotBefore)
            }
            verdict => verdict,
        }
    }

    /// Notes that a call got this answer without an attempt to take tokens, and waits or was
    /// refused.
    pub fn want(&mut self, answer: Coverage) {
        self.wanted = true;
        self.short |= matches!(answer, Coverage::Exhausted { .. });
    }

    fn missed(&mut self, answer: Coverage) {
        self.want(answer);
        match answer {
            Coverage::Exhausted { .. } | Coverage::Away { .. } | Coverage::Never => {
                self.counts.refused += 1;
            }
            _ => self.counts.missed += 1,
        }
    }

    /// Takes what [`Ledger::peek`] has found covered.
    pub(crate) fn spend(&mut self, cost: u64, time: &StoreTime) -> Payment {
        self.counts.covered += 1;
        self.pace.costliest = self.pace.costliest.max(cost);
        self.pay(cost, time)
    }

    /// A call that was paid with this for `reserved` tokens has cost `settled` in the end. What it did not use comes back, as far
    /// as it is still valid. What it used beyond is paid now, if need be as a debt of the window that runs: the next
    /// draw pays it first, and the end of the window voids it.
    pub fn amend(&mut self, spent: Payment, reserved: u64, settled: u64, time: &StoreTime) {
        if settled <= reserved {
            self.give_back(spent.last(reserved - settled));
        } else {
            let _ = self.pay(settled - reserved, time);
        }
        self.pay_debt();
    }

    /// Pays with what there is, and the rest on account.
    fn pay(&mut self, cost: u64, time: &StoreTime) -> Payment {
        let mut spent = Payment::default();
        let own = self.safe_now(time);
        spent.safe = own.min(cost);
        if spent.safe > 0 {
            self.safe.share += u64::from(own > self.safe.left);
            spent.share = self.safe.share;
            self.safe.left = own - spent.safe;
            self.safe.spent_at = time.now();
            self.knows_past = false;
            self.safe.until = self.safe.until.max(self.latest_end(time));
        }
        spent.drawn = self.held_now(time).min(cost - spent.safe);
        if spent.drawn > 0
            && let Some(mut purse) = self.purse
        {
            spent.window = Some(purse.window.number);
            purse.held -= spent.drawn;
            self.purse = Some(purse);
            self.pace.spent = self.pace.spent.saturating_add(spent.drawn);
            if self.is_low(&purse) {
                // Now, since there may be nothing to draw for the rest of the window.
                self.measure(time.now());
            }
        }
        let rest = cost - spent.safe - spent.drawn;
        if rest == 0 {
            return spent;
        }
        if self.is_unavailable() {
            spent.allowed = rest;
            self.counts.allowed = self.counts.allowed.saturating_add(rest);
            self.wanted = true;
            return spent;
        }
        let (CurrentWindow::Running(record) | CurrentWindow::Open(record)) = self.page(time) else {
            // A call that has ended, between two windows or where none is known.
            self.counts.overshot = self.counts.overshot.saturating_add(rest);
            return spent;
        };
        spent.window = Some(record.window());
        spent.owed = rest;
        self.account = Some(Overdraft {
            window: WindowId::of(&record),
            owed: self.owed_in(&record) + rest,
        });
        self.wanted = true;
        spent
    }

    /// Takes back the payment of a call that was not sent, as far as it is still valid.
    pub fn give_back(&mut self, spent: Payment) {
        if spent.share == self.safe.share {
            self.safe.left = (self.safe.left + spent.safe).min(self.rule.safe_share());
        }
        let mut back = spent.drawn;
        if let Some(account) = &mut self.account
            && Some(account.window.number) == spent.window
        {
            // What was owed may have been paid from the purse since.
            let cancelled = account.owed.min(spent.owed);
            account.owed -= cancelled;
            back += spent.owed - cancelled;
        }
        if let Some(purse) = &mut self.purse
            && Some(purse.window.number) == spent.window
        {
            purse.held += back;
        }
        self.pace.spent = self.pace.spent.saturating_sub(spent.drawn);
        self.counts.allowed = self.counts.allowed.saturating_sub(spent.allowed);
    }

    /// The local moment up to which this is refused, if what is left can't cover it.
    fn exhausted(&self, cost: u64, page: CurrentWindow, time: &StoreTime) -> Option<Timestamp> {
        let CurrentWindow::Running(record) = page else {
            return None;
        };
        if self.told || matches!(self.stands, StoreView::Unreadable(_)) {
            return None;
        }
        let covered = self.safe_now(time) + self.held_now(time) + record.left();
        let owed = self.owed_in(&record);
        (cost.saturating_add(owed) > covered).then(|| time.surely_at(record.end()))
    }

    /// The most expensive call that the rule, or the window as it was opened, can cover.
    fn costliest(&self) -> u64 {
        let opened = self
            .record
            .map_or(0, |record| record.total() - record.reserved());
        let own = self.rule.safe_share();
        self.rule.costliest().max(opened.saturating_add(own))
    }

    /// Whether this much more may pass on account: up to the base, in a window that began in the
    /// lifetime of this ledger. An earlier run of the node may owe something in an older window.
    fn may_owe(&self, cost: u64, record: &QuotaRecord, time: &StoreTime) -> bool {
        let settings = self.rule.settings();
        let owed = self.owed_in(record).saturating_add(cost);
        settings.mode == DrawMode::Optimistic
            && owed <= self.rule.base(u64::from(settings.nodes_expected))
            && owed <= record.left()
            && surely_before(self.made_at, record.start(), time)
    }

    fn owed_in(&self, record: &QuotaRecord) -> u64 {
        let window = WindowId::of(record);
        let account = self.account.filter(|account| account.window == window);
        account.map_or(0, |account| account.owed)
    }

    pub(super) fn held_now(&self, time: &StoreTime) -> u64 {
        let purse = self.purse.filter(|purse| time.latest() < purse.window.end);
        purse.map_or(0, |purse| purse.held)
    }

    /// Whether a question that waits for its turn is still worth asking where no call waits: something
    /// is held that it adds to, it gives that back, or it is how the end of a trouble is found out.
    #[must_use]
    pub fn asks_ahead(&self) -> bool {
        self.leaves || self.is_unavailable() || self.purse.is_some_and(|purse| purse.held > 0)
    }

    /// Whether a call that is not covered waits because the store does not answer.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.away_since.is_some() || self.late
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.away_since.is_some() || matches!(self.stands, StoreView::Unreadable(_))
    }
}
