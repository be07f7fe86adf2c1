//! The answer of `/v1/now`, and the questions to the history.

use serde::Serialize;

use super::{BackendState, CallId, OverrideState, SharedState};

/// The most frames of a stream. It ends by itself before its connection is too old.
pub const FRAMES_MAX: usize = 240;

/// A span of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesSpan {
    /// By 1 s.
    TenMinutes,
    /// By 10 s.
    ThreeHours,
    /// By 60 s.
    Day,
}

impl SeriesSpan {
    /// The length of a point.   s
    #[must_use]
    pub const fn step_seconds(self) -> u64 {
        match self {
            Self::TenMinutes => 1,
            Self::ThreeHours => 10,
            Self::Day => 60,
        }
    }
}

/// Everything of one moment, for an operator who asks what waits, why, and until when.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NowState {
    /// When.   Unix ms
    pub at_unix_ms: u64,
    /// The version of this program.
    pub version: &'static str,
    /// The commit it was built from.
    pub revision: &'static str,
    /// Time since the start.   s
    pub uptime_seconds: f64,
    /// Whether calls are taken.
    pub ready: ReadyNow,
    /// A sentence about the waiting calls and why they wait.
    pub sentence: String,
    /// The queue.
    pub queue: QueueLevels,
    /// Limits, buckets, quotas and leases.
    pub limits: Vec<LimitNow>,
    /// Functions with calls under way or in the last minute, the busiest first.
    pub functions: Vec<Traffic>,
    /// The callers with the most calls in the last hour, and those with the most waiting calls.
    pub callers: Vec<Traffic>,
    /// The calls that have waited longest.
    pub oldest_calls: Vec<CallNow>,
    /// Slots that jobs hold behind the answers of their calls, the longest first.
    pub jobs: Vec<HeldByJob>,
    /// The configured backends.
    pub backends: Vec<BackendNow>,
    /// The store of quotas.
    pub stores: Vec<StoreNow>,
    /// The server that gives the leases, if it is known.
    pub lease_master: Option<String>,
    /// The last reload; `None` without one since the start.
    pub reload: Option<ReloadNow>,
    /// Notices for an operator.
    pub notices: Vec<String>,
    /// Refusals of the last hour, the most frequent reason first.
    pub refusals_1h: Vec<RefusalCount>,
    /// The pause or the ramp; `None` while the limits of the config are in force.
    pub pause: Option<BackendState>,
    /// Limits that are lower for a while.
    pub overrides: Vec<OverrideState>,
}

/// Whether calls are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadyNow {
    /// Whether.
    pub ok: bool,
    /// Why not.
    pub why: Option<String>,
}

/// A slot that a job holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeldByJob {
    /// The id that the backend has given it, without a query and shortened.
    pub id: String,
    /// The function of its call.
    pub function: String,
    /// The call that has begun it; `None` of a job of the process before.
    pub call: Option<CallId>,
    /// The time since its answer.   s
    pub lasts_seconds: f64,
    /// Until the slot is free in any case.   s
    pub left_seconds: f64,
}

/// The levels of the queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QueueLevels {
    /// Calls that wait, also at the door.
    pub waiting: u64,
    /// Calls that may wait in the queue.
    pub capacity: u64,
    /// Of the waiting calls, those whose clients have given up for a while, and have tickets.
    pub suspended: u64,
    /// Of the waiting calls, those at the door of a full queue.
    pub door: u64,
    /// The wait of the oldest.   s
    pub oldest_seconds: f64,
    /// Calls past the gate.
    pub in_flight: u64,
}

/// A limit, bucket, quota or lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitNow {
    /// The name of the limit.
    pub name: String,
    /// `window`, `outstanding`, `paced`, `bucket`, `quota` or `lease`.
    pub kind: &'static str,
    /// The calls that meet it.
    pub scope: String,
    /// How much of it is used; of a pace, what was admitted a second; of a lease, what is wanted.
    pub used: f64,
    /// How much is allowed now.
    pub allowed: f64,
    /// How much the config allows.
    pub configured: f64,
    /// Calls that wait for it.
    pub waiting: u64,
    /// When it opens; `None` when that is not a matter of time.   s
    pub opens_in_seconds: Option<f64>,
    /// Whether it has room for a call.
    pub open: bool,
    /// Whether it only observes.
    pub observes: bool,
    /// How it is shared, if it is.
    pub shared: Option<SharedState>,
    /// `calls` or `tokens`.
    pub unit: &'static str,
}

/// The calls of a function or caller. Rates and times are of the last minute, or of the latest
/// 2,000 calls if these are fewer; `None` without one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// The function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The caller's label, or its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The caller's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Calls that ended.   1/s
    pub per_second: f64,
    /// Calls that wait.
    pub waiting: u64,
    /// Calls past the gate.
    pub in_flight: u64,
    /// The median wait in the queue.
    pub queue_p50_ms: Option<f64>,
    /// The wait of 95 of 100.
    pub queue_p95_ms: Option<f64>,
    /// The median time at the backend.
    pub backend_p50_ms: Option<f64>,
    /// The time at the backend of 95 of 100.
    pub backend_p95_ms: Option<f64>,
    /// The limit that its oldest waiting call waits for.
    pub held_by: Option<String>,
}

/// A waiting call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallNow {
    /// The id of the call, for `/v1/calls/{id}`.
    pub id: CallId,
    /// The function of the call.
    pub function: String,
    /// The label of the caller, or its id.
    pub caller: Option<String>,
    /// The class of the call.
    pub class: String,
    /// How long it has waited.   s
    pub waits_seconds: f64,
    /// The limit that the calls of its function and class wait for.
    pub waits_for: Option<String>,
    /// When it is predicted to start; `None` if that is not known.   s
    pub starts_in_seconds: Option<f64>,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendNow {
    /// `socket`, `http` or `tcp`.
    pub name: &'static str,
    /// The server, if the backend has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Where it is.
    pub address: String,
    /// Whether it accepts connections.
    pub up: bool,
    /// Since when, within a second.   Unix ms
    pub since_unix_ms: u64,
    /// Connections that calls use.
    pub connections: u64,
    /// Calls that it failed in the last hour.
    pub failures_1h: u64,
    /// The addresses of its name, at most 16; empty if its address is not a name.
    pub addresses: Vec<AddressNow>,
    /// The time since the lookup that found them; `None` without one.   s
    pub looked_up_seconds_ago: Option<f64>,
    /// Why the latest lookup failed; `None` if it did not.
    pub lookup_failure: Option<String>,
}

/// An address of a backend's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressNow {
    /// The address, with its port.
    pub address: String,
    /// Whether the latest connection was opened to it.
    pub in_use: bool,
    /// Why the latest connect to it failed; `None` if it did not.
    pub failure: Option<String>,
}

/// A store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreNow {
    /// The kind of the store.
    pub name: &'static str,
    /// Whether it answers; `None` until that is known.
    pub up: Option<bool>,
    /// The last error, which may be long over.
    pub trouble: Option<String>,
}

/// A reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReloadNow {
    /// When.   Unix ms
    pub at_unix_ms: u64,
    /// Whether the config was taken.
    pub taken: bool,
    /// Why not; at most 20.
    pub mistakes: Vec<String>,
}

/// The refusals for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusalCount {
    /// The reason.
    pub reason: &'static str,
    /// How many.
    pub count: u64,
    /// The cure, in one sentence with names between backquotes.
    pub what_to_do: &'static str,
    /// More about it: a path at this address.
    pub link: String,
}
