//! Records as nodes of ZooKeeper.
//!
//! | node | what it is |
//! |---|---|
//! | `/quota/<key>/window` | the record |
//! | `/quota/<key>/total`, `/quota/<key>/base` | configuration, decimal text; only read, and watched |
//! | `/quota/<key>/usable`, `/quota/<key>/refresh` | where the design that this follows keeps its state: a program that still writes them is noticed |
//! | `/tidegate/quota/members/<node>` | ephemeral, one for each node that lives |
//!
//! The store's time is the leader's clock: each write is stamped with it, between the moment
//! that the write was sent and the one when its reply came. Sessions are for counting members
//! only; nothing that must hold rests on one.
//!
//! A record that is deleted takes the count of its writes with it. Who had read the old one may
//! then write over a new one that happens to have been written as often: leave records alone.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, info, warn};
use zookeeper_client as zk;

use super::{
    Answer, Configured, Entry, Error, Key, QuotaStore, Swapped, Write, assert_bounded, learn,
};
use crate::clock::Clock;
use crate::coordinate::zookeeper::{self, Changed, Client, Node};

/// Where records and members stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where ZooKeeper is, who asks, and how long a call may take.
    pub store: zookeeper::Settings,
    /// The node below which every key has one of its own.
    pub records: String,
    /// The node below which every node of ours has one.
    pub members: String,
}

impl Settings {
    /// The names of the design, and 1 s for a call.
    #[must_use]
    pub fn new(store: zookeeper::Settings) -> Self {
        Self {
            store: zookeeper::Settings {
                deadline: store.deadline.min(Duration::from_secs(1)),
                ..store
            },
            records: "/quota".into(),
            members: "/tidegate/quota/members".into(),
        }
    }
}

/// From one sign of life to the next. Each asks for the time besides; what clocks drift apart in
/// between is far below a millisecond.
const BEAT: Duration = Duration::from_secs(2);
/// The pause after something failed, before it is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// What is watched is read anew after so long, should the news of a change be lost with a
/// session.
const REREAD: Duration = Duration::from_secs(30);
/// The same of configuration, of which there may be four nodes for each of thousands of keys.
const REREAD_CONFIGURATION: Duration = Duration::from_secs(300);
/// To what ZooKeeper's stamps are rounded down.
const RESOLUTION: Duration = Duration::from_millis(1);

/// A store of quota records in ZooKeeper. See the [module](self).
pub struct ZooKeeper {
    shared: Arc<Shared>,
    members: watch::Receiver<usize>,
    _stop: DropGuard,
    stopped: CancellationToken,
}

struct Shared {
    client: Client,
    settings: Settings,
    clock: Clock,
    time: watch::Sender<StoreTime>,
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.shared.settings;
        f.debug_tuple("ZooKeeper").field(settings).finish()
    }
}

impl ZooKeeper {
    /// Connects and becomes a member, in the background; needs a tokio runtime.
    #[must_use]
    pub fn start(settings: Settings, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            client: Client::new(settings.store.clone()),
            settings,
            clock,
            time: watch::channel(StoreTime::unknown(Timestamp::ZERO)).0,
        });
        let (tell, members) = watch::channel(0);
        let stopped = CancellationToken::new();
        let beats = Arc::clone(&shared).beat();
        tokio::spawn(stopped.clone().run_until_cancelled_owned(beats));
        let counts = Arc::clone(&shared).count_members(tell);
        tokio::spawn(stopped.clone().run_until_cancelled_owned(counts));
        Self {
            shared,
            members,
            _stop: stopped.clone().drop_guard(),
            stopped,
        }
    }
}

impl Shared {
    fn path(&self, key: &Key, name: &str) -> String {
        format!("{}/{}/{name}", self.settings.records, key.encoded())
    }

    /// Learns the time from a write.
    fn stamped(&self, sent: Timestamp, stat: &zk::Stat) {
        let stamp = u64::try_from(stat.mtime).unwrap_or(0);
        if stat.is_invalid() || stamp == 0 {
            return;
        }
        let stamp = Duration::from_millis(stamp);
        let received = self.clock.now();
        let told = StoreTime::from_reply(sent, received, stamp, RESOLUTION);
        learn(&self.time, told);
    }

