//! Changes the orders by a service.

use super::lines::Parking;
use crate::call::Call;
use crate::queue::fair::{Entry, Part, Service};
use crate::queue::{Bar, LineId};
use crate::slab::Key;

impl Parking {
    /// The first call of this line runs, and draws from these, with its service there. `next` is the
    /// one behind it. Returns which of all that were served it is.
    #[inline]
    pub(crate) fn served(
        &mut self,
        line: LineId,
        service: Service,
        drawn_from: impl Iterator<Item = (Bar, Service)>,
        next: Option<(u64, Key)>,
    ) -> u64 {
        self.common.served += 1;
        let (entry, common) = (self.entry(line), self.common);
        // Several calls that came at once wait for each other wherever they meet.
        let counts = self.ready.len() > 1;
        let state = &self.lines[line as usize];
        // A line in the order, and not at the front, stays there with its next call.
        let stands_at = state.parked_at.filter(|_| state.passed.is_none());
        if counts && state.parked_at.is_none() {
            self.ready.serve(entry, service, true, common);
        }
        for (bar, service) in drawn_from {
            if let (Some(spot), Some((arrival, _))) = (stands_at, next)
                && spot.bar() == bar
                && let Some(at) = self.at_mut(bar)
                && at.order.serve_first(entry, service, arrival)
            {
                self.lines[line as usize].head = next;
                self.has_new_head(line, spot);
                continue;
            }
            if let Some(at) = self.at_mut(bar)
                && at.order.serve(entry, service, counts, common)
            {
                if at.order.is_empty() {
                    self.tagged.push(bar);
                } else {
                    self.reordered(bar);
                }
            }
        }
        common.served
    }

    /// A call runs that never waited, while no other does. Changes what [`served`](Self::served) would have, for
    /// a line with this call only.
    pub(crate) fn served_alone(
        &mut self,
        call: &Call,
        arrival: u64,
        drawn_from: impl Iterator<Item = (Bar, Service)>,
    ) -> u64 {
        self.common.served += 1;
        self.last_was_ready = Some(true);
        for (bar, service) in drawn_from {
            // Tags of calls that waited before are kept until the next one waits.
            if self.at(bar).is_some_and(|at| at.order.has_tags()) {
                self.serve_tags(call, arrival, bar, service);
            }
        }
        self.common.served
    }

    fn serve_tags(&mut self, call: &Call, arrival: u64, bar: Bar, service: Service) {
        let entry = Entry {
            class: call.class,
            caller: call.caller,
            arrival,
            line: LineId::MAX,
        };
        let common = self.common;
        let Some(at) = self.at_mut(bar) else { return };
        at.order.serve(entry, service, false, common);
        self.tagged.push(bar);
    }

    /// No line is ready any more: orders without lines start from zero.
    pub(super) fn tidy(&mut self) {
        while let Some(bar) = self.tagged.pop() {
            if let Some(at) = self.at_mut(bar) {
                at.order.tidy();
            }
            self.forget_if_empty(bar);
        }
    }

    /// Something that served a call has not after all. Another line may be first there:
    /// [`change`](Self::change) has it looked at.
    pub(crate) fn unserved(&mut self, bar: Bar, call: &Call, service: Service, served: u64) {
        if let Some(at) = self.at_mut(bar) {
            at.order.unserve(call, service, served);
        }
    }

    /// Whether a line with an earlier turn is parked here. `is_kept_for_it` returns whether the
    /// reserve of its class covers the head.
    #[inline]
    pub(crate) fn is_behind(
        &self,
        line: LineId,
        bar: Bar,
        is_kept_for_it: impl FnOnce() -> bool,
    ) -> bool {
        let Some(at) = self.at(bar).filter(|at| !at.order.is_empty()) else {
            return false;
        };
        let entry = self.entry(line);
        if at.claims.contains_key(&(entry.arrival, line)) {
            return false;
        }
        // A line that is asked where it is parked is the first of its part.
        let is_here = self.parked_at(line) == Some(bar);
        let is_behind = |part| at.order.is_behind(entry, part);
        match at.kept_for {
            None => !is_here && is_behind(Part::All),
            Some(class) if class == entry.class => {
                (!is_here && is_behind(Part::Only(class)))
                    || (is_behind(Part::But(class)) && !is_kept_for_it())
            }
            Some(class) if is_here => is_behind(Part::Only(class)),
            Some(_) => is_behind(Part::All),
        }
    }
}
