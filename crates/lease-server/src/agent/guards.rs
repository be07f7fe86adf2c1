//! Places of gauges that clients hold across requests: by token, and for a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use tidegate_leases::client::Guard;
use tidegate_runtime::lock;

/// The most places of all clients together.
const GUARDS_MAX: usize = 100_000;

/// Every place that is held.
#[derive(Debug, Default)]
pub(super) struct Guards {
    held: Mutex<GuardTable>,
    /// Another place may be the next to expire now.
    changed: Notify,
}

#[derive(Debug, Default)]
struct GuardTable {
    by_token: BTreeMap<String, GuardEntry>,
    by_end: BTreeSet<(Instant, String)>,
}

#[derive(Debug)]
struct GuardEntry {
    id: String,
    ends: Instant,
    _guard: Guard,
}

impl Guards {
    /// Keeps a place for this long. `None` if there are too many; then it is released.
    pub(super) fn keep(&self, id: &str, guard: Guard, ttl: Duration) -> Option<String> {
        // 128 bits of an unpredictable generator.
        let token = format!("{:032x}", rand::random::<u128>());
        let ends = Instant::now() + ttl;
        let mut held = lock(&self.held);
        if held.by_token.len() >= GUARDS_MAX {
            return None;
        }
        held.by_end.insert((ends, token.clone()));
        let place = GuardEntry {
            id: id.to_owned(),
            ends,
            _guard: guard,
        };
        held.by_token.insert(token.clone(), place);
        drop(held);
        self.changed.notify_one();
        Some(token)
    }

    /// Keeps it for this long from now. False if the place is not held.
    pub(super) fn renew(&self, id: &str, token: &str, ttl: Duration) -> bool {
        let mut held = lock(&self.held);
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

    /// Releases it. False if the place is not held.
    pub(super) fn give_back(&self, id: &str, token: &str) -> bool {
        let mut held = lock(&self.held);
        if held.by_token.get(token).is_none_or(|place| place.id != id) {
            return false;
        }
        let place = held.by_token.remove(token).expect("it is there");
        held.by_end.remove(&(place.ends, token.to_owned()));
        true
    }

    /// Releases expired places, as long as it is polled.
    pub(super) async fn expire(&self) {
        loop {
            let next = {
                let mut held = lock(&self.held);
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
}
