//! The departures that still count, the calls that may still be at the backend, and the levels of buckets, which a
//! process before this one left.
//!
//! A process that begins with nothing would admit the whole of each window again, beside what the one before admitted
//! within the same window. So the one before notes what it does (`Scheduler::departures`, [`Hold::place`]), and this
//! one counts it. What is carried can exceed a limit, as after a reload; then calls wait until it fits.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::event::LedgerEvent;
use super::hold::{BudgetDraw, Hold, HoldState};
use super::state::Scheduler;
use crate::call::{BucketId, Call, Cost};
use crate::limiter::{Departures, Stake};
use crate::policy::{Limit, LimitId, WindowStamp};
use crate::queue::fair::TurnAdvance;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// From now on events are kept until [`events`](Self::events) takes them.
    pub const fn keep_events(&mut self) {
        self.keeps_events = true;
    }

    /// Keeps no events from now on, and drops those that there are.
    pub fn drop_events(&mut self) {
        self.keeps_events = false;
        self.events = Vec::new();
    }

    /// Takes the events since the last time, oldest first.
    pub fn events(&mut self) -> impl Iterator<Item = LedgerEvent> {
        self.events.drain(..)
    }

    /// Whether [`events`](Self::events) returns any.
    #[inline]
    #[must_use]
    pub const fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Exchanges the events for this empty list, so that one who follows them may look at the scheduler meanwhile.
    pub const fn swap_events(&mut self, empty: &mut Vec<LedgerEvent>) {
        mem::swap(&mut self.events, empty);
    }

    /// Notes an event, if that is wanted.
    #[inline]
    pub(super) fn note(&mut self, event: LedgerEvent) {
        if self.keeps_events {
            self.events.push(event);
        }
    }

    /// A running call, and since when it runs.
    #[must_use]
    pub fn running(&self, place: u32) -> Option<(&Call, Timestamp)> {
        let held = self.holds.at(place)?;
        Some((&held.call, held.since))
    }

    /// The places that running calls may have.
    pub fn places(&self) -> impl Iterator<Item = u32> + use<T> {
        0..self.holds.places()
    }

    /// The moments that windows count of a running call, as far as they have come.
    pub fn stamps(&self, place: u32) -> impl Iterator<Item = WindowStamp> {
        let progress = self.holds.at(place).map(|held| held.progress);
        let progress = progress.unwrap_or_default();
        let come = move |stamp: &WindowStamp| progress.departed(*stamp).is_some();
        [WindowStamp::Sent, WindowStamp::Replied]
            .into_iter()
            .filter(come)
    }

    /// Whether a running call holds a slot of the limit with this name: a place among calls at once, or one in a
    /// window from which it did not depart yet.
    #[must_use]
    pub fn holds_slot(&self, place: u32, limit: &str) -> bool {
        let (Some(held), Some(limit)) = (self.holds.at(place), self.find_limit(limit)) else {
            return false;
        };
        held.drawn.iter().any(|drawn| match drawn {
            BudgetDraw::Limit {
                limit: of, stake, ..
            } => *of == limit && matches!(stake, Stake::Slot | Stake::Reserved(_)),
            BudgetDraw::Bucket { .. } | BudgetDraw::Quota { .. } => false,
        })
    }

    /// The departures that a window remembers, oldest first. Some may no longer count.
    pub fn window_departures(&self, limit: LimitId) -> impl Iterator<Item = (Timestamp, u32)> {
        self.budgets.limits[limit as usize].departures()
    }

    /// Counts a departure of the process before, in any order. False if no window has this name.
    pub fn carry_departure(&mut self, limit: &str, at: Timestamp, cost: Cost) -> bool {
        let Some(limit) = self.find_limit(limit) else {
            return false;
        };
        self.budgets.limits[limit as usize].carry_departure(at, cost)
    }

    /// Counts each window as used up by departures at `now`, for a process that does not know what the one before did.
    pub fn carry_full_windows(&mut self, now: Timestamp) {
        let now = self.advance(now);
        for limiter in &mut self.budgets.limits {
            if let Some(max) = Cost::new(limiter.max(now)) {
                limiter.carry_departure(now, max);
            }
        }
    }

    /// Counts a call that was admitted by the process before and may still be at the backend. It holds what it meets
    /// until it is [finished](Self::finish). It is an event as any other call. `departed` says which departures [`carry_departure`](Self::carry_departure)
    /// counts already; in other windows it departs at its end.
    pub fn carry_call(
        &mut self,
        now: Timestamp,
        since: Timestamp,
        mut call: Call,
        departed: &[WindowStamp],
    ) -> Hold {
        let now = self.advance(now);
        call.class = self.clamp(call.class);
        let server = self.budgets.bound(&call);
        let set = self.budgets.set_at(&call, server);
        let mut drawn = Vec::new();
        for &limit in self.budgets.sets.limits(set).iter() {
            let limiter = &mut self.budgets.limits[limit as usize];
            let stake = match limiter.rule.limit {
                Limit::Window { stamp, .. } if departed.contains(&stamp) => {
                    Stake::Departed(call.cost)
                }
                _ => limiter.adopt(now, &call, Departures::default()),
            };
            limiter.keep(now, &call, stake);
            drawn.push(BudgetDraw::Limit {
                limit,
                stake,
                is_kept: false,
            });
        }
        let mut progress = Departures::default();
        for &stamp in departed {
            progress.depart(since, stamp);
        }
        let weight = self.policy.classes()[call.class.0 as usize].weight;
        let held = HoldState {
            since,
            server,
            service: TurnAdvance::new(call.tokens, call.weight, weight),
            arrival: self.count_joining(),
            served: 0,
            call,
            drawn,
            progress,
        };
        self.hold(held)
    }

    /// Sets a bucket to what it held under the process before. What has flowed in since counts, up to its burst.
    /// No tokens are refunded: a bucket with less keeps its level. False if there is no such bucket.
    pub fn carry_tokens(
        &mut self,
        now: Timestamp,
        id: BucketId,
        tokens: f64,
        since: Timestamp,
    ) -> bool {
        let now = self.advance(now);
        let Some(key) = self.budgets.buckets.find(Some(id)) else {
            return false;
        };
        self.budgets.buckets.all[key]
            .level
            .carry(now, tokens, since);
        true
    }

    /// Lowers the pace with this name to what it had under the process before. False if there is none.
    pub fn carry_pace(
        &mut self,
        now: Timestamp,
        limit: &str,
        tokens: f64,
        since: Timestamp,
    ) -> bool {
        let now = self.advance(now);
        let Some(limit) = self.find_limit(limit) else {
            return false;
        };
        self.budgets.limits[limit as usize].carry_level(now, tokens, since)
    }

    /// The tokens of a pace, and their moment, to be carried into the next process. `None` for a limit of another kind.
    #[must_use]
    pub fn pace_level(&self, now: Timestamp, limit: LimitId) -> Option<(f64, Timestamp)> {
        let now = self.now.max(now);
        let tokens = self.budgets.limits.get(limit as usize)?.tokens(now)?;
        Some((tokens, now))
    }

    /// The name of a bucket's rule.
    #[must_use]
    pub fn bucket_name(&self, id: BucketId) -> Option<&Arc<str>> {
        let key = self.budgets.buckets.find(Some(id))?;
        Some(&self.budgets.buckets.all[key].rule.name)
    }

    /// The level of a bucket, and its moment, to be carried into the next process.
    #[must_use]
    pub fn bucket_level(&self, now: Timestamp, id: BucketId) -> Option<(f64, Timestamp)> {
        let now = self.now.max(now);
        let key = self.budgets.buckets.find(Some(id))?;
        Some((self.budgets.buckets.all[key].level.limiter().peek(now), now))
    }
}
