//! Records as nodes of ZooKeeper.
//!
//! | node | what it is |
//! |---|---|
//! | `/quota/<key>/window` | the record |
//! | `/quota/<key>/total`, `/quota/<key>/base` | configuration, decimal text; only read |
//! | `/quota/<key>/usable`, `/quota/<key>/refresh` | where the design that this follows keeps its state: a program that still writes them is noticed |
//! | `/tidegate/quota/members/<name>` | ephemeral, one for each node that lives |
//! | `/tidegate/quota/swept` | how often records were removed |
//!
//! The store's time is the leader's clock: each write gets a stamp between its sending and its
//! reply. Sessions only count members; no guarantee depends on one.
//!
//! A deleted record loses the count of its writes: the record that is made in its place begins with
//! 0 again. So every removal counts up `swept` in the same transaction, and a record is written only
//! if `swept` is still what it was before the record was read. A node removes records some windows
//! after their own; see `sweep`. Do not delete records by hand.

mod sweep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{RecordVersion, TOTAL_MAX};
use tidegate_runtime::Clock;
use tidegate_runtime::zookeeper::{self, NodeWrite, Stat, ZooKeeperClient};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::node::{StoreNode, sleep_about};
use super::obstacle::{NAME, Obstacle, StoreStep};
use super::remote::{Remote, StoreMember};
use super::{
    ForeignMark, QuotaStore, RecordKey, StoreEntry, StoreError, StoredSettings, SwapResult,
};

/// The place of records and members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperStoreSettings {
    /// The address of ZooKeeper, the credentials, and the time limit of a call.
    pub store: zookeeper::ZooKeeperSettings,
    /// The parent node of every key's node.
    pub records: String,
    /// The parent node of every member's node.
    pub members: String,
    /// The node that counts removals.
    pub swept: String,
    /// About how often one of the members looks for records to remove.
    pub sweep_every: Duration,
    /// The node's name among the members; `None` for a random one.
    pub member: Option<Arc<str>>,
}

impl ZooKeeperStoreSettings {
    /// The default names, and 1 s for a call.
    #[must_use]
    pub fn new(store: zookeeper::ZooKeeperSettings) -> Self {
        Self {
            store: zookeeper::ZooKeeperSettings {
                deadline: store.deadline.min(Duration::from_secs(1)),
                ..store
            },
            records: "/quota".into(),
            members: "/tidegate/quota/members".into(),
            swept: "/tidegate/quota/swept".into(),
            sweep_every: Duration::from_secs(300),
            member: None,
        }
    }

    /// The settings for a place below another node, of which no key begins with a dot.
    #[must_use]
    pub fn below(mut self, root: &str) -> Self {
        self.records = root.into();
        self.members = format!("{root}/.members");
        self.swept = format!("{root}/.swept");
        self
    }

    /// Settings for each server alone.
    pub(super) fn apart(&self) -> Vec<Self> {
        // A root of the whole session stands behind the last server.
        let (servers, root) = match self.store.servers.split_once('/') {
            Some((servers, root)) => (servers, format!("/{root}")),
            None => (&*self.store.servers, String::new()),
        };
        let alone = |server| Self {
            store: zookeeper::ZooKeeperSettings {
                servers: format!("{server}{root}"),
                ..self.store.clone()
            },
            ..self.clone()
        };
        servers.split(',').map(alone).collect()
    }
}

/// The interval between regular reports. Each also asks for the time; the clocks' drift in
/// between is far below a millisecond.
const BEAT: Duration = Duration::from_secs(2);
/// The pause after a failure, before a retry.
const RETRY: Duration = Duration::from_millis(250);
/// Watched nodes are read again after this time, in case the news of a change was lost with a
/// session.
const REREAD: Duration = Duration::from_secs(30);
/// ZooKeeper's stamps are rounded down to this.
const RESOLUTION: Duration = Duration::from_millis(1);

