//! Records as nodes of ZooKeeper.
//!
//! | node | what it is |
//! |---|---|
//! | `/quota/<key>/window` | the record |
//! | `/quota/<key>/total`, `/quota/<key>/base` | configuration, decimal text; only read |
//! | `/quota/<key>/usable`, `/quota/<key>/refresh` | where the design that this follows keeps its state: a program that still writes them is noticed |
//! | `/tidegate/quota/members/<node>` | ephemeral, one for each node that lives |
//!
//! The store's time is the leader's clock: each write gets a stamp between its sending and its
//! reply. Sessions only count members; no guarantee depends on one.
//!
//! A deleted record loses the count of its writes. A node that read the old one can then replace
//! a new one that happens to have the same count: do not delete records.

use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{TOTAL_MAX, Version};
use tidegate_runtime::Clock;
use tidegate_runtime::zookeeper::{self, Client, Stat};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use super::node::{Node, sleep_about};
use super::obstacle::{NAME, Obstacle, Step};
use super::remote::{Member, Remote};
use super::{Configured, Entry, Error, Key, Mark, QuotaStore, Swapped};

/// The place of records and members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address of ZooKeeper, the credentials, and the time limit of a call.
    pub store: zookeeper::Settings,
    /// The parent node of every key's node.
    pub records: String,
    /// The parent node of every member's node.
    pub members: String,
}

impl Settings {
    /// The default names, and 1 s for a call.
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

