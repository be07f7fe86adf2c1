//! Every metric, declared once.
//!
//! What happens to a call is counted as it happens; what stands still (depth, slots in use)
//! is mirrored from a snapshot just before a scrape, so nothing on a call's way keeps a
//! gauge in step. Label values come from the config and from the table of functions, never
//! from a client, so their number is bounded. docs/metrics.md says what each one means; a
//! test holds the two together.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::HashMap;
use prometheus::core::Collector;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter,
    IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// A client's connection as it is counted.
#[derive(Debug)]
pub struct OpenConnection(IntGauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What the limits that are rate limits are called by in the label `limit`.
pub const RATE_LIMIT_PREFIX: &str = "rate_limit:";

/// What becomes of a reload.
const TAKEN: &str = "taken";
const REFUSED: &str = "refused";

/// The label of what no limit decided.
pub const NO_LIMIT: &str = "none";

/// Upper bounds of the histograms' buckets: from what an idle backend answers in to the
/// longest wait that a config allows.   seconds
const BUCKETS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1800.0, 3600.0,
];

/// The metrics of one process.
pub struct Metrics {
    registry: Registry,
    names: Vec<String>,

    /// Calls that have ended, by how.
    calls_total: IntCounterVec, // listener, function, class, verdict
    /// From arrival to the end of the call.
    call_duration_seconds: HistogramVec, // function, class
    /// From arrival to a worker, for calls that got one.
    queue_wait_seconds: HistogramVec, // function, class
    /// From the last byte sent to the last byte of the reply.
    backend_duration_seconds: HistogramVec, // function, class
    /// Calls held up or refused by a limit.
    limit_hits_total: IntCounterVec, // limit
    /// Reads answered with another call's answer, or a kept one.
    coalesced_total: IntCounterVec, // function
    /// Calls answered with an error of our own.
    refusals_total: IntCounterVec, // limit, reason

    /// Calls that wait.
    queue_depth: IntGauge,
    /// Calls that may wait.
    queue_capacity: IntGauge,
    /// How long the oldest has waited.
    queue_oldest_seconds: Gauge,
    /// Claims made by calls that several limits passed over.
    claims_total: IntCounter,
    /// For how long those have kept room that others could have used.
    claims_idle_seconds_total: Counter,
    /// Calls at the backend.
    outstanding: IntGauge,
    /// Calls that may be at the backend at once.
    outstanding_limit: IntGauge,
    /// The most that were there at once since the start.
    outstanding_peak: IntGauge,
    /// Slots used in the current window.
    window_used: IntGaugeVec, // limit
    /// Slots per window.
    window_limit: IntGaugeVec, // limit
    /// Whether the backend took the last connect.
    backend_up: IntGaugeVec, // backend

    /// Calls under way that clients wait for together.
    coalesce_calls: IntGauge,
    /// Answers kept.
    coalesce_kept_answers: IntGauge,
    /// Bytes of both, with their keys.
    coalesce_held_bytes: IntGauge,
    /// Calls that were handed over and are here, by how far they have come.
    tasks: IntGaugeVec, // state
    /// Bytes of their requests and answers.
    tasks_held_bytes: IntGauge,
    /// Calls that were handed over and have ended, by what became of their answers.
    tasks_ended_total: IntCounterVec, // outcome
    /// Tokens in the bucket of a rate limit.
    limiter_tokens: GaugeVec, // limiter
    /// Calls that wait and will be charged to it.
    limiter_queued: IntGaugeVec, // limiter
    /// How long calls charged to it waited, those that did not among them.
    limiter_wait_seconds: HistogramVec, // limiter
    /// The rate that a paced limit allows.   tokens a second
    limiter_pace_rate: GaugeVec, // limiter
    /// How fast it lately went.   tokens a second
    limiter_pace_achieved_rate: GaugeVec, // limiter
    /// How far behind schedule its demand is.
    limiter_pace_wait_seconds: GaugeVec, // limiter
    /// What the late may take of it at once beyond the regular pool.
    limiter_pace_burst_seconds: GaugeVec, // limiter
    /// Calls that it held up.
    limiter_delayed_total: IntCounterVec, // limiter
    /// Calls that it would have held up, if it did not only observe.
    limiter_would_have_delayed_total: IntCounterVec, // limiter
    /// Calls charged to it that were refused, or whose clients left while they waited.
    limiter_rejected_total: IntCounterVec, // limiter, reason
    /// What calls of a group cost that were let through.
    group_tokens_total: CounterVec, // group
    /// Calls of a group that have ended.
    group_calls_total: IntCounterVec, // group
    /// Callers that are remembered, by where they come from.
    callers_registered: IntGaugeVec, // kind
    /// Callers that were forgotten for want of room.
    callers_evicted_total: IntCounter,
    /// Calls that were charged in the end by the time that they took.
    call_cost_settled_total: IntCounterVec, // function

    /// What is leased of a limit that is shared; 0 where nothing is.
    lease_capacity: GaugeVec, // limit
    /// What is wanted of the capacity servers.
    lease_wants: GaugeVec, // limit
    /// What this sidecar always owns of it.
    lease_safe: GaugeVec, // limit
    /// How much longer the lease lasts; 0 where there is none.
    lease_expires_seconds: GaugeVec, // limit

    /// Calls that a quota decided about, by how.
    quota_decisions_total: IntCounterVec, // limit, how
    /// Grants that the store confirmed.
    quota_draws_total: IntCounterVec, // limit
    /// From a draw's sending to the store's answer.
    quota_draw_seconds: HistogramVec, // limit
    /// Writes that another sidecar was before.
    quota_conflicts_total: IntCounterVec, // limit
    /// Questions to the store without an answer.
    quota_unknown_total: IntCounterVec, // limit
    /// Questions that could not be asked.
    quota_unavailable_total: IntCounterVec, // limit
    /// Surpluses that were given back.
    quota_relinquished_total: IntCounterVec, // limit
    /// Tokens that passed though nobody paid, because the store was away.
    quota_allowed_tokens_total: IntCounterVec, // limit
    /// Tokens that passed on account and were owed at the end of the window.
    quota_overshot_tokens_total: IntCounterVec, // limit
    /// Keys that are known now.
    quota_keys: IntGaugeVec, // limit
    /// Keys that were forgotten for want of room.
    quota_keys_forgotten_total: IntCounterVec, // limit
    /// Whether the store of the quotas answers.
    quota_store_up: IntGaugeVec, // engine
    /// How much of the store's time is not known.
    quota_store_time_uncertainty_seconds: GaugeVec, // engine
    /// Sidecars that share.
    quota_members: IntGaugeVec, // engine
    quota_members_unexpected: IntGaugeVec, // engine
    quota_keys_in_trouble: IntGaugeVec,    // limit

