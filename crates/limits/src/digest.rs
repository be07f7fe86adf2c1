//! A number for the state of a scheduler, for searches that visit each state once.
//!
//! Schedulers with the same digest take the same decisions from now on, except for a collision of 64-bit numbers. So a digest
//! contains what decides, in a form that does not depend on how the state was reached:
//!
//! - Moments count from now. Past ones are cut at a time after which no limit remembers them, and moments that have come are all the
//!   same.
//! - Arrivals are only ever compared with each other, so their ranks are taken. Of the number of a served call and of a draw it only
//!   matters whether tags and notes of a bucket began before it.
//! - The tags of an order count from the least of them: only differences decide. A base is moved up to where a start would be if all
//!   calls in flight that moved it were given back: no refund goes further back.
//! - A flow is named by the arrival of its first call, and a call by its own.
//!
//! A digest does not contain counts and times that are only reported: what calls waited for, how long slots were held (retry times of
//! refusals), numbers of questions, claims and changes; nor the places of values in memory. It contains no forecasts and no quotas: a
//! scheduler with any is refused.
//!
//! Each part is taken apart by all its fields, so that no new field is forgotten.

use alloc::vec::Vec;
use core::time::Duration;

use crate::call::{Call, Caller, Class};
use crate::queue::Budget;
use crate::queue::fair::TurnAdvance;
use crate::time::{Timestamp, nanos};

/// Collects the state of a scheduler, and of what a search keeps beside it.
#[derive(Clone, Debug, Default)]
pub struct Digest {
    hash: u64,
    now: Timestamp,
    /// How long a past moment differs from an older one.   ns
    remembers: u64,
    /// Whether calls have deadlines.
    pub(crate) has_deadlines: bool,
    /// The arrivals, ascending.
    pub(crate) arrivals: Vec<u64>,
    /// The turns of the calls in flight, in the order of arrival.
    pub(crate) turns: Vec<HeldTurn>,
    /// Their draws from buckets, in the same order.
    pub(crate) draws: Vec<u64>,
}

/// The turn that a call in flight had at a budget, and that may be given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldTurn {
    pub(crate) class: Class,
    pub(crate) caller: Caller,
    /// The number among all that were served.
    pub(crate) served: u64,
    pub(crate) at: Budget,
    pub(crate) service: TurnAdvance,
}

impl Digest {
    /// An empty digest. No limit of any policy counts anything longer than `remembers`. If calls have deadlines, their places in memory
    /// decide which of two with the same deadline expires first.
    #[must_use]
    pub fn new(remembers: Duration, has_deadlines: bool) -> Self {
        Self {
            remembers: nanos(remembers),
            has_deadlines,
            ..Self::default()
        }
    }

    /// Begins a new one at this moment.
    pub fn begin(&mut self, now: Timestamp) {
        (self.hash, self.now) = (0, now);
        self.arrivals.clear();
        self.turns.clear();
        self.draws.clear();
    }

    /// The number for everything that was added.
    #[must_use]
    pub const fn number(&self) -> u64 {
        let mixed = (self.hash ^ (self.hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }

    /// Adds a word. For the same state before, different words always give different states after.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = (mixed ^ (mixed >> 29))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .rotate_left(31);
    }

    /// Adds a moment that has passed.
    pub fn past(&mut self, at: Timestamp) {
        self.word(nanos(self.now.since(at)).min(self.remembers));
    }

    /// Adds a moment that has passed. Older ones than `most` are all the same.
    pub(crate) fn past_within(&mut self, at: Timestamp, most: Duration) {
        let passed = nanos(self.now.since(at));
        self.word(passed.min(self.remembers).min(nanos(most)));
    }

    /// Adds a moment that is to come. All that have come are the same.
    pub fn coming(&mut self, at: Timestamp) {
        self.word(nanos(at.since(self.now)));
    }

    /// Whether a past moment differs from older ones.
    #[must_use]
    pub fn remembers(&self, at: Timestamp) -> bool {
        nanos(self.now.since(at)) < self.remembers
    }

    pub(crate) fn maybe_past(&mut self, at: Option<Timestamp>) {
        self.flag(at.is_some());
        at.into_iter().for_each(|at| self.past(at));
    }

    pub(crate) fn maybe_coming(&mut self, at: Option<Timestamp>) {
        self.flag(at.is_some());
        at.into_iter().for_each(|at| self.coming(at));
    }

    /// Adds until when a call waits. One whose deadline is now is still asked once.
    fn deadline(&mut self, deadline: Option<Timestamp>) {
        match deadline {
            None => self.word(u64::MAX),
            Some(at) if at < self.now => self.word(u64::MAX - 1),
            Some(at) => self.coming(at),
        }
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.word(u64::from(flag));
    }

    pub(crate) fn span(&mut self, span: Duration) {
        self.word(nanos(span));
    }

    pub(crate) fn wide(&mut self, word: u128) {
        self.word(word as u64);
        self.word((word >> 64) as u64);
    }

    pub(crate) fn real(&mut self, number: f64) {
        // Zero and minus zero are the same.
        self.word((number + 0.0).to_bits());
    }

    /// Adds the rank of an arrival.
    pub(crate) fn arrival(&mut self, arrival: u64) {
        let rank = self.arrivals.partition_point(|&other| other < arrival);
        self.word(rank as u64);
    }

    /// Adds which draws of calls in flight came after this number.
    pub(crate) fn drawn_after(&mut self, number: u64) {
        let after = self.draws.iter().map(|&draw| u64::from(draw > number));
        let after = after.fold(1, |bits, after| bits << 1 | after);
        self.word(after);
    }

    /// Adds what decides about a call.
    pub(crate) fn call(&mut self, call: &Call) {
        let Call {
            function,
            backend,
            server,
            class,
            caller,
            weight,
            cost,
            tokens,
            bucket,
            quotas,
            arrived: _,
            deadline,
            is_settled,
        } = call;
        assert!(quotas.is_none(), "a digest has no quotas");
        self.word(function.len() as u64);
        for byte in function.bytes() {
            self.word(u64::from(byte));
        }
        let small = [
            u32::from(backend.0),
            u32::from(server.key()),
            class.0,
            weight.get(),
            cost.get(),
            u32::from(*is_settled),
        ];
        for number in small {
            self.word(u64::from(number));
        }
        self.word(caller.0);
        self.real(tokens.get());
        self.word(bucket.map_or(u64::MAX, |bucket| bucket.0));
        self.deadline(*deadline);
    }
}
