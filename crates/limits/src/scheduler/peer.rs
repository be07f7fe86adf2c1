//! A scheduler whose calls ask another process for their turn.
//!
//! While a process hands over, a scheduler in another process decides, and this one keeps the calls: it admits none by
//! itself, ends those whose deadline has passed, and runs those that the other one names. If the other process dies,
//! this one decides again.

use super::hold::Hold;
use super::next::Step;
use super::refusal::RefusalReason;
use super::state::Scheduler;
use super::waited::WaitReport;
use crate::call::Call;
use crate::queue::Ticket;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// The next call whose deadline has passed, or the moment at which one passes. No call is admitted.
    pub fn next_expired(&mut self, now: Timestamp) -> Step<T> {
        let now = self.advance(now);
        match self.queue.first_deadline() {
            Some((deadline, key)) if deadline <= now => {
                self.expire(now, key, RefusalReason::DeadlinePassed, None)
            }
            Some((deadline, _)) => Step::SleepUntil(deadline),
            None => Step::Idle,
        }
    }

    /// A waiting call; `None` if it no longer waits.
    #[must_use]
    pub fn waiting_call(&self, ticket: Ticket) -> Option<&Call> {
        Some(&self.queue.calls.get(ticket.0)?.call)
    }

    /// How often later calls were admitted before this one; `None` if it no longer waits.
    #[must_use]
    pub fn times_postponed(&self, ticket: Ticket) -> Option<u32> {
        Some(self.queue.calls.get(ticket.0)?.postponed)
    }

    /// Runs a waiting call, because the other process has said so. What it meets counts it even if it has no room, as for
    /// [`carry_call`](Self::carry_call). `None` if it no longer waits.
    pub fn run_by_peer(&mut self, now: Timestamp, ticket: Ticket) -> Option<(T, Hold, WaitReport)> {
        let now = self.advance(now);
        let waited = self.waited(now, ticket)?;
        let waiting = self.take_out(ticket.0);
        let hold = self.carry_call(now, now, waiting.call, &[]);
        Some((waiting.payload, hold, waited))
    }

    /// Forgets the departures of all windows before this moment. They are then counted anew by
    /// [`carry_departure`](Self::carry_departure), from what the other process knows.
    pub fn forget_departures_before(&mut self, at: Timestamp) {
        for limiter in &mut self.budgets.limits {
            limiter.forget_before(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::time::Duration;

    use super::*;
    use crate::call::Cost;
    use crate::policy::{Limit, LimitRule, Policy, WindowShape, WindowStamp};
    use crate::scheduler::Outcome;

    const SECOND: Duration = Duration::from_secs(1);

    fn scheduler(most: u32) -> Scheduler<u32> {
        let window = Limit::Window {
            max: most,
            length: SECOND,
            guard: Duration::ZERO,
            shape: WindowShape::Sliding,
            stamp: WindowStamp::Sent,
        };
        let policy = Policy::builder()
            .limit(LimitRule::new("total", window))
            .build();
        Scheduler::new(policy.expect("one limit"))
    }

    /// How much of the window is used.
    fn counted(scheduler: &Scheduler<u32>) -> u32 {
        scheduler.window_departures(0).map(|(_, cost)| cost).sum()
    }

    #[test]
    fn a_call_runs_when_the_other_process_says_so_and_then_counts_here_too() {
        let mut here = scheduler(1);
        let now = Timestamp::ZERO + SECOND;
        let [first, second] = [0, 1].map(|payload| {
            let ticket = here.submit(now, Call::new("f", now), payload);
            ticket.expect("there is room in the queue")
        });
        assert!(matches!(here.next_expired(now), Step::Idle));
        let mut holds = Vec::new();
        for (ticket, payload) in [(second, 1), (first, 0)] {
            let (ran, hold, _) = here.run_by_peer(now, ticket).expect("it waits");
            assert_eq!(ran, payload);
            here.sent(now, &hold);
            holds.push(hold);
        }
        assert!(here.run_by_peer(now, first).is_none(), "it runs already");
        assert_eq!(counted(&here), 2);
        for hold in holds {
            here.finish(now, hold, Outcome::Served, None);
        }
        here.audit();
        // Those before the hand-over are in what the other process knows.
        here.forget_departures_before(now);
        assert_eq!(counted(&here), 2);
        let later = now + SECOND / 2;
        here.forget_departures_before(later);
        assert_eq!(counted(&here), 0);
        for _ in 0..3 {
            assert!(here.carry_departure("total", later, Cost::ONE));
        }
        let third = here.submit(later, Call::new("f", later), 2).expect("room");
        let Step::SleepUntil(opens) = here.next(later, &mut || 0) else {
            panic!("the window is full")
        };
        assert_eq!(opens, later + SECOND);
        assert!(here.waiting_call(third).is_some());
        here.audit();
    }

    #[test]
    fn a_call_ends_at_its_deadline_though_no_call_is_admitted() {
        let mut here = scheduler(9);
        let now = Timestamp::ZERO + SECOND;
        let call = Call::new("f", now).deadline(Some(now + SECOND));
        here.submit(now, call, 7).expect("there is room");
        let Step::SleepUntil(at) = here.next_expired(now) else {
            panic!("its deadline is later")
        };
        assert_eq!(at, now + SECOND);
        let Step::Expired { payload, .. } = here.next_expired(at) else {
            panic!("its deadline has come")
        };
        assert_eq!(payload, 7);
        assert!(matches!(here.next_expired(at), Step::Idle));
    }
}
