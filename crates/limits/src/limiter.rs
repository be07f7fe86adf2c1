//! A limit of the policy: its rule, its state, and the calls that wait for it.
//!
//! When a call leaves the queue, it draws from each limit that it meets, and has a [`Stake`] in it from then
//! on. A stake comes back in one of two ways: undrawn, as if it had never been drawn, or released at the end
//! of the call. In a window the end is not enough: a departure counts for one whole window.

mod digest;
mod level;
mod refunds;
mod state;

use alloc::boxed::Box;
use core::mem;
use core::time::Duration;

pub use level::{BucketLimit, PacerNow};
pub(crate) use level::{Level, TokenDraw};
use state::LimitState;
pub(crate) use state::{Departures, LimitOpening, Stake, Unit};

use crate::bucket::{TokenCount, Tokens};
use crate::call::{Call, Class, Cost};
use crate::policy::{Limit, LimitRule, Reserve, WindowStamp};
use crate::queue::QueueTotals;
use crate::supply::{Supplier, Supply, SupplyShare};
use crate::time::Timestamp;
use crate::verdict::Verdict;
use crate::window::Window;

/// The retry time of a refused call when no measurement gives a better one.
pub(crate) const RETRY_UNMEASURED: Duration = Duration::from_secs(1);

/// A limit in force.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    pub(crate) rule: LimitRule,
    /// The maximum by its rule.
    pub(crate) configured: u32,
    /// The supply that each [`Supplier`] has set.
    supplies: [Supply; Supplier::ALL.len()],
    /// The part of the maximum that may be given out.
    share: SupplyShare,
    /// A supply or the share may lower the maximum.
    is_lowered: bool,
    state: LimitState,
    kept: Option<Box<ReserveState>>,
    /// The calls that wait and meet it.
    pub(crate) queued: QueueTotals,
    /// Need and use, as last reported by [`Scheduler::demand`](crate::Scheduler::demand).
    pub(crate) reported: (u64, u64),
}

/// The reserve of one class, and what that class uses of the limit.
#[derive(Clone, Debug)]
struct ReserveState {
    reserve: Reserve,
    used: LimitState,
}

impl Limiter {
    pub(crate) fn new(now: Timestamp, rule: &LimitRule) -> Self {
        let state = || LimitState::new(now, &rule.limit);
        let kept = |reserve| {
            let used = state();
            Box::new(ReserveState { reserve, used })
        };
        Self {
            rule: rule.clone(),
            configured: rule.limit.max(),
            supplies: Default::default(),
            share: SupplyShare::FULL,
            is_lowered: false,
            state: state(),
            kept: rule.reserve.map(kept),
            queued: QueueTotals::default(),
            reported: (0, 0),
        }
    }

    /// The maximum at `now`: that of the rule or of a lower supply, and of that the share.
    #[inline]
    pub(crate) fn max(&self, now: Timestamp) -> u32 {
        if !self.is_lowered {
            return self.configured;
        }
        let supplied = self.supplies.iter().filter_map(|supply| supply.at(now));
        self.share.of(supplied.fold(self.configured, u32::min))
    }

    /// Whether it gives out only a share, which grows. What it could not admit in time now, it may
    /// admit in time later.
    #[inline]
    pub(crate) fn is_growing(&self) -> bool {
        self.share < SupplyShare::FULL
    }

    /// Sets the part of the maximum that may be given out. False if it was the same before.
    pub(crate) fn set_share(&mut self, now: Timestamp, share: SupplyShare) -> bool {
        let changes = self.share != share;
        if changes {
            self.share = share;
            self.note_lowered();
            self.follow_supply(now);
        }
        changes
    }

    fn note_lowered(&mut self) {
        let is_supplied = |supply: &Supply| *supply != Supply::Configured;
        self.is_lowered = self.share < SupplyShare::FULL || self.supplies.iter().any(is_supplied);
    }

    /// The event that counts as a departure, if any does.
    const fn stamp(&self) -> Option<WindowStamp> {
        match self.rule.limit {
            Limit::Window { stamp, .. } => Some(stamp),
            Limit::Outstanding { .. } | Limit::Paced { .. } => None,
        }
    }

    pub(crate) const fn supply(&self, supplier: Supplier) -> Supply {
        self.supplies[supplier as usize]
    }

