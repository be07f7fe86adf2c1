//! Calls of this process for which another process decides, after a hand-over.
//!
//! The calls stay in the own scheduler, which admits none by itself: it counts them, and ends those whose deadline has
//! passed. Each change of one is an event for the other process. If that one dies, the own scheduler decides again.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tidegate_handover::{ForeignId, RequeueCause, RunStage};
use tidegate_ledger::{CallAtBackend, Carryover};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::{Scheduler, Step, Ticket, Timestamp};

use super::Gate;
use super::carry::{CarriedCalls, CarriedCounts};
use super::decision::{Decision, Lane, RefusalCause, WaitingCall};
use super::lock::GateState;
use super::peer_calls::{
    CallPlace, FrozenCalls, PeerCall, PeerCalls, PeerEvent, RunStep, RunningPeerCall, next_id,
};
use super::permit::GateCall;
use super::settings::AfterCrash;
use super::user_work::Promotion;
use crate::call::{Fault, Refusal, Role};

/// How long after its deadline a call ends here if the other process has not said so. That process knows the limit that
/// held it.
const GRACE: Duration = Duration::from_millis(100);

impl Gate {
    /// Admits no call from now on, and writes the ledger no more: another process is about to decide. Returns the calls,
    /// whose changes from now on are [`peer_events`](Self::peer_events).
    #[must_use]
    pub fn freeze(&self) -> FrozenCalls {
        self.lock.change(GateState::freeze)
    }

    /// Decides again: no other process has. A ledger must be kept anew.
    pub fn thaw(&self) {
        self.lock.change(|state, _| state.decides_again());
    }

    /// Decides again, after the other process has died: counts what that one left in its ledger. Calls of its own may
    /// still be at the backend.
    pub fn take_back(
        &self,
        before: &Carryover,
        after_crash: AfterCrash,
    ) -> (CarriedCounts, CarriedCalls) {
        // Those of this process, and those that it has held itself, are counted here.
        let is_own_of_peer =
            |call: &CallAtBackend| call.foreign.is_none() && call.held_since.is_none();
        self.lock.change(|state, now| {
            // Of later ones the other process may not have read.
            let frozen = state.peer.as_ref().map_or(now, |peer| peer.frozen);
            state.calls().forget_departures_before(frozen);
        });
        let carried = self.carry_those(before, after_crash, is_own_of_peer);
        self.lock.change(|state, _| state.decides_again());
        carried
    }

    /// The other process lets a waiting call run.
    pub fn run_by_peer(&self, id: ForeignId) {
        self.lock.change(|state, now| state.run_by_peer(id, now));
    }

    /// The other process refuses a waiting call.
    pub fn refuse_by_peer(&self, id: ForeignId, refusal: Refusal) {
        self.lock.change(|state, now| {
            let Some(peer) = &mut state.peer else { return };
            let Some(&place @ CallPlace::Waits(lane, ticket)) = peer.places.get(&id) else {
                return;
            };
            peer.remove(place);
            let scheduler = &mut state.lanes[lane as usize];
            let waited = scheduler.waited(now, ticket).unwrap_or_default();
            if let Some(waiter) = scheduler.cancel(now, ticket) {
                let cause = RefusalCause::Peer(Box::new(refusal));
                waiter.refuse(cause, waited.delays, now, &mut None);
            }
        });
    }

    /// Waits for events of calls for which another process decides.
    pub async fn peer_events(&self) -> Vec<PeerEvent> {
        loop {
            let changed = self.lock.peer_changed.notified();
            if let Some(peer) = &mut self.lock.lock().peer
                && !peer.events.is_empty()
            {
                return mem::take(&mut peer.events);
            }
            changed.await;
        }
    }
}

