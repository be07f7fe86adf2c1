//! The process that starts, takes over, and serves calls of the old process beside its own.
//!
//! A process that starts alone takes the same way, without the old side: it claims the ledger's lock, counts what the
//! ledger says, publishes its own ledger, and opens. Calls in the ledger may belong to a process that still drains. So
//! they hold their slots until the draining lock is free, and `after_crash` longer.

use std::collections::BTreeMap;
use std::mem;

use crate::message::{
    CallRefusal, ForeignId, ForeignOutcome, RequeueCause, RunningCall, StatePart, ToNew, ToOld,
    UpgradeRefusal, Versions, WaitingCall,
};

/// An event that the new process must react to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NewInput {
    /// The connection to the old process is open.
    Connected,
    /// There is no old process to connect to, or no upgrade is wanted.
    Alone,
    /// A message has arrived. Deliver none while [`reads`](NewSide::reads) is false.
    Message(ToNew),
    /// The connection is closed, broken, or carried bytes that are not a message.
    Lost,
    /// The answer to [`NewOutput::Prepare`]: the config is good, and everything is built.
    Ready,
    /// The answer to [`NewOutput::Prepare`]: the process cannot start.
    NotReady,
    /// The new process holds the ledger's lock.
    LedgerClaimed {
        /// The term that the file of the lock contained before.
        term: u64,
    },
    /// The ledger's lock belongs to another process.
    LedgerRefused,
    /// The answer to [`NewOutput::TakeOver`]: the own ledger has its name, with everything counted in it.
    Published,
    /// The answer to [`NewOutput::TakeOver`]: the state cannot be counted, or the ledger not be written.
    NotPublished,
    /// The own scheduler has admitted a call of the old process, and the ledger contains it.
    Admitted(ForeignId),
    /// The own scheduler refuses a waiting call of the old process.
    Refused(ForeignId, CallRefusal),
    /// The answer to [`NewOutput::WatchDraining`]: no process drains.
    DrainingEnded,
    /// The new process admits, and was asked to end. Without this event, the old process would serve again afterwards.
    Stopping,
}

/// How long to try to claim the ledger's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimWait {
    /// A short time, then refuse. The lock of a process that has died or released it is free at once.
    Short,
    /// Until it is free: the old process drains and ends. Losing the connection ends this wait.
    UntilFree,
}

/// The calls and sockets that the old process has handed over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commitment {
    /// The calls that the old process runs. Each is in the ledger. It holds its slots until its end is reported.
    pub running: Vec<RunningCall>,
    /// How many listening sockets came with the commit.
    pub sockets: u32,
}

/// An act of the new process. Outputs of one input are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NewOutput {
    /// Send a message to the old process.
    Send(ToOld),
    /// Close the connection to the old process after what was sent.
    Close,
    /// Read and check the config and build everything, but accept and admit no call. Answer with [`NewInput::Ready`] or
    /// [`NewInput::NotReady`].
    Prepare,
    /// Keep a part of the old process's state for [`TakeOver`](Self::TakeOver).
    KeepState(StatePart),
    /// Claim the ledger's lock, and raise the term in its file. Ends an earlier claim that waits.
    ClaimLedger(ClaimWait),
    /// Free the ledger's lock.
    ReleaseLedger,
    /// Read the published ledger, count it, write an own ledger, and publish it. Answer with [`NewInput::Published`] or
    /// [`NewInput::NotPublished`]. A ledger that is void counts as it does at any start.
    ///
    /// Calls of the ledger that are not in the commitment are held, and belong to what
    /// [`StartAfterCrash`](Self::StartAfterCrash) ends. `None`: no state was handed over, so what was kept is dropped,
    /// all calls of the ledger are held, and the process opens its own sockets.
    TakeOver(Option<Commitment>),
    /// Accept and admit. From now on an [`OldSide`](crate::OldSide) listens for the next upgrade.
    Open,
    /// Queue a call of the old process, which can be before [`Open`](Self::Open). Its start or refusal is
    /// [`NewInput::Admitted`] or [`NewInput::Refused`].
    Ask(WaitingCall),
    /// Change the deadline and the class of a waiting call.
    Change {
        /// The call.
        id: ForeignId,
        /// The last moment at which it can leave the queue.   nanoseconds
        deadline: Option<u64>,
        /// The name of its class.
        class: Box<str>,
    },
    /// Take a waiting call out of the queue.
    Cancel(ForeignId),
    /// Return what an admitted call has drawn. It was never sent.
    GiveBack(ForeignId),
    /// Put an admitted call back in its turn, with everything undrawn. It was never sent.
    Requeue(ForeignId, RequeueCause),
    /// An admitted call departs in windows that count at the last byte of a call.
    Sent(ForeignId),
    /// An admitted call departs in windows that count at the first byte of the reply.
    Replied(ForeignId),
    /// An admitted call is over.
    Finish {
        /// The call.
        id: ForeignId,
        /// How.
        outcome: ForeignOutcome,
        /// The cost that was measured, if the call is settled.   millionths of a token
        measured: Option<u64>,
    },
    /// The old process reports the ends of these calls no more. Hold them, as calls of a process that died.
    Hold(Vec<ForeignId>),
    /// Wait until the draining lock is free, which can be at once. Answer with [`NewInput::DrainingEnded`].
    WatchDraining,
    /// No process reports the calls that are held: finish those that are held now after `after_crash`.
    StartAfterCrash,
    /// End with this error.
    GiveUp(GiveUpCause),
}

