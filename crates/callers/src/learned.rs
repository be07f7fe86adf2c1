//! The costs of calls by their answers: how much of a limit to reserve for the next one.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use tidegate_limits::bucket::TokenCount;

use crate::usage::FunctionId;

/// The costs of the latest calls, by a function and a class.
///
/// Memory: at most 16 kB for each of [`LearnedCosts::KEYS_MAX`] pairs. Further pairs are not learned.
#[derive(Clone, Debug, Default)]
pub struct LearnedCosts<C: Ord> {
    costs: BTreeMap<(FunctionId, C), LatestCosts>,
}

/// The latest costs: in the order in which they came, and by size.
#[derive(Clone, Debug, Default)]
struct LatestCosts {
    latest: VecDeque<TokenCount>,
    sorted: Vec<TokenCount>,
}

impl<C: Ord> LearnedCosts<C> {
    /// Pairs that are learned, at most.
    pub const KEYS_MAX: usize = 256;
    /// Calls that count for a pair, at most.
    pub const CALLS_MAX: usize = 1000;
    /// From this number of calls on, a pair has a quantile.
    pub const CALLS_MIN: usize = 20;

    /// Counts what a call has cost.
    pub fn count(&mut self, function: FunctionId, class: C, cost: TokenCount) {
        let key = (function, class);
        if self.costs.len() >= Self::KEYS_MAX && !self.costs.contains_key(&key) {
            return;
        }
        self.costs
            .entry(key)
            .or_default()
            .count(cost, Self::CALLS_MAX);
    }

    /// The least cost that 95 of 100 of the latest calls did not exceed; `None` if they are too few.
    pub fn reserve(&self, function: FunctionId, class: C) -> Option<TokenCount> {
        let sorted = &self.costs.get(&(function, class))?.sorted;
        if sorted.len() < Self::CALLS_MIN {
            return None;
        }
        let rank = (sorted.len() * 95).div_ceil(100);
        sorted.get(rank - 1).copied()
    }
}

impl LatestCosts {
    fn count(&mut self, cost: TokenCount, most: usize) {
        if self.latest.len() == most
            && let Some(oldest) = self.latest.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.latest.push_back(cost);
        let at = self.sorted.partition_point(|it| *it < cost);
        self.sorted.insert(at, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: FunctionId = FunctionId(1);

    fn tokens(count: u64) -> TokenCount {
        TokenCount::from_micros(count * 1_000_000)
    }

    #[test]
    fn it_is_the_quantile_of_the_latest_calls_as_sorting_them_finds_it() {
        let mut learned = LearnedCosts::default();
        let mut all = Vec::new();
        let mut state = 1_u64;
        for nth in 1..=3000 {
            // A linear congruential generator, whose tail is heavy after the shift.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let cost = tokens(1 << (state >> 60));
            learned.count(FUNCTION, "user", cost);
            all.push(cost);
            let mut latest = all[all.len().saturating_sub(1000)..].to_vec();
            latest.sort_unstable();
            let wanted = latest[(latest.len() * 95).div_ceil(100) - 1];
            let found = learned.reserve(FUNCTION, "user");
            assert_eq!(found, (nth >= 20).then_some(wanted), "after {nth}");
        }
        assert_eq!(learned.reserve(FUNCTION, "polling"), None);
        assert_eq!(learned.reserve(FunctionId::OTHER, "user"), None);
    }

    #[test]
    fn it_is_bounded() {
        let mut learned = LearnedCosts::default();
        for function in 0..1000 {
            for _ in 0..20 {
                learned.count(FunctionId(function), (), tokens(7));
            }
        }
        assert_eq!(learned.costs.len(), LearnedCosts::<()>::KEYS_MAX);
        assert_eq!(learned.reserve(FunctionId(255), ()), Some(tokens(7)));
        assert_eq!(learned.reserve(FunctionId(256), ()), None);
        for _ in 0..5000 {
            learned.count(FUNCTION, (), tokens(9));
        }
        assert_eq!(learned.costs[&(FUNCTION, ())].latest.len(), 1000);
        assert_eq!(learned.costs[&(FUNCTION, ())].sorted.len(), 1000);
    }
}
