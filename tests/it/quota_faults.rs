//! Quotas under real faults: sidecars as processes, before one backend, that share budgets through
//! a real store, driven at several times what there is, while they, their links and the store's
//! servers are killed, stopped and cut.
//!
//! Each call draws from two budgets: its user's, and that of all. `tidegate audit`, which reads
//! the access logs, and the arrivals at the backend show whether any was exceeded.
//! docs/reports/quota-faults.md has the figures of the long run, `make quota-faults`.

mod account;
mod backend;
mod call;
mod faults;
mod load;
mod sentinels;
mod sidecars;
mod store;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_lab::audit::{self, AuditReport, AuditVerdict, Log};
use tokio::time::sleep;

use self::account::{Account, Evidence, UNDER_WAY};
use self::backend::Backend;
use self::call::{EVERYBODY, now};
use self::faults::{Done, Fault, Faults};
use self::load::{Demand, Load};
use self::sentinels::Group;
use self::sidecars::{Counts, Fleet};
use self::store::Store;
use crate::seeds::any_seed;
use crate::support::PATIENCE;

/// The tried case.
pub(crate) struct Plan {
    name: &'static str,
    sidecars: usize,
    window: Duration,
    /// Tokens a window, of all calls.
    everybody: u64,
    /// Of each user.
    per_user: u64,
    /// The rule for the time without a store, in the words of the config.
    away: &'static str,
    demand: Demand,
    /// For how long faults are done.
    lasts: Duration,
    faults: Faults,
    seed: u64,
}

impl Plan {
    /// Short enough for every run of the tests: three times as much is asked for as there is.
    fn short(name: &'static str, faults: Faults) -> Self {
        Self {
            name,
            sidecars: 3,
            window: Duration::from_secs(1),
            everybody: 300,
            per_user: 120,
            away: "safe",
            demand: Demand {
                open: 30.0,
                think: Duration::from_millis(100),
            },
            lasts: Duration::from_secs(9),
            faults,
            seed: any_seed(),
        }
    }

    /// After all is well again a sidecar has asked the store within a second and the longest
    /// pause before it tries again, and the next window begins within one.
    fn back_within(&self) -> Duration {
        self.window + Duration::from_secs(1) + Duration::from_secs(2)
    }
}

/// The result of a run.
struct Outcome {
    account: Account,
    report: AuditReport,
    done: Vec<Done>,
    counts: Counts,
}

