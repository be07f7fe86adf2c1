//! A machine with processes, locks, a ledger, connections, a backend and its clients, in as few words as the questions
//! need. What a process decides in a hand-over is decided by the product's `OldSide` and `NewSide`; this file carries out
//! their outputs.
//!
//! Time passes in steps of one window: all departures so far are older than the window then. The ledger is ideal: it has
//! at each moment what the process that writes it holds, as `crates/ledger` promises.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_handover::{
    CallRefusal, ClaimWait, Commitment, ForeignCall, ForeignId, ForeignOutcome, FrozenGate,
    NewInput, NewOutput, NewSide, OldInput, OldOutput, OldSide, PeerConnection, RequeueCause,
    RunStage, RunningCall, ToNew, ToOld, Versions, WaitingCall,
};

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
        Self {
            life: Life::Unborn,
            new: NewSide::new(scope.waiting_max, "", ""),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Arrive(ProcessId),
    Leave(CallNumber),
    Admit(ProcessId, CallNumber),
    /// The deadline of a call of the old process passes.
    Refuse(ProcessId, CallNumber),
    Send(CallNumber),
    Reply(CallNumber),
    End(CallNumber),
    Requeue(CallNumber),
    /// The backend is done with a call whose process is gone.
    OrphanEnds(CallNumber),
    WindowPasses,
    StartAlone(ProcessId),
    Upgrade(ProcessId, ProcessId),
    Ready(ProcessId),
    NotReady(ProcessId),
    Frozen(ProcessId),
    Claim(ProcessId),
    Published(ProcessId),
    NotPublished(ProcessId),
    DrainingEnded(ProcessId),
    AfterCrash(ProcessId),
    ConnectionsClosed(ProcessId),
    DrainTimeout(ProcessId),
    Stop(ProcessId),
    Drained(ProcessId),
    Crash(ProcessId),
    Break(ProcessId),
    OldReads(ProcessId),
    NewReads(ProcessId),
    OldLoses(ProcessId),
    NewLoses(ProcessId),
}

impl Step {
    /// Whether the step happens by itself, sooner or later.
    pub(crate) const fn is_progress(self) -> bool {
        !matches!(
            self,
            Self::Arrive(_)
                | Self::Leave(_)
                | Self::Refuse(..)
                | Self::Requeue(_)
                | Self::StartAlone(_)
                | Self::Upgrade(..)
                | Self::NotReady(_)
                | Self::NotPublished(_)
                | Self::DrainTimeout(_)
                | Self::Stop(_)
                | Self::Crash(_)
                | Self::Break(_)
        )
    }
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

    /// Everything that can happen next.
    pub(crate) fn steps(&self, scope: &Scope, into: &mut Vec<Step>) {
        let mut windows = self.processes.iter().map(|it| it.departed);
        if self.in_window != [0; 2]
            || self.ledger.departed != [0; 2]
            || windows.any(|departed| departed != [0; 2])
        {
            into.push(Step::WindowPasses);
        }
        self.steps_of_calls(scope, into);
        for process in 0..self.processes.len() {
            match self.processes[process].life {
                Life::Alive => self.steps_of_process(scope, process, into),
                Life::Unborn => {
                    self.starts(scope, process, into);
                    break;
                }
                Life::Gone => {}
            }
        }
        for (new, link) in self.links.iter().enumerate() {
            if let Some(link) = link {
                self.steps_of_link(scope, new, link, into);
            }
        }
    }

    fn steps_of_calls(&self, scope: &Scope, into: &mut Vec<Step>) {
        for (number, call) in self.calls.iter().enumerate() {
            match call.stage {
                Stage::Waiting if scope.leaves => into.push(Step::Leave(number)),
                Stage::Admitted => {
                    into.push(Step::Send(number));
                    if scope.leaves {
                        into.push(Step::Leave(number));
                    }
                    if scope.requeues && !call.was_requeued {
                        into.push(Step::Requeue(number));
                    }
                }
                Stage::Sent | Stage::Replied => {
                    into.push(Step::End(number));
                    if scope.replies.is_some() && call.stage == Stage::Sent {
                        into.push(Step::Reply(number));
                    }
                }
                Stage::Over if self.is_orphan(number) => into.push(Step::OrphanEnds(number)),
                Stage::Unborn | Stage::Waiting | Stage::Over => {}
            }
        }
    }

