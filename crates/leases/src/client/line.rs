//! Where the users of one resource wait in line until they may continue.
//!
//! The line is a fair semaphore with one permit. The holder of the permit is first, and the only
//! one that looks at the clock. Dropping the future leaves the line, at any place. An operation
//! draws in the same poll in which it is admitted, so nothing can be lost.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tidegate_limits::bucket::TokenLimiter;
use tidegate_limits::pace::{BurstRatio, Pace, Pacer, Rate};
use tidegate_limits::{Timestamp, Tokens};
use tidegate_runtime::{Clock, lock};
use tokio::sync::{Notify, Semaphore};

use super::demand::{Arrivals, Peaks, REMEMBERED, slot};
use super::entitlement::{Allowance, Entitlement};
use super::options::{ResourceKind, ResourceState};

/// Timers are late by up to a millisecond or two; operations that become due meanwhile run at
/// once.
const POOL_MIN: Duration = Duration::from_millis(10);

/// Why an operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The number of waiting operations is at the bound in the resource's options.
    #[error("too many wait for this resource already")]
    TooMany,
    /// The client was closed.
    #[error("the lease client was closed")]
    Closed,
}

/// The demand of a handle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HandleDemand {
    /// Measured from use, and at least this much until something was measured.
    Measured { at_first: f64 },
    /// A fixed amount.
    Fixed(f64),
}

/// The line before one resource.
#[derive(Debug)]
pub(super) struct ResourceQueue {
    pub(super) kind: ResourceKind,
    clock: Clock,
    waiting_max: usize,
    turn: Semaphore,
    /// For the first in line: something changed.
    changed: Notify,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    entitlement: Entitlement,
    handles: BTreeMap<u64, MeasuredDemand>,
    waiting: usize,
    /// The slot of time of the last reported demand.
    told_in: u64,
    /// Of a rate: admits operations evenly.
    pacer: Option<Pacer>,
    /// Of a gauge: the taken places.
    held: u64,
}

/// The demand of one handle, and its measured use.
#[derive(Debug)]
struct MeasuredDemand {
    wants: HandleDemand,
    opened: Timestamp,
    /// The demand that waits.   operations or holders
    waiting: f64,
    in_line: usize,
    measured: Measurement,
}

#[derive(Debug)]
enum Measurement {
    Rate(Box<Arrivals>),
    Gauge { peaks: Peaks, held: u64 },
}

/// The answer to the first in line.
enum TurnAnswer {
    Taken,
    NotBefore(Timestamp),
    OnChange,
}

impl ResourceQueue {
    pub(super) fn new(
        clock: Clock,
        kind: ResourceKind,
        waiting_max: usize,
        entitlement: Entitlement,
    ) -> Self {
        Self {
            kind,
            clock,
            waiting_max: waiting_max.min(Semaphore::MAX_PERMITS),
            turn: Semaphore::new(1),
            changed: Notify::new(),
            state: Mutex::new(QueueState {
                entitlement,
                handles: BTreeMap::new(),
                waiting: 0,
                told_in: 0,
                pacer: None,
                held: 0,
            }),
        }
    }

    /// Another handle uses it too.
    pub(super) fn add_handle(&self, handle: u64, wants: HandleDemand) {
        self.with(|state, now| {
            let measured = match self.kind {
                ResourceKind::Rate => Measurement::Rate(Box::new(Arrivals::new())),
                ResourceKind::Gauge => Measurement::Gauge {
                    peaks: Peaks::new(),
                    held: 0,
                },
            };
            let demand = MeasuredDemand {
                wants,
                opened: now,
                waiting: 0.0,
                in_line: 0,
                measured,
            };
            state.handles.insert(handle, demand);
        });
    }

    pub(super) fn remove_handle(&self, handle: u64) {
        self.with(|state, _| state.handles.remove(&handle));
    }

    pub(super) fn set_wants(&self, handle: u64, wants: HandleDemand) {
        self.with(|state, _| {
            if let Some(demand) = state.handles.get_mut(&handle) {
                demand.wants = wants;
            }
        });
        self.changed.notify_one();
    }

    /// The demand of all handles together, measured now.
    pub(super) fn wants(&self) -> f64 {
        self.with(QueueState::wants)
    }

    /// Sets what may be used from now on.
    pub(super) fn entitle(&self, entitlement: Entitlement) {
        self.with(|state, _| state.entitlement = entitlement);
        self.changed.notify_one();
    }

    /// No operation is admitted any more.
    pub(super) fn close(&self) {
        self.turn.close();
        self.changed.notify_one();
    }

    /// The state of the resource with this id, whose line this is.
    pub(super) fn state(&self, id: &str) -> ResourceState {
        self.with(|state, now| {
            let needs = state.needs(now);
            let lease = state.entitlement.live(now);
            ResourceState {
                id: id.to_owned(),
                kind: self.kind,
                allowance: state.entitlement.allowance(now, needs),
                lease: lease.map(|lease| (lease.capacity, lease.expires.since(now))),
                wants: state.wants(now),
                waiting: state.waiting,
                held: state.held,
                handles: state.handles.len(),
            }
        })
    }

