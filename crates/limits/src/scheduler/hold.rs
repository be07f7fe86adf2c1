//! Calls in flight: what they have drawn, and how it comes back.

use alloc::vec::Vec;

use super::park::Own;
use super::state::Scheduler;
use crate::bucket::Tokens;
use crate::call::Call;
use crate::limiter::{Progress, Stake, Taken};
use crate::policy::{LimitId, WindowStamp};
use crate::queue::fair::Service;
use crate::queue::{Bar, Ticket};
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
    /// It failed otherwise. Its duration does not predict the next one: if the backend is down, a
    /// call ends at once.
    Failed,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) since: Timestamp,
    pub(super) call: Call,
    pub(super) arrival: u64,
    /// How far it moved tags, by the weights of then.
    pub(super) service: Service,
    /// Which of all that were served it was.
    pub(super) served: u64,
    pub(super) drawn: Vec<Drawn>,
    pub(super) progress: Progress,
}

/// What a call has drawn from one limit, bucket or quota.
#[derive(Debug)]
pub(super) enum Drawn {
    Limit {
        limit: LimitId,
        stake: Stake,
        /// It took only what is kept for its class.
        is_kept: bool,
    },
    /// The bucket may have been removed since.
    Bucket { bucket: Key, taken: Taken },
    /// The key may have been forgotten since.
    Quota { quota: Key, spent: Spent },
}

impl Drawn {
    pub(super) const fn bar(&self) -> Bar {
        match *self {
            Self::Limit { limit, .. } => Bar::Limit(limit),
            Self::Bucket { bucket, .. } => Bar::Bucket(bucket),
            Self::Quota { quota, .. } => Bar::Quota(quota),
        }
    }
}

/// How many lists are kept for the next calls, so that a call needs no allocation.
const SPARE_MAX: usize = 64;

impl<T> Scheduler<T> {
    /// The call's bytes are sent: it now counts in windows with [`WindowStamp::Sent`]. Only the
    /// first report counts. Report it before the bytes are sent, not after.
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
        let held = self.holds.get_mut(hold.0);
        let held = held.expect("the hold was just looked up");
        for drawn in &mut held.drawn {
            if let Drawn::Limit { limit, stake, .. } = drawn {
                let limiter = &mut self.limits[*limit as usize].limiter;
                if limiter.depart(now, held.call.class, stake, stamp) {
                    self.parking.change_told(*limit);
                }
            }
        }
    }

    /// The call has ended. Its slots come back. In windows that have no reported departure, it
    /// departs now, which is the safe side.
    ///
    /// `measured` is the actual cost of the call. A bucket whose rule says so settles by it.
    /// Outstanding limits count calls and windows count departures, so neither uses it.
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
        for drawn in &held.drawn {
            match *drawn {
                Drawn::Limit { limit, stake, .. } => {
                    let limiter = &mut self.limits[limit as usize].limiter;
                    limiter.release(now, held.call.class, stake, took);
                }
                Drawn::Bucket { bucket, taken } => {
                    let Some((bucket, measured)) = self.buckets.get_mut(bucket).zip(measured)
                    else {
                        continue;
                    };
                    bucket.settle(now, taken, held.call.tokens, measured);
                }
                Drawn::Quota { .. } => continue,
            }
            self.parking.change(drawn.bar());
        }
        self.spare(held.drawn);
    }

    /// The call was never sent. Everything it drew comes back as if it had never been drawn, except
    /// in windows with a reported departure.
    pub fn give_back(&mut self, now: Timestamp, hold: Hold) {
        let now = self.advance(now);
        let held = self.end(hold);
        self.undraw(now, &held);
        self.spare(held.drawn);
    }

    /// The call was never sent and waits again, with its turn and its deadline. It had a place, so
    /// it gets one even if the queue is full now.
    pub fn requeue(&mut self, now: Timestamp, hold: Hold, payload: T) -> Ticket {
        let now = self.advance(now);
        let held = self.end(hold);
        self.undraw(now, &held);
        let Held {
            mut call,
            arrival,
            drawn,
            ..
        } = held;
        self.spare(drawn);
        call.class = self.clamp(call.class);
        let bucket = self.buckets.find(call.bucket);
        let quotas = call.quotas.clone().unwrap_or_default();
        let quotas = self.quotas.pin_again(now, &quotas);
        let set = self.sets.find(&call.function, call.backend, call.class);
        let own = Own { bucket, quotas };
        self.join(call, payload, set, own, Some(arrival))
    }

    fn end(&mut self, hold: Hold) -> Held {
        self.holds
            .remove(hold.0)
            .expect("a hold is used with the scheduler that gave it, once")
    }

    /// Keeps a list for the next call.
    fn spare(&mut self, mut drawn: Vec<Drawn>) {
        if self.spare.len() < SPARE_MAX {
            drawn.clear();
            self.spare.push(drawn);
        }
    }

    fn undraw(&mut self, now: Timestamp, held: &Held) {
        let (class, caller) = (held.call.class, held.call.caller);
        let (service, served) = (held.service, held.served);
        for drawn in &held.drawn {
            let mut service = service;
            match drawn {
                Drawn::Limit {
                    limit,
                    stake,
                    is_kept,
                } => {
                    let limiter = &mut self.limits[*limit as usize].limiter;
                    limiter.undraw(now, class, *stake);
                    if *is_kept {
                        service = service.within_its_class();
                    }
                }
                Drawn::Bucket { bucket, taken } => {
                    let Some(bucket) = self.buckets.get_mut(*bucket) else {
                        continue;
                    };
                    bucket.undraw(now, *taken);
                }
                Drawn::Quota { quota, spent } => self.quotas.give_back(*quota, *spent),
            }
            let bar = drawn.bar();
            self.parking.unserved(bar, class, caller, service, served);
            self.parking.change(bar);
        }
    }
}
