//! The work for one key: it gets a rule from its settings in the store, and its record is watched
//! while nothing is left.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::quota::RecordVersion;
use tidegate_quota::{QuotaLimit, RecordKey, StoredSettings};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use super::super::key::MaintainedKey;
use super::super::rule::rule_of;
use super::Driver;
use crate::admit::QuotaAt;

/// The pause before a failed watch is set again.
const RETRY: Duration = Duration::from_millis(500);

impl MaintainedKey {
    /// Applies new settings of the key in the store, or those to a new config.
    /// An invalid value is logged once and noted, and changes nothing.
    pub(super) fn take(
        &mut self,
        driver: &Driver,
        at: QuotaAt,
        limit: &QuotaLimit,
        says: StoredSettings,
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
                    let settings = rule.as_ref().unwrap_or(limit.of(&self.of.key)).settings();
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
        let is_default = says == StoredSettings::default();
        self.said = (!is_default).then(|| Box::new(says));
    }

    /// Watches the record, for at most the rest of its window, instead of the earlier watch.
    pub(super) fn watch(
        &mut self,
        driver: &Arc<Driver>,
        at: QuotaAt,
        since: Option<RecordVersion>,
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
    async fn changed(&self, key: &RecordKey, since: Option<RecordVersion>) {
        while let Err(error) = self.store.changed(key, since).await {
            debug!(%key, %error, "quota: a record cannot be watched");
            tokio::time::sleep(RETRY).await;
        }
    }
}
