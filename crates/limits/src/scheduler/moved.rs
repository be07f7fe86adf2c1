//! Calls that leave, or wait elsewhere from now on: in another flow, or aside for a random time.

use alloc::vec::Vec;
use core::time::Duration;

use super::budgets::Budgets;
use super::park::FlowKey;
use super::refusal::{Refusal, RefusalReason};
use super::state::Scheduler;
use super::waited::WaitReport;
use crate::call::{Class, ServerChoice};
use crate::queue::{Budget, FlowId, QueuedCall, Ticket, WaitPlace};
use crate::slab::SlabKey;
use crate::time::{Timestamp, nanos};

impl<T> Scheduler<T> {
    /// Takes a waiting call back out; `None` if it no longer waits.
    pub fn cancel(&mut self, now: Timestamp, ticket: Ticket) -> Option<T> {
        self.advance(now);
        self.queue.calls.get(ticket.0)?;
        Some(self.take_out(ticket.0).payload)
    }

    /// The payload that was submitted, while its call waits; `None` if it no longer does.
    pub fn payload_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        let waiting = self.queue.calls.get_mut(ticket.0)?;
        Some(&mut waiting.payload)
    }

    /// The waiting calls, in no order.
    pub fn tickets(&self) -> impl Iterator<Item = (Ticket, &T)> {
        let calls = self.queue.calls.iter();
        calls.map(|(key, waiting)| (Ticket(key), &waiting.payload))
    }

    /// Removes any one waiting call, to end all of them; `None` if no call waits.
    pub fn evict(&mut self, now: Timestamp) -> Option<(T, WaitReport)> {
        let now = self.advance(now);
        let timed = self.queue.first_deadline().or(self.queue.first_aside());
        let timed = timed.map(|(_, key)| key);
        let key = timed.or_else(|| self.parking.any())?;
        let waited = self.waited(now, Ticket(key)).unwrap_or_default();
        Some((self.take_out(key).payload, waited))
    }

    /// Moves the deadline of a waiting call, which keeps its turn; `None` waits forever. False
    /// if it no longer waits.
    pub fn set_deadline(&mut self, ticket: Ticket, deadline: Option<Timestamp>) -> bool {
        let waits = self.queue.calls.get(ticket.0).is_some();
        if waits {
            self.queue.set_deadline(ticket.0, deadline);
        }
        waits
    }

    /// Until when a waiting call may wait, where `None` is forever; `None` outside if it no longer
    /// waits.
    #[must_use]
    pub fn deadline(&self, ticket: Ticket) -> Option<Option<Timestamp>> {
        Some(self.queue.calls.get(ticket.0)?.call.deadline)
    }

    /// Moves the deadlines of all waiting calls that have one, except suspended calls. Every call keeps its turn. Linear in
    /// the number of waiting calls, times the logarithm of it.
    pub fn move_deadlines(&mut self, mut moved: impl FnMut(&mut T, Timestamp) -> Timestamp) {
        let keys: Vec<SlabKey> = self.queue.calls.iter().map(|(key, _)| key).collect();
        for key in keys {
            let waiting = &mut self.queue.calls[key];
            if let Some(deadline) = waiting.call.deadline
                && !waiting.is_suspended
            {
                let new = moved(&mut waiting.payload, deadline);
                self.queue.set_deadline(key, Some(new));
            }
        }
    }

    /// The refusal that a waiting call would get if its deadline were now; `None` if it no longer
    /// waits. It continues to wait.
    #[must_use]
    pub fn refusal_now(&self, now: Timestamp, ticket: Ticket) -> Option<Refusal> {
        let waiting = self.queue.calls.get(ticket.0)?;
        let held_by = self.held_by(waiting);
        let now = self.now.max(now);
        let reason = self.because_of_the_store(RefusalReason::DeadlinePassed, held_by);
        let limit = held_by.and_then(|budget| self.budgets.name(budget));
        let QueuedCall { call, meets, .. } = waiting;
        Some(self.refusal(now, reason, limit, meets, call, waiting.counted))
    }

    /// Puts a waiting call into another class, at the end of its caller's flow there. False if
    /// it no longer waits.
    pub fn reclass(&mut self, now: Timestamp, ticket: Ticket, class: Class) -> bool {
        self.advance(now);
        let class = self.clamp(class);
        let Some(waiting) = self.queue.calls.get(ticket.0) else {
            return false;
        };
        let server = waiting.call.server;
        if waiting.call.class != class {
            let arrival = self.count_joining();
            self.move_to(ticket.0, arrival, class, server);
        }
        true
    }

    /// Gives a waiting call another class or choice of servers.
    pub(super) fn move_to(
        &mut self,
        key: SlabKey,
        arrival: u64,
        class: Class,
        server: ServerChoice,
    ) {
        self.change_call(key, arrival, |budgets, waiting| {
            (waiting.call.class, waiting.call.server) = (class, server);
            waiting.meets.set = budgets.set_of(&waiting.call);
        });
    }

    /// Changes a waiting call, or what it meets, and moves it to its flow.
    pub(super) fn change_call(
        &mut self,
        key: SlabKey,
        arrival: u64,
        change: impl FnOnce(&Budgets, &mut QueuedCall<T>),
    ) {
        let waiting = &mut self.queue.calls[key];
        self.budgets.discount(waiting);
        let counted = waiting.counted;
        self.forecast.discount(waiting, false);
        waiting.counted = None;
        change(&self.budgets, waiting);
        self.budgets.count(waiting);
        let place = waiting.place;
        self.count_again(key, counted);
        match place {
            WaitPlace::Flow(from) => {
                let to = self.flow_of(key);
                self.move_into_flow(key, to, arrival);
                self.refresh_head(from);
                self.refresh_head(to);
            }
            place @ (WaitPlace::Aside(_) | WaitPlace::Passed) => {
                self.queue.relocate(key, place, arrival);
            }
        }
    }

    /// Puts a call that waits elsewhere into a flow.
    pub(super) fn move_into_flow(&mut self, key: SlabKey, flow: FlowId, arrival: u64) {
        let waiting = &mut self.queue.calls[key];
        self.budgets.carry_over(self.now, waiting, &self.parking);
        waiting.stay.joined = self.parking.note_account(flow);
        self.queue.relocate(key, WaitPlace::Flow(flow), arrival);
    }

    fn flow_of(&mut self, key: SlabKey) -> FlowId {
        let QueuedCall { call, meets, .. } = &self.queue.calls[key];
        self.flow(FlowKey::of(call, meets))
    }

    /// Sets the head of a flow aside; at its deadline it is asked a last time.
    pub(super) fn set_aside(
        &mut self,
        now: Timestamp,
        flow: FlowId,
        key: SlabKey,
        budget: Budget,
        until: Timestamp,
    ) {
        let waiting = &mut self.queue.calls[key];
        self.budgets.carry_over(now, waiting, &self.parking);
        let arrival = waiting.arrival;
        waiting.postponed = waiting.postponed.saturating_add(1);
        waiting.held_by = Some(budget);
        let until = until.max(now + Duration::from_nanos(1));
        let deadline = waiting.call.deadline.unwrap_or(Timestamp::MAX);
        let until = until.min(deadline);
        self.queue.relocate(key, WaitPlace::Aside(until), arrival);
        self.refresh_head(flow);
    }

    /// Puts the calls that were aside, and whose time has come, at the ends of their flows.
    pub(super) fn rejoin_due(&mut self, now: Timestamp) {
        while let Some((until, key)) = self.queue.first_aside()
            && until <= now
        {
            let arrival = self.count_joining();
            let flow = self.flow_of(key);
            self.move_into_flow(key, flow, arrival);
            self.refresh_head(flow);
        }
    }
}

