//! Reports each call: counts it, and writes its access line.

use std::error::Error;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::DelayCause;
use tidegate_runtime::{Causes, Clock, lock};

use super::access::AccessLine;
use super::journal::since_epoch_us;
use super::lately::{RecentCalls, durations};
use super::metrics::Metrics;
use super::spans::span;
use super::tally::Tally;
use crate::call::{
    Claim, Destination, Facts, Identity, Observe, Reason, Record, Rejection, TlsCause, Verdict,
};
use crate::callers::Callers;
use crate::callers::metrics::Charge;
use crate::forward::metrics::backend_tls_failures_total;
use crate::protocol::metrics::{connections_rejected_total, signs_of_life_total};
use crate::telemetry::access::{AccessLog, LineOutcome};
use crate::telemetry::calls::{Durations, RATE_LIMIT_PREFIX};
use crate::telemetry::spans::SpanQueue;

/// The time between two log events of a shortage that lasts.
const SHORT_EVERY: Duration = Duration::from_secs(10);

/// Observes every call, for metrics and the log.
#[derive(Debug)]
pub struct Teller {
    metrics: Arc<Metrics>,
    access: Arc<AccessLog>,
    spans: Arc<SpanQueue>,
    callers: Callers,
    lately: Arc<RecentCalls>,
    tally: Arc<Tally>,
    clock: Clock,
    started_us: u64,
    /// The last time a shortage was logged.
    short_at: Mutex<Option<Timestamp>>,
    /// Why connections were closed before their first request, by listener, as logged.
    rejections: Causes,
}

impl Teller {
    /// The reports.
    #[must_use]
    pub fn new(
        metrics: Arc<Metrics>,
        access: Arc<AccessLog>,
        spans: Arc<SpanQueue>,
        callers: Callers,
        clock: Clock,
    ) -> Self {
        Self {
            metrics,
            access,
            spans,
            callers,
            lately: Arc::default(),
            tally: Arc::default(),
            short_at: Mutex::default(),
            rejections: Causes::default(),
            started_us: since_epoch_us(clock.zero()),
            clock,
        }
    }

    /// The calls that it remembers.
    pub(super) fn lately(&self) -> Arc<RecentCalls> {
        Arc::clone(&self.lately)
    }

    /// The counts for the series.
    pub(super) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Counts a call that has ended.
    fn count(&self, facts: &Facts, took: &Durations) {
        let metrics = &self.metrics;
        let identity = &*facts.origin.identity;
        metrics.calls.count(
            &identity.listener,
            &facts.function,
            &facts.class,
            facts.verdict.label(),
            took,
        );
        if facts.shared {
            metrics.coalesce.coalesced_total(&facts.function).inc();
        }
        for field in identity.unusable.iter() {
            let unusable = metrics.protocol.identity_unusable_total(field.label());
            unusable.inc();
        }
        if let Some((sign, sent)) = facts.rare().signs {
            let of = signs_of_life_total {
                listener: &identity.listener,
                sign: sign.label(),
            };
            metrics.protocol.signs_of_life_total(of).inc_by(sent);
        }
        if let Some(limit) = &facts.limit {
            metrics.calls.limit_hit(limit);
        }
        if let Some(error) = facts.start_error {
            metrics.calls.start_error(f64::from(error));
        }
        // Not only the limit that held it longest: another can bind as well and never be the longest.
        for delay in facts.delays.iter() {
            match &delay.cause {
                DelayCause::Limit(limit) => metrics.calls.limit_held(limit, delay.time),
                DelayCause::Turn | DelayCause::Others => {}
            }
        }
        if let Some(claim) = &facts.claim {
            self.charged(facts, claim);
        }
        // A client that has left got no answer.
        let answer = facts.reason.filter(|_| facts.verdict != Verdict::Aborted);
        if let Some(reason) = answer {
            let limit = facts.limit.as_deref();
            metrics.calls.refused(limit, reason.label());
        }
    }

