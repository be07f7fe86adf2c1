//! The steps that can happen next.

use super::{CallNumber, Holder, Life, Link, Mistake, ProcessId, Scope, Stage, World};
use tidegate_handover::ClaimWait;

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

impl World {
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
}
