//! Records as keys of etcd.
//!
//! | key | what it is |
//! |---|---|
//! | `/tidegate/quota/records/<key>` | the record |
//! | `/tidegate/quota/members/<node>` | bound to a lease, one for each node that lives; not empty once it knows the time |
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

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tidegate_runtime::Clock;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd::{
    self, Change, Client, Compare, KeyValue, Operation, Outcome, Range, Txn, Watch, Watched,
};
use tidegate_runtime::lock;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use self::keeper::{Keeper, Told};
use super::node::{Node, sleep_about};
use super::waiters::Waiters;
use super::{Answer, Entry, Error, Key, QuotaStore, Swapped, Write, assert_bounded};

/// The place of the records, and the count of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address of etcd, the user, and the time limit of a call.
    pub store: etcd::Settings,
    /// The files of the store's TLS, if it is used.
    pub certificates: Option<Certificates>,
    /// The prefix of all keys.
    pub prefix: String,
    /// How long a silent node counts as a member, and keeps the time.
    pub time_to_live: TimeToLive,
}

impl Settings {
    /// Below `/tidegate/quota/`, with 1 s for a call.
    #[must_use]
    pub fn new(store: etcd::Settings) -> Self {
        Self {
            store: etcd::Settings {
                deadline: store.deadline.min(Duration::from_secs(1)),
                ..store
            },
            certificates: None,
            prefix: "/tidegate/quota/".into(),
            time_to_live: TimeToLive::DEFAULT,
        }
    }
}

/// Files in PEM for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The authority to trust.
    pub authority: PathBuf,
    /// Our certificate and key, if etcd requires one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The value at the key of a member that could continue the time.
const KNOWS_THE_TIME: &[u8] = b"knows the time";
/// The interval between requests for the time.
const ASK: Duration = Duration::from_secs(5);
/// The pause before a failed or unanswered request is sent again.
const RETRY: Duration = Duration::from_millis(250);
/// The pause after etcd did not know the user. The check is expensive for etcd.
const RETRY_STRANGER: Duration = Duration::from_secs(5);

/// A store of quota records in etcd. See the [module](self).
pub struct Etcd {
    shared: Arc<Shared>,
    follow: mpsc::Sender<u64>,
    _stop: DropGuard,
}

struct Shared {
    client: Client,
    settings: Settings,
    node: Node,
    waiters: Waiters,
}

/// The last requests for the time, and when each was sent. Several can be in progress: a late
/// answer is still right.
#[derive(Default)]
struct Questions {
    sent: Mutex<VecDeque<(u64, Timestamp)>>,
    answered: Notify,
}

impl Questions {
    const MAX: usize = 16;

    fn ask(&self, number: u64, now: Timestamp) {
        let mut sent = lock(&self.sent);
        if sent.len() == Self::MAX {
            sent.pop_front();
        }
        sent.push_back((number, now));
    }

    /// The time of the request that this answers, at its first answer.
    fn answer(&self, number: u64) -> Option<Timestamp> {
        let mut sent = lock(&self.sent);
        let at = sent.iter().position(|(asked, _)| *asked == number)?;
        let (_, then) = sent[at];
        sent.drain(..=at);
        self.answered.notify_one();
        Some(then)
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Etcd").field(&self.shared.settings).finish()
    }
}

impl Etcd {
    /// Connects, becomes a member and a candidate for keeping the time, in the background; needs
    /// a tokio runtime.
    #[must_use]
    pub fn start(settings: Settings, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            client: Client::new(settings.store.clone()),
            settings,
            node: Node::new("etcd", clock),
            waiters: Waiters::default(),
        });
        let (follow, follows) = mpsc::channel(1);
        let stopped = CancellationToken::new();
        tokio::spawn(Arc::clone(&shared).live(stopped.clone()));
        let counts = Arc::clone(&shared).count_members();
        tokio::spawn(stopped.clone().run_until_cancelled_owned(counts));
        let news = Arc::clone(&shared).follow(follows);
        tokio::spawn(stopped.clone().run_until_cancelled_owned(news));
        let keeper = Keeper {
            client: shared.client.clone(),
            settings: shared.settings.clone(),
            clock,
            node: shared.node.id.clone(),
            known: shared.node.time.subscribe(),
        };
        tokio::spawn(keeper.run(stopped.clone()));
        Self {
            shared,
            follow,
            _stop: stopped.drop_guard(),
        }
    }
}

impl Settings {
    fn records(&self) -> String {
        format!("{}records/", self.prefix)
    }

    fn record(&self, key: &Key) -> Vec<u8> {
        format!("{}records/{}", self.prefix, key.encoded()).into_bytes()
    }

