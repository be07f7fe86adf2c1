//! A call runs, and ends: what it draws, and how that comes back.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::event::LedgerEvent;
use super::hold::{BudgetDraw, Hold, HoldState, Outcome};
use super::next::Step;
use super::park::Candidate;
use super::refusal::RefusalReason;
use super::state::Scheduler;
use crate::bucket::Tokens;
use crate::call::Call;
use crate::delay::DelayCause;
use crate::limiter::{Departures, Stake};
use crate::policy::{Limit, SetId, WindowStamp};
use crate::queue::fair::TurnAdvance;
use crate::queue::{Budget, BudgetSet, QueuedCall, Ticket, WaitPlace};
use crate::slab::SlabKey;
use crate::time::Timestamp;

/// How many lists are kept for the next calls, so that a call needs no allocation.
const SPARE_MAX: usize = 64;

const ONCE: &str = "a hold is used with the scheduler that gave it, once";

impl<T> Scheduler<T> {
    pub(super) fn run(&mut self, now: Timestamp, candidate: Candidate) -> Step<T> {
        let Candidate { flow, key, .. } = candidate;
        let mut waiting = self.queue.remove(key).expect("the head of a flow waits");
        let before = mem::take(&mut waiting.stay.before);
        let waited = self.waited_by(now, &waiting, before);
        self.budgets.discount(&waiting);
        self.forecast_without(&waiting, true);
        self.forget_bound(key, &waiting.call);
        let QueuedCall {
            call,
            payload,
            meets,
            arrival,
            ..
        } = waiting;
        let (mut set, mut server) = (meets.set, None);
        if self.budgets.has_servers() {
            (set, server) = self.bind(now, &call, set, Some(flow));
        }
        let (mut drawn, service) = self.draw_limits(now, &call, set);
        if let Some(bucket) = meets.bucket {
            let taken = self.budgets.buckets.all[bucket].draw(now, call.tokens);
            drawn.push(BudgetDraw::Bucket { bucket, taken });
        }
        let quotas = meets.quotas.as_deref().unwrap_or_default();
        let mut told = Vec::with_capacity(quotas.len());
        for &quota in quotas {
            let was_held_by = |name: &str| {
                let mut delays = waited.delays.iter();
                delays.any(
                    |delay| matches!(&delay.cause, DelayCause::Limit(limit) if **limit == *name),
                )
            };
            let took = self
                .budgets
                .quotas
                .take(now, quota, call.tokens, call.arrived, was_held_by);
            let spent = took.spent;
            drawn.push(BudgetDraw::Quota { quota, spent });
            told.push(took);
        }
        let from = drawn.iter();
        let from = from.map(|drawn| (drawn.budget(), drawn.service(service)));
        let next = self.queue.head(flow);
        let served = self.parking.served(flow, service, from, next);
        self.refresh_head(flow);
        self.unpin(&meets);
        let held = HoldState {
            since: now,
            server,
            call,
            arrival,
            service,
            served,
            drawn,
            progress: Departures::default(),
        };
        let hold = self.hold(held);
        Step::Run {
            payload,
            hold,
            waited,
            spent: told,
        }
    }

    /// A hold for a call that runs from now on.
    pub(super) fn hold(&mut self, held: HoldState) -> Hold {
        let hold = Hold(self.holds.insert(held));
        self.note(LedgerEvent::Admitted {
            place: hold.place(),
        });
        hold
    }

