//! The gate as the stages see it: a call asks for its turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use tidegate_limits::call::{Backend, ServerNumber};
use tidegate_limits::scheduler::{Refusal, WaitReport};
use tidegate_limits::{Call, Class, Hold, Ticket, Timestamp};
use tidegate_runtime::Clock;

use super::ask::{Ask, Claimed};
use super::carry::NewLedger;
use super::decision::{CallOwner, Lane, RefusalCause, WaitingCall};
use super::early::Attempt;
use super::lock::{BEAT, GateLock, GateState};
use super::observe::CallEvent;
use super::peer_calls::RunStep;
use super::permit::{GateCall, Permit};
use super::policy;
use super::promotion::{EffectiveClass, PromotedRecords, guest_of};
use super::settings::{GateSettings, USER};
use super::shadow::CallEnd;
use super::user_work::Promotion;
use super::waiting::{Admission, SubmitOutcome};
use crate::call::steps::{GateStep, ReplayFacts, StepKind};
use crate::call::{self, Destination, Fault, Generation, Record, Role};

/// By how much the time of day must differ from where fixed windows are before they move. A clock that is only slewed
/// drifts by half a millisecond a second.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Admits calls when their turn has come and their limits open.
#[derive(Clone)]
pub struct Gate {
    pub(super) lock: Arc<GateLock>,
}

impl Gate {
    /// No call waits yet.
    #[must_use]
    pub fn new(settings: &GateSettings, clock: Clock) -> Self {
        Self {
            lock: Arc::new(GateLock::new(settings, clock)),
        }
    }

    /// Asks for a call's turn: resolves the call, and admits it now or else queues it.
    pub fn ask(&self, mut ask: Ask, record: &Arc<Record>) -> Admission {
        if self.lock.draining.load(Ordering::Relaxed) {
            return Admission::Decided(Err(call::Refusal::draining()));
        }
        let lane = Lane::of(ask.limited);
        let backend = ask.destination;
        let mut call = GateCall {
            lock: Arc::clone(&self.lock),
            lane,
            backend,
            settling: ask.claimed.settling.take(),
            shadowed: None,
            class: EffectiveClass::Own,
            promotion: Promotion::None,
            record: Arc::clone(record),
            foreign: ask.foreign.map(|foreign| foreign.id),
        };
        let mut promoted = PromotedRecords::default();
        let submitted = self.lock.change_in(lane, |state, now| {
            let place = ask.place.take();
            let place = place.and_then(|digest| state.take_place(digest, lane, now));
            if let Some(place) = &place {
                // Its clock goes on.
                ask.arrived = place.arrived;
                call.record
                    .note(|facts| facts.rare_mut().place_of = place.call);
            }
            let mut resolved = state.resolve(&mut call, ask, now, &mut promoted);
            let admitted = state.admit_at_once(lane, now, resolved.call);
            if let (Some(place), Some(replay)) = (&place, &mut resolved.replay)
                && place.call.is_some()
            {
                let what = StepKind::Resumed(place.since.as_nanos());
                let at = now.as_nanos();
                replay.steps.push(GateStep { at, what });
            }
            // With the answer, if that is there at once.
            call.note_arrival(now, resolved.class, resolved.replay, admitted.is_ok());
            let works_on = resolved.works_on;
            match admitted {
                Ok(hold) => {
                    state.own(lane, hold.place(), call.foreign.map(CallOwner::Peer));
                    if let Some(guest) = works_on {
                        let work = state.begin_user_work(&self.lock, guest, now, &mut promoted);
                        call.promotion = Promotion::UserWork(work);
                    }
                    Ok(SubmitOutcome::AtOnce(hold, now))
                }
                Err(call_resolved) => {
                    let place = place.map(|place| place.ticket);
                    let asked = (call_resolved, place);
                    state.queue(&mut call, asked, works_on, now, &mut promoted)
                }
            }
        });
        drop(promoted);
        match submitted {
            Ok(submission) => call.answer(submission),
            Err(refusal) => Admission::Decided(Err(self.lock.refusal(&refusal, backend))),
        }
    }

