//! Checks of the scheduler at each step.

use std::time::Duration;

use tidegate_limits::policy::{LimitRule, Postpone};
use tidegate_limits::scheduler::{DelayCause, Refusal, RefusalReason, WaitReport};
use tidegate_limits::{Call, Limit};

use super::{Status, Submitted, World};
use crate::oracle::{CLOSE, Violation, draw, meets};
use crate::{at, nanos};

impl World {
    /// A call waits no more. Checks what it reports to have waited for.
    pub(super) fn check_waited(
        &mut self,
        call: usize,
        waited: &WaitReport,
    ) -> Result<(), Violation> {
        let wait = nanos(self.now() - self.calls[call].waits_since);
        if waited.delays.total() != wait {
            return Err(format!(
                "at {}: call {call} waited {wait:?}, and reports {waited:?}",
                self.now()
            ));
        }
        for delay in waited.delays.iter() {
            let limit = match &delay.cause {
                DelayCause::Limit(name) => Some(name.clone()),
                DelayCause::Turn => None,
                DelayCause::Others => {
                    return Err(format!("few limits, and not told apart: {waited:?}"));
                }
            };
            *self.waits.told.entry(limit).or_default() += delay.time;
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<(), Violation> {
        for index in 0..self.calls.len() {
            if let Status::Waiting(ticket) = self.calls[index].status {
                if self.calls[index]
                    .call
                    .deadline
                    .is_some_and(|deadline| deadline.as_nanos() < self.now())
                {
                    return Err(format!(
                        "{:?} still waits after its deadline, at {}",
                        self.calls[index],
                        self.now()
                    ));
                }
                self.cancel(index, ticket)?;
            }
        }
        self.settle()?;
        if !self.replay.scheduler().is_at_rest() {
            return Err("not at rest after the last call".into());
        }
        if self.waits.told != self.waits.seen {
            return Err(format!(
                "calls waited {:?}, and were told {:?}",
                self.waits.seen, self.waits.told
            ));
        }
        self.oracle.check_spans()?;
        self.oracle.check_peaks()?;
        self.oracle.check_rates()?;
        for limit in self
            .replay
            .scheduler()
            .limits_now(at(self.now() + 1_000_000))
        {
            let rule = self
                .oracle
                .rules()
                .iter()
                .find(|rule| rule.name == limit.name);
            let maximal = matches!(
                rule,
                Some(LimitRule {
                    limit: Limit::Window {
                        length: Duration::MAX,
                        ..
                    },
                    ..
                })
            );
            if limit.used != 0 && !maximal {
                return Err(format!("{} is lost in {limit:?}", limit.used));
            }
        }
        Ok(())
    }

    pub(super) fn check_refused_at_once(
        &self,
        call: &Call,
        refusal: &Refusal,
        full: bool,
    ) -> Result<(), Violation> {
        let wrong = |what: &str| {
            Err(format!(
                "at {}: {call:?} was refused, {refusal:?}, but {what}",
                self.now()
            ))
        };
        if refusal.retry_after < Duration::from_millis(1) {
            return wrong("should not come back at once");
        }
        let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
        match refusal.reason {
            RefusalReason::QueueFull if !full => wrong("there was room"),
            RefusalReason::QueueFull => Ok(()),
            RefusalReason::NeverPossible => {
                let never = own.any(|rule| {
                    draw(&rule.limit, call) > self.oracle.reach(rule, call, self.now())
                });
                if never {
                    Ok(())
                } else {
                    wrong("every limit is large enough")
                }
            }
            RefusalReason::DeadlineUnreachable => {
                let deadline = call
                    .deadline
                    .expect("what has no deadline can reach it")
                    .as_nanos();
                let closed = own.any(|rule| {
                    self.oracle.taken(rule, call, deadline) + draw(&rule.limit, call)
                        > self.oracle.max(rule, self.now())
                });
                let closed = closed || !self.oracle.has_tokens_by(call, self.now(), deadline);
                // Where a reload made the count inexact, it may well be higher than it looks.
                if closed || !self.oracle.is_exact_for(call) {
                    Ok(())
                } else {
                    wrong("its limits open in time")
                }
            }
            RefusalReason::RateLimited => Ok(()),
            RefusalReason::DeadlinePassed
            | RefusalReason::PredictedLate
            | RefusalReason::StoreAway
            | RefusalReason::Draining => wrong("there is no such reason"),
        }
    }

    /// With one flow, where the order of turns is that of arrival: the first of those that meet
    /// a limit is not overtaken at the one limit that bars it.
    pub(super) fn check_not_overtaking(&self, id: usize) -> Result<(), Violation> {
        let claims = self.meets_a_claim(&self.calls[id].call);
        if !self.is_one_flow() || self.shape.jitter || claims {
            return Ok(());
        }
        let rules = self.oracle.rules();
        let queue: Vec<usize> = self.by_arrival.values().copied().collect();
        for &first in queue.iter().filter(|&&first| first < id) {
            let call = &self.calls[first].call;
            let own = || rules.iter().filter(|rule| meets(rule, call));
            let shares = |other: usize| own().any(|rule| meets(rule, &self.calls[other].call));
            if queue.iter().any(|&other| other < first && shares(other))
                || !self.oracle.is_exact_for(call)
            {
                continue;
            }
            let mut closed = own().filter(|rule| !self.oracle.has_room(rule, call, self.now()));
            if let (Some(budget), None) = (closed.next(), closed.next())
                && meets(budget, &self.calls[id].call)
            {
                let now = self.now();
                return Err(format!(
                    "at {now} call {id} overtook call {first}, {call:?}, at {budget:?}"
                ));
            }
        }
        Ok(())
    }

    /// With one caller in one class: the first of those that meet a bucket is not overtaken
    /// there as long as nothing else bars it.
    pub(super) fn check_not_overtaking_at_bucket(&self, id: usize) -> Result<(), Violation> {
        let one = &self.calls[id];
        let (Some(bucket), 1, 1) = (one.call.bucket, self.shape.classes, self.shape.callers) else {
            return Ok(());
        };
        if self.shape.jitter || self.meets_a_claim(&one.call) {
            return Ok(());
        }
        let mut queue = self.by_arrival.values();
        let first = queue.find(|&&other| self.calls[other].call.bucket == Some(bucket));
        let Some(&first) = first.filter(|&&first| first < id) else {
            return Ok(());
        };
        let (other, now) = (&self.calls[first], self.now());
        let moved = |one: &Submitted| one.rerouted || one.requeued || one.reclassed;
        // It may be behind another call, at another limit.
        let is_behind = self.by_arrival.values().any(|&ahead| {
            let ahead = &self.calls[ahead].call;
            let rules = self.oracle.rules().iter();
            let mut shared = rules.filter(|rule| meets(rule, ahead) && meets(rule, &other.call));
            shared.any(|rule| !self.oracle.has_room(rule, ahead, now))
        });
        let rules = self.oracle.rules().iter();
        let mut own = rules.filter(|rule| meets(rule, &other.call));
        if !moved(one)
            && !moved(other)
            && !is_behind
            && self.oracle.is_exact_for(&other.call)
            && own.all(|rule| self.oracle.has_room(rule, &other.call, now))
            && !self.oracle.has_tokens(&other.call, now, -CLOSE)
        {
            return Err(format!(
                "at {now} call {id}, {:?}, overtook call {first}, {other:?}, at its bucket: {:?}, {:?}",
                one.call,
                self.oracle.rules(),
                self.oracle
                    .bucket(&other.call)
                    .map(|bucket| bucket.level(now))
            ));
        }
        Ok(())
    }

    /// If the limits of a waiting call have room for it, then a call whose turn it is before it
    /// must be waiting at one of them.
    pub(super) fn check_barred(&self, id: usize, now: u64) -> Result<(), Violation> {
        let call = &self.calls[id].call;
        if !self.oracle.is_exact_for(call)
            || !self.oracle.could_run(call, now)
            || self.room_is_claimed(call, now)
        {
            return Ok(());
        }
        let one_flow = self.is_one_flow();
        let barred = self
            .by_arrival
            .values()
            .filter(|&&other| other != id)
            .any(|&other| {
                let earlier = !one_flow || other < id;
                let rules = self.oracle.rules().iter();
                let mut shared =
                    rules.filter(|rule| meets(rule, call) && meets(rule, &self.calls[other].call));
                let bucket = call.bucket.is_some()
                    && call.bucket == self.calls[other].call.bucket
                    && !self.has_tokens_beside_claims(&self.calls[other].call, now);
                earlier
                    && (bucket
                        || shared.any(|rule| {
                            !self.has_room_beside_claims(rule, &self.calls[other].call, now)
                        }))
            });
        if barred {
            Ok(())
        } else {
            Err(format!(
                "at {now} call {id}, {call:?}, could run and does not: {:?}, {:?}",
                self.oracle.rules(),
                self.oracle.bucket(call).map(|bucket| bucket.level(now))
            ))
        }
    }

    pub(super) fn check_asleep(&mut self, wake: Option<u64>) -> Result<(), Violation> {
        self.replay.scheduler_mut().audit();
        if wake.is_some_and(|wake| wake <= self.now()) {
            return Err(format!(
                "at {} the scheduler would sleep until {wake:?}",
                self.now()
            ));
        }
        let waiting = self.replay.scheduler().waiting() + self.replay.scheduler().at_door();
        if waiting != self.by_arrival.len() {
            return Err(format!("{waiting} wait, {} should", self.by_arrival.len()));
        }
        let held = self.running.iter().filter(|run| !run.is_over).count();
        if self.replay.scheduler().in_flight() != held {
            return Err(format!(
                "{} are in flight, {held} should",
                self.replay.scheduler().in_flight()
            ));
        }
        for (limit, rule) in self
            .replay
            .scheduler()
            .limits_now(at(self.now()))
            .iter()
            .zip(self.oracle.rules())
        {
            let used = self.oracle.used(rule, self.now());
            if limit.used < used || (self.oracle.is_exact(rule) && limit.used != used) {
                return Err(format!(
                    "at {}: {used} of {rule:?} are in use, not {limit:?}",
                    self.now()
                ));
            }
        }
        for (id, bucket) in self.oracle.buckets() {
            let is = self.replay.scheduler().bucket_now(at(self.now()), id);
            let is = is.ok_or_else(|| format!("{id:?} is not there"))?;
            let (level, _) = bucket.level(self.now());
            let (waiting, tokens) = self.waiting_for(id);
            if (is.tokens - level).abs() > CLOSE
                || (is.waiting, is.waiting_tokens) != (waiting, tokens)
            {
                return Err(format!(
                    "at {}: {level} are there, {waiting} wait for {tokens}, not {is:?}",
                    self.now()
                ));
            }
        }
        let wake = wake.unwrap_or(u64::MAX);
        for &id in self.by_arrival.values() {
            let call = &self.calls[id].call;
            if call
                .deadline
                .is_some_and(|deadline| deadline.as_nanos() < wake)
            {
                return Err(format!(
                    "call {id} has its deadline before {wake}: {call:?}"
                ));
            }
            match self.policy.postpone() {
                // These keep their place.
                Postpone::Jitter { .. } if call.bucket.is_some() || self.keeps_its_place(call) => {}
                Postpone::Jitter { .. } => {
                    if at(wake) > at(self.now()) + self.longest_aside {
                        return Err(format!(
                            "call {id} is aside for longer than {:?}",
                            self.longest_aside
                        ));
                    }
                }
                Postpone::InTurn => {
                    self.check_barred(id, self.now())?;
                    let openings = self
                        .oracle
                        .openings(call, self.now())
                        .into_iter()
                        .chain(self.oracle.expiries());
                    for moment in openings.filter(|&moment| moment > self.now() && moment < wake) {
                        self.check_barred(id, moment)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The part of a window that is drawn and not departed: it counts however late one looks.
    pub(super) fn reserved(&self, rule: &LimitRule) -> u64 {
        match rule.limit {
            Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
            Limit::Outstanding { .. } => 0,
            Limit::Window {
                length: Duration::MAX,
                ..
            } => self
                .running
                .iter()
                .enumerate()
                .filter(|(_, running)| {
                    !running.is_over && meets(rule, &self.calls[running.call].call)
                })
                .filter(|&(run, _)| !self.oracle.has_departed(rule, run))
                .map(|(_, running)| draw(&rule.limit, &self.calls[running.call].call))
                .sum(),
            Limit::Window { .. } => self.oracle.used(rule, 1 << 40),
        }
    }
}
