//! Records as hashes of Redis or Valkey, compared and set by a script.
//!
//! | key | what it is |
//! |---|---|
//! | `tidegate:quota:record:<key>` | hash: `version`, and the `record`; expires some windows after its own |
//! | `tidegate:quota:members` | sorted set of the nodes that live, by the time that each is believed to have died at |
//! | `tidegate:quota:changed:<key>` | channel: told with each write |
//!
//! Every script answers with the server's `TIME`, which is the store's time. One server, or a
//! primary with replicas that sentinels watch, from Redis 6 or Valkey on. A node of a cluster, a
//! replica and a sentinel are refused by name: each of them would half work (decision 0035).
//!
//! **The cost of a fail-over.** Replicas lag behind: a dead primary loses the draws that it
//! confirmed but did not replicate yet, and they are granted again. A window is then exceeded by
//! at most the draws within that lag. `min-replicas-to-write 1` and `min-replicas-max-lag 1` on
//! the server bound the lag to a few seconds: the server counts it in whole seconds, and its
//! replicas report once per second. `appendonly yes` with `appendfsync always` prevents the loss
//! for a server that restarts. If no loss is acceptable, use ZooKeeper or etcd. What an old primary
//! confirms beside the new one is prevented by `sentinels`, except for the age of an answer.

mod connect;
mod evictions;
mod scripts;
mod sentinels;
mod server;
mod settings;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisError, ScriptInvocation};
use tidegate_limits::quota::RecordVersion;
use tidegate_runtime::{BackOff, Clock};
use tokio::sync::Mutex;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::connect::{Credentials, Sentinel, Server};
use self::connect::{RedisConnection, connect};
use self::evictions::{Evictions, UNKNOWN_POLICY};
use self::scripts::{BEAT_SCRIPT, READ_SCRIPT, SWAP_SCRIPT, TRY_JOIN_SCRIPT, TRY_WRITE_SCRIPT};
use self::sentinels::Sentinels;
pub use self::settings::{AddressError, RedisSettings};
use super::node::{AGAIN, StoreNode, sleep_about};
use super::obstacle::{Obstacle, StoreStep};
use super::remote::{Remote, StoreMember};
use super::waiters::Waiters;
use super::{Cause, QuotaStore, RecordKey, StoreEntry, StoreError, StoredSettings, SwapResult};

/// The settings to check when a server rejects the user.
const OF_SERVER: &str = "check user and password in [quota_store]";
/// The settings to check when a sentinel rejects the user.
const OF_SENTINEL: &str = "check sentinel_user and sentinel_password in [quota_store]";
/// The first and the longest pause after a failure. Meanwhile calls fail at once.
const BREAK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A connection that was silent for this long may be closed by Redis at any moment, whose shortest `timeout` is one
/// second.
const IDLE: Duration = Duration::from_millis(900);
/// Redis's time is rounded down to this.
const RESOLUTION: Duration = Duration::from_micros(1);

/// The beginning of what Redis says if the user may not do what a script does.
const DENIED: &str = "The user executing the script can't";

/// Connects to Redis and becomes a member, in the background; needs a tokio runtime.
#[must_use]
pub fn start(settings: RedisSettings, clock: Clock) -> impl QuotaStore {
    StoreMember::start(Redis::new(settings, clock), |redis, stopped| async move {
        redis.live(&stopped).await
    })
}

/// Does once what a node does, without becoming one. Returns a danger for the records, if there is one.
pub(super) async fn try_out(
    settings: RedisSettings,
    clock: Clock,
) -> Result<Option<String>, Obstacle> {
    let redis = Redis::new(settings, clock);
    let key = RecordKey::trial();
    let (record, members, channel) = (redis.record(&key), redis.members(), redis.channel(&key));
    let read = READ_SCRIPT.key(&record);
    let done = redis.call(&read, CallKind::Read).await;
    done.map_err(Obstacle::at(StoreStep::Read, &record))?;
    let mut write = TRY_WRITE_SCRIPT.key(&record);
    let done = redis.call(write.arg("a trial"), CallKind::Read).await;
    done.map_err(Obstacle::at(StoreStep::Write, &record))?;
    let mut join = TRY_JOIN_SCRIPT.key(&members);
    let done = redis.call(join.arg(&redis.node.id), CallKind::Read).await;
    done.map_err(Obstacle::at(StoreStep::Join, &members))?;
    let done = redis.subscribe(&key).await;
    done.map_err(Obstacle::at(StoreStep::Subscribe, &channel))?;
    Ok(match redis.memory().await {
        Ok(memory) => memory.danger(),
        Err(_) => Some(UNKNOWN_POLICY.to_owned()),
    })
}

