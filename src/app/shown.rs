//! What the admin address shows, read off the running stages.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_limits::{
    BucketLimit, Limit, LimitNow, LimitRule, PacingNow, Scope, Timestamp, Verdict,
};

use super::Shared;
use super::callers::pace_state;
use super::coordination::ShareNow;
use crate::admin::{
    BucketState, ClassQueue, FunctionQueue, LimitKind, LimitState, Opens, QueueState, QuotasState,
    SharedState, Source,
};
use crate::call::Destination;
use crate::callers::rate_limit::RateLimit;
use crate::config;
use crate::telemetry::Logs;
use crate::telemetry::access::Utc;
use crate::telemetry::metrics::{
    CallersLevel, GroupLevel, LeaseLevel, Levels, LimiterLevel, PaceLevel, RATE_LIMIT_PREFIX,
    TasksLevel, WindowLevel,
};

/// Mistakes of a refused reload that are shown; the log has all.
const MISTAKES_MAX: usize = 20;

impl Source for Shared {
    fn limits(&self) -> Vec<LimitState> {
        let (limits, now) = self.gate.limits_now();
        let shares = self.coordination.shares();
        limits
            .iter()
            .map(|(rule, state)| LimitState {
                shared: shared(&shares, &rule.name),
                ..limit_state(rule, state, now)
            })
            .collect()
    }

    fn buckets(&self) -> Vec<BucketState> {
        let limits = self.callers.limits().into_iter();
        let shares = self.coordination.shares();
        let state = |limit: RateLimit| {
            let bucket = self.gate.bucket_now(limit.id.bucket())?;
            let paced = bucket.paced.as_ref();
            let (burst, fill) = match bucket.rule.limit {
                BucketLimit::Bucket { burst, fill } => (Some(burst.get()), Some(fill.get())),
                BucketLimit::Paced(_) => (None, None),
            };
            Some(BucketState {
                name: bucket.rule.name.to_string(),
                rate_limit: limit.id.to_string(),
                burst,
                fill,
                rate: paced.map(rate),
                ratio: paced.map(ratio),
                pace: paced.map(pace_state),
                tokens: bucket.tokens,
                queued: bucket.waiting,
                opens: opens(bucket.opens, self.clock.now()),
                per_second: bucket.per_second,
                shared: shared(&shares, &bucket.rule.name),
            })
        };
        limits.filter_map(state).collect()
    }

    fn queue(&self) -> QueueState {
        let queue = self.gate.queue_now();
        QueueState {
            depth: queue.waiting as u64,
            capacity: u64::from(queue.capacity),
            door: queue.at_door as u64,
            oldest_seconds: queue.oldest_waits.as_secs_f64(),
            functions: queue
                .functions
                .iter()
                .map(|function| FunctionQueue {
                    function: function.function.to_string(),
                    waiting: function.waiting as u64,
                    waits_for: function.held_by.as_deref().map(ToOwned::to_owned),
                })
                .collect(),
            classes: queue
                .classes
                .iter()
                .map(|class| ClassQueue {
                    class: class.name.to_string(),
                    waiting: class.waiting as u64,
                })
                .collect(),
        }
    }

    fn quotas(&self, keys_max: usize) -> QuotasState {
        self.quotas.state(keys_max)
    }

    fn config(&self) -> String {
        config::effective(&self.config.get())
    }

    fn metrics(&self) -> String {
        let settings = self.config.get();
        let backends = [
            (Destination::Socket, settings.forward.socket.is_some()),
            (Destination::Http, settings.forward.http.is_some()),
            (Destination::Tcp, settings.forward.tcp.is_some()),
        ];
        for (backend, _) in backends.iter().filter(|(_, configured)| *configured) {
            self.metrics
                .backend_is_up(backend.label(), self.gate.is_up(*backend));
        }
        self.metrics.mirror(&self.levels());
        self.metrics.gather()
    }

    fn connections_max(&self) -> usize {
        self.descriptors.get().admin as usize
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let Some((at, mistakes)) = &*self.refused() {
            notices.push(format!(
                "a reload was refused at {}, and the old config stays in force",
                Utc(*at)
            ));
            notices.extend(mistakes.iter().take(MISTAKES_MAX).cloned());
            if mistakes.len() > MISTAKES_MAX {
                notices.push(format!("and {} more", mistakes.len() - MISTAKES_MAX));
            }
        }
        notices.extend(self.descriptors.get().warning().map(|it| it.text()));
        notices
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("draining".to_owned())
        }
    }
}

