//! Rate limits: the buckets that calls are charged to, beside the limits of the policy.
//!
//! A limit of the policy is met by what a call is; a bucket by what whoever classifies it says,
//! and any number of callers may share one. So there are many of them, and they come, change and
//! go one by one while calls wait: a bucket is found by its number, nothing ever looks at all of
//! them, and what a change costs does not depend on how many wait.
//!
//! What an enforced bucket bars waits in turn, whatever the policy's [`Postpone`] says: the
//! moment at which it opens is known.
//!
//! [`Postpone`]: crate::Postpone

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::{Scheduler, Supplied};
use crate::bucket::TokenCount;
use crate::bucket::{Fill, Tokens};
use crate::call::{BucketId, Call};
use crate::limiter::{BucketLimit, Level, PacerNow, Taken};
use crate::queue::Bar;
use crate::slab::{Key, Slab};
use crate::supply::Supply;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// Buckets that a scheduler may have.
pub const BUCKETS_MAX: usize = 16_384;

/// A rate limit as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketRule {
    /// The name that refusals carry.
    pub name: Arc<str>,
    /// How much it lets through.
    pub limit: BucketLimit,
    /// Whether it holds anybody back.
    pub mode: BucketMode,
    /// What happens to a call for which there are no tokens.
    pub on_excess: OnExcess,
    /// In what order the calls that wait for it go.
    pub order: BucketOrder,
    /// What a call is charged in the end.
    pub settlement: Settlement,
}

/// Whether a bucket holds anybody back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketMode {
    /// It does.
    #[default]
    Enforce,
    /// It only counts whom it would have. Calls are charged, down to the greatest debt
    /// ([`DEBT_MAX_FILL`](crate::DEBT_MAX_FILL)), so it counts as delayed whoever would have waited for
    /// those before.
    Observe,
}

/// What happens to a call for which there are no tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExcess {
    /// It waits for them.
    #[default]
    Delay,
    /// It is refused when it is submitted. Tokens for which others wait already are not there
    /// for it. Once it is taken in, it waits like any other.
    Reject,
}

/// In what order the calls that wait for a bucket go. Classes share by weight either way. A
/// change applies to those that wait, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketOrder {
    /// Callers take turns, by their weight and what their calls cost.
    #[default]
    Fair,
    /// By arrival, whoever called.
    Fifo,
}

/// What a call is charged in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Settlement {
    /// What it said it costs.
    #[default]
    Estimate,
    /// What it turned out to cost, once it has ended: the difference is charged or put back, but
    /// no more than four times the estimate on top.
    Measured,
}

/// How much more than its estimate a call can be charged in the end, in estimates.
const SURCHARGE_MAX: f64 = 4.0;

/// One more bucket than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyBuckets;

impl fmt::Display for TooManyBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there are {BUCKETS_MAX} buckets, and there may be no more"
        )
    }
}

impl core::error::Error for TooManyBuckets {}

/// One bucket, as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketNow {
    /// Its rule.
    pub rule: BucketRule,
    /// Tokens in it; below zero in debt.
    pub tokens: f64,
    /// Tokens that come back each second, which a supply may have lowered.
    pub per_second: f64,
    /// Tokens that it was charged so far, and were not put back.
    pub drawn: f64,
    /// Its pools and its pace, if it is a paced one.
    pub paced: Option<PacerNow>,
    /// What it would say now to a call of one token with nobody ahead.
    pub opens: Verdict,
    /// Calls in the queue that will be charged to it, whatever holds them.
    pub waiting: u64,
    /// What they will be charged, in tokens.
    pub waiting_tokens: f64,
    /// Of the tokens that are there or come next, so many are claimed.
    pub claimed: f64,
    /// For how long claims have kept tokens that their calls could not use yet, over all of them.
    pub idle: Duration,
    /// Calls that it let through, or let pass, so far.
    pub charged: u64,
    /// Of those, calls that were let pass only because it observes.
    pub would_have_delayed: u64,
    /// How long those would have waited, together.
    pub would_have_delayed_for: Duration,
    /// Calls that it refused so far.
    pub rejected: u64,
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) rule: BucketRule,
    /// The rate that it was told, by whoever shares out one for several.
    supply: Supply<Fill>,
    pub(super) level: Level,
    drawn: f64,
    pub(super) waiting: u64,
    waiting_tokens: TokenCount,
    charged: u64,
    would_have_delayed: u64,
    would_have_delayed_for: Duration,
    pub(super) rejected: u64,
}

impl Bucket {
    /// What it says to a call that would draw from it, behind those that claim `ahead` of it.
    pub(super) fn peek(&self, now: Timestamp, ahead: TokenCount, tokens: Tokens) -> Verdict {
        match self.rule.mode {
            BucketMode::Enforce => {
                let level = self.level.limiter();
                level.verdict_behind(now, ahead.tokens(), tokens)
            }
            BucketMode::Observe => Verdict::Ready,
        }
    }

    /// Whether no call waits for its tokens.
    pub(super) fn rejects(&self) -> bool {
        self.rule.mode == BucketMode::Enforce && self.rule.on_excess == OnExcess::Reject
    }

