//! Compares the lines of one call.
//!
//! A log that is given twice is merged with itself, so the two lines of a call come soon after
//! one another. It is enough to compare with the latest calls.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::line::LoggedCall;

/// Calls kept for comparison, about 64 bytes each.
const CALLS_MAX: usize = 1 << 18;

/// The comparison of two lines with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// The lines are equal.
    Same,
    /// The lines differ.
    Other,
    /// The first of them was too long ago.
    NotCompared,
}

/// The latest calls, each as a hash.
#[derive(Debug, Default)]
pub(super) struct Recent {
    hasher: RandomState,
    numbers: HashMap<(usize, u64), u64>,
    order: VecDeque<(usize, u64)>,
}

impl Recent {
    /// Notes the first line of a call.
    pub(super) fn first(&mut self, sidecar: usize, call: &LoggedCall) {
        if self.order.len() == CALLS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        let key = (sidecar, call.id);
        self.numbers.insert(key, self.hasher.hash_one(call));
        self.order.push_back(key);
    }

    /// Compares another line of a call with the first.
    pub(super) fn again(&self, sidecar: usize, call: &LoggedCall) -> Repeated {
        match self.numbers.get(&(sidecar, call.id)) {
            Some(number) if *number == self.hasher.hash_one(call) => Repeated::Same,
            Some(_) => Repeated::Other,
            None => Repeated::NotCompared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_call_are_compared_while_the_first_is_kept() {
        let call = |id, started| LoggedCall {
            id,
            started,
            came: 0,
            sent: None,
        };
        let mut recent = Recent::default();
        recent.first(0, &call(1, 7));
        assert_eq!(recent.again(0, &call(1, 7)), Repeated::Same);
        assert_eq!(recent.again(0, &call(1, 8)), Repeated::Other);
        assert_eq!(recent.again(1, &call(1, 7)), Repeated::NotCompared);
        for id in 2..2 + CALLS_MAX as u64 {
            recent.first(0, &call(id, 7));
        }
        assert_eq!(recent.again(0, &call(1, 7)), Repeated::NotCompared);
    }
}
