//! The content of the state file. Every value is checked where it is read, so that a mistake is
//! reported with its place in the file.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tidegate_callers::Tally;
use tidegate_callers::{
    CallerId, Charge, Field, Group, Kind, Label, LimitRef, Notes, Pattern, PatternText, SavedCaller,
};
use tidegate_limits::bucket::{OutOfRange, TokenCount};
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::scheduler::{BucketMode, BucketOrder, OnExcess, Settlement};
use tidegate_limits::{Burst, Fill, Weight};

use crate::call::claim::{Deadline, RateLimitId};
use crate::callers::rate_limit::{Allowance, MadeBy, RateLimit, Rule};
use crate::callers::settings::Costs;
use crate::callers::{Saved, SavedRow};

/// The version of the format below.
pub(super) const SCHEMA: u32 = 1;
const CHECKED: &str = "it was checked when it was read";

/// The whole state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    callers: Vec<Row>,
    /// Not in files of the first version, which had only the ids of existing rows.
    #[serde(default)]
    caller_ids_given: u64,
    rate_limits: Vec<Limit>,
    rate_limits_made: u32,
    costs: Option<StoredCosts>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: u64,
    kind: RowKind,
    #[serde(deserialize_with = "label")]
    label: Option<String>,
    #[serde(deserialize_with = "groups")]
    groups: Vec<String>,
    #[serde(deserialize_with = "notes")]
    notes: String,
    #[serde(rename = "match")]
    patterns: Vec<StoredPattern>,
    charge: StoredCharge,
    /// Seconds since 1970; 0 for never.
    last_call: u64,
    weight: Option<NonZeroU32>,
    calls: u64,
    /// Millionths of a token.
    micro_tokens: u64,
    delayed: u64,
    refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowKind {
    Config,
    Made,
    Auto,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredCharge {
    None,
    Limit(u32),
    Exempt,
}

/// A readable pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PatternFields")]
struct StoredPattern(PatternFields);

/// Each field in its written form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PatternFields {
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    originator: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    user_agent: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    listener: String,
}

impl PatternFields {
    fn parse(&self) -> Result<Pattern, String> {
        let text = PatternText {
            user: &self.user,
            originator: &self.originator,
            ip: &self.ip,
            user_agent: &self.user_agent,
            listener: &self.listener,
        };
        Pattern::parse(&text).map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            mistakes.join("; ")
        })
    }
}

impl TryFrom<PatternFields> for StoredPattern {
    type Error = String;

    fn try_from(fields: PatternFields) -> Result<Self, String> {
        fields.parse()?;
        Ok(Self(fields))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    id: u32,
    #[serde(deserialize_with = "limit_label")]
    label: String,
    from_config: bool,
    profile: Option<String>,
    /// Without both a bucket and a pace, it admits everything.
    bucket: Option<Bucket>,
    /// Older files, without paces, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<StoredPace>,
    observe: bool,
    reject: bool,
    fifo: bool,
    settle: Option<bool>,
    no_deadline: bool,
}

/// A valid bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Figures")]
struct Bucket(Figures);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    burst: f64,
    fill: f64,
}

impl TryFrom<Figures> for Bucket {
    type Error = OutOfRange;

    fn try_from(figures: Figures) -> Result<Self, OutOfRange> {
        Burst::new(figures.burst)?;
        Fill::new(figures.fill)?;
        Ok(Self(figures))
    }
}

/// A valid pace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PaceFigures")]
struct StoredPace(PaceFigures);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaceFigures {
    rate: f64,
    ratio: f64,
}

impl TryFrom<PaceFigures> for StoredPace {
    type Error = OutOfRange;

