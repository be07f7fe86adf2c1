//! The laws in one state.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_limits::Call;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::scheduler::{Refusal, RefusalReason};

use super::world::{Apart, BUCKET, LiveCall, World, at};
use crate::STEP;
use crate::oracle::{CLOSE, Violation, draw, meets};

/// Room that claims keep: they are the only reason for which a call waits though there is room.
struct Claims {
    limits: BTreeMap<Arc<str>, u64>,
    tokens: f64,
}

impl World<'_> {
    /// Checks every law, while the scheduler sleeps.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.scheduler.audit();
        if let Some(wake) = self.wake {
            if wake <= self.now {
                return Err(format!("the scheduler would sleep until {wake}"));
            }
            // The wait for tokens behind a claim is rounded up by a nanosecond.
            if wake % STEP > 1 {
                return Err(format!("{wake} is between two steps of the search"));
            }
        }
        let waiting = self.calls.iter().filter(|call| !call.runs()).count();
        let is_waiting = self.scheduler.waiting() + self.scheduler.at_door();
        if is_waiting != waiting {
            return Err(format!("{is_waiting} wait, {waiting} should"));
        }
        let running = self.calls.len() - waiting;
        if self.scheduler.in_flight() != running {
            let is = self.scheduler.in_flight();
            return Err(format!("{is} are in flight, {running} should"));
        }
        let mut claims = Claims {
            limits: BTreeMap::new(),
            tokens: 0.0,
        };
        for (limit, rule) in self
            .scheduler
            .limits_now(at(self.now))
            .iter()
            .zip(self.oracle.rules())
        {
            let used = self.oracle.used(rule, self.now);
            if limit.used < used || (self.oracle.is_exact(rule) && limit.used != used) {
                return Err(format!(
                    "{used} of {} are in use, not {}",
                    rule.name, limit.used
                ));
            }
            if limit.claimed > 0 {
                claims.limits.insert(limit.name.clone(), limit.claimed);
            }
        }
        self.check_bucket(&mut claims)?;
        self.check_waiting(&claims)?;
        self.oracle.check_spans()?;
        self.oracle.check_peaks()?;
        self.oracle.check_rates()
    }

    fn check_bucket(&self, claims: &mut Claims) -> Result<(), Violation> {
        let Some((_, bucket)) = self.oracle.buckets().next() else {
            return Ok(());
        };
        let is = self.scheduler.bucket_now(at(self.now), BUCKET);
        let is = is.ok_or("the bucket is not there")?;
        let (level, _) = bucket.level(self.now);
        if (is.tokens - level).abs() > CLOSE {
            return Err(format!("{level} tokens are there, not {}", is.tokens));
        }
        claims.tokens = is.claimed;
        Ok(())
    }

    fn check_waiting(&self, claims: &Claims) -> Result<(), Violation> {
        let wake = self.wake.unwrap_or(u64::MAX);
        for (index, call) in self
            .calls
            .iter()
            .enumerate()
            .filter(|(_, call)| !call.runs())
        {
            if call.deadline.is_some_and(|deadline| deadline < wake) {
                return Err(format!(
                    "call {} has its deadline before the scheduler wakes",
                    call.id
                ));
            }
            if !call.waits() {
                continue;
            }
            for one in self.choices(&self.call_of(call)) {
                self.check_barred(index, &one, claims, self.now)?;
                let openings = self.oracle.openings(&one, self.now).into_iter();
                for moment in openings.filter(|&moment| moment > self.now && moment < wake) {
                    self.check_barred(index, &one, claims, moment)?;
                }
            }
        }
        Ok(())
    }

    /// If the limits of a waiting call have room for it, then another waiting call must lack room at one of them, or a claim keep it.
    fn check_barred(
        &self,
        index: usize,
        call: &Call,
        claims: &Claims,
        now: u64,
    ) -> Result<(), Violation> {
        if !self.oracle.is_exact_for(call)
            || !self.oracle.could_run(call, now)
            || !self.has_room_beside(call, claims, now)
        {
            return Ok(());
        }
        let others = self.calls.iter().enumerate();
        let mut others = others.filter(|&(other, call)| other != index && !call.runs());
        let bars = |other: &LiveCall| {
            let other = self.call_of(other);
            let mut shared = self.oracle.rules().iter();
            let at_bucket = call.bucket.is_some()
                && call.bucket == other.bucket
                && !self.oracle.has_tokens(&other, now, claims.tokens + CLOSE);
            at_bucket
                || shared.any(|rule| {
                    meets(rule, call)
                        && meets(rule, &other)
                        && !self.has_beside(rule, &other, claims, now)
                })
        };
        match others.any(|(_, other)| bars(other)) {
            true => Ok(()),
            false => Err(format!(
                "call {} could run and does not",
                self.calls[index].id
            )),
        }
    }

    fn has_room_beside(&self, call: &Call, claims: &Claims, now: u64) -> bool {
        let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
        own.all(|rule| self.has_beside(rule, call, claims, now))
            && self.oracle.has_tokens(call, now, claims.tokens + CLOSE)
    }

    fn has_beside(&self, rule: &LimitRule, call: &Call, claims: &Claims, now: u64) -> bool {
        let claimed = claims.limits.get(&rule.name).copied().unwrap_or(0);
        let needed = self.oracle.taken(rule, call, now) + draw(&rule.limit, call);
        needed + claimed <= self.oracle.max(rule, now)
    }

    /// A call that arrived was refused.
    pub(crate) fn check_refused(
        &self,
        call: &Call,
        refusal: &Refusal,
        is_full: bool,
    ) -> Result<(), Violation> {
        let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, call));
        let is_right = match refusal.reason {
            RefusalReason::QueueFull => is_full,
            RefusalReason::NeverPossible => {
                own.any(|rule| draw(&rule.limit, call) > self.oracle.reach(rule, call, self.now))
            }
            RefusalReason::DeadlineUnreachable => {
                let deadline = call.deadline.ok_or("it has no deadline")?.as_nanos();
                let is_closed = own.any(|rule| {
                    let taken = self.oracle.taken(rule, call, deadline);
                    taken + draw(&rule.limit, call) > self.oracle.max(rule, self.now)
                });
                is_closed
                    || !self.oracle.has_tokens_by(call, self.now, deadline)
                    || !self.oracle.is_exact_for(call)
            }
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("a call was refused without a reason: {refusal:?}")),
        }
    }

    /// A call that waited is refused.
    pub(crate) fn check_expired(&self, index: usize, refusal: &Refusal) -> Result<(), Violation> {
        let call = &self.calls[index];
        let one = self.call_of(call);
        let mut own = self.oracle.rules().iter().filter(|rule| meets(rule, &one));
        let is_right = match refusal.reason {
            RefusalReason::DeadlinePassed => {
                call.deadline.is_some_and(|deadline| deadline <= self.now)
            }
            RefusalReason::NeverPossible => {
                own.any(|rule| draw(&rule.limit, &one) > self.oracle.reach(rule, &one, self.now))
            }
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "call {} was refused without a reason: {refusal:?}",
                call.id
            )),
        }
    }

    /// A call of this kind is served.
    pub(crate) fn count_service(&mut self, kind: u8) {
        for (pair, apart) in self.scope.pairs.iter().zip(&mut self.apart) {
            let Some(Apart { above, below }) = apart else {
                continue;
            };
            let moved = pair.first(kind) - pair.second(kind);
            (*above, *below) = ((*above + moved).max(0), (*below - moved).max(0));
        }
    }

    /// The scheduler sleeps: two that both wait have been served by weight alike.
    pub(crate) fn compare(&mut self) -> Result<(), Violation> {
        let waits = |moves: &[i32]| {
            let mut waiting = self.calls.iter().filter(|call| call.waits());
            waiting.any(|call| moves[call.kind as usize] > 0)
        };
        for (pair, apart) in self.scope.pairs.iter().zip(&mut self.apart) {
            if !(waits(&pair.moves[0]) && waits(&pair.moves[1])) {
                *apart = None;
                continue;
            }
            let Apart { above, below } = *apart.get_or_insert_default();
            if above + below > pair.most() {
                return Err(format!(
                    "{} were served {} apart by weight, and {} is the most",
                    pair.name,
                    above + below,
                    pair.most()
                ));
            }
        }
        Ok(())
    }
}