    fn starts(&self, scope: &Scope, process: ProcessId, into: &mut Vec<Step>) {
        if scope.alone {
            into.push(Step::StartAlone(process));
        }
        let old = (0..process).filter(|&old| self.is_alive(old) && self.processes[old].has_opened);
        into.extend(old.map(|old| Step::Upgrade(process, old)));
    }

    fn steps_of_process(&self, scope: &Scope, id: ProcessId, into: &mut Vec<Step>) {
        let process = &self.processes[id];
        let has_more = self.calls.iter().any(|call| call.stage == Stage::Unborn);
        let mut offer = |is_possible: bool, step| {
            if is_possible {
                into.push(step);
            }
        };
        offer(has_more && process.has_clients, Step::Arrive(id));
        if process.admits && process.has_room(scope) {
            for (number, call) in self.calls.iter().enumerate() {
                let is_own = call.at == id && call.stage == Stage::Waiting && !self.asks_peer(id);
                offer(
                    is_own || process.asked.contains(&number),
                    Step::Admit(id, number),
                );
            }
        }
        if scope.refusals {
            for &number in &process.asked {
                offer(true, Step::Refuse(id, number));
            }
        }
        offer(process.prepares, Step::Ready(id));
        offer(process.prepares && scope.failures, Step::NotReady(id));
        offer(process.freezes, Step::Frozen(id));
        let is_answered = match process.claims {
            None => false,
            Some(_) if scope.mistake == Mistake::ClaimIsNeverAnswered => self.ledger_lock.is_none(),
            Some(ClaimWait::Short) => true,
            Some(ClaimWait::UntilFree) => self.ledger_lock.is_none(),
        };
        offer(is_answered, Step::Claim(id));
        offer(process.takes_over.is_some(), Step::Published(id));
        let can_fail = scope.failures && process.takes_over.is_some();
        offer(can_fail, Step::NotPublished(id));
        let drained = self.draining_lock.is_none_or(|by| by == id)
            || scope.mistake == Mistake::HoldsOnlyUntilTheConnectionIsLost;
        offer(process.watches && drained, Step::DrainingEnded(id));
        let mut timed = process.holds.iter();
        let has_timed = timed.any(|(_, hold)| hold.holder == Holder::Timed);
        let mut timed = process.holds.iter();
        let is_over =
            timed.all(|(&call, hold)| hold.holder != Holder::Timed || !self.is_orphan(call));
        offer(has_timed && is_over, Step::AfterCrash(id));
        let ends = self.asks_peer(id);
        let is_idle = process.has_clients && !self.has_calls(id);
        offer(ends && is_idle, Step::ConnectionsClosed(id));
        offer(ends && scope.timeouts, Step::DrainTimeout(id));
        let can_stop = process.has_opened && !process.drains && self.stops < scope.stops;
        offer(can_stop, Step::Stop(id));
        offer(process.drains && !self.has_calls(id), Step::Drained(id));
        offer(self.crashes < scope.crashes, Step::Crash(id));
    }

    fn steps_of_link(&self, scope: &Scope, new: ProcessId, link: &Link, into: &mut Vec<Step>) {
        if !link.old_is_done {
            if !link.to_old.is_empty() {
                into.push(Step::OldReads(new));
            }
            if link.is_broken {
                into.push(Step::OldLoses(new));
            }
        }
        if !link.new_is_done {
            if !link.to_new.is_empty() && self.processes[new].new.reads() {
                into.push(Step::NewReads(new));
            }
            if link.is_broken {
                into.push(Step::NewLoses(new));
            }
        }
        if !link.is_broken && self.breaks < scope.breaks {
            into.push(Step::Break(new));
        }
    }

