//! The callers of one class at one limit.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::service::Entry;
use crate::call::Caller;
use crate::queue::bar::LineId;
use crate::sorted::Sorted;

/// Callers of one class that have a flow of their own at a limit.
pub(super) const OWN_FLOWS: usize = 256;

/// Flows that the callers above that share.
pub(super) const SHARED_FLOWS: u8 = 128;

/// How many of the shared flows a caller may be put in.
pub(super) const HAND: usize = 6;

/// The place of a line among those of its class: by the start of its flow, then by the arrival of
/// its first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) start: u64,
    pub(super) arrival: u64,
}

/// The flows within a class, which take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flow {
    /// A single caller.
    Own(Caller),
    /// Callers that were too many.
    Shared(u8),
    /// All of them.
    All,
}

/// The callers of one class at one limit.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// All share one flow: lines go by arrival.
    by_arrival: bool,
    /// Deals the hands.
    seed: u64,
    pub(super) virtual_time: u64,
    /// Sorted by flow. They are few, so a vector serves them best.
    pub(super) known: Vec<(Flow, FlowTags)>,
    /// Flows with a line, and the first line of each.
    pub(super) active: Sorted<(Turn, Flow, LineId)>,
    /// Flows without a line, by start; every one of them ahead of `virtual_time`.
    pub(super) idle: Sorted<(u64, Flow)>,
    /// Callers with lines in shared flows: in which, and how many.
    pub(super) sharded: BTreeMap<Caller, (u8, u32)>,
}

#[derive(Debug, Default)]
pub(super) struct FlowTags {
    pub(super) start: u64,
    /// Where it started last: no refund takes it further back.
    pub(super) base: u64,
    /// By arrival of their first calls.
    pub(super) lines: Sorted<(u64, LineId)>,
}

impl FlowTags {
    #[inline]
    fn first(&self, flow: Flow) -> Option<(Turn, Flow, LineId)> {
        let (arrival, line) = self.lines.first()?;
        let start = self.start;
        Some((Turn { start, arrival }, flow, line))
    }

    fn remove(&mut self, entry: Entry) {
        let was_there = self.lines.remove(&(entry.arrival, entry.line));
        debug_assert!(was_there, "a line is removed as it was put in");
    }

