//! Lookups that one prediction needs more than once.

use core::cell::Cell;

use super::super::forecast::Flow;
use crate::policy::LimitId;
use crate::time::Timestamp;

const KEPT: usize = 4;

/// The results of this prediction so far, by place.
#[derive(Default)]
pub(super) struct Memo {
    flows: [Cell<Option<(LimitId, Flow)>>; KEPT],
    /// When the sets of calls that others hold have left, in their order.
    drains: [Cell<Option<Option<Timestamp>>>; KEPT],
}

impl Memo {
    pub(super) fn flow(&self, limit: LimitId, find: impl FnOnce() -> Flow) -> Flow {
        let kept = &self.flows[limit as usize % KEPT];
        match kept.get() {
            Some((of, flow)) if of == limit => flow,
            _ => {
                let flow = find();
                kept.set(Some((limit, flow)));
                flow
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
