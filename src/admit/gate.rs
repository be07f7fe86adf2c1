//! What the stages see of the gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use tidegate_limits::call::Backend;
use tidegate_limits::scheduler::WaitReport;
use tidegate_limits::{Call, Class, Timestamp};
use tidegate_runtime::Clock;
use tokio::task::JoinSet;

use super::ask::{Ask, Claimed};
use super::early::Begins;
use super::lock::{Lane, Queue, State, Turn, Waiter, draining, tell};
use super::permit::{AtGate, Permit, Tie};
use super::policy;
use super::promotion::{Promoted, guest_of};
use super::settings::{Settings, USER};
use super::shadow::Over;
use super::waiting::{Asked, Told};
use crate::call::steps::{ReplayFacts, StepKind};
use crate::call::{Destination, Fault, Generation, Record, Role};
use crate::telemetry::log;

/// By how much the time of day must differ from where fixed windows are before they move. A clock that is only slewed
/// drifts by half a millisecond a second.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// Admits calls when their turn has come and their limits open.
#[derive(Clone)]
pub struct Gate {
    pub(super) queue: Arc<Queue>,
}

impl Gate {
    /// No call waits yet.
    #[must_use]
    pub fn new(settings: &Settings, clock: Clock) -> Self {
        Self {
            queue: Arc::new(Queue::new(settings, clock)),
        }
    }

    /// Asks for a call's turn.
    pub fn ask(&self, mut ask: Ask, record: &Arc<Record>) -> Asked {
        if self.queue.draining.load(Ordering::Relaxed) {
            return Asked::Answered(Err(draining()));
        }
        let lane = match ask.limited {
            true => Lane::Limited,
            false => Lane::Unlimited,
        };
        let backend = ask.destination;
        let mut at_gate = AtGate {
            queue: Arc::clone(&self.queue),
            lane,
            backend,
            settling: ask.claimed.settling.take(),
            shadowed: None,
            tie: Tie::Apart,
            record: Arc::clone(record),
        };
        let mut promoted = Promoted::default();
        let submitted = self.queue.change_in(lane, |state, now| {
            let own = state.class(&ask.class);
            let deadline = state.deadline(own, &ask, now);
            let guest = match state.looks_at_guest(lane, ask.role) {
                true => guest_of(ask.target.as_deref(), record),
                false => None,
            };
            if guest.is_some() {
                let user = &state.classes[USER.0 as usize];
                promoted.class = Some(Arc::clone(&user.name));
            }
            let class = state.class_in_which_it_rides(own, ask.role, guest.as_deref(), now);
            if class != own {
                promoted.rides(record);
                at_gate.tie = Tie::Rides;
            } else if lane == Lane::Limited && ask.role == Role::Follows {
                at_gate.tie = Tie::Follows(ask.target);
            }
            let name = Arc::clone(&state.classes[class.0 as usize].name);
            let keeps_steps = state.keeps_steps;
            let Claimed {
                caller,
                weight,
                tokens,
                bucket,
                quotas,
                ..
            } = ask.claimed;
            let call = Call::new(ask.function, ask.arrived)
                .backend(Backend(backend as u8))
                .class(class)
                .caller(caller)
                .weight(weight)
                .tokens(tokens)
                .bucket(bucket)
                .quotas(quotas.clone())
                .deadline(deadline);
            if lane == Lane::Limited {
                let id = || record.note(|facts| facts.id);
                at_gate.shadowed = state.observing.asks(now, &call, &name, id);
            }
            // With the answer, if that is there at once.
            let note_asked = |is_admitted: bool| {
                record.note(|facts| {
                    facts.destination = Some(backend);
                    if keeps_steps {
                        facts.replay = Some(Box::new(ReplayFacts {
                            weight,
                            tokens,
                            bucket,
                            quotas,
                            deadline,
                            steps: Vec::with_capacity(5),
                        }));
                        facts.step(now, StepKind::Asked(name));
                    }
                    if is_admitted {
                        facts.step(now, StepKind::Admitted);
                        facts.admitted = Some(now);
                    }
                });
            };
            // A call that promotes others does so once it has a place. If it needs none, no other waits.
            let acts_on = guest.filter(|_| ask.role == Role::Acts && class == own);
            let call = match state.run_at_once(lane, now, call) {
                Ok(hold) => {
                    note_asked(true);
                    if let Some(guest) = acts_on {
                        at_gate.tie = state.acts_on(&self.queue, guest, now, &mut promoted);
                    }
                    return Ok(Told::AtOnce(hold, now));
                }
                Err(call) => call,
            };
            note_asked(false);
            let submitted = state.lanes[lane as usize].submit(now, call, Waiter::default());
            let ticket = submitted.map_err(|(refusal, _)| {
                let would = state.observing.over(now, at_gate.shadowed, Over::Refused);
                record.note(|facts| {
                    facts.step(now, StepKind::Refused);
                    facts.set_would(would);
                });
                refusal
            })?;
            if let Some(guest) = acts_on {
                at_gate.tie = state.acts_on(&self.queue, guest, now, &mut promoted);
            }
            Ok(state.let_through_or_wait(ticket, now, &at_gate, Begins::Now))
        });
        drop(promoted);
        match submitted {
            Ok(told) => at_gate.asked(told),
            Err(refusal) => Asked::Answered(Err(self.queue.refusal(&refusal, backend))),
        }
    }

