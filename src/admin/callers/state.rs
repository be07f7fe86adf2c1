//! The shown state of callers, rate limits, costs and calls.
//!
//! Tokens are those of the limits: one is a tenth of a second of the backend's time, unless the
//! config sets another. Times of day are RFC 3339 in UTC.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use tidegate_callers::{
    CallerId, CallerRow, FunctionId, Group, Label, Notes, Pattern, RateLimitId, RowKind, SpanUse,
    Suggestion, UsageNow, UsageSpan, UsageTally,
};
use tidegate_record::digits::Utc;

use tidegate_limits::Weight;

use super::written::{patterns, some_text, text, texts};
use crate::call::costs::Costs;
use crate::call::rate_limit::{Allowance, Handling};
use crate::options::{Words, words};

/// A call, by the `id` of its access line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u64);

/// As in the access line: 16 hexadecimal digits.
impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A moment of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub SystemTime);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Utc(self.0).fmt(f)
    }
}

macro_rules! serialize_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
serialize_as_text!(CallId, Moment);

fn word<T: Words, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(value.word())
}

fn some_word<T: Words, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    value.map(T::word).serialize(to)
}

words!(UsageSpan { "5m" => FiveMinutes, "1h" => Hour, "24h" => Day });

/// The origin of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectOrigin {
    /// From the config file, and can be changed only there.
    Config,
    /// Through this API.
    Api,
    /// Registered automatically; it may be evicted.
    Auto,
    /// The fixed row for unknown callers.
    Unknown,
}

/// A caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallerState {
    /// The id of the caller.
    #[serde(serialize_with = "text")]
    pub id: CallerId,
    /// The label of the caller; empty for one that was registered automatically.
    #[serde(serialize_with = "some_text")]
    pub label: Option<Label>,
    /// The patterns of the caller: calls that match one of these belong to it.
    #[serde(rename = "match", serialize_with = "patterns")]
    pub patterns: Box<[Pattern]>,
    /// The groups that it is in.
    #[serde(serialize_with = "texts")]
    pub groups: Box<[Group]>,
    /// Notes of operators.
    #[serde(serialize_with = "text")]
    pub notes: Notes,
    /// The caller's turns for one turn of an ordinary caller; `None` takes the weight of less specific callers.
    pub weight: Option<u32>,
    /// The origin of the caller.
    pub origin: ObjectOrigin,
    /// Whether it was registered automatically, and may be evicted.
    pub auto: bool,
    /// The caller's own rate limit.
    #[serde(serialize_with = "some_text")]
    pub rate_limit: Option<RateLimitId>,
    /// When it was last called.
    pub last_access: Option<Moment>,
    /// Calls, by span.
    pub calls: SpanFigures<u64>,
    /// Their cost in tokens, by span.
    pub tokens: SpanFigures<f64>,
}

impl CallerState {
    /// The shown state of a row.
    #[must_use]
    pub fn new(row: CallerRow, last_access: Option<SystemTime>, usage: &UsageNow) -> Self {
        Self {
            id: row.id,
            label: row.label,
            patterns: row.patterns,
            groups: row.groups,
            notes: row.notes,
            weight: row.weight.map(Weight::get),
            origin: match row.kind {
                RowKind::Static => ObjectOrigin::Config,
                RowKind::Made => ObjectOrigin::Api,
                RowKind::Auto => ObjectOrigin::Auto,
                RowKind::Unknown => ObjectOrigin::Unknown,
            },
            auto: row.kind == RowKind::Auto,
            rate_limit: row.charge.limit(),
            last_access: last_access.map(Moment),
            calls: SpanFigures::of(usage, |it| it.calls),
            tokens: SpanFigures::of(usage, |it| it.tokens.tokens()),
        }
    }
}

/// A figure over each span, and since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
pub struct SpanFigures<T> {
    /// Over the latest five minutes.
    #[serde(rename = "5m")]
    pub five_minutes: T,
    /// Over the latest hour.
    #[serde(rename = "1h")]
    pub hour: T,
    /// Over the latest 24 hours.
    #[serde(rename = "24h")]
    pub day: T,
    /// In all.
    pub total: T,
}

