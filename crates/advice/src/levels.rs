//! How many calls were at the backend at once, at any time.

/// Steps of one block, of which the highest level is kept.
const BLOCK: usize = 64;

/// The number of calls under way, as steps over time.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// When a level begins.   ns
    at: Vec<u64>,
    /// The level from then on.
    level: Vec<u32>,
    /// The highest level of each block of steps.
    highest: Vec<u32>,
}

impl Levels {
    /// The levels of calls that each run from their first to their second instant. A call
    /// that takes no time is at no level.
    #[must_use]
    pub fn of(calls: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut changes = Vec::new();
        for (start, end) in calls.filter(|(start, end)| start < end) {
            // Ends sort before starts: a slot that comes back at an instant is free at it.
            changes.push((start, 1_i32));
            changes.push((end, -1));
        }
        changes.sort_unstable();
        let mut levels = Self::default();
        let mut now = 0_u32;
        for (at, change) in changes {
            now = now.wrapping_add_signed(change);
            if levels.at.last() == Some(&at) {
                *levels.level.last_mut().expect("as long as `at`") = now;
            } else {
                levels.at.push(at);
                levels.level.push(now);
            }
        }
        let blocks = levels.level.chunks(BLOCK);
        levels.highest = blocks
            .map(|block| block.iter().copied().max().unwrap_or(0))
            .collect();
        levels
    }

    /// The step in which an instant lies; `None` before the first.
    fn step(&self, at: u64) -> Option<usize> {
        self.at
            .partition_point(|begins| *begins <= at)
            .checked_sub(1)
    }

    /// How many ran at an instant, with those that started at it and without those that ended.
    #[must_use]
    pub fn at(&self, at: u64) -> u32 {
        self.step(at).map_or(0, |step| self.level[step])
    }

    /// The most at once from `from` until before `to`.
    #[must_use]
    pub fn most(&self, from: u64, to: u64) -> u32 {
        let mut step = self.step(from).unwrap_or(0);
        let ends = self.at.partition_point(|begins| *begins < to);
        let mut most = 0;
        while step < ends {
            if step.is_multiple_of(BLOCK) && step + BLOCK <= ends {
                most = most.max(self.highest[step / BLOCK]);
                step += BLOCK;
            } else {
                most = most.max(self.level[step]);
                step += 1;
            }
        }
        most
    }

    /// Every level between two instants, with how long it lasted in ns.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = (u32, u64)> {
        let first = self.step(from).unwrap_or(0);
        (first..self.at.len())
            .take_while(move |step| self.at[*step] < to)
            .map(move |step| {
                let begins = self.at[step].max(from);
                let ends = self.at.get(step + 1).map_or(to, |next| to.min(*next));
                (self.level[step], ends.saturating_sub(begins))
            })
    }

    /// The mean level between two instants, by time.
    #[must_use]
    pub fn mean(&self, from: u64, to: u64) -> f64 {
        let area: f64 = self
            .between(from, to)
            .map(|(level, lasted)| f64::from(level) * lasted as f64)
            .sum();
        area / to.saturating_sub(from).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    #[test]
    fn levels_are_those_that_counting_call_by_call_gives() {
        let mut draw = Draw::new(3);
        for _ in 0..50 {
            let calls: Vec<(u64, u64)> = (0..300)
                .map(|_| {
                    let start = draw.below(2_000) as u64;
                    (start, start + draw.below(60) as u64)
                })
                .collect();
            let levels = Levels::of(calls.iter().copied());
            let count = |at: u64| {
                let runs = calls
                    .iter()
                    .filter(|(start, end)| *start <= at && at < *end);
                runs.count() as u32
            };
            for _ in 0..50 {
                let from = draw.below(2_000) as u64;
                let to = from + 1 + draw.below(200) as u64;
                assert_eq!(levels.at(from), count(from));
                let all: Vec<_> = (from..to).map(count).collect();
                assert_eq!(Some(levels.most(from, to)), all.iter().copied().max());
                let mean = f64::from(all.iter().sum::<u32>()) / (to - from) as f64;
                assert!((levels.mean(from, to) - mean).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn without_calls_there_is_no_level() {
        let levels = Levels::of([(5, 5)].into_iter());
        assert_eq!(levels.at(5), 0);
        assert_eq!(levels.most(0, 10), 0);
    }
}
