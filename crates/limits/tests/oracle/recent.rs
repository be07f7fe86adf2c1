//! The part of the history that can still matter, for a search that keeps millions of histories.

use std::time::Duration;

use tidegate_limits::digest::Digest;
use tidegate_limits::policy::{LimitRule, WindowStamp};
use tidegate_limits::scheduler::Supply;
use tidegate_limits::{Limit, Timestamp};

use super::{Oracle, Run, departed, meets};

impl Run {
    /// The events that count as its departure. A search has no reloads that change them.
    fn stamps(&self, rules: &[LimitRule]) -> Vec<WindowStamp> {
        let own = rules.iter().filter(|rule| meets(rule, &self.call));
        let stamps = own.filter_map(|rule| match rule.limit {
            Limit::Window { stamp, .. } => Some(stamp),
            Limit::Outstanding { .. } | Limit::Paced { .. } => None,
        });
        let mut stamps: Vec<_> = stamps.collect();
        stamps.dedup();
        stamps
    }

    /// Whether no limit that counts a departure for at most this long counts the run from now on.
    fn is_over(&self, now: u64, remembers: u64, rules: &[LimitRule]) -> bool {
        let is_old = |stamp| departed(stamp, self).is_none_or(|at| now - at >= remembers);
        self.end.is_some() && self.stamps(rules).into_iter().all(is_old)
    }

    fn digest(&self, rules: &[LimitRule], to: &mut Digest) {
        let Self {
            call,
            // Whether too much was in flight when it began was checked then.
            began: _,
            sent,
            // As far as a limit counts it, it is among the departures.
            replied: _,
            end,
            drawn: _,
            forgotten_by,
        } = self;
        for word in [call.class.0, call.cost.get(), u32::from(call.backend.0)] {
            to.word(u64::from(word));
        }
        to.word(call.caller.0);
        let server = call.server.named();
        to.word(server.map_or(0, |server| u64::from(server.get())));
        to.word(call.function.len() as u64);
        for stamp in self.stamps(rules) {
            let at = departed(stamp, self);
            to.word(u64::from(at.is_some()));
            at.into_iter()
                .for_each(|at| to.past(Timestamp::from_nanos(at)));
        }
        to.word(u64::from(sent.is_some() && end.is_none()));
        to.word(u64::from(end.is_some()));
        let forgotten = rules.iter().map(|rule| forgotten_by.contains(&rule.name));
        to.word(forgotten.fold(1, |bits, is| bits << 1 | u64::from(is)));
    }
}

impl Oracle {
    /// Whether a run was reported to have left.
    pub(crate) fn is_sent(&self, run: usize) -> bool {
        self.runs[run].sent.is_some()
    }

    /// Forgets the runs that no limit counts any more. Returns the number that each run has from now on, if any was forgotten.
    pub(crate) fn forget(&mut self, now: u64, remembers: u64) -> Option<Vec<Option<usize>>> {
        let rules = &self.rules;
        let is_over = |run: &Run| run.is_over(now, remembers, rules);
        if !self.runs.iter().any(is_over) {
            return None;
        }
        let mut kept = 0;
        let numbers = self.runs.iter().map(|run| {
            let keeps = !is_over(run);
            kept += usize::from(keeps);
            keeps.then(|| kept - 1)
        });
        let numbers = numbers.collect();
        self.runs.retain(|run| !is_over(run));
        Some(numbers)
    }

    /// Adds the history as far as it can still matter. `running` are the runs of calls in flight, in the order of their calls; the
    /// other runs have no order.
    pub(crate) fn digest(
        &self,
        now: u64,
        remembers: u64,
        running: impl Iterator<Item = usize>,
        to: &mut Digest,
    ) {
        let rules = &self.rules[..];
        for run in running {
            self.runs[run].digest(rules, to);
        }
        let mut one = Digest::new(Duration::from_nanos(remembers), false);
        let mut others = 0_u64;
        for run in self.runs.iter().filter(|run| run.end.is_some()) {
            one.begin(Timestamp::from_nanos(now));
            run.digest(rules, &mut one);
            others = others.wrapping_add(one.number());
        }
        to.word(others);
        let inexact = rules.iter().map(|rule| self.inexact.contains(&rule.name));
        to.word(inexact.fold(1, |bits, is| bits << 1 | u64::from(is)));
        for rule in rules {
            to.word(
                self.constant
                    .get(&rule.name)
                    .map_or(u64::MAX, |(_, largest)| *largest),
            );
        }
        let mut supplied = 0;
        for supply in self.supplies.values() {
            supplied += u64::from(*supply != Supply::Configured);
        }
        to.word(supplied);
        for bucket in self.buckets.values() {
            to.word((bucket.level(now).0 + 0.0).to_bits());
        }
    }
}
