//! When a waiting call starts, as far as the state shows.
//!
//! The start of a call is the latest of the moments at which its limits open for it. A limit opens for a call
//! when the calls ahead of it there have left:
//!
//! - A window opens for the n-th call from now when the n-th oldest departure stops counting, and a whole
//!   number of windows later for calls further behind.
//! - An outstanding limit opens by the times for which slots were held lately, from the starts of the calls in
//!   flight.
//! - Buckets and paces open by their rates, and a quota by its ledger.
//!
//! The calls ahead are counted, not looked at. Each waiting call is counted at one limit: the one that holds it
//! longest, as far as is known when it begins to wait. All limits of one scope count as one there: the same calls
//! wait for them, in the same order, and which of them is the slowest changes. There the calls of its own caller
//! are ahead of it, and of every other caller as many as its turn allows, and likewise of other classes
//! ([`depths`]). At its other limits, a call is ahead of others only from the moment at which the first limit lets
//! it go, so these calls are added at the rate of that limit.
//!
//! Only a call that waits is counted, and it can be left out: nothing here decides anything.

mod depths;
mod lately;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{AddAssign, SubAssign};

use self::depths::Depths;
use crate::bucket::TokenCount;
use crate::call::{Call, Caller, Class};
use crate::limiter::Unit;
use crate::policy::{LimitId, SetId};
use crate::queue::fair::TurnAdvance;
use crate::queue::{Budget, QueuedCall};
use crate::time::Timestamp;

/// The prediction for a waiting call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// When it starts; `None` if that is not known, as while its backend is down.
    pub starts: Option<Timestamp>,
    /// About how many waiting calls start before it, of those that wait for the same.
    pub ahead: u64,
    /// The limit, bucket or quota that is expected to hold it longest.
    pub by: Option<Arc<str>>,
}

/// How a waiting call is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForecastEntry {
    /// The budget that holds the call longest; the first limit of a scope stands for all of that scope.
    pub(crate) at: Option<Budget>,
    /// When it began to wait.
    pub(crate) since: Timestamp,
    /// When it starts, as foreseen then; the latest moment if that is not known. So it takes 32 bytes.
    pub(super) starts: Timestamp,
}

impl ForecastEntry {
    /// When it starts, as foreseen when it began to wait.
    pub(crate) fn starts(self) -> Option<Timestamp> {
        (self.starts < Timestamp::MAX).then_some(self.starts)
    }
}

/// The draws of calls from limits, in the unit of each kind of limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DrawAmounts([u64; Unit::ALL]);

impl DrawAmounts {
    pub(super) fn of(call: &Call) -> Self {
        let micros = TokenCount::of_turn(call.tokens).micros();
        Self([1, u64::from(call.cost.get()), micros])
    }

    /// A draw from a bucket.   millionths of a token
    pub(super) fn of_tokens(micros: u64) -> Self {
        let mut draw = Self::default();
        draw.0[Unit::Tokens as usize] = micros;
        draw
    }

    /// The rest without another draw, of which not all need be in this one.
    pub(super) fn without(self, other: Self) -> Self {
        let units = core::array::from_fn(|unit| self.0[unit].saturating_sub(other.0[unit]));
        Self(units)
    }

    pub(super) const fn in_unit(self, unit: Unit) -> u64 {
        self.0[unit as usize]
    }
}

impl AddAssign for DrawAmounts {
    fn add_assign(&mut self, other: Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(sum, of)| *sum += of);
    }
}

impl SubAssign for DrawAmounts {
    fn sub_assign(&mut self, other: Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(sum, of)| *sum -= of);
    }
}

/// The calls of a caller that the limits of one scope hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallerLoad {
    pub(super) calls: u32,
    /// How far they move the caller's turn.
    pub(super) depth: u64,
    /// The sum of their draws.
    pub(super) draw: DrawAmounts,
    /// Whether one of the calls was served while others waited.
    pub(super) had_turn: bool,
}

/// Calls that the same holds, that meet the same limits, and that are of one class.
pub(super) type HeldSet = (Option<Budget>, SetId, Class);

/// The waiting calls, counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Forecast {
    pub(super) loads: BTreeMap<(LimitId, Class, Caller), CallerLoad>,
    depths: BTreeMap<(LimitId, Class), Depths>,
    /// The draws of calls by the budget that holds them, the limits that they meet, and their class.
    pub(super) sets: BTreeMap<HeldSet, DrawAmounts>,
}

impl Forecast {
    /// A call waits, held by this.
    pub(super) fn count<T>(&mut self, waiting: &QueuedCall<T>, at: Option<Budget>) {
        let call = &waiting.call;
        let set = (at, waiting.meets.set, call.class);
        *self.sets.entry(set).or_default() += DrawAmounts::of(call);
        let Some(Budget::Limit(limit)) = at else {
            return;
        };
        let load = self.loads.entry((limit, call.class, call.caller));
        let load = load.or_default();
        let depths = self.depths.entry((limit, call.class)).or_default();
        depths.remove(load);
        load.calls += 1;
        load.depth += TurnAdvance::new(call.tokens, call.weight, 1).of_caller();
        load.draw += DrawAmounts::of(call);
        depths.insert(load);
    }