    /// Client connections open now.
    connections: IntGaugeVec, // listener
    /// Client connections that may be open at once.
    connections_limit: IntGauge,
    /// Accepts that failed.
    accept_errors_total: IntCounter,
    /// Connects that failed because this process lacks descriptors, ports or memory.
    connect_shortages_total: IntCounterVec, // backend
    /// Connections closed before their first request.
    connections_rejected_total: IntCounterVec, // listener, reason
    /// Calls of which a part of the identity could not be used.
    identity_unusable_total: IntCounterVec, // field

    /// Whether the last reload took the new config.
    config_last_reload_successful: IntGauge,
    /// When a config was last taken.
    config_last_reload_success_timestamp_seconds: Gauge,
    /// Reloads, by whether the new config was taken.
    config_reloads_total: IntCounterVec, // outcome
    /// Access lines that found their buffer full.
    access_lines_lost_total: IntCounter,
    /// Events that did.
    log_events_lost_total: IntCounter,

    /// The children of the metrics above that a finished call touches, by function: looking
    /// each of them up costs more than counting.
    ended: RwLock<HashMap<Box<str>, Vec<Ended>>>,
    /// The window limits that the last snapshot had, so that one that a reload took away
    /// disappears.
    windows: Mutex<BTreeSet<Box<str>>>,
    /// What the last snapshot had counted, since a counter takes only what is new.
    counted: Mutex<Counted>,
}

/// Counts of a snapshot that are shown as counters.
#[derive(Default)]
struct Counted {
    would_have_delayed: HashMap<Box<str>, u64>,
    groups: HashMap<Box<str>, GroupLevel>,
    evicted: u64,
    log_events_lost: u64,
    claims: u64,
    claims_idle: Duration,
    tasks: TasksLevel,
    quotas: HashMap<Box<str>, QuotaLevel>,
}

/// One of the counts of a quota.
type CountOf = fn(&QuotaLevel) -> u64;

/// What a finished call counts in.
struct Ended {
    listener: Box<str>,
    class: Box<str>,
    verdict: Box<str>,
    calls: IntCounter,
    total: Histogram,
    waited: Histogram,
    backend: Histogram,
}

/// How long the parts of a call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// From arrival to the end.
    pub total: Duration,
    /// From arrival to a worker; none if it never got one.
    pub waited: Option<Duration>,
    /// From the last byte sent to the last byte of the reply; none if it was not sent.
    pub backend: Option<Duration>,
}

/// A snapshot of what stands still: the queue and the limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levels {
    /// Calls that wait.
    pub queue_depth: u64,
    /// Calls that may wait.
    pub queue_capacity: u64,
    /// How long the oldest has waited; zero when none does.
    pub queue_oldest: Duration,
    /// Claims made so far.
    pub claims: u64,
    /// For how long those have kept room that others could have used.
    pub claims_idle: Duration,
    /// Calls at the backend.
    pub outstanding: u64,
    /// Calls that may be at the backend at once; 0 where the limit is off.
    pub outstanding_limit: u64,
    /// The most that were there at once since the start.
    pub outstanding_peak: u64,
    /// Calls under way that identical reads share, or could.
    pub coalesce_calls: u64,
    /// Answers kept.
    pub coalesce_kept_answers: u64,
    /// Bytes held for both.
    pub coalesce_held_bytes: u64,
    /// Calls that were handed over.
    pub tasks: TasksLevel,
    /// Every window limit.
    pub windows: Vec<WindowLevel>,
    /// Every rate limit that does not let everything through, of callers or over all of them.
    pub limiters: Vec<LimiterLevel>,
    /// Every limit that is shared with others.
    pub leases: Vec<LeaseLevel>,
    /// Every quota.
    pub quotas: Vec<QuotaLevel>,
    /// Where they are kept, if there are any.
    pub quota_store: Option<QuotaStoreLevel>,
    /// Every group of callers.
    pub groups: Vec<GroupLevel>,
    /// Who is remembered.
    pub callers: CallersLevel,
    /// Log events lost since the start.
    pub log_events_lost: u64,
}

/// A snapshot of one limit that is shared with others.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseLevel {
    /// Its name in metrics.
    pub limit: Box<str>,
    /// What is leased.
    pub capacity: f64,
    /// What is wanted.
    pub wants: f64,
    /// What this sidecar always owns.
    pub safe: f64,
    /// How much longer the lease lasts.
    pub expires: Duration,
}

/// A snapshot of one quota. All but `keys` are counts since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaLevel {
    /// Its name in metrics.
    pub limit: Box<str>,
    /// Calls that were let go by what was here.
    pub local: u64,
    /// Calls that were let go after they had waited for a draw.
    pub drew: u64,
    /// Calls that were let go after they had waited for longer.
    pub waited: u64,
    /// Calls that were not.
    pub refused: u64,
    /// Grants.
    pub draws: u64,
    /// Writes that were not done, because another was first.
    pub conflicts: u64,
    /// Questions without an answer.
    pub unknown: u64,
    /// Questions that could not be asked.
    pub unavailable: u64,
    /// Surpluses given back.
    pub relinquished: u64,
    /// Tokens that nobody paid.
    pub allowed: u64,
    /// Tokens owed at a window's end.
    pub overshot: u64,
    /// Keys that are known now.
    pub keys: u64,
    /// Keys that were forgotten.
    pub forgotten: u64,
    /// Keys of which something is wrong in the store.
    pub troubled: u64,
}

/// A snapshot of the store of the quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaStoreLevel {
    /// What it is.
    pub engine: &'static str,
    /// Whether it answers; none until that is known.
    pub up: Option<bool>,
    /// How much of its time is not known; infinite where nothing is.   seconds
    pub time_uncertainty: f64,
    /// Sidecars that share; 0 until it has told.
    pub members: u64,
    /// Those beyond the expected number.
    pub unexpected_members: u64,
}

