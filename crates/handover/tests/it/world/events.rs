//! The changes that a step makes.

use std::collections::VecDeque;

use tidegate_handover::{
    CallRefusal, ForeignOutcome, NewInput, OldInput, PeerConnection, RequeueCause, ToOld, Versions,
};

use super::{
    CallNumber, Holder, Life, Link, Mistake, ProcessId, REPLIED, SENT, Scope, Stage, Step, World,
    foreign, waiting,
};

impl World {
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
}