impl<T: Copy> SpanFigures<T> {
    /// The figure over a span; without one, in all.
    pub(super) fn over(&self, span: Option<UsageSpan>) -> T {
        match span {
            Some(UsageSpan::FiveMinutes) => self.five_minutes,
            Some(UsageSpan::Hour) => self.hour,
            Some(UsageSpan::Day) => self.day,
            None => self.total,
        }
    }

    /// A figure of the usage of a caller or a group, by span.
    pub fn of(usage: &UsageNow, figure: impl Fn(&UsageTally) -> T) -> Self {
        Self {
            five_minutes: figure(&usage.over(UsageSpan::FiveMinutes).tally),
            hour: figure(&usage.over(UsageSpan::Hour).tally),
            day: figure(&usage.over(UsageSpan::Day).tally),
            total: figure(&usage.total),
        }
    }
}

/// The usage of a caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallerUsage {
    /// The id of the caller.
    #[serde(serialize_with = "text")]
    pub id: CallerId,
    /// When it was last called.
    pub last_access: Option<Moment>,
    /// The cost of its calls, in tokens.
    pub tokens: SpanFigures<f64>,
    /// The number of its calls.
    pub calls: SpanFigures<u64>,
    /// Calls that had to wait.
    pub delayed: Delayed,
    /// Calls that were refused.
    pub rejected: SpanFigures<u64>,
    /// The most common calls.
    pub top: Top,
}

/// Calls that had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delayed {
    /// How many.
    #[serde(flatten)]
    pub calls: SpanFigures<u64>,
    /// Half of the calls of the last half hour to hour waited no longer; `None` if none waited.
    pub wait_ms_p50: Option<f64>,
    /// Ninety-nine of a hundred waited no longer.
    pub wait_ms_p99: Option<f64>,
}

/// The most common calls over each span, the most common first; over the latest half of the
/// span up to the whole of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Top {
    /// Over five minutes.
    #[serde(rename = "5m")]
    pub five_minutes: Vec<CommonCall>,
    /// Over an hour.
    #[serde(rename = "1h")]
    pub hour: Vec<CommonCall>,
    /// Over 24 hours.
    #[serde(rename = "24h")]
    pub day: Vec<CommonCall>,
}

/// The calls of a function, and their cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommonCall {
    /// The function.
    pub call: String,
    /// Calls of it.
    pub calls: u64,
    /// The cost of the calls, in tokens.
    pub tokens: f64,
}

impl CallerUsage {
    /// The shown usage of a caller. `named` has the names of functions.
    pub fn new(
        id: CallerId,
        last_access: Option<SystemTime>,
        usage: &UsageNow,
        named: impl Fn(FunctionId) -> String,
    ) -> Self {
        let common = |span| {
            let SpanUse { common, .. } = usage.over(span);
            let functions = common.functions.iter().map(|function| CommonCall {
                call: named(function.function),
                calls: function.calls,
                tokens: function.tokens.tokens(),
            });
            functions.collect()
        };
        Self {
            id,
            last_access: last_access.map(Moment),
            tokens: SpanFigures::of(usage, |it| it.tokens.tokens()),
            calls: SpanFigures::of(usage, |it| it.calls),
            delayed: Delayed {
                calls: SpanFigures::of(usage, |it| it.delayed),
                wait_ms_p50: usage.waits.map(|it| milliseconds(it.p50)),
                wait_ms_p99: usage.waits.map(|it| milliseconds(it.p99)),
            },
            rejected: SpanFigures::of(usage, |it| it.refused),
            top: Top {
                five_minutes: common(UsageSpan::FiveMinutes),
                hour: common(UsageSpan::Hour),
                day: common(UsageSpan::Day),
            },
        }
    }
}

/// A duration in milliseconds.
#[must_use]
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The usage of callers over one span, the most expensive first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UsageTable {
    /// The span: `5m`, `1h` or `24h`.
    #[serde(serialize_with = "word")]
    pub window: UsageSpan,
    /// The requested group; `None` is all callers.
    pub group: Option<String>,
    /// The usage of the group. A call counts once, even if several callers of the group match it.
    pub total: Option<Used>,
    /// Each of them.
    pub callers: Vec<CallerUsed>,
}

/// The usage of one caller over a span.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallerUsed {
    /// The id of the caller.
    #[serde(serialize_with = "text")]
    pub id: CallerId,
    /// The label of the caller.
    #[serde(serialize_with = "some_text")]
    pub label: Option<Label>,
    /// The usage of the caller.
    #[serde(flatten)]
    pub used: Used,
}

