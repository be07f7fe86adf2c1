//! The moments at which limits open for a call.

use super::super::forecast::{ExpectedDraws, FlowPosition, OwnDraws};
use super::super::state::Scheduler;
use super::memo::PredictionMemo;
use crate::bucket::TokenCount;
use crate::call::{Call, Class};
use crate::limiter::{LimitOpening, Unit};
use crate::policy::{LimitId, SetId};
use crate::queue::fair::TurnAdvance;
use crate::queue::{Budget, BudgetSet};
use crate::time::Timestamp;

/// The estimate of a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    pub(super) starts: Option<Timestamp>,
    pub(super) by: Option<Budget>,
    pub(super) ahead: u64,
}

/// The budget that opens last for a call, of those looked at so far.
struct LastOpening {
    at: Timestamp,
    by: Option<Budget>,
    ahead: u64,
}

impl LastOpening {
    fn add(&mut self, at: Timestamp, by: Budget, ahead: u64) {
        if at > self.at || self.by.is_none() {
            self.by = Some(by);
            self.ahead = ahead;
        }
        self.at = self.at.max(at);
    }
}

/// The calls that come later, and go before a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaterArrivals {
    /// About half as many as came lately.
    AsLately,
    None,
}

/// How often the calls that come from other limits are counted again: each round moves the moment less.
const ROUNDS: usize = 3;

/// A round that moves the moment by less than this part of the wait is the last.
const NEAR: u32 = 32;

/// How many calls ahead show which limit is the slowest.
const MANY: u64 = 1_000;

/// The kinds of waiting calls that an arrival looks at: those that meet the same limits and wait for the
/// same. More of them than that make a prediction less exact, never slower.
pub(super) const SETS_MAX: usize = 256;

impl<T> Scheduler<T> {
    /// When a call starts. `place` is its place in its own flow; `None`
    /// for a call that is not counted yet, so that everything of its flow is ahead.
    pub(super) fn estimate(
        &self,
        now: Timestamp,
        call: &Call,
        meets: &BudgetSet,
        place: Option<&FlowPosition>,
        reopens: Option<Timestamp>,
        later: LaterArrivals,
    ) -> Estimate {
        let supplied = self.supplied_from(now, call, meets, reopens);
        // Where the start is unknown, it is counted where it would wait if all were open.
        let from = supplied.unwrap_or(now);
        let mut last = LastOpening {
            at: from,
            by: None,
            ahead: 0,
        };
        let (limit, unknown) = self.last_limit((now, from), call, (meets, place), later);
        if let Some((at, limit, ahead)) = limit {
            last.add(at, Budget::Limit(limit), ahead);
        }
        if let Some((at, budget, ahead)) = self.bucket_opens(from, call, (meets, place)) {
            last.add(at, budget, ahead);
        }
        for budget in meets.quotas() {
            if let Budget::Quota(quota) = budget {
                let opens = self.budgets.quotas.opens(from, quota, call.tokens);
                if opens > from {
                    last.add(opens, budget, 0);
                }
            }
        }
        let LastOpening {
            at: mut start,
            mut by,
            ahead,
        } = last;
        let mut is_known = supplied.is_some();
        // Nothing is known to hold it once all is open, as in a pause. It is counted where many calls wait longest.
        if start <= from {
            let limits = self.budgets.sets.limits(meets.set);
            let slowest = limits.iter().copied().max_by_key(|&limit| {
                let opens = self.opening(from, limit, call, meets, MANY, MANY);
                opens.unwrap_or(from)
            });
            by = slowest.map(Budget::Limit).or(by);
        }
        // Without a figure for one limit, those of the others are the best there is.
        if start <= from && unknown.is_some() {
            by = unknown;
            is_known = false;
        }
        // A call that is set aside comes back some time after its limit has opened.
        if start > now
            && let Some((min, max)) = self.policy.jitter(call.class)
        {
            start = start + (min + max) / 4;
        }
        Estimate {
            starts: is_known.then_some(start),
            by,
            ahead,
        }
    }

    /// When all limits of a call give out anything again; `None` if that is unknown for one.
    fn supplied_from(
        &self,
        now: Timestamp,
        call: &Call,
        meets: &BudgetSet,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let mut from = Some(now);
        for (_, limiter) in self.budgets.limits_of(meets) {
            let opens = limiter.supplied_from(now, reopens);
            from = from.zip(opens).map(|(from, opens)| from.max(opens));
        }
        if let Some(group) = self.budgets.servers_for(call) {
            let opens = self.budgets.servers_supplied_from(now, group, reopens);
            from = from.zip(opens).map(|(from, opens)| from.max(opens));
        }
        from
    }

