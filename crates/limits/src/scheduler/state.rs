//! The scheduler and its state.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::budgets::Budgets;
use super::event::LedgerEvent;
use super::forecast::Forecast;
use super::hold::{BudgetDraw, HoldState};
use super::park::{FlowKey, Parking};
use crate::call::{BucketId, Class};
use crate::policy::{LimitId, Policy, WhenFull};
use crate::queue::{Budget, CallQueue, FlowId, QueuedCall, WaitPlace};
use crate::slab::{Slab, SlabKey};
use crate::supply::{Supplier, SupplyShare};
use crate::time::Timestamp;

/// A capacity that runs out when its supply does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SupplyTarget {
    Limit(LimitId, Supplier),
    Bucket(BucketId),
}

/// Delays calls until their limits admit them, and decides whose turn it is.
///
/// A clone goes its own way from then on. Calls in flight are in flight in both.
#[derive(Clone, Debug)]
pub struct Scheduler<T> {
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) queue: CallQueue<T>,
    pub(super) parking: Parking,
    pub(super) forecast: Forecast,
    pub(super) holds: Slab<HoldState>,
    /// Empty, for what the next calls draw.
    pub(super) spare: Vec<Vec<BudgetDraw>>,
    /// Calls that wait, and are to be refused since a change.
    pub(super) to_reject: VecDeque<SlabKey>,
    /// When supplies run out.
    pub(super) expiries: BTreeSet<(Timestamp, SupplyTarget)>,
    /// The waiting calls that are bound to the server of their key, and until when.
    pub(super) bound: BTreeSet<(Timestamp, SlabKey)>,
    /// The part of every limit that is given out.
    pub(super) share: SupplyShare,
    /// The latest moment handed in: one that steps back counts as this one.
    pub(super) now: Timestamp,
    /// Joinings of the queue so far.
    pub(super) joined: u64,
    pub(super) draining: bool,
    pub(super) turn_checks: u64,
    /// When limits open that an operator closes, if that is known.
    pub(super) reopens: Option<Timestamp>,
    /// Whether [`Scheduler::events`] returns any.
    pub(super) keeps_events: bool,
    /// Events since they were taken last.
    pub(super) events: Vec<LedgerEvent>,
}

impl<T> Scheduler<T> {
    /// A scheduler at rest, at moment zero.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::with_seed(policy, 0)
    }

    /// A scheduler with a seed for the hash by which surplus callers share turns. A caller that does not know the
    /// seed cannot choose with which others it shares.
    #[must_use]
    pub fn with_seed(policy: Policy, seed: u64) -> Self {
        let classes = policy.classes().len();
        let budgets = Budgets::new(&policy, Timestamp::ZERO);
        Self {
            queue: CallQueue::new(),
            parking: Parking::new(classes, seed, budgets.second_lists()),
            budgets,
            forecast: Forecast::default(),
            holds: Slab::default(),
            spare: Vec::new(),
            to_reject: VecDeque::new(),
            expiries: BTreeSet::new(),
            bound: BTreeSet::new(),
            share: SupplyShare::FULL,
            now: Timestamp::ZERO,
            joined: 0,
            draining: false,
            turn_checks: 0,
            reopens: None,
            keeps_events: false,
            events: Vec::new(),
            policy,
        }
    }

    /// The scheduler at rest at this moment, where the clock did not begin with the process: a pace has granted nothing
    /// before it, and saves nothing up.
    #[must_use]
    pub fn beginning(mut self, now: Timestamp) -> Self {
        self.budgets = Budgets::new(&self.policy, now);
        self.now = now;
        self
    }

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// From now on [`submit`](Self::submit) refuses all calls. Waiting and running calls continue.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    /// When limits open that [`Supplier::Operator`] closes, for the retry times of refusals; `None` if that is not
    /// known.
    pub const fn set_reopens(&mut self, reopens: Option<Timestamp>) {
        self.reopens = reopens;
    }

    /// Whether there is a place in the queue for one more call.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.calls.len() < self.policy.capacity() as usize
    }

    /// Calls in the queue, including those set aside, without those at the door. Without a door,
    /// the number can be above the capacity: after a reload, and because requeued calls keep their
    /// place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.calls.len() - self.at_door()
    }

    /// Calls at the door of a full queue: the number above the capacity. They take their turns like
    /// all others.
    #[must_use]
    pub fn at_door(&self) -> usize {
        let capacity = self.policy.capacity() as usize;
        match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { .. } => self.queue.calls.len().saturating_sub(capacity),
        }
    }

    /// Calls that were run and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.holds.len()
    }

    /// Whether no call waits or is in flight, and no draw is open that only the end of a call could bring back.
    /// Departures may still count in their windows.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.queue.calls.is_empty()
            && self.holds.is_empty()
            && self.parking.is_at_rest()
            && self.budgets.is_at_rest()
    }

    /// Time only goes forward here. Supplies run out at their own moment, whatever comes next.
    #[inline]
    pub(super) fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.now = self.now.max(now);
        self.expire_supplies();
        self.now
    }

    pub(super) fn count_joining(&mut self) -> u64 {
        self.joined += 1;
        self.joined
    }

    pub(super) fn find_limit(&self, name: &str) -> Option<LimitId> {
        let mut limits = self.budgets.limits.iter();
        let index = limits.position(|limiter| &*limiter.rule.name == name)?;
        Some(index as LimitId)
    }

    /// The class itself, or the last one for a class that an older policy had.
    #[inline]
    pub(super) fn clamp(&self, class: Class) -> Class {
        Class(class.0.min(self.policy.classes().len() as u32 - 1))
    }

    /// The flow for calls like these.
    pub(super) fn flow(&mut self, key: FlowKey) -> FlowId {
        let flow = self.parking.flow(key);
        self.queue.make_flows(self.parking.flows());
        flow
    }

    pub(super) fn refresh_head(&mut self, flow: FlowId) {
        let head = self.queue.head(flow);
        self.parking.set_head(flow, head, self.now);
    }

    /// The budget that holds a waiting call, or held it last.
    pub(super) fn held_by(&self, waiting: &QueuedCall<T>) -> Option<Budget> {
        match waiting.place {
            WaitPlace::Flow(flow) => waiting.held_by.or(self.parking.parked_at(flow)),
            WaitPlace::Aside(_) | WaitPlace::Passed => waiting.held_by,
        }
    }
}