/// The usage over a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Used {
    /// Calls.
    pub calls: u64,
    /// The cost of the calls, in tokens.
    pub tokens: f64,
    /// Calls that had to wait.
    pub delayed: u64,
    /// Calls that were refused.
    pub rejected: u64,
}

impl From<&UsageTally> for Used {
    fn from(tally: &UsageTally) -> Self {
        Self {
            calls: tally.calls,
            tokens: tally.tokens.tokens(),
            delayed: tally.delayed,
            rejected: tally.refused,
        }
    }
}

/// A rate limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateLimitState {
    /// The id of the rate limit.
    #[serde(serialize_with = "text")]
    pub id: RateLimitId,
    /// The name in the config, in metrics and in refusals.
    pub label: String,
    /// The origin of the rate limit.
    pub origin: ObjectOrigin,
    /// The profile of the rate limit, unless its figures were changed since.
    pub profile: Option<String>,
    /// The figures of the rate limit.
    #[serde(flatten)]
    pub figures: Figures,
    /// The state of its pace, if it has one.
    pub pace: Option<PaceState>,
    /// Tokens that may be taken at once now; negative in debt.
    pub tokens: Option<f64>,
    /// How it handles calls.
    #[serde(flatten)]
    pub handling: Handling,
    /// The callers that are charged to it.
    #[serde(serialize_with = "texts")]
    pub callers: Vec<CallerId>,
    /// Calls in the queue that will be charged to it.
    pub queued: u64,
    /// Their charge, in tokens.
    pub queued_tokens: f64,
    /// Calls that it admitted.
    pub charged: u64,
    /// Of those, calls that were admitted only because it observes.
    pub would_have_delayed: u64,
    /// Calls that it refused.
    pub rejected: u64,
}

/// The figures of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The kind of the rate limit: `bucket` or `paced`; `None` if it admits everything.
    #[serde(serialize_with = "some_word")]
    pub kind: Option<RateLimitKind>,
    /// Whether it admits everything; then it has no figures.
    pub exempt: bool,
    /// The most tokens at once, of a bucket.
    pub burst: Option<f64>,
    /// Tokens a second, of a bucket.
    pub fill: Option<f64>,
    /// Tokens a second, of a pace.
    pub rate: Option<f64>,
    /// The burst ratio of a pace: late calls are admitted at this many times the rate.
    pub ratio: Option<f64>,
}

impl From<Allowance> for Figures {
    fn from(allowance: Allowance) -> Self {
        let (bucket, pace) = (allowance.bucket(), allowance.pace());
        Self {
            kind: match allowance {
                Allowance::Exempt => None,
                Allowance::Bucket { .. } => Some(RateLimitKind::Bucket),
                Allowance::Paced { .. } => Some(RateLimitKind::Paced),
            },
            exempt: allowance == Allowance::Exempt,
            burst: bucket.map(|(burst, _)| burst.get()),
            fill: bucket.map(|(_, fill)| fill.get()),
            rate: pace.map(|(rate, _)| rate.get()),
            ratio: pace.map(|(_, ratio)| ratio.get()),
        }
    }
}

words! {
    /// The kind of a rate limit.
    pub enum RateLimitKind {
        /// A burst at once, and then a steady rate.
        Bucket = "bucket",
        /// A steady rate, and a little more for late calls.
        Paced = "paced",
    }
}

/// The state of a pace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PaceState {
    /// Tokens a second that were admitted over the last ten seconds or so.
    pub achieved: f64,
    /// Tokens that were admitted so far.
    pub drawn: f64,
    /// How far behind schedule the demand is.   seconds
    pub wait_seconds: f64,
    /// The time that late calls may take at once beyond the regular pool: the burst in use.   seconds
    pub burst_seconds: f64,
}

/// A suitable limit for a caller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggested {
    /// Tokens a second.
    pub fill: f64,
    /// The most tokens at once.
    pub burst: f64,
    /// The basis of the suggestion.
    pub basis: Basis,
    /// The nearest profile of those that would have delayed at most 0.1 % of the tokens.
    pub nearest_profile: Option<String>,
}

