//! The register as a key of etcd.
//!
//! The key is bound to a lease, so that it disappears when its writer has died and no candidate
//! is left. Every write has its own lease. Renewing one lease would cost less but is not safe: an
//! old leader of etcd that was paused renews leases without its quorum, and ends leases that
//! another leader has renewed (etcd issue 15247; fixed in 3.4.28 and 3.5.10). The quorum agrees
//! on a grant, and a member that missed it cannot end it.

use super::TimeToLive;
use super::register::{
    CandidateRecord, Register, RegisterEntry, RegisterFailure, RegisterSwap, RegisterVersion,
};
use crate::etcd::{self, EtcdClient, EtcdError, EtcdSettings, EtcdWatch, KeyValue, Range};

/// A key that candidates contend for.
pub(super) struct EtcdRegister {
    client: EtcdClient,
    key: Vec<u8>,
    watch: Option<EtcdWatch>,
    /// The lease of this candidate's last write.
    lease: Option<i64>,
    /// The revocation of the previous lease, which holds no key any more.
    tidying: Option<tokio::task::JoinHandle<()>>,
}

impl EtcdRegister {
    pub(super) fn new(mut store: EtcdSettings, key: &str, ttl: TimeToLive) -> Self {
        // A silent member must leave time for the next.
        store.deadline = store.deadline.min(ttl.renewal());
        store.try_timeout = store.try_timeout.min(ttl.renewal() / 3);
        Self {
            client: EtcdClient::new(store),
            key: key.as_bytes().to_vec(),
            watch: None,
            lease: None,
            tidying: None,
        }
    }

    /// Ends an unneeded lease, without waiting: if this fails, the lease expires.
    fn revoke(&mut self, lease: i64) {
        let client = self.client.clone();
        // At most one at a time; one still in progress has had a whole renewal interval.
        if let Some(before) = self.tidying.take() {
            before.abort();
        }
        self.tidying = Some(tokio::spawn(async move {
            let _ = client.lease_revoke(lease).await;
        }));
    }
}

/// Revisions are enough: etcd compares them, and each is unique.
fn version(revision: u64) -> RegisterVersion {
    RegisterVersion {
        revision,
        writes: 0,
    }
}

fn entry(found: KeyValue) -> Result<RegisterEntry, RegisterFailure> {
    Ok(RegisterEntry {
        version: version(found.mod_revision),
        record: CandidateRecord::from_bytes(&found.value)?,
    })
}

impl Register for EtcdRegister {
    async fn read(&mut self) -> Result<Option<RegisterEntry>, RegisterFailure> {
        let mut found = self.client.range(&Range::key(&self.key)).await?;
        if self.watch.is_none() {
            let range = Range::key(&self.key);
            self.watch = Some(self.client.watch(range, found.revision + 1));
        }
        found.entries.pop().map(entry).transpose()
    }

    async fn swap(
        &mut self,
        expected: Option<RegisterVersion>,
        record: &CandidateRecord,
    ) -> Result<RegisterSwap, RegisterFailure> {
        // The lease first: it begins after this call and before the key is bound to it. A
        // resignation needs no time; the shortest lease is enough.
        let lease = self.client.lease_grant(record.time_to_live()).await?;
        let expected = expected.map_or(0, |version| version.revision);
        let swapped = self
            .client
            .swap(&self.key, expected, &record.to_bytes(), Some(lease.id))
            .await;
        match swapped {
            Ok(etcd::KeySwap::Done(revision)) => {
                if let Some(before) = self.lease.replace(lease.id) {
                    self.revoke(before);
                }
                Ok(RegisterSwap::Done(version(revision)))
            }
            Ok(etcd::KeySwap::Refused(found)) => {
                self.revoke(lease.id);
                Ok(RegisterSwap::Refused(found.map(entry).transpose()?))
            }
            // The key may be bound to the lease, so the lease must expire.
            Err(error @ (EtcdError::Unknown(_) | EtcdError::Garbage(_))) => Err(error.into()),
            Err(error) => {
                self.revoke(lease.id);
                Err(error.into())
            }
        }
    }

    async fn changed(&mut self) {
        match &mut self.watch {
            // An error means that there is no watch now; reads continue without it.
            Some(watch) => drop(watch.next().await),
            None => std::future::pending().await,
        }
    }

    async fn settle(&mut self) {
        if let Some(tidying) = self.tidying.take() {
            let _ = tidying.await;
        }
    }
}
