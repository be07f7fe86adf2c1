//! Which backends take connections.
//!
//! A backend that takes none holds the queue and does not flush it: its calls wait, and one
//! of them at a time is let through to find out whether it is back, 100 ms to 2 s apart.
//! The probe is a real call, in its turn, because a bare connect would cost the sdkserver a
//! worker.

use std::time::Duration;

use tidegate_limits::{Supplier, Supply, Timestamp};

use super::{Lane, State, policy};
use crate::call::Destination;

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Backends([Health; Destination::BACKENDS.len()]);

#[derive(Clone, Copy, Debug, Default)]
enum Health {
    #[default]
    Up,
    /// Nobody is let through before `next`.
    Down { next: Timestamp, backoff: Duration },
    /// One call is on its way to find out.
    Probing { backoff: Duration },
}

impl Backends {
    /// A connect failed. `spread` in 0.5..1 keeps several proxies from probing in step.
    pub(super) fn failed(&mut self, backend: Destination, now: Timestamp, spread: f64) {
        let Some(health) = self.0.get_mut(backend as usize) else {
            return;
        };
        let backoff = match *health {
            Health::Up => BACKOFF_MIN,
            Health::Probing { backoff } => (backoff * 2).min(BACKOFF_MAX),
            // One of those that were on their way when the first failed.
            Health::Down { .. } => return,
        };
        let next = now + BACKOFF_MIN.max(backoff.mul_f64(spread));
        *health = Health::Down { next, backoff };
    }

    /// A call was sent; whether the backend had been down until then.
    pub(super) fn succeeded(&mut self, backend: Destination) -> bool {
        let Some(health) = self.0.get_mut(backend as usize) else {
            return false;
        };
        !matches!(std::mem::take(health), Health::Up)
    }

    pub(super) fn is_up(&self, backend: Destination) -> bool {
        matches!(self.0.get(backend as usize), None | Some(Health::Up))
    }

    /// Backends whose next probe is due; each is named once.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<Destination> {
        let mut due = Vec::new();
        for (health, backend) in self.0.iter_mut().zip(Destination::BACKENDS) {
            if let Health::Down { next, backoff } = *health
                && next <= now
            {
                *health = Health::Probing { backoff };
                due.push(backend);
            }
        }
        due
    }

    /// When the next probe is due.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        self.0
            .iter()
            .filter_map(|health| match *health {
                Health::Down { next, .. } => Some(next),
                Health::Up | Health::Probing { .. } => None,
            })
            .min()
    }
}

impl State {
    /// Lets nobody through to this backend.
    pub(super) fn shut(&mut self, backend: Destination, now: Timestamp) {
        if !self.backends.is_up(backend) {
            self.supply(backend, now, |_| Supply::capacity(0));
        }
    }

    /// Lets one more call through to this backend than are on their way to it.
    pub(super) fn open_for_one(&mut self, backend: Destination, now: Timestamp) {
        self.supply(backend, now, |in_use| Supply::capacity(in_use + 1));
    }

    /// Lets everybody through again.
    pub(super) fn open(&mut self, backend: Destination, now: Timestamp) {
        self.supply(backend, now, |_| Supply::configured());
    }

    fn supply(&mut self, backend: Destination, now: Timestamp, supply: impl Fn(u32) -> Supply) {
        let name = policy::backend_limit(backend);
        // With calls waiting in both lanes one of each may probe; either answer is as good.
        for lane in [Lane::Limited, Lane::Unlimited] {
            let scheduler = &mut self.lanes[lane as usize];
            let in_use = scheduler.in_use(&name).unwrap_or(0);
            scheduler.supply(now, &name, Supplier::Health, supply(in_use));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_backend_that_stays_down_is_asked_less_and_less_often_but_every_two_seconds() {
        let mut backends = Backends::default();
        let backend = Destination::Socket;
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            backends.failed(backend, at(now), 1.0);
            let next = backends.wake().expect("a probe is planned");
            waits.push(next.since(at(now)).as_millis());
            now = u64::try_from(next.since(Timestamp::ZERO).as_millis()).expect("small");
            assert_eq!(backends.due(at(now)), [backend]);
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert!(backends.succeeded(backend));
        assert!(backends.is_up(backend));
        assert!(!backends.succeeded(backend), "it was up already");
    }

    #[test]
    fn calls_that_fail_together_count_as_one_failure() {
        let mut backends = Backends::default();
        for _ in 0..10 {
            backends.failed(Destination::Http, at(5), 1.0);
        }
        assert_eq!(backends.wake(), Some(at(105)));
        assert!(backends.is_up(Destination::Socket));
    }
}
