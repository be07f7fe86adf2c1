//! Calls of another process, for which this one decides after a hand-over.
//!
//! Such a call is an ordinary one: it waits in its turn, and holds what it meets. Its number is in the ledger, so that the
//! other process finds its own calls there if this one dies.

use std::sync::Arc;

use tidegate_handover::{ForeignId, RunStage};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Class, Timestamp, Tokens};

use super::Gate;
use super::decision::{CallOwner, Lane};
use super::lock::GateState;
use super::permit::{GateCall, Permit};
use super::promotion::EffectiveClass;
use super::user_work::Promotion;
use crate::call::{Destination, Record};

/// A call that another process has admitted, and that runs.
#[derive(Clone, Debug)]
pub struct AdoptedCall {
    /// The number of the call.
    pub id: ForeignId,
    /// The call; its class is found by name.
    pub call: Call,
    /// The name of its class.
    pub class: Arc<str>,
    /// The destination.
    pub destination: Destination,
    /// Whether it meets the limits.
    pub limited: bool,
    /// How far it has come.
    pub stage: RunStage,
    /// When it was admitted.
    pub since: Timestamp,
}

impl Gate {
    /// Counts a call that another process has admitted. Its departures are in the ledger of that process.
    pub fn adopt(&self, adopted: AdoptedCall, record: Arc<Record>) -> Permit {
        let AdoptedCall {
            id,
            mut call,
            class,
            destination,
            limited,
            stage,
            since,
        } = adopted;
        let lane = Lane::of(limited);
        let departed: &[_] = match stage {
            RunStage::Admitted => &[],
            RunStage::Sent => &[WindowStamp::Sent],
            RunStage::Replied => &[WindowStamp::Sent, WindowStamp::Replied],
        };
        let hold = self.lock.change_in(lane, |state, now| {
            call.class = state.class(&class);
            let hold = state.lanes[lane as usize].carry_call(now, since, call, departed);
            state.own(lane, hold.place(), Some(CallOwner::Peer(id)));
            hold
        });
        let call = GateCall {
            lock: Arc::clone(&self.lock),
            lane,
            backend: destination,
            settling: None,
            shadowed: None,
            class: EffectiveClass::Own,
            promotion: Promotion::None,
            record,
            foreign: Some(id),
        };
        let sent = (stage > RunStage::Admitted).then_some(since);
        Permit::adopted(call, hold, since, sent)
    }

    /// The class of this name.
    #[must_use]
    pub fn class_named(&self, name: &str) -> Class {
        self.lock.lock().class(name)
    }
}

impl Permit {
    /// The call is over, and its process has measured this cost, if it is settled.
    pub fn finish_measured(mut self, outcome: Outcome, measured: Option<Tokens>) {
        // If it was given up meanwhile, there is nothing to end.
        let _ = self.end(outcome, measured);
    }
}

impl GateState {
    /// Notes whose a running call is that is not of this process.
    #[inline]
    pub(super) fn own(&mut self, lane: Lane, place: u32, owner: Option<CallOwner>) {
        if let (Lane::Limited, Some(owner)) = (lane, owner) {
            self.owners.insert(place, owner);
        }
    }

    /// The running call of another process in this place is over.
    #[inline]
    pub(super) fn disown(&mut self, lane: Lane, place: u32, foreign: Option<ForeignId>) {
        if foreign.is_some() && lane == Lane::Limited {
            self.owners.remove(&place);
        }
    }
}