    /// Gives a sign of life again and again.
    async fn beat(self: Arc<Self>) {
        let node = format!("{}/{:016x}", self.settings.members, rand::random::<u64>());
        let mut away = false;
        loop {
            let sent = self.clock.now();
            let pause = match self.client.put_ephemeral(&node, b"").await {
                Ok(stat) => {
                    self.stamped(sent, &stat);
                    if std::mem::take(&mut away) {
                        info!("quota: ZooKeeper is back");
                    }
                    BEAT
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    if !std::mem::replace(&mut away, true) {
                        warn!(%error, cause, "quota: ZooKeeper is away");
                    }
                    RETRY
                }
            };
            tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
        }
    }

    async fn count_members(self: Arc<Self>, tell: watch::Sender<usize>) {
        loop {
            match self.client.children_and_watch(&self.settings.members).await {
                Ok((members, changed)) => {
                    let count = members.len();
                    tell.send_if_modified(|told| std::mem::replace(told, count) != count);
                    // Late or not, it is read anew.
                    let _ = timeout(REREAD, changed).await;
                }
                Err(error) => {
                    debug!(%error, "quota: ZooKeeper does not tell its members");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Entry>>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let paths: Vec<_> = keys.iter().map(|key| self.path(key, "window")).collect();
        let found = self.client.get_all(&paths).await.map_err(told)?;
        let entry = |node: Node| Entry {
            version: version(&node.stat),
            text: node.data,
        };
        Ok(found.into_iter().map(|node| node.map(entry)).collect())
    }

    async fn compare_and_set(&self, writes: &[Write]) -> Result<Swapped, Error> {
        if writes.is_empty() {
            return Ok(Swapped::Done(Vec::new()));
        }
        let deadline = Instant::now() + self.settings.store.deadline;
        let paths: Vec<_> = writes
            .iter()
            .map(|write| self.path(&write.key, "window"))
            .collect();
        let over = |version: Version| {
            let count = u32::try_from(version.0).map_err(|_| {
                let text = format!("{version:?} is none that ZooKeeper gave");
                Error::Refused(text.into())
            })?;
            Ok::<_, Error>(count.cast_signed())
        };
        let all = writes
            .iter()
            .zip(&paths)
            .map(|(write, path)| {
                Ok(zookeeper::Write {
                    path,
                    data: &write.text,
                    version: write.expected.map(over).transpose()?,
                })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let sent = self.clock.now();
        if let Some(stats) = self.client.write_all(&all).await.map_err(told)? {
            if let Some(stat) = stats.last() {
                self.stamped(sent, stat);
            }
            let done = stats.iter().zip(writes).map(|(stat, write)| {
                // Some ZooKeepers don't say what became of a node that they have just made.
                let made = write.expected.is_none();
                if made { Version(0) } else { version(stat) }
            });
            return Ok(Swapped::Done(done.collect()));
        }
        let keys: Vec<_> = writes.iter().map(|write| write.key.clone()).collect();
        let found = timeout_at(deadline, self.get(&keys)).await;
        let late = |_| Error::Unavailable("what stands there was not told in time".into());
        Ok(Swapped::Conflict(found.map_err(late)??))
    }

    async fn changed(&self, key: &Key, since: Option<Version>) -> Result<(), Error> {
        let path = self.path(key, "window");
        loop {
            let (node, changed) = self.client.get_and_watch(&path).await.map_err(told)?;
            let stands = node.map(|node| version(&node.stat));
            if stands != since {
                return Ok(());
            }
            let _ = timeout(REREAD, changed).await;
        }
    }

    /// Follows a key's configuration until nobody listens.
    async fn follow(self: Arc<Self>, key: Key, tell: watch::Sender<Option<Configured>>) {
        let mut configuration = Configuration::default();
        loop {
            match self.read_configuration(&key, &mut configuration).await {
                Ok(watches) => {
                    tell.send_if_modified(|told| {
                        let new = told.as_ref() != Some(&configuration.told);
                        if new {
                            configuration.report(&key, &told.take().unwrap_or_default());
                            *told = Some(configuration.told.clone());
                        }
                        new
                    });
                    tokio::select! {
                        () = tell.closed() => return,
                        _ = timeout(reread_configuration(), any(watches)) => {}
                    }
                }
                Err(error) => {
                    debug!(%error, %key, "quota: ZooKeeper does not tell a key's configuration");
                    tokio::select! {
                        () = tell.closed() => return,
                        () = tokio::time::sleep(RETRY) => {}
                    }
                }
            }
        }
    }

    async fn read_configuration(
        &self,
        key: &Key,
        configuration: &mut Configuration,
    ) -> Result<Vec<Changed>, zookeeper::Error> {
        let mut watches = Vec::new();
        let mut texts = Vec::new();
        for name in ["total", "base"] {
            let read = self.client.get_and_watch(&self.path(key, name)).await;
            let (node, changed) = read?;
            watches.push(changed);
            texts.push(node.map(|node| node.data));
        }
        configuration.read(texts[0].as_deref(), texts[1].as_deref());
        for (at, name) in ["usable", "refresh"].into_iter().enumerate() {
            // One writer is enough, and what it writes may change with each of its calls.
            if configuration.told.foreign_writer.is_some() {
                break;
            }
            let path = self.path(key, name);
            let (node, changed) = self.client.get_and_watch(&path).await?;
            watches.push(changed);
            configuration.saw_foreign(at, node.map(|node| node.stat.mzxid), &path);
        }
        Ok(watches)
    }
}

/// What is known of a key's configuration.
#[derive(Default)]
struct Configuration {
    told: Configured,
    /// By which transaction each foreign node was last written when it was first looked at.
    foreign: [Option<Option<i64>>; 2],
}

impl Configuration {
    /// Takes what the two nodes hold, if it can be.
    fn read(&mut self, total: Option<&[u8]>, base: Option<&[u8]>) {
        let number = |name: &str, text: Option<&[u8]>| {
            let Some(text) = text else { return Ok(None) };
            let digits = str::from_utf8(text).map(str::trim).unwrap_or_default();
            let decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits
                .parse::<u64>()
                .ok()
                .filter(|_| decimal)
                .map(Some)
                .ok_or_else(|| {
                    let start = &text[..text.len().min(32)];
                    let text = start.escape_ascii();
                    format!("{name} must be a number, not \"{text}\"")
                })
        };
        let read = number("total", total).and_then(|total| {
            let base = number("base", base)?;
            match (total, base) {
                (Some(total), Some(base)) if base > total => Err(format!(
                    "base must not be above total, {total}, but is {base}"
                )),
                (_, Some(0)) => Err("base must be above 0".into()),
                both => Ok(both),
            }
        });
        match read {
            Ok((total, base)) => {
                self.told.total = total;
                self.told.base = base;
                self.told.mistake = None;
            }
            Err(mistake) => self.told.mistake = Some(mistake.into()),
        }
    }

    /// What stands there when it is first looked at may be long dead; what changes later is
    /// written by somebody.
    fn saw_foreign(&mut self, at: usize, written: Option<i64>, path: &str) {
        let first = *self.foreign[at].get_or_insert(written);
        if written.is_some() && written != first {
            self.told.foreign_writer = Some(path.into());
        }
    }

    /// Says what is wrong, once.
    fn report(&self, key: &Key, before: &Configured) {
        let new = &self.told;
        if new.mistake != before.mistake
            && let Some(mistake) = &new.mistake
        {
            let (total, base) = (new.total, new.base);
            warn!(%key, mistake, total, base, "quota: what ZooKeeper says cannot be, so what held before holds on");
        }
        if (new.total, new.base) != (before.total, before.base) {
            info!(%key, total = new.total, base = new.base, "quota: set by ZooKeeper");
        }
        if let Some(node) = &new.foreign_writer
            && before.foreign_writer.is_none()
        {
            warn!(%key, node, "quota: another program writes here, whose spending nobody here knows of");
        }
    }
}

impl QuotaStore for ZooKeeper {
    fn get<'a>(&'a self, keys: &'a [Key]) -> Answer<'a, Vec<Option<Entry>>> {
        assert_bounded(keys.iter());
        Box::pin(self.shared.get(keys))
    }

    fn compare_and_set<'a>(&'a self, writes: &'a [Write]) -> Answer<'a, Swapped> {
        assert_bounded(writes.iter().map(|write| &write.key));
        Box::pin(self.shared.compare_and_set(writes))
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.shared.time.subscribe()
    }

    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()> {
        Box::pin(self.shared.changed(key, since))
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.members.clone()
    }

    fn configured(&self, key: &Key) -> watch::Receiver<Option<Configured>> {
        let (tell, told) = watch::channel(None);
        let follow = Arc::clone(&self.shared).follow(key.clone(), tell);
        tokio::spawn(self.stopped.clone().run_until_cancelled_owned(follow));
        told
    }
}

/// ZooKeeper counts a node's writes up to 31 bits and then from the lowest number on. All but one
/// compare: -1 is any, so once in four thousand million writes a write is not checked.
fn version(stat: &zk::Stat) -> Version {
    Version(u64::from(stat.version.cast_unsigned()))
}

fn told(error: zookeeper::Error) -> Error {
    use zookeeper::Error as E;
    match error {
        E::Refused(_) => Error::Refused(error.into()),
        E::Unknown(_) => Error::Unknown(error.into()),
        E::Unreachable(_) => Error::Unavailable(error.into()),
        E::Unauthenticated(_) => Error::Unauthenticated(error.into()),
        E::Garbage(_) => Error::Garbage(error.into()),
    }
}

/// Another time for each key, so that they do not all come at once.
fn reread_configuration() -> Duration {
    REREAD_CONFIGURATION.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// Ready with the first.
async fn any(mut all: Vec<Changed>) {
    poll_fn(|cx| {
        let mut ready = all.iter_mut().map(|one| one.as_mut().poll(cx));
        if ready.any(|one| one.is_ready()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        configuration: &mut Configuration,
        total: Option<&str>,
        base: Option<&str>,
        told: (Option<u64>, Option<u64>, Option<&str>),
    ) {
        configuration.read(total.map(str::as_bytes), base.map(str::as_bytes));
        let Configured {
            total,
            base,
            mistake,
            ..
        } = &configuration.told;
        assert_eq!((*total, *base, mistake.as_deref()), told);
    }

    #[test]
    fn what_cannot_be_keeps_what_was_before_and_says_why() {
        let mut of = Configuration::default();
        check(&mut of, None, None, (None, None, None));
        check(
            &mut of,
            Some("100\n"),
            Some(" 5"),
            (Some(100), Some(5), None),
        );
        let (total, base) = (Some(100), Some(5));
        for (wrong, mistake) in [
            (
                (Some("12x"), Some("5")),
                "total must be a number, not \"12x\"",
            ),
            ((Some(""), Some("5")), "total must be a number, not \"\""),
            (
                (Some("-1"), Some("5")),
                "total must be a number, not \"-1\"",
            ),
            (
                (Some("+1"), Some("5")),
                "total must be a number, not \"+1\"",
            ),
            (
                (Some("100"), Some("\u{0}")),
                "base must be a number, not \"\\x00\"",
            ),
            (
                (Some("4"), Some("5")),
                "base must not be above total, 4, but is 5",
            ),
            ((Some("4"), Some("0")), "base must be above 0"),
        ] {
            check(&mut of, wrong.0, wrong.1, (total, base, Some(mistake)));
        }
        check(&mut of, Some("7"), None, (Some(7), None, None));
    }

    #[test]
    fn what_an_old_tool_left_behind_is_no_writer() {
        let mut of = Configuration::default();
        of.saw_foreign(0, Some(7), "/quota/a/usable");
        of.saw_foreign(1, None, "/quota/a/refresh");
        of.saw_foreign(0, Some(7), "/quota/a/usable");
        assert_eq!(of.told.foreign_writer, None);
        of.saw_foreign(1, Some(9), "/quota/a/refresh");
        let writer = of.told.foreign_writer.as_deref();
        assert_eq!(writer, Some("/quota/a/refresh"));
    }
}