    fn members(&self) -> String {
        format!("{}members/", self.prefix)
    }

    fn asked(&self) -> String {
        format!("{}asked/", self.prefix)
    }

    fn time(&self) -> String {
        format!("{}time", self.prefix)
    }

    fn master(&self) -> String {
        format!("{}master", self.prefix)
    }
}

impl Shared {
    /// Is a member and asks for the time, until it is stopped. Then it leaves.
    async fn live(self: Arc<Self>, stopped: CancellationToken) {
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
    async fn membership(&self, lease: &mut Option<i64>) -> Result<(), etcd::Error> {
        let ttl = self.settings.time_to_live.get();
        let granted = self.client.lease_grant(ttl).await?;
        *lease = Some(granted.id);
        let member = format!("{}{}", self.settings.members(), self.node.id);
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
        let questions = Questions::default();
        tokio::select! {
            ended = renew => ended,
            ended = self.ask(granted.id, &questions) => ended,
            ended = self.hear(&questions) => ended,
            ended = knows => ended,
        }
    }

    /// Asks for the time regularly, sooner after an unanswered request.
    async fn ask(&self, lease: i64, questions: &Questions) -> Result<(), etcd::Error> {
        let key = format!("{}{}", self.settings.asked(), self.node.id);
        let mut number: u64 = rand::random::<u32>().into();
        loop {
            number += 1;
            questions.ask(number, self.node.clock.now());
            let text = number.to_string();
            let put = self
                .client
                .put(key.as_bytes(), text.as_bytes(), Some(lease));
            put.await?;
            if timeout(RETRY, questions.answered.notified()).await.is_ok() {
                sleep_about(ASK).await;
            }
        }
    }

    /// Receives the time, and the requests that it answers.
    async fn hear(&self, questions: &Questions) -> Result<(), etcd::Error> {
        let key = Range::key(self.settings.time().as_bytes());
        let from = self.client.range(&key).await?.revision + 1;
        let mut watch = self.client.watch(key, from);
        loop {
            for entry in puts(watch.next().await?) {
                let Ok(told) = Told::read(&entry.value) else {
                    continue;
                };
                let answers = told.answers.get(&self.node.id);
                let Some(sent) = answers.and_then(|number| questions.answer(*number)) else {
                    continue;
                };
                // The master's stamps have nanoseconds.
                let stamp = Duration::from_nanos(told.nanos);
                self.node.learn(sent, stamp, Duration::ZERO);
            }
        }
    }

    async fn count_members(self: Arc<Self>) {
        loop {
            if let Err(error) = self.counted().await {
                debug!(%error, "quota: etcd does not tell its members");
                tokio::time::sleep(pause(&error)).await;
            }
        }
    }

    /// Counts until changes were missed.
    async fn counted(&self) -> Result<(), etcd::Error> {
        let range = Range::prefix(self.settings.members().as_bytes());
        let found = self.client.range(&range).await?;
        let mut watch = self.client.watch(range, found.revision + 1);
        let keys = found.entries.into_iter().map(|entry| entry.key);
        let mut members: HashSet<Vec<u8>> = keys.collect();
        loop {
            self.node.count(members.len());
            let Watched::Changes(changes) = watch.next().await? else {
                return Ok(());
            };
            for change in changes.changes {
                match change {
                    Change::Put(entry) => members.insert(entry.key),
                    Change::Deleted { key, .. } => members.remove(&key),
                };
            }
        }
    }

    /// Follows the records while a task waits for one of them, from the given revision on.
    async fn follow(self: Arc<Self>, mut follows: mpsc::Receiver<u64>) {
        let records = self.settings.records();
        while let Some(from) = follows.recv().await {
            let range = Range::prefix(records.as_bytes());
            let mut watch = self.client.watch(range, from);
            while !self.waiters.waited_for().is_empty() {
                self.tell_next(&mut watch, &records).await;
            }
        }
    }

    /// Returns the next event, if one comes before the next check for waiting tasks.
    async fn tell_next(&self, watch: &mut Watch, records: &str) {
        match timeout(Duration::from_secs(1), watch.next()).await {
            Err(_) => {}
            Ok(Ok(Watched::Changes(changes))) => {
                for change in changes.changes {
                    let (Change::Put(KeyValue { key, .. }) | Change::Deleted { key, .. }) = change;
                    let key = str::from_utf8(&key).ok();
                    if let Some(key) = key.and_then(|key| key.strip_prefix(records)) {
                        self.waiters.tell(&Key::of_encoded(key));
                    }
                }
            }
            Ok(Ok(Watched::Compacted { .. })) => self.waiters.tell_all(),
            Ok(Err(error)) => {
                debug!(%error, "quota: etcd does not tell of changes");
                self.waiters.tell_all();
                tokio::time::sleep(pause(&error)).await;
            }
        }
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Entry>>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut txn = Txn::new();
        for key in keys {
            txn = txn.then(Operation::Get(Range::key(&self.settings.record(key))));
        }
        let reply = self.client.txn(&txn).await.map_err(told)?;
        found(reply.outcomes)
    }

    async fn compare_and_set(&self, writes: &[Write]) -> Result<Swapped, Error> {
        if writes.is_empty() {
            return Ok(Swapped::Done(Vec::new()));
        }
        let mut txn = Txn::new();
        for write in writes {
            let key = self.settings.record(&write.key);
            // 0 is the revision of a missing key.
            let expected = write.expected.map_or(0, |version| version.0);
            txn = txn
                .when(Compare::ModRevision(key.clone(), expected))
                .then(Operation::put(&key, &write.text, None))
                .otherwise(Operation::Get(Range::key(&key)));
        }
        let reply = self.client.txn(&txn).await.map_err(told)?;
        if reply.succeeded {
            Ok(Swapped::Done(vec![Version(reply.revision); writes.len()]))
        } else {
            Ok(Swapped::Conflict(found(reply.outcomes)?))
        }
    }

    async fn changed(
        &self,
        key: &Key,
        since: Option<Version>,
        follow: &mpsc::Sender<u64>,
    ) -> Result<(), Error> {
        let range = Range::key(&self.settings.record(key));
        loop {
            // In this order no change is missed: every change after the read is reported.
            let told = self.waiters.wait(key);
            let found = self.client.range(&range).await.map_err(self::told)?;
            let stands = found.entries.first();
            if stands.map(|entry| Version(entry.mod_revision)) != since {
                return Ok(());
            }
            // If this is full, an earlier start revision is already waiting, and that is enough.
            let _ = follow.try_send(found.revision + 1);
            // An error means that no task waits.
            let _ = told.await;
        }
    }
}

impl QuotaStore for Etcd {
    fn get<'a>(&'a self, keys: &'a [Key]) -> Answer<'a, Vec<Option<Entry>>> {
        assert_bounded(keys.iter());
        Box::pin(self.shared.get(keys))
    }