    /// The same for each server alone.
    pub(super) fn apart(&self) -> Vec<Self> {
        // A root of the whole session stands behind the last server.
        let (servers, root) = match self.store.servers.split_once('/') {
            Some((servers, root)) => (servers, format!("/{root}")),
            None => (&*self.store.servers, String::new()),
        };
        let alone = |server| Self {
            store: zookeeper::Settings {
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
pub fn start(settings: Settings, clock: Clock) -> impl QuotaStore {
    let zookeeper = ZooKeeper {
        client: Client::new(settings.store.clone()),
        settings,
        node: Node::new("ZooKeeper", clock),
    };
    Member::start(zookeeper, |zookeeper, stopped| async move {
        let lives = async { tokio::join!(zookeeper.beat(), zookeeper.count_members()) };
        stopped.run_until_cancelled(lives).await;
    })
}

/// Does once what a node does, without becoming one. Its nodes end with its session at the latest.
pub(super) async fn try_out(settings: Settings) -> Result<(), Obstacle> {
    let client = Client::new(settings.store.clone());
    let id: u64 = rand::random();
    let put = async |place: &str| {
        client.put_ephemeral(place, b"").await?;
        client.delete(place).await
    };
    let record = format!("{}/{NAME}-{id:016x}", settings.records);
    let done = client.get(&record).await.map_err(told);
    done.map_err(Obstacle::at(Step::Read, &settings.records))?;
    let done = put(&record).await.map_err(told);
    done.map_err(Obstacle::at(Step::Write, &settings.records))?;
    let member = format!("{}/{NAME}-{id:016x}", settings.members);
    let done = put(&member).await.map_err(told);
    done.map_err(Obstacle::at(Step::Join, &settings.members))?;
    Ok(())
}

struct ZooKeeper {
    client: Client,
    settings: Settings,
    node: Node,
}

impl ZooKeeper {
    fn path(&self, key: &Key, name: &str) -> String {
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
        let node = format!("{}/{}", self.settings.members, self.node.id);
        loop {
            let sent = self.node.clock.now();
            let pause = match self.client.put_ephemeral(&node, b"").await {
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

    /// One node's value. A missing read permission affects only its key.
    async fn word(&self, path: &str) -> Result<Word, Error> {
        match self.client.get(path).await {
            Ok(Some(node)) => Ok(Word::Is(node.data, node.stat.mzxid)),
            Ok(None) => Ok(Word::Absent),
            Err(error @ zookeeper::Error::Denied(_)) => {
                let error = told(error);
                Ok(Word::Unreadable(error.with_cause()))
            }
            Err(error) => Err(told(error)),
        }
    }
}

impl Remote for ZooKeeper {
    const CONFIGURES: bool = true;

    fn node(&self) -> &Node {
        &self.node
    }

    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        let found = self.client.get(&self.path(key, "window")).await;
        Ok(found.map_err(told)?.map(|node| Entry {
            version: version(&node.stat),
            text: node.data,
        }))
    }

    async fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<Version>,
        text: &[u8],
    ) -> Result<Swapped, Error> {
        let deadline = Instant::now() + self.settings.store.deadline;
        let path = self.path(key, "window");
        let sent = self.node.clock.now();
        let written = match expected {
            None => self.client.create(&path, text).await,
            Some(version) => {
                let count = u32::try_from(version.0).map_err(|_| {
                    let text = format!("{version:?} is none that ZooKeeper gave");
                    Error::Refused(text.into())
                })?;
                self.client.set(&path, text, count.cast_signed()).await
            }
        };
        if let Some(stat) = written.map_err(told)? {
            self.stamped(sent, &stat);
            return Ok(Swapped::Done(version(&stat)));
        }
        let found = timeout_at(deadline, self.get(key)).await;
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

    async fn try_out(&self) -> Result<(), Error> {
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
    async fn configured(&self, key: &Key, known: &Configured) -> Result<Configured, Error> {
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
}

/// The value of one configuration node of a key.
enum Word {
    Absent,
    /// This value, from that write.
    Is(Vec<u8>, i64),
    /// No permission to read.
    Unreadable(String),
}

/// Takes the numbers of two nodes, each separately: an invalid value changes nothing.
fn read_numbers(says: &mut Configured, total: &Word, base: &Word) {
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
fn saw_foreign(says: &mut Configured, at: usize, word: &Word, path: &str) {
    let found = match word {
        Word::Is(_, write) => Mark::Written(*write),
        Word::Absent => Mark::Nothing,
        Word::Unreadable(_) => return,
    };
    if says.marks[at] == Mark::Unseen {
        says.marks[at] = found;
    }
    if matches!(found, Mark::Written(_)) && found != says.marks[at] {
        says.foreign_writer = Some(path.into());
    }
}

/// ZooKeeper counts a node's writes up to 31 bits and then continues from the lowest number. All
/// values except one are compared: -1 means any, so one write in four thousand million is not
/// checked.
fn version(stat: &Stat) -> Version {
    Version(u64::from(stat.version.cast_unsigned()))
}

fn told(error: zookeeper::Error) -> Error {
    use zookeeper::Error as E;
    match error {
        E::Refused(_) => Error::Refused(error.into()),
        E::Unknown(_) => Error::Unknown(error.into()),
        E::Unreachable(_) => Error::Unavailable(error.into()),
        E::Denied(_) => Error::Denied(error.into()),
        E::Unauthenticated(_) => Error::Unauthenticated(error.into()),
        E::Garbage(_) => Error::Garbage(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: Option<&str>) -> Word {
        text.map_or(Word::Absent, |text| Word::Is(text.into(), 1))
    }

    fn check(
        says: &mut Configured,
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
        let mut of = Configured::default();
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
            let mut new = Configured::default();
            check(
                &mut new,
                Some("20"),
                Some(base),
                (Some(20), None, Some(told)),
            );
            // An earlier valid value stays.
            let mut known = Configured::default();
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
        let mut of = Configured::default();
        check(&mut of, Some("100"), Some("5"), (Some(100), Some(5), None));
        let told = "base must not be above total, 3, but is 5";
        check(&mut of, Some("3"), Some("5"), (Some(3), None, Some(told)));
        check(&mut of, Some("0"), Some("5"), (Some(0), Some(5), None));
    }

    #[test]
    fn a_node_that_may_not_be_read_has_its_own_message() {
        let mut of = Configured::default();
        let denied = Word::Unreadable("denied".into());
        read_numbers(&mut of, &word(Some("9")), &denied);
        let told = "base cannot be read: denied";
        assert_eq!((of.total, of.mistake.as_deref()), (Some(9), Some(told)));
    }

    #[test]
    fn a_node_left_by_an_old_tool_is_not_a_writer() {
        let mut of = Configured::default();
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
