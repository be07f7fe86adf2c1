//! The order of the flows at one limit.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::callers::Callers;
use super::service::{ClassFilter, FlowEntry, OrderSettings, TurnAdvance};
use crate::call::{Call, Class};
use crate::queue::budget::FlowId;

/// The order in which the flows that wait at one limit go.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairOrder {
    pub(super) flows: u32,
    /// The only flow since there was none.
    pub(super) only: Option<FlowEntry>,
    /// There is more than one flow, or was since there was none.
    pub(super) tags: Option<Box<Tags>>,
    /// Flows go by arrival, whatever their caller. Classes still share by weight.
    pub(super) by_arrival: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// Calls that were served anywhere before these tags counted any.
    pub(super) served_before: u64,
    pub(super) classes: Vec<ClassTags>,
    pub(super) virtual_time: u128,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClassTags {
    pub(super) start: u128,
    /// Where it started last: no refund takes it further back.
    pub(super) base: u128,
    pub(super) flows: u32,
    pub(super) callers: Callers,
}

impl ClassTags {
    /// The tags of all classes, at the start.
    fn all(common: OrderSettings, by_arrival: bool) -> Vec<Self> {
        let new = |_| Self {
            callers: Callers::new(by_arrival, common.seed),
            ..Self::default()
        };
        (0..common.classes).map(new).collect()
    }

    /// A class that begins to wait has saved up no turns.
    fn catch_up(&mut self, virtual_time: u128) {
        if self.flows == 0 && self.start < virtual_time {
            (self.start, self.base) = (virtual_time, virtual_time);
        }
    }
}

impl FairOrder {
    pub(crate) fn len(&self) -> u32 {
        self.flows
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows == 0
    }

    /// Whether it remembers who had turns.
    #[inline]
    pub(crate) const fn has_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// An order in which flows go by arrival, or in turn.
    pub(crate) fn new(by_arrival: bool) -> Self {
        Self {
            by_arrival,
            ..Self::default()
        }
    }

    pub(crate) fn is_by_arrival(&self) -> bool {
        self.by_arrival
    }

    /// All flows.
    pub(crate) fn all(&self) -> Vec<FlowId> {
        let tags = self.tags.iter().flat_map(|tags| &tags.classes);
        let groups = tags.flat_map(|class| &class.callers.known);
        let flows = groups.flat_map(|(_, group)| group.flows.iter());
        let flows = flows.map(|(_, flow)| flow);
        self.only
            .map(|only| only.flow)
            .into_iter()
            .chain(flows)
            .collect()
    }

    /// A flow begins to wait here.
    pub(crate) fn insert(&mut self, entry: FlowEntry, common: OrderSettings) {
        self.flows += 1;
        if let Some(tags) = &mut self.tags {
            tags.insert(entry);
        } else if let Some(before) = self.only.take() {
            let mut tags = Box::new(Tags::new(common, self.by_arrival));
            tags.insert(before);
            tags.insert(entry);
            self.tags = Some(tags);
        } else {
            self.only = Some(entry);
        }
    }

    /// A flow waits here no more.
    pub(crate) fn remove(&mut self, entry: FlowEntry) {
        self.flows -= 1;
        if let Some(tags) = &mut self.tags {
            tags.remove(entry);
            if self.flows == 0 {
                self.tags = None;
            }
        } else {
            let only = self.only.take();
            debug_assert_eq!(only, Some(entry), "a flow is removed as it was put in");
        }
    }

    /// A flow that waits here has another first call.
    pub(crate) fn replace(&mut self, entry: FlowEntry, arrival: u64) {
        match (&mut self.tags, &mut self.only) {
            (Some(tags), _) => {
                let class = &mut tags.classes[entry.class.0 as usize];
                class.callers.replace(entry, arrival);
            }
            (None, Some(only)) => only.arrival = arrival,
            (None, None) => unreachable!("a flow that waits here is there"),
        }
    }

    /// The first flow of a part.
    #[inline]
    pub(crate) fn first(&self, part: ClassFilter) -> Option<FlowId> {
        if let Some(only) = &self.only {
            return part.has(only.class.0 as usize).then_some(only.flow);
        }
        self.tags.as_ref()?.first(part)
    }

    /// Whether a flow of this part goes before this flow, which is not in this order.
    #[inline]
    pub(crate) fn is_behind(&self, entry: FlowEntry, part: ClassFilter) -> bool {
        if let Some(only) = &self.only {
            let place = |entry: &FlowEntry| (entry.class.0, entry.arrival);
            return part.has(only.class.0 as usize) && place(only) < place(&entry);
        }
        let tags = self.tags.as_ref();
        tags.is_some_and(|tags| tags.is_behind(entry, part))
    }

