//! Supplies, and when they expire.

use super::state::{Scheduler, SupplyTarget};
use crate::bucket::Fill;
use crate::call::BucketId;
use crate::policy::{LimitId, Scope};
use crate::queue::Budget;
use crate::supply::{Supplier, Supply, SupplyShare};
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Sets what a limit may give out. Supplies of other sources stay in force, and the lowest
    /// counts. False if no limit has this name.
    pub fn supply(
        &mut self,
        now: Timestamp,
        limit: &str,
        supplier: Supplier,
        supply: Supply,
    ) -> bool {
        let now = self.advance(now);
        let Some(id) = self.find_limit(limit) else {
            return false;
        };
        let limiter = &mut self.budgets.limits[id as usize];
        let before = limiter.supply(supplier).expires_at();
        limiter.set_supply(now, supplier, supply);
        self.expires(
            SupplyTarget::Limit(id, supplier),
            before,
            supply.expires_at(),
        );
        self.parking.change(Budget::Limit(id));
        true
    }

    /// From now on every limit gives out only this part of what it would, at least 1. Limits on the
    /// calls to one backend, and buckets, give out all of it. It applies to later policies too.
    ///
    /// A call is not refused for a deadline that such a limit cannot meet now, because the share may
    /// grow in time.
    pub fn set_share(&mut self, now: Timestamp, share: SupplyShare) {
        let now = self.advance(now);
        self.share = share;
        self.share_out(now);
    }

    /// The part of every limit that is given out.
    #[must_use]
    pub const fn share(&self) -> SupplyShare {
        self.share
    }

    pub(super) fn share_out(&mut self, now: Timestamp) {
        for (limiter, id) in self.budgets.limits.iter_mut().zip(0 as LimitId..) {
            let share = match limiter.rule.scope {
                Scope::Backend(_) => SupplyShare::FULL,
                _ => self.share,
            };
            if limiter.set_share(now, share) {
                self.parking.change(Budget::Limit(id));
            }
        }
    }

    /// Limits the rate at which a bucket fills, if that is below its rule. Nothing is refunded. The
    /// limit stays in force when the rule changes, and is forgotten with the bucket. False if there
    /// is no such bucket.
    pub fn supply_fill(&mut self, now: Timestamp, id: BucketId, supply: Supply<Fill>) -> bool {
        let now = self.advance(now);
        let Some(key) = self.budgets.buckets.find(Some(id)) else {
            return false;
        };
        let bucket = &mut self.budgets.buckets.all[key];
        let before = core::mem::replace(&mut bucket.supply, supply).expires_at();
        bucket.follow(now);
        self.expires(SupplyTarget::Bucket(id), before, supply.expires_at());
        self.parking.change(Budget::Bucket(key));
        true
    }

    /// A supply expires at another moment than before, if it does.
    pub(super) fn expires(
        &mut self,
        supplied: SupplyTarget,
        before: Option<Timestamp>,
        after: Option<Timestamp>,
    ) {
        before.map(|moment| self.expiries.remove(&(moment, supplied)));
        after.map(|moment| self.expiries.insert((moment, supplied)));
    }

    #[inline]
    pub(super) fn expire_supplies(&mut self) {
        while let Some(&(expires_at, supplied)) = self.expiries.first()
            && expires_at <= self.now
        {
            self.expiries.pop_first();
            let budget = match supplied {
                SupplyTarget::Limit(limit, _) => {
                    self.budgets.limits[limit as usize].follow_supply(expires_at);
                    Budget::Limit(limit)
                }
                SupplyTarget::Bucket(id) => {
                    let key = self.budgets.buckets.find(Some(id));
                    let key = key.expect("a removed bucket is removed with its supply");
                    self.budgets.buckets.all[key].follow(expires_at);
                    Budget::Bucket(key)
                }
            };
            self.parking.change(budget);
        }
    }
}
