//! A machine with processes, locks, a ledger, connections, a backend and its clients, in as few words as the questions
//! need. What a process decides in a hand-over is decided by the product's `OldSide` and `NewSide`; this file carries out
//! their outputs.
//!
//! Time passes in steps of one window: all departures so far are older than the window then. The ledger is ideal: it has
//! at each moment what the process that writes it holds, as `crates/ledger` promises.

mod events;
mod outputs;
mod steps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use tidegate_handover::{
    ClaimWait, Commitment, ForeignCall, ForeignId, NewSide, OldSide, ToNew, ToOld, WaitingCall,
};

pub(crate) use self::steps::Step;

/// A process, by its place in order of their starts. Its connection as a new process has the same number.
pub(crate) type ProcessId = usize;
/// The window that counts a call at its last byte.
const SENT: usize = 0;

/// The window that counts a call at the first byte of its reply.
const REPLIED: usize = 1;

/// A call, by its place in the order of arrival.
pub(crate) type CallNumber = usize;

/// The size of what is searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) processes: usize,
    pub(crate) calls: usize,
    /// The limits.
    pub(crate) window: usize,
    /// The most replies in a window that counts at the first byte of the reply. Without it, no reply is a step.
    pub(crate) replies: Option<usize>,
    pub(crate) at_once: usize,
    /// How often something may happen.
    pub(crate) crashes: u8,
    pub(crate) breaks: u8,
    pub(crate) stops: u8,
    /// The most calls of the old process that may wait in the new one.
    pub(crate) waiting_max: usize,
    /// Clients leave before their calls are sent.
    pub(crate) leaves: bool,
    /// `drain_timeout` passes.
    pub(crate) timeouts: bool,
    /// Deadlines pass.
    pub(crate) refusals: bool,
    /// Calls that could not be sent wait again.
    pub(crate) requeues: bool,
    /// A new process can fail to start or to publish.
    pub(crate) failures: bool,
    /// Processes can start without an upgrade.
    pub(crate) alone: bool,
    /// The second process speaks another version.
    pub(crate) stranger: bool,
    pub(crate) mistake: Mistake,
}

impl Scope {
    /// A call that counts in no window yet. In a window that there is not, it counts as departed.
    const fn undeparted(&self) -> [bool; 2] {
        [false, self.replies.is_none()]
    }

    /// Whether outputs need not fit, because the mistake is looked for elsewhere.
    fn misfits(&self) -> bool {
        !matches!(self.mistake, Mistake::Without | Mistake::HandsOverTooEarly)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} processes, {} calls, {} in a window, {} at once, {} crashes, {} broken connections, {} stops",
            self.processes,
            self.calls,
            self.window,
            self.at_once,
            self.crashes,
            self.breaks,
            self.stops
        )?;
        let also = [
            (self.leaves, "clients leave"),
            (self.timeouts, "drains time out"),
            (self.refusals, "deadlines pass"),
            (self.requeues, "calls wait again"),
            (self.failures, "new processes fail to start"),
            (self.alone, "processes start without an upgrade"),
            (self.stranger, "the second process has another version"),
        ];
        for (_, text) in also.iter().filter(|(happens, _)| *happens) {
            write!(out, ", {text}")?;
        }
        Ok(())
    }
}

/// A mistake of the surroundings or of a side, for the checker to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Without,
    AdmitsAfterCommit,
    ForgetsRunningCalls,
    GivesBackTwice,
    TakesBackFromTheLiving,
    TakesBackWithOldLedger,
    NeverTakesBack,
    HoldsOnlyUntilTheConnectionIsLost,
    RaisesNoTerm,
    CountsBeforeTheCommit,
    ClaimIsNeverAnswered,
    HandsOverTooEarly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    #[default]
    Unborn,
    Alive,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// A call of the process that holds.
    Own,
    /// A call of the old process, which will report its end.
    Foreign,
    /// A call of a process that may live.
    Held,
    /// A call that is finished after `after_crash`.
    Timed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotHold {
    /// For each window.
    pub(crate) has_departed: [bool; 2],
    pub(crate) holder: Holder,
}

