//! Sums what was spent of quotas, by key and window, over all sidecars.
//!
//! A window belongs to the store, and each line contains its number, so clock errors do not
//! matter. A call late in a window may be logged after calls of the next, so two windows of a key
//! are kept.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use super::line::Draw;

/// Most keys.
const KEYS_MAX: usize = 1 << 20;

/// The sums of all quotas.
#[derive(Debug, Default)]
pub(super) struct QuotaSums {
    /// By name.
    pub(super) quotas: BTreeMap<Box<str>, KeySums>,
    /// The keys of all of them.
    keys: usize,
    /// Draws that are in no sum: of keys beyond the bound, or of windows that ended long ago.
    pub(super) uncounted: u64,
}

/// The sums of a quota, by key.
#[derive(Debug, Default)]
pub(super) struct KeySums {
    keys: HashMap<Box<str>, Windows>,
    pub(super) found: Fullest,
}

/// The result of one quota, with its fullest window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fullest {
    pub(super) key: Box<str>,
    pub(super) window: KeyWindow,
    /// Windows of any key that were spent beyond every total in their lines.
    pub(super) exceeded: u64,
    /// Windows whose lines give different totals.
    pub(super) disputed: u64,
    /// Of these, windows that were spent beyond the smallest total.
    pub(super) doubtful: u64,
    /// Draws without a window.
    pub(super) unplaced: u64,
}

/// A window of a key. Amounts are millionths of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyWindow {
    pub(super) number: u64,
    pub(super) spent: u64,
    /// The smallest and the largest total in any line.
    pub(super) total: u64,
    pub(super) total_most: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    is_exceeded: bool,
    is_doubtful: bool,
    is_disputed: bool,
}

#[derive(Debug)]
struct Windows {
    newest: KeyWindow,
    before: Option<KeyWindow>,
    /// The most spent in any window, and the smallest total of any.
    most: u64,
    least_total: u64,
    /// Tokens drawn without a window. All of them may belong to one window.
    unplaced: u64,
}

impl QuotaSums {
    /// Adds one draw of a call.
    pub(super) fn draw(&mut self, draw: &Draw, id: u64) {
        let fresh = KeyWindow {
            number: draw.window.unwrap_or(0),
            total: draw.total,
            total_most: draw.total,
            first: id,
            ..KeyWindow::default()
        };
        let known = self.quotas.get(&draw.limit);
        if known.is_none_or(|quota| !quota.keys.contains_key(&draw.key)) {
            if self.keys == KEYS_MAX {
                self.uncounted += 1;
                return;
            }
            self.keys += 1;
        }
        let KeySums { keys, found } = self.quotas.entry(draw.limit.clone()).or_default();
        let windows = keys.entry(draw.key.clone()).or_insert(Windows {
            newest: fresh,
            before: None,
            most: 0,
            least_total: draw.total,
            unplaced: 0,
        });
        windows.least_total = windows.least_total.min(draw.total);
        if draw.window.is_none() {
            windows.unplaced = windows.unplaced.saturating_add(draw.cost);
            found.unplaced += 1;
            return;
        }
        let Some(window) = windows.of(fresh) else {
            self.uncounted += 1;
            return;
        };
        window.spent = window.spent.saturating_add(draw.cost);
        window.total = window.total.min(draw.total);
        window.total_most = window.total_most.max(draw.total);
        window.last = id;
        let KeyWindow {
            spent,
            total,
            total_most,
            ..
        } = *window;
        let first = |noted: &mut bool, is_so: bool| u64::from(is_so && !mem::replace(noted, is_so));
        found.disputed += first(&mut window.is_disputed, total != total_most);
        found.exceeded += first(&mut window.is_exceeded, spent > total_most);
        found.doubtful += first(&mut window.is_doubtful, spent > total);
        if window.fuller_than(&found.window) {
            found.window = *window;
            if found.key != draw.key {
                found.key = draw.key.clone();
            }
        }
        windows.most = windows.most.max(spent);
    }
}

