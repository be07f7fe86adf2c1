//! Places of gauges that users hold across requests: by token, and for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::coordinate::lease_client::Guard;

/// Places that all users hold together.
const GUARDS_MAX: usize = 100_000;

/// Every place that somebody holds.
#[derive(Debug, Default)]
pub(super) struct Guards {
    held: Mutex<Held>,
    /// The next to end may be another one.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    by_token: BTreeMap<String, Place>,
    by_end: BTreeSet<(Instant, String)>,
}

#[derive(Debug)]
struct Place {
    id: String,
    ends: Instant,
    _guard: Guard,
}

impl Guards {
    /// Keeps a place for this long. None if there are too many; it is given back then.
    pub(super) fn keep(&self, id: &str, guard: Guard, ttl: Duration) -> Option<String> {
        // 128 bits of a generator that cannot be guessed.
        let token = format!("{:032x}", rand::random::<u128>());
        let ends = Instant::now() + ttl;
        let mut held = self.held();
        if held.by_token.len() >= GUARDS_MAX {
            return None;
        }
        held.by_end.insert((ends, token.clone()));
        held.by_token.insert(
            token.clone(),
            Place {
                id: id.to_owned(),
                ends,
                _guard: guard,
            },
        );
        drop(held);
        self.changed.notify_one();
        Some(token)
    }

    /// Keeps it for this long from now. False if nobody holds it.
    pub(super) fn renew(&self, id: &str, token: &str, ttl: Duration) -> bool {
        let mut held = self.held();
        let held = &mut *held;
        let Some(place) = held.by_token.get_mut(token).filter(|place| place.id == id) else {
            return false;
        };
        held.by_end.remove(&(place.ends, token.to_owned()));
        place.ends = Instant::now() + ttl;
        held.by_end.insert((place.ends, token.to_owned()));
        self.changed.notify_one();
        true
    }

    /// Gives it back. False if nobody holds it.
    pub(super) fn give_back(&self, id: &str, token: &str) -> bool {
        let mut held = self.held();
        if held.by_token.get(token).is_none_or(|place| place.id != id) {
            return false;
        }
        let place = held.by_token.remove(token).expect("it is there");
        held.by_end.remove(&(place.ends, token.to_owned()));
        true
    }

    /// Gives back what its time is over for, for as long as it is polled.
    pub(super) async fn expire(&self) {
        loop {
            let next = {
                let mut held = self.held();
                let now = Instant::now();
                while let Some((ends, token)) = held.by_end.pop_first() {
                    if ends > now {
                        held.by_end.insert((ends, token));
                        break;
                    }
                    held.by_token.remove(&token);
                }
                held.by_end.first().map(|(ends, _)| *ends)
            };
            match next {
                Some(ends) => tokio::select! {
                    () = sleep_until(ends) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
