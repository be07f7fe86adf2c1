//! Input of a scheduler besides calls, as a log has it.

use std::time::Duration;

use tidegate_limits::call::BucketId;
use tidegate_limits::quota::{QuestionId, QuotaRecord, RecordError, StoreReply, StoredRecord};
use tidegate_limits::quota::{RecordVersion, StoreTime};
use tidegate_limits::scheduler::{Supplier, Supply, SupplyShare};
use tidegate_limits::{Fill, Timestamp};
use tidegate_record::kind::{BucketFields, CarriedFields, PacedCost};
use tidegate_record::{GateEvent, GateLine};

use super::names::{Name, NameTable};

/// A line of the gate. The rare ones with much content are in boxes, so that a log with as many of
/// the others as calls fits into memory.
#[derive(Debug, PartialEq)]
pub(super) struct Given {
    /// By the clock of the process.   ns
    pub(super) at: u64,
    /// Whether the line repeats an earlier one, for replays that begin here.
    pub(super) again: bool,
    pub(super) what: SchedulerInput,
}

/// Content of a line of the gate.
#[derive(Debug, PartialEq)]
pub(super) enum SchedulerInput {
    Start(Box<Configured>),
    Reload(Box<Configured>),
    Checkpoint(Box<Configured>),
    /// Costs of calls, which decide the pools of paced limits.
    Costs(Box<[PacedCost]>),
    Supply(Box<Supplied>),
    /// Every limit gives out this part of what it would.
    Share(SupplyShare),
    Fill(Box<(BucketId, Supply<Fill>)>),
    Bucket(Box<(BucketId, BucketFields)>),
    BucketGone(BucketId),
    /// State that counts of the process before.
    Carried(Box<CarriedFields>),
    /// The quotas of the config.
    Quotas,
    QuotaRule(Box<(LoggedKey, Option<KeyFigures>)>),
    QuotaNodes(u32),
    QuotaPast(Duration),
    StoreTime(Box<StoreTime>),
    QuotaAnswer(Box<Answered>),
    QuotaChanged(Box<LoggedKey>),
    StoreBack,
    Woke,
    End,
}

/// A config, as a line has it.
#[derive(Debug, PartialEq)]
pub(super) struct Configured {
    pub(super) phase: Duration,
    pub(super) seed: u64,
    pub(super) fingerprint: String,
    /// `None` if it is too long for a line.
    pub(super) text: Option<String>,
    /// The costs in force, of the calls that meet paced limits. `None` in lines of older versions.
    pub(super) costs: Option<Vec<PacedCost>>,
}

/// The supply of a limit, as a line of the gate has it.
#[derive(Debug, PartialEq)]
pub(super) struct Supplied {
    pub(super) limit: Name,
    pub(super) by: Supplier,
    pub(super) supply: Supply,
}

/// The key of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoggedKey {
    pub(super) quota: Name,
    pub(super) key: Name,
}

/// The rule of a key of its own, where it differs from that of its quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct KeyFigures {
    pub(super) total: u64,
    pub(super) base: Option<u64>,
}

/// The answer of a store of quotas.
#[derive(Debug, PartialEq)]
pub(super) struct Answered {
    pub(super) key: LoggedKey,
    pub(super) question: QuestionId,
    pub(super) reply: StoreReply,
    pub(super) entropy: u64,
    pub(super) time: StoreTime,
}

impl Given {
    /// Of a line; `None` if it cannot be read.
    pub(super) fn of(gate: &GateLine<'_>, names: &mut NameTable) -> Option<Self> {
        Some(Self {
            at: gate.at_ns?,
            again: gate.again == Some(true),
            what: SchedulerInput::of(gate, names)?,
        })
    }
}

