//! Records as keys of etcd.
//!
//! | key | what it is |
//! |---|---|
//! | `/tidegate/quota/records/<key>` | the record, bound to a lease that ends some windows after its own |
//! | `/tidegate/quota/members/<name>` | bound to a lease, one for each node that lives; not empty once it knows the time |
//! | `/tidegate/quota/asked/<node>` | which question for the time a node asked last; same lease |
//! | `/tidegate/quota/time` | the time, and whose questions it answers |
//! | `/tidegate/quota/master` | the election of who keeps the time |
//!
//! etcd has no clock, so one node keeps the time for all; see `keeper`. A node writes a request,
//! and the master writes the time. The node then knows that this time was between its request and
//! the answer, as with a server that has a clock.
//!
//! Versions are revisions of the whole store: each is unique, even after a key was deleted.

mod keeper;
mod leases;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::RecordVersion;
use tidegate_runtime::Clock;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd::{self, EtcdClient, EtcdWatch, KeyChange, KeyValue, Range, WatchEvent};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::keeper::StoredTime;
use self::leases::RecordLeases;
use super::node::{StoreNode, sleep_about};
use super::obstacle::{NAME, Obstacle, StoreStep};
use super::remote::{Remote, StoreMember};
use super::waiters::Waiters;
use super::{QuotaStore, RecordKey, StoreEntry, StoreError, StoredSettings, SwapResult};

/// The place of the records, and the count of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStoreSettings {
    /// The address of etcd, the user, and the time limit of a call.
    pub store: etcd::EtcdSettings,
    /// The prefix of all keys.
    pub prefix: String,
    /// How long a silent node counts as a member, and keeps the time.
    pub time_to_live: TimeToLive,
    /// The node's name among the members; `None` for a random one.
    pub member: Option<Arc<str>>,
}

impl EtcdStoreSettings {
    /// Below `/tidegate/quota/`, with 1 s for a call.
    #[must_use]
    pub fn new(store: etcd::EtcdSettings) -> Self {
        Self {
            store: etcd::EtcdSettings {
                deadline: store.deadline.min(Duration::from_secs(1)),
                ..store
            },
            prefix: "/tidegate/quota/".into(),
            time_to_live: TimeToLive::DEFAULT,
            member: None,
        }
    }

    /// Settings for each member alone.
    pub(super) fn apart(&self) -> Vec<Self> {
        let endpoints = self.store.endpoints.iter().cloned();
        let alone = |endpoint| Self {
            store: etcd::EtcdSettings {
                endpoints: vec![endpoint],
                ..self.store.clone()
            },
            ..self.clone()
        };
        endpoints.map(alone).collect()
    }
}

/// The value at the key of a member that could continue the time.
const KNOWS_THE_TIME: &[u8] = b"knows the time";
/// The interval between requests for the time.
const ASK: Duration = Duration::from_secs(5);
/// The pause before a failed or unanswered request is sent again.
const RETRY: Duration = Duration::from_millis(250);
/// The pause after etcd did not know the user. The check is expensive for etcd.
const RETRY_STRANGER: Duration = Duration::from_secs(5);

/// A revision that no key has.
const NO_REVISION: u64 = i64::MAX as u64;

/// Connects to etcd, becomes a member and a candidate for keeping the time, in the background;
/// needs a tokio runtime.
#[must_use]
pub fn start(settings: EtcdStoreSettings, clock: Clock) -> impl QuotaStore {
    let (follow, follows) = mpsc::channel(1);
    let etcd = Etcd {
        client: EtcdClient::new(settings.store.clone()),
        node: StoreNode::new("etcd", clock, settings.member.as_deref()),
        settings,
        waiters: Waiters::default(),
        leases: RecordLeases::default(),
        follow,
    };
    StoreMember::start(etcd, |etcd, stopped| async move {
        let reads = async { tokio::join!(etcd.count_members(), etcd.follow(follows)) };
        tokio::join!(
            etcd.live(&stopped),
            stopped.run_until_cancelled(reads),
            etcd.keep_time(&stopped),
        );
    })
}

