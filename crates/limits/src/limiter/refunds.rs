//! A bucket that takes tokens back for calls that went earlier.

use core::time::Duration;

use crate::bucket::{Burst, Fill, TokenBucket, TokenLimiter, Tokens};
use crate::digest::Digest;
use crate::time::Timestamp;

/// Levels that are remembered, at most. With more of them a refund is smaller, and never larger.
const NOTES_MAX: usize = 16;

/// A bucket that gives a refund as if the call had never drawn it.
///
/// Without that draw the bucket would have been fuller since, and what flowed in above the burst would have been lost. So
/// refunds of all calls up to a moment are at most the room that the bucket had then. If they were more, calls that reserve
/// much and use little could double the burst. This is the reflection of a path at a barrier (J. M. Harrison, "Brownian
/// Motion and Stochastic Flow Systems", 1985, section 2).
#[derive(Clone, Debug)]
pub(crate) struct RefundedBucket {
    bucket: TokenBucket,
    /// Draws so far.
    draws: u64,
    notes: [RoomNote; NOTES_MAX],
    noted: u8,
    /// Tokens that calls hold which drew after the last note.
    held: f64,
}

/// The room of a bucket at some moment, for refunds of the draws before it. Kept as long as it is less than at every later
/// moment, and less than those calls hold: from the first to the last, draws and rooms rise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RoomNote {
    /// The latest draw before that moment.
    draw: u64,
    /// Tokens that had room in the bucket, less what came back since.
    room: f64,
    /// Tokens that calls hold which drew after the note before, and have not ended.
    held: f64,
}

impl TokenLimiter for RefundedBucket {
    #[inline]
    fn peek(&self, now: Timestamp) -> f64 {
        self.bucket.peek(now)
    }

    #[inline]
    fn has(&self, now: Timestamp, cost: Tokens) -> bool {
        self.bucket.has(now, cost)
    }

    fn available_at(&self, now: Timestamp, cost: Tokens) -> Timestamp {
        self.bucket.available_at(now, cost)
    }

    fn wait_behind(&self, now: Timestamp, ahead: f64, cost: Tokens) -> Duration {
        self.bucket.wait_behind(now, ahead, cost)
    }

    #[inline]
    fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64 {
        self.note(now);
        self.bucket.take_more(now, tokens, whole)
    }

    fn put_back(&mut self, now: Timestamp, tokens: f64) {
        self.bucket.put_back(now, tokens);
    }
}

impl RefundedBucket {
    pub(crate) fn new(bucket: TokenBucket) -> Self {
        Self {
            bucket,
            draws: 0,
            notes: [RoomNote::default(); NOTES_MAX],
            noted: 0,
            held: 0.0,
        }
    }

    fn room(&self, now: Timestamp) -> f64 {
        (self.bucket.burst().get() - self.bucket.peek(now)).max(0.0)
    }

    fn noted(&self) -> &[RoomNote] {
        &self.notes[..usize::from(self.noted)]
    }

    /// The level is about to fall, or the burst to change.
    #[inline]
    fn note(&mut self, now: Timestamp) {
        let room = self.room(now);
        while let Some(last) = self.noted().last().filter(|last| last.room >= room) {
            self.held += last.held;
            self.noted -= 1;
        }
        let is_noted = self
            .noted()
            .last()
            .is_some_and(|last| last.draw == self.draws);
        let before: f64 = self.noted().iter().map(|note| note.held).sum();
        // All of them may come back, and fit.
        if is_noted || before + self.held <= room + f64::EPSILON * self.bucket.burst().get() {
            return;
        }
        if usize::from(self.noted) == NOTES_MAX {
            self.forget_one(now);
        }
        self.notes[usize::from(self.noted)] = RoomNote {
            draw: self.draws,
            room,
            held: core::mem::take(&mut self.held),
        };
        self.noted += 1;
    }

    /// Makes room for a note: forgets the one of which the least is lost. What its calls hold beyond its room is taken now, so
    /// that all of it may come back.
    #[cold]
    fn forget_one(&mut self, now: Timestamp) {
        let mut held = 0.0;
        let beyond = self.noted().iter().map(|note| {
            held += note.held;
            held - note.room
        });
        let least = beyond
            .enumerate()
            .min_by(|(_, one), (_, other)| one.total_cmp(other));
        let (forgotten, beyond) = least.expect("there are notes");
        let held = self.notes[forgotten].held;
        match self.notes[..usize::from(self.noted)].get_mut(forgotten + 1) {
            Some(next) => next.held += held,
            None => self.held += held,
        }
        self.notes.copy_within(forgotten + 1.., forgotten);
        self.noted -= 1;
        if beyond > 0.0 {
            self.bucket.take_more(now, beyond, beyond);
        }
    }

