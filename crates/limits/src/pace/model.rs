//! A filler as in the source: a thread that fires at moments of its own, and callers that take from
//! its pools. It is the oracle of the laws. It was written from the description of the step and
//! shares no code with what it checks.

use super::Pace;

pub(super) struct Filler {
    pub(super) active: i128,
    pub(super) waiting: i128,
    active_max: i128,
    over_max: i128,
}

impl Filler {
    pub(super) fn new(active_max: i128, over_max: i128, active: i128) -> Self {
        Self {
            active,
            waiting: 0,
            active_max,
            over_max,
        }
    }

    pub(super) fn of(pace: &Pace) -> Self {
        let sizes = pace.sizes();
        Self::new(sizes.active, sizes.over, pace.price())
    }

    /// Runs one round of the thread. Returns the sum, as the source does.
    pub(super) fn refill(&mut self, passed: i128) -> i128 {
        let needed = if self.active_max > self.active {
            self.active_max - self.active
        } else {
            0
        };
        let allocated = if passed < needed { passed } else { needed };
        self.active += allocated;
        self.waiting += passed - allocated;

        let mut refill_factor = passed as f64 / self.active_max as f64;
        if refill_factor > 1.0 {
            refill_factor = 1.0;
        }
        let burst_pool = self.over_max - self.active_max;
        let mut recover = (refill_factor * burst_pool as f64) as i128;
        if recover > self.over_max - self.active {
            recover = self.over_max - self.active;
        }
        if recover > self.waiting {
            recover = self.waiting;
        }
        if recover < 0 {
            recover = 0;
        }
        self.waiting -= recover;
        self.active += recover;
        self.active + self.waiting
    }

    pub(super) fn take(&mut self, wanted: i128) -> bool {
        let enough = self.active >= wanted;
        if enough {
            self.active -= wanted;
        }
        enough
    }

    pub(super) fn take_up_to(&mut self, wanted: i128) -> i128 {
        let taken = if wanted < self.active {
            wanted
        } else {
            self.active
        };
        self.active -= taken;
        taken
    }
}
