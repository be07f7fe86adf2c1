//! Records as hashes of Redis or Valkey, compared and set by a script.
//!
//! | key | what it is |
//! |---|---|
//! | `tidegate:quota:record:<key>` | hash: `version`, and the `record` |
//! | `tidegate:quota:members` | sorted set of the nodes that live, by the time that each is believed to have died at |
//! | `tidegate:quota:changed:<key>` | channel: told with each write |
//!
//! Every script answers with the server's `TIME`, which is the store's time. One server, or a
//! primary with replicas, from Redis 6 or Valkey on; no cluster, since a call can name several
//! keys.
//!
//! **The cost of a fail-over.** Replicas lag behind: a dead primary loses the draws that it
//! confirmed but did not replicate yet, and they are granted again. A window is then exceeded by
//! at most the draws within that lag. `min-replicas-to-write 1` and `min-replicas-max-lag 1` on
//! the server bound the lag to a few seconds: the server counts it in whole seconds, and its
//! replicas report once per second. `appendonly yes` with `appendfsync always` prevents the loss
//! for a server that restarts. If no loss is acceptable, use ZooKeeper or etcd.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError, Script, ScriptInvocation, ServerErrorKind,
};
use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tidegate_runtime::Clock;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::{Node, sleep_about};
use super::waiters::Waiters;
use super::{Answer, Entry, Error, Key, QuotaStore, Swapped, Write, assert_bounded};

/// The address of Redis, the user, and the time limit of an answer.
#[derive(Clone)]
pub struct Settings {
    server: redis::ConnectionInfo,
    /// The prefix of all keys and channels.
    pub prefix: String,
    /// The time limit of a call, including a new connection if needed.
    pub deadline: Duration,
    /// How long a silent node counts as a member.
    pub member_ttl: Duration,
}

/// An invalid address of Redis.
#[derive(Debug, thiserror::Error)]
#[error("an address of Redis reads redis://[user[:password]@]host[:port][/database]")]
pub struct AddressError(#[source] RedisError);

impl Settings {
    /// `redis://[user[:password]@]host[:port][/database]`; 1 s for a call, 10 s for a member.
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub fn new(address: &str) -> Result<Self, AddressError> {
        let server = address.into_connection_info().map_err(AddressError)?;
        // Only this protocol reports changes on the connection of the calls.
        let settings = server.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        Ok(Self {
            server: server.set_redis_settings(settings),
            prefix: "tidegate:quota:".into(),
            deadline: Duration::from_secs(1),
            member_ttl: Duration::from_secs(10),
        })
    }

    /// The same, with a user; without one, as the default user.
    #[must_use]
    pub fn with_credentials(mut self, user: Option<&str>, password: &str) -> Self {
        let mut settings = self.server.redis_settings().clone();
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        self.server = (self.server).set_redis_settings(settings.set_password(password));
        self
    }

    /// The address, without user and password.
    #[must_use]
    pub fn address(&self) -> String {
        let at = match self.server.addr() {
            ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            other => other.to_string(),
        };
        match self.server.redis_settings().db() {
            0 => format!("redis://{at}"),
            database => format!("redis://{at}/{database}"),
        }
    }

    /// The user, if not the default user.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.server.redis_settings().username()
    }

    /// Whether a password is given.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.server.redis_settings().password().is_some()
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let server = |settings: &Self| {
            let redis = settings.server.redis_settings();
            let of = |text: Option<&str>| text.map(ToOwned::to_owned);
            (redis.db(), of(redis.username()), of(redis.password()))
        };
        self.server.addr() == other.server.addr()
            && server(self) == server(other)
            && self.prefix == other.prefix
            && self.deadline == other.deadline
            && self.member_ttl == other.member_ttl
    }
}

impl Eq for Settings {}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("server", &self.server.addr().to_string())
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("member_ttl", &self.member_ttl)
            .finish()
    }
}

/// The first and the longest pause after a failure. Meanwhile calls fail at once.
const BREAK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Redis's time is rounded down to this.
const RESOLUTION: Duration = Duration::from_micros(1);

