//! What is asked without a question of a key: whether the store is back, what time it is, and what it
//! configures for keys.

use std::sync::Arc;

use tidegate_quota::Key;
use tokio::time::Instant;

use super::super::breaker::AT_ONCE;
use super::{
    Carrying, Done, Driver, PROBE, READS_A_TICK, READS_AT_ONCE, TICKS_OTHERS, TICKS_OWN,
    TIME_PAUSE, Work,
};

impl Driver {
    /// Reads a key only to find out whether the store answers.
    async fn probe(&self, key: &Key, sent: Instant, deadline: Instant, work: Work) -> Done {
        Done {
            sent,
            failure: self.read(key, deadline).await.err(),
            work,
        }
    }
}

impl Carrying {
    /// Probes an unavailable store, independent of requests for keys.
    pub(super) fn probe(&mut self, driver: &Arc<Driver>, now: Instant) {
        let is_due = self.breaker.probe_at().is_some_and(|then| then <= now);
        let Some(key) = self.asked_last.clone().filter(|_| is_due && !self.probes) else {
            return;
        };
        self.probes = true;
        let driver = Arc::clone(driver);
        self.under_way
            .spawn(async move { driver.probe(&key, now, now + PROBE, Work::Probe).await });
    }

    /// A store reports its time without a request. If it does not, one request of any kind finds
    /// out why, for all that wait for the time.
    pub(super) fn ask_for_time(&mut self, driver: &Arc<Driver>, now: Instant) {
        let is_early = |then: Instant| now < then + TIME_PAUSE;
        let Some(asked) = self.for_time.first() else {
            return;
        };
        if self.asked_for_time.is_some_and(is_early) || self.under_way.len() >= AT_ONCE {
            return;
        }
        let deadline = now + asked.timeout;
        let tended = self.keys.get(&asked.at);
        let key = tended.expect("a key that is forgotten waits no more");
        let key = key.key.clone();
        self.asked_last = Some(key.clone());
        let driver = Arc::clone(driver);
        self.asked_for_time = Some(now);
        self.under_way
            .spawn(async move { driver.probe(&key, now, deadline, Work::Time).await });
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
                if tended.read_at.is_some() && !tended.is_reading {
                    tended.is_reading = true;
                    self.to_read.push_back(at);
                }
            }
        }
    }

    /// Reads the settings of keys again, if nothing else is urgent.
    pub(super) fn read_anew(&mut self, driver: &Arc<Driver>, now: Instant) {
        while self.reading < READS_AT_ONCE
            && self.under_way.len() < AT_ONCE / 2
            && let Some(at) = self.to_read.pop_front()
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
                Done {
                    sent: now,
                    failure,
                    work: Work::Settings { at, says },
                }
            });
        }
    }
}
