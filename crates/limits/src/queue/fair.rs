//! The law: who goes when, at every limit.
//!
//! "Limit" here is anything that calls draw from: a limit of the policy, a bucket, a quota. A call
//! may meet any number of them, and runs when all have room. The law holds with
//! [`Postpone::InTurn`](crate::Postpone::InTurn) for every call, and with
//! [`Postpone::Jitter`](crate::Postpone::Jitter) for calls that keep their place.
//!
//! **Fairness.** Each limit has an order of its own. While two callers of a class each have a call
//! that only this limit holds up, their service there by weight, `W / w`, differs by at most one
//! maximal call of each: `|W1 / w1 - W2 / w2| <= l1 / w1 + l2 / w2`, which is what start-time fair
//! queuing has. The same holds between classes; what a limit keeps for a class counts between the
//! callers of this class alone. Three things add to it: a call that was given back is the next turn of
//! its caller; a call that claims goes before its turn, and the next turns of its caller make up for it;
//! and when another limit opens at the same moment, one call may go before those that come from there.
//!
//! **Isolation.** What does not meet a limit moves no tag at it. It changes a wait there only through
//! a limit that both meet.
//!
//! **Work conservation.** While a limit has room for the call whose turn it is there, and all that
//! this call meets has room, the call runs. While it can't, because another of its limits is closed,
//! the next in order goes. The one exception is the room that a claim leaves idle.
//!
//! **Progress.** A call is *passed over* when its turn comes at a limit that has room and another of
//! its limits is closed. Then it waits for its turn at that other one. Without more, two limits that
//! open by turns could pass a call over for ever. So, one window after it was first passed over, a
//! call whose turn comes at one limit and which has had its turn at the one that bars it *claims*: it
//! goes to the front of the limit that bars it, and the room of each other limit where its turn has
//! come is kept for it.
//!
//! - Claims at a limit go by arrival. The claims of one call stand everywhere in the same order as
//!   those of another, so no two calls wait for each other, and what the first of them waits for is
//!   room alone.
//! - A claim keeps room for one call: what this call draws. It lasts one window of the limit at
//!   which it stands, twice as long each time one of the call lapsed in vain, and is not made where
//!   the limit in the way opens later than one window from now. The window of a limit that is no
//!   window is the longest one that the call meets, or [`WINDOW`] if it meets none.
//! - So a claim leaves idle at most the draw of one call for one window. `LimitNow::claimed` and
//!   `LimitNow::idle` say how much is kept and has been.
//!
//! The wait of a call is bounded by what is ahead of it and by its limits. With `T(L)` the longest
//! that it takes at limit `L` until its turn comes by the order there, `R(L)` the longest until `L`
//! has room for one maximal call (a window for a window, the longest run for what is outstanding),
//! `w` the longest window and `c` the calls before it by arrival that claim at one of its limits:
//! `wait <= w + sum over L of (2 T(L) + 2 (c + 1) R(L))`. `T(L)` is what fair queuing says: the
//! calls of its own caller before it, each with at most one maximal call of every other caller and
//! class by weight. Nothing in it grows with what comes after the call, except that a new caller
//! takes turns as one more; more callers than [`OWN_FLOWS`] share [`SHARED_FLOWS`] turns.
//!
//! # How
//!
//! Start-time fair queuing, at each limit, between classes and between the callers of a class.
//!
//! Sources: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996; J. Bennett, H. Zhang,
//! "Hierarchical Packet Fair Queueing Algorithms", SIGCOMM 1996 (WF2Q+, from which it has that the
//! tag is kept for a flow and not for each packet); Kubernetes' API Priority and Fairness, which
//! queues requests fairly and deals hands of queues. That one dispatches nothing else while the call
//! whose turn it is does not fit; here others go on, and what this could take from a call, its claim
//! gives back.
//!
//! A flow has one tag at a limit, its *start*. The flow with the least start goes first; ties go by
//! arrival, and between classes by the order of the policy. The service of a call of length `l`, its tokens, moves the virtual time `v` up to the
//! start of its flow, and the start on by `l / w`. A flow that begins to wait starts at `v` if that
//! has passed it: what is not used is not saved up. Who leaves without service has moved nothing. It
//! needs no knowledge of the limit's rate, so it stays fair when that varies, which is exactly what a
//! limit that closes and opens makes it do.
//!
//! Tags count while somebody waits: an order without a line forgets them. What is served while
//! nobody waits is nobody's loss.
//!
//! **Numbers.** Tags are in millionths of a token, rounded up, and a call counts for at least a
//! thousandth of a token, so that calls that cost nothing take turns too.
//!
//! **State is bounded.** A start that `v` has passed says nothing and is forgotten. An order
//! remembers at most [`OWN_FLOWS`] callers of a class; while it remembers as many, those that come
//! on top share [`SHARED_FLOWS`] flows (shuffle sharding, as in the Kubernetes API server): each has
//! a hand of [`HAND`] of them by a hash of its number, and joins the one that would serve it first.
//! So an endless stream of new callers, each of whom would start at `v`, cannot take all turns, and
//! two callers rarely have the same hand. As long as such a caller has a line there, its others go to
//! the same flow.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::LineId;
use crate::bucket::{TokenCount, Tokens};
use crate::call::{Caller, Class, Weight};
use crate::sorted::Sorted;

