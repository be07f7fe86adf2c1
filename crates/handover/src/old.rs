//! The process that serves, hands over, and drains.
//!
//! From the commit on, this process admits no call. If the connection is lost after it, this process cannot know whether
//! the new one admits, so it claims the ledger's lock. With the lock, no other process admits: it counts what the ledger
//! says and serves again. Without it, another process admits: it refuses what waits, and ends with its last call.

use std::collections::BTreeMap;
use std::mem;

use crate::message::{
    CallRefusal, ForeignId, ForeignOutcome, RequeueCause, RunStage, RunningCall, StatePart, ToNew,
    ToOld, UpgradeRefusal, Versions, WaitingCall,
};

/// A connection from a new process, by a number of your choice. A number is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerConnection(pub u64);

/// An event that the old process must react to. Events of calls count from [`Frozen`](Self::Frozen) on, for as long as
/// [`asks_peer`](OldSide::asks_peer) is true. Before and after that, the process's own scheduler gets them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OldInput {
    /// A message has arrived.
    Message(PeerConnection, ToOld),
    /// A connection is closed, broken, or sent bytes that are not a message. A new process that does not take over in
    /// time is given up in the same way: close the connection first.
    Lost(PeerConnection),
    /// The answer to [`OldOutput::Freeze`]: no call is admitted and no connection is accepted from this moment on.
    Frozen(FrozenGate),
    /// The answer to [`OldOutput::Freeze`] if a process before this one still drains. This one continues to serve.
    CannotFreeze {
        /// The process that drains.
        by: Box<str>,
    },
    /// A call has arrived on a connection of this process.
    Arrived(WaitingCall),
    /// The deadline or the class of a waiting call has changed.
    Changed {
        /// The call.
        id: ForeignId,
        /// The last moment at which it can leave the queue.   nanoseconds
        deadline: Option<u64>,
        /// The name of its class.
        class: Box<str>,
    },
    /// A call is over, and no byte of it was sent: its client has left, or its own process gave it up.
    Left(ForeignId),
    /// The last byte of a call has left for the backend.
    Sent(ForeignId),
    /// The first byte of the reply has arrived.
    Replied(ForeignId),
    /// A call that ran is over.
    Ended {
        /// The call.
        id: ForeignId,
        /// How.
        outcome: ForeignOutcome,
        /// The cost that was measured, if the call is settled.   millionths of a token
        measured: Option<u64>,
    },
    /// An admitted call could not be sent, and waits again.
    Requeued {
        /// The call.
        id: ForeignId,
        /// Why.
        cause: RequeueCause,
    },
    /// The old process holds the ledger's lock.
    LedgerClaimed {
        /// The term that the file of the lock contained before.
        term: u64,
    },
    /// The ledger's lock belongs to another process.
    LedgerRefused,
    /// No connection of a client is open any more, and none will be accepted.
    ConnectionsClosed,
    /// `drain_timeout` has passed since the hand-over.
    DrainTimeout,
    /// The process was asked to end, by a signal or by its service manager.
    Stopping,
}

/// The state of a process that neither admits nor accepts, for the new process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrozenGate {
    /// The calls that run.
    pub running: Vec<RunningCall>,
    /// The calls that wait, in the order in which they would be asked.
    pub waiting: Vec<WaitingCall>,
    /// State that is not in the ledger.
    pub state: Vec<StatePart>,
    /// The listening sockets that the commit carries, at most [`SOCKETS_MAX`](crate::SOCKETS_MAX).
    pub sockets: u32,
    /// The term of the ledger's lock in which this process admitted calls.
    pub term: u64,
}

