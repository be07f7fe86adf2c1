//! A call that need not wait.

use super::hold::{Hold, HoldState};
use super::state::Scheduler;
use crate::call::Call;
use crate::limiter::Departures;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Runs a call at once if no other call waits and all its limits have room. The result is the same as that of
    /// [`submit`](Self::submit) and [`next`](Self::next), without a place in the queue, for about a quarter
    /// of the instructions.
    ///
    /// # Errors
    ///
    /// The call, if it may have to wait, is to be refused, or draws from a bucket or a quota. Nothing is drawn, and
    /// `submit` decides.
    pub fn run_at_once(&mut self, now: Timestamp, mut call: Call) -> Result<Hold, Call> {
        let now = self.advance(now);
        let is_simple = call.bucket.is_none() && call.quotas.is_none();
        if !is_simple
            || self.draining
            || !self.queue.calls.is_empty()
            || !self.parking.has_nothing_to_do()
        {
            return Err(call);
        }
        if call.deadline.is_some_and(|deadline| deadline < now) {
            return Err(call);
        }
        call.class = self.clamp(call.class);
        let mut set = self.budgets.set_of(&call);
        let limits = self.budgets.sets.limits(set).iter();
        for &limit in limits {
            if !self.budgets.limits[limit as usize].has_room(now, &call) {
                return Err(call);
            }
        }
        let mut server = None;
        if self.budgets.has_servers() {
            if !self.budgets.servers_have_room(now, &call) {
                return Err(call);
            }
            (set, server) = self.bind(now, &call, set, None);
        }
        self.turn_checks += 1;
        let arrival = self.count_joining();
        let (drawn, service) = self.draw_limits(now, &call, set);
        let from = drawn.iter();
        let from = from.map(|drawn| (drawn.budget(), drawn.service(service)));
        let served = self.parking.served_alone(&call, arrival, from);
        let held = HoldState {
            since: now,
            server,
            call,
            arrival,
            service,
            served,
            drawn,
            progress: Departures::default(),
        };
        Ok(self.hold(held))
    }
}
