//! What one node knows of one key.
//!
//! Whoever keeps a ledger calls [`Ledger::take`] for each call, and [`Ledger::next`] whenever
//! something happened, until it says [`Step::Sleep`]. Every other step is one question to the store,
//! whose answer comes back through [`Ledger::done`]. There is at most one question at a time.

use alloc::vec::Vec;
use core::time::Duration;

use super::record::{Record, RecordError};
use super::rule::{Ask, Away, Mode, Rule};
use super::store_time::{StoreTime, drift};
use super::{Standing, Version};
use crate::time::{Timestamp, nanos};
use crate::verdict::Verdict;

/// After a conflict is waited at random up to this, twice as long after each further one.
const CONFLICT_WAIT: Duration = Duration::from_micros(300);
const CONFLICT_DOUBLINGS: u32 = 5;
/// After a failure is waited at random from half of this up to this, twice as long after each further one.
const FAILURE_WAIT: Duration = Duration::from_millis(50);
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(1);
/// A record that can't be read is looked at again after this.
const UNREADABLE_WAIT: Duration = Duration::from_secs(1);
/// The store's time is asked for when more than one part of the window in so many is not known.
const WIDTH_ONE_IN: u32 = 8;

/// What a ledger says to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is covered.
    Covered,
    /// Not yet: a draw is due or under way, and may cover it.
    Draw,
    /// So much is not left in this window, which ends then.
    Exhausted {
        /// When the next one can be drawn from, by the local clock.
        until: Timestamp,
    },
    /// One window may be over and the next one may not have begun: the store's time is not known
    /// better.
    Between {
        /// When that is past, by the local clock.
        until: Timestamp,
    },
    /// The store is away or holds what can't be read, and the rule lets nothing pass.
    Away {
        /// When the store is asked again, by the local clock.
        until: Timestamp,
    },
    /// It costs more than a whole window has.
    Never,
}

impl From<Answer> for Verdict {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Covered => Self::Ready,
            Answer::Draw | Answer::Away { .. } => Self::WhenTold,
            Answer::Exhausted { until } | Answer::Between { until } => Self::NotBefore(until),
            Answer::Never => Self::Never,
        }
    }
}

/// What a call was paid with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a call that is not sent gives it back"]
pub struct Spent {
    /// The window whose tokens were spent or are owed; `None` if there were none.
    pub window: Option<u64>,
    /// Tokens that were drawn.
    pub drawn: u64,
    /// Tokens of the node's own share.
    pub safe: u64,
    /// How often that share had been there anew.
    pub share: u64,
    /// Tokens that the next draw has to pay ([`Mode::Optimistic`]).
    pub owed: u64,
    /// Tokens that nobody pays ([`Away::Allow`]).
    pub allowed: u64,
}

/// The calls that wait for tokens of this key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// What the one whose turn it is costs; 0 if there is none.
    pub next: u64,
    /// What all of them cost together, it included.
    pub sum: u64,
}

/// Which question an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question(u64);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this moment, unless something happens: a call that is not covered, tokens spent,
    /// an answer, or [`Ledger::told`].
    Sleep(Timestamp),
    /// Learn the store's time.
    Time(Question),
    /// Read what stands in the store.
    Read(Question),
    /// Write this, if what it replaces still stands there.
    Write(Question, Write),
}

/// A compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// What has to stand there; `None` for nothing.
    pub replaces: Option<Version>,
    /// What shall stand there.
    pub record: Record,
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The store's time is known.
    Time,
    /// Nothing was written, and this stands there.
    Stands(Standing),
    /// It was written, and has this version.
    Written(Version),
    /// Nobody knows: the connection was lost, or the time was up, after it was sent.
    Unknown,
    /// Nothing was done: the store can't be reached.
    Unavailable,
}

/// What an operator should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The store is away since this local moment.
    Away(Timestamp),
    /// What stands there is no record of ours.
    Unreadable(RecordError),
    /// The record vanished or went back to an older window. What was left of the window is lost.
    Lost,
    /// The record is of a window that begins so much later than the store's time can be. It is
    /// followed: none begins before it ends.
    Ahead(Duration),
    /// Who opened the window keeps less in reserve than the safe shares need, so this node has
    /// none in it.
    OtherReserve {
        /// What is kept.
        reserved: u64,
    },
}

/// How often something happened since the ledger was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants that the store confirmed.
    pub draws: u64,
    /// Of these, such as opened a window.
    pub opened: u64,
    /// Writes that were not applied, because another node was first.
    pub conflicts: u64,
    /// Questions without an answer.
    pub unknown: u64,
    /// Questions that could not be asked.
    pub unavailable: u64,
    /// Reads.
    pub reads: u64,
    /// Surpluses that the store took back.
    pub relinquished: u64,
    /// Calls that were covered by what was here.
    pub covered: u64,
    /// Calls that were refused by what was known here.
    pub refused: u64,
    /// Calls that were not covered, and had to wait for a draw or for a window.
    pub missed: u64,
    /// Tokens that nobody paid ([`Away::Allow`]).
    pub allowed: u64,
    /// Tokens that were owed at a window's end ([`Mode::Optimistic`]).
    pub overshot: u64,
}

