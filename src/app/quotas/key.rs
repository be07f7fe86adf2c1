//! What is done for one key for as long as the gate knows it: the store's word on it is followed,
//! and the record is watched while nothing is left.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::quota::{Rule, Version};
use tidegate_limits::{QuotaKey, QuotaRef};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use super::driver::Driver;
use super::rule::rule_of;
use crate::coordinate::QuotaLimit;
use crate::coordinate::quota_store::{Configured, Key};

/// The pause before what failed to be watched is watched again.
const RETRY: Duration = Duration::from_millis(500);

/// One key. Dropped, nothing more is done for it.
pub(super) struct Tended {
    /// Where its record stands.
    pub(super) key: Key,
    /// Whether the key has its rule.
    pub(super) ready: watch::Receiver<bool>,
    /// What stands there was no record of ours when it was read last.
    pub(super) unreadable: bool,
    /// The store said no to it since it answered last.
    pub(super) refused: bool,
    watching: Option<AbortOnDropHandle<()>>,
    _tending: AbortOnDropHandle<()>,
}

/// What an operator should know of a key that no ledger knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// What the store says that cannot be.
    pub(super) mistake: Option<Box<str>>,
    /// Where another program writes.
    pub(super) foreign_writer: Option<Box<str>>,
}

impl Tended {
    /// Begins to follow what the store says of this key.
    pub(super) fn start(driver: &Arc<Driver>, at: QuotaRef, of: QuotaKey, key: Key) -> Self {
        let (tell, ready) = watch::channel(false);
        let tending = Arc::clone(driver).tend(at, of, key.clone(), tell);
        Self {
            key,
            ready,
            unreadable: false,
            refused: false,
            watching: None,
            _tending: AbortOnDropHandle::new(tokio::spawn(tending)),
        }
    }

    /// Watches the record, for no longer than its window can last, instead of what was watched
    /// before.
    pub(super) fn watch(
        &mut self,
        driver: &Arc<Driver>,
        at: QuotaRef,
        since: Option<Version>,
        window: Duration,
        place: OwnedSemaphorePermit,
    ) {
        let (driver, key) = (Arc::clone(driver), self.key.clone());
        let watching = async move {
            let _place = place;
            let changed = tokio::time::timeout(window, driver.changed(&key, since));
            if changed.await.is_ok() {
                driver.gate.tell_quota(at);
            }
        };
        self.watching = Some(AbortOnDropHandle::new(tokio::spawn(watching)));
    }
}

impl Driver {
    /// Waits until something else stands at the key.
    async fn changed(&self, key: &Key, since: Option<Version>) {
        while let Err(error) = self.store.changed(key, since).await {
            debug!(%key, %error, "quota: a record cannot be watched");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Gives the key its rule, whenever that changes, here or in the store.
    async fn tend(
        self: Arc<Self>,
        at: QuotaRef,
        of: QuotaKey,
        key: Key,
        ready: watch::Sender<bool>,
    ) {
        let mut settings = self.settings.clone();
        let mut configured = self.store.configured(&key);
        // Most engines say all there is to say at once.
        let mut follows = true;
        let mut has = Has::default();
        loop {
            let says = configured.borrow_and_update().clone();
            if let Some(says) = says {
                let limits = Arc::clone(&settings.borrow_and_update());
                let limit = limits.limits.iter().find(|limit| limit.name == of.quota);
                if let Some(limit) = limit {
                    let before = has.rule;
                    has.take(limit, &of.key, &says);
                    if (before, has.rule) != (None, None) {
                        self.gate.set_quota_rule(at, has.rule);
                    }
                    self.note(at, &has.note);
                }
                ready.send_replace(true);
            }
            tokio::select! {
                changed = configured.changed(), if follows => follows = changed.is_ok(),
                changed = settings.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }
}

/// What a key was given.
#[derive(Default)]
struct Has {
    /// Its own rule, where it is not the quota's.
    rule: Option<Rule>,
    /// Whether it was given any.
    given: bool,
    note: Note,
}

impl Has {
    /// Takes what the store says of a key if it can be; else says once what is wrong with it, and
    /// stays as it was, or as the config has it.
    fn take(&mut self, limit: &QuotaLimit, key: &str, says: &Configured) {
        let mut note = Note {
            mistake: says.mistake.clone(),
            foreign_writer: says.foreign_writer.clone(),
        };
        match rule_of(limit, key, says) {
            Ok(rule) => self.rule = rule,
            Err(mistake) => {
                if self.note.mistake.as_deref() != Some(&*mistake) {
                    let (limit, total, base) = (&limit.name, says.total, says.base);
                    warn!(%limit, key, mistake, total, base, "quota: what the store says cannot be, so what held before holds on");
                }
                note.mistake = Some(mistake.into());
                if !self.given {
                    let own = rule_of(limit, key, &Configured::default());
                    self.rule = own.expect("the config was checked");
                }
            }
        }
        self.given = true;
        self.note = note;
    }
}
