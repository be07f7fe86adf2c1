//! One run: the world and the process by turns, millisecond by millisecond.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::clients::make_calls;
use crate::plan::{Fault, Mistake, Patience, Plan, PlannedCall, STORM, Work};
use crate::process::{Process, pass, paused_runtime, settle, text};
use crate::record::{Millis, Record};
use crate::world::World;

/// The world and the process have as many turns in a millisecond.
const ROUNDS: usize = 2;
/// After the storm, all clients have made their calls within this time.   ms
const CALM_MAX: Millis = 200_000;
/// After that, all calls end and all windows are over within this time.   ms
const CALM: Millis = 4_000;
/// A backend that is back may be noticed as late.   ms
const NOTICED: Millis = 2_500;
/// Calls of a process that was killed hold their slots for this long.   ms
const AFTER_CRASH: Millis = 3_100;
/// A change of the config has its effect within this time.   ms
const CHANGED: Millis = 50;

/// A run under way.
struct Run {
    plan: Plan,
    mistake: Option<Mistake>,
    outside: Runtime,
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

/// Runs a seed to its end. Returns what it has shown.
pub(crate) fn run(seed: u64, mistake: Option<Mistake>) -> Value {
    let plan = Plan::of(seed);
    let outside = paused_runtime();
    let record = Record::new(plan.limits, &plan.calls);
    let world = {
        let _inside = outside.enter();
        Arc::new(World::new(record.clone(), plan.finishes))
    };
    let mut run = Run {
        outside,
        backend: None,
        process: Process::absent(),
        clients: Vec::new(),
        record,
        world,
        mistake,
        now: 0,
        stalled_for: 0,
        stall: 0,
        ends: Vec::new(),
        plan,
    };
    run.storm();
    run.calm();
    let judge = run.record.look();
    json!({
        "seed": seed,
        "digest": format!("{:016x}", judge.digest()),
        "ms": run.now,
        "faults": run.plan.faults.len(),
        "counts": judge.counts(),
        "violations": judge.violations(),
    })
}

impl Run {
    fn storm(&mut self) {
        self.start_backend();
        self.start_process();
        for client in 0..self.plan.clients {
            let numbered = self.plan.calls.iter().enumerate();
            let own = numbered.filter(|(_, call)| call.client == client);
            let own = own.map(|(number, _)| number).collect();
            let making = make_calls(Arc::clone(&self.world), own);
            self.clients.push(self.outside.spawn(making));
        }
        let mut faults = self.plan.faults.clone().into_iter().peekable();
        while self.now < STORM {
            while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= self.now) {
                self.begin(fault);
            }
            self.millisecond();
        }
        while !self.clients.iter().all(JoinHandle::is_finished) && self.now < STORM + CALM_MAX {
            self.millisecond();
        }
        // A call that nobody waits for may still run.
        let quiet = self.now + CALM;
        while self.now < quiet {
            self.millisecond();
        }
    }

    /// After all faults, and after all calls, each slot must be free again.
    fn calm(&mut self) {
        if let Some(busy) = self.process.busy()
            && busy != (0, 0)
        {
            let told = format!("after all calls, {} run and {} wait", busy.0, busy.1);
            self.record.look().violated(3, told);
        }
        let limits = self.record.look().limits();
        let together = limits.outstanding.min(limits.per_window);
        let work = Work::Answers {
            after: 200,
            bytes: 40,
        };
        for _ in 0..together {
            let call = self.record.look().plan(PlannedCall {
                at: self.now,
                client: 0,
                pause: None,
                body: 0,
                patience: Patience::Stays,
                work,
            });
            self.outside
                .spawn(make_calls(Arc::clone(&self.world), vec![call]));
        }
        let until = self.now + 100;
        while self.now < until {
            self.millisecond();
        }
        let running = self.record.look().running();
        if running != together {
            let told = format!("{running} of {together} calls run after all others have ended");
            self.record.look().violated(3, told);
        }
        let until = self.now + 1_000;
        while self.now < until {
            self.millisecond();
        }
    }

    fn start_backend(&mut self) {
        let _inside = self.outside.enter();
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

    fn millisecond(&mut self) {
        self.end_faults();
        for _ in 0..ROUNDS {
            self.look();
            if self.stalled_for == 0 {
                self.process.settle();
            }
        }
        self.look();
        pass(&self.outside);
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

    /// All that is outside does what it can do now.
    fn look(&self) {
        settle(&self.outside);
        self.record.look().looked();
    }

    fn begin(&mut self, fault: Fault) {
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
                let _inside = self.outside.enter();
                self.backend = None;
                self.ends.push((self.now + for_, Ending::BackendUp));
            }
            Fault::BackendStalls { for_ } | Fault::Partition { for_ } => {
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

    fn end_faults(&mut self) {
        let now = self.now;
        let over: Vec<_> = self.ends.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, ending) in over {
            match ending {
                Ending::Starts => self.start_process(),
                Ending::BackendUp => self.start_backend(),
                Ending::Flows => self.world.set_flowing(true),
            }
        }
    }

    fn reload(&mut self, told: &str, limits: crate::plan::Limits) {
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

    fn reload_badly(&mut self, told: &str, limits: crate::plan::Limits) {
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
            true => judge.violated(8, "a config with a mistake was taken"),
            false => judge.count("configs refused"),
        }
    }
}
