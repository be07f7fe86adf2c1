//! The lines of the gate: what the scheduler is given besides calls. With them and the steps of calls,
//! a replay takes every decision again (docs/reference/access-log.md).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_limits::Timestamp;
use tidegate_limits::call::{BucketId, QuotaKey};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::quota::{self, StoreReply, StoreTime, StoredRecord};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, OnExcess, Settlement, Supplier, Supply, SupplyShare,
};
use tidegate_record::digits::micros;
use tidegate_record::kind::{
    BucketFields, BucketFigures, CarriedCallFields, CarriedFields, CarriedLevel, CarriedWindow,
    PacedCost,
};
use tidegate_record::{GateEvent, GateRecord};
use tidegate_runtime::{Clock, lock};

use super::metrics::Metrics;
use crate::admit::{self, CarriedState, Gate, GateSettings, SchedulerEvent};
use crate::call::{LimitMode, Would};
use crate::config::{self, Config};
use crate::telemetry::access::{AccessLog, LineOutcome};

/// The longest line with a config in it.   bytes
///
/// The journal of systemd cuts a line of more than 48 KiB in two (`LineMax=`), its priority included.
const LINE_BYTES_MAX: usize = (48 << 10) - 16;

/// The most lines that a checkpoint repeats. With more, a replay needs the log since the start.
const REPEATED_MAX: usize = 1000;

/// The most departures, levels or calls of the process before in one line.
const CARRIED_MAX: usize = 250;

/// Writes the lines of the gate: those with a config while the log of calls is on, and the others with `log.replay`.
pub(super) struct GateJournal {
    access: Arc<AccessLog>,
    clock: Clock,
    /// Where the clock has its zero, since the epoch. No two processes have the same.
    started_us: u64,
    metrics: Arc<Metrics>,
    /// Everything that is in force besides the config: the fields of its line, by event and what it is about.
    in_force: Mutex<BTreeMap<(GateEvent, String), Vec<u8>>>,
}

