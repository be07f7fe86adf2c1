//! The position of a waiting call, as seen from outside.

use std::sync::Arc;

use tidegate_limits::Ticket;

use super::{Core, Lane, Waiting};
use crate::call::{Destination, Refusal};

/// A place in the queue. It keeps neither the place nor its call.
#[derive(Clone)]
pub struct Place {
    core: Arc<Core>,
    lane: Lane,
    ticket: Ticket,
    backend: Destination,
}

impl Place {
    /// The refusal of the call if its deadline were now: what it waits for, and for how long.
    /// `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        let refusal = {
            let state = self.core.lock();
            let now = self.core.clock.now();
            state.lanes[self.lane as usize].refusal_now(now, self.ticket)
        };
        refusal.map(|refusal| self.core.refusal(&refusal, self.backend))
    }
}

impl Waiting<'_> {
    /// Its position; `None` if its turn has come.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let claim = &self.claim;
        Some(Place {
            core: Arc::clone(claim.core),
            lane: claim.lane,
            ticket: self.ticket?,
            backend: claim.backend,
        })
    }

    /// Its refusal if its deadline were now; `None` if it no longer waits.
    #[must_use]
    pub fn refusal_now(&self) -> Option<Refusal> {
        self.place()?.refusal_now()
    }
}
