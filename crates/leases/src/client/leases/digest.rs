//! The part of a client that decides its next requests and what may be used, for a search that tells states apart. The
//! numbers of requests are left out: only whether an answer belongs to the current one matters.

use std::hash::{Hash, Hasher};

use tidegate_limits::Timestamp;

use super::{Leases, RequestId};
use crate::client::entitlement::{Allowance, Entitlement};

impl Leases {
    /// The current request, if one is under way, and when it was sent.
    pub(in crate::client) fn under_way(&self) -> Option<(RequestId, Timestamp)> {
        let under_way = self.under_way.as_ref()?;
        Some((under_way.request, under_way.sent))
    }

    /// Hashes the state. Moments that have passed are as good as now.
    pub(in crate::client) fn hash_state(&self, now: Timestamp, hasher: &mut impl Hasher) {
        let passed = |moment: Timestamp| Some(moment).filter(|moment| now < *moment);
        for resource in self.resources.values() {
            let numbers = [
                resource.wants,
                resource.in_use,
                resource.told.unwrap_or(-1.0),
            ];
            (resource.phase as u8, numbers.map(f64::to_bits)).hash(hasher);
            resource.entitlement.hash_state(hasher);
            let allowed = resource.sent.map(|sent| passed(sent + self.interval_min));
            (passed(resource.due), allowed).hash(hasher);
        }
        if let Some(under_way) = &self.under_way {
            under_way.sent.hash(hasher);
            for (_, before) in &under_way.resources {
                let allowed = before.map(|sent| passed(sent + self.interval_min));
                allowed.hash(hasher);
            }
        }
        (self.back_off.failures(), passed(self.not_before)).hash(hasher);
    }
}

impl Entitlement {
    /// Hashes the state.
    pub(in crate::client) fn hash_state(&self, hasher: &mut impl Hasher) {
        let lease = self.lease.map(|lease| {
            let wire = (lease.expiry_time, lease.refresh_interval);
            (lease.capacity.to_bits(), lease.expires, wire)
        });
        lease.hash(hasher);
        let safe = self.safe.map(|safe| match safe.allowance() {
            Allowance::UpTo(safe) => safe.to_bits(),
            Allowance::Unlimited => u64::MAX,
        });
        (self.after_expiry as u8, safe).hash(hasher);
    }
}
