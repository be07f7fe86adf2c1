//! The course of a run: the world and the processes by turns, millisecond by millisecond.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::backend::Backend;
use crate::clients::make_calls;
use crate::lease_servers::{LeaseServers, rules};
use crate::plan::{
    Fault, Limits, Mistake, OutsideFault, Patience, Plan, PlannedCall, STORM, Sharing, Work,
    outside_faults,
};
use crate::process::{Process, Ways, pass, paused_runtime, settle, text};
use crate::record::{Millis, Record};
use crate::store::{STORE_BEGAN, Store};
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
/// The time between two looks at who is the master of the lease servers.   ms
const ELECTS_EVERY: Millis = 250;
/// A call that was admitted before the end of a window comes within this time.   ms
const EDGE: Millis = 2;

/// A run under way.
struct Run {
    outside: Runtime,
    cells: Vec<Cell>,
    shared: Option<Shared>,
    now: Millis,
}

/// The part that the processes share, and its judge.
struct Shared {
    sharing: Sharing,
    store: Option<Store>,
    servers: Option<LeaseServers>,
    faults: VecDeque<(Millis, OutsideFault)>,
    ends: Vec<(Millis, OutsideEnding)>,
    /// Calls in the present window of a quota.
    in_window: usize,
    /// When the last calls came, to any backend.
    came: VecDeque<Millis>,
}

/// The end of a fault of what the processes share.
enum OutsideEnding {
    Store,
    Server(usize),
    Master,
}

/// A process with its clients and its backend.
struct Cell {
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

/// Runs a seed to its end. Returns what it has shown.
pub(crate) fn run(seed: u64, mistake: Option<Mistake>) -> Value {
    let plans = Plan::of(seed);
    let outside = paused_runtime();
    let shared = {
        let _inside = outside.enter();
        plans[0]
            .sharing
            .map(|sharing| Shared::start(sharing, seed, mistake))
    };
    let cells = plans
        .into_iter()
        .map(|plan| Cell::new(&outside, plan, &shared, mistake));
    let mut run = Run {
        cells: cells.collect(),
        outside,
        shared,
        now: 0,
    };
    run.storm();
    run.calm();
    run.shown(seed)
}

impl Run {
    fn storm(&mut self) {
        for cell in &mut self.cells {
            cell.begin_storm(&self.outside);
        }
        while self.now < STORM {
            for cell in &mut self.cells {
                cell.begin_faults(&self.outside);
            }
            self.millisecond();
        }
        let made = |cell: &Cell| cell.clients.iter().all(JoinHandle::is_finished);
        while !self.cells.iter().all(made) && self.now < STORM + CALM_MAX {
            self.millisecond();
        }
        // A call whose client has left may still run.
        self.pass(CALM);
    }

    /// After all faults, and after all calls, each slot must be free again.
    fn calm(&mut self) {
        for cell in &mut self.cells {
            cell.must_be_idle();
        }
        // What the processes share may be used up.
        if self.shared.is_some() {
            return;
        }
        for cell in &mut self.cells {
            cell.call_together(&self.outside);
        }
        self.pass(100);
        for cell in &mut self.cells {
            cell.must_run_together();
        }
        self.pass(1_000);
    }

    fn pass(&mut self, for_: Millis) {
        let until = self.now + for_;
        while self.now < until {
            self.millisecond();
        }
    }

    fn millisecond(&mut self) {
        for cell in &mut self.cells {
            cell.end_faults(&self.outside);
        }
        if let Some(shared) = &mut self.shared {
            let _inside = self.outside.enter();
            shared.change(self.now);
        }
        for _ in 0..ROUNDS {
            self.look();
            for cell in &self.cells {
                cell.settle();
            }
        }
        self.look();
        pass(&self.outside);
        for cell in &mut self.cells {
            cell.pass();
        }
        self.now += 1;
    }

    /// All that is outside does what it can do now.
    fn look(&mut self) {
        settle(&self.outside);
        let mut came = 0;
        for cell in &self.cells {
            came += cell.record.look().looked();
        }
        if let Some(shared) = &mut self.shared {
            let mut judge = self.cells[0].record.look();
            for _ in 0..came {
                if let Err((promise, told)) = shared.came(self.now) {
                    judge.violated(promise, told);
                }
            }
        }
    }

    fn shown(&self, seed: u64) -> Value {
        let mut counts = std::collections::BTreeMap::<String, u64>::new();
        let (mut digests, mut violations) = (Vec::new(), Vec::new());
        for cell in &self.cells {
            let judge = cell.record.look();
            for (name, count) in judge.counts() {
                *counts.entry(name.clone()).or_default() += count;
            }
            digests.push(format!("{:016x}", judge.digest()));
            violations.extend_from_slice(judge.violations());
        }
        json!({
            "seed": seed,
            "digest": digests.join(" "),
            "ms": self.now,
            "counts": counts,
            "violations": violations,
        })
    }
}

impl Shared {
    /// Needs a runtime.
    fn start(sharing: Sharing, seed: u64, mistake: Option<Mistake>) -> Self {
        let mut this = Self {
            sharing,
            store: None,
            servers: None,
            faults: outside_faults(sharing, seed, mistake),
            ends: Vec::new(),
            in_window: 0,
            came: VecDeque::new(),
        };
        match sharing {
            Sharing::Quota { .. } => this.store = Some(Store::start(seed)),
            Sharing::Lease {
                capacity,
                safe,
                window,
            } => {
                let more = match mistake {
                    Some(Mistake::LeasesTooMuch) => 3,
                    _ => 0,
                };
                this.servers = Some(LeaseServers::start(rules(capacity + more, safe, window)));
            }
        }
        this
    }

