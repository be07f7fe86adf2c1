//! The lines of the gate: what the scheduler is given besides calls. With them and the access lines,
//! a replay takes every decision again (docs/reference/access-log.md).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate_limits::Timestamp;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{self, StoreReply, StoreTime, StoredRecord};
use tidegate_limits::scheduler::{
    BucketLimit, BucketMode, BucketOrder, OnExcess, Settlement, Supplier, Supply, SupplyShare,
};
use tidegate_runtime::{Clock, lock};

use super::metrics::Metrics;
use crate::admit::{self, Gate, Given, Settings};
use crate::call::Would;
use crate::config::{self, Config};
use crate::telemetry::access::{AccessLog, Utc, Written};

/// The longest line with a config in it.   bytes
///
/// The journal of systemd cuts a line of more than 48 KiB in two (`LineMax=`), its priority included.
/// Readers of the log take lines of up to 64 KiB.
const LINE_BYTES_MAX: usize = (48 << 10) - 16;

/// The most lines that a checkpoint repeats. With more, a replay needs the log since the start.
const REPEATED_MAX: usize = 1000;

/// Writes the lines of the gate, while the log of calls is on.
pub(super) struct Journal {
    access: Arc<AccessLog>,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// The values in force besides the config, by event and subject.
    in_force: Mutex<BTreeMap<(&'static str, String), Value>>,
}

impl Journal {
    pub(super) fn new(access: Arc<AccessLog>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            access,
            clock,
            metrics,
            in_force: Mutex::default(),
        }
    }

    /// The process has started with this config.
    pub(super) fn started(&self, gate: &Gate, config: &Config, limits: &Settings) {
        let fields = Self::config(gate, config, limits);
        self.write(Timestamp::ZERO, "start", fields);
    }

    /// The limits of this config are in force from this instant on.
    pub(super) fn reloaded(&self, at: Timestamp, gate: &Gate, config: &Config, limits: &Settings) {
        let fields = Self::config(gate, config, limits);
        self.write(at, "reload", fields);
    }

    /// The costs of calls are others from this instant on, by the admin address.
    pub(super) fn costs_changed(&self, at: Timestamp, limits: &Settings) {
        self.write(at, "costs", json!({"costs": costs(limits)}));
    }

    /// No call comes or ends any more.
    pub(super) fn ended(&self, at: Timestamp) {
        self.write(at, "end", json!({}));
    }

    /// Everything that is in force, again, for logs that begin later.
    pub(super) fn checkpoint(&self, gate: &Gate, config: &Config, limits: &Settings) {
        if !self.access.is_on() {
            return;
        }
        let fields = Self::config(gate, config, limits);
        // Copied under the lock of the gate, so that it is of one instant, and written without it.
        let (at, in_force) = gate.at_an_instant(|at| (at, lock(&self.in_force).clone()));
        if in_force.len() > REPEATED_MAX {
            return;
        }
        self.write(at, "checkpoint", fields);
        for ((event, _), mut fields) in in_force {
            fields["again"] = true.into();
            self.write(at, event, fields);
        }
    }

    /// Remembers what is in force. What is as configured needs no line.
    fn remember(&self, event: &'static str, fields: &Value) {
        let about = |keys: &[&str]| keys.iter().map(|key| fields[*key].to_string()).collect();
        let keep = |about: String, is_configured: bool| {
            let mut in_force = lock(&self.in_force);
            match is_configured {
                true => in_force.remove(&(event, about)),
                false => in_force.insert((event, about), fields.clone()),
            };
        };
        match event {
            "supply" => keep(about(&["limit", "by"]), fields["capacity"].is_null()),
            "share" => keep(String::new(), fields["share_thousandths"].is_null()),
            "fill" => keep(about(&["bucket"]), fields["fill"].is_null()),
            "bucket" => keep(about(&["bucket"]), false),
            "bucket_gone" => {
                let mut in_force = lock(&self.in_force);
                for event in ["bucket", "fill"] {
                    in_force.remove(&(event, about(&["bucket"])));
                }
            }
            _ => {}
        }
    }

