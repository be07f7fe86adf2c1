//! The state of one limit of the policy.
//!
//! When a call leaves the queue, it draws from each limit that it meets, and has a [`Stake`] in it from then
//! on. A stake comes back in one of two ways: undrawn, as if it had never been drawn, or released at the end
//! of the call. In a window the end is not enough: a departure counts for one whole window.

mod level;
mod state;

use alloc::boxed::Box;
use core::time::Duration;

pub use level::{BucketLimit, PacerNow};
pub(crate) use level::{Level, Taken};
use state::State;
pub(crate) use state::{Progress, Stake};

use crate::bucket::{TokenCount, Tokens};
use crate::call::{Class, Draw};
use crate::policy::{Limit, Reserve, WindowStamp};
use crate::supply::{Supplier, Supply};
use crate::time::Timestamp;
use crate::verdict::{Cost, Verdict};
use crate::window::Window;

/// The retry time of a refused call when no measurement gives a better one.
pub(crate) const RETRY_UNMEASURED: Duration = Duration::from_secs(1);

/// The state of one limit.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: Limit,
    configured: u32,
    /// One for each [`Supplier`].
    supplies: [Supply; Supplier::ALL.len()],
    state: State,
    kept: Option<Box<Kept>>,
}

/// The reserve of one class, and what that class uses of the limit.
#[derive(Debug)]
struct Kept {
    reserve: Reserve,
    used: State,
}

impl Limiter {
    pub(crate) fn new(now: Timestamp, limit: &Limit, reserve: Option<Reserve>) -> Self {
        Self {
            limit: limit.clone(),
            configured: limit.max(),
            supplies: Default::default(),
            state: State::new(now, limit),
            kept: reserve.map(|reserve| {
                let used = State::new(now, limit);
                Box::new(Kept { reserve, used })
            }),
        }
    }

    /// The maximum at `now`: that of the rule or of a lower supply.
    #[inline]
    pub(crate) fn max(&self, now: Timestamp) -> u32 {
        let supplied = self.supplies.iter().filter_map(|supply| supply.at(now));
        supplied.fold(self.configured, u32::min)
    }

    /// What counts as a departure.
    const fn stamp(&self) -> WindowStamp {
        match self.limit {
            Limit::Window { stamp, .. } => stamp,
            Limit::Outstanding { .. } | Limit::Paced { .. } => WindowStamp::Sent,
        }
    }

    pub(crate) const fn supply(&self, supplier: Supplier) -> Supply {
        self.supplies[supplier as usize]
    }

    pub(crate) fn set_supply(&mut self, now: Timestamp, supplier: Supplier, supply: Supply) {
        self.supplies[supplier as usize] = supply;
        self.follow_supply(now);
    }

    /// Sets a pace to what the rule and the supplies allow now.
    pub(crate) fn follow_supply(&mut self, now: Timestamp) {
        let max = self.max(now);
        let (State::Paced(level), &Limit::Paced { pace }) = (&mut self.state, &self.limit) else {
            return;
        };
        let supply = (max < self.configured).then_some(f64::from(max));
        level.follow(now, BucketLimit::Paced(pace), supply);
    }

    /// How much of the limit a call draws: calls, cost, or millionths of a token.
    #[inline]
    pub(crate) fn draw_of(&self, draw: Draw) -> u64 {
        match self.state {
            State::Outstanding(_) => 1,
            State::Window(_) => u64::from(draw.cost.get()),
            State::Paced(_) => TokenCount::of_turn(draw.tokens).micros(),
        }
    }

    /// The state of a paced limit at `now`; `None` for any other.
    pub(crate) fn paced_now(&self, now: Timestamp) -> Option<PacerNow> {
        match &self.state {
            State::Paced(level) => level.paced_now(now),
            State::Outstanding(_) | State::Window(_) => None,
        }
    }