    /// The state changes that come at this moment; needs a runtime.
    fn change(&mut self, now: Millis) {
        let over: Vec<_> = self.ends.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, ending) in over {
            match (ending, &self.store, &mut self.servers) {
                (OutsideEnding::Store, Some(store), _) => store.set_unavailable(false),
                (OutsideEnding::Server(server), _, Some(servers)) => servers.bring_up(server),
                (OutsideEnding::Master, _, Some(servers)) => servers.cut_off_master(false),
                _ => {}
            }
        }
        while let Some((_, fault)) = next_at(&mut self.faults, now) {
            match (fault, &self.store, &mut self.servers) {
                (OutsideFault::StoreAway { for_ }, Some(store), _) => {
                    store.set_unavailable(true);
                    self.ends.push((now + for_, OutsideEnding::Store));
                }
                (OutsideFault::StoreForgets, Some(store), _) => store.forget(),
                (OutsideFault::ServerDown { server, for_ }, _, Some(servers)) => {
                    servers.take_down(server);
                    self.ends.push((now + for_, OutsideEnding::Server(server)));
                }
                (OutsideFault::MasterCutOff { for_ }, _, Some(servers)) => {
                    servers.cut_off_master(true);
                    self.ends.push((now + for_, OutsideEnding::Master));
                }
                _ => {}
            }
        }
        match &mut self.servers {
            Some(servers) if now.is_multiple_of(ELECTS_EVERY) => servers.elect(now),
            _ => {}
        }
        if let Sharing::Quota { window, .. } = self.sharing
            && now.is_multiple_of(window)
        {
            self.in_window = 0;
        }
    }

    /// Counts a call that has come to a backend.
    fn came(&mut self, now: Millis) -> Result<(), (u8, String)> {
        match self.sharing {
            Sharing::Quota { total, window } => {
                debug_assert_eq!(STORE_BEGAN % window, 0);
                // It may be of the window before.
                if now % window < EDGE {
                    return Ok(());
                }
                self.in_window += 1;
                match self.in_window > total {
                    true => Err((
                        10,
                        format!("{} calls in a window of {total}", self.in_window),
                    )),
                    false => Ok(()),
                }
            }
            Sharing::Lease {
                capacity, window, ..
            } => {
                self.came.push_back(now);
                while self.came.front().is_some_and(|at| at + window <= now) {
                    self.came.pop_front();
                }
                let came = self.came.len();
                match came > capacity {
                    true => Err((9, format!("{came} calls in {window} ms, not {capacity}"))),
                    false => Ok(()),
                }
            }
        }
    }

    /// The ways of a process to what is shared.
    fn ways(&self) -> Ways {
        Ways {
            store: self.store.clone().map(|store| (store, Instant::now())),
            servers: self
                .servers
                .as_ref()
                .map(|servers| servers.folder().to_owned()),
        }
    }
}

/// The next fault, if its time has come.
fn next_at<F>(faults: &mut VecDeque<(Millis, F)>, now: Millis) -> Option<(Millis, F)> {
    let is_due = faults.front().is_some_and(|(at, _)| *at <= now);
    is_due.then(|| faults.pop_front()).flatten()
}

impl Cell {
    fn new(
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

    fn begin_storm(&mut self, outside: &Runtime) {
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

    fn must_be_idle(&self) {
        if let Some(busy) = self.process.busy()
            && busy != (0, 0)
        {
            let told = format!("after all calls, {} run and {} wait", busy.0, busy.1);
            self.record.look().violated(3, told);
        }
    }

    /// The calls that must be able to run at once, by the limits.
    fn together(&self) -> usize {
        let limits = self.record.look().limits();
        limits.outstanding.min(limits.per_window)
    }

    fn call_together(&self, outside: &Runtime) {
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

    fn must_run_together(&self) {
        let together = self.together();
        let running = self.record.look().running();
        if running != together {
            let told = format!("{running} of {together} calls run after all others have ended");
            self.record.look().violated(3, told);
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

    fn settle(&self) {
        if self.stalled_for == 0 {
            self.process.settle();
        }
    }

    /// A millisecond passes.
    fn pass(&mut self) {
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

    fn begin_faults(&mut self, outside: &Runtime) {
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

    fn end_faults(&mut self, outside: &Runtime) {
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
            true => judge.violated(8, "a config with a mistake was taken"),
            false => judge.count("configs refused"),
        }
    }
}