/// An act of the old process. Outputs of one input are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OldOutput {
    /// Send a message. If it does not fit in what the process keeps for a slow peer, the connection is lost.
    Send(PeerConnection, ToNew),
    /// Close a connection after what was sent.
    Close(PeerConnection),
    /// If the process before this one [is present](crate::NewSide::is_old_present), or another process has the draining
    /// lock, answer with [`OldInput::CannotFreeze`]. Else claim the draining lock. Then, in one step under the gate's
    /// lock: stop to accept, stop to admit, stop to write the ledger. Answer with [`OldInput::Frozen`]. Listening sockets
    /// stay open.
    Freeze,
    /// Undo the freeze: accept and admit as before. The ledger's lock was never free.
    Thaw,
    /// Free the ledger's lock. The process writes no ledger without it.
    ReleaseLedger,
    /// Try to claim the ledger's lock for a short time. The lock of a process that has died is free at once.
    ClaimLedger,
    /// Take admission back, free the draining lock, and accept. Limits begin with what the published ledger says. Of its
    /// calls, those of this process that run hold slots until they end; those that wait here hold none; those of this
    /// process that are over depart now; and all others are finished after `after_crash`, because their process has died.
    TakeBack {
        /// Calls of this process that hold slots until they end.
        running: Vec<(ForeignId, RunStage)>,
        /// Calls of this process that wait for the own scheduler. In the ledger such a call may be admitted; it was
        /// never sent.
        waiting: Vec<ForeignId>,
        /// The term that was found. In the term of the freeze no other process has admitted a call since.
        term: u64,
    },
    /// A waiting call may run.
    Run(ForeignId),
    /// A waiting call is refused.
    Refuse(ForeignId, CallRefusal),
    /// Drain and end as if asked by a signal, because the new process speaks another version.
    Drain,
    /// End the process. Calls that still run are cut off.
    End,
}

/// The part of the old process in a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OldSide {
    phase: OldPhase,
    /// The calls of this process, from the freeze on. `None` waits.
    calls: BTreeMap<ForeignId, Option<RunStage>>,
    /// The name of the latest peer.
    peer_name: Box<str>,
    is_stopping: bool,
    is_without_connections: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OldPhase {
    /// No upgrade is under way.
    Serving,
    /// A new process prepares itself. Nothing has changed here.
    Greeted(PeerConnection),
    /// A new process of another version prepares itself.
    Estranged(PeerConnection),
    /// The process is asked to freeze. `None` if the new process was lost meanwhile.
    Freezing(Option<PeerConnection>),
    /// The new process may take over at any moment.
    Committed(PeerConnection),
    /// The new process admits.
    HandedOver(PeerConnection),
    /// The connection was lost after the commit.
    Claiming,
    /// Another process admits, and does not listen to this one.
    Refusing,
    /// The process ends in the usual way.
    Draining,
    /// The process was asked to end.
    Ended,
}

impl Default for OldSide {
    fn default() -> Self {
        Self::new()
    }
}

