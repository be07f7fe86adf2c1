//! The health of the store, its members and its records by its answers, as operators see it.

use std::mem;

use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{LedgerTrouble, StoreReply};
use tidegate_limits::scheduler::QuotaTrouble;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::breaker::{PAUSE, PAUSE_STRANGER, Proof};
use super::super::key::MaintainedKey;
use super::{Carrying, Driver, StoreFailure, TroubleKind, Work};
use crate::admit::QuotaAt;

impl Carrying {
    /// Updates the state of the store from the end of a request, which was sent at the first of two
    /// moments.
    pub(super) fn judge(
        &mut self,
        driver: &Driver,
        work: &Work,
        (sent, now): (Instant, Instant),
        asked: Proof,
        failure: Option<StoreFailure>,
    ) {
        let Some(failure) = failure else {
            self.answered(driver, now, asked);
            return;
        };
        if failure.kind != TroubleKind::Key {
            self.failed(driver, (sent, now), asked, failure);
            return;
        }
        match work {
            // What it refuses a record of no quota, it refuses every key.
            Work::Time | Work::Probe => self.failed(driver, (sent, now), asked, failure),
            Work::Question { answer, .. } => {
                self.answered(driver, now, Proof::Read);
                self.refused_key(driver, answer.at, failure.text);
                self.doubt(now);
            }
            Work::Settings { .. } => {
                self.answered(driver, now, Proof::Read);
                let now = driver.clock.now();
                driver.lock().health.trouble = Some((now, failure.text));
            }
        }
    }

    fn answered(&mut self, driver: &Driver, now: Instant, proof: Proof) {
        let is_back = self.breaker.answered(now, proof);
        {
            let now = driver.clock.now();
            let health = &mut driver.lock().health;
            if !self.breaker.is_open() {
                health.away = None;
            }
            health.answered = Some(now);
            if proof == Proof::Write {
                health.wrote = Some(now);
            }
            if is_back || health.answers.is_none() {
                health.answers = Some(now);
            }
        }
        if !is_back {
            return;
        }
        if self.logged.ends() {
            info!(
                engine = driver.engine.word(),
                "quota: the store answers again"
            );
        }
        driver.gate.store_is_back();
    }

    fn failed(
        &mut self,
        driver: &Driver,
        (sent, now): (Instant, Instant),
        asked: Proof,
        failure: StoreFailure,
    ) {
        let was_unavailable = self.breaker.is_open();
        match failure.kind {
            TroubleKind::Late => self.breaker.late(sent, now, asked),
            TroubleKind::Stranger => self.breaker.failed(sent, now, asked, PAUSE_STRANGER),
            TroubleKind::Away | TroubleKind::Garbage => {
                self.breaker.failed(sent, now, asked, PAUSE)
            }
            TroubleKind::Key => self.breaker.denied(now),
        }
        let is_unavailable = self.breaker.is_open();
        let StoreFailure { kind, text, .. } = failure;
        if is_unavailable && self.logged.takes(kind, now) {
            let engine = driver.engine.word();
            warn!(engine, cause = text, "quota: the store cannot be used");
        }
        let now = driver.clock.now();
        let health = &mut driver.lock().health;
        if is_unavailable && !was_unavailable {
            health.away = Some(now);
        }
        health.trouble = Some((now, text));
    }

    /// The store refuses one key.
    fn refused_key(&mut self, driver: &Driver, at: QuotaAt, text: String) {
        let Some(tended) = self.keys.get_mut(&at) else {
            return;
        };
        let key = &tended.key;
        if !mem::replace(&mut tended.refused, true)
            && let Some(count) = self.refusals.count(&text)
        {
            warn!(%key, count, cause = text, "quota: the store refuses a key");
        }
        let now = driver.clock.now();
        let why = format!("{key}: {text}");
        driver.note(at, &tended.of.quota, |note| {
            note.refused = Some(text.into());
        });
        driver.lock().health.trouble = Some((now, why));
    }

    /// Passes on the number of members.
    pub(super) fn count_members(&mut self, driver: &Driver, members: usize) {
        let now = Instant::now();
        let before = mem::replace(&mut self.members, members);
        if members != before && members != 0 {
            let nodes = u32::try_from(members).unwrap_or(u32::MAX);
            driver.gate.set_quota_nodes(nodes);
        }
        if self.settled.count(now, members) {
            self.warn_of_excess(driver);
        }
    }

    /// Warns of too many members. A dead process stays a member for a while, and does not count as
    /// one more.
    pub(super) fn warn_of_excess(&mut self, driver: &Driver) {
        let expected = driver.settings.borrow().expected_sidecars;
        let members = self.settled.members();
        let excess = members.saturating_sub(expected as usize);
        let before = mem::replace(&mut driver.lock().excess, excess);
        if excess > 0 && before == 0 && self.settled.warns(Instant::now()) {
            warn!(
                members,
                expected_sidecars = expected,
                "quota: more sidecars share than are expected, and their safe shares may be more \
                 than the total"
            );
        }
    }
}

impl MaintainedKey {
    /// Notes that a refused key is served again.
    pub(super) fn answered(&mut self, driver: &Driver, at: QuotaAt, outcome: StoreReply) {
        let is_served = matches!(outcome, StoreReply::Stands(_) | StoreReply::Written(_));
        if is_served && mem::take(&mut self.refused) {
            driver.note(at, &self.of.quota, |note| note.refused = None);
        }
    }
}

/// Logs a trouble of a key that began or ended.
pub(super) fn log_trouble(trouble: &QuotaTrouble) {
    let QuotaKey { quota, key } = &trouble.of;
    match trouble.trouble {
        Some(LedgerTrouble::Lost) => {
            warn!(limit = %quota, %key, "quota: the record vanished or went back, and nothing is left of this window");
        }
        Some(LedgerTrouble::Ahead(by)) => {
            let seconds = by.as_secs_f64();
            warn!(limit = %quota, %key, seconds, "quota: the record is of a window to come, and no other window begins before it ends");
        }
        Some(LedgerTrouble::OtherReserve { reserved }) => {
            warn!(limit = %quota, %key, reserved, "quota: another sidecar opened the window with too little set aside, so there is no safe share; give all sidecars the same quota");
        }
        Some(LedgerTrouble::Unreadable(error)) => {
            warn!(limit = %quota, %key, %error, "quota: what is in the store is no record of ours, and is left alone");
        }
        // The store's, and logged once for all keys.
        Some(LedgerTrouble::Away(_)) => {}
        None => info!(limit = %quota, %key, "quota: nothing is wrong with the record any more"),
    }
}
