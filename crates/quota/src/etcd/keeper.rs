//! Keeps the time in a store without a clock.
//!
//! The nodes elect a master. Its monotonic clock, continued from the last written time, is the
//! time. It writes the time every second, and at once for each request. A write replaces exactly
//! the version that the master knows, so a deposed master can no longer write.
//!
//! A new master continues from the latest possible value of the earlier time. So the time is
//! never behind, and ahead by at most its uncertainty, a tenth of a second; a window is shorter
//! by that much. If it were behind, a node that used its own clock meanwhile (cut off, or without
//! a master) would go through a part of a window twice. A node that restarts in that part would
//! get its own share again.
//!
//! Therefore a node is a candidate only when it knows the time that well, or if no member has
//! known it for as long as a silent member counts. Only if all nodes that knew it have left, or
//! are cut off, a master continues from the last *written* time. Only the time of day of the two
//! hosts shows how long ago that was, so it is written too. The master continues a second ahead
//! of it, and is not behind while the two hosts agree to within a second. Without a master, nodes
//! continue with the time that they know, which only becomes less exact. The time begins with 0
//! and has no relation to the time of day.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tidegate_limits::Timestamp;
use tidegate_limits::quota::StoreTime;
use tidegate_runtime::election::{self, ElectionStore, Mastership};
use tidegate_runtime::etcd::{EtcdError, EtcdWatch, KeySwap, KeyValue, Range};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{ASKED, Etcd, MASTER, MEMBERS, RETRY, TIME, puts};

/// The longest interval between writes of the time, so that the next master is not far behind.
const WRITE: Duration = Duration::from_secs(1);
/// How far a new master may be ahead of the earlier time.
const AHEAD_MAX: Duration = Duration::from_millis(100);
/// The harmless difference of the time of day of two hosts.
const HOSTS_DIFFER: Duration = Duration::from_secs(1);
/// The maximum number of requests answered at once; others come next.
const ANSWERS_MAX: usize = 1_000;

/// Whether this is exact enough to continue from.
pub(super) fn is_known(time: &StoreTime) -> bool {
    time.width() <= AHEAD_MAX
}

/// The value at the key of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredTime {
    /// The store's time, in nanoseconds, plus the time passed since it was read.
    pub(super) nanos: u64,
    /// The time of day at that time, by the clock of the node that keeps it.
    #[serde(default)]
    pub(super) wall_ms: u64,
    /// The node that keeps it.
    pub(super) by: String,
    /// The requests present when the time was read, by node.
    pub(super) answers: BTreeMap<String, u64>,
}

impl StoredTime {
    /// The latest possible time now, as far as the time of day says how long ago this was written.
    fn latest(&self, now: SystemTime) -> Duration {
        let passed = match self.wall_ms {
            0 => Duration::ZERO,
            wall_ms => since_1970(now).saturating_sub(Duration::from_millis(wall_ms)),
        };
        Duration::from_nanos(self.nanos)
            .saturating_add(passed)
            .saturating_add(HOSTS_DIFFER)
    }

    pub(super) fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

/// The time of a term.
struct Term {
    /// A time and its moment on this node's clock.
    time: Duration,
    at: Timestamp,
    /// The version of the time to replace.
    revision: u64,
    /// Unanswered requests.
    questions: HashMap<String, u64>,
}

impl Term {
    fn time(&self, now: Timestamp) -> Duration {
        self.time.saturating_add(now.since(self.at))
    }

    fn add_request(&mut self, asked: &str, entry: &KeyValue) {
        let node = str::from_utf8(&entry.key).ok();
        let node = node.and_then(|key| key.strip_prefix(asked));
        let number = str::from_utf8(&entry.value).ok();
        let number = number.and_then(|number| number.parse().ok());
        if let (Some(node), Some(number)) = (node, number) {
            self.questions.insert(node.to_owned(), number);
        }
    }
}

impl Etcd {
    /// Is a candidate for keeping the time until it is stopped, and then resigns.
    pub(super) async fn keep_time(&self, stopped: &CancellationToken) {
        let candidate = election::ElectionSettings {
            address: self.node.id.clone(),
            time_to_live: self.settings.time_to_live,
            place: ElectionStore::Etcd {
                store: self.settings.store.clone(),
                key: self.settings.key(MASTER),
            },
        };
        stopped.run_until_cancelled(self.may_stand()).await;
        let mut mastership = candidate.start(self.node.clock, stopped.clone());
        let keep = async {
            let is_master = |mastership: &Mastership| {
                let now = self.node.clock.now();
                mastership.holds_at(now)
            };
            while mastership.wait_for(is_master).await.is_ok() {
                if let Err(error) = self.keep(&mastership).await {
                    debug!(%error, "quota: the time could not be kept");
                }
                // A master that lost the election finds out here; no notice comes for a passed
                // fence.
                tokio::time::sleep(RETRY).await;
            }
        };
        stopped.run_until_cancelled(keep).await;
        // The election closes its channel after it has resigned.
        while mastership.changed().await.is_ok() {}
    }