impl GateState {
    fn freeze(&mut self, now: Timestamp) -> FrozenCalls {
        // Its file stays as it is, for the other process.
        drop(self.ledger.take());
        self.calls().drop_events();
        let mut peer = Box::new(PeerCalls::new(now));
        let mut frozen = FrozenCalls::default();
        for lane in [Lane::Limited, Lane::Unlimited] {
            let scheduler = &mut self.lanes[lane as usize];
            for place in scheduler.places() {
                // Those of processes before, and those of jobs, are in the ledger.
                let is_known = self.owners.contains_key(&place) || self.jobs.contains_key(&place);
                if lane == Lane::Limited && is_known {
                    continue;
                }
                let Some((call, since)) = scheduler.running(place) else {
                    continue;
                };
                let (call, stage) = (call.clone(), stage_of(scheduler, place));
                let id = next_id(&mut self.peer_ids);
                peer.add(CallPlace::Runs(lane, place), id);
                let class = Arc::clone(&self.classes[call.class.0 as usize].name);
                let call = PeerCall::new(id, call, class, lane);
                frozen.running.push(RunningPeerCall { call, stage, since });
            }
            let tickets = scheduler.tickets().map(|(ticket, _)| ticket);
            let mut tickets: Vec<_> = tickets.collect();
            tickets.sort_by_key(|&ticket| scheduler.waiting_call(ticket).map(|it| it.arrived));
            for ticket in tickets {
                // Its place is in the ledger, and its client comes back to the other process.
                if scheduler.is_suspended(ticket) {
                    continue;
                }
                let Some(call) = scheduler.waiting_call(ticket) else {
                    continue;
                };
                let id = next_id(&mut self.peer_ids);
                peer.add(CallPlace::Waits(lane, ticket), id);
                let class = Arc::clone(&self.classes[call.class.0 as usize].name);
                let call = call.clone();
                if let Some(waiter) = scheduler.payload_mut(ticket) {
                    waiter.peer = Some(id);
                }
                let passed_over = scheduler.times_postponed(ticket).unwrap_or_default();
                let call = PeerCall::new(id, call, class, lane);
                frozen.waiting.push(PeerCall {
                    passed_over,
                    ..call
                });
            }
            scheduler.move_deadlines(|_, deadline| deadline + GRACE);
        }
        self.peer = Some(peer);
        self.wake = Some(now);
        frozen
    }

    fn decides_again(&mut self) {
        if self.peer.take().is_some() {
            for lane in &mut self.lanes {
                lane.move_deadlines(|_, deadline| earlier(deadline, GRACE));
            }
            // Asks all.
            self.wake = Some(Timestamp::ZERO);
        }
    }

    fn run_by_peer(&mut self, id: ForeignId, now: Timestamp) {
        let Some(peer) = &mut self.peer else { return };
        let Some(&place @ CallPlace::Waits(lane, ticket)) = peer.places.get(&id) else {
            return;
        };
        let scheduler = &mut self.lanes[lane as usize];
        let Some((payload, hold, waited)) = scheduler.run_by_peer(now, ticket) else {
            return;
        };
        peer.remove(place);
        peer.add(CallPlace::Runs(lane, hold.place()), id);
        if let Some(hold) = payload.admit(hold, waited, Vec::new(), now, &mut None) {
            // Its client left at this moment.
            self.note_run(lane, hold.place(), RunStep::GivenBack);
            self.lanes[lane as usize].give_back(now, hold);
        }
    }

    /// Ends the calls whose deadline has passed, while another process decides. Returns the answer for the call that asks
    /// at this moment.
    pub(super) fn end_expired(&mut self, now: Timestamp) -> Option<Decision> {
        let mut answer = None;
        let mut wake = None;
        for lane in [Lane::Limited, Lane::Unlimited] {
            loop {
                match self.lanes[lane as usize].next_expired(now) {
                    Step::Expired {
                        payload,
                        refusal,
                        waited,
                    } => {
                        self.note_gone(payload.peer);
                        let cause = RefusalCause::Scheduler(refusal);
                        payload.refuse(cause, waited.delays, now, &mut answer);
                    }
                    Step::SleepUntil(at) => {
                        wake = Some(wake.map_or(at, |wake: Timestamp| wake.min(at)));
                        break;
                    }
                    Step::Idle | Step::Run { .. } => break,
                }
            }
        }
        self.wake = self.with_beat(wake, now);
        answer
    }

    /// Notes for the other process that a waiting call was ended here.
    pub(super) fn note_gone(&mut self, id: Option<ForeignId>) {
        let (Some(peer), Some(id)) = (&mut self.peer, id) else {
            return;
        };
        if let Some(&place) = peer.places.get(&id) {
            peer.remove(place);
            peer.events.push(PeerEvent::Left(id));
        }
    }