struct Redis {
    settings: RedisSettings,
    node: StoreNode,
    link: Mutex<Link>,
    /// The sentinels that name the primary, if it is not the server of the config.
    sentinels: Option<Sentinels>,
    evictions: Evictions,
    /// Held during a change, so that no unsubscribe overtakes its subscribe.
    subscriptions: Mutex<Subscriptions>,
    waiters: Arc<Waiters>,
    /// The server was reported that does not let records expire.
    has_told: AtomicBool,
}

/// The one connection, and the bound on its attempts.
struct Link {
    connection: Option<RedisConnection>,
    /// The server of the connection, and of the last attempt.
    server: Option<Server>,
    /// The number of the user and password that these connections used.
    login: u64,
    /// Numbers the connections, so that only a user of one drops it.
    number: u64,
    /// When it last answered.
    used: Instant,
    back_off: BackOff,
    broken: Option<LostConnection>,
}

/// The failure of the last connection. Calls fail with it until the next attempt.
struct LostConnection {
    until: Instant,
    error: fn(Cause) -> StoreError,
    cause: String,
}

/// The keys whose channels a connection listens to.
#[derive(Default)]
struct Subscriptions {
    /// The number of that connection.
    number: u64,
    keys: HashSet<RecordKey>,
}

/// Whether a call without an answer may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    Write,
}

impl CallKind {
    /// A call without an answer.
    fn unanswered(self, cause: Cause) -> StoreError {
        match self {
            Self::Read => StoreError::Unavailable(cause),
            Self::Write => StoreError::Unknown(cause),
        }
    }
}

impl Redis {
    /// Not connected yet.
    fn new(settings: RedisSettings, clock: Clock) -> Self {
        let sentinel = settings.sentinel.as_ref();
        Self {
            node: StoreNode::new("Redis", clock, settings.member.as_deref()),
            sentinels: sentinel.map(|sentinel| Sentinels::start(&settings, sentinel)),
            evictions: Evictions::default(),
            settings,
            link: Mutex::new(Link {
                connection: None,
                server: None,
                login: 0,
                number: 0,
                used: Instant::now(),
                back_off: BackOff::doubling(BREAK.0, BREAK.1),
                broken: None,
            }),
            subscriptions: Mutex::default(),
            waiters: Arc::default(),
            has_told: AtomicBool::new(false),
        }
    }

    /// The server does not let records expire. Logs it once.
    fn keeps_records(&self, cause: &[u8]) {
        if !self.has_told.swap(true, Ordering::Relaxed) {
            let cause = String::from_utf8_lossy(cause);
            warn!(%cause, "quota: Redis removes no records: give this user +pexpireat, or each key stays for ever");
        }
    }

    fn record(&self, key: &RecordKey) -> String {
        format!("{}record:{}", self.settings.prefix, key.encoded())
    }

    fn channel(&self, key: &RecordKey) -> String {
        format!("{}changed:{}", self.settings.prefix, key.encoded())
    }

    fn members(&self) -> String {
        format!("{}members", self.settings.prefix)
    }

    /// Reports regularly that it is alive, and leaves at the end.
    async fn live(&self, stopped: &CancellationToken) {
        let node = &self.node.member;
        let ttl = self.settings.member_ttl;
        let mut beat = BEAT_SCRIPT.key(self.members());
        beat.arg(node).arg(micros(ttl));
        let beats = async {
            loop {
                let pause = match self.call(&beat, CallKind::Read).await {
                    Ok(told) => {
                        if let Some(count) = told.first().and_then(|count| parse(count)) {
                            self.node.count(count);
                        }
                        self.node.answered();
                        self.unsubscribe().await;
                        self.look_at_evictions().await;
                        ttl / 5
                    }
                    Err(error) => {
                        self.node.failed(&error.with_cause());
                        BREAK.0
                    }
                };
                sleep_about(pause).await;
            }
        };
        stopped.run_until_cancelled(beats).await;
        // So that no other node waits for its end. If this message is lost, it counts until then.
        let deadline = Instant::now() + self.settings.deadline;
        if let Ok(mut link) = timeout_at(deadline, self.link.lock()).await
            && let Some(mut connection) = link.connection.take()
        {
            let mut leave = redis::cmd("ZREM");
            leave.arg(self.members()).arg(node);
            let _ = timeout_at(deadline, leave.exec_async(&mut connection.redis)).await;
        }
    }