    /// Waits in line for `cost` operations, or for a place of a gauge. `tell` is called with the
    /// demand when that has changed enough.
    ///
    /// # Errors
    ///
    /// If too many wait, or the client was closed.
    pub(super) async fn pass(
        &self,
        handle: u64,
        cost: Tokens,
        tell: impl FnOnce(f64) + Send,
    ) -> Result<(), WaitError> {
        let mut waiting = self.join(handle, cost, tell)?;
        let _turn = self.turn.acquire().await.map_err(|_| WaitError::Closed)?;
        loop {
            let turn = self.with(|state, now| state.take(now, self.kind, handle, cost));
            let changed = self.changed.notified();
            match turn {
                TurnAnswer::Taken => {
                    waiting.is_in_line = false;
                    return Ok(());
                }
                TurnAnswer::NotBefore(at) => tokio::select! {
                    () = changed => {}
                    () = self.clock.sleep_until(at) => {}
                },
                TurnAnswer::OnChange => changed.await,
            }
            if self.turn.is_closed() {
                return Err(WaitError::Closed);
            }
        }
    }

    fn join(
        &self,
        handle: u64,
        cost: Tokens,
        tell: impl FnOnce(f64),
    ) -> Result<WaitingGuard<'_>, WaitError> {
        if self.turn.is_closed() {
            return Err(WaitError::Closed);
        }
        let wants = self.with(|state, now| {
            if state.waiting >= self.waiting_max {
                return Err(WaitError::TooMany);
            }
            state.waiting += 1;
            state.demand(handle).join(now, cost);
            // Often enough to notice a change soon, too rarely to cost anything.
            let slot = slot(now);
            if slot != state.told_in || state.waiting.is_power_of_two() {
                state.told_in = slot;
                Ok(Some(state.wants(now)))
            } else {
                Ok(None)
            }
        })?;
        let waiting = WaitingGuard {
            line: self,
            handle,
            cost,
            is_in_line: true,
        };
        if let Some(wants) = wants {
            tell(wants);
        }
        Ok(waiting)
    }

    /// A place of a gauge is free again.
    pub(super) fn give_back(&self, handle: u64) {
        self.with(|state, now| {
            state.held = state
                .held
                .checked_sub(1)
                .expect("a place is given back by the one guard that has it");
            if let Some(demand) = state.handles.get_mut(&handle) {
                demand.give_back(now);
            }
        });
        self.changed.notify_one();
    }

    /// Reads the clock inside the lock: time never goes backwards for the state.
    fn with<R>(&self, look: impl FnOnce(&mut QueueState, Timestamp) -> R) -> R {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        look(&mut state, now)
    }
}

/// An operation in line.
struct WaitingGuard<'a> {
    line: &'a ResourceQueue,
    handle: u64,
    cost: Tokens,
    /// An admitted operation leaves the line in the same step.
    is_in_line: bool,
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        if self.is_in_line {
            self.line
                .with(|state, now| state.leave_line(now, self.handle, self.cost));
        }
    }
}

impl QueueState {
    fn demand(&mut self, handle: u64) -> &mut MeasuredDemand {
        self.handles
            .get_mut(&handle)
            .expect("a waiting user keeps the handle")
    }

    fn leave_line(&mut self, now: Timestamp, handle: u64, cost: Tokens) {
        self.waiting -= 1;
        self.demand(handle).leave(now, cost);
    }

    /// The demand for the servers.
    fn wants(&mut self, now: Timestamp) -> f64 {
        let leased = self.entitlement.live(now).map_or(0.0, |it| it.capacity);
        self.sum(|demand| demand.wants(now, leased))
    }

    /// The measured need of users: what an optimistic resource uses without a grant.
    fn needs(&mut self, now: Timestamp) -> f64 {
        self.sum(|demand| demand.needs(now))
    }

    fn sum(&mut self, of: impl FnMut(&mut MeasuredDemand) -> f64) -> f64 {
        let sum: f64 = self.handles.values_mut().map(of).sum();
        sum.min(f64::MAX)
    }

    fn take(
        &mut self,
        now: Timestamp,
        kind: ResourceKind,
        handle: u64,
        cost: Tokens,
    ) -> TurnAnswer {
        let needs = self.needs_without_lease(now);
        let allowance = self.entitlement.allowance(now, needs);
        let turn = match (kind, allowance) {
            (ResourceKind::Rate, _) => take_operations(&mut self.pacer, now, allowance, cost),
            (ResourceKind::Gauge, Allowance::UpTo(capacity))
                if self.held >= capacity.floor() as u64 =>
            {
                TurnAnswer::OnChange
            }
            (ResourceKind::Gauge, _) => {
                self.held += 1;
                TurnAnswer::Taken
            }
        };
        if matches!(turn, TurnAnswer::Taken) {
            self.leave_line(now, handle, cost);
            self.demand(handle).taken();
            return turn;
        }
        // The usable amount changes by itself when the lease ends.
        let ends = self.entitlement.live(now).map(|lease| lease.expires);
        match (turn, ends) {
            (TurnAnswer::OnChange, Some(ends)) => TurnAnswer::NotBefore(ends),
            (TurnAnswer::NotBefore(at), Some(ends)) => TurnAnswer::NotBefore(at.min(ends)),
            (turn, _) => turn,
        }
    }

