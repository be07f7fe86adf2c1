//! Records in the memory of one process: the store of a single sidecar, and of tests.
//!
//! Nodes of one process share it ([`Memory::node`]). Without [`KeptRecords`] they end with the process, so a
//! restart begins with a full window. What a process had drawn and not spent when it died is lost with its window.

mod kept;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{RecordVersion, StoreTime};
use tidegate_runtime::Clock;
use tokio::sync::watch;

use super::{QuotaStore, RecordKey, StoreCall, StoreEntry, StoreError, StoredSettings, SwapResult};

pub use kept::KeptRecords;

/// The records of one process, at first without a node. Its time is the process's clock.
#[derive(Clone)]
pub struct Memory(Arc<MemoryState>);

/// A node of a store in memory.
pub struct MemoryNode {
    shared: Arc<MemoryState>,
    time: watch::Sender<StoreTime>,
}

struct MemoryState {
    clock: Clock,
    /// The zero of the store's time, as the processes of this boot know it.   ns
    zero: u64,
    records: watch::Sender<Records>,
    members: watch::Sender<usize>,
}

struct Records {
    standing: HashMap<RecordKey, StoredRecord>,
    versions: u64,
    kept: Option<KeptRecords>,
    /// The number of records at which those are removed that need not be kept.
    full: usize,
    /// The maximum number of records.
    most: usize,
    /// When the first of the records need no longer be kept, if there were as many as there may be.
    room_from: Duration,
}

/// Why a new key has no record.
#[derive(Debug, thiserror::Error)]
#[error(
    "memory holds {most} records of quotas, as many as keys_max allows, and all of them are of windows that count"
)]
struct RecordsFull {
    most: usize,
}

/// Why a key has no record yet after a restart.
#[derive(Debug, thiserror::Error)]
#[error(
    "the process before had more keys of quotas than a restart keeps ({}), so the window of a key that it may have had counts as used up",
    KeptRecords::KEYS_MAX
)]
struct RecordUnknown;

struct StoredRecord {
    entry: StoreEntry,
    kept_until: Duration,
}

/// Fewer records are never looked through.
const FULL_MIN: usize = 64;

/// The maximum number of records for each key that a sidecar may have at once: a key that it forgets leaves its record.
const RECORDS_PER_KEY: usize = 16;

impl Default for Memory {
    fn default() -> Self {
        Self::new(Clock::start())
    }
}

impl Memory {
    /// No records yet, and the time of this clock since its process began.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with(clock, clock.boot_time(clock.began()), None)
    }

    /// The records of the process before, in its time.
    #[must_use]
    pub fn keeping(clock: Clock, kept: KeptRecords) -> Self {
        Self::with(clock, kept.zero(), Some(kept))
    }

    fn with(clock: Clock, zero: u64, kept: Option<KeptRecords>) -> Self {
        let records = Records {
            standing: HashMap::new(),
            versions: 0,
            kept,
            full: 0,
            most: usize::MAX,
            room_from: Duration::ZERO,
        };
        Self(Arc::new(MemoryState {
            clock,
            zero,
            records: watch::Sender::new(records),
            members: watch::Sender::default(),
        }))
    }

    /// Bounds the records: 16 for each of this number of keys. While all of them have to be kept, a further key is
    /// refused ([`StoreError::Refused`]).
    pub fn set_keys_max(&self, keys: usize) {
        self.0.records.send_if_modified(|records| {
            records.most = keys.saturating_mul(RECORDS_PER_KEY);
            records.room_from = Duration::ZERO;
            false
        });
    }

    /// Adds a node.
    #[must_use]
    pub fn node(&self) -> MemoryNode {
        let shared = Arc::clone(&self.0);
        shared.members.send_modify(|members| *members += 1);
        MemoryNode {
            time: watch::channel(shared.time(shared.clock.now())).0,
            shared,
        }
    }

    /// Sets any text at a key, or removes its value, as another program would.
    pub fn tamper(&self, key: &RecordKey, text: Option<&[u8]>) {
        self.0.records.send_modify(|records| match text {
            Some(text) => drop(records.put(key, text, Duration::MAX, Duration::ZERO)),
            None => records.remove(key),
        });
    }
}

impl MemoryState {
    /// The store's time. A clock does not drift from itself.
    fn time(&self, at: Timestamp) -> StoreTime {
        let now = Duration::from_nanos(self.clock.boot_time(at).saturating_sub(self.zero));
        StoreTime::between(at, now, now)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.shared.members.send_modify(|members| *members -= 1);
    }
}

impl Records {
    fn version(&self, key: &RecordKey) -> Option<RecordVersion> {
        self.get(key).map(|entry| entry.version)
    }

    fn get(&self, key: &RecordKey) -> Option<StoreEntry> {
        let standing = self.standing.get(key).map(|stored| stored.entry.clone());
        standing.or_else(|| self.kept.as_ref()?.before(key))
    }

    fn remove(&mut self, key: &RecordKey) {
        self.standing.remove(key);
        if let Some(kept) = &mut self.kept {
            kept.remove(key);
        }
    }

    /// Removes the records that need not be kept, once as many were added as were left last time, or as there may be.
    fn make_room(&mut self, now: Duration) {
        let count = self.standing.len();
        let is_full = count >= self.most && now >= self.room_from;
        if count >= self.full.max(FULL_MIN) || is_full {
            self.standing.retain(|_, stored| now < stored.kept_until);
            self.full = 2 * self.standing.len();
            // Looking through all of them at each further key would take long.
            let ends = self.standing.values().map(|stored| stored.kept_until);
            self.room_from = ends.min().unwrap_or_default();
            if let Some(kept) = &mut self.kept {
                kept.make_room(now);
            }
        }
    }

