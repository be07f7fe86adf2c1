//! Requests that wait for a place among those under way.
//!
//! The newest goes first. The call of an old request has probably left, so a queue in the order
//! of arrival would use the store for answers that no call needs, and every call would be too
//! late. Known keys go before new keys, but every fourth place is for a new key.

use std::collections::VecDeque;

use tokio::time::Instant;

/// Every N-th place is for a new key, while both kinds wait.
const NEW_ONE_IN: u32 = 4;

/// Waiting requests, each with the moment after which it is dropped.
#[derive(Debug)]
pub(super) struct Backlog<T> {
    known: VecDeque<(Instant, T)>,
    new: VecDeque<(Instant, T)>,
    turn: u32,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self {
            known: VecDeque::new(),
            new: VecDeque::new(),
            turn: 0,
        }
    }
}

impl<T> Backlog<T> {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.new.len()
    }

    /// Adds a request of a known key, or of a new one.
    pub(super) fn push(&mut self, is_known: bool, until: Instant, question: T) {
        let queue = match is_known {
            true => &mut self.known,
            false => &mut self.new,
        };
        queue.push_back((until, question));
    }

    /// The next request: the newest.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.turn = self.turn.wrapping_add(1);
        let new_first = self.turn.is_multiple_of(NEW_ONE_IN);
        let (first, second) = match new_first {
            true => (&mut self.new, &mut self.known),
            false => (&mut self.known, &mut self.new),
        };
        let next = first.pop_back().or_else(|| second.pop_back());
        next.map(|(_, question)| question)
    }

    /// Removes the oldest request, of the new keys first.
    pub(super) fn pop_oldest(&mut self) -> Option<T> {
        let oldest = self.new.pop_front().or_else(|| self.known.pop_front());
        oldest.map(|(_, question)| question)
    }

    /// Removes one request whose time has passed.
    pub(super) fn pop_overdue(&mut self, now: Instant) -> Option<T> {
        let mut queues = [&mut self.new, &mut self.known].into_iter();
        let is_over = |(until, _): &(Instant, T)| *until <= now;
        let queue = queues.find(|queue| queue.front().is_some_and(is_over))?;
        queue.pop_front().map(|(_, question)| question)
    }

    /// When the time of the oldest has passed.
    pub(super) fn first_overdue(&self) -> Option<Instant> {
        let fronts = [self.new.front(), self.known.front()];
        fronts.into_iter().flatten().map(|(until, _)| *until).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_newest_goes_first_and_every_fourth_place_is_for_a_new_key() {
        let now = Instant::now();
        let mut backlog = Backlog::default();
        for number in 0..6 {
            backlog.push(true, now, format!("known {number}"));
            backlog.push(false, now, format!("new {number}"));
        }
        let next: Vec<_> = (0..8).filter_map(|_| backlog.pop()).collect();
        let expected = [
            "known 5", "known 4", "known 3", "new 5", "known 2", "known 1", "known 0", "new 4",
        ];
        assert_eq!(next, expected);
        assert_eq!(backlog.pop().as_deref(), Some("new 3"));
    }

    #[test]
    fn the_oldest_are_over_first() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let mut backlog = Backlog::default();
        backlog.push(true, at(10), 1);
        backlog.push(false, at(20), 2);
        backlog.push(true, at(30), 3);
        assert_eq!(backlog.first_overdue(), Some(at(10)));
        assert_eq!(backlog.pop_overdue(at(5)), None);
        assert_eq!(backlog.pop_overdue(at(20)), Some(2));
        assert_eq!(backlog.pop_overdue(at(20)), Some(1));
        assert_eq!(backlog.pop_overdue(at(20)), None);
        assert_eq!((backlog.len(), backlog.pop_oldest()), (1, Some(3)));
    }
}