    /// Notes for the other process that a call waits.
    pub(super) fn note_waits(&mut self, own: &GateCall, ticket: Ticket) {
        let Some(peer) = &mut self.peer else { return };
        let lane = own.lane;
        let scheduler = &mut self.lanes[lane as usize];
        let Some(call) = scheduler.waiting_call(ticket).cloned() else {
            return;
        };
        let named = || own.record.note(|facts| facts.target.clone());
        let (role, target) = match &own.promotion {
            Promotion::None => (Role::Apart, None),
            Promotion::Read(guest) => (Role::Follows, guest.clone().or_else(named)),
            Promotion::UserWork(_) => (Role::Acts, named()),
        };
        if let Some(deadline) = call.deadline {
            scheduler.set_deadline(ticket, Some(deadline + GRACE));
        }
        let id = next_id(&mut self.peer_ids);
        peer.add(CallPlace::Waits(lane, ticket), id);
        if let Some(waiter) = scheduler.payload_mut(ticket) {
            waiter.peer = Some(id);
        }
        let class = Arc::clone(&self.classes[call.class.0 as usize].name);
        let call = PeerCall {
            role,
            target,
            ..PeerCall::new(id, call, class, lane)
        };
        peer.events.push(PeerEvent::Arrived(Box::new(call)));
    }

    /// Notes for the other process that a waiting call has another deadline and class. Returns until when it may wait here.
    pub(super) fn note_changed(
        &mut self,
        lane: Lane,
        ticket: Ticket,
        deadline: Option<Timestamp>,
        class: &Arc<str>,
    ) -> Option<Timestamp> {
        let Some(peer) = &mut self.peer else {
            return deadline;
        };
        if let Some(&id) = peer.ids.get(&CallPlace::Waits(lane, ticket)) {
            let class = Arc::clone(class);
            peer.events.push(PeerEvent::Changed {
                id,
                deadline,
                class,
            });
        }
        deadline.map(|deadline| deadline + GRACE)
    }

    /// Notes for the other process that a waiting call has left.
    pub(super) fn note_left(&mut self, lane: Lane, ticket: Ticket) {
        let Some(peer) = &mut self.peer else { return };
        if let Some(id) = peer.remove(CallPlace::Waits(lane, ticket)) {
            peer.events.push(PeerEvent::Left(id));
        }
    }

    /// Notes for the other process that a call that could not be sent waits again.
    pub(super) fn note_requeued(&mut self, lane: Lane, place: u32, ticket: Ticket, fault: Fault) {
        let Some(peer) = &mut self.peer else { return };
        if let Some(id) = peer.remove(CallPlace::Runs(lane, place)) {
            peer.add(CallPlace::Waits(lane, ticket), id);
            if let Some(waiter) = self.lanes[lane as usize].payload_mut(ticket) {
                waiter.peer = Some(id);
            }
            let cause = match fault {
                Fault::Own => RequeueCause::Own,
                Fault::Backend | Fault::Network => RequeueCause::Backend,
            };
            peer.events.push(PeerEvent::Requeued { id, cause });
        }
    }

    /// Notes a step of a running call for the other process.
    #[inline]
    pub(super) fn note_run(&mut self, lane: Lane, place: u32, step: RunStep) {
        let Some(peer) = &mut self.peer else { return };
        let place = CallPlace::Runs(lane, place);
        let known = match step {
            RunStep::Sent | RunStep::Replied => peer.ids.get(&place).copied(),
            RunStep::Ended(..) | RunStep::GivenBack => peer.remove(place),
        };
        let Some(id) = known else { return };
        peer.events.push(match step {
            RunStep::Sent => PeerEvent::Sent(id),
            RunStep::Replied => PeerEvent::Replied(id),
            RunStep::Ended(outcome, measured) => PeerEvent::Ended {
                id,
                outcome,
                measured,
            },
            RunStep::GivenBack => PeerEvent::Left(id),
        });
    }

    /// Whether the other process knows the running call in this place.
    pub(super) fn is_known_to_peer(&self, lane: Lane, place: u32) -> bool {
        let peer = self.peer.as_ref();
        peer.is_some_and(|peer| peer.ids.contains_key(&CallPlace::Runs(lane, place)))
    }

    /// Whether there are events for the other process.
    #[inline]
    pub(super) fn has_peer_events(&self) -> bool {
        let peer = self.peer.as_ref();
        peer.is_some_and(|peer| !peer.events.is_empty())
    }
}

fn stage_of(scheduler: &Scheduler<WaitingCall>, place: u32) -> RunStage {
    match scheduler.stamps(place).last() {
        Some(WindowStamp::Replied) => RunStage::Replied,
        Some(WindowStamp::Sent) => RunStage::Sent,
        None => RunStage::Admitted,
    }
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp::ZERO + at.since(Timestamp::ZERO).saturating_sub(by)
}