impl Counts {
    /// Adds what happened elsewhere.
    pub fn add(&mut self, other: &Self) {
        let Self {
            draws,
            opened,
            conflicts,
            unknown,
            unavailable,
            reads,
            relinquished,
            covered,
            refused,
            missed,
            allowed,
            overshot,
        } = self;
        for (sum, more) in [
            (draws, other.draws),
            (opened, other.opened),
            (conflicts, other.conflicts),
            (unknown, other.unknown),
            (unavailable, other.unavailable),
            (reads, other.reads),
            (relinquished, other.relinquished),
            (covered, other.covered),
            (refused, other.refused),
            (missed, other.missed),
            (allowed, other.allowed),
            (overshot, other.overshot),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// A ledger as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerNow {
    /// What was last seen in the store, if anything.
    pub record: Option<Record>,
    /// Tokens that were drawn and may be spent.
    pub held: u64,
    /// Tokens of the node's own share that may be spent.
    pub safe: u64,
    /// Tokens that the next draw has to pay.
    pub owed: u64,
    /// What is wrong.
    pub trouble: Option<Trouble>,
    /// What happened.
    pub counts: Counts,
}

/// What replaces what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It has to be read first.
    NotKnown,
    Absent,
    Is(Version),
    Unreadable(RecordError),
}

/// Tokens of one window.
#[derive(Clone, Copy, Debug)]
struct Purse {
    window: u64,
    /// When they die, by the store's clock.
    end: Duration,
    held: u64,
    /// What the last grant was.
    grant: u64,
    /// What was drawn in all.
    drawn: u64,
    /// When the last grant came.
    granted_at: Timestamp,
    /// Grants beyond an equal share.
    alone: u32,
    relinquish_at: Timestamp,
}

/// What passed on account.
#[derive(Clone, Copy, Debug)]
struct Account {
    window: u64,
    /// When the window ends, by the store's clock.
    end: Duration,
    owed: u64,
}

/// How fast tokens go, measured grant by grant, so that a time in which there were none does not
/// count.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Thousandths of a token a second, once it was measured.
    rate: Option<u64>,
    /// Since when the present grant is spent, until it was measured.
    since: Option<Timestamp>,
    spent: u64,
    /// The dearest call; an old one counts less with every grant.
    dearest: u64,
    /// How long a reply takes.
    reply: Duration,
}

/// The node's own share of each window.
#[derive(Clone, Copy, Debug)]
struct Safe {
    left: u64,
    /// How often it was there anew.
    share: u64,
    /// The share may have been spent until then: by this ledger, or before it was made by another
    /// run of the same node.
    spent_at: Timestamp,
    /// The end of the latest window that any of it may have been spent in, by the store's clock.
    /// If that is set back, the same window is lived through twice.
    until: Duration,
}

/// A question that was asked.
#[derive(Clone, Copy, Debug)]
struct Flight {
    question: Question,
    kind: Kind,
    asked_at: Timestamp,
    overdue_at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Time,
    Read,
    Draw {
        grant: u64,
        opens: bool,
        record: Record,
    },
    Relinquish {
        back: u64,
        record: Record,
    },
    /// Writes that nothing is left, where the record was lost.
    Close {
        record: Record,
    },
}

/// Where the store's time is among the windows.
#[derive(Clone, Copy, Debug)]
enum Page {
    /// In the window of the record that was last seen.
    Running(Record),
    /// In this one, which nobody is known to have opened.
    Open(Record),
    /// It may be in one or in the next, until this local moment.
    Between(Timestamp),
    /// It is not known well enough.
    NotKnown,
}

/// What one node knows of one key, and holds of its window.
#[derive(Clone, Debug)]
pub struct Ledger {
    rule: Rule,
    made_at: Timestamp,
    nodes: u64,
    stands: Stands,
    /// What was last seen in the store, or what has to stand there because it was lost.
    record: Option<Record>,
    /// The end of the latest window that was ever seen, by the store's clock: none that begins
    /// earlier may be opened.
    opened_until: Duration,
    lost: bool,
    purse: Option<Purse>,
    account: Option<Account>,
    safe: Safe,
    pace: Pace,
    flight: Option<Flight>,
    asked: u64,
    /// Something may stand there that was not seen.
    told: bool,
    /// A call was not covered since the store was asked last.
    wanted: bool,
    /// A call was refused because of what was not left.
    short: bool,
    retry_at: Timestamp,
    conflicts_in_a_row: u32,
    failures_in_a_row: u32,
    away_since: Option<Timestamp>,
    counts: Counts,
}

