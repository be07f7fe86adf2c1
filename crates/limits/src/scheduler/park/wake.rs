//! Lines are parked, and asked again when something has changed where they are.

use core::cmp::Reverse;

use super::line::{LineKey, Spot};
use super::lines::Parking;
use crate::policy::LimitId;
use crate::queue::account::Behind;
use crate::queue::fair::Part;
use crate::queue::{Bar, LineId};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// The flow and the call whose turn may have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) line: LineId,
    pub(crate) key: Key,
    /// The wait list where the turn has come.
    pub(crate) turn: Option<Spot>,
}

impl Parking {
    /// Another line may be first now.
    pub(super) fn reordered(&mut self, bar: Bar) {
        let first = self.first(Spot::At(bar));
        let is_first_asked = self.at(bar).is_none_or(|at| at.all.asked == first);
        // With a reserve, the order of the two spots may have changed even if neither's first line has.
        if !is_first_asked || self.kept_spot(bar).is_some() {
            self.change(bar);
        }
    }

    /// The spot of the class for which a limit keeps something.
    #[inline]
    fn kept_spot(&self, bar: Bar) -> Option<Spot> {
        match bar {
            Bar::Limit(limit) => {
                let kept_for = self.limits[limit as usize].kept_for;
                kept_for.map(|_| Spot::Kept(limit))
            }
            Bar::Bucket(_) | Bar::Quota(_) => None,
        }
    }

    /// Something drew less or was given more here.
    #[inline]
    pub(crate) fn change(&mut self, bar: Bar) {
        self.mark(Spot::At(bar));
        if let Some(kept) = self.kept_spot(bar) {
            self.mark(kept);
        }
    }

    #[inline]
    pub(super) fn mark(&mut self, spot: Spot) {
        if let Some(at) = self.at_mut(spot.bar())
            && !at.is_empty()
            && !at.look(spot).changed
        {
            at.look(spot).changed = true;
            self.changed.push(spot);
        }
    }

    /// A stake in this limit became a departure, which frees at a known moment. That matters to
    /// lines that wait for a change, not to lines that wait for a moment.
    #[inline]
    pub(crate) fn note_change(&mut self, limit: LimitId) {
        let at = &self.limits[limit as usize];
        let waits_for_a_moment = at.is_empty() || at.all.opens.is_some();
        if !waits_for_a_moment || at.kept_for.is_some() {
            self.change(Bar::Limit(limit));
        }
    }

    /// Marks spots whose moment has come, and ends claims that have lasted long enough.
    #[inline]
    pub(crate) fn open_due(&mut self, now: Timestamp) {
        while let Some((opens, spot)) = self.openings.first()
            && opens <= now
        {
            self.openings.remove(&(opens, spot));
            if let Some(look) = self.look(spot) {
                look.opens = None;
            }
            self.mark(spot);
        }
        while let Some(&(until, bar, line)) = self.lapses.first()
            && until <= now
        {
            self.drop_claim(bar, line, now);
            if let Some(passed) = &mut self.lines[line as usize].passed {
                passed.lapses = passed.lapses.saturating_add(1);
            }
        }
    }

    /// The next moment at which a spot opens for the first line parked at it, or a claim lapses.
    #[inline]
    pub(crate) fn next_opening(&self) -> Option<Timestamp> {
        let opens = self.openings.first().map(|(opens, _)| opens);
        let lapses = self.lapses.first().map(|&(until, ..)| until);
        [opens, lapses].into_iter().flatten().min()
    }

    /// The next line to ask: one that is ready, or the first one where something has changed.
    /// `meets` returns whether the calls of a line meet something.
    #[inline]
    pub(crate) fn next(&mut self, meets: impl Fn(&LineKey, Bar) -> bool) -> Option<Asked> {
        let ready = self.ready.first(Part::All);
        if let Some(line) = ready {
            if self.goes_first(line, meets) {
                self.last_was_ready = Some(true);
                return Some(self.asked(line, None));
            }
        } else {
            self.tidy();
        }
        while let Some(spot) = self.next_changed() {
            self.forget_asked(spot);
            if let Some(line) = self.first(spot) {
                self.looked += 1;
                self.last_was_ready = ready.map(|_| false);
                return Some(self.asked(line, Some(spot)));
            }
        }
        self.last_was_ready = ready.map(|_| true);
        Some(self.asked(ready?, None))
    }

    pub(super) fn asked(&self, line: LineId, turn: Option<Spot>) -> Asked {
        let (_, key) = self.head(line);
        Asked { line, key, turn }
    }

