//! The one decision: whose turn it is, and whether it may go.
//!
//! A call is submitted, waits in a line, and leaves it in [`Scheduler::next`] as a step: to be
//! run, with a [`Hold`] that stands for everything it has drawn, or to be told that its deadline
//! has passed. Every hold ends in exactly one of [`finish`](Scheduler::finish),
//! [`give_back`](Scheduler::give_back) and [`requeue`](Scheduler::requeue).
//!
//! Everything that happens may let another call go, so after every other method `next` is
//! called until it says [`Step::SleepUntil`] or [`Step::Idle`], and again at that moment.
//!
//! What it costs, in the number n of waiting calls: O(log n) for every method but
//! [`apply`](Scheduler::apply), [`remove_bucket`](Scheduler::remove_bucket) and the snapshots,
//! which are linear. With [`Postpone::Jitter`](crate::Postpone::Jitter) that is per call asked, and
//! every call is asked each time it has been aside; with
//! [`Postpone::InTurn`](crate::Postpone::InTurn) a call is asked only when it is first in its line and
//! something has changed for that line.

mod bucket;
mod deadline;
mod hold;
mod park;
mod quota;
mod refusal;
mod reload;
mod snapshot;
mod waited;

pub use bucket::{
    BUCKETS_MAX, BucketMode, BucketNow, BucketOrder, BucketRule, OnExcess, Settlement,
    TooManyBuckets,
};
pub use hold::{Hold, Outcome};
pub use quota::{
    QuotaAsk, QuotaCounts, QuotaNow, QuotaQuestion, QuotaRef, QuotaRule, QuotaSpent, QuotaTrouble,
};
pub use refusal::{Reason, Refusal};
pub use snapshot::{ClassNow, Demand, FunctionNow, LimitNow, QueueNow};
pub use waited::Waited;

pub use crate::delay::{Cause, Delay, Delays};
pub use crate::limiter::{BucketLimit, PacerNow};
pub use crate::queue::Ticket;
pub use crate::supply::{Supplier, Supply};

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::bucket::TokenCount;
use crate::call::{BucketId, Call, Class};
use crate::limiter::{Limiter, Progress, RETRY_UNMEASURED};
use crate::policy::{LimitId, LimitRule, LimitSets, Policy, SetId, WhenFull};
use crate::queue::account::Stay;
use crate::queue::fair::{Service, WINDOW};
use crate::queue::{Bar, LineId, Place, Queue, Waiting};
use crate::quota::Answer as QuotaAnswer;
use crate::slab::{Key, Slab};
use crate::time::{Timestamp, nanos};
use crate::verdict::Verdict;
use bucket::Buckets;
use hold::{Drawn, Held};
use park::{Asked, LineKey, Own, Parking};
use quota::{Found, Pinned, Quotas, TooManyKeys};

/// What to do next.
#[derive(Debug)]
pub enum Step<T> {
    /// Run this call; all its limits are drawn.
    Run {
        /// What was submitted.
        payload: T,
        /// What the call has drawn.
        hold: Hold,
        /// What it waited for.
        waited: Waited,
        /// What it drew from its quotas.
        spent: Vec<QuotaSpent>,
    },
    /// Tell this call that it does not run; nothing is drawn.
    Expired {
        /// What was submitted.
        payload: T,
        /// Why, and when to come back.
        refusal: Refusal,
        /// What it waited for.
        waited: Waited,
    },
    /// Nothing can go before this moment, unless something else happens first.
    SleepUntil(Timestamp),
    /// Nothing can go until something happens.
    Idle,
}

/// A limit in force: its rule, its state, and who waits for it.
#[derive(Debug)]
struct Metered {
    rule: LimitRule,
    limiter: Limiter,
    /// Calls in the queue that meet it.
    waiting: u64,
    /// What they would draw.
    waiting_draw: u64,
    /// Need and use, as last reported by [`Scheduler::demand`].
    reported: (u64, u64),
}

impl Metered {
    fn new(now: Timestamp, rule: &LimitRule) -> Self {
        let limiter = Limiter::new(now, &rule.limit, rule.reserve);
        Self {
            rule: rule.clone(),
            limiter,
            waiting: 0,
            waiting_draw: 0,
            reported: (0, 0),
        }
    }
}

/// What runs out when a supply does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Supplied {
    Limit(LimitId, Supplier),
    Bucket(BucketId),
}

/// Holds calls back until their limits allow them, and decides whose turn it is.
#[derive(Debug)]
pub struct Scheduler<T> {
    policy: Policy,
    sets: LimitSets,
    limits: Vec<Metered>,
    buckets: Buckets,
    quotas: Quotas,
    queue: Queue<T>,
    parking: Parking,
    holds: Slab<Held>,
    /// Empty, for what the next calls draw.
    spare: Vec<Vec<Drawn>>,
    /// Calls that wait, and are to be refused since a change.
    to_reject: VecDeque<Key>,
    /// When supplies run out.
    expiries: BTreeSet<(Timestamp, Supplied)>,
    /// The latest moment handed in: one that steps back counts as this one.
    now: Timestamp,
    /// Joinings of the queue so far.
    joined: u64,
    draining: bool,
    asked: u64,
}

