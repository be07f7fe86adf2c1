//! The deadline of a call that waits: moved, and what the call would be told there.

use super::park::Own;
use super::{Reason, Refusal, Scheduler};
use crate::queue::Ticket;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Moves the deadline of a waiting call, which keeps its turn; `None` waits forever. False
    /// if it no longer waits.
    pub fn set_deadline(&mut self, ticket: Ticket, deadline: Option<Timestamp>) -> bool {
        let waits = self.queue.get(ticket.0).is_some();
        if waits {
            self.queue.set_deadline(ticket.0, deadline);
        }
        waits
    }

    /// What a waiting call would be told if its deadline were now; `None` if it no longer
    /// waits. It goes on waiting.
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
}