    /// Calls a script, and a read once more if its connection was closed meanwhile. Takes the time from the
    /// answer and returns the rest.
    async fn call(
        &self,
        script: &ScriptInvocation<'_>,
        kind: CallKind,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let deadline = Instant::now() + self.settings.deadline;
        let mut is_first = true;
        loop {
            let (mut connection, number) = match kind {
                CallKind::Read => self.connection(deadline).await?,
                CallKind::Write => self.living_connection(deadline).await?,
            };
            let sent = self.node.clock.now();
            let called = script.invoke_async::<Vec<Vec<u8>>>(&mut connection.redis);
            let (error, answered) = match timeout_at(deadline, called).await {
                Ok(Ok(mut answer)) => {
                    let stamp = take_time(&mut answer)?;
                    self.node.learn(sent, stamp, RESOLUTION);
                    let mut link = self.link.lock().await;
                    link.back_off.reset();
                    link.used = Instant::now();
                    return Ok(answer);
                }
                Ok(Err(error)) => {
                    if is_first && kind == CallKind::Read && error.is_connection_dropped() {
                        // Redis closes idle connections, and says so only by that.
                        is_first = false;
                        self.close(number).await;
                        continue;
                    }
                    // A server with this answer is running, and the next call may succeed. Only a server
                    // that was the primary, or one of a cluster, stays in the way of the next one.
                    let answered =
                        matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
                            && !matches!(error.code(), Some("READONLY" | "MOVED" | "ASK"));
                    (told(error, kind, OF_SERVER), answered)
                }
                Err(_) => (kind.unanswered("no answer in time".into()), false),
            };
            if !answered || matches!(error, StoreError::Unauthenticated(_)) {
                self.failed(number, &error).await;
            }
            return Err(error);
        }
    }

    /// A connection as from [`connection`](Self::connection), for a call that cannot be repeated: one that was idle
    /// is tried first, because Redis may be closing it.
    async fn living_connection(
        &self,
        deadline: Instant,
    ) -> Result<(RedisConnection, u64), StoreError> {
        let (mut connection, number) = self.connection(deadline).await?;
        let idle = self.link.lock().await.used.elapsed();
        if idle < IDLE || connection.since.elapsed() < IDLE {
            return Ok((connection, number));
        }
        let ping = redis::cmd("PING");
        let pinged = ping.exec_async(&mut connection.redis);
        match timeout_at(deadline, pinged).await {
            Ok(Err(error)) if error.is_connection_dropped() => {
                self.close(number).await;
                self.connection(deadline).await
            }
            // The call itself finds out.
            Err(_) | Ok(Err(_) | Ok(())) => Ok((connection, number)),
        }
    }

