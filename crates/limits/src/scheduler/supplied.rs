//! Supplies, and when they expire.

use super::state::{Scheduler, Supplied};
use crate::queue::Bar;
use crate::supply::{Supplier, Supply};
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
        let limiter = &mut self.limits[id as usize].limiter;
        let supplied = Supplied::Limit(id, supplier);
        if let Some(expires_at) = limiter.supply(supplier).expires_at() {
            self.expiries.remove(&(expires_at, supplied));
        }
        limiter.set_supply(now, supplier, supply);
        if let Some(expires_at) = supply.expires_at() {
            self.expiries.insert((expires_at, supplied));
        }
        self.parking.change(Bar::Limit(id));
        true
    }

    #[inline]
    pub(super) fn expire_supplies(&mut self) {
        while let Some(&(expires_at, supplied)) = self.expiries.first()
            && expires_at <= self.now
        {
            self.expiries.pop_first();
            match supplied {
                Supplied::Limit(limit, _) => {
                    self.limits[limit as usize]
                        .limiter
                        .follow_supply(expires_at);
                    self.parking.change(Bar::Limit(limit));
                }
                Supplied::Bucket(id) => self.bucket_supply_expired(expires_at, id),
            }
        }
    }
}