impl KeySums {
    /// Whether the draws without a window could make a window of this quota exceed its total.
    pub(super) fn unplaced_matters(&self) -> bool {
        self.keys.values().any(|windows| {
            let most = windows.most.saturating_add(windows.unplaced);
            windows.unplaced > 0 && most > windows.least_total
        })
    }
}

impl Windows {
    /// The window with the number of a fresh one; `None` if it ended long ago.
    fn of(&mut self, fresh: KeyWindow) -> Option<&mut KeyWindow> {
        if fresh.number > self.newest.number {
            self.before = Some(mem::replace(&mut self.newest, fresh));
        }
        if fresh.number == self.newest.number {
            return Some(&mut self.newest);
        }
        let before = self.before.get_or_insert(fresh);
        if before.number < fresh.number {
            *before = fresh;
        }
        (before.number == fresh.number).then_some(before)
    }
}

impl KeyWindow {
    /// Whether a larger part of its total was spent than of another's.
    fn fuller_than(&self, other: &Self) -> bool {
        let product = |spent: u64, total: u64| u128::from(spent) * u128::from(total.max(1));
        product(self.spent, other.total) > product(other.spent, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(key: &str, window: impl Into<Option<u64>>, total: u64, cost: u64) -> Draw {
        Draw {
            limit: "per_user".into(),
            key: key.into(),
            window: window.into(),
            total,
            cost,
        }
    }

    #[test]
    fn a_window_sums_the_draws_of_all_calls_in_any_order() {
        let mut quotas = QuotaSums::default();
        for (id, (key, window, cost)) in (0..).zip([
            ("a", 1, 60),
            ("b", 1, 90),
            ("a", 2, 50),
            ("a", 1, 40),
            ("a", 2, 51),
            ("b", 2, 100),
        ]) {
            quotas.draw(&draw(key, window, 100, cost), id);
        }
        let found = &quotas.quotas["per_user"].found;
        assert_eq!((&*found.key, found.window.number), ("a", 2));
        assert_eq!((found.window.spent, found.exceeded), (101, 1));
        assert_eq!((found.window.first, found.window.last), (2, 4));
        assert_eq!((quotas.uncounted, found.disputed), (0, 0));
    }

    #[test]
    fn draws_that_come_two_windows_late_are_reported_as_uncounted() {
        let mut quotas = QuotaSums::default();
        for window in [1, 2, 3, 1] {
            quotas.draw(&draw("a", window, 100, 100), 0);
        }
        assert_eq!(
            (quotas.quotas["per_user"].found.exceeded, quotas.uncounted),
            (0, 1)
        );
    }

    #[test]
    fn one_line_with_a_larger_total_does_not_raise_the_limit() {
        let mut quotas = QuotaSums::default();
        quotas.draw(&draw("a", 1, 100, 100), 0);
        quotas.draw(&draw("a", 1, 200, 100), 1);
        let found = &quotas.quotas["per_user"].found;
        assert_eq!((found.exceeded, found.doubtful, found.disputed), (0, 1, 1));
        quotas.draw(&draw("a", 1, 100, 1), 2);
        let found = &quotas.quotas["per_user"].found;
        assert_eq!((found.exceeded, found.doubtful, found.disputed), (1, 1, 1));
    }

    #[test]
    fn draws_without_a_window_matter_if_some_window_has_no_room_for_them() {
        let mut quotas = QuotaSums::default();
        quotas.draw(&draw("a", 1, 100, 60), 0);
        quotas.draw(&draw("a", None, 100, 40), 1);
        assert!(!quotas.quotas["per_user"].unplaced_matters());
        quotas.draw(&draw("a", 2, 100, 61), 2);
        assert!(quotas.quotas["per_user"].unplaced_matters());
        assert_eq!(quotas.quotas["per_user"].found.unplaced, 1);
    }
}