    /// How long a call that came now would wait for those that wait and for its own tokens.
    pub(super) fn wait_behind(&self, now: Timestamp, tokens: Tokens) -> Duration {
        match self.rule.mode {
            BucketMode::Enforce => {
                let ahead = self.waiting_tokens.tokens();
                self.level.limiter().wait_behind(now, ahead, tokens)
            }
            BucketMode::Observe => Duration::ZERO,
        }
    }

    pub(super) fn count_waiting(&mut self, tokens: Tokens) {
        self.waiting += 1;
        let turn = TokenCount::of_turn(tokens);
        self.waiting_tokens = self.waiting_tokens.saturating_add(turn);
    }

    pub(super) fn discount_waiting(&mut self, tokens: Tokens) {
        self.waiting -= 1;
        let turn = TokenCount::of_turn(tokens);
        self.waiting_tokens = self.waiting_tokens.saturating_sub(turn);
    }

    /// Charges a call that leaves the queue.
    pub(super) fn draw(&mut self, now: Timestamp, tokens: Tokens) -> Taken {
        self.charged += 1;
        let level = self.level.limiter();
        if self.rule.mode == BucketMode::Observe && !level.has(now, tokens) {
            let delay = level.delay_until_available(now, tokens);
            self.would_have_delayed += 1;
            self.would_have_delayed_for = self.would_have_delayed_for.saturating_add(delay);
        }
        let taken = self.level.draw(now, tokens);
        self.drawn += taken.tokens;
        taken
    }

    /// The call never left.
    pub(super) fn undraw(&mut self, now: Timestamp, taken: Taken) {
        self.charged -= 1;
        self.drawn -= taken.tokens;
        self.level.undraw(now, taken);
    }

    /// The call has ended, and turned out to cost this.
    pub(super) fn settle(
        &mut self,
        now: Timestamp,
        taken: Taken,
        estimate: Tokens,
        measured: Tokens,
    ) {
        if self.rule.settlement == Settlement::Measured {
            let estimate = estimate.get();
            // No more is put back than was taken.
            let surcharge =
                (measured.get() - estimate).clamp(-taken.tokens, SURCHARGE_MAX * estimate);
            self.drawn += if surcharge > 0.0 {
                let whole = estimate + surcharge;
                self.level.take_more(now, surcharge, whole)
            } else {
                self.level.put_back(now, taken.part(-surcharge));
                surcharge
            };
        }
    }

    /// Changes the level to what flows now: what the rule says, or what it was told if that is
    /// less. Nothing is refunded, and nothing taken away.
    fn follow(&mut self, now: Timestamp) {
        let told = self.supply.at(now).map(Fill::get);
        self.level.follow(now, self.rule.limit, told);
    }
}

/// All buckets.
#[derive(Debug)]
pub(super) struct Buckets {
    all: Slab<Bucket>,
    by_id: BTreeMap<BucketId, Key>,
}

impl Buckets {
    pub(super) fn new() -> Self {
        Self {
            all: Slab::default(),
            by_id: BTreeMap::new(),
        }
    }

    pub(super) fn find(&self, id: Option<BucketId>) -> Option<Key> {
        self.by_id.get(&id?).copied()
    }

    /// A bucket that calls wait for is never removed.
    pub(super) fn expect(&self, key: Key) -> &Bucket {
        self.all
            .get(key)
            .expect("the bucket of a waiting call is there")
    }

    pub(super) fn expect_mut(&mut self, key: Key) -> &mut Bucket {
        self.all
            .get_mut(key)
            .expect("the bucket of a waiting call is there")
    }

    /// A bucket that may have been removed.
    pub(super) fn get(&self, key: Key) -> Option<&Bucket> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Bucket> {
        self.all.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Bucket)> {
        self.all.iter()
    }
}

impl<T> Scheduler<T> {
    /// Makes a bucket, or changes one in place: its tokens, those that wait for it and its
    /// counters are kept, and nothing is refunded. A new one is full.
    ///
    /// Takes O(log n) in the number of buckets, whoever waits.
    ///
    /// # Errors
    ///
    /// If there are [`BUCKETS_MAX`] buckets, and this is none of them.
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

    /// Tells a bucket at what rate it may be filled, if that is less than its rule says. Nothing
    /// is refunded. What was told is kept when the rule changes, and forgotten with the bucket.
    /// False if there is no such bucket.
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

    /// Removes a bucket. Nobody who waits for it is lost: `reroute` says of each call that was
    /// to be charged to it, in order, to which bucket it is charged instead; none, or one that
    /// there is not, lets it wait for its other limits only. False if there is no such bucket.
    ///
    /// Linear in the calls that wait, but for finding their new turns.
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

    /// How long a call of this cost that came to the bucket now would wait for its tokens and
    /// for those of whoever waits already; `None` if there is no such bucket.
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

    /// Charges waiting calls to the buckets that they would be charged to if they came now: `to`
    /// says which that is, in the order of their turns; `None` leaves a call as it is. A call whose
    /// bucket stays the same keeps its place.
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

    /// Has those calls refused for which there are no tokens behind the ones before them: a
    /// bucket that rejects lets no call wait.
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

    /// The next call that waits for a bucket that lets no call wait.
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
