//! The content of the state file. Every value is checked where it is read, so that a mistake is
//! reported with its place in the file.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_callers::{
    CallerId, CallerRow, Charge, CostUnit, Group, Label, LastCall, Notes, Pattern, PatternText,
    RateLimitId, RowKind, UsageTally,
};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::{Burst, Fill, Tokens, Weight};

use crate::admin::written::{patterns, some_text, text, texts};
use crate::call::costs::Costs;
use crate::call::rate_limit::{Allowance, Handling};
use crate::callers::rate_limit::{RateLimit, RateLimitOrigin, Rule};
use crate::callers::{SavedCallers, SavedRow};

/// The version of the format below.
pub(super) const SCHEMA: u32 = 1;

/// The whole state.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SavedCallers", deny_unknown_fields)]
struct StoredState {
    callers: Vec<SavedRow>,
    /// Not in files of the first version, which had only the ids of existing rows.
    #[serde(default)]
    caller_ids_given: u64,
    rate_limits: Vec<RateLimit>,
    rate_limits_made: u32,
    costs: Option<Costs>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SavedRow", deny_unknown_fields)]
struct StoredRow {
    #[serde(flatten, with = "StoredCaller")]
    caller: CallerRow,
    #[serde(flatten, with = "StoredTally")]
    total: UsageTally,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CallerRow")]
struct StoredCaller {
    #[serde(with = "StoredCallerId")]
    id: CallerId,
    #[serde(with = "StoredKind")]
    kind: RowKind,
    #[serde(serialize_with = "some_text", deserialize_with = "label")]
    label: Option<Label>,
    #[serde(serialize_with = "texts", deserialize_with = "groups")]
    groups: Box<[Group]>,
    #[serde(serialize_with = "text", deserialize_with = "notes")]
    notes: Notes,
    #[serde(rename = "match", serialize_with = "patterns")]
    #[serde(deserialize_with = "patterns_of")]
    patterns: Box<[Pattern]>,
    #[serde(with = "RowCharge")]
    charge: Charge,
    #[serde(serialize_with = "moment", deserialize_with = "earlier")]
    last_call: LastCall,
    #[serde(serialize_with = "turns", deserialize_with = "weight")]
    weight: Option<Weight>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CallerId")]
struct StoredCallerId(u64);

#[derive(Serialize, Deserialize)]
#[serde(remote = "RowKind", rename_all = "snake_case")]
enum StoredKind {
    #[serde(rename = "config")]
    Static,
    Made,
    Auto,
    Unknown,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Charge", rename_all = "snake_case")]
enum RowCharge {
    None,
    Limit(#[serde(with = "Reference")] RateLimitId),
    Exempt,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RateLimitId")]
struct Reference(u32);

#[derive(Serialize, Deserialize)]
#[serde(remote = "UsageTally")]
struct StoredTally {
    calls: u64,
    #[serde(rename = "micro_tokens", serialize_with = "micros")]
    #[serde(deserialize_with = "tokens")]
    tokens: TokenCount,
    delayed: u64,
    refused: u64,
}

/// Each field in its written form.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoredIdentity {
    user: String,
    originator: String,
    ip: String,
    user_agent: String,
    listener: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRateLimit {
    id: u32,
    label: String,
    from_config: bool,
    profile: Option<String>,
    /// Without both a bucket and a pace, it admits everything.
    bucket: Option<StoredBucket>,
    /// Older files, without paces, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<Pace>,
    #[serde(flatten)]
    handling: Handling,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredBucket {
    burst: f64,
    fill: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pace {
    rate: f64,
    ratio: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Costs", deny_unknown_fields)]
struct StoredCosts {
    #[serde(rename = "default_micro_tokens", serialize_with = "micros")]
    #[serde(deserialize_with = "cost")]
    default: TokenCount,
    #[serde(serialize_with = "function_costs", deserialize_with = "costs")]
    functions: BTreeMap<Arc<str>, TokenCount>,
    #[serde(rename = "unit_nanos", serialize_with = "nanos")]
    #[serde(deserialize_with = "unit")]
    unit: CostUnit,
    settle: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionCost {
    function: String,
    #[serde(rename = "micro_tokens", serialize_with = "micros")]
    #[serde(deserialize_with = "cost")]
    cost: TokenCount,
}

macro_rules! stored {
    ($($Type:ty => $Form:ty),*) => {$(
        impl Serialize for $Type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                <$Form>::serialize(self, to)
            }
        }

        impl<'de> Deserialize<'de> for $Type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <$Form>::deserialize(from)
            }
        }
    )*};
}
stored!(SavedCallers => StoredState, SavedRow => StoredRow, Costs => StoredCosts);

impl Serialize for RateLimit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let bucket = self
            .rule
            .allowance
            .bucket()
            .map(|(burst, fill)| StoredBucket {
                burst: burst.get(),
                fill: fill.get(),
            });
        let pace = self.rule.allowance.pace().map(|(rate, ratio)| Pace {
            rate: rate.get(),
            ratio: ratio.get(),
        });
        let limit = StoredRateLimit {
            id: self.id.0,
            label: self.label.to_string(),
            from_config: self.made_by == RateLimitOrigin::Config,
            profile: self.rule.profile.as_deref().map(ToOwned::to_owned),
            bucket,
            pace,
            handling: self.rule.handling,
        };
        limit.serialize(to)
    }
}

impl<'de> Deserialize<'de> for RateLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let limit = StoredRateLimit::deserialize(from)?;
        Label::new(&limit.label).map_err(D::Error::custom)?;
        let allowance = match (limit.bucket, limit.pace) {
            (None, None) => Allowance::Exempt,
            (None, Some(Pace { rate, ratio })) => Allowance::Paced {
                rate: Rate::new(rate).map_err(D::Error::custom)?,
                ratio: BurstRatio::new(ratio).map_err(D::Error::custom)?,
            },
            // A file with both was not written by this program.
            (Some(StoredBucket { burst, fill }), _) => Allowance::Bucket {
                burst: Burst::new(burst).map_err(D::Error::custom)?,
                fill: Fill::new(fill).map_err(D::Error::custom)?,
            },
        };
        Ok(Self {
            id: RateLimitId(limit.id),
            label: limit.label.into(),
            made_by: match limit.from_config {
                true => RateLimitOrigin::Config,
                false => RateLimitOrigin::Api,
            },
            rule: Rule {
                allowance,
                profile: limit.profile.map(Arc::from),
                handling: limit.handling,
            },
        })
    }
}

// How single values are written.

/// Seconds since 1970; 0 for never.
fn moment<S: Serializer>(last_call: &LastCall, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(match last_call {
        LastCall::Never => 0,
        LastCall::Earlier(seconds) => *seconds,
        LastCall::At(_) => unreachable!("a saved call is of an earlier run"),
    })
}

fn turns<S: Serializer>(weight: &Option<Weight>, to: S) -> Result<S::Ok, S::Error> {
    weight.map(Weight::get).serialize(to)
}

fn micros<S: Serializer>(tokens: &TokenCount, to: S) -> Result<S::Ok, S::Error> {
    tokens.micros().serialize(to)
}

fn nanos<S: Serializer>(unit: &CostUnit, to: S) -> Result<S::Ok, S::Error> {
    let nanos = u64::try_from(unit.get().as_nanos());
    nanos.expect("a unit is at most an hour").serialize(to)
}

fn function_costs<S: Serializer>(
    costs: &BTreeMap<Arc<str>, TokenCount>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(costs.iter().map(|(function, cost)| FunctionCost {
        function: function.to_string(),
        cost: *cost,
    }))
}

// How they are read and checked.

fn label<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Label>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let label = text.map(|text| Label::new(&text)).transpose();
    label.map_err(D::Error::custom)
}

fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Group]>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let groups = names.iter().map(|name| Group::new(name));
    groups.collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn notes<'de, D: Deserializer<'de>>(from: D) -> Result<Notes, D::Error> {
    Notes::new(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn patterns_of<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Pattern]>, D::Error> {
    let pattern = |fields: &StoredIdentity| {
        let text = PatternText {
            user: &fields.user,
            originator: &fields.originator,
            ip: &fields.ip,
            user_agent: &fields.user_agent,
            listener: &fields.listener,
        };
        Pattern::parse(&text).map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            D::Error::custom(mistakes.join("; "))
        })
    };
    let patterns = Vec::<StoredIdentity>::deserialize(from)?;
    patterns.iter().map(pattern).collect()
}

