//! Whose turn it is: start-time fair queuing, twice.
//!
//! Source: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996. There, a packet of length `l`
//! of a flow with weight `w` gets a start tag `S = max(v, F)` and a finish tag
//! `F' = S + l / w`, where `F` is the finish tag of the flow's packet before it and the
//! virtual time `v` is the start tag of the packet in service. Whichever packet has the least
//! start tag is next. It needs no knowledge of the server's rate, so it stays fair when that
//! varies, which is exactly what a closed and opening limit makes it do; and of two flows that
//! both always wait, `|W1 / w1 - W2 / w2| <= l1 / w1 + l2 / w2` for the service `W` of any span
//! and their longest packets `l`: never further apart than one call of each.
//!
//! Here a packet is a call, its length what it costs in tokens, and there are two levels:
//!
//! - **Callers within a class** share by their weights. The tag `S` of a call is fixed when it
//!   joins the queue, so calls of one caller stay in order, and with a single caller the order
//!   is that of arrival. Equal tags go by arrival.
//! - **Classes** share by weight. A class keeps one tag, the start tag of whatever call of it
//!   is served next: it moves on by `cost / weight` at service, not at arrival, since which of
//!   a class's calls is next is the callers' affair. A class that had nothing to offer while
//!   the virtual time passed its tag starts again from the virtual time: what is not used is
//!   not saved up.
//!
//! How our case differs: a call may be barred by a limit that others do not meet, so service
//! does not follow tags strictly, and `v` is the greatest start tag served so far.
//!
//! **Rate limits.** The callers that share a bucket share what the bucket lets through, which has
//! nothing to do with how fast others are served. So the calls of a class that meet one bucket
//! are a group with a virtual time of its own, which stands still while the bucket is empty:
//! whoever comes to it then starts beside those who wait there and not behind all of them.
//! Towards the rest of the class, a call's tag is its tag in its group and how far the group is
//! `ahead`. A group held by its own bucket alone while the class's virtual time passed its tag
//! starts again from there, just as a class does: a bucket that opens wide brings no arrears.
//! Where a bucket's order is that of arrival, everybody in the group is one flow.
//!
//! **Numbers.** Tags are in units of 2^-20 tokens, rounded up, and a call counts for at least a
//! thousandth of a token, so that calls that cost nothing take turns too.
//!
//! **State is bounded.** A finish tag that `v` has passed says nothing and is forgotten. A group
//! remembers at most [`OWN_FLOWS`] callers; while it remembers as many, those that come on top
//! share [`SHARED_FLOWS`] flows (shuffle sharding, as in the Kubernetes API server): each has a
//! hand of [`HAND`] of them by a hash of its number, and joins the one that would serve it
//! first. So an endless stream of new callers, each of whom would start at `v`, cannot take all
//! turns, and two callers rarely have the same hand. As long as such a caller has calls waiting,
//! the next goes to the same flow, so its calls stay in order too.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::{Caller, Class, Weight};
use crate::limiter::Tokens;
use crate::policy::ClassShare;
use crate::sorted::Sorted;

/// Callers of one group that have a flow of their own.
const OWN_FLOWS: usize = 256;
/// Flows that the callers above that share.
const SHARED_FLOWS: u8 = 128;
/// How many of the shared flows a caller may be put in.
const HAND: usize = 6;

/// In how many units of fair turns a token is cut.
pub(crate) const UNITS_PER_TOKEN: f64 = (1 << 20) as f64;
/// The least that a call counts for.
const UNITS_MIN: u64 = (1 << 20) / 1000;

/// How much of its turns a call takes, in units of 2^-20 tokens.
pub(crate) fn units(tokens: Tokens) -> u64 {
    // Rounded up by hand: the core library has no ceil. At most 2^40, so all of it is exact.
    let exact = tokens.get() * UNITS_PER_TOKEN;
    let whole = exact as u64;
    (whole + u64::from((whole as f64) < exact)).max(UNITS_MIN)
}

/// How much of its class's turns a call takes, and how much of its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    units: u64,
    weighted: u64,
}