impl Ledger {
    /// Knows nothing and holds nothing. Its own share, and what may pass on account, begin with the
    /// first window after `now`, since
    /// the node may have run before.
    #[must_use]
    pub fn new(rule: Rule, now: Timestamp) -> Self {
        Self {
            nodes: u64::from(rule.settings().nodes_expected),
            rule,
            made_at: now,
            stands: Stands::NotKnown,
            record: None,
            opened_until: Duration::ZERO,
            lost: false,
            purse: None,
            account: None,
            safe: Safe {
                left: 0,
                share: 0,
                spent_at: now,
                until: Duration::ZERO,
            },
            pace: Pace {
                rate: None,
                since: None,
                spent: 0,
                dearest: 0,
                reply: Duration::ZERO,
            },
            flight: None,
            asked: 0,
            told: false,
            wanted: false,
            short: false,
            retry_at: Timestamp::ZERO,
            conflicts_in_a_row: 0,
            failures_in_a_row: 0,
            away_since: None,
            counts: Counts::default(),
        }
    }

    /// Changes the rule. A window that was opened stays as it is; the next one is opened by the new
    /// rule. Of this node's own share at once only a smaller one counts.
    pub fn apply(&mut self, rule: Rule) {
        self.rule = rule;
        self.safe.left = self.safe.left.min(rule.safe_share());
    }

    /// How many nodes live, which decides only how large grants are. None counts as one.
    pub fn set_nodes(&mut self, nodes: u32) {
        self.nodes = u64::from(nodes.max(1));
    }

    /// The rule in force for windows to be opened.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Whether a call of this cost could go now. `time` is the store's, as known at this moment.
    #[must_use]
    pub fn peek(&self, cost: u64, time: &StoreTime) -> Answer {
        if cost <= self.safe_now(time) + self.held_now(time) {
            return Answer::Covered;
        }
        let away = self.is_away();
        if away && self.rule.settings().away == Away::Allow {
            return Answer::Covered;
        }
        if cost > self.dearest() {
            return Answer::Never;
        }
        let page = self.page(time);
        if let Some(until) = self.exhausted(cost, page, time) {
            return Answer::Exhausted { until };
        }
        if away {
            return Answer::Away {
                until: self.retry_at.max(time.now()),
            };
        }
        match page {
            Page::Between(until) => Answer::Between { until },
            Page::Running(record) | Page::Open(record) if self.may_owe(cost, &record, time) => {
                Answer::Covered
            }
            Page::Running(_) | Page::Open(_) | Page::NotKnown => Answer::Draw,
        }
    }

    /// Takes the tokens of a call.
    ///
    /// # Errors
    ///
    /// Why they are not covered. Then nothing was taken.
    pub fn take(&mut self, cost: u64, time: &StoreTime) -> Result<Spent, Answer> {
        match self.peek(cost, time) {
            Answer::Covered => Ok(self.spend(cost, time)),
            answer => {
                self.missed(answer);
                Err(answer)
            }
        }
    }

    /// The same as a verdict, for who waits for one.
    #[must_use]
    pub fn verdict(&self, cost: u64, time: &StoreTime) -> Verdict {
        match self.peek(cost, time).into() {
            Verdict::WhenTold => {
                let own = self.own_share_at(time);
                own.map_or(Verdict::WhenTold, Verdict::NotBefore)
            }
            verdict => verdict,
        }
    }

    /// A call was told this and waits, or was refused, without having tried to take anything.
    pub fn want(&mut self, answer: Answer) {
        self.wanted = true;
        self.short |= matches!(answer, Answer::Exhausted { .. });
    }

    fn missed(&mut self, answer: Answer) {
        self.want(answer);
        match answer {
            Answer::Exhausted { .. } | Answer::Away { .. } | Answer::Never => {
                self.counts.refused += 1;
            }
            _ => self.counts.missed += 1,
        }
    }

    /// Takes what [`Ledger::peek`] has found covered.
    pub(crate) fn spend(&mut self, cost: u64, time: &StoreTime) -> Spent {
        self.counts.covered += 1;
        let mut spent = Spent::default();
        let own = self.safe_now(time);
        spent.safe = own.min(cost);
        if spent.safe > 0 {
            self.safe.share += u64::from(own > self.safe.left);
            spent.share = self.safe.share;
            self.safe.left = own - spent.safe;
            self.safe.spent_at = time.now();
            self.safe.until = self.safe.until.max(self.latest_end(time));
        }
        self.pace.dearest = self.pace.dearest.max(cost);
        let mut rest = cost - spent.safe;
        if let Some(purse) = self
            .purse
            .as_mut()
            .filter(|purse| time.latest() < purse.end)
        {
            spent.drawn = purse.held.min(rest);
            if spent.drawn > 0 {
                spent.window = Some(purse.window);
                purse.held -= spent.drawn;
                rest -= spent.drawn;
            }
        }
        self.pace.spent = self.pace.spent.saturating_add(spent.drawn);
        if spent.drawn > 0 && self.purse.is_some_and(|purse| self.is_low(&purse)) {
            // Now, since there may be nothing to draw for the rest of the window.
            self.measure(time.now());
        }
        if rest == 0 {
            return spent;
        }
        if self.is_away() {
            spent.allowed = rest;
            self.counts.allowed = self.counts.allowed.saturating_add(rest);
            self.wanted = true;
            return spent;
        }
        let (Page::Running(record) | Page::Open(record)) = self.page(time) else {
            unreachable!("nothing is owed but in a window");
        };
        spent.window = Some(record.window());
        spent.owed = rest;
        let owed = self.owed_in(&record) + rest;
        self.account = Some(Account {
            window: record.window(),
            end: record.end(),
            owed,
        });
        self.wanted = true;
        spent
    }

