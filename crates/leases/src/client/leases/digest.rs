//! The part of a client that decides its next requests and what may be used, for a search that tells states apart.
//!
//! Each part is taken apart by all its fields, so that no new field is forgotten. The numbers of requests are left out: only whether an
//! answer belongs to the current one matters. Moments that have passed are as good as now.

use std::hash::{Hash, Hasher};

use tidegate_limits::Timestamp;

use super::{LeasedResource, Leases, Phase, RequestId, SentRequest};
use crate::client::entitlement::{AfterExpiry, Allowance, Entitlement, LastLease, SafeCapacity};

/// A moment that is to come.
fn coming(moment: Timestamp, now: Timestamp) -> Option<Timestamp> {
    Some(moment).filter(|moment| now < *moment)
}

impl Leases {
    /// The current request, if one is under way, and when it was sent.
    pub(in crate::client) fn under_way(&self) -> Option<(RequestId, Timestamp)> {
        let under_way = self.under_way.as_ref()?;
        Some((under_way.request, under_way.sent))
    }

    /// Hashes the state.
    pub(in crate::client) fn hash_state(&self, now: Timestamp, hasher: &mut impl Hasher) {
        let Self {
            // Clients are alike except for their names.
            client_id: _,
            // A setting.
            interval_min,
            resources,
            under_way,
            // Only tells requests apart.
            requests: _,
            back_off,
            not_before,
        } = self;
        let allowed = |sent: Timestamp| coming(sent + *interval_min, now);
        resources.len().hash(hasher);
        for (id, resource) in resources {
            id.hash(hasher);
            resource.hash_state(now, allowed, hasher);
        }
        under_way.is_some().hash(hasher);
        if let Some(under_way) = under_way {
            let SentRequest {
                request: _,
                sent,
                resources,
            } = under_way;
            sent.hash(hasher);
            for (id, before) in resources {
                (id, before.map(allowed)).hash(hasher);
            }
        }
        (back_off.failures(), coming(*not_before, now)).hash(hasher);
    }
}

impl LeasedResource {
    fn hash_state(
        &self,
        now: Timestamp,
        allowed: impl Fn(Timestamp) -> Option<Timestamp>,
        hasher: &mut impl Hasher,
    ) {
        let Self {
            phase,
            priority,
            wants,
            in_use,
            told,
            entitlement,
            due,
            sent,
        } = self;
        let phase = match phase {
            Phase::Used => 0,
            Phase::Left => 1,
            Phase::Released => 2,
        };
        (phase, priority).hash(hasher);
        [wants, in_use].map(|it| it.to_bits()).hash(hasher);
        told.map(f64::to_bits).hash(hasher);
        entitlement.hash_state(hasher);
        (coming(*due, now), sent.map(allowed)).hash(hasher);
    }
}

impl Entitlement {
    /// Hashes the state.
    pub(in crate::client) fn hash_state(&self, hasher: &mut impl Hasher) {
        let Self {
            lease,
            after_expiry,
            safe,
        } = self;
        let lease = lease.map(|lease| {
            let LastLease {
                capacity,
                expires,
                expiry_time,
                refresh_interval,
            } = lease;
            (capacity.to_bits(), expires, expiry_time, refresh_interval)
        });
        let after_expiry = match after_expiry {
            AfterExpiry::Optimistic => 0,
            AfterExpiry::Pessimistic => 1,
            AfterExpiry::Safe => 2,
        };
        let safe = safe.map(|safe: SafeCapacity| match safe.allowance() {
            Allowance::UpTo(safe) => safe.to_bits(),
            Allowance::Unlimited => u64::MAX,
        });
        (lease, after_expiry, safe).hash(hasher);
    }
}
