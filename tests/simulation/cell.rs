//! A process with its clients and its backend.

use std::sync::{Arc, MutexGuard};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::claim::Claim;
use crate::clients::make_calls;
use crate::plan::{Fault, Limits, Mistake, Patience, Plan, PlannedCall, Work, next_at};
use crate::process::{Process, text};
use crate::record::{Judge, Millis, Record};
use crate::shared::Shared;
use crate::world::World;

/// A backend that is back may be noticed as late.   ms
const NOTICED: Millis = 2_500;
/// Calls of a process that was killed hold their slots for this long.   ms
const AFTER_CRASH: Millis = 3_100;
/// A change of the config has its effect within this time.   ms
const CHANGED: Millis = 50;

/// The process of a plan, with its clients and its backend.
pub(crate) struct Cell {
    plan: Plan,
    mistake: Option<Mistake>,
    world: Arc<World>,
    backend: Option<Backend>,
    process: Process,
    clients: Vec<JoinHandle<()>>,
    record: Record,
    now: Millis,
    stalled_for: Millis,
    stall: Millis,
    /// When which fault ends.
    ends: Vec<(Millis, Ending)>,
}

/// The end of a fault.
enum Ending {
    Starts,
    BackendUp,
    Flows,
}

impl Cell {
    pub(crate) fn new(
        outside: &Runtime,
        plan: Plan,
        shared: &Option<Shared>,
        mistake: Option<Mistake>,
    ) -> Self {
        let record = Record::new(plan.limits, &plan.calls, shared.is_some());
        let _inside = outside.enter();
        let ways = shared.as_ref().map(Shared::ways).unwrap_or_default();
        Self {
            backend: None,
            process: Process::absent(ways),
            clients: Vec::new(),
            world: Arc::new(World::new(record.clone(), plan.finishes)),
            record,
            mistake,
            now: 0,
            stalled_for: 0,
            stall: 0,
            ends: Vec::new(),
            plan,
        }
    }

    pub(crate) fn begin_storm(&mut self, outside: &Runtime) {
        self.start_backend(outside);
        self.start_process();
        for client in 0..self.plan.clients {
            let numbered = self.plan.calls.iter().enumerate();
            let own = numbered.filter(|(_, call)| call.client == client);
            let own = own.map(|(number, _)| number).collect();
            let making = make_calls(Arc::clone(&self.world), own);
            self.clients.push(outside.spawn(making));
        }
    }

