//! The state of an order, as words of a digest.

use alloc::vec::Vec;

use super::callers::{CallerGroup, Callers, GroupTags};
use super::order::{ClassTags, FairOrder, Tags};
use super::service::{FlowEntry, TurnAdvance};
use crate::call::Class;
use crate::digest::{Digest, HeldTurn};
use crate::queue::budget::Budget;

impl FairOrder {
    /// Adds the order of the flows at this budget; `None` for those that are to be asked.
    pub(crate) fn digest(&self, at: Option<Budget>, to: &mut Digest) {
        let Self {
            flows,
            only,
            tags,
            by_arrival,
        } = self;
        to.word(u64::from(*flows));
        to.flag(*by_arrival);
        // Its class and its caller are those of its first call.
        to.word(only.map_or(0, |_| 1));
        if let Some(FlowEntry { arrival, .. }) = only {
            to.arrival(*arrival);
        }
        to.flag(tags.is_some());
        if let Some(tags) = tags {
            tags.digest(at, to);
        }
    }
}

impl Tags {
    fn digest(&self, at: Option<Budget>, to: &mut Digest) {
        let Self {
            served_before,
            classes,
            virtual_time,
        } = self;
        // Those that these tags have counted.
        let counted = |turn: &&HeldTurn| Some(turn.at) == at && turn.served > *served_before;
        let turns: Vec<HeldTurn> = to.turns.iter().filter(counted).copied().collect();
        let which = to.turns.iter().map(|turn| u64::from(counted(&turn)));
        let which = which.fold(1, |bits, is| bits << 1 | is);
        to.word(which);
        // A class without flows whose start was passed begins at the virtual time, whatever its start and its base are.
        let starts_at = |class: &ClassTags| match class.flows {
            0 => class.start.max(*virtual_time),
            _ => class.start,
        };
        let least = classes.iter().map(starts_at).fold(*virtual_time, u128::min);
        to.wide(virtual_time - least);
        for (class, place) in classes.iter().zip(0..) {
            let ClassTags {
                start: _,
                base,
                flows,
                callers,
            } = class;
            let own = turns.iter().filter(|turn| turn.class == Class(place));
            let start = starts_at(class);
            let base = match *flows {
                0 if class.start < *virtual_time => start,
                _ => {
                    let refunds = own.clone().map(|turn| u128::from(turn.service.class));
                    (*base).max(start.saturating_sub(refunds.sum()))
                }
            };
            to.word(u64::from(*flows));
            to.wide(start - least);
            to.wide(start - base);
            callers.digest(own.copied().collect(), to);
        }
    }
}

impl Callers {
    /// Adds the callers of a class, of which these have turns that may be given back.
    fn digest(&self, turns: Vec<HeldTurn>, to: &mut Digest) {
        let Self {
            by_arrival,
            seed: _,
            virtual_time,
            known,
            // Both follow from `known`.
            active: _,
            idle: _,
            sharded,
        } = self;
        assert!(sharded.is_empty(), "a digest has no shared groups");
        let starts = known.iter().map(|(_, group)| group.start);
        let least = starts.fold(*virtual_time, u64::min);
        to.word(virtual_time - least);
        to.word(known.len() as u64);
        for (group, GroupTags { start, base, flows }) in known {
            to.word(match group {
                CallerGroup::Own(caller) => caller.0,
                CallerGroup::Shared(_) | CallerGroup::All => u64::MAX,
            });
            let own = turns
                .iter()
                .filter(|turn| *by_arrival || CallerGroup::Own(turn.caller) == *group);
            let refunds: u64 = own.map(|turn| turn.service.caller).sum();
            let base = (*base).max(start.saturating_sub(refunds));
            to.word(start - least);
            to.word(start - base);
            let mut arrivals: Vec<u64> = flows.iter().map(|(at, _)| at).collect();
            arrivals.sort_unstable();
            to.word(arrivals.len() as u64);
            arrivals.into_iter().for_each(|at| to.arrival(at));
        }
    }
}

impl TurnAdvance {
    pub(crate) fn digest(self, to: &mut Digest) {
        let Self { caller, class } = self;
        to.word(caller);
        to.word(class);
    }
}
