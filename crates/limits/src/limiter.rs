//! A limit as configured, and the state kept for it.
//!
//! When a call leaves the queue it draws from each limit that it meets, and has a [`Stake`] there from
//! then on. That comes back in one of two ways: undrawn, as if it had never been, or released at the
//! call's end. For a window the end is not enough: what departed counts on for one window.

mod level;
mod outstanding;
pub(crate) mod paced;
mod pacing;
mod sliding_window;
mod token_bucket;
mod token_limiter;
mod window;

use alloc::boxed::Box;
use core::time::Duration;

use crate::policy::Reserve;
use crate::queue::Class;
use crate::queue::fair::turns;
use crate::time::Timestamp;
use crate::tokens::TokenCount;
use crate::verdict::{Cost, Verdict};
pub use level::BucketLimit;
pub(crate) use level::{Level, Taken};
use outstanding::Outstanding;
pub use paced::{
    AlreadyRunning, ApplyError, BurstRatio, Pace, PaceSpec, Paced, Pools, PoolsNow, Rate,
    SpecError, SpecScope, Verb,
};
pub use pacing::PacingNow;
pub use sliding_window::SlidingWindow;
pub(crate) use token_bucket::in_range;
pub use token_bucket::{
    Burst, DEBT_MAX_BURSTS, DEBT_MAX_FILL, Fill, OutOfRange, TokenBucket, Tokens,
};
pub use token_limiter::TokenLimiter;
use window::Window;

/// What to tell a refused call when nothing has been measured that would say better.
pub(crate) const RETRY_UNMEASURED: Duration = Duration::from_secs(1);

/// A limit as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// At most `max` calls in flight, whatever their cost.
    Outstanding {
        /// Calls in flight.
        max: u32,
    },
    /// At most `max` cost within one window.
    Window {
        /// Cost per window.
        max: u32,
        /// How long a departure counts. A window of no length limits only what has been
        /// admitted and not yet departed.
        length: Duration,
        /// How much longer than `length` a departure counts in a sliding window, for the
        /// unsteady way to the backend. A fixed window has no use for it.
        guard: Duration,
        /// Where windows begin.
        shape: WindowShape,
        /// What counts as the departure.
        stamp: WindowStamp,
    },
    /// So many tokens a second, and more for the late until they have caught up.
    Paced {
        /// How fast, and how much faster for the late.
        pace: Pace,
    },
}

impl Limit {
    /// The configured maximum: calls for an outstanding limit, cost for a window, tokens a
    /// second, rounded, for a paced one.
    #[must_use]
    pub fn max(&self) -> u32 {
        match self {
            Self::Outstanding { max } | Self::Window { max, .. } => *max,
            Self::Paced { pace } => per_second(pace),
        }
    }
}

/// A rate in whole tokens a second, at least one.
fn per_second(pace: &Pace) -> u32 {
    (pace.rate().get() + 0.5).max(1.0) as u32
}

/// What a call draws: its cost of a window, its tokens of a pace, and one of what is
/// outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draw {
    pub(crate) cost: Cost,
    pub(crate) tokens: Tokens,
}

impl Draw {
    /// What an ordinary call draws.
    pub(crate) const ONE: Self = Self {
        cost: Cost::ONE,
        tokens: Tokens::ONE,
    };
}

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowShape {
    /// Everywhere: in any half-open span of the window's length at most `max` departs.
    Sliding,
    /// At multiples of the window's length; admits up to twice `max` across a boundary. The
    /// window of a moment is `floor((now + phase) / length)`.
    Fixed {
        /// What to add to a [`Timestamp`] to get the clock that windows are aligned to.
        phase: Duration,
    },
}

/// What counts as a call's departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStamp {
    /// Its bytes left: exact for what leaves us.
    Sent,
    /// The first byte of its reply came: exact at the backend too.
    Replied,
}

