//! The quota's model: the ledgers of several nodes and a store, in virtual time, with whatever
//! can go wrong, and invariants that hold all the same.
//!
//! The algorithm that the quota improves on is run through the same checker, which has to notice each of its faults.

mod random;
#[path = "../../handover/tests/search/mod.rs"]
mod search;
mod quota_model {
    pub(crate) mod check;
    pub(crate) mod orders;
    pub(crate) mod original;
    pub(crate) mod take_all;
    pub(crate) mod world;
}

use std::collections::BTreeSet;
use std::time::Duration;

use quota_model::check::{Invariant, check};
use quota_model::original::{Original, WINDOW};
use quota_model::world::{Faults, MS, Run, Setup, run};
use random::{Random, at_least, seeds};
use tidegate_limits::quota::{DrawMode, OutagePolicy, RuleSettings, WindowRule};

/// The invariants that a run broke.
fn broken(original: &Original) -> BTreeSet<Invariant> {
    check(&original.log)
        .iter()
        .map(|violation| violation.invariant)
        .collect()
}

fn hold(run: &Run) {
    let violations = check(&run.log);
    if let Some(first) = violations.first() {
        panic!(
            "{:?}: {} ({} in all)",
            first.invariant,
            first.how,
            violations.len()
        );
    }
}

fn rule(settings: RuleSettings) -> WindowRule {
    WindowRule::check(settings).expect("a rule")
}

/// Anything that can be configured, and anything that can go wrong.
fn anything(seed: u64) -> Setup {
    let mut random = Random::new(seed ^ 0x5eed);
    let random = &mut random;
    let nodes = random.between(1, 6) as usize;
    let length = random.pick(&[100, 250, 500, 1_000]);
    let keys = random.pick(&[1, 1, 1, 2, 4]);
    let away = random.pick(&[
        OutagePolicy::Deny,
        OutagePolicy::Safe { percent: 50 },
        OutagePolicy::Safe { percent: 50 },
        OutagePolicy::Safe { percent: 100 },
        OutagePolicy::Safe { percent: 7 },
    ]);
    let steps = random.one_in(6) && away == OutagePolicy::Deny;
    let rules = (0..keys)
        .map(|_| {
            let total = random.pick(&[1, 3, 10, 37, 100, 500, 3_000]);
            let mut settings = RuleSettings::new(total, Duration::from_millis(length));
            settings.nodes_expected = nodes as u32;
            settings.away = away;
            settings.base = random.one_in(3).then(|| random.between(1, total));
            settings.prefetch_percent = random.pick(&[0, 20, 20, 50, 100]);
            settings.ask_percent = random.pick(&[10, 40, 40, 100]);
            settings.relinquish_every = Duration::from_millis(random.pick(&[10, 100, 15_000]));
            settings.relinquish_above = random.pick(&[1, 2, 2, 5]);
            settings.draw_timeout = Duration::from_millis(random.pick(&[5, 20, 50]));
            if random.one_in(4) {
                settings.mode = DrawMode::Optimistic;
            }
            rule(settings)
        })
        .collect();
    let sometimes = |random: &mut Random, every: u64| {
        if random.one_in(2) {
            0
        } else {
            random.between(every / 4, every) * MS
        }
    };
    let windows = random.between(2, 5);
    let busy = random.pick(&[1, 2, 5, 20]) * MS;
    Setup {
        seed,
        nodes,
        rules,
        duration: windows * length * MS,
        gaps: (0..nodes)
            .map(|_| random.between(busy / 2, busy * 2))
            .collect(),
        costs: (1, random.pick(&[1, 1, 3, 14])),
        way: random.pick(&[
            (MS / 10, MS / 2),
            (MS / 5, 2 * MS),
            (MS, 10 * MS),
            (MS / 10, 30 * MS),
        ]),
        faults: Faults {
            lost_before: random.pick(&[0, 0, 20, 200]),
            lost_after: random.pick(&[0, 0, 20, 200]),
            stale: random.pick(&[0, 50, 500]),
            skew: random.pick(&[0, 10_000 * MS]),
            drift_ppm: random.pick(&[0, 95]),
            crash_every: sometimes(random, length),
            pause_every: sometimes(random, length),
            cut_every: sometimes(random, length),
            step_every: if steps { 2 * length * MS } else { 0 },
            late_calls: random.pick(&[0, 0, 10]),
            given_back: random.pick(&[0, 0, 100]),
            miscounted: random.one_in(4),
            until: u64::MAX,
        },
        saturated: false,
        shift_at: None,
    }
}