    /// Puts a call that could not be sent back in its turn, with all limits undrawn, and asks for
    /// it again. Its backend gets one probe at a time, unless the failure is our own. If waiting
    /// calls are being refused, so is this one.
    pub fn ask_again(&self, permit: Permit, fault: Fault) -> Asked {
        let generation = permit.generation;
        let (call, hold) = permit.into_held();
        call.record.note(|facts| facts.draws_no_quota());
        let mut would = None;
        let mut extended = None;
        let (now, told) = self.queue.change_in(call.lane, |state, now| {
            let lane = &mut state.lanes[call.lane as usize];
            if state.turned_away {
                lane.give_back(now, hold);
                would = state.observing.over(now, call.shadowed, Over::Left);
                return (now, None);
            }
            let ticket = lane.requeue(now, hold, Waiter::default());
            extended = state.extend_one(call.lane, ticket, now);
            if fault != Fault::Own {
                let spread = state.entropy.random_range(0.5..1.0);
                state.backends.failed(call.backend, generation, now, spread);
                state.shut(call.backend, now);
            }
            (
                now,
                Some(state.let_through_or_wait(ticket, now, &call, Begins::Again)),
            )
        });
        let what = match told {
            Some(_) => StepKind::Requeued,
            None => StepKind::GivenBack,
        };
        call.record.note(|facts| {
            facts.step(now, what);
            if extended.is_some() {
                facts.step(now, StepKind::Deadline(extended.map(Timestamp::as_nanos)));
            }
            if told.is_none() {
                facts.set_would(would);
            }
        });
        match told {
            Some(told) => call.asked(told),
            None => Asked::Answered(Err(draining())),
        }
    }

    /// Until when such a call may wait (`None` without a bound), and how urgent it is.
    #[must_use]
    pub fn patience(&self, ask: &Ask) -> (Option<Timestamp>, Class) {
        let state = self.queue.lock();
        let class = state.class(&ask.class);
        (state.deadline(class, ask, ask.arrived), class)
    }

