//! The advice against an oracle that knows the backend.

#[path = "../../limits/tests/random/seeds.rs"]
mod seeds;
mod worlds;

use std::ops::Range;

use tidegate_advice::advice::{Advice, AdviceRequest, Slo, advise};
use tidegate_advice::sample::{Sample, SampleEnding};
use tidegate_advice::setting::SettingAnswer;
use tidegate_backends::SECOND;
use tidegate_backends::drive::goodput;

use seeds::seeds;
use worlds::{FAR, JUDGED, LOG, NEAR, TUNED, World};

fn advice(world: &World) -> Advice {
    let question = AdviceRequest {
        slo: Some(Slo {
            share: 0.95,
            within: world.within,
        }),
        max_wait: Some(world.within),
        ..AdviceRequest::default()
    };
    advise(&world.log(), &question)
}

/// The goodput of a limit.
fn good(world: &World, limit: u32) -> f64 {
    goodput(&world.under(limit), LOG * SECOND, Some(world.within))
}

/// The best limit that the log shows, and its goodput. The oracle knows the backend, but sees the same
/// log: a limit above the one that the log was made with is as unknown to it.
fn oracle(world: &World) -> (u32, f64) {
    let step = (world.limit / 16).max(1);
    let limits = (1..=world.limit).step_by(step as usize);
    let all = limits
        .chain([world.limit])
        .map(|limit| (limit, good(world, limit)));
    all.reduce(|best, next| if next.1 > best.1 { next } else { best })
        .expect("it bears at least one call")
}

fn check_near(all: Range<u64>) {
    let mut poor = Vec::new();
    for kind in NEAR {
        for seed in seeds(all.clone()) {
            let world = World::new(kind, seed);
            let advice = advice(&world);
            let (best, most) = oracle(&world);
            let SettingAnswer::Set(set) = &advice.outstanding else {
                poor.push(format!("{kind:?} {seed}: {:?}", advice.outstanding));
                continue;
            };
            let share = good(&world, set.value) / most;
            let found = format!(
                "{kind:?} {seed}: {} ({} to {}), the oracle {best}, bears {}, goodput {:.1} %",
                set.value,
                set.low,
                set.high,
                world.bears,
                share * 100.0
            );
            println!("{found}, {}", set.why);
            if share < 0.9 || set.high > world.bears {
                poor.push(found);
            }
        }
    }
    assert!(poor.is_empty(), "{poor:#?}");
}

fn check_far(all: Range<u64>) {
    for kind in FAR {
        for seed in seeds(all.clone()) {
            let world = World::new(kind, seed);
            let advice = advice(&world);
            let SettingAnswer::NoEvidenceBeyond(seen) = advice.outstanding else {
                panic!(
                    "{kind:?} {seed}: {:?}, {:?}",
                    advice.outstanding, advice.fit
                );
            };
            println!(
                "{kind:?} {seed}: no evidence beyond {seen}, bears {}",
                world.bears
            );
            assert!(seen <= advice.evidence.most && seen * 2 < world.bears);
        }
    }
}

/// A log that is short or poor, in one of seven ways.
fn poor(seed: u64) -> (&'static str, Vec<Sample>) {
    let kind = NEAR[seed as usize % NEAR.len()];
    let world = World::new(kind, seed);
    let log = world.log();
    let minute = 60 * SECOND;
    let part = |from: u64, minutes: u64| {
        let inside = move |it: &&Sample| (from..from + minutes * minute).contains(&it.arrived);
        log.iter().filter(inside).cloned().collect()
    };
    match seed % 7 {
        0 => ("short", part(10 * minute, 20)),
        1 => (
            "few calls",
            log.iter().step_by(log.len() / 150).cloned().collect(),
        ),
        2 => {
            let mut burst: Vec<Sample> = part(20 * minute, 3);
            burst.extend(log.first().cloned());
            burst.extend(log.last().cloned());
            ("one storm", burst)
        }
        3 => {
            let fails = log.iter().cloned().map(|sample| Sample {
                ending: SampleEnding::Failed,
                ..sample
            });
            ("all fail", fails.collect())
        }
        4 => {
            let instant = log.iter().cloned().map(|sample| Sample {
                ended: sample.started.unwrap_or(sample.arrived),
                ..sample
            });
            ("no times", instant.collect())
        }
        5 => {
            let refused = log.iter().cloned().map(|sample| Sample {
                started: None,
                ending: SampleEnding::Refused,
                ..sample
            });
            ("nothing was sent", refused.collect())
        }
        _ => ("empty", Vec::new()),
    }
}

