//! Limits that are shares of leased capacity, as operators see them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::metric::SetLevel;

/// The state of a shared limit, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareNow {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The id of the resource.
    pub resource: Arc<str>,
    /// The safe share.
    pub safe: f64,
    /// The demand for the servers.
    pub wants: f64,
    /// The lease and its remaining time; `None` without one.
    pub lease: Option<(f64, Duration)>,
}

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