impl Charge {
    pub(crate) fn new(tokens: Tokens, weight: Weight) -> Self {
        let units = units(tokens);
        let weighted = match weight.get() {
            1 => units,
            weight => units.div_ceil(u64::from(weight)),
        };
        Self { units, weighted }
    }
}

/// The place of a call among those of its group: by start tag, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    start: u64,
    arrival: u64,
}

impl Turn {
    pub(crate) const fn new(start: u64, arrival: u64) -> Self {
        Self { start, arrival }
    }

    pub(crate) const fn start(self) -> u64 {
        self.start
    }

    pub(crate) const fn arrival(self) -> u64 {
        self.arrival
    }
}

/// Calls of one class that meet one bucket, by its place among the buckets; or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId {
    pub(crate) class: Class,
    pub(crate) bucket: Option<u32>,
}

/// In what order a group's calls go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Callers take turns.
    #[default]
    Fair,
    /// By arrival.
    Arrival,
}

/// Those within a group who take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flow {
    /// One caller.
    Own(Caller),
    /// Callers that were too many.
    Shared(u8),
    /// All of them.
    All,
}

/// The place of a class among the classes; equal tags go by the policy's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassTurn {
    start: u128,
    class: u32,
}

/// The tags by which classes share one thing.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    starts: Vec<u128>,
    virtual_time: u128,
}

impl Shares {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            starts: alloc::vec![0; classes],
            virtual_time: 0,
        }
    }

    #[inline]
    pub(crate) fn turn(&self, class: u32) -> ClassTurn {
        ClassTurn {
            start: self.starts[class as usize],
            class,
        }
    }

    pub(crate) fn serve(&mut self, class: Class, service: u64) {
        let start = &mut self.starts[class.0 as usize];
        self.virtual_time = self.virtual_time.max(*start);
        *start += u128::from(service);
    }

    fn unserve(&mut self, class: Class, service: u64) {
        let start = &mut self.starts[class.0 as usize];
        *start = start.saturating_sub(u128::from(service));
    }

    /// The class has something to offer again: it starts from the virtual time, if that has
    /// passed it. True if that changed its place.
    pub(crate) fn activate(&mut self, class: Class) -> bool {
        let start = &mut self.starts[class.0 as usize];
        let passed = *start < self.virtual_time;
        *start = (*start).max(self.virtual_time);
        passed
    }
}

/// The tags of all classes and callers.
#[derive(Debug)]
pub(crate) struct Fair {
    classes: Vec<ClassState>,
    shares: Shares,
    /// Deals the hands of callers that are too many.
    seed: u64,
}

#[derive(Debug)]
struct ClassState {
    name: Arc<str>,
    weight: u32,
    /// Calls that meet no bucket; never ahead.
    plain: Group,
    /// By bucket. Kept as long as there is the bucket.
    grouped: BTreeMap<u32, Group>,
    /// The greatest start tag served, towards the class.
    virtual_time: u64,
    /// The greatest finish tag served, towards the class.
    finish: u64,
    waiting: usize,
}

#[derive(Debug, Default)]
struct Group {
    callers: Callers,
    /// How much greater than in the group tags are towards the class.
    ahead: u64,
    /// Lines of the group that its own bucket does not hold.
    offering: u32,
}

impl ClassState {
    fn new(share: &ClassShare) -> Self {
        Self {
            name: share.name.clone(),
            weight: share.weight,
            plain: Group::default(),
            grouped: BTreeMap::new(),
            virtual_time: 0,
            finish: 0,
            waiting: 0,
        }
    }

    #[inline]
    fn group(&mut self, bucket: Option<u32>) -> &mut Group {
        match bucket {
            None => &mut self.plain,
            Some(bucket) => self.grouped.entry(bucket).or_default(),
        }
    }
}

impl Fair {
    pub(crate) fn new(shares: &[ClassShare], seed: u64) -> Self {
        Self {
            classes: shares.iter().map(ClassState::new).collect(),
            shares: Shares::new(shares.len()),
            seed,
        }
    }

