//! Metrics of leased capacity.

use super::ShareNow;
use tidegate_runtime::metric::Show;

tidegate_runtime::metrics! {
    /// Leased capacity.
    pub struct LeaseMetrics: "tidegate_" {
        /// Leased capacity of a limit that is shared with other sidecars. It is 0 if there is no lease.
        lease_capacity: Gauge(limit) in "calls, cost or tokens/s",
        /// Capacity that is requested from the capacity servers.
        lease_wants: Gauge(limit) in "calls, cost or tokens/s",
        /// Capacity that this sidecar always owns (`safe` in `[[coordinate.limit]]`).
        lease_safe: Gauge(limit) in "calls, cost or tokens/s",
        /// Time until the lease expires. It is 0 if there is no lease; then only the safe share is left.
        lease_expires_seconds: Gauge(limit) in "s",
    }
}

impl LeaseMetrics {
    /// Shows the limits that are shared now, and no others.
    pub fn mirror(&self, shares: &[ShareNow]) {
        self.retain("limit", |limit| {
            shares.iter().any(|share| *share.limit == *limit)
        });
        for share in shares {
            let (capacity, expires) = share.lease.unwrap_or_default();
            self.lease_capacity(&share.limit).show(capacity);
            self.lease_wants(&share.limit).show(share.wants);
            self.lease_safe(&share.limit).show(share.safe);
            self.lease_expires_seconds(&share.limit).show(expires);
        }
    }
}