/// Does once what a node does, without becoming one. Its keys end with its lease at the latest.
pub(super) async fn try_out(settings: EtcdStoreSettings) -> Result<(), Obstacle> {
    let client = EtcdClient::new(settings.store.clone());
    let id: u64 = rand::random();
    let record = settings.key(&format!("{RECORDS}{NAME}-{id:016x}"));
    let member = settings.key(&format!("{MEMBERS}{NAME}-{id:016x}"));
    let read = client.get(record.as_bytes()).await.map_err(told);
    read.map_err(Obstacle::at(StoreStep::Read, &record))?;
    let granted = client.lease_grant(settings.time_to_live.get()).await;
    let lease = granted
        .map_err(told)
        .map_err(Obstacle::at(StoreStep::Write, &record))?
        .id;
    let put = async |key: &str| {
        let put = client.put(key.as_bytes(), b"", Some(lease)).await;
        put.map_err(told)
    };
    let done = async {
        put(&record)
            .await
            .map_err(Obstacle::at(StoreStep::Write, &record))?;
        put(&member)
            .await
            .map_err(Obstacle::at(StoreStep::Join, &member))?;
        Ok(())
    };
    let done = done.await;
    // If this is lost, the lease expires.
    let _ = client.lease_revoke(lease).await;
    done
}

struct Etcd {
    client: EtcdClient,
    settings: EtcdStoreSettings,
    node: StoreNode,
    waiters: Waiters,
    leases: RecordLeases,
    /// Has the records followed, from the given revision on, unless they are followed already.
    follow: mpsc::Sender<u64>,
}

const RECORDS: &str = "records/";
const MEMBERS: &str = "members/";
const ASKED: &str = "asked/";
const TIME: &str = "time";
const MASTER: &str = "master";