    /// The class itself, or the last one for a class that an older policy had.
    #[inline]
    pub(crate) fn clamp(&self, class: Class) -> Class {
        Class(class.0.min(self.classes.len() as u32 - 1))
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    #[inline]
    pub(crate) fn class_turn(&self, class: u32) -> ClassTurn {
        self.shares.turn(class)
    }

    /// How far a call moves its class's tag. At weight 1 a unit is 2^20, so weights divide
    /// finely; the dearest call has 2^40 units, so nothing is lost.
    #[inline]
    pub(crate) fn service(&self, class: Class, charge: Charge) -> u64 {
        (charge.units << 20) / u64::from(self.classes[class.0 as usize].weight)
    }

    /// A call joins: the flow it joins, and the start tag it waits with.
    pub(crate) fn join(
        &mut self,
        group: GroupId,
        caller: Caller,
        order: Order,
        charge: Charge,
    ) -> (Flow, u64) {
        let seed = self.seed;
        let callers = self.enter(group);
        let flow = callers.flow(caller, order, seed);
        (flow, callers.join(flow, charge))
    }

    /// A call that has waited all along joins the end of its flow once more. Its cost is
    /// already counted in the flow's finish tag, so the tag moves only if it must.
    pub(crate) fn rejoin(&mut self, group: GroupId, flow: Flow, charge: Charge) -> u64 {
        let state = &mut self.classes[group.class.0 as usize];
        state.group(group.bucket).callers.rejoin(flow, charge)
    }

    /// A call that was served comes back to wait with the tag it had.
    pub(crate) fn come_back(
        &mut self,
        group: GroupId,
        caller: Caller,
        order: Order,
        charge: Charge,
        start: u64,
    ) -> Flow {
        let seed = self.seed;
        let callers = self.enter(group);
        let flow = callers.flow(caller, order, seed);
        callers.come_back(flow, charge, start);
        flow
    }

    /// A call is about to join a group: one that was empty starts where the class is.
    fn enter(&mut self, group: GroupId) -> &mut Callers {
        let state = &mut self.classes[group.class.0 as usize];
        state.waiting += 1;
        let virtual_time = state.virtual_time;
        let group = state.group(group.bucket);
        if group.callers.waiting == 0 {
            let here = virtual_time.saturating_sub(group.ahead);
            group.callers.virtual_time = group.callers.virtual_time.max(here);
        }
        &mut group.callers
    }

    /// A call leaves without service.
    pub(crate) fn leave(&mut self, group: GroupId, flow: Flow, caller: Caller) {
        let state = &mut self.classes[group.class.0 as usize];
        state.group(group.bucket).callers.leave(flow, caller, None);
        state.leave();
    }

    /// A call leaves for service: it had `start` in its group.
    pub(crate) fn serve(
        &mut self,
        group: GroupId,
        flow: Flow,
        caller: Caller,
        charge: Charge,
        start: u64,
    ) {
        let service = self.service(group.class, charge);
        self.shares.serve(group.class, service);
        let state = &mut self.classes[group.class.0 as usize];
        let among = state.group(group.bucket);
        among.callers.leave(flow, caller, Some((start, charge)));
        let start = start.saturating_add(among.ahead);
        state.virtual_time = state.virtual_time.max(start);
        state.finish = state.finish.max(start.saturating_add(charge.weighted));
        state.leave();
    }

    /// What was served has done nothing after all.
    pub(crate) fn unserve(&mut self, class: Class, charge: Charge) {
        let service = self.service(class, charge);
        self.shares.unserve(class, service);
    }

    /// The class has something to offer again: it starts from the virtual time, if that has
    /// passed it. True if that changed its place.
    pub(crate) fn activate(&mut self, class: Class) -> bool {
        self.shares.activate(class)
    }

    /// A line of the group has a call to offer that its own bucket does not hold, or not any
    /// more. Says its turn towards the class.
    pub(crate) fn offer(&mut self, group: GroupId, head: Turn) -> Turn {
        if group.bucket.is_none() {
            return head;
        }
        let state = &mut self.classes[group.class.0 as usize];
        let virtual_time = state.virtual_time;
        let group = state.group(group.bucket);
        if group.offering == 0 {
            group.ahead = group.ahead.max(virtual_time.saturating_sub(head.start));
        }
        group.offering += 1;
        Turn::new(head.start.saturating_add(group.ahead), head.arrival)
    }

    /// The turn towards the class of a line that goes on offering, with another head.
    #[inline]
    pub(crate) fn offered(&mut self, group: GroupId, head: Turn) -> Turn {
        if group.bucket.is_none() {
            return head;
        }
        let ahead = self.classes[group.class.0 as usize]
            .group(group.bucket)
            .ahead;
        Turn::new(head.start.saturating_add(ahead), head.arrival)
    }

    /// A line of the group has nothing to offer now, or its own bucket holds it.
    pub(crate) fn withdraw(&mut self, group: GroupId) {
        if group.bucket.is_some() {
            let state = &mut self.classes[group.class.0 as usize];
            state.group(group.bucket).offering -= 1;
        }
    }

    /// There is no such bucket any more; nobody waits for it.
    pub(crate) fn forget_bucket(&mut self, bucket: u32) {
        for state in &mut self.classes {
            let gone = state.grouped.remove(&bucket);
            debug_assert!(gone.is_none_or(|group| group.callers.waiting == 0));
        }
    }

    /// Goes on under new shares; classes are found again by name. Returns what became of each
    /// old class: its new place, or `None` if it is gone. No line offers anything after this.
    pub(crate) fn reload(&mut self, shares: &[ClassShare]) -> Vec<Option<Class>> {
        let mut old = mem::take(&mut self.classes);
        let starts = mem::replace(&mut self.shares.starts, alloc::vec![0; shares.len()]);
        let places = old
            .iter()
            .map(|state| {
                let place = shares.iter().position(|share| share.name == state.name)?;
                Some(Class(place as u32))
            })
            .collect();
        self.classes = shares
            .iter()
            .zip(&mut self.shares.starts)
            .map(|(share, start)| {
                let Some(place) = old.iter().position(|old| old.name == share.name) else {
                    return ClassState::new(share);
                };
                *start = starts[place];
                let mut state = mem::replace(&mut old[place], ClassState::new(share));
                state.weight = share.weight;
                for group in state.grouped.values_mut() {
                    group.offering = 0;
                }
                state
            })
            .collect();
        places
    }

    /// Callers remembered, over all classes.
    pub(crate) fn callers_known(&self) -> usize {
        let groups = self.classes.iter().flat_map(|state| {
            let plain = core::iter::once(&state.plain);
            plain.chain(state.grouped.values())
        });
        groups
            .map(|group| group.callers.known.len() + group.callers.sharded.len())
            .sum()
    }
}

impl ClassState {
    fn leave(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            // The end of a busy period: virtual time goes to the last finish tag.
            self.virtual_time = self.virtual_time.max(self.finish);
        }
    }
}