/// The value at each of `KEYS`, after the time.
const READ: &str = r"
local told = redis.call('TIME')
for _, key in ipairs(KEYS) do
  local entry = redis.call('HMGET', key, 'version', 'record')
  told[#told + 1] = entry[1] or ''
  told[#told + 1] = entry[2] or ''
end
return told
";

/// Writes all of `KEYS` if each has the version in `ARGV` (none: an empty text), or none. Answers
/// with the time, whether it wrote, and the new versions or the current values.
///
/// The versions of a key that is made again begin with the time, so that each is unique. The
/// script reads all before it writes. A later failure, such as a publish without permission, does
/// not end it: all are written or none.
const SWAP: &str = r"
local time = redis.call('TIME')
local same, found = true, {}
for at, key in ipairs(KEYS) do
  found[at] = redis.call('HMGET', key, 'version', 'record')
  if (found[at][1] or '') ~= ARGV[3 * at - 2] then same = false end
end
local told = {time[1], time[2], same and '1' or '0'}
for at, key in ipairs(KEYS) do
  local version, record = found[at][1] or '', found[at][2] or ''
  if same then
    local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
    version = string.format('%.0f', math.max(now, (tonumber(version) or 0) + 1))
    record = ''
    redis.call('HSET', key, 'version', version, 'record', ARGV[3 * at - 1])
    redis.pcall('PUBLISH', ARGV[3 * at], '')
  end
  told[#told + 1] = version
  told[#told + 1] = record
end
return told
";

/// Counts the member `ARGV[1]` as live for another `ARGV[2]` microseconds. Answers with the time
/// and the number of members.
const BEAT: &str = r"
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
return {time[1], time[2], tostring(redis.call('ZCARD', KEYS[1]))}
";

static READ_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(READ));
static SWAP_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SWAP));
static BEAT_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(BEAT));

/// A store of quota records in Redis. See the [module](self).
pub struct Redis {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    settings: Settings,
    node: Node,
    link: Mutex<Link>,
    /// Held during a change, so that no unsubscribe overtakes its subscribe.
    subscriptions: Mutex<Subscriptions>,
    waiters: Arc<Waiters>,
}

/// The one connection, and the bound on its attempts.
#[derive(Default)]
struct Link {
    connection: Option<MultiplexedConnection>,
    /// Numbers the connections, so that only a user of one drops it.
    number: u64,
    failures: u32,
    not_before: Option<Instant>,
    /// The reason, for earlier calls.
    why: Option<Why>,
}

/// The failure of the last connection.
struct Why {
    /// It refused the user.
    is_stranger: bool,
    text: String,
}

impl Why {
    fn of(error: &Error) -> Self {
        let cause = std::error::Error::source(error);
        Self {
            is_stranger: matches!(error, Error::Unauthenticated(_)),
            text: cause.map_or_else(|| error.to_string(), ToString::to_string),
        }
    }

    fn error(&self) -> Error {
        let text = format!("{}, a moment ago", self.text).into();
        match self.is_stranger {
            true => Error::Unauthenticated(text),
            false => Error::Unavailable(text),
        }
    }
}

/// The keys whose channels a connection listens to.
#[derive(Default)]
struct Subscriptions {
    /// The number of that connection.
    number: u64,
    keys: HashSet<Key>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.shared.settings;
        f.debug_tuple("Redis").field(settings).finish()
    }
}

/// Whether a call without an answer may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl Redis {
    /// Connects and becomes a member, in the background; needs a tokio runtime.
    #[must_use]
    pub fn start(settings: Settings, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            settings,
            node: Node::new("Redis", clock),
            link: Mutex::default(),
            subscriptions: Mutex::default(),
            waiters: Arc::default(),
        });
        let stopped = CancellationToken::new();
        tokio::spawn(Arc::clone(&shared).beat(stopped.clone()));
        Self {
            shared,
            _stop: stopped.drop_guard(),
        }
    }
}

impl Shared {
    fn record(&self, key: &Key) -> String {
        format!("{}record:{}", self.settings.prefix, key.encoded())
    }

    fn channel(&self, key: &Key) -> String {
        format!("{}changed:{}", self.settings.prefix, key.encoded())
    }

    fn members(&self) -> String {
        format!("{}members", self.settings.prefix)
    }

