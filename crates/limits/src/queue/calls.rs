//! All calls that wait.

use alloc::vec::Vec;

use super::budget::FlowId;
use super::waiting::{QueuedCall, WaitPlace};
use crate::slab::{Slab, SlabKey};
use crate::sorted::Sorted;
use crate::time::Timestamp;

/// All calls that wait.
#[derive(Clone, Debug)]
pub(crate) struct CallQueue<T> {
    /// Their places and arrivals are changed by the methods here only.
    pub(crate) calls: Slab<QueuedCall<T>>,
    flows: Vec<Sorted<(u64, SlabKey)>>,
    /// By the moment of their return; of those with the same one, who joined first comes first.
    asides: Sorted<(Timestamp, u64, SlabKey)>,
    deadlines: Sorted<(Timestamp, SlabKey)>,
}

impl<T> CallQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            calls: Slab::default(),
            flows: Vec::new(),
            asides: Sorted::default(),
            deadlines: Sorted::default(),
        }
    }

    /// The calls that are so, in the order of their turns.
    pub(crate) fn in_order(&self, is: impl Fn(&QueuedCall<T>) -> bool) -> Vec<SlabKey> {
        let calls = self.calls.iter().filter(|(_, waiting)| is(waiting));
        let mut calls: Vec<_> = calls.map(|(key, waiting)| (waiting.arrival, key)).collect();
        calls.sort_unstable();
        calls.into_iter().map(|(_, key)| key).collect()
    }

    /// The calls that are charged to this bucket, in the order of their turns.
    pub(crate) fn charged_to(&self, bucket: SlabKey) -> Vec<SlabKey> {
        self.in_order(|waiting| waiting.meets.bucket == Some(bucket))
    }

    /// The head of a flow.
    pub(crate) fn head(&self, flow: FlowId) -> Option<(u64, SlabKey)> {
        self.flows[flow as usize].first()
    }

    pub(crate) fn first_deadline(&self) -> Option<(Timestamp, SlabKey)> {
        self.deadlines.first()
    }

    pub(crate) fn first_aside(&self) -> Option<(Timestamp, SlabKey)> {
        let (until, _, key) = self.asides.first()?;
        Some((until, key))
    }

    /// Takes a call in.
    #[inline]
    pub(crate) fn insert(&mut self, waiting: QueuedCall<T>) -> SlabKey {
        let (place, arrival, deadline) = (waiting.place, waiting.arrival, waiting.call.deadline);
        let key = self.calls.insert(waiting);
        self.link(key, place, arrival);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key));
        }
        key
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<QueuedCall<T>> {
        let waiting = self.calls.get(key)?;
        let (place, arrival, deadline) = (waiting.place, waiting.arrival, waiting.call.deadline);
        self.unlink(key, place, arrival);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        // Taken out last, so that it is moved only once.
        self.calls.remove(key)
    }

    /// Moves a call's deadline.
    pub(crate) fn set_deadline(&mut self, key: SlabKey, deadline: Option<Timestamp>) {
        let old = core::mem::replace(&mut self.calls[key].call.deadline, deadline);
        if let Some(old) = old {
            self.deadlines.remove(&(old, key));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, key));
        }
    }

    /// Puts a call elsewhere, with another arrival.
    pub(crate) fn relocate(&mut self, key: SlabKey, place: WaitPlace, arrival: u64) {
        let waiting = &mut self.calls[key];
        let (old_place, old_arrival) = (waiting.place, waiting.arrival);
        (waiting.place, waiting.arrival) = (place, arrival);
        self.unlink(key, old_place, old_arrival);
        self.link(key, place, arrival);
    }

    /// Puts all calls into new flows, in the order of their turns: `sort` sets the place of each call.
    pub(crate) fn rebuild(&mut self, mut sort: impl FnMut(&mut QueuedCall<T>)) {
        let calls = self.in_order(|_| true);
        self.flows.clear();
        self.asides = Sorted::default();
        for key in calls {
            let waiting = &mut self.calls[key];
            sort(waiting);
            let (place, arrival) = (waiting.place, waiting.arrival);
            if let WaitPlace::Flow(flow) = place {
                self.make_flows(flow as usize + 1);
            }
            self.link(key, place, arrival);
        }
    }

    /// There are at least this many flows.
    pub(crate) fn make_flows(&mut self, flows: usize) {
        if self.flows.len() < flows {
            self.flows.resize_with(flows, Sorted::default);
        }
    }

    fn link(&mut self, key: SlabKey, place: WaitPlace, arrival: u64) {
        let new = match place {
            WaitPlace::Flow(flow) => self.flows[flow as usize].insert((arrival, key)),
            WaitPlace::Aside(until) => self.asides.insert((until, arrival, key)),
            WaitPlace::Passed => true,
        };
        debug_assert!(new, "a call waits in one place");
    }

    fn unlink(&mut self, key: SlabKey, place: WaitPlace, arrival: u64) {
        let found = match place {
            WaitPlace::Flow(flow) => self.flows[flow as usize].remove(&(arrival, key)),
            WaitPlace::Aside(until) => self.asides.remove(&(until, arrival, key)),
            WaitPlace::Passed => true,
        };
        debug_assert!(found, "a waiting call is where its place says");
    }
}
