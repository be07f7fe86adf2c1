//! Rate limits: the buckets that calls are charged to, beside the limits of the policy.
//!
//! The limits of the policy depend on what a call is. The bucket of a call is chosen by the code
//! that classifies it, and any number of callers can share one. So there are many buckets, and they
//! appear, change and disappear one by one while calls wait. A bucket is found by its number,
//! nothing ever searches all of them, and the cost of a change does not depend on the number of
//! waiting calls.
//!
//! A call that a bucket bars waits in turn, whatever the policy's [`Postpone`]: the moment at which
//! the bucket opens is known.
//!
//! [`Postpone`]: crate::policy::Postpone

use core::time::Duration;

use super::bucket::{BUCKETS_MAX, BucketNow, BucketOrder, BucketRule, BucketState, TooManyBuckets};
use super::state::{Scheduler, SupplyTarget};
use crate::bucket::{TokenCount, Tokens};
use crate::call::{BucketId, Call};
use crate::queue::Budget;
use crate::slab::SlabKey;
use crate::time::Timestamp;

impl<T> Scheduler<T> {
    /// Creates a bucket, or changes one in place. Its tokens, its waiting calls and its counters
    /// are kept, and nothing is refunded. A new bucket is full.
    ///
    /// Takes O(log n) in the number of buckets, whatever the number of waiting calls.
    ///
    /// # Errors
    ///
    /// If there are [`BUCKETS_MAX`] buckets and this would be one more.
    pub fn set_bucket(
        &mut self,
        now: Timestamp,
        id: BucketId,
        rule: BucketRule,
    ) -> Result<(), TooManyBuckets> {
        let now = self.advance(now);
        let by_arrival = rule.order == BucketOrder::Fifo;
        let buckets = &mut self.budgets.buckets;
        let Some(key) = buckets.find(Some(id)) else {
            if buckets.by_id.len() >= BUCKETS_MAX {
                return Err(TooManyBuckets);
            }
            let key = buckets.all.insert(BucketState::new(now, rule));
            buckets.by_id.insert(id, key);
            self.parking.set_bucket(key, by_arrival);
            return Ok(());
        };
        let bucket = &mut buckets.all[key];
        let rejected_before = bucket.rejects();
        bucket.rule = rule;
        bucket.follow(now);
        let begins_to_reject = bucket.rejects() && !rejected_before;
        self.parking.set_bucket(key, by_arrival);
        self.parking.change(Budget::Bucket(key));
        if begins_to_reject {
            self.reject_those_that_wait(now, key);
        }
        Ok(())
    }

    /// Removes a bucket. No waiting call is lost: `reroute` returns the new bucket of each call, in
    /// order. With `None` or an unknown bucket, the call waits for its other limits only. False if
    /// there is no such bucket.
    ///
    /// Linear in the number of waiting calls, except for finding their new turns.
    pub fn remove_bucket(
        &mut self,
        now: Timestamp,
        id: BucketId,
        mut reroute: impl FnMut(&Call) -> Option<BucketId>,
    ) -> bool {
        self.advance(now);
        let Some(gone) = self.budgets.buckets.by_id.remove(&id) else {
            return false;
        };
        for key in self.queue.charged_to(gone) {
            let to = reroute(&self.queue.calls[key].call);
            self.reroute(key, to);
        }
        let supply = self.budgets.buckets.all[gone].supply;
        self.expires(SupplyTarget::Bucket(id), supply.expires_at(), None);
        self.parking.remove_bucket(gone);
        self.budgets.buckets.all.remove(gone);
        true
    }

    /// A bucket as it is at `now`.
    #[must_use]
    pub fn bucket_now(&self, now: Timestamp, id: BucketId) -> Option<BucketNow> {
        let now = self.now.max(now);
        let key = self.budgets.buckets.find(Some(id))?;
        let bucket = &self.budgets.buckets.all[key];
        let (claimed, idle) = self.parking.claimed(Budget::Bucket(key), now);
        Some(BucketNow {
            rule: bucket.rule.clone(),
            tokens: bucket.level.limiter().peek(now),
            per_second: bucket.level.per_second(),
            paced: bucket.level.paced_now(now),
            opens: bucket.peek(now, TokenCount::ZERO, Tokens::ONE),
            waiting: bucket.queued.calls,
            waiting_tokens: TokenCount::from_micros(bucket.queued.draw).tokens(),
            claimed: TokenCount::from_micros(claimed).tokens(),
            idle,
            counts: bucket.counts,
        })
    }

