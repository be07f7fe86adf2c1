//! The process in a simulated world: clients, a backend, restarts and faults, decided by a seed, on a clock that the simulation
//! moves. The promises are judged by what clients and the backend see. docs/decisions/0050 has the reasons.
//!
//! - `make simulate` runs 1,000 seeds, `make test` 20.
//! - `TIDEGATE_SEED=n` runs one of them, and `TELL=1` prints its events.
//! - An event may be seen up to 2 ms after it was: each side looks when it has its turn.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod backend;
mod cell;
mod claim;
mod clients;
#[path = "../../crates/handover/tests/search/evidence.rs"]
mod evidence;
mod lease_servers;
mod plan;
#[path = "../it/preloaded.rs"]
mod preloaded;
mod process;
mod record;
mod run;
#[path = "../../crates/limits/tests/random/seeds.rs"]
mod seeds;
mod shared;
mod store;
mod world;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use serde_json::{Value, json};

use self::plan::Mistake;
use self::preloaded::Preloaded;

/// The beginning of the line that has the result of a seed.
const RESULT: &str = "RESULT ";
/// A mistake must be found within this number of seeds.
const FOUND_WITHIN: u64 = 20;

const ENTROPY: &str = include_str!("entropy.c");

/// Runs seeds, each in a process whose random numbers follow from it.
struct Seeded(Preloaded);

impl Seeded {
    fn new() -> Self {
        Self(Preloaded::build(ENTROPY))
    }

    /// Runs a seed. Returns what it has shown.
    fn run(&self, seed: u64, mistake: Option<&str>) -> Value {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child
            .args([
                "--exact",
                "one_run",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("LD_PRELOAD", self.0.file())
            .env("ENTROPY", seed.to_string())
            .env("MISTAKE", mistake.unwrap_or_default());
        let ran = child.output().expect("it starts");
        let out = String::from_utf8_lossy(&ran.stdout);
        let told = String::from_utf8_lossy(&ran.stderr);
        eprint!("{told}");
        let result = out.lines().find_map(|line| line.split_once(RESULT));
        let Some((_, result)) = result else {
            panic!("seed {seed} has no result:\n{out}\n{told}");
        };
        serde_json::from_str(result).expect("JSON")
    }
}

/// The part of [`Seeded::run`] in the process of its own.
#[test]
#[ignore = "the other tests start it"]
fn one_run() {
    let seed = std::env::var("ENTROPY").expect("a seed");
    let mistake = std::env::var("MISTAKE").ok();
    let mistake = mistake.and_then(|name| Mistake::named(&name));
    let result = run::run(seed.parse().expect("a number"), mistake);
    println!("\n{RESULT}{result}");
}

fn violations(result: &Value) -> Vec<String> {
    let all = result["violations"].as_array().expect("a list").iter();
    all.map(|it| format!("seed {}, {}: {}", result["seed"], it[0], it[1]))
        .collect()
}

/// Runs all seeds, as many at once as there are processors.
fn run_all(seeded: &Seeded, seeds: impl Iterator<Item = u64> + Send) -> Vec<Value> {
    let (seeds, results) = (Mutex::new(seeds), Mutex::new(Vec::new()));
    let at_once = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = seeds.lock().expect("no thread panics with it").next();
                    let Some(seed) = next else { return };
                    let result = seeded.run(seed, None);
                    results
                        .lock()
                        .expect("no thread panics with it")
                        .push(result);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics with it")
}

#[test]
fn the_promises_hold_in_each_seed() {
    let seeded = Seeded::new();
    let results = run_all(&seeded, seeds::at_least(20, 0..200));
    let mut counts = BTreeMap::<String, u64>::new();
    for result in &results {
        for (name, count) in result["counts"].as_object().expect("an object") {
            *counts.entry(name.clone()).or_default() += count.as_u64().expect("a number");
        }
    }
    let total = |name: &str| {
        results
            .iter()
            .map(|it| it[name].as_u64().expect("a number"))
            .sum::<u64>()
    };
    let row = json!({
        "seeds": results.len(), "simulated_seconds": total("ms") / 1000, "counts": counts,
    });
    println!("{row}");
    let broken: Vec<_> = results.iter().flat_map(violations).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    evidence::add(&row);
}

#[test]
fn one_seed_is_one_run() {
    let seeded = Seeded::new();
    for seed in seeds::at_least(3, 0..10) {
        let (one, other) = (seeded.run(seed, None), seeded.run(seed, None));
        assert_eq!(one, other);
    }
}

#[test]
fn each_mistake_is_found() {
    let seeded = Seeded::new();
    for (_, mistake, claim) in Mistake::ALL {
        let claim = claim.to_string();
        let mut seeds = 0..FOUND_WITHIN;
        let found = seeds.find_map(|seed| {
            let result = seeded.run(seed, Some(mistake));
            let broken = result["violations"].as_array().expect("a list").clone();
            let found = broken.into_iter().find(|it| it[0] == json!(claim))?;
            Some((seed, found[1].clone()))
        });
        let Some((seed, how)) = found else {
            panic!("no seed finds that this is broken: {claim}, by {mistake}");
        };
        println!("{mistake}: seed {seed}, {how}");
        evidence::add(json!({"mistake": mistake, "claim": claim, "seed": seed, "how": how}));
    }
}