    /// Puts a call that could not be sent back in its turn, with all limits undrawn, and asks for
    /// it again. Its backend gets one probe at a time, unless the failure is our own. If waiting
    /// calls are being refused, so is this one.
    pub fn ask_again(&self, permit: Permit, fault: Fault) -> Admission {
        let generation = permit.generation;
        let (call, hold) = permit.into_held();
        call.record.note(|facts| facts.draws_no_quota());
        let mut would = None;
        let mut extended = None;
        let (now, submission) = self.lock.change_in(call.lane, |state, now| {
            let place = hold.place();
            state.disown(call.lane, place, call.foreign);
            let lane = &mut state.lanes[call.lane as usize];
            let server = lane.server_at(place);
            if state.refuses_all {
                lane.give_back(now, hold);
                state.note_run(call.lane, place, RunStep::GivenBack);
                would = state.observe_call(now, call.shadowed, CallEvent::Ended(CallEnd::Left));
                return (now, None);
            }
            let ticket = lane.requeue(now, hold, WaitingCall::of(call.foreign));
            state.note_requeued(call.lane, place, ticket, fault);
            extended = state.extend_one(call.lane, ticket, now);
            if let (Some(server), true) = (server, fault != Fault::Own) {
                state.server_failed(server, generation, now);
            } else if fault != Fault::Own {
                let spread = state.entropy.random_range(0.5..1.0);
                state.backends.failed(call.backend, generation, now, spread);
                state.shut(call.backend, now);
            }
            (
                now,
                Some(state.admit_or_queue(ticket, now, &call, Attempt::Again)),
            )
        });
        let what = match submission {
            Some(_) => StepKind::Requeued,
            None => StepKind::GivenBack,
        };
        call.record.note(|facts| {
            facts.step(now, what);
            if extended.is_some() {
                facts.step(now, StepKind::Deadline(extended.map(Timestamp::as_nanos)));
            }
            if submission.is_none() {
                facts.set_would(would);
            }
        });
        match submission {
            Some(submission) => call.answer(submission),
            None => Admission::Decided(Err(call::Refusal::draining())),
        }
    }

    /// Until when such a call may wait (`None` without a bound), and how urgent it is.
    #[must_use]
    pub fn patience(&self, ask: &Ask) -> (Option<Timestamp>, Class) {
        let state = self.lock.lock();
        let class = state.class(&ask.class);
        (state.deadline(class, ask, ask.arrived), class)
    }

    /// Runs the one timer, until dropped.
    pub async fn keep_time(&self) {
        Arc::clone(&self.lock).keep_time().await;
    }

    /// Takes new settings: later calls meet the new limits, waiting calls keep their
    /// places, used slots stay used.
    /// Returns the instant of the change.
    pub fn apply(&self, settings: &GateSettings) -> Timestamp {
        self.apply_with(settings, None)
    }

    /// Applies new limits with a ledger that has the regions for the new limits, if the present one does not.
    pub fn apply_with(&self, settings: &GateSettings, ledger: Option<NewLedger>) -> Timestamp {
        self.apply_in(settings, self.phase(), ledger)
    }

    /// Aligns fixed windows to the time of day as it is now, if it was set since; else the same as
    /// [`apply`](Self::apply).
    pub fn align(&self, settings: &GateSettings) -> Timestamp {
        self.apply_in(settings, self.phase_now(), None)
    }

    fn apply_in(
        &self,
        settings: &GateSettings,
        phase: Duration,
        ledger: Option<NewLedger>,
    ) -> Timestamp {
        let limited = policy::limited(settings, phase);
        let unlimited = policy::unlimited(settings);
        let (at, publish) = self.lock.change(|state, now| {
            state.phase = phase;
            state.max_wait = settings.max_wait;
            state.classes.clone_from(&settings.classes);
            state.promotions.apply(settings.promote_for);
            state.when_full = settings.when_full;
            state.early_refusal = settings.early_refusal;
            state.acts.set_usual_ramp(settings.ramp);
            state.servers.apply(&settings.servers, now);
            let [calls, free] = &mut state.lanes;
            calls.apply(now, limited);
            free.apply(now, unlimited);
            state.observer.apply(now, settings, phase);
            let publish = state.renew_ledger(ledger, now);
            // The log line of the reload has the instant.
            state.is_unlogged.set(false);
            (now, publish)
        });
        if let Some(publish) = publish {
            // An error has ended the ledger.
            let _ = self.publish_ledger(publish);
        }
        // A change of its own: in the log, what the new limits are given comes after them.
        if !self.lock.lock().acts.overrides.is_empty() {
            self.lock.change(GateState::override_again);
        }
        at
    }

