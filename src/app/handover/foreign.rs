//! The calls of an old process in the new one. Each has a task that waits for its turn, and then holds its permit until the
//! old process reports its end.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_handover::{
    ForeignId, ForeignOutcome, NewInput, RequeueCause, RunningCall, WaitingCall,
};
use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tokio::sync::mpsc;

use super::wire;
use crate::admit::{Admission, Gate, Permit, QueuedCall};
use crate::call::observe::NoObserver;
use crate::call::{Dialect, Facts, Identity, Origin, Peer, Record, Refusal, Slot as _};

/// The name of the listener of such a call, for operators.
const LISTENER: &str = "old process";

/// The calls of the old process that are not over.
pub(in crate::app) struct ForeignCalls {
    gate: Gate,
    clock: Clock,
    identity: Arc<Identity>,
    calls: HashMap<ForeignId, mpsc::UnboundedSender<CallStep>>,
    /// Turns and refusals.
    decided: mpsc::UnboundedSender<NewInput>,
}

/// A step of a call, as the old process reports it.
#[derive(Debug)]
pub(super) enum CallStep {
    Changed(Option<Timestamp>, Box<str>),
    Cancelled,
    Sent,
    Replied,
    Requeued(RequeueCause),
    Finished(ForeignOutcome, Option<u64>),
    /// The old process reports nothing any more. The permit goes there.
    Held(mpsc::UnboundedSender<Permit>),
}

impl ForeignCalls {
    /// An empty list. Decisions of the gate go to `decided`.
    pub(in crate::app) fn new(
        gate: Gate,
        clock: Clock,
        decided: mpsc::UnboundedSender<NewInput>,
    ) -> Self {
        // The peer is this machine's.
        let identity = Identity::without_names(LISTENER.into(), Peer::Unix { uid: 0 });
        Self {
            gate,
            clock,
            identity: Arc::new(identity),
            calls: HashMap::new(),
            decided,
        }
    }

    /// Counts a running call.
    pub(in crate::app) fn adopt(&mut self, running: RunningCall) {
        let id = running.id;
        let adopted = wire::adopted(running, self.clock);
        let (function, class) = (
            Arc::clone(&adopted.call.function),
            Arc::clone(&adopted.class),
        );
        let record = self.record(function, class, adopted.call.arrived, None);
        let permit = self.gate.adopt(adopted, record);
        self.follow(id, ForeignCallState::Runs(permit));
    }

    /// Queues a call.
    pub(super) fn ask(&mut self, waiting: WaitingCall) {
        let id = waiting.id;
        let ask = wire::ask(waiting, self.clock);
        let (function, class) = (Arc::clone(&ask.function), Arc::clone(&ask.class));
        let record = self.record(function, class, ask.arrived, ask.target.clone());
        match self.gate.ask(ask, &record) {
            Admission::Decided(Err(refusal)) => self.refused(id, &refusal),
            Admission::Decided(Ok(permit)) => {
                self.follow(id, ForeignCallState::Runs(permit));
                let _ = self.decided.send(NewInput::Admitted(id));
            }
            Admission::Queued(queued) => self.follow(id, ForeignCallState::Waits(queued)),
        }
    }

    /// Passes a step on. A call that is over meanwhile needs none.
    pub(super) fn step(&mut self, id: ForeignId, step: CallStep) {
        let is_last = matches!(
            step,
            CallStep::Cancelled | CallStep::Finished(..) | CallStep::Held(_)
        );
        if let Some(call) = self.calls.get(&id) {
            let _ = call.send(step);
        }
        if is_last {
            self.calls.remove(&id);
        }
    }

    /// A refused call is over.
    pub(super) fn forget(&mut self, id: ForeignId) {
        self.calls.remove(&id);
    }

    fn refused(&self, id: ForeignId, refusal: &Refusal) {
        let refusal = wire::wire_refusal(refusal);
        let _ = self.decided.send(NewInput::Refused(id, refusal));
    }

    /// A record that no one reads: the old process reports the call.
    fn record(
        &self,
        function: Arc<str>,
        class: Arc<str>,
        arrived: Timestamp,
        target: Option<Box<str>>,
    ) -> Arc<Record> {
        let origin = Origin {
            identity: Arc::clone(&self.identity),
            arrived,
        };
        let facts = Facts::begun(origin, Dialect::Http, function, class, target);
        Record::of(facts, Arc::new(NoObserver))
    }

    fn follow(&mut self, id: ForeignId, state: ForeignCallState) {
        let (steps, coming) = mpsc::unbounded_channel();
        self.calls.insert(id, steps);
        let call = ForeignTask {
            id,
            gate: self.gate.clone(),
            decided: self.decided.clone(),
        };
        tokio::spawn(call.run(state, coming));
    }
}

/// The state of a call.
enum ForeignCallState {
    Waits(QueuedCall),
    Runs(Permit),
}

/// A call of the old process, in its task.
struct ForeignTask {
    id: ForeignId,
    gate: Gate,
    decided: mpsc::UnboundedSender<NewInput>,
}

impl ForeignTask {
    /// Runs until the call is over. Without a word from the old process it goes on: its slot must not be free early.
    async fn run(self, mut state: ForeignCallState, mut steps: mpsc::UnboundedReceiver<CallStep>) {
        loop {
            state = match state {
                ForeignCallState::Waits(mut queued) => tokio::select! {
                    turn = &mut queued => match turn {
                        Ok(permit) => {
                            let _ = self.decided.send(NewInput::Admitted(self.id));
                            ForeignCallState::Runs(permit)
                        }
                        Err(refusal) => return self.refused(&refusal),
                    },
                    step = steps.recv() => match step {
                        Some(CallStep::Changed(deadline, class)) => {
                            queued.wait_as(deadline, self.gate.class_named(&class));
                            ForeignCallState::Waits(queued)
                        }
                        None | Some(CallStep::Cancelled) => return,
                        Some(_) => ForeignCallState::Waits(queued),
                    },
                },
                ForeignCallState::Runs(mut permit) => match steps.recv().await {
                    Some(CallStep::Sent) => {
                        permit.sent();
                        ForeignCallState::Runs(permit)
                    }
                    Some(CallStep::Replied) => {
                        permit.replied();
                        ForeignCallState::Runs(permit)
                    }
                    Some(CallStep::Finished(outcome, measured)) => {
                        let measured = measured.map(wire::tokens);
                        return permit.finish_measured(wire::outcome(outcome), measured);
                    }
                    Some(CallStep::Requeued(cause)) => {
                        match self.gate.ask_again(permit, wire::fault(cause)) {
                            Admission::Decided(Ok(permit)) => {
                                let _ = self.decided.send(NewInput::Admitted(self.id));
                                ForeignCallState::Runs(permit)
                            }
                            Admission::Decided(Err(refusal)) => return self.refused(&refusal),
                            Admission::Queued(queued) => ForeignCallState::Waits(queued),
                        }
                    }
                    Some(CallStep::Held(holder)) => {
                        let _ = holder.send(permit);
                        return;
                    }
                    // It was never sent, so that all comes back.
                    Some(CallStep::Cancelled) | None => return,
                    Some(CallStep::Changed(..)) => ForeignCallState::Runs(permit),
                },
            };
        }
    }

    fn refused(&self, refusal: &Refusal) {
        let refusal = wire::wire_refusal(refusal);
        let _ = self.decided.send(NewInput::Refused(self.id, refusal));
    }
}
