//! What each engine knows as one node of its store: the time, the members, and whether it answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::StoreTime;
use tidegate_runtime::{Clock, lock};
use tokio::sync::watch;
use tracing::{info, warn};

/// The end of the cause of a failure that is repeated without a new attempt.
pub(super) const AGAIN: &str = ", a moment ago";
/// While the store is unavailable, another cause is logged after this time.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Why all regular checks fail.
struct Trouble {
    since: Timestamp,
    why: Arc<str>,
    /// What was logged last, and when.
    logged: (Timestamp, Arc<str>),
}

/// One node.
pub(super) struct Node {
    /// The store's name for people.
    store: &'static str,
    pub(super) clock: Clock,
    /// As other nodes know it.
    pub(super) id: String,
    pub(super) time: watch::Sender<StoreTime>,
    pub(super) members: watch::Sender<usize>,
    /// Set while all regular checks fail.
    trouble: Mutex<Option<Trouble>>,
}

impl Node {
    pub(super) fn new(store: &'static str, clock: Clock) -> Self {
        Self {
            store,
            clock,
            id: format!("{:016x}", rand::random::<u64>()),
            time: watch::channel(StoreTime::unknown(Timestamp::ZERO)).0,
            members: watch::channel(0).0,
            trouble: Mutex::default(),
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
    /// that is reachable again may reject our certificate.
    pub(super) fn failed(&self, cause: &str) {
        let now = self.clock.now();
        let news = cause.trim_end_matches(AGAIN);
        let mut trouble = lock(&self.trouble);
        let log = match &*trouble {
            None => true,
            Some(Trouble {
                logged: (at, why), ..
            }) => **why != *news && now.since(*at) >= LOG_AGAIN,
        };
        if log {
            warn!(cause = news, "quota: {} is unavailable", self.store);
        }
        let known = trouble.get_or_insert_with(|| Trouble {
            since: now,
            why: cause.into(),
            logged: (now, news.into()),
        });
        if log {
            known.logged = (now, news.into());
        }
        if *known.why != *cause {
            known.why = cause.into();
        }
    }

    /// A regular check was answered. Logs it after a failure.
    pub(super) fn answered(&self) {
        if lock(&self.trouble).take().is_some() {
            info!("quota: {} is back", self.store);
        }
    }

    pub(super) fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        let trouble = lock(&self.trouble);
        let known = trouble.as_ref();
        known.map(|known| (known.since, Arc::clone(&known.why)))
    }
}

/// Sleeps for about this long, so that nodes do not ask at the same moment.
pub(super) async fn sleep_about(pause: Duration) {
    tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
}
