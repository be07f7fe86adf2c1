//! How many calls came lately, and so how many are expected to come.
//!
//! Callers that have less before a call than their turn allows go on to fill it, as long as they go on to come. For
//! how long is not known. Bursts end, so half as many calls are expected as came lately, over the time in which they
//! came: over random loads that gave the least error.

use core::time::Duration;

use crate::time::Timestamp;

/// The span of arrivals that predict the next ones; arrivals older than one to two spans are ignored.
const SPAN: Duration = Duration::from_millis(2_500);

/// Calls that began to wait lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentArrivals {
    /// When the present span began, and the first call of the span before.
    since: Timestamp,
    first: Timestamp,
    this: u64,
    last: u64,
}

impl RecentArrivals {
    pub(super) fn add(&mut self, now: Timestamp) {
        let age = now.since(self.since);
        if age >= SPAN || self.this == 0 {
            let continues = age < 2 * SPAN && self.this > 0;
            (self.first, self.last) = if continues {
                (self.since, self.this)
            } else {
                (now, 0)
            };
            (self.since, self.this) = (now, 0);
        }
        self.this += 1;
    }

    /// Calls that are expected to come until this moment.
    pub(super) fn expected(&self, now: Timestamp, until: Timestamp) -> f64 {
        if now.since(self.since) >= SPAN {
            return 0.0;
        }
        let came = (self.this + self.last) as f64 / 2.0;
        let (until, age) = (until.since(now), now.since(self.first));
        if until >= age {
            return came;
        }
        came * until.as_nanos() as f64 / age.as_nanos() as f64
    }
}
