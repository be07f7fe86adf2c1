//! Which lines to ask, and which to leave alone until something changes.
//!
//! A line with a call in it is either ready (its head is to be asked) or parked at a limit that
//! bars its head. Only the first of those parked at a limit, in the order of their turn, is
//! looked at again when that limit changes: a release, a supply, the moment it opens. If the
//! limit has room for it by now, the line is ready and all its limits are asked. Those behind
//! it have a later turn, and may not draw before it. When the first one leaves, for whatever
//! reason, the next is looked at.
//!
//! Where a limit has parked lines, then, either the first of them is the one that was looked at
//! last and is still barred (`asked`), or the limit is on the `changed` list, or the line woken
//! from it is still ready. [`Parking::wake`] empties the list, so nothing that could run is
//! ever overlooked and nothing that can't is asked twice.

use alloc::vec::Vec;

use crate::policy::LimitId;
use crate::queue::fair::{Fair, Turn};
use crate::queue::{Class, LineId};
use crate::sorted::Sorted;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// A line in a set ordered by class, then by turn.
type Parked = (u32, Turn, LineId);

#[derive(Debug)]
pub(super) struct Parking {
    lines: Vec<Line>,
    limits: Vec<Spot>,
    /// Ready lines by class.
    ready: Vec<Sorted<(Turn, LineId)>>,
    /// Limits whose first parked line must be asked again.
    changed: Vec<LimitId>,
    /// When limits open for the line that was asked last.
    openings: Sorted<(Timestamp, LimitId)>,
    /// A class's tag moved, so another line may now be first at a limit.
    reordered: bool,
    /// Lines looked at because a limit changed.
    looked: u64,
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
    /// Calls that joined up to this have waited while `held_by` held the line.
    held_until: u64,
}

/// The lines parked at one limit.
#[derive(Clone, Debug, Default)]
struct Spot {
    /// By class.
    parked: Vec<Sorted<(Turn, LineId)>>,
    /// Lines in `parked`.
    count: u32,
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
        ready.resize_with(classes, Sorted::default);
        let mut spots = Vec::new();
        spots.resize_with(limits, Spot::default);
        for spot in &mut spots {
            spot.parked.resize_with(classes, Sorted::default);
        }
        Self {
            lines: (0..lines).map(line).collect(),
            limits: spots,
            ready,
            changed: Vec::new(),
            openings: Sorted::default(),
            reordered: false,
            looked: 0,
        }
    }

    /// The limit that held a call which joined at `joined`, if any did.
    pub(super) fn held_by(&self, line: LineId, joined: u64) -> Option<LimitId> {
        let line = &self.lines[line as usize];
        line.parked_at
            .or(line.held_by.filter(|_| joined <= line.held_until))
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
        if !spot.changed && spot.count > 0 {
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
        while let Some((opens, limit)) = self.openings.first()
            && opens <= now
        {
            self.openings.remove(&(opens, limit));
            self.limits[limit as usize].opens = None;
            self.change(limit);
        }
    }

    /// The next moment at which a limit opens for the first line parked at it.
    pub(super) fn next_opening(&self) -> Option<Timestamp> {
        self.openings.first().map(|(opens, _)| opens)
    }

    /// Looks at the first line at each changed limit, and makes it ready if the limit does not
    /// bar it any more. `peek` is what a limit says to the head of a line.
    pub(super) fn wake(
        &mut self,
        joined: u64,
        fair: &mut Fair,
        peek: impl Fn(LimitId, LineId) -> Verdict,
    ) {
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
            let Some(first) = self.first(limit, fair) else {
                continue;
            };
            let (_, _, line) = first;
            self.looked += 1;
            self.forget_asked(limit);
            match peek(limit, line) {
                verdict @ (Verdict::NotBefore(_) | Verdict::WhenTold) => {
                    self.remember_asked(limit, first, verdict);
                }
                Verdict::Ready | Verdict::Never => {
                    self.unpark(line, joined);
                    self.lines[line as usize].woken_from = Some(limit);
                    self.make_ready(line, fair);
                }
            }
        }
    }

    /// Whatever has changed, there is nobody to look at it for.
    pub(super) fn nobody_waits(&mut self) {
        self.reordered = false;
        while let Some(limit) = self.changed.pop() {
            self.limits[limit as usize].changed = false;
        }
    }

    /// The ready line whose turn it is.
    pub(super) fn pick(&self, fair: &Fair) -> Option<LineId> {
        let mut picked: Option<(u32, LineId)> = None;
        for (ready, class) in self.ready.iter().zip(0..) {
            let Some((_, line)) = ready.first() else {
                continue;
            };
            if picked.is_none_or(|(before, _)| {
                fair.class_turn(Class(class)) < fair.class_turn(Class(before))
            }) {
                picked = Some((class, line));
            }
        }
        picked.map(|(_, line)| line)
    }

    /// Whether a line with an earlier turn is parked at this limit.
    pub(super) fn is_behind(&self, line: LineId, limit: LimitId, fair: &Fair) -> bool {
        if self.limits[limit as usize].count == 0 {
            return false;
        }
        self.first(limit, fair)
            .is_some_and(|first| Self::precedes(first, self.parked_as(line), fair))
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
        let spot = &mut self.limits[limit as usize];
        spot.parked[entry.0 as usize].insert((entry.1, entry.2));
        spot.count += 1;
        if self.first(limit, fair) == Some(entry) {
            self.forget_asked(limit);
            self.remember_asked(limit, entry, verdict);
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
        let spot = &self.limits[limit as usize];
        if spot.count == 0 {
            return None;
        }
        let mut first: Option<Parked> = None;
        for (parked, class) in spot.parked.iter().zip(0..) {
            let Some((turn, line)) = parked.first() else {
                continue;
            };
            if first.is_none_or(|(before, ..)| {
                fair.class_turn(Class(class)) < fair.class_turn(Class(before))
            }) {
                first = Some((class, turn, line));
            }
        }
        first
    }

    /// Whether the turn of one line is before that of another.
    fn precedes(one: Parked, other: Parked, fair: &Fair) -> bool {
        if one.0 == other.0 {
            (one.1, one.2) < (other.1, other.2)
        } else {
            fair.class_turn(Class(one.0)) < fair.class_turn(Class(other.0))
        }
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
        spot.parked[entry.0 as usize].remove(&(entry.1, entry.2));
        spot.count -= 1;
        if spot.asked == Some(entry) {
            self.forget_asked(limit);
            self.change(limit);
        }
    }

    fn remember_asked(&mut self, limit: LimitId, entry: Parked, verdict: Verdict) {
        let spot = &mut self.limits[limit as usize];
        spot.asked = Some(entry);
        if let Verdict::NotBefore(opens) = verdict {
            spot.opens = Some(opens);
            self.openings.insert((opens, limit));
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

    /// Lines looked at because a limit changed, so far.
    pub(super) const fn looked(&self) -> u64 {
        self.looked
    }

    /// What must hold between calls to [`Scheduler::next`](super::Scheduler::next) for nothing
    /// to be overlooked; panics with the fact that does not.
    pub(super) fn audit(&self, fair: &Fair) {
        assert!(
            self.changed.is_empty() && !self.reordered,
            "every change has been looked at"
        );
        assert!(
            self.ready.iter().all(Sorted::is_empty),
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