    /// Waits until this node knows the time, or until no time was ever written, or until no member
    /// has known it for as long as a silent member counts: after an outage of etcd, all members
    /// must come back first.
    async fn may_stand(&self) {
        let members = self.settings.key(MEMBERS);
        let members = Range::prefix(members.as_bytes());
        let mut vacant_since = None;
        while !is_known(&self.node.time.borrow().at(self.node.clock.now())) {
            let found = match self.client.get(self.settings.key(TIME).as_bytes()).await {
                Ok(None) => return,
                Ok(Some(_)) => self.client.range(&members).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) if found.entries.iter().all(|it| it.value.is_empty()) => {
                    let since = *vacant_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.settings.time_to_live.get() {
                        return;
                    }
                }
                Ok(_) => vacant_since = None,
                Err(error) => {
                    debug!(%error, "quota: etcd does not tell who knows the time");
                    vacant_since = None;
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Keeps the time while this is the master and no other node writes it.
    async fn keep(&self, mastership: &watch::Receiver<Mastership>) -> Result<(), EtcdError> {
        let key = self.settings.key(TIME).into_bytes();
        let asked = self.settings.key(ASKED);
        let last = self.client.get(&key).await?;
        let range = Range::prefix(asked.as_bytes());
        let questions = self.client.range(&range).await?;
        let read_at = self.node.clock.now();
        let mut term = Term {
            time: Duration::ZERO,
            at: read_at,
            revision: 0,
            questions: HashMap::new(),
        };
        if let Some(last) = last {
            let told = StoredTime::read(&last.value)
                .map_err(|error| EtcdError::Garbage(format!("no time of ours: {error}").into()))?;
            let known = self.node.time.borrow().at(read_at);
            term.time = if known.width() <= HOSTS_DIFFER {
                known.latest().max(Duration::from_nanos(told.nanos))
            } else {
                told.latest(self.node.clock.wall(read_at))
            };
            term.revision = last.mod_revision;
        }
        for question in &questions.entries {
            term.add_request(&asked, question);
        }
        let mut watch = self.client.watch(range, questions.revision + 1);
        let mut due = Instant::now();
        while mastership.borrow().holds_at(self.node.clock.now()) {
            if term.questions.is_empty() {
                self.listen(&mut watch, &mut term, due).await?;
            }
            if !self.write(&key, &mut term).await? {
                return Ok(());
            }
            due = Instant::now() + WRITE;
        }
        Ok(())
    }

    /// Waits for requests, until one comes or the time must be written.
    async fn listen(
        &self,
        watch: &mut EtcdWatch,
        term: &mut Term,
        due: Instant,
    ) -> Result<(), EtcdError> {
        let Ok(news) = timeout_at(due, watch.next()).await else {
            return Ok(());
        };
        let asked = self.settings.key(ASKED);
        for question in puts(news?) {
            term.add_request(&asked, &question);
        }
        Ok(())
    }

    /// Writes the time with the answers. Returns whether this node still keeps the time.
    async fn write(&self, key: &[u8], term: &mut Term) -> Result<bool, EtcdError> {
        let answered: Vec<_> = term.questions.keys().take(ANSWERS_MAX).cloned().collect();
        let answers = answered
            .into_iter()
            .filter_map(|node| term.questions.remove_entry(&node));
        let answers = answers.collect();
        let now = self.node.clock.now();
        let time = term.time(now);
        let wall = since_1970(self.node.clock.wall(now));
        let told = StoredTime {
            nanos: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(u64::MAX),
            by: self.node.id.clone(),
            answers,
        };
        let text = serde_json::to_vec(&told).expect("numbers and strings are always JSON");
        match self.client.swap(key, term.revision, &text, None).await {
            Ok(KeySwap::Done(revision)) => {
                term.revision = revision;
                Ok(true)
            }
            Ok(KeySwap::Refused(_)) => Ok(false),
            // The next write shows its result: the value is then exactly this text, or another.
            Err(EtcdError::Unknown(cause)) => self.was_written(key, &text, term, &cause).await,
            Err(error) => Err(error),
        }
    }

    /// Whether a write without an answer was done, or can be tried again.
    async fn was_written(
        &self,
        key: &[u8],
        text: &[u8],
        term: &mut Term,
        cause: &str,
    ) -> Result<bool, EtcdError> {
        debug!(cause, "quota: the time may not have been written");
        let found = self.client.get(key).await?;
        let revision = found.as_ref().map_or(0, |entry| entry.mod_revision);
        let ours = found.is_some_and(|entry| entry.value == text);
        let unchanged = revision == term.revision;
        term.revision = revision;
        Ok(ours || unchanged)
    }
}

fn since_1970(wall: SystemTime) -> Duration {
    wall.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_does_not_know_the_time_starts_where_it_cannot_be_behind() {
        let told = StoredTime {
            nanos: 7_000_000_000,
            wall_ms: 1_000_000,
            ..StoredTime::default()
        };
        let at = |millis: u64| UNIX_EPOCH + Duration::from_millis(millis);
        let check = |wall: u64, expected: u64| {
            assert_eq!(told.latest(at(wall)), Duration::from_millis(expected));
        };
        check(1_000_000, 8_000);
        check(1_004_500, 12_500);
        // The clock of a host that is behind gives no information.
        check(999_000, 8_000);
        let older = StoredTime { wall_ms: 0, ..told };
        assert_eq!(older.latest(at(1_004_500)), Duration::from_secs(8));
    }
}