    /// Whether a ready line is asked before the first line where something has changed. If it meets
    /// that limit, it is asked first and either waits there or goes before. Otherwise the earlier
    /// arrival starts, and then they alternate.
    fn goes_first(&mut self, line: LineId, meets: impl Fn(&LineKey, Bar) -> bool) -> bool {
        self.wake_changed();
        let Some(&Reverse((_, arrival, spot))) = self.woken.peek() else {
            return true;
        };
        meets(&self.lines[line as usize].key, spot.bar())
            || match self.last_was_ready {
                Some(last_was_ready) => !last_was_ready,
                None => self.head(line).0 < arrival,
            }
    }

    fn wake_changed(&mut self) {
        while let Some(spot) = self.changed.pop() {
            let first = self.first(spot);
            let arrival = first.map_or(0, |line| self.head(line).0);
            self.woken.push(Reverse((self.round, arrival, spot)));
        }
    }

    /// The changed spot to look at next.
    #[inline]
    pub(super) fn next_changed(&mut self) -> Option<Spot> {
        let spot = if self.woken.is_empty() && self.changed.len() < 2 {
            self.changed.pop()?
        } else {
            self.wake_changed();
            let Reverse((round, _, spot)) = self.woken.pop()?;
            self.round = round + 1;
            spot
        };
        if let Some(look) = self.look(spot) {
            look.changed = false;
        }
        Some(spot)
    }

    /// Whether no flow has changed since it was last looked at.
    pub(crate) fn is_settled(&self) -> bool {
        self.changed.is_empty() && self.woken.is_empty()
    }

    /// Drops all changes: no line waits for them.
    pub(crate) fn forget_changes(&mut self) {
        while self.next_changed().is_some() {}
    }

    #[inline]
    pub(super) fn remember_asked(&mut self, spot: Spot, line: LineId, verdict: Verdict) {
        let look = self.look(spot).expect("the line is parked there");
        look.asked = Some(line);
        if let Verdict::NotBefore(opens) = verdict {
            look.opens = Some(opens);
            self.openings.insert((opens, spot));
        }
    }

    #[inline]
    pub(super) fn forget_asked(&mut self, spot: Spot) {
        if let Some(look) = self.look(spot) {
            look.asked = None;
            if let Some(opens) = look.opens.take() {
                self.openings.remove(&(opens, spot));
            }
        }
    }
}

impl Parking {
    /// A line was asked, and this bars it: it parks there, at the front if it may.
    pub(crate) fn park(
        &mut self,
        asked: Asked,
        bar: Bar,
        verdict: Verdict,
        front: Option<u64>,
        now: Timestamp,
    ) {
        let line = asked.line;
        let spot = self.spot_of(line, bar);
        if self.lines[line as usize].parked_at != Some(spot) {
            if asked.turn.is_some() {
                self.unpark(line, now);
            } else {
                self.ready.remove(self.entry(line));
            }
            if let Some(draw) = front {
                self.claim(bar, line, draw, now, None);
            }
            self.stand(line, spot, now);
        }
        if front.is_some() {
            // What bars it may be another before which it goes now.
            self.change(bar);
        } else if self.first(spot) == Some(line) {
            self.forget_asked(spot);
            self.remember_asked(spot, line, verdict);
        }
        // Behind the first line it changes nothing: another line that waits makes no call go sooner.
    }

    /// Puts a line at a spot: into the order, unless it claims the front.
    pub(super) fn stand(&mut self, line: LineId, spot: Spot, now: Timestamp) {
        let (bar, entry, common) = (spot.bar(), self.entry(line), self.common);
        let at = self.make_at(bar);
        let claim = at.claims.get(&(entry.arrival, line));
        if claim.is_none_or(|claim| claim.until.is_some()) {
            at.order.insert(entry, common);
        }
        let state = &mut self.lines[line as usize];
        state.parked_at = Some(spot);
        if state.account.charge(now, Behind::Bar(bar)) {
            state.noted = None;
        }
    }

    /// Parks a line that is ready, to be asked there.
    pub(crate) fn park_again(&mut self, line: LineId, bar: Bar, now: Timestamp) {
        if !self.is_ready(line) {
            return;
        }
        self.ready.remove(self.entry(line));
        self.stand(line, self.spot_of(line, bar), now);
        self.change(bar);
    }

    /// Takes a line from where it is parked. If it was the one asked, the next must be.
    pub(super) fn unpark(&mut self, line: LineId, now: Timestamp) {
        self.leave_front(line, now);
        let state = &mut self.lines[line as usize];
        let Some(spot) = state.parked_at.take() else {
            return;
        };
        let entry = self.entry(line);
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        at.order.remove(entry);
        if at.look(spot).asked.is_none_or(|asked| asked == line) {
            self.forget_asked(spot);
            // The line behind it at the limit's other spot may be first now.
            self.change(spot.bar());
        }
        // If another line was asked here, that one stays first, or its spot is marked as changed.
        self.forget_if_empty(spot.bar());
    }
}