    /// A draw took this many tokens. Returns its number.
    #[inline]
    pub(crate) fn count_draw(&mut self, tokens: f64) -> u64 {
        self.held += tokens;
        self.draws += 1;
        self.draws
    }

    pub(crate) fn digest(&self, now: Timestamp, to: &mut Digest) {
        let Self {
            bucket,
            draws,
            notes: _,
            noted,
            held,
        } = self;
        to.real(bucket.peek(now));
        to.real(bucket.burst().get());
        to.real(bucket.fill().get());
        to.word(u64::from(*noted));
        for RoomNote { draw, room, held } in self.noted() {
            to.drawn_after(*draw);
            to.word(u64::from(draw == draws));
            to.real(*room);
            to.real(*held);
        }
        to.real(*held);
    }

    /// Tokens a second that flow in.
    pub(crate) const fn fill(&self) -> Fill {
        self.bucket.fill()
    }

    /// Changes the parameters in place, as [`TokenBucket::set_parameters`] does.
    pub(crate) fn set_parameters(&mut self, now: Timestamp, burst: Burst, fill: Fill) {
        self.note(now);
        self.bucket.set_parameters(now, burst, fill);
        self.note(now);
    }

    /// Lowers the level, as [`TokenBucket::lower`] does.
    pub(crate) fn lower(&mut self, now: Timestamp, tokens: f64, since: Timestamp) {
        self.note(now);
        self.bucket.lower(now, tokens, since);
    }

    /// A call has ended that drew this many tokens: no more of them comes back.
    pub(crate) fn keep(&mut self, draw: u64, tokens: f64) {
        let notes = &mut self.notes[..usize::from(self.noted)];
        let first = notes.partition_point(|note| note.draw < draw);
        let held = match notes.get_mut(first) {
            Some(note) => &mut note.held,
            None => &mut self.held,
        };
        *held = (*held - tokens).max(0.0);
    }