    /// Reports regularly that it is alive, and leaves at the end.
    async fn beat(self: Arc<Self>, stopped: CancellationToken) {
        let node = &self.node.id;
        let ttl = self.settings.member_ttl;
        let mut beat = BEAT_SCRIPT.key(self.members());
        beat.arg(node).arg(micros(ttl));
        let beats = async {
            loop {
                let pause = match self.call(&beat, Kind::Read).await {
                    Ok(told) => {
                        if let Some(count) = told.first().and_then(|count| parse(count)) {
                            self.node.count(count);
                        }
                        self.node.answered();
                        self.unsubscribe().await;
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
        // So that no other node waits for its end. If this message is lost, the lease expires.
        let deadline = Instant::now() + self.settings.deadline;
        if let Ok(mut link) = timeout_at(deadline, self.link.lock()).await
            && let Some(mut connection) = link.connection.take()
        {
            let mut leave = redis::cmd("ZREM");
            leave.arg(self.members()).arg(node);
            let _ = timeout_at(deadline, leave.exec_async(&mut connection)).await;
        }
    }

    /// Calls a script once. Takes the time from the answer and returns the rest.
    async fn call(&self, script: &ScriptInvocation<'_>, kind: Kind) -> Result<Vec<Vec<u8>>, Error> {
        let deadline = Instant::now() + self.settings.deadline;
        let late = |_| Error::Unavailable("no connection in time".into());
        let connected = timeout_at(deadline, self.connection(deadline)).await;
        let (mut connection, number) = connected.map_err(late)??;
        let sent = self.node.clock.now();
        let called = script.invoke_async::<Vec<Vec<u8>>>(&mut connection);
        let answer = match timeout_at(deadline, called).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                // A server with this answer is running, and the next call may succeed.
                let answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
                let told = told(error, kind);
                if !answered || matches!(told, Error::Unauthenticated(_)) {
                    self.failed(number, &told).await;
                }
                return Err(told);
            }
            Err(_) => {
                let late = match kind {
                    Kind::Read => Error::Unavailable("no answer in time".into()),
                    Kind::Write => Error::Unknown("no answer in time".into()),
                };
                self.failed(number, &late).await;
                return Err(late);
            }
        };
        let (seconds, micros) = match &answer[..] {
            [seconds, micros, ..] => (parse(seconds), parse(micros)),
            _ => (None, None),
        };
        let (Some(seconds), Some(micros)) = (seconds, micros) else {
            return Err(Error::Garbage("a time that is none".into()));
        };
        let stamp = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        self.node.learn(sent, stamp, RESOLUTION);
        self.link.lock().await.failures = 0;
        Ok(answer.into_iter().skip(2).collect())
    }

    /// The current connection or a new one, and its number.
    async fn connection(&self, deadline: Instant) -> Result<(MultiplexedConnection, u64), Error> {
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        if link.not_before.is_some_and(|then| Instant::now() < then) {
            let why = link.why.as_ref();
            return Err(why.expect("it was told with the moment").error());
        }
        let client = redis::Client::open(self.settings.server.clone());
        let client = client.map_err(|error| Error::Refused(error.into()))?;
        let waiters = Arc::clone(&self.waiters);
        let channels = format!("{}changed:", self.settings.prefix);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.deadline))
            .set_response_timeout(Some(self.settings.deadline))
            .set_push_sender(move |push| {
                pushed(&push, &channels, &waiters);
                Ok::<_, redis::aio::SendError>(())
            });
        let connected = client.get_multiplexed_async_connection_with_config(&config);
        let connection = match timeout_at(deadline, connected).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                let error = told(error, Kind::Read);
                link.trip(Why::of(&error));
                return Err(error);
            }
            Err(_) => {
                let late = Error::Unavailable("no connection in time".into());
                link.trip(Why::of(&late));
                return Err(late);
            }
        };
        link.number += 1;
        link.connection = Some(connection.clone());
        let number = link.number;
        drop(link);
        // Their news went to the previous connection, if to any.
        self.waiters.tell_all();
        Ok((connection, number))
    }

    /// Drops a connection: replies still in progress on it would come too late.
    async fn failed(&self, number: u64, error: &Error) {
        let mut link = self.link.lock().await;
        if link.number == number && link.connection.take().is_some() {
            link.trip(Why::of(error));
            drop(link);
            self.waiters.tell_all();
        }
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Entry>>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut read = READ_SCRIPT.prepare_invoke();
        for key in keys {
            read.key(self.record(key));
        }
        entries(&self.call(&read, Kind::Read).await?, keys.len())
    }

    async fn compare_and_set(&self, writes: &[Write]) -> Result<Swapped, Error> {
        if writes.is_empty() {
            return Ok(Swapped::Done(Vec::new()));
        }
        let mut swap = SWAP_SCRIPT.prepare_invoke();
        for write in writes {
            let expected = write.expected.map(|version| version.0.to_string());
            swap.key(self.record(&write.key))
                .arg(expected.unwrap_or_default())
                .arg(&write.text[..])
                .arg(self.channel(&write.key));
        }
        let answer = self.call(&swap, Kind::Write).await?;
        let garbage = || Error::Garbage("a script that was not asked for".into());
        let (done, rest) = answer.split_first().ok_or_else(garbage)?;
        let found = entries(rest, writes.len())?;
        match &done[..] {
            b"0" => Ok(Swapped::Conflict(found)),
            b"1" => {
                let versions = found.into_iter().map(|entry| Some(entry?.version));
                let versions: Option<_> = versions.collect();
                Ok(Swapped::Done(versions.ok_or_else(garbage)?))
            }
            _ => Err(garbage()),
        }
    }

    async fn changed(&self, key: &Key, since: Option<Version>) -> Result<(), Error> {
        loop {
            // In this order no change is missed: every change after the read is reported.
            let told = self.waiters.wait(key);
            self.subscribe(key).await?;
            let stands = self.get(std::slice::from_ref(key)).await?;
            let stands = stands.into_iter().flatten().next();
            if stands.map(|entry| entry.version) != since {
                return Ok(());
            }
            // An error means that no task waits.
            let _ = told.await;
        }
    }

    async fn subscribe(&self, key: &Key) -> Result<(), Error> {
        let deadline = Instant::now() + self.settings.deadline;
        let late = |_| Error::Unavailable("no connection in time".into());
        let subscriptions = timeout_at(deadline, self.subscriptions.lock()).await;
        let mut subscriptions = subscriptions.map_err(late)?;
        let connected = timeout_at(deadline, self.connection(deadline)).await;
        let (mut connection, number) = connected.map_err(late)??;
        if subscriptions.number != number {
            subscriptions.number = number;
            subscriptions.keys.clear();
        }
        if subscriptions.keys.contains(key) {
            return Ok(());
        }
        let error = match timeout_at(deadline, connection.subscribe(self.channel(key))).await {
            Ok(Ok(())) => {
                subscriptions.keys.insert(key.clone());
                return Ok(());
            }
            Ok(Err(error)) => told(error, Kind::Read),
            Err(_) => Error::Unavailable("no answer in time".into()),
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
            let ended = connection.unsubscribe(self.channel(&key));
            if !matches!(timeout_at(deadline, ended).await, Ok(Ok(()))) {
                // An extra channel costs some bytes, and ends with its connection at the latest.
                return;
            }
        }
    }
}

