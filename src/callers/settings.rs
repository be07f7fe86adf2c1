//! The settings of this stage.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::CostModel;
use tidegate_callers::{Group, Label, Pattern};
use tidegate_limits::Weight;
use tidegate_limits::bucket::TokenCount;

pub use super::rate_limit::QuotaBy;
use super::rate_limit::{Profile, Rule};
use crate::call::claim::drawn;
use crate::call::pace::CostRange;

/// The settings of this stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// How callers register themselves.
    pub table: tidegate_callers::TableSettings,
    /// The callers of the config.
    pub callers: Vec<StaticCaller>,
    /// The rate limits of the config.
    pub rate_limits: Vec<StaticRateLimit>,
    /// The quotas that calls draw from, at most [`QUOTAS_MAX`].
    pub quotas: Vec<Quota>,
    /// Named sizes of rate limits.
    pub profiles: Vec<Profile>,
    /// What calls cost.
    pub costs: Costs,
    /// Functions with statistics of their own.
    pub functions: Vec<Arc<str>>,
    /// Names of the config's limits that are not for callers, but stand beside theirs: no rate
    /// limit is made under one of them.
    pub reserved: Vec<Arc<str>>,
    /// Where what was made through the API is kept.
    pub state_file: Option<PathBuf>,
}

/// One `[[caller]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticCaller {
    /// Its name, by which a reload finds it again.
    pub label: Label,
    /// What belongs to it.
    pub patterns: Vec<Pattern>,
    /// The groups that it is in.
    pub groups: Vec<Group>,
    /// The name of its rate limit.
    pub rate_limit: Option<Arc<str>>,
    /// How many turns it has for one of an ordinary caller.
    pub weight: Option<Weight>,
}

/// One `[[rate_limit]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRateLimit {
    /// Its name, by which a reload finds it again.
    pub name: Arc<str>,
    /// What it says.
    pub rule: Rule,
}

/// The most quotas, each of which a call may meet.
pub const QUOTAS_MAX: usize = 8;

/// A quota, as far as a claim needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its name in refusals, logs and metrics, which begins with `rate_limit:`.
    pub name: Arc<str>,
    /// What has a quota of its own.
    pub by: QuotaBy,
}

/// What calls cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A call of a function that has no cost of its own.
    pub default: TokenCount,
    /// Functions with a cost of their own, each once.
    pub functions: Vec<(Arc<str>, TokenCount)>,
    /// The backend's time that one token stands for.
    pub unit: Duration,
    /// Whether calls are charged in the end by the time that they took, unless their rate
    /// limit says otherwise.
    pub settle: bool,
}

impl Costs {
    /// The cost of the most expensive call, of any function.
    #[must_use]
    pub fn most_expensive(&self) -> TokenCount {
        let own = self.functions.iter().map(|(_, cost)| *cost);
        own.fold(self.default, TokenCount::max)
    }

    /// What the calls of this function cost, or of all if none is named: the cheapest that costs
    /// anything, and the most expensive.
    #[must_use]
    pub fn range(&self, function: Option<&str>) -> CostRange {
        let (cheapest, most_expensive) = match function {
            Some(function) => (self.of(function), self.of(function)),
            None => {
                let own = self.functions.iter().map(|(_, cost)| *cost);
                let all = own.chain([self.default]);
                let cheapest = all.filter(|cost| *cost > TokenCount::ZERO).min();
                (cheapest.unwrap_or(TokenCount::ZERO), self.most_expensive())
            }
        };
        CostRange {
            // Calls that cost nothing wait for nothing, so any pool will do.
            cheapest: drawn(match cheapest {
                TokenCount::ZERO => TokenCount::ONE,
                cheapest => cheapest,
            }),
            most_expensive: drawn(most_expensive),
        }
    }

    /// What a call of this function costs.
    #[must_use]
    pub fn of(&self, function: &str) -> TokenCount {
        let own = self.functions.iter().find(|(name, _)| **name == *function);
        own.map_or(self.default, |(_, cost)| *cost)
    }
}

/// One token a call, which stands for a tenth of a second, and nothing is settled.
impl Default for Costs {
    fn default() -> Self {
        Self {
            default: TokenCount::ONE,
            functions: Vec::new(),
            unit: CostModel::UNIT,
            settle: false,
        }
    }
}