    fn config(gate: &Gate, config: &Config, limits: &Settings) -> Value {
        let text = config::effective(config);
        let phase = u64::try_from(gate.phase().as_nanos()).unwrap_or(u64::MAX);
        json!({
            "phase_ns": phase,
            "seed": format!("{:016x}", gate.seed()),
            "fingerprint": config.fingerprint(),
            "config": text,
            "costs": costs(limits),
        })
    }

    fn write(&self, at: Timestamp, event: &str, fields: Value) {
        self.write_of("gate", at, event, fields);
    }

    fn write_of(&self, target: &str, at: Timestamp, event: &str, fields: Value) {
        if !self.access.is_on() {
            return;
        }
        let started = self.clock.started().duration_since(UNIX_EPOCH);
        let started = started.unwrap_or_default().as_micros();
        let mut line = json!({
            "timestamp": Utc(self.clock.wall(at)).to_string(),
            "level": "INFO",
            "target": target,
            "event": event,
            "started_us": u64::try_from(started).unwrap_or(u64::MAX),
            "at_ns": at.as_nanos(),
        });
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        if line.get("config").is_some() && line.to_string().len() > LINE_BYTES_MAX {
            line["config"] = Value::Null;
        }
        // A line that finds no room is reported as lost, like every other.
        let (Written::Yes | Written::Off | Written::Lost) = self.access.write_object(&line);
    }
}

impl admit::Journal for Journal {
    fn given(&self, at: Timestamp, what: Given<'_>) {
        // Under the lock of the gate, and often: nothing is built that no line will have.
        if what.is_passing() && !self.access.is_on() {
            return;
        }
        let (event, fields) = match what {
            Given::Supply { limit, by, supply } => {
                let mut fields = supplied(supply);
                fields["limit"] = limit.into();
                fields["by"] = match by {
                    Supplier::Health => "health".into(),
                    Supplier::Operator => "operator".into(),
                    _ => "coordinator".into(),
                };
                ("supply", fields)
            }
            Given::Fill { id, supply } => {
                let rate = |supply: Supply<tidegate_limits::Fill>| match supply {
                    Supply::Configured => (None, None, None),
                    Supply::Capacity {
                        capacity,
                        expires_at,
                        then,
                    } => (Some(capacity.get()), expires_at, Some(then.get())),
                };
                let (fill, until, then) = rate(supply);
                let until = until.map(Timestamp::as_nanos);
                let fields = json!({"bucket": id.0, "fill": fill, "until_ns": until, "then": then});
                ("fill", fields)
            }
            Given::Bucket { id, rule } => {
                let limit = match &rule.limit {
                    BucketLimit::Bucket { burst, fill } => {
                        json!({"burst": burst.get(), "fill": fill.get()})
                    }
                    BucketLimit::Paced(pace) => json!({
                        "rate": pace.rate().get(),
                        "burst": pace.burst(),
                    }),
                };
                let rule = json!({
                    "name": &*rule.name,
                    "limit": limit,
                    "observes": rule.mode == BucketMode::Observe,
                    "rejects": rule.on_excess == OnExcess::Reject,
                    "by_arrival": rule.order == BucketOrder::Fifo,
                    "settles": rule.settlement == Settlement::Measured,
                });
                ("bucket", json!({"bucket": id.0, "rule": rule}))
            }
            Given::Share(share) => {
                let whole = share == SupplyShare::FULL;
                let thousandths = (!whole).then_some(share.thousandths());
                ("share", json!({"share_thousandths": thousandths}))
            }
            Given::Woke => ("woke", json!({})),
            Given::BucketGone { id } => ("bucket_gone", json!({"bucket": id.0})),
            what => of_quotas(what),
        };
        self.remember(event, &fields);
        self.write(at, event, fields);
    }

