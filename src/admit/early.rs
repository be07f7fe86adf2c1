//! Refuses calls at once that are predicted to wait past their deadline.
//!
//! Only a call that begins to wait is asked, after all that may run have got their turn. One that comes back because
//! it could not be sent has waited already, and keeps its place.

use tidegate_limits::{Ticket, Timestamp};

use super::decision::{Decision, Lane, RefusalCause};
use super::lock::GateState;
use super::permit::GateCall;

/// Whether a call has waited before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    Again,
}

impl GateState {
    /// The refusal of a call that is predicted to start after its deadline, if such calls are refused.
    pub(super) fn refuse_if_late(
        &mut self,
        ticket: Ticket,
        now: Timestamp,
        call: &GateCall,
        begins: Attempt,
    ) -> Option<Decision> {
        let is_asked = self.early_refusal && self.peer.is_none();
        if !is_asked || call.lane != Lane::Limited || begins == Attempt::Again {
            return None;
        }
        let reopens = self.acts.pause().map(|pause| pause.ends);
        let (refusal, _) = self.calls().refuse_if_late(now, ticket, reopens)?;
        // It may have been before others that need less.
        self.admit_ready(now);
        Some(Decision::Refuse {
            refusal: RefusalCause::Scheduler(refusal),
            delays: Default::default(),
            at: now,
            postponed: Vec::new(),
        })
    }
}
