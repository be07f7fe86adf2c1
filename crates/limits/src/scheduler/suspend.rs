//! Suspended calls: their clients have given up for a while, and will come back to their places.
//!
//! A client that gives up before its turn can come back later. Until then its call waits as before, so the order of all
//! calls is the same as if the client had stayed. If its turn comes meanwhile, the call is passed: it leaves its flow and
//! holds up no other call, but keeps its arrival. The client comes back with a call of its own, which takes the place of
//! the first one. If that was passed, the new call is ahead of every call of its flow that came later.

use super::park::FlowKey;
use super::refusal::Refusal;
use super::state::Scheduler;
use super::submit::ArrivalPlace;
use crate::call::Call;
use crate::queue::account::Stay;
use crate::queue::{BudgetSet, FlowId, QueuedCall, Ticket, WaitPlace};
use crate::slab::SlabKey;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Suspends a waiting call until this moment. Then the call expires, as at a deadline. False if it no
    /// longer waits.
    pub fn suspend(&mut self, now: Timestamp, ticket: Ticket, until: Timestamp) -> bool {
        self.advance(now);
        let Some(waiting) = self.queue.calls.get_mut(ticket.0) else {
            return false;
        };
        waiting.is_suspended = true;
        self.queue.set_deadline(ticket.0, Some(until));
        true
    }

    /// Takes a call in at the place of a suspended one, whose payload is dropped. A call that had a place gets one
    /// even if the queue is full now. If this ticket is of no suspended call, the same as [`submit`](Self::submit).
    ///
    /// # Errors
    ///
    /// A refusal, with the payload, as of [`submit`](Self::submit). The place is given up.
    pub fn resume(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        mut call: Call,
        payload: T,
    ) -> Result<Ticket, (Refusal, T)> {
        let now = self.advance(now);
        if !self.is_suspended(ticket) {
            return self.submit(now, call, payload);
        }
        call.class = self.clamp(call.class);
        if self.is_alike(ticket.0, &call) {
            self.replace(ticket.0, call, payload);
            return Ok(ticket);
        }
        let QueuedCall { arrival, .. } = self.take_out(ticket.0);
        self.submit_at(now, call, payload, ArrivalPlace::Kept(arrival))
    }

    /// Keeps a place until this moment for a client that was refused by an earlier process. Places are kept in the order of
    /// the calls of this method. `None` if the queue has no room.
    pub fn reserve(
        &mut self,
        now: Timestamp,
        call: Call,
        payload: T,
        until: Timestamp,
    ) -> Option<Ticket> {
        self.advance(now);
        if !self.has_room() {
            return None;
        }
        let arrival = self.count_joining();
        let mut call = call.deadline(Some(until));
        call.class = self.clamp(call.class);
        let waiting = QueuedCall {
            meets: BudgetSet {
                set: self.budgets.set_of(&call),
                ..BudgetSet::default()
            },
            call,
            payload,
            arrival,
            place: WaitPlace::Passed,
            is_suspended: true,
            held_by: None,
            postponed: 0,
            stay: Stay::new(self.now, None),
            counted: None,
        };
        self.budgets.count(&waiting);
        Some(Ticket(self.queue.insert(waiting)))
    }

    /// Whether the call of this ticket is suspended.
    #[must_use]
    pub fn is_suspended(&self, ticket: Ticket) -> bool {
        let waiting = self.queue.calls.get(ticket.0);
        waiting.is_some_and(|waiting| waiting.is_suspended)
    }

    /// The turn of a suspended call has come.
    #[cold]
    pub(super) fn pass_suspended(&mut self, now: Timestamp, flow: FlowId, key: SlabKey) {
        let waiting = &mut self.queue.calls[key];
        self.budgets.carry_over(now, waiting, &self.parking);
        let arrival = waiting.arrival;
        self.queue.relocate(key, WaitPlace::Passed, arrival);
        self.refresh_head(flow);
    }

    /// Whether a call is of the same flow as this one, which still waits there, and draws the same.
    fn is_alike(&self, key: SlabKey, call: &Call) -> bool {
        let QueuedCall {
            call: before,
            meets,
            place,
            ..
        } = &self.queue.calls[key];
        let same = Call {
            arrived: call.arrived,
            deadline: call.deadline,
            ..before.clone()
        };
        !matches!(place, WaitPlace::Passed)
            && same == *call
            && FlowKey::of(call, meets) == FlowKey::of(before, meets)
            && self.budgets.set_of(call) == meets.set
    }

    /// A call takes the place of another of its flow.
    fn replace(&mut self, key: SlabKey, call: Call, payload: T) {
        let deadline = call.deadline;
        let now = self.now;
        let waiting = &mut self.queue.calls[key];
        self.budgets.carry_over(now, waiting, &self.parking);
        let joined = match waiting.place {
            WaitPlace::Flow(flow) => self.parking.note_account(flow),
            WaitPlace::Aside(_) | WaitPlace::Passed => None,
        };
        waiting.stay = Stay::new(now, joined);
        waiting.call.arrived = call.arrived;
        waiting.payload = payload;
        waiting.is_suspended = false;
        self.queue.set_deadline(key, deadline);
    }
}