/// The state of limits that a ledger keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    /// Calls, and whether they have departed in each window.
    pub(crate) calls: BTreeMap<CallNumber, [bool; 2]>,
    /// Departures within the last window.
    pub(crate) departed: [usize; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) life: Life,
    pub(crate) new: NewSide,
    pub(crate) old: OldSide,
    pub(crate) admits: bool,
    /// Clients may send calls: on new connections or on kept ones.
    pub(crate) has_clients: bool,
    pub(crate) has_opened: bool,
    pub(crate) writes_ledger: bool,
    pub(crate) drains: bool,
    pub(crate) term: u64,
    pub(crate) holds: BTreeMap<CallNumber, SlotHold>,
    pub(crate) departed: [usize; 2],
    /// Calls of the old process that wait here.
    pub(crate) asked: BTreeSet<CallNumber>,
    /// Steps that the process has begun and not finished.
    pub(crate) prepares: bool,
    pub(crate) freezes: bool,
    pub(crate) claims: Option<ClaimWait>,
    pub(crate) takes_over: Option<Option<Commitment>>,
    pub(crate) watches: bool,
    /// Room that a mistaken process has returned twice.
    pub(crate) forged: usize,
    /// The counts of a mistaken process.
    pub(crate) stale: Option<Counts>,
}

impl Process {
    fn new(scope: &Scope) -> Self {
        Self::in_life(Life::Unborn, scope.waiting_max)
    }

    /// A process that does nothing.
    fn in_life(life: Life, waiting_max: usize) -> Self {
        Self {
            life,
            new: NewSide::new(waiting_max, "", ""),
            old: OldSide::new(),
            admits: false,
            has_clients: false,
            has_opened: false,
            writes_ledger: false,
            drains: false,
            term: 0,
            holds: BTreeMap::new(),
            departed: [0; 2],
            asked: BTreeSet::new(),
            prepares: false,
            freezes: false,
            claims: None,
            takes_over: None,
            watches: false,
            forged: 0,
            stale: None,
        }
    }

    fn has_room(&self, scope: &Scope) -> bool {
        let has_room = |window: usize, max: usize| {
            let undeparted = self.holds.values();
            let undeparted = undeparted.filter(|hold| !hold.has_departed[window]);
            undeparted.count() + self.departed[window] < max + self.forged
        };
        self.holds.len() < scope.at_once + self.forged
            && has_room(SENT, scope.window)
            && scope.replies.is_none_or(|max| has_room(REPLIED, max))
    }

    fn counts(&self) -> Counts {
        let calls = self.holds.iter();
        Counts {
            calls: calls
                .map(|(&call, hold)| (call, hold.has_departed))
                .collect(),
            departed: self.departed,
        }
    }

    fn hold(&mut self, call: CallNumber, has_departed: [bool; 2], holder: Holder) {
        let hold = SlotHold {
            has_departed,
            holder,
        };
        self.holds.insert(call, hold);
    }

    /// Frees the slot of a call. False if it holds none.
    fn finish(&mut self, call: CallNumber) -> bool {
        let hold = self.holds.remove(&call);
        let hold = hold.inspect(|hold| self.count(hold.has_departed));
        hold.is_some()
    }

    /// Counts the departures of a call that is over, in windows in which it has not departed.
    fn count(&mut self, has_departed: [bool; 2]) {
        for (departed, has_departed) in self.departed.iter_mut().zip(has_departed) {
            *departed += usize::from(!has_departed);
        }
    }