    /// The current connection or a new one, and its number.
    async fn connection(&self, deadline: Instant) -> Result<(RedisConnection, u64), StoreError> {
        let server = match &self.sentinels {
            Some(sentinels) => sentinels.primary(deadline).await?,
            None => self.settings.servers[0].clone(),
        };
        let link = timeout_at(deadline, self.link.lock()).await;
        let mut link = link.map_err(not_connected)?;
        self.drop_stale(&mut link, &server);
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        if let Some(broken) = &link.broken
            && Instant::now() < broken.until
        {
            let cause = format!("{}{AGAIN}", broken.cause);
            return Err((broken.error)(cause.into()));
        }
        let waiters = Arc::clone(&self.waiters);
        let channels = format!("{}changed:", self.settings.prefix);
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.settings.deadline))
            .set_push_sender(move |push| {
                pushed(&push, &channels, &waiters);
                Ok::<_, redis::aio::SendError>(())
            });
        let connected = connect(&self.settings, &server, config, deadline).await;
        let connection = connected.inspect_err(|error| link.trip(error))?;
        link.number += 1;
        link.connection = Some(connection.clone());
        let number = link.number;
        drop(link);
        // Their news went to the previous connection, if to any.
        self.waiters.tell_all();
        Ok((connection, number))
    }

    /// Drops a connection that is of no use any more: to another server, with another password, or closed by
    /// the server. That is no failure, so the next one is opened at once; except that a server which closes
    /// each new connection is not asked without end.
    fn drop_stale(&self, link: &mut Link, server: &Server) {
        let login = self.settings.login.number();
        if link.server.as_ref() != Some(server) || link.login != login {
            // What is known of another server or with another password says nothing of this one.
            link.login = login;
            link.server = Some(server.clone());
            link.connection = None;
            link.broken = None;
            link.back_off.reset();
        }
        let Some(connection) = &link.connection else {
            return;
        };
        if connection.is_closed() {
            if connection.since.elapsed() < BREAK.1 {
                let cause = format!("{server} closed the connection");
                link.trip(&StoreError::Unavailable(cause.into()));
            }
            link.connection = None;
        }
    }

    /// Drops a connection that the server has closed.
    async fn close(&self, number: u64) {
        let mut link = self.link.lock().await;
        if link.number == number {
            link.connection = None;
        }
    }

    /// Drops a connection: replies still in progress on it would come too late.
    async fn failed(&self, number: u64, error: &StoreError) {
        let mut link = self.link.lock().await;
        if link.number == number && link.connection.take().is_some() {
            link.trip(error);
            drop(link);
            self.waiters.tell_all();
        }
    }

    /// The server's policy for a full memory.
    async fn memory(&self) -> Result<server::MemoryPolicy, StoreError> {
        let deadline = Instant::now() + self.settings.deadline;
        let (mut connection, _) = self.connection(deadline).await?;
        let asked = timeout_at(deadline, server::memory(&mut connection.redis)).await;
        asked.map_err(not_connected)?
    }

    /// Names a policy by which the server evicts records, and counts what it evicts.
    async fn look_at_evictions(&self) {
        let number = self.link.lock().await.number;
        self.evictions.learn(number, self.memory().await);
    }

    async fn subscribe(&self, key: &RecordKey) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.settings.deadline;
        let subscriptions = timeout_at(deadline, self.subscriptions.lock()).await;
        let mut subscriptions = subscriptions.map_err(not_connected)?;
        let (mut connection, number) = self.connection(deadline).await?;
        if subscriptions.number != number {
            subscriptions.number = number;
            subscriptions.keys.clear();
        }
        if subscriptions.keys.contains(key) {
            return Ok(());
        }
        let error = match timeout_at(deadline, connection.redis.subscribe(self.channel(key))).await
        {
            Ok(Ok(())) => {
                subscriptions.keys.insert(key.clone());
                return Ok(());
            }
            Ok(Err(error)) => told(error, CallKind::Read, OF_SERVER),
            Err(_) => StoreError::Unavailable("no answer in time".into()),
        };
        self.failed(number, &error).await;
        Err(error)
    }

    /// Ends the subscriptions without waiting tasks.
    async fn unsubscribe(&self) {
        let mut subscriptions = self.subscriptions.lock().await;
        // A later waiting task finds its channel closed, and subscribes again.
        let waited_for: HashSet<_> = self.waiters.waited_for().into_iter().collect();
        let connection = {
            let link = self.link.lock().await;
            let same = link.number == subscriptions.number;
            link.connection.clone().filter(|_| same)
        };
        let Some(mut connection) = connection else {
            return;
        };
        let idle: Vec<_> = subscriptions
            .keys
            .difference(&waited_for)
            .cloned()
            .collect();
        for key in idle {
            subscriptions.keys.remove(&key);
            let deadline = Instant::now() + self.settings.deadline;
            let ended = connection.redis.unsubscribe(self.channel(&key));
            if !matches!(timeout_at(deadline, ended).await, Ok(Ok(()))) {
                // An extra channel costs some bytes, and ends with its connection at the latest.
                return;
            }
        }
    }
}

impl Remote for Redis {
    const CONFIGURES: bool = false;

