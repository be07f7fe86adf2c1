//! Lines of calls, and what waits at one limit, bucket or quota.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::call::{Call, Caller, Class};
use crate::policy::LimitId;
use crate::queue::account::Account;
use crate::queue::fair::{Order, Part};
use crate::queue::{Bar, LineId, Meets};
use crate::slab::Key;
use crate::time::Timestamp;

/// The properties that all calls of a flow share.
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
    /// The budget at which the head was passed over, if it was.
    pub(super) passed: Option<Box<Passed>>,
    pub(super) is_resting: bool,
    /// The causes of the wait of its calls.
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
    pub(super) claims: Vec<(Bar, RoomClaim)>,
}

impl Carried {
    /// The flow under another policy: `heir` maps each budget to its present one, if the call still meets it.
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

/// Lines that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spot {
    /// At a limit, bucket or quota.
    At(Bar),
    /// At a limit, those of the class for which it keeps something.
    Kept(LimitId),
}

impl Spot {
    pub(crate) const fn bar(self) -> Bar {
        match self {
            Self::At(bar) => bar,
            Self::Kept(limit) => Bar::Limit(limit),
        }
    }
}

/// The flows that wait at a limit, bucket or quota.
#[derive(Debug, Default)]
pub(super) struct At {
    pub(super) order: Order,
    /// By arrival.
    pub(super) claims: BTreeMap<(u64, LineId), RoomClaim>,
    /// The sum of the claims.
    pub(super) claimed: u64,
    /// For how long room was kept, over all claims that are over.
    pub(super) idle: Duration,
    /// The class for which it keeps something.
    pub(super) kept_for: Option<Class>,
    pub(super) all: Look,
    /// The class for which it keeps something.
    pub(super) kept: Look,
}

/// A line is first among those at a limit, or has room kept there.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomClaim {
    /// How much of the limit it is for.
    pub(super) draw: u64,
    pub(super) since: Timestamp,
    /// `None` if the line is here, at the front; or else when the claim lapses.
    pub(super) until: Option<Timestamp>,
}

/// The line that was asked last, and the result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) asked: Option<LineId>,
    /// The moment in `openings`.
    pub(super) opens: Option<Timestamp>,
    /// On the `changed` list.
    pub(super) changed: bool,
}

impl At {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.claims.is_empty()
    }

    #[inline]
    pub(super) fn look(&mut self, spot: Spot) -> &mut Look {
        match spot {
            Spot::At(_) => &mut self.all,
            Spot::Kept(_) => &mut self.kept,
        }
    }

    /// The lines of the order that wait at this spot.
    #[inline]
    pub(super) fn part(&self, spot: Spot) -> Part {
        match (self.kept_for, spot) {
            (None, _) => Part::All,
            (Some(class), Spot::Kept(_)) => Part::Only(class),
            (Some(class), Spot::At(_)) => Part::But(class),
        }
    }
}