/// A snapshot of one rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimiterLevel {
    /// Its label.
    pub limiter: Box<str>,
    /// Tokens in its bucket; below zero in debt.
    pub tokens: f64,
    /// Calls that wait and will be charged to it.
    pub queued: u64,
    /// Calls so far that it would have held up, if it did not only observe.
    pub would_have_delayed: u64,
    /// Its pace, if it is a paced one.
    pub pace: Option<PaceLevel>,
}

/// A snapshot of one pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceLevel {
    /// What it allows.   tokens a second
    pub rate: f64,
    /// How fast it lately went.   tokens a second
    pub achieved: f64,
    /// How far behind schedule the demand is.
    pub wait: Duration,
    /// What the late may take at once beyond the regular pool.
    pub burst: Duration,
}

/// What one group of callers has used so far.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLevel {
    /// Its name.
    pub group: Box<str>,
    /// Calls that have ended.
    pub calls: u64,
    /// What those of them cost that were let through.   tokens
    pub tokens: f64,
}

/// How many callers are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallersLevel {
    /// From the config.
    pub from_config: u64,
    /// Made by people.
    pub made: u64,
    /// Registered by their own calls.
    pub auto: u64,
    /// Forgotten since the start.
    pub evicted: u64,
}

/// Calls that were handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TasksLevel {
    /// Waiting for their turn.
    pub waiting: u64,
    /// Past the gate.
    pub running: u64,
    /// Ended and kept.
    pub ended: u64,
    /// Bytes of requests and answers.
    pub bytes: u64,
    /// Ended since the start, with an answer that was kept.
    pub answered: u64,
    /// With one for which there was no room.
    pub not_kept: u64,
    /// Because their clients cancelled them.
    pub cancelled: u64,
    /// By a mistake of ours.
    pub failed: u64,
}

/// What a rate limit did to one call that was charged to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged<'a> {
    /// Its label.
    pub limiter: &'a str,
    /// How long the call waited, if it was let through.
    pub waited: Option<Duration>,
    /// Whether the rate limit held it up.
    pub delayed: bool,
    /// Why it was not let through.
    pub rejected: Option<&'a str>,
}

/// A snapshot of one window limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowLevel {
    /// Its name in the config.
    pub limit: Box<str>,
    /// Slots that are reserved or not back yet.
    pub used: u64,
    /// Slots per window.
    pub configured: u64,
}

