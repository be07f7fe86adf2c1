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

use alloc::vec::Vec;
use core::time::Duration;

use super::bucket::Bucket;
use super::bucket_rule::{BUCKETS_MAX, BucketNow, BucketOrder, BucketRule, TooManyBuckets};
use super::state::{Scheduler, Supplied};
use crate::bucket::{Fill, TokenCount, Tokens};
use crate::call::{BucketId, Call};
use crate::limiter::Level;
use crate::queue::Bar;
use crate::slab::Key;
use crate::supply::Supply;
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
        if let Some(key) = self.buckets.find(Some(id)) {
            let bucket = self.buckets.expect_mut(key);
            let rejected_before = bucket.rejects();
            bucket.rule = rule;
            bucket.follow(now);
            let rejects = bucket.rejects();
            let by_arrival = bucket.rule.order == BucketOrder::Fifo;
            self.parking.set_bucket(key, by_arrival);
            self.parking.change(Bar::Bucket(key));
            if rejects && !rejected_before {
                self.reject_those_that_wait(now, key);
            }
            return Ok(());
        }
        if self.buckets.by_id.len() >= BUCKETS_MAX {
            return Err(TooManyBuckets);
        }
        let by_arrival = rule.order == BucketOrder::Fifo;
        let key = self.buckets.all.insert(Bucket {
            level: Level::new(now, rule.limit),
            rule,
            supply: Supply::Configured,
            drawn: 0.0,
            waiting: 0,
            waiting_tokens: TokenCount::ZERO,
            charged: 0,
            would_have_delayed: 0,
            would_have_delayed_for: Duration::ZERO,
            rejected: 0,
        });
        self.buckets.by_id.insert(id, key);
        self.parking.set_bucket(key, by_arrival);
        Ok(())
    }

    /// Limits the rate at which a bucket fills, if that is below its rule. Nothing is refunded. The
    /// limit stays in force when the rule changes, and is forgotten with the bucket. False if there
    /// is no such bucket.
    pub fn supply_fill(&mut self, now: Timestamp, id: BucketId, supply: Supply<Fill>) -> bool {
        let now = self.advance(now);
        let Some(key) = self.buckets.find(Some(id)) else {
            return false;
        };
        let bucket = self.buckets.expect_mut(key);
        let supplied = Supplied::Bucket(id);
        if let Some(expires_at) = bucket.supply.expires_at() {
            self.expiries.remove(&(expires_at, supplied));
        }
        bucket.supply = supply;
        bucket.follow(now);
        if let Some(expires_at) = supply.expires_at() {
            self.expiries.insert((expires_at, supplied));
        }
        self.parking.change(Bar::Bucket(key));
        true
    }

    pub(super) fn bucket_supply_expired(&mut self, expires_at: Timestamp, id: BucketId) {
        let key = self.buckets.find(Some(id));
        let key = key.expect("what a removed bucket was told is removed with it");
        self.buckets.expect_mut(key).follow(expires_at);
        self.parking.change(Bar::Bucket(key));
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
        let Some(gone) = self.buckets.by_id.remove(&id) else {
            return false;
        };
        let waiting = self.queue.iter();
        let meets = waiting.filter(|(_, waiting)| waiting.bucket == Some(gone));
        let mut rerouted: Vec<_> = meets.map(|(key, waiting)| (waiting.arrival, key)).collect();
        rerouted.sort_unstable();
        for (_, key) in rerouted {
            let to = reroute(&self.queue.expect(key).call);
            self.reroute(key, to);
        }
        if let Some(expires_at) = self.buckets.expect(gone).supply.expires_at() {
            self.expiries.remove(&(expires_at, Supplied::Bucket(id)));
        }
        self.parking.remove_bucket(gone);
        self.buckets.all.remove(gone);
        true
    }

    /// A bucket as it is at `now`.
    #[must_use]
    pub fn bucket_now(&self, now: Timestamp, id: BucketId) -> Option<BucketNow> {
        let now = self.now.max(now);
        let key = self.buckets.find(Some(id))?;
        let bucket = self.buckets.expect(key);
        let (claimed, idle) = self.parking.claimed(Bar::Bucket(key), now);
        Some(BucketNow {
            rule: bucket.rule.clone(),
            tokens: bucket.level.limiter().peek(now),
            per_second: bucket.level.per_second(),
            drawn: bucket.drawn,
            paced: bucket.level.paced_now(now),
            opens: bucket.peek(now, TokenCount::ZERO, Tokens::ONE),
            waiting: bucket.waiting,
            waiting_tokens: bucket.waiting_tokens.tokens(),
            claimed: TokenCount::from_micros(claimed).tokens(),
            idle,
            charged: bucket.charged,
            would_have_delayed: bucket.would_have_delayed,
            would_have_delayed_for: bucket.would_have_delayed_for,
            rejected: bucket.rejected,
        })
    }

    /// How long a call of this cost would wait if it arrived now, for its own tokens and those of
    /// earlier calls. `None` if there is no such bucket.
    #[must_use]
    pub fn bucket_wait(&self, now: Timestamp, id: BucketId, tokens: Tokens) -> Option<Duration> {
        let now = self.now.max(now);
        let bucket = self.buckets.expect(self.buckets.find(Some(id))?);
        Some(bucket.wait_behind(now, tokens))
    }

    /// The numbers of all buckets, in order.
    pub fn bucket_ids(&self) -> impl Iterator<Item = BucketId> {
        self.buckets.by_id.keys().copied()
    }

    /// Moves waiting calls to the buckets that would be charged if they arrived now: `to` returns
    /// the bucket of each call, in the order of their turns. `None` leaves a call as it is. A call
    /// whose bucket stays the same keeps its place.
    ///
    /// Linear in the calls that wait, except for finding new turns.
    pub fn reroute_waiting(
        &mut self,
        now: Timestamp,
        mut to: impl FnMut(&Call, &T) -> Option<Option<BucketId>>,
    ) {
        self.advance(now);
        let waiting = self.queue.iter();
        let mut waiting: Vec<_> = waiting.map(|(key, it)| (it.arrival, key)).collect();
        waiting.sort_unstable();
        for (_, key) in waiting {
            let of = self.queue.expect(key);
            if let Some(to) = to(&of.call, &of.payload)
                && self.buckets.find(to) != of.bucket
            {
                self.reroute(key, to);
            }
        }
    }

    /// Refuses the waiting calls for which there are no tokens behind earlier calls: no call waits
    /// for a bucket that rejects.
    fn reject_those_that_wait(&mut self, now: Timestamp, bucket: Key) {
        let waiting = self.queue.iter();
        let meets = waiting.filter(|(_, waiting)| waiting.bucket == Some(bucket));
        let mut waiting: Vec<_> = meets
            .map(|(key, waiting)| (waiting.arrival, key, waiting.call.tokens))
            .collect();
        waiting.sort_unstable_by_key(|&(arrival, key, _)| (arrival, key));
        let level = self.buckets.expect(bucket).level.limiter();
        let mut ahead = TokenCount::ZERO;
        for (_, key, tokens) in waiting {
            if level.wait_behind(now, ahead.tokens(), tokens).is_zero() {
                ahead = ahead.saturating_add(TokenCount::of_turn(tokens));
            } else {
                self.to_reject.push_back(key);
            }
        }
    }

    /// The next call to refuse, with its bucket, which rejects.
    pub(super) fn next_to_reject(&mut self) -> Option<(Key, Key)> {
        while let Some(key) = self.to_reject.pop_front() {
            let Some(waiting) = self.queue.get(key) else {
                continue;
            };
            let tokens = waiting.call.tokens;
            let Some(bucket) = waiting.bucket else {
                continue;
            };
            let limiter = self.buckets.expect_mut(bucket);
            if !limiter.rejects() {
                continue;
            }
            // Tokens may have come since the change.
            limiter.discount_waiting(tokens);
            let waits = !limiter.wait_behind(self.now, tokens).is_zero();
            limiter.count_waiting(tokens);
            if waits {
                return Some((key, bucket));
            }
        }
        None
    }

    /// Puts a waiting call into another bucket, or none.
    fn reroute(&mut self, key: Key, to: Option<BucketId>) {
        let bucket = self.buckets.find(to);
        if let Some(new) = bucket.map(|new| self.buckets.expect(new))
            && new.rejects()
            && let tokens = self.queue.expect(key).call.tokens
            && !new.wait_behind(self.now, tokens).is_zero()
        {
            self.to_reject.push_back(key);
        }
        let waiting = self.queue.expect_mut(key);
        let (place, tokens, arrival) = (waiting.place, waiting.call.tokens, waiting.arrival);
        let old = waiting.bucket;
        waiting.call.bucket = to;
        waiting.bucket = bucket;
        if let Some(old) = old {
            self.buckets.expect_mut(old).discount_waiting(tokens);
        }
        if let Some(new) = bucket {
            self.buckets.expect_mut(new).count_waiting(tokens);
        }
        self.replace(key, place, arrival);
    }
}