    /// Writes the lines of a call that has ended. The writer counts those that are lost.
    fn write(&self, now: Timestamp, facts: &Facts, took: Durations) {
        let line = AccessLine {
            facts,
            at: self.clock.wall(now),
            took,
            started_us: self.started_us,
        };
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            self.access.write(|out, look| line.write(out, look));
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            self.access.write_replay(|out| line.write_replay(out));
    }

    /// Counts what a call's rate limit did to it.
    fn charged(&self, facts: &Facts, claim: &Claim) {
        if facts.rare().settled.is_some() {
            self.metrics.callers.cost_settled(&facts.function);
        }
        let Some(label) = claim.rate_limit() else {
            return;
        };
        let is_own = |limit: &str| limit.strip_prefix(RATE_LIMIT_PREFIX) == Some(&**label);
        let delayed = facts.delays.iter().any(|delay| match &delay.cause {
            DelayCause::Limit(name) => is_own(name),
            DelayCause::Turn | DelayCause::Others => false,
        });
        let rejected = match facts.verdict {
            Verdict::Refused | Verdict::Expired => facts.reason.map(Reason::label),
            Verdict::Aborted if facts.admitted.is_none() => Some(facts.verdict.label()),
            _ => None,
        };
        self.metrics.callers.charged(&Charge {
            limiter: label,
            waited: facts.admitted.map(|admitted| admitted.since(claim.at)),
            delayed: facts.admitted.is_some() && delayed,
            rejected,
        });
    }
}

impl Observe for Teller {
    fn next_id(&self) -> u64 {
        self.access.next_id()
    }

    fn call_began(&self, id: u64, record: Weak<Record>) {
        self.tally.arrived();
        self.lately.begun(id, record);
    }

    fn lacked_resources(&self, backend: Destination, cause: &(dyn Error + 'static)) {
        let backend = backend.label();
        self.metrics.forward.connect_shortages_total(backend).inc();
        let now = self.clock.now();
        let mut short_at = lock(&self.short_at);
        if short_at.is_some_and(|before| now.since(before) < SHORT_EVERY) {
            return;
        }
        *short_at = Some(now);
        drop(short_at);
        let mut root = cause;
        while let Some(source) = root.source() {
            root = source;
        }
        tracing::warn!(
            backend,
            error = %root,
            "no connection to the backend: this process lacks file descriptors, ports or memory; \
             its calls wait and try again; raise the limit, or lower server.max_connections"
        );
    }

    /// Counted when the call ends.
    fn backend_finished(&self) {}

    fn keeps_spans(&self) -> bool {
        self.spans.is_on()
    }

    fn tls_failed(&self, backend: Destination, cause: TlsCause) {
        let failed = backend_tls_failures_total {
            backend: backend.label(),
            cause: cause.label(),
        };
        self.metrics
            .forward
            .backend_tls_failures_total(failed)
            .inc();
    }

    fn call_ended(&self, facts: &Facts) {
        let now = self.clock.now();
        self.callers.ended(now, facts);
        let took = durations(facts, now);
        self.lately.ended(facts, &took);
        self.tally.ended(facts, took.backend);
        self.count(facts, &took);
        if facts.rare().parent.is_some()
            && let Some(span) = span(facts, &took, now, &self.clock)
            && !self.spans.add(span)
        {
            self.metrics.process.spans_lost_total("queue_full").inc();
        }
        if self.access.is_on() || self.access.keeps_replay() {
            self.write(now, facts, took);
        }
    }

    fn connection_rejected(&self, identity: &Identity, rejection: Rejection) {
        let of = connections_rejected_total {
            listener: &identity.listener,
            reason: rejection.label(),
        };
        self.metrics.protocol.connections_rejected_total(of).inc();
        let (listener, reason) = (&*identity.listener, rejection.label());
        if let Some(cause) = rejection.in_words()
            && let Some(count) = self.rejections.count(&format!("{listener} {reason}"))
        {
            let peer = identity.peer.to_string();
            tracing::warn!(
                listener,
                peer,
                count,
                "connection closed before its first request: {cause}"
            );
        }
    }
}
