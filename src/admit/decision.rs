//! A call that waits, and the message by which it learns its turn.

use std::mem;
use std::sync::Weak;
use std::time::Duration;

use tidegate_handover::ForeignId;
use tidegate_limits::scheduler::{Delays, Jitter, QuotaSpent, WaitReport};
use tidegate_limits::{Hold, Timestamp};
use tokio::sync::oneshot;

use super::promotion::EffectiveClass;
use crate::call::{Record, Refusal};

/// The most postponements of one call that its line for a replay shows. With the default times, a call
/// that waits for two minutes has fewer.
pub const POSTPONED_MAX: usize = 256;

/// A call that waits for its turn.
#[derive(Default)]
pub(super) struct WaitingCall {
    /// `None` for the call that asks at this moment, under the lock.
    pub(super) tell: Option<oneshot::Sender<Box<Decision>>>,
    /// A promoted call stays in the class of users for any client.
    pub(super) class: EffectiveClass,
    /// The id of its access line.
    pub(super) id: u64,
    /// The record of the call, and its caller.
    pub(super) record: Weak<Record>,
    /// When it was set aside, and for how long.
    pub(super) postponed: Vec<(Timestamp, Duration)>,
    /// The number of a call of another process, for which this one decides.
    pub(super) foreign: Option<ForeignId>,
    /// The number of a call for which another process decides.
    pub(super) peer: Option<ForeignId>,
}

impl WaitingCall {
    /// A call that asks at this moment; with its number if it is of another process.
    pub(super) fn of(foreign: Option<ForeignId>) -> Self {
        Self {
            foreign,
            ..Self::default()
        }
    }

    /// Whether the client of the call has given up for a while, so that it cannot be informed.
    pub(super) fn is_suspended(&self) -> bool {
        self.tell.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Chooses how long it is set aside.
    pub(super) fn set_aside(
        &mut self,
        now: Timestamp,
        jitter: Jitter,
        random: u64,
        keeps_steps: bool,
    ) -> Duration {
        let aside = jitter.draw(now, random);
        if keeps_steps && self.postponed.len() < POSTPONED_MAX {
            self.postponed.push((now, aside));
        }
        aside
    }
}

/// The message to a waiting call.
#[derive(Debug)]
pub(super) enum Decision {
    Admit {
        hold: Hold,
        waited: WaitReport,
        spent: Vec<QuotaSpent>,
        at: Timestamp,
        class: EffectiveClass,
        postponed: Vec<(Timestamp, Duration)>,
    },
    Refuse {
        refusal: RefusalCause,
        delays: Delays,
        at: Timestamp,
        postponed: Vec<(Timestamp, Duration)>,
    },
}

/// Who refuses a call.
#[derive(Debug)]
pub(super) enum RefusalCause {
    Scheduler(tidegate_limits::scheduler::Refusal),
    /// The queue is drained.
    Draining,
    /// The process that decides.
    Peer(Box<Refusal>),
}

/// The scheduler in which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Limited = 0,
    Unlimited = 1,
}

impl Lane {
    /// The lane of a call that meets limits, or none.
    pub(super) const fn of(limited: bool) -> Self {
        match limited {
            true => Self::Limited,
            false => Self::Unlimited,
        }
    }
}

/// A call of a process before, until it is finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct CarriedHold {
    /// Since when it has been held as such.
    pub(super) since: Timestamp,
    /// Until when it is held.
    pub(super) until: Timestamp,
    /// How long most such calls take; 0 if that is not known.   ms
    pub(super) usual_ms: u32,
}

/// The owner of a running call that is not of this process.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallOwner {
    /// A process before. The call may still be at the backend.
    Before(CarriedHold),
    /// A process that drains, which knows the call by this number.
    Peer(ForeignId),
}

impl WaitingCall {
    /// Informs the call that it runs. Gives its hold back if it has left.
    pub(super) fn admit(
        mut self,
        hold: Hold,
        waited: WaitReport,
        spent: Vec<QuotaSpent>,
        at: Timestamp,
        answer: &mut Option<Decision>,
    ) -> Option<Hold> {
        let run = Decision::Admit {
            hold,
            waited,
            spent,
            at,
            class: self.class,
            postponed: mem::take(&mut self.postponed),
        };
        tell(self, run, answer)
    }

    /// Informs the call that it is refused. One that has just left needs no answer.
    pub(super) fn refuse(
        mut self,
        refusal: RefusalCause,
        delays: Delays,
        at: Timestamp,
        answer: &mut Option<Decision>,
    ) {
        let no = Decision::Refuse {
            refusal,
            delays,
            at,
            postponed: mem::take(&mut self.postponed),
        };
        let _ = tell(self, no, answer);
    }
}

/// Informs a call in the way it waits. Gives its hold back if the call has left.
fn tell(waiter: WaitingCall, turn: Decision, answer: &mut Option<Decision>) -> Option<Hold> {
    let Some(tell) = waiter.tell else {
        *answer = Some(turn);
        return None;
    };
    match tell.send(Box::new(turn)).map_err(|turn| *turn) {
        Err(Decision::Admit { hold, .. }) => Some(hold),
        Err(Decision::Refuse { .. }) | Ok(()) => None,
    }
}