impl Metrics {
    /// Registers every metric. `revision` is the commit that was built.
    ///
    /// # Panics
    ///
    /// Only if a declaration below contradicts itself.
    #[must_use]
    pub fn new(version: &str, revision: &str) -> Self {
        let mut r = Registering::default();
        let metrics = Self {
            calls_total: r.add(IntCounterVec::new(
                opts("calls_total", "Calls that have ended, by how."),
                &["listener", "function", "class", "verdict"],
            )),
            call_duration_seconds: r.add(histogram(
                "call_duration_seconds",
                "Time from a call's arrival to its end.",
            )),
            queue_wait_seconds: r.add(histogram(
                "queue_wait_seconds",
                "Time from a call's arrival to a worker, for calls that got one.",
            )),
            backend_duration_seconds: r.add(histogram(
                "backend_duration_seconds",
                "Time from a call's last byte sent until the backend was done with it.",
            )),
            limit_hits_total: r.add(IntCounterVec::new(
                opts(
                    "limit_hits_total",
                    "Calls that were held up or refused, by the limit that held them longest.",
                ),
                &["limit"],
            )),
            coalesced_total: r.add(IntCounterVec::new(
                opts(
                    "coalesced_total",
                    "Reads answered with the answer of an identical one, which drew nothing.",
                ),
                &["function"],
            )),
            refusals_total: r.add(IntCounterVec::new(
                opts(
                    "refusals_total",
                    "Calls answered with an error of the proxy's own, by limit and reason.",
                ),
                &["limit", "reason"],
            )),
            queue_depth: r.add(gauge("queue_depth", "Calls that wait.")),
            queue_capacity: r.add(gauge("queue_capacity", "Calls that may wait.")),
            queue_oldest_seconds: r.add(Gauge::with_opts(opts(
                "queue_oldest_seconds",
                "Time since the arrival of the oldest call that waits; 0 when none does.",
            ))),
            claims_total: r.add(IntCounter::with_opts(opts(
                "claims_total",
                "Claims of room by calls that several limits had passed over.",
            ))),
            claims_idle_seconds_total: r.add(Counter::with_opts(opts(
                "claims_idle_seconds_total",
                "Time for which such claims kept room that others could have used, added up.",
            ))),
            outstanding: r.add(gauge("outstanding", "Calls at the backend.")),
            outstanding_limit: r.add(gauge(
                "outstanding_limit",
                "Calls that may be at the backend at once; 0 where the limit is off.",
            )),
            outstanding_peak: r.add(gauge(
                "outstanding_peak",
                "Most calls at the backend at once since the start.",
            )),
            window_used: r.add(IntGaugeVec::new(
                opts("window_used", "Slots in use, by window limit."),
                &["limit"],
            )),
            window_limit: r.add(IntGaugeVec::new(
                opts("window_limit", "Slots per window, by window limit."),
                &["limit"],
            )),
            backend_up: r.add(IntGaugeVec::new(
                opts(
                    "backend_up",
                    "1 if the last connect to the backend went through, else 0.",
                ),
                &["backend"],
            )),
            coalesce_calls: r.add(gauge(
                "coalesce_calls",
                "Calls under way that identical reads share, or could.",
            )),
            coalesce_kept_answers: r.add(gauge(
                "coalesce_kept_answers",
                "Answers kept for identical reads to come.",
            )),
            coalesce_held_bytes: r.add(gauge(
                "coalesce_held_bytes",
                "Bytes held to share calls and to keep answers.",
            )),
            tasks: r.add(IntGaugeVec::new(
                opts(
                    "tasks",
                    "Calls that were handed over and are here, by how far they have come.",
                ),
                &["state"],
            )),
            tasks_held_bytes: r.add(gauge(
                "tasks_held_bytes",
                "Bytes of requests and answers of calls that were handed over.",
            )),
            tasks_ended_total: r.add(IntCounterVec::new(
                opts(
                    "tasks_ended_total",
                    "Calls that were handed over and have ended, by what became of their answers.",
                ),
                &["outcome"],
            )),
            limiter_tokens: r.add(GaugeVec::new(
                opts(
                    "limiter_tokens",
                    "Tokens in the bucket, by rate limit; below 0 in debt.",
                ),
                &["limiter"],
            )),
            limiter_queued: r.add(IntGaugeVec::new(
                opts(
                    "limiter_queued",
                    "Calls that wait, by the rate limit that will be charged.",
                ),
                &["limiter"],
            )),
            limiter_wait_seconds: r.add(HistogramVec::new(
                HistogramOpts::from(opts(
                    "limiter_wait_seconds",
                    "Time in the queue of calls that were let through, by the rate limit charged.",
                ))
                .buckets(BUCKETS.to_vec()),
                &["limiter"],
            )),
            limiter_pace_rate: r.add(GaugeVec::new(
                opts(
                    "limiter_pace_rate",
                    "Tokens a second that a paced rate limit allows.",
                ),
                &["limiter"],
            )),
            limiter_pace_achieved_rate: r.add(GaugeVec::new(
                opts(
                    "limiter_pace_achieved_rate",
                    "Tokens a second that a paced rate limit let through over some ten seconds.",
                ),
                &["limiter"],
            )),
            limiter_pace_wait_seconds: r.add(GaugeVec::new(
                opts(
                    "limiter_pace_wait_seconds",
                    "How far behind schedule the demand on a paced rate limit is.",
                ),
                &["limiter"],
            )),
            limiter_pace_burst_seconds: r.add(GaugeVec::new(
                opts(
                    "limiter_pace_burst_seconds",
                    "Burst in use: what the late may take at once beyond the regular pool.",
                ),
                &["limiter"],
            )),
            limiter_delayed_total: r.add(IntCounterVec::new(
                opts("limiter_delayed_total", "Calls held up by a rate limit."),
                &["limiter"],
            )),
            limiter_would_have_delayed_total: r.add(IntCounterVec::new(
                opts(
                    "limiter_would_have_delayed_total",
                    "Calls that a rate limit which only observes would have held up.",
                ),
                &["limiter"],
            )),
            limiter_rejected_total: r.add(IntCounterVec::new(
                opts(
                    "limiter_rejected_total",
                    "Calls of a rate limit that were refused or left while they waited, by why.",
                ),
                &["limiter", "reason"],
            )),
            group_tokens_total: r.add(CounterVec::new(
                opts(
                    "group_tokens_total",
                    "Tokens that calls cost which were let through, by group of callers.",
                ),
                &["group"],
            )),
            group_calls_total: r.add(IntCounterVec::new(
                opts(
                    "group_calls_total",
                    "Calls that have ended, by group of callers.",
                ),
                &["group"],
            )),
            callers_registered: r.add(IntGaugeVec::new(
                opts(
                    "callers_registered",
                    "Callers that are remembered, by where from.",
                ),
                &["kind"],
            )),
            callers_evicted_total: r.add(IntCounter::with_opts(opts(
                "callers_evicted_total",
                "Callers that had registered themselves and were forgotten for want of room.",
            ))),
            call_cost_settled_total: r.add(IntCounterVec::new(
                opts(
                    "call_cost_settled_total",
                    "Calls that were charged in the end by the time that they took.",
                ),
                &["function"],
            )),
            lease_capacity: r.add(GaugeVec::new(
                opts(
                    "lease_capacity",
                    "What is leased of a limit that is shared; 0 where nothing is.",
                ),
                &["limit"],
            )),
            lease_wants: r.add(GaugeVec::new(
                opts(
                    "lease_wants",
                    "What is wanted of the capacity servers, by limit.",
                ),
                &["limit"],
            )),
            lease_safe: r.add(GaugeVec::new(
                opts(
                    "lease_safe",
                    "What this sidecar always owns of a limit that is shared.",
                ),
                &["limit"],
            )),
            lease_expires_seconds: r.add(GaugeVec::new(
                opts(
                    "lease_expires_seconds",
                    "How much longer the lease lasts, by limit; 0 where there is none.",
                ),
                &["limit"],
            )),
            quota_decisions_total: r.add(IntCounterVec::new(
                opts(
                    "quota_decisions_total",
                    "Calls that a quota decided about, by how.",
                ),
                &["limit", "how"],
            )),
            quota_draws_total: r.add(IntCounterVec::new(
                opts(
                    "quota_draws_total",
                    "Grants that the store of the quotas confirmed.",
                ),
                &["limit"],
            )),
            quota_draw_seconds: r.add(HistogramVec::new(
                HistogramOpts::from(opts(
                    "quota_draw_seconds",
                    "Time from a draw's sending to the store's answer.",
                ))
                .buckets(BUCKETS.to_vec()),
                &["limit"],
            )),
            quota_conflicts_total: r.add(IntCounterVec::new(
                opts(
                    "quota_conflicts_total",
                    "Writes that were not done, because another sidecar was first.",
                ),
                &["limit"],
            )),
            quota_unknown_total: r.add(IntCounterVec::new(
                opts(
                    "quota_unknown_total",
                    "Questions to the store of the quotas that had no answer.",
                ),
                &["limit"],
            )),
            quota_unavailable_total: r.add(IntCounterVec::new(
                opts(
                    "quota_unavailable_total",
                    "Questions that could not be asked, because the store was away.",
                ),
                &["limit"],
            )),
            quota_relinquished_total: r.add(IntCounterVec::new(
                opts(
                    "quota_relinquished_total",
                    "Surpluses that were given back.",
                ),
                &["limit"],
            )),
            quota_allowed_tokens_total: r.add(IntCounterVec::new(
                opts(
                    "quota_allowed_tokens_total",
                    "Tokens that passed undrawn, because the store was away.",
                ),
                &["limit"],
            )),
            quota_overshot_tokens_total: r.add(IntCounterVec::new(
                opts(
                    "quota_overshot_tokens_total",
                    "Tokens that passed on account and were not drawn by the window's end.",
                ),
                &["limit"],
            )),
            quota_keys: r.add(IntGaugeVec::new(
                opts("quota_keys", "Keys that are known."),
                &["limit"],
            )),
            quota_keys_forgotten_total: r.add(IntCounterVec::new(
                opts(
                    "quota_keys_forgotten_total",
                    "Keys that were forgotten for want of room.",
                ),
                &["limit"],
            )),
            quota_store_up: r.add(IntGaugeVec::new(
                opts(
                    "quota_store_up",
                    "1 if the store of the quotas answers, else 0.",
                ),
                &["engine"],
            )),
            quota_store_time_uncertainty_seconds: r.add(GaugeVec::new(
                opts(
                    "quota_store_time_uncertainty_seconds",
                    "How much of the store's time is not known.",
                ),
                &["engine"],
            )),
            quota_members: r.add(IntGaugeVec::new(
                opts("quota_members", "Sidecars that share the quotas."),
                &["engine"],
            )),
            quota_members_unexpected: r.add(IntGaugeVec::new(
                opts(
                    "quota_members_unexpected",
                    "Sidecars beyond those expected, for longer than one that died is counted.",
                ),
                &["engine"],
            )),
            quota_keys_in_trouble: r.add(IntGaugeVec::new(
                opts(
                    "quota_keys_in_trouble",
                    "Keys of which something is wrong in the store.",
                ),
                &["limit"],
            )),
            connections: r.add(IntGaugeVec::new(
                opts("connections", "Client connections that are open."),
                &["listener"],
            )),
            connections_limit: r.add(gauge(
                "connections_limit",
                "Client connections that may be open at once, over all listeners.",
            )),
            accept_errors_total: r.add(IntCounter::with_opts(opts(
                "accept_errors_total",
                "Accepts that failed, for lack of file descriptors for example.",
            ))),
            connect_shortages_total: {
                let shortages = r.add(IntCounterVec::new(
                    opts(
                        "connect_shortages_total",
                        "Connects to a backend that failed because this process lacked file \
                         descriptors, ports or memory.",
                    ),
                    &["backend"],
                ));
                for backend in ["socket", "http", "tcp"] {
                    shortages.with_label_values(&[backend]);
                }
                shortages
            },
            connections_rejected_total: r.add(IntCounterVec::new(
                opts(
                    "connections_rejected_total",
                    "Connections closed before their first request, by why.",
                ),
                &["listener", "reason"],
            )),
            identity_unusable_total: r.add(IntCounterVec::new(
                opts(
                    "identity_unusable_total",
                    "Calls of which a part of the identity was malformed or too long.",
                ),
                &["field"],
            )),
            config_last_reload_successful: r.add(gauge(
                "config_last_reload_successful",
                "1 if the last attempt to read the config took it, else 0.",
            )),
            config_last_reload_success_timestamp_seconds: r.add(Gauge::with_opts(opts(
                "config_last_reload_success_timestamp_seconds",
                "Unix time at which a config was last taken.",
            ))),
            config_reloads_total: {
                let reloads = r.add(IntCounterVec::new(
                    opts(
                        "config_reloads_total",
                        "Reloads, by whether the new config was taken or refused.",
                    ),
                    &["outcome"],
                ));
                for outcome in [TAKEN, REFUSED] {
                    reloads.with_label_values(&[outcome]);
                }
                reloads
            },
            access_lines_lost_total: r.add(IntCounter::with_opts(opts(
                "access_lines_lost_total",
                "Access lines lost because whoever reads stderr did not keep up.",
            ))),
            log_events_lost_total: r.add(IntCounter::with_opts(opts(
                "log_events_lost_total",
                "Other log lines lost because stderr is read too slowly.",
            ))),
            ended: RwLock::default(),
            windows: Mutex::default(),
            counted: Mutex::default(),
            registry: {
                let build = r.add(IntGaugeVec::new(
                    opts("build_info", "Always 1; the labels say what is running."),
                    &["version", "revision"],
                ));
                build.with_label_values(&[version, revision]).set(1);
                // Has names of its own, which every process shares.
                #[cfg(target_os = "linux")]
                r.add(Ok(Process(std::sync::Arc::new(
                    prometheus::process_collector::ProcessCollector::for_self(),
                ))));
                r.registry
            },
            names: r.names,
        };
        metrics.config_last_reload_successful.set(1);
        metrics
    }

