//! State that the process before left is counted when this one begins, and a ledger is kept for the next one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tidegate_ledger::{CallAtBackend, CallStage, Carryover, level_key};
use tidegate_limits::call::{Backend, BucketId, Cost};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Class, Hold, Policy, Timestamp};
use tidegate_runtime::Clock;

use super::decision::{CallOwner, Lane};
use super::journal::{CarriedCall, CarriedState, SchedulerEvent};
use super::ledger::GateLedger;
use super::lock::GateState;
use super::{Gate, GateSettings, policy};

/// A ledger that no process would find yet.
pub struct NewLedger {
    /// The ledger.
    pub ledger: GateLedger,
    /// Gives it the name by which the next process finds it.
    pub publish: Box<dyn FnOnce() -> io::Result<()> + Send>,
}

/// The calls of processes before that may still be at the backend, those first that have been held longest. Each holds
/// what it met until it is finished.
#[derive(Debug, Default)]
#[must_use = "they hold their slots until they are finished"]
pub struct CarriedCalls(VecDeque<(Timestamp, Hold)>);

impl CarriedCalls {
    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Since when the first one has been held: since the start of the process that was the first to count it.
    #[must_use]
    pub fn held_since(&self) -> Option<Timestamp> {
        self.0.front().map(|(since, _)| *since)
    }
}

/// How much was counted of the process before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedCounts {
    /// Departures that may still count in windows.
    pub departures: usize,
    /// Calls that may still be at the backend.
    pub calls: usize,
    /// Levels of rate limits.
    pub levels: usize,
}

impl Gate {
    /// Counts what the process before left, in windows, slots and buckets that have the same names.
    pub fn carry(&self, before: &Carryover) -> (CarriedCounts, CarriedCalls) {
        self.lock
            .change(|state, now| state.carry(before, self.lock.clock, now, |_| true))
    }

    /// Counts what a process left that hands over, as [`carry`](Self::carry) does. Its own calls are
    /// [adopted](Self::adopt); those of processes before it are held.
    pub fn carry_beside(&self, before: &Carryover) -> (CarriedCounts, CarriedCalls) {
        self.lock.change(|state, now| {
            state.carry(before, self.lock.clock, now, |call| {
                call.held_since.is_some()
            })
        })
    }

    /// Counts each window as used up, because it is not known what the process before sent.
    pub fn carry_full_windows(&self) {
        self.lock.change(|state, now| {
            state.note(now, SchedulerEvent::CarriedFull);
            state.calls().carry_full_windows(now);
        });
    }

    /// The backend is done with the calls of processes before that have been held since this moment, or longer.
    pub fn finish_carried(&self, carried: &mut CarriedCalls, held_since: Timestamp) {
        self.lock.change(|state, now| {
            let calls = &mut carried.0;
            let done = calls.partition_point(|(since, _)| *since <= held_since);
            state.note(now, SchedulerEvent::CarriedDone(done));
            for (_, hold) in calls.drain(..done) {
                state.owners.remove(&hold.place());
                // How long they took is not known.
                state.calls().finish(now, hold, Outcome::Failed, None);
            }
        });
    }

    /// Notes everything in this ledger from now on.
    ///
    /// # Errors
    /// If it cannot take its name. Then there is none.
    pub fn keep_ledger(&self, new: NewLedger) -> io::Result<()> {
        self.lock.change(|state, now| state.keep_ledger(new, now))
    }

    /// Whether the ledger, if there is one, has the regions that this policy needs.
    #[must_use]
    pub fn ledger_fits(&self, policy: &Policy) -> bool {
        let state = self.lock.lock();
        state.ledger.as_ref().is_some_and(|it| it.fits(policy))
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.lock.lock().calls().policy().clone()
    }

    /// The policy that these settings have.
    #[must_use]
    pub fn policy_of(&self, settings: &GateSettings) -> Policy {
        policy::limited(settings, self.phase())
    }
}

