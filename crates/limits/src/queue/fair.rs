//! Whose turn it is: start-time fair queuing, twice.
//!
//! Source: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996. There, a packet of length `l`
//! of a flow with weight `w` gets a start tag `S = max(v, F)` and a finish tag
//! `F' = S + l / w`, where `F` is the finish tag of the flow's packet before it and the
//! virtual time `v` is the start tag of the packet in service. Whichever packet has the least
//! start tag is next. It needs no knowledge of the server's rate, so it stays fair when that
//! varies, which is exactly what a closed and opening limit makes it do; and two flows that
//! both always wait are never further apart than one packet of each.
//!
//! Here a packet is a call, its length the cost, and there are two levels:
//!
//! - **Callers within a class** have equal weight. The tag `S` of a call is fixed when it joins
//!   the queue, so calls of one caller stay in order, and with a single caller the order is
//!   that of arrival. Equal tags go by arrival.
//! - **Classes** share by weight. A class keeps one tag, the start tag of whatever call of it
//!   is served next: it moves on by `cost / weight` at service, not at arrival, since which of
//!   a class's calls is next is the callers' affair. A class that had nothing to offer while
//!   the virtual time passed its tag starts again from the virtual time: what is not used is
//!   not saved up.
//!
//! How our case differs: a call may be barred by a limit that others do not meet, so service
//! does not follow tags strictly, and `v` is the greatest start tag served so far.
//!
//! State is bounded. A finish tag that `v` has passed says nothing and is forgotten; a caller
//! with nothing waiting is kept only while its tag lies ahead, and of those at most
//! [`IDLE_CALLERS_MAX`]: past that `v` moves on to the least of them. That also keeps an
//! endless stream of new callers, all of whom start at `v`, from starving the old.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::{Caller, Class};
use crate::policy::ClassShare;
use crate::verdict::Cost;

/// Callers with nothing waiting whose tags a class remembers.
const IDLE_CALLERS_MAX: usize = 1024;

/// The place of a call among those of its class: by start tag, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) start: u64,
    pub(crate) arrival: u64,
}

/// The place of a class among the classes; equal tags go by the policy's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClassTurn {
    start: u128,
    class: u32,
}

/// The tags of all classes and callers.
#[derive(Debug)]
pub(crate) struct Fair {
    classes: Vec<ClassState>,
    virtual_time: u128,
}

#[derive(Debug)]
struct ClassState {
    name: Arc<str>,
    weight: u32,
    start: u128,
    callers: Callers,
}

impl ClassState {
    fn new(share: &ClassShare) -> Self {
        Self {
            name: share.name.clone(),
            weight: share.weight,
            start: 0,
            callers: Callers::default(),
        }
    }

    /// Virtual service of one unit of cost at weight 1 is 2^32, so weights divide finely.
    fn service(&self, cost: Cost) -> u128 {
        (u128::from(cost.get()) << 32) / u128::from(self.weight)
    }
}

impl Fair {
    pub(crate) fn new(shares: &[ClassShare]) -> Self {
        Self {
            classes: shares.iter().map(ClassState::new).collect(),
            virtual_time: 0,
        }
    }

    /// The class itself, or the last one for a class that an older policy had.
    pub(crate) fn clamp(&self, class: Class) -> Class {
        Class(class.0.min(self.classes.len() as u32 - 1))
    }

    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    pub(crate) fn class_turn(&self, class: Class) -> ClassTurn {
        ClassTurn {
            start: self.classes[class.0 as usize].start,
            class: class.0,
        }
    }

    /// A call joins: the start tag it waits with.
    pub(crate) fn join(&mut self, class: Class, caller: Caller, cost: Cost) -> u64 {
        self.callers(class).join(caller, cost)
    }

    /// A call that has waited all along joins the end of its flow once more. Its cost is
    /// already counted in the flow's finish tag, so the tag moves only if it must.
    pub(crate) fn rejoin(&mut self, class: Class, caller: Caller, cost: Cost) -> u64 {
        self.callers(class).rejoin(caller, cost)
    }