    /// A call has ended. `function` and `class` are names from a table or the config.
    pub fn call_ended(
        &self,
        listener: &str,
        function: &str,
        class: &str,
        verdict: &str,
        took: &Durations,
    ) {
        let is_it = |ended: &&Ended| {
            *ended.verdict == *verdict && *ended.listener == *listener && *ended.class == *class
        };
        {
            let known = self.ended.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(ended) = known.get(function).and_then(|all| all.iter().find(is_it)) {
                ended.count(took);
                return;
            }
        }
        let of_function = [function, class];
        let ended = Ended {
            listener: listener.into(),
            class: class.into(),
            verdict: verdict.into(),
            calls: self
                .calls_total
                .with_label_values(&[listener, function, class, verdict]),
            total: self.call_duration_seconds.with_label_values(&of_function),
            waited: self.queue_wait_seconds.with_label_values(&of_function),
            backend: self
                .backend_duration_seconds
                .with_label_values(&of_function),
        };
        ended.count(took);
        let mut known = self.ended.write().unwrap_or_else(PoisonError::into_inner);
        let all = known.entry(function.into()).or_default();
        // Another thread may have been here between the two locks.
        if !all.iter().any(|other| is_it(&other)) {
            all.push(ended);
        }
    }

    /// A call was held up or refused by this limit.
    pub fn limit_hit(&self, limit: &str) {
        self.limit_hits_total.with_label_values(&[limit]).inc();
    }

    /// A read was answered with another call's answer.
    pub fn coalesced(&self, function: &str) {
        self.coalesced_total.with_label_values(&[function]).inc();
    }

    /// A call was answered with an error of our own; without a limit, it is counted under
    /// [`NO_LIMIT`].
    pub fn refused(&self, limit: Option<&str>, reason: &str) {
        self.refusals_total
            .with_label_values(&[limit.unwrap_or(NO_LIMIT), reason])
            .inc();
    }

    /// A call that was charged to a rate limit has ended.
    pub fn charged(&self, call: &Charged<'_>) {
        let limiter = &[call.limiter];
        if let Some(waited) = call.waited {
            self.limiter_wait_seconds
                .with_label_values(limiter)
                .observe(waited.as_secs_f64());
        }
        if call.delayed {
            self.limiter_delayed_total.with_label_values(limiter).inc();
        }
        if let Some(reason) = call.rejected {
            self.limiter_rejected_total
                .with_label_values(&[call.limiter, reason])
                .inc();
        }
    }

    /// A call was charged by the time that it took. `function` is a name from a table or the
    /// config.
    pub fn cost_settled(&self, function: &str) {
        self.call_cost_settled_total
            .with_label_values(&[function])
            .inc();
    }