    /// Whether a record of this key has a place.
    fn has_room_for(&self, key: &RecordKey) -> bool {
        self.standing.len() < self.most || self.standing.contains_key(key)
    }

    /// Whether the process before may have had a record of this key that is not known.
    fn is_unknown(&self, key: &RecordKey, now: Duration) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| kept.is_unknown(key, now)) && !self.standing.contains_key(key)
    }

    fn put(
        &mut self,
        key: &RecordKey,
        text: &[u8],
        kept_until: Duration,
        now: Duration,
    ) -> RecordVersion {
        if let Some(kept) = &mut self.kept {
            kept.put(key, text, now);
        }
        // Counted over all keys, so that each version is unique even after a key was deleted.
        self.versions += 1;
        let version = RecordVersion(self.versions);
        let text = text.to_vec();
        let entry = StoreEntry { version, text };
        let stored = StoredRecord { entry, kept_until };
        self.standing.insert(key.clone(), stored);
        version
    }
}

impl QuotaStore for MemoryNode {
    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreCall<'a, Option<StoreEntry>> {
        Box::pin(async { Ok(self.shared.records.borrow().get(key)) })
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<RecordVersion>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> StoreCall<'a, SwapResult> {
        let now = self.shared.time(self.shared.clock.now()).latest();
        Box::pin(async move {
            let mut swapped = Ok(SwapResult::Conflict(None));
            self.shared.records.send_if_modified(|records| {
                if records.version(key) != expected {
                    swapped = Ok(SwapResult::Conflict(records.get(key)));
                    return false;
                }
                records.make_room(now);
                if records.is_unknown(key, now) {
                    swapped = Err(StoreError::Refused(Box::new(RecordUnknown)));
                    return false;
                }
                let has_room = records.has_room_for(key);
                swapped = if has_room {
                    let version = records.put(key, text, kept_until, now);
                    Ok(SwapResult::Done(version))
                } else {
                    let most = records.most;
                    Err(StoreError::Refused(Box::new(RecordsFull { most })))
                };
                has_room
            });
            swapped
        })
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.time.subscribe()
    }

    fn now(&self, at: Timestamp) -> StoreTime {
        self.shared.time(at)
    }

    fn changed<'a>(
        &'a self,
        key: &'a RecordKey,
        since: Option<RecordVersion>,
    ) -> StoreCall<'a, ()> {
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

    fn member_lifetime(&self) -> Duration {
        Duration::ZERO
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        None
    }

    fn evictions(&self) -> Option<u64> {
        None
    }

    fn configures(&self) -> bool {
        false
    }

    fn configured<'a>(
        &'a self,
        _: &'a RecordKey,
        known: &'a StoredSettings,
    ) -> StoreCall<'a, StoredSettings> {
        Box::pin(async { Ok(known.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn records_of_names_that_are_used_once_do_not_add_up() {
        let memory = Memory::new(Clock::of_runtime());
        let node = memory.node();
        let kept = Duration::from_secs(600);
        for minute in 0..1_000_u32 {
            let key = RecordKey::new(&format!("user-{minute}")).expect("it is a key");
            let until = Duration::from_secs(60) * minute + kept;
            let put = node.compare_and_set(&key, None, b"1", until).await;
            assert!(matches!(put, Ok(SwapResult::Done(_))), "{put:?}");
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        let records = memory.0.records.borrow();
        assert!(
            records.standing.len() <= FULL_MIN,
            "{}",
            records.standing.len()
        );
        for minute in 991..1_000 {
            let key = RecordKey::new(&format!("user-{minute}")).expect("it is a key");
            assert!(records.get(&key).is_some(), "{minute}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_further_key_is_refused_while_there_are_as_many_records_as_there_may_be() {
        let memory = Memory::new(Clock::of_runtime());
        memory.set_keys_max(8);
        let node = memory.node();
        let most = 8 * RECORDS_PER_KEY;
        let key = |number| RecordKey::new(&format!("user-{number}")).expect("it is a key");
        let put = async |number: usize, expected, until| {
            let until = Duration::from_secs(until);
            node.compare_and_set(&key(number), expected, b"1", until)
                .await
        };
        for number in 0..most {
            let until = if number == 5 { 60 } else { 600 };
            let done = put(number, None, until).await;
            assert!(matches!(done, Ok(SwapResult::Done(_))), "{done:?}");
        }
        let full = put(most, None, 600).await;
        assert!(matches!(full, Err(StoreError::Refused(_))), "{full:?}");
        let known = node
            .get(&key(3))
            .await
            .expect("it is up")
            .expect("a record");
        let again = put(3, Some(known.version), 600).await;
        assert!(matches!(again, Ok(SwapResult::Done(_))), "{again:?}");

        tokio::time::advance(Duration::from_secs(60)).await;
        let done = put(most, None, 600).await;
        assert!(matches!(done, Ok(SwapResult::Done(_))), "{done:?}");
        let full = put(most + 1, None, 600).await;
        assert!(matches!(full, Err(StoreError::Refused(_))), "{full:?}");
        memory.set_keys_max(9);
        let done = put(most + 1, None, 600).await;
        assert!(matches!(done, Ok(SwapResult::Done(_))), "{done:?}");
    }
}