impl<T> Scheduler<T> {
    /// A scheduler at rest.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::with_seed(policy, 0)
    }

    /// The same, with a seed for the hash by which callers that are too many for turns of their
    /// own share turns: whoever does not know it cannot choose with whom.
    #[must_use]
    pub fn with_seed(policy: Policy, seed: u64) -> Self {
        let sets = LimitSets::new(policy.limits());
        let classes = policy.classes().len();
        let limits: Vec<_> = policy
            .limits()
            .iter()
            .map(|rule| Metered::new(Timestamp::ZERO, rule))
            .collect();
        let kept_for = limits.iter().map(|met| met.limiter.kept_for());
        Self {
            queue: Queue::new(),
            parking: Parking::new(classes, seed, kept_for),
            limits,
            buckets: Buckets::new(),
            quotas: Quotas::new(),
            holds: Slab::default(),
            spare: Vec::new(),
            to_reject: VecDeque::new(),
            expiries: BTreeSet::new(),
            now: Timestamp::ZERO,
            joined: 0,
            draining: false,
            asked: 0,
            sets,
            policy,
        }
    }

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes a call in. Its ticket cancels it; whether it may run is for
    /// [`next`](Self::next) to say, at the same `now` if its deadline is that short.
    ///
    /// # Errors
    ///
    /// A refusal, with the payload, if the call could never run, could run only after its
    /// deadline even with nobody ahead of it, or finds no place.
    pub fn submit(
        &mut self,
        now: Timestamp,
        mut call: Call,
        payload: T,
    ) -> Result<Ticket, (Refusal, T)> {
        let now = self.advance(now);
        call.class = self.clamp(call.class);
        let set = self.sets.find(&call.function, call.backend, call.class);
        let bucket = self.buckets.find(call.bucket);
        // A call that is refused makes no ledger: another key would go for it.
        let found = self.quotas.find_all(&call);
        if let Some((reason, by)) = self.refuse_at_once(now, &call, set, bucket, &found) {
            let limit = match by {
                Some(By::Limit(limit)) => self.name(Bar::Limit(limit)),
                Some(By::Bucket(bucket)) => {
                    if reason == Reason::RateLimited {
                        self.buckets.expect_mut(bucket).rejected += 1;
                    }
                    self.name(Bar::Bucket(bucket))
                }
                Some(By::Quota(found)) => {
                    self.quotas.refuse(now, found, call.tokens);
                    self.quotas.name_of(found)
                }
                None => None,
            };
            let quotas = quota::known(&found);
            let own = Own { bucket, quotas };
            let refusal = self.refusal(now, reason, limit, set, &own, &call);
            return Err((refusal, payload));
        }
        let quotas = match self.pin_quotas(now, &call, &found) {
            Ok(quotas) => quotas,
            Err(refusal) => return Err((refusal, payload)),
        };
        let own = Own { bucket, quotas };
        Ok(self.join(call, payload, set, own, None))
    }

    /// What to do next: call it until it says to sleep. `entropy` gives 64 random bits a call,
    /// and is asked only to set a call aside.
    pub fn next(&mut self, now: Timestamp, entropy: &mut impl FnMut() -> u64) -> Step<T> {
        let now = self.advance(now);
        if self.queue.is_empty() {
            self.to_reject.clear();
            self.parking.nobody_waits();
            self.settle_quotas(now);
            let expires_at = self.expiries.first().map(|&(moment, _)| moment);
            let moments = [expires_at, self.quotas.wake()].into_iter().flatten();
            return moments.min().map_or(Step::Idle, Step::SleepUntil);
        }
        if let Some(key) = self.overdue(|deadline| deadline < now) {
            return self.expire(now, key, Reason::DeadlinePassed, None);
        }
        if let Some((key, bucket)) = self.next_to_reject() {
            self.buckets.expect_mut(bucket).rejected += 1;
            return self.expire(now, key, Reason::RateLimited, Some(Bar::Bucket(bucket)));
        }
        self.rejoin_due(now);
        self.parking.open_due(now);
        let mut parked = 0;
        while let Some(asked) = self.next_asked() {
            let Asked { line, key, .. } = asked;
            let (bar, verdict) = match self.ask(now, asked) {
                Answer::Run => return self.run(now, asked),
                Answer::Barred(bar, Verdict::Never) => {
                    return self.expire(now, key, Reason::NeverPossible, Some(bar));
                }
                Answer::Barred(bar, verdict) => (bar, verdict),
            };
            let stays = asked.turn.is_some_and(|turn| turn.bar() == bar);
            if let Bar::Quota(quota) = bar {
                let tokens = self.queue.expect(key).call.tokens;
                let answer = self.quotas.peek(now, quota, tokens);
                let rejects = self.quotas.rejects(quota, answer);
                // One that was held here before has said so.
                if rejects || !stays {
                    self.quotas.held(quota, answer);
                }
                if rejects {
                    return self.expire(now, key, quota::reason(answer), Some(bar));
                }
            }
            let Some((min, max)) = self.jitter(bar, key) else {
                parked += 1;
                debug_assert!(
                    parked <= 64 + 16 * self.parking.lines(),
                    "no line is sent to and fro between two limits"
                );
                let front = self.pass_over(now, asked, bar, verdict);
                let verdict = self.asked_again(now, key, bar, verdict);
                self.parking
                    .park(asked, bar, verdict, front, now, self.joined);
                continue;
            };
            let deadline = self.queue.expect(key).call.deadline;
            if deadline.is_some_and(|deadline| deadline <= now) {
                return self.expire(now, key, Reason::DeadlinePassed, Some(bar));
            }
            let until = aside_until(now, min, max, entropy());
            self.set_aside(now, line, key, bar, until);
        }
        // Those whose deadline is this very moment have had their turn, if they had one.
        if let Some(key) = self.overdue(|deadline| deadline <= now) {
            return self.expire(now, key, Reason::DeadlinePassed, None);
        }
        self.settle_quotas(now);
        if !self.parking.is_settled() {
            return self.next(now, entropy);
        }
        let moments = [
            self.quotas.wake(),
            self.queue.first_deadline().map(|(moment, _)| moment),
            self.queue.first_aside().map(|(moment, _)| moment),
            self.expiries.first().map(|&(moment, _)| moment),
            self.parking.next_opening(),
        ];
        moments
            .into_iter()
            .flatten()
            .min()
            .map_or(Step::Idle, Step::SleepUntil)
    }

    /// Takes a waiting call back out; `None` if it no longer waits.
    pub fn cancel(&mut self, now: Timestamp, ticket: Ticket) -> Option<T> {
        self.advance(now);
        self.queue.get(ticket.0)?;
        Some(self.take_out(ticket.0).payload)
    }

    /// What was submitted, while it waits; `None` if it no longer does.
    pub fn payload_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.queue
            .get_mut(ticket.0)
            .map(|waiting| &mut waiting.payload)
    }

    /// Takes out any one waiting call, for whoever ends them all; `None` if nobody waits.
    pub fn evict(&mut self, now: Timestamp) -> Option<(T, Waited)> {
        let now = self.advance(now);
        let timed = self.queue.first_deadline().or(self.queue.first_aside());
        let timed = timed.map(|(_, key)| key);
        let key = timed.or_else(|| self.parking.any())?;
        let waited = self.waited(now, Ticket(key)).unwrap_or_default();
        Some((self.take_out(key).payload, waited))
    }

    /// Puts a waiting call into another class, at the end of its caller's flow there. False if
    /// it no longer waits.
    pub fn reclass(&mut self, now: Timestamp, ticket: Ticket, class: Class) -> bool {
        self.advance(now);
        let class = self.clamp(class);
        let Some(waiting) = self.queue.get(ticket.0) else {
            return false;
        };
        if waiting.call.class == class {
            return true;
        }
        let place = waiting.place;
        self.discount_limits(ticket.0);
        let arrival = self.count_joining();
        let waiting = self.queue.expect_mut(ticket.0);
        waiting.call.class = class;
        let call = &waiting.call;
        waiting.set = self.sets.find(&call.function, call.backend, class);
        self.count_limits(ticket.0);
        self.replace(ticket.0, place, arrival);
        true
    }

    /// Tells a limit what it may give out. What other suppliers said stays said, and the strictest
    /// counts. False if no limit has this name.
    pub fn supply(
        &mut self,
        now: Timestamp,
        limit: &str,
        supplier: Supplier,
        supply: Supply,
    ) -> bool {
        let now = self.advance(now);
        let Some(id) = self.find_limit(limit) else {
            return false;
        };
        let limiter = &mut self.limits[id as usize].limiter;
        let supplied = Supplied::Limit(id, supplier);
        if let Some(expires_at) = limiter.supply(supplier).expires_at() {
            self.expiries.remove(&(expires_at, supplied));
        }
        limiter.set_supply(now, supplier, supply);
        if let Some(expires_at) = supply.expires_at() {
            self.expiries.insert((expires_at, supplied));
        }
        self.parking.change(Bar::Limit(id));
        true
    }

    /// From now on [`submit`](Self::submit) refuses; what waits and runs goes on.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether there is a place in the queue for one more call.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.policy.capacity() as usize
    }

    /// Calls that wait in the queue, set aside ones included; not those at the door. Where nobody
    /// may wait at the door this may be above the capacity: by those requeued, which had a place,
    /// or after a reload.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() - self.at_door()
    }

    /// Calls that wait at the door of a full queue: so many wait above the capacity. They take their
    /// turns like all others.
    #[must_use]
    pub fn at_door(&self) -> usize {
        let capacity = self.policy.capacity() as usize;
        match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { .. } => self.queue.len().saturating_sub(capacity),
        }
    }

    /// Calls that were run and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.holds.len()
    }

    /// Nothing waits, nothing is in flight, and nothing is drawn that only the end of a call
    /// could bring back. Departures may still count in their windows.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.queue.is_empty()
            && self.holds.is_empty()
            && self.parking.is_at_rest()
            && self
                .limits
                .iter()
                .all(|met| met.limiter.is_at_rest() && met.waiting == 0)
            && self.buckets.iter().all(|(_, bucket)| bucket.waiting == 0)
    }

    /// Time only goes forward here. Supplies run out at their own moment, whatever comes next.
    #[inline]
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.now = self.now.max(now);
        self.expire_supplies();
        self.now
    }

    fn count_joining(&mut self) -> u64 {
        self.joined += 1;
        self.joined
    }

    fn find_limit(&self, name: &str) -> Option<LimitId> {
        let index = self.limits.iter().position(|met| &*met.rule.name == name)?;
        Some(index as LimitId)
    }

    /// The class itself, or the last one for a class that an older policy had.
    #[inline]
    fn clamp(&self, class: Class) -> Class {
        Class(class.0.min(self.policy.classes().len() as u32 - 1))
    }

    /// The line for calls like these.
    fn line(&mut self, key: LineKey) -> LineId {
        let line = self.parking.line(key);
        self.queue.make_lines(self.parking.lines());
        line
    }

    /// For how long a call that this bars is set aside; `None` if it keeps its place.
    fn jitter(&self, bar: Bar, key: Key) -> Option<(Duration, Duration)> {
        match bar {
            Bar::Limit(_) => self.policy.jitter(self.queue.expect(key).call.class),
            Bar::Bucket(_) | Bar::Quota(_) => None,
        }
    }

    /// Finds the quotas of a call that comes in.
    fn pin_quotas(
        &mut self,
        now: Timestamp,
        call: &Call,
        found: &[Found],
    ) -> Result<Pinned, Refusal> {
        self.quotas.pin(now, call, found).map_err(|TooManyKeys| {
            let first = call.quotas.as_ref().and_then(|keys| keys.first());
            Refusal {
                limit: first.map(|of| Arc::clone(&of.quota)),
                reason: Reason::QueueFull,
                retry_after: RETRY_UNMEASURED,
            }
        })
    }

    fn refuse_at_once(
        &self,
        now: Timestamp,
        call: &Call,
        set: SetId,
        bucket: Option<Key>,
        quotas: &[Found],
    ) -> Option<(Reason, Option<By>)> {
        if self.draining {
            return Some((Reason::Draining, None));
        }
        if call.deadline.is_some_and(|deadline| deadline < now) {
            return Some((Reason::DeadlinePassed, None));
        }
        let mut last = (now, None);
        for &limit in self.sets.limits(set).iter() {
            let limiter = &self.limits[limit as usize].limiter;
            if limiter.is_beyond(call.class, call.draw()) {
                return Some((Reason::NeverPossible, Some(By::Limit(limit))));
            }
            // Most deadlines are beyond whatever a limit could be waiting for.
            if call
                .deadline
                .is_some_and(|deadline| deadline < limiter.opens_by(now))
            {
                let verdict = limiter.peek(now, call.class, call.draw(), 0);
                let earliest = limiter.earliest(now, call.class, call.draw(), verdict);
                if earliest > last.0 {
                    last = (earliest, Some(By::Limit(limit)));
                }
            }
        }
        if let Some(key) = bucket {
            let bucket = self.buckets.expect(key);
            if bucket.rule.on_excess == OnExcess::Reject
                && !bucket.wait_behind(now, call.tokens).is_zero()
            {
                return Some((Reason::RateLimited, Some(By::Bucket(key))));
            }
            if let (Some(_), Verdict::NotBefore(moment)) = (
                call.deadline,
                bucket.peek(now, TokenCount::ZERO, call.tokens),
            ) && moment > last.0
            {
                last = (moment, Some(By::Bucket(key)));
            }
        }
        for &found in quotas {
            let (answer, is_rejected) = self.quotas.ask(now, found, call.tokens);
            if answer == QuotaAnswer::Never {
                return Some((Reason::NeverPossible, Some(By::Quota(found))));
            }
            if is_rejected {
                return Some((quota::reason(answer), Some(By::Quota(found))));
            }
            if let Verdict::NotBefore(moment) = answer.into()
                && moment > last.0
            {
                last = (moment, Some(By::Quota(found)));
            }
        }
        if call.deadline.is_some_and(|deadline| deadline < last.0) {
            return Some((Reason::DeadlineUnreachable, last.1));
        }
        let door = match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door,
        };
        let most = u64::from(self.policy.capacity()) + u64::from(door);
        (self.queue.len() as u64 >= most).then_some((Reason::QueueFull, None))
    }

    /// What this says to the head of a line, behind those that claim before it.
    fn peek_at(&self, now: Timestamp, line: LineId, waiting: &Waiting<T>, bar: Bar) -> Verdict {
        let call = &waiting.call;
        let ahead = self.parking.ahead(line, bar, now);
        match bar {
            Bar::Limit(limit) => {
                let limiter = &self.limits[limit as usize].limiter;
                let ahead = match ahead {
                    0 => 0,
                    _ if limiter.is_kept_for(now, call.class, call.draw()) => 0,
                    _ => ahead,
                };
                limiter.peek(now, call.class, call.draw(), ahead)
            }
            Bar::Bucket(bucket) => {
                let ahead = TokenCount::from_micros(ahead);
                self.buckets.expect(bucket).peek(now, ahead, call.tokens)
            }
            Bar::Quota(quota) => self.quotas.verdict(now, quota, ahead, call.tokens),
        }
    }

    /// What everything that the head of a line meets says to it, and what it is that bars it. A
    /// bucket that does comes first: whose turn it is there keeps its tokens from the others.
    fn peek(&self, now: Timestamp, line: LineId, waiting: &Waiting<T>) -> Answer {
        let mut strictest = (Verdict::Ready, None);
        let limits = self.sets.limits(waiting.set).iter();
        let quotas = waiting.quotas.iter().flat_map(|keys| keys.iter());
        let bars = limits.map(|&limit| Bar::Limit(limit));
        for bar in bars.chain(quotas.map(|&quota| Bar::Quota(quota))) {
            let verdict = self.peek_at(now, line, waiting, bar);
            if verdict > strictest.0 {
                strictest = (verdict, Some(bar));
            }
        }
        if strictest.0 != Verdict::Never
            && let Some(bucket) = waiting.bucket
        {
            let verdict = self.peek_at(now, line, waiting, Bar::Bucket(bucket));
            if verdict != Verdict::Ready {
                return Answer::Barred(Bar::Bucket(bucket), verdict);
            }
        }
        match strictest {
            (Verdict::Ready, _) => Answer::Run,
            (verdict, Some(bar)) => Answer::Barred(bar, verdict),
            (_, None) => unreachable!("a verdict other than ready comes from a limit"),
        }
    }

    /// Puts a waiting call where it belongs by now: into a line if `place` is one, or else there.
    fn replace(&mut self, key: Key, place: Place, arrival: u64) {
        match place {
            Place::Line(from) => {
                let to = self.line(LineKey::of(self.queue.expect(key)));
                self.move_into_line(key, to, arrival);
                self.refresh_head(from);
                self.refresh_head(to);
            }
            Place::Aside(_) => self.queue.relocate(key, place, arrival),
        }
    }

    /// A call begins to wait, in its line: behind those before it, or where it stood before.
    #[inline]
    fn join(
        &mut self,
        call: Call,
        payload: T,
        set: SetId,
        own: Own,
        arrival: Option<u64>,
    ) -> Ticket {
        let joined = self.count_joining();
        let line = self.line(LineKey::new(set, &call, own.clone()));
        let waiting = Waiting {
            call,
            payload,
            set,
            bucket: own.bucket,
            quotas: own.quotas,
            arrival: arrival.unwrap_or(joined),
            place: Place::Line(line),
            joined,
            held_by: None,
            postponed: 0,
            stay: Stay::new(self.now, self.parking.note_account(line)),
        };
        count_waiting(&self.sets, &mut self.limits, &waiting);
        count_waiting_own(&mut self.quotas, &mut self.buckets, &waiting);
        let key = self.queue.insert(waiting);
        self.refresh_head(line);
        Ticket(key)
    }

    /// Puts a call that waits elsewhere into a line.
    fn move_into_line(&mut self, key: Key, line: LineId, arrival: u64) {
        self.carry_over(key);
        self.queue.expect_mut(key).stay.joined = self.parking.note_account(line);
        self.queue.relocate(key, Place::Line(line), arrival);
    }

    fn count_limits(&mut self, key: Key) {
        count_waiting(&self.sets, &mut self.limits, self.queue.expect(key));
    }

    fn discount_limits(&mut self, key: Key) {
        discount_waiting(&self.sets, &mut self.limits, self.queue.expect(key));
    }

    /// A call that waited in a line or aside waits no more.
    fn discount(&mut self, waiting: &Waiting<T>) {
        discount_waiting(&self.sets, &mut self.limits, waiting);
        let tokens = waiting.call.tokens;
        self.quotas
            .discount_waiting(waiting.quotas.as_ref(), tokens);
        if let Some(bucket) = waiting.bucket {
            self.buckets
                .expect_mut(bucket)
                .discount_waiting(waiting.call.tokens);
        }
    }

    fn refresh_head(&mut self, line: LineId) {
        let head = self.queue.head(line);
        self.parking.set_head(line, head, self.now, self.joined);
    }

    fn next_asked(&mut self) -> Option<Asked> {
        let sets = &self.sets;
        self.parking.next(|line, bar| match bar {
            Bar::Limit(limit) => sets.limits(line.set()).contains(&limit),
            Bar::Bucket(_) | Bar::Quota(_) => line.has_own(bar),
        })
    }

    /// Asks the head of a line whether it may run.
    fn ask(&mut self, now: Timestamp, asked: Asked) -> Answer {
        let line = asked.line;
        let waiting = self.queue.expect(asked.key);
        if let Some(turn) = asked.turn {
            let bar = turn.bar();
            let verdict = self.peek_at(now, line, waiting, bar);
            let is_barred = matches!(verdict, Verdict::NotBefore(_) | Verdict::WhenTold);
            // Who is to be told something is asked for it.
            let is_told = match bar {
                Bar::Quota(quota) => {
                    let answer = self.quotas.peek(now, quota, waiting.call.tokens);
                    self.quotas.rejects(quota, answer)
                }
                Bar::Limit(_) | Bar::Bucket(_) => false,
            };
            if is_barred && !is_told {
                return Answer::Barred(bar, verdict);
            }
        }
        let quotas = waiting.quotas.iter().flat_map(|keys| keys.iter());
        let own = waiting.bucket.map(Bar::Bucket).into_iter();
        let mut own = own.chain(quotas.map(|&quota| Bar::Quota(quota)));
        if let Some(bar) = own.find(|&bar| self.parking.is_behind(line, bar, || false)) {
            return Answer::Barred(bar, Verdict::WhenTold);
        }
        let (class, draw) = (waiting.call.class, waiting.call.draw());
        let mut limits = self.sets.limits(waiting.set).iter();
        let behind = limits.find(|&&limit| {
            self.parking.is_behind(line, Bar::Limit(limit), || {
                let limiter = &self.limits[limit as usize].limiter;
                limiter.is_kept_for(now, class, draw)
            })
        });
        if let Some(&limit) = behind {
            return Answer::Barred(Bar::Limit(limit), Verdict::WhenTold);
        }
        self.asked += 1;
        self.peek(now, line, self.queue.expect(asked.key))
    }

    /// When a call is asked again that this bars. What is kept for its class may be enough for it
    /// before those have gone that go before it at the limit.
    fn asked_again(&self, now: Timestamp, key: Key, bar: Bar, verdict: Verdict) -> Verdict {
        let (Bar::Limit(limit), Verdict::WhenTold) = (bar, verdict) else {
            return verdict;
        };
        let call = &self.queue.expect(key).call;
        let limiter = &self.limits[limit as usize].limiter;
        let keeps_from = limiter.keeps_from(now, call.class, call.draw());
        keeps_from.map_or(verdict, Verdict::NotBefore)
    }

    /// The turn of a call has come, and something else bars it. How much it claims there, if it goes
    /// to the front.
    fn pass_over(
        &mut self,
        now: Timestamp,
        asked: Asked,
        bar: Bar,
        verdict: Verdict,
    ) -> Option<u64> {
        let turn = asked.turn.filter(|turn| turn.bar() != bar)?;
        let waiting = self.queue.expect(asked.key);
        let (limits, met) = (&self.limits, self.sets.limits(waiting.set));
        let own_window = |limit: LimitId| limits[limit as usize].limiter.window();
        let window = |bar| match bar {
            Bar::Limit(limit) => own_window(limit),
            Bar::Bucket(_) | Bar::Quota(_) => None,
        };
        let window = |bar| {
            window(bar).unwrap_or_else(|| {
                let windows = met.iter().filter_map(|&limit| own_window(limit));
                windows.max().unwrap_or(WINDOW)
            })
        };
        let call = &waiting.call;
        let draw = |bar| match bar {
            Bar::Limit(limit) => limits[limit as usize].limiter.draw_of(call.draw()),
            Bar::Bucket(_) => TokenCount::of_turn(call.tokens).micros(),
            Bar::Quota(_) => call.tokens.whole(),
        };
        let opens = match verdict {
            Verdict::NotBefore(moment) => Some(moment),
            Verdict::Ready | Verdict::WhenTold | Verdict::Never => None,
        };
        let claim = |bar| (window(bar), draw(bar));
        let claims = self
            .parking
            .pass_over(asked.line, turn, bar, opens, now, claim);
        claims.then(|| draw(bar))
    }

    fn run(&mut self, now: Timestamp, asked: Asked) -> Step<T> {
        let Asked { line, key, .. } = asked;
        let mut waiting = self.queue.remove(key).expect("the head of a line waits");
        let before = core::mem::take(&mut waiting.stay.before);
        let waited = self.waited_by(now, &waiting, before);
        self.discount(&waiting);
        let Waiting {
            call,
            payload,
            set,
            bucket,
            quotas,
            arrival,
            ..
        } = waiting;
        let weight = self.policy.classes()[call.class.0 as usize].weight;
        let service = Service::new(call.tokens, call.weight, weight);
        let draw = call.draw();
        let mut drawn = self.spare.pop().unwrap_or_default();
        for &limit in self.sets.limits(set).iter() {
            let limiter = &mut self.limits[limit as usize].limiter;
            drawn.push(Drawn::Limit {
                limit,
                is_kept: limiter.is_kept_for(now, call.class, draw),
                stake: limiter.take(now, call.class, draw),
            });
        }
        if let Some(bucket) = bucket {
            let taken = self.buckets.expect_mut(bucket).draw(now, call.tokens);
            drawn.push(Drawn::Bucket { bucket, taken });
        }
        let mut told = Vec::with_capacity(quotas.as_ref().map_or(0, |keys| keys.len()));
        for &quota in quotas.iter().flat_map(|keys| keys.iter()) {
            let was_held_by = |name: &str| {
                let mut delays = waited.delays.iter();
                delays.any(|delay| matches!(&delay.cause, Cause::Limit(limit) if **limit == *name))
            };
            let took = self
                .quotas
                .take(now, quota, call.tokens, call.arrived, was_held_by);
            let spent = took.spent;
            drawn.push(Drawn::Quota { quota, spent });
            told.push(took);
        }
        let from = drawn.iter().map(|drawn| {
            let is_kept = matches!(drawn, Drawn::Limit { is_kept: true, .. });
            (drawn.bar(), is_kept)
        });
        let next = self.queue.head(line);
        let served = self.parking.served(line, service, from, next);
        self.refresh_head(line);
        if let Some(keys) = quotas {
            self.quotas.unpin(now, &keys);
        }
        let held = Held {
            since: now,
            call,
            arrival,
            service,
            served,
            drawn,
            progress: Progress::default(),
        };
        let hold = Hold(self.holds.insert(held));
        Step::Run {
            payload,
            hold,
            waited,
            spent: told,
        }
    }

    fn expire(&mut self, now: Timestamp, key: Key, reason: Reason, bar: Option<Bar>) -> Step<T> {
        let held_by = bar.or_else(|| self.held_by(self.queue.expect(key)));
        let reason = self.because_of_the_store(reason, held_by);
        let waited = self.waited(now, Ticket(key)).unwrap_or_default();
        if let Some(Bar::Quota(key)) = held_by {
            self.quotas.refused(key);
        }
        let own = Own::of(self.queue.expect(key));
        let waiting = self.take_out(key);
        let Waiting {
            call, payload, set, ..
        } = waiting;
        let limit = held_by.and_then(|bar| self.name(bar));
        let refusal = self.refusal(now, reason, limit, set, &own, &call);
        Step::Expired {
            payload,
            refusal,
            waited,
        }
    }

    /// Why a call really waited in vain: a quota whose store does not answer is no limit that others
    /// have used up.
    fn because_of_the_store(&self, reason: Reason, held_by: Option<Bar>) -> Reason {
        match (reason, held_by) {
            (Reason::DeadlinePassed, Some(Bar::Quota(quota)))
                if self.quotas.is_unanswered(quota) =>
            {
                Reason::StoreAway
            }
            _ => reason,
        }
    }

    /// What holds a waiting call, or held it last.
    fn held_by(&self, waiting: &Waiting<T>) -> Option<Bar> {
        match waiting.place {
            Place::Line(line) => waiting
                .held_by
                .or_else(|| self.parking.held_by(line, waiting.joined)),
            Place::Aside(_) => waiting.held_by,
        }
    }

    /// Takes a call out of wherever it waits, without service.
    fn take_out(&mut self, key: Key) -> Waiting<T> {
        let waiting = self.queue.remove(key).expect("the call waits");
        self.discount(&waiting);
        if let Place::Line(line) = waiting.place {
            self.refresh_head(line);
        }
        if let Some(keys) = &waiting.quotas {
            self.quotas.unpin(self.now, keys);
        }
        waiting
    }

    fn overdue(&self, is_over: impl Fn(Timestamp) -> bool) -> Option<Key> {
        let (deadline, key) = self.queue.first_deadline()?;
        is_over(deadline).then_some(key)
    }

    #[inline]
    fn expire_supplies(&mut self) {
        while let Some(&(expires_at, supplied)) = self.expiries.first()
            && expires_at <= self.now
        {
            self.expiries.pop_first();
            match supplied {
                Supplied::Limit(limit, _) => {
                    self.limits[limit as usize]
                        .limiter
                        .follow_supply(expires_at);
                    self.parking.change(Bar::Limit(limit));
                }
                Supplied::Bucket(id) => self.bucket_supply_expired(expires_at, id),
            }
        }
    }

    /// Sets the head of a line aside; at its deadline it is asked a last time.
    fn set_aside(&mut self, now: Timestamp, line: LineId, key: Key, bar: Bar, until: Timestamp) {
        self.carry_over(key);
        let waiting = self.queue.expect_mut(key);
        let arrival = waiting.arrival;
        waiting.postponed = waiting.postponed.saturating_add(1);
        waiting.held_by = Some(bar);
        let until = until.max(now + Duration::from_nanos(1));
        let until = waiting
            .call
            .deadline
            .map_or(until, |deadline| until.min(deadline));
        self.queue.relocate(key, Place::Aside(until), arrival);
        self.refresh_head(line);
    }

    fn rejoin_due(&mut self, now: Timestamp) {
        while let Some((until, key)) = self.queue.first_aside()
            && until <= now
        {
            self.rejoin(key);
        }
    }

    /// Puts a call that was aside at the end of its line.
    fn rejoin(&mut self, key: Key) {
        let arrival = self.count_joining();
        self.queue.expect_mut(key).joined = arrival;
        let line = self.line(LineKey::of(self.queue.expect(key)));
        self.move_into_line(key, line, arrival);
        self.refresh_head(line);
    }

    /// Calls asked so far: for tests that count work instead of timing it.
    #[doc(hidden)]
    #[must_use]
    pub const fn asked_count(&self) -> u64 {
        self.asked + self.parking.looked()
    }

    /// Claims made so far: for tests.
    #[doc(hidden)]
    #[must_use]
    pub const fn claims_made(&self) -> u64 {
        self.parking.claims().0
    }

    /// Panics if anything that must hold once [`next`](Self::next) says to sleep does not.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.parking.audit();
        for met in &self.limits {
            let meets = |waiting: &Waiting<T>| {
                let set = self.sets.limits(waiting.set);
                set.iter()
                    .any(|&id| self.limits[id as usize].rule.name == met.rule.name)
            };
            let waiting = self
                .queue
                .iter()
                .filter(|(_, waiting)| meets(waiting))
                .count();
            assert_eq!(
                met.waiting, waiting as u64,
                "every limit knows how many wait for it"
            );
        }
        for (key, bucket) in self.buckets.iter() {
            let meets = |waiting: &Waiting<T>| waiting.bucket == Some(key);
            let waiting = self.queue.iter().filter(|(_, waiting)| meets(waiting));
            assert_eq!(
                bucket.waiting,
                waiting.count() as u64,
                "every bucket knows how many wait for it"
            );
        }
        self.quotas.audit(|key| {
            let meets = |waiting: &&Waiting<T>| {
                let mut keys = waiting.quotas.iter().flat_map(|keys| keys.iter());
                keys.any(|&met| met == key)
            };
            self.queue
                .iter()
                .map(|(_, waiting)| waiting)
                .filter(meets)
                .count() as u64
        });
    }
}