impl Shared {
    fn levels(&self) -> Levels {
        let queue = self.gate.queue_now();
        let (outstanding, outstanding_peak) = self.gate.outstanding();
        let shared = self.coalescer.snapshot();
        let tasks = self.tasks.snapshot();
        let (limits, _) = self.gate.limits_now();
        let registered = self.callers.registered();
        let (quotas, quota_store) = self.quotas.levels();
        let windows = limits
            .iter()
            .filter(|(rule, _)| matches!(rule.limit, Limit::Window { .. }))
            .map(|(rule, state)| WindowLevel {
                limit: (&*rule.name).into(),
                used: state.used,
                configured: u64::from(state.configured),
            })
            .collect();
        Levels {
            queue_depth: (queue.waiting + queue.at_door) as u64,
            queue_capacity: u64::from(queue.capacity),
            queue_oldest: queue.oldest_waits,
            claims: queue.claims,
            claims_idle: queue.claims_idle,
            outstanding: outstanding as u64,
            outstanding_limit: u64::from(self.config.get().admit.outstanding_sum().unwrap_or(0)),
            outstanding_peak: outstanding_peak as u64,
            coalesce_calls: shared.calls as u64,
            coalesce_kept_answers: shared.kept as u64,
            coalesce_held_bytes: shared.bytes as u64,
            tasks: TasksLevel {
                waiting: tasks.waiting as u64,
                running: tasks.running as u64,
                ended: tasks.ended as u64,
                bytes: tasks.bytes as u64,
                answered: tasks.counted.answered,
                not_kept: tasks.counted.not_kept,
                cancelled: tasks.counted.cancelled,
                failed: tasks.counted.failed,
            },
            windows,
            limiters: self.limiters(&limits),
            leases: self
                .coordination
                .shares()
                .into_iter()
                .map(|share| LeaseLevel {
                    limit: (&*share.limit).into(),
                    capacity: share.lease.map_or(0.0, |(capacity, _)| capacity),
                    wants: share.wants,
                    safe: share.safe,
                    expires: share.lease.map_or(Duration::ZERO, |(_, left)| left),
                })
                .collect(),
            quotas,
            quota_store,
            groups: self
                .callers
                .groups()
                .into_iter()
                .map(|group| GroupLevel {
                    group: group.group.as_str().into(),
                    calls: group.calls,
                    tokens: group.tokens.tokens(),
                })
                .collect(),
            log_events_lost: self.logs.as_ref().map_or(0, Logs::events_lost),
            callers: CallersLevel {
                from_config: registered.from_config,
                made: registered.made,
                auto: registered.auto,
                evicted: registered.evicted,
            },
        }
    }

    /// Every rate limit that holds somebody back, or would; of callers, and over all of them.
    fn limiters(&self, limits: &[(LimitRule, LimitNow)]) -> Vec<LimiterLevel> {
        let over_all = limits.iter().filter_map(|(rule, state)| {
            let paced = state.paced.as_ref()?;
            let held = paced.pools.active + paced.pools.burst;
            let seconds = held.as_secs_f64() - paced.pools.debt.as_secs_f64();
            Some(LimiterLevel {
                limiter: rule.name.strip_prefix(RATE_LIMIT_PREFIX)?.into(),
                tokens: seconds * rate(paced),
                queued: state.waiting,
                would_have_delayed: 0,
                pace: Some(pace_level(paced)),
            })
        });
        let of_callers = self.callers.limits().into_iter();
        let level = |limit: RateLimit| {
            let bucket = self.gate.bucket_now(limit.id.bucket())?;
            Some(LimiterLevel {
                limiter: (&*limit.label).into(),
                tokens: bucket.tokens,
                queued: bucket.waiting,
                would_have_delayed: bucket.would_have_delayed,
                pace: bucket.paced.as_ref().map(pace_level),
            })
        };
        of_callers.filter_map(level).chain(over_all).collect()
    }
}

/// With whom the limit of this name is shared.
fn shared(shares: &[ShareNow], limit: &str) -> Option<SharedState> {
    let share = shares.iter().find(|share| *share.limit == *limit)?;
    Some(SharedState {
        engine: "lease",
        resource: share.resource.to_string(),
        safe: share.safe,
        wants: share.wants,
        leased: share.lease.map(|(capacity, _)| capacity),
        expires_in_seconds: share.lease.map(|(_, left)| left.as_secs_f64()),
    })
}

fn pace_level(paced: &PacingNow) -> PaceLevel {
    PaceLevel {
        rate: rate(paced),
        achieved: paced.achieved,
        wait: paced.pools.wait_time(),
        burst: paced.pools.burst,
    }
}

fn limit_state(rule: &LimitRule, state: &LimitNow, now: Timestamp) -> LimitState {
    let (kind, window_seconds) = match &rule.limit {
        Limit::Outstanding { .. } => (LimitKind::Outstanding, None),
        Limit::Window { length, .. } => (LimitKind::Window, Some(length.as_secs_f64())),
        Limit::Paced { .. } => (LimitKind::Paced, None),
    };
    let paced = state.paced.as_ref();
    LimitState {
        name: rule.name.to_string(),
        scope: match &rule.scope {
            Scope::Every => "all".to_owned(),
            Scope::Function(function) => function.to_string(),
            Scope::Backend(_) => "backend".to_owned(),
            Scope::Class(_) => "class".to_owned(),
            Scope::EveryBut(_) => "all but pools beside it".to_owned(),
        },
        kind,
        window_seconds,
        configured: u64::from(state.configured),
        used: state.used,
        rate: paced.map(rate),
        ratio: paced.map(ratio),
        pace: paced.map(pace_state),
        opens: opens(state.opens, now),
        in_force: u64::from(state.max),
        shared: None,
    }
}

fn rate(paced: &PacingNow) -> f64 {
    paced.pace.rate().get()
}

fn ratio(paced: &PacingNow) -> f64 {
    paced.pace.ratio().get()
}

fn opens(verdict: Verdict, now: Timestamp) -> Opens {
    match verdict {
        Verdict::Ready => Opens::Now,
        Verdict::NotBefore(at) => {
            Opens::InSeconds(at.since(now).max(Duration::from_millis(1)).as_secs_f64())
        }
        Verdict::WhenTold | Verdict::Never => Opens::WhenTold,
    }
}
