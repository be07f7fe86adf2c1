//! The moments at which limits open for a call.

use super::super::forecast::{Own, PlaceAt};
use super::super::state::Scheduler;
use crate::bucket::TokenCount;
use crate::call::Call;
use crate::limiter::Opening;
use crate::policy::{LimitId, SetId};
use crate::queue::fair::Service;
use crate::queue::{Bar, Meets};
use crate::time::Timestamp;

/// What is known of a start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    pub(super) starts: Option<Timestamp>,
    pub(super) by: Option<Bar>,
    pub(super) ahead: u64,
}

/// How often the calls that come from other limits are counted again: each round moves the moment less.
const ROUNDS: usize = 3;

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
        meets: &Meets,
        place: Option<&PlaceAt>,
        reopens: Option<Timestamp>,
    ) -> Estimate {
        let mut from = Some(now);
        for (_, limiter) in self.bars.limits_of(meets) {
            let opens = limiter.supplied_from(now, reopens);
            from = from.zip(opens).map(|(from, opens)| from.max(opens));
        }
        let mut latest = Estimate {
            starts: from,
            by: None,
            ahead: 0,
        };
        // Where the start is unknown, it is counted where it would wait if all were open.
        let from = from.unwrap_or(now);
        let mut start = from;
        let mut unknown = None;
        let mut is_later = |at: Timestamp, bar, ahead| {
            if at > start || latest.by.is_none() {
                latest.by = Some(bar);
                latest.ahead = ahead;
            }
            start = start.max(at);
        };
        // Calls that other limits hold come here until it starts, and that depends on them.
        let limits = self.bars.sets.limits(meets.set);
        let mut until = from;
        for round in 0..=ROUNDS {
            let mut latest: Option<(Timestamp, LimitId, u64)> = None;
            for &limit in limits.iter() {
                match self.opens(now, (from, until), limit, call, meets, place) {
                    Some((at, ahead)) if at > from || ahead > 0 => {
                        if latest.is_none_or(|(before, _, _)| at > before) {
                            latest = Some((at, limit, ahead));
                        }
                    }
                    Some(_) => {}
                    None => unknown = unknown.or(Some(Bar::Limit(limit))),
                }
            }
            let Some((at, limit, ahead)) = latest else {
                break;
            };
            if at <= until || round == ROUNDS {
                is_later(at, Bar::Limit(limit), ahead);
                break;
            }
            until = at;
        }
        if let Some(key) = meets.bucket {
            let bucket = &self.bars.buckets.all[key];
            let queued = bucket.queued;
            // A call that is counted is among those that wait.
            let mine = TokenCount::of_turn(call.tokens).micros();
            let (ahead, calls) = match place.map(|place| place.at(Bar::Bucket(key))) {
                Some(own) => (own.draw, own.draw / mine.max(1)),
                None => (
                    queued.draw.saturating_sub(mine),
                    queued.calls.saturating_sub(1),
                ),
            };
            let wait = bucket.wait_with(from, ahead, call.tokens);
            if !wait.is_zero() {
                is_later(from + wait, Bar::Bucket(key), calls);
            }
        }
        for bar in meets.quotas() {
            if let Bar::Quota(quota) = bar {
                let opens = self.bars.quotas.opens(from, quota, call.tokens);
                if opens > from {
                    is_later(opens, bar, 0);
                }
            }
        }
        // Nothing is known to hold it once all is open, as in a pause. It is counted where many calls wait longest.
        if start <= from {
            let slowest = limits.iter().copied().max_by_key(|&limit| {
                let opens = self.opening(from, limit, call, meets, MANY, MANY);
                opens.unwrap_or(from)
            });
            latest.by = slowest.map(Bar::Limit).or(latest.by);
        }
        // Without a figure for one limit, those of the others are the best there is.
        if start <= from && unknown.is_some() {
            latest.by = unknown;
            latest.starts = None;
        }
        // A call that is set aside comes back some time after its limit has opened.
        if start > now
            && let Some((min, max)) = self.policy.jitter(call.class)
        {
            start = start + (min + max) / 4;
        }
        latest.starts = latest.starts.map(|_| start);
        latest
    }

    /// When a limit opens for a call, at the earliest at `from`, and what is ahead of it there if it waits `until`.
    fn opens(
        &self,
        now: Timestamp,
        (from, until): (Timestamp, Timestamp),
        limit: LimitId,
        call: &Call,
        meets: &Meets,
        place: Option<&PlaceAt>,
    ) -> Option<(Timestamp, u64)> {
        let flow = self.forecast.flows.get(&(limit, call.class, call.caller));
        let flow = flow.copied().unwrap_or_default();
        let own = Own {
            one: Service::new(call.tokens, call.weight, 1).of_caller(),
            flow,
            ..place.map_or(
                Own {
                    depth: flow.depth,
                    draw: flow.draw,
                    ..Own::default()
                },
                |place| place.at(Bar::Limit(limit)),
            )
        };
        let classes = self.policy.classes();
        let weight = |class: crate::Class| classes.get(class.0 as usize).map_or(1, |it| it.weight);
        let (ahead, in_class) = self.forecast.ahead(limit, call.class, own, weight);
        let all = ahead + self.coming_from_others(now, until, limit, place);
        let opens = self.opening(from, limit, call, meets, all, in_class)?;
        Some((opens, all))
    }

    /// When a limit opens for a call with this ahead.
    pub(super) fn opening(
        &self,
        from: Timestamp,
        limit: LimitId,
        call: &Call,
        meets: &Meets,
        ahead: u64,
        in_class: u64,
    ) -> Option<Timestamp> {
        let limiter = &self.bars.limits[limit as usize];
        match limiter.opening(from, call, ahead, in_class) {
            Opening::At(at) => Some(at),
            Opening::Unknown => None,
            // The call that frees the room has not left yet. It leaves when its other limits let it.
            Opening::After { behind, then } => {
                let mut leaves = from;
                for (other, limiter) in self.bars.limits_of(meets) {
                    if other != limit
                        && let Opening::At(at) = limiter.opening(from, call, behind, behind)
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
        now: Timestamp,
        at: Timestamp,
        limit: LimitId,
        place: Option<&PlaceAt>,
    ) -> u64 {
        let mut more = 0.0;
        for (&(by, set), &calls) in self.forecast.sets.iter().take(SETS_MAX) {
            let Some(by) = by else { continue };
            if by == Bar::Limit(limit) || !self.bars.sets.limits(set).contains(&limit) {
                continue;
            }
            let behind = place.and_then(|place| {
                let mut behind = place.behind.iter();
                behind.find(|(of, _)| *of == (Some(by), set))
            });
            let calls = calls.saturating_sub(behind.map_or(0, |(_, calls)| *calls));
            let Some(ends) = self.drains(now, by, set) else {
                continue;
            };
            let span = ends.since(now).as_nanos().max(1) as f64;
            let part = at.since(now).as_nanos() as f64 / span;
            more += calls as f64 * part.min(1.0);
        }
        more as u64
    }

    /// When all that this holds has left it, if no other limit holds it up. `set` is of one of the calls.
    fn drains(&self, now: Timestamp, by: Bar, set: SetId) -> Option<Timestamp> {
        let call = Call::new("", now);
        match by {
            Bar::Limit(limit) => {
                let held = self.forecast.held(limit).saturating_sub(1);
                let meets = Meets {
                    set,
                    ..Meets::default()
                };
                self.opening(now, limit, &call, &meets, held, held)
            }
            Bar::Bucket(bucket) => {
                let bucket = self.bars.buckets.all.get(bucket)?;
                let one = TokenCount::of_turn(call.tokens).micros();
                let ahead = bucket.queued.draw.saturating_sub(one);
                Some(now + bucket.wait_with(now, ahead, call.tokens))
            }
            Bar::Quota(_) => None,
        }
    }

    /// When the last call that this holds starts.
    pub(super) fn drained(
        &self,
        now: Timestamp,
        by: Bar,
        set: SetId,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let mut from = now;
        for &limit in self.bars.sets.limits(set).iter() {
            from = from.max(self.bars.limits[limit as usize].supplied_from(now, reopens)?);
        }
        let Bar::Limit(limit) = by else {
            return self.drains(from, by, set);
        };
        let call = Call::new("", now);
        let held = self.forecast.held(limit).saturating_sub(1);
        let meets = Meets {
            set,
            ..Meets::default()
        };
        let first = self.opening(from, limit, &call, &meets, held, held)?;
        let held = held + self.coming_from_others(now, first, limit, None);
        self.opening(from, limit, &call, &meets, held, held)
    }
}
