//! A call in the queue, until its turn comes.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_limits::scheduler::Delays;
use tidegate_limits::{Class, Hold, Ticket, Timestamp};
use tidegate_runtime::Clock;
use tokio::sync::oneshot;

use super::decision::{Decision, Lane, RefusalCause};
use super::early::Attempt;
use super::lock::{GateLock, GateState};
use super::observe::CallEvent;
use super::peer_calls::RunStep;
use super::permit::{GateCall, Permit};
use super::promotion::{EffectiveClass, Follower, guest_of};
use super::settings::USER;
use super::shadow::CallEnd;
use super::user_work::Promotion;
use crate::call::steps::{ReplayFacts, StepKind};
use crate::call::{ClientPatience, Destination, Facts, Record, Refusal, Would};

/// The answer to a call that asks, under the lock.
pub(super) enum SubmitOutcome {
    /// No call waits, and all its limits have room.
    AtOnce(Hold, Timestamp),
    Decided(Box<Decision>),
    Queued(Ticket, oneshot::Receiver<Box<Decision>>),
}

/// The answer to a call that asks for its turn.
#[must_use]
pub enum Admission {
    /// The call need not wait.
    Decided(Result<Permit, Refusal>),
    /// The call must wait.
    Queued(QueuedCall),
}

impl GateCall {
    /// Notes how it asked, and that it was admitted, if it need not wait. `replay` is what only a replay needs.
    #[inline]
    pub(super) fn note_arrival(
        &self,
        now: Timestamp,
        class: Arc<str>,
        replay: Option<Box<ReplayFacts>>,
        is_admitted: bool,
    ) {
        self.record.note(|facts| {
            facts.destination = Some(self.backend);
            if let Some(replay) = replay {
                facts.replay = Some(replay);
                facts.step(now, StepKind::Asked(class));
            }
            if is_admitted {
                facts.step(now, StepKind::Admitted);
                facts.admitted = Some(now);
            }
        });
    }

    pub(super) fn answer(self, submission: SubmitOutcome) -> Admission {
        match submission {
            SubmitOutcome::AtOnce(hold, at) => {
                Admission::Decided(Ok(Permit::new(self, hold, at, false)))
            }
            SubmitOutcome::Decided(turn) => Admission::Decided(self.outcome(*turn)),
            SubmitOutcome::Queued(ticket, turn) => Admission::Queued(QueuedCall {
                place: Some((self, ticket)),
                turn,
            }),
        }
    }

    fn outcome(mut self, turn: Decision) -> Result<Permit, Refusal> {
        match turn {
            Decision::Admit {
                hold,
                waited,
                spent,
                at,
                class,
                postponed,
            } => {
                self.class = class;
                // A reload forgets what held a call last, but not the time.
                let delayed = waited.held_by.is_some()
                    || waited.postponed > 0
                    || waited.delays.longest().is_some();
                let start_error = waited.foreseen.map(|(since, starts)| {
                    let wait = at.since(since).max(LEAST_WAIT);
                    let off = starts.as_nanos().abs_diff(at.as_nanos());
                    Duration::from_nanos(off).as_secs_f32() / wait.as_secs_f32()
                });
                if let Some(error) = start_error {
                    self.lock.looks.note_error(error);
                }
                self.record.note(|facts| {
                    note_postponed(facts, postponed);
                    facts.step(at, StepKind::Admitted);
                    facts.admitted = Some(at);
                    facts.start_error = start_error;
                    if !spent.is_empty() {
                        facts.rare_mut().quotas = spent;
                    }
                    facts.delays.extend(waited.delays);
                    // It was held, even if it was released at the same moment.
                    facts.limit = facts.delays.longest().cloned().or(waited.held_by);
                });
                Ok(Permit::new(self, hold, at, delayed))
            }
            Decision::Refuse {
                refusal,
                delays,
                at,
                postponed,
            } => {
                let would = self.lock.end_in_shadow(self.shadowed, refusal.end());
                self.note_end(at, refusal.step(), postponed, delays, would);
                Err(match refusal {
                    RefusalCause::Scheduler(it) => self.lock.refusal(&it, self.backend),
                    RefusalCause::Draining => Refusal::draining(),
                    RefusalCause::Peer(refusal) => *refusal,
                })
            }
        }
    }

    /// Notes how its time in the queue ended without a turn.
    fn note_end(
        &self,
        at: Timestamp,
        what: StepKind,
        postponed: Vec<(Timestamp, Duration)>,
        delays: Delays,
        would: Option<Would>,
    ) {
        self.record.note(|facts| {
            note_postponed(facts, postponed);
            facts.step(at, what);
            facts.delays.extend(delays);
            facts.set_would(would);
        });
    }
}

