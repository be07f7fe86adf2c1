//! The permit that a call holds while it is past the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_handover::ForeignId;
use tidegate_limits::call::ServerNumber;
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Hold, Timestamp, Tokens};
use tokio::time::Instant;

use super::decision::Lane;
use super::lock::GateLock;
use super::observe::CallEvent;
use super::peer_calls::RunStep;
use super::promotion::{EffectiveClass, WorkEnd};
use super::shadow::{CallEnd, ShadowId};
use super::user_work::Promotion;
use crate::call::claim::{self, Settling};
use crate::call::job_meter::StartedJob;
use crate::call::steps::StepKind;
use crate::call::{Destination, Generation, Record, Slot, Verdict};

/// A worker and a share of every limit. Given back undrawn if dropped before the call was
/// sent, finished as failed if dropped later.
#[must_use]
pub struct Permit {
    /// `None` once it has ended.
    pub(super) held: Option<(GateCall, Hold)>,
    /// The last backend of its destination that it went to.
    pub(super) generation: Generation,
    /// When its turn was.
    pub(super) admitted: Timestamp,
    sent: Option<Timestamp>,
    pub(super) delayed: bool,
}

/// A call at the gate, from its first question until its permit ends.
pub(super) struct GateCall {
    pub(super) lock: Arc<GateLock>,
    pub(super) lane: Lane,
    pub(super) backend: Destination,
    pub(super) settling: Option<Settling>,
    /// The call in the shadow, if something observes.
    pub(super) shadowed: Option<ShadowId>,
    pub(super) class: EffectiveClass,
    pub(super) promotion: Promotion,
    pub(super) record: Arc<Record>,
    /// The number of a call of another process, for which this one decides.
    pub(super) foreign: Option<ForeignId>,
}

impl Permit {
    pub(super) fn new(call: GateCall, hold: Hold, admitted: Timestamp, delayed: bool) -> Self {
        Self {
            admitted,
            held: Some((call, hold)),
            generation: Generation::FIRST,
            sent: None,
            delayed,
        }
    }

    /// The permit of a call that another process has admitted.
    pub(super) fn adopted(
        call: GateCall,
        hold: Hold,
        admitted: Timestamp,
        sent: Option<Timestamp>,
    ) -> Self {
        let mut permit = Self::new(call, hold, admitted, false);
        permit.sent = sent;
        permit
    }

    /// Moves this permit, and what was noted of its turn, to the record of another call: the one that is
    /// sent.
    pub fn reported_in(mut self, record: &Arc<Record>) -> Self {
        if let Some((call, _)) = &mut self.held
            && !Arc::ptr_eq(&call.record, record)
        {
            let turn = call.record.note(|facts| facts.clone());
            record.note(|facts| facts.takes_turn_of(turn));
            call.record = Arc::clone(record);
        }
        self
    }

    /// The hold itself, for a call that goes back to the queue.
    pub(super) fn into_held(mut self) -> (GateCall, Hold) {
        self.held.take().expect(HELD)
    }