    /// How far past the epoch the clock began to count, as fixed windows are aligned.
    #[must_use]
    pub fn phase(&self) -> Duration {
        self.lock.lock().phase
    }

    /// Whether the time of day was set since fixed windows were aligned to it, so that they follow the wrong second.
    #[must_use]
    pub fn is_out_of_step(&self) -> bool {
        self.phase() != self.phase_now()
    }

    /// The phase that fixed windows should have. What differs by less than a step of the clock is the same.
    fn phase_now(&self) -> Duration {
        let (kept, now) = (self.phase(), self.lock.clock.phase());
        match kept.abs_diff(now) < CLOCK_STEP {
            true => kept,
            false => now,
        }
    }

    /// A destination leads to another backend from now on, which counts as up. Calls that wait for
    /// the old one go to it.
    pub fn moved(
        &self,
        destination: Destination,
        server: Option<ServerNumber>,
        generation: Generation,
    ) {
        self.lock.change(|state, now| {
            if let Some(server) = server {
                state.server_moved(server, generation, now);
            } else if state.backends.moved(destination, generation) {
                state.open(destination, now);
            }
        });
    }

    /// From now on [`wait_for_change`](Self::wait_for_change) returns at the next change.
    pub fn watch(&self) {
        self.lock.watched.store(true, Ordering::Release);
    }

    /// Waits until something has changed since [`watch`](Self::watch), also before this call.
    pub async fn wait_for_change(&self) {
        self.lock.changed.notified().await;
    }

    /// From now on new calls are refused; waiting calls continue.
    pub fn drain(&self) {
        self.lock.draining.store(true, Ordering::Relaxed);
    }

    /// Refuses all waiting calls, and calls that would wait again because they cannot be sent. Calls at a backend are given up
    /// when they are polled next.
    pub fn refuse_all(&self) {
        self.drain();
        self.lock.gives_up.store(true, Ordering::Release);
        self.lock.change(|state, now| {
            state.refuses_all = true;
            // If no call waits, no log line has this instant.
            state.is_unlogged.set(true);
            let mut gone = Vec::new();
            for lane in &mut state.lanes {
                while let Some((waiter, WaitReport { delays, .. })) = lane.evict(now) {
                    gone.push(waiter.peer);
                    waiter.refuse(RefusalCause::Draining, delays, now, &mut None);
                }
            }
            for id in gone {
                state.note_gone(id);
            }
        });
    }

    /// Whether calls at a backend are given up: the time of the drain is over.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        self.lock.gives_up.load(Ordering::Acquire)
    }

    /// Waits until the queue has room, if a full queue holds the next call back.
    pub async fn room(&self) {
        loop {
            let room = self.lock.room.notified();
            if !self.lock.full.load(Ordering::Acquire) {
                return;
            }
            room.await;
        }
    }
}

impl GateState {
    /// Admits a call that need not wait, if there is nothing else to do.
    fn admit_at_once(&mut self, lane: Lane, now: Timestamp, call: Call) -> Result<Hold, Call> {
        if !self.has_nothing_to_do(now) || self.peer.is_some() {
            return Err(call);
        }
        let calls = &mut self.lanes[lane as usize];
        let hold = calls.run_at_once(now, call)?;
        if lane == Lane::Limited {
            self.peak = self.peak.max(calls.in_flight());
        }
        self.wake.get_or_insert(now + BEAT);
        Ok(hold)
    }
}