#[test]
fn whatever_goes_wrong_no_window_is_exceeded() {
    for seed in seeds(0..5_000) {
        hold(&run(&anything(seed)));
    }
}

/// The figures of a run under more demand than there is.
#[derive(Debug)]
struct Figures {
    /// Mean part of the total that was used, over all windows but the first.
    used: f64,
    /// The least that a node got in any of them, as part of an equal share.
    least: f64,
    draws: f64,
    conflicts_per_draw: f64,
    /// Calls that were decided without waiting for the store.
    local: f64,
}

fn figures(setup: &Setup) -> Figures {
    let run = run(setup);
    hold(&run);
    let settings = setup.rules[0].settings();
    let length = settings.length.as_nanos() as u64;
    let windows = 1..(setup.duration / length) as usize;
    let count = windows.len() as f64;
    let total = settings.total as f64;
    let got =
        |node: &Vec<Vec<u64>>, window: usize| node[0].get(window).copied().unwrap_or(0) as f64;
    let share = total / setup.nodes as f64;
    let used: f64 = windows
        .clone()
        .map(|window| {
            run.admitted
                .iter()
                .map(|node| got(node, window))
                .sum::<f64>()
                / total
        })
        .sum();
    let least = run
        .admitted
        .iter()
        .flat_map(|node| windows.clone().map(|window| got(node, window) / share))
        .fold(f64::MAX, f64::min);
    Figures {
        used: used / count,
        least,
        draws: run.counts.draws as f64 / (count + 1.0),
        conflicts_per_draw: run.counts.conflicts as f64 / run.counts.draws as f64,
        local: 1.0 - run.waited as f64 / run.decided as f64,
    }
}

fn saturated(
    nodes: usize,
    total: u64,
    length_ms: u64,
    per_second: u64,
    costs: (u64, u64),
) -> Setup {
    let mut settings = RuleSettings::new(total, Duration::from_millis(length_ms));
    settings.nodes_expected = nodes as u32;
    settings.away = OutagePolicy::Deny;
    Setup {
        seed: 1,
        nodes,
        rules: vec![rule(settings)],
        duration: 20 * length_ms * MS,
        gaps: vec![1_000 * MS / per_second; nodes],
        costs,
        way: (MS / 5, 2 * MS),
        faults: Faults::default(),
        saturated: true,
        shift_at: None,
    }
}

#[test]
fn under_saturation_little_strands_no_node_starves_and_few_draws_suffice() {
    // Nodes, total, window in ms, calls a second of each, costs; the draws that a prototype of the
    // design needed on a real ensemble, which is a mean; and how much is decided without waiting.
    let cases = [
        (3, 3_000, 3_000, 1_000, (1, 1), 24.0, 0.98),
        (4, 3_000, 2_000, 1_000, (1, 1), 31.0, 0.98),
        (8, 60_000, 2_000, 1_000, (1, 14), 98.0, 0.98),
        // Forty times too much: all that is there goes in the first moments of a window, in which
        // no node knows of it.
        (8, 200, 1_000, 1_000, (1, 1), 10.0, 0.94),
    ];
    for (nodes, total, length, per_second, costs, draws, local) in cases {
        let mut all = Vec::new();
        for seed in at_least(3, 0..3) {
            let mut setup = saturated(nodes, total, length, per_second, costs);
            setup.seed = seed;
            let figures = figures(&setup);
            let case = format!("{nodes} nodes, {total} in {length} ms, seed {seed}: {figures:?}");
            println!("{case}");
            assert!(figures.used >= 0.98, "{case}");
            assert!(figures.local >= local, "{case}");
            // What one run comes to depends on who loses which race: in one window of all, a node may
            // come late to most of it.
            assert!(figures.least >= 0.25, "{case}");
            assert!(figures.draws <= 1.25 * draws, "{case}");
            assert!(figures.conflicts_per_draw <= 1.25 * 4.0, "{case}");
            all.push(figures);
        }
        if all.len() > 1 {
            let mean = |figure: fn(&Figures) -> f64| {
                all.iter().map(figure).sum::<f64>() / all.len() as f64
            };
            let (least, drawn) = (mean(|all| all.least), mean(|all| all.draws));
            assert!(least >= 0.8, "{nodes} nodes: {least}");
            assert!(drawn <= draws, "{nodes} nodes: {drawn}");
            let conflicts = mean(|all| all.conflicts_per_draw);
            assert!(conflicts <= 4.0, "{nodes} nodes: {conflicts}");
        }
    }
}