    /// A call that was served comes back to wait with the tag it had.
    pub(crate) fn come_back(&mut self, class: Class, caller: Caller, cost: Cost, start: u64) {
        self.callers(class).come_back(caller, cost, start);
        self.unserve(class, cost);
    }

    /// A call leaves without service.
    pub(crate) fn leave(&mut self, class: Class, caller: Caller) {
        self.callers(class).leave(caller, None);
    }

    /// A call leaves for service.
    pub(crate) fn serve(&mut self, class: Class, caller: Caller, cost: Cost, start: u64) {
        let state = &mut self.classes[class.0 as usize];
        state.callers.leave(caller, Some((start, cost)));
        self.virtual_time = self.virtual_time.max(state.start);
        state.start += state.service(cost);
    }

    /// What was served has done nothing after all.
    pub(crate) fn unserve(&mut self, class: Class, cost: Cost) {
        let state = &mut self.classes[class.0 as usize];
        state.start = state.start.saturating_sub(state.service(cost));
    }

    /// The class has something to offer again: it starts from the virtual time, if that has
    /// passed it. True if that changed its place.
    pub(crate) fn activate(&mut self, class: Class) -> bool {
        let state = &mut self.classes[class.0 as usize];
        let passed = state.start < self.virtual_time;
        state.start = state.start.max(self.virtual_time);
        passed
    }

    /// Goes on under new shares; classes are found again by name. Returns what became of each
    /// old class: its new place, or `None` if it is gone.
    pub(crate) fn reload(&mut self, shares: &[ClassShare]) -> Vec<Option<Class>> {
        let mut old = mem::take(&mut self.classes);
        let places = old
            .iter()
            .map(|state| {
                let place = shares.iter().position(|share| share.name == state.name)?;
                Some(Class(place as u32))
            })
            .collect();
        self.classes = shares
            .iter()
            .map(|share| {
                let mut state = ClassState::new(share);
                if let Some(old) = old.iter_mut().find(|old| old.name == share.name) {
                    state.start = old.start;
                    state.callers = mem::take(&mut old.callers);
                }
                state
            })
            .collect();
        places
    }

    fn callers(&mut self, class: Class) -> &mut Callers {
        &mut self.classes[class.0 as usize].callers
    }

    /// Callers remembered, over all classes.
    pub(crate) fn callers_known(&self) -> usize {
        self.classes
            .iter()
            .map(|state| state.callers.known.len())
            .sum()
    }
}

/// The callers of one class.
#[derive(Debug, Default)]
struct Callers {
    virtual_time: u64,
    known: BTreeMap<Caller, CallerState>,
    /// Callers with nothing waiting, by finish tag; every one of them ahead of `virtual_time`.
    idle: BTreeSet<(u64, Caller)>,
    waiting: usize,
}

#[derive(Debug, Default)]
struct CallerState {
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
    fn enter(&mut self, caller: Caller) -> &mut CallerState {
        let state = self.known.entry(caller).or_default();
        if state.waiting == 0 {
            self.idle.remove(&(state.finish, caller));
        }
        state.waiting += 1;
        self.waiting += 1;
        state
    }

    fn join(&mut self, caller: Caller, cost: Cost) -> u64 {
        let virtual_time = self.virtual_time;
        let state = self.enter(caller);
        state.last_start = state.finish.max(virtual_time);
        state.finish = state.last_start.saturating_add(u64::from(cost.get()));
        state.last_start
    }

    fn rejoin(&mut self, caller: Caller, cost: Cost) -> u64 {
        let state = self
            .known
            .get_mut(&caller)
            .expect("a caller with a call waiting is known");
        let start = state.last_start.max(self.virtual_time);
        state.last_start = start;
        state.finish = state
            .finish
            .max(start.saturating_add(u64::from(cost.get())));
        start
    }

