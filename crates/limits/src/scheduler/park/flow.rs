//! Flows of calls, and what waits at one limit, bucket or quota.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::call::{Call, Caller, Class};
use crate::policy::LimitId;
use crate::queue::account::WaitAccount;
use crate::queue::fair::{ClassFilter, FairOrder};
use crate::queue::{Budget, BudgetSet, FlowId};
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// The properties that all calls of a flow share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) caller: Caller,
    pub(crate) class: Class,
    pub(crate) meets: BudgetSet,
}

impl FlowKey {
    pub(crate) fn of(call: &Call, meets: &BudgetSet) -> Self {
        Self {
            caller: call.caller,
            class: call.class,
            meets: meets.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) key: FlowKey,
    /// The first call of this flow, with its arrival.
    pub(super) head: Option<(u64, SlabKey)>,
    /// Where it is parked; a flow with a head and no wait list is ready.
    pub(super) parked_at: Option<WaitList>,
    /// The budget at which the head was passed over, if it was.
    pub(super) passed: Option<Box<PassedHead>>,
    pub(super) is_resting: bool,
    /// The causes of the wait of its calls.
    pub(super) account: WaitAccount,
    /// The present account, for calls that join before it changes.
    pub(super) noted: Option<Arc<WaitAccount>>,
}

impl Flow {
    pub(super) fn new(key: FlowKey) -> Self {
        Self {
            key,
            head: None,
            parked_at: None,
            passed: None,
            is_resting: false,
            account: WaitAccount::new(),
            noted: None,
        }
    }
}

/// A head was passed over.
#[derive(Clone, Debug)]
pub(super) struct PassedHead {
    /// From when on it may claim.
    pub(super) due: Timestamp,
    /// Where its turn has come and there was room.
    pub(super) turns: Vec<Budget>,
    /// Claims of this call that lapsed unused.
    pub(super) lapses: u32,
}

/// A flow whose head was passed over, during a reload.
pub(crate) struct CarriedFlow {
    pub(crate) head: (u64, SlabKey),
    /// Where the flow is parked.
    pub(crate) at: Budget,
    pub(super) passed: Box<PassedHead>,
    pub(super) claims: Vec<(Budget, RoomClaim)>,
}

impl CarriedFlow {
    /// The flow under another policy: `heir` maps each budget to its present one, if the call still meets it.
    pub(crate) fn map(mut self, heir: impl Fn(Budget) -> Option<Budget>) -> Option<Self> {
        self.at = heir(self.at)?;
        let turns = self.passed.turns.into_iter();
        self.passed.turns = turns.filter_map(&heir).collect();
        let claims = self.claims.into_iter();
        let claims = claims.filter_map(|(budget, claim)| Some((heir(budget)?, claim)));
        self.claims = claims.collect();
        Some(self)
    }
}

impl PassedHead {
    pub(super) fn may_claim(&self, budget: Budget, now: Timestamp) -> bool {
        self.due <= now && self.turns.contains(&budget)
    }
}

/// Flows that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitList {
    /// At a limit, bucket or quota.
    At(Budget),
    /// At a limit, those of the class for which it keeps something.
    Kept(LimitId),
}

impl WaitList {
    pub(crate) const fn budget(self) -> Budget {
        match self {
            Self::At(budget) => budget,
            Self::Kept(limit) => Budget::Limit(limit),
        }
    }
}

/// Flows that wait for a limit, but not with the others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SecondList {
    /// Calls of the class for which the limit keeps something.
    Kept(Class),
    /// Calls that wait for any server. This is their limit; the other is of one server.
    AnyServer(LimitId),
}

/// The flows that wait at a limit, bucket or quota.
#[derive(Clone, Debug, Default)]
pub(super) struct BudgetQueue {
    pub(super) order: FairOrder,
    /// By arrival.
    pub(super) claims: BTreeMap<(u64, FlowId), RoomClaim>,
    /// The sum of the claims.
    pub(super) claimed: u64,
    /// For how long room was kept, over all claims that are over.
    pub(super) idle: Duration,
    pub(super) second: Option<SecondList>,
    pub(super) all: LastCheck,
    /// The class for which it keeps something.
    pub(super) kept: LastCheck,
}

/// A flow is first among those at a limit, or has room kept there.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoomClaim {
    /// How much of the limit it is for.
    pub(super) draw: u64,
    pub(super) since: Timestamp,
    /// `None` if the flow is here, at the front; or else when the claim lapses.
    pub(super) until: Option<Timestamp>,
}

/// The flow that was asked last, and the result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastCheck {
    pub(super) last_flow: Option<FlowId>,
    /// The moment in `openings`.
    pub(super) opens: Option<Timestamp>,
    /// On the `changed` list.
    pub(super) changed: bool,
}

impl BudgetQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.claims.is_empty()
    }

    #[inline]
    pub(super) fn last_check(&mut self, list: WaitList) -> &mut LastCheck {
        match list {
            WaitList::At(_) => &mut self.all,
            WaitList::Kept(_) => &mut self.kept,
        }
    }

    /// The class for which it keeps something.
    #[inline]
    pub(super) const fn kept_for(&self) -> Option<Class> {
        match self.second {
            Some(SecondList::Kept(class)) => Some(class),
            Some(SecondList::AnyServer(_)) | None => None,
        }
    }

    /// The flows of the order that wait at this wait list.
    #[inline]
    pub(super) fn part(&self, list: WaitList) -> ClassFilter {
        match (self.kept_for(), list) {
            (None, _) => ClassFilter::All,
            (Some(class), WaitList::Kept(_)) => ClassFilter::Only(class),
            (Some(class), WaitList::At(_)) => ClassFilter::But(class),
        }
    }
}
