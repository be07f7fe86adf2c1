//! The state of a limit, by its kind, and what a call has drawn from it.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::level::{BucketLimit, Level, TokenDraw};
use crate::bucket::TokenCount;
use crate::call::{Call, Cost};
use crate::digest::Digest;
use crate::policy::{Limit, WindowStamp};
use crate::time::Timestamp;
use crate::verdict::Verdict;
use crate::window::Window;

/// Why other cases do not occur.
const MISMATCH: &str = "a call has a stake of the limit's own kind";

#[derive(Clone, Debug)]
pub(super) enum LimitState {
    Outstanding(Outstanding),
    Window(Window),
    Paced(Level),
}

impl LimitState {
    pub(super) fn new(now: Timestamp, limit: &Limit) -> Self {
        match *limit {
            Limit::Outstanding { .. } => Self::Outstanding(Outstanding::default()),
            Limit::Window {
                length,
                guard,
                shape,
                ..
            } => Self::Window(Window::new(length, guard, shape)),
            Limit::Paced { pace } => Self::Paced(Level::new(now, BucketLimit::Paced(pace))),
        }
    }

    pub(super) fn used(&self, now: Timestamp) -> u64 {
        match self {
            Self::Outstanding(outstanding) => u64::from(outstanding.in_use),
            Self::Window(window) => window.used(now),
            // Tokens drawn from a pace are spent, so none are in use.
            Self::Paced(_) => 0,
        }
    }

    /// When it opens for a call with this drawn before it, where `max` is the maximum.
    pub(super) fn opening(
        &self,
        from: Timestamp,
        call: &Call,
        max: u32,
        ahead: u64,
    ) -> LimitOpening {
        if max == 0 {
            return LimitOpening::Unknown;
        }
        match self {
            Self::Outstanding(outstanding) => {
                let opens = outstanding.opens(from, max, ahead);
                opens.map_or(LimitOpening::Unknown, LimitOpening::At)
            }
            Self::Window(window) => match window.opens_behind(from, max, ahead, call.cost) {
                Ok(at) => LimitOpening::At(at),
                Err((behind, then)) => LimitOpening::After { behind, then },
            },
            Self::Paced(level) => {
                let ahead = TokenCount::from_micros(ahead).tokens();
                LimitOpening::At(from + level.limiter().wait_behind(from, ahead, call.tokens))
            }
        }
    }

    /// Whether no draw is open that only the end of a call brings back.
    pub(super) fn is_at_rest(&self) -> bool {
        match self {
            Self::Outstanding(outstanding) => outstanding.in_use == 0,
            Self::Window(window) => window.reserved == 0,
            Self::Paced(_) => true,
        }
    }

    #[inline]
    pub(super) fn take(&mut self, now: Timestamp, call: &Call) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.take(now);
                Stake::Slot
            }
            Self::Window(window) => {
                window.reserve(call.cost);
                Stake::Reserved(call.cost)
            }
            Self::Paced(level) => Stake::Tokens(level.draw(now, call.tokens)),
        }
    }

    #[inline]
    pub(super) fn release(&mut self, now: Timestamp, stake: Stake, held: Option<Duration>) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.release(held),
            (Self::Window(window), Stake::Reserved(cost)) => window.depart(now, cost),
            (Self::Window(_), Stake::Departed(_)) | (Self::Paced(_), Stake::Tokens(_)) => {}
            _ => unreachable!("{MISMATCH}"),
        }
    }

    #[inline]
    pub(super) fn depart(&mut self, now: Timestamp, cost: Cost) {
        match self {
            Self::Window(window) => window.depart(now, cost),
            Self::Outstanding(_) | Self::Paced(_) => unreachable!("{MISMATCH}"),
        }
    }

    pub(super) fn undraw(&mut self, now: Timestamp, stake: Stake) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => {
                outstanding.in_use -= 1;
                outstanding.forget_begun();
            }
            (Self::Window(window), Stake::Reserved(cost)) => {
                window.reserved -= u64::from(cost.get());
            }
            (Self::Paced(level), Stake::Tokens(taken)) => level.undraw(now, taken),
            (Self::Window(_), Stake::Departed(_)) => {}
            _ => unreachable!("{MISMATCH}"),
        }
    }

    /// Counts a call that was in flight before this limit existed, and when it departed.
    pub(super) fn adopt(
        &mut self,
        now: Timestamp,
        call: &Call,
        departed: Option<Timestamp>,
    ) -> Stake {
        match (self, departed) {
            (Self::Window(window), Some(departed)) => {
                window.stamp_late(departed, call.cost);
                Stake::Departed(call.cost)
            }
            // A pace counts calls when they start.
            (Self::Paced(_), _) => Stake::Tokens(TokenDraw::NOTHING),
            (state, _) => state.take(now, call),
        }
    }
}

/// The unit in which draws from a limit are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Calls,
    Cost,
    /// Millionths of a token.
    Tokens,
}

impl Unit {
    /// How many units there are.
    pub(crate) const ALL: usize = 3;
}

/// When a limit opens for a call, as far as its state shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitOpening {
    /// At this moment.
    At(Timestamp),
    /// `then` after the departure of a call that has `behind` drawn before it, and waits itself.
    After { behind: u64, then: Duration },
    /// The limit is closed, or nothing was measured.
    Unknown,
}

/// The departures of a call in flight so far, by what counts as one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Departures([Option<Timestamp>; 2]);

impl Departures {
    pub(crate) fn digest(self, to: &mut Digest) {
        let Self(departed) = self;
        for at in departed {
            to.maybe_past(at);
        }
    }