    pub(crate) fn set_supply(&mut self, now: Timestamp, supplier: Supplier, supply: Supply) {
        self.supplies[supplier as usize] = supply;
        self.note_lowered();
        self.follow_supply(now);
    }

    /// Sets a pace to what the rule and the supplies allow now.
    pub(crate) fn follow_supply(&mut self, now: Timestamp) {
        let max = self.max(now);
        if let (LimitState::Paced(level), &Limit::Paced { pace }) =
            (&mut self.state, &self.rule.limit)
        {
            let supply = (max < self.configured).then_some(f64::from(max));
            level.follow(now, BucketLimit::Paced(pace), supply);
        }
    }

    /// The unit of the draws.
    pub(crate) const fn unit(&self) -> Unit {
        match self.state {
            LimitState::Outstanding(_) => Unit::Calls,
            LimitState::Window(_) => Unit::Cost,
            LimitState::Paced(_) => Unit::Tokens,
        }
    }

    /// How much of the limit a call draws: calls, cost, or millionths of a token.
    #[inline]
    pub(crate) fn draw_of(&self, call: &Call) -> u64 {
        match self.state {
            LimitState::Outstanding(_) => 1,
            LimitState::Window(_) => u64::from(call.cost.get()),
            LimitState::Paced(_) => TokenCount::of_turn(call.tokens).micros(),
        }
    }

    /// The state of a paced limit at `now`; `None` for any other.
    pub(crate) fn paced_now(&self, now: Timestamp) -> Option<PacerNow> {
        match &self.state {
            LimitState::Paced(level) => level.paced_now(now),
            LimitState::Outstanding(_) | LimitState::Window(_) => None,
        }
    }