    /// Draws a call's share of these limits. Also returns how far the call moves tags.
    pub(super) fn draw_limits(
        &mut self,
        now: Timestamp,
        call: &Call,
        set: SetId,
    ) -> (Vec<BudgetDraw>, TurnAdvance) {
        let weight = self.policy.classes()[call.class.0 as usize].weight;
        let service = TurnAdvance::new(call.tokens, call.weight, weight);
        let mut drawn = self.spare.pop().unwrap_or_default();
        for &limit in self.budgets.sets.limits(set).iter() {
            let limiter = &mut self.budgets.limits[limit as usize];
            drawn.push(BudgetDraw::Limit {
                limit,
                is_kept: limiter.is_kept_for(now, call),
                stake: limiter.take(now, call),
            });
        }
        (drawn, service)
    }

    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        key: SlabKey,
        reason: RefusalReason,
        budget: Option<Budget>,
    ) -> Step<T> {
        let held_by = budget.or_else(|| self.held_by(&self.queue.calls[key]));
        let reason = self.because_of_the_store(reason, held_by);
        let waited = self.waited(now, Ticket(key)).unwrap_or_default();
        if let Some(Budget::Quota(key)) = held_by {
            self.budgets.quotas.refused(key);
        }
        let QueuedCall {
            call,
            payload,
            meets,
            ..
        } = self.take_out(key);
        let limit = held_by.and_then(|budget| self.budgets.name(budget));
        let refusal = self.refusal(now, reason, limit, &meets, &call, None);
        Step::Expired {
            payload,
            refusal,
            waited,
        }
    }

    /// Takes a call out of wherever it waits, without service.
    pub(super) fn take_out(&mut self, key: SlabKey) -> QueuedCall<T> {
        let waiting = self.queue.remove(key).expect("the call waits");
        self.budgets.discount(&waiting);
        self.forecast_without(&waiting, false);
        self.forget_bound(key, &waiting.call);
        if let WaitPlace::Flow(flow) = waiting.place {
            self.refresh_head(flow);
        }
        self.unpin(&waiting.meets);
        waiting
    }

    fn unpin(&mut self, meets: &BudgetSet) {
        if let Some(keys) = &meets.quotas {
            self.budgets.quotas.unpin(self.now, keys);
        }
    }

    /// The call's last byte has left: it now counts in windows with [`WindowStamp::Sent`]. Only the first report counts. Until
    /// then the call holds its slot of the window, so a late report counts too much and never too little.
    pub fn sent(&mut self, now: Timestamp, hold: &Hold) {
        self.depart(now, hold, WindowStamp::Sent);
    }

    /// The first byte of the reply came: the call now counts in windows that go by
    /// [`WindowStamp::Replied`]. Only the first time counts.
    pub fn replied(&mut self, now: Timestamp, hold: &Hold) {
        self.depart(now, hold, WindowStamp::Replied);
    }

    /// How many calls the smallest outstanding limit that this one holds lets run at `now`; `None` if it holds none.
    #[must_use]
    pub fn narrowest(&self, now: Timestamp, hold: &Hold) -> Option<u32> {
        let held = self.holds.get(hold.0).expect(ONCE);
        let limits = held.drawn.iter().filter_map(|drawn| match drawn {
            BudgetDraw::Limit { limit, .. } => Some(&self.budgets.limits[*limit as usize]),
            _ => None,
        });
        let at_once = limits.filter(|it| matches!(it.rule.limit, Limit::Outstanding { .. }));
        at_once.map(|it| it.max(now)).min()
    }

    fn depart(&mut self, now: Timestamp, hold: &Hold, stamp: WindowStamp) {
        let now = self.advance(now);
        let held = self.holds.get_mut(hold.0).expect(ONCE);
        if held.progress.departed(stamp).is_some() {
            return;
        }
        held.progress.depart(now, stamp);
        for drawn in &mut held.drawn {
            if let BudgetDraw::Limit { limit, stake, .. } = drawn {
                let limiter = &mut self.budgets.limits[*limit as usize];
                if limiter.depart(now, held.call.class, stake, stamp) {
                    self.parking.note_change(*limit);
                    if self.keeps_events {
                        self.events.push(LedgerEvent::Departed {
                            limit: *limit,
                            at: now,
                            cost: held.call.cost.get(),
                        });
                    }
                }
            }
        }
        self.note(LedgerEvent::Stamped {
            place: hold.place(),
            stamp,
        });
    }

    /// The call has ended. Its slots come back. In windows that have no reported departure, it
    /// departs now, which is the safe side.
    ///
    /// `measured` is the actual cost of the call. A bucket whose rule says so settles by it. So do the quotas and the
    /// turns of a call that [is settled](Call::is_settled): its caller and its class get back the turns that it did not
    /// use, or lose their next ones. Outstanding limits count calls and windows count departures, so neither uses it.
    pub fn finish(
        &mut self,
        now: Timestamp,
        hold: Hold,
        outcome: Outcome,
        measured: Option<Tokens>,
    ) {
        let now = self.advance(now);
        let held = self.holds.get_mut(hold.0).expect(ONCE);
        let all_drawn = mem::take(&mut held.drawn);
        let (class, tokens) = (held.call.class, held.call.tokens);
        let amended = match measured {
            Some(measured) if held.call.is_settled && measured != tokens => {
                Some(Box::new((held.call.clone(), held.served, measured)))
            }
            _ => None,
        };
        let took = match outcome {
            Outcome::Served | Outcome::Overloaded => Some(now.since(held.since)),
            Outcome::Failed => None,
        };
        self.holds.discard(hold.0);
        let waits = !self.queue.calls.is_empty();
        for drawn in &all_drawn {
            match *drawn {
                BudgetDraw::Limit { limit, stake, .. } => {
                    self.budgets.limits[limit as usize].release(now, class, stake, took);
                    if let Stake::Reserved(cost) = stake {
                        self.note(LedgerEvent::Departed {
                            limit,
                            at: now,
                            cost: cost.get(),
                        });
                    }
                }
                BudgetDraw::Bucket { bucket, taken } => {
                    let Some(bucket) = self.budgets.buckets.all.get_mut(bucket) else {
                        continue;
                    };
                    if !bucket.settle(now, taken, tokens, measured) {
                        continue;
                    }
                }
                BudgetDraw::Quota { .. } => continue,
            }
            // Where no call waits, no change matters to any.
            if waits {
                self.parking.change(drawn.budget());
            }
        }
        if let Some(amended) = amended {
            let (call, served, measured) = *amended;
            self.amend(now, &call, served, measured, &all_drawn);
        }
        self.spare(all_drawn);
        self.note(LedgerEvent::Ended {
            place: hold.place(),
            took: took.filter(|_| outcome == Outcome::Served),
        });
    }

    /// Corrects the quotas and the turns of a call that has ended by what it has cost.
    #[cold]
    fn amend(
        &mut self,
        now: Timestamp,
        call: &Call,
        served: u64,
        measured: Tokens,
        all_drawn: &[BudgetDraw],
    ) {
        let weight = self.policy.classes()[self.clamp(call.class).0 as usize].weight;
        let turn = |tokens| TurnAdvance::new(tokens, call.weight, weight);
        let (counted, settled) = (turn(call.tokens), turn(measured));
        for drawn in all_drawn {
            let budget = drawn.budget();
            if let BudgetDraw::Quota { quota, spent } = *drawn {
                let quotas = &mut self.budgets.quotas;
                quotas.amend(now, quota, spent, call.tokens, measured);
            }
            let (counted, settled) = (drawn.service(counted), drawn.service(settled));
            self.parking.correct(budget, call, counted, settled, served);
            self.parking.change(budget);
        }
    }

    /// The call was never sent. Everything it drew comes back as if it had never been drawn, except
    /// in windows with a reported departure.
    pub fn give_back(&mut self, now: Timestamp, hold: Hold) {
        let now = self.advance(now);
        let held = self.end(hold);
        self.undraw(now, &held);
        self.spare(held.drawn);
    }

    /// The call was never sent and waits again, with its turn and its deadline. It had a place, so
    /// it gets one even if the queue is full now.
    pub fn requeue(&mut self, now: Timestamp, hold: Hold, payload: T) -> Ticket {
        let now = self.advance(now);
        let held = self.end(hold);
        self.undraw(now, &held);
        let HoldState {
            mut call,
            arrival,
            drawn,
            ..
        } = held;
        self.spare(drawn);
        call.class = self.clamp(call.class);
        // Its server did not take it.
        call.server = call.server.without_key();
        let named = call.quotas.clone().unwrap_or_default();
        let meets = BudgetSet {
            set: self.budgets.set_of(&call),
            bucket: self.budgets.buckets.find(call.bucket),
            quotas: self.budgets.quotas.pin_again(now, &named),
        };
        self.join(call, payload, meets, Some(arrival))
    }

    fn end(&mut self, hold: Hold) -> HoldState {
        self.note(LedgerEvent::Ended {
            place: hold.place(),
            took: None,
        });
        self.holds.remove(hold.0).expect(ONCE)
    }

    /// Keeps a list for the next call.
    fn spare(&mut self, mut drawn: Vec<BudgetDraw>) {
        if self.spare.len() < SPARE_MAX {
            drawn.clear();
            self.spare.push(drawn);
        }
    }

    fn undraw(&mut self, now: Timestamp, held: &HoldState) {
        for drawn in &held.drawn {
            match *drawn {
                BudgetDraw::Limit { limit, stake, .. } => {
                    self.budgets.limits[limit as usize].undraw(now, held.call.class, stake);
                }
                BudgetDraw::Bucket { bucket, taken } => {
                    let Some(bucket) = self.budgets.buckets.all.get_mut(bucket) else {
                        continue;
                    };
                    bucket.undraw(now, taken);
                }
                BudgetDraw::Quota { quota, spent } => self.budgets.quotas.give_back(quota, spent),
            }
            let (budget, service) = (drawn.budget(), drawn.service(held.service));
            let (call, nothing) = (&held.call, TurnAdvance::NONE);
            self.parking
                .correct(budget, call, service, nothing, held.served);
            self.parking.change(budget);
        }
    }
}
