//! The callers of a call.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::index::Lookup;
use crate::pattern::Specificity;
use crate::row::{CallerId, CallerRow, Charge, TableEntry};
use tidegate_limits::Weight;
use tidegate_limits::slab::{Slab, SlabKey};

/// A caller that a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    caller: CallerId,
    specificity: Specificity,
    charge: Charge,
    weight: Option<Weight>,
    pub(super) row: SlabKey,
}

impl Match {
    const fn new(specificity: Specificity, key: SlabKey, row: &CallerRow) -> Self {
        Self {
            caller: row.id,
            specificity,
            charge: row.charge,
            weight: row.weight,
            row: key,
        }
    }

    /// Who it is.
    #[must_use]
    pub const fn caller(&self) -> CallerId {
        self.caller
    }

    /// How specific the pattern is by which it matches: the most specific of those that do.
    #[must_use]
    pub const fn specificity(&self) -> Specificity {
        self.specificity
    }

    /// The charge of the caller's calls.
    #[must_use]
    pub const fn charge(&self) -> Charge {
        self.charge
    }
}

/// The callers that a call belongs to, the most specific first. All of them are counted.
///
/// Keep it from one call to the next: then no look-up allocates, once it has grown to the
/// most matches that there were.
#[derive(Debug, Default)]
pub struct Matches {
    pub(super) found: Lookup<SlabKey>,
    matches: Vec<Match>,
}

impl Matches {
    /// Every caller that the call belongs to, each once, the most specific first.
    #[must_use]
    pub const fn as_slice(&self) -> &[Match] {
        self.matches.as_slice()
    }

    /// The most specific caller: the one for which the call takes turns.
    #[must_use]
    pub fn caller(&self) -> CallerId {
        self.matches
            .first()
            .map_or(CallerId::UNKNOWN, Match::caller)
    }

    /// The only caller that is charged: the most specific one that has a limit or is exempt.
    #[must_use]
    pub fn charged(&self) -> Option<&Match> {
        self.matches
            .iter()
            .find(|found| found.charge != Charge::None)
    }

    /// The weight of the most specific caller that has one.
    #[must_use]
    pub fn weight(&self) -> Option<Weight> {
        self.matches.iter().find_map(|found| found.weight)
    }

    /// Puts what was found into order.
    pub(super) fn rank(&mut self, rows: &Slab<TableEntry>) {
        let Self { found, matches } = self;
        matches.clear();
        let mut may_repeat = false;
        for (specificity, key) in &found.entries {
            // A row may have been forgotten meanwhile.
            let Some(TableEntry { row, .. }) = rows.get(*key) else {
                continue;
            };
            may_repeat |= row.patterns.len() > 1;
            matches.push(Match::new(*specificity, *key, row));
        }
        if may_repeat {
            matches.sort_unstable_by_key(|found| (found.caller, Reverse(found.specificity)));
            matches.dedup_by_key(|found| found.caller);
        }
        matches.sort_unstable_by_key(|found| (Reverse(found.specificity), found.caller));
    }

    /// Adds the row for unknown callers, behind all others.
    pub(super) fn push_unknown(&mut self, key: SlabKey, row: &CallerRow) {
        self.matches.push(Match::new(Specificity::NONE, key, row));
    }
}