/// Why a new process ends before it serves. The old process continues, or serves again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum GiveUpCause {
    /// Another upgrade is under way.
    #[error("another upgrade is under way, with {with}: wait until it is done")]
    Busy {
        /// The other process.
        with: Box<str>,
    },
    /// The process itself could not start.
    #[error("the new process could not start")]
    NotReady,
    /// Another process has the ledger's lock.
    #[error("another process admits calls with this ledger")]
    LedgerTaken,
    /// The ledger could not be written.
    #[error("the ledger could not be written, so the old process serves again")]
    NotPublished,
    /// The old process does not keep to the protocol.
    #[error("the old process sent a message that does not belong here")]
    OutOfOrder,
}

/// The part of the new process in a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewSide {
    phase: NewPhase,
    /// The most calls of the old process that may wait.
    waiting_max: usize,
    waiting: usize,
    /// The calls of the old process; `true` if admitted.
    calls: BTreeMap<ForeignId, bool>,
    /// Running calls that came before the commit.
    running: Vec<RunningCall>,
    /// Waiting calls that came before the commit, at most `waiting_max`.
    waits: Vec<WaitingCall>,
    /// Waiting calls beyond that.
    overflow: Vec<ForeignId>,
    instance: Box<str>,
    config: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NewPhase {
    /// No event has come yet.
    Unconnected,
    /// The old process was asked.
    Asking,
    /// The process is being built.
    Preparing(AfterPreparation),
    /// The old process may commit at any moment.
    Ready,
    /// The ledger's lock is being claimed.
    Claiming(Option<PendingCommit>),
    /// The ledger is being counted. True if the old process is connected.
    TakingOver(bool),
    /// The new process admits.
    Serving(OldPresence),
    /// The new process has given up.
    Ended,
}

/// The step after the preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AfterPreparation {
    /// Say so, and wait for the commit.
    Report,
    /// Ask the old process, which speaks another version, to drain.
    AskToDrain,
    /// Wait until the old process, which drains, has ended.
    WaitForEnd,
    /// Claim the ledger: there is no old process.
    Claim,
}

/// A commit whose ledger is not claimed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingCommit {
    term: u64,
    sockets: u32,
    is_connected: bool,
}

/// The presence of the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OldPresence {
    Connected,
    /// The process before may still run calls.
    Unknown,
    Ended,
}

impl NewSide {
    /// A process that starts. It accepts at most `waiting_max` waiting calls of the old process: the capacity of its
    /// queue. `instance` names the process for others, and `config` its config file.
    #[must_use]
    pub fn new(waiting_max: usize, instance: &str, config: &str) -> Self {
        Self {
            phase: NewPhase::Unconnected,
            waiting_max,
            waiting: 0,
            calls: BTreeMap::new(),
            running: Vec::new(),
            waits: Vec::new(),
            overflow: Vec::new(),
            instance: instance.into(),
            config: config.into(),
        }
    }