    fn node(&self) -> &StoreNode {
        &self.node
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<StoreEntry>, StoreError> {
        let read = READ_SCRIPT.key(self.record(key));
        match &self.call(&read, CallKind::Read).await?[..] {
            [version, text] => entry(version, text),
            _ => Err(garbage()),
        }
    }

    async fn compare_and_set(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &[u8],
        kept_until: Duration,
    ) -> Result<SwapResult, StoreError> {
        let expected = expected.map(|version| version.0.to_string());
        let mut swap = SWAP_SCRIPT.key(self.record(key));
        swap.arg(expected.unwrap_or_default())
            .arg(text)
            .arg(self.channel(key))
            .arg(millis(kept_until));
        match &self.call(&swap, CallKind::Write).await?[..] {
            [version, rest @ ..] if rest.is_empty() || rest.len() == 2 => {
                if let [_, cause] = rest {
                    self.keeps_records(cause);
                }
                let version = parse(version).ok_or_else(garbage)?;
                Ok(SwapResult::Done(RecordVersion(version)))
            }
            [version, text] => Ok(SwapResult::Conflict(entry(version, text)?)),
            _ => Err(garbage()),
        }
    }

    async fn changed(
        &self,
        key: &RecordKey,
        since: Option<RecordVersion>,
    ) -> Result<(), StoreError> {
        loop {
            // In this order no change is missed: every change after the read is reported.
            let told = self.waiters.wait(key);
            self.subscribe(key).await?;
            if self.get(key).await?.map(|entry| entry.version) != since {
                return Ok(());
            }
            // An error means that no task waits.
            let _ = told.await;
        }
    }

    async fn try_out(&self) -> Result<(), StoreError> {
        let mut write = TRY_WRITE_SCRIPT.key(self.record(&RecordKey::trial()));
        self.call(write.arg("a trial"), CallKind::Read)
            .await
            .map(drop)
    }

    fn evictions(&self) -> Option<u64> {
        self.evictions.count()
    }

    fn member_lifetime(&self) -> Duration {
        // It is checked with each regular report.
        self.settings.member_ttl + self.settings.member_ttl / 2
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

impl Link {
    /// Refuses all calls for a while, longer each time.
    fn trip(&mut self, error: &StoreError) {
        let cause = std::error::Error::source(error).expect("every error has a cause");
        self.broken = Some(LostConnection {
            until: Instant::now() + self.back_off.pause_with_jitter(rand::random()),
            error: match error {
                StoreError::Unauthenticated(_) => StoreError::Unauthenticated,
                StoreError::Unsuitable(_) => StoreError::Unsuitable,
                _ => StoreError::Unavailable,
            },
            cause: cause.to_string(),
        });
    }
}

fn not_connected(_: Elapsed) -> StoreError {
    StoreError::Unavailable("no connection in time".into())
}

fn garbage() -> StoreError {
    StoreError::Garbage("a script that was not asked for".into())
}

/// Takes the server's time from the beginning of an answer.
fn take_time(answer: &mut Vec<Vec<u8>>) -> Result<Duration, StoreError> {
    let time = answer.get(..2).and_then(|time| {
        let seconds = Duration::from_secs(parse(&time[0])?);
        Some(seconds.saturating_add(Duration::from_micros(parse(&time[1])?)))
    });
    let time = time.ok_or_else(|| StoreError::Garbage("a time that is none".into()))?;
    answer.drain(..2);
    Ok(time)
}

/// The value at a key with this version and text; an empty version for none.
fn entry(version: &[u8], text: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
    if version.is_empty() && text.is_empty() {
        return Ok(None);
    }
    // A foreign hash: it has no version to compare.
    let version = parse(version).ok_or_else(|| {
        let text = "a hash without a version of ours stands at the key";
        StoreError::Refused(text.into())
    })?;
    Ok(Some(StoreEntry {
        version: RecordVersion(version),
        text: text.to_vec(),
    }))
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Wakes the tasks that wait for the news of a push.
fn pushed(push: &PushInfo, channels: &str, waiters: &Waiters) {
    match push.kind {
        PushKind::Message => {
            let Some(redis::Value::BulkString(channel)) = push.data.first() else {
                return;
            };
            let key = str::from_utf8(channel).ok();
            if let Some(key) = key.and_then(|channel| channel.strip_prefix(channels)) {
                waiters.tell(&RecordKey::of_encoded(key));
            }
        }
        // Later messages reach no task.
        PushKind::Disconnection => waiters.tell_all(),
        _ => {}
    }
}

fn denied(error: &RedisError) -> StoreError {
    let cure = "give this user the commands and keys that docs/how-to/quotas.md lists";
    StoreError::Denied(format!("{error}: {cure}").into())
}

/// The meaning of the library's error for a call.
fn told(error: RedisError, kind: CallKind, credentials: &str) -> StoreError {
    match (error.code(), error.kind()) {
        (Some("NOPERM"), _) => denied(&error),
        // Redis 7.0 and older say it in words, if a command of a script is denied.
        _ if error.detail().is_some_and(|it| it.contains(DENIED)) => denied(&error),
        (Some("NOAUTH" | "WRONGPASS"), _) | (_, ErrorKind::AuthenticationFailed) => {
            StoreError::Unauthenticated(format!("{error}: {credentials}").into())
        }
        // What this node of a cluster has not.
        (Some("MOVED" | "ASK" | "CROSSSLOT"), _) => server::part_of_a_cluster("the server"),
        // It runs, but cannot serve now: it loads its records, has lost its primary or too many
        // replicas, has no memory, or is busy with a foreign script that does not end.
        (
            Some(
                "BUSY" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS"
                | "NOTBUSY" | "OOM" | "READONLY" | "TRYAGAIN",
            ),
            _,
        ) => StoreError::Unavailable(error.into()),
        (_, ErrorKind::Server(_) | ErrorKind::Extension) => StoreError::Refused(error.into()),
        (_, ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported) => {
            StoreError::Garbage(error.into())
        }
        _ => kind.unanswered(error.into()),
    }
}