/// What refuses a call that comes in.
#[derive(Clone, Copy)]
enum By {
    Limit(LimitId),
    Bucket(Key),
    Quota(Found),
}

/// What a call that was asked may do.
enum Answer {
    Run,
    /// It may not, because of this.
    Barred(Bar, Verdict),
}

fn count_waiting<T>(sets: &LimitSets, limits: &mut [Metered], waiting: &Waiting<T>) {
    for &limit in sets.limits(waiting.set).iter() {
        let met = &mut limits[limit as usize];
        met.waiting += 1;
        met.waiting_draw += met.limiter.draw_of(waiting.call.draw());
    }
}

fn count_waiting_own<T>(quotas: &mut Quotas, buckets: &mut Buckets, waiting: &Waiting<T>) {
    let tokens = waiting.call.tokens;
    quotas.count_waiting(waiting.quotas.as_ref(), tokens);
    if let Some(bucket) = waiting.bucket {
        buckets.expect_mut(bucket).count_waiting(tokens);
    }
}

fn discount_waiting<T>(sets: &LimitSets, limits: &mut [Metered], waiting: &Waiting<T>) {
    for &limit in sets.limits(waiting.set).iter() {
        let met = &mut limits[limit as usize];
        met.waiting -= 1;
        met.waiting_draw -= met.limiter.draw_of(waiting.call.draw());
    }
}

/// Moments within the span of the jitter at which calls come back.
const RETURNS: u64 = 128;

/// When a call set aside comes back. The moments are cut into [`RETURNS`] steps of the common
/// clock, so that those who come back at about the same time wake the scheduler together: with
/// thousands aside it would otherwise wake for each.
fn aside_until(now: Timestamp, min: Duration, max: Duration, random: u64) -> Timestamp {
    let drawn = (now + jitter(min, max, random)).as_nanos();
    let step = nanos(max - min) / RETURNS;
    if step == 0 {
        return Timestamp::from_nanos(drawn);
    }
    let stepped = Timestamp::from_nanos(drawn - drawn % step);
    if stepped < now + min {
        stepped + Duration::from_nanos(step)
    } else {
        stepped
    }
}

/// A time between `min` and `max`, both possible, by one draw of 64 random bits: the bias of
/// multiplying instead of rejecting is below 2^-20 for spans up to a few hours.
fn jitter(min: Duration, max: Duration, random: u64) -> Duration {
    let (min, max) = (nanos(min), nanos(max));
    let span = u128::from(max - min) + 1;
    let offset = (u128::from(random) * span) >> 64;
    Duration::from_nanos(min + u64::try_from(offset).expect("the offset is at most max - min"))
}