fn values(advice: &Advice) -> usize {
    let whole = [&advice.outstanding, &advice.per_window, &advice.capacity];
    let times = [&advice.window, &advice.max_wait];
    let own = advice
        .functions
        .iter()
        .filter(|it| it.outstanding.is_some());
    whole.iter().filter(|it| it.setting().is_some()).count()
        + times.iter().filter(|it| it.setting().is_some()).count()
        + own.count()
        + advice.callers.iter().filter(|it| it.bucket.is_ok()).count()
}

fn check_poor(all: Range<u64>) {
    for seed in seeds(all) {
        let (name, log) = poor(seed);
        let advice = advise(&log, &AdviceRequest::default());
        assert_eq!(values(&advice), 0, "{name}, seed {seed}: {advice:?}");
        let SettingAnswer::NotEnough(needs) = &advice.outstanding else {
            panic!("{name}, seed {seed}: {:?}", advice.outstanding);
        };
        assert!(!needs.is_empty());
    }
}

fn check_sufficient(all: Range<u64>) {
    for seed in seeds(all) {
        let world = World::new(NEAR[seed as usize % NEAR.len()], seed);
        let advice = advice(&world);
        assert!(
            advice.outstanding.setting().is_some(),
            "seed {seed}: {advice:?}"
        );
        let every = [&advice.outstanding, &advice.per_window, &advice.capacity];
        let is_set = every.iter().all(|it| it.setting().is_some());
        assert!(
            is_set && advice.max_wait.setting().is_some(),
            "seed {seed}: {advice:?}"
        );
        assert!(advice.callers.iter().all(|it| it.bucket.is_ok()));
    }
}

#[test]
fn near_the_breaking_point_the_advice_is_nearly_the_best_and_never_across_it() {
    check_near(TUNED);
}

#[test]
fn the_same_for_seeds_that_were_not_used_before() {
    check_near(JUDGED);
}

#[test]
fn far_from_the_breaking_point_there_is_no_evidence() {
    check_far(TUNED);
    check_far(JUDGED);
}

#[test]
fn short_or_poor_logs_give_no_advice() {
    check_poor(JUDGED.start..JUDGED.start + 100);
}

#[test]
fn sufficient_logs_give_advice() {
    check_sufficient(JUDGED.start + 100..JUDGED.start + 150);
}

/// Logs of a limit above the breaking point. Where the backend collapses, it may serve too few calls for
/// any advice.
fn check_crossed(all: Range<u64>) {
    let (mut found, mut logs) = (0, 0);
    for kind in NEAR {
        for seed in seeds(all.clone()) {
            logs += 1;
            let mut world = World::new(kind, seed);
            world.limit = world.bears * 13 / 10 + 1;
            let advice = advice(&world);
            found += usize::from(advice.broken.is_some());
            let broken = advice.broken.map_or(world.bears, |broken| broken.from - 1);
            let high = advice.outstanding.setting().map_or(1, |set| set.high);
            assert!(
                high.max(broken) <= world.bears,
                "{kind:?} {seed}, bears {}: {advice:?}",
                world.bears
            );
        }
    }
    assert!(found * 3 >= logs, "{found} breaking points in {logs} logs");
}

#[test]
fn a_log_that_crosses_the_breaking_point_never_leads_across_it() {
    check_crossed(TUNED);
    check_crossed(JUDGED);
}
