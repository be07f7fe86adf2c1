//! Which lines to ask, and which to leave alone until something changes.
//!
//! A line with a call in it is either ready (its head is to be asked) or parked at the limit
//! that bars its head. Only the first of those parked at a limit, in the order of their turn,
//! is asked again when that limit changes: a release, a supply, the moment it opens. Those
//! behind it have a later turn, and may not draw before it. When the first one leaves, for
//! whatever reason, the next is asked.
//!
//! Where a limit has parked lines, then, either the first of them is the one that was asked
//! last and found closed (`asked`), or the limit is on the `changed` list, or the line woken
//! from it is still ready. [`Parking::wake`] empties the list, so nothing that could run is
//! ever overlooked and nothing that can't is asked twice.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::policy::LimitId;
use crate::queue::fair::{ClassTurn, Fair, Turn};
use crate::queue::{Class, LineId};
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// A line in a set ordered by class, then by turn.
type Parked = (u32, Turn, LineId);

#[derive(Debug)]
pub(super) struct Parking {
    lines: Vec<Line>,
    limits: Vec<Spot>,
    /// Ready lines by class.
    ready: Vec<BTreeSet<(Turn, LineId)>>,
    /// Limits whose first parked line must be asked again.
    changed: Vec<LimitId>,
    /// When limits open for the line that was asked last.
    openings: BTreeSet<(Timestamp, LimitId)>,
    /// A class's tag moved, so another line may now be first at a limit.
    reordered: bool,
}

#[derive(Clone, Debug)]
struct Line {
    class: u32,
    head: Option<Turn>,
    /// Where the head is parked; a line with a head and no spot is ready.
    parked_at: Option<LimitId>,
    /// The limit whose change made it ready, as long as it has not been asked.
    woken_from: Option<LimitId>,
    held_by: Option<LimitId>,
    /// Calls that joined before this have waited while `held_by` held the line.
    held_until: u64,
}

/// The lines parked at one limit.
#[derive(Clone, Debug, Default)]
struct Spot {
    parked: BTreeSet<Parked>,
    asked: Option<Parked>,
    /// The moment in `openings`.
    opens: Option<Timestamp>,
    /// On the `changed` list.
    changed: bool,
}

impl Parking {
    /// `lines` lines, of which line `l` is of class `l % classes`.
    pub(super) fn new(lines: usize, classes: usize, limits: usize) -> Self {
        let line = |index| Line {
            class: (index % classes) as u32,
            head: None,
            parked_at: None,
            woken_from: None,
            held_by: None,
            held_until: 0,
        };
        let mut ready = Vec::new();
        ready.resize_with(classes, BTreeSet::new);
        let mut spots = Vec::new();
        spots.resize_with(limits, Spot::default);
        Self {
            lines: (0..lines).map(line).collect(),
            limits: spots,
            ready,
            changed: Vec::new(),
            openings: BTreeSet::new(),
            reordered: false,
        }
    }

    /// The limit that held a call which joined at `joined`, if any did.
    pub(super) fn held_by(&self, line: LineId, joined: u64) -> Option<LimitId> {
        let line = &self.lines[line as usize];
        line.parked_at
            .or(line.held_by.filter(|_| joined < line.held_until))
    }

    /// The limit at which a line is parked now.
    pub(super) fn parked_at(&self, line: LineId) -> Option<LimitId> {
        self.lines[line as usize].parked_at
    }

    /// The head of a line is now this one. A new head is asked, wherever the old one stood.
    pub(super) fn set_head(
        &mut self,
        line: LineId,
        head: Option<Turn>,
        joined: u64,
        fair: &mut Fair,
    ) {
        if self.lines[line as usize].head == head {
            return;
        }
        self.unpark(line, joined);
        self.unready(line);
        self.lines[line as usize].head = head;
        if head.is_some() {
            self.make_ready(line, fair);
        } else {
            self.was_asked(line);
        }
    }

    /// Classes' tags have moved.
    pub(super) fn classes_moved(&mut self) {
        self.reordered = self.ready.len() > 1;
    }

    /// Something drew less or was given more at this limit.
    pub(super) fn change(&mut self, limit: LimitId) {
        let spot = &mut self.limits[limit as usize];
        if !spot.changed && !spot.parked.is_empty() {
            spot.changed = true;
            self.changed.push(limit);
        }
    }

    /// A draw at this limit turned into a departure, which has a moment at which it frees. That
    /// is news to whoever waited for something to be told, not to who waits for a moment.
    pub(super) fn change_told(&mut self, limit: LimitId) {
        if self.limits[limit as usize].opens.is_none() {
            self.change(limit);
        }
    }

    /// Limits whose moment has come have changed.
    pub(super) fn open_due(&mut self, now: Timestamp) {
        while let Some(&(opens, limit)) = self.openings.first()
            && opens <= now
        {
            self.openings.pop_first();
            self.limits[limit as usize].opens = None;
            self.change(limit);
        }
    }

    /// The next moment at which a limit opens for the first line parked at it.
    pub(super) fn next_opening(&self) -> Option<Timestamp> {
        self.openings.first().map(|&(opens, _)| opens)
    }

    /// Makes the first line at each changed limit ready.
    pub(super) fn wake(&mut self, joined: u64, fair: &mut Fair) {
        loop {
            if self.reordered {
                self.reordered = false;
                for limit in 0..self.limits.len() as LimitId {
                    let spot = &self.limits[limit as usize];
                    if spot.asked.is_some() && self.first(limit, fair) != spot.asked {
                        self.change(limit);
                    }
                }
            }
            let Some(limit) = self.changed.pop() else {
                return;
            };
            self.limits[limit as usize].changed = false;
            let Some((_, _, line)) = self.first(limit, fair) else {
                continue;
            };
            self.forget_asked(limit);
            self.unpark(line, joined);
            self.lines[line as usize].woken_from = Some(limit);
            self.make_ready(line, fair);
        }
    }

