//! Requests without a question of a key: whether the store is back, what time it is, and what it configures for
//! keys.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::breaker::{AT_ONCE, PAUSE_STRANGER, Proof};
use super::{
    Carrying, CompletedRequest, Driver, PROBE, READS_A_TICK, READS_AT_ONCE, TICKS_OTHERS,
    TICKS_OWN, TIME_PAUSE, Work,
};
use crate::admit::QuotaAt;

impl Carrying {
    /// When the store is to be tried out next.
    pub(super) fn trial_at(&self) -> Option<Instant> {
        match self.breaker.is_open() {
            true => self.breaker.probe_at(),
            false => self.doubts_at,
        }
    }

    /// Tries the store out, independent of requests for keys: while it is unavailable, and once it has
    /// refused a key.
    pub(super) fn probe(&mut self, driver: &Arc<Driver>, now: Instant) {
        let is_due = self.trial_at().is_some_and(|then| then <= now);
        if is_due && !self.probes {
            self.try_out(driver, now, now + PROBE, Work::Probe);
        }
    }

    fn try_out(&mut self, driver: &Arc<Driver>, now: Instant, deadline: Instant, work: Work) {
        self.probes = true;
        self.doubts_at = None;
        self.tried = Some(now);
        let driver = Arc::clone(driver);
        self.under_way
            .spawn(async move { driver.trial(now, deadline, work).await });
    }

    /// A key was refused. The store is tried out, at most once a second: it may refuse everything.
    pub(super) fn doubt(&mut self, now: Instant) {
        let soonest = self.tried.map_or(now, |tried| tried + PAUSE_STRANGER);
        self.doubts_at.get_or_insert(soonest.max(now));
    }

    /// A store reports its time without a request. If it does not, one request of any kind finds
    /// out why, for all that wait for the time.
    pub(super) fn ask_for_time(&mut self, driver: &Arc<Driver>, now: Instant) {
        let is_early = |then: Instant| now < then + TIME_PAUSE;
        let Some(asked) = self.for_time.first() else {
            return;
        };
        if self.asked_for_time.is_some_and(is_early)
            || self.under_way.len() >= AT_ONCE
            || self.probes
        {
            return;
        }
        let deadline = now + asked.timeout;
        self.asked_for_time = Some(now);
        self.try_out(driver, now, deadline, Work::Time);
    }

    /// Whether the store has settings of keys to follow.
    pub(super) fn ticks(&self, driver: &Driver) -> bool {
        driver.store.configures() && !self.keys.is_empty() && !self.breaker.is_open()
    }

    /// Starts reading the settings of some keys again.
    pub(super) fn tick(&mut self) {
        self.reads_left = READS_A_TICK;
        for (turns, ticks, own) in [
            (&mut self.turns, TICKS_OTHERS, false),
            (&mut self.own_turns, TICKS_OWN, true),
        ] {
            let count = turns.len().div_ceil(ticks).min(READS_A_TICK);
            for _ in 0..count {
                let Some(at) = turns.pop_front() else { break };
                let Some(tended) = self.keys.get_mut(&at) else {
                    continue;
                };
                if own && !tended.has_own() {
                    continue;
                }
                turns.push_back(at);
                if !tended.is_reading {
                    tended.is_reading = true;
                    self.to_read.push_back(at);
                }
            }
        }
    }

    /// Reads the settings of keys, if nothing else is urgent: first of new keys that have asked for
    /// nothing else, such as those that spend only their own share.
    pub(super) fn read_settings(&mut self, driver: &Arc<Driver>, now: Instant) {
        while self.reading < READS_AT_ONCE
            && self.under_way.len() < AT_ONCE / 2
            && let Some(at) = self.next_to_read()
        {
            let Some(tended) = self.keys.get(&at) else {
                continue;
            };
            let (key, known) = (tended.key.clone(), tended.said());
            let driver = Arc::clone(driver);
            self.reading += 1;
            self.under_way.spawn(async move {
                let read = driver.configured(&key, &known, now + PROBE).await;
                let (says, failure) = match read {
                    Ok(says) => (Some(says), None),
                    Err(failure) => (None, Some(failure)),
                };
                CompletedRequest {
                    sent: now,
                    asked: Proof::Read,
                    failure,
                    work: Work::Settings { at, says },
                }
            });
        }
    }

    /// The next key whose settings are to be read.
    fn next_to_read(&mut self) -> Option<QuotaAt> {
        while let Some(at) = self.new.pop_front() {
            if let Some(tended) = self.keys.get_mut(&at)
                && tended.read_at.is_none()
                && !tended.is_reading
            {
                tended.is_reading = true;
                return Some(at);
            }
        }
        self.to_read.pop_front()
    }
}