    /// What is drawn and not back at `now`: calls in flight, or cost reserved and departed.
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        self.state.used(now)
    }

    /// Nothing is drawn that only the end of a call brings back.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut kept = self.kept.iter();
        self.state.is_at_rest() && kept.all(|kept| kept.used.is_at_rest())
    }

    /// The part of the limit that a call of this class can never use.
    #[inline]
    fn out_of_reach(&self, class: Class) -> u32 {
        match &self.kept {
            Some(kept) if kept.reserve.class != class => kept.reserve.amount,
            Some(_) | None => 0,
        }
    }

    /// Whether this call costs more than the rule ever allows its class.
    #[inline]
    pub(crate) fn is_beyond(&self, class: Class, draw: Draw) -> bool {
        if let State::Paced(_) = self.state {
            // A call that costs more than the pool goes into debt.
            return false;
        }
        let reach = self.configured - self.out_of_reach(class);
        self.draw_of(draw) > u64::from(reach)
    }

    /// Whether the reserve of its class covers this call, so that it takes nothing from other classes.
    pub(crate) fn is_kept_for(&self, now: Timestamp, class: Class, draw: Draw) -> bool {
        self.kept.as_ref().is_some_and(|kept| {
            kept.reserve.class == class
                && kept.used.used(now) + self.draw_of(draw) <= u64::from(kept.reserve.amount)
        })
    }

    /// When the reserve of its class covers this call, if that moment is known.
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

    /// The class with a reserve.
    pub(crate) fn kept_for(&self) -> Option<Class> {
        self.kept.as_ref().map(|kept| kept.reserve.class)
    }

    /// No call waits for departures beyond this moment.
    #[inline]
    pub(crate) fn opens_by(&self, now: Timestamp) -> Timestamp {
        match &self.state {
            State::Outstanding(_) => now,
            State::Window(window) => window.opens_by(now),
            State::Paced(level) => now + level.limiter().wait_behind(now, 0.0, Tokens::MAX),
        }
    }

    /// The length of a window, if it has one; `None` for any other limit.
    pub(crate) fn window(&self) -> Option<Duration> {
        match &self.state {
            State::Window(window) => Some(window.length()).filter(|length| !length.is_zero()),
            State::Outstanding(_) | State::Paced(_) => None,
        }
    }

    /// The verdict for this call, behind claims of `ahead`. Draws nothing.
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

    /// The verdict for a call of a class without the reserve.
    fn peek_beside(&self, now: Timestamp, cost: Cost, max: u32, kept: &Kept) -> Verdict {
        let amount = kept.reserve.amount;
        match &self.state {
            State::Outstanding(outstanding) => {
                let unused = u64::from(amount).saturating_sub(kept.used.used(now));
                outstanding.peek(max.saturating_sub(unused as u32))
            }
            State::Window(window) => window.peek_beside(now, cost, max, amount, kept.window()),
            State::Paced(_) => unreachable!("a pace has no reserve"),
        }
    }

    /// The earliest moment at which this call could be admitted, where `verdict` is the result of
    /// [`peek`](Self::peek). It is `now` if that depends on what other calls do.
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

    /// The use of the reserve, if it belongs to another class.
    fn kept_beside(&self, class: Class) -> Option<&Window> {
        let kept = self.kept.as_ref();
        kept.filter(|kept| kept.reserve.class != class)
            .map(|kept| kept.window())
    }

    /// The use of the reserve, if it belongs to this class.
    #[inline]
    fn kept_by(&mut self, class: Class) -> Option<&mut State> {
        let kept = self.kept.as_mut()?;
        (kept.reserve.class == class).then_some(&mut kept.used)
    }

    /// Draws for a call that leaves the queue.
    #[inline]
    pub(crate) fn take(&mut self, now: Timestamp, class: Class, draw: Draw) -> Stake {
        if let Some(kept) = self.kept_by(class) {
            kept.take(now, draw);
        }
        self.state.take(now, draw)
    }

    /// Turns a reserved stake into a departure, if this limit counts `stamp`. True if it does.
    #[inline]
    pub(crate) fn depart(
        &mut self,
        now: Timestamp,
        class: Class,
        stake: &mut Stake,
        stamp: WindowStamp,
    ) -> bool {
        if self.stamp() != stamp {
            return false;
        }
        let (State::Window(window), Stake::Reserved(cost)) = (&mut self.state, *stake) else {
            return false;
        };
        window.depart(now, cost);
        *stake = Stake::Departed(cost);
        if let Some(State::Window(kept)) = self.kept_by(class) {
            kept.depart(now, cost);
        }
        true
    }

    /// Takes the stake back at the end of a call. `held` is how long it was held, if that predicts
    /// anything for the next call. A departure that was never reported counts now, because the call
    /// may have left.
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

    /// Takes the stake back as if it had never been drawn. A reported departure stays counted.
    pub(crate) fn undraw(&mut self, now: Timestamp, class: Class, stake: Stake) {
        self.state.undraw(now, stake);
        if let Some(kept) = self.kept_by(class) {
            kept.undraw(now, stake);
        }
    }

    /// How long a call that arrives now would wait behind calls that draw `ahead`, as far as the state
    /// shows.
    pub(crate) fn wait_behind(
        &self,
        now: Timestamp,
        class: Class,
        ahead: u64,
        draw: Draw,
    ) -> Duration {
        let max = self.max(now).saturating_sub(self.out_of_reach(class));
        let wait = match &self.state {
            State::Outstanding(outstanding) => outstanding.wait_behind(max, ahead),
            State::Window(window) => window.wait_behind(now, max, ahead, draw.cost),
            State::Paced(_) if max == 0 => None,
            State::Paced(level) => {
                let ahead = TokenCount::from_micros(ahead).tokens();
                Some(level.limiter().wait_behind(now, ahead, draw.tokens))
            }
        };
        wait.unwrap_or(RETRY_UNMEASURED)
    }

    /// Takes the state over from the limiter of the same name under the policy before. False if that one
    /// was of another kind. `same_class` returns whether an old class and a new one are the same.
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
                // Calls in flight are counted again.
                new.inherit(old);
                new.reserved = 0;
            }
        }
        inherited
    }

    /// Counts a call that was in flight before this limit applied to it.
    pub(crate) fn adopt(&mut self, cost: Cost, progress: Progress) -> Stake {
        self.state.adopt(cost, progress.departed(self.stamp()))
    }

    /// Counts a call in flight for the reserve of its class. A departed call was counted when it departed,
    /// or does not count for the class: then others have less room, never more.
    pub(crate) fn keep(&mut self, class: Class, stake: Stake) {
        match (self.kept_by(class), stake) {
            (Some(State::Outstanding(outstanding)), Stake::Slot) => outstanding.in_use += 1,
            (Some(State::Window(window)), Stake::Reserved(cost)) => {
                window.reserve(cost);
            }
            _ => {}
        }
    }

    /// Corrects the stake of a call in flight after `inherit`, if the policy before counted another moment
    /// as the departure. What was counted once stays counted.
    pub(crate) fn readopt(&mut self, now: Timestamp, stake: &mut Stake, progress: Progress) {
        let departed = progress.departed(self.stamp());
        let State::Window(window) = &mut self.state else {
            return;
        };
        match (*stake, departed) {
            (Stake::Reserved(cost), Some(_)) => {
                window.depart(now, cost);
                *stake = Stake::Departed(cost);
            }
            (Stake::Departed(cost), None) => {
                window.reserve(cost);
                *stake = Stake::Reserved(cost);
            }
            _ => {}
        }
    }
}

impl Kept {
    fn window(&self) -> &Window {
        match &self.used {
            State::Window(window) => window,
            State::Outstanding(_) | State::Paced(_) => {
                unreachable!("the reserve of a window is a window")
            }
        }
    }
}
