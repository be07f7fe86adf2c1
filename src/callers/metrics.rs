//! Metrics of rate limits, groups and callers.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limits::scheduler::PacerNow;
use tidegate_runtime::metric::{self, SetLevel, SetTotal};

use super::shown::{CallerCounts, GroupNow};

tidegate_runtime::metrics! {
    /// Rate limits and callers.
    pub struct CallerMetrics: "tidegate_" {
        /// Tokens that may be taken at once. It is below 0 while the rate limit is in debt.
        limiter_tokens: Gauge(limiter) in "tokens",
        /// Waiting calls that will be charged to a rate limit, whatever they wait for.
        limiter_queued: Gauge(limiter) in "calls",
        /// Time in the queue of admitted calls that were charged to a rate limit. Calls that did not
        /// wait count as 0.
        limiter_wait_seconds: WaitHistogram(limiter) in "s",
        /// Admitted calls that a rate limit delayed.
        limiter_delayed_total: Counter(limiter) in "calls",
        /// Calls of a rate limit that were not admitted. `reason` is the one in the answer, or
        /// `aborted` if the client left while the call waited.
        limiter_rejected_total: Counter(limiter, reason) in "calls",
        /// Cost of the admitted calls of a group.
        group_tokens_total: FloatCounter(group) in "tokens",
        /// Calls of a group that have ended.
        group_calls_total: Counter(group) in "calls",
        /// Callers in the table, by origin. `config`, `made` (through the admin address, or changed
        /// there) or `auto` (registered by their own calls).
        callers_registered: Gauge(kind) in "callers",
        /// Evicted callers of kind `auto`, because the table was full.
        callers_evicted_total: Counter in "callers",
        /// Calls whose final cost was their duration.
        call_cost_settled_total: Counter(function) in "calls",
        /// Configured rate of a paced rate limit.
        limiter_pace_rate: Gauge(limiter) in "tokens/s",
        /// Rate that a paced rate limit admitted over the last ten seconds or so.
        limiter_pace_achieved_rate: Gauge(limiter) in "tokens/s",
        /// How far behind schedule the demand on a paced rate limit is. It grows while no calls come,
        /// since a late caller cannot be told from one that has nothing to ask.
        limiter_pace_wait_seconds: Gauge(limiter) in "s",
        /// Burst of a paced rate limit that late callers may use at once, beyond the regular pool.
        limiter_pace_burst_seconds: Gauge(limiter) in "s",
    }
}

/// The effect of a rate limit on one call that was charged to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The label of the rate limit.
    pub limiter: &'a str,
    /// How long the call waited, if it was admitted.
    pub waited: Option<Duration>,
    /// Whether the rate limit delayed it.
    pub delayed: bool,
    /// Why it was not admitted.
    pub rejected: Option<&'a str>,
}

/// A snapshot of one rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimiterNow {
    /// The label of the rate limit.
    pub limiter: Box<str>,
    /// Tokens in its bucket; below zero in debt.
    pub tokens: f64,
    /// Calls that wait and will be charged to it.
    pub queued: u64,
    /// The pace of the rate limit, if it is a paced one.
    pub pace: Option<PacerNow>,
}

impl CallerMetrics {
    /// A call that was charged to a rate limit has ended.
    pub fn charged(&self, call: &Charge<'_>) {
        let limiter = call.limiter;
        if let Some(waited) = call.waited {
            let waits = self.limiter_wait_seconds(limiter);
            waits.observe(waited.as_secs_f64());
        }
        if call.delayed {
            self.limiter_delayed_total(limiter).inc();
        }
        if let Some(reason) = call.rejected {
            let of = limiter_rejected_total { limiter, reason };
            self.limiter_rejected_total(of).inc();
        }
    }

    /// A call was charged by its duration. `function` is a name from a table or the config.
    pub fn cost_settled(&self, function: &str) {
        self.call_cost_settled_total(function).inc();
    }

    /// Shows the rate limits as they are now, and no others.
    pub fn mirror_limiters(&self, limiters: &[LimiterNow]) {
        let known: BTreeSet<&str> = limiters.iter().map(|it| &*it.limiter).collect();
        self.retain("limiter", |limiter| known.contains(limiter));
        let paced = limiters.iter().filter(|it| it.pace.is_some());
        let paced: BTreeSet<&str> = paced.map(|it| &*it.limiter).collect();
        for metric in [
            &self.limiter_pace_rate,
            &self.limiter_pace_achieved_rate,
            &self.limiter_pace_wait_seconds,
            &self.limiter_pace_burst_seconds,
        ] {
            metric::retain(metric, "limiter", |limiter| paced.contains(limiter));
        }
        for now in limiters {
            let limiter = &*now.limiter;
            self.limiter_tokens(limiter).show(now.tokens);
            self.limiter_queued(limiter).show(now.queued);
            if let Some(pace) = &now.pace {
                self.limiter_pace_rate(limiter).show(pace.pace.rate().get());
                let achieved = self.limiter_pace_achieved_rate(limiter);
                achieved.show(pace.achieved);
                self.limiter_pace_wait_seconds(limiter)
                    .show(pace.pools.wait_time());
                self.limiter_pace_burst_seconds(limiter)
                    .show(pace.pools.burst);
            }
        }
    }

    /// Shows the groups as they are now, and no others.
    pub fn mirror_groups(&self, groups: &[GroupNow]) {
        let known: BTreeSet<&str> = groups.iter().map(|it| it.group.as_str()).collect();
        self.retain("group", |group| known.contains(group));
        for now in groups {
            let group = now.group.as_str();
            self.group_calls_total(group).reach(now.calls);
            let tokens = self.group_tokens_total(group);
            tokens.reach(now.tokens.tokens());
        }
    }

    /// Shows how many callers there are.
    pub fn mirror_callers(&self, now: &CallerCounts) {
        self.callers_registered("config").show(now.from_config);
        self.callers_registered("made").show(now.made);
        self.callers_registered("auto").show(now.auto);
        self.callers_evicted_total.reach(now.evicted);
    }
}
