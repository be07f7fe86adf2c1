//! The callers of one class at one limit.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::service::FlowEntry;
use crate::call::Caller;
use crate::queue::budget::FlowId;
use crate::sorted::Sorted;

/// Callers of one class that have a group of their own at a limit.
pub(super) const OWN_GROUPS: usize = 256;

/// Groups that the callers above that share.
pub(super) const SHARED_GROUPS: u8 = 128;

/// How many of the shared groups a caller may be put in.
pub(super) const HAND: usize = 6;

/// The place of a flow among those of its class: by the start of its group, then by the arrival of
/// its first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowTurn {
    pub(super) start: u64,
    pub(super) arrival: u64,
}

/// The groups within a class, which take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallerGroup {
    /// A single caller.
    Own(Caller),
    /// Callers that were too many.
    Shared(u8),
    /// All of them.
    All,
}

/// The callers of one class at one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Callers {
    /// All share one group: flows go by arrival.
    pub(super) by_arrival: bool,
    /// Deals the hands.
    pub(super) seed: u64,
    pub(super) virtual_time: u64,
    /// Sorted by group. They are few, so a vector serves them best.
    pub(super) known: Vec<(CallerGroup, GroupTags)>,
    /// Groups with a flow, and the first flow of each.
    pub(super) active: Sorted<(FlowTurn, CallerGroup, FlowId)>,
    /// Groups without a flow, by start; every one of them ahead of `virtual_time`.
    pub(super) idle: Sorted<(u64, CallerGroup)>,
    /// Callers with flows in shared groups: in which, and how many.
    pub(super) sharded: BTreeMap<Caller, (u8, u32)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct GroupTags {
    pub(super) start: u64,
    /// Where it started last: no refund takes it further back.
    pub(super) base: u64,
    /// By arrival of their first calls.
    pub(super) flows: Sorted<(u64, FlowId)>,
}

impl GroupTags {
    #[inline]
    fn first(&self, group: CallerGroup) -> Option<(FlowTurn, CallerGroup, FlowId)> {
        let (arrival, flow) = self.flows.first()?;
        let start = self.start;
        Some((FlowTurn { start, arrival }, group, flow))
    }

    fn remove(&mut self, entry: FlowEntry) {
        let was_there = self.flows.remove(&(entry.arrival, entry.flow));
        debug_assert!(was_there, "a flow is removed as it was put in");
    }

    /// A flow has another first call.
    fn replace(&mut self, entry: FlowEntry, arrival: u64) {
        self.remove(entry);
        self.flows.insert((arrival, entry.flow));
    }
}