    /// The ready line whose turn it is.
    pub(super) fn pick(&self, fair: &Fair) -> Option<LineId> {
        let class = (0..self.ready.len() as u32)
            .filter(|&class| !self.ready[class as usize].is_empty())
            .min_by_key(|&class| fair.class_turn(Class(class)))?;
        self.ready[class as usize].first().map(|&(_, line)| line)
    }

    /// Whether a line with an earlier turn is parked at this limit.
    pub(super) fn is_behind(&self, line: LineId, limit: LimitId, fair: &Fair) -> bool {
        if self.limits[limit as usize].parked.is_empty() {
            return false;
        }
        let own = self.order(self.parked_as(line), fair);
        self.first(limit, fair)
            .is_some_and(|first| self.order(first, fair) < own)
    }

    /// A ready line was asked and may not run: it parks. `verdict` is what the limit said.
    pub(super) fn park(
        &mut self,
        line: LineId,
        limit: LimitId,
        verdict: Verdict,
        joined: u64,
        fair: &Fair,
    ) {
        let entry = self.parked_as(line);
        self.unready(line);
        let state = &mut self.lines[line as usize];
        state.parked_at = Some(limit);
        (state.held_by, state.held_until) = (Some(limit), joined);
        self.limits[limit as usize].parked.insert(entry);
        if self.first(limit, fair) == Some(entry) {
            self.forget_asked(limit);
            let spot = &mut self.limits[limit as usize];
            spot.asked = Some(entry);
            if let Verdict::NotBefore(opens) = verdict {
                spot.opens = Some(opens);
                self.openings.insert((opens, limit));
            }
        }
        self.was_asked(line);
    }

    fn parked_as(&self, line: LineId) -> Parked {
        let state = &self.lines[line as usize];
        (
            state.class,
            state
                .head
                .expect("only lines with a call in them are asked"),
            line,
        )
    }

    /// The first line parked at a limit, over all classes.
    fn first(&self, limit: LimitId, fair: &Fair) -> Option<Parked> {
        let parked = &self.limits[limit as usize].parked;
        let mut best = *parked.first()?;
        let mut class = best.0;
        // One look per class that has a line here.
        while class as usize + 1 < self.ready.len() {
            let from = (
                class + 1,
                Turn {
                    start: 0,
                    arrival: 0,
                },
                0,
            );
            let Some(&next) = parked.range(from..).next() else {
                break;
            };
            class = next.0;
            best = core::cmp::min_by_key(best, next, |&entry| self.order(entry, fair));
        }
        Some(best)
    }

    fn order(&self, (class, turn, line): Parked, fair: &Fair) -> (ClassTurn, Turn, LineId) {
        (fair.class_turn(Class(class)), turn, line)
    }

    fn make_ready(&mut self, line: LineId, fair: &mut Fair) {
        let (class, turn, _) = self.parked_as(line);
        let ready = &mut self.ready[class as usize];
        let first = ready.is_empty();
        ready.insert((turn, line));
        if first && fair.activate(Class(class)) {
            self.classes_moved();
        }
    }

    fn unready(&mut self, line: LineId) {
        let state = &self.lines[line as usize];
        if let (Some(turn), None) = (state.head, state.parked_at) {
            self.ready[state.class as usize].remove(&(turn, line));
        }
    }

    /// Takes a line from where it is parked. If it was the one asked, the next must be.
    fn unpark(&mut self, line: LineId, joined: u64) {
        let Some(limit) = self.lines[line as usize].parked_at else {
            return;
        };
        let entry = self.parked_as(line);
        let state = &mut self.lines[line as usize];
        state.parked_at = None;
        state.held_until = joined;
        let spot = &mut self.limits[limit as usize];
        spot.parked.remove(&entry);
        if spot.asked == Some(entry) {
            self.forget_asked(limit);
            self.change(limit);
        }
    }

    fn forget_asked(&mut self, limit: LimitId) {
        let spot = &mut self.limits[limit as usize];
        spot.asked = None;
        if let Some(opens) = spot.opens.take() {
            self.openings.remove(&(opens, limit));
        }
    }

    /// The answer of a line woken from a limit is in: unless it parked there again as the
    /// first, the next one there must be asked.
    fn was_asked(&mut self, line: LineId) {
        if let Some(limit) = self.lines[line as usize].woken_from.take()
            && self.limits[limit as usize].asked.is_none()
        {
            self.change(limit);
        }
    }

    /// A ready line was asked and its head runs: the next head, if any, is set after this.
    pub(super) fn ran(&mut self, line: LineId) {
        self.was_asked(line);
    }

    /// What must hold between calls to [`Scheduler::next`](super::Scheduler::next) for nothing
    /// to be overlooked; panics with the fact that does not.
    pub(super) fn audit(&self, fair: &Fair) {
        assert!(
            self.changed.is_empty() && !self.reordered,
            "every change has been looked at"
        );
        assert!(
            self.ready.iter().all(BTreeSet::is_empty),
            "every ready line has been asked"
        );
        for (spot, limit) in self.limits.iter().zip(0..) {
            assert_eq!(
                spot.asked,
                self.first(limit, fair),
                "the first parked line was asked last"
            );
            assert!(!spot.changed, "what is marked as changed is on the list");
        }
    }
}
