//! The acts of a process that its side has decided, and those of its end.

use std::collections::BTreeSet;

use tidegate_handover::{
    ClaimWait, FrozenGate, NewInput, NewOutput, OldInput, OldOutput, PeerConnection, RunStage,
    RunningCall, WaitingCall,
};

use super::{
    CallNumber, Holder, Life, Mistake, Process, ProcessId, REPLIED, SENT, Scope, Stage, World,
    foreign, number, waiting,
};

impl World {
    pub(super) fn drain(&mut self, id: ProcessId) {
        let process = &mut self.processes[id];
        process.drains = true;
        process.has_clients = false;
    }

    pub(super) fn freeze(&mut self, id: ProcessId, scope: &Scope) {
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

    pub(super) fn claim(&mut self, id: ProcessId, scope: &Scope) {
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

    pub(super) fn publish(&mut self, id: ProcessId, scope: &Scope) {
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

    pub(super) fn take_back(&mut self, id: ProcessId, scope: &Scope) {
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
    pub(super) fn end_call(&mut self, number: CallNumber) {
        let call = &mut self.calls[number];
        call.stage = Stage::Over;
        call.ends += 1;
        call.was_requeued = false;
    }

    pub(super) fn end_process(&mut self, id: ProcessId) {
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
        self.processes[id] = Process::in_life(Life::Gone, 0);
    }

    pub(super) fn tell_old(&mut self, id: ProcessId, input: OldInput, scope: &Scope) {
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

    pub(super) fn tell_new(&mut self, id: ProcessId, input: NewInput, scope: &Scope) {
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
