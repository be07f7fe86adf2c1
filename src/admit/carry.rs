//! State that the process before left is counted when this one begins, and a ledger is kept for the next one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_ledger::{CallAtBackend, CallStage, Carryover, level_key};
use tidegate_limits::call::{BucketId, Cost};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Class, Hold, Policy, Timestamp};
use tidegate_runtime::Clock;

use super::decision::{CallOwner, CarriedHold, Lane};
use super::jobs::CarriedJobHold;
use super::journal::{CarriedCall, CarriedState, SchedulerEvent};
use super::ledger::{GateLedger, LedgerPlan, backend_of, pace_keys};
use super::lock::GateState;
use super::settings::AfterCrash;
use super::{Gate, GateSettings, policy};
use crate::call::jobs::CarriedJob;
use crate::call::ticket::TicketSecret;

/// A ledger that no process would find yet.
pub struct NewLedger {
    /// The ledger.
    pub ledger: GateLedger,
    /// Gives it the name by which the next process finds it.
    pub publish: PublishLedger,
}

/// Gives a ledger its name, which can take long on a slow disk.
pub type PublishLedger = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// The calls of processes before that may still be at the backend, in the order of their ends. Each holds what it met until
/// it is finished.
#[derive(Debug, Default)]
#[must_use = "they hold their slots until they are finished"]
pub struct CarriedCalls(VecDeque<(Timestamp, Hold)>, Vec<CarriedJob>);

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

    /// The jobs of processes before, which end as others do. Each is taken once.
    pub fn take_jobs(&mut self) -> Vec<CarriedJob> {
        std::mem::take(&mut self.1)
    }

    /// Until when the first one is held.
    #[must_use]
    pub fn held_until(&self) -> Option<Timestamp> {
        self.0.front().map(|(until, _)| *until)
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
    /// Places in the queue that clients were promised.
    pub places: usize,
}

impl Gate {
    /// Counts what the process before left, in windows, slots and buckets that have the same names.
    pub fn carry(
        &self,
        before: &Carryover,
        after_crash: AfterCrash,
    ) -> (CarriedCounts, CarriedCalls) {
        self.carry_those(before, after_crash, |_| true)
    }

    /// Counts what a process left that hands over, as [`carry`](Self::carry) does. Its own calls are
    /// [adopted](Self::adopt); those of processes before it are held.
    pub fn carry_beside(
        &self,
        before: &Carryover,
        after_crash: AfterCrash,
    ) -> (CarriedCounts, CarriedCalls) {
        let is_held = |call: &CallAtBackend| call.held_since.is_some() || call.job.is_some();
        self.carry_those(before, after_crash, is_held)
    }

    pub(super) fn carry_those(
        &self,
        before: &Carryover,
        after_crash: AfterCrash,
        is_held: impl Fn(&CallAtBackend) -> bool,
    ) -> (CarriedCounts, CarriedCalls) {
        let clock = self.lock.clock;
        let (now, counts, holds, jobs) = self.lock.change(|state, now| {
            let (counts, holds, jobs) = state.carry(before, clock, now, after_crash, is_held);
            (now, counts, holds, jobs)
        });
        let jobs = jobs.into_iter().map(|job| job.into_job(&self.lock, now));
        (counts, CarriedCalls(holds, jobs.collect()))
    }

    /// Counts each window as used up, because it is not known what the process before sent.
    pub fn carry_full_windows(&self) {
        self.lock.change(|state, now| {
            state.note(now, SchedulerEvent::CarriedFull);
            state.calls().carry_full_windows(now);
        });
    }