    /// Lets a step happen.
    pub(crate) fn take(&mut self, step: Step, scope: &Scope) {
        match step {
            Step::Arrive(_)
            | Step::Leave(_)
            | Step::Admit(..)
            | Step::Refuse(..)
            | Step::Send(_)
            | Step::Reply(_)
            | Step::End(_)
            | Step::Requeue(_)
            | Step::OrphanEnds(_) => self.take_of_call(step, scope),
            Step::OldReads(_)
            | Step::NewReads(_)
            | Step::OldLoses(_)
            | Step::NewLoses(_)
            | Step::Break(_) => self.take_of_link(step, scope),
            Step::WindowPasses => {
                self.in_window = [0; 2];
                self.ledger.departed = [0; 2];
                for process in &mut self.processes {
                    process.departed = [0; 2];
                    if let Some(stale) = &mut process.stale {
                        stale.departed = [0; 2];
                    }
                }
            }
            _ => self.take_of_process(step, scope),
        }
        for id in 0..self.processes.len() {
            if self.processes[id].writes_ledger {
                self.expect(
                    self.ledger_lock == Some(id),
                    "a ledger is written without its lock",
                );
                self.ledger = self.processes[id].counts();
            }
        }
        for link in &mut self.links {
            if link
                .as_ref()
                .is_some_and(|it| it.old_is_done && it.new_is_done)
            {
                *link = None;
            }
        }
    }

    fn expect(&mut self, is_so: bool, otherwise: &'static str) {
        if !is_so {
            self.wrong.get_or_insert(otherwise);
        }
    }

    fn take_of_call(&mut self, step: Step, scope: &Scope) {
        match step {
            Step::Arrive(at) => {
                let mut calls = self.calls.iter();
                let unborn = calls.position(|call| call.stage == Stage::Unborn);
                let number = unborn.expect("a step is possible");
                let call = &mut self.calls[number];
                (call.at, call.stage) = (at, Stage::Waiting);
                if self.asks_peer(at) {
                    self.tell_old(at, OldInput::Arrived(waiting(number)), scope);
                }
            }
            Step::Admit(at, number) => {
                if self.processes[at].asked.remove(&number) {
                    self.processes[at].hold(number, scope.undeparted(), Holder::Foreign);
                    self.tell_new(at, NewInput::Admitted(foreign(number)), scope);
                } else {
                    self.processes[at].hold(number, scope.undeparted(), Holder::Own);
                    self.calls[number].stage = Stage::Admitted;
                }
            }
            Step::Refuse(at, number) => {
                self.processes[at].asked.remove(&number);
                let refused = NewInput::Refused(foreign(number), CallRefusal::queue_full());
                self.tell_new(at, refused, scope);
            }
            Step::Leave(number) => {
                let (at, was) = (self.calls[number].at, self.calls[number].stage);
                self.end_call(number);
                if self.asks_peer(at) {
                    self.tell_old(at, OldInput::Left(foreign(number)), scope);
                } else if was == Stage::Admitted {
                    self.processes[at].holds.remove(&number);
                }
            }
            Step::Send(number) => {
                let at = self.calls[number].at;
                self.calls[number].stage = Stage::Sent;
                self.in_window[SENT] += 1;
                self.at_backend.insert(number);
                if self.asks_peer(at) {
                    self.tell_old(at, OldInput::Sent(foreign(number)), scope);
                } else {
                    self.processes[at].depart(number, SENT);
                }
            }
            Step::Reply(number) => {
                let at = self.calls[number].at;
                self.calls[number].stage = Stage::Replied;
                self.in_window[REPLIED] += 1;
                if self.asks_peer(at) {
                    self.tell_old(at, OldInput::Replied(foreign(number)), scope);
                } else {
                    self.processes[at].depart(number, REPLIED);
                }
            }
            Step::End(number) => {
                let at = self.calls[number].at;
                self.at_backend.remove(&number);
                self.end_call(number);
                self.calls[number].is_served = true;
                if self.asks_peer(at) {
                    let ended = OldInput::Ended {
                        id: foreign(number),
                        outcome: ForeignOutcome::Served,
                        measured: None,
                    };
                    self.tell_old(at, ended, scope);
                } else {
                    let held = self.processes[at].finish(number);
                    self.expect(held, "an own call ran without a slot");
                }
            }
            Step::Requeue(number) => {
                let at = self.calls[number].at;
                let call = &mut self.calls[number];
                (call.stage, call.was_requeued) = (Stage::Waiting, true);
                if self.asks_peer(at) {
                    let (id, cause) = (foreign(number), RequeueCause::Backend);
                    self.tell_old(at, OldInput::Requeued { id, cause }, scope);
                } else {
                    self.processes[at].holds.remove(&number);
                }
            }
            Step::OrphanEnds(number) => {
                self.at_backend.remove(&number);
            }
            _ => unreachable!("a step of a call"),
        }
    }