    fn try_from(figures: PaceFigures) -> Result<Self, OutOfRange> {
        Rate::new(figures.rate)?;
        BurstRatio::new(figures.ratio)?;
        Ok(Self(figures))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCosts {
    #[serde(deserialize_with = "cost")]
    default_micro_tokens: u64,
    functions: Vec<FunctionCost>,
    #[serde(deserialize_with = "unit")]
    unit_nanos: u64,
    settle: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionCost {
    function: String,
    #[serde(deserialize_with = "cost")]
    micro_tokens: u64,
}

impl Stored {
    pub(super) fn of(saved: &Saved) -> Self {
        Self {
            callers: saved.callers.iter().map(Row::of).collect(),
            caller_ids_given: saved.caller_ids_given,
            rate_limits: saved.rate_limits.iter().map(Limit::of).collect(),
            rate_limits_made: saved.rate_limits_made,
            costs: saved.costs.as_ref().map(StoredCosts::of),
        }
    }

    pub(super) fn into_saved(self) -> Saved {
        let limits = self.rate_limits.into_iter().map(Limit::into_saved);
        Saved {
            callers: self.callers.into_iter().map(Row::into_saved).collect(),
            caller_ids_given: self.caller_ids_given,
            rate_limits: limits.collect(),
            rate_limits_made: self.rate_limits_made,
            costs: self.costs.map(StoredCosts::into_saved),
        }
    }
}

impl Row {
    fn of(saved: &SavedRow) -> Self {
        let SavedRow {
            caller,
            weight,
            total,
        } = saved;
        let patterns = caller.patterns.iter().map(|pattern| {
            let written = |field| pattern.written(field);
            StoredPattern(PatternFields {
                user: written(Field::User),
                originator: written(Field::Originator),
                ip: written(Field::Ip),
                user_agent: written(Field::UserAgent),
                listener: written(Field::Listener),
            })
        });
        Self {
            id: caller.id.0,
            kind: match caller.kind {
                Kind::Static => RowKind::Config,
                Kind::Made => RowKind::Made,
                Kind::Auto => RowKind::Auto,
                Kind::Unknown => RowKind::Unknown,
            },
            label: caller.label.as_ref().map(Label::to_string),
            groups: caller.groups.iter().map(Group::to_string).collect(),
            notes: caller.notes.to_string(),
            patterns: patterns.collect(),
            charge: match caller.charge {
                Charge::None => StoredCharge::None,
                Charge::Limit(LimitRef(id)) => StoredCharge::Limit(id),
                Charge::Exempt => StoredCharge::Exempt,
            },
            last_call: caller.last_call,
            weight: weight.and_then(|weight| NonZeroU32::new(weight.get())),
            calls: total.calls,
            micro_tokens: total.tokens.micros(),
            delayed: total.delayed,
            refused: total.refused,
        }
    }

    fn into_saved(self) -> SavedRow {
        let groups = self.groups.iter();
        let patterns = self.patterns.iter();
        SavedRow {
            caller: SavedCaller {
                id: CallerId(self.id),
                kind: match self.kind {
                    RowKind::Config => Kind::Static,
                    RowKind::Made => Kind::Made,
                    RowKind::Auto => Kind::Auto,
                    RowKind::Unknown => Kind::Unknown,
                },
                label: self.label.map(|text| Label::new(&text).expect(CHECKED)),
                groups: groups.map(|it| Group::new(it).expect(CHECKED)).collect(),
                notes: Notes::new(&self.notes).expect(CHECKED),
                patterns: patterns.map(|it| it.0.parse().expect(CHECKED)).collect(),
                charge: match self.charge {
                    StoredCharge::None => Charge::None,
                    StoredCharge::Limit(id) => Charge::Limit(LimitRef(id)),
                    StoredCharge::Exempt => Charge::Exempt,
                },
                last_call: self.last_call,
            },
            weight: self.weight.and_then(|weight| Weight::new(weight.get())),
            total: Tally {
                calls: self.calls,
                tokens: TokenCount::from_micros(self.micro_tokens),
                delayed: self.delayed,
                refused: self.refused,
            },
        }
    }
}

impl Limit {
    fn of(limit: &RateLimit) -> Self {
        let rule = &limit.rule;
        Self {
            id: limit.id.0,
            label: limit.label.to_string(),
            from_config: limit.made_by == MadeBy::Config,
            profile: rule.profile.as_deref().map(ToOwned::to_owned),
            bucket: match rule.allowance {
                Allowance::Exempt | Allowance::Paced { .. } => None,
                Allowance::Bucket { burst, fill } => Some(Bucket(Figures {
                    burst: burst.get(),
                    fill: fill.get(),
                })),
            },
            pace: match rule.allowance {
                Allowance::Exempt | Allowance::Bucket { .. } => None,
                Allowance::Paced { rate, ratio } => Some(StoredPace(PaceFigures {
                    rate: rate.get(),
                    ratio: ratio.get(),
                })),
            },
            observe: rule.mode == BucketMode::Observe,
            reject: rule.on_excess == OnExcess::Reject,
            fifo: rule.order == BucketOrder::Fifo,
            settle: rule.settlement.map(|it| it == Settlement::Measured),
            no_deadline: rule.deadline == Deadline::None,
        }
    }

    fn into_saved(self) -> RateLimit {
        fn one_of<T>(is_first: bool, first: T, second: T) -> T {
            if is_first { first } else { second }
        }
        RateLimit {
            id: RateLimitId(self.id),
            label: self.label.into(),
            made_by: one_of(self.from_config, MadeBy::Config, MadeBy::Api),
            rule: Rule {
                allowance: match (self.bucket, self.pace) {
                    (None, None) => Allowance::Exempt,
                    (None, Some(StoredPace(PaceFigures { rate, ratio }))) => Allowance::Paced {
                        rate: Rate::new(rate).expect(CHECKED),
                        ratio: BurstRatio::new(ratio).expect(CHECKED),
                    },
                    // A file with both was not written by this program.
                    (Some(Bucket(Figures { burst, fill })), _) => Allowance::Bucket {
                        burst: Burst::new(burst).expect(CHECKED),
                        fill: Fill::new(fill).expect(CHECKED),
                    },
                },
                profile: self.profile.map(Arc::from),
                mode: one_of(self.observe, BucketMode::Observe, BucketMode::Enforce),
                on_excess: one_of(self.reject, OnExcess::Reject, OnExcess::Delay),
                order: one_of(self.fifo, BucketOrder::Fifo, BucketOrder::Fair),
                settlement: self
                    .settle
                    .map(|settles| one_of(settles, Settlement::Measured, Settlement::Estimate)),
                deadline: one_of(self.no_deadline, Deadline::None, Deadline::Ordinary),
            },
        }
    }
}

impl StoredCosts {
    fn of(costs: &Costs) -> Self {
        let functions = costs.functions.iter().map(|(function, cost)| FunctionCost {
            function: function.to_string(),
            micro_tokens: cost.micros(),
        });
        Self {
            default_micro_tokens: costs.default.micros(),
            functions: functions.collect(),
            unit_nanos: u64::try_from(costs.unit.as_nanos()).expect("a unit is at most an hour"),
            settle: costs.settle,
        }
    }

    fn into_saved(self) -> Costs {
        let functions = self.functions.into_iter().map(|it| {
            let cost = TokenCount::from_micros(it.micro_tokens);
            (Arc::from(it.function), cost)
        });
        Costs {
            default: TokenCount::from_micros(self.default_micro_tokens),
            functions: functions.collect(),
            unit: Duration::from_nanos(self.unit_nanos),
            settle: self.settle,
        }
    }
}

// Values that are checked when they are read.

fn label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    if let Some(text) = &text {
        Label::new(text).map_err(D::Error::custom)?;
    }
    Ok(text)
}

fn limit_label<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Label::new(&text).map_err(D::Error::custom)?;
    Ok(text)
}

fn groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    for name in &names {
        Group::new(name).map_err(D::Error::custom)?;
    }
    Ok(names)
}

fn notes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Notes::new(&text).map_err(D::Error::custom)?;
    Ok(text)
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let micros = u64::deserialize(deserializer)?;
    if TokenCount::from_micros(micros).tokens() > 1e6 {
        return Err(D::Error::custom("a cost must be at most 1000000 tokens"));
    }
    Ok(micros)
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    const HOUR: u64 = 3_600_000_000_000;
    let nanos = u64::deserialize(deserializer)?;
    if !(1..=HOUR).contains(&nanos) {
        return Err(D::Error::custom("a unit must be at most an hour"));
    }
    Ok(nanos)
}