    /// Whether the backend took the last connect.
    pub fn backend_is_up(&self, backend: &str, up: bool) {
        self.backend_up
            .with_label_values(&[backend])
            .set(i64::from(up));
    }

    /// A client has connected; counted until what this returns is dropped.
    #[must_use]
    pub fn connection_opened(&self, listener: &str) -> OpenConnection {
        let open = self.connections.with_label_values(&[listener]);
        open.inc();
        OpenConnection(open)
    }

    /// A connection was closed before its first request.
    pub fn connection_rejected(&self, listener: &str, reason: &str) {
        self.connections_rejected_total
            .with_label_values(&[listener, reason])
            .inc();
    }

    /// A part of a call's identity was malformed or too long, and counts as absent.
    pub fn identity_unusable(&self, field: &str) {
        self.identity_unusable_total
            .with_label_values(&[field])
            .inc();
    }

    /// How many connections may be open at once.
    pub fn connections_may_be(&self, limit: u32) {
        self.connections_limit.set(i64::from(limit));
    }

    /// An accept has failed.
    pub fn accept_failed(&self) {
        self.accept_errors_total.inc();
    }

    /// A connect to a backend failed because this process lacks descriptors, ports or memory.
    pub fn connect_is_short(&self, backend: &str) {
        self.connect_shortages_total
            .with_label_values(&[backend])
            .inc();
    }

    /// A config was taken, at this time of the wall clock.
    pub fn config_taken(&self, at: SystemTime) {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.config_last_reload_successful.set(1);
        self.config_last_reload_success_timestamp_seconds
            .set(since_epoch.as_secs_f64());
    }

    /// A reload took a config.
    pub fn config_reloaded(&self, at: SystemTime) {
        self.config_reloads_total.with_label_values(&[TAKEN]).inc();
        self.config_taken(at);
    }

    /// A reload refused a config; the old one stays.
    pub fn config_refused(&self) {
        self.config_reloads_total
            .with_label_values(&[REFUSED])
            .inc();
        self.config_last_reload_successful.set(0);
    }

    /// An access line found its buffer full.
    pub fn access_line_lost(&self) {
        self.access_lines_lost_total.inc();
    }