    fn compare_and_set<'a>(&'a self, writes: &'a [Write]) -> Answer<'a, Swapped> {
        assert_bounded(writes.iter().map(|write| &write.key));
        Box::pin(self.shared.compare_and_set(writes))
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.shared.node.time.subscribe()
    }

    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()> {
        Box::pin(self.shared.changed(key, since, &self.follow))
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.shared.node.members.subscribe()
    }

    fn member_lifetime(&self) -> Duration {
        // The lease is renewed every third of its time, and etcd checks for expired leases every
        // half second.
        2 * self.shared.settings.time_to_live.get()
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        self.shared.node.trouble()
    }
}

/// The written keys among the changes.
fn puts(news: Watched) -> impl Iterator<Item = KeyValue> {
    let changes = match news {
        Watched::Changes(changes) => changes.changes,
        // At most an answer was missed: the next request gets another.
        Watched::Compacted { .. } => Vec::new(),
    };
    changes.into_iter().filter_map(|change| match change {
        Change::Put(entry) => Some(entry),
        Change::Deleted { .. } => None,
    })
}

/// The results of several reads of one key.
fn found(outcomes: Vec<Outcome>) -> Result<Vec<Option<Entry>>, Error> {
    let entry = |outcome| match outcome {
        Outcome::Found(mut found) => Ok(found.entries.pop().map(|entry| Entry {
            version: Version(entry.mod_revision),
            text: entry.value,
        })),
        _ => Err(Error::Garbage("a read that is none".into())),
    };
    outcomes.into_iter().map(entry).collect()
}

/// How long to wait after an error before trying again.
fn pause(error: &etcd::Error) -> Duration {
    match error {
        etcd::Error::Unauthenticated(_) => RETRY_STRANGER,
        _ => RETRY,
    }
}

fn told(error: etcd::Error) -> Error {
    use etcd::Error as E;
    match error {
        // The user is known, but has no permission.
        E::Refused { code: 7, .. } => Error::Denied(error.into()),
        E::Unauthenticated(_) => Error::Unauthenticated(error.into()),
        E::Refused { .. } => Error::Refused(error.into()),
        E::Unknown(_) => Error::Unknown(error.into()),
        E::Unreachable(_) => Error::Unavailable(error.into()),
        E::Garbage(_) => Error::Garbage(error.into()),
    }
}