/// Microseconds since the epoch.
pub(super) fn since_epoch_us(at: SystemTime) -> u64 {
    micros(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}

impl GateJournal {
    pub(super) fn new(access: Arc<AccessLog>, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            access,
            started_us: since_epoch_us(clock.zero()),
            clock,
            metrics,
            in_force: Mutex::default(),
        }
    }

    /// Whether everything is noted that a replay needs.
    pub(super) fn keeps_replay(&self) -> bool {
        self.access.keeps_replay()
    }

    /// The process has started with this config.
    pub(super) fn started(&self, gate: &Gate, config: &Config, limits: &GateSettings) {
        self.configured(self.clock.began(), GateEvent::Start, gate, config, limits);
    }

    /// The limits of this config are in force from this instant on.
    pub(super) fn reloaded(
        &self,
        at: Timestamp,
        gate: &Gate,
        config: &Config,
        limits: &GateSettings,
    ) {
        self.configured(at, GateEvent::Reload, gate, config, limits);
    }

    /// The costs of calls are others from this instant on, by the admin address.
    pub(super) fn costs_changed(&self, at: Timestamp, limits: &GateSettings) {
        let costs = costs(limits);
        let record = GateRecord {
            costs: Some(&costs),
            ..GateRecord::default()
        };
        self.write(at, GateEvent::Costs, record);
    }

    /// No call comes or ends any more.
    pub(super) fn ended(&self, at: Timestamp) {
        self.write(at, GateEvent::End, GateRecord::default());
    }

    /// Everything that is in force, again, for logs that begin later.
    pub(super) fn checkpoint(&self, gate: &Gate, config: &Config, limits: &GateSettings) {
        if !self.has(GateEvent::Checkpoint) {
            return;
        }
        // Copied under the lock of the gate, so that it is of one instant, and written without it.
        let (at, in_force) = gate.at_an_instant(|at| (at, lock(&self.in_force).clone()));
        if in_force.len() > REPEATED_MAX {
            return;
        }
        self.configured(at, GateEvent::Checkpoint, gate, config, limits);
        for ((event, _), fields) in in_force {
            let record = self.stamped(at, GateRecord::default());
            let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
                self.access.write_replay(|line| {
                    record.write_again(line, event, self.clock.wall(at), &fields);
                });
        }
    }

    fn configured(
        &self,
        at: Timestamp,
        event: GateEvent,
        gate: &Gate,
        config: &Config,
        limits: &GateSettings,
    ) {
        if !self.has(event) {
            return;
        }
        let (text, fingerprint) = (config::effective(config), config.fingerprint());
        let costs = costs(limits);
        let mut record = GateRecord {
            phase_ns: Some(nanos(gate.phase())),
            seed: Some(gate.seed()),
            fingerprint: Some(&fingerprint),
            config: Some(&text),
            costs: Some(&costs),
            ..GateRecord::default()
        };
        let mut line = Vec::new();
        record.write(&mut line, event, self.clock.wall(at));
        if line.len() > LINE_BYTES_MAX {
            record.config = None;
        }
        self.write(at, event, record);
    }

    /// Whether the line of this event is written.
    fn has(&self, event: GateEvent) -> bool {
        let is_in_each_log = matches!(event, GateEvent::Would) || event.has_config();
        self.access.keeps_replay() || is_in_each_log && self.access.is_on()
    }

    fn stamped<'a>(&self, at: Timestamp, record: GateRecord<'a>) -> GateRecord<'a> {
        GateRecord {
            started_us: Some(self.started_us),
            at_ns: Some(at.as_nanos()),
            ..record
        }
    }

    /// Writes a line. One that finds no room is reported as lost, like every other.
    fn write(&self, at: Timestamp, event: GateEvent, record: GateRecord<'_>) {
        if !self.has(event) {
            return;
        }
        let record = self.stamped(at, record);
        let build = |line: &mut Vec<u8>| record.write(line, event, self.clock.wall(at));
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            match self.access.keeps_replay() {
                true => self.access.write_replay(build),
                false => self.access.write_beside(build),
            };
    }

    /// Writes a line of something that stays in force, and keeps it for checkpoints unless it is as configured.
    fn keep(
        &self,
        at: Timestamp,
        event: GateEvent,
        about: String,
        is_configured: bool,
        record: GateRecord<'_>,
    ) {
        let mut in_force = lock(&self.in_force);
        match is_configured {
            true => in_force.remove(&(event, about)),
            false => in_force.insert((event, about), record.fields(event)),
        };
        drop(in_force);
        self.write(at, event, record);
    }

    fn supply(&self, at: Timestamp, limit: &str, by: Supplier, supply: Supply) {
        let by = match by {
            Supplier::Health => "health",
            Supplier::Operator => "operator",
            _ => "coordinator",
        };
        let is_configured = supply == Supply::Configured;
        let (capacity, until_ns, then) = amounts(supply);
        let record = GateRecord {
            limit: Some(limit),
            by: Some(by),
            capacity: capacity.map(u64::from),
            until_ns,
            then: then.map(f64::from),
            ..GateRecord::default()
        };
        let about = format!("{by} {limit}");
        self.keep(at, GateEvent::Supply, about, is_configured, record);
    }

    fn fill(&self, at: Timestamp, id: BucketId, supply: Supply<tidegate_limits::Fill>) {
        let (fill, until_ns, then) = amounts(supply);
        let record = GateRecord {
            bucket: Some(id.0),
            fill: fill.map(tidegate_limits::Fill::get),
            until_ns,
            then: then.map(tidegate_limits::Fill::get),
            ..GateRecord::default()
        };
        let (about, is_configured) = (id.0.to_string(), record.fill.is_none());
        self.keep(at, GateEvent::Fill, about, is_configured, record);
    }

    fn bucket(&self, at: Timestamp, id: BucketId, rule: &BucketRule, mode: LimitMode) {
        let limit = match &rule.limit {
            BucketLimit::Bucket { burst, fill } => BucketFigures {
                burst: burst.get(),
                fill: Some(fill.get()),
                rate: None,
            },
            BucketLimit::Paced(pace) => BucketFigures {
                burst: pace.burst(),
                fill: None,
                rate: Some(pace.rate().get()),
            },
        };
        let rule = BucketFields {
            name: rule.name.to_string(),
            limit,
            observes: mode == LimitMode::Observe,
            rejects: rule.on_excess == OnExcess::Reject,
            by_arrival: rule.order == BucketOrder::Fifo,
            settles: rule.settlement == Settlement::Measured,
        };
        let record = GateRecord {
            bucket: Some(id.0),
            rule: Some(&rule),
            ..GateRecord::default()
        };
        self.keep(at, GateEvent::Bucket, id.0.to_string(), false, record);
    }

    fn bucket_gone(&self, at: Timestamp, id: BucketId) {
        let mut in_force = lock(&self.in_force);
        for event in [GateEvent::Bucket, GateEvent::Fill] {
            in_force.remove(&(event, id.0.to_string()));
        }
        drop(in_force);
        let record = GateRecord {
            bucket: Some(id.0),
            ..GateRecord::default()
        };
        self.write(at, GateEvent::BucketGone, record);
    }

    /// In as many lines as it needs.
    fn carried(&self, at: Timestamp, carried: &CarriedState) {
        let part = |part: CarriedFields| self.carried_part(at, part);
        for (limit, departures) in &carried.windows {
            for some in departures.chunks(CARRIED_MAX) {
                let some = some.iter().map(|(at, cost)| (at.as_nanos(), cost.get()));
                part(CarriedFields {
                    windows: vec![CarriedWindow {
                        limit: limit.clone(),
                        departures: some.collect(),
                    }],
                    ..CarriedFields::default()
                });
            }
        }
        let level = |bucket, limit: &str, tokens, at: Timestamp| CarriedLevel {
            bucket,
            limit: limit.to_owned(),
            tokens,
            at_ns: at.as_nanos(),
        };
        let levels = carried.levels.iter();
        let levels = levels.map(|&(id, tokens, at)| level(id.0, "", tokens, at));
        let paces = carried.paces.iter();
        let paces = paces.map(|(limit, tokens, at)| level(0, limit, *tokens, *at));
        let levels: Vec<_> = levels.chain(paces).collect();
        for some in levels.chunks(CARRIED_MAX) {
            part(CarriedFields {
                levels: some.to_vec(),
                ..CarriedFields::default()
            });
        }
        for some in carried.calls.chunks(CARRIED_MAX) {
            let some = some.iter().map(|it| CarriedCallFields {
                function: it.call.function.to_string(),
                class: it.class.to_string(),
                backend: it.call.backend.0,
                cost: it.call.cost.get(),
                since_ns: it.since.as_nanos(),
                sent: it.departed.contains(&WindowStamp::Sent),
                replied: it.departed.contains(&WindowStamp::Replied),
            });
            part(CarriedFields {
                calls: some.collect(),
                ..CarriedFields::default()
            });
        }
    }

    fn carried_part(&self, at: Timestamp, part: CarriedFields) {
        let record = GateRecord {
            carried: Some(&part),
            ..GateRecord::default()
        };
        self.write(at, GateEvent::Carried, record);
    }

    /// The answer of the store of quotas, and what is said of it and its keys.
    fn of_quotas(&self, at: Timestamp, event: SchedulerEvent<'_>) {
        let of_none = GateRecord::default();
        let (event, record) = match event {
            SchedulerEvent::Quotas => (GateEvent::Quotas, of_none),
            SchedulerEvent::QuotaRule { of, rule } => {
                let settings = rule.map(quota::WindowRule::settings);
                let record = GateRecord {
                    total: settings.map(|it| it.total),
                    base: settings.and_then(|it| it.base),
                    ..of_key(of)
                };
                (GateEvent::QuotaRule, record)
            }
            SchedulerEvent::QuotaNodes(nodes) => {
                let nodes = Some(nodes.into());
                (GateEvent::QuotaNodes, GateRecord { nodes, ..of_none })
            }
            SchedulerEvent::QuotaPast(from) => {
                let earliest_ns = u64::try_from(from.as_nanos()).ok();
                let record = GateRecord {
                    earliest_ns,
                    ..of_none
                };
                (GateEvent::QuotaPast, record)
            }
            SchedulerEvent::StoreTime(time) => (GateEvent::StoreTime, store_time(time, of_none)),
            SchedulerEvent::QuotaAnswer {
                of,
                question,
                reply,
                entropy,
                time,
            } => {
                let (word, version, text) = reply_parts(&reply);
                let record = GateRecord {
                    question: Some(question.number()),
                    reply: Some(word),
                    version,
                    record: text.as_deref(),
                    entropy: Some(entropy),
                    ..of_key(of)
                };
                return self.write(at, GateEvent::QuotaAnswer, store_time(time, record));
            }
            SchedulerEvent::QuotaChanged { of } => (GateEvent::QuotaChanged, of_key(of)),
            _ => (GateEvent::StoreBack, of_none),
        };
        self.write(at, event, record);
    }
}