    fn take_of_link(&mut self, step: Step, scope: &Scope) {
        let link = |world: &mut Self, new: ProcessId| -> Link {
            world.links[new].clone().expect("a step is possible")
        };
        match step {
            Step::OldReads(new) => {
                let mut it = link(self, new);
                let message = it.to_old.pop_front().expect("a step is possible");
                let old = it.old;
                self.links[new] = Some(it);
                let message = match message {
                    ToOld::Hello {
                        instance, config, ..
                    } if scope.stranger && new == 1 => {
                        let (oldest, newest) = (9, 9);
                        let versions = Versions { oldest, newest };
                        ToOld::Hello {
                            versions,
                            instance,
                            config,
                        }
                    }
                    message => message,
                };
                let from = PeerConnection(new as u64);
                self.tell_old(old, OldInput::Message(from, message), scope);
            }
            Step::NewReads(new) => {
                let mut it = link(self, new);
                let message = it.to_new.pop_front().expect("a step is possible");
                self.links[new] = Some(it);
                self.tell_new(new, NewInput::Message(message), scope);
            }
            Step::OldLoses(new) => {
                let mut it = link(self, new);
                let old = it.old;
                it.old_is_done = true;
                it.to_old.clear();
                self.links[new] = Some(it);
                self.tell_old(old, OldInput::Lost(PeerConnection(new as u64)), scope);
            }
            Step::NewLoses(new) => {
                let mut it = link(self, new);
                it.new_is_done = true;
                it.to_new.clear();
                self.links[new] = Some(it);
                self.tell_new(new, NewInput::Lost, scope);
            }
            Step::Break(new) => {
                self.breaks += 1;
                if let Some(link) = &mut self.links[new] {
                    link.is_broken = true;
                }
            }
            _ => unreachable!("a step of a connection"),
        }
    }

    fn take_of_process(&mut self, step: Step, scope: &Scope) {
        match step {
            Step::StartAlone(id) => {
                self.processes[id].life = Life::Alive;
                self.tell_new(id, NewInput::Alone, scope);
            }
            Step::Upgrade(id, old) => {
                self.processes[id].life = Life::Alive;
                self.links[id] = Some(Link {
                    old,
                    to_old: VecDeque::new(),
                    to_new: VecDeque::new(),
                    is_broken: false,
                    old_is_done: false,
                    new_is_done: false,
                });
                self.tell_new(id, NewInput::Connected, scope);
            }
            Step::Ready(id) => {
                self.processes[id].prepares = false;
                if scope.mistake == Mistake::CountsBeforeTheCommit {
                    self.processes[id].stale = Some(self.ledger.clone());
                }
                self.tell_new(id, NewInput::Ready, scope);
            }
            Step::NotReady(id) => self.tell_new(id, NewInput::NotReady, scope),
            Step::Frozen(id) => self.freeze(id, scope),
            Step::Claim(id) => self.claim(id, scope),
            Step::Published(id) => self.publish(id, scope),
            Step::NotPublished(id) => self.tell_new(id, NewInput::NotPublished, scope),
            Step::DrainingEnded(id) => {
                self.processes[id].watches = false;
                self.tell_new(id, NewInput::DrainingEnded, scope);
            }
            Step::AfterCrash(id) => {
                let process = &mut self.processes[id];
                let timed = process.holds.iter();
                let timed = timed.filter(|(_, hold)| hold.holder == Holder::Timed);
                let timed: Vec<CallNumber> = timed.map(|(&call, _)| call).collect();
                for call in timed {
                    process.finish(call);
                }
            }
            Step::ConnectionsClosed(id) => {
                self.processes[id].has_clients = false;
                self.tell_old(id, OldInput::ConnectionsClosed, scope);
            }
            Step::DrainTimeout(id) => self.tell_old(id, OldInput::DrainTimeout, scope),
            Step::Stop(id) => {
                self.stops += 1;
                let is_local = !self.asks_peer(id) && !self.processes[id].freezes;
                self.tell_old(id, OldInput::Stopping, scope);
                self.tell_new(id, NewInput::Stopping, scope);
                if is_local {
                    self.drain(id);
                }
            }
            Step::Drained(id) => self.end_process(id),
            Step::Crash(id) => {
                self.crashes += 1;
                self.end_process(id);
            }
            _ => unreachable!("a step of a process"),
        }
    }