    fn come_back(&mut self, caller: Caller, cost: Cost, start: u64) {
        let state = self.enter(caller);
        state.last_start = state.last_start.max(start);
        state.finish = state
            .finish
            .max(start.saturating_add(u64::from(cost.get())));
    }

    fn leave(&mut self, caller: Caller, served: Option<(u64, Cost)>) {
        let state = self
            .known
            .get_mut(&caller)
            .expect("a caller with a call waiting is known");
        state.waiting -= 1;
        self.waiting -= 1;
        if let Some((start, cost)) = served {
            state.served = state
                .served
                .max(start.saturating_add(u64::from(cost.get())));
            self.virtual_time = self.virtual_time.max(start);
        }
        if state.waiting == 0 {
            state.finish = state.served;
            self.idle.insert((state.finish, caller));
        }
        if self.waiting == 0 {
            // The end of a busy period: virtual time goes to the last finish tag.
            if let Some(&(finish, _)) = self.idle.last() {
                self.virtual_time = self.virtual_time.max(finish);
            }
        } else if self.idle.len() > IDLE_CALLERS_MAX
            && let Some(&(finish, _)) = self.idle.first()
        {
            self.virtual_time = self.virtual_time.max(finish);
        }
        while let Some(&(finish, caller)) = self.idle.first()
            && finish <= self.virtual_time
        {
            self.idle.pop_first();
            self.known.remove(&caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const CLASS: Class = Class(0);

    fn fair() -> Fair {
        Fair::new(&[ClassShare {
            name: "only".into(),
            weight: 1,
        }])
    }

    #[test]
    fn a_newcomer_starts_beside_the_oldest_call_that_waits() {
        let mut fair = fair();
        let greedy: Vec<u64> = (0..5)
            .map(|_| fair.join(CLASS, Caller(1), Cost::ONE))
            .collect();
        assert_eq!(greedy, vec![0, 1, 2, 3, 4]);
        fair.serve(CLASS, Caller(1), Cost::ONE, 0);
        fair.serve(CLASS, Caller(1), Cost::ONE, 1);
        assert_eq!(fair.join(CLASS, Caller(2), Cost::ONE), 1);
    }

    #[test]
    fn who_cancels_everything_is_not_charged_for_it() {
        let mut fair = fair();
        fair.join(CLASS, Caller(2), Cost::ONE);
        for _ in 0..100 {
            fair.join(CLASS, Caller(1), Cost::ONE);
        }
        for _ in 0..100 {
            fair.leave(CLASS, Caller(1));
        }
        assert_eq!(fair.join(CLASS, Caller(1), Cost::ONE), 0);
    }

    #[test]
    fn callers_that_come_once_are_forgotten() {
        let mut fair = fair();
        fair.join(CLASS, Caller(0), Cost::ONE);
        for caller in 1..100_000 {
            let start = fair.join(CLASS, Caller(caller), Cost::ONE);
            fair.serve(CLASS, Caller(caller), Cost::ONE, start);
            let cancelled = Caller(caller << 32);
            fair.join(CLASS, cancelled, Cost::ONE);
            fair.leave(CLASS, cancelled);
        }
        assert!(
            fair.callers_known() <= IDLE_CALLERS_MAX + 2,
            "{}",
            fair.callers_known()
        );
        fair.leave(CLASS, Caller(0));
        assert_eq!(fair.callers_known(), 0);
    }

    #[test]
    fn an_endless_stream_of_new_callers_does_not_starve_an_old_one() {
        let mut fair = fair();
        fair.join(CLASS, Caller(0), Cost::ONE);
        let second = fair.join(CLASS, Caller(0), Cost::ONE);
        let passed = (1..10_000).find(|&caller| {
            let start = fair.join(CLASS, Caller(caller), Cost::ONE);
            fair.serve(CLASS, Caller(caller), Cost::ONE, start);
            start >= second
        });
        assert!(
            passed.is_some_and(|served| served <= IDLE_CALLERS_MAX as u64 + 2),
            "{passed:?}"
        );
    }
}