/// The window of a limit that has none, for a call that meets no window.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);
/// Callers of one class that have a flow of their own at a limit.
const OWN_FLOWS: usize = 256;
/// Flows that the callers above that share.
const SHARED_FLOWS: u8 = 128;
/// How many of the shared flows a caller may be put in.
const HAND: usize = 6;

/// How far the service of a call moves the start of its caller, and that of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    caller: u64,
    class: u64,
}

impl Service {
    /// The same, where it is no loss to other classes.
    #[must_use]
    pub(crate) const fn within_its_class(self) -> Self {
        Self { class: 0, ..self }
    }

    /// Of a caller of this weight, in a class of that one. At weight 1 a unit of a class is 2^20, so
    /// weights divide finely; the dearest call has 10^12 millionths, less than 2^40, so nothing is lost.
    pub(crate) fn new(tokens: Tokens, weight: Weight, of_class: u32) -> Self {
        let micros = TokenCount::of_turn(tokens).micros();
        let caller = match weight.get() {
            1 => micros,
            weight => micros.div_ceil(u64::from(weight)),
        };
        Self {
            caller,
            class: (micros << 20) / u64::from(of_class),
        }
    }
}

/// The place of a line among those of its class: by the start of its flow, then by the arrival of
/// its first call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    start: u64,
    arrival: u64,
}

/// Those within a class who take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flow {
    /// One caller.
    Own(Caller),
    /// Callers that were too many.
    Shared(u8),
    /// All of them.
    All,
}

/// A line, as it stands in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) class: Class,
    pub(crate) caller: Caller,
    /// Of its first call.
    pub(crate) arrival: u64,
    pub(crate) line: LineId,
}

/// Which lines of an order: a limit that keeps something for a class answers others otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Only(Class),
    But(Class),
}

impl Part {
    fn has(self, class: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only.0 as usize == class,
            Self::But(but) => but.0 as usize != class,
        }
    }
}

/// What all orders of a scheduler have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// How many classes there are.
    pub(crate) classes: usize,
    /// Deals the hands of callers that are too many.
    pub(crate) seed: u64,
    /// Calls served so far, anywhere.
    pub(crate) served: u64,
}

/// The order in which the lines that wait at one limit go.
#[derive(Debug, Default)]
pub(crate) struct Order {
    lines: u32,
    /// The only line since there was none.
    only: Option<Entry>,
    /// There is more than one line, or was since there was none.
    tags: Option<Box<Tags>>,
    /// Lines go by arrival, whoever called; classes share by weight all the same.
    by_arrival: bool,
}

#[derive(Debug)]
struct Tags {
    common: Common,
    by_arrival: bool,
    classes: Vec<ClassTags>,
    virtual_time: u128,
}

#[derive(Debug, Default)]
struct ClassTags {
    start: u128,
    /// Where it started last: no refund takes it further back.
    base: u128,
    lines: u32,
    callers: Callers,
}