impl Callers {
    pub(super) fn new(by_arrival: bool, seed: u64) -> Self {
        Self {
            by_arrival,
            seed,
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn place(&self, group: CallerGroup) -> Result<usize, usize> {
        self.known.binary_search_by(|(other, _)| other.cmp(&group))
    }

    #[inline]
    pub(super) fn first(&self) -> Option<(FlowTurn, FlowId)> {
        let (turn, _, flow) = self.active.first()?;
        Some((turn, flow))
    }

    /// The group of a caller: that of its flows, or the one that its first flow would join.
    #[inline]
    fn group(&self, caller: Caller) -> CallerGroup {
        if self.by_arrival {
            return CallerGroup::All;
        }
        if !self.sharded.is_empty()
            && let Some(&(group, _)) = self.sharded.get(&caller)
        {
            return CallerGroup::Shared(group);
        }
        let own = CallerGroup::Own(caller);
        if self.known.len() < OWN_GROUPS || self.place(own).is_ok() {
            return own;
        }
        let group = hand(self.seed, caller)
            .into_iter()
            .min_by_key(|&group| self.start(CallerGroup::Shared(group)))
            .expect("a hand is not empty");
        CallerGroup::Shared(group)
    }

    /// Where the next call of a group starts.
    pub(super) fn start(&self, group: CallerGroup) -> u64 {
        match self.place(group) {
            Ok(place) if !self.known[place].1.flows.is_empty() => self.known[place].1.start,
            Ok(place) => self.known[place].1.start.max(self.virtual_time),
            Err(_) => self.virtual_time,
        }
    }

    /// The turn of a flow that is not in this order, if it joined now.
    pub(super) fn turn(&self, entry: FlowEntry) -> FlowTurn {
        FlowTurn {
            start: self.start(self.group(entry.caller)),
            arrival: entry.arrival,
        }
    }

    /// Takes a group out of `active` or `idle`, to put it in again otherwise. One that is not known
    /// starts at `virtual_time`.
    fn lift(&mut self, group: CallerGroup) -> usize {
        let virtual_time = self.virtual_time;
        match self.place(group) {
            Ok(place) => {
                let state = &mut self.known[place].1;
                if let Some(first) = state.first(group) {
                    self.active.remove(&first);
                } else {
                    self.idle.remove(&(state.start, group));
                    debug_assert!(state.start > virtual_time, "or it would be forgotten");
                }
                place
            }
            Err(place) => {
                let state = GroupTags {
                    start: virtual_time,
                    base: virtual_time,
                    flows: Sorted::default(),
                };
                self.known.insert(place, (group, state));
                place
            }
        }
    }

    /// Puts a group back, or forgets it if there is nothing to remember.
    pub(super) fn lower(&mut self, place: usize) {
        let (group, state) = &self.known[place];
        if let Some(first) = state.first(*group) {
            self.active.insert(first);
        } else if state.start > self.virtual_time {
            self.idle.insert((state.start, *group));
        } else {
            self.known.remove(place);
        }
    }

    pub(super) fn insert(&mut self, entry: FlowEntry) {
        let group = self.group(entry.caller);
        if let CallerGroup::Shared(shared) = group {
            self.sharded.entry(entry.caller).or_insert((shared, 0)).1 += 1;
        }
        let place = self.lift(group);
        let flows = &mut self.known[place].1.flows;
        flows.insert((entry.arrival, entry.flow));
        self.lower(place);
    }

    pub(super) fn remove(&mut self, entry: FlowEntry) {
        let group = self.group(entry.caller);
        if let CallerGroup::Shared(_) = group
            && let Some((_, flows)) = self.sharded.get_mut(&entry.caller)
        {
            *flows -= 1;
            if *flows == 0 {
                self.sharded.remove(&entry.caller);
            }
        }
        let place = self.lift(group);
        self.known[place].1.remove(entry);
        self.lower(place);
    }

    pub(super) fn replace(&mut self, entry: FlowEntry, arrival: u64) {
        let place = self.lift(self.group(entry.caller));
        self.known[place].1.replace(entry, arrival);
        self.lower(place);
    }

    /// A call of a caller is served. `next` is its flow and the arrival of the next call there.
    pub(super) fn serve(&mut self, caller: Caller, service: u64, next: Option<(FlowEntry, u64)>) {
        let place = self.lift(self.group(caller));
        if let Some((entry, arrival)) = next {
            self.known[place].1.replace(entry, arrival);
        }
        let start = &mut self.known[place].1.start;
        // One that claims may go before others with a lesser start: those keep it.
        let others = self.active.first().map(|(turn, ..)| turn.start);
        let passed = others.map_or(*start, |others| others.min(*start));
        self.virtual_time = self.virtual_time.max(passed);
        *start = start.saturating_add(service);
        self.lower(place);
        while let Some((start, group)) = self.idle.first()
            && start <= self.virtual_time
        {
            self.idle.remove(&(start, group));
            if let Ok(place) = self.place(group) {
                self.known.remove(place);
            }
        }
    }

    /// A call of a caller that was served used less than was counted.
    pub(super) fn serve_less(&mut self, caller: Caller, service: u64) {
        let group = self.group(caller);
        if self.place(group).is_err() {
            return;
        }
        let place = self.lift(group);
        let state = &mut self.known[place].1;
        state.start = state.start.saturating_sub(service).max(state.base);
        self.lower(place);
    }

    /// A call of a caller that was served used more than was counted. It takes that from the caller's next turns.
    pub(super) fn serve_more(&mut self, caller: Caller, service: u64) {
        let place = self.lift(self.group(caller));
        let start = &mut self.known[place].1.start;
        *start = start.saturating_add(service);
        self.lower(place);
    }

    /// Removes all flows. What each caller was served is kept.
    pub(super) fn clear(&mut self) {
        self.active = Sorted::default();
        self.sharded.clear();
        let virtual_time = self.virtual_time;
        self.known.retain(|(_, state)| state.start > virtual_time);
        self.idle = Sorted::default();
        for (group, state) in &mut self.known {
            state.flows = Sorted::default();
            self.idle.insert((state.start, *group));
        }
    }
}

/// The shared groups that a caller may be put in, all different: dealt from a pack of them.
pub(super) fn hand(seed: u64, caller: Caller) -> [u8; HAND] {
    let mut mixed = mix(seed ^ mix(caller.0));
    let mut pack: [u8; SHARED_GROUPS as usize] = core::array::from_fn(|card| card as u8);
    core::array::from_fn(|dealt| {
        let left = u64::from(SHARED_GROUPS) - dealt as u64;
        let card = dealt + (mixed % left) as usize;
        mixed /= left;
        pack.swap(dealt, card);
        pack[dealt]
    })
}

/// SplitMix64's finalizer.
const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