#[test]
fn demand_is_admitted_except_what_strands_or_dies() {
    for seed in seeds(0..200) {
        let mut random = Random::new(seed);
        let nodes = random.between(2, 8) as usize;
        let total = random.between(20, 150) * nodes as u64;
        let mut setup = saturated(nodes, total, 500, 1_000, (1, random.between(1, 5)));
        setup.seed = seed;
        setup.duration = 3_000 * MS;
        setup.faults = Faults {
            lost_before: 10,
            lost_after: 10,
            stale: 50,
            skew: 1_000 * MS,
            drift_ppm: 95,
            crash_every: 700 * MS,
            until: u64::MAX,
            ..Faults::default()
        };
        hold(&run(&setup));
    }
}

#[test]
fn a_node_that_reaches_the_store_again_draws_again() {
    for seed in seeds(0..200) {
        let mut random = Random::new(seed);
        let nodes = random.between(1, 5) as usize;
        let mut setup = saturated(nodes, random.between(10, 3_000), 500, 200, (1, 1));
        setup.seed = seed;
        setup.saturated = false;
        setup.duration = 10_000 * MS;
        setup.faults = Faults {
            cut_every: 1_000 * MS,
            until: 5_000 * MS,
            ..Faults::default()
        };
        let run = run(&setup);
        hold(&run);
        let unreached = run.counts.unknown + run.counts.unavailable;
        assert!(unreached > 0 || seed > 0, "the first seed cuts a node off");
    }
}

// ---- The original, fault by fault. Each run does what its name says and nothing else that is
// out of the ordinary.

#[test]
fn the_original_admits_free_of_charge_between_one_base_and_more() {
    // By its own arithmetic: 120 requests of one size, of which the total has room for few.
    let check = |base, size, admitted| {
        let mut original = Original::without_free_base(1, 100, base);
        let sum: i64 = (0..120).filter(|_| original.request(0, size)).count() as i64 * size;
        assert_eq!(sum, admitted, "base {base}, size {size}");
        assert!(broken(&original).contains(&Invariant::I1));
    };
    check(5, 8, 960);
    check(5, 12, 1_440);
    check(10, 7, 840);
    check(10, 11, 1_320);
}

#[test]
fn the_original_loses_its_own_update_until_its_watch_is_delivered() {
    let mut original = Original::without_free_base(1, 100, 5);
    for _ in 0..2 {
        let draw = original.ask(0, 20).expect("it draws");
        original.write(draw);
    }
    assert!(broken(&original).contains(&Invariant::I2));
}

#[test]
fn the_original_loses_the_update_of_another_node() {
    let mut original = Original::without_free_base(2, 100, 5);
    for node in 0..2 {
        let draw = original.ask(node, 80).expect("it draws");
        original.write(draw);
    }
    let broken = broken(&original);
    assert!(broken.contains(&Invariant::I2), "{broken:?}");
    assert!(broken.contains(&Invariant::I1), "{broken:?}");
}

#[test]
fn the_original_draws_twice_at_once_in_one_process_in_spite_of_its_lock() {
    let mut original = Original::without_free_base(1, 100, 5);
    let draw = original.ask(0, 10).expect("it draws");
    let prefetch = original.prefetch(0).expect("it prefetches");
    original.write(draw);
    original.write(prefetch);
    let broken = broken(&original);
    assert!(broken.contains(&Invariant::I10), "{broken:?}");
    assert!(broken.contains(&Invariant::I2), "{broken:?}");
}

#[test]
fn the_original_writes_after_it_has_lost_its_lock() {
    let mut original = Original::without_free_base(2, 100, 5);
    let paused = original.ask(0, 10).expect("it draws");
    // Its session expires; another gets the lock and sees everything.
    assert!(original.request(1, 60));
    original.write(paused);
    assert!(broken(&original).contains(&Invariant::I2));
}