/// Runs it, and adds everything up. The logs are kept if a window was exceeded.
async fn run(plan: &Plan, mut store: Store) -> Outcome {
    let backend = Backend::start();
    let mut fleet = Fleet::start(plan, &store, backend.addr).await;
    let load = Load::start(&fleet.addrs(), plan.demand);
    let begins = async {
        while backend.count() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let begins = tokio::time::timeout(PATIENCE, begins).await;
    assert!(begins.is_ok(), "nothing arrived at the backend");
    let from = now();
    let done = faults::strike(plan, &mut fleet.sidecars, &mut store).await;
    let well = now();
    // Long enough for windows in which every sidecar has found out.
    sleep(plan.back_within() + 2 * plan.window).await;
    let to = now();
    let seen = Arc::clone(&load.seen);
    drop(load);
    let logs = fleet.logs();
    let counts = fleet.end().await;
    let evidence = Evidence {
        plan,
        time_of_day: store.tells_the_time_of_day(),
        told: account::read(&logs),
        arrivals: backend.arrivals(),
        done: done.clone(),
        from,
        well,
        to,
    };
    let account = evidence.account();
    let logs = logs
        .iter()
        .map(|path| Log::open(path).expect("it is there"));
    let assumptions = audit::Assumptions {
        clock_error: Duration::from_millis(10),
        reorder: 1_000_000,
        // They are looked for at the backend.
        ignore_missing: true,
    };
    let report = audit::audit(logs.collect(), Vec::new(), &assumptions);
    let report = report.expect("the logs are of few sidecars");
    eprintln!(
        "{}: {} faults; {} calls answered, {} refused, {} failed; {} arrived, {} of them without a line",
        plan.name,
        done.len(),
        seen.answered.load(Ordering::Relaxed),
        seen.refused.load(Ordering::Relaxed),
        seen.failed.load(Ordering::Relaxed),
        evidence.arrivals.len(),
        account.unlogged,
    );
    let is_late = account.late_awake > UNDER_WAY;
    if store.engine() != "memory" && (is_late || !account.over.is_empty()) {
        eprintln!("{}", report.render());
        eprintln!("the logs are in {}", fleet.keep().display());
        for done in &done {
            eprintln!("{done:?}");
        }
    }
    Outcome {
        account,
        report,
        done,
        counts,
    }
}

impl Outcome {
    /// The invariants of every run.
    fn keeps_every_total(&self) {
        let account = &self.account;
        assert_eq!(account.over, [], "windows that were exceeded");
        assert_eq!(account.over_by_arrival, [], "windows that were exceeded");
        assert_ne!(self.report.verdict, AuditVerdict::Exceeded);
        assert_eq!(account.twice, 0, "calls came twice");
        assert!(
            account.late_awake <= UNDER_WAY,
            "{} us after its window",
            account.late_awake
        );
    }

    /// Checks the promises that hold once all is well again, and where the store was well.
    fn check_recovery(&self, plan: &Plan, store_has_a_clock: bool) {
        for (sidecar, back) in self.account.back_after.iter().enumerate() {
            let back = back.unwrap_or_else(|| panic!("sidecar {sidecar} never came back"));
            let back = Duration::from_micros(back);
            assert!(
                back <= plan.back_within(),
                "{sidecar} came back after {back:?}"
            );
        }
        let used = &self.account.used;
        assert!(!used.is_empty(), "there was demand all the time");
        // If the sidecar that keeps the time dies with all that knew it, windows pass without a
        // known number. Calls then run by the sidecars' own shares.
        assert!(!(store_has_a_clock && used.contains(&0.0)), "{used:?}");
    }

    fn count(&self, is: impl Fn(Fault) -> bool) -> usize {
        self.done.iter().filter(|done| is(done.fault)).count()
    }
}

fn mean(parts: &[f64]) -> f64 {
    parts.iter().sum::<f64>() / parts.len() as f64
}

fn least(parts: &[f64]) -> f64 {
    parts.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The heading of the table that the long run prints.
const HEADING: &str = "\
| run | windows | kills | pauses | links | leader kills, pauses | draws a window | conflicts a draw \
| used, mean (min) | in windows without the store | least of an equal share | decided without a draw \
| calls decided | windows over | `audit` | worst late spend ms, awake |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

impl Outcome {
    /// A row of the table.
    fn row(&self, plan: &Plan) -> String {
        let account = &self.account;
        let of_all = &account.windows[call::BUDGETS - 1];
        let windows = of_all.len() as f64;
        let limit = format!("rate_limit:{EVERYBODY}");
        let sum = |name: &str| self.counts.sum(name, &[("limit", &limit)]);
        let draws = sum("tidegate_quota_draws_total");
        let how = |how| {
            let labels = [("limit", &*limit), ("how", how)];
            self.counts.sum("tidegate_quota_decisions_total", &labels)
        };
        let here = how("local") + how("refused");
        let parts = |parts: &[f64]| match parts.is_empty() {
            true => "none".to_owned(),
            false => format!("{:.3} ({:.3})", mean(parts), least(parts)),
        };
        format!(
            "| {} | {} | {} | {} | {} | {}, {} | {:.1} | {:.2} | {} | {} | {:.2} | {:.1} % | {} | {} | {} | {:.0}, {:.0} |",
            plan.name,
            of_all.len(),
            self.count(|it| it == Fault::Killed),
            self.count(|it| it == Fault::Paused),
            self.count(|it| matches!(it, Fault::Links(_))),
            self.count(|it| it == Fault::LeaderKilled),
            self.count(|it| it == Fault::LeaderPaused),
            draws / windows,
            sum("tidegate_quota_conflicts_total") / draws,
            parts(&account.used),
            parts(&account.used_without_store),
            least(&account.shares) * plan.sidecars as f64,
            100.0 * here / (here + how("waited")),
            how("local") + how("waited") + how("refused"),
            account.over.len(),
            match self.report.verdict {
                AuditVerdict::Kept => "kept",
                AuditVerdict::Unknown => "cannot be told",
                AuditVerdict::Exceeded => "EXCEEDED",
            },
            account.late as f64 / 1e3,
            account.late_awake as f64 / 1e3,
        )
    }
}

async fn holds_under_faults(plan: Plan, store: Store) -> String {
    let store_has_a_clock = store.tells_the_time_of_day();
    let outcome = run(&plan, store).await;
    let row = outcome.row(&plan);
    eprintln!("{HEADING}\n{row}");
    outcome.keeps_every_total();
    outcome.check_recovery(&plan, store_has_a_clock);
    row
}

#[tokio::test]
async fn a_budget_in_zookeeper_is_never_exceeded_under_faults() {
    let ensemble = crate::stores::ZooKeeper::start(3).await;
    let plan = Plan::short("ZooKeeper", Faults::All);
    holds_under_faults(plan, Store::ZooKeeper(ensemble)).await;
}

#[tokio::test]
async fn a_budget_in_etcd_is_never_exceeded_whatever_is_killed_or_stands_still() {
    let cluster = crate::stores::Etcd::start(3);
    let plan = Plan::short("etcd", Faults::All);
    holds_under_faults(plan, Store::Etcd(cluster)).await;
}

#[tokio::test]
async fn a_budget_in_a_redis_that_keeps_what_it_confirms_is_never_exceeded_either() {
    let server = crate::stores::Redis::start(store::REDIS_KEEPS);
    let plan = Plan::short("Redis", Faults::All);
    holds_under_faults(plan, Store::Redis(server, store::REDIS_KEEPS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_in_a_redis_behind_sentinels_holds_over_orderly_failovers() {
    let plan = Plan {
        away: "deny",
        ..Plan::short("Redis, failed over", Faults::FailOvers)
    };
    holds_under_faults(plan, Store::Sentinels(Group::start().await)).await;
}

/// A Redis that restarts without its data. Returns the row of the table, and by how much the
/// worst window was exceeded, as a part of its total.
async fn loses_no_more_than_was_drawn(plan: Plan) -> String {
    let server = crate::stores::Redis::start(&[]);
    let outcome = run(&plan, Store::Redis(server, &[])).await;
    let (length, account) = (plan.window.as_micros() as u64, &outcome.account);
    let mut worst = 0.0_f64;
    for (budget, number, over) in &account.over {
        let total = match &**budget {
            EVERYBODY => plan.everybody,
            _ => plan.per_user,
        };
        // What had been drawn until then is drawn again, once for each time; half of the total is
        // the sidecars' own and never drawn.
        let losses = outcome.done.iter().filter(|done| {
            let begin = number * length;
            done.fault == Fault::LeaderKilled && done.from < begin + length && begin <= done.to
        });
        let bound = total / 2 * losses.count() as u64;
        assert!(*over <= bound, "{budget} in {number}: {over} above {total}");
        worst = worst.max(*over as f64 / total as f64);
    }
    assert_eq!(account.twice, 0, "calls came twice");
    outcome.check_recovery(&plan, true);
    let row = outcome.row(&plan);
    eprintln!("{HEADING}\n{row}\nthe worst window: {worst:.3} of its total above it");
    format!(
        "{row} worst window {:.1} % above its total |",
        worst * 100.0
    )
}

#[tokio::test]
async fn a_redis_that_forgets_costs_no_more_than_what_was_drawn_until_then() {
    let plan = Plan::short("Redis that forgets", Faults::Loss);
    loses_no_more_than_was_drawn(plan).await;
}

/// If the counts could not show it, the tests above would prove nothing.
#[tokio::test]
async fn budgets_that_are_not_shared_are_found_to_be_exceeded() {
    let plan = Plan {
        lasts: Duration::from_secs(2),
        ..Plan::short("not shared", Faults::None)
    };
    let outcome = run(&plan, Store::Memory).await;
    assert!(!outcome.account.over.is_empty());
    assert_eq!(outcome.report.verdict, AuditVerdict::Exceeded);
}

/// The long run: `make quota-faults`, which says what can be set.
#[tokio::test]
#[ignore = "takes half an hour; `make quota-faults` runs it"]
async fn the_long_run() {
    use crate::stores::{Etcd, Redis, ZooKeeper};

    let set = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let windows: u32 = set("WINDOWS", "200").parse().expect("a number");
    let runs = set(
        "RUNS",
        "zookeeper,zookeeper-deny,etcd,redis,sentinels,sentinels-deny,sentinels-storm,\
         sentinels-storm-deny,sentinels-links,sentinels-crash,redis-forgets,shares",
    );
    let mut rows = vec![HEADING.to_owned()];
    for run_of in runs.split(',') {
        let plan = |name, faults| Plan {
            sidecars: 4,
            window: Duration::from_secs(2),
            everybody: 1_000,
            per_user: 400,
            lasts: Duration::from_secs(2) * windows,
            ..Plan::short(name, faults)
        };
        let row = match run_of {
            "zookeeper" => {
                let store = Store::ZooKeeper(ZooKeeper::start(3).await);
                holds_under_faults(plan("ZooKeeper", Faults::All), store).await
            }
            "zookeeper-deny" => {
                let store = Store::ZooKeeper(ZooKeeper::start(3).await);
                let plan = Plan {
                    away: "deny",
                    ..plan("ZooKeeper, `deny`", Faults::All)
                };
                holds_under_faults(plan, store).await
            }
            "etcd" => {
                let plan = plan("etcd", Faults::All);
                holds_under_faults(plan, Store::Etcd(Etcd::start(3))).await
            }
            "redis" => {
                let server = Redis::start(store::REDIS_KEEPS);
                let store = Store::Redis(server, store::REDIS_KEEPS);
                holds_under_faults(plan("Redis, `appendfsync always`", Faults::All), store).await
            }
            "sentinels" | "sentinels-deny" | "sentinels-storm" | "sentinels-storm-deny" => {
                let (name, faults) = match run_of.contains("storm") {
                    true => (
                        "the same, with faults of sidecars",
                        Faults::FailOversAndSidecars,
                    ),
                    false => ("Redis, failed over in order", Faults::FailOvers),
                };
                let away = match run_of.ends_with("deny") {
                    true => "deny",
                    false => "safe",
                };
                let plan = Plan {
                    away,
                    ..plan(name, faults)
                };
                holds_under_faults(plan, Store::Sentinels(Group::start().await)).await
            }
            // What is not replicated, or not heard, is granted again: measured, and not 0.
            "sentinels-links" | "sentinels-crash" => {
                let (name, faults, away) = match run_of {
                    "sentinels-links" => ("the same, not heard", Faults::FailOversAndLinks, "safe"),
                    _ => ("Redis, failed over after a crash", Faults::Crashes, "deny"),
                };
                let plan = Plan {
                    away,
                    ..plan(name, faults)
                };
                let outcome = run(&plan, Store::Sentinels(Group::start().await)).await;
                eprintln!("over: {:?}", outcome.account.over);
                outcome.row(&plan)
            }
            "redis-forgets" => {
                let plan = plan("Redis that forgets", Faults::Loss);
                loses_no_more_than_was_drawn(plan).await
            }
            "shares" => {
                let plan = Plan {
                    sidecars: 8,
                    away: "deny",
                    everybody: 2_000,
                    // Only the total decides.
                    per_user: 2_000,
                    ..plan("ZooKeeper, no faults", Faults::None)
                };
                let store = Store::ZooKeeper(ZooKeeper::start(3).await);
                holds_under_faults(plan, store).await
            }
            other => panic!("no run {other}"),
        };
        rows.push(row);
        // The results so far, in case the next one fails.
        println!("{}\n", rows.join("\n"));
    }
}
