//! A line of calls, and what is remembered of its first one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::at::{Claim, Spot};
use crate::call::{Call, Caller, Class};
use crate::queue::account::Account;
use crate::queue::{Bar, Meets};
use crate::slab::Key;
use crate::time::Timestamp;

/// What the calls of a line have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineKey {
    pub(crate) caller: Caller,
    pub(crate) class: Class,
    pub(crate) meets: Meets,
}

impl LineKey {
    pub(crate) fn of(call: &Call, meets: &Meets) -> Self {
        Self {
            caller: call.caller,
            class: call.class,
            meets: meets.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) key: LineKey,
    /// The first call of this line, with its arrival.
    pub(super) head: Option<(u64, Key)>,
    /// Where it is parked; a line with a head and no spot is ready.
    pub(super) parked_at: Option<Spot>,
    /// What the head was passed over at, if it was.
    pub(super) passed: Option<Box<Passed>>,
    pub(super) held_by: Option<Bar>,
    /// Calls that joined up to this have waited while `held_by` held the line.
    pub(super) held_until: u64,
    pub(super) is_resting: bool,
    /// What its calls have waited for.
    pub(super) account: Account,
    /// The present account, for calls that join before it changes.
    pub(super) noted: Option<Arc<Account>>,
}

impl Line {
    pub(super) fn new(key: LineKey) -> Self {
        Self {
            key,
            head: None,
            parked_at: None,
            passed: None,
            held_by: None,
            held_until: 0,
            is_resting: false,
            account: Account::new(),
            noted: None,
        }
    }
}

/// A head was passed over.
#[derive(Debug)]
pub(super) struct Passed {
    /// From when on it may claim.
    pub(super) due: Timestamp,
    /// Where its turn has come and there was room.
    pub(super) turns: Vec<Bar>,
    /// Claims of this call that lapsed unused.
    pub(super) lapses: u32,
}

/// A line whose head was passed over, during a reload.
pub(crate) struct Carried {
    pub(crate) head: (u64, Key),
    /// Where the line is parked.
    pub(crate) at: Bar,
    pub(super) passed: Box<Passed>,
    pub(super) claims: Vec<(Bar, Claim)>,
}

impl Carried {
    /// The same under another policy: `heir` maps each bar to its present one, if the call still
    /// meets it.
    pub(crate) fn map(mut self, heir: impl Fn(Bar) -> Option<Bar>) -> Option<Self> {
        self.at = heir(self.at)?;
        let turns = self.passed.turns.into_iter();
        self.passed.turns = turns.filter_map(&heir).collect();
        let claims = self.claims.into_iter();
        let claims = claims.filter_map(|(bar, claim)| Some((heir(bar)?, claim)));
        self.claims = claims.collect();
        Some(self)
    }
}

impl Passed {
    pub(super) fn may_claim(&self, bar: Bar, now: Timestamp) -> bool {
        self.due <= now && self.turns.contains(&bar)
    }
}