/// The basis of a suggested limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Basis {
    /// Tokens a second in the busiest minute, at most.
    pub busiest_minute_tokens_per_s: f64,
    /// The number of slots of five seconds.
    pub slots: u64,
    /// The most tokens in one of them.
    pub peak_5s_tokens: f64,
    /// Slots in which it would have delayed calls.
    pub would_have_delayed_slots: u64,
    /// The burst that would do if the calls of each five seconds were spread evenly over them; usually,
    /// the right one is between this and the suggested. `null` if that is not known, as over 24 hours.
    pub even_burst: Option<f64>,
    /// Whether every slot is known; else fill and burst are upper bounds, as they are over 24 hours.
    pub exact: bool,
}

impl Suggested {
    /// A shown suggestion.
    #[must_use]
    pub fn new(suggestion: Suggestion, nearest_profile: Option<&str>) -> Self {
        let Suggestion { fill, burst, basis } = suggestion;
        Self {
            fill,
            burst,
            basis: Basis {
                busiest_minute_tokens_per_s: basis.busiest,
                slots: basis.slots,
                peak_5s_tokens: basis.peak,
                would_have_delayed_slots: basis.short_slots,
                even_burst: basis.even_burst,
                exact: basis.every_slot_known,
            },
            nearest_profile: nearest_profile.map(ToOwned::to_owned),
        }
    }
}

/// A named pair of figures, from the config.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileState {
    /// The name of the profile.
    pub name: String,
    /// Whether it admits everything; then it has no figures.
    pub exempt: bool,
    /// The most tokens at once.
    pub burst: Option<f64>,
    /// Tokens a second.
    pub fill: Option<f64>,
}

/// The costs of calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostsState {
    /// In tokens, for every function that is not named.
    pub default: f64,
    /// The backend's time for one token, in seconds.
    pub unit_seconds: f64,
    /// Whether calls are charged their final cost, unless their rate limit says otherwise.
    pub settle: bool,
    /// In tokens, by function.
    pub functions: BTreeMap<String, f64>,
}

impl From<Costs> for CostsState {
    fn from(costs: Costs) -> Self {
        let functions = costs.functions.iter();
        Self {
            default: costs.default.tokens(),
            unit_seconds: costs.unit.get().as_secs_f64(),
            settle: costs.settle,
            functions: functions
                .map(|(name, cost)| (name.to_string(), cost.tokens()))
                .collect(),
        }
    }
}

/// The result of a call that arrived now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DryRunState {
    /// The callers that it belongs to, the most specific first.
    pub matches: Vec<MatchState>,
    /// The rate limit that would be charged.
    #[serde(serialize_with = "some_text")]
    pub charged: Option<RateLimitId>,
    /// Whether the most specific caller with a limit is exempt.
    pub exempt: bool,
    /// The charge, in tokens.
    pub cost: f64,
    /// The current tokens; `None` without a limit.
    pub tokens: Option<f64>,
    /// The wait for tokens, behind calls that already wait.
    pub wait_ms: f64,
}

/// A caller that a call belongs to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatchState {
    /// The id of the caller.
    #[serde(serialize_with = "text")]
    pub caller: CallerId,
    /// The label of the caller.
    #[serde(serialize_with = "some_text")]
    pub label: Option<Label>,
    /// How many fields match exactly.
    pub exact_fields: u8,
    /// How specific the pattern is, over all fields.   bits
    pub literal_bits: u16,
    /// Whether it has its own rate limit, or is exempt.
    pub limited: bool,
}

/// Waiting calls, by what they wait for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueRow {
    /// Their class.
    pub class: String,
    /// Their function.
    pub call: String,
    /// The limit that holds them; `None` if they only wait for their turn.
    pub waits_for: Option<String>,
    /// How many.
    pub waiting: u64,
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestRow {
    /// Where it stands.
    pub state: RequestState,
    /// The function of the call.
    pub call: String,
    /// The class of the call.
    pub class: String,
    /// Name of the listener.
    pub listener: String,
    /// The caller for which it takes turns.
    #[serde(serialize_with = "some_text")]
    pub caller: Option<CallerId>,
    /// The rate limit that is charged.
    #[serde(serialize_with = "some_text")]
    pub rate_limit: Option<RateLimitId>,
    /// When it arrived.
    pub arrived: Moment,
    /// How long ago that is.
    pub age_ms: f64,
}

/// The state of a call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// In the queue.
    Waiting,
    /// Past the gate.
    Running,
}