impl EtcdStoreSettings {
    /// The key of this name, below the prefix.
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Etcd {
    fn record(&self, key: &RecordKey) -> Vec<u8> {
        format!("{}{RECORDS}{}", self.settings.prefix, key.encoded()).into_bytes()
    }

    /// The node's own key below this name.
    fn own(&self, name: &str) -> String {
        format!("{}{name}{}", self.settings.prefix, self.node.id)
    }

    /// Is a member and asks for the time, until it is stopped. Then it leaves.
    async fn live(&self, stopped: &CancellationToken) {
        let mut lease = None;
        let lives = async {
            loop {
                let ended = self.membership(&mut lease).await;
                let Err(error) = ended else { continue };
                let pause = pause(&error);
                self.node.failed(&error.to_string());
                tokio::time::sleep(pause).await;
            }
        };
        stopped.run_until_cancelled(lives).await;
        // So that no other node waits for its end. If this message is lost, the lease expires.
        if let Some(lease) = lease {
            let revoked = self.client.lease_revoke(lease);
            let _ = timeout(self.settings.store.deadline, revoked).await;
        }
    }

    /// Holds one lease while it lasts, and asks for the time meanwhile.
    async fn membership(&self, lease: &mut Option<i64>) -> Result<(), etcd::EtcdError> {
        let ttl = self.settings.time_to_live.get();
        let granted = self.client.lease_grant(ttl).await?;
        *lease = Some(granted.id);
        let member = self.settings.key(&format!("{MEMBERS}{}", self.node.member));
        let put = self.client.put(member.as_bytes(), b"", *lease);
        put.await?;
        let knows = async {
            let mut time = self.node.time.subscribe();
            // An error means that no task asks any more.
            let _ = time.wait_for(keeper::is_known).await;
            let put = self
                .client
                .put(member.as_bytes(), KNOWS_THE_TIME, Some(granted.id));
            put.await?;
            std::future::pending().await
        };
        self.node.answered();
        let renew = async {
            loop {
                tokio::time::sleep(ttl / 3).await;
                if self.client.lease_keep_alive(granted.id).await?.is_none() {
                    return Ok(());
                }
            }
        };
        let answered = Notify::new();
        tokio::select! {
            ended = renew => ended,
            ended = self.ask(granted.id, &answered) => ended,
            ended = self.receive_times(&answered) => ended,
            ended = knows => ended,
        }
    }

    /// Asks for the time regularly, sooner after an unanswered request. The number of a request is
    /// when it was made, by this node's clock.
    async fn ask(&self, lease: i64, answered: &Notify) -> Result<(), etcd::EtcdError> {
        let key = self.own(ASKED);
        loop {
            let number = self.node.clock.now().as_nanos().to_string();
            let answer = answered.notified();
            let put = self
                .client
                .put(key.as_bytes(), number.as_bytes(), Some(lease));
            put.await?;
            if timeout(RETRY, answer).await.is_ok() {
                sleep_about(ASK).await;
            }
        }
    }

    /// Receives the time, and the requests that it answers. A late answer is still right.
    async fn receive_times(&self, answered: &Notify) -> Result<(), etcd::EtcdError> {
        let key = Range::key(self.settings.key(TIME).as_bytes());
        let from = self.client.range(&key).await?.revision + 1;
        let mut watch = self.client.watch(key, from);
        loop {
            for entry in puts(watch.next().await?) {
                let Ok(told) = StoredTime::read(&entry.value) else {
                    continue;
                };
                let Some(&number) = told.answers.get(&self.node.id) else {
                    continue;
                };
                let sent = Timestamp::from_nanos(number);
                // No request of this node is from later than now.
                if sent <= self.node.clock.now() {
                    // The master's stamps have nanoseconds.
                    let stamp = Duration::from_nanos(told.nanos);
                    self.node.learn(sent, stamp, Duration::ZERO);
                    answered.notify_waiters();
                }
            }
        }
    }

    async fn count_members(&self) {
        loop {
            if let Err(error) = self.counted().await {
                debug!(%error, "quota: etcd does not tell its members");
                tokio::time::sleep(pause(&error)).await;
            }
        }
    }

    /// Counts until changes were missed.
    async fn counted(&self) -> Result<(), etcd::EtcdError> {
        let range = Range::prefix(self.settings.key(MEMBERS).as_bytes());
        let found = self.client.range(&range).await?;
        let mut watch = self.client.watch(range, found.revision + 1);
        let keys = found.entries.into_iter().map(|entry| entry.key);
        let mut members: HashSet<Vec<u8>> = keys.collect();
        loop {
            self.node.count(members.len());
            let WatchEvent::Changes(changes) = watch.next().await? else {
                return Ok(());
            };
            for change in changes.changes {
                match change {
                    KeyChange::Put(entry) => members.insert(entry.key),
                    KeyChange::Deleted { key, .. } => members.remove(&key),
                };
            }
        }
    }

    /// Follows the records while a task waits for one of them, from the given revision on.
    async fn follow(&self, mut follows: mpsc::Receiver<u64>) {
        let records = self.settings.key(RECORDS);
        while let Some(from) = follows.recv().await {
            let range = Range::prefix(records.as_bytes());
            let mut watch = self.client.watch(range, from);
            while !self.waiters.waited_for().is_empty() {
                self.tell_next(&mut watch, &records).await;
            }
        }
    }

    /// Returns the next event, if one comes before the next check for waiting tasks.
    async fn tell_next(&self, watch: &mut EtcdWatch, records: &str) {
        match timeout(Duration::from_secs(1), watch.next()).await {
            Err(_) => {}
            Ok(Ok(WatchEvent::Changes(changes))) => {
                for change in changes.changes {
                    let (KeyChange::Put(KeyValue { key, .. }) | KeyChange::Deleted { key, .. }) =
                        change;
                    let key = str::from_utf8(&key).ok();
                    if let Some(key) = key.and_then(|key| key.strip_prefix(records)) {
                        self.waiters.tell(&RecordKey::of_encoded(key));
                    }
                }
            }
            Ok(Ok(WatchEvent::Compacted { .. })) => self.waiters.tell_all(),
            Ok(Err(error)) => {
                debug!(%error, "quota: etcd does not tell of changes");
                self.waiters.tell_all();
                tokio::time::sleep(pause(&error)).await;
            }
        }
    }
}

impl Remote for Etcd {
    const CONFIGURES: bool = false;

