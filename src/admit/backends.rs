//! The backends, and whether they accept connections.
//!
//! A backend that accepts none holds the queue and does not flush it. Its calls wait, and one of
//! them at a time is sent to find out whether it is back, 100 ms to 2 s apart. The probe is a
//! real call, in its turn, because a bare connect would cost the sdkserver a worker.

use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::BackOff;

use crate::call::{Destination, Generation};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The backends that are up, and the next probe of each that is down.
#[derive(Debug, Default)]
pub struct BackendHealth([KnownHealth; Destination::BACKENDS.len()]);

/// The health of a backend or of one of its servers, as calls have shown it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownHealth {
    /// The number of the backend. Results of an earlier one are ignored.
    generation: Generation,
    health: Health,
}

#[derive(Clone, Copy, Debug, Default)]
enum Health {
    #[default]
    Up,
    /// No call is admitted before `next`.
    Down { next: Timestamp, back_off: BackOff },
    /// A call is under way as a probe.
    Probing { back_off: BackOff },
}

impl KnownHealth {
    /// Forgets the health of an earlier backend, if this one is new. A call may be the first to use
    /// it. False if this one was replaced.
    fn is_about(&mut self, generation: Generation) -> bool {
        if generation > self.generation {
            *self = Self {
                generation,
                health: Health::Up,
            };
        }
        generation == self.generation
    }

    /// A destination leads to it from now on. Returns whether the gate must open for it.
    pub(super) fn moved(&mut self, generation: Generation) -> bool {
        // If a call was the first to use it, the gate may still have the state of the old one.
        self.is_about(generation) && self.is_up()
    }

    /// A connect failed. `spread` in 0.5..1 keeps several proxies from probing in step.
    pub(super) fn failed(&mut self, generation: Generation, now: Timestamp, spread: f64) {
        if !self.is_about(generation) {
            return;
        }
        let mut back_off = match self.health {
            Health::Up => BackOff::doubling(PAUSE_MIN, PAUSE_MAX),
            Health::Probing { back_off } => back_off,
            // One of the calls that were under way when the first failed.
            Health::Down { .. } => return,
        };
        let next = now + PAUSE_MIN.max(back_off.pause().mul_f64(spread));
        self.health = Health::Down { next, back_off };
    }

    /// A call was sent. Returns whether the gate must open for it.
    pub(super) fn succeeded(&mut self, generation: Generation) -> bool {
        let is_new = generation > self.generation;
        if !self.is_about(generation) {
            return false;
        }
        let was_down = !matches!(std::mem::take(&mut self.health), Health::Up);
        is_new || was_down
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.health, Health::Up)
    }

    /// Begins a probe, if the next one is due.
    pub(super) fn probe(&mut self, now: Timestamp) -> bool {
        let Health::Down { next, back_off } = self.health else {
            return false;
        };
        if next > now {
            return false;
        }
        self.health = Health::Probing { back_off };
        true
    }

    /// When the next probe is due.
    pub(super) const fn wake(&self) -> Option<Timestamp> {
        match self.health {
            Health::Down { next, .. } => Some(next),
            Health::Up | Health::Probing { .. } => None,
        }
    }
}

impl BackendHealth {
    /// A destination leads to this backend from now on. Returns whether the gate must open for it.
    pub(super) fn moved(&mut self, backend: Destination, generation: Generation) -> bool {
        let known = self.0.get_mut(backend as usize);
        known.is_some_and(|known| known.moved(generation))
    }

    /// A connect failed. `spread` in 0.5..1 keeps several proxies from probing in step.
    pub fn failed(
        &mut self,
        backend: Destination,
        generation: Generation,
        now: Timestamp,
        spread: f64,
    ) {
        if let Some(known) = self.0.get_mut(backend as usize) {
            known.failed(generation, now, spread);
        }
    }

    /// A call was sent. Returns whether the gate must open for its backend.
    pub fn succeeded(&mut self, backend: Destination, generation: Generation) -> bool {
        let known = self.0.get_mut(backend as usize);
        known.is_some_and(|known| known.succeeded(generation))
    }

    pub(super) fn is_up(&self, backend: Destination) -> bool {
        let known = self.0.get(backend as usize);
        known.is_none_or(KnownHealth::is_up)
    }

    /// Backends whose next probe is due; each is named once.
    pub fn due(&mut self, now: Timestamp) -> Vec<Destination> {
        let mut due = Vec::new();
        for (known, backend) in self.0.iter_mut().zip(Destination::BACKENDS) {
            if known.probe(now) {
                due.push(backend);
            }
        }
        due
    }

    /// When the next probe is due.
    pub fn wake(&self) -> Option<Timestamp> {
        self.0.iter().filter_map(KnownHealth::wake).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    const FIRST: Generation = Generation::FIRST;

    #[test]
    fn a_backend_that_stays_down_is_asked_less_and_less_often_but_every_two_seconds() {
        let mut backends = BackendHealth::default();
        let backend = Destination::Socket;
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            backends.failed(backend, FIRST, at(now), 1.0);
            let next = backends.wake().expect("a probe is planned");
            waits.push(next.since(at(now)).as_millis());
            now = u64::try_from(next.since(Timestamp::ZERO).as_millis()).expect("small");
            assert_eq!(backends.due(at(now)), [backend]);
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert!(backends.succeeded(backend, FIRST));
        assert!(backends.is_up(backend));
        assert!(!backends.succeeded(backend, FIRST), "it was up already");
    }

    #[test]
    fn calls_that_fail_together_count_as_one_failure() {
        let mut backends = BackendHealth::default();
        for _ in 0..10 {
            backends.failed(Destination::Http, FIRST, at(5), 1.0);
        }
        assert_eq!(backends.wake(), Some(at(105)));
        assert!(backends.is_up(Destination::Socket));
    }

    #[test]
    fn results_of_a_replaced_backend_do_not_count_for_the_new_one() {
        let mut backends = BackendHealth::default();
        let backend = Destination::Http;
        let second = FIRST.next();
        backends.failed(backend, FIRST, at(0), 1.0);
        assert!(backends.moved(backend, second), "the gate opens at once");
        assert!(backends.is_up(backend));
        backends.failed(backend, FIRST, at(1), 1.0);
        assert!(backends.is_up(backend));
        backends.failed(backend, second, at(2), 1.0);
        assert!(!backends.succeeded(backend, FIRST));
        assert!(!backends.is_up(backend));
        assert!(backends.succeeded(backend, second));
        // A call may go to the new one before the gate is informed of the reload.
        let third = second.next();
        backends.failed(backend, second, at(3), 1.0);
        assert!(backends.succeeded(backend, third));
        backends.failed(backend, third, at(4), 1.0);
        assert!(!backends.moved(backend, third), "it is known to be down");
    }
}