    fn would(&self, at: Timestamp, class: &str, would: &Would, late: Option<u64>) {
        self.metrics.would_have.count(class, would);
        if let Some(id) = late
            && self.access.is_on()
        {
            let micros = would.wait.as_micros();
            #[expect(
                clippy::cast_precision_loss,
                reason = "2^53 microseconds are 285 years"
            )]
            let fields = json!({
                "id": format!("{id:016x}"),
                "would_wait_ms": micros as f64 / 1000.0,
                "would_limit": would.limit.as_deref(),
                "would_reason": would.reason(),
                "would_end": would.end(),
            });
            self.write_of("shadow", at, "would", fields);
        }
    }
}

/// The event of an answer of the store of quotas, or of a setting of it and its keys.
fn of_quotas(what: Given<'_>) -> (&'static str, Value) {
    let of_key = |of: &QuotaKey| json!({"limit": &*of.quota, "key": &*of.key});
    match what {
        Given::Quotas => ("quotas", json!({})),
        Given::QuotaRule { of, rule } => {
            let settings = rule.map(quota::WindowRule::settings);
            let mut fields = of_key(of);
            fields["total"] = settings.map(|it| it.total).into();
            fields["base"] = settings.and_then(|it| it.base).into();
            ("quota_rule", fields)
        }
        Given::QuotaNodes(nodes) => ("quota_nodes", json!({"nodes": nodes})),
        Given::QuotaPast(from) => {
            let from = u64::try_from(from.as_nanos()).ok();
            ("quota_past", json!({"earliest_ns": from}))
        }
        Given::StoreTime(time) => ("store_time", store_time(time)),
        Given::QuotaAnswer {
            of,
            question,
            reply,
            entropy,
            time,
        } => {
            let (word, version, record) = match reply {
                StoreReply::Time => ("time", None, None),
                StoreReply::Stands(StoredRecord::Absent) => ("absent", None, None),
                StoreReply::Stands(StoredRecord::Record { version, record }) => {
                    ("record", Some(version.0), Some(record.to_string()))
                }
                StoreReply::Stands(StoredRecord::Unreadable { .. }) => ("unreadable", None, None),
                StoreReply::Written(version) => ("written", Some(version.0), None),
                StoreReply::Unknown => ("unknown", None, None),
                StoreReply::Unavailable => ("unavailable", None, None),
                StoreReply::Late => ("late", None, None),
                StoreReply::NotYet => ("not_yet", None, None),
                StoreReply::Dropped => ("dropped", None, None),
            };
            let mut fields = store_time(time);
            fields["limit"] = (&*of.quota).into();
            fields["key"] = (&*of.key).into();
            fields["question"] = question.number().into();
            fields["reply"] = word.into();
            fields["version"] = version.into();
            fields["record"] = record.into();
            fields["entropy"] = entropy.into();
            ("quota_answer", fields)
        }
        Given::QuotaChanged { of } => ("quota_changed", of_key(of)),
        _ => ("store_back", json!({})),
    }
}

/// The store's time, as an interval seen at a moment; `null` if its end is unknown.
fn store_time(time: StoreTime) -> Value {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).ok();
    json!({
        "seen_ns": time.now().as_nanos(),
        "earliest_ns": nanos(time.earliest()),
        "latest_ns": nanos(time.latest()),
    })
}

/// The costs of the calls that meet paced limits: they decide the pools.
fn costs(limits: &Settings) -> Value {
    let costs = limits.paced.iter().map(|limit| {
        json!({
            "name": &*limit.name,
            "cheapest": limit.costs.cheapest.get(),
            "most_expensive": limit.costs.most_expensive.get(),
        })
    });
    costs.collect()
}

/// The amount that a limit may give out: `null` for what its rule allows.
fn supplied(supply: Supply) -> Value {
    match supply {
        Supply::Configured => json!({"capacity": null, "until_ns": null, "then": null}),
        Supply::Capacity {
            capacity,
            expires_at,
            then,
        } => json!({
            "capacity": capacity,
            "until_ns": expires_at.map(Timestamp::as_nanos),
            "then": then,
        }),
    }
}
