//! The leases of records: etcd removes a record with its lease, whether or not a sidecar runs.
//!
//! Each lease is for all records that are written within a while, so few draws need a new one. It
//! lasts at least twice as long as its first record must be kept, and is used while enough of it is
//! left. No sidecar renews it: a record that is written again gets a later one.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tidegate_runtime::etcd::{EtcdClient, EtcdError};
use tokio::sync::Mutex;

/// The longest time of a record. etcd refuses leases of three hundred years.   seconds
const KEPT_MAX: u64 = 1 << 31;

/// Leases for records: one for each order of magnitude of time.
#[derive(Debug, Default)]
pub(super) struct RecordLeases(Mutex<BTreeMap<u32, RecordLease>>);

#[derive(Clone, Copy, Debug)]
struct RecordLease {
    id: i64,
    ends: Timestamp,
}

impl RecordLeases {
    /// A lease that lasts at least this long from now. Asks for one only if it has none.
    pub(super) async fn lasting(
        &self,
        client: &EtcdClient,
        clock: Clock,
        kept: Duration,
    ) -> Result<i64, EtcdError> {
        let seconds = kept.as_secs().saturating_add(1).min(KEPT_MAX);
        let magnitude = seconds.next_power_of_two().ilog2();
        // Held while it is asked for, so that one question is enough for all.
        let mut leases = self.0.lock().await;
        let now = clock.now();
        if let Some(lease) = leases.get(&magnitude)
            && now + Duration::from_secs(seconds) <= lease.ends
        {
            return Ok(lease.id);
        }
        let granted = client
            .lease_grant(Duration::from_secs(2 << magnitude))
            .await?;
        let lease = RecordLease {
            id: granted.id,
            ends: now + granted.time_to_live,
        };
        leases.insert(magnitude, lease);
        Ok(lease.id)
    }

    /// etcd does not know this lease, which another program may have revoked.
    pub(super) async fn forget(&self, id: i64) {
        self.0.lock().await.retain(|_, lease| lease.id != id);
    }
}
