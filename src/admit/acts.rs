//! The acts of operators on the backend: a pause, and the ramp after it.
//!
//! Both are values of the gate's state, each with its end, and the one timer checks them. While a
//! pause lasts, the limits on the calls to each backend give out nothing, in both lanes. After it,
//! every limit gives out a share that grows from a tenth to all of it, in steps. A step never gives
//! out more than the line from a tenth to all has reached by then.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::SupplyShare;

use crate::call::Destination;

/// The share at the beginning of a ramp.   thousandths
const FIRST_SHARE: u16 = 100;
/// A ramp has at most this many steps.
const STEPS_MAX: u32 = 100;
/// The least time between two steps of a ramp.
const STEP_MIN: Duration = Duration::from_millis(100);
/// The most ends that are kept for the log of acts. Each is taken within moments.
const ENDED_MAX: usize = 300;
/// The most limits that have other values at once.
pub(super) const OVERRIDES_MAX: usize = 100;

/// A pause: nothing new is sent to any backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it began.
    pub since: Timestamp,
    /// When it ends by itself.
    pub ends: Timestamp,
    /// Whether calls may wait longer by the time that they were paused.
    pub extends: bool,
    /// The reason, in the operator's words.
    pub why: Arc<str>,
    /// Who paused it.
    pub author: Arc<str>,
}

/// The time in which limits grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// When it began.
    pub since: Timestamp,
    /// When the limits are whole again.
    pub ends: Timestamp,
    /// The reason.
    pub why: Arc<str>,
    /// Who asked for it.
    pub author: Arc<str>,
}

/// The wishes of an operator for a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseFor {
    /// Until it ends by itself.
    pub hold: Duration,
    /// Whether calls may wait longer by the time that they were paused.
    pub extends: bool,
    /// The reason, in the operator's words.
    pub why: Arc<str>,
    /// Who asks.
    pub author: Arc<str>,
}

/// The control of the backend: what the gate does with calls to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackendControl {
    /// The gate sends calls by the limits of the config.
    #[default]
    Running,
    /// The gate sends nothing new.
    Paused(Pause),
    /// The gate sends calls by a share of the limits, which grows.
    Ramping(Ramp),
}

/// A limit that has a lower value for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The most that it gives out.   calls, or tokens a second
    pub value: u32,
    /// When it ends by itself.
    pub ends: Timestamp,
    /// The reason, in the operator's words.
    pub why: Arc<str>,
    /// Who asked for it.
    pub author: Arc<str>,
}

/// Why a limit was not given another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOverridden {
    /// No limit has this name.
    #[error("there is no such limit")]
    Unknown,
    /// The limit holds no call.
    #[error("the limit only observes, so another value would hold no call")]
    Observes,
    /// The config allows less.
    #[error("the config allows {0}, and an act can only lower a limit")]
    Above(u32),
    /// There are too many.
    #[error("{OVERRIDES_MAX} limits have other values already")]
    TooMany,
}

/// The control of the backend at one moment.
#[derive(Clone, Debug)]
pub struct BackendControlNow {
    /// The control.
    pub acting: BackendControl,
    /// The share of the limits that is in force.
    pub share: SupplyShare,
    /// Calls past the gate that have not ended.
    pub in_flight: usize,
    /// The moment.
    pub now: Timestamp,
}

/// Something that ended or began by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutomaticChange {
    /// When.
    pub at: Timestamp,
    /// The change.
    pub what: AutomaticChangeKind,
}

/// A change that came by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AutomaticChangeKind {
    /// The hold of a pause is over. The limits grow for this time.
    PauseEnded {
        /// Zero for none.
        ramp: Duration,
    },
    /// The limits are whole again.
    RampEnded,
    /// A limit has its own value again.
    OverrideEnded {
        /// The name of the limit.
        limit: Arc<str>,
    },
    /// A backend is back, and the limits grow for this time.
    BackendBack {
        /// The backend.
        backend: Destination,
        /// The time.
        ramp: Duration,
    },
}

