//! The law of the order (`src/queue/fair.rs`), over random traffic on a virtual clock.
//!
//! Each seed makes limits that are not nested (functions, pools, totals, paces, a bucket, a quota whose
//! store answers late or not at all), callers and classes of different weights, and streams of calls
//! that ask each limit for 0.8 to 3 times what it lets through. In some seeds calls are given back or
//! put back to wait, clients leave, the queue is small so that calls wait at the door, limits and
//! classes come and go in reloads, something is kept for a class, or calls are set aside (jitter), except
//! those of the class for which something is kept. The oracle counts for itself what each limit
//! lets through, and holds the scheduler to this:
//!
//! - the wait of every single call is at most what the law says, by what was ahead of it;
//! - while two callers of a class each have a call that only one limit holds up, their service there
//!   differs by at most one maximal call of each, and so it is for two classes; by one more of each if
//!   limits opened at the same moment, and by one more of a caller of which a claim was served;
//! - no call waits that could run, unless a claim keeps the room;
//! - when nothing comes any more, everything runs.
//!
//! Each of these checks notices a world that breaks it from outside. The worst seed is printed with `--nocapture`.

mod random;
mod order_laws {
    pub(crate) mod checks;
    pub(crate) mod make;
    pub(crate) mod met;
    pub(crate) mod store;
    pub(crate) mod world;

    use super::{MS, Worst};
}

use order_laws::world::{Broken, Check, World};
use random::seeds;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// How close to their bounds things came.
#[derive(Debug, Default)]
struct Worst {
    wait: f64,
    /// Service of two at one limit.
    apart: f64,
    /// How often that was compared.
    compared: u64,
}

impl Worst {
    fn wait(&mut self, ratio: f64) {
        self.wait = self.wait.max(ratio);
    }

    fn apart(&mut self, ratio: f64) {
        self.apart = self.apart.max(ratio);
    }
}

#[test]
fn every_call_runs_within_its_bound_and_callers_share_each_limit() {
    let mut all = Worst::default();
    let mut of = [0; 2];
    let mut broken = 0;
    for seed in seeds(0..150) {
        match World::new(seed).live() {
            Ok(worst) => {
                let pairs = [(worst.wait, &mut all.wait), (worst.apart, &mut all.apart)];
                for ((ratio, most), of) in pairs.into_iter().zip(&mut of) {
                    if ratio > *most {
                        (*most, *of) = (ratio, seed);
                    }
                }
                all.compared += worst.compared;
            }
            Err(violation) => {
                broken += 1;
                eprintln!("TIDEGATE_SEED={seed}: {violation}");
            }
        }
    }
    println!("{all:?}, with the seeds {of:?}");
    assert_eq!(broken, 0, "the violations are printed above");
}

/// How many of the first seeds are noticed by this check alone.
fn noticed(broken: Broken, check: Check) -> usize {
    let runs = (0..40).map(|seed| World::new(seed).broken(broken, check).live());
    runs.filter(Result::is_err).count()
}

#[test]
fn each_check_notices_what_breaks_it() {
    for (broken, check, least) in [
        (Broken::Closes, Check::Wait, 10),
        (Broken::Closes, Check::Work, 10),
        (Broken::Favours, Check::Fairness, 5),
        (Broken::Forgets, Check::Rest, 30),
    ] {
        let noticed = noticed(broken, check);
        println!("{check:?} notices {broken:?} in {noticed} of 40");
        assert!(
            noticed >= least,
            "{check:?} notices {broken:?} in {noticed} of 40"
        );
    }
}