    /// A call that has just been counted came now.
    pub(super) fn arrived<T>(&mut self, now: Timestamp, waiting: &QueuedCall<T>) {
        if let Some(ForecastEntry {
            at: Some(Budget::Limit(limit)),
            ..
        }) = waiting.counted
            && let Some(depths) = self.depths.get_mut(&(limit, waiting.call.class))
        {
            depths.lately.add(now);
        }
    }

    /// A counted call waits no more. It was served, or left.
    pub(super) fn discount<T>(&mut self, waiting: &QueuedCall<T>, served: bool) {
        let Some(counted) = &waiting.counted else {
            return;
        };
        let call = &waiting.call;
        let set = (counted.at, waiting.meets.set, call.class);
        if let Some(draw) = self.sets.get_mut(&set) {
            *draw -= DrawAmounts::of(call);
            if draw.in_unit(Unit::Calls) == 0 {
                self.sets.remove(&set);
            }
        }
        let Some(Budget::Limit(limit)) = counted.at else {
            return;
        };
        let key = (limit, call.class, call.caller);
        let depths = self.depths.get_mut(&(limit, call.class));
        let (Some(load), Some(depths)) = (self.loads.get_mut(&key), depths) else {
            return;
        };
        depths.remove(load);
        load.calls -= 1;
        load.depth -= TurnAdvance::new(call.tokens, call.weight, 1).of_caller();
        load.draw -= DrawAmounts::of(call);
        load.had_turn |= served;
        if load.calls == 0 {
            self.loads.remove(&key);
            if depths.is_empty() {
                self.depths.remove(&(limit, call.class));
            }
        } else {
            depths.insert(load);
        }
    }

    /// The draws at a limit before a call of this class that is `own` behind in its own flow: those of other
    /// callers and classes, and those of all calls of its class.
    pub(super) fn ahead(
        &self,
        (limit, unit): (LimitId, Unit),
        class: Class,
        own: OwnDraws,
        span: (Timestamp, Timestamp),
        coming: ExpectedDraws,
        weight_of: impl Fn(Class) -> u32,
    ) -> (u64, u64) {
        let depths = self.depths.get(&(limit, class));
        let others = depths.map_or(coming.in_class, |depths| {
            depths.ahead(&own, unit, span, coming.in_class)
        });
        let in_class = others + own.draw.in_unit(unit) as f64;
        let weight = f64::from(weight_of(class));
        let first = (limit, Class(0));
        let mut alone = true;
        let classes = self.depths.range(first..(limit + 1, Class(0)));
        let beside = classes
            .filter(|((_, other), _)| *other != class)
            .map(|((_, other), depths)| {
                alone = false;
                let turns = (in_class + 0.5) * f64::from(weight_of(*other)) / weight;
                turns.min(depths.draw(unit) as f64 + depths.comes(span, unit) + coming.beside)
            })
            .sum::<f64>();
        let beside = if alone { coming.beside } else { beside };
        ((in_class + beside + 0.5) as u64, (in_class + 0.5) as u64)
    }

    /// Whether the calls that the limits of a scope hold are all of this class and caller.
    pub(super) fn holds_only(&self, limit: LimitId, class: Class, caller: Caller) -> bool {
        let loads = self.loads.range((limit, Class(0), Caller(0))..);
        let mut of_limit = loads
            .map(|(key, _)| *key)
            .take_while(|(it, ..)| *it == limit);
        of_limit.all(|load| load == (limit, class, caller))
    }

    /// All calls that the limits of a scope hold, in what they draw.
    pub(super) fn held(&self, limit: LimitId, unit: Unit) -> u64 {
        let classes = self.depths.range((limit, Class(0))..(limit + 1, Class(0)));
        classes.map(|(_, depths)| depths.draw(unit)).sum()
    }
}

/// The draws expected at a limit from others before a call starts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedDraws {
    /// Of its own class.
    pub(super) in_class: f64,
    /// Of the other classes.
    pub(super) beside: f64,
}

/// The calls of its own flow before a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnDraws {
    pub(super) depth: u64,
    pub(super) draw: DrawAmounts,
    /// The call's own service.
    pub(super) one: u64,
    /// The call's own flow, which is not among the others.
    pub(super) load: CallerLoad,
}

/// Where a call is in its own flow.
#[derive(Debug, Default)]
pub(super) struct FlowPosition {
    /// The draws before the call, by the budget that holds them.
    pub(super) ahead: Vec<(Budget, OwnDraws)>,
    /// The calls behind it and itself, as in [`Forecast::sets`].
    pub(super) behind: Vec<(HeldSet, DrawAmounts)>,
}

impl FlowPosition {
    /// The draws before the call at this budget.
    pub(super) fn at(&self, budget: Budget) -> OwnDraws {
        let mut ahead = self.ahead.iter();
        let found = ahead.find(|(at, _)| *at == budget);
        found.map_or_else(OwnDraws::default, |(_, own)| *own)
    }
}

pub(super) fn add<K: PartialEq, V: Default>(
    to: &mut Vec<(K, V)>,
    key: K,
    change: impl FnOnce(&mut V),
) {
    if let Some((_, value)) = to.iter_mut().find(|(known, _)| *known == key) {
        return change(value);
    }
    let mut value = V::default();
    change(&mut value);
    to.push((key, value));
}