    /// Whether messages may be read from the connection. While the ledger is claimed and counted they stay in the
    /// socket, so that nothing has to be kept here.
    #[must_use]
    pub const fn reads(&self) -> bool {
        !matches!(
            self.phase,
            NewPhase::Claiming(_) | NewPhase::TakingOver(_) | NewPhase::Ended
        )
    }

    /// Whether the process before may still run calls, or has sent messages that are not read yet. Then this process must
    /// not hand over: its ledger contains calls that it does not run.
    #[must_use]
    pub const fn is_old_present(&self) -> bool {
        !matches!(self.phase, NewPhase::Serving(OldPresence::Ended))
    }

    /// Reacts to an event.
    pub fn handle(&mut self, input: NewInput) -> Vec<NewOutput> {
        let mut out = Vec::new();
        match input {
            NewInput::Connected => {
                self.phase = NewPhase::Asking;
                out.push(NewOutput::Send(ToOld::Hello {
                    versions: Versions::OWN,
                    instance: self.instance.clone(),
                    config: self.config.clone(),
                }));
            }
            NewInput::Alone => self.prepare(AfterPreparation::Claim, &mut out),
            NewInput::Message(message) => self.on_message(message, &mut out),
            NewInput::Lost => self.on_lost(&mut out),
            NewInput::Ready => self.on_ready(&mut out),
            NewInput::NotReady => self.give_up(GiveUpCause::NotReady, &mut out),
            NewInput::LedgerClaimed { term } => self.on_claimed(term, &mut out),
            NewInput::LedgerRefused => {
                if matches!(self.phase, NewPhase::Claiming(_)) {
                    self.give_up(GiveUpCause::LedgerTaken, &mut out);
                }
            }
            NewInput::Published => self.on_published(&mut out),
            NewInput::NotPublished => {
                out.push(NewOutput::ReleaseLedger);
                self.give_up(GiveUpCause::NotPublished, &mut out);
            }
            NewInput::Admitted(id) => self.on_admitted(id, &mut out),
            NewInput::Refused(id, refusal) => self.on_refused(id, refusal, &mut out),
            NewInput::Stopping => {
                if self.phase == NewPhase::Serving(OldPresence::Connected) {
                    out.push(NewOutput::Send(ToOld::Drain));
                }
            }
            NewInput::DrainingEnded => {
                if self.phase == NewPhase::Serving(OldPresence::Unknown) {
                    self.phase = NewPhase::Serving(OldPresence::Ended);
                    out.push(NewOutput::StartAfterCrash);
                }
            }
        }
        out
    }

    fn prepare(&mut self, then: AfterPreparation, out: &mut Vec<NewOutput>) {
        self.phase = NewPhase::Preparing(then);
        out.push(NewOutput::Prepare);
    }

    fn give_up(&mut self, cause: GiveUpCause, out: &mut Vec<NewOutput>) {
        self.phase = NewPhase::Ended;
        out.extend([NewOutput::Close, NewOutput::GiveUp(cause)]);
    }

    fn claim(&mut self, commit: Option<PendingCommit>, wait: ClaimWait, out: &mut Vec<NewOutput>) {
        self.phase = NewPhase::Claiming(commit);
        out.push(NewOutput::ClaimLedger(wait));
    }

