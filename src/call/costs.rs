//! The costs of calls, as an operator sets them. The config, the API, the state file and the stage share this type.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use tidegate_callers::CostUnit;
use tidegate_limits::bucket::TokenCount;

use super::claim::drawn;
use super::pace::CostRange;

/// The costs of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A call of a function that has no cost of its own.
    pub default: TokenCount,
    /// Functions with a cost of their own.
    pub functions: BTreeMap<Arc<str>, TokenCount>,
    /// The backend's time that one token stands for.
    pub unit: CostUnit,
    /// Whether calls are charged in the end by the time that they took, unless their rate
    /// limit says otherwise.
    pub settle: bool,
}

impl Costs {
    /// The cost of the most expensive call, of any function.
    #[must_use]
    pub fn most_expensive(&self) -> TokenCount {
        self.functions
            .values()
            .copied()
            .fold(self.default, TokenCount::max)
    }

    /// The range of the costs of this function's calls, or of all if no function is named: the cheapest that costs
    /// anything, and the most expensive.
    #[must_use]
    pub fn range(&self, function: Option<&str>) -> CostRange {
        let (cheapest, most_expensive) = match function {
            Some(function) => (self.of(function), self.of(function)),
            None => {
                let all = self.functions.values().copied().chain([self.default]);
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

    /// The cost of a call of this function.
    #[must_use]
    pub fn of(&self, function: &str) -> TokenCount {
        *self.functions.get(function).unwrap_or(&self.default)
    }
}

/// Costs of one token a call, which stands for a tenth of a second, without settlement.
impl Default for Costs {
    fn default() -> Self {
        Self {
            default: TokenCount::ONE,
            functions: BTreeMap::new(),
            unit: CostUnit::default(),
            settle: false,
        }
    }
}

/// The suggested cost of a function, from the backend's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuggestedCost {
    /// The function.
    pub call: String,
    /// Replies over the last 24 hours.
    pub samples: u64,
    /// The mean time of the backend for them, in seconds.
    pub mean_seconds: f64,
    /// The current cost, in tokens.
    pub cost: f64,
    /// The suggested cost, in tokens.
    pub suggested: f64,
}