    /// Returns the moment, unless it has ended before.
    pub(super) fn end(&mut self, outcome: Outcome, by_peer: Option<Tokens>) -> Option<Instant> {
        let (mut call, hold) = self.held.take()?;
        let settling = call.settling.take();
        let is_settled = settling.as_ref().is_some_and(Settling::is_by_answer);
        if let Promotion::UserWork(work) = &mut call.promotion
            && outcome == Outcome::Served
            && call.record.note(|facts| facts.is_success())
        {
            work.ending = WorkEnd::Success;
        }
        let admitted = self.admitted;
        let (now, settled, would) = call.lock.change_in(call.lane, |state, now| {
            if let Promotion::UserWork(work) = &mut call.promotion {
                work.end(state, now);
            }
            let settled = settling
                .zip(self.sent)
                .and_then(|(settling, sent)| settling.settled(outcome, now.since(sent)));
            let measured = settled.map(|settled| claim::drawn(settled.charged));
            let measured = measured.or(by_peer);
            let place = hold.place();
            state.note_run(call.lane, place, RunStep::Ended(outcome, measured));
            state.disown(call.lane, place, call.foreign);
            state.forget_job(call.lane, place);
            state.lanes[call.lane as usize].finish(now, hold, outcome, measured);
            let end = CallEvent::Ended(CallEnd::Finished {
                admitted,
                outcome,
                measured,
            });
            let would = state.observe_call(now, call.shadowed, end);
            (now, settled, would)
        });
        let measured = settled.map(|settled| claim::drawn(settled.charged));
        call.record.note(|facts| {
            facts.outcome = Some(outcome);
            facts.step(now, StepKind::Ended(outcome, measured));
            if settled.is_some() {
                let rare = facts.rare_mut();
                rare.settled = settled;
                if is_settled && let Some(measured) = measured {
                    rare.settle_quotas(measured);
                }
            }
            facts.set_would(would);
            facts.answered = Some(now);
            facts.verdict = match outcome {
                _ if facts.left => Verdict::Aborted,
                Outcome::Served if self.delayed => Verdict::Delayed,
                Outcome::Served => Verdict::Passed,
                Outcome::Overloaded | Outcome::Failed => Verdict::Failed,
            };
        });
        call.record.observer().backend_finished();
        Some(call.lock.clock.instant(now))
    }
}

pub(super) const HELD: &str = "a permit holds until it is ended, and is ended once";

impl Slot for Permit {
    fn goes_to(&mut self, generation: Generation) {
        self.generation = generation;
    }

    fn server(&self) -> Option<ServerNumber> {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let lane = call.lane as usize;
        call.lock
            .look(|state, _| state.lanes[lane].server_at(hold.place()))
    }

    fn narrowest(&self) -> Option<u32> {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let lane = call.lane as usize;
        call.lock
            .look(|state, now| state.lanes[lane].narrowest(now, hold))
    }

    fn sent(&mut self) -> Instant {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let mut name = None;
        let now = call.lock.change_in(call.lane, |state, now| {
            state.note_run(call.lane, hold.place(), RunStep::Sent);
            state.lanes[call.lane as usize].sent(now, hold);
            let admitted = self.admitted;
            state.observe_call(now, call.shadowed, CallEvent::Sent { admitted });
            if let Some(server) = state.lanes[call.lane as usize].server_at(hold.place()) {
                name = state.server_succeeded(server, self.generation, now);
            } else if state.backends.succeeded(call.backend, self.generation) {
                state.open(call.backend, now);
            }
            now
        });
        call.record.note(|facts| {
            facts.step(now, StepKind::Sent);
            facts.sent = Some(now);
            if name.is_some() {
                facts.rare_mut().server = name;
            }
        });
        call.lock.sent.fetch_add(1, Ordering::Relaxed);
        self.sent = Some(now);
        call.lock.clock.instant(now)
    }

    fn replied(&mut self) {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let now = call.lock.change_in(call.lane, |state, now| {
            state.note_run(call.lane, hold.place(), RunStep::Replied);
            state.lanes[call.lane as usize].replied(now, hold);
            let admitted = self.admitted;
            state.observe_call(now, call.shadowed, CallEvent::Replied { admitted });
            now
        });
        call.record.note(|facts| facts.step(now, StepKind::Replied));
    }

    fn charge(&mut self, tokens: u64) {
        let (call, _) = self.held.as_mut().expect(HELD);
        if let Some(settling) = &mut call.settling {
            settling.answered(tokens);
        }
    }

    fn finish(mut self, outcome: Outcome) -> Instant {
        self.end(outcome, None).expect(HELD)
    }

    fn hand_to_job(self, job: StartedJob) -> Instant {
        self.hand_over_to(job)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.end(Outcome::Failed, None);
        } else if let Some((call, hold)) = self.held.take() {
            let (now, would) = call.lock.change_in(call.lane, |state, now| {
                state.give_back(&call, now, hold);
                let left = CallEvent::Ended(CallEnd::Left);
                let would = state.observe_call(now, call.shadowed, left);
                (now, would)
            });
            call.record.note(|facts| {
                facts.step(now, StepKind::GivenBack);
                facts.set_would(would);
                facts.draws_no_quota();
            });
        }
    }
}