impl SchedulerInput {
    fn of(gate: &GateLine<'_>, names: &mut NameTable) -> Option<Self> {
        let configured = || Box::new(Configured::of(gate));
        let bucket = gate.bucket.map(BucketId);
        let mut key = || {
            Some(LoggedKey {
                quota: names.of(gate.limit.as_deref()?),
                key: names.of(gate.key.as_deref()?),
            })
        };
        let Some(event) = GateEvent::of(gate.event.as_deref()?) else {
            // A later version may have more, which changes nothing that this one knows of.
            return Some(Self::Woke);
        };
        Some(match event {
            GateEvent::Start => Self::Start(configured()),
            GateEvent::Reload => Self::Reload(configured()),
            GateEvent::Checkpoint => Self::Checkpoint(configured()),
            GateEvent::Costs => Self::Costs(gate.costs.as_ref()?.clone().into()),
            GateEvent::Supply => Self::Supply(Box::new(Supplied {
                limit: names.of(gate.limit.as_deref()?),
                by: match gate.by.as_deref()? {
                    "health" => Supplier::Health,
                    "operator" => Supplier::Operator,
                    _ => Supplier::Coordinator,
                },
                supply: supply(gate),
            })),
            GateEvent::Share => Self::Share(match gate.share_thousandths {
                None => SupplyShare::FULL,
                Some(share) => SupplyShare::of_thousandths(u16::try_from(share).ok()?),
            }),
            GateEvent::Fill => Self::Fill(Box::new((bucket?, fill(gate)))),
            GateEvent::Bucket => Self::Bucket(Box::new((bucket?, gate.rule.clone()?))),
            GateEvent::BucketGone => Self::BucketGone(bucket?),
            GateEvent::Carried => Self::Carried(Box::new(gate.carried.clone()?)),
            GateEvent::Quotas => Self::Quotas,
            GateEvent::QuotaRule => {
                let base = gate.base;
                let figures = gate.total.map(|total| KeyFigures { total, base });
                Self::QuotaRule(Box::new((key()?, figures)))
            }
            GateEvent::QuotaNodes => Self::QuotaNodes(u32::try_from(gate.nodes?).ok()?),
            GateEvent::QuotaPast => Self::QuotaPast(Duration::from_nanos(gate.earliest_ns?)),
            GateEvent::StoreTime => Self::StoreTime(Box::new(store_time(gate)?)),
            GateEvent::QuotaAnswer => Self::QuotaAnswer(Box::new(Answered {
                key: key()?,
                question: QuestionId::numbered(gate.question?),
                reply: reply(gate)?,
                entropy: gate.entropy?,
                time: store_time(gate)?,
            })),
            GateEvent::QuotaChanged => Self::QuotaChanged(Box::new(key()?)),
            GateEvent::StoreBack => Self::StoreBack,
            GateEvent::End => Self::End,
            GateEvent::Woke | GateEvent::Would => Self::Woke,
        })
    }

    /// The config, if this is one.
    pub(super) fn configured(&self) -> Option<&Configured> {
        match self {
            Self::Start(it) | Self::Reload(it) | Self::Checkpoint(it) => Some(it),
            _ => None,
        }
    }

    /// Whether this is of the store of quotas.
    pub(super) const fn is_of_quotas(&self) -> bool {
        matches!(
            self,
            Self::Quotas
                | Self::QuotaRule(_)
                | Self::QuotaNodes(_)
                | Self::QuotaPast(_)
                | Self::StoreTime(_)
                | Self::QuotaAnswer(_)
                | Self::QuotaChanged(_)
                | Self::StoreBack
        )
    }
}

impl Given {
    /// When a scheduler that is replayed from this line on begins. Before a checkpoint it ran for long.
    pub(super) fn begins(&self) -> Timestamp {
        match self.what {
            SchedulerInput::Start(_) => Timestamp::from_nanos(self.at),
            _ => Timestamp::ZERO,
        }
    }
}

impl Configured {
    fn of(gate: &GateLine<'_>) -> Self {
        Self {
            phase: Duration::from_nanos(gate.phase_ns.unwrap_or(0)),
            seed: gate.seed.unwrap_or(0),
            fingerprint: gate.fingerprint.clone().unwrap_or_default().into(),
            text: gate.config.as_deref().map(str::to_owned),
            costs: gate.costs.clone(),
        }
    }
}

fn supply(gate: &GateLine<'_>) -> Supply {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was written from a u32"
    )]
    let then = gate.then.unwrap_or(0.0) as u32;
    let expires_at = gate.until_ns.map(Timestamp::from_nanos);
    let of = |capacity| Supply::Capacity {
        capacity,
        expires_at,
        then,
    };
    let capacity = gate
        .capacity
        .and_then(|capacity| u32::try_from(capacity).ok());
    capacity.map_or(Supply::Configured, of)
}

fn fill(gate: &GateLine<'_>) -> Supply<Fill> {
    let fill = |fill: Option<f64>| fill.and_then(|fill| Fill::new(fill).ok());
    match (fill(gate.fill), fill(gate.then)) {
        (Some(capacity), Some(then)) => Supply::Capacity {
            capacity,
            expires_at: gate.until_ns.map(Timestamp::from_nanos),
            then,
        },
        _ => Supply::Configured,
    }
}

fn store_time(gate: &GateLine<'_>) -> Option<StoreTime> {
    Some(StoreTime::between(
        Timestamp::from_nanos(gate.seen_ns?),
        Duration::from_nanos(gate.earliest_ns?),
        gate.latest_ns.map_or(Duration::MAX, Duration::from_nanos),
    ))
}

/// The answer of a store. For an unreadable record, the line shows only that it could not be read.
fn reply(gate: &GateLine<'_>) -> Option<StoreReply> {
    Some(match gate.reply.as_deref()? {
        "time" => StoreReply::Time,
        "absent" => StoreReply::Stands(StoredRecord::Absent),
        "record" => StoreReply::Stands(StoredRecord::Record {
            version: RecordVersion(gate.version?),
            record: QuotaRecord::parse(gate.record.as_deref()?.as_bytes()).ok()?,
        }),
        "unreadable" => StoreReply::Stands(StoredRecord::Unreadable {
            error: RecordError::Foreign,
        }),
        "written" => StoreReply::Written(RecordVersion(gate.version?)),
        "unknown" => StoreReply::Unknown,
        "unavailable" => StoreReply::Unavailable,
        "late" => StoreReply::Late,
        "not_yet" => StoreReply::NotYet,
        "dropped" => StoreReply::Dropped,
        _ => return None,
    })
}
