//! Events in the order in which they happen.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::convert::Infallible;

use tidegate_limits::Timestamp;

/// An event with a rank. Events of one moment happen by rank, and those of equal rank in the order in which
/// they were planned.
pub trait Ranked {
    /// The type of ranks; the lowest happens first.
    type Rank: Ord;

    /// The rank of this event.
    fn rank(&self) -> Self::Rank;
}

/// Events of a replay whose user plans none.
impl Ranked for Infallible {
    type Rank = ();

    fn rank(&self) {}
}

/// Events that will happen, each at a moment.
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    planned: BinaryHeap<PlannedEvent<E>>,
    /// Events planned so far.
    count: u64,
}

#[derive(Clone, Debug)]
struct PlannedEvent<E> {
    at: Timestamp,
    order: u64,
    event: E,
}

impl<E: Ranked> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            planned: BinaryHeap::new(),
            count: 0,
        }
    }
}

impl<E: Ranked> Agenda<E> {
    /// Adds an event.
    pub fn plan(&mut self, at: Timestamp, event: E) {
        let order = self.count;
        self.count += 1;
        self.planned.push(PlannedEvent { at, order, event });
    }

    /// The moment of the first event; `None` if no event is planned.
    #[must_use]
    pub fn next_moment(&self) -> Option<Timestamp> {
        self.planned.peek().map(|planned| planned.at)
    }

    /// Removes the first event, with its moment.
    pub fn pop(&mut self) -> Option<(Timestamp, E)> {
        let PlannedEvent { at, event, .. } = self.planned.pop()?;
        Some((at, event))
    }

    /// Removes the first event if its moment is not after `now`.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<E> {
        let is_due = self.next_moment()? <= now;
        let (_, event) = is_due.then(|| self.pop()).flatten()?;
        Some(event)
    }

    /// Removes all events, in no order, with their moments.
    pub fn drain(&mut self) -> impl Iterator<Item = (Timestamp, E)> {
        let planned = self.planned.drain();
        planned.map(|PlannedEvent { at, event, .. }| (at, event))
    }
}

/// The heap's greatest element is the event that happens first.
impl<E: Ranked> Ord for PlannedEvent<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_moment = other.at.cmp(&self.at);
        let by_rank = || other.event.rank().cmp(&self.event.rank());
        by_moment
            .then_with(by_rank)
            .then_with(|| other.order.cmp(&self.order))
    }
}

impl<E: Ranked> PartialOrd for PlannedEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E: Ranked> PartialEq for PlannedEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E: Ranked> Eq for PlannedEvent<E> {}