/// The callers of one group.
#[derive(Debug, Default)]
struct Callers {
    virtual_time: u64,
    /// Sorted by flow. They are few, so a vector serves them best.
    known: Vec<(Flow, FlowState)>,
    /// Flows with nothing waiting, by finish tag; every one of them ahead of `virtual_time`.
    idle: Sorted<(u64, Flow)>,
    /// Callers with calls waiting in shared flows: in which, and how many.
    sharded: BTreeMap<Caller, (u8, u32)>,
    /// The greatest finish tag served.
    finish: u64,
    /// The greatest finish tag of all.
    latest: u64,
    /// In what order calls join.
    order: Order,
    /// No call that joins starts before this: calls that joined in another order are ahead of it.
    behind: u64,
    waiting: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    /// Start tag of the last call in line.
    last_start: u64,
    /// Finish tag of the last call in line.
    finish: u64,
    /// Finish tag of the last call served: what is left of `finish` when those that waited
    /// are gone without service.
    served: u64,
    waiting: usize,
}

impl Callers {
    #[inline]
    fn place(&self, flow: Flow) -> Result<usize, usize> {
        self.known.binary_search_by(|(other, _)| other.cmp(&flow))
    }

    /// A flow in which something waits.
    #[inline]
    fn expect(&mut self, flow: Flow) -> (usize, &mut FlowState) {
        let place = self
            .place(flow)
            .expect("a flow with a call waiting is known");
        (place, &mut self.known[place].1)
    }