    fn node(&self) -> &StoreNode {
        &self.node
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<StoreEntry>, StoreError> {
        let found = self.client.get(&self.record(key)).await.map_err(told)?;
        Ok(found.map(entry))
    }

    async fn compare_and_set(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &[u8],
        kept_until: Duration,
    ) -> Result<SwapResult, StoreError> {
        let key = self.record(key);
        let clock = self.node.clock;
        // 0 is the revision of a missing key.
        let revision = expected.map_or(0, |version| version.0);
        let swap = async || {
            let time = self.node.time.borrow().at(clock.now());
            let kept = kept_until.saturating_sub(time.earliest());
            let lease = self.leases.lasting(&self.client, clock, kept).await?;
            let swapped = self.client.swap(&key, revision, text, Some(lease)).await;
            if is_of_unknown_lease(&swapped) {
                self.leases.forget(lease).await;
            }
            swapped
        };
        let mut swapped = swap().await;
        if is_of_unknown_lease(&swapped) {
            swapped = swap().await;
        }
        Ok(match swapped.map_err(told)? {
            etcd::KeySwap::Done(revision) => SwapResult::Done(RecordVersion(revision)),
            etcd::KeySwap::Refused(found) => SwapResult::Conflict(found.map(entry)),
        })
    }

    async fn changed(
        &self,
        key: &RecordKey,
        since: Option<RecordVersion>,
    ) -> Result<(), StoreError> {
        let range = Range::key(&self.record(key));
        loop {
            // In this order no change is missed: every change after the read is reported.
            let told = self.waiters.wait(key);
            let found = self.client.range(&range).await.map_err(self::told)?;
            let stands = found.entries.first();
            if stands.map(|entry| RecordVersion(entry.mod_revision)) != since {
                return Ok(());
            }
            // If this is full, an earlier start revision is already waiting, and that is enough.
            let _ = self.follow.try_send(found.revision + 1);
            // An error means that no task waits.
            let _ = told.await;
        }
    }

    /// Tries a write whose condition never holds. etcd checks the permission and its space all the same.
    async fn try_out(&self) -> Result<(), StoreError> {
        let key = self.record(&RecordKey::trial());
        let swapped = self.client.swap(&key, NO_REVISION, b"", None).await;
        swapped.map_err(told).map(drop)
    }

    fn member_lifetime(&self) -> Duration {
        // The lease is renewed every third of its time, and etcd checks for expired leases every
        // half second.
        2 * self.settings.time_to_live.get()
    }

    fn evictions(&self) -> Option<u64> {
        None
    }

    // This engine has no settings for the quotas of keys.
    async fn configured(
        &self,
        _: &RecordKey,
        known: &StoredSettings,
    ) -> Result<StoredSettings, StoreError> {
        Ok(known.clone())
    }
}

/// Whether a write was refused because etcd does not know its lease.
fn is_of_unknown_lease(swapped: &Result<etcd::KeySwap, etcd::EtcdError>) -> bool {
    matches!(swapped, Err(etcd::EtcdError::Refused { code, .. }) if *code == etcd::NOT_FOUND)
}

/// The written keys among the changes.
fn puts(news: WatchEvent) -> impl Iterator<Item = KeyValue> {
    let changes = match news {
        WatchEvent::Changes(changes) => changes.changes,
        // At most an answer was missed: the next request gets another.
        WatchEvent::Compacted { .. } => Vec::new(),
    };
    changes.into_iter().filter_map(|change| match change {
        KeyChange::Put(entry) => Some(entry),
        KeyChange::Deleted { .. } => None,
    })
}

fn entry(found: KeyValue) -> StoreEntry {
    StoreEntry {
        version: RecordVersion(found.mod_revision),
        text: found.value,
    }
}

/// How long to wait after an error before trying again.
fn pause(error: &etcd::EtcdError) -> Duration {
    match error {
        etcd::EtcdError::Unauthenticated(_) => RETRY_STRANGER,
        _ => RETRY,
    }
}

fn told(error: etcd::EtcdError) -> StoreError {
    use etcd::EtcdError as E;
    match error {
        // The user is known, but has no permission.
        E::Refused { code: 7, .. } => StoreError::Denied(error.into()),
        // It has no space, or too much to do. It does not write, whatever the key.
        E::Refused { code: 8, .. } => StoreError::Unavailable(error.into()),
        E::Unauthenticated(_) => StoreError::Unauthenticated(error.into()),
        E::Refused { .. } => StoreError::Refused(error.into()),
        E::Unknown(_) => StoreError::Unknown(error.into()),
        E::Unreachable(_) => StoreError::Unavailable(error.into()),
        E::Garbage(_) => StoreError::Garbage(error.into()),
    }
}