    /// Sets what stands still to what a snapshot says.
    pub fn mirror(&self, levels: &Levels) {
        self.queue_depth.set(signed(levels.queue_depth));
        self.queue_capacity.set(signed(levels.queue_capacity));
        self.queue_oldest_seconds
            .set(levels.queue_oldest.as_secs_f64());
        self.outstanding.set(signed(levels.outstanding));
        self.outstanding_limit.set(signed(levels.outstanding_limit));
        self.outstanding_peak.set(signed(levels.outstanding_peak));
        self.coalesce_calls.set(signed(levels.coalesce_calls));
        self.coalesce_kept_answers
            .set(signed(levels.coalesce_kept_answers));
        self.coalesce_held_bytes
            .set(signed(levels.coalesce_held_bytes));
        let mut known = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|limit| {
            let stays = levels.windows.iter().any(|window| window.limit == *limit);
            if !stays {
                // Fails only if it is gone already, which is what is wanted.
                let _ = self.window_used.remove_label_values(&[limit]);
                let _ = self.window_limit.remove_label_values(&[limit]);
            }
            stays
        });
        for window in &levels.windows {
            let limit = [&*window.limit];
            self.window_used
                .with_label_values(&limit)
                .set(signed(window.used));
            self.window_limit
                .with_label_values(&limit)
                .set(signed(window.configured));
            known.insert(window.limit.clone());
        }
        drop(known);
        let lost = levels.log_events_lost;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut counted.log_events_lost, lost);
        let claims_before = std::mem::replace(&mut counted.claims, levels.claims);
        let idle_before = std::mem::replace(&mut counted.claims_idle, levels.claims_idle);
        drop(counted);
        self.claims_total
            .inc_by(since(levels.claims, claims_before));
        let idle = levels.claims_idle.saturating_sub(idle_before);
        self.claims_idle_seconds_total.inc_by(idle.as_secs_f64());
        self.log_events_lost_total.inc_by(since(lost, before));
        self.mirror_leases(&levels.leases);
        self.mirror_callers(levels);
        self.mirror_quotas(&levels.quotas, levels.quota_store.as_ref());
    }

    /// A store answered a draw of this quota.
    pub fn quota_drawn(&self, limit: &str, took: Duration) {
        self.quota_draw_seconds
            .with_label_values(&[limit])
            .observe(took.as_secs_f64());
    }

    fn mirror_quotas(&self, quotas: &[QuotaLevel], store: Option<&QuotaStoreLevel>) {
        let is_quota = |label: &str| quotas.iter().any(|level| *level.limit == *label);
        let is_engine = |label: &str| store.is_some_and(|store| store.engine == label);
        retain(&self.quota_decisions_total, "limit", is_quota);
        retain(&self.quota_draw_seconds, "limit", is_quota);
        retain(&self.quota_keys, "limit", is_quota);
        for (counter, _) in self.of_quotas() {
            retain(counter, "limit", is_quota);
        }
        retain(&self.quota_keys_in_trouble, "limit", is_quota);
        // No series until it is known.
        let is_known = |label: &str| is_engine(label) && store.is_some_and(|it| it.up.is_some());
        retain(&self.quota_store_up, "engine", is_known);
        retain(&self.quota_members, "engine", is_engine);
        retain(&self.quota_members_unexpected, "engine", is_engine);
        let uncertainty = &self.quota_store_time_uncertainty_seconds;
        retain(uncertainty, "engine", is_engine);
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.quotas.retain(|label, _| is_quota(label));
        for level in quotas {
            let limit = &*level.limit;
            let before = counted.quotas.insert(level.limit.clone(), level.clone());
            let before = before.unwrap_or_default();
            for (how, now, before) in [
                ("local", level.local, before.local),
                ("drew", level.drew, before.drew),
                ("waited", level.waited, before.waited),
                ("refused", level.refused, before.refused),
            ] {
                self.quota_decisions_total
                    .with_label_values(&[limit, how])
                    .inc_by(since(now, before));
            }
            for (counter, count) in self.of_quotas() {
                counter
                    .with_label_values(&[limit])
                    .inc_by(since(count(level), count(&before)));
            }
            self.quota_keys
                .with_label_values(&[limit])
                .set(signed(level.keys));
            self.quota_keys_in_trouble
                .with_label_values(&[limit])
                .set(signed(level.troubled));
        }
        if let Some(store) = store {
            let engine = &[store.engine];
            if let Some(up) = store.up {
                self.quota_store_up
                    .with_label_values(engine)
                    .set(i64::from(up));
            }
            uncertainty
                .with_label_values(engine)
                .set(store.time_uncertainty);
            self.quota_members
                .with_label_values(engine)
                .set(signed(store.members));
            self.quota_members_unexpected
                .with_label_values(engine)
                .set(signed(store.unexpected_members));
        }
    }

    /// What is counted of each quota, and which of its counts that is.
    fn of_quotas(&self) -> [(&IntCounterVec, CountOf); 8] {
        [
            (&self.quota_draws_total, |level| level.draws),
            (&self.quota_conflicts_total, |level| level.conflicts),
            (&self.quota_unknown_total, |level| level.unknown),
            (&self.quota_unavailable_total, |level| level.unavailable),
            (&self.quota_relinquished_total, |level| level.relinquished),
            (&self.quota_allowed_tokens_total, |level| level.allowed),
            (&self.quota_overshot_tokens_total, |level| level.overshot),
            (&self.quota_keys_forgotten_total, |level| level.forgotten),
        ]
    }

    fn mirror_leases(&self, leases: &[LeaseLevel]) {
        let figures = |level: &LeaseLevel| {
            [
                level.capacity,
                level.wants,
                level.safe,
                level.expires.as_secs_f64(),
            ]
        };
        let of_leases = [
            &self.lease_capacity,
            &self.lease_wants,
            &self.lease_safe,
            &self.lease_expires_seconds,
        ];
        for (at, metric) in of_leases.into_iter().enumerate() {
            retain(metric, "limit", |label| {
                leases.iter().any(|level| *level.limit == *label)
            });
            for level in leases {
                metric
                    .with_label_values(&[&*level.limit])
                    .set(figures(level)[at]);
            }
        }
    }

    /// Shows metrics that somebody else counts.
    ///
    /// # Errors
    ///
    /// If one of them has the name of another.
    pub fn show<E>(&self, register: impl FnOnce(&Registry) -> Result<(), E>) -> Result<(), E> {
        register(&self.registry)
    }

    /// Sets what is shown of rate limits, groups and callers.
    fn mirror_callers(&self, levels: &Levels) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let limiters: BTreeSet<&str> = levels.limiters.iter().map(|it| &*it.limiter).collect();
        let groups: BTreeSet<&str> = levels.groups.iter().map(|it| &*it.group).collect();
        let is_limiter = |label: &str| limiters.contains(label);
        let quotas: BTreeSet<&str> = levels.quotas.iter().map(|it| &*it.limit).collect();
        let is_limit = |limit: &str| {
            let limiter = limit.strip_prefix(RATE_LIMIT_PREFIX);
            limiter.is_none_or(is_limiter) || quotas.contains(limit)
        };
        let is_group = |label: &str| groups.contains(label);
        let paced = levels.limiters.iter().filter(|it| it.pace.is_some());
        let paced: BTreeSet<&str> = paced.map(|it| &*it.limiter).collect();
        for of_paces in self.of_paces() {
            retain(of_paces, "limiter", |label| paced.contains(label));
        }
        retain(&self.limiter_tokens, "limiter", is_limiter);
        retain(&self.limiter_queued, "limiter", is_limiter);
        retain(&self.limiter_wait_seconds, "limiter", is_limiter);
        retain(&self.limiter_delayed_total, "limiter", is_limiter);
        retain(
            &self.limiter_would_have_delayed_total,
            "limiter",
            is_limiter,
        );
        retain(&self.limiter_rejected_total, "limiter", is_limiter);
        retain(&self.limit_hits_total, "limit", is_limit);
        retain(&self.refusals_total, "limit", is_limit);
        retain(&self.group_tokens_total, "group", is_group);
        retain(&self.group_calls_total, "group", is_group);
        counted
            .would_have_delayed
            .retain(|label, _| is_limiter(label));
        counted.groups.retain(|label, _| is_group(label));

        for level in &levels.limiters {
            let limiter = &[&*level.limiter];
            self.limiter_tokens
                .with_label_values(limiter)
                .set(level.tokens);
            self.limiter_queued
                .with_label_values(limiter)
                .set(signed(level.queued));
            if let Some(pace) = &level.pace {
                let figures = [
                    pace.rate,
                    pace.achieved,
                    pace.wait.as_secs_f64(),
                    pace.burst.as_secs_f64(),
                ];
                for (of_paces, figure) in self.of_paces().into_iter().zip(figures) {
                    of_paces.with_label_values(limiter).set(figure);
                }
            }
            let before = counted
                .would_have_delayed
                .insert(level.limiter.clone(), level.would_have_delayed);
            self.limiter_would_have_delayed_total
                .with_label_values(limiter)
                .inc_by(since(level.would_have_delayed, before.unwrap_or(0)));
        }
        for level in &levels.groups {
            let group = &[&*level.group];
            let before = counted.groups.insert(level.group.clone(), level.clone());
            let (calls, tokens) = before.map_or((0, 0.0), |before| (before.calls, before.tokens));
            self.group_calls_total
                .with_label_values(group)
                .inc_by(since(level.calls, calls));
            self.group_tokens_total
                .with_label_values(group)
                .inc_by((level.tokens - tokens).max(0.0));
        }
        let CallersLevel {
            from_config,
            made,
            auto,
            evicted,
        } = levels.callers;
        for (kind, callers) in [("config", from_config), ("made", made), ("auto", auto)] {
            self.callers_registered
                .with_label_values(&[kind])
                .set(signed(callers));
        }
        self.callers_evicted_total
            .inc_by(since(evicted, counted.evicted));
        counted.evicted = evicted;
        self.mirror_tasks(&levels.tasks, &counted.tasks);
        counted.tasks = levels.tasks;
    }

    /// What is shown of each pace: configured, achieved, wait time, burst in use.
    fn of_paces(&self) -> [&GaugeVec; 4] {
        [
            &self.limiter_pace_rate,
            &self.limiter_pace_achieved_rate,
            &self.limiter_pace_wait_seconds,
            &self.limiter_pace_burst_seconds,
        ]
    }

    /// Sets what is shown of calls that were handed over.
    fn mirror_tasks(&self, tasks: &TasksLevel, before: &TasksLevel) {
        for (state, now) in [
            ("waiting", tasks.waiting),
            ("running", tasks.running),
            ("ended", tasks.ended),
        ] {
            self.tasks.with_label_values(&[state]).set(signed(now));
        }
        self.tasks_held_bytes.set(signed(tasks.bytes));
        for (outcome, now, before) in [
            ("answered", tasks.answered, before.answered),
            ("not_kept", tasks.not_kept, before.not_kept),
            ("cancelled", tasks.cancelled, before.cancelled),
            ("failed", tasks.failed, before.failed),
        ] {
            self.tasks_ended_total
                .with_label_values(&[outcome])
                .inc_by(since(now, before));
        }
    }

    /// Everything in Prometheus's text format.
    ///
    /// # Panics
    ///
    /// Only if a metric was declared without a name or help.
    #[must_use]
    pub fn gather(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("metrics are written to memory")
    }

    /// The name of every metric, whether it has a value yet or not.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Ended {
    fn count(&self, took: &Durations) {
        self.calls.inc();
        self.total.observe(took.total.as_secs_f64());
        if let Some(waited) = took.waited {
            self.waited.observe(waited.as_secs_f64());
        }
        if let Some(backend) = took.backend {
            self.backend.observe(backend.as_secs_f64());
        }
    }
}