/// Moments within the span of the jitter at which calls come back.
const RETURNS: u64 = 128;

/// For how long calls are set aside, at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// The shortest time.
    pub min: Duration,
    /// The longest time.
    pub max: Duration,
}

impl Jitter {
    /// For how long a call is set aside that is asked `now`, by 64 random bits. The range is cut into
    /// 128 steps of the common clock, so that calls that come back at about the same time wake the
    /// scheduler once. With thousands aside it would otherwise wake for each.
    #[must_use]
    pub fn draw(self, now: Timestamp, random: u64) -> Duration {
        let Self { min, max } = self;
        let drawn = (now + jitter(min, max, random)).as_nanos();
        let step = nanos(max - min) / RETURNS;
        if step == 0 {
            return Timestamp::from_nanos(drawn).since(now);
        }
        let stepped = Timestamp::from_nanos(drawn - drawn % step);
        let until = if stepped < now + min {
            stepped + Duration::from_nanos(step)
        } else {
            stepped
        };
        until.since(now)
    }
}

/// A time between `min` and `max`, both possible, by one draw of 64 random bits: the bias of
/// multiplying instead of rejecting is below 2^-20 for spans up to a few hours.
fn jitter(min: Duration, max: Duration, random: u64) -> Duration {
    let (min, max) = (nanos(min), nanos(max));
    let span = u128::from(max - min) + 1;
    let offset = (u128::from(random) * span) >> 64;
    Duration::from_nanos(min + u64::try_from(offset).expect("the offset is at most max - min"))
}
