//! Parking lines.

use super::at::Spot;
use super::lines::Parking;
use super::wake::Asked;
use crate::queue::account::Behind;
use crate::queue::{Bar, LineId};
use crate::time::Timestamp;
use crate::verdict::Verdict;

impl Parking {
    /// A line was asked, and this bars it: it parks there, at the front if it may.
    pub(crate) fn park(
        &mut self,
        asked: Asked,
        bar: Bar,
        verdict: Verdict,
        front: Option<u64>,
        now: Timestamp,
        joined: u64,
    ) {
        let line = asked.line;
        let spot = self.spot_of(line, bar);
        if self.lines[line as usize].parked_at != Some(spot) {
            if asked.turn.is_some() {
                self.unpark(line, now, joined);
            } else {
                self.ready.remove(self.entry(line));
            }
            if let Some(draw) = front {
                self.claim(bar, line, draw, now, None);
            }
            self.stand(line, spot, now, joined);
        }
        if front.is_some() {
            // What bars it may be another before which it goes now.
            self.change(bar);
        } else if self.first(spot) == Some(line) {
            self.forget_asked(spot);
            self.remember_asked(spot, line, verdict);
        } else {
            self.reordered(bar);
        }
    }

    /// Puts a line at a spot: into the order, unless it claims the front.
    pub(super) fn stand(&mut self, line: LineId, spot: Spot, now: Timestamp, joined: u64) {
        let (bar, entry, common) = (spot.bar(), self.entry(line), self.common);
        let at = self.make_at(bar);
        let claim = at.claims.get(&(entry.arrival, line));
        if claim.is_none_or(|claim| claim.until.is_some()) {
            at.order.insert(entry, common);
        }
        let state = &mut self.lines[line as usize];
        state.parked_at = Some(spot);
        (state.held_by, state.held_until) = (Some(bar), joined);
        if state.account.charge(now, Behind::Bar(bar)) {
            state.noted = None;
        }
    }

    /// Parks a line that is ready, to be asked there.
    pub(crate) fn park_again(&mut self, line: LineId, bar: Bar, now: Timestamp, joined: u64) {
        if !self.is_ready(line) {
            return;
        }
        self.ready.remove(self.entry(line));
        self.stand(line, self.spot_of(line, bar), now, joined);
        self.change(bar);
    }

    /// Takes a line from where it is parked. If it was the one asked, the next must be.
    pub(super) fn unpark(&mut self, line: LineId, now: Timestamp, joined: u64) {
        self.leave_front(line, now);
        let state = &mut self.lines[line as usize];
        let Some(spot) = state.parked_at.take() else {
            return;
        };
        state.held_until = joined;
        let entry = self.entry(line);
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        at.order.remove(entry);
        if at.look(spot).asked.is_none_or(|asked| asked == line) {
            self.forget_asked(spot);
            // The line behind it at the limit's other spot may be first now.
            self.change(spot.bar());
        } else {
            self.reordered(spot.bar());
        }
        self.forget_if_empty(spot.bar());
    }
}