/// The error of a prediction is given in parts of the wait, but not of less than this.
const LEAST_WAIT: Duration = Duration::from_millis(50);

fn note_postponed(facts: &mut Facts, postponed: Vec<(Timestamp, Duration)>) {
    for (at, aside) in postponed {
        facts.step(
            at,
            StepKind::Postponed(u64::try_from(aside.as_nanos()).unwrap_or(u64::MAX)),
        );
    }
}

impl RefusalCause {
    /// How a call ended that got no turn.
    fn step(&self) -> StepKind {
        match self {
            Self::Scheduler(_) => StepKind::Expired,
            Self::Draining | Self::Peer(_) => StepKind::Evicted,
        }
    }

    fn end(&self) -> CallEnd {
        match self {
            Self::Scheduler(_) => CallEnd::Refused,
            Self::Draining | Self::Peer(_) => CallEnd::Left,
        }
    }
}

/// A call in the queue, until its turn comes. Dropping it leaves the queue.
pub struct QueuedCall {
    /// `None` once its turn has come, or it was refused.
    place: Option<(GateCall, Ticket)>,
    turn: oneshot::Receiver<Box<Decision>>,
}

impl QueuedCall {
    /// Lets it wait until then (`None` without a bound), in this class, but never in a less urgent
    /// one than it was promoted to. A call whose turn has come, or that was refused, does not
    /// change.
    pub fn wait_as(&self, deadline: Option<Timestamp>, class: Class) {
        let Some((call, ticket)) = &self.place else {
            return;
        };
        let ticket = *ticket;
        let changed = call.lock.change_in(call.lane, |state, now| {
            let lane = &mut state.lanes[call.lane as usize];
            let Some(waiter) = lane.payload_mut(ticket) else {
                // Others are asked, and the log line of this call does not have the instant.
                state.is_unlogged.set(true);
                return None;
            };
            let class = match waiter.class {
                EffectiveClass::Own => class,
                EffectiveClass::Users => USER,
            };
            lane.reclass(now, ticket, class);
            let known = state.classes.get(class.0 as usize);
            let name = known.map(|known| Arc::clone(&known.name));
            let mut until = deadline;
            if let Some(name) = &name {
                until = state.note_changed(call.lane, ticket, deadline, name);
                let class = (class, Arc::clone(name));
                state.observe_call(now, call.shadowed, CallEvent::Waits { deadline, class });
            }
            state.lanes[call.lane as usize].set_deadline(ticket, until);
            Some((now, name))
        });
        if let Some((now, class)) = changed {
            call.record.note(|facts| {
                facts.step(now, StepKind::Deadline(deadline.map(Timestamp::as_nanos)));
                if let Some(class) = class {
                    facts.step(now, StepKind::Class(class));
                }
            });
        }
    }

    /// The record in which its turn is noted; `None` if its turn has come.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<Record>> {
        let (call, _) = self.place.as_ref()?;
        Some(&call.record)
    }

    /// The start that was predicted when it began to wait; `None` if none was, or if its turn has come.
    #[must_use]
    pub fn predicted_start(&self) -> Option<Timestamp> {
        let (call, ticket) = self.place.as_ref()?;
        let lane = call.lane as usize;
        let waited = |state: &mut GateState, now| state.lanes[lane].waited(now, *ticket);
        let (_, starts) = call.lock.look(waited)?.foreseen?;
        Some(starts)
    }

    /// The position of the call; `None` if its turn has come.
    #[must_use]
    pub fn place(&self) -> Option<QueuePosition> {
        let (call, ticket) = self.place.as_ref()?;
        Some(QueuePosition {
            lock: Arc::clone(&call.lock),
            lane: call.lane,
            ticket: *ticket,
            backend: call.backend,
        })
    }

    /// The refusal of the call if its deadline were now; `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        self.place()?.refusal_now()
    }

    /// The clock of the queue; `None` if its turn has come.
    #[must_use]
    pub fn clock(&self) -> Option<Clock> {
        let (call, _) = self.place.as_ref()?;
        Some(call.lock.clock)
    }

    /// How long such calls usually take at the backend; zero if that is not known.
    #[must_use]
    pub fn usual_service(&self) -> Duration {
        self.place
            .as_ref()
            .map_or(Duration::ZERO, |(call, ticket)| {
                let usual = |state: &mut GateState, _| state.usual_service(call.lane, *ticket);
                call.lock.look(usual)
            })
    }

    /// Refuses the call, and keeps its place for its client. `None` if its turn has come: then it is polled.
    pub fn suspend(&mut self, patience: &ClientPatience) -> Option<Refusal> {
        let (call, ticket) = self.place.as_ref()?;
        let refusal = call.suspend(*ticket, patience)?;
        self.place = None;
        Some(refusal)
    }
}

