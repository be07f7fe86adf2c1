//! A scheduler in virtual time, with its calls and the events around it.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::scheduler::{Jitter, Outcome, QuotaQuestion, QuotaSpent, Refusal, WaitReport};
use tidegate_limits::{Call, Hold, Scheduler, Step, Ticket, Timestamp, Tokens};

use crate::agenda::{Agenda, Ranked};

/// A call in a scheduler.
#[derive(Debug)]
pub enum CallStage {
    /// In the queue.
    Waiting(Ticket),
    /// Admitted, and not over.
    Running(Hold),
}

/// A decision of the scheduler about a call.
#[derive(Debug)]
pub enum Decision<C> {
    /// The call runs from now on.
    Admitted {
        /// The call.
        call: C,
        /// The causes of its wait.
        waited: WaitReport,
        /// Tokens that it drew from quotas.
        spent: Vec<QuotaSpent>,
    },
    /// The call waits no more, and does not run.
    Refused {
        /// The call.
        call: C,
        /// The reason, and when to come back.
        refusal: Refusal,
        /// The causes of its wait.
        waited: WaitReport,
    },
}

/// Predictions that are made of calls that begin to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Predictions {
    /// Starts are not predicted.
    #[default]
    Off,
    /// The start of each call is predicted.
    Starts,
    /// A call whose start is predicted after its deadline is refused at once.
    RefuseLate,
}

/// A scheduler in virtual time. `C` names a call, and `E` is what its user plans.
///
/// Time passes only in [`advance`](Self::advance). After everything that happens, call
/// [`decide`](Self::decide) until it returns `None`.
pub struct Replay<C, E> {
    scheduler: Scheduler<C>,
    /// Calls that wait or run: few at once.
    calls: HashMap<C, CallStage>,
    agenda: Agenda<E>,
    now: Timestamp,
    wake: Option<Timestamp>,
    /// The timer fires at multiples of this; 0 for the exact moment.   ns
    timer_step: u64,
    predictions: Predictions,
    /// Calls that have just been submitted.
    begun: VecDeque<(C, Ticket)>,
}

impl<C, E> fmt::Debug for Replay<C, E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("Replay");
        out.field("now", &self.now).field("wake", &self.wake);
        out.field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

impl<C: Copy + Eq + Hash, E: Ranked> Replay<C, E> {
    /// A replay of this scheduler that begins at zero, with a timer that fires exactly when it should.
    #[must_use]
    pub fn new(scheduler: Scheduler<C>) -> Self {
        Self {
            scheduler,
            calls: HashMap::default(),
            agenda: Agenda::default(),
            now: Timestamp::ZERO,
            wake: None,
            timer_step: 0,
            predictions: Predictions::Off,
            begun: VecDeque::new(),
        }
    }

    /// The timer fires at the first multiple of `step` that is not before the moment to which it is set.
    pub fn set_timer_step(&mut self, step: Duration) {
        self.timer_step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
    }

    /// From now on this is predicted of calls that begin to wait.
    pub const fn set_predictions(&mut self, predictions: Predictions) {
        self.predictions = predictions;
    }

    // ---- Time

    /// The present moment.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Plans an event.
    pub fn plan(&mut self, at: Timestamp, event: E) {
        self.agenda.plan(at, event);
    }

    /// When something happens next: an event, or the timer. `None` if nothing does.
    #[must_use]
    pub fn next_moment(&self) -> Option<Timestamp> {
        let moments = [self.agenda.next_moment(), self.wake];
        moments.into_iter().flatten().min()
    }

    /// When the timer fires; `None` if it is not set.
    #[must_use]
    pub const fn wake(&self) -> Option<Timestamp> {
        self.wake
    }

    /// The timer is late by this.
    pub fn delay_wake(&mut self, by: Duration) {
        self.wake = self.wake.map(|wake| wake + by);
    }

