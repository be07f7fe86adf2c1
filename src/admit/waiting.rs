//! A call in the queue, until its turn comes.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_limits::scheduler::Delays;
use tidegate_limits::{Class, Ticket, Timestamp};
use tokio::sync::oneshot;

use super::permit::{Acting, Permit, Tie};
use super::promote::{Ending, Follower, Promoted};
use super::queue::{Lane, Queue, State, Turn, Waiter, draining};
use super::settings::USER;
use crate::call::claim::Settling;
use crate::call::{Destination, Generation, Record, Refusal, Role};

/// The answer to a call that asks, under the lock.
pub(super) enum Told {
    Now(Turn),
    Later(Ticket, oneshot::Receiver<Turn>),
}

/// The answer to a call that asks for its turn.
#[must_use]
pub enum Asked<'a> {
    /// It need not wait.
    Answered(Result<Permit, Refusal>),
    /// It must wait.
    Waits(Waiting<'a>),
}

impl Asked<'_> {
    /// The permit, after any wait.
    ///
    /// # Errors
    /// The refusal, if its turn does not come in time.
    pub async fn outcome(self) -> Result<Permit, Refusal> {
        match self {
            Self::Answered(outcome) => outcome,
            Self::Waits(waiting) => waiting.await,
        }
    }
}

/// The parts of a later permit.
pub(super) struct Pending<'a> {
    pub(super) queue: &'a Arc<Queue>,
    pub(super) lane: Lane,
    pub(super) backend: Destination,
    pub(super) settling: Option<Settling>,
    pub(super) tie: Tie,
    pub(super) record: &'a Arc<Record>,
}

impl<'a> Pending<'a> {
    pub(super) fn asked(mut self, told: Told) -> Asked<'a> {
        match told {
            Told::Now(turn) => Asked::Answered(self.outcome(turn)),
            Told::Later(ticket, turn) => Asked::Waits(Waiting {
                pending: self,
                ticket: Some(ticket),
                turn,
            }),
        }
    }

    fn outcome(&mut self, turn: Turn) -> Result<Permit, Refusal> {
        match turn {
            Turn::Go {
                hold,
                waited,
                spent,
                at,
                promoted,
            } => {
                if promoted {
                    self.tie = Tie::Rides;
                }
                // A reload forgets what held a call last, but not the time.
                let delayed = waited.held_by.is_some()
                    || waited.postponed > 0
                    || waited.delays.longest().is_some();
                self.record.note(|facts| {
                    facts.admitted = Some(at);
                    facts.quotas = spent;
                    facts.delays.extend(waited.delays);
                    // It was held, even if it was released at the same moment.
                    facts.limit = facts.delays.longest().cloned().or(waited.held_by);
                });
                let queue = Arc::clone(self.queue);
                let record = Arc::clone(self.record);
                let tie = mem::replace(&mut self.tie, Tie::Apart);
                Ok(Permit {
                    queue,
                    lane: self.lane,
                    backend: self.backend,
                    generation: Generation::FIRST,
                    hold: Some(hold),
                    sent: None,
                    delayed,
                    settling: self.settling.take(),
                    tie,
                    record,
                })
            }
            Turn::No { refusal, delays } => {
                self.note_delays(delays);
                Err(refusal.map_or_else(draining, |it| self.queue.refusal(&it, self.backend)))
            }
        }
    }

    fn note_delays(&self, delays: Delays) {
        self.record.note(|facts| facts.delays.extend(delays));
    }
}

/// A call in the queue, until its turn comes. Dropping it leaves the queue.
pub struct Waiting<'a> {
    pending: Pending<'a>,
    ticket: Option<Ticket>,
    turn: oneshot::Receiver<Turn>,
}

