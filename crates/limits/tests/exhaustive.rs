//! Every interleaving of a few calls, by a breadth-first search over the states of the scheduler.
//!
//! A state is a scheduler with its calls and the oracle of the laws (`oracle/mod.rs`), which recounts everything. From each state the
//! search takes every action that is possible: a call arrives, leaves, is sent, ends, is given back, waits again, is suspended or
//! comes back; the policy is reloaded; a server is down or up again; the limits are closed and opened by an operator; time passes, step
//! by step or with a jump. After each action the scheduler decides until it sleeps, and every law is checked. States that differ only in
//! what cannot matter any more are visited once: `exhaustive/world.rs` says which do, and `tidegate_limits::digest` why. An error prints
//! the shortest way to it.
//!
//! `make test` searches small scopes, and `make exhaustive` the full ones: it adds a line of JSON for each to the
//! file that `TIDEGATE_EVIDENCE` names.

#[path = "../../handover/tests/search/evidence.rs"]
mod evidence;
mod oracle;
mod exhaustive {
    pub(crate) mod checks;
    pub(crate) mod scopes;
    pub(crate) mod search;
    pub(crate) mod world;
}

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use exhaustive::scopes::{self, Scope};
use exhaustive::search::{Effort, Report, search};
use exhaustive::world::Broken;

use tidegate_limits::policy::Pick;

/// Nanoseconds in a second, which is one step of time.
const STEP: u64 = 1_000_000_000;

/// Searches scopes on several threads, the longest first. Panics with the shortest way to each error.
fn search_all(scopes: &[Scope], threads: usize, effort: Effort) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::new());
    let errors = Mutex::new(Vec::new());
    thread::scope(|spawner| {
        for _ in 0..threads {
            spawner.spawn(|| {
                while let Some(scope) = scopes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match search(scope, effort) {
                        Ok(report) => {
                            println!("{report}");
                            reports.lock().expect("no thread panics").push(report);
                        }
                        Err(error) => {
                            eprintln!("{error}");
                            errors.lock().expect("no thread panics").push(error);
                        }
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().expect("no thread panics");
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    let mut reports = reports.into_inner().expect("no thread panics");
    reports.sort_by(|one, other| one.scope.cmp(&other.scope));
    reports
}

#[test]
fn every_interleaving_of_a_few_calls_keeps_every_law() {
    let reports = search_all(&scopes::small(), 1, Effort::THOROUGH);
    let states: usize = reports.iter().map(|report| report.states).sum();
    println!("{states} states in all");
    assert!(reports.iter().all(|report| report.is_complete));
    assert!(states >= 50_000, "{states} states");
}

/// The full scopes: `make exhaustive`. SCOPE has only those searched whose names contain it.
#[test]
#[ignore = "takes minutes on two cores"]
fn every_interleaving_in_the_full_scopes_keeps_every_law() {
    let mut scopes = scopes::full();
    if let Ok(name) = std::env::var("SCOPE") {
        scopes.retain(|scope| scope.name.contains(&name));
    }
    let reports = search_all(&scopes, 2, Effort::WIDE);
    let states: usize = reports.iter().map(|report| report.states).sum();
    println!("{states} states in all");
    for report in &reports {
        evidence::add(report);
    }
}

/// The search must find this fault, and say how.
fn check_found(scope: Scope, broken: Broken, says: &str) {
    let scope = scope.broken(broken);
    let error = search(&scope, Effort::THOROUGH).expect_err("the fault is found");
    println!("{broken:?}:\n{error}");
    assert!(
        error.contains(says),
        "{broken:?} is found by {says:?}, not:\n{error}"
    );
}

#[test]
fn the_search_finds_a_slot_that_comes_back_twice() {
    check_found(scopes::slots(3), Broken::GivesBackTwice, "in flight");
}

#[test]
fn the_search_finds_one_call_more_than_the_limit() {
    check_found(scopes::slots(3), Broken::AdmitsOneMore, "was let through");
    check_found(scopes::windows(3), Broken::AdmitsOneMore, "was let through");
}

#[test]
fn the_search_finds_a_call_that_overtakes_its_like() {
    check_found(scopes::slots(3), Broken::RunsTheLast, "overtook");
}

#[test]
fn the_search_finds_a_call_that_runs_after_its_client_has_left() {
    check_found(scopes::slots(3), Broken::ForgetsThatItLeft, "wait,");
}

#[test]
fn the_search_finds_a_timer_that_never_fires() {
    check_found(
        scopes::windows(3),
        Broken::NeverWakes,
        "could run and does not",
    );
}

#[test]
fn the_search_finds_a_call_that_waits_again_and_is_lost() {
    check_found(scopes::slots(3), Broken::LosesRequeued, "should");
}

#[test]
fn the_search_finds_a_window_that_begins_anew_at_a_boundary() {
    check_found(scopes::windows(4), Broken::FixedWindows, "was let through");
}

#[test]
fn the_search_finds_a_class_that_gets_more_than_its_weight() {
    check_found(scopes::turns(6), Broken::OtherWeights, "apart");
}

#[test]
fn the_search_finds_a_server_with_one_call_more_and_calls_bound_before_they_leave() {
    let scope = || scopes::servers(3, Pick::Least);
    check_found(scope(), Broken::ServerAdmitsOneMore, "was let through");
    check_found(scope(), Broken::BindsEarly, "could run and does not");
}

#[test]
fn the_search_notices_when_it_takes_different_states_for_the_same() {
    check_found(
        scopes::windows(3),
        Broken::MergesMoments,
        "taken for the same",
    );
    check_found(scopes::slots(4), Broken::MergesOrders, "taken for the same");
}