    /// The flow that the next call of this caller joins; it is counted there.
    #[inline]
    fn flow(&mut self, caller: Caller, order: Order, seed: u64) -> Flow {
        if order != self.order {
            (self.order, self.behind) = (order, self.latest);
        }
        if order == Order::Arrival {
            return Flow::All;
        }
        if let Some((flow, waiting)) = self.sharded.get_mut(&caller) {
            *waiting += 1;
            return Flow::Shared(*flow);
        }
        let own = Flow::Own(caller);
        if self.known.len() < OWN_FLOWS || self.place(own).is_ok() {
            return own;
        }
        let flow = hand(seed, caller)
            .into_iter()
            .min_by_key(|&flow| match self.place(Flow::Shared(flow)) {
                Ok(place) => self.known[place].1.finish.max(self.virtual_time),
                Err(_) => self.virtual_time,
            })
            .expect("a hand is not empty");
        self.sharded.insert(caller, (flow, 1));
        Flow::Shared(flow)
    }

    #[inline]
    fn enter(&mut self, flow: Flow) -> &mut FlowState {
        self.waiting += 1;
        let place = match self.place(flow) {
            Ok(place) => {
                let state = &self.known[place].1;
                if state.waiting == 0 {
                    self.idle.remove(&(state.finish, flow));
                }
                place
            }
            Err(place) => {
                self.known.insert(place, (flow, FlowState::default()));
                place
            }
        };
        let state = &mut self.known[place].1;
        state.waiting += 1;
        state
    }

    fn join(&mut self, flow: Flow, charge: Charge) -> u64 {
        let earliest = self.virtual_time.max(self.behind);
        let state = self.enter(flow);
        let start = state.finish.max(earliest);
        let finish = start.saturating_add(charge.weighted);
        (state.last_start, state.finish) = (start, finish);
        self.latest = self.latest.max(finish);
        start
    }

    fn rejoin(&mut self, flow: Flow, charge: Charge) -> u64 {
        let virtual_time = self.virtual_time;
        let (_, state) = self.expect(flow);
        let start = state.last_start.max(virtual_time);
        state.last_start = start;
        state.finish = state.finish.max(start.saturating_add(charge.weighted));
        self.latest = self.latest.max(start.saturating_add(charge.weighted));
        start
    }

    fn come_back(&mut self, flow: Flow, charge: Charge, start: u64) {
        let state = self.enter(flow);
        state.last_start = state.last_start.max(start);
        state.finish = state.finish.max(start.saturating_add(charge.weighted));
    }

    fn leave(&mut self, flow: Flow, caller: Caller, served: Option<(u64, Charge)>) {
        if let Flow::Shared(_) = flow
            && let Some((_, waiting)) = self.sharded.get_mut(&caller)
        {
            *waiting -= 1;
            if *waiting == 0 {
                self.sharded.remove(&caller);
            }
        }
        self.waiting -= 1;
        let finish = served.map(|(start, charge)| start.saturating_add(charge.weighted));
        if let Some((start, _)) = served {
            self.virtual_time = self.virtual_time.max(start);
        }
        self.finish = self.finish.max(finish.unwrap_or(0));
        if self.waiting == 0 {
            // The end of a busy period: virtual time goes to the last finish tag, and passes
            // everything that was remembered.
            self.virtual_time = self.virtual_time.max(self.finish);
            self.known.clear();
            if !self.idle.is_empty() {
                self.idle = Sorted::default();
            }
            return;
        }
        let (place, state) = self.expect(flow);
        state.waiting -= 1;
        state.served = state.served.max(finish.unwrap_or(0));
        if state.waiting == 0 {
            state.finish = state.served;
            let finish = state.finish;
            if finish <= self.virtual_time {
                self.known.remove(place);
            } else {
                self.idle.insert((finish, flow));
            }
        }
        while let Some((finish, flow)) = self.idle.first()
            && finish <= self.virtual_time
        {
            self.idle.remove(&(finish, flow));
            if let Ok(place) = self.place(flow) {
                self.known.remove(place);
            }
        }
    }
}

