//! The keys that Redis removes to make room, among which may be records.

use std::sync::Mutex;

use tidegate_runtime::{Causes, lock};
use tracing::{info, warn};

use super::super::StoreError;
use super::server::MemoryPolicy;

/// Why it is not known whether the server evicts records, and what to do.
pub(super) const UNKNOWN_POLICY: &str = "the user may not ask for maxmemory-policy: give it +info, and make sure that the \
                              policy is noeviction";

/// The evictions of a node's server, as far as the node has seen them.
#[derive(Default)]
pub(super) struct Evictions {
    known: Mutex<Option<EvictionCount>>,
    /// The causes that were logged, with their number.
    logged: Causes,
}

#[derive(Clone, Copy)]
struct EvictionCount {
    /// The number of the connection that was asked.
    number: u64,
    /// The server's count by then.
    counted: u64,
    /// The number of evictions since this node asked first.
    since: u64,
}

impl EvictionCount {
    /// The state after another count over a connection of this number. Another server, or one that was restarted,
    /// counts anew.
    fn after(before: Option<Self>, number: u64, counted: u64) -> Self {
        let since = match before {
            None => 0,
            Some(it) if it.number != number || it.counted > counted => it.since,
            Some(it) => it.since + (counted - it.counted),
        };
        Self {
            number,
            counted,
            since,
        }
    }
}

impl Evictions {
    /// Evicted keys since this node asked first; `None` while that is unknown.
    pub(super) fn count(&self) -> Option<u64> {
        lock(&self.known).map(|known| known.since)
    }

    /// Takes what the server said over a connection of this number. Names a dangerous policy once, and each
    /// doubling of the news.
    pub(super) fn learn(&self, number: u64, said: Result<MemoryPolicy, StoreError>) {
        let memory = match said {
            Ok(memory) => memory,
            Err(StoreError::Denied(_)) => {
                if self.logged.count(UNKNOWN_POLICY) == Some(1) {
                    info!(
                        cause = UNKNOWN_POLICY,
                        "quota: it is not known whether Redis evicts records"
                    );
                }
                return;
            }
            Err(_) => return,
        };
        if let Some(danger) = memory.danger()
            && self.logged.count(&danger) == Some(1)
        {
            warn!(cause = danger, "quota: Redis may evict records");
        }
        let mut known = lock(&self.known);
        let before = known.map_or(0, |it| it.since);
        let keys = EvictionCount::after(*known, number, memory.evicted);
        *known = Some(keys);
        drop(known);
        if keys.since > before && self.logged.count("evicted").is_some() {
            warn!(
                keys = keys.since,
                "quota: Redis evicted keys; the window of a record among them is granted again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_counts_anew_takes_nothing_back() {
        let mut known = None;
        for (number, counted, since) in [
            (1, 100, 0),
            (1, 130, 30),
            (2, 5, 30),
            (2, 9, 34),
            (2, 3, 34),
        ] {
            let next = EvictionCount::after(known, number, counted);
            assert_eq!(next.since, since, "{number}, {counted}");
            known = Some(next);
        }
    }
}