    /// Puts back tokens of a draw, as far as they would still be in the bucket.
    pub(crate) fn refund(&mut self, now: Timestamp, draw: u64, tokens: f64) {
        let room = self.room(now);
        let notes = &mut self.notes[..usize::from(self.noted)];
        let first = notes.partition_point(|note| note.draw < draw);
        let since = &mut notes[first..];
        let least = since.first().map_or(f64::INFINITY, |note| note.room);
        let tokens = tokens.min(least).min(room);
        // What comes back takes that room from others that drew before.
        for note in since {
            note.room -= tokens;
        }
        let after = least - tokens;
        let mut kept = first;
        let mut held = 0.0;
        while kept > 0 && self.notes[kept - 1].room >= after {
            kept -= 1;
            held += self.notes[kept].held;
        }
        if kept < first {
            self.notes[first].held += held;
            self.notes.copy_within(first.., kept);
            self.noted -= (first - kept) as u8;
        }
        self.bucket.put_back(now, tokens);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn bucket(burst: f64, fill: f64) -> RefundedBucket {
        let burst = Burst::new(burst).expect("a burst");
        let fill = Fill::new(fill).expect("a rate");
        RefundedBucket::new(TokenBucket::new(Timestamp::ZERO, burst, fill))
    }

    fn draw(bucket: &mut RefundedBucket, now: Timestamp, tokens: f64) -> u64 {
        let taken = bucket.draw(now, Tokens::new(tokens).expect("tokens"));
        bucket.count_draw(taken)
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn what_would_have_overflowed_does_not_come_back() {
        let mut it = bucket(100.0, 10.0);
        let unused = draw(&mut it, at(0), 100.0);
        let next = draw(&mut it, at(10), 100.0);
        it.refund(at(10), unused, 100.0);
        assert_eq!(it.peek(at(10)), 0.0, "it was full again without the refund");
        // The next one is refunded while the bucket has room.
        it.refund(at(13), next, 60.0);
        assert_eq!(it.peek(at(13)), 90.0);
    }

    #[test]
    fn two_refunds_do_not_fill_the_same_room() {
        let mut it = bucket(100.0, 10.0);
        let (one, other) = (draw(&mut it, at(0), 50.0), draw(&mut it, at(0), 50.0));
        draw(&mut it, at(5), 50.0);
        it.refund(at(5), one, 50.0);
        it.refund(at(5), other, 50.0);
        assert_eq!(it.peek(at(5)), 50.0);
    }

    #[test]
    fn any_number_of_calls_at_once_get_back_what_they_did_not_use() {
        let mut it = bucket(100_000.0, 0.001);
        let draws: Vec<_> = (0..100).map(|_| draw(&mut it, at(0), 800.0)).collect();
        for number in draws.into_iter().rev() {
            it.refund(at(1), number, 798.0);
            it.keep(number, 800.0);
        }
        assert!(
            (it.peek(at(1)) - 99_800.0).abs() < 0.01,
            "{}",
            it.peek(at(1))
        );
    }

    #[test]
    fn calls_that_come_and_go_get_back_what_they_did_not_use() {
        let mut it = bucket(1_000_000.0, 0.001);
        let mut running = Vec::new();
        let mut state = 3_u64;
        for call in 0..2_000_u64 {
            let now = Timestamp::ZERO + Duration::from_millis(call);
            running.push(draw(&mut it, now, 800.0));
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            while running.len() > 20 + (state >> 60) as usize {
                let ends = (state >> 33) as usize % running.len();
                let number = running.swap_remove(ends);
                it.refund(now, number, 798.0);
                it.keep(number, 800.0);
            }
        }
        let now = at(2);
        for number in running {
            it.refund(now, number, 798.0);
            it.keep(number, 800.0);
        }
        let level = it.peek(now);
        assert!((level - 996_000.0).abs() < 1.0, "{level}");
    }

    /// A draw of a path: how much of it comes back, and when.
    #[derive(Clone, Copy)]
    struct Planned {
        second: u64,
        tokens: u64,
        used: u64,
        refunded: u64,
    }

    /// The level at the end if each call had drawn only what it used: the oracle, without a memory of its own.
    fn of_used(plan: &[Planned], burst: f64, fill: f64, end: u64) -> f64 {
        let mut level = burst;
        for second in 0..=end {
            if second > 0 {
                level = (level + fill).min(burst);
            }
            for call in plan.iter().filter(|call| call.second == second) {
                level -= call.used as f64;
            }
        }
        level
    }

    #[test]
    fn the_level_is_that_of_calls_that_drew_what_they_used() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let (mut exact, mut doubled) = (0, 0);
        for _ in 0..20_000 {
            let (burst, fill) = (20.0, 1.0 + below(8) as f64);
            let calls = 1 + below(12);
            let mut plan = Vec::new();
            for _ in 0..calls {
                let second = below(12);
                let tokens = below(12);
                plan.push(Planned {
                    second,
                    tokens,
                    used: below(tokens + 1),
                    refunded: second + below(8),
                });
            }
            let mut it = bucket(burst, fill);
            // Takes back whatever was not used.
            let mut careless = bucket(burst, fill);
            let mut numbers = vec![0; plan.len()];
            let end = 24;
            for second in 0..=end {
                for (call, number) in plan.iter().zip(&mut numbers) {
                    if call.second == second {
                        *number = draw(&mut it, at(second), call.tokens as f64);
                        draw(&mut careless, at(second), call.tokens as f64);
                    }
                }
                for (call, &number) in plan.iter().zip(&numbers) {
                    if call.refunded == second {
                        let unused = (call.tokens - call.used) as f64;
                        it.refund(at(second), number, unused);
                        it.keep(number, call.tokens as f64);
                        careless.put_back(at(second), unused);
                    }
                }
            }
            let (level, wanted) = (it.peek(at(end)), of_used(&plan, burst, fill, end));
            assert!(level <= wanted + 1e-9, "{level} of {wanted}");
            if (level - wanted).abs() < 1e-9 {
                exact += 1;
            }
            doubled += u32::from(careless.peek(at(end)) > wanted + 1e-9);
        }
        // The rest had more levels to remember than there is room for.
        assert!(exact > 19_900, "{exact}");
        assert!(doubled > 100, "the careless one is found out: {doubled}");
    }
}