    /// The limit that opens last for a call, when, and the calls ahead of it there. Also one limit for which
    /// that is unknown, if there is any.
    fn last_limit(
        &self,
        (now, from): (Timestamp, Timestamp),
        call: &Call,
        (meets, place): (&BudgetSet, Option<&FlowPosition>),
        later: LaterArrivals,
    ) -> (Option<(Timestamp, LimitId, u64)>, Option<Budget>) {
        let limits = self.budgets.sets.limits(meets.set);
        let memo = PredictionMemo::default();
        let mut unknown = None;
        // Calls that other limits hold come here until it starts, and that depends on them.
        let mut until = from;
        for round in 0..=ROUNDS {
            let mut last: Option<(Timestamp, LimitId, u64)> = None;
            for &limit in limits.iter() {
                match self.opens(
                    now,
                    (from, until),
                    limit,
                    call,
                    (meets, place),
                    (later, &memo),
                ) {
                    Some((at, ahead)) if at > from || ahead > 0 => {
                        if last.is_none_or(|(before, _, _)| at > before) {
                            last = Some((at, limit, ahead));
                        }
                    }
                    Some(_) => {}
                    None => unknown = unknown.or(Some(Budget::Limit(limit))),
                }
            }
            let Some((at, _, _)) = last else {
                break;
            };
            let moved = at.since(until);
            if moved <= at.since(now) / NEAR || round == ROUNDS {
                return (last, unknown);
            }
            until = at;
        }
        (None, unknown)
    }

    /// When the bucket of a call has enough for it, and the calls ahead of it there. `None` if it need not wait
    /// for a bucket.
    fn bucket_opens(
        &self,
        from: Timestamp,
        call: &Call,
        (meets, place): (&BudgetSet, Option<&FlowPosition>),
    ) -> Option<(Timestamp, Budget, u64)> {
        let key = meets.bucket?;
        let bucket = &self.budgets.buckets.all[key];
        let queued = bucket.queued;
        // A call that is counted is among those that wait.
        let mine = TokenCount::of_turn(call.tokens).micros();
        let (ahead, calls) = match place.map(|place| place.at(Budget::Bucket(key))) {
            Some(own) => {
                let draw = own.draw.in_unit(Unit::Tokens);
                (draw, draw / mine.max(1))
            }
            None => (
                queued.draw.saturating_sub(mine),
                queued.calls.saturating_sub(1),
            ),
        };
        let wait = bucket.wait_with(from, ahead, call.tokens);
        (!wait.is_zero()).then(|| (from + wait, Budget::Bucket(key), calls))
    }

    /// When a limit opens for a call, at the earliest at `from`, and what is ahead of it there if it waits `until`.
    fn opens(
        &self,
        now: Timestamp,
        (from, until): (Timestamp, Timestamp),
        limit: LimitId,
        call: &Call,
        (meets, place): (&BudgetSet, Option<&FlowPosition>),
        (later, memo): (LaterArrivals, &PredictionMemo),
    ) -> Option<(Timestamp, u64)> {
        let first = self.budgets.sets.first_peer(limit);
        let unit = self.budgets.limits[limit as usize].unit();
        let load = memo.load(first, || {
            let load = self.forecast.loads.get(&(first, call.class, call.caller));
            load.copied().unwrap_or_default()
        });
        let own = OwnDraws {
            one: TurnAdvance::new(call.tokens, call.weight, 1).of_caller(),
            load,
            ..place.map_or(
                OwnDraws {
                    depth: load.depth,
                    draw: load.draw,
                    ..OwnDraws::default()
                },
                |place| place.at(Budget::Limit(first)),
            )
        };
        let classes = self.policy.classes();
        let weight = |class: crate::Class| classes.get(class.0 as usize).map_or(1, |it| it.weight);
        let coming = self.coming_from_others((now, until), limit, call.class, place, memo);
        let span = match later {
            LaterArrivals::AsLately => (now, until),
            LaterArrivals::None => (now, now),
        };
        let forecast = &self.forecast;
        let (all, in_class) = forecast.ahead((first, unit), call.class, own, span, coming, weight);
        let opens = self.opening(from, limit, call, meets, all, in_class)?;
        Some((opens, all))
    }