/// A call as the scheduler gets it.
struct ResolvedCall {
    call: Call,
    /// The name of the class in which it waits.
    class: Arc<str>,
    /// The facts that only a replay needs, if the log has them.
    replay: Option<Box<ReplayFacts>>,
    /// The guest on which the call is user work.
    works_on: Option<Box<str>>,
}

impl GateState {
    /// Finds what the scheduler must know about a call: its deadline, and the class in which it waits.
    #[inline]
    fn resolve(
        &mut self,
        call: &mut GateCall,
        ask: Ask,
        now: Timestamp,
        promoted: &mut PromotedRecords,
    ) -> ResolvedCall {
        let own = self.class(&ask.class);
        let deadline = match ask.foreign {
            Some(foreign) => foreign.deadline,
            None => self.deadline(own, &ask, now),
        };
        let guest = match self.looks_at_guest(call.lane, ask.role) {
            true => guest_of(ask.target.as_deref(), &call.record),
            false => None,
        };
        if guest.is_some() {
            let user = &self.classes[USER.0 as usize];
            promoted.class = Some(Arc::clone(&user.name));
        }
        let class = self.effective_class(own, ask.role, guest.as_deref(), now);
        if class != own {
            promoted.note_class(&call.record);
            call.class = EffectiveClass::Users;
        }
        if call.lane == Lane::Limited && ask.role == Role::Follows {
            call.promotion = Promotion::Read(ask.target);
        }
        let name = Arc::clone(&self.classes[class.0 as usize].name);
        let Claimed {
            caller,
            weight,
            cost,
            tokens,
            bucket,
            quotas,
            is_settled,
            ..
        } = ask.claimed;
        let replay = self.keeps_steps.then(|| {
            Box::new(ReplayFacts {
                weight,
                cost,
                tokens,
                bucket,
                quotas: quotas.clone(),
                is_settled,
                deadline,
                steps: Vec::with_capacity(5),
            })
        });
        let resolved = Call::new(ask.function, ask.arrived)
            .backend(Backend(call.backend as u8))
            .server(ask.server)
            .class(class)
            .caller(caller)
            .weight(weight)
            .cost(cost)
            .tokens(tokens)
            .bucket(bucket)
            .quotas(quotas)
            .is_settled(is_settled)
            .deadline(deadline);
        if call.lane == Lane::Limited {
            let id = || call.record.note(|facts| facts.id);
            call.shadowed = self.observer.begin_call(now, &resolved, &name, id);
        }
        ResolvedCall {
            call: resolved,
            class: name,
            replay,
            // A call that promotes others does so once it has a place. If it needs none, no other waits.
            works_on: guest.filter(|_| ask.role == Role::Acts && class == own),
        }
    }

    /// Gives a call a place in the queue, then admits every call that may run.
    fn queue(
        &mut self,
        call: &mut GateCall,
        (resolved, place): (Call, Option<Ticket>),
        works_on: Option<Box<str>>,
        now: Timestamp,
        promoted: &mut PromotedRecords,
    ) -> Result<SubmitOutcome, Refusal> {
        let lane = &mut self.lanes[call.lane as usize];
        let waiter = WaitingCall::of(call.foreign);
        let submitted = match place {
            Some(place) => lane.resume(now, place, resolved, waiter),
            None => lane.submit(now, resolved, waiter),
        };
        let ticket = match submitted {
            Ok(ticket) => ticket,
            Err((refusal, _)) => {
                let would =
                    self.observe_call(now, call.shadowed, CallEvent::Ended(CallEnd::Refused));
                call.record.note(|facts| {
                    facts.step(now, StepKind::Refused);
                    facts.set_would(would);
                });
                return Err(refusal);
            }
        };
        if let Some(guest) = works_on {
            let work = self.begin_user_work(&call.lock, guest, now, promoted);
            call.promotion = Promotion::UserWork(work);
        }
        // A call that has a place has waited before.
        let attempt = place.map_or(Attempt::First, |_| Attempt::Again);
        Ok(self.admit_or_queue(ticket, now, call, attempt))
    }
}