/// The state of a pause or a ramp, under the lock of the gate.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    pub(super) acting: BackendControl,
    /// When the next step of a ramp is due.
    pub(super) step: Option<Timestamp>,
    /// How long limits grow after a pause that ended by itself, and after a backend was down.
    pub(super) usual_ramp: Duration,
    /// Since when each backend is down.
    pub(super) down: [Option<Timestamp>; Destination::BACKENDS.len()],
    /// Limits with lower values.
    pub(super) overrides: Vec<Override>,
    /// For the log of acts.
    pub(super) by_itself: Vec<AutomaticChange>,
}

impl ControlState {
    pub(super) fn new(usual_ramp: Duration) -> Self {
        Self {
            usual_ramp,
            ..Self::default()
        }
    }

    pub(super) fn set_usual_ramp(&mut self, usual_ramp: Duration) {
        self.usual_ramp = usual_ramp;
    }

    /// When the timer must look again.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        let acting = match &self.acting {
            BackendControl::Running => None,
            BackendControl::Paused(pause) => Some(pause.ends),
            BackendControl::Ramping(_) => self.step,
        };
        let overrides = self.overrides.iter().map(|it| it.ends);
        first(acting, overrides.min())
    }

    /// Whether a pause or a ramp is due.
    pub(super) fn is_acting_due(&self, now: Timestamp) -> bool {
        match &self.acting {
            BackendControl::Running => false,
            BackendControl::Paused(pause) => pause.ends <= now,
            BackendControl::Ramping(_) => self.step.is_some_and(|step| step <= now),
        }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        !self.is_at_rest() && self.wake().is_some_and(|wake| wake <= now)
    }

    /// Whether the timer need not look again: no pause, no ramp, and no limit with a lower value.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.acting, BackendControl::Running) && self.overrides.is_empty()
    }

    /// The pause, if there is one.
    pub(super) fn pause(&self) -> Option<&Pause> {
        match &self.acting {
            BackendControl::Paused(pause) => Some(pause),
            BackendControl::Running | BackendControl::Ramping(_) => None,
        }
    }

    /// By how much a call that waits from `now` on may wait longer because of the pause.
    pub(super) fn extension(&self, now: Timestamp) -> Duration {
        let pause = self.pause().filter(|pause| pause.extends);
        pause.map_or(Duration::ZERO, |pause| pause.ends.since(now))
    }

    /// The deadline of a call that begins to wait now. One that lets it wait for nothing stays.
    pub(super) fn extended(&self, deadline: Timestamp, now: Timestamp) -> Timestamp {
        match deadline > now {
            true => deadline + self.extension(now),
            false => deadline,
        }
    }

    /// Whether anything has ended or begun by itself since the last time.
    pub(super) fn has_turned(&self) -> bool {
        !self.by_itself.is_empty()
    }

    pub(super) fn note(&mut self, at: Timestamp, what: AutomaticChangeKind) {
        if self.by_itself.len() < ENDED_MAX {
            self.by_itself.push(AutomaticChange { at, what });
        }
    }
}

impl Ramp {
    /// The share at `now`.
    pub(super) fn share(&self, now: Timestamp) -> SupplyShare {
        let length = self.ends.since(self.since).as_nanos();
        let past = now.since(self.since).as_nanos();
        if past >= length {
            return SupplyShare::FULL;
        }
        let rest = u128::from(SupplyShare::FULL.thousandths() - FIRST_SHARE);
        let grown = past * rest / length;
        let grown = u16::try_from(grown).expect("it is less than the rest");
        SupplyShare::of_thousandths(FIRST_SHARE + grown)
    }

    /// The time between two steps.
    pub(super) fn step(&self) -> Duration {
        let even = self.ends.since(self.since) / STEPS_MAX;
        even.max(STEP_MIN)
    }
}

/// The first of two moments, where there is one. Asked after each change of the gate: an iterator over them costs
/// twice the instructions.
#[inline]
pub(super) fn first(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
