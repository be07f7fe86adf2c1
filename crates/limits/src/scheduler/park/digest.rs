//! The places where flows wait, as words of a digest.

use super::flow::{BudgetQueue, Flow, LastCheck, PassedHead, RoomClaim, WaitList};
use super::flows::Parking;
use crate::digest::Digest;
use crate::queue::Budget;
use crate::slab::SlabKey;

impl Parking {
    /// Adds where flows wait. `keys` are those of all buckets, none of which was ever removed.
    pub(crate) fn digest(&self, keys: impl Iterator<Item = SlabKey>, to: &mut Digest) {
        let Self {
            common: _,
            flows,
            // A flow is found by what its calls have in common, which is in each call.
            by_key: _,
            free: _,
            resting: _,
            limits,
            buckets,
            quotas,
            ready,
            last_was_ready,
            tagged,
            changed,
            lists_to_check,
            // Compared only with rounds that are being looked at.
            round: _,
            // Both follow from what is at each limit.
            openings: _,
            lapses: _,
            claims: _,
            idle: _,
            list_checks: _,
        } = self;
        assert!(quotas.is_empty(), "a digest has no quotas");
        assert!(
            changed.is_empty() && lists_to_check.is_empty(),
            "a digest is of a scheduler that sleeps"
        );
        ready.digest(None, to);
        to.word(last_was_ready.map_or(2, u64::from));
        let mut tagged = tagged.clone();
        tagged.sort_unstable();
        tagged.dedup();
        to.word(tagged.len() as u64);
        tagged.into_iter().for_each(|budget| word_of(budget, to));
        let mut heads: alloc::vec::Vec<_> = flows
            .iter()
            .filter_map(|flow| Some((flow.head?.0, flow)))
            .collect();
        heads.sort_unstable_by_key(|(arrival, _)| *arrival);
        to.word(heads.len() as u64);
        for (arrival, flow) in heads {
            to.arrival(arrival);
            flow.digest(to);
        }
        for (at, limit) in limits.iter().zip(0..) {
            self.digest_queue(at, Budget::Limit(limit), to);
        }
        for (at, key) in buckets.iter().zip(keys) {
            self.digest_queue(at, Budget::Bucket(key), to);
        }
    }

    fn digest_queue(&self, at: &BudgetQueue, budget: Budget, to: &mut Digest) {
        let BudgetQueue {
            order,
            claims,
            // The sum of the claims.
            claimed: _,
            idle: _,
            // Follows from the policy.
            second: _,
            all,
            kept,
        } = at;
        order.digest(Some(budget), to);
        to.word(claims.len() as u64);
        for (
            (arrival, _),
            RoomClaim {
                draw,
                since: _,
                until,
            },
        ) in claims
        {
            to.arrival(*arrival);
            to.word(*draw);
            to.maybe_coming(*until);
        }
        for LastCheck {
            last_flow,
            opens,
            changed,
        } in [all, kept]
        {
            to.flag(*changed);
            to.maybe_coming(*opens);
            let head = last_flow.and_then(|flow| self.flows[flow as usize].head);
            to.flag(last_flow.is_some());
            head.into_iter()
                .for_each(|(arrival, _)| to.arrival(arrival));
        }
    }
}

impl Flow {
    fn digest(&self, to: &mut Digest) {
        let Self {
            // In each of its calls.
            key: _,
            head: _,
            parked_at,
            passed,
            is_resting: _,
            // What calls have waited for.
            account: _,
            noted: _,
        } = self;
        match parked_at {
            None => to.word(0),
            Some(list) => {
                to.word(match list {
                    WaitList::At(_) => 1,
                    WaitList::Kept(_) => 2,
                });
                word_of(list.budget(), to);
            }
        }
        to.flag(passed.is_some());
        if let Some(passed) = passed {
            let PassedHead { due, turns, lapses } = &**passed;
            to.coming(*due);
            to.word(turns.len() as u64);
            turns.iter().for_each(|&budget| word_of(budget, to));
            to.word(u64::from(*lapses));
        }
    }
}

/// Adds a budget. A bucket is named by its place: a digest is for schedulers whose buckets stay.
pub(crate) fn word_of(budget: Budget, to: &mut Digest) {
    to.word(match budget {
        Budget::Limit(limit) => u64::from(limit),
        Budget::Bucket(bucket) => 1 << 32 | u64::from(bucket.index()),
        Budget::Quota(_) => unreachable!("a digest has no quotas"),
    });
}