    pub(crate) fn look(&self) -> MutexGuard<'_, Judge> {
        self.record.look()
    }

    pub(crate) fn has_made_its_calls(&self) -> bool {
        self.clients.iter().all(JoinHandle::is_finished)
    }

    pub(crate) fn must_be_idle(&self) {
        if let Some(busy) = self.process.busy()
            && busy != (0, 0)
        {
            let told = format!("after all calls, {} run and {} wait", busy.0, busy.1);
            self.record.look().violated(Claim::Promise(3), told);
        }
    }

    /// The calls that must be able to run at once, by the limits.
    fn together(&self) -> usize {
        let limits = self.record.look().limits();
        limits.outstanding.min(limits.per_window)
    }

    pub(crate) fn call_together(&self, outside: &Runtime) {
        for _ in 0..self.together() {
            let call = self.record.look().plan(PlannedCall {
                at: self.now,
                client: 0,
                pause: None,
                body: 0,
                patience: Patience::Stays,
                work: Work::Answers {
                    after: 200,
                    bytes: 40,
                },
            });
            outside.spawn(make_calls(Arc::clone(&self.world), vec![call]));
        }
    }

    pub(crate) fn must_run_together(&self) {
        let together = self.together();
        let running = self.record.look().running();
        if running != together {
            let told = format!("{running} of {together} calls run after all others have ended");
            self.record.look().violated(Claim::Promise(3), told);
        }
    }

    fn start_backend(&mut self, outside: &Runtime) {
        let _inside = outside.enter();
        self.backend = Some(Backend::start(&self.world));
    }

    fn start_process(&mut self) {
        if self.mistake == Some(Mistake::ForgetsLedger) {
            let _ = std::fs::remove_file(self.world.ledger());
        }
        let limits = self.record.look().limits();
        let text = text(&self.world, &self.plan, limits, self.mistake);
        self.process.start(&self.world, &text, self.now);
    }

    pub(crate) fn settle(&self) {
        if self.stalled_for == 0 {
            self.process.settle();
        }
    }

    /// A millisecond passes.
    pub(crate) fn pass(&mut self) {
        if self.stalled_for > 0 {
            self.record.look().stalled();
            self.stalled_for -= 1;
            if self.stalled_for == 0 {
                self.process.jump(self.stall);
            }
        } else {
            self.process.pass();
        }
        if self.process.has_drained() {
            self.record
                .look()
                .unsettled("the process has ended", CHANGED);
            self.start_process();
        }
        let refuses = self.plan.refuses;
        self.record.look().tick(self.process.busy(), refuses);
        self.now += 1;
    }

    pub(crate) fn begin_faults(&mut self, outside: &Runtime) {
        while let Some((_, fault)) = next_at(&mut self.plan.faults, self.now) {
            self.record.look().count("faults");
            self.begin(outside, fault);
        }
    }

    fn begin(&mut self, outside: &Runtime, fault: Fault) {
        let told = format!("{fault:?}");
        match fault {
            Fault::Kill { for_ } if self.process.is_there() && self.stalled_for == 0 => {
                let unsettled = for_ + AFTER_CRASH;
                self.record.look().unsettled(told, unsettled);
                self.world.killed();
                self.process.kill(&self.world);
                self.ends.push((self.now + for_, Ending::Starts));
            }
            Fault::Restart if self.process.is_there() => {
                self.record.look().unsettled(told, 0);
                self.process.begin_to_drain();
            }
            Fault::Stall { for_ } if self.stalled_for == 0 => {
                self.record.look().unsettled(told, for_ + CHANGED);
                (self.stalled_for, self.stall) = (for_, for_);
            }
            Fault::Reload(limits) => self.reload(&told, limits),
            Fault::BadReload(limits) => self.reload_badly(&told, limits),
            Fault::BackendDown { for_ } if self.backend.is_some() => {
                self.record.look().unsettled(told, for_ + NOTICED);
                let _inside = outside.enter();
                self.backend = None;
                self.ends.push((self.now + for_, Ending::BackendUp));
            }
            Fault::Partition { for_ } => {
                self.record.look().unsettled(told, 0);
                self.world.set_flowing(false);
                self.ends.push((self.now + for_, Ending::Flows));
            }
            // It meets another fault that excludes it.
            Fault::Kill { .. }
            | Fault::Restart
            | Fault::Stall { .. }
            | Fault::BackendDown { .. } => {}
        }
    }

    pub(crate) fn end_faults(&mut self, outside: &Runtime) {
        let now = self.now;
        let over: Vec<_> = self.ends.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, ending) in over {
            match ending {
                Ending::Starts => self.start_process(),
                Ending::BackendUp => self.start_backend(outside),
                Ending::Flows => self.world.set_flowing(true),
            }
        }
    }

    fn reload(&mut self, told: &str, limits: Limits) {
        if !self.process.is_there() || self.stalled_for > 0 {
            return;
        }
        let text = text(&self.world, &self.plan, limits, self.mistake);
        let is_taken = self.process.reload(&text);
        let mut judge = self.record.look();
        judge.unsettled(format_args!("{told}: {is_taken}"), CHANGED);
        if is_taken {
            judge.limits_changed(limits);
            judge.count("configs taken");
        }
    }

    fn reload_badly(&mut self, told: &str, limits: Limits) {
        if !self.process.is_there() || self.stalled_for > 0 {
            return;
        }
        let text = text(&self.world, &self.plan, limits, self.mistake);
        let bad = match self.mistake {
            Some(Mistake::TakesBadConfig) => text,
            _ => format!("{text}\nno_such_option = 1\n"),
        };
        let is_taken = self.process.reload(&bad);
        let mut judge = self.record.look();
        judge.unsettled(format_args!("{told}: {is_taken}"), 0);
        match is_taken {
            true => judge.violated(Claim::Promise(8), "a config with a mistake was taken"),
            false => judge.count("configs refused"),
        }
    }
}
