//! `tidegate plan` against the real process: what it predicts for config B from a log under A, and what happens
//! under B.
//!
//! Both runs have the same seeded load, also the same service times, before a backend of their own. The prediction is
//! right if the share of refused calls and the p95 of waits are within bounds. `make predict` runs
//! all scenarios and writes docs/reports/predictions.md.

mod judge;
mod load;
mod run;
mod scenario;
mod table;

use self::judge::{Bounds, Judged, STRICT};
use self::run::Limits;
use self::scenario::Scenario;
use crate::seeds::the_seed;

/// Runs the calls of a scenario under both configs, and plans the second from the log of the first.
async fn judged(scenario: &Scenario) -> Judged {
    let before = run::run(scenario, &scenario.before).await;
    let real = run::run(scenario, &scenario.after).await;
    let planned = run::plan(scenario, &before, &scenario.after).await;
    Judged::new(scenario, &before, &real, &planned)
}

/// All scenarios: `make predict`. ONLY selects those whose names contain it; then nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes five minutes; `make predict` runs it"]
async fn the_table() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let seed = the_seed().unwrap_or(1);
    let mut all = Vec::new();
    for scenario in scenario::all(seed) {
        if scenario.name.contains(&only) {
            let judged = judged(&scenario).await;
            eprint!("{}", table::rows(&judged));
            all.push(judged);
        }
    }
    if only.is_empty() {
        table::write(&all, seed);
    }
    let wrong: Vec<_> = all.iter().flat_map(|it| it.wrong(&STRICT)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Bounds for a machine that does other work at the same time.
const LOOSE: Bounds = Bounds {
    refused: 0.04,
    wait: 0.35,
    wait_closed: 0.35,
};

/// A plan is right, and a plan of the log's own config is not.
async fn predicts(scenario: &Scenario) {
    let before = run::run(scenario, &scenario.before).await;
    let real = run::run(scenario, &scenario.after).await;
    let check = async |planned: &Limits| {
        let planned = run::plan(scenario, &before, planned).await;
        Judged::new(scenario, &before, &real, &planned).wrong(&LOOSE)
    };
    let wrong = check(&scenario.after).await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        !check(&scenario.before).await.is_empty(),
        "any plan is right"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_predicts_what_a_full_queue_refuses() {
    predicts(&scenario::full_queue(1, 4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_predicts_the_waits_of_clients_that_ask_again_after_their_answer() {
    predicts(&scenario::window_asked_again(1, 6)).await;
}
