//! The state of one key on one node.
//!
//! Call [`Ledger::take`] for each call, and [`Ledger::next`] after every event until it returns
//! [`Action::Sleep`]. Every other action is one question to the store, whose reply goes to
//! [`Ledger::done`]. There is at most one question at a time.

mod digest;
mod draw;
mod now;
mod outcome;
mod page;
mod spend;

use core::time::Duration;

pub use draw::{Action, QuestionId, RecordWrite, WaitingCost};
pub use now::{LedgerCounts, LedgerNow, LedgerTrouble};
pub use outcome::StoreReply;
pub use spend::{Coverage, Payment};

use super::RecordVersion;
use super::record::{QuotaRecord, RecordError};
use super::rule::WindowRule;
use super::store_time::StoreTime;
use crate::bucket::TokenCount;
use crate::time::Timestamp;

/// The state of one key on one node, with the tokens it holds.
#[derive(Clone, Debug)]
pub struct Ledger {
    rule: WindowRule,
    made_at: Timestamp,
    nodes: u64,
    stands: StoreView,
    /// The last record seen in the store, or the record that must be written because it was lost.
    record: Option<QuotaRecord>,
    /// The end of the latest window that was ever seen, by the store's clock: none that begins
    /// earlier may be opened.
    opened_until: Duration,
    lost: bool,
    purse: Option<Purse>,
    account: Option<Overdraft>,
    safe: SafeShare,
    pace: Speed,
    flight: Option<OpenQuestion>,
    asked: u64,
    /// The store may contain something that was not seen.
    told: bool,
    /// A call was not covered since the store was asked last.
    wanted: bool,
    /// A call was refused because of what was not left.
    short: bool,
    /// Of its own share nothing was spent by this ledger, and before it only in windows up to
    /// `safe.until`.
    knows_past: bool,
    /// The key is to be forgotten, and gives its tokens back before that.
    leaves: bool,
    retry_at: Timestamp,
    conflicts_in_a_row: u32,
    failures_in_a_row: u32,
    away_since: Option<Timestamp>,
    /// The last question had no answer in time.
    late: bool,
    counts: LedgerCounts,
}

/// The contents of the store that the next write replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreView {
    /// The record must be read first.
    NotKnown,
    Absent,
    Is(RecordVersion),
    Unreadable(RecordError),
}

/// A window, by number and end. Windows of one number differ in their end if the rule's length has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WindowId {
    number: u64,
    /// By the store's clock.
    end: Duration,
}

impl WindowId {
    const fn of(record: &QuotaRecord) -> Self {
        Self {
            number: record.window(),
            end: record.end(),
        }
    }
}

/// Tokens of one window, which die with it.
#[derive(Clone, Copy, Debug)]
struct Purse {
    window: WindowId,
    held: u64,
    /// The size of the last grant.
    grant: u64,
    /// The sum of all grants.
    drawn: u64,
    /// When the last grant came.
    granted_at: Timestamp,
    /// Grants beyond an equal share.
    alone: u32,
    relinquish_at: Timestamp,
}

/// Tokens that calls spent on account.
#[derive(Clone, Copy, Debug)]
struct Overdraft {
    window: WindowId,
    owed: u64,
}

/// How fast tokens go, measured grant by grant, so that a time in which there were none does not
/// count.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    /// A second, once it was measured.
    rate: Option<TokenCount>,
    /// Since when the present grant is spent, until it was measured.
    since: Option<Timestamp>,
    spent: u64,
    /// The most expensive call. An old one counts less with every grant.
    costliest: u64,
    /// How long a reply takes.
    reply: Duration,
}

