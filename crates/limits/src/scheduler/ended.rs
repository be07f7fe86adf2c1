//! Calls in flight: what they have drawn, and how it comes back.

use alloc::vec::Vec;

use super::hold::{Drawn, Held, Hold, Outcome};
use super::park::Own;
use super::state::Scheduler;
use crate::bucket::Tokens;
use crate::policy::WindowStamp;
use crate::queue::Ticket;
use crate::time::Timestamp;

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