    /// Takes back what a call that was not sent had been paid with, as far as it is still worth
    /// anything.
    pub fn give_back(&mut self, spent: Spent) {
        if spent.share == self.safe.share {
            self.safe.left = (self.safe.left + spent.safe).min(self.rule.safe_share());
        }
        let mut back = spent.drawn;
        if let Some(account) = &mut self.account
            && Some(account.window) == spent.window
        {
            // What was owed may have been paid from the purse since.
            let cancelled = account.owed.min(spent.owed);
            account.owed -= cancelled;
            back += spent.owed - cancelled;
        }
        if let Some(purse) = &mut self.purse
            && Some(purse.window) == spent.window
        {
            purse.held += back;
        }
        self.pace.spent = self.pace.spent.saturating_sub(spent.drawn);
        self.counts.allowed = self.counts.allowed.saturating_sub(spent.allowed);
    }

    /// What to do next, where this waits.
    pub fn next(&mut self, waiting: Waiting, time: &StoreTime) -> Step {
        let now = time.now();
        self.expire(time);
        if let Some(flight) = self.flight {
            if now < flight.overdue_at {
                return Step::Sleep(flight.overdue_at);
            }
            // Whoever asked has forgotten about it.
            self.done(flight.question, Outcome::Unknown, time, u64::MAX / 2);
        }
        let page = self.page(time);
        let owed = self.account.map_or(0, |account| account.owed);
        let covered = self.safe_now(time) + self.held_now(time);
        let ask = Ask {
            nodes: self.nodes,
            drawn: 0,
            alone: 0,
            rate: self.pace.rate,
            reply: self.pace.reply,
            missing: (waiting.sum + owed).saturating_sub(covered),
            need: (waiting.next + owed).saturating_sub(covered),
        };
        // An account is paid as far as what is left goes; calls are not served by halves.
        let needs = ask.need > 0 || (self.wanted && self.is_away());
        let prefetches = self.prefetches(page);
        let relinquishes = self.relinquish_at(page);
        let probes = self.told && (self.wanted || self.short || self.is_away());
        if !needs && !prefetches && !probes && relinquishes > now {
            return Step::Sleep(relinquishes);
        }
        if now < self.retry_at {
            return Step::Sleep(self.retry_at);
        }
        if let Page::NotKnown = page {
            return Step::Time(self.fly(Kind::Time, now));
        }
        if self.told || matches!(self.stands, Stands::NotKnown | Stands::Unreadable(_)) {
            self.told = false;
            return Step::Read(self.fly(Kind::Read, now));
        }
        let (record, opens) = match page {
            Page::Running(record) => (record, false),
            Page::Open(record) => (record, true),
            Page::Between(until) => return Step::Sleep(until),
            Page::NotKnown => unreachable!("the store's time was asked for"),
        };
        if self.lost && !opens {
            return self.write(Kind::Close { record }, record, now);
        }
        if needs || prefetches {
            self.measure(now);
            let purse = self.purse_of(&record);
            let (drawn, alone) = purse.map_or((0, 0), |purse| (purse.drawn, purse.alone));
            if let Some(purse) = purse
                && drawn >= record.total() / self.nodes
            {
                let yields = self.rule.yields(self.nodes, self.pace.reply);
                let next = purse.granted_at + yields;
                if now < next {
                    return Step::Sleep(next);
                }
            }
            let ask = Ask {
                drawn,
                alone,
                rate: self.pace.rate,
                ..ask
            };
            let pays = Ask {
                need: 0,
                missing: owed,
                ..ask
            };
            let grant = ask.grant(&self.rule, &record).or_else(|| {
                let pays = pays.grant(&self.rule, &record).filter(|_| owed > 0);
                pays.map(|grant| grant.min(owed))
            });
            if let Some(grant) = grant {
                let record = record
                    .less(grant)
                    .expect("a grant is not above what is left");
                let draw = Kind::Draw {
                    grant,
                    opens,
                    record,
                };
                return self.write(draw, record, now);
            }
            if self.is_away() && needs {
                // Nothing to draw, but whether the store is back can be found out.
                return Step::Read(self.fly(Kind::Read, now));
            }
        }
        if relinquishes <= now {
            return self.relinquish(record, waiting, now);
        }
        let end = time.surely_at(record.end());
        Step::Sleep(if ask.need > 0 { end } else { relinquishes })
    }