    fn drain(&mut self, id: ProcessId) {
        let process = &mut self.processes[id];
        process.drains = true;
        process.has_clients = false;
    }

    fn freeze(&mut self, id: ProcessId, scope: &Scope) {
        self.processes[id].freezes = false;
        let drains = self.draining_lock.is_some_and(|by| by != id);
        let is_present = self.processes[id].new.is_old_present();
        if drains || is_present && scope.mistake != Mistake::HandsOverTooEarly {
            let by = Box::default();
            return self.tell_old(id, OldInput::CannotFreeze { by }, scope);
        }
        self.draining_lock = Some(id);
        let process = &mut self.processes[id];
        process.writes_ledger = false;
        process.admits = scope.mistake == Mistake::AdmitsAfterCommit;
        let term = process.term;
        let (mut running, mut waits) = (Vec::new(), Vec::new());
        for (number, call) in self.calls.iter().enumerate().filter(|(_, it)| it.at == id) {
            let stage = match call.stage {
                Stage::Waiting => {
                    waits.push(waiting(number));
                    continue;
                }
                Stage::Admitted => RunStage::Admitted,
                Stage::Sent => RunStage::Sent,
                Stage::Replied => RunStage::Replied,
                Stage::Unborn | Stage::Over => continue,
            };
            let WaitingCall { id, call } = waiting(number);
            running.push(RunningCall {
                id,
                call,
                stage,
                admitted: 0,
            });
        }
        let frozen = OldInput::Frozen(FrozenGate {
            running,
            waiting: waits,
            state: Vec::new(),
            sockets: 1,
            term,
        });
        self.tell_old(id, frozen, scope);
    }

    fn claim(&mut self, id: ProcessId, scope: &Scope) {
        self.processes[id].claims = None;
        let is_old = self.processes[id].has_opened;
        let takes_anyway = is_old && scope.mistake == Mistake::TakesBackFromTheLiving;
        let never_takes = is_old && scope.mistake == Mistake::NeverTakesBack;
        if never_takes || self.ledger_lock.is_some() && !takes_anyway {
            return match is_old {
                true => self.tell_old(id, OldInput::LedgerRefused, scope),
                false => self.tell_new(id, NewInput::LedgerRefused, scope),
            };
        }
        let term = self.term;
        self.ledger_lock = Some(id);
        self.term += u64::from(scope.mistake != Mistake::RaisesNoTerm);
        self.processes[id].term = self.term;
        match is_old {
            true => self.tell_old(id, OldInput::LedgerClaimed { term }, scope),
            false => self.tell_new(id, NewInput::LedgerClaimed { term }, scope),
        }
    }

    fn publish(&mut self, id: ProcessId, scope: &Scope) {
        let commitment = self.processes[id].takes_over.take();
        let commitment = commitment.expect("a step is possible");
        let stale = self.processes[id].stale.take();
        let counts = stale.unwrap_or_else(|| self.ledger.clone());
        let mut running: BTreeSet<CallNumber> = BTreeSet::new();
        if let Some(commitment) = commitment {
            let calls = commitment.running.iter();
            running = calls.map(|call| number(call.id)).collect();
        }
        let is_stale = scope.misfits();
        let known = running.iter().all(|call| counts.calls.contains_key(call));
        self.expect(
            known || is_stale,
            "a call was handed over that the ledger lacks",
        );
        let process = &mut self.processes[id];
        process.departed = counts.departed;
        for (call, has_departed) in counts.calls {
            let holder = match running.contains(&call) {
                true if scope.mistake == Mistake::ForgetsRunningCalls => continue,
                true => Holder::Foreign,
                false => Holder::Held,
            };
            process.hold(call, has_departed, holder);
        }
        process.writes_ledger = true;
        self.tell_new(id, NewInput::Published, scope);
    }

