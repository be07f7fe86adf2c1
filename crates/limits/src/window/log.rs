//! At most N cost within one window, counted by departure times.
//!
//! The state is a ring of departures, oldest first, of at most N entries. Each contains the cost of
//! all departures up to and including it. So the cost freed by now, and the departure that must
//! free next, are binary searches. Cost that was admitted and has not departed is reserved, and a
//! reservation never expires with time.
//!
//! A sliding window frees a departure one length and guard later, strictly: two departures one
//! length apart are never in the same half-open span of that length. A fixed window frees it where
//! the next aligned window begins. Nothing else differs, so a reload can change the shape, the
//! length or the maximum, and departures continue to count.

use alloc::collections::VecDeque;
use core::mem;
use core::time::Duration;

use crate::call::Cost;
use crate::digest::Digest;
use crate::time::{Timestamp, nanos};
use crate::verdict::Verdict;

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowShape {
    /// Everywhere: in any half-open span of the window's length, at most `max` departs.
    Sliding,
    /// At multiples of the window's length. Up to twice `max` can depart around a boundary. The window
    /// of a moment is `floor((now + phase) / length)`.
    Fixed {
        /// The offset from a [`Timestamp`] to the clock to which windows are aligned.
        phase: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Nanoseconds; of a sliding window with its guard.
    length: u64,
    /// Nanoseconds; `None` for a sliding window.
    phase: Option<u64>,
    /// Cost admitted and not departed.
    pub(crate) reserved: u64,
    /// Oldest first.
    departures: VecDeque<Departure>,
    /// Cost of everything that departed before the oldest in the ring.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Timestamp,
    /// Cost of everything that departed up to and including this one, since the start.
    total: u64,
}

impl Window {
    pub(crate) fn new(length: Duration, guard: Duration, shape: WindowShape) -> Self {
        let (length, phase) = match shape {
            WindowShape::Sliding => (length.saturating_add(guard), None),
            WindowShape::Fixed { phase } => (length, Some(nanos(phase))),
        };
        Self {
            length: nanos(length),
            phase,
            reserved: 0,
            departures: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Takes the state of the window under the policy before. If the new window is longer,
    /// departures that were already forgotten stay forgotten.
    pub(crate) fn inherit(&mut self, old: &mut Self) {
        self.reserved = old.reserved;
        self.departures = core::mem::take(&mut old.departures);
        self.dropped = old.dropped;
    }

    /// Changes how long a departure counts in a sliding window.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = nanos(length);
    }

    /// How long a departure counts.
    pub(crate) const fn length(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// When a departure at `at` stops counting.
    fn frees_at(&self, at: Timestamp) -> Timestamp {
        let at = at.as_nanos();
        Timestamp::from_nanos(match self.phase {
            None => at.saturating_add(self.length),
            Some(_) if self.length == 0 => at,
            Some(phase) => {
                let (length, phase) = (u128::from(self.length), u128::from(phase));
                let next = ((u128::from(at) + phase) / length + 1) * length - phase;
                u64::try_from(next).unwrap_or(u64::MAX)
            }
        })
    }

    /// Cost of everything that ever departed.
    fn total(&self) -> u64 {
        self.departures
            .back()
            .map_or(self.dropped, |newest| newest.total)
    }

    /// Cost of everything that departed and no longer counts.
    fn freed(&self, now: Timestamp) -> u64 {
        let is_free = |departure: &Departure| self.frees_at(departure.at) <= now;
        let mut oldest = self.departures.iter();
        match (oldest.next(), oldest.next()) {
            (Some(first), _) if !is_free(first) => self.dropped,
            // At a steady pace it is this one: one departs, one frees.
            (Some(first), Some(second)) if !is_free(second) => first.total,
            (Some(_), _) => self.departures[self.departures.partition_point(is_free) - 1].total,
            (None, _) => self.dropped,
        }
    }

    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        self.reserved + self.total() - self.freed(now)
    }

    /// Whether [`peek`](Self::peek) is ready.
    #[inline]
    pub(crate) fn has_room(&self, now: Timestamp, cost: Cost, max: u32) -> bool {
        let departed = self.reserved + self.total() - self.dropped + u64::from(cost.get());
        // With room for all that are remembered, it does not matter which of them still count.
        departed <= u64::from(max) || self.used(now) + u64::from(cost.get()) <= u64::from(max)
    }

    pub(crate) fn peek(&self, now: Timestamp, cost: Cost, max: u32) -> Verdict {
        let freed = self.freed(now);
        let wanted = self.reserved + self.total() - freed + u64::from(cost.get());
        let lacking = wanted.saturating_sub(u64::from(max));
        if lacking == 0 {
            return Verdict::Ready;
        }
        Verdict::from(self.freeing(freed + lacking))
    }

    /// Peeks for a call of a class without the reserve, where `amount` of the maximum is reserved and `kept` counts
    /// the use of the class with the reserve.
    pub(crate) fn peek_beside(
        &self,
        now: Timestamp,
        cost: Cost,
        max: u32,
        amount: u32,
        kept: &Self,
    ) -> Verdict {
        let fits = |moment| {
            let by_class = kept.used(moment);
            let by_others = self.used(moment).saturating_sub(by_class);
            let taken = by_others + by_class.max(u64::from(amount));
            taken + u64::from(cost.get()) <= u64::from(max)
        };
        if fits(now) {
            return Verdict::Ready;
        }
        Verdict::from(self.first_freeing(fits))
    }

    /// When there would be room within `max` if everything reserved were given back; with
    /// `beside`, if the class that this counts used nothing either.
    pub(crate) fn earliest(
        &self,
        now: Timestamp,
        cost: Cost,
        max: u32,
        beside: Option<&Self>,
    ) -> Timestamp {
        let departed = |window: &Self, moment| window.total() - window.freed(moment);
        let fits = |moment| {
            let by_class = beside.map_or(0, |kept| departed(kept, moment));
            let taken = departed(self, moment).saturating_sub(by_class);
            taken + u64::from(cost.get()) <= u64::from(max)
        };
        if fits(now) {
            return now;
        }
        self.first_freeing(fits).unwrap_or(now)
    }

    /// The first moment at which something frees so that this holds, which stays true once it
    /// is.
    fn first_freeing(&self, fits: impl Fn(Timestamp) -> bool) -> Option<Timestamp> {
        self.first_where(|departure| fits(self.frees_at(departure.at)))
    }

    /// No departure counts beyond this moment.
    pub(crate) fn opens_by(&self, now: Timestamp) -> Timestamp {
        // A fixed window that begins now ends one length from now.
        Timestamp::from_nanos(now.as_nanos().saturating_add(self.length))
    }

    /// When everything up to this total will have freed; `None` if less than that departed.
    fn freeing(&self, total: u64) -> Option<Timestamp> {
        self.first_where(|departure| departure.total >= total)
    }

    /// When the first departure frees for which this holds. It holds for all that come later, too.
    fn first_where(&self, holds: impl Fn(&Departure) -> bool) -> Option<Timestamp> {
        let departures = &self.departures;
        let index = departures.partition_point(|departure| !holds(departure));
        let departure = departures.get(index)?;
        Some(self.frees_at(departure.at))
    }

    /// Counts a call that has not departed.
    #[inline]
    pub(crate) fn reserve(&mut self, cost: Cost) {
        self.reserved += u64::from(cost.get());
    }

    /// A call that was reserved departs.
    #[inline]
    pub(crate) fn depart(&mut self, now: Timestamp, cost: Cost) {
        self.reserved -= u64::from(cost.get());
        self.stamp(now, cost);
    }

    /// Counts a departure. `now` is never before the newest one: time only goes forward here.
    pub(crate) fn stamp(&mut self, now: Timestamp, cost: Cost) {
        while let Some(oldest) = self.departures.front()
            && self.frees_at(oldest.at) <= now
        {
            self.dropped = oldest.total;
            self.departures.pop_front();
        }
        let total = self.total() + u64::from(cost.get());
        match self.departures.back_mut() {
            Some(newest) if newest.at >= now => newest.total = total,
            _ => self.departures.push_back(Departure { at: now, total }),
        }
    }

    /// Counts a departure that may lie before others.
    pub(crate) fn stamp_late(&mut self, at: Timestamp, cost: Cost) {
        let index = self
            .departures
            .partition_point(|departure| departure.at <= at);
        let before = index.checked_sub(1).map(|before| self.departures[before]);
        let total = before.map_or(self.dropped, |before| before.total);
        self.departures.insert(index, Departure { at, total });
        for departure in self.departures.iter_mut().skip(index) {
            departure.total += u64::from(cost.get());
        }
    }

    /// Forgets the departures before this moment. Cost that has not departed stays.
    pub(crate) fn forget_before(&mut self, at: Timestamp) {
        let forgotten = self.departures.partition_point(|it| it.at < at);
        if let Some(last) = self.departures.drain(..forgotten).next_back() {
            self.dropped = last.total;
        }
    }

    /// Adds the departures that may still count, and what is reserved.
    pub(crate) fn digest(&self, to: &mut Digest) {
        let Self {
            // Both by the rule, which a search knows.
            length: _,
            phase: _,
            reserved,
            departures: _,
            // Only differences of totals count.
            dropped: _,
        } = self;
        to.word(*reserved);
        for (at, cost) in self.departures() {
            if !to.remembers(at) {
                continue;
            }
            to.past(at);
            to.word(u64::from(cost));
        }
        to.word(u64::MAX);
    }

    /// The departures that are remembered, oldest first, with what each counts.
    pub(crate) fn departures(&self) -> impl Iterator<Item = (Timestamp, u32)> {
        let mut before = self.dropped;
        self.departures.iter().map(move |departure| {
            let cost = departure.total - mem::replace(&mut before, departure.total);
            (departure.at, u32::try_from(cost).unwrap_or(u32::MAX))
        })
    }

    /// When there is room for a call with this drawn before it, at the earliest at `from`. If the departure that
    /// makes room has not happened: how much is drawn before it of what waits now, and for how long it counts.
    pub(crate) fn opens_behind(
        &self,
        from: Timestamp,
        max: u32,
        ahead: u64,
        cost: Cost,
    ) -> Result<Timestamp, (u64, Duration)> {
        let max = u64::from(max);
        let freed = self.freed(from);
        let taken = self.reserved + self.total() - freed;
        let lacking = (taken + ahead + u64::from(cost.get())).saturating_sub(max);
        if lacking == 0 || max == 0 {
            return Ok(from);
        }
        let windows = u32::try_from((lacking - 1) / max).unwrap_or(u32::MAX);
        let remainder = (lacking - 1) % max + 1;
        let later = self.length().saturating_mul(windows);
        if let Some(opens) = self.freeing(freed + remainder) {
            return Ok(opens.max(from) + later);
        }
        // It waits itself, or is on its way.
        let behind = remainder.saturating_sub(taken).saturating_sub(1);
        if self.phase.is_some() {
            return Ok(self.frees_at(from) + later);
        }
        match remainder <= taken {
            true => Ok(from + self.length() + later),
            false => Err((behind, self.length() + later)),
        }
    }

    /// Each full N ahead takes a window; the rest waits for as much of this window to free.
    pub(crate) fn wait_behind(
        &self,
        now: Timestamp,
        max: u32,
        ahead: u64,
        cost: Cost,
    ) -> Option<Duration> {
        let max = u64::from(max);
        if max == 0 {
            return None;
        }
        let freed = self.freed(now);
        let wanted = self.reserved + self.total() - freed + ahead + u64::from(cost.get());
        let lacking = wanted.saturating_sub(max);
        if lacking == 0 {
            return Some(Duration::ZERO);
        }
        let windows = u32::try_from((lacking - 1) / max).unwrap_or(u32::MAX);
        let remainder = (lacking - 1) % max + 1;
        let window = Duration::from_nanos(self.length);
        // What is only reserved departs now at the earliest.
        let opens = self
            .freeing(freed + remainder)
            .unwrap_or_else(|| self.frees_at(now));
        let wait = window.saturating_mul(windows);
        Some(opens.since(now).saturating_add(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn cost(units: u32) -> Cost {
        Cost::new(units).expect("the tests' costs are above zero")
    }

    fn sliding(guard: Duration) -> Window {
        Window::new(SECOND, guard, WindowShape::Sliding)
    }

    #[test]
    fn a_departure_frees_one_length_later_and_not_before() {
        let mut window = sliding(Duration::ZERO);
        window.stamp(at(500), Cost::ONE);
        assert_eq!(
            window.peek(at(1499), Cost::ONE, 1),
            Verdict::NotBefore(at(1500))
        );
        assert_eq!(window.peek(at(1500), Cost::ONE, 1), Verdict::Ready);
    }

    #[test]
    fn the_guard_is_added_to_the_length() {
        let mut window = sliding(Duration::from_millis(5));
        window.stamp(at(0), Cost::ONE);
        assert_eq!(
            window.peek(at(1), Cost::ONE, 1),
            Verdict::NotBefore(at(1005))
        );
    }

    #[test]
    fn an_expensive_call_waits_for_as_many_departures_as_it_needs() {
        let mut window = sliding(Duration::ZERO);
        for millis in [0, 100, 200, 300] {
            window.stamp(at(millis), cost(2));
        }
        let check =
            |units, max, expected| assert_eq!(window.peek(at(400), cost(units), max), expected);
        check(2, 10, Verdict::Ready);
        check(3, 10, Verdict::NotBefore(at(1000)));
        check(4, 10, Verdict::NotBefore(at(1000)));
        check(5, 10, Verdict::NotBefore(at(1100)));
        check(10, 10, Verdict::NotBefore(at(1300)));
    }

    #[test]
    fn a_reservation_in_the_way_has_no_moment() {
        let mut window = sliding(Duration::ZERO);
        window.stamp(at(0), Cost::ONE);
        window.reserved = 2;
        assert_eq!(
            window.peek(at(1), Cost::ONE, 3),
            Verdict::NotBefore(at(1000))
        );
        assert_eq!(window.peek(at(1), cost(2), 3), Verdict::OnChange);
        assert_eq!(window.used(at(5000)), 2);
    }

    #[test]
    fn a_fixed_window_frees_everything_where_the_next_begins() {
        let shape = WindowShape::Fixed {
            phase: Duration::from_millis(300),
        };
        let mut window = Window::new(SECOND, SECOND, shape);
        window.stamp(at(100), Cost::ONE);
        window.stamp(at(699), Cost::ONE);
        assert_eq!(
            window.peek(at(699), Cost::ONE, 2),
            Verdict::NotBefore(at(700))
        );
        assert_eq!(window.peek(at(700), cost(2), 2), Verdict::Ready);
    }

    #[test]
    fn a_window_without_length_limits_only_reservations() {
        for shape in [WindowShape::Sliding, WindowShape::Fixed { phase: SECOND }] {
            let mut window = Window::new(Duration::ZERO, Duration::ZERO, shape);
            window.stamp(at(1), Cost::ONE);
            assert_eq!(window.peek(at(1), Cost::ONE, 1), Verdict::Ready);
            window.reserved = 1;
            assert_eq!(window.peek(at(1), Cost::ONE, 1), Verdict::OnChange);
        }
    }

    #[test]
    fn a_maximal_window_never_frees() {
        let mut window = Window::new(Duration::MAX, Duration::MAX, WindowShape::Sliding);
        window.stamp(at(1), Cost::ONE);
        assert_eq!(
            window.peek(at(2), Cost::ONE, 1),
            Verdict::NotBefore(Timestamp::MAX)
        );
    }

    #[test]
    fn the_ring_keeps_no_more_than_still_counts() {
        let mut window = sliding(Duration::ZERO);
        for millis in 0..100_000 {
            window.stamp(at(millis), Cost::ONE);
        }
        assert_eq!(window.departures.len(), 1000);
        assert_eq!(window.used(at(99_999)), 1000);
    }

    #[test]
    fn a_late_stamp_takes_its_place_among_the_others() {
        let mut window = sliding(Duration::ZERO);
        window.stamp(at(0), Cost::ONE);
        window.stamp(at(400), Cost::ONE);
        window.stamp_late(at(200), cost(3));
        assert_eq!(window.used(at(500)), 5);
        assert_eq!(window.used(at(1000)), 4);
        assert_eq!(window.used(at(1200)), 1);
    }

    #[test]
    fn the_wait_counts_a_window_for_every_n_ahead() {
        let mut window = sliding(Duration::ZERO);
        for millis in [0, 100, 200] {
            window.stamp(at(millis), Cost::ONE);
        }
        let check = |ahead, millis| {
            let wait = window.wait_behind(at(300), 3, ahead, Cost::ONE);
            assert_eq!(wait, Some(Duration::from_millis(millis)), "{ahead} ahead");
        };
        check(0, 700);
        check(1, 800);
        check(2, 900);
        check(3, 1700);
        check(300, 700 + 100_000);
    }
}