#[test]
fn the_original_makes_a_base_with_every_start() {
    let mut original = Original::new(1, 100, 20);
    for _ in 0..6 {
        assert!(original.request(0, 20));
        original.restart(0);
    }
    let broken = broken(&original);
    assert!(broken.contains(&Invariant::I4), "{broken:?}");
    assert!(broken.contains(&Invariant::I12), "{broken:?}");
}

#[test]
fn the_original_carries_tokens_into_the_next_window() {
    let mut original = Original::without_free_base(1, 100, 20);
    assert!(original.request(0, 10));
    original.pass(WINDOW);
    original.mark_refreshed();
    original.refill();
    original.deliver(0);
    assert!(original.request(0, 20), "of what was drawn before");
    assert!(broken(&original).contains(&Invariant::I4));
}

#[test]
fn the_original_begins_a_window_twice() {
    let mut original = Original::without_free_base(2, 100, 5);
    original.pass(WINDOW);
    assert!(original.wants_refresh(0) && original.wants_refresh(1));
    original.mark_refreshed();
    original.refill();
    original.deliver(0);
    assert!(original.request(0, 90));
    // The other one, whose watch has not come yet.
    original.mark_refreshed();
    original.refill();
    original.deliver(1);
    assert!(original.request(1, 90));
    let broken = broken(&original);
    assert!(broken.contains(&Invariant::I3), "{broken:?}");
    assert!(broken.contains(&Invariant::I1), "{broken:?}");
}

#[test]
fn the_original_begins_windows_early_by_the_clock_that_runs_ahead_most() {
    let mut original = Original::without_free_base(1, 100, 5);
    original.skew(0, WINDOW / 2);
    for _ in 0..8 {
        original.pass(WINDOW / 2);
        assert!(original.wants_refresh(0));
        original.mark_refreshed();
        original.refill();
        original.deliver(0);
    }
    assert!(broken(&original).contains(&Invariant::I9));
}

#[test]
fn the_original_charges_who_is_refused() {
    let mut original = Original::without_free_base(1, 100, 5);
    assert!(original.request(0, 10));
    assert!(!original.request(0, 99), "more than is left");
    assert!(broken(&original).contains(&Invariant::I8));
}

#[test]
fn the_original_forgets_what_it_had_when_it_draws() {
    let mut original = Original::without_free_base(1, 100, 30);
    assert!(original.request(0, 1));
    assert_eq!(original.left(0), 30);
    // What was left of the base is gone, and so is what is left the next time.
    assert!(original.request(0, 31));
    assert!(!original.request(0, 20) || !original.request(0, 39));
    original.demanded(1 + 31 + 20 + 39);
    original.log.stranded = vec![0];
    assert!(broken(&original).contains(&Invariant::I6));
}

#[test]
fn the_original_throws_the_last_base_away() {
    let mut original = Original::without_free_base(1, 100, 50);
    assert!(original.request(0, 1));
    assert!(original.request(0, 50), "which leaves 49 in the store");
    assert!(
        original.request(0, 1),
        "for which the 48 others are thrown away"
    );
    for _ in 0..48 {
        original.request(0, 1);
    }
    original.demanded(100);
    original.log.stranded = vec![0];
    assert!(broken(&original).contains(&Invariant::I6));
}

#[test]
fn the_original_refuses_a_whole_window_after_a_crash_between_its_two_writes() {
    let mut original = Original::without_free_base(2, 100, 10);
    let admitted = (0..100).filter(|at| original.request(at % 2, 10)).count();
    assert!(admitted < 100, "then nothing is left");
    original.pass(WINDOW);
    // The node that marks the window dies before it fills it; all others believe that it is full.
    original.mark_refreshed();
    original.restart(0);
    original.deliver(1);
    assert!(!original.wants_refresh(1));
    for _ in 0..20 {
        original.request(1, 5);
    }
    original.demanded(100);
    assert!(broken(&original).contains(&Invariant::I6));
}

#[test]
fn the_original_with_its_prefetch_exceeds_the_total_as_well() {
    let mut original = Original::without_free_base(1, 1_000, 50).prefetching();
    let admitted = (0..120).filter(|_| original.request(0, 55)).count() * 55;
    assert_eq!(admitted, 6_600);
    assert!(broken(&original).contains(&Invariant::I1));
}
