//! The course of a run: the world and the processes by turns, millisecond by millisecond.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cell::Cell;
use crate::plan::{Mistake, Plan, STORM};
use crate::process::{pass, paused_runtime, settle};
use crate::record::Millis;
use crate::shared::Shared;

/// The world and the process have as many turns in a millisecond.
const ROUNDS: usize = 2;
/// After the storm, all clients have made their calls within this time.   ms
const CALM_MAX: Millis = 200_000;
/// After that, all calls end and all windows are over within this time.   ms
const CALM: Millis = 4_000;

/// A run under way.
struct Run {
    outside: Runtime,
    cells: Vec<Cell>,
    shared: Option<Shared>,
    now: Millis,
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
        while !self.cells.iter().all(Cell::has_made_its_calls) && self.now < STORM + CALM_MAX {
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
            let faults = shared.change(self.now);
            self.cells[0].look().count_many("faults", faults);
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

    /// Lets everything outside do what it can do now.
    fn look(&mut self) {
        settle(&self.outside);
        let mut came = 0;
        for cell in &self.cells {
            came += cell.look().looked();
        }
        if let Some(shared) = &mut self.shared {
            let mut judge = self.cells[0].look();
            for _ in 0..came {
                if let Err((claim, how)) = shared.came(self.now) {
                    judge.violated(claim, how);
                }
            }
        }
    }

    fn shown(&self, seed: u64) -> Value {
        let mut counts = BTreeMap::<String, u64>::new();
        let (mut digests, mut violations) = (Vec::new(), Vec::new());
        for cell in &self.cells {
            let judge = cell.look();
            for (name, count) in judge.counts() {
                *counts.entry(name.clone()).or_default() += count;
            }
            digests.push(format!("{:016x}", judge.digest()));
            for (claim, how) in judge.violations() {
                violations.push(json!([claim.to_string(), how]));
            }
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