impl Order {
    pub(crate) fn len(&self) -> u32 {
        self.lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// An order in which lines go by arrival, or in turn.
    pub(crate) fn new(by_arrival: bool) -> Self {
        Self {
            by_arrival,
            ..Self::default()
        }
    }

    pub(crate) fn is_by_arrival(&self) -> bool {
        self.by_arrival
    }

    /// All lines.
    pub(crate) fn all(&self) -> Vec<LineId> {
        let tags = self.tags.iter().flat_map(|tags| &tags.classes);
        let flows = tags.flat_map(|class| &class.callers.known);
        let lines = flows.flat_map(|(_, flow)| flow.lines.iter());
        let lines = lines.map(|(_, line)| line);
        self.only
            .map(|only| only.line)
            .into_iter()
            .chain(lines)
            .collect()
    }

    /// A line begins to wait here.
    pub(crate) fn insert(&mut self, entry: Entry, common: Common) {
        self.lines += 1;
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

    /// A line waits here no more.
    pub(crate) fn remove(&mut self, entry: Entry) {
        self.lines -= 1;
        if let Some(tags) = &mut self.tags {
            tags.remove(entry);
            if self.lines == 0 {
                self.tags = None;
            }
        } else {
            let only = self.only.take();
            debug_assert_eq!(only, Some(entry), "a line is removed as it was put in");
        }
    }

    /// A line that waits here has another first call.
    pub(crate) fn replace(&mut self, entry: Entry, arrival: u64) {
        match (&mut self.tags, &mut self.only) {
            (Some(tags), _) => {
                let class = &mut tags.classes[entry.class.0 as usize];
                class.callers.replace(entry, arrival, self.by_arrival);
            }
            (None, Some(only)) => only.arrival = arrival,
            (None, None) => unreachable!("a line that waits here is there"),
        }
    }

    /// The first line of a part.
    #[inline]
    pub(crate) fn first(&self, part: Part) -> Option<LineId> {
        if let Some(only) = &self.only {
            return part.has(only.class.0 as usize).then_some(only.line);
        }
        self.tags.as_ref()?.first(part)
    }

    /// Whether a line of this part goes before this one, which does not stand here.
    #[inline]
    pub(crate) fn is_behind(&self, entry: Entry, part: Part) -> bool {
        if let Some(only) = &self.only {
            let place = |entry: &Entry| (entry.class.0, entry.arrival);
            return part.has(only.class.0 as usize) && place(only) < place(&entry);
        }
        let tags = self.tags.as_ref();
        tags.is_some_and(|tags| tags.is_behind(entry, part))
    }

    /// A call of a line is served, which need not stand here. It counts if `counts`, or if another
    /// line waits here. True if that may have changed the order.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        line: Entry,
        service: Service,
        counts: bool,
        common: Common,
    ) -> bool {
        if self.tags.is_none() {
            if !counts && self.only.is_none_or(|only| only.line == line.line) {
                return false;
            }
            // Tags that begin with this call count it.
            let served = common.served.saturating_sub(1);
            let mut tags = Box::new(Tags::new(Common { served, ..common }, self.by_arrival));
            if let Some(only) = self.only.take() {
                tags.insert(only);
            }
            self.tags = Some(tags);
        }
        if let Some(tags) = &mut self.tags {
            tags.serve(line, service, None);
        }
        true
    }

    /// The first call of a line that waits here is served, and the one behind it, of this arrival, is
    /// the first now: as [`serve`](Self::serve) and [`replace`](Self::replace), at once. False, and
    /// nothing done, if no tags are kept.
    #[inline]
    pub(crate) fn serve_first(&mut self, entry: Entry, service: Service, arrival: u64) -> bool {
        let Some(tags) = &mut self.tags else {
            return false;
        };
        tags.serve(entry, service, Some(arrival));
        true
    }

    /// The call that was served with this number was not sent after all. True if its service is taken
    /// back: these tags had counted it.
    pub(crate) fn unserve(
        &mut self,
        class: Class,
        caller: Caller,
        service: Service,
        served: u64,
    ) -> bool {
        match &mut self.tags {
            Some(tags) if tags.common.served < served => {
                tags.unserve(class, caller, service);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Goes on without the lines, and with other classes: `places` says which each one is now.
    pub(crate) fn reload(self, places: &[Option<Class>], common: Common) -> Self {
        let tags = self.tags.map(|mut tags| {
            let mut classes = Vec::new();
            classes.resize_with(common.classes, ClassTags::default);
            for (mut old, place) in tags.classes.drain(..).zip(places) {
                if let Some(place) = place {
                    old.lines = 0;
                    old.callers.clear();
                    classes[place.0 as usize] = old;
                }
            }
            tags.classes = classes;
            tags.common.classes = common.classes;
            tags
        });
        Self {
            lines: 0,
            only: None,
            tags,
            by_arrival: self.by_arrival,
        }
    }

    /// Forgets the tags if no line waits.
    pub(crate) fn tidy(&mut self) {
        if self.lines == 0 {
            self.tags = None;
        }
    }
}

impl Tags {
    fn new(common: Common, by_arrival: bool) -> Self {
        let mut classes = Vec::new();
        classes.resize_with(common.classes, ClassTags::default);
        Self {
            common,
            by_arrival,
            classes,
            virtual_time: 0,
        }
    }

    fn insert(&mut self, entry: Entry) {
        let virtual_time = self.virtual_time;
        let class = &mut self.classes[entry.class.0 as usize];
        if class.lines == 0 && class.start < virtual_time {
            (class.start, class.base) = (virtual_time, virtual_time);
        }
        class.lines += 1;
        class
            .callers
            .insert(entry, self.by_arrival, self.common.seed);
    }

    fn remove(&mut self, entry: Entry) {
        let class = &mut self.classes[entry.class.0 as usize];
        class.lines -= 1;
        class.callers.remove(entry, self.by_arrival);
    }

    fn first(&self, part: Part) -> Option<LineId> {
        let mut first: Option<(u128, LineId)> = None;
        for (place, class) in self.classes.iter().enumerate() {
            if let Some((_, line)) = class.callers.first()
                && part.has(place)
                && first.is_none_or(|(before, _)| class.start < before)
            {
                first = Some((class.start, line));
            }
        }
        first.map(|(_, line)| line)
    }

    fn is_behind(&self, entry: Entry, part: Part) -> bool {
        let own = entry.class.0 as usize;
        let class = &self.classes[own];
        let start = match class.lines {
            0 => class.start.max(self.virtual_time),
            _ => class.start,
        };
        let mut classes = self.classes.iter().enumerate();
        classes.any(|(place, other)| {
            let Some((turn, _)) = other.callers.first().filter(|_| part.has(place)) else {
                return false;
            };
            if place == own {
                turn < other.callers.turn(entry, self.by_arrival, self.common.seed)
            } else {
                (other.start, place) < (start, own)
            }
        })
    }

    fn serve(&mut self, line: Entry, service: Service, next: Option<u64>) {
        let Entry { class, caller, .. } = line;
        let virtual_time = self.virtual_time;
        let of = &mut self.classes[class.0 as usize];
        if of.lines == 0 && of.start < virtual_time {
            (of.start, of.base) = (virtual_time, virtual_time);
        }
        let start = of.start;
        of.start += u128::from(service.class);
        let flow = of.callers.flow(caller, self.by_arrival, self.common.seed);
        of.callers
            .serve(flow, service.caller, next.map(|next| (line, next)));
        let others = self.classes.iter().enumerate();
        let others = others.filter(|&(place, other)| place != class.0 as usize && other.lines > 0);
        let passed = others.map(|(_, other)| other.start).fold(start, u128::min);
        self.virtual_time = virtual_time.max(passed);
    }

    fn unserve(&mut self, class: Class, caller: Caller, service: Service) {
        let of = &mut self.classes[class.0 as usize];
        let start = of.start.saturating_sub(u128::from(service.class));
        of.start = start.max(of.base);
        of.callers
            .unserve(caller, service.caller, self.by_arrival, self.common.seed);
    }
}

/// The callers of one class at one limit.
#[derive(Debug, Default)]
struct Callers {
    virtual_time: u64,
    /// Sorted by flow. They are few, so a vector serves them best.
    known: Vec<(Flow, FlowTags)>,
    /// Flows with a line, and the first line of each.
    active: Sorted<(Turn, Flow, LineId)>,
    /// Flows without a line, by start; every one of them ahead of `virtual_time`.
    idle: Sorted<(u64, Flow)>,
    /// Callers with lines in shared flows: in which, and how many.
    sharded: BTreeMap<Caller, (u8, u32)>,
}

#[derive(Debug, Default)]
struct FlowTags {
    start: u64,
    /// Where it started last: no refund takes it further back.
    base: u64,
    /// By arrival of their first calls.
    lines: Sorted<(u64, LineId)>,
}

impl FlowTags {
    #[inline]
    fn first(&self, flow: Flow) -> Option<(Turn, Flow, LineId)> {
        let (arrival, line) = self.lines.first()?;
        let start = self.start;
        Some((Turn { start, arrival }, flow, line))
    }

    /// A line has another first call.
    fn replace(&mut self, entry: Entry, arrival: u64) {
        let was_there = self.lines.remove(&(entry.arrival, entry.line));
        debug_assert!(was_there, "a line is replaced as it was put in");
        self.lines.insert((arrival, entry.line));
    }
}

impl Callers {
    #[inline]
    fn place(&self, flow: Flow) -> Result<usize, usize> {
        self.known.binary_search_by(|(other, _)| other.cmp(&flow))
    }

    #[inline]
    fn first(&self) -> Option<(Turn, LineId)> {
        let (turn, _, line) = self.active.first()?;
        Some((turn, line))
    }

    /// The flow of a caller: that of its lines, or the one that its first line would join.
    #[inline]
    fn flow(&self, caller: Caller, by_arrival: bool, seed: u64) -> Flow {
        if by_arrival {
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
        let flow = hand(seed, caller)
            .into_iter()
            .min_by_key(|&flow| self.start(Flow::Shared(flow)))
            .expect("a hand is not empty");
        Flow::Shared(flow)
    }

    /// Where the next call of a flow starts.
    fn start(&self, flow: Flow) -> u64 {
        match self.place(flow) {
            Ok(place) if !self.known[place].1.lines.is_empty() => self.known[place].1.start,
            Ok(place) => self.known[place].1.start.max(self.virtual_time),
            Err(_) => self.virtual_time,
        }
    }

    /// The turn of a line that does not stand here, if it came now.
    fn turn(&self, entry: Entry, by_arrival: bool, seed: u64) -> Turn {
        Turn {
            start: self.start(self.flow(entry.caller, by_arrival, seed)),
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
    fn lower(&mut self, place: usize) {
        let (flow, state) = &self.known[place];
        if let Some(first) = state.first(*flow) {
            self.active.insert(first);
        } else if state.start > self.virtual_time {
            self.idle.insert((state.start, *flow));
        } else {
            self.known.remove(place);
        }
    }

    fn insert(&mut self, entry: Entry, by_arrival: bool, seed: u64) {
        let flow = self.flow(entry.caller, by_arrival, seed);
        if let Flow::Shared(shared) = flow {
            self.sharded.entry(entry.caller).or_insert((shared, 0)).1 += 1;
        }
        let place = self.lift(flow);
        let lines = &mut self.known[place].1.lines;
        lines.insert((entry.arrival, entry.line));
        self.lower(place);
    }

    fn remove(&mut self, entry: Entry, by_arrival: bool) {
        let flow = match self.sharded.get_mut(&entry.caller) {
            _ if by_arrival => Flow::All,
            None => Flow::Own(entry.caller),
            Some((flow, lines)) => {
                let flow = Flow::Shared(*flow);
                *lines -= 1;
                if *lines == 0 {
                    self.sharded.remove(&entry.caller);
                }
                flow
            }
        };
        let place = self.lift(flow);
        let lines = &mut self.known[place].1.lines;
        let was_there = lines.remove(&(entry.arrival, entry.line));
        debug_assert!(was_there, "a line is removed as it was put in");
        self.lower(place);
    }

    fn replace(&mut self, entry: Entry, arrival: u64, by_arrival: bool) {
        let flow = match self.sharded.get(&entry.caller) {
            _ if by_arrival => Flow::All,
            None => Flow::Own(entry.caller),
            Some((flow, _)) => Flow::Shared(*flow),
        };
        let place = self.lift(flow);
        self.known[place].1.replace(entry, arrival);
        self.lower(place);
    }

    /// A call of a flow is served. `next` says of which line, and what its next call is.
    fn serve(&mut self, flow: Flow, service: u64, next: Option<(Entry, u64)>) {
        let place = self.lift(flow);
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

    fn unserve(&mut self, caller: Caller, service: u64, by_arrival: bool, seed: u64) {
        let flow = self.flow(caller, by_arrival, seed);
        if self.place(flow).is_err() {
            return;
        }
        let place = self.lift(flow);
        let state = &mut self.known[place].1;
        state.start = state.start.saturating_sub(service).max(state.base);
        self.lower(place);
    }

    /// Goes on without lines; who has been served more than others is remembered.
    fn clear(&mut self) {
        self.active = Sorted::default();
        self.sharded.clear();
        let virtual_time = self.virtual_time;
        self.known.retain(|(_, state)| state.start > virtual_time);
        let mut idle = Vec::new();
        for (flow, state) in &mut self.known {
            state.lines = Sorted::default();
            idle.push((state.start, *flow));
        }
        self.idle = Sorted::from_unsorted(idle);
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

    const CLASS: Class = Class(0);

    /// What a call of one token moves at weight one.
    fn one() -> Service {
        Service::new(Tokens::ONE, Weight::ONE, 1)
    }

    /// An order, and lines in it that have calls without end.
    struct Waiting {
        order: Order,
        common: Common,
        entries: Vec<Entry>,
        arrivals: u64,
    }

    impl Waiting {
        fn new(classes: usize) -> Self {
            Self {
                order: Order::default(),
                common: Common {
                    classes,
                    seed: 7,
                    served: 0,
                },
                entries: Vec::new(),
                arrivals: 0,
            }
        }

        fn arrival(&mut self) -> u64 {
            self.arrivals += 1;
            self.arrivals
        }

        /// A line begins to wait. Returns its number.
        fn wait(&mut self, class: u32, caller: u64) -> LineId {
            let entry = Entry {
                class: Class(class),
                caller: Caller(caller),
                arrival: self.arrival(),
                line: self.entries.len() as LineId,
            };
            self.order.insert(entry, self.common);
            self.entries.push(entry);
            entry.line
        }

        /// Serves the first one, which has another call.
        fn serve(&mut self, service: impl Fn(Entry) -> Service) -> LineId {
            let line = self.order.first(Part::All).expect("a line waits");
            self.serve_line(line, service)
        }

        fn serve_line(&mut self, line: LineId, service: impl Fn(Entry) -> Service) -> LineId {
            let entry = self.entries[line as usize];
            self.common.served += 1;
            self.order.serve(entry, service(entry), false, self.common);
            let arrival = self.arrival();
            self.order.replace(entry, arrival);
            self.entries[line as usize].arrival = arrival;
            line
        }

        fn leave(&mut self, line: LineId) {
            self.order.remove(self.entries[line as usize]);
        }

        fn known(&self) -> usize {
            let tags = self.order.tags.iter().flat_map(|tags| &tags.classes);
            tags.map(|class| class.callers.known.len() + class.callers.sharded.len())
                .sum()
        }
    }

    #[test]
    fn a_call_of_twice_the_weight_moves_its_caller_half_as_far() {
        let heavy = Weight::new(2).expect("above zero");
        let service = |tokens, weight, class| Service::new(tokens, weight, class);
        assert_eq!(service(Tokens::ONE, Weight::ONE, 1).caller, 1_000_000);
        assert_eq!(service(Tokens::ONE, heavy, 1).caller, 500_000);
        assert_eq!(
            service(Tokens::MAX, Weight::ONE, 1).caller,
            1_000_000_000_000
        );
        assert_eq!(service(Tokens::ONE, Weight::ONE, 4).class, 250_000 << 20);
    }

    #[test]
    fn what_costs_next_to_nothing_is_rounded_up_and_what_costs_nothing_takes_turns_too() {
        let tokens = |number| Tokens::new(number).expect("tokens");
        assert_eq!(TokenCount::of_turn(tokens(1.0 + 1e-9)).micros(), 1_000_001);
        assert_eq!(TokenCount::of_turn(tokens(0.5)).micros(), 500_000);
        assert_eq!(TokenCount::of_turn(Tokens::ZERO).micros(), 1000);
        let most = Weight::new(u32::MAX).expect("above zero");
        assert_eq!(Service::new(Tokens::ZERO, most, 1).caller, 1);
    }

    #[test]
    fn two_callers_go_by_turns_and_a_newcomer_goes_beside_them() {
        let mut waiting = Waiting::new(1);
        let (first, second) = (waiting.wait(0, 1), waiting.wait(0, 2));
        let served: Vec<_> = (0..4).map(|_| waiting.serve(|_| one())).collect();
        assert_eq!(served, vec![first, second, first, second]);
        for _ in 0..100 {
            waiting.serve(|_| one());
        }
        // The one that waits longest of those that were served equally goes first.
        let third = waiting.wait(0, 3);
        let served: Vec<_> = (0..6).map(|_| waiting.serve(|_| one())).collect();
        let of_third = served.iter().filter(|&&line| line == third).count();
        assert_eq!(of_third, 2, "{served:?}");
        assert!(served[..2].contains(&third), "{served:?}");
    }

    #[test]
    fn a_caller_with_two_lines_has_the_turns_of_one() {
        let mut waiting = Waiting::new(1);
        let lines = [waiting.wait(0, 1), waiting.wait(0, 1), waiting.wait(0, 2)];
        let served: Vec<_> = (0..100).map(|_| waiting.serve(|_| one())).collect();
        let count = |line| served.iter().filter(|&&other| other == line).count();
        assert_eq!(lines.map(count), [25, 25, 50]);
    }

    #[test]
    fn a_class_of_four_times_the_weight_has_four_of_five_turns() {
        let mut waiting = Waiting::new(2);
        let (heavy, light) = (waiting.wait(0, 1), waiting.wait(1, 2));
        let weigh = |entry: Entry| {
            let weight = if entry.class == CLASS { 4 } else { 1 };
            Service::new(Tokens::ONE, Weight::ONE, weight)
        };
        let served: Vec<_> = (0..100).map(|_| waiting.serve(weigh)).collect();
        let count = |line| served.iter().filter(|&&other| other == line).count();
        assert_eq!((count(heavy), count(light)), (80, 20));
    }

    #[test]
    fn a_class_that_comes_back_brings_no_arrears_and_owes_what_it_had() {
        let mut waiting = Waiting::new(2);
        let (busy, other) = (waiting.wait(0, 1), waiting.wait(1, 2));
        waiting.serve(|_| one());
        waiting.serve(|_| one());
        waiting.leave(other);
        for _ in 0..50 {
            assert_eq!(waiting.serve(|_| one()), busy);
        }
        let back = waiting.wait(1, 2);
        let served: Vec<_> = (0..10).map(|_| waiting.serve(|_| one())).collect();
        let count = served.iter().filter(|&&line| line == back).count();
        assert_eq!(count, 5, "{served:?}");
    }

    #[test]
    fn who_was_served_and_comes_back_at_once_waits_for_the_others_first() {
        let mut waiting = Waiting::new(1);
        let lines = [waiting.wait(0, 1), waiting.wait(0, 2), waiting.wait(0, 3)];
        assert_eq!(waiting.serve(|_| one()), lines[0]);
        waiting.leave(lines[0]);
        let back = waiting.wait(0, 1);
        let served: Vec<_> = (0..3).map(|_| waiting.serve(|_| one())).collect();
        assert_eq!(served, vec![lines[1], lines[2], back]);
    }

    #[test]
    fn what_is_given_back_is_the_callers_and_its_classes_next_turn() {
        let dear = Service::new(Tokens::new(10.0).expect("tokens"), Weight::ONE, 1);
        for classes in [[0, 0], [0, 1]] {
            let mut waiting = Waiting::new(2);
            let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
            assert_eq!(waiting.serve(|_| dear), first);
            let of_first = waiting.common.served;
            assert_eq!(waiting.serve(|_| one()), second);
            let entry = waiting.entries[first as usize];
            let (class, caller) = (entry.class, entry.caller);
            let was_told = waiting.order.unserve(class, caller, dear, of_first);
            assert!(was_told);
            // It has had nothing, the other has had one.
            assert_eq!(waiting.serve(|_| one()), first);
            // What was served before the order had tags moved none.
            let not_told = waiting.order.unserve(class, caller, dear, 0);
            assert!(!not_told);
        }
    }

    #[test]
    fn who_is_served_before_its_turn_takes_no_turn_from_those_that_wait() {
        for classes in [[0, 0], [0, 1]] {
            let mut waiting = Waiting::new(2);
            let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
            // As calls that claim.
            for _ in 0..10 {
                waiting.serve_line(second, |_| one());
            }
            // One that goes to wait elsewhere and comes back has lost nothing.
            waiting.leave(first);
            let back = waiting.wait(classes[0], 1);
            let served: Vec<_> = (0..10).map(|_| waiting.serve(|_| one())).collect();
            assert_eq!(served, vec![back; 10]);
        }
    }

    #[test]
    fn a_refund_of_what_was_forgiven_since_gives_nothing() {
        let ten = Service::new(Tokens::new(10.0).expect("tokens"), Weight::ONE, 1);
        // Of classes with the same tag the first one goes first.
        for (classes, turns) in [([0, 0], 2), ([0, 1], 3)] {
            let mut waiting = Waiting::new(2);
            let (first, second) = (waiting.wait(classes[0], 1), waiting.wait(classes[1], 2));
            assert_eq!(waiting.serve(|_| ten), first);
            let of_first = waiting.common.served;
            waiting.leave(first);
            for _ in 0..50 {
                assert_eq!(waiting.serve(|_| one()), second);
            }
            let back = waiting.wait(classes[0], 1);
            waiting.order.unserve(CLASS, Caller(1), ten, of_first);
            let served: Vec<_> = (0..4).map(|_| waiting.serve(|_| one())).collect();
            let of_back = served.iter().filter(|&&line| line == back).count();
            assert_eq!(of_back, turns, "{served:?}");
        }
    }

    #[test]
    fn one_that_stands_elsewhere_knows_whether_it_is_behind() {
        let mut waiting = Waiting::new(2);
        let entry = |class, caller, arrival| Entry {
            class: Class(class),
            caller: Caller(caller),
            arrival,
            line: 99,
        };
        assert!(!waiting.order.is_behind(entry(0, 9, 1), Part::All));
        let first = waiting.wait(0, 1);
        // Alone, by arrival; and classes in their order.
        assert!(waiting.order.is_behind(entry(0, 9, 100), Part::All));
        assert!(!waiting.order.is_behind(entry(0, 9, 0), Part::All));
        assert!(waiting.order.is_behind(entry(1, 9, 0), Part::All));
        assert!(
            !waiting
                .order
                .is_behind(entry(0, 9, 100), Part::Only(Class(1)))
        );
        assert!(
            !waiting
                .order
                .is_behind(entry(0, 9, 100), Part::But(Class(0)))
        );
        let second = waiting.wait(0, 2);
        assert_eq!(waiting.serve(|_| one()), first);
        // The first caller was served once, the second has not been.
        assert!(waiting.order.is_behind(entry(0, 1, 0), Part::All));
        assert!(!waiting.order.is_behind(entry(0, 2, 0), Part::All));
        assert!(waiting.order.is_behind(entry(0, 2, 100), Part::All));
        assert_eq!(waiting.serve(|_| one()), second);
        // Whoever passes without having waited is charged all the same.
        waiting.common.served += 1;
        let common = waiting.common;
        waiting.order.serve(entry(0, 9, 0), one(), false, common);
        waiting.order.serve(entry(0, 9, 0), one(), false, common);
        assert!(waiting.order.is_behind(entry(0, 9, 0), Part::All));
    }

    #[test]
    fn a_class_that_was_silent_begins_behind_those_of_its_tag_that_the_policy_names_first() {
        let mut waiting = Waiting::new(3);
        let (first, second) = (waiting.wait(0, 1), waiting.wait(1, 2));
        for line in [first, second, first] {
            assert_eq!(waiting.serve(|_| one()), line);
        }
        // The second class has had one call, and so many have all.
        let silent = Entry {
            class: Class(2),
            caller: Caller(9),
            arrival: 0,
            line: 99,
        };
        assert!(waiting.order.is_behind(silent, Part::All));
    }

    #[test]
    fn a_call_that_makes_others_wait_is_counted_and_can_be_refunded() {
        let mut waiting = Waiting::new(1);
        waiting.wait(0, 1);
        let passing = Entry {
            class: CLASS,
            caller: Caller(2),
            arrival: 9,
            line: 99,
        };
        waiting.common.served += 1;
        let common = waiting.common;
        assert!(waiting.order.serve(passing, one(), true, common));
        assert!(waiting.order.is_behind(passing, Part::All));
        let was_told = waiting
            .order
            .unserve(CLASS, Caller(2), one(), common.served);
        assert!(was_told);
        let first = Entry {
            arrival: 0,
            ..passing
        };
        assert!(!waiting.order.is_behind(first, Part::All));
    }

    #[test]
    fn what_was_served_while_nobody_else_waited_is_not_refunded() {
        let mut waiting = Waiting::new(1);
        let first = waiting.wait(0, 1);
        assert_eq!(waiting.serve(|_| one()), first);
        let of_first = waiting.common.served;
        waiting.wait(0, 2);
        let was_told = waiting.order.unserve(CLASS, Caller(1), one(), of_first);
        assert!(!was_told);
    }

    #[test]
    fn an_order_in_which_nothing_waits_remembers_nothing() {
        let mut waiting = Waiting::new(1);
        let (first, second) = (waiting.wait(0, 1), waiting.wait(0, 2));
        for _ in 0..10 {
            waiting.serve_line(first, |_| one());
        }
        waiting.leave(first);
        assert!(waiting.known() > 0);
        waiting.leave(second);
        assert!(waiting.order.is_empty() && waiting.order.tags.is_none());
        let (_, again) = (waiting.wait(0, 1), waiting.wait(0, 2));
        assert_ne!(waiting.order.first(Part::All), Some(again));
    }

    #[test]
    fn a_reload_keeps_what_callers_and_classes_were_served() {
        let mut waiting = Waiting::new(2);
        let lines = [waiting.wait(0, 1), waiting.wait(0, 2), waiting.wait(1, 3)];
        let mut order = vec![waiting.serve(|_| one()), waiting.serve(|_| one())];
        assert_eq!(order, [lines[0], lines[2]]);
        // The first class is the second now, and the other way round.
        let places = [Some(Class(1)), Some(Class(0))];
        let old = core::mem::take(&mut waiting.order);
        waiting.order = old.reload(&places, waiting.common);
        for entry in &mut waiting.entries {
            entry.class = Class(1 - entry.class.0);
            waiting.order.insert(*entry, waiting.common);
        }
        order = (0..4).map(|_| waiting.serve(|_| one())).collect();
        // Each class has been served once, and of the one that has two callers the first.
        assert_eq!(order, [lines[2], lines[1], lines[2], lines[0]]);
        // One that is gone leaves nothing.
        let old = core::mem::take(&mut waiting.order);
        let mut order = old.reload(&[None, None], waiting.common);
        order.tidy();
        assert!(order.is_empty() && order.tags.is_none());
    }

    #[test]
    fn a_reload_lets_nobody_go_again_before_those_that_wait_for_their_first_turn() {
        let mut waiting = Waiting::new(1);
        let lines = [waiting.wait(0, 1), waiting.wait(0, 1), waiting.wait(0, 2)];
        assert_eq!(waiting.serve(|_| one()), lines[0]);
        let old = core::mem::take(&mut waiting.order);
        waiting.order = old.reload(&[Some(CLASS)], waiting.common);
        for entry in &waiting.entries {
            waiting.order.insert(*entry, waiting.common);
        }
        // The first caller's other line came before.
        assert_eq!(waiting.serve(|_| one()), lines[2]);
        assert_eq!(waiting.serve(|_| one()), lines[1]);
    }

    #[test]
    fn by_arrival_it_does_not_matter_who_calls() {
        let mut waiting = Waiting::new(1);
        waiting.order = Order::new(true);
        let lines: Vec<_> = [1, 1, 2, 1, 3].map(|caller| waiting.wait(0, caller)).into();
        let served: Vec<_> = (0..5).map(|_| waiting.serve(|_| one())).collect();
        assert_eq!(served, lines);
        let mut all = waiting.order.all();
        all.sort_unstable();
        assert_eq!(all, lines);
    }

    #[test]
    fn callers_that_come_once_are_forgotten() {
        let mut waiting = Waiting::new(1);
        let stays = waiting.wait(0, 0);
        for caller in 1..20_000 {
            let line = waiting.wait(0, caller);
            waiting.serve(|_| one());
            waiting.leave(line);
        }
        let bound = OWN_FLOWS + usize::from(SHARED_FLOWS);
        assert!(waiting.known() <= bound, "{}", waiting.known());
        waiting.leave(stays);
        assert_eq!(waiting.known(), 0);
    }

    #[test]
    fn an_endless_stream_of_new_callers_does_not_starve_an_old_one() {
        let mut waiting = Waiting::new(1);
        let old = waiting.wait(0, 0);
        let served_last = |waiting: &mut Waiting| waiting.serve(|_| one());
        assert_eq!(served_last(&mut waiting), old);
        // Of the others more come than are served.
        let passed = (1..10_000).find(|caller| {
            waiting.wait(0, 2 * caller);
            waiting.wait(0, 2 * caller + 1);
            waiting.serve(|_| one()) == old
        });
        let bound = OWN_FLOWS as u64 + u64::from(SHARED_FLOWS);
        assert!(passed.is_some_and(|served| served <= bound), "{passed:?}");
    }

    #[test]
    fn a_caller_among_too_many_keeps_its_flow_while_it_waits() {
        let mut waiting = Waiting::new(1);
        for caller in 0..OWN_FLOWS as u64 {
            waiting.wait(0, caller);
        }
        let first = waiting.wait(0, 1000);
        for caller in 2000..2500 {
            waiting.wait(0, caller);
        }
        let second = waiting.wait(0, 1000);
        let callers = |waiting: &Waiting| {
            let tags = waiting.order.tags.as_ref().expect("many wait");
            tags.classes[0].callers.sharded.get(&Caller(1000)).copied()
        };
        let (_, lines) = callers(&waiting).expect("it shares a flow");
        assert_eq!(lines, 2);
        waiting.leave(first);
        waiting.leave(second);
        assert_eq!(callers(&waiting), None);
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