impl Waiting<'_> {
    /// Lets it wait until then (`None` without a bound), in this class, but never in a less urgent
    /// one than it was promoted to. A call whose turn has come, or that was refused, does not
    /// change.
    pub fn wait_as(&self, deadline: Option<Timestamp>, class: Class) {
        let Some(ticket) = self.ticket else { return };
        self.pending.queue.change(|state, now| {
            let lane = &mut state.lanes[self.pending.lane as usize];
            lane.set_deadline(ticket, deadline);
            let waiter = lane.payload_mut(ticket);
            let promoted = waiter.is_some_and(|waiter| waiter.is_promoted());
            lane.reclass(now, ticket, if promoted { USER } else { class });
        });
    }

    /// Its position; `None` if its turn has come.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let pending = &self.pending;
        Some(Place {
            queue: Arc::clone(pending.queue),
            lane: pending.lane,
            ticket: self.ticket?,
            backend: pending.backend,
        })
    }

    /// Its refusal if its deadline were now; `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        self.place()?.refusal_now()
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Permit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let told = ready!(Pin::new(&mut self.turn).poll(cx));
        self.ticket = None;
        let turn = told.expect("a waiting call is always told, or taken out by itself");
        Poll::Ready(self.pending.outcome(turn))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let pending = &self.pending;
        let delays = pending.queue.change(|state, now| {
            let lane = &mut state.lanes[pending.lane as usize];
            match self.turn.try_recv() {
                // Informed at the moment of leaving: everything drawn is given back.
                Ok(Turn::Go { hold, waited, .. }) => {
                    lane.give_back(now, hold);
                    waited.delays
                }
                Ok(Turn::No { delays, .. }) => delays,
                Err(_) => {
                    let waited = lane.waited(now, ticket).unwrap_or_default();
                    lane.cancel(now, ticket);
                    waited.delays
                }
            }
        });
        pending.note_delays(delays);
    }
}

/// A place in the queue. It keeps neither the place nor its call.
#[derive(Clone)]
pub struct Place {
    queue: Arc<Queue>,
    lane: Lane,
    ticket: Ticket,
    backend: Destination,
}

impl Place {
    /// The refusal of the call if its deadline were now: what it waits for, and for how long.
    /// `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        let refusal = {
            let state = self.queue.lock();
            let now = self.queue.clock.now();
            state.lanes[self.lane as usize].refusal_now(now, self.ticket)
        };
        refusal.map(|refusal| self.queue.refusal(&refusal, self.backend))
    }
}

impl State {
    /// Links a call to its guest. A user call promotes the reads that wait for the same guest. It
    /// is submitted first, so they do not go before it.
    pub(super) fn tie(
        &mut self,
        queue: &Arc<Queue>,
        role: Role,
        guest: Box<str>,
        now: Timestamp,
        promoted: &mut Promoted,
    ) -> Tie {
        if role != Role::Acts {
            return Tie::Follows(guest);
        }
        let guest: Arc<str> = guest.into();
        for follower in self.promotions.begins(&guest, now) {
            let calls = &mut self.lanes[Lane::Limited as usize];
            if let Some(waiter) = calls.payload_mut(follower.ticket) {
                waiter.promote();
                calls.reclass(now, follower.ticket, USER);
                promoted.records.push(follower.record);
            }
        }
        let until = Acting {
            queue: Arc::clone(queue),
            guest,
            ending: Ending::NoSuccess,
        };
        Tie::Acts { until }
    }

    /// Admits every call that may run. The call that asks gets its answer at once; the others get
    /// it in their channels.
    pub(super) fn let_through_or_wait(
        &mut self,
        lane: Lane,
        ticket: Ticket,
        now: Timestamp,
        pending: &Pending<'_>,
    ) -> Told {
        if let Some(turn) = self.let_through(now) {
            return Told::Now(turn);
        }
        let (tell, turn) = oneshot::channel();
        let waiter = self.lanes[lane as usize].payload_mut(ticket);
        *waiter.expect("who was not told waits") = Waiter::Waiting {
            tell,
            promoted: matches!(pending.tie, Tie::Rides),
            record: Arc::downgrade(pending.record),
        };
        if let Tie::Follows(guest) = &pending.tie {
            let record = Arc::downgrade(pending.record);
            let calls = &mut self.lanes[lane as usize];
            let waits = |ticket| calls.payload_mut(ticket).is_some();
            let follower = Follower { ticket, record };
            self.promotions.waits(guest, follower, waits);
        }
        Told::Later(ticket, turn)
    }
}