/// The shared flows that a caller may be put in, all different: dealt from a pack of them.
fn hand(seed: u64, caller: Caller) -> [u8; HAND] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    const GROUP: GroupId = GroupId {
        class: Class(0),
        bucket: None,
    };

    fn limited(bucket: u32) -> GroupId {
        GroupId {
            bucket: Some(bucket),
            ..GROUP
        }
    }

    fn fair() -> Fair {
        let only = ClassShare {
            name: "only".into(),
            weight: 1,
        };
        Fair::new(&[only], 7)
    }

    const UNIT: Charge = Charge {
        units: 1,
        weighted: 1,
    };

    fn join(fair: &mut Fair, group: GroupId, caller: u64) -> (Flow, u64) {
        fair.join(group, Caller(caller), Order::Fair, UNIT)
    }

    fn serve(fair: &mut Fair, group: GroupId, caller: u64, (flow, start): (Flow, u64)) {
        fair.serve(group, flow, Caller(caller), UNIT, start);
    }

    #[test]
    fn a_newcomer_starts_beside_the_oldest_call_that_waits() {
        let mut fair = fair();
        let greedy: Vec<_> = (0..5).map(|_| join(&mut fair, GROUP, 1)).collect();
        let starts: Vec<u64> = greedy.iter().map(|&(_, start)| start).collect();
        assert_eq!(starts, vec![0, 1, 2, 3, 4]);
        serve(&mut fair, GROUP, 1, greedy[0]);
        serve(&mut fair, GROUP, 1, greedy[1]);
        assert_eq!(join(&mut fair, GROUP, 2).1, 1);
    }

    #[test]
    fn a_caller_of_twice_the_weight_moves_half_as_far() {
        let heavy = Weight::new(2).expect("above zero");
        let charge = |tokens, weight| Charge::new(tokens, weight).weighted;
        assert_eq!(charge(Tokens::ONE, Weight::ONE), 1 << 20);
        assert_eq!(charge(Tokens::ONE, heavy), 1 << 19);
        assert_eq!(charge(Tokens::MAX, Weight::ONE), 1_000_000 << 20);
    }

    #[test]
    fn what_costs_next_to_nothing_is_rounded_up_and_what_costs_nothing_takes_turns_too() {
        let tokens = |number| Tokens::new(number).expect("tokens");
        assert_eq!(units(tokens(1.0 + 1e-9)), (1 << 20) + 1);
        assert_eq!(units(tokens(0.5)), 1 << 19);
        assert_eq!(units(Tokens::ZERO), 1048);
        let most = Weight::new(u32::MAX).expect("above zero");
        assert_eq!(Charge::new(Tokens::ZERO, most).weighted, 1);
    }

    #[test]
    fn who_cancels_everything_is_not_charged_for_it() {
        let mut fair = fair();
        join(&mut fair, GROUP, 2);
        let joined: Vec<_> = (0..100).map(|_| join(&mut fair, GROUP, 1)).collect();
        for (flow, _) in joined {
            fair.leave(GROUP, flow, Caller(1));
        }
        assert_eq!(join(&mut fair, GROUP, 1).1, 0);
    }

    #[test]
    fn whoever_comes_to_a_bucket_that_stands_still_starts_beside_those_who_wait_there() {
        let mut fair = fair();
        let greedy: Vec<_> = (0..100).map(|_| join(&mut fair, limited(1), 1)).collect();
        serve(&mut fair, limited(1), 1, greedy[0]);
        // Others go on meanwhile.
        for _ in 0..1000 {
            let joined = join(&mut fair, GROUP, 2);
            serve(&mut fair, GROUP, 2, joined);
        }
        assert_eq!(join(&mut fair, limited(1), 3).1, 0);
    }

    #[test]
    fn a_bucket_that_opens_brings_no_arrears() {
        let mut fair = fair();
        let held = join(&mut fair, limited(1), 1);
        for _ in 0..1000 {
            let joined = join(&mut fair, GROUP, 2);
            serve(&mut fair, GROUP, 2, joined);
        }
        let turn = fair.offer(limited(1), Turn::new(held.1, 0));
        assert_eq!(turn.start(), 999);
        // Its next call is behind that one, not at the class's virtual time once more.
        let next = join(&mut fair, limited(1), 1);
        assert_eq!(fair.offer(limited(1), Turn::new(next.1, 1)).start(), 1000);
    }

    #[test]
    fn one_caller_alone_with_its_bucket_keeps_its_tag_from_call_to_call() {
        let mut fair = fair();
        join(&mut fair, GROUP, 2);
        let mut starts = Vec::new();
        for _ in 0..3 {
            let joined = join(&mut fair, limited(1), 1);
            starts.push(fair.offer(limited(1), Turn::new(joined.1, 0)).start());
            fair.withdraw(limited(1));
            serve(&mut fair, limited(1), 1, joined);
        }
        assert_eq!(starts, vec![0, 1, 2]);
    }

    #[test]
    fn in_order_of_arrival_everybody_is_one_flow() {
        let mut fair = fair();
        let arrivals = [1, 1, 2, 1, 3];
        let starts = arrivals.map(|caller| {
            let group = limited(0);
            fair.join(group, Caller(caller), Order::Arrival, UNIT).1
        });
        assert_eq!(starts, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn who_comes_after_the_order_has_changed_is_behind_those_who_came_before() {
        let mut fair = fair();
        let mut join = |caller, order| fair.join(limited(0), Caller(caller), order, UNIT).1;
        assert_eq!([1, 1, 2].map(|caller| join(caller, Order::Fair)), [0, 1, 0]);
        assert_eq!([1, 2].map(|caller| join(caller, Order::Arrival)), [2, 3]);
        assert_eq!([2, 3].map(|caller| join(caller, Order::Fair)), [4, 4]);
    }

    #[test]
    fn callers_that_come_once_are_forgotten() {
        let mut fair = fair();
        let waits = join(&mut fair, GROUP, 0);
        for caller in 1..100_000 {
            let joined = join(&mut fair, GROUP, caller);
            serve(&mut fair, GROUP, caller, joined);
            let cancelled = caller << 32;
            let (flow, _) = join(&mut fair, GROUP, cancelled);
            fair.leave(GROUP, flow, Caller(cancelled));
        }
        let bound = OWN_FLOWS + usize::from(SHARED_FLOWS);
        assert!(fair.callers_known() <= bound, "{}", fair.callers_known());
        fair.leave(GROUP, waits.0, Caller(0));
        assert_eq!(fair.callers_known(), 0);
    }

    #[test]
    fn an_endless_stream_of_new_callers_does_not_starve_an_old_one() {
        let mut fair = fair();
        join(&mut fair, GROUP, 0);
        let (_, second) = join(&mut fair, GROUP, 0);
        let passed = (1..10_000).find(|&caller| {
            let joined = join(&mut fair, GROUP, caller);
            serve(&mut fair, GROUP, caller, joined);
            joined.1 >= second
        });
        let bound = OWN_FLOWS as u64 + u64::from(SHARED_FLOWS);
        assert!(passed.is_some_and(|served| served <= bound), "{passed:?}");
    }

    #[test]
    fn a_caller_among_too_many_keeps_its_flow_while_it_waits() {
        let mut fair = fair();
        for caller in 0..OWN_FLOWS as u64 {
            join(&mut fair, GROUP, caller);
        }
        let first = join(&mut fair, GROUP, 1000);
        assert!(matches!(first.0, Flow::Shared(_)));
        for caller in 2000..2500 {
            join(&mut fair, GROUP, caller);
        }
        let second = join(&mut fair, GROUP, 1000);
        assert_eq!(second.0, first.0);
        assert!(second.1 > first.1, "its calls stay in order");
        assert_eq!(join(&mut fair, GROUP, 3).0, Flow::Own(Caller(3)));
    }

    #[test]
    fn hands_are_dealt_from_the_whole_pack_and_differ_from_seed_to_seed() {
        let mut seen = BTreeSet::new();
        let mut twins = 0;
        for caller in 0..1000 {
            let mut cards = hand(1, Caller(caller));
            assert_ne!(cards, hand(2, Caller(caller)));
            seen.extend(cards);
            cards.sort_unstable();
            assert!(cards.windows(2).all(|pair| pair[0] < pair[1]), "{cards:?}");
            let mut next = hand(1, Caller(caller + 1));
            next.sort_unstable();
            twins += u32::from(cards == next);
        }
        assert_eq!((seen.len(), twins), (usize::from(SHARED_FLOWS), 0));
    }
}
