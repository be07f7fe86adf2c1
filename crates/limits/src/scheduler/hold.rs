//! Calls in flight: what they have drawn, and how it comes back.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Scheduler;
use crate::limiter::{Progress, Tokens, WindowStamp};
use crate::policy::LimitId;
use crate::queue::account::Stay;
use crate::queue::fair::{Charge, Flow, Turn};
use crate::queue::{Call, Place, Ticket, Waiting};
use crate::quota::Spent;
use crate::slab::Key;
use crate::time::Timestamp;

/// Everything one running call has drawn. It ends in exactly one of
/// [`finish`](Scheduler::finish), [`give_back`](Scheduler::give_back) and
/// [`requeue`](Scheduler::requeue); a hold that is dropped instead stays drawn for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what a hold has drawn comes back only through finish, give_back or requeue"]
pub struct Hold(pub(super) Key);

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was answered.
    Served,
    /// It failed because the backend has too much to do.
    Overloaded,
    /// It failed otherwise. How long it took says nothing about the next one: a call that
    /// found nobody there ends at once.
    Failed,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) since: Timestamp,
    pub(super) call: Call,
    pub(super) turn: Turn,
    pub(super) charge: Charge,
    pub(super) drawn: Arc<[LimitId]>,
    pub(super) charged: Option<Charged>,
    pub(super) spent: Box<[(Key, Spent)]>,
    pub(super) progress: Progress,
}

/// What a bucket was charged for a call. The bucket may have been removed since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charged {
    pub(super) bucket: Key,
    pub(super) tokens: f64,
}

impl Held {
    pub(super) fn new(
        since: Timestamp,
        call: Call,
        turn: Turn,
        charge: Charge,
        drawn: Arc<[LimitId]>,
        charged: Option<Charged>,
        spent: Box<[(Key, Spent)]>,
    ) -> Self {
        Self {
            since,
            call,
            turn,
            charge,
            drawn,
            charged,
            spent,
            progress: Progress::default(),
        }
    }
}

impl<T> Scheduler<T> {
    /// The call's bytes leave: it now counts in windows that go by [`WindowStamp::Sent`]. Only
    /// the first time counts. To be told before the bytes go is safe, after is not.
    pub fn sent(&mut self, now: Timestamp, hold: &Hold) {
        let now = self.advance(now);
        let held = self
            .holds
            .get_mut(hold.0)
            .expect("a hold is used with the scheduler that gave it, once");
        if held.progress.sent.is_none() {
            held.progress.sent = Some(now);
            self.depart(now, hold, WindowStamp::Sent);
        }
    }

    /// The first byte of the reply came: the call now counts in windows that go by
    /// [`WindowStamp::Replied`]. Only the first time counts.
    pub fn replied(&mut self, now: Timestamp, hold: &Hold) {
        let now = self.advance(now);
        let held = self
            .holds
            .get_mut(hold.0)
            .expect("a hold is used with the scheduler that gave it, once");
        if held.progress.replied.is_none() {
            held.progress.replied = Some(now);
            self.depart(now, hold, WindowStamp::Replied);
        }
    }

    fn depart(&mut self, now: Timestamp, hold: &Hold, stamp: WindowStamp) {
        let held = self.holds.get(hold.0).expect("the hold was just looked up");
        for &limit in held.drawn.iter() {
            if self.limits[limit as usize].limiter.depart(
                now,
                held.call.class,
                held.call.cost,
                stamp,
            ) {
                self.parking.change_told(limit);
            }
        }
    }

    /// The call has ended. Its slots come back; in windows that were never told of its
    /// departure it departs now, which is the safe side.
    ///
    /// `measured` is what the call turned out to cost. A bucket whose rule says so settles by
    /// it. Outstanding limits count calls and windows count what departed, so neither does.
    pub fn finish(
        &mut self,
        now: Timestamp,
        hold: Hold,
        outcome: Outcome,
        measured: Option<Tokens>,
    ) {
        let now = self.advance(now);
        let held = self.end(hold);
        let took = match outcome {
            Outcome::Served | Outcome::Overloaded => Some(now.since(held.since)),
            Outcome::Failed => None,
        };
        for &limit in held.drawn.iter() {
            let (class, cost) = (held.call.class, held.call.cost);
            self.limits[limit as usize]
                .limiter
                .release(now, class, cost, held.progress, took);
            self.parking.change(limit);
        }
        if let (Some(charged), Some(measured)) = (held.charged, measured)
            && let Some(bucket) = self.buckets.get_mut(charged.bucket)
        {
            bucket.settle(now, &held, charged.tokens, measured);
            self.parking.change_bucket(charged.bucket);
        }
    }

    /// The call never left: everything it drew comes back as if it had not been drawn, but for
    /// windows that were told of its departure.
    pub fn give_back(&mut self, now: Timestamp, hold: Hold) {
        let now = self.advance(now);
        let held = self.end(hold);
        self.fair.unserve(held.call.class, held.charge);
        self.parking.classes_moved();
        self.undraw(now, &held);
    }

    /// The call never left and goes back to wait, with its turn and its deadline. It had a
    /// place, so it gets one even if the queue is full by now.
    pub fn requeue(&mut self, now: Timestamp, hold: Hold, payload: T) -> Ticket {
        let now = self.advance(now);
        let held = self.end(hold);
        self.undraw(now, &held);
        let Held {
            mut call,
            turn,
            charge,
            charged,
            ..
        } = held;
        call.class = self.fair.clamp(call.class);
        self.fair.unserve(call.class, charge);
        self.parking.classes_moved();
        let bucket = self.buckets.find(call.bucket);
        let quotas = call.quotas.clone().unwrap_or_default();
        let quotas = self.quotas.pin_again(now, &quotas);
        let waiting = Waiting {
            set: self.sets.find(&call.function, call.backend, call.class),
            bucket,
            quotas,
            turn,
            flow: Flow::All,
            charge,
            call,
            payload,
            place: Place::Door,
            joined: self.count_joining(),
            held_by: None,
            postponed: 0,
            stay: Stay::new(now),
        };
        let (group, caller) = (waiting.group(), waiting.call.caller);
        let key = self.queue.insert(waiting);
        let turn = if bucket == charged.map(|charged| charged.bucket) {
            let order = self.buckets.order(bucket);
            let flow = self
                .fair
                .come_back(group, caller, order, charge, turn.start());
            self.queue.expect_mut(key).flow = flow;
            turn
        } else {
            // Its turn was one among others than those it waits with now.
            self.join_group(key)
        };
        self.enter_line(key, turn);
        Ticket(key)
    }

    fn end(&mut self, hold: Hold) -> Held {
        self.holds
            .remove(hold.0)
            .expect("a hold is used with the scheduler that gave it, once")
    }

    fn undraw(&mut self, now: Timestamp, held: &Held) {
        for &limit in held.drawn.iter() {
            self.limits[limit as usize].limiter.undraw(
                now,
                held.call.class,
                held.call.draw(),
                held.since,
                held.progress,
            );
            self.parking.change(limit);
        }
        if let Some(charged) = held.charged
            && let Some(bucket) = self.buckets.get_mut(charged.bucket)
        {
            bucket.undraw(now, charged.tokens, held.since);
            self.parking.change_bucket(charged.bucket);
        }
        for &(key, spent) in &held.spent {
            self.quotas.give_back(key, spent);
            self.parking.change_quota(key);
        }
    }
}
