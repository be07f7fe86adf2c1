//! Records in the memory of one process: the store of a single sidecar, and a test double with
//! scripted failures.
//!
//! Nodes of one process share it ([`Memory::node`]). The records end with the last node, so a
//! restart begins with a full window: exact on one node while it runs.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tidegate_runtime::lock;
use tokio::sync::watch;

use super::{Answer, Entry, Error, Key, QuotaStore, Swapped, Write, assert_bounded};

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call takes this long, and is then correct.
    Slow(Duration),
    /// The call has no effect, and the caller gets that error.
    Away,
    /// The call has no effect, and the caller gets "unknown".
    RequestLost,
    /// The call is done, and the caller gets "unknown".
    ReplyLost,
    /// A read returns the value before the last write. A write is done as usual.
    Stale,
}

/// The records of one process.
#[derive(Clone)]
pub struct Memory(Arc<Shared>);

/// One node of a store in memory.
pub struct Node {
    shared: Arc<Shared>,
    faults: Mutex<VecDeque<Fault>>,
    time: watch::Sender<StoreTime>,
    /// Whether it differs from the process's own time.
    skewed: AtomicBool,
}

struct Shared {
    records: Mutex<Records>,
    /// The number of writes, so that waiting tasks check again.
    writes: watch::Sender<u64>,
    members: watch::Sender<usize>,
}

#[derive(Default)]
struct Records {
    standing: HashMap<Key, Record>,
    versions: u64,
}

struct Record {
    entry: Entry,
    before: Option<Entry>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} was asked for")]
struct Asked(Fault);

impl Memory {
    /// An empty store without a node. Its time is the process's clock.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            records: Mutex::default(),
            writes: watch::channel(0).0,
            members: watch::channel(0).0,
        }))
    }

    /// Adds a node.
    #[must_use]
    pub fn node(&self) -> Node {
        let shared = Arc::clone(&self.0);
        shared.members.send_modify(|members| *members += 1);
        let exact = StoreTime::between(Timestamp::ZERO, Duration::ZERO, Duration::ZERO);
        Node {
            shared,
            faults: Mutex::default(),
            time: watch::channel(exact).0,
            skewed: AtomicBool::new(false),
        }
    }

    /// Sets any text at a key, or removes its value, as another program would.
    pub fn tamper(&self, key: &Key, text: Option<&[u8]>) {
        let mut records = lock(&self.0.records);
        match text {
            Some(text) => drop(records.put(key, text.to_vec())),
            None => drop(records.standing.remove(key)),
        }
        drop(records);
        self.0.writes.send_modify(|writes| *writes += 1);
    }
}

impl Shared {}

impl Node {
    /// The next calls of this node get these faults, one each; later calls get none.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.faults).extend(faults);
    }

    /// Sets this node's knowledge of the store's time.
    pub fn set_time(&self, time: StoreTime) {
        self.skewed.store(true, Ordering::Relaxed);
        self.time.send_replace(time);
    }

    async fn fault(&self) -> Option<Fault> {
        let fault = lock(&self.faults).pop_front();
        if let Some(Fault::Slow(delay)) = fault {
            tokio::time::sleep(delay).await;
        }
        fault
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.members.send_modify(|members| *members -= 1);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = lock(&self.0.records).standing.len();
        f.debug_struct("Memory").field("keys", &keys).finish()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = Memory(Arc::clone(&self.shared));
        f.debug_tuple("Node").field(&store).finish()
    }
}

impl Records {
    fn get(&self, key: &Key) -> Option<Entry> {
        self.standing.get(key).map(|record| record.entry.clone())
    }

    fn put(&mut self, key: &Key, text: Vec<u8>) -> Version {
        // Counted over all keys, so that each version is unique even after a key was deleted.
        self.versions += 1;
        let version = Version(self.versions);
        let before = self.get(key);
        let entry = Entry { version, text };
        self.standing.insert(key.clone(), Record { entry, before });
        version
    }
}

impl QuotaStore for Node {
    fn get<'a>(&'a self, keys: &'a [Key]) -> Answer<'a, Vec<Option<Entry>>> {
        assert_bounded(keys.iter());
        Box::pin(async move {
            let fault = self.fault().await;
            if let Some(Fault::Away | Fault::RequestLost | Fault::ReplyLost) = fault {
                return Err(away(fault));
            }
            let records = lock(&self.shared.records);
            let stale = fault == Some(Fault::Stale);
            let found = keys.iter().map(|key| {
                let record = records.standing.get(key)?;
                match &record.before {
                    before if stale => before.clone(),
                    _ => Some(record.entry.clone()),
                }
            });
            Ok(found.collect())
        })
    }

    fn compare_and_set<'a>(&'a self, writes: &'a [Write]) -> Answer<'a, Swapped> {
        assert_bounded(writes.iter().map(|write| &write.key));
        Box::pin(async move {
            let fault = self.fault().await;
            let lost = |fault| Error::Unknown(Asked(fault).into());
            match fault {
                Some(Fault::Away) => return Err(away(fault)),
                Some(fault @ Fault::RequestLost) => return Err(lost(fault)),
                _ => {}
            }
            let swapped = {
                let mut records = lock(&self.shared.records);
                let stands = |write: &Write| records.get(&write.key);
                let found: Vec<_> = writes.iter().map(stands).collect();
                let expected = writes.iter().map(|write| write.expected);
                let same = found
                    .iter()
                    .map(|entry| entry.as_ref().map(|entry| entry.version))
                    .eq(expected);
                if same {
                    let put = writes
                        .iter()
                        .map(|write| records.put(&write.key, write.text.clone()));
                    Swapped::Done(put.collect())
                } else {
                    Swapped::Conflict(found)
                }
            };
            if let Swapped::Done(_) = swapped {
                self.shared.writes.send_modify(|writes| *writes += 1);
            }
            match fault {
                Some(fault @ Fault::ReplyLost) => Err(lost(fault)),
                _ => Ok(swapped),
            }
        })
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.time.subscribe()
    }

    fn now(&self, at: Timestamp) -> StoreTime {
        if self.skewed.load(Ordering::Relaxed) {
            return self.time.borrow().at(at);
        }
        // A clock does not drift from itself.
        let now = at.since(Timestamp::ZERO);
        StoreTime::between(at, now, now)
    }

    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()> {
        Box::pin(async move {
            let fault = self.fault().await;
            if let Some(Fault::Away | Fault::RequestLost | Fault::ReplyLost) = fault {
                return Err(away(fault));
            }
            let mut writes = self.shared.writes.subscribe();
            let other = |_: &u64| {
                lock(&self.shared.records)
                    .get(key)
                    .map(|entry| entry.version)
                    != since
            };
            let changed = writes.wait_for(other).await;
            changed.expect("this node holds the sender");
            Ok(())
        })
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.shared.members.subscribe()
    }
}

fn away(fault: Option<Fault>) -> Error {
    Error::Unavailable(Asked(fault.unwrap_or(Fault::Away)).into())
}