    /// Gives a surplus back: what is held beyond one grant, if it is more than so many grants.
    fn relinquish(&mut self, record: Record, waiting: Waiting, now: Timestamp) -> Step {
        let every = self.rule.relinquish_every();
        let above = u64::from(self.rule.settings().relinquish_above);
        let rate_now = self.pace.rate_now(now);
        let rate = self.pace.rate.map_or(rate_now, |rate| rate.min(rate_now));
        let nodes = self.nodes;
        let purse = self
            .purse
            .as_mut()
            .expect("who relinquishes holds something");
        purse.relinquish_at = now + every;
        let again = Step::Sleep(purse.relinquish_at);
        // What is spent before one looks again is no surplus, however little is left for others.
        let soon = u128::from(rate) * u128::from(nanos(every)) / 1_000_000_000_000;
        let soon = u64::try_from(soon).unwrap_or(u64::MAX);
        let ask = Ask {
            nodes,
            drawn: purse.drawn,
            alone: 0,
            rate: Some(rate),
            reply: self.pace.reply,
            missing: waiting.sum,
            need: 0,
        };
        let grant = ask.size(&self.rule, record.left(), record.total());
        let keep = grant.max(soon);
        if purse.held <= grant.saturating_mul(above).max(keep) {
            return again;
        }
        let back = purse.held - keep;
        let Some(record) = record.more(back) else {
            return again;
        };
        // First it leaves the purse: what may be in the record must not be spent here.
        purse.held = keep;
        self.write(Kind::Relinquish { back, record }, record, now)
    }

    fn fly(&mut self, kind: Kind, now: Timestamp) -> Question {
        self.asked += 1;
        self.wanted = false;
        let question = Question(self.asked);
        let timeout = self.rule.settings().draw_timeout;
        self.flight = Some(Flight {
            question,
            kind,
            asked_at: now,
            // Whoever asks keeps to the timeout; this is for one who does not answer at all.
            overdue_at: now + timeout.saturating_mul(2),
        });
        question
    }

    fn write(&mut self, kind: Kind, record: Record, now: Timestamp) -> Step {
        let replaces = match self.stands {
            Stands::Is(version) => Some(version),
            Stands::Absent => None,
            Stands::NotKnown | Stands::Unreadable(_) => {
                unreachable!("what stands there is read before it is replaced")
            }
        };
        Step::Write(self.fly(kind, now), Write { replaces, record })
    }

    /// Takes the answer to a question; one to another question than the present one is too late,
    /// and forgotten. `entropy` is any number, another one each time.
    pub fn done(&mut self, question: Question, outcome: Outcome, time: &StoreTime, entropy: u64) {
        let Some(flight) = self.flight.take_if(|flight| flight.question == question) else {
            return;
        };
        let now = time.now();
        match outcome {
            Outcome::Unknown | Outcome::Unavailable => {
                self.failed(flight.kind, outcome, now, entropy);
                return;
            }
            Outcome::Time => {
                if matches!(self.page(time), Page::NotKnown) {
                    // Its replies take too long to tell one window from the next.
                    self.failed(flight.kind, Outcome::Unknown, now, entropy);
                }
                return;
            }
            Outcome::Stands(_) | Outcome::Written(_) => {
                self.away_since = None;
                self.failures_in_a_row = 0;
                let reply = now.since(flight.asked_at);
                self.pace.reply = match self.pace.reply {
                    Duration::ZERO => reply,
                    mean => (mean * 7 + reply) / 8,
                };
            }
        }
        match (flight.kind, outcome) {
            (Kind::Read, Outcome::Stands(standing)) => {
                self.counts.reads += 1;
                self.learn(standing, time);
            }
            (Kind::Draw { .. }, Outcome::Stands(standing)) => {
                self.conflict(standing, time, entropy);
            }
            (Kind::Relinquish { back, record }, Outcome::Stands(standing)) => {
                self.conflict(standing, time, entropy);
                // It was surely not written, so it is still here if its window is.
                if let Some(purse) = self.purse_of_mut(&record) {
                    purse.held += back;
                    purse.relinquish_at = now;
                }
            }
            (Kind::Close { .. }, Outcome::Stands(standing)) => {
                self.conflict(standing, time, entropy);
            }
            (
                Kind::Draw {
                    grant,
                    opens,
                    record,
                },
                Outcome::Written(version),
            ) => {
                self.written(record, version);
                self.counts.draws += 1;
                self.counts.opened += u64::from(opens);
                self.granted(grant, &record, now);
            }
            (Kind::Relinquish { record, .. }, Outcome::Written(version)) => {
                self.written(record, version);
                self.counts.relinquished += 1;
            }
            (Kind::Close { record }, Outcome::Written(version)) => {
                self.written(record, version);
            }
            (kind, outcome) => panic!("{outcome:?} answers no {kind:?}"),
        }
    }

    fn written(&mut self, record: Record, version: Version) {
        self.stands = Stands::Is(version);
        self.turn_to(record);
        self.lost = false;
        self.conflicts_in_a_row = 0;
    }