    /// The departure that a window with this stamp counts, if it has happened.
    pub(crate) const fn departed(self, stamp: WindowStamp) -> Option<Timestamp> {
        self.0[stamp as usize]
    }

    pub(crate) const fn depart(&mut self, now: Timestamp, stamp: WindowStamp) {
        self.0[stamp as usize] = Some(now);
    }
}

/// A call's draw from a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stake {
    /// A place among the calls in flight.
    Slot,
    /// Cost in a window, before the departure.
    Reserved(Cost),
    /// Cost in a window, after the departure.
    Departed(Cost),
    /// Tokens of a pace.
    Tokens(TokenDraw),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Outstanding {
    pub(super) in_use: u32,
    pub(super) holds: Holds,
    /// When the calls in flight began, about: as many of the latest as there are in flight.
    pub(super) begun: VecDeque<Timestamp>,
}

/// How long slots were held lately, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holds {
    count: u32,
    mean: f64,
    variance: f64,
}

/// Each hold counts for one of at most this many in the mean and in its variance.
const HOLDS: u32 = 64;

impl Holds {
    fn add(&mut self, held: Duration) {
        self.count = (self.count + 1).min(HOLDS);
        let part = 1.0 / f64::from(self.count);
        let off = held.as_secs_f64() - self.mean;
        self.mean += part * off;
        self.variance = (1.0 - part) * (self.variance + part * off * off);
    }
}

impl Outstanding {
    pub(super) fn peek(&self, max: u32) -> Verdict {
        if self.in_use < max {
            Verdict::Ready
        } else {
            Verdict::OnChange
        }
    }

    fn take(&mut self, now: Timestamp) {
        self.in_use += 1;
        self.begun.push_back(now);
    }

    /// Forgets when a call began. Which one has ended is not known: the one that began first is taken to be it.
    fn forget_begun(&mut self) {
        if self.begun.len() > self.in_use as usize {
            self.begun.pop_front();
        }
    }

    pub(super) fn release(&mut self, held: Option<Duration>) {
        self.in_use -= 1;
        self.forget_begun();
        if let Some(held) = held {
            self.holds.add(held);
        }
    }

    /// When a slot is free for a call with this many ahead. If all holds take about the same time, slots come
    /// back in the order in which they were taken. The more they differ, the more evenly slots come back.
    fn opens(&self, from: Timestamp, max: u32, ahead: u64) -> Option<Timestamp> {
        let Holds {
            count,
            mean,
            variance,
        } = self.holds;
        let ends = |begun: Timestamp| begun.as_nanos() as f64 / 1e9 + mean;
        let at = from.as_nanos() as f64 / 1e9;
        let in_use = u64::from(self.in_use);
        let max = u64::from(max);
        if in_use + ahead < max {
            return Some(from);
        }
        if count == 0 {
            return None;
        }
        // It starts with the n-th end from now.
        let n = in_use + ahead - max;
        let slots = max;
        let rounds = n / slots;
        let place = (n % slots) as usize;
        let begun = self.begun.get(place).copied().unwrap_or(from);
        let in_order = ends(begun).max(at) + rounds as f64 * mean;
        let evenly = at + (n + 1) as f64 * mean / slots as f64;
        let spread = 4.0 * variance / (mean * mean).max(f64::MIN_POSITIVE) * (rounds + 1) as f64;
        let evenness = spread.min(1.0);
        let seconds = in_order + evenness * (evenly - in_order);
        let nanos = (seconds * 1e9) as u64;
        Some(Timestamp::from_nanos(nanos).max(from))
    }

    /// A slot becomes free every mean hold divided by N, and each call ahead takes one. `None` if no hold was
    /// measured.
    pub(super) fn wait_behind(&self, max: u32, ahead: u64) -> Option<Duration> {
        if u64::from(self.in_use) + ahead < u64::from(max) {
            return Some(Duration::ZERO);
        }
        if self.holds.count == 0 || max == 0 {
            return None;
        }
        let mean = Duration::from_secs_f64(self.holds.mean);
        let turns = u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX);
        Some(mean.saturating_mul(turns) / max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn held_for(held: Duration) -> Holds {
        let mut holds = Holds::default();
        holds.add(held);
        holds
    }

    #[test]
    fn without_a_measured_hold_the_wait_is_unknown() {
        let full = Outstanding {
            in_use: 2,
            ..Outstanding::default()
        };
        assert_eq!(full.wait_behind(2, 0), None);
    }

    #[test]
    fn the_wait_is_the_mean_hold_times_the_calls_ahead_over_the_slots() {
        let full = Outstanding {
            in_use: 10,
            holds: held_for(100 * MS),
            ..Outstanding::default()
        };
        assert_eq!(full.wait_behind(10, 0), Some(10 * MS));
        assert_eq!(full.wait_behind(10, 99), Some(1000 * MS));
        assert_eq!(
            Outstanding {
                in_use: 1,
                holds: held_for(MS),
                ..Outstanding::default()
            }
            .wait_behind(10, 3),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn the_wait_at_a_closed_limit_is_unknown() {
        let closed = Outstanding {
            in_use: 0,
            holds: held_for(MS),
            ..Outstanding::default()
        };
        assert_eq!(closed.peek(0), Verdict::OnChange);
        assert_eq!(closed.wait_behind(0, 0), None);
    }

    #[test]
    fn the_mean_follows_recent_holds() {
        let mut slots = Outstanding {
            in_use: 100,
            ..Outstanding::default()
        };
        slots.release(Some(800 * MS));
        slots.in_use = 1000;
        for _ in 0..4 * HOLDS {
            slots.release(Some(8 * MS));
        }
        let mean = slots.holds.mean;
        assert!((0.008..0.01).contains(&mean), "{mean}");
    }
}
