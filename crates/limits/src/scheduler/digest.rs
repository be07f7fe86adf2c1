//! The state of a scheduler, as words of a digest.

use alloc::vec::Vec;

use super::bucket::{BucketState, Buckets};
use super::budgets::Budgets;
use super::hold::{BudgetDraw, Hold, HoldState};
use super::state::Scheduler;
use crate::digest::{Digest, HeldTurn};
use crate::queue::{QueuedCall, WaitPlace};
use crate::supply::Supply;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Adds what decides from now on, while the scheduler sleeps: see [`Digest`]. The calls that wait and those that run come in the
    /// order of their arrival.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        let Self {
            // A search knows which policy is in force.
            policy: _,
            budgets,
            queue,
            parking,
            forecast: _,
            holds,
            spare: _,
            to_reject,
            // Follows from the supplies.
            expiries: _,
            bound,
            share: _,
            now,
            joined: _,
            draining,
            turn_checks: _,
            reopens: _,
            keeps_events: _,
            events: _,
        } = self;
        assert!(bound.is_empty(), "a digest has no calls with keys");
        assert!(
            to_reject.is_empty(),
            "a digest is of a scheduler that sleeps"
        );
        let mut waiting: Vec<_> = queue.calls.iter().collect();
        waiting.sort_unstable_by_key(|(_, waiting)| waiting.arrival);
        let mut running: Vec<_> = holds.iter().map(|(_, held)| held).collect();
        running.sort_unstable_by_key(|held| held.arrival);
        to.arrivals
            .extend(waiting.iter().map(|(_, waiting)| waiting.arrival));
        to.arrivals.extend(running.iter().map(|held| held.arrival));
        for held in &running {
            held.digest_numbers(to);
        }
        let Budgets {
            sets: _,
            limits,
            groups,
            buckets: Buckets { all, by_id: _ },
            quotas: _,
        } = budgets;
        to.arrivals.sort_unstable();
        to.flag(*draining);
        to.word(waiting.len() as u64);
        for (_, waiting) in &waiting {
            waiting.digest(to);
        }
        // Of calls with the same deadline, the one in the lower place expires first.
        if to.has_deadlines {
            waiting
                .iter()
                .for_each(|(key, _)| to.word(u64::from(key.index())));
            let free = queue.calls.free_places().iter();
            free.for_each(|&place| to.word(u64::from(place)));
        }
        to.word(running.len() as u64);
        for held in &running {
            held.digest(to);
        }
        limits.iter().for_each(|limiter| limiter.digest(to));
        groups
            .iter()
            .for_each(|group| to.word(group.begins_at as u64));
        all.iter().for_each(|(_, bucket)| bucket.digest(*now, to));
        parking.digest(all.iter().map(|(key, _)| key), to);
    }

    /// The hold of the call that runs at this place, for searches that copy a scheduler.
    #[doc(hidden)]
    #[must_use]
    pub fn hold_at(&self, place: u32) -> Option<Hold> {
        let mut holds = self.holds.iter();
        let found = holds.find(|(key, _)| key.index() == place);
        found.map(|(key, _)| Hold(key))
    }
}

impl<T> QueuedCall<T> {
    fn digest(&self, to: &mut Digest) {
        let Self {
            call,
            payload: _,
            // Follows from the call and the policy.
            meets: _,
            arrival,
            place,
            is_suspended,
            // What it waited for.
            held_by: _,
            postponed: _,
            stay: _,
            counted,
        } = self;
        assert!(counted.is_none(), "a digest has no forecasts");
        to.call(call);
        to.arrival(*arrival);
        to.flag(*is_suspended);
        match place {
            WaitPlace::Flow(_) => to.word(0),
            WaitPlace::Aside(until) => {
                to.word(1);
                to.coming(*until);
            }
            WaitPlace::Passed => to.word(2),
        }
    }
}

impl HoldState {
    fn digest_numbers(&self, to: &mut Digest) {
        for drawn in &self.drawn {
            to.turns.push(HeldTurn {
                class: self.call.class,
                caller: self.call.caller,
                served: self.served,
                at: drawn.budget(),
                service: drawn.service(self.service),
            });
            if let BudgetDraw::Bucket { taken, .. } = drawn {
                to.draws.extend(taken.number());
            }
        }
    }

    fn digest(&self, to: &mut Digest) {
        let Self {
            // How long it runs.
            since: _,
            call,
            server,
            arrival,
            service,
            // Compared with tags, where those are added.
            served: _,
            drawn,
            progress,
        } = self;
        to.call(call);
        to.word(server.map_or(0, |server| u64::from(server.get())));
        to.arrival(*arrival);
        service.digest(to);
        to.word(drawn.len() as u64);
        for drawn in drawn {
            match *drawn {
                BudgetDraw::Limit {
                    limit,
                    stake,
                    is_kept,
                } => {
                    to.word(u64::from(limit));
                    stake.digest(to);
                    to.flag(is_kept);
                }
                BudgetDraw::Bucket { bucket, taken } => {
                    to.word(1 << 32 | u64::from(bucket.index()));
                    to.real(taken.tokens);
                }
                BudgetDraw::Quota { .. } => unreachable!("a digest has no quotas"),
            }
        }
        progress.digest(to);
    }
}

impl BucketState {
    fn digest(&self, now: Timestamp, to: &mut Digest) {
        let Self {
            // A search knows the rules of its buckets.
            rule: _,
            supply,
            level,
            queued: _,
            counts: _,
        } = self;
        let Supply::Configured = supply else {
            unreachable!("a digest has no supplies of buckets");
        };
        level.digest(now, to);
    }
}