    /// How long a call of this cost would wait if it arrived now, for its own tokens and those of
    /// earlier calls. `None` if there is no such bucket.
    #[must_use]
    pub fn bucket_wait(&self, now: Timestamp, id: BucketId, tokens: Tokens) -> Option<Duration> {
        let now = self.now.max(now);
        let bucket = &self.budgets.buckets.all[self.budgets.buckets.find(Some(id))?];
        Some(bucket.wait_behind(now, tokens))
    }

    /// The numbers of all buckets, in order.
    pub fn bucket_ids(&self) -> impl Iterator<Item = BucketId> {
        self.budgets.buckets.by_id.keys().copied()
    }

    /// Moves waiting calls to the buckets that would be charged if they arrived now: `to` returns
    /// the bucket of each call, in the order of their turns. `None` leaves a call as it is. A call
    /// whose bucket stays the same keeps its place. `moved` gets each call that moves, and its new bucket.
    ///
    /// Linear in the calls that wait, except for finding new turns.
    pub fn reroute_waiting(
        &mut self,
        now: Timestamp,
        mut to: impl FnMut(&Call, &T) -> Option<Option<BucketId>>,
        mut moved: impl FnMut(&T, Option<BucketId>),
    ) {
        self.advance(now);
        for key in self.queue.in_order(|_| true) {
            let of = &self.queue.calls[key];
            if let Some(to) = to(&of.call, &of.payload)
                && self.budgets.buckets.find(to) != of.meets.bucket
            {
                moved(&of.payload, to);
                self.reroute(key, to);
            }
        }
    }

    /// Refuses the waiting calls for which there are no tokens behind earlier calls: no call waits
    /// for a bucket that rejects.
    fn reject_those_that_wait(&mut self, now: Timestamp, bucket: SlabKey) {
        let level = self.budgets.buckets.all[bucket].level.limiter();
        let mut ahead = TokenCount::ZERO;
        for key in self.queue.charged_to(bucket) {
            let tokens = self.queue.calls[key].call.tokens;
            if level.wait_behind(now, ahead.tokens(), tokens).is_zero() {
                ahead = ahead.saturating_add(TokenCount::of_turn(tokens));
            } else {
                self.to_reject.push_back(key);
            }
        }
    }

    /// The next call to refuse, with its bucket, which rejects.
    pub(super) fn next_to_reject(&mut self) -> Option<(SlabKey, SlabKey)> {
        while let Some(key) = self.to_reject.pop_front() {
            if let Some(waiting) = self.queue.calls.get(key)
                && let Some(bucket) = waiting.meets.bucket
                && let limiter = &mut self.budgets.buckets.all[bucket]
                && limiter.rejects()
            {
                // Tokens may have come since the change.
                let tokens = waiting.call.tokens;
                let own = TokenCount::of_turn(tokens).micros();
                limiter.queued.remove(own);
                let waits = !limiter.wait_behind(self.now, tokens).is_zero();
                limiter.queued.add(own);
                if waits {
                    return Some((key, bucket));
                }
            }
        }
        None
    }

    /// Puts a waiting call into another bucket, or none.
    fn reroute(&mut self, key: SlabKey, to: Option<BucketId>) {
        let bucket = self.budgets.buckets.find(to);
        if let Some(new) = bucket.map(|new| &self.budgets.buckets.all[new])
            && new.rejects()
            && let tokens = self.queue.calls[key].call.tokens
            && !new.wait_behind(self.now, tokens).is_zero()
        {
            self.to_reject.push_back(key);
        }
        let arrival = self.queue.calls[key].arrival;
        self.change_call(key, arrival, |_, waiting| {
            waiting.call.bucket = to;
            waiting.meets.bucket = bucket;
        });
    }
}
