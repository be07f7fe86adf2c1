//! The state that each engine keeps as one node of its store: the time, the members, and whether the store answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::RecordKey;
use tidegate_limits::Timestamp;
use tidegate_limits::quota::StoreTime;
use tidegate_runtime::{Clock, lock};
use tokio::sync::watch;
use tracing::{info, warn};

/// The end of the cause of a failure that is repeated without a new attempt.
pub(super) const AGAIN: &str = ", a moment ago";
/// The shortest time between two lines about an unavailable store.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// The regular checks of the store.
#[derive(Default)]
struct Checks {
    /// Set while all of them fail.
    trouble: Option<CheckFailure>,
    /// The problem that was logged last, and when.
    logged: Option<(Timestamp, Arc<str>)>,
    /// The current failure was logged.
    was_logged: bool,
}

/// Why all regular checks fail.
struct CheckFailure {
    since: Timestamp,
    why: Arc<str>,
}

/// A node of the store.
pub(super) struct StoreNode {
    /// The store's name for people.
    store: &'static str,
    pub(super) clock: Clock,
    /// As other nodes know it, this process alone.
    pub(super) id: String,
    /// The node's name among the members. A process that is started again has it too.
    pub(super) member: String,
    pub(super) time: watch::Sender<StoreTime>,
    pub(super) members: watch::Sender<usize>,
    checks: Mutex<Checks>,
}

impl StoreNode {
    pub(super) fn new(store: &'static str, clock: Clock, member: Option<&str>) -> Self {
        let id = format!("{:016x}", rand::random::<u64>());
        let named = member.and_then(|name| RecordKey::new(name).ok());
        Self {
            store,
            clock,
            member: named.map_or_else(|| id.clone(), |name| name.encoded().to_owned()),
            id,
            time: watch::channel(StoreTime::unknown(clock.now())).0,
            members: watch::channel(0).0,
            checks: Mutex::default(),
        }
    }

    /// Takes the store's clock from a reply that has just come.
    pub(super) fn learn(&self, sent: Timestamp, stamp: Duration, resolution: Duration) {
        let told = StoreTime::from_reply(sent, self.clock.now(), stamp, resolution);
        self.time.send_modify(|known| *known = known.and(&told));
    }

    /// Reports the number of members.
    pub(super) fn count(&self, count: usize) {
        let tell = |told: &mut usize| std::mem::replace(told, count) != count;
        self.members.send_if_modified(tell);
    }

    /// A regular check failed. Logs the first failure, and later ones with another cause: a server
    /// that is reachable again may reject our certificate. A server that fails now and then gets a line
    /// every ten seconds at most.
    pub(super) fn failed(&self, cause: &str) {
        let now = self.clock.now();
        let news = cause.trim_end_matches(AGAIN);
        let mut checks = lock(&self.checks);
        let is_early = |at: Timestamp| now.since(at) < LOG_AGAIN;
        let log = match &checks.logged {
            Some((at, _)) if is_early(*at) => false,
            Some((_, why)) => !checks.was_logged || **why != *news,
            None => true,
        };
        if log {
            warn!(cause = news, "quota: {} is unavailable", self.store);
            checks.logged = Some((now, news.into()));
            checks.was_logged = true;
        }
        let known = checks.trouble.get_or_insert_with(|| CheckFailure {
            since: now,
            why: cause.into(),
        });
        if *known.why != *cause {
            known.why = cause.into();
        }
    }

    /// A regular check was answered. Logs it after a failure that was logged.
    pub(super) fn answered(&self) {
        let mut checks = lock(&self.checks);
        checks.trouble = None;
        if std::mem::take(&mut checks.was_logged) {
            info!("quota: {} is back", self.store);
        }
    }

    pub(super) fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        let checks = lock(&self.checks);
        let known = checks.trouble.as_ref();
        known.map(|known| (known.since, Arc::clone(&known.why)))
    }
}

/// Sleeps for about this long, so that nodes do not ask at the same moment.
pub(super) async fn sleep_about(pause: Duration) {
    tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_now_and_then_does_not_fill_the_log() {
        let node = StoreNode::new("a store", Clock::start(), None);
        let mut lines = 0;
        for _ in 0..1_000 {
            node.failed("no space");
            lines += u32::from(lock(&node.checks).was_logged);
            assert!(node.trouble().is_some());
            node.answered();
            assert!(node.trouble().is_none());
        }
        assert_eq!(lines, 1);
    }
}