    /// A line has another first call.
    fn replace(&mut self, entry: Entry, arrival: u64) {
        self.remove(entry);
        self.lines.insert((arrival, entry.line));
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
    pub(super) fn place(&self, flow: Flow) -> Result<usize, usize> {
        self.known.binary_search_by(|(other, _)| other.cmp(&flow))
    }

    #[inline]
    pub(super) fn first(&self) -> Option<(Turn, LineId)> {
        let (turn, _, line) = self.active.first()?;
        Some((turn, line))
    }

    /// The flow of a caller: that of its lines, or the one that its first line would join.
    #[inline]
    fn flow(&self, caller: Caller) -> Flow {
        if self.by_arrival {
            return Flow::All;
        }
        if !self.sharded.is_empty()
            && let Some(&(flow, _)) = self.sharded.get(&caller)
        {
            return Flow::Shared(flow);
        }
        let own = Flow::Own(caller);
        if self.known.len() < OWN_FLOWS || self.place(own).is_ok() {
            return own;
        }
        let flow = hand(self.seed, caller)
            .into_iter()
            .min_by_key(|&flow| self.start(Flow::Shared(flow)))
            .expect("a hand is not empty");
        Flow::Shared(flow)
    }

    /// Where the next call of a flow starts.
    pub(super) fn start(&self, flow: Flow) -> u64 {
        match self.place(flow) {
            Ok(place) if !self.known[place].1.lines.is_empty() => self.known[place].1.start,
            Ok(place) => self.known[place].1.start.max(self.virtual_time),
            Err(_) => self.virtual_time,
        }
    }

    /// The turn of a line that is not in this order, if it joined now.
    pub(super) fn turn(&self, entry: Entry) -> Turn {
        Turn {
            start: self.start(self.flow(entry.caller)),
            arrival: entry.arrival,
        }
    }

    /// Takes a flow out of `active` or `idle`, to put it in again otherwise. One that is not known
    /// starts at `virtual_time`.
    fn lift(&mut self, flow: Flow) -> usize {
        let virtual_time = self.virtual_time;
        match self.place(flow) {
            Ok(place) => {
                let state = &mut self.known[place].1;
                if let Some(first) = state.first(flow) {
                    self.active.remove(&first);
                } else {
                    self.idle.remove(&(state.start, flow));
                    debug_assert!(state.start > virtual_time, "or it would be forgotten");
                }
                place
            }
            Err(place) => {
                let state = FlowTags {
                    start: virtual_time,
                    base: virtual_time,
                    lines: Sorted::default(),
                };
                self.known.insert(place, (flow, state));
                place
            }
        }
    }

    /// Puts a flow back, or forgets it if there is nothing to remember.
    pub(super) fn lower(&mut self, place: usize) {
        let (flow, state) = &self.known[place];
        if let Some(first) = state.first(*flow) {
            self.active.insert(first);
        } else if state.start > self.virtual_time {
            self.idle.insert((state.start, *flow));
        } else {
            self.known.remove(place);
        }
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let flow = self.flow(entry.caller);
        if let Flow::Shared(shared) = flow {
            self.sharded.entry(entry.caller).or_insert((shared, 0)).1 += 1;
        }
        let place = self.lift(flow);
        let lines = &mut self.known[place].1.lines;
        lines.insert((entry.arrival, entry.line));
        self.lower(place);
    }

    pub(super) fn remove(&mut self, entry: Entry) {
        let flow = self.flow(entry.caller);
        if let Flow::Shared(_) = flow
            && let Some((_, lines)) = self.sharded.get_mut(&entry.caller)
        {
            *lines -= 1;
            if *lines == 0 {
                self.sharded.remove(&entry.caller);
            }
        }
        let place = self.lift(flow);
        self.known[place].1.remove(entry);
        self.lower(place);
    }

    pub(super) fn replace(&mut self, entry: Entry, arrival: u64) {
        let place = self.lift(self.flow(entry.caller));
        self.known[place].1.replace(entry, arrival);
        self.lower(place);
    }

    /// A call of a caller is served. `next` is its line and the arrival of the next call there.
    pub(super) fn serve(&mut self, caller: Caller, service: u64, next: Option<(Entry, u64)>) {
        let place = self.lift(self.flow(caller));
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
        while let Some((start, flow)) = self.idle.first()
            && start <= self.virtual_time
        {
            self.idle.remove(&(start, flow));
            if let Ok(place) = self.place(flow) {
                self.known.remove(place);
            }
        }
    }

    pub(super) fn unserve(&mut self, caller: Caller, service: u64) {
        let flow = self.flow(caller);
        if self.place(flow).is_err() {
            return;
        }
        let place = self.lift(flow);
        let state = &mut self.known[place].1;
        state.start = state.start.saturating_sub(service).max(state.base);
        self.lower(place);
    }

    /// Removes all lines. What each caller was served is kept.
    pub(super) fn clear(&mut self) {
        self.active = Sorted::default();
        self.sharded.clear();
        let virtual_time = self.virtual_time;
        self.known.retain(|(_, state)| state.start > virtual_time);
        self.idle = Sorted::default();
        for (flow, state) in &mut self.known {
            state.lines = Sorted::default();
            self.idle.insert((state.start, *flow));
        }
    }
}

/// The shared flows that a caller may be put in, all different: dealt from a pack of them.
pub(super) fn hand(seed: u64, caller: Caller) -> [u8; HAND] {
    let mut mixed = mix(seed ^ mix(caller.0));
    let mut pack: [u8; SHARED_FLOWS as usize] = core::array::from_fn(|card| card as u8);
    core::array::from_fn(|dealt| {
        let left = u64::from(SHARED_FLOWS) - dealt as u64;
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
