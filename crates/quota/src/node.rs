//! What each engine knows as one node of its store: the time, the members, and whether it answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::StoreTime;
use tidegate_runtime::{Clock, lock};
use tokio::sync::watch;
use tracing::{info, warn};

/// One node.
pub(super) struct Node {
    /// The store's name for people.
    store: &'static str,
    pub(super) clock: Clock,
    /// As other nodes know it.
    pub(super) id: String,
    pub(super) time: watch::Sender<StoreTime>,
    pub(super) members: watch::Sender<usize>,
    /// Since when all regular checks fail, and why the last one did.
    trouble: Mutex<Option<(Timestamp, Arc<str>)>>,
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

    /// A regular check failed. Logs the first failure.
    pub(super) fn failed(&self, cause: &str) {
        let mut trouble = lock(&self.trouble);
        if trouble.is_none() {
            warn!(cause, "quota: {} is unavailable", self.store);
        }
        let (since, why) = trouble.get_or_insert_with(|| (self.clock.now(), cause.into()));
        if **why != *cause {
            *trouble = Some((*since, cause.into()));
        }
    }

    /// A regular check was answered. Logs it after a failure.
    pub(super) fn answered(&self) {
        if lock(&self.trouble).take().is_some() {
            info!("quota: {} is back", self.store);
        }
    }

    pub(super) fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        lock(&self.trouble).clone()
    }
}

/// Sleeps for about this long, so that nodes do not ask at the same moment.
pub(super) async fn sleep_about(pause: Duration) {
    tokio::time::sleep(pause.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
}