    fn on_message(&mut self, message: ToNew, out: &mut Vec<NewOutput>) {
        match (self.phase, message) {
            (NewPhase::Asking, ToNew::Welcome { version })
                if Versions::OWN.oldest <= version && version <= Versions::OWN.newest =>
            {
                self.prepare(AfterPreparation::Report, out);
            }
            (
                NewPhase::Asking | NewPhase::Preparing(_) | NewPhase::Ready,
                ToNew::Refused(refusal),
            ) => self.on_upgrade_refused(refusal, out),
            (NewPhase::Ready, ToNew::State(part)) => out.push(NewOutput::KeepState(part)),
            (NewPhase::Ready, ToNew::Running(call)) => self.running.push(call),
            (NewPhase::Ready, ToNew::Wait(call)) if self.waits.len() < self.waiting_max => {
                self.waits.push(call);
            }
            (NewPhase::Ready, ToNew::Wait(call)) => self.overflow.push(call.id),
            (
                NewPhase::Ready,
                ToNew::Commit {
                    sockets,
                    running,
                    term,
                },
            ) if running as usize == self.running.len() => {
                let commit = PendingCommit {
                    term,
                    sockets,
                    is_connected: true,
                };
                self.claim(Some(commit), ClaimWait::Short, out);
            }
            (NewPhase::Serving(OldPresence::Connected), message) => {
                if self.on_call(message, out).is_none() {
                    out.push(NewOutput::Close);
                    self.on_lost(out);
                }
            }
            (NewPhase::Ended | NewPhase::Serving(_), _) => {}
            _ => self.give_up(GiveUpCause::OutOfOrder, out),
        }
    }

    fn on_upgrade_refused(&mut self, refusal: UpgradeRefusal, out: &mut Vec<NewOutput>) {
        let then = match refusal {
            UpgradeRefusal::Busy { with } => return self.give_up(GiveUpCause::Busy { with }, out),
            UpgradeRefusal::UnknownVersion(_) => AfterPreparation::AskToDrain,
            UpgradeRefusal::Draining => AfterPreparation::WaitForEnd,
        };
        match self.phase {
            NewPhase::Asking => self.prepare(then, out),
            NewPhase::Preparing(_) => self.phase = NewPhase::Preparing(then),
            _ => self.claim(None, ClaimWait::UntilFree, out),
        }
    }

    fn on_lost(&mut self, out: &mut Vec<NewOutput>) {
        match &mut self.phase {
            NewPhase::Asking => self.prepare(AfterPreparation::Claim, out),
            NewPhase::Preparing(then) => *then = AfterPreparation::Claim,
            // The old process may never have been asked to drain: wait for its end only while that would be noticed.
            NewPhase::Ready | NewPhase::Claiming(None) => self.claim(None, ClaimWait::Short, out),
            NewPhase::Claiming(Some(commit)) => commit.is_connected = false,
            NewPhase::TakingOver(is_connected) => *is_connected = false,
            NewPhase::Serving(presence @ OldPresence::Connected) => {
                *presence = OldPresence::Unknown;
                self.hold_calls(out);
            }
            _ => {}
        }
    }

    fn on_ready(&mut self, out: &mut Vec<NewOutput>) {
        let NewPhase::Preparing(then) = self.phase else {
            return;
        };
        match then {
            AfterPreparation::Report => {
                self.phase = NewPhase::Ready;
                out.push(NewOutput::Send(ToOld::Prepared));
            }
            AfterPreparation::AskToDrain => {
                out.push(NewOutput::Send(ToOld::Drain));
                self.claim(None, ClaimWait::UntilFree, out);
            }
            AfterPreparation::WaitForEnd => self.claim(None, ClaimWait::UntilFree, out),
            AfterPreparation::Claim => self.claim(None, ClaimWait::Short, out),
        }
    }

    fn on_claimed(&mut self, term: u64, out: &mut Vec<NewOutput>) {
        let NewPhase::Claiming(commit) = self.phase else {
            out.push(NewOutput::ReleaseLedger);
            return;
        };
        let running = mem::take(&mut self.running);
        // In another term, a third process has admitted calls since the commit, and the old one has died or refuses.
        let valid = commit.filter(|commit| commit.term == term);
        if commit.is_some() && valid.is_none() {
            out.push(NewOutput::Close);
        }
        self.phase = NewPhase::TakingOver(valid.is_some_and(|commit| commit.is_connected));
        let commitment = valid.map(|commit| {
            self.calls = running.iter().map(|call| (call.id, true)).collect();
            let sockets = commit.sockets;
            Commitment { running, sockets }
        });
        out.push(NewOutput::TakeOver(commitment));
    }

