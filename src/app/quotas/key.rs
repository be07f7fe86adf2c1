//! The work for one key while the gate knows it: it gets its rule from the config and the store,
//! and its record is watched while nothing is left.
//!
//! There may be very many keys, so a key is small here: no task, no watch, and nothing on the
//! heap except its name, unless the store has settings of it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{Rule, Version};
use tidegate_limits::scheduler::QuotaRef;
use tidegate_quota::{Configured, Key, QuotaLimit};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::driver::Driver;
use super::rule::rule_of;

/// The pause before a failed watch is set again.
const RETRY: Duration = Duration::from_millis(500);

/// One key. Dropping it ends the work for it.
pub(super) struct Tended {
    /// The place of its record.
    pub(super) key: Key,
    /// Which it is.
    pub(super) of: QuotaKey,
    /// When its settings were last read; `None` before the first time.
    pub(super) read_at: Option<Instant>,
    /// They are being read now.
    pub(super) is_reading: bool,
    /// Its record was in a foreign format at the last read.
    pub(super) unreadable: bool,
    /// The store has refused it since the last answer.
    pub(super) refused: bool,
    /// Its settings in the store, if any.
    said: Option<Box<Configured>>,
    /// Its own rule, if it is not the quota's.
    rule: Option<Box<Rule>>,
    watching: Option<AbortOnDropHandle<()>>,
}

/// The troubles of a key that no ledger knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Invalid settings in the store.
    pub(super) mistake: Option<Box<str>>,
    /// The place where another program writes.
    pub(super) foreign_writer: Option<Box<str>>,
    /// Why the store refuses the key.
    pub(super) refused: Option<Box<str>>,
}

impl Tended {
    /// A key without settings.
    pub(super) fn new(of: QuotaKey, key: Key) -> Self {
        Self {
            key,
            of,
            read_at: None,
            is_reading: false,
            unreadable: false,
            refused: false,
            said: None,
            rule: None,
            watching: None,
        }
    }

    /// Its known settings.
    pub(super) fn said(&self) -> Configured {
        self.said.as_deref().cloned().unwrap_or_default()
    }

    /// Whether it has settings.
    pub(super) fn has_own(&self) -> bool {
        self.said.is_some()
    }

    /// Applies new settings of the key, from the store or the config, and gives the key its rule.
    /// An invalid value is logged once and noted, and changes nothing.
    pub(super) fn take(
        &mut self,
        driver: &Driver,
        at: QuotaRef,
        limit: &QuotaLimit,
        says: Configured,
    ) {
        let before = self.said();
        let key = &self.key;
        let (rule, mistake) = rule_of(limit, &self.of.key, &says);
        if (says.total, says.base) != (before.total, before.base) {
            info!(%key, total = says.total, base = says.base, "quota: set by the store");
        }
        if let Some(place) = &says.foreign_writer
            && before.foreign_writer.is_none()
        {
            warn!(%key, node = place, "quota: another program writes here, and its spending is in no sum");
        }
        let mistakes = [says.mistake.as_deref(), mistake.as_deref()];
        let mistakes: Vec<_> = mistakes.into_iter().flatten().collect();
        let mistake = (!mistakes.is_empty()).then(|| mistakes.join("; ").into_boxed_str());
        driver.note(at, &self.of.quota, |note| {
            if note.mistake != mistake {
                if let Some(mistake) = &mistake {
                    let settings = rule.as_ref().unwrap_or(&limit.rule).settings();
                    let (total, base) = (settings.total, settings.base);
                    warn!(%key, mistake, total, base, "quota: invalid setting in the store, ignored");
                }
                note.mistake = mistake;
            }
            note.foreign_writer.clone_from(&says.foreign_writer);
        });
        if self.rule.as_deref() != rule.as_ref() {
            driver.gate.set_quota_rule(at, rule);
            self.rule = rule.map(Box::new);
        }
        let is_default = says == Configured::default();
        self.said = (!is_default).then(|| Box::new(says));
    }

    /// Watches the record, for at most the rest of its window, instead of the earlier watch.
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
    /// Waits until the key has changed.
    async fn changed(&self, key: &Key, since: Option<Version>) {
        while let Err(error) = self.store.changed(key, since).await {
            debug!(%key, %error, "quota: a record cannot be watched");
            tokio::time::sleep(RETRY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_small() {
        // Besides its name and the gate's data.
        let bytes = size_of::<Tended>();
        assert!(bytes <= 128, "{bytes} bytes for each key");
    }
}