    /// The amount drawn and not back at `now`: calls in flight, or cost reserved and departed.
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        self.state.used(now)
    }

    /// Whether no draw is open that only the end of a call brings back.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut kept = self.kept.iter();
        self.state.is_at_rest() && kept.all(|kept| kept.used.is_at_rest())
    }

    /// The reserve, if it belongs to this class.
    #[inline]
    fn kept_by(&self, class: Class) -> Option<&ReserveState> {
        let kept = self.kept.as_deref();
        kept.filter(|kept| kept.reserve.class == class)
    }

    /// The reserve, if it belongs to another class.
    #[inline]
    fn kept_beside(&self, class: Class) -> Option<&ReserveState> {
        let kept = self.kept.as_deref();
        kept.filter(|kept| kept.reserve.class != class)
    }

    /// The state of the reserve, if it belongs to this class: a call of the class draws from the limit
    /// and from it.
    #[inline]
    fn used_by(&mut self, class: Class) -> Option<&mut LimitState> {
        let kept = self.kept.as_deref_mut();
        let kept = kept.filter(|kept| kept.reserve.class == class);
        kept.map(|kept| &mut kept.used)
    }

    /// Changes the state of the limit, and that of the reserve if it belongs to this class.
    #[inline]
    fn change(&mut self, class: Class, change: impl Fn(&mut LimitState)) {
        change(&mut self.state);
        if let Some(used) = self.used_by(class) {
            change(used);
        }
    }

    /// The part of the limit that a call of this class can never use.
    #[inline]
    fn out_of_reach(&self, class: Class) -> u32 {
        let kept = self.kept_beside(class);
        kept.map_or(0, |kept| kept.reserve.amount)
    }

    /// Whether this call costs more than the rule ever allows its class.
    #[inline]
    pub(crate) fn is_beyond(&self, call: &Call) -> bool {
        if let LimitState::Paced(_) = self.state {
            // A call that costs more than the pool goes into debt.
            return false;
        }
        let reach = self.configured - self.out_of_reach(call.class);
        self.draw_of(call) > u64::from(reach)
    }

    /// Whether the reserve of its class covers this call, so that it takes nothing from other classes.
    #[inline]
    pub(crate) fn is_kept_for(&self, now: Timestamp, call: &Call) -> bool {
        self.kept_by(call.class).is_some_and(|kept| {
            kept.used.used(now) + self.draw_of(call) <= u64::from(kept.reserve.amount)
        })
    }

    /// When the reserve of its class covers this call, if that moment is known.
    pub(crate) fn keeps_from(&self, now: Timestamp, call: &Call) -> Option<Timestamp> {
        let kept = self.kept_by(call.class)?;
        let LimitState::Window(used) = &kept.used else {
            return None;
        };
        match used.peek(now, call.cost, kept.reserve.amount) {
            Verdict::NotBefore(moment) => Some(moment),
            Verdict::Ready | Verdict::OnChange | Verdict::Never => None,
        }
    }

    /// The class with a reserve.
    pub(crate) fn kept_for(&self) -> Option<Class> {
        self.rule.reserve.map(|reserve| reserve.class)
    }

    /// No call waits for departures beyond this moment.
    #[inline]
    pub(crate) fn opens_by(&self, now: Timestamp) -> Timestamp {
        match &self.state {
            LimitState::Outstanding(_) => now,
            LimitState::Window(window) => window.opens_by(now),
            LimitState::Paced(level) => now + level.limiter().wait_behind(now, 0.0, Tokens::MAX),
        }
    }

    /// The length of a window, if it has one; `None` for any other limit.
    pub(crate) fn window(&self) -> Option<Duration> {
        match &self.state {
            LimitState::Window(window) => Some(window.length()).filter(|length| !length.is_zero()),
            LimitState::Outstanding(_) | LimitState::Paced(_) => None,
        }
    }

    /// The verdict for this call, behind claims of `ahead`. Draws nothing.
    #[inline]
    pub(crate) fn peek(&self, now: Timestamp, call: &Call, ahead: u64) -> Verdict {
        let configured = self.max(now);
        let max = u64::from(configured).saturating_sub(ahead) as u32;
        if self.is_beyond(call) {
            return Verdict::Never;
        }
        match (&self.state, self.kept_beside(call.class)) {
            (LimitState::Outstanding(outstanding), None) => outstanding.peek(max),
            (LimitState::Outstanding(outstanding), Some(kept)) => {
                let unused = u64::from(kept.reserve.amount).saturating_sub(kept.used.used(now));
                outstanding.peek(max.saturating_sub(unused as u32))
            }
            (LimitState::Window(window), None) => window.peek(now, call.cost, max),
            (LimitState::Window(window), Some(kept)) => {
                window.peek_beside(now, call.cost, max, kept.reserve.amount, kept.window())
            }
            (LimitState::Paced(_), _) if configured == 0 => Verdict::OnChange,
            (LimitState::Paced(level), _) => {
                let ahead = TokenCount::from_micros(ahead).tokens();
                level.limiter().verdict_behind(now, ahead, call.tokens)
            }
        }
    }

    /// How many calls like this one fit behind claims of `ahead`, if one does.
    pub(crate) fn fits(&self, now: Timestamp, call: &Call, ahead: u64) -> u64 {
        match self.state {
            LimitState::Paced(_) => 1,
            LimitState::Outstanding(_) | LimitState::Window(_) => {
                let rest = u64::from(self.max(now)).saturating_sub(self.used(now) + ahead);
                rest / self.draw_of(call).max(1)
            }
        }
    }

    /// Whether [`peek`](Self::peek) with nothing ahead is ready.
    #[inline]
    pub(crate) fn has_room(&self, now: Timestamp, call: &Call) -> bool {
        // A call that fits now is not beyond the rule.
        match (&self.state, &self.kept) {
            (LimitState::Outstanding(outstanding), None) => outstanding.in_use < self.max(now),
            (LimitState::Window(window), None) => window.has_room(now, call.cost, self.max(now)),
            _ => self.peek(now, call, 0) == Verdict::Ready,
        }
    }

    /// The earliest moment at which this call could be admitted, where `verdict` is the result of
    /// [`peek`](Self::peek). It is `now` if that depends on what other calls do.
    pub(crate) fn earliest(&self, now: Timestamp, call: &Call, verdict: Verdict) -> Timestamp {
        match (verdict, &self.state) {
            (Verdict::NotBefore(moment), _) => moment,
            (Verdict::OnChange, LimitState::Window(window)) => {
                let max = self.max(now).saturating_sub(self.out_of_reach(call.class));
                window.earliest(
                    now,
                    call.cost,
                    max,
                    self.kept_beside(call.class).map(ReserveState::window),
                )
            }
            (Verdict::Ready | Verdict::OnChange | Verdict::Never, _) => now,
        }
    }

    /// Draws for a call that leaves the queue.
    #[inline]
    pub(crate) fn take(&mut self, now: Timestamp, call: &Call) -> Stake {
        let stake = self.state.take(now, call);
        // The stakes in both are the same.
        let of_kept = self.used_by(call.class).map(|used| used.take(now, call));
        of_kept.unwrap_or(stake)
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
        let Stake::Reserved(cost) = *stake else {
            return false;
        };
        let counts = self.stamp() == Some(stamp);
        if counts {
            self.change(class, |state| state.depart(now, cost));
            *stake = Stake::Departed(cost);
        }
        counts
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
        self.change(class, |state| state.release(now, stake, held));
    }

    /// Takes the stake back as if it had never been drawn. A reported departure stays counted.
    pub(crate) fn undraw(&mut self, now: Timestamp, class: Class, stake: Stake) {
        self.change(class, |state| state.undraw(now, stake));
    }

    /// How long a call that arrives now would wait behind those that wait already, as far as the state
    /// shows.
    pub(crate) fn wait_behind(&self, now: Timestamp, call: &Call) -> Duration {
        let ahead = self.queued.draw;
        let max = self.max(now).saturating_sub(self.out_of_reach(call.class));
        let wait = match &self.state {
            LimitState::Outstanding(outstanding) => outstanding.wait_behind(max, ahead),
            LimitState::Window(window) => window.wait_behind(now, max, ahead, call.cost),
            LimitState::Paced(_) if max == 0 => None,
            LimitState::Paced(level) => {
                let ahead = TokenCount::from_micros(ahead).tokens();
                Some(level.limiter().wait_behind(now, ahead, call.tokens))
            }
        };
        wait.unwrap_or(RETRY_UNMEASURED)
    }

    /// Since when supplies let it admit anything: `now` if they do. `None` if that is not known, as while a
    /// backend is down. `reopens` is when an operator opens what it has closed.
    pub(crate) fn supplied_from(
        &self,
        now: Timestamp,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        if !self.is_lowered {
            return Some(now);
        }
        let mut from = now;
        for (supply, supplier) in self.supplies.iter().zip(Supplier::ALL) {
            if supplier == Supplier::Health && *supply != Supply::Configured {
                return None;
            }
            if supply.at(now) != Some(0) {
                continue;
            }
            let expires = supply.expires_at().filter(|&end| supply.at(end) != Some(0));
            let opens = match supplier {
                Supplier::Operator => reopens.or(expires),
                Supplier::Health | Supplier::Coordinator => expires,
            };
            from = from.max(opens?);
        }
        Some(from)
    }

    /// The maximum from this moment on, if what is closed now is open then.
    fn max_open(&self, from: Timestamp) -> u32 {
        if !self.is_lowered {
            return self.configured;
        }
        let supplied = self.supplies.iter().filter_map(|supply| supply.at(from));
        let supplied = supplied.filter(|&supply| supply > 0);
        self.share.of(supplied.fold(self.configured, u32::min))
    }

    /// When it opens for a call with `ahead` drawn before it, at the earliest at `from`. Of that, `in_class` is
    /// drawn by the class of the call.
    pub(crate) fn opening(
        &self,
        from: Timestamp,
        call: &Call,
        ahead: u64,
        in_class: u64,
    ) -> LimitOpening {
        let max = self.max_open(from);
        let open = max.saturating_sub(self.out_of_reach(call.class));
        let opening = self.state.opening(from, call, open, ahead);
        let Some(kept) = self
            .kept_by(call.class)
            .filter(|kept| kept.reserve.amount > 0)
        else {
            return opening;
        };
        let kept = kept.used.opening(from, call, kept.reserve.amount, in_class);
        match (opening, kept) {
            (LimitOpening::At(at), LimitOpening::At(kept)) => LimitOpening::At(at.min(kept)),
            (LimitOpening::Unknown | LimitOpening::After { .. }, LimitOpening::At(kept)) => {
                LimitOpening::At(kept)
            }
            (opening, _) => opening,
        }
    }

    /// Takes the state over from the limiter of the same name under the policy before. False if that one
    /// was of another kind. `same_class` returns whether an old class and a new one are the same.
    pub(crate) fn inherit(
        &mut self,
        now: Timestamp,
        old: &mut Self,
        same_class: impl Fn(Class, Class) -> bool,
    ) -> bool {
        self.reported = old.reported;
        match (&mut self.state, &mut old.state) {
            (LimitState::Outstanding(new), LimitState::Outstanding(old)) => mem::swap(new, old),
            (LimitState::Window(new), LimitState::Window(old)) => new.inherit(old),
            (LimitState::Paced(new), LimitState::Paced(old)) => mem::swap(new, old),
            (LimitState::Outstanding(_) | LimitState::Window(_) | LimitState::Paced(_), _) => {
                return false;
            }
        }
        self.supplies = old.supplies;
        self.share = old.share;
        self.note_lowered();
        self.follow_supply(now);
        if let (Some(new), Some(old)) = (&mut self.kept, &mut old.kept)
            && same_class(old.reserve.class, new.reserve.class)
            && let (LimitState::Window(new), LimitState::Window(old)) =
                (&mut new.used, &mut old.used)
        {
            // Calls in flight are counted again.
            new.inherit(old);
            new.reserved = 0;
        }
        true
    }

    /// Counts a departure of the process before. False if this is no window.
    pub(crate) fn carry_departure(&mut self, at: Timestamp, cost: Cost) -> bool {
        let LimitState::Window(window) = &mut self.state else {
            return false;
        };
        window.stamp_late(at, cost);
        true
    }

    /// Forgets the departures of a window before this moment.
    pub(crate) fn forget_before(&mut self, at: Timestamp) {
        if let LimitState::Window(window) = &mut self.state {
            window.forget_before(at);
        }
    }

    /// Lowers a pace to what it had before at `since`. False for any other limit.
    pub(crate) fn carry_level(&mut self, now: Timestamp, tokens: f64, since: Timestamp) -> bool {
        let LimitState::Paced(level) = &mut self.state else {
            return false;
        };
        level.carry(now, tokens, since);
        true
    }

    /// The tokens of a pace; `None` for any other limit.
    pub(crate) fn tokens(&self, now: Timestamp) -> Option<f64> {
        match &self.state {
            LimitState::Paced(level) => Some(level.limiter().peek(now)),
            LimitState::Outstanding(_) | LimitState::Window(_) => None,
        }
    }

    /// The departures that a window remembers, with what each counts. None of any other limit.
    pub(crate) fn departures(&self) -> impl Iterator<Item = (Timestamp, u32)> {
        let window = match &self.state {
            LimitState::Window(window) => Some(window),
            LimitState::Outstanding(_) | LimitState::Paced(_) => None,
        };
        window.into_iter().flat_map(Window::departures)
    }

    /// The departure that this limit counts, if it has happened.
    fn departed(&self, progress: Departures) -> Option<Timestamp> {
        progress.departed(self.stamp()?)
    }

    /// Counts a call that was in flight before this limit applied to it.
    pub(crate) fn adopt(&mut self, now: Timestamp, call: &Call, progress: Departures) -> Stake {
        self.state.adopt(now, call, self.departed(progress))
    }

    /// Counts a call in flight for the reserve of its class. A departed call was counted when it departed,
    /// or does not count for the class: then others have less room, never more.
    pub(crate) fn keep(&mut self, now: Timestamp, call: &Call, stake: Stake) {
        if let Stake::Slot | Stake::Reserved(_) = stake
            && let Some(kept) = self.used_by(call.class)
        {
            kept.take(now, call);
        }
    }

    /// Corrects the stake of a call in flight after `inherit`, if the policy before counted another moment
    /// as the departure. What was counted once stays counted.
    pub(crate) fn readopt(&mut self, now: Timestamp, stake: &mut Stake, progress: Departures) {
        let departed = self.departed(progress);
        let LimitState::Window(window) = &mut self.state else {
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

impl ReserveState {
    fn window(&self) -> &Window {
        match &self.used {
            LimitState::Window(window) => window,
            LimitState::Outstanding(_) | LimitState::Paced(_) => {
                unreachable!("the reserve of a window is a window")
            }
        }
    }
}
