//! Calls that leave, or wait elsewhere from now on.

use super::bucket::Buckets;
use super::park::{LineKey, Own};
use super::quota::Quotas;
use super::refusal::{Reason, Refusal};
use super::state::{Metered, Scheduler};
use super::waited::Waited;
use crate::call::Class;
use crate::policy::LimitSets;
use crate::queue::{LineId, Place, Ticket, Waiting};
use crate::slab::Key;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Takes a waiting call back out; `None` if it no longer waits.
    pub fn cancel(&mut self, now: Timestamp, ticket: Ticket) -> Option<T> {
        self.advance(now);
        self.queue.get(ticket.0)?;
        Some(self.take_out(ticket.0).payload)
    }

    /// What was submitted, while it waits; `None` if it no longer does.
    pub fn payload_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.queue
            .get_mut(ticket.0)
            .map(|waiting| &mut waiting.payload)
    }

    /// Removes any one waiting call, to end all of them; `None` if no call waits.
    pub fn evict(&mut self, now: Timestamp) -> Option<(T, Waited)> {
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
        let waits = self.queue.get(ticket.0).is_some();
        if waits {
            self.queue.set_deadline(ticket.0, deadline);
        }
        waits
    }

    /// The refusal that a waiting call would get if its deadline were now; `None` if it no longer
    /// waits. It continues to wait.
    #[must_use]
    pub fn refusal_now(&self, now: Timestamp, ticket: Ticket) -> Option<Refusal> {
        let waiting = self.queue.get(ticket.0)?;
        let (set, own, call) = (waiting.set, Own::of(waiting), &waiting.call);
        let held_by = self.held_by(waiting);
        let now = self.now.max(now);
        let reason = self.because_of_the_store(Reason::DeadlinePassed, held_by);
        let limit = held_by.and_then(|bar| self.name(bar));
        Some(self.refusal(now, reason, limit, set, &own, call))
    }

    /// Puts a waiting call into another class, at the end of its caller's flow there. False if
    /// it no longer waits.
    pub fn reclass(&mut self, now: Timestamp, ticket: Ticket, class: Class) -> bool {
        self.advance(now);
        let class = self.clamp(class);
        let Some(waiting) = self.queue.get(ticket.0) else {
            return false;
        };
        if waiting.call.class == class {
            return true;
        }
        let place = waiting.place;
        self.discount_limits(ticket.0);
        let arrival = self.count_joining();
        let waiting = self.queue.expect_mut(ticket.0);
        waiting.call.class = class;
        let call = &waiting.call;
        waiting.set = self.sets.find(&call.function, call.backend, class);
        self.count_limits(ticket.0);
        self.replace(ticket.0, place, arrival);
        true
    }

    /// Moves a waiting call to its present line, or to `place` if it is set aside.
    pub(super) fn replace(&mut self, key: Key, place: Place, arrival: u64) {
        match place {
            Place::Line(from) => {
                let to = self.line(LineKey::of(self.queue.expect(key)));
                self.move_into_line(key, to, arrival);
                self.refresh_head(from);
                self.refresh_head(to);
            }
            Place::Aside(_) => self.queue.relocate(key, place, arrival),
        }
    }

    /// Puts a call that waits elsewhere into a line.
    pub(super) fn move_into_line(&mut self, key: Key, line: LineId, arrival: u64) {
        self.carry_over(key);
        self.queue.expect_mut(key).stay.joined = self.parking.note_account(line);
        self.queue.relocate(key, Place::Line(line), arrival);
    }

    fn count_limits(&mut self, key: Key) {
        count_waiting(&self.sets, &mut self.limits, self.queue.expect(key));
    }

    fn discount_limits(&mut self, key: Key) {
        discount_waiting(&self.sets, &mut self.limits, self.queue.expect(key));
    }

    /// A call that waited in a line or aside waits no more.
    pub(super) fn discount(&mut self, waiting: &Waiting<T>) {
        discount_waiting(&self.sets, &mut self.limits, waiting);
        let tokens = waiting.call.tokens;
        self.quotas
            .discount_waiting(waiting.quotas.as_ref(), tokens);
        if let Some(bucket) = waiting.bucket {
            self.buckets
                .expect_mut(bucket)
                .discount_waiting(waiting.call.tokens);
        }
    }
}

pub(super) fn count_waiting<T>(sets: &LimitSets, limits: &mut [Metered], waiting: &Waiting<T>) {
    for &limit in sets.limits(waiting.set).iter() {
        let met = &mut limits[limit as usize];
        met.waiting += 1;
        met.waiting_draw += met.limiter.draw_of(waiting.call.draw());
    }
}

pub(super) fn count_waiting_own<T>(
    quotas: &mut Quotas,
    buckets: &mut Buckets,
    waiting: &Waiting<T>,
) {
    let tokens = waiting.call.tokens;
    quotas.count_waiting(waiting.quotas.as_ref(), tokens);
    if let Some(bucket) = waiting.bucket {
        buckets.expect_mut(bucket).count_waiting(tokens);
    }
}

pub(super) fn discount_waiting<T>(sets: &LimitSets, limits: &mut [Metered], waiting: &Waiting<T>) {
    for &limit in sets.limits(waiting.set).iter() {
        let met = &mut limits[limit as usize];
        met.waiting -= 1;
        met.waiting_draw -= met.limiter.draw_of(waiting.call.draw());
    }
}