    /// Goes to another moment. An earlier one is a clock that steps back.
    pub const fn advance(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Removes the next event that is due by now.
    pub fn pop_due(&mut self) -> Option<E> {
        self.agenda.pop_due(self.now)
    }

    /// The planned events, to change them.
    pub const fn agenda_mut(&mut self) -> &mut Agenda<E> {
        &mut self.agenda
    }

    // ---- Calls

    /// A call arrives.
    ///
    /// # Errors
    ///
    /// The refusal, if the call is refused at once.
    pub fn submit(&mut self, id: C, call: Call) -> Result<Ticket, Refusal> {
        let submitted = self.scheduler.submit(self.now, call, id);
        let ticket = submitted.map_err(|(refusal, _)| refusal)?;
        self.calls.insert(id, CallStage::Waiting(ticket));
        if self.predictions != Predictions::Off {
            self.begun.push_back((id, ticket));
        }
        Ok(ticket)
    }

    /// Suspends a waiting call until this moment. False if the call does not wait.
    pub fn suspend(&mut self, id: C, until: Timestamp) -> bool {
        let ticket = self.ticket(id);
        ticket.is_some_and(|ticket| self.scheduler.suspend(self.now, ticket, until))
    }

    /// A call arrives at the place of a suspended one.
    ///
    /// # Errors
    ///
    /// The refusal, if the call is refused at once.
    pub fn resume(&mut self, id: C, call: Call, place: C) -> Result<Ticket, Refusal> {
        let Some(ticket) = self.ticket(place) else {
            return self.submit(id, call);
        };
        self.calls.remove(&place);
        let submitted = self.scheduler.resume(self.now, ticket, call, id);
        let ticket = submitted.map_err(|(refusal, _)| refusal)?;
        self.calls.insert(id, CallStage::Waiting(ticket));
        Ok(ticket)
    }

    /// A call arrives, and runs if it need not wait.
    ///
    /// # Errors
    ///
    /// The call, if [`submit`](Self::submit) has to decide.
    pub fn run_at_once(&mut self, id: C, call: Call) -> Result<(), Call> {
        let hold = self.scheduler.run_at_once(self.now, call)?;
        self.calls.insert(id, CallStage::Running(hold));
        Ok(())
    }

    /// The stage of a call; `None` if it neither waits nor runs.
    #[must_use]
    pub fn stage(&self, id: C) -> Option<&CallStage> {
        self.calls.get(&id)
    }

    /// The ticket of a call that waits.
    #[must_use]
    pub fn ticket(&self, id: C) -> Option<Ticket> {
        match self.calls.get(&id)? {
            CallStage::Waiting(ticket) => Some(*ticket),
            CallStage::Running(_) => None,
        }
    }

    /// Whether a call runs.
    #[must_use]
    pub fn is_running(&self, id: C) -> bool {
        matches!(self.calls.get(&id), Some(CallStage::Running(_)))
    }

    /// Takes a waiting call out of the queue. False if the call does not wait.
    pub fn cancel(&mut self, id: C) -> bool {
        let Some(ticket) = self.ticket(id) else {
            return false;
        };
        self.calls.remove(&id);
        self.scheduler.cancel(self.now, ticket).is_some()
    }

    /// The bytes of a running call are sent. False if the call does not run.
    pub fn sent(&mut self, id: C) -> bool {
        let Some(CallStage::Running(hold)) = self.calls.get(&id) else {
            return false;
        };
        self.scheduler.sent(self.now, hold);
        true
    }

    /// The first byte of a running call's reply came. False if the call does not run.
    pub fn replied(&mut self, id: C) -> bool {
        let Some(CallStage::Running(hold)) = self.calls.get(&id) else {
            return false;
        };
        self.scheduler.replied(self.now, hold);
        true
    }

    /// A running call has ended. False if the call does not run.
    pub fn finish(&mut self, id: C, outcome: Outcome, measured: Option<Tokens>) -> bool {
        let Some(hold) = self.remove_hold(id) else {
            return false;
        };
        self.scheduler.finish(self.now, hold, outcome, measured);
        true
    }

    /// A running call was never sent, and ends. False if the call does not run.
    pub fn give_back(&mut self, id: C) -> bool {
        let Some(hold) = self.remove_hold(id) else {
            return false;
        };
        self.scheduler.give_back(self.now, hold);
        true
    }

    /// A running call was never sent, and waits again. `None` if the call does not run.
    pub fn requeue(&mut self, id: C) -> Option<Ticket> {
        let hold = self.remove_hold(id)?;
        let ticket = self.scheduler.requeue(self.now, hold, id);
        self.calls.insert(id, CallStage::Waiting(ticket));
        Some(ticket)
    }

    fn remove_hold(&mut self, id: C) -> Option<Hold> {
        if !self.is_running(id) {
            return None;
        }
        match self.calls.remove(&id)? {
            CallStage::Running(hold) => Some(hold),
            CallStage::Waiting(_) => None,
        }
    }

    // ---- The scheduler

    /// The scheduler, to look at.
    #[must_use]
    pub const fn scheduler(&self) -> &Scheduler<C> {
        &self.scheduler
    }

    /// The scheduler, to change policies, supplies, buckets, quotas and deadlines, and to carry over what an earlier
    /// scheduler counted. Other calls come and go by the methods above only.
    pub const fn scheduler_mut(&mut self) -> &mut Scheduler<C> {
        &mut self.scheduler
    }

    /// Questions to the store of quotas. Each is returned once.
    pub fn quota_questions(&mut self) -> Vec<QuotaQuestion> {
        if !self.scheduler.asks_of_quotas() {
            return Vec::new();
        }
        drop(self.scheduler.forgotten_quotas());
        drop(self.scheduler.quota_troubles());
        self.scheduler.quota_questions()
    }

    /// The next decision of this moment. `None` if there is none, and the timer is set. `entropy` returns 64
    /// random bits, by which a call is set aside.
    pub fn decide(&mut self, entropy: &mut impl FnMut() -> u64) -> Option<Decision<C>> {
        let now = self.now;
        self.decide_with(&mut |_, jitter| jitter.draw(now, entropy()))
    }

    /// The next decision of this moment, where `draw` chooses how long a call is set aside.
    pub fn decide_with(
        &mut self,
        draw: &mut impl FnMut(&mut C, Jitter) -> Duration,
    ) -> Option<Decision<C>> {
        let wake = match self.scheduler.next_with(self.now, draw) {
            Step::Run {
                payload: call,
                hold,
                waited,
                spent,
            } => {
                self.calls.insert(call, CallStage::Running(hold));
                return Some(Decision::Admitted {
                    call,
                    waited,
                    spent,
                });
            }
            Step::Expired {
                payload: call,
                refusal,
                waited,
            } => {
                self.calls.remove(&call);
                return Some(Decision::Refused {
                    call,
                    refusal,
                    waited,
                });
            }
            Step::SleepUntil(wake) => Some(wake),
            Step::Idle => None,
        };
        self.wake = wake.map(|wake| self.fires(wake));
        self.refuse_late()
    }

    /// When the timer fires that is set to this moment.
    fn fires(&self, wake: Timestamp) -> Timestamp {
        match self.timer_step {
            0 => wake,
            step => {
                let ticks = wake.as_nanos().div_ceil(step);
                Timestamp::from_nanos(ticks.saturating_mul(step))
            }
        }
    }

    /// Predicts the starts of calls that have begun to wait, and refuses the first that is predicted to be late.
    fn refuse_late(&mut self) -> Option<Decision<C>> {
        while let Some((call, ticket)) = self.begun.pop_front() {
            if self.predictions == Predictions::RefuseLate
                && let Some((refusal, call)) = self.scheduler.refuse_if_late(self.now, ticket, None)
            {
                self.calls.remove(&call);
                return Some(Decision::Refused {
                    call,
                    refusal,
                    waited: WaitReport::default(),
                });
            }
            if self.ticket(call) == Some(ticket) {
                self.scheduler.foresee(self.now, ticket, None);
            }
        }
        None
    }
}