    fn take_back(&mut self, id: ProcessId, scope: &Scope) {
        let process = &mut self.processes[id];
        let stale = process.stale.take();
        let counts = stale.unwrap_or_else(|| self.ledger.clone());
        process.departed = counts.departed;
        process.holds.clear();
        for (&number, &has_departed) in &counts.calls {
            let call = &self.calls[number];
            match (call.at == id, call.stage) {
                (true, Stage::Admitted | Stage::Sent | Stage::Replied) => {
                    process.hold(number, has_departed, Holder::Own);
                }
                // The message that it may run was lost.
                (true, Stage::Waiting) => {}
                // The message that it ended was lost.
                (true, _) => process.count(has_departed),
                (false, _) => process.hold(number, has_departed, Holder::Timed),
            }
        }
        process.admits = true;
        process.has_clients = true;
        process.writes_ledger = true;
        let mut calls = self.calls.iter().enumerate();
        let is_counted = calls.all(|(number, call)| {
            call.at != id
                || !matches!(call.stage, Stage::Admitted | Stage::Sent | Stage::Replied)
                || self.processes[id].holds.contains_key(&number)
        });
        let is_mistaken = scope.misfits();
        self.expect(
            is_counted || is_mistaken,
            "a call runs that the ledger lacks",
        );
        self.draining_lock = None;
    }

    /// The client of a call got an answer, or left.
    fn end_call(&mut self, number: CallNumber) {
        let call = &mut self.calls[number];
        call.stage = Stage::Over;
        call.ends += 1;
        call.was_requeued = false;
    }

    fn end_process(&mut self, id: ProcessId) {
        for number in 0..self.calls.len() {
            let call = &self.calls[number];
            if call.at == id && !matches!(call.stage, Stage::Unborn | Stage::Over) {
                self.end_call(number);
            }
        }
        for (new, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if new == id {
                link.is_broken = true;
                link.new_is_done = true;
                link.to_new.clear();
            }
            if link.old == id {
                link.is_broken = true;
                link.old_is_done = true;
                link.to_old.clear();
            }
        }
        for lock in [&mut self.ledger_lock, &mut self.draining_lock] {
            lock.take_if(|holder| *holder == id);
        }
        let process = &mut self.processes[id];
        *process = Process {
            life: Life::Gone,
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
            new: NewSide::new(0, "", ""),
            old: OldSide::new(),
        };
    }

    fn tell_old(&mut self, id: ProcessId, input: OldInput, scope: &Scope) {
        for output in self.processes[id].old.handle(input) {
            if self.is_alive(id) {
                self.obey_old(id, output, scope);
            }
        }
    }

    fn obey_old(&mut self, id: ProcessId, output: OldOutput, scope: &Scope) {
        let process = &mut self.processes[id];
        match output {
            OldOutput::Send(PeerConnection(new), message) => {
                let link = self.links[new as usize].as_mut();
                if let Some(link) = link.filter(|link| !link.is_broken) {
                    link.to_new.push_back(message);
                }
            }
            OldOutput::Close(PeerConnection(new)) => {
                if let Some(link) = &mut self.links[new as usize] {
                    link.is_broken = true;
                    link.old_is_done = true;
                    link.to_old.clear();
                }
            }
            OldOutput::Freeze => process.freezes = true,
            OldOutput::Thaw => {
                process.admits = true;
                process.writes_ledger = true;
                self.draining_lock = None;
            }
            OldOutput::ReleaseLedger => {
                if scope.mistake == Mistake::TakesBackWithOldLedger {
                    process.stale = Some(process.counts());
                }
                if scope.mistake != Mistake::AdmitsAfterCommit {
                    process.holds.clear();
                    process.departed = [0; 2];
                }
                self.ledger_lock.take_if(|holder| *holder == id);
            }
            OldOutput::ClaimLedger => process.claims = Some(ClaimWait::Short),
            OldOutput::TakeBack {
                running, waiting, ..
            } => {
                for (number, call) in self.calls.iter().enumerate().filter(|(_, it)| it.at == id) {
                    let is_known = match call.stage {
                        Stage::Waiting => waiting.contains(&foreign(number)),
                        Stage::Admitted => running.contains(&(foreign(number), RunStage::Admitted)),
                        Stage::Sent => running.contains(&(foreign(number), RunStage::Sent)),
                        Stage::Replied => running.contains(&(foreign(number), RunStage::Replied)),
                        Stage::Unborn | Stage::Over => true,
                    };
                    if !is_known {
                        self.wrong
                            .get_or_insert("the old side has forgotten a call");
                    }
                }
                self.take_back(id, scope);
            }
            OldOutput::Run(call) => {
                let number = number(call);
                let is_waiting = self.calls[number].stage == Stage::Waiting;
                self.expect(is_waiting, "a call runs that does not wait");
                self.calls[number].stage = Stage::Admitted;
                self.calls[number].has_crossed = true;
            }
            OldOutput::Refuse(call, refusal) => {
                self.calls[number(call)].is_lost = &*refusal.reason == "draining";
                let is_waiting = self.calls[number(call)].stage == Stage::Waiting;
                self.expect(is_waiting, "a call is refused that does not wait");
                self.end_call(number(call));
            }
            OldOutput::Drain => self.drain(id),
            OldOutput::End => {
                for call in self.calls.iter_mut().filter(|call| call.at == id) {
                    call.is_lost |= !matches!(call.stage, Stage::Unborn | Stage::Over);
                }
                self.end_process(id);
            }
        }
    }

