//! Causes that repeat, logged less and less often.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::lock;

/// The most causes with a count of their own.
const CAUSES_MAX: usize = 64;

/// How often something came, by cause.
///
/// Others decide how often it comes: a client in a loop must not fill the log, and must not hide that another one fails
/// for another cause. So each cause is logged when it comes first, and then each time that its count has doubled.
/// What comes after 64 causes counts as one.
#[derive(Debug, Default)]
pub struct Causes(Mutex<HashMap<Box<str>, u64>>);

impl Causes {
    /// Counts one more of this cause. Returns its count if it is worth a line in the log.
    pub fn count(&self, cause: &str) -> Option<u64> {
        let mut counts = lock(&self.0);
        let cause = match counts.contains_key(cause) || counts.len() < CAUSES_MAX {
            true => cause,
            false => "",
        };
        let count = counts.entry(cause.into()).or_default();
        *count += 1;
        count.is_power_of_two().then_some(*count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_logged_at_first_and_then_less_and_less_often() {
        let causes = Causes::default();
        let logged: Vec<u64> = (0..1_000).filter_map(|_| causes.count("a")).collect();
        assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(causes.count("b"), Some(1));
    }

    #[test]
    fn causes_without_end_take_bounded_memory_and_few_lines() {
        let causes = Causes::default();
        let logged = (0..10_000).filter_map(|it| causes.count(&it.to_string()));
        // One for each with a count of its own, and then 1, 2, 4 … 8,192 of all others.
        assert_eq!(logged.count(), CAUSES_MAX + 14);
        assert_eq!(lock(&causes.0).len(), CAUSES_MAX + 1);
    }
}