impl Future for QueuedCall {
    type Output = Result<Permit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decided = ready!(Pin::new(&mut self.turn).poll(cx));
        let decision = decided.expect("a queued call is always decided, or taken out by itself");
        let (call, _) = self.place.take().expect("a call gets its turn once");
        Poll::Ready(call.outcome(*decision))
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        let Some((call, ticket)) = self.place.take() else {
            return;
        };
        let call = &call;
        let mut would = None;
        let (at, what, postponed, delays) = call.lock.change_in(call.lane, |state, now| {
            let turn = self.turn.try_recv().map(|turn| *turn);
            let end = match &turn {
                Ok(Decision::Refuse { refusal, .. }) => refusal.end(),
                _ => CallEnd::Left,
            };
            would = state.observe_call(now, call.shadowed, CallEvent::Ended(end));
            match turn {
                // Informed at the moment of leaving: everything drawn is given back.
                Ok(Decision::Admit {
                    hold,
                    waited,
                    at,
                    postponed,
                    ..
                }) => {
                    state.give_back(call, now, hold);
                    call.record.note(|facts| facts.step(at, StepKind::Admitted));
                    (now, StepKind::GivenBack, postponed, waited.delays)
                }
                Ok(Decision::Refuse {
                    refusal,
                    delays,
                    at,
                    postponed,
                }) => {
                    // Likewise.
                    state.is_unlogged.set(true);
                    (at, refusal.step(), postponed, delays)
                }
                Err(_) => {
                    state.note_left(call.lane, ticket);
                    let lane = &mut state.lanes[call.lane as usize];
                    let waited = lane.waited(now, ticket).unwrap_or_default();
                    let waiter = lane.cancel(now, ticket).unwrap_or_default();
                    (now, StepKind::Left, waiter.postponed, waited.delays)
                }
            }
        });
        call.note_end(at, what, postponed, delays, would);
    }
}

/// A place in the queue. It keeps neither the place nor its call.
#[derive(Clone)]
pub struct QueuePosition {
    lock: Arc<GateLock>,
    lane: Lane,
    ticket: Ticket,
    backend: Destination,
}

impl QueuePosition {
    /// The refusal of the call if its deadline were now: what it waits for, and for how long.
    /// `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        let refusal = self
            .lock
            .look(|state, now| state.lanes[self.lane as usize].refusal_now(now, self.ticket));
        refusal.map(|refusal| self.lock.refusal(&refusal, self.backend))
    }
}

impl GateState {
    /// Admits every call that may run. The call that asks gets its answer at once; the others get
    /// it in their channels.
    pub(super) fn admit_or_queue(
        &mut self,
        ticket: Ticket,
        now: Timestamp,
        call: &GateCall,
        begins: Attempt,
    ) -> SubmitOutcome {
        if let Some(turn) = self.admit_ready(now) {
            return SubmitOutcome::Decided(Box::new(turn));
        }
        if let Some(turn) = self.refuse_if_late(ticket, now, call, begins) {
            return SubmitOutcome::Decided(Box::new(turn));
        }
        let (tell, turn) = oneshot::channel();
        let reopens = self.acts.pause().map(|pause| pause.ends);
        let lane = &mut self.lanes[call.lane as usize];
        let record = Arc::downgrade(&call.record);
        let waiter = lane.payload_mut(ticket);
        let waiter = waiter.expect("a call without an answer waits");
        waiter.tell = Some(tell);
        waiter.class = call.class;
        waiter.record = Weak::clone(&record);
        waiter.id = call.record.note(|facts| facts.id);
        if self.peer.is_none() {
            lane.foresee(now, ticket, reopens);
        }
        if let Promotion::Read(target) = &call.promotion
            && call.class == EffectiveClass::Own
            && self.promotions.is_on()
            && let Some(guest) = guest_of(target.as_deref(), &call.record)
        {
            let waits = |ticket| lane.payload_mut(ticket).is_some();
            let follower = Follower { ticket, record };
            self.promotions.waits(&guest, follower, waits);
        }
        if begins == Attempt::First {
            self.note_waits(call, ticket);
        }
        SubmitOutcome::Queued(ticket, turn)
    }

    /// Returns what a call has drawn that was never sent.
    pub(super) fn give_back(&mut self, call: &GateCall, now: Timestamp, hold: Hold) {
        let place = hold.place();
        self.note_run(call.lane, place, RunStep::GivenBack);
        self.disown(call.lane, place, call.foreign);
        self.lanes[call.lane as usize].give_back(now, hold);
    }
}