impl admit::Journal for GateJournal {
    fn note(&self, at: Timestamp, event: SchedulerEvent<'_>) {
        // Under the lock of the gate, and often: nothing is built that no line will have.
        if !self.access.keeps_replay() {
            return;
        }
        match event {
            SchedulerEvent::Supply { limit, by, supply } => self.supply(at, limit, by, supply),
            SchedulerEvent::Fill { id, supply } => self.fill(at, id, supply),
            SchedulerEvent::Bucket { id, rule, mode } => self.bucket(at, id, rule, mode),
            SchedulerEvent::BucketRemoved { id } => self.bucket_gone(at, id),
            SchedulerEvent::Share(share) => {
                let whole = share == SupplyShare::FULL;
                let thousandths = (!whole).then_some(share.thousandths().into());
                let record = GateRecord {
                    share_thousandths: thousandths,
                    ..GateRecord::default()
                };
                self.keep(at, GateEvent::Share, String::new(), whole, record);
            }
            SchedulerEvent::Carried(carried) => self.carried(at, carried),
            SchedulerEvent::CarriedFull => self.carried_part(
                at,
                CarriedFields {
                    full: true,
                    ..CarriedFields::default()
                },
            ),
            SchedulerEvent::CarriedDone(done) => self.carried_part(
                at,
                CarriedFields {
                    done,
                    ..CarriedFields::default()
                },
            ),
            SchedulerEvent::Woke => self.write(at, GateEvent::Woke, GateRecord::default()),
            event => self.of_quotas(at, event),
        }
    }