/// The node's own share of each window.
#[derive(Clone, Copy, Debug, Default)]
struct SafeShare {
    left: u64,
    /// How often the share was renewed.
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
struct OpenQuestion {
    question: QuestionId,
    kind: QuestionKind,
    asked_at: Timestamp,
    overdue_at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
enum QuestionKind {
    Time,
    Read,
    /// Writes this record.
    Write(RecordChange, QuotaRecord),
}

#[derive(Clone, Copy, Debug)]
enum RecordChange {
    Draw {
        grant: u64,
        opens: bool,
    },
    Relinquish {
        back: u64,
    },
    /// Opens a window without tokens, where the record was lost.
    Close,
}

impl Ledger {
    /// An empty state without tokens. Its own share, and calls on account, begin with the first
    /// window after `now`, because the node may have run before.
    #[must_use]
    pub fn new(rule: WindowRule, now: Timestamp) -> Self {
        Self {
            nodes: u64::from(rule.settings().nodes_expected),
            rule,
            made_at: now,
            stands: StoreView::NotKnown,
            record: None,
            opened_until: Duration::ZERO,
            lost: false,
            purse: None,
            account: None,
            safe: SafeShare {
                spent_at: now,
                ..SafeShare::default()
            },
            pace: Speed::default(),
            flight: None,
            asked: 0,
            told: false,
            wanted: false,
            short: false,
            knows_past: false,
            leaves: false,
            retry_at: Timestamp::ZERO,
            conflicts_in_a_row: 0,
            failures_in_a_row: 0,
            away_since: None,
            late: false,
            counts: LedgerCounts::default(),
        }
    }

    /// Notes that the spending of other runs of this node is known: they spent nothing of a window that begins at
    /// `from` of the store's time, or later. So the share of the present window may be spent too.
    pub fn know_past(&mut self, from: Duration) {
        // What this ledger has spent, it knows.
        if self.safe.share == 0 {
            self.safe.until = from;
            self.knows_past = true;
        }
    }

    /// Changes the rule. A window that was opened stays as it is; the next one is opened by the new
    /// rule. Of this node's own share at once only a smaller one counts.
    pub fn apply(&mut self, rule: WindowRule) {
        self.rule = rule;
        self.safe.left = self.safe.left.min(rule.safe_share());
    }

    /// From now on nothing is drawn any more, and what is held is given back as soon as the store
    /// can be asked; what is owed is paid first. Undone by [`stay`](Self::stay).
    pub fn leave(&mut self) {
        self.leaves = true;
        if let Some(purse) = &mut self.purse {
            purse.relinquish_at = Timestamp::ZERO;
        }
    }

    /// Draws again, after [`leave`](Self::leave).
    pub const fn stay(&mut self) {
        self.leaves = false;
    }

    /// Whether anything would be lost if this were forgotten now: tokens that are held, owed or on
    /// their way.
    #[must_use]
    pub fn holds_tokens(&self) -> bool {
        self.tokens_until().is_some()
    }

    /// When what is held or owed is worth nothing any more, by the local clock: its window is over
    /// then. `now` if that is so already, or nothing is held.
    #[must_use]
    pub fn worthless_at(&self, time: &StoreTime) -> Timestamp {
        match self.tokens_until() {
            Some(end) if time.latest() < end => time.surely_at(end),
            _ => time.now(),
        }
    }

    /// The end of the last window of which tokens are held, owed or on their way, by the store's
    /// clock.
    fn tokens_until(&self) -> Option<Duration> {
        let purse = self.purse.filter(|purse| purse.held > 0);
        let account = self.account.filter(|account| account.owed > 0);
        let underway = match self.flight.as_ref().map(|flight| flight.kind) {
            Some(QuestionKind::Write(
                RecordChange::Draw { .. } | RecordChange::Relinquish { .. },
                record,
            )) => Some(record.end()),
            _ => None,
        };
        let held = purse.map(|purse| purse.window.end);
        let owed = account.map(|account| account.window.end);
        held.max(owed).max(underway)
    }

    /// How many nodes live, which decides only how large grants are. None counts as one.
    pub fn set_nodes(&mut self, nodes: u32) {
        self.nodes = u64::from(nodes.max(1));
    }

    /// The rule in force for windows to be opened.
    #[must_use]
    pub const fn rule(&self) -> &WindowRule {
        &self.rule
    }
}
