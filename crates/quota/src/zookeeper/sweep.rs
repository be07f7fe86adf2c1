//! Removes the records of keys that are used no more.
//!
//! ZooKeeper has nodes that end by themselves, but only servers that are started with
//! `zookeeper.extendedTypesEnabled` take them. So the member with the first name looks at every
//! record now and then, and removes those that need not be kept (`Record::kept_until`). While no
//! sidecar runs, nothing is removed.
//!
//! Each removal counts up the node `swept` in the same transaction. While any member does not check
//! that count, which earlier builds did not, nothing is removed either.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_limits::quota::QuotaRecord;
use tidegate_runtime::zookeeper::NodeWrite;
use tracing::{debug, info};

use super::super::node::sleep_about;
use super::{CHECKS, StoreError, ZooKeeper, told};

/// The pause between two reads, so that any number of keys is no load.
const PACE: Duration = Duration::from_millis(5);
/// The most records that are removed at once. Each removal refuses the next write of every other record
/// once, so they are taken together.
const AT_ONCE: usize = 100;
/// A key's node without a record is left alone for this long: an operator may be about to set a total
/// below it.
const EMPTY_MIN: Duration = Duration::from_secs(600);

impl ZooKeeper {
    /// Looks for records to remove, now and then.
    pub(super) async fn keep_sweeping(&self) {
        loop {
            sleep_about(self.settings.sweep_every).await;
            if !self.sweeps.load(Ordering::Relaxed) {
                continue;
            }
            match self.sweep().await {
                Ok(0) => {}
                Ok(removed) => info!(removed, "quota: removed records that were used no more"),
                Err(error) => debug!(%error, "quota: ZooKeeper's records cannot be looked through"),
            }
        }
    }

    /// Removes the records that need not be kept, and returns how many.
    async fn sweep(&self) -> Result<usize, StoreError> {
        if !self.all_check().await? {
            return Ok(0);
        }
        let records = &self.settings.records;
        let mut over: Vec<(String, i32)> = Vec::new();
        let mut removed = 0;
        for name in self.client.children(records).await.map_err(told)? {
            if name.starts_with('.') {
                continue;
            }
            tokio::time::sleep(PACE).await;
            let key = format!("{records}/{name}");
            let found = self.client.get(&format!("{key}/window")).await;
            let Some(node) = found.map_err(told)? else {
                self.remove_empty(&key).await?;
                continue;
            };
            let record = QuotaRecord::parse(&node.data).ok();
            if record.is_some_and(|record| record.kept_until() <= self.earliest()) {
                over.push((key, node.stat.version));
            }
            if over.len() >= AT_ONCE {
                removed += self.remove(&std::mem::take(&mut over)).await?;
            }
        }
        removed += self.remove(&over).await?;
        Ok(removed)
    }

    /// Whether every member writes a record only if none was removed meanwhile.
    async fn all_check(&self) -> Result<bool, StoreError> {
        let members = &self.settings.members;
        for member in self.client.children(members).await.map_err(told)? {
            let node = self.client.get(&format!("{members}/{member}")).await;
            if node.map_err(told)?.is_some_and(|node| node.data != CHECKS) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes records of these versions, and their keys' nodes if nothing else is below them. Those
    /// that were written meanwhile stay. Returns how many were removed.
    async fn remove(&self, over: &[(String, i32)]) -> Result<usize, StoreError> {
        let removed = self.remove_together(over).await?;
        if removed > 0 || over.len() < 2 {
            return Ok(removed);
        }
        // One was written meanwhile.
        let mut removed = 0;
        for one in over {
            removed += self.remove_together(std::slice::from_ref(one)).await?;
        }
        Ok(removed)
    }

    async fn remove_together(&self, over: &[(String, i32)]) -> Result<usize, StoreError> {
        if over.is_empty() {
            return Ok(0);
        }
        // The count is there before it is needed.
        self.swept().await?;
        let paths: Vec<String> = over
            .iter()
            .map(|(key, _)| format!("{key}/window"))
            .collect();
        let mut writes = vec![NodeWrite::Put(&self.settings.swept, b"")];
        let deletes = paths.iter().zip(over);
        writes.extend(deletes.map(|(path, (_, version))| NodeWrite::Delete(path, *version)));
        if self
            .client
            .write_all(&writes)
            .await
            .map_err(told)?
            .is_none()
        {
            return Ok(0);
        }
        for (key, _) in over {
            // Not if an operator has set a total there.
            self.delete_if_empty(key, 0).await?;
        }
        Ok(over.len())
    }

    /// Removes the node of a key that has no record, some time after it was made.
    async fn remove_empty(&self, key: &str) -> Result<(), StoreError> {
        let Some(node) = self.client.get(key).await.map_err(told)? else {
            return Ok(());
        };
        let made = Duration::from_millis(u64::try_from(node.stat.mtime).unwrap_or(u64::MAX));
        if node.data.is_empty() && made.saturating_add(EMPTY_MIN) <= self.earliest() {
            self.delete_if_empty(key, node.stat.version).await?;
        }
        Ok(())
    }

    /// Removes a key's node, unless something is below it or it was written.
    async fn delete_if_empty(&self, key: &str, version: i32) -> Result<(), StoreError> {
        let deleted = self
            .client
            .write_all(&[NodeWrite::Delete(key, version)])
            .await;
        deleted.map(drop).map_err(told)
    }

    /// The earliest that the store's time can be.
    fn earliest(&self) -> Duration {
        let time = self.node.time.borrow().at(self.node.clock.now());
        match time.latest() {
            Duration::MAX => Duration::ZERO,
            _ => time.earliest(),
        }
    }
}
