//! The laws of the scheduler, over random policies and histories on a virtual clock.
//!
//! Each seed makes a policy and a plan: calls that arrive, are cancelled, sent, replied to,
//! finished, given back, requeued, put into other classes; supplies and reloads in between. The
//! clock jumps to the next event or to the moment the scheduler asked to be woken at. After
//! every step the oracle recounts the full history.
//!
//! `random/seeds.rs` chooses the seeds. `TIDEGATE_TRACE=1` prints what happens.

mod oracle;
mod random;
mod laws {
    pub(crate) mod controls;
    pub(crate) mod policies;
    pub(crate) mod twins;
    pub(crate) mod world;
}

use std::ops::Range;
use std::time::Duration;

use laws::controls::{Model, Reload, bucket_model, model};
use laws::policies::Shape;
use laws::twins;
use laws::world::World;
use oracle::Violation;
use random::{Random, seeds};
use tidegate_limits::Timestamp;

const SEEDS: Range<u64> = 0..12_000;

fn nanos(span: u64) -> Duration {
    Duration::from_nanos(span)
}

fn at(moment: u64) -> Timestamp {
    Timestamp::from_nanos(moment)
}

/// Runs `law` with each seed, prints the first violation and counts them.
fn count_violations(
    seeds: impl Iterator<Item = u64>,
    law: impl Fn(u64) -> Result<(), Violation>,
) -> u64 {
    let mut violations = 0;
    for seed in seeds {
        if let Err(violation) = law(seed) {
            if violations == 0 {
                eprintln!("TIDEGATE_SEED={seed}: {violation}");
            }
            violations += 1;
        }
    }
    violations
}

fn check_laws(shape: impl Fn(&mut Random) -> Shape) {
    let violations = count_violations(seeds(SEEDS), |seed| World::new(seed, &shape).live());
    assert_eq!(violations, 0, "the first one is printed above");
}

#[test]
fn one_flow_in_turn_keeps_every_law_and_its_order() {
    check_laws(|random| Shape {
        classes: 1,
        callers: 1,
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn many_flows_in_turn_keep_every_law() {
    check_laws(|random| Shape {
        classes: random.between(1, 3),
        callers: random.between(1, 4),
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn calls_set_aside_keep_every_law_but_order() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 30,
        buckets: 0,
        reserves: false,
        reloads: random.one_in(3),
        jitter: true,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn buckets_in_turn_keep_every_law() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 40,
        buckets: random.between(1, 3),
        reserves: false,
        reloads: random.one_in(3),
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn buckets_with_calls_set_aside_keep_every_law_but_order() {
    check_laws(|random| Shape {
        classes: random.between(1, 2),
        callers: random.between(1, 3),
        calls: 30,
        buckets: random.between(1, 3),
        reserves: random.one_in(2),
        reloads: random.one_in(3),
        jitter: true,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn a_reserve_is_there_for_its_class_and_for_no_other() {
    check_laws(|random| Shape {
        classes: random.between(1, 3),
        callers: random.between(1, 3),
        calls: 40,
        buckets: random.below(2),
        reserves: true,
        reloads: random.one_in(4),
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: false,
    });
}

#[test]
fn a_call_that_runs_at_once_leaves_everything_as_if_it_had_waited_first() {
    let mut at_once = 0;
    for seed in seeds(SEEDS) {
        match twins::live(seed, false) {
            Ok(calls) => at_once += calls,
            Err(violation) => panic!("{violation}"),
        }
    }
    let least = seeds(SEEDS).len() as u64;
    assert!(at_once >= least, "only {at_once} calls ran at once");
}

#[test]
fn twins_that_get_different_calls_differ() {
    let differ = count_violations(0..400, |seed| twins::live(seed, true).map(drop));
    assert!(differ >= 20, "{differ} of 400 runs differed");
}

#[test]
fn the_oracle_catches_a_scheduler_whose_windows_are_fixed() {
    let shape = Shape {
        classes: 1,
        callers: 1,
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: false,
        jitter: false,
        fixed_as_sliding: true,
        one_slot_more: false,
    };
    let caught = count_violations(0..200, |seed| World::new(seed, |_| shape).live());
    assert!(
        caught >= 20,
        "{caught} of 200 runs with fixed windows were caught"
    );
}

#[test]
fn the_oracle_catches_a_free_slot_though_a_reload_made_other_limits_inexact() {
    let shape = Shape {
        classes: 2,
        callers: 2,
        calls: 40,
        buckets: 0,
        reserves: false,
        reloads: true,
        jitter: false,
        fixed_as_sliding: false,
        one_slot_more: true,
    };
    let caught = count_violations(0..400, |seed| {
        let mut world = World::new(seed, |_| shape);
        world.live().or_else(|violation| {
            let is_exact = world.is_exact_throughout();
            if is_exact { Ok(()) } else { Err(violation) }
        })
    });
    assert!(caught >= 10, "{caught} of 400 runs were caught");
}

#[test]
fn the_oracle_catches_a_fixed_window_and_a_check_then_act_but_not_an_exact_limiter() {
    let caught = |kind| count_violations(0..500, |seed| model(seed, kind));
    assert_eq!(caught(Model::Exact), 0);
    assert!(caught(Model::Fixed) >= 250);
    assert!(caught(Model::CheckThenAct) >= 250);
}

#[test]
fn the_oracle_catches_a_bucket_that_refunds_when_it_changes_but_not_one_that_keeps_its_tokens() {
    let caught = |reload| count_violations(0..500, |seed| bucket_model(seed, reload));
    assert_eq!(caught(Reload::InPlace), 0);
    let refunds = caught(Reload::Refund);
    assert!(refunds >= 250, "{refunds} of 500 refunds were caught");
}
