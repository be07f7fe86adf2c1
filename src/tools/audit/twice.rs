//! Whether lines of one call agree.
//!
//! A log that is given twice is read side by side with itself, so the two lines of a call come soon
//! one after the other: the calls that came last are enough to compare with.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use super::line::Call;

/// Calls that are kept to compare with, about 64 bytes each.
const CALLS_MAX: usize = 1 << 18;

/// What is known of two lines with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// They say the same.
    Same,
    /// They do not.
    Other,
    /// The first of them is too long ago.
    NotCompared,
}

/// The calls that came last, each as one number.
#[derive(Debug, Default)]
pub(super) struct Lately {
    hasher: RandomState,
    numbers: HashMap<(usize, u64), u64>,
    order: VecDeque<(usize, u64)>,
}

impl Lately {
    /// Takes note of the first line of a call.
    pub(super) fn first(&mut self, sidecar: usize, call: &Call) {
        if self.order.len() == CALLS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        let key = (sidecar, call.id);
        self.numbers.insert(key, self.hasher.hash_one(call));
        self.order.push_back(key);
    }

    /// Compares another line of it.
    pub(super) fn again(&self, sidecar: usize, call: &Call) -> Repeated {
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
    fn two_lines_of_a_call_agree_or_do_not_as_long_as_the_first_is_kept() {
        let call = |id, started| Call {
            id,
            started,
            sent: None,
        };
        let mut lately = Lately::default();
        lately.first(0, &call(1, 7));
        assert_eq!(lately.again(0, &call(1, 7)), Repeated::Same);
        assert_eq!(lately.again(0, &call(1, 8)), Repeated::Other);
        assert_eq!(lately.again(1, &call(1, 7)), Repeated::NotCompared);
        for id in 2..2 + CALLS_MAX as u64 {
            lately.first(0, &call(id, 7));
        }
        assert_eq!(lately.again(0, &call(1, 7)), Repeated::NotCompared);
    }
}