    /// When a limit opens for a call with this ahead.
    pub(super) fn opening(
        &self,
        from: Timestamp,
        limit: LimitId,
        call: &Call,
        meets: &BudgetSet,
        ahead: u64,
        in_class: u64,
    ) -> Option<Timestamp> {
        if let Some(group) = self.budgets.servers_at(limit, call) {
            let now = self.now;
            return self.budgets.servers_opening(now, from, group, call, ahead);
        }
        let limiter = &self.budgets.limits[limit as usize];
        match limiter.opening(from, call, ahead, in_class) {
            LimitOpening::At(at) => Some(at),
            LimitOpening::Unknown => None,
            // The call that frees the room has not left yet. It leaves when its other limits let it.
            LimitOpening::After { behind, then } => {
                let mut leaves = from;
                for (other, limiter) in self.budgets.limits_of(meets) {
                    if other != limit
                        && let LimitOpening::At(at) = limiter.opening(from, call, behind, behind)
                    {
                        leaves = leaves.max(at);
                    }
                }
                Some(leaves + then)
            }
        }
    }

    /// How much of what other limits hold comes to this limit until `at`.
    fn coming_from_others(
        &self,
        (now, at): (Timestamp, Timestamp),
        limit: LimitId,
        class: Class,
        place: Option<&FlowPosition>,
        memo: &PredictionMemo,
    ) -> ExpectedDraws {
        let unit = self.budgets.limits[limit as usize].unit();
        let mut coming = ExpectedDraws::default();
        let first = Budget::Limit(self.budgets.sets.first_peer(limit));
        let sets = self.forecast.sets.iter().take(SETS_MAX);
        for (number, (&(by, set, of), &draw)) in sets.enumerate() {
            let Some(by) = by else { continue };
            if by == first || !self.budgets.sets.limits(set).contains(&limit) {
                continue;
            }
            let behind = place.and_then(|place| {
                let mut behind = place.behind.iter();
                behind.find(|(held, _)| *held == (Some(by), set, of))
            });
            let behind = behind.map_or(0, |(_, draw)| draw.in_unit(unit));
            let draw = draw.in_unit(unit).saturating_sub(behind) as f64;
            let Some(ends) = memo.drains(number, || self.drains(now, by, set)) else {
                continue;
            };
            let span = ends.since(now).as_nanos().max(1) as f64;
            let part = at.since(now).as_nanos() as f64 / span;
            let comes = draw * part.min(1.0);
            if of == class {
                coming.in_class += comes;
            } else {
                coming.beside += comes;
            }
        }
        coming
    }

    /// When all that this holds has left it, if no other limit holds it up. `set` is of one of the calls.
    fn drains(&self, now: Timestamp, by: Budget, set: SetId) -> Option<Timestamp> {
        let call = Call::new("", now);
        match by {
            Budget::Limit(first) => {
                let meets = BudgetSet {
                    set,
                    ..BudgetSet::default()
                };
                let peers = self.budgets.limits_of(&meets);
                let peers = peers.filter(|&(of, _)| self.budgets.sets.first_peer(of) == first);
                let ends = peers.filter_map(|(limit, limiter)| {
                    let held = self.forecast.held(first, limiter.unit()).saturating_sub(1);
                    self.opening(now, limit, &call, &meets, held, held)
                });
                ends.max()
            }
            Budget::Bucket(bucket) => {
                let bucket = self.budgets.buckets.all.get(bucket)?;
                let one = TokenCount::of_turn(call.tokens).micros();
                let ahead = bucket.queued.draw.saturating_sub(one);
                Some(now + bucket.wait_with(now, ahead, call.tokens))
            }
            Budget::Quota(_) => None,
        }
    }

    /// When the last call that this holds starts.
    pub(super) fn drained(
        &self,
        now: Timestamp,
        by: Budget,
        set: SetId,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let mut from = now;
        for &limit in self.budgets.sets.limits(set).iter() {
            from = from.max(self.budgets.limits[limit as usize].supplied_from(now, reopens)?);
        }
        let Budget::Limit(first) = by else {
            return self.drains(from, by, set);
        };
        let call = Call::new("", now);
        let meets = BudgetSet {
            set,
            ..BudgetSet::default()
        };
        let mut last = None;
        let memo = PredictionMemo::default();
        for (limit, limiter) in self.budgets.limits_of(&meets) {
            if self.budgets.sets.first_peer(limit) != first {
                continue;
            }
            let held = self.forecast.held(first, limiter.unit()).saturating_sub(1);
            let Some(opens) = self.opening(from, limit, &call, &meets, held, held) else {
                continue;
            };
            let coming = self.coming_from_others((now, opens), limit, Class(0), None, &memo);
            let held = held + (coming.in_class + coming.beside) as u64;
            last = last.max(self.opening(from, limit, &call, &meets, held, held));
        }
        last
    }
}