/// The registry while it is being filled, and the names that went in.
#[derive(Default)]
struct Registering {
    registry: Registry,
    names: Vec<String>,
}

impl Registering {
    fn add<C: Collector + Clone + 'static>(&mut self, metric: prometheus::Result<C>) -> C {
        let metric = metric.expect("every metric below has a name, a help and legal labels");
        self.names
            .extend(metric.desc().iter().map(|desc| desc.fq_name.clone()));
        self.registry
            .register(Box::new(metric.clone()))
            .expect("every metric is declared once");
        metric
    }
}

/// The process collector cannot be cloned by itself.
#[cfg(target_os = "linux")]
#[derive(Clone)]
struct Process(std::sync::Arc<prometheus::process_collector::ProcessCollector>);

#[cfg(target_os = "linux")]
impl Collector for Process {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.0.collect()
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("tidegate")
}

fn gauge(name: &str, help: &str) -> prometheus::Result<IntGauge> {
    IntGauge::with_opts(opts(name, help))
}

fn histogram(name: &str, help: &str) -> prometheus::Result<HistogramVec> {
    HistogramVec::new(
        HistogramOpts::from(opts(name, help)).buckets(BUCKETS.to_vec()),
        &["function", "class"],
    )
}

/// How much was counted since; all of it where a count began anew.
fn since(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Forgets the series of whose label's value there is no more such thing: what is made and
/// removed while the process runs must not leave more and more behind.
fn retain<T>(metric: &MetricVec<T>, label: &str, stays: impl Fn(&str) -> bool)
where
    T: MetricVecBuilder,
{
    for family in metric.collect() {
        for series in family.get_metric() {
            let labels: HashMap<&str, &str> = series
                .get_label()
                .iter()
                .map(|pair| (pair.name(), pair.value()))
                .collect();
            if labels.get(label).is_some_and(|value| !stays(value)) {
                // Fails only if it is gone already, which is what is wanted.
                let _ = metric.remove(&labels);
            }
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Durations = Durations {
        total: Duration::from_millis(300),
        waited: Some(Duration::from_millis(200)),
        backend: None,
    };

    #[track_caller]
    fn has(metrics: &Metrics, line: &str) {
        let text = metrics.gather();
        assert!(
            text.lines().any(|given| given == line),
            "no line {line} in\n{text}"
        );
    }

    #[test]
    fn each_call_counts_once_under_its_own_labels() {
        let metrics = Metrics::new("1", "r");
        for verdict in ["passed", "delayed", "passed"] {
            metrics.call_ended("nova", "guest_list", "default", verdict, &TOOK);
        }
        metrics.call_ended("other", "guest_list", "default", "passed", &TOOK);
        let line = |listener, verdict, n| {
            format!(
                "tidegate_calls_total{{class=\"default\",function=\"guest_list\",\
                 listener=\"{listener}\",verdict=\"{verdict}\"}} {n}"
            )
        };
        has(&metrics, &line("nova", "passed", 2));
        has(&metrics, &line("nova", "delayed", 1));
        has(&metrics, &line("other", "passed", 1));
        has(
            &metrics,
            "tidegate_queue_wait_seconds_count{class=\"default\",function=\"guest_list\"} 4",
        );
        has(
            &metrics,
            "tidegate_backend_duration_seconds_count{class=\"default\",function=\"guest_list\"} 0",
        );
    }

    #[test]
    fn calls_that_end_on_many_threads_at_once_are_all_counted() {
        let metrics = Metrics::new("1", "r");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        metrics.call_ended("nova", "f", "default", "passed", &TOOK);
                    }
                });
            }
        });
        has(
            &metrics,
            "tidegate_calls_total{class=\"default\",function=\"f\",listener=\"nova\",\
             verdict=\"passed\"} 4000",
        );
        assert_eq!(metrics.ended.read().expect("not poisoned")["f"].len(), 1);
    }

    #[test]
    fn a_limit_that_a_reload_took_away_is_shown_no_more() {
        let metrics = Metrics::new("1", "r");
        let window = |limit: &str| WindowLevel {
            limit: limit.into(),
            used: 3,
            configured: 30,
        };
        let mut levels = Levels {
            windows: vec![window("total"), window("guest_list")],
            ..Levels::default()
        };
        metrics.mirror(&levels);
        has(&metrics, "tidegate_window_used{limit=\"guest_list\"} 3");
        levels.windows.pop();
        metrics.mirror(&levels);
        has(&metrics, "tidegate_window_limit{limit=\"total\"} 30");
        assert!(!metrics.gather().contains("guest_list"));
    }

    #[test]
    fn a_refused_config_keeps_the_time_of_the_last_good_one() {
        let metrics = Metrics::new("1", "r");
        metrics.config_taken(UNIX_EPOCH + Duration::from_secs(7));
        metrics.config_refused();
        has(&metrics, "tidegate_config_last_reload_successful 0");
        has(
            &metrics,
            "tidegate_config_last_reload_success_timestamp_seconds 7",
        );
    }
}