/// Connects to ZooKeeper and becomes a member, in the background; needs a tokio runtime.
#[must_use]
pub fn start(settings: ZooKeeperStoreSettings, clock: Clock) -> impl QuotaStore {
    let zookeeper = ZooKeeper {
        client: ZooKeeperClient::new(settings.store.clone()),
        node: StoreNode::new("ZooKeeper", clock, settings.member.as_deref()),
        settings,
        swept: Mutex::default(),
        sweeps: AtomicBool::new(false),
    };
    StoreMember::start(zookeeper, |zookeeper, stopped| async move {
        let lives = async {
            tokio::join!(
                zookeeper.beat(),
                zookeeper.count_members(),
                zookeeper.keep_sweeping()
            )
        };
        stopped.run_until_cancelled(lives).await;
    })
}

/// Does once what a node does, without becoming one. Its nodes end with its session at the latest.
pub(super) async fn try_out(settings: ZooKeeperStoreSettings) -> Result<(), Obstacle> {
    let client = ZooKeeperClient::new(settings.store.clone());
    let id: u64 = rand::random();
    let put = async |place: &str| {
        client.put_ephemeral(place, b"").await?;
        client.delete(place).await
    };
    let record = format!("{}/{NAME}-{id:016x}", settings.records);
    let done = client.get(&record).await.map_err(told);
    done.map_err(Obstacle::at(StoreStep::Read, &settings.records))?;
    let done = client.get(&settings.swept).await.map_err(told);
    done.map_err(Obstacle::at(StoreStep::Read, &settings.swept))?;
    let done = put(&record).await.map_err(told);
    done.map_err(Obstacle::at(StoreStep::Write, &settings.records))?;
    let member = format!("{}/{NAME}-{id:016x}", settings.members);
    let done = put(&member).await.map_err(told);
    done.map_err(Obstacle::at(StoreStep::Join, &settings.members))?;
    Ok(())
}

struct ZooKeeper {
    client: ZooKeeperClient,
    settings: ZooKeeperStoreSettings,
    node: StoreNode,
    /// How often records were removed, as last read.
    swept: Mutex<Option<RemovalCount>>,
    /// Whether this is the member that removes records.
    sweeps: AtomicBool,
}

/// The state of the node that counts removals.
#[derive(Clone, Copy)]
struct RemovalCount {
    count: i32,
    /// The transaction of the last one.
    mzxid: i64,
}

/// The value of each member's node: it writes a record only if no record was removed meanwhile.
const CHECKS: &[u8] = b"checks swept";

impl ZooKeeper {
    fn path(&self, key: &RecordKey, name: &str) -> String {
        format!("{}/{}/{name}", self.settings.records, key.encoded())
    }

    /// Learns the time from a write.
    fn stamped(&self, sent: Timestamp, stat: &Stat) {
        let stamp = u64::try_from(stat.mtime).unwrap_or(0);
        if stamp == 0 {
            return;
        }
        self.node
            .learn(sent, Duration::from_millis(stamp), RESOLUTION);
    }

    /// Reports regularly that it is alive.
    async fn beat(&self) {
        let node = format!("{}/{}", self.settings.members, self.node.member);
        loop {
            let sent = self.node.clock.now();
            let pause = match self.client.put_ephemeral(&node, CHECKS).await {
                Ok(stat) => {
                    self.stamped(sent, &stat);
                    self.node.answered();
                    BEAT
                }
                Err(error) => {
                    self.node.failed(&told(error).with_cause());
                    RETRY
                }
            };
            sleep_about(pause).await;
        }
    }