    /// The need, if the usable amount depends on it.
    fn needs_without_lease(&mut self, now: Timestamp) -> f64 {
        if self.entitlement.live(now).is_some() {
            0.0
        } else {
            self.needs(now)
        }
    }
}

fn take_operations(
    pacer: &mut Option<Pacer>,
    now: Timestamp,
    allowance: Allowance,
    cost: Tokens,
) -> TurnAnswer {
    let per_second = match allowance {
        Allowance::Unlimited => return TurnAnswer::Taken,
        Allowance::UpTo(per_second) => per_second.min(Rate::MAX.get()),
    };
    let Ok(rate) = Rate::new(per_second) else {
        // Less than one in 116 days, if not nothing at all. What time has brought meanwhile is
        // no more than a pool.
        return TurnAnswer::OnChange;
    };
    let pacer = pacer.get_or_insert_with(|| pacer_with(now, rate, 1.0));
    if pacer.pace().rate() != rate {
        // The pool stays in operations, not in time. A debt from a slow rate would last too long at
        // a fast one, and the savings of a fast one would be too much at a slow one.
        *pacer = pacer_with(now, rate, pacer.peek(now).min(1.0));
    }
    // An expensive operation runs when one of cost 1 could, and leaves a debt. One of cost 0 runs
    // even then.
    let needed = if cost > Tokens::ONE {
        Tokens::ONE
    } else {
        cost
    };
    if needed > Tokens::ZERO && !pacer.has(now, needed) {
        return TurnAnswer::NotBefore(pacer.available_at(now, needed));
    }
    pacer.take_more(now, cost.get(), cost.get());
    TurnAnswer::Taken
}

/// A pacer with this many operations in its pool; a negative number is a debt.
fn pacer_with(now: Timestamp, rate: Rate, operations: f64) -> Pacer {
    let pace = Pace::new(rate, BurstRatio::STRICT)
        .with_pool_min(POOL_MIN)
        .expect("10 ms are a pool");
    let mut pacer = Pacer::new(now, pace);
    // It begins with one operation.
    pacer.put_back(now, operations - 1.0);
    pacer
}

impl MeasuredDemand {
    /// The weight of a cost: a place of a gauge is one.
    fn units(&self, cost: Tokens) -> f64 {
        match self.measured {
            Measurement::Rate(_) => cost.get(),
            Measurement::Gauge { .. } => 1.0,
        }
    }

    fn join(&mut self, now: Timestamp, cost: Tokens) {
        self.in_line += 1;
        self.waiting += self.units(cost);
        match &mut self.measured {
            Measurement::Rate(arrivals) => {
                arrivals.record(now, cost.get());
                arrivals.set_waiting(now, self.waiting);
            }
            Measurement::Gauge { peaks, held } => peaks.record(now, *held as f64 + self.waiting),
        }
    }

    fn leave(&mut self, now: Timestamp, cost: Tokens) {
        self.in_line -= 1;
        // Sums of fractions may leave a trace of them.
        self.waiting = if self.in_line == 0 {
            0.0
        } else {
            (self.waiting - self.units(cost)).max(0.0)
        };
        if let Measurement::Rate(arrivals) = &mut self.measured {
            arrivals.set_waiting(now, self.waiting);
        }
    }

    fn taken(&mut self) {
        if let Measurement::Gauge { held, .. } = &mut self.measured {
            *held += 1;
        }
    }

    fn give_back(&mut self, now: Timestamp) {
        if let Measurement::Gauge { peaks, held } = &mut self.measured {
            peaks.record(now, *held as f64 + self.waiting);
            *held = held.saturating_sub(1);
        }
    }

    /// The amount to request, if this much is leased.
    fn wants(&mut self, now: Timestamp, leased: f64) -> f64 {
        self.estimated(now, |arrivals, _| arrivals.wants(now, leased))
    }

    /// The measured need: what arrives, and all that waits within a window.
    fn needs(&mut self, now: Timestamp) -> f64 {
        self.estimated(now, |arrivals, waiting| {
            arrivals.per_second(now) + waiting / REMEMBERED.as_secs_f64()
        })
    }

    fn estimated(
        &mut self,
        now: Timestamp,
        of_rate: impl FnOnce(&mut Arrivals, f64) -> f64,
    ) -> f64 {
        let at_first = match self.wants {
            HandleDemand::Fixed(wants) => return wants,
            HandleDemand::Measured { at_first } => at_first,
        };
        let measured = match &mut self.measured {
            Measurement::Rate(arrivals) => of_rate(arrivals, self.waiting),
            Measurement::Gauge { peaks, held } => peaks.most(now, *held as f64 + self.waiting),
        };
        if now.since(self.opened) < REMEMBERED {
            measured.max(at_first)
        } else {
            measured
        }
    }
}
