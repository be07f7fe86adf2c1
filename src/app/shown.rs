//! The state for the admin address, read from the running stages.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tidegate_limits::policy::{LimitRule, Scope};
use tidegate_limits::scheduler::{BucketLimit, LimitNow, PacerNow};
use tidegate_limits::{Limit, Timestamp, Verdict};
use tidegate_record::digits::Utc;

use super::AppState;
use super::callers::pace_state;
use super::metrics::Metrics;
use super::shares::ShareNow;
use crate::admin::{
    ActsSource as _, AdminSource, BucketState, ClassQueue, Frame, FunctionQueue, LimitKind,
    LimitState, NowState, Opens, OverrideState, QueueState, QuotasState, SeriesSpan, SeriesState,
    SharedState, WouldBe,
};
use crate::admit::BackendControl;
use crate::call::Destination;
use crate::callers::metrics::LimiterNow;
use crate::callers::rate_limit::RateLimit;
use crate::config;
use crate::telemetry::calls::RATE_LIMIT_PREFIX;
use tidegate_runtime::lock;
use tidegate_runtime::metric::SetLevel;
use tokio::sync::watch;

/// The most shown mistakes of a refused reload; the log has all.
pub(super) const MISTAKES_MAX: usize = 20;

impl AdminSource for AppState {
    fn limits(&self) -> Vec<LimitState> {
        let (limits, now) = self.gate.limits_now();
        let observed = self.gate.observed_now();
        let observed = observed.iter().flat_map(|it| &it.limits);
        let shares = self.coordination.shares();
        let enforced = limits.iter().map(|limit| (limit, false));
        let all = observed.map(|limit| (limit, true)).chain(enforced);
        let pause = self.pause_ends();
        all.map(|((rule, state), observes)| {
            let shown = LimitState {
                shared: shared(&shares, &rule.name),
                observes,
                ..limit_state(rule, state, now)
            };
            match pause {
                Some(ends) => paused(shown, ends.since(now)),
                None => shown,
            }
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
            would_be: self.gate.observed_now().map(|it| WouldBe {
                depth: it.depth as u64,
                peak: it.peak as u64,
            }),
        }
    }

    fn quotas(&self, keys_max: usize) -> QuotasState {
        self.quotas.state(keys_max)
    }

    fn config(&self) -> String {
        config::effective(&self.config.get())
    }

    fn metrics(&self) -> String {
        self.metrics.scrape(|metrics| self.mirror(metrics))
    }

    fn connections_max(&self) -> usize {
        self.descriptors.get().admin as usize
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        notices.extend(self.backend().notice());
        notices.extend(self.ledger_notices());
        notices.extend(self.overrides().iter().map(OverrideState::notice));
        if let Some((at, mistakes)) = &*lock(&self.refused) {
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

    fn now(&self) -> NowState {
        self.now_state()
    }

    fn series(&self, span: SeriesSpan) -> SeriesState {
        self.series_state(span)
    }

    fn frame(&self) -> Frame {
        self.first_frame()
    }

    fn frames(&self) -> watch::Receiver<Option<Bytes>> {
        self.history.frames()
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("draining".to_owned())
        }
    }
}

impl AppState {
    /// When the pause of the backend ends by itself, if there is one.
    fn pause_ends(&self) -> Option<Timestamp> {
        match self.gate.acting_now().acting {
            BackendControl::Paused(pause) => Some(pause.ends),
            BackendControl::Running | BackendControl::Ramping(_) => None,
        }
    }

    /// Shows the state of every stage.
    fn mirror(&self, metrics: &Metrics) {
        let settings = self.config.get();
        let forward = &settings.forward;
        for (backend, address) in [
            (Destination::Socket, &forward.socket),
            (Destination::Http, &forward.http),
            (Destination::Tcp, &forward.tcp),
        ] {
            if address.is_some() {
                let up = metrics.forward.backend_up(backend.label());
                up.show(self.gate.is_up(backend));
            }
        }
        for server in self.gate.servers() {
            metrics.forward.server_up(&server.name).show(server.is_up);
            let calls = metrics.forward.server_calls(&server.name);
            calls.show(server.calls);
        }
        let (limits, overrides) = (self.gate.limits_now().0, self.gate.overrides());
        let known = limits.iter().map(|(rule, _)| &*rule.name);
        let lower = overrides.iter().map(|it| &*it.limit);
        let is_lower = |name: &str| lower.clone().any(|it| it == name);
        let shown = known.chain(lower.clone()).map(|it| (it, is_lower(it)));
        let shown: Vec<_> = shown.collect();
        let carried = self.carried();
        let carried = [carried.counts().departures, carried.holding()];
        metrics.state.mirror(self.ready().is_ok(), &shown, carried);
        let outstanding_max = settings.admit.outstanding_sum();
        metrics.admit.mirror(&self.gate.now(), outstanding_max);
        let max_wait = metrics.admit.queue_max_wait_seconds();
        max_wait.show(settings.admit.max_wait);
        let observed = self.gate.observed_now();
        metrics.would_have.mirror(observed.as_ref());
        metrics.coalesce.mirror(&self.pipeline.coalescer.snapshot());
        metrics.tasks.mirror(&self.pipeline.tasks.snapshot());
        metrics.jobs.mirror(&self.jobs());
        metrics.leases.mirror(&self.coordination.shares());
        let quotas = self.quotas.state(0);
        metrics.quotas.mirror(&quotas);
        let limiters = self.limiters();
        metrics.callers.mirror_limiters(&limiters);
        metrics.callers.mirror_groups(&self.callers.groups());
        metrics.callers.mirror_callers(&self.callers.registered());
        let stays = |limit: &str| {
            let limiter = limit.strip_prefix(RATE_LIMIT_PREFIX);
            limiter.is_none_or(|name| limiters.iter().any(|it| *it.limiter == *name))
                || quotas.quotas.iter().any(|it| it.name == limit)
        };
        metrics.calls.retain_limits(stays);
        let observed = observed.as_ref();
        metrics.would_have.retain_limits(|limit| {
            let mut observed = observed.iter().flat_map(|it| &it.limits);
            stays(limit) || observed.any(|(rule, _)| *rule.name == *limit)
        });
        metrics.of_process.measure();
        if let Some(logs) = &self.logs {
            metrics.process.mirror_losses(&logs.losses());
        }
    }

    /// Every rate limit that delays calls, or would; for callers, and over all of them.
    fn limiters(&self) -> Vec<LimiterNow> {
        let (limits, _) = self.gate.limits_now();
        let over_all = limits.iter().filter_map(|(rule, state)| {
            let paced = state.paced.as_ref()?;
            let held = paced.pools.active + paced.pools.burst;
            let seconds = held.as_secs_f64() - paced.pools.debt.as_secs_f64();
            Some(LimiterNow {
                limiter: rule.name.strip_prefix(RATE_LIMIT_PREFIX)?.into(),
                tokens: seconds * rate(paced),
                queued: state.waiting,
                pace: Some(*paced),
            })
        });
        let of_callers = self.callers.limits().into_iter();
        let level = |limit: RateLimit| {
            let bucket = self.gate.bucket_now(limit.id.bucket())?;
            Some(LimiterNow {
                limiter: (&*limit.label).into(),
                tokens: bucket.tokens,
                queued: bucket.waiting,
                pace: bucket.paced,
            })
        };
        of_callers.filter_map(level).chain(over_all).collect()
    }
}

/// A limit while the backend is paused, for the rest of the hold.
fn paused(limit: LimitState, rest: Duration) -> LimitState {
    let rest = rest.as_secs_f64();
    let opens = match limit.opens {
        Opens::InSeconds(later) if later > rest => limit.opens,
        // A call that ends may free it before or after that.
        Opens::OnChange => Opens::OnChange,
        Opens::Now | Opens::InSeconds(_) => Opens::InSeconds(rest),
    };
    LimitState {
        in_force: 0,
        opens,
        ..limit
    }
}

/// How the limit of this name is shared.
pub(super) fn shared(shares: &[ShareNow], limit: &str) -> Option<SharedState> {
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

pub(super) fn limit_state(rule: &LimitRule, state: &LimitNow, now: Timestamp) -> LimitState {
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
            Scope::Server(..) => "server".to_owned(),
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
        observes: false,
    }
}

pub(super) fn rate(paced: &PacerNow) -> f64 {
    paced.pace.rate().get()
}

fn ratio(paced: &PacerNow) -> f64 {
    paced.pace.ratio().get()
}

pub(super) fn opens(verdict: Verdict, now: Timestamp) -> Opens {
    match verdict {
        Verdict::Ready => Opens::Now,
        Verdict::NotBefore(at) => {
            Opens::InSeconds(at.since(now).max(Duration::from_millis(1)).as_secs_f64())
        }
        Verdict::OnChange | Verdict::Never => Opens::OnChange,
    }
}
