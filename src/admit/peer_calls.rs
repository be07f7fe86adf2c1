//! The calls for which another process decides, by their places in the own scheduler, and their events.

use std::sync::Arc;

use foldhash::HashMap;
use tidegate_handover::{ForeignId, RequeueCause, RunStage};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Ticket, Timestamp, Tokens};

use super::decision::Lane;
use crate::call::{Destination, Role};

/// A call of this process, for the process that decides.
#[derive(Clone, Debug)]
pub struct PeerCall {
    /// The number of the call.
    pub id: ForeignId,
    /// The call as the scheduler has it.
    pub call: Call,
    /// The name of its class.
    pub class: Arc<str>,
    /// Whether it meets the limits.
    pub limited: bool,
    /// How often later calls were admitted before it.
    pub passed_over: u32,
    /// The role for promotion.
    pub role: Role,
    /// The guest that it is about.
    pub target: Option<Box<str>>,
}

/// A running call of this process, for the process that decides.
#[derive(Clone, Debug)]
pub struct RunningPeerCall {
    /// The call.
    pub call: PeerCall,
    /// How far it has come.
    pub stage: RunStage,
    /// When it was admitted.
    pub since: Timestamp,
}

/// The calls of a gate that admits no call any more.
#[derive(Clone, Debug, Default)]
pub struct FrozenCalls {
    /// The calls that run.
    pub running: Vec<RunningPeerCall>,
    /// The calls that wait, in the order of their arrival.
    pub waiting: Vec<PeerCall>,
}

/// An event of a call for which another process decides.
#[derive(Clone, Debug)]
pub enum PeerEvent {
    /// A call waits.
    Arrived(Box<PeerCall>),
    /// The deadline or the class of a waiting call has changed.
    Changed {
        /// The call.
        id: ForeignId,
        /// The last moment at which it can leave the queue.
        deadline: Option<Timestamp>,
        /// The name of its class.
        class: Arc<str>,
    },
    /// A call is over, and no byte of it was sent.
    Left(ForeignId),
    /// The last byte of a call has left for the backend.
    Sent(ForeignId),
    /// The first byte of the reply has arrived.
    Replied(ForeignId),
    /// A call that was sent is over.
    Ended {
        /// The call.
        id: ForeignId,
        /// How.
        outcome: Outcome,
        /// The cost that was measured, if the call is settled.
        measured: Option<Tokens>,
    },
    /// An admitted call could not be sent, and waits again.
    Requeued {
        /// The call.
        id: ForeignId,
        /// Why.
        cause: RequeueCause,
    },
}

/// A call in the own scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CallPlace {
    Waits(Lane, Ticket),
    Runs(Lane, u32),
}

/// The step of a running call.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunStep {
    Sent,
    Replied,
    Ended(Outcome, Option<Tokens>),
    GivenBack,
}

/// The calls for which another process decides.
#[derive(Debug)]
pub(super) struct PeerCalls {
    pub(super) ids: HashMap<CallPlace, ForeignId>,
    pub(super) places: HashMap<ForeignId, CallPlace>,
    /// When this process stopped to decide.
    pub(super) frozen: Timestamp,
    pub(super) events: Vec<PeerEvent>,
}

impl PeerCalls {
    pub(super) fn new(frozen: Timestamp) -> Self {
        Self {
            ids: HashMap::default(),
            places: HashMap::default(),
            frozen,
            events: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, place: CallPlace, id: ForeignId) {
        self.ids.insert(place, id);
        self.places.insert(id, place);
    }

    pub(super) fn remove(&mut self, place: CallPlace) -> Option<ForeignId> {
        let id = self.ids.remove(&place)?;
        self.places.remove(&id);
        Some(id)
    }
}

impl PeerCall {
    pub(super) fn new(id: ForeignId, call: Call, class: Arc<str>, lane: Lane) -> Self {
        Self {
            id,
            call,
            class,
            limited: lane == Lane::Limited,
            passed_over: 0,
            role: Role::Apart,
            target: None,
        }
    }

    /// The destination of the call.
    #[must_use]
    pub fn destination(&self) -> Destination {
        let known = Destination::ALL.get(usize::from(self.call.backend.0));
        known.copied().unwrap_or(Destination::Nowhere)
    }
}

pub(super) fn next_id(ids: &mut u64) -> ForeignId {
    *ids += 1;
    ForeignId(*ids)
}
