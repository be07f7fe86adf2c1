//! Records in the memory of one process: the store of a single sidecar, and of tests.
//!
//! Nodes of one process share it ([`Memory::node`]). The records end with the last node, so a
//! restart begins with a full window: exact on one node while it runs.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tokio::sync::watch;

use super::{Answer, Entry, Key, QuotaStore, Swapped};

/// The records of one process, at first without a node. Its time is the process's clock.
#[derive(Clone, Default)]
pub struct Memory(Arc<Shared>);

/// One node of a store in memory.
pub struct Node {
    shared: Arc<Shared>,
    time: watch::Sender<StoreTime>,
}

#[derive(Default)]
struct Shared {
    records: watch::Sender<Records>,
    members: watch::Sender<usize>,
}

#[derive(Default)]
struct Records {
    standing: HashMap<Key, Entry>,
    versions: u64,
}

impl Memory {
    /// Adds a node.
    #[must_use]
    pub fn node(&self) -> Node {
        let shared = Arc::clone(&self.0);
        shared.members.send_modify(|members| *members += 1);
        Node {
            shared,
            time: watch::channel(exact(Timestamp::ZERO)).0,
        }
    }

    /// Sets any text at a key, or removes its value, as another program would.
    pub fn tamper(&self, key: &Key, text: Option<&[u8]>) {
        self.0.records.send_modify(|records| match text {
            Some(text) => drop(records.put(key, text)),
            None => drop(records.standing.remove(key)),
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.members.send_modify(|members| *members -= 1);
    }
}

impl Records {
    fn version(&self, key: &Key) -> Option<Version> {
        self.standing.get(key).map(|entry| entry.version)
    }

    fn put(&mut self, key: &Key, text: &[u8]) -> Version {
        // Counted over all keys, so that each version is unique even after a key was deleted.
        self.versions += 1;
        let version = Version(self.versions);
        let text = text.to_vec();
        self.standing.insert(key.clone(), Entry { version, text });
        version
    }
}

impl QuotaStore for Node {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(async { Ok(self.shared.records.borrow().standing.get(key).cloned()) })
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a Key,
        expected: Option<Version>,
        text: &'a [u8],
    ) -> Answer<'a, Swapped> {
        Box::pin(async move {
            let mut swapped = Swapped::Conflict(None);
            self.shared.records.send_if_modified(|records| {
                let is_expected = records.version(key) == expected;
                swapped = if is_expected {
                    Swapped::Done(records.put(key, text))
                } else {
                    Swapped::Conflict(records.standing.get(key).cloned())
                };
                is_expected
            });
            Ok(swapped)
        })
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.time.subscribe()
    }

    fn now(&self, at: Timestamp) -> StoreTime {
        exact(at)
    }

    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut records = self.shared.records.subscribe();
            let changed = records.wait_for(|records| records.version(key) != since);
            drop(changed.await.expect("this node holds the sender"));
            Ok(())
        })
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.shared.members.subscribe()
    }
}

/// The time of the process. A clock does not drift from itself.
fn exact(at: Timestamp) -> StoreTime {
    let now = at.since(Timestamp::ZERO);
    StoreTime::between(at, now, now)
}