fn earlier<'de, D: Deserializer<'de>>(from: D) -> Result<LastCall, D::Error> {
    Ok(match u64::deserialize(from)? {
        0 => LastCall::Never,
        seconds => LastCall::Earlier(seconds),
    })
}

fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Weight>, D::Error> {
    let turns = Option::<NonZeroU32>::deserialize(from)?;
    Ok(turns.and_then(|turns| Weight::new(turns.get())))
}

fn tokens<'de, D: Deserializer<'de>>(from: D) -> Result<TokenCount, D::Error> {
    u64::deserialize(from).map(TokenCount::from_micros)
}

fn cost<'de, D: Deserializer<'de>>(from: D) -> Result<TokenCount, D::Error> {
    let cost = tokens(from)?;
    if cost.tokens() > Tokens::MAX.get() {
        return Err(D::Error::custom("a cost must be at most 1000000 tokens"));
    }
    Ok(cost)
}

fn costs<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Arc<str>, TokenCount>, D::Error> {
    let costs = Vec::<FunctionCost>::deserialize(from)?.into_iter();
    Ok(costs.map(|it| (it.function.into(), it.cost)).collect())
}

fn unit<'de, D: Deserializer<'de>>(from: D) -> Result<CostUnit, D::Error> {
    let unit = CostUnit::new(Duration::from_nanos(u64::deserialize(from)?));
    unit.ok_or_else(|| D::Error::custom("a unit must be at most an hour"))
}