impl OldSide {
    /// A process that serves.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: OldPhase::Serving,
            calls: BTreeMap::new(),
            peer_name: Box::default(),
            is_stopping: false,
            is_without_connections: false,
        }
    }

    /// Whether calls of this process ask here for their turn, and not its own scheduler.
    #[must_use]
    pub const fn asks_peer(&self) -> bool {
        matches!(
            self.phase,
            OldPhase::Committed(_)
                | OldPhase::HandedOver(_)
                | OldPhase::Claiming
                | OldPhase::Refusing
        )
    }

    /// Whether another process accepts connections in the place of this one.
    #[must_use]
    pub const fn is_succeeded(&self) -> bool {
        matches!(
            self.phase,
            OldPhase::HandedOver(_) | OldPhase::Refusing | OldPhase::Ended
        )
    }

    /// The connection on which a new process has not said yet that it has taken over.
    #[must_use]
    pub const fn committed_to(&self) -> Option<PeerConnection> {
        match self.phase {
            OldPhase::Committed(peer) => Some(peer),
            _ => None,
        }
    }

    /// Reacts to an event.
    pub fn handle(&mut self, input: OldInput) -> Vec<OldOutput> {
        let mut out = Vec::new();
        match input {
            OldInput::Message(from, message) => self.on_message(from, message, &mut out),
            OldInput::Lost(connection) => self.on_lost(connection, &mut out),
            OldInput::Frozen(gate) => self.on_frozen(gate, &mut out),
            OldInput::CannotFreeze { by } => self.on_cannot_freeze(by, &mut out),
            OldInput::LedgerClaimed { term } => self.on_claimed(term, &mut out),
            OldInput::LedgerRefused => self.on_ledger_refused(&mut out),
            OldInput::ConnectionsClosed => self.is_without_connections = true,
            OldInput::DrainTimeout => self.on_drain_timeout(&mut out),
            OldInput::Stopping => self.on_stopping(&mut out),
            of_a_call if self.asks_peer() => self.on_call(of_a_call, &mut out),
            _ => {}
        }
        let may_end = matches!(self.phase, OldPhase::HandedOver(_) | OldPhase::Refusing);
        if may_end && self.is_without_connections && self.calls.is_empty() {
            self.phase = OldPhase::Ended;
            out.push(OldOutput::End);
        }
        out
    }

    /// The connection to the new process, from its first message on.
    #[must_use]
    pub const fn peer(&self) -> Option<PeerConnection> {
        match self.phase {
            OldPhase::Greeted(peer)
            | OldPhase::Estranged(peer)
            | OldPhase::Committed(peer)
            | OldPhase::HandedOver(peer) => Some(peer),
            OldPhase::Freezing(peer) => peer,
            _ => None,
        }
    }

    /// The connection that gets messages about calls.
    const fn asked(&self) -> Option<PeerConnection> {
        match self.phase {
            OldPhase::Committed(peer) | OldPhase::HandedOver(peer) => Some(peer),
            _ => None,
        }
    }

    fn on_message(&mut self, from: PeerConnection, message: ToOld, out: &mut Vec<OldOutput>) {
        let is_peer = self.peer() == Some(from);
        match (self.phase, message) {
            (
                _,
                ToOld::Hello {
                    versions, instance, ..
                },
            ) if !is_peer => {
                self.on_hello(from, versions, instance, out);
            }
            // Messages of a process that was refused.
            _ if !is_peer => {}
            (OldPhase::Greeted(peer), ToOld::Prepared) => {
                self.phase = OldPhase::Freezing(Some(peer));
                out.push(OldOutput::Freeze);
            }
            (OldPhase::Estranged(_), ToOld::Drain) => {
                self.phase = OldPhase::Draining;
                out.push(OldOutput::Drain);
            }
            (OldPhase::Committed(peer), ToOld::Taken) => self.phase = OldPhase::HandedOver(peer),
            // What is left when the new process has ended is drained here.
            (OldPhase::HandedOver(_), ToOld::Drain) => self.is_stopping = true,
            (OldPhase::HandedOver(_), ToOld::Run { id }) => {
                // An answer to a call that has left crosses the message that says so.
                if let Some(stage @ None) = self.calls.get_mut(&id) {
                    *stage = Some(RunStage::Admitted);
                    out.push(OldOutput::Run(id));
                }
            }
            (OldPhase::HandedOver(_), ToOld::Refused { id, refusal }) => {
                if self.calls.get(&id) == Some(&None) {
                    self.calls.remove(&id);
                    out.push(OldOutput::Refuse(id, refusal));
                }
            }
            _ => {
                out.push(OldOutput::Close(from));
                self.on_lost(from, out);
            }
        }
    }

    fn on_hello(
        &mut self,
        from: PeerConnection,
        versions: Versions,
        instance: Box<str>,
        out: &mut Vec<OldOutput>,
    ) {
        let answer = match (self.phase, Versions::OWN.common(versions)) {
            (OldPhase::Serving, Some(version)) => {
                self.phase = OldPhase::Greeted(from);
                self.peer_name = instance;
                ToNew::Welcome { version }
            }
            (OldPhase::Serving, None) => {
                self.phase = OldPhase::Estranged(from);
                self.peer_name = instance;
                ToNew::Refused(UpgradeRefusal::UnknownVersion(Versions::OWN))
            }
            (OldPhase::Draining | OldPhase::Ended, _) => ToNew::Refused(UpgradeRefusal::Draining),
            _ => {
                let with = self.peer_name.clone();
                ToNew::Refused(UpgradeRefusal::Busy { with })
            }
        };
        out.push(OldOutput::Send(from, answer));
    }

    fn on_lost(&mut self, connection: PeerConnection, out: &mut Vec<OldOutput>) {
        if self.peer() != Some(connection) {
            return;
        }
        match self.phase {
            OldPhase::Freezing(_) => self.phase = OldPhase::Freezing(None),
            OldPhase::Committed(_) | OldPhase::HandedOver(_) => {
                self.phase = OldPhase::Claiming;
                out.push(OldOutput::ClaimLedger);
            }
            _ => self.phase = OldPhase::Serving,
        }
    }

    fn on_frozen(&mut self, gate: FrozenGate, out: &mut Vec<OldOutput>) {
        match self.phase {
            OldPhase::Freezing(Some(peer)) => {
                // The new process claims the lock as soon as it reads the commit.
                out.push(OldOutput::ReleaseLedger);
                self.commit(peer, gate, out);
            }
            OldPhase::Freezing(None) => {
                out.push(OldOutput::Thaw);
                self.serve(out);
            }
            _ => {}
        }
    }

    fn commit(&mut self, peer: PeerConnection, gate: FrozenGate, out: &mut Vec<OldOutput>) {
        self.phase = OldPhase::Committed(peer);
        self.is_without_connections = false;
        let stages = gate.running.iter().map(|call| (call.id, Some(call.stage)));
        self.calls = stages.collect();
        let commit = ToNew::Commit {
            sockets: gate.sockets,
            running: u32::try_from(gate.running.len()).unwrap_or(u32::MAX),
            term: gate.term,
        };
        self.calls
            .extend(gate.waiting.iter().map(|call| (call.id, None)));
        let state = gate.state.into_iter().map(ToNew::State);
        let running = gate.running.into_iter().map(ToNew::Running);
        // Before the commit, so that no call of the new process overtakes them.
        let waiting = gate.waiting.into_iter().map(ToNew::Wait);
        for message in state.chain(running).chain(waiting).chain([commit]) {
            out.push(OldOutput::Send(peer, message));
        }
    }

    fn on_cannot_freeze(&mut self, with: Box<str>, out: &mut Vec<OldOutput>) {
        let OldPhase::Freezing(peer) = self.phase else {
            return;
        };
        if let Some(peer) = peer {
            let refusal = ToNew::Refused(UpgradeRefusal::Busy { with });
            out.push(OldOutput::Send(peer, refusal));
        }
        self.serve(out);
    }

    /// Serves again, or drains if that was asked for meanwhile.
    fn serve(&mut self, out: &mut Vec<OldOutput>) {
        self.phase = OldPhase::Serving;
        if mem::take(&mut self.is_stopping) {
            self.phase = OldPhase::Draining;
            out.push(OldOutput::Drain);
        }
    }

    fn on_claimed(&mut self, term: u64, out: &mut Vec<OldOutput>) {
        if self.phase != OldPhase::Claiming {
            out.push(OldOutput::ReleaseLedger);
            return;
        }
        let (mut running, mut waiting) = (Vec::new(), Vec::new());
        for (id, stage) in mem::take(&mut self.calls) {
            match stage {
                Some(stage) => running.push((id, stage)),
                None => waiting.push(id),
            }
        }
        out.push(OldOutput::TakeBack {
            running,
            waiting,
            term,
        });
        self.serve(out);
    }

    fn on_ledger_refused(&mut self, out: &mut Vec<OldOutput>) {
        if self.phase == OldPhase::Claiming {
            self.phase = OldPhase::Refusing;
            self.refuse_waiting(out);
        }
    }

    fn on_drain_timeout(&mut self, out: &mut Vec<OldOutput>) {
        if self.asks_peer() {
            self.refuse_waiting(out);
            self.phase = OldPhase::Ended;
            out.push(OldOutput::End);
        }
    }

    fn on_stopping(&mut self, out: &mut Vec<OldOutput>) {
        match self.phase {
            OldPhase::Serving => self.phase = OldPhase::Draining,
            OldPhase::Greeted(peer) | OldPhase::Estranged(peer) => {
                let refusal = ToNew::Refused(UpgradeRefusal::Draining);
                out.push(OldOutput::Send(peer, refusal));
                self.phase = OldPhase::Draining;
            }
            OldPhase::Draining | OldPhase::Ended => {}
            // The process ends after the hand-over anyway, unless the new process dies.
            _ => self.is_stopping = true,
        }
    }

    fn refuse_waiting(&mut self, out: &mut Vec<OldOutput>) {
        let asked = self.asked();
        self.calls.retain(|&id, stage| {
            if stage.is_none() {
                let left = asked.map(|peer| OldOutput::Send(peer, ToNew::Left { id }));
                out.extend(left);
                out.push(OldOutput::Refuse(id, CallRefusal::draining()));
            }
            stage.is_some()
        });
    }

    fn on_call(&mut self, event: OldInput, out: &mut Vec<OldOutput>) {
        let Some(message) = self.note_call(event, out) else {
            return;
        };
        if let Some(peer) = self.asked() {
            out.push(OldOutput::Send(peer, message));
        }
    }

    /// Notes an event of a call. Returns what the new process must know of it.
    fn note_call(&mut self, event: OldInput, out: &mut Vec<OldOutput>) -> Option<ToNew> {
        let is_refusing = self.phase == OldPhase::Refusing;
        let calls = &mut self.calls;
        Some(match event {
            OldInput::Arrived(call) if is_refusing => {
                out.push(OldOutput::Refuse(call.id, CallRefusal::draining()));
                return None;
            }
            OldInput::Arrived(call) => {
                calls.insert(call.id, None);
                ToNew::Wait(call)
            }
            OldInput::Changed {
                id,
                deadline,
                class,
            } => {
                calls.get(&id)?.is_none().then_some(())?;
                ToNew::Change {
                    id,
                    deadline,
                    class,
                }
            }
            OldInput::Left(id) => match calls.remove(&id)? {
                None | Some(RunStage::Admitted) => ToNew::Left { id },
                Some(RunStage::Sent | RunStage::Replied) => ToNew::Done {
                    id,
                    outcome: ForeignOutcome::Failed,
                    measured: None,
                },
            },
            OldInput::Sent(id) => {
                advance(calls.get_mut(&id)?, RunStage::Sent)?;
                ToNew::Sent { id }
            }
            OldInput::Replied(id) => {
                advance(calls.get_mut(&id)?, RunStage::Replied)?;
                ToNew::Replied { id }
            }
            OldInput::Ended {
                id,
                outcome,
                measured,
            } => {
                calls.get(&id).copied()??;
                calls.remove(&id);
                ToNew::Done {
                    id,
                    outcome,
                    measured,
                }
            }
            OldInput::Requeued { id, .. } if is_refusing => {
                calls.remove(&id)?;
                out.push(OldOutput::Refuse(id, CallRefusal::draining()));
                return None;
            }
            OldInput::Requeued { id, cause } => {
                let stage = calls.get_mut(&id)?;
                stage.take_if(|stage| *stage == RunStage::Admitted)?;
                ToNew::Requeue { id, cause }
            }
            _ => return None,
        })
    }
}

/// Moves a running call to a later stage; `None` if it waits or is there already.
fn advance(stage: &mut Option<RunStage>, to: RunStage) -> Option<()> {
    let stage = stage.as_mut().filter(|stage| **stage < to)?;
    *stage = to;
    Some(())
}