    fn tell_new(&mut self, id: ProcessId, input: NewInput, scope: &Scope) {
        for output in self.processes[id].new.handle(input) {
            if self.is_alive(id) {
                self.obey_new(id, output, scope);
            }
        }
    }

    fn obey_new(&mut self, id: ProcessId, output: NewOutput, scope: &Scope) {
        let process = &mut self.processes[id];
        let is_as_expected = match output {
            NewOutput::Send(message) => {
                let link = self.links[id].as_mut();
                if let Some(link) = link.filter(|link| !link.is_broken) {
                    link.to_old.push_back(message);
                }
                true
            }
            NewOutput::Close => {
                if let Some(link) = &mut self.links[id] {
                    link.is_broken = true;
                    link.new_is_done = true;
                    link.to_new.clear();
                }
                true
            }
            NewOutput::Prepare => !std::mem::replace(&mut process.prepares, true),
            NewOutput::KeepState(_) | NewOutput::Change { .. } => true,
            NewOutput::ClaimLedger(wait) => process.claims.replace(wait) != Some(ClaimWait::Short),
            NewOutput::ReleaseLedger => {
                self.ledger_lock.take_if(|holder| *holder == id);
                process.writes_ledger = false;
                true
            }
            NewOutput::TakeOver(commitment) => process.takes_over.replace(commitment).is_none(),
            NewOutput::Open => {
                process.admits = true;
                process.has_clients = true;
                process.has_opened = true;
                self.ledger_lock == Some(id)
            }
            NewOutput::Ask(call) => process.asked.insert(number(call.id)),
            NewOutput::Cancel(call) => process.asked.remove(&number(call)),
            NewOutput::GiveBack(call) => {
                process.forged += usize::from(scope.mistake == Mistake::GivesBackTwice);
                let hold = process.holds.remove(&number(call));
                hold.is_some_and(|hold| {
                    hold.holder == Holder::Foreign && hold.has_departed == scope.undeparted()
                })
            }
            NewOutput::Requeue(call, _) => {
                let hold = process.holds.remove(&number(call));
                process.asked.insert(number(call));
                hold.is_some_and(|hold| {
                    hold.holder == Holder::Foreign && hold.has_departed == scope.undeparted()
                })
            }
            NewOutput::Sent(call) => process.depart(number(call), SENT),
            NewOutput::Replied(call) => process.depart(number(call), REPLIED),
            NewOutput::Finish { id: call, .. } => process.finish(number(call)),
            NewOutput::Hold(calls) => calls.into_iter().all(|call| {
                let hold = process.holds.get_mut(&number(call));
                hold.map(|hold| hold.holder = Holder::Held).is_some()
            }),
            NewOutput::WatchDraining => !std::mem::replace(&mut process.watches, true),
            NewOutput::StartAfterCrash => {
                let holds = process.holds.values_mut();
                for hold in holds.filter(|hold| hold.holder == Holder::Held) {
                    hold.holder = Holder::Timed;
                }
                true
            }
            NewOutput::GiveUp(_) => {
                self.end_process(id);
                true
            }
        };
        let is_mistaken = scope.misfits();
        self.expect(
            is_as_expected || is_mistaken,
            "an output does not fit the process",
        );
    }
}