    async fn count_members(&self) {
        loop {
            match self.client.children_and_watch(&self.settings.members).await {
                Ok((members, changed)) => {
                    self.node.count(members.len());
                    let first = members.iter().min();
                    let is_first = first.is_some_and(|first| *first == self.node.member);
                    self.sweeps.store(is_first, Ordering::Relaxed);
                    // In each case it is read again.
                    let _ = timeout(REREAD, changed).await;
                }
                Err(error) => {
                    debug!(%error, "quota: ZooKeeper does not tell its members");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// How often records were removed; read once, until a write was refused.
    async fn swept(&self) -> Result<RemovalCount, StoreError> {
        let mut known = self.swept.lock().await;
        if let Some(swept) = *known {
            return Ok(swept);
        }
        let place = &self.settings.swept;
        let found = loop {
            if let Some(node) = self.client.get(place).await.map_err(told)? {
                break node.stat;
            }
            self.client.create(place, b"").await.map_err(told)?;
        };
        let swept = RemovalCount {
            count: found.version,
            mzxid: found.mzxid,
        };
        Ok(*known.insert(swept))
    }

    /// The value of a node in the store. A missing read permission affects only its key.
    async fn word(&self, path: &str) -> Result<Word, StoreError> {
        match self.client.get(path).await {
            Ok(Some(node)) => Ok(Word::Is(node.data, node.stat.mzxid)),
            Ok(None) => Ok(Word::Absent),
            Err(error @ zookeeper::ZooKeeperError::Denied(_)) => {
                let error = told(error);
                Ok(Word::Unreadable(error.with_cause()))
            }
            Err(error) => Err(told(error)),
        }
    }
}

impl Remote for ZooKeeper {
    const CONFIGURES: bool = true;

    fn node(&self) -> &StoreNode {
        &self.node
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<StoreEntry>, StoreError> {
        // First: a removal behind this refuses each write of what is read below.
        let swept = self.swept().await?;
        let found = self.client.get(&self.path(key, "window")).await;
        let Some(node) = found.map_err(told)? else {
            return Ok(None);
        };
        if node.seen < swept.mzxid {
            // What is read may be removed already.
            let text = "a server that is behind the one before answers";
            return Err(StoreError::Unavailable(text.into()));
        }
        Ok(Some(StoreEntry {
            version: version(swept, &node.stat),
            text: node.data,
        }))
    }

    async fn compare_and_set(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &[u8],
        // The one that removes records reads it from them.
        _kept_until: Duration,
    ) -> Result<SwapResult, StoreError> {
        let deadline = Instant::now() + self.settings.store.deadline;
        let path = self.path(key, "window");
        let (swept, sent, written) = match expected {
            None => {
                let swept = self.swept().await?;
                let sent = self.node.clock.now();
                let made = self.client.create(&path, text).await;
                (swept.count, sent, made)
            }
            Some(version) => {
                let (swept, count) = counts(version);
                let writes = [
                    NodeWrite::Check(&self.settings.swept, swept),
                    NodeWrite::Set(&path, text, count),
                ];
                let sent = self.node.clock.now();
                let written = self.client.write_all(&writes).await;
                let written = written.map(|stats| stats.and_then(|mut stats| stats.pop()));
                (swept, sent, written)
            }
        };
        if let Some(stat) = written.map_err(told)? {
            self.stamped(sent, &stat);
            return Ok(SwapResult::Done(version_of(swept, stat.version)));
        }
        // It may be the count of removals that has changed.
        *self.swept.lock().await = None;
        let found = timeout_at(deadline, self.get(key)).await;
        let late = |_| StoreError::Unavailable("what stands there was not told in time".into());
        Ok(SwapResult::Conflict(found.map_err(late)??))
    }

    async fn changed(
        &self,
        key: &RecordKey,
        since: Option<RecordVersion>,
    ) -> Result<(), StoreError> {
        let path = self.path(key, "window");
        loop {
            let (node, changed) = self.client.get_and_watch(&path).await.map_err(told)?;
            let stands = node.map(|node| node.stat.version);
            if stands != since.map(|since| counts(since).1) {
                return Ok(());
            }
            let _ = timeout(REREAD, changed).await;
        }
    }

    async fn try_out(&self) -> Result<(), StoreError> {
        let place = format!("{}/{NAME}-{}", self.settings.records, self.node.id);
        self.client.put_ephemeral(&place, b"").await.map_err(told)?;
        // If this is not allowed or lost, it ends with the session.
        let _ = self.client.delete(&place).await;
        Ok(())
    }

    fn member_lifetime(&self) -> Duration {
        // Also, a session that moves to another server gets some extra time.
        2 * self.settings.store.session_timeout + BEAT
    }

    /// The values of a key's configuration nodes. All are read at once, and none is watched: each
    /// new session would have to set the watches of thousands of keys again.
    async fn configured(
        &self,
        key: &RecordKey,
        known: &StoredSettings,
    ) -> Result<StoredSettings, StoreError> {
        let paths = ["total", "base", "usable", "refresh"].map(|name| self.path(key, name));
        let [total, base, usable, refresh] = &paths;
        // One writer is enough, and its write can change with each call.
        let looks = known.foreign_writer.is_none();
        let foreign = async |path| match looks {
            true => self.word(path).await,
            false => Ok(Word::Absent),
        };
        let (total, base, usable, refresh) = tokio::join!(
            self.word(total),
            self.word(base),
            foreign(usable),
            foreign(refresh)
        );
        let mut says = known.clone();
        read_numbers(&mut says, &total?, &base?);
        if looks {
            for (at, word) in [usable?, refresh?].iter().enumerate() {
                saw_foreign(&mut says, at, word, &paths[at + 2]);
            }
        }
        Ok(says)
    }

    fn evictions(&self) -> Option<u64> {
        None
    }
}

/// The value of one configuration node of a key.
enum Word {
    Absent,
    /// The node has this value, from that write.
    Is(Vec<u8>, i64),
    /// No permission to read.
    Unreadable(String),
}

/// Takes the numbers of two nodes, each separately: an invalid value changes nothing.
fn read_numbers(says: &mut StoredSettings, total: &Word, base: &Word) {
    let mut mistakes = Vec::new();
    let before = says.base;
    for (name, word, least, known) in [
        ("total", total, 0, &mut says.total),
        ("base", base, 1, &mut says.base),
    ] {
        match number(name, word, least) {
            Ok(number) => *known = number,
            Err(mistake) => mistakes.push(mistake),
        }
    }
    // No draw comes from a total of 0.
    let total = says.total.filter(|total| *total > 0);
    if let (Some(total), Some(base)) = (total, says.base)
        && base > total
    {
        mistakes.push(format!(
            "base must not be above total, {total}, but is {base}"
        ));
        says.base = before.filter(|before| *before <= total);
    }
    let mistake = mistakes.join("; ");
    says.mistake = (!mistake.is_empty()).then(|| mistake.into());
}

/// The number in a node; none if there is no node.
fn number(name: &str, word: &Word, least: u64) -> Result<Option<u64>, String> {
    let text = match word {
        Word::Absent => return Ok(None),
        Word::Is(text, _) => text,
        Word::Unreadable(why) => return Err(format!("{name} cannot be read: {why}")),
    };
    let digits = str::from_utf8(text).map(str::trim).unwrap_or_default();
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| decimal);
    match number {
        Some(number) if (least..=TOTAL_MAX).contains(&number) => Ok(Some(number)),
        Some(number) => Err(format!(
            "{name} must be {least} to {TOTAL_MAX}, not {number}"
        )),
        None => {
            let text = text[..text.len().min(32)].escape_ascii();
            Err(format!("{name} must be a number, not \"{text}\""))
        }
    }
}

/// A value at the first check may be from a program that ended long ago. A later change is from a
/// running program.
fn saw_foreign(says: &mut StoredSettings, at: usize, word: &Word, path: &str) {
    let found = match word {
        Word::Is(_, write) => ForeignMark::Written(*write),
        Word::Absent => ForeignMark::Nothing,
        Word::Unreadable(_) => return,
    };
    if says.marks[at] == ForeignMark::Unseen {
        says.marks[at] = found;
    }
    if matches!(found, ForeignMark::Written(_)) && found != says.marks[at] {
        says.foreign_writer = Some(path.into());
    }
}

/// The count of removals, and behind it that of the record's writes.
///
/// ZooKeeper counts a node's writes up to 31 bits and then continues from the lowest number. All
/// values except one are compared: -1 means any, so one write in four thousand million is not
/// checked.
fn version_of(swept: i32, writes: i32) -> RecordVersion {
    let [swept, writes] = [swept, writes].map(|count| u64::from(count.cast_unsigned()));
    RecordVersion(swept << 32 | writes)
}

fn version(swept: RemovalCount, stat: &Stat) -> RecordVersion {
    version_of(swept.count, stat.version)
}

/// The two counts that [`version_of`] made the version from.
fn counts(RecordVersion(version): RecordVersion) -> (i32, i32) {
    let low = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("they are 32 bits");
    (low(version >> 32).cast_signed(), low(version).cast_signed())
}

fn told(error: zookeeper::ZooKeeperError) -> StoreError {
    use zookeeper::ZooKeeperError as E;
    match error {
        E::Refused(_) => StoreError::Refused(error.into()),
        E::Unknown(_) => StoreError::Unknown(error.into()),
        E::Unreachable(_) => StoreError::Unavailable(error.into()),
        E::Denied(_) => StoreError::Denied(error.into()),
        E::Unauthenticated(_) => StoreError::Unauthenticated(error.into()),
        E::Garbage(_) => StoreError::Garbage(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: Option<&str>) -> Word {
        text.map_or(Word::Absent, |text| Word::Is(text.into(), 1))
    }

    fn check(
        says: &mut StoredSettings,
        total: Option<&str>,
        base: Option<&str>,
        told: (Option<u64>, Option<u64>, Option<&str>),
    ) {
        read_numbers(says, &word(total), &word(base));
        let found = (says.total, says.base, says.mistake.as_deref());
        assert_eq!(found, told, "{total:?} {base:?}");
    }

    #[test]
    fn an_impossible_value_keeps_the_old_one_and_gives_the_reason() {
        let mut of = StoredSettings::default();
        check(&mut of, None, None, (None, None, None));
        check(
            &mut of,
            Some("100\n"),
            Some(" 5"),
            (Some(100), Some(5), None),
        );
        for (total, base, told) in [
            ("12x", "5", "total must be a number, not \"12x\""),
            ("", "5", "total must be a number, not \"\""),
            ("-1", "5", "total must be a number, not \"-1\""),
            ("+1", "5", "total must be a number, not \"+1\""),
            ("100", "\u{0}", "base must be a number, not \"\\x00\""),
            ("100", "0", "base must be 1 to 1000000000000000, not 0"),
            (
                "1000000000000001",
                "5",
                "total must be 0 to 1000000000000000, not 1000000000000001",
            ),
        ] {
            let total = Some(total);
            check(&mut of, total, Some(base), (Some(100), Some(5), Some(told)));
        }
        check(&mut of, Some("7"), None, (Some(7), None, None));
    }

    #[test]
    fn a_base_that_cannot_be_throws_no_total_away() {
        let above = "base must not be above total, 20, but is 50";
        for (base, told) in [
            ("50", above),
            ("0", "base must be 1 to 1000000000000000, not 0"),
            ("x", "base must be a number, not \"x\""),
        ] {
            let mut new = StoredSettings::default();
            check(
                &mut new,
                Some("20"),
                Some(base),
                (Some(20), None, Some(told)),
            );
            // An earlier valid value stays.
            let mut known = StoredSettings::default();
            check(&mut known, Some("30"), Some("5"), (Some(30), Some(5), None));
            check(
                &mut known,
                Some("20"),
                Some(base),
                (Some(20), Some(5), Some(told)),
            );
        }
    }

    #[test]
    fn a_total_below_the_base_counts_and_the_base_does_not() {
        let mut of = StoredSettings::default();
        check(&mut of, Some("100"), Some("5"), (Some(100), Some(5), None));
        let told = "base must not be above total, 3, but is 5";
        check(&mut of, Some("3"), Some("5"), (Some(3), None, Some(told)));
        check(&mut of, Some("0"), Some("5"), (Some(0), Some(5), None));
    }

    #[test]
    fn a_node_that_may_not_be_read_has_its_own_message() {
        let mut of = StoredSettings::default();
        let denied = Word::Unreadable("denied".into());
        read_numbers(&mut of, &word(Some("9")), &denied);
        let told = "base cannot be read: denied";
        assert_eq!((of.total, of.mistake.as_deref()), (Some(9), Some(told)));
    }

    #[test]
    fn a_node_left_by_an_old_tool_is_not_a_writer() {
        let mut of = StoredSettings::default();
        let written = |write| Word::Is(Vec::new(), write);
        saw_foreign(&mut of, 0, &written(7), "/quota/a/usable");
        saw_foreign(&mut of, 1, &Word::Absent, "/quota/a/refresh");
        saw_foreign(&mut of, 0, &written(7), "/quota/a/usable");
        assert_eq!(of.foreign_writer, None);
        saw_foreign(&mut of, 1, &written(9), "/quota/a/refresh");
        let writer = of.foreign_writer.as_deref();
        assert_eq!(writer, Some("/quota/a/refresh"));
    }
}
