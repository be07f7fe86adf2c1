//! The register as a node of ZooKeeper.
//!
//! It is a persistent node, not an ephemeral one. An ephemeral node disappears when the ensemble
//! considers a session ended, which may be before its holder can know, or after a harmless
//! hiccup. Here only the candidates decide, by the age of a version. Deleting the node by hand
//! deposes the master at its next renewal, and a candidate that starts in between has never seen
//! it: do not delete it.

use super::TimeToLive;
use super::register::{
    CandidateRecord, Register, RegisterEntry, RegisterFailure, RegisterSwap, RegisterVersion,
};
use crate::zookeeper::{self, ChangeSignal, ZooKeeperClient, ZooKeeperSettings};

/// A node that candidates contend for.
pub(super) struct ZooKeeperRegister {
    client: ZooKeeperClient,
    path: String,
    changed: Option<ChangeSignal>,
}

impl ZooKeeperRegister {
    pub(super) fn new(mut store: ZooKeeperSettings, path: String, ttl: TimeToLive) -> Self {
        store.deadline = store.deadline.min(ttl.renewal());
        Self {
            client: ZooKeeperClient::new(store),
            path,
            changed: None,
        }
    }
}

fn version(stat: &zookeeper::Stat) -> RegisterVersion {
    RegisterVersion {
        revision: u64::try_from(stat.mzxid).unwrap_or(0),
        writes: stat.version,
    }
}

fn entry(node: &zookeeper::NodeValue) -> Result<RegisterEntry, RegisterFailure> {
    Ok(RegisterEntry {
        version: version(&node.stat),
        record: CandidateRecord::from_bytes(&node.data)?,
    })
}

impl Register for ZooKeeperRegister {
    async fn read(&mut self) -> Result<Option<RegisterEntry>, RegisterFailure> {
        let (node, changed) = self.client.get_and_watch(&self.path).await?;
        self.changed = Some(changed);
        node.as_ref().map(entry).transpose()
    }

    async fn swap(
        &mut self,
        expected: Option<RegisterVersion>,
        record: &CandidateRecord,
    ) -> Result<RegisterSwap, RegisterFailure> {
        let data = record.to_bytes();
        let written = match expected {
            None => self.client.create(&self.path, &data).await?,
            Some(version) => self.client.set(&self.path, &data, version.writes).await?,
        };
        match written {
            Some(stat) => Ok(RegisterSwap::Done(version(&stat))),
            None => Ok(RegisterSwap::Refused(self.read().await?)),
        }
    }

    async fn changed(&mut self) {
        match &mut self.changed {
            Some(changed) => {
                changed.await;
                // Watches fire once; the next read sets another.
                self.changed = None;
            }
            None => std::future::pending().await,
        }
    }

    async fn settle(&mut self) {}
}