    /// Counts the departure of a call. False if it has departed, or holds no slot.
    fn depart(&mut self, call: CallNumber, window: usize) -> bool {
        let hold = self.holds.get_mut(&call);
        let hold = hold.filter(|hold| !hold.has_departed[window]);
        let hold = hold.map(|hold| hold.has_departed[window] = true);
        self.departed[window] += usize::from(hold.is_some());
        hold.is_some()
    }
}

/// A connection from a new process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) old: ProcessId,
    pub(crate) to_old: VecDeque<ToOld>,
    pub(crate) to_new: VecDeque<ToNew>,
    pub(crate) is_broken: bool,
    /// Each side uses the connection no more.
    pub(crate) old_is_done: bool,
    pub(crate) new_is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Unborn,
    Waiting,
    Admitted,
    Sent,
    Replied,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientCall {
    pub(crate) at: ProcessId,
    pub(crate) stage: Stage,
    /// How often the client got an answer, or left.
    pub(crate) ends: u8,
    pub(crate) is_served: bool,
    /// The call waited in one process, and another admitted it.
    pub(crate) has_crossed: bool,
    pub(crate) was_requeued: bool,
    /// The call was refused or cut off because its process ended, and not by a crash.
    pub(crate) is_lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) processes: Vec<Process>,
    pub(crate) links: Vec<Option<Link>>,
    pub(crate) ledger_lock: Option<ProcessId>,
    pub(crate) term: u64,
    pub(crate) draining_lock: Option<ProcessId>,
    pub(crate) ledger: Counts,
    pub(crate) calls: Vec<ClientCall>,
    /// The backend: calls that were sent and calls that were replied within the last window, and calls that run.
    pub(crate) in_window: [usize; 2],
    pub(crate) at_backend: BTreeSet<CallNumber>,
    pub(crate) crashes: u8,
    pub(crate) breaks: u8,
    pub(crate) stops: u8,
    /// The first event that must not happen.
    pub(crate) wrong: Option<&'static str>,
}

const fn foreign(call: CallNumber) -> ForeignId {
    ForeignId(call as u64)
}

const fn number(id: ForeignId) -> CallNumber {
    id.0 as CallNumber
}

fn waiting(call: CallNumber) -> WaitingCall {
    let (id, call) = (foreign(call), ForeignCall::default());
    WaitingCall { id, call }
}

impl World {
    /// A world in which the first process serves.
    pub(crate) fn begin(scope: &Scope) -> Self {
        let call = ClientCall {
            at: 0,
            stage: Stage::Unborn,
            ends: 0,
            is_served: false,
            has_crossed: false,
            was_requeued: false,
            is_lost: false,
        };
        let mut world = Self {
            processes: vec![Process::new(scope); scope.processes],
            links: vec![None; scope.processes],
            ledger_lock: None,
            term: 0,
            draining_lock: None,
            ledger: Counts::default(),
            calls: vec![call; scope.calls],
            in_window: [0; 2],
            at_backend: BTreeSet::new(),
            crashes: 0,
            breaks: 0,
            stops: 0,
            wrong: None,
        };
        for step in [
            Step::StartAlone(0),
            Step::Ready(0),
            Step::Claim(0),
            Step::Published(0),
            Step::DrainingEnded(0),
        ] {
            world.take(step, scope);
        }
        world
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        self.processes[process].life == Life::Alive
    }

    fn asks_peer(&self, process: ProcessId) -> bool {
        self.processes[process].old.asks_peer()
    }

    fn has_calls(&self, process: ProcessId) -> bool {
        let mut calls = self.calls.iter();
        calls.any(|call| call.at == process && !matches!(call.stage, Stage::Unborn | Stage::Over))
    }

    /// A call at the backend whose process is gone.
    fn is_orphan(&self, call: CallNumber) -> bool {
        self.at_backend.contains(&call) && self.calls[call].stage == Stage::Over
    }

    fn expect(&mut self, is_so: bool, otherwise: &'static str) {
        if !is_so {
            self.wrong.get_or_insert(otherwise);
        }
    }
}
