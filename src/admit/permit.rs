//! What a call holds while it is past the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Hold, Timestamp};
use tokio::time::Instant;

use super::lock::{Lane, Queue, State};
use super::promotion::Ending;
use super::shadow::{Over, ShadowId};
use crate::call::claim::{self, Settling};
use crate::call::steps::StepKind;
use crate::call::{Destination, Generation, Record, Slot, Verdict};

/// A worker and a share of every limit. Given back undrawn if dropped before the call was
/// sent, finished as failed if dropped later.
#[must_use]
pub struct Permit {
    /// `None` once it has ended.
    held: Option<(AtGate, Hold)>,
    /// The last backend of its destination that it went to.
    pub(super) generation: Generation,
    /// When its turn was.
    admitted: Timestamp,
    sent: Option<Timestamp>,
    delayed: bool,
}

/// A call at the gate, from its first question until its permit ends.
pub(super) struct AtGate {
    pub(super) queue: Arc<Queue>,
    pub(super) lane: Lane,
    pub(super) backend: Destination,
    pub(super) settling: Option<Settling>,
    /// The same call in the shadow, if something observes.
    pub(super) shadowed: Option<ShadowId>,
    /// Held, and released with everything else.
    pub(super) tie: Tie,
    pub(super) record: Arc<Record>,
}

impl Permit {
    pub(super) fn new(call: AtGate, hold: Hold, admitted: Timestamp, delayed: bool) -> Self {
        Self {
            admitted,
            held: Some((call, hold)),
            generation: Generation::FIRST,
            sent: None,
            delayed,
        }
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
    pub(super) fn into_held(mut self) -> (AtGate, Hold) {
        self.held.take().expect(HELD)
    }

    /// Returns the moment, unless it has ended before.
    fn end(&mut self, outcome: Outcome) -> Option<Instant> {
        let (mut call, hold) = self.held.take()?;
        // The time of a failed call does not show its cost for the backend.
        let settling = match outcome {
            Outcome::Served | Outcome::Overloaded => call.settling.take(),
            Outcome::Failed => None,
        };
        if let Tie::Acts { until } = &mut call.tie
            && outcome == Outcome::Served
            && call.record.note(|facts| facts.is_success())
        {
            until.ending = Ending::Success;
        }
        let admitted = self.admitted;
        let (now, settled, would) = call.queue.change_in(call.lane, |state, now| {
            if let Tie::Acts { until } = &mut call.tie {
                until.end(state, now);
            }
            let settled = settling
                .zip(self.sent)
                .map(|(settling, sent)| settling.settled(now.since(sent)));
            let measured = settled.map(|settled| claim::drawn(settled.charged));
            state.lanes[call.lane as usize].finish(now, hold, outcome, measured);
            let over = Over::Ended {
                admitted,
                outcome,
                measured,
            };
            let would = state.observing.over(now, call.shadowed, over);
            (now, settled, would)
        });
        let measured = settled.map(|settled| claim::drawn(settled.charged));
        call.record.note(|facts| {
            facts.outcome = Some(outcome);
            facts.step(now, StepKind::Ended(outcome, measured));
            if settled.is_some() {
                facts.rare_mut().settled = settled;
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
        Some(call.queue.clock.instant(now))
    }
}

const HELD: &str = "a permit holds until it is ended, and is ended once";

impl Slot for Permit {
    fn goes_to(&mut self, generation: Generation) {
        self.generation = generation;
    }

    fn narrowest(&self) -> Option<u32> {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let lane = call.lane as usize;
        call.queue
            .look(|state, now| state.lanes[lane].narrowest(now, hold))
    }

    fn sent(&mut self) -> Instant {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let now = call.queue.change_in(call.lane, |state, now| {
            state.lanes[call.lane as usize].sent(now, hold);
            let observing = &mut state.observing;
            observing.sent(now, call.shadowed, self.admitted);
            if state.backends.succeeded(call.backend, self.generation) {
                state.open(call.backend, now);
            }
            now
        });
        call.record.note(|facts| {
            facts.step(now, StepKind::Sent);
            facts.sent = Some(now);
        });
        call.queue.sent.fetch_add(1, Ordering::Relaxed);
        self.sent = Some(now);
        call.queue.clock.instant(now)
    }

    fn replied(&mut self) {
        let (call, hold) = self.held.as_ref().expect(HELD);
        let now = call.queue.change_in(call.lane, |state, now| {
            state.lanes[call.lane as usize].replied(now, hold);
            let observing = &mut state.observing;
            observing.replied(now, call.shadowed, self.admitted);
            now
        });
        call.record.note(|facts| facts.step(now, StepKind::Replied));
    }

    fn finish(mut self, outcome: Outcome) -> Instant {
        self.end(outcome).expect(HELD)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.end(Outcome::Failed);
        } else if let Some((call, hold)) = self.held.take() {
            let (now, would) = call.queue.change_in(call.lane, |state, now| {
                state.lanes[call.lane as usize].give_back(now, hold);
                let would = state.observing.over(now, call.shadowed, Over::Left);
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

/// A user call on a guest that was passed to `Promotions::begins`, until it is dropped.
pub(super) struct Acting {
    pub(super) queue: Arc<Queue>,
    /// `None` once it has ended.
    pub(super) guest: Option<Arc<str>>,
    pub(super) ending: Ending,
}

impl Acting {
    fn end(&mut self, state: &mut State, now: Timestamp) {
        if let Some(guest) = self.guest.take() {
            state.promotions.ends(&guest, now, self.ending);
        }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if self.guest.is_some() {
            // No turn results from it, so the scheduler is not asked.
            let queue = Arc::clone(&self.queue);
            let mut state = queue.lock();
            let now = queue.clock.now();
            self.end(&mut state, now);
        }
    }
}

/// The relation of a call to its guest, while it is under way.
pub(super) enum Tie {
    /// Nothing.
    Apart,
    /// It reads a guest, and may be promoted. The guest, if its record does not name it.
    Follows(Option<Box<str>>),
    /// It reads the guest, and was promoted to the class of users.
    Rides,
    /// It is user work on the guest.
    Acts {
        /// Held for the moment in which it is dropped.
        until: Acting,
    },
}
