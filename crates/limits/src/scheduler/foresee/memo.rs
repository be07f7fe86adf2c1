//! Lookups that one prediction needs more than once.

use core::cell::Cell;

use super::super::forecast::CallerLoad;
use crate::policy::LimitId;
use crate::time::Timestamp;

const KEPT: usize = 4;

/// The results of this prediction so far, by place.
#[derive(Default)]
pub(super) struct PredictionMemo {
    loads: [Cell<Option<(LimitId, CallerLoad)>>; KEPT],
    /// When the sets of calls that others hold have left, in their order.
    drains: [Cell<Option<Option<Timestamp>>>; KEPT],
}

impl PredictionMemo {
    pub(super) fn load(&self, limit: LimitId, find: impl FnOnce() -> CallerLoad) -> CallerLoad {
        let kept = &self.loads[limit as usize % KEPT];
        match kept.get() {
            Some((of, load)) if of == limit => load,
            _ => {
                let load = find();
                kept.set(Some((limit, load)));
                load
            }
        }
    }

    pub(super) fn drains(
        &self,
        place: usize,
        find: impl FnOnce() -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        let Some(kept) = self.drains.get(place) else {
            return find();
        };
        kept.get().unwrap_or_else(|| {
            let found = find();
            kept.set(Some(found));
            found
        })
    }
}