    fn would(&self, at: Timestamp, class: &str, would: &Would, late: Option<u64>) {
        self.metrics.would_have.count(class, would);
        let Some(id) = late else {
            return;
        };
        let record = GateRecord {
            id: Some(id),
            would_end: would.end(),
            would_wait_ms: Some(would.wait),
            would_limit: would.limit.as_deref(),
            would_reason: would.reason(),
            ..GateRecord::default()
        };
        let record = self.stamped(at, record);
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            self.access.write_beside(|line| {
                record.write(line, GateEvent::Would, self.clock.wall(at));
            });
    }
}

/// The amount of a supply, the instant until which it holds, and the amount from then on; none as configured.
fn amounts<T>(supply: Supply<T>) -> (Option<T>, Option<u64>, Option<T>) {
    match supply {
        Supply::Configured => (None, None, None),
        Supply::Capacity {
            capacity,
            expires_at,
            then,
        } => {
            let until_ns = expires_at.map(Timestamp::as_nanos);
            (Some(capacity), until_ns, Some(then))
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn of_key(of: &QuotaKey) -> GateRecord<'_> {
    GateRecord {
        limit: Some(&of.quota),
        key: Some(&of.key),
        ..GateRecord::default()
    }
}

/// The word of a store's reply, and what came with it.
fn reply_parts(reply: &StoreReply) -> (&'static str, Option<u64>, Option<String>) {
    match reply {
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
    }
}

/// The store's time, as an interval seen at a moment. Without a latest one, its end is unknown.
fn store_time(time: StoreTime, record: GateRecord<'_>) -> GateRecord<'_> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).ok();
    GateRecord {
        seen_ns: Some(time.now().as_nanos()),
        earliest_ns: nanos(time.earliest()),
        latest_ns: nanos(time.latest()),
        ..record
    }
}

/// The costs of the calls that meet paced limits: they decide the pools.
fn costs(limits: &GateSettings) -> Vec<PacedCost> {
    let costs = limits.paced.iter().map(|limit| PacedCost {
        name: limit.name.to_string(),
        cheapest: limit.costs.cheapest.get(),
        most_expensive: limit.costs.most_expensive.get(),
    });
    costs.collect()
}