    /// Serves a call of a flow, which need not be in this order. It counts if `counts`, or if
    /// another flow waits here. True if that may have changed the order.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        flow: FlowEntry,
        service: TurnAdvance,
        counts: bool,
        common: OrderSettings,
    ) -> bool {
        if self.tags.is_none() {
            if !counts && self.only.is_none_or(|only| only.flow == flow.flow) {
                return false;
            }
            // Tags that begin with this call count it.
            let served = common.served.saturating_sub(1);
            let mut tags = Box::new(Tags::new(
                OrderSettings { served, ..common },
                self.by_arrival,
            ));
            if let Some(only) = self.only.take() {
                tags.insert(only);
            }
            self.tags = Some(tags);
        }
        if let Some(tags) = &mut self.tags {
            tags.serve(flow, service, None);
        }
        true
    }

    /// The first call of a flow that waits here is served, and the one behind it, of this arrival, is
    /// the first now: as [`serve`](Self::serve) and [`replace`](Self::replace), at once. False, and
    /// nothing done, if no tags are kept.
    #[inline]
    pub(crate) fn serve_first(
        &mut self,
        entry: FlowEntry,
        service: TurnAdvance,
        arrival: u64,
    ) -> bool {
        let Some(tags) = &mut self.tags else {
            return false;
        };
        tags.serve(entry, service, Some(arrival));
        true
    }

    /// Corrects the tags by a call that was served with this number: its service was `counted`, and is `settled` in the end, or
    /// nothing if the call was not sent. True if that changes these tags, because they had counted the call.
    pub(crate) fn correct(
        &mut self,
        call: &Call,
        counted: TurnAdvance,
        settled: TurnAdvance,
        served: u64,
    ) -> bool {
        match &mut self.tags {
            Some(tags) if tags.served_before < served => {
                tags.serve_less(call, counted.beyond(settled));
                tags.serve_more(call, settled.beyond(counted));
                true
            }
            Some(_) | None => false,
        }
    }

    /// Removes all flows and replaces the classes: `places` maps each old class to its new one.
    pub(crate) fn reload(self, places: &[Option<Class>], common: OrderSettings) -> Self {
        let tags = self.tags.map(|mut tags| {
            let new = ClassTags::all(common, self.by_arrival);
            let old = mem::replace(&mut tags.classes, new);
            for (mut old, place) in old.into_iter().zip(places) {
                if let Some(place) = place {
                    old.flows = 0;
                    old.callers.clear();
                    tags.classes[place.0 as usize] = old;
                }
            }
            tags
        });
        Self {
            tags,
            ..Self::new(self.by_arrival)
        }
    }

    /// Forgets the tags if no flow waits.
    pub(crate) fn tidy(&mut self) {
        if self.flows == 0 {
            self.tags = None;
        }
    }
}

impl Tags {
    fn new(common: OrderSettings, by_arrival: bool) -> Self {
        Self {
            served_before: common.served,
            classes: ClassTags::all(common, by_arrival),
            virtual_time: 0,
        }
    }

    fn insert(&mut self, entry: FlowEntry) {
        let class = &mut self.classes[entry.class.0 as usize];
        class.catch_up(self.virtual_time);
        class.flows += 1;
        class.callers.insert(entry);
    }

    fn remove(&mut self, entry: FlowEntry) {
        let class = &mut self.classes[entry.class.0 as usize];
        class.flows -= 1;
        class.callers.remove(entry);
    }

    fn first(&self, part: ClassFilter) -> Option<FlowId> {
        let mut first: Option<(u128, FlowId)> = None;
        for (place, class) in self.classes.iter().enumerate() {
            if let Some((_, flow)) = class.callers.first()
                && part.has(place)
                && first.is_none_or(|(before, _)| class.start < before)
            {
                first = Some((class.start, flow));
            }
        }
        first.map(|(_, flow)| flow)
    }

    fn is_behind(&self, entry: FlowEntry, part: ClassFilter) -> bool {
        let own = entry.class.0 as usize;
        let class = &self.classes[own];
        let start = match class.flows {
            0 => class.start.max(self.virtual_time),
            _ => class.start,
        };
        let mut classes = self.classes.iter().enumerate();
        classes.any(|(place, other)| {
            let Some((turn, _)) = other.callers.first().filter(|_| part.has(place)) else {
                return false;
            };
            if place == own {
                turn < other.callers.turn(entry)
            } else {
                (other.start, place) < (start, own)
            }
        })
    }

    fn serve(&mut self, flow: FlowEntry, service: TurnAdvance, next: Option<u64>) {
        let FlowEntry { class, caller, .. } = flow;
        let of = &mut self.classes[class.0 as usize];
        of.catch_up(self.virtual_time);
        let start = of.start;
        of.start += u128::from(service.class);
        let next = next.map(|next| (flow, next));
        of.callers.serve(caller, service.caller, next);
        let others = self.classes.iter().enumerate();
        let others = others.filter(|&(place, other)| place != class.0 as usize && other.flows > 0);
        let passed = others.map(|(_, other)| other.start).fold(start, u128::min);
        self.virtual_time = self.virtual_time.max(passed);
    }

    fn serve_less(&mut self, call: &Call, service: TurnAdvance) {
        let of = &mut self.classes[call.class.0 as usize];
        let start = of.start.saturating_sub(u128::from(service.class));
        of.start = start.max(of.base);
        of.callers.serve_less(call.caller, service.caller);
    }

    fn serve_more(&mut self, call: &Call, service: TurnAdvance) {
        if service == TurnAdvance::NONE {
            return;
        }
        let of = &mut self.classes[call.class.0 as usize];
        of.catch_up(self.virtual_time);
        of.start += u128::from(service.class);
        of.callers.serve_more(call.caller, service.caller);
    }
}