    /// Runs the one timer, until dropped. Nothing else wakes calls whose moment has come, so if it
    /// ends by itself, the process aborts.
    pub async fn keep_time(&self) {
        let gate = self.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { gate.wake_in_time().await });
        let ended = task.join_next().await.expect("it was just spawned");
        // If it is cancelled, its runtime has ended.
        if !ended.is_err_and(|error| error.is_cancelled()) {
            log::abort("the timer of the queue has ended, so calls would wait for ever");
        }
    }

    /// Sleeps until the scheduler's next moment, repeatedly.
    async fn wake_in_time(&self) {
        loop {
            let rearmed = self.queue.rearm.notified();
            let wake = {
                let mut state = self.queue.lock();
                state.armed = state.due();
                state.armed
            };
            let due = async {
                match wake {
                    Some(at) => self.queue.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.queue.is_due(),
                () = rearmed => {}
            }
        }
    }

    /// Takes new settings: later calls meet the new limits, waiting calls keep their
    /// places, used slots stay used.
    /// Returns the instant of the change.
    pub fn apply(&self, settings: &Settings) -> Timestamp {
        self.apply_in(settings, self.phase())
    }

    /// Aligns fixed windows to the time of day as it is now, if it was set since; else the same as
    /// [`apply`](Self::apply).
    pub fn align(&self, settings: &Settings) -> Timestamp {
        self.apply_in(settings, self.phase_now())
    }

    fn apply_in(&self, settings: &Settings, phase: Duration) -> Timestamp {
        let limited = policy::limited(settings, phase);
        let unlimited = policy::unlimited(settings);
        let at = self.queue.change(|state, now| {
            state.phase = phase;
            state.max_wait = settings.max_wait;
            state.classes.clone_from(&settings.classes);
            state.promotions.apply(settings.promote_for);
            state.when_full = settings.when_full;
            state.early_refusal = settings.early_refusal;
            state.acts.set_usual_ramp(settings.ramp);
            let [calls, free] = &mut state.lanes;
            calls.apply(now, limited);
            free.apply(now, unlimited);
            state.observing.apply(now, settings, phase);
            now
        });
        // A change of its own: in the log, what the new limits are given comes after them.
        if !self.queue.lock().acts.overrides.is_empty() {
            self.queue.change_beside(State::override_again);
        }
        at
    }

    /// How far past the epoch the clock began to count, as fixed windows are aligned.
    #[must_use]
    pub fn phase(&self) -> Duration {
        self.queue.lock().phase
    }

    /// Whether the time of day was set since fixed windows were aligned to it, so that they follow the wrong second.
    #[must_use]
    pub fn is_out_of_step(&self) -> bool {
        self.phase() != self.phase_now()
    }

    /// The phase that fixed windows should have. What differs by less than a step of the clock is the same.
    fn phase_now(&self) -> Duration {
        let (kept, now) = (self.phase(), self.queue.clock.phase());
        match kept.abs_diff(now) < CLOCK_STEP {
            true => kept,
            false => now,
        }
    }

    /// A destination leads to another backend from now on, which counts as up. Calls that wait for
    /// the old one go to it.
    pub fn moved(&self, destination: Destination, generation: Generation) {
        self.queue.change_beside(|state, now| {
            if state.backends.moved(destination, generation) {
                state.open(destination, now);
            }
        });
    }

    /// From now on [`stirred`](Self::stirred) returns at the next change.
    pub fn watch(&self) {
        self.queue.watched.store(true, Ordering::Release);
    }

    /// Waits until something has changed since [`watch`](Self::watch), also before this call.
    pub async fn stirred(&self) {
        self.queue.stirred.notified().await;
    }

    /// From now on new calls are refused; waiting calls continue.
    pub fn drain(&self) {
        self.queue.draining.store(true, Ordering::Relaxed);
    }

    /// Refuses all waiting calls, and calls that would wait again because they cannot be sent.
    pub fn turn_away(&self) {
        self.drain();
        self.queue.change(|state, now| {
            state.turned_away = true;
            // If no call waits, no line has this instant.
            state.is_beside = true;
            for lane in &mut state.lanes {
                while let Some((mut waiter, WaitReport { delays, .. })) = lane.evict(now) {
                    let no = Turn::No {
                        refusal: None,
                        delays,
                        at: now,
                        postponed: std::mem::take(&mut waiter.postponed),
                    };
                    // A call that has just left needs no answer.
                    let _ = tell(waiter, no, &mut None);
                }
            }
        });
    }

    /// Waits until the queue has room, if a full queue holds the next call back.
    pub async fn room(&self) {
        loop {
            let room = self.queue.room.notified();
            if !self.queue.full.load(Ordering::Acquire) {
                return;
            }
            room.await;
        }
    }
}
