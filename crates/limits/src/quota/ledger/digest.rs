//! The state of a ledger, and of what is between it and the store, as words of a digest.

use core::time::Duration;

use super::outcome::{CONFLICT_DOUBLINGS, FAILURE_DOUBLINGS};
use super::{
    Ledger, OpenQuestion, Overdraft, Purse, QuestionKind, RecordChange, RecordWrite, SafeShare,
    Speed, StoreReply, StoreView, WindowId,
};
use crate::digest::Digest;
use crate::quota::rule::{DrawMode, RuleSettings, WindowRule};
use crate::quota::{RecordVersion, StoredRecord};

impl Ledger {
    /// Adds what decides from now on: see [`Digest`].
    ///
    /// Local moments count from now. Windows and moments of the store's clock are as the store counts them: a search has the store's
    /// time in its states. A ledger is refused if the size of its grants depends on how fast tokens go, because a digest does not
    /// contain that.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        let Self {
            // A search knows which rule is in force.
            rule,
            made_at,
            nodes,
            stands,
            record,
            opened_until,
            lost,
            purse,
            account,
            safe,
            pace,
            flight,
            // Only tells questions apart.
            asked: _,
            told,
            wanted,
            short,
            knows_past,
            leaves,
            retry_at,
            conflicts_in_a_row,
            failures_in_a_row,
            away_since,
            late,
            // Only reported.
            counts: _,
        } = self;
        let settings = rule.settings();
        if settings.mode == DrawMode::Optimistic {
            to.past(*made_at);
        }
        to.word(*nodes);
        stands.digest(to);
        to.flag(record.is_some());
        record.iter().for_each(|record| record.digest(to));
        to.span(*opened_until);
        to.flag(purse.is_some());
        purse.iter().for_each(|purse| purse.digest(settings, to));
        to.flag(account.is_some());
        account.iter().for_each(|account| account.digest(to));
        safe.digest(settings, to);
        pace.digest(*nodes, rule, to);
        to.flag(flight.is_some());
        flight.iter().for_each(|flight| flight.digest(settings, to));
        let flags = [
            *lost,
            *told,
            *wanted,
            *short,
            *knows_past,
            *leaves,
            *late,
            // Since when it lasts is only reported.
            away_since.is_some(),
        ];
        flags.iter().for_each(|&flag| to.flag(flag));
        to.coming(*retry_at);
        // Pauses do not grow any more after these.
        to.word(u64::from((*conflicts_in_a_row).min(CONFLICT_DOUBLINGS)));
        to.word(u64::from((*failures_in_a_row).min(FAILURE_DOUBLINGS)));
    }
}

/// The longest time for which a node leaves the store to others after a grant.
fn longest_pause(settings: &RuleSettings) -> Duration {
    settings.length / 20
}

impl StoreView {
    fn digest(self, to: &mut Digest) {
        match self {
            Self::NotKnown => to.word(0),
            Self::Absent => to.word(1),
            Self::Is(RecordVersion(version)) => {
                to.word(2);
                to.word(version);
            }
            // Why is only reported.
            Self::Unreadable(_) => to.word(3),
        }
    }
}

impl WindowId {
    fn digest(self, to: &mut Digest) {
        let Self { number, end } = self;
        to.word(number);
        to.span(end);
    }
}

impl Purse {
    fn digest(&self, settings: &RuleSettings, to: &mut Digest) {
        let Self {
            window,
            held,
            grant,
            drawn,
            granted_at,
            // Only the size of a grant depends on it.
            alone: _,
            relinquish_at,
        } = self;
        let surplus = grant.saturating_mul(u64::from(settings.relinquish_above));
        assert!(
            *held <= surplus,
            "a digest has no surplus, which depends on how fast tokens go"
        );
        window.digest(to);
        for number in [*held, *grant, *drawn] {
            to.word(number);
        }
        to.past_within(*granted_at, longest_pause(settings));
        to.coming(*relinquish_at);
    }
}

impl Overdraft {
    fn digest(&self, to: &mut Digest) {
        let Self { window, owed } = self;
        window.digest(to);
        to.word(*owed);
    }
}

impl Speed {
    fn digest(&self, nodes: u64, rule: &WindowRule, to: &mut Digest) {
        let Self {
            // They decide the size of grants, and when the next one is drawn in advance.
            rate: _,
            since: _,
            spent: _,
            costliest: _,
            reply,
        } = self;
        let settings = rule.settings();
        let base = settings.base.unwrap_or(0);
        assert!(
            base >= settings.total / 4,
            "a digest has grants of one size"
        );
        assert!(
            settings.total / nodes / 4 == 0,
            "a digest has no draws in advance that depend on how fast tokens go"
        );
        // Only how long the node leaves the store to others depends on it. After a reply that takes longer than that may be, the mean
        // stays above it for many replies.
        to.span(rule.yields(nodes, *reply));
    }
}

impl SafeShare {
    fn digest(&self, settings: &RuleSettings, to: &mut Digest) {
        let Self {
            left,
            share,
            spent_at,
            until,
        } = self;
        to.word(*left);
        to.word(*share);
        // The share comes back after a window, and what clocks drift in it.
        to.past_within(*spent_at, settings.length * 2);
        to.span(*until);
    }
}

impl OpenQuestion {
    fn digest(&self, settings: &RuleSettings, to: &mut Digest) {
        let Self {
            // A search has the one reply that belongs to it.
            question: _,
            kind,
            asked_at,
            overdue_at,
        } = self;
        kind.digest(to);
        to.past_within(*asked_at, longest_pause(settings));
        to.coming(*overdue_at);
    }
}

impl QuestionKind {
    fn digest(&self, to: &mut Digest) {
        match self {
            Self::Time => to.word(0),
            Self::Read => to.word(1),
            Self::Write(change, record) => {
                to.word(2);
                change.digest(to);
                record.digest(to);
            }
        }
    }
}

impl RecordChange {
    fn digest(self, to: &mut Digest) {
        let (kind, tokens) = match self {
            // Whether a draw opens a window is only counted.
            Self::Draw { grant, opens: _ } => (0, grant),
            Self::Relinquish { back } => (1, back),
            Self::Close => (2, 0),
        };
        to.word(kind);
        to.word(tokens);
    }
}

impl RecordWrite {
    /// Adds a write that is on its way.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        let Self { replaces, record } = self;
        to.word(replaces.map_or(u64::MAX, |RecordVersion(version)| version));
        record.digest(to);
    }
}

impl StoreReply {
    /// Adds a reply that is on its way.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        match self {
            Self::Time => to.word(0),
            Self::Stands(standing) => {
                to.word(1);
                standing.digest(to);
            }
            Self::Written(RecordVersion(version)) => {
                to.word(2);
                to.word(*version);
            }
            Self::Unknown => to.word(3),
            Self::Unavailable => to.word(4),
            Self::Late => to.word(5),
            Self::NotYet => to.word(6),
            Self::Dropped => to.word(7),
        }
    }
}

impl StoredRecord {
    /// Adds the contents of a store.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        match self {
            Self::Absent => to.word(0),
            Self::Record { version, record } => {
                let RecordVersion(version) = *version;
                to.word(1);
                to.word(version);
                record.digest(to);
            }
            // Why is only reported.
            Self::Unreadable { error: _ } => to.word(2),
        }
    }
}