    fn on_published(&mut self, out: &mut Vec<NewOutput>) {
        let NewPhase::TakingOver(is_connected) = self.phase else {
            return;
        };
        let (waits, overflow) = (mem::take(&mut self.waits), mem::take(&mut self.overflow));
        if !is_connected {
            self.phase = NewPhase::Serving(OldPresence::Unknown);
            out.push(NewOutput::Open);
            self.hold_calls(out);
            return;
        }
        self.phase = NewPhase::Serving(OldPresence::Connected);
        // Before any call of this process, because they came first.
        for call in waits {
            self.calls.insert(call.id, false);
            self.waiting += 1;
            out.push(NewOutput::Ask(call));
        }
        out.extend([NewOutput::Open, NewOutput::Send(ToOld::Taken)]);
        out.extend(overflow.into_iter().map(refuse_for_room));
        // Calls that the ledger has from processes before the old one.
        out.push(NewOutput::StartAfterCrash);
    }

    /// The old process reports nothing more.
    fn hold_calls(&mut self, out: &mut Vec<NewOutput>) {
        let mut held = Vec::new();
        for (id, is_admitted) in mem::take(&mut self.calls) {
            match is_admitted {
                true => held.push(id),
                false => out.push(NewOutput::Cancel(id)),
            }
        }
        self.waiting = 0;
        if !held.is_empty() {
            out.push(NewOutput::Hold(held));
        }
        out.push(NewOutput::WatchDraining);
    }

    fn on_admitted(&mut self, id: ForeignId, out: &mut Vec<NewOutput>) {
        match self.calls.get_mut(&id) {
            Some(is_admitted @ false) => {
                *is_admitted = true;
                self.waiting -= 1;
                out.push(NewOutput::Send(ToOld::Run { id }));
            }
            // The scheduler decided while the call left.
            _ => out.push(NewOutput::GiveBack(id)),
        }
    }

    fn on_refused(&mut self, id: ForeignId, refusal: CallRefusal, out: &mut Vec<NewOutput>) {
        if self.calls.get(&id) == Some(&false) {
            self.calls.remove(&id);
            self.waiting -= 1;
            out.push(NewOutput::Send(ToOld::Refused { id, refusal }));
        }
    }

    /// Reacts to a message about a call; `None` if it cannot be true.
    fn on_call(&mut self, message: ToNew, out: &mut Vec<NewOutput>) -> Option<()> {
        let admitted = |side: &Self, id| side.calls.get(&id).copied().filter(|it| *it).map(|_| ());
        out.push(match message {
            ToNew::Wait(call) => {
                if self.calls.contains_key(&call.id) {
                    return None;
                }
                if self.waiting >= self.waiting_max {
                    out.push(refuse_for_room(call.id));
                    return Some(());
                }
                self.calls.insert(call.id, false);
                self.waiting += 1;
                NewOutput::Ask(call)
            }
            ToNew::Change {
                id,
                deadline,
                class,
            } => match self.calls.get(&id) {
                Some(false) => NewOutput::Change {
                    id,
                    deadline,
                    class,
                },
                // The answer to the call crosses this message.
                _ => return Some(()),
            },
            ToNew::Left { id } => match self.calls.remove(&id) {
                Some(true) => NewOutput::GiveBack(id),
                Some(false) => {
                    self.waiting -= 1;
                    NewOutput::Cancel(id)
                }
                // The refusal of the call crosses this message.
                None => return Some(()),
            },
            ToNew::Sent { id } => {
                admitted(self, id)?;
                NewOutput::Sent(id)
            }
            ToNew::Replied { id } => {
                admitted(self, id)?;
                NewOutput::Replied(id)
            }
            ToNew::Done {
                id,
                outcome,
                measured,
            } => {
                admitted(self, id)?;
                self.calls.remove(&id);
                NewOutput::Finish {
                    id,
                    outcome,
                    measured,
                }
            }
            ToNew::Requeue { id, cause } => {
                admitted(self, id)?;
                self.calls.insert(id, false);
                self.waiting += 1;
                NewOutput::Requeue(id, cause)
            }
            _ => return None,
        });
        Some(())
    }
}

/// The answer to a call for which the queue has no room.
fn refuse_for_room(id: ForeignId) -> NewOutput {
    let refusal = CallRefusal::queue_full();
    NewOutput::Send(ToOld::Refused { id, refusal })
}