    /// The backend is done with the calls of processes before that are held until this moment.
    pub fn finish_carried(&self, carried: &mut CarriedCalls, held_until: Timestamp) {
        self.lock.change(|state, now| {
            let calls = &mut carried.0;
            let done = calls.partition_point(|(until, _)| *until <= held_until);
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
        let publish = self.lock.change(|state, now| state.keep_ledger(new, now));
        self.publish_ledger(publish)
    }

    /// Gives the present ledger its name. Not under the lock: until then the one that has the name says that it is another.
    pub(super) fn publish_ledger(&self, publish: PublishLedger) -> io::Result<()> {
        publish().inspect_err(|_| self.lock.change(|state, _| state.end_ledger()))
    }

    /// The ledger that this policy needs, with room for all calls that there are.
    #[must_use]
    pub fn plan_ledger(&self, policy: &Policy) -> LedgerPlan {
        self.lock.lock().plan_ledger(policy)
    }

    /// Whether there is a ledger that has the regions of this plan.
    #[must_use]
    pub fn ledger_fits(&self, plan: &LedgerPlan) -> bool {
        let state = self.lock.lock();
        state.ledger.as_ref().is_some_and(|it| it.fits(plan))
    }

    /// Whether more happens than the ledger has room for, so that the next process would know nothing.
    #[must_use]
    pub fn is_ledger_exceeded(&self) -> bool {
        let state = self.lock.lock();
        state.ledger.as_ref().is_some_and(|it| it.is_exceeded())
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
    fn carry(
        &mut self,
        before: &Carryover,
        clock: Clock,
        now: Timestamp,
        after_crash: AfterCrash,
        is_held: impl Fn(&CallAtBackend) -> bool,
    ) -> (
        CarriedCounts,
        VecDeque<(Timestamp, Hold)>,
        Vec<CarriedJobHold>,
    ) {
        let mut carried = carried_state(before, self, clock, now, is_held);
        let (of_jobs, others) = carried.calls.into_iter().partition(|it| it.job.is_some());
        let of_jobs: Vec<CarriedCall> = of_jobs;
        carried.calls = others;
        hold_until(&mut carried.calls, after_crash);
        self.note(now, SchedulerEvent::Carried(&carried));
        let mut counts = CarriedCounts {
            calls: carried.calls.len() + of_jobs.len(),
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
        for (limit, tokens, since) in &carried.paces {
            counts.levels += usize::from(calls.carry_pace(now, limit, *tokens, *since));
        }
        self.kept_places.secret = TicketSecret(before.secret);
        counts.places = self.carry_places(&before.places, clock, now);
        let mut holds = VecDeque::new();
        for it in carried.calls {
            let owner = CallOwner::Before(it.hold());
            let hold = self.calls().carry_call(now, it.since, it.call, it.departed);
            self.owners.insert(hold.place(), owner);
            holds.push_back((it.held_until, hold));
        }
        let jobs = of_jobs.into_iter().filter_map(|call| {
            let record = call.job?;
            Some(self.carry_job(now, call, record))
        });
        let jobs = jobs.collect();
        (counts, holds, jobs)
    }

    /// Never smaller than the present ledger: until the new one has its place, calls come under the policy of that one.
    fn plan_ledger(&self, policy: &Policy) -> LedgerPlan {
        let places = self.lanes[Lane::Limited as usize].places().count() as u32;
        let noted = self.ledger.as_ref().map_or(0, |it| it.calls_max());
        LedgerPlan::of(policy, places.max(noted), self.kept_places.secret)
    }

    fn keep_ledger(&mut self, new: NewLedger, now: Timestamp) -> PublishLedger {
        let calls = &mut self.lanes[Lane::Limited as usize];
        calls.keep_events();
        let mut ledger = new.ledger;
        ledger.note_all(calls, &self.owners, &self.jobs, now);
        for (digest, place) in self.kept_places.iter() {
            ledger.keep_place(digest, place);
        }
        if let Some(before) = &mut self.ledger {
            ledger.keep_times(before);
            before.move_on();
        }
        self.ledger = Some(Box::new(ledger));
        new.publish
    }

    /// Ends the ledger: the next process finds that nothing is known.
    fn end_ledger(&mut self) {
        if let Some(ledger) = self.ledger.take() {
            ledger.void();
        }
        // They would pile up.
        self.calls().drop_events();
    }

    /// The limits have changed. Without a new ledger, one that does not fit is void. Returns what gives the new one its name.
    pub(super) fn renew_ledger(
        &mut self,
        new: Option<NewLedger>,
        now: Timestamp,
    ) -> Option<PublishLedger> {
        let plan = self.plan_ledger(self.lanes[Lane::Limited as usize].policy());
        let fits = self.ledger.as_ref().is_none_or(|it| it.fits(&plan));
        match new {
            Some(new) => return Some(self.keep_ledger(new, now)),
            None if fits => {}
            None => self.end_ledger(),
        }
        None
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
    let paces = pace_keys(scheduler.policy()).filter_map(|(_, name, key)| {
        let level = before.levels.iter().find(|level| level.key == key)?;
        Some((name.to_string(), level.tokens, at(level.at)))
    });
    let classes = &state.classes;
    let carried = |call: &CallAtBackend| {
        let class = classes.iter().position(|it| *it.name == *call.class);
        let class = class.unwrap_or_default();
        let (backend, server) = backend_of(call.tag);
        CarriedCall {
            since: at(call.at),
            held_since: call.held_since.map_or(now, |since| at(since.get())),
            held_until: now,
            usual: (call.usual_ms > 0).then(|| Duration::from_millis(call.usual_ms.into())),
            call: Call::new(&*call.function, at(call.at))
                .backend(backend)
                .server(server)
                .class(Class(class as u32))
                .cost(Cost::new(call.cost).unwrap_or(Cost::ONE)),
            class: Arc::clone(&classes[class].name),
            job: call.job,
            departed: match call.stage {
                CallStage::Admitted => &[],
                CallStage::Sent => &[WindowStamp::Sent],
                CallStage::Replied => &[WindowStamp::Sent, WindowStamp::Replied],
            },
        }
    };
    let held = before.calls.iter().filter(|call| is_held(call));
    let calls = held.map(carried).collect();
    CarriedState {
        windows: windows.collect(),
        levels: levels.collect(),
        paces: paces.collect(),
        calls,
    }
}

/// Decides until when each call is held, and puts them in that order.
fn hold_until(calls: &mut [CarriedCall], after_crash: AfterCrash) {
    let lasted = |call: &CarriedCall| call.held_since.since(call.since);
    let is_late = |call: &&CarriedCall| call.usual.is_some_and(|usual| lasted(call) > usual);
    let late = calls.iter().filter(is_late).map(lasted).max();
    for call in &mut *calls {
        call.held_until = call.held_since + after_crash.hold_time(call.usual, late);
    }
    calls.sort_by_key(|call| call.held_until);
}

impl CarriedCall {
    fn hold(&self) -> CarriedHold {
        let usual = self.usual.map_or(0, |usual| usual.as_millis());
        CarriedHold {
            since: self.held_since,
            until: self.held_until,
            usual_ms: u32::try_from(usual).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Calls that had lasted this long when they were counted first, with their usual times. Returns for how long each is
    /// held after that.
    fn held<const N: usize>(
        after_crash: AfterCrash,
        calls: [(u64, Option<u64>); N],
    ) -> [Duration; N] {
        let counted = Timestamp::ZERO + seconds(1_000);
        let mut calls = calls.map(|(lasted, usual)| {
            let since = Timestamp::ZERO + seconds(1_000 - lasted);
            CarriedCall {
                call: Call::new("any", since),
                class: "".into(),
                since,
                held_since: counted,
                held_until: counted,
                usual: usual.map(seconds),
                job: None,
                departed: &[],
            }
        });
        hold_until(&mut calls, after_crash);
        assert!(calls.is_sorted_by_key(|call| call.held_until));
        calls.map(|call| call.held_until.since(counted))
    }

    #[test]
    fn a_call_is_held_as_long_as_such_calls_usually_take() {
        let held = |calls| held(AfterCrash::Usual, calls);
        assert_eq!(held([(1, Some(2)), (1, Some(90))]), [2, 90].map(seconds));
        // Nothing is known of the first.
        assert_eq!(held([(0, None), (1, Some(2))]), [2, 60].map(seconds));
    }

    #[test]
    fn a_call_that_has_lasted_longer_than_usual_holds_all_as_long_again_but_at_most_a_minute() {
        let held = |calls| held(AfterCrash::Usual, calls);
        assert_eq!(held([(5, Some(2)), (1, Some(2))]), [5, 5].map(seconds));
        assert_eq!(held([(500, Some(2)), (1, Some(2))]), [60, 60].map(seconds));
        // One that usually takes long says nothing of others.
        assert_eq!(held([(80, Some(90)), (1, Some(2))]), [2, 90].map(seconds));
    }

    #[test]
    fn a_time_of_the_operator_is_the_same_for_all() {
        let fixed = AfterCrash::Fixed(seconds(7));
        let calls = [(5, Some(2)), (1, None)];
        assert_eq!(held(fixed, calls), [7, 7].map(seconds));
    }
}