/// Who tells a limit from outside what it may give out. Each has a word of its own, and the
/// strictest counts: none can lift what another has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Supplier {
    /// Whoever knows whether what stands behind the limit is there at all.
    Health,
    /// Whoever shares one capacity out among several.
    Coordinator,
}

impl Supplier {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Health, Self::Coordinator];
}

/// What a limit may give out, told from outside: an amount `A`, which is the maximum of a limit
/// or the rate of a bucket.
///
/// It can only lower what the rule says. The rule is what this backend can bear from this proxy,
/// whatever there is elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply<A = u32> {
    /// What its rule says.
    #[default]
    Configured,
    /// No more than this, until told otherwise.
    Capacity {
        /// How much; 0 closes a limit.
        capacity: A,
        /// When `then` takes over; `None` for never.
        expires_at: Option<Timestamp>,
        /// How much from `expires_at` on.
        then: A,
    },
}

impl<A: Copy> Supply<A> {
    /// Back to what the rule says.
    #[must_use]
    pub const fn configured() -> Self {
        Self::Configured
    }

    /// `capacity` until told otherwise; 0 closes the limit.
    #[must_use]
    pub const fn capacity(capacity: A) -> Self {
        Self::Capacity {
            capacity,
            expires_at: None,
            then: capacity,
        }
    }

    /// `capacity` until `expires_at`, `then` from that moment on.
    #[must_use]
    pub const fn until(capacity: A, expires_at: Timestamp, then: A) -> Self {
        Self::Capacity {
            capacity,
            expires_at: Some(expires_at),
            then,
        }
    }

    /// How much at `now`; `None` for what the rule says.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Option<A> {
        match self {
            Self::Configured => None,
            Self::Capacity {
                capacity,
                expires_at,
                then,
            } => Some(match expires_at {
                Some(end) if now >= end => then,
                _ => capacity,
            }),
        }
    }

    pub(crate) const fn expires_at(self) -> Option<Timestamp> {
        match self {
            Self::Configured => None,
            Self::Capacity { expires_at, .. } => expires_at,
        }
    }
}

/// How far a call in flight has come, as far as its windows are concerned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: Option<Timestamp>,
    pub(crate) replied: Option<Timestamp>,
}

impl Progress {
    /// The departure that a window with this stamp counts, if it has happened.
    fn departed(self, stamp: WindowStamp) -> Option<Timestamp> {
        match stamp {
            WindowStamp::Sent => self.sent,
            WindowStamp::Replied => self.replied,
        }
    }
}

/// What a call has of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stake {
    /// One of the calls in flight.
    Slot,
    /// Cost of a window that has not departed.
    Reserved(Cost),
    /// Cost of a window that has.
    Departed(Cost),
    /// Tokens of a pace.
    Tokens(Taken),
}

/// The state of one limit.
#[derive(Debug)]
pub(crate) struct Limiter {
    configured: u32,
    /// The configured pace of a paced limit.
    pace: Option<Pace>,
    /// One for each [`Supplier`].
    supplies: [Supply; Supplier::ALL.len()],
    state: State,
    kept: Option<Box<Kept>>,
}

/// Why there is no such case.
const MISMATCH: &str = "a call has a stake of the limit's own kind";

/// What is kept for one class, and what that class uses of the limit.
#[derive(Debug)]
struct Kept {
    reserve: Reserve,
    used: State,
}

#[derive(Debug)]
enum State {
    Outstanding(Outstanding),
    Window(Window),
    Paced(Level),
}

impl State {
    fn new(now: Timestamp, limit: &Limit) -> Self {
        match *limit {
            Limit::Outstanding { .. } => Self::Outstanding(Outstanding::default()),
            Limit::Window {
                length,
                guard,
                shape,
                stamp,
                ..
            } => Self::Window(Window::new(length, guard, shape, stamp)),
            Limit::Paced { pace } => Self::Paced(Level::new(now, BucketLimit::Paced(pace))),
        }
    }

