//! The health of a backend decides how many calls the gate admits to it: all, one as a probe, or none.

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::{Supplier, Supply};

use super::decision::Lane;
use super::journal::SchedulerEvent;
use super::lock::GateState;
use super::policy;
use crate::call::Destination;

impl GateState {
    /// Admits no call to this backend.
    pub(super) fn shut(&mut self, backend: Destination, now: Timestamp) {
        if !self.backends.is_up(backend) {
            self.goes_down(backend, now);
            let limit = policy::backend_limit(backend);
            let shut = self.supply(&limit, now, |_| Supply::capacity(0));
            self.observer.observe(now, shut);
        }
    }

    /// Admits one more call to this backend than are under way to it. The shadow sends no probes.
    pub(super) fn open_for_one(&mut self, backend: Destination, now: Timestamp) {
        let limit = policy::backend_limit(backend);
        self.supply(&limit, now, |in_use| Supply::capacity(in_use + 1));
    }

    /// Admits all calls again.
    pub(super) fn open(&mut self, backend: Destination, now: Timestamp) {
        let limit = policy::backend_limit(backend);
        let open = self.supply(&limit, now, |_| Supply::Configured);
        self.comes_back(backend, now);
        self.observer.observe(now, open);
    }

    /// Sets what the health of a backend lets its limit give out. Returns the event.
    pub(super) fn supply<'a>(
        &mut self,
        limit: &'a str,
        now: Timestamp,
        supply: impl Fn(u32) -> Supply,
    ) -> SchedulerEvent<'a> {
        let by = Supplier::Health;
        // If calls wait in both lanes, one of each may probe. Either result counts.
        let [limited, _] = [Lane::Limited, Lane::Unlimited].map(|lane| {
            let scheduler = &mut self.lanes[lane as usize];
            let supply = supply(scheduler.in_use(limit).unwrap_or(0));
            scheduler.supply(now, limit, by, supply);
            supply
        });
        let event = SchedulerEvent::Supply {
            limit,
            by,
            supply: limited,
        };
        self.note(now, event);
        event
    }
}