impl GateState {
    /// Counts what another process left: of its calls at the backend, those that `is_held` says.
    pub(super) fn carry(
        &mut self,
        before: &Carryover,
        clock: Clock,
        now: Timestamp,
        is_held: impl Fn(&CallAtBackend) -> bool,
    ) -> (CarriedCounts, CarriedCalls) {
        let carried = carried_state(before, self, clock, now, is_held);
        self.note(now, SchedulerEvent::Carried(&carried));
        let mut counts = CarriedCounts {
            calls: carried.calls.len(),
            ..CarriedCounts::default()
        };
        let calls = self.calls();
        for (limit, departures) in &carried.windows {
            for &(at, cost) in departures {
                counts.departures += usize::from(calls.carry_departure(limit, at, cost));
            }
        }
        for &(id, tokens, since) in &carried.levels {
            counts.levels += usize::from(calls.carry_tokens(now, id, tokens, since));
        }
        let holds = carried.calls.into_iter().map(|it| {
            let hold = calls.carry_call(now, it.since, it.call, it.departed);
            (it.held_since, hold)
        });
        let holds: VecDeque<_> = holds.collect();
        let held = holds.iter();
        let owners = held.map(|(since, hold)| (hold.place(), CallOwner::Before(*since)));
        self.owners.extend(owners);
        (counts, CarriedCalls(holds))
    }

    fn keep_ledger(&mut self, new: NewLedger, now: Timestamp) -> io::Result<()> {
        let calls = &mut self.lanes[Lane::Limited as usize];
        calls.keep_events();
        let mut ledger = new.ledger;
        ledger.note_all(calls, &self.owners, now);
        // Under the lock: what is noted until the next change is in the ledger that has the name.
        if let Err(error) = (new.publish)() {
            self.end_ledger();
            return Err(error);
        }
        self.ledger = Some(Box::new(ledger));
        Ok(())
    }

    /// Ends the ledger: the next process finds that nothing is known.
    fn end_ledger(&mut self) {
        if let Some(ledger) = self.ledger.take() {
            ledger.void();
        }
        // They would pile up.
        self.calls().drop_events();
    }

    /// The limits have changed. Without a new ledger, one that does not fit is void.
    pub(super) fn renew_ledger(&mut self, new: Option<NewLedger>, now: Timestamp) {
        let policy = self.lanes[Lane::Limited as usize].policy();
        let fits = self.ledger.as_ref().is_none_or(|it| it.fits(policy));
        match new {
            // An error has ended the ledger.
            Some(new) => drop(self.keep_ledger(new, now)),
            None if fits => {}
            None => self.end_ledger(),
        }
    }

    /// A bucket is gone, and its place is free for another one.
    pub(super) fn forget_level(&mut self, id: BucketId) {
        if let Some(ledger) = &mut self.ledger {
            ledger.forget_level(id);
        }
    }
}

/// State of the process before, in the words of this one. Nothing is later than `now`.
fn carried_state(
    before: &Carryover,
    state: &mut GateState,
    clock: Clock,
    now: Timestamp,
    is_held: impl Fn(&CallAtBackend) -> bool,
) -> CarriedState {
    let at = |boot_time: u64| clock.of_boot_time(boot_time).min(now);
    let windows = before.windows.iter().map(|window| {
        let departures = window.departures.iter();
        let departures = departures.filter_map(|it| Some((at(it.at), Cost::new(it.cost)?)));
        (window.name.to_string(), departures.collect())
    });
    let scheduler = &state.lanes[Lane::Limited as usize];
    let levels = scheduler.bucket_ids().filter_map(|id| {
        let key = level_key(scheduler.bucket_name(id)?);
        let level = before.levels.iter().find(|level| level.key == key)?;
        Some((id, level.tokens, at(level.at)))
    });
    let classes = &state.classes;
    let carried = |call: &CallAtBackend| {
        let class = classes.iter().position(|it| *it.name == *call.class);
        let class = class.unwrap_or_default();
        CarriedCall {
            since: at(call.at),
            held_since: call.held_since.map_or(now, |since| at(since.get())),
            call: Call::new(&*call.function, at(call.at))
                .backend(Backend(call.tag as u8))
                .class(Class(class as u32))
                .cost(Cost::new(call.cost).unwrap_or(Cost::ONE)),
            class: Arc::clone(&classes[class].name),
            departed: match call.stage {
                CallStage::Admitted => &[],
                CallStage::Sent => &[WindowStamp::Sent],
                CallStage::Replied => &[WindowStamp::Sent, WindowStamp::Replied],
            },
        }
    };
    let held = before.calls.iter().filter(|call| is_held(call));
    let mut calls: Vec<_> = held.map(carried).collect();
    calls.sort_by_key(|call| call.held_since);
    CarriedState {
        windows: windows.collect(),
        levels: levels.collect(),
        calls,
    }
}