impl Link {
    /// Refuses all calls for a while, longer each time.
    fn trip(&mut self, why: Why) {
        let (first, longest) = BREAK;
        let pause = first
            .saturating_mul(1 << self.failures.min(10))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        let pause = pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
        self.not_before = Some(Instant::now() + pause);
        self.why = Some(why);
    }
}

impl QuotaStore for Redis {
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
        Box::pin(self.shared.changed(key, since))
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.shared.node.members.subscribe()
    }

    fn member_lifetime(&self) -> Duration {
        // It is checked with each regular report.
        self.shared.settings.member_ttl + self.shared.settings.member_ttl / 2
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        self.shared.node.trouble()
    }
}

/// Pairs of a version and a text, none for an empty version.
fn entries(told: &[Vec<u8>], count: usize) -> Result<Vec<Option<Entry>>, Error> {
    if told.len() != 2 * count {
        return Err(Error::Garbage("another number of keys".into()));
    }
    let entry = |pair: &[Vec<u8>]| {
        let [version, text] = pair else {
            unreachable!("they come in pairs");
        };
        if version.is_empty() && text.is_empty() {
            return Ok(None);
        }
        // A foreign hash: it has no version to compare.
        let version = parse(version).ok_or_else(|| {
            let text = "a hash without a version of ours stands at the key";
            Error::Refused(text.into())
        })?;
        let (version, text) = (Version(version), text.clone());
        Ok(Some(Entry { version, text }))
    };
    told.chunks_exact(2).map(entry).collect()
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.parse().ok()
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
                waiters.tell(&Key::of_encoded(key));
            }
        }
        // Later messages reach no task.
        PushKind::Disconnection => waiters.tell_all(),
        _ => {}
    }
}

/// The meaning of the library's error for a call.
fn told(error: RedisError, kind: Kind) -> Error {
    let wants_credentials = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    match error.kind() {
        _ if error.code() == Some("NOPERM") => Error::Denied(error.into()),
        _ if wants_credentials => Error::Unauthenticated(error.into()),
        ErrorKind::Server(ServerErrorKind::NoPerm) => Error::Denied(error.into()),
        ErrorKind::AuthenticationFailed => Error::Unauthenticated(error.into()),
        // It runs, but cannot serve: it loads its records, or has lost its primary.
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::NotBusy
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::TryAgain,
        ) => Error::Unavailable(error.into()),
        ErrorKind::Server(_) | ErrorKind::Extension if is_unavailable(&error) => {
            Error::Unavailable(error.into())
        }
        ErrorKind::Server(_) | ErrorKind::Extension => Error::Refused(error.into()),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType | ErrorKind::RESP3NotSupported => {
            Error::Garbage(error.into())
        }
        _ if kind == Kind::Write => Error::Unknown(error.into()),
        _ => Error::Unavailable(error.into()),
    }
}

/// Errors of a server that runs but does not serve now, and that the library does not name: too
/// few replicas, no memory, a foreign script that does not end.
fn is_unavailable(error: &RedisError) -> bool {
    matches!(
        error.code(),
        Some("NOREPLICAS" | "OOM" | "BUSY" | "MISCONF" | "READONLY")
    )
}