    fn used(&self, now: Timestamp) -> u64 {
        match self {
            Self::Outstanding(outstanding) => u64::from(outstanding.in_use),
            Self::Window(window) => window.used(now),
            // What is drawn of a pace is gone: nothing of it is in use.
            Self::Paced(_) => 0,
        }
    }

    #[inline]
    fn take(&mut self, now: Timestamp, draw: Draw) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.in_use += 1;
                Stake::Slot
            }
            Self::Window(window) => window.reserve(draw.cost),
            Self::Paced(level) => Stake::Tokens(level.draw(now, draw.tokens)),
        }
    }

    #[inline]
    fn release(&mut self, now: Timestamp, stake: Stake, held: Option<Duration>) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.release(held),
            (Self::Window(window), Stake::Reserved(cost)) => {
                window.depart(now, cost);
            }
            _ => unreachable!("{MISMATCH}"),
        }
    }

    fn undraw(&mut self, now: Timestamp, stake: Stake) {
        match (self, stake) {
            (Self::Outstanding(outstanding), Stake::Slot) => outstanding.in_use -= 1,
            (Self::Window(window), Stake::Reserved(cost)) => {
                window.reserved -= u64::from(cost.get());
            }
            (Self::Paced(level), Stake::Tokens(taken)) => level.undraw(now, taken),
            (Self::Window(_), Stake::Departed(_)) => {}
            _ => unreachable!("{MISMATCH}"),
        }
    }

    fn adopt(&mut self, cost: Cost, progress: Progress) -> Stake {
        match self {
            Self::Outstanding(outstanding) => {
                outstanding.in_use += 1;
                Stake::Slot
            }
            Self::Window(window) => match progress.departed(window.stamp) {
                Some(departed) => {
                    window.stamp_late(departed, cost);
                    Stake::Departed(cost)
                }
                None => window.reserve(cost),
            },
            // A pace counts what begins.
            Self::Paced(_) => Stake::Tokens(Taken::NOTHING),
        }
    }
}

impl Limiter {
    pub(crate) fn new(now: Timestamp, limit: &Limit, reserve: Option<Reserve>) -> Self {
        Self {
            configured: limit.max(),
            pace: match limit {
                Limit::Paced { pace } => Some(*pace),
                Limit::Outstanding { .. } | Limit::Window { .. } => None,
            },
            supplies: Default::default(),
            state: State::new(now, limit),
            kept: reserve.map(|reserve| {
                let used = State::new(now, limit);
                Box::new(Kept { reserve, used })
            }),
        }
    }

    /// What may be given out at `now`: what the rule says, or less.
    #[inline]
    pub(crate) fn max(&self, now: Timestamp) -> u32 {
        let told = self.supplies.iter().filter_map(|supply| supply.at(now));
        told.fold(self.configured, u32::min)
    }

    pub(crate) const fn supply(&self, supplier: Supplier) -> Supply {
        self.supplies[supplier as usize]
    }

    pub(crate) fn set_supply(&mut self, now: Timestamp, supplier: Supplier, supply: Supply) {
        self.supplies[supplier as usize] = supply;
        self.follow_supply(now);
    }

    /// Changes the pace to what may be given out now, where that is tokens a second.
    pub(crate) fn follow_supply(&mut self, now: Timestamp) {
        let max = self.max(now);
        let (State::Paced(level), Some(pace)) = (&mut self.state, self.pace) else {
            return;
        };
        let told = (max < self.configured).then_some(f64::from(max));
        level.follow(now, BucketLimit::Paced(pace), told);
    }

    /// How much of the limit a call draws: calls, cost, or millionths of a
    /// token.
    #[inline]
    pub(crate) fn draw_of(&self, draw: Draw) -> u64 {
        match self.state {
            State::Outstanding(_) => 1,
            State::Window(_) => u64::from(draw.cost.get()),
            State::Paced(_) => turns(draw.tokens).micros(),
        }
    }