    fn granted(&mut self, grant: u64, record: &Record, now: Timestamp) {
        let purse = self.purse.get_or_insert(Purse {
            window: record.window(),
            end: record.end(),
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
        self.pace.spent = 0;
        if let Some(account) = &mut self.account {
            let paid = account.owed.min(purse.held);
            account.owed -= paid;
            purse.held -= paid;
            self.pace.spent = paid;
        }
    }

    fn conflict(&mut self, standing: Standing, time: &StoreTime, entropy: u64) {
        self.counts.conflicts += 1;
        let doublings = self.conflicts_in_a_row.min(CONFLICT_DOUBLINGS);
        self.conflicts_in_a_row += 1;
        let most = CONFLICT_WAIT.saturating_mul(1 << doublings);
        self.retry_at = time.now() + part(most, entropy);
        self.learn(standing, time);
    }

    fn failed(&mut self, kind: Kind, outcome: Outcome, now: Timestamp, entropy: u64) {
        self.away_since.get_or_insert(now);
        let doublings = self.failures_in_a_row.min(16);
        self.failures_in_a_row += 1;
        let most = FAILURE_WAIT.saturating_mul(1 << doublings);
        let half = most.min(FAILURE_WAIT_MAX) / 2;
        self.retry_at = now + half + part(half, entropy);
        if outcome == Outcome::Unavailable {
            self.counts.unavailable += 1;
            if let Kind::Relinquish { back, record } = kind
                && let Some(purse) = self.purse_of_mut(&record)
            {
                purse.held += back;
            }
        } else {
            self.counts.unknown += 1;
            if !matches!(kind, Kind::Time) {
                self.stands = Stands::NotKnown;
            }
        }
    }

    /// What stands there may have changed: it is read before anything is refused on its account
    /// again. For a watch on an exhausted key.
    pub fn told(&mut self) {
        self.told = true;
    }

    /// Whether calls are refused only because of what is not left, so that a watch on the key would
    /// tell when another node gives something back.
    #[must_use]
    pub fn watches(&self, time: &StoreTime) -> bool {
        self.short
            && !self.told
            && matches!(self.stands, Stands::Is(_))
            && matches!(self.page(time), Page::Running(_))
    }

    /// The next local moment at which more of the node's own share may be there, without a word
    /// from the store; `None` if all of it is, or there is none.
    #[must_use]
    pub fn own_share_at(&self, time: &StoreTime) -> Option<Timestamp> {
        if self.safe_now(time) >= self.rule.safe_share() {
            return None;
        }
        let running = self.record.filter(|record| time.latest() < record.end());
        let length = self.rule.settings().length;
        let span = running.map_or(length, |record| length.max(record.length()));
        // As safe_now says: after a whole window, whatever the store's time is, or in the next.
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

    /// Which write stands in the store, as far as that is known.
    #[must_use]
    pub const fn version(&self) -> Option<Version> {
        match self.stands {
            Stands::Is(version) => Some(version),
            Stands::NotKnown | Stands::Absent | Stands::Unreadable(_) => None,
        }
    }

    /// The window in which a call counts that was paid from `spent_in`, and what all nodes may
    /// spend in it; the window that runs if it was paid from none, as far as that is known.
    #[must_use]
    pub fn window(&self, time: &StoreTime, spent_in: Option<u64>) -> (Option<u64>, u64) {
        let total = self.rule.settings().total;
        match self.page(time) {
            Page::Running(record) if spent_in.is_none_or(|window| window == record.window()) => {
                (Some(record.window()), record.total())
            }
            Page::Open(record) => (spent_in.or(Some(record.window())), total),
            Page::Running(_) | Page::Between(_) | Page::NotKnown => (spent_in, total),
        }
    }

    /// How long ago the window that runs began, at most; `None` if that is not known.
    #[must_use]
    pub fn begun(&self, time: &StoreTime) -> Option<Duration> {
        match self.page(time) {
            Page::Running(record) | Page::Open(record) => {
                Some(time.latest().saturating_sub(record.start()))
            }
            Page::Between(_) | Page::NotKnown => None,
        }
    }

    /// What happened since this was asked last.
    pub fn take_counts(&mut self) -> Counts {
        core::mem::take(&mut self.counts)
    }

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

    fn trouble(&self, time: &StoreTime) -> Option<Trouble> {
        if let Some(since) = self.away_since {
            return Some(Trouble::Away(since));
        }
        if let Stands::Unreadable(error) = self.stands {
            return Some(Trouble::Unreadable(error));
        }
        let Page::Running(record) = self.page(time) else {
            return None;
        };
        if self.lost {
            return Some(Trouble::Lost);
        }
        if record.start() > time.latest() {
            return Some(Trouble::Ahead(record.start() - time.latest()));
        }
        let reserved = record.reserved();
        (reserved < self.rule.reserved()).then_some(Trouble::OtherReserve { reserved })
    }

    // ---- What is known.

    /// Takes note of what stands in the store.
    fn learn(&mut self, standing: Standing, time: &StoreTime) {
        match standing {
            Standing::Record { version, record } if record.end() >= self.opened_until => {
                self.stands = Stands::Is(version);
                self.lost = false;
                self.turn_to(record);
            }
            Standing::Record { version, .. } => {
                self.stands = Stands::Is(version);
                self.lose(time);
            }
            Standing::Absent => {
                self.stands = Stands::Absent;
                self.lose(time);
            }
            Standing::Unreadable { error } => {
                self.stands = Stands::Unreadable(error);
                self.retry_at = time.now() + UNREADABLE_WAIT;
            }
        }
    }

    /// The window of this record is the one that counts. Tokens of another one are worth nothing.
    fn turn_to(&mut self, record: Record) {
        self.record = Some(record);
        self.short = false;
        self.opened_until = self.opened_until.max(record.end());
        let ours = |window: u64, end| (window, end) == (record.window(), record.end());
        self.purse = self.purse.filter(|purse| ours(purse.window, purse.end));
        self.settle(|account| account.end <= record.start());
    }

    /// What was owed in a window that is over is owed to nobody.
    fn settle(&mut self, is_over: impl Fn(&Account) -> bool) {
        if let Some(account) = self.account.take_if(|account| is_over(account)) {
            self.counts.overshot = self.counts.overshot.saturating_add(account.owed);
        }
    }

    /// What stood there does no more. If its window may still run, or ran further than the store's
    /// time is, as much as was left of it may have been drawn: it counts as nothing.
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

    /// Where the store's time is among the windows.
    fn page(&self, time: &StoreTime) -> Page {
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

    /// The local moment up to which this is refused, if what is left can't cover it.
    fn exhausted(&self, cost: u64, page: Page, time: &StoreTime) -> Option<Timestamp> {
        let Page::Running(record) = page else {
            return None;
        };
        if self.told || matches!(self.stands, Stands::Unreadable(_)) {
            return None;
        }
        let covered = self.safe_now(time) + self.held_now(time) + record.left();
        let owed = self.owed_in(&record);
        (cost.saturating_add(owed) > covered).then(|| time.surely_at(record.end()))
    }

    fn is_away(&self) -> bool {
        self.away_since.is_some() || matches!(self.stands, Stands::Unreadable(_))
    }

    /// The dearest call that the rule, or the window as it was opened, can cover.
    fn dearest(&self) -> u64 {
        let opened = self
            .record
            .map_or(0, |record| record.total() - record.reserved());
        let own = self.rule.safe_share();
        self.rule.dearest().max(opened.saturating_add(own))
    }

    // ---- What may be spent.

    fn held_now(&self, time: &StoreTime) -> u64 {
        let purse = self.purse.filter(|purse| time.latest() < purse.end);
        purse.map_or(0, |purse| purse.held)
    }

    /// What of the node's own share may be spent. It is there anew once it is certain that nothing of
    /// it was spent in the window that runs: because all of it was spent before that window began, or
    /// because a whole window's length went by; and in neither case in a window that was taken for
    /// this one or a later one, when the store's clock had not been set back yet.
    fn safe_now(&self, time: &StoreTime) -> u64 {
        let mut share = self.rule.safe_share();
        let running = self.record.filter(|record| time.latest() < record.end());
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
            // It has begun for certain, or somebody who knows the store's time better has opened
            // it.
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
        let before = start.is_some_and(|start| surely_before(spent_at, start, time));
        let is_later =
            time.latest() == Duration::MAX || start.is_none_or(|start| start >= self.safe.until);
        if is_later && (before || passed > span.saturating_add(drift(passed))) {
            share
        } else {
            left
        }
    }

    /// The end of the latest window that may run, by the store's clock; zero if nothing is known of
    /// that.
    fn latest_end(&self, time: &StoreTime) -> Duration {
        if time.latest() == Duration::MAX {
            return Duration::ZERO;
        }
        let window = self.rule.window_at(time.latest());
        let running = self.record.filter(|record| time.latest() < record.end());
        let ends = [window, running].into_iter().flatten().map(|one| one.end());
        ends.max().unwrap_or(Duration::ZERO)
    }

    fn owed_in(&self, record: &Record) -> u64 {
        let account = self
            .account
            .filter(|one| (one.window, one.end) == (record.window(), record.end()));
        account.map_or(0, |account| account.owed)
    }

    /// Whether so much more may pass on account: up to the base, in a window that began in the life
    /// of this ledger. An earlier run of the node may have owed something in an older one.
    fn may_owe(&self, cost: u64, record: &Record, time: &StoreTime) -> bool {
        let settings = self.rule.settings();
        let owed = self.owed_in(record).saturating_add(cost);
        settings.mode == Mode::Optimistic
            && owed <= self.rule.base(u64::from(settings.nodes_expected))
            && owed <= record.left()
            && surely_before(self.made_at, record.start(), time)
    }

    fn purse_of(&self, record: &Record) -> Option<&Purse> {
        let ours = |purse: &&Purse| (purse.window, purse.end) == (record.window(), record.end());
        self.purse.as_ref().filter(ours)
    }

    fn purse_of_mut(&mut self, record: &Record) -> Option<&mut Purse> {
        let ours =
            |purse: &&mut Purse| (purse.window, purse.end) == (record.window(), record.end());
        self.purse.as_mut().filter(ours)
    }

    /// Forgets what is over for certain.
    fn expire(&mut self, time: &StoreTime) {
        self.purse = self.purse.filter(|purse| time.latest() < purse.end);
        self.settle(|account| account.end <= time.latest());
    }

    // ---- When to draw.

    fn prefetches(&self, page: Page) -> bool {
        let Page::Running(record) = page else {
            return false;
        };
        let purse = self.purse_of(&record);
        record.left() > 0 && !self.lost && purse.is_some_and(|purse| self.is_low(purse))
    }

    /// Whether so little of the last grant is held that it is time for the next.
    fn is_low(&self, purse: &Purse) -> bool {
        let percent = u128::from(self.rule.settings().prefetch_percent);
        u128::from(purse.held) * 100 <= u128::from(purse.grant) * percent
            || purse.held < self.reserve().min(purse.grant / 2)
    }

    /// What has to be held so that the next calls wait for no draw: two of the dearest, and what is
    /// spent until the reply, with a conflict or two. No more than a quarter of an equal share, so
    /// that little strands; and nothing where nothing is drawn ahead.
    fn reserve(&self) -> u64 {
        let settings = self.rule.settings();
        if settings.prefetch_percent == 0 {
            return 0;
        }
        let reply = u128::from(nanos(self.pace.reply)) * 4;
        let underway = u128::from(self.pace.rate.unwrap_or(0)) * reply / 1_000_000_000_000;
        let underway = u64::try_from(underway).unwrap_or(u64::MAX);
        let calls = self.pace.dearest.saturating_mul(2);
        let most = settings.total / self.nodes / 4;
        calls.saturating_add(underway).min(most)
    }

    /// When a surplus is looked for.
    fn relinquish_at(&self, page: Page) -> Timestamp {
        let Page::Running(record) = page else {
            return Timestamp::MAX;
        };
        let purse = self.purse_of(&record).filter(|purse| purse.held > 0);
        purse
            .filter(|_| !self.lost)
            .map_or(Timestamp::MAX, |purse| purse.relinquish_at)
    }

    /// Measures how fast the grant went that is drawn after now, once.
    fn measure(&mut self, now: Timestamp) {
        if self.pace.since.is_none() {
            return;
        }
        let rate = self.pace.rate_now(now);
        let mean = self.pace.rate.map_or(rate, |before| before / 2 + rate / 2);
        self.pace.rate = Some(mean);
        self.pace.dearest -= self.pace.dearest / 16;
        self.pace.since = None;
    }
}

impl Pace {
    /// Thousandths of a token a second, of the grant that is being spent; what was measured last
    /// if none is.
    fn rate_now(&self, now: Timestamp) -> u64 {
        let Some(since) = self.since else {
            return self.rate.unwrap_or(0);
        };
        let passed = u128::from(nanos(now.since(since))).max(1);
        let rate = u128::from(self.spent) * 1_000_000_000_000 / passed;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Whether the store's time at a local moment that is past was surely before `start`.
fn surely_before(then: Timestamp, start: Duration, time: &StoreTime) -> bool {
    let passed = time.now().since(then);
    let latest = time
        .latest()
        .saturating_sub(passed)
        .saturating_add(drift(passed));
    time.latest() < Duration::MAX && latest < start
}

/// A random part of a span.
fn part(span: Duration, entropy: u64) -> Duration {
    let part = (u128::from(nanos(span)) * u128::from(entropy)) >> 64;
    Duration::from_nanos(u64::try_from(part).expect("a part is not above the whole"))
}

/// Takes the tokens of one call from several ledgers, such as its user's and the one of all: from
/// each what it costs there, or from none anything.
///
/// # Errors
///
/// Which ledger does not cover it, counted from 0, and why: of several the one by which it waits
/// longest. Then nothing was taken from any.
pub fn take_all(
    calls: &mut [(&mut Ledger, u64)],
    time: &StoreTime,
) -> Result<Vec<Spent>, (usize, Answer)> {
    let mut worst: Option<(usize, Answer)> = None;
    for (at, (ledger, cost)) in calls.iter_mut().enumerate() {
        let answer = ledger.peek(*cost, time);
        if answer == Answer::Covered {
            continue;
        }
        ledger.missed(answer);
        if worst.is_none_or(|(_, other)| Verdict::from(answer) > Verdict::from(other)) {
            worst = Some((at, answer));
        }
    }
    match worst {
        Some(worst) => Err(worst),
        None => Ok(calls
            .iter_mut()
            .map(|(ledger, cost)| ledger.spend(*cost, time))
            .collect()),
    }
}