    /// What a paced limit is like at `now`; `None` for any other.
    pub(crate) fn paced_now(&self, now: Timestamp) -> Option<PacingNow> {
        match &self.state {
            State::Paced(level) => level.paced_now(now),
            State::Outstanding(_) | State::Window(_) => None,
        }
    }

    /// Drawn and not back at `now`: calls in flight, or cost reserved and departed.
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        self.state.used(now)
    }

    /// Nothing is drawn that only the end of a call brings back.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_at_rest = |state: &State| match state {
            State::Outstanding(outstanding) => outstanding.in_use == 0,
            State::Window(window) => window.reserved == 0,
            State::Paced(_) => true,
        };
        is_at_rest(&self.state) && self.kept.as_ref().is_none_or(|kept| is_at_rest(&kept.used))
    }

    /// What of the limit a call of this class can never have, whatever frees.
    #[inline]
    fn out_of_reach(&self, class: Class) -> u32 {
        match &self.kept {
            Some(kept) if kept.reserve.class != class => kept.reserve.amount,
            Some(_) | None => 0,
        }
    }

    /// Whether a call of this class and cost is more than the limit allows by its rule.
    #[inline]
    pub(crate) fn is_beyond(&self, class: Class, draw: Draw) -> bool {
        if let State::Paced(_) = self.state {
            // What is dearer than its pool goes into debt.
            return false;
        }
        let reach = self.configured - self.out_of_reach(class);
        self.draw_of(draw) > u64::from(reach)
    }

    /// Whether a call of this class and cost takes nothing that another class could have: what
    /// is kept for its class is enough for it.
    pub(crate) fn is_kept_for(&self, now: Timestamp, class: Class, draw: Draw) -> bool {
        self.kept.as_ref().is_some_and(|kept| {
            kept.reserve.class == class
                && kept.used.used(now) + self.draw_of(draw) <= u64::from(kept.reserve.amount)
        })
    }

    /// When what is kept for a class is enough for a call of it, as far as a moment is known.
    pub(crate) fn keeps_from(&self, now: Timestamp, class: Class, draw: Draw) -> Option<Timestamp> {
        let kept = self.kept.as_ref();
        let kept = kept.filter(|kept| kept.reserve.class == class)?;
        let State::Window(used) = &kept.used else {
            return None;
        };
        match used.peek(now, draw.cost, kept.reserve.amount) {
            Verdict::NotBefore(moment) => Some(moment),
            Verdict::Ready | Verdict::WhenTold | Verdict::Never => None,
        }
    }

    /// The class for which something is kept.
    pub(crate) fn kept_for(&self) -> Option<Class> {
        self.kept.as_ref().map(|kept| kept.reserve.class)
    }

    /// No call has to wait for departures longer than until this moment.
    #[inline]
    pub(crate) fn opens_by(&self, now: Timestamp) -> Timestamp {
        match &self.state {
            State::Outstanding(_) => now,
            State::Window(window) => window.opens_by(now),
            State::Paced(level) => now + level.limiter().wait_behind(now, 0.0, Tokens::MAX),
        }
    }

    /// How long a departure counts in a window that has a length; `None` for any other limit.
    pub(crate) fn window(&self) -> Option<Duration> {
        match &self.state {
            State::Window(window) => Some(window.length()).filter(|length| !length.is_zero()),
            State::Outstanding(_) | State::Paced(_) => None,
        }
    }

    /// What the limit would say to a call of this class and cost, behind those that claim `ahead` of
    /// it; draws nothing.
    #[inline]
    pub(crate) fn peek(&self, now: Timestamp, class: Class, draw: Draw, ahead: u64) -> Verdict {
        let configured = self.max(now);
        let max = u64::from(configured).saturating_sub(ahead) as u32;
        if self.is_beyond(class, draw) {
            return Verdict::Never;
        }
        match &self.kept {
            Some(kept) if kept.reserve.class != class => {
                self.peek_beside(now, draw.cost, max, kept)
            }
            Some(_) | None => match &self.state {
                State::Outstanding(outstanding) => outstanding.peek(max),
                State::Window(window) => window.peek(now, draw.cost, max),
                State::Paced(_) if configured == 0 => Verdict::WhenTold,
                State::Paced(level) => {
                    let ahead = TokenCount::from_micros(ahead).tokens();
                    level.limiter().verdict_behind(now, ahead, draw.tokens)
                }
            },
        }
    }

    /// What it would say to a call of another class than the one for which something is kept.
    fn peek_beside(&self, now: Timestamp, cost: Cost, max: u32, kept: &Kept) -> Verdict {
        let amount = kept.reserve.amount;
        match &self.state {
            State::Outstanding(outstanding) => {
                let unused = u64::from(amount).saturating_sub(kept.used.used(now));
                outstanding.peek(max.saturating_sub(unused as u32))
            }
            State::Window(window) => window.peek_beside(now, cost, max, amount, kept.window()),
            State::Paced(_) => unreachable!("no policy keeps a part of a pace"),
        }
    }

    /// The earliest moment at which a call of this cost could be let through, for all that is
    /// known, where `verdict` is what [`peek`](Self::peek) said: `now` where that is up to what
    /// others do.
    pub(crate) fn earliest(
        &self,
        now: Timestamp,
        class: Class,
        draw: Draw,
        verdict: Verdict,
    ) -> Timestamp {
        match (verdict, &self.state) {
            (Verdict::NotBefore(moment), _) => moment,
            (Verdict::WhenTold, State::Window(window)) => {
                let max = self.max(now).saturating_sub(self.out_of_reach(class));
                window.earliest(now, draw.cost, max, self.kept_beside(class))
            }
            (Verdict::Ready | Verdict::WhenTold | Verdict::Never, _) => now,
        }
    }

    /// What another class uses of what is kept for it.
    fn kept_beside(&self, class: Class) -> Option<&Window> {
        let kept = self.kept.as_ref();
        kept.filter(|kept| kept.reserve.class != class)
            .map(|kept| kept.window())
    }

    /// What this class uses of what is kept for it.
    #[inline]
    fn kept_by(&mut self, class: Class) -> Option<&mut State> {
        let kept = self.kept.as_mut()?;
        (kept.reserve.class == class).then_some(&mut kept.used)
    }

    /// Draws for a call that leaves the queue and has room.
    #[inline]
    pub(crate) fn take(&mut self, now: Timestamp, class: Class, draw: Draw) -> Stake {
        if let Some(kept) = self.kept_by(class) {
            kept.take(now, draw);
        }
        self.state.take(now, draw)
    }

    /// Turns what is reserved into a departure, if `stamp` is what this limit counts. True if it is.
    #[inline]
    pub(crate) fn depart(
        &mut self,
        now: Timestamp,
        class: Class,
        stake: &mut Stake,
        stamp: WindowStamp,
    ) -> bool {
        let (State::Window(window), Stake::Reserved(cost)) = (&mut self.state, *stake) else {
            return false;
        };
        if window.stamp != stamp {
            return false;
        }
        *stake = window.depart(now, cost);
        if let Some(State::Window(kept)) = self.kept_by(class) {
            kept.depart(now, cost);
        }
        true
    }

    /// Takes the stake back at the end of a call. `held` is how long it was held, if that
    /// says anything about the next call. A departure that was never told counts as one now:
    /// the call may have left.
    #[inline]
    pub(crate) fn release(
        &mut self,
        now: Timestamp,
        class: Class,
        stake: Stake,
        held: Option<Duration>,
    ) {
        if let Stake::Departed(_) | Stake::Tokens(_) = stake {
            return;
        }
        self.state.release(now, stake, held);
        if let Some(kept) = self.kept_by(class) {
            kept.release(now, stake, held);
        }
    }

    /// Takes the stake back as if nothing had been drawn. A departure that was told stays counted.
    pub(crate) fn undraw(&mut self, now: Timestamp, class: Class, stake: Stake) {
        self.state.undraw(now, stake);
        if let Some(kept) = self.kept_by(class) {
            kept.undraw(now, stake);
        }
    }

    /// How long a call that came to the end of the line now would wait, as the state has it:
    /// `ahead` is what those waiting would draw before it.
    pub(crate) fn wait_behind(
        &self,
        now: Timestamp,
        class: Class,
        ahead: u64,
        draw: Draw,
    ) -> Duration {
        let max = self.max(now).saturating_sub(self.out_of_reach(class));
        match &self.state {
            State::Outstanding(outstanding) => outstanding.wait_behind(max, ahead),
            State::Window(window) => window.wait_behind(now, max, ahead, draw.cost),
            State::Paced(_) if max == 0 => RETRY_UNMEASURED,
            State::Paced(level) => {
                let ahead = TokenCount::from_micros(ahead).tokens();
                level.limiter().wait_behind(now, ahead, draw.tokens)
            }
        }
    }

    /// Takes the state over from a limiter of the same name under an older policy. False if
    /// that one was of another kind, so that there is nothing to take over. `same_class` says
    /// whether a class of that policy is one of this.
    pub(crate) fn inherit(
        &mut self,
        now: Timestamp,
        old: &mut Self,
        same_class: impl Fn(Class, Class) -> bool,
    ) -> bool {
        let inherited = match (&mut self.state, &mut old.state) {
            (State::Outstanding(new), State::Outstanding(old)) => {
                *new = core::mem::take(old);
                true
            }
            (State::Window(new), State::Window(old)) => {
                new.inherit(old);
                true
            }
            (State::Paced(new), State::Paced(old)) => {
                core::mem::swap(new, old);
                true
            }
            (State::Outstanding(_) | State::Window(_) | State::Paced(_), _) => false,
        };
        if inherited {
            self.supplies = old.supplies;
            self.follow_supply(now);
            if let (Some(new), Some(old)) = (&mut self.kept, &mut old.kept)
                && same_class(old.reserve.class, new.reserve.class)
                && let (State::Window(new), State::Window(old)) = (&mut new.used, &mut old.used)
            {
                // What is in flight is counted anew.
                new.inherit(old);
                new.reserved = 0;
            }
        }
        inherited
    }

    /// Counts a call that was already in flight when this limit came to apply to it.
    pub(crate) fn adopt(&mut self, cost: Cost, progress: Progress) -> Stake {
        self.state.adopt(cost, progress)
    }

    /// Counts a call in flight, and what it has reserved, for what is kept for its class. What of it
    /// has departed was counted then, or is not counted as the class's: others have less room for it,
    /// never more.
    pub(crate) fn keep(&mut self, class: Class, stake: Stake) {
        match (self.kept_by(class), stake) {
            (Some(State::Outstanding(outstanding)), Stake::Slot) => outstanding.in_use += 1,
            (Some(State::Window(window)), Stake::Reserved(cost)) => {
                window.reserve(cost);
            }
            _ => {}
        }
    }

    /// Puts the stake of a call in flight right after `inherit`, where the policy before counted
    /// another moment as the departure. What was counted once stays counted.
    pub(crate) fn readopt(&mut self, now: Timestamp, stake: &mut Stake, progress: Progress) {
        let State::Window(window) = &mut self.state else {
            return;
        };
        *stake = match (*stake, progress.departed(window.stamp)) {
            (Stake::Reserved(cost), Some(_)) => window.depart(now, cost),
            (Stake::Departed(cost), None) => window.reserve(cost),
            (stake, _) => stake,
        };
    }
}

impl Kept {
    fn window(&self) -> &Window {
        match &self.used {
            State::Window(window) => window,
            State::Outstanding(_) | State::Paced(_) => {
                unreachable!("a window keeps a part of a window")
            }
        }
    }
}
