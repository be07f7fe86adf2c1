//! The seeds that a test with random input runs.
//!
//! The code of a test says how many there are. `make test` runs one in ten, `make laws` all of them:
//!
//! - `TIDEGATE_SEEDS=1` runs all, `TIDEGATE_SEEDS=10` ten times as many, and without it, it is 0.1.
//! - `TIDEGATE_SEED=n` runs the seed n alone. A test that fails prints it.

#![allow(dead_code, reason = "each binary of tests uses a part of this")]

use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;

const PART: f64 = 0.1;

/// Seeds one after another. A panic while one of them runs prints that seed.
pub(crate) struct Seeds {
    left: Range<u64>,
    current: Option<u64>,
}

/// The part of these seeds that this run is for: the first ones, and at least one.
pub(crate) fn seeds(all: Range<u64>) -> Seeds {
    at_least(1, all)
}

/// As [`seeds`], where fewer would show nothing.
pub(crate) fn at_least(least: u64, all: Range<u64>) -> Seeds {
    let left = match the_seed() {
        Some(seed) => seed..seed + 1,
        None => {
            let part = number("TIDEGATE_SEEDS").unwrap_or(PART);
            let count = ((all.end - all.start) as f64 * part).ceil() as u64;
            all.start..all.start + count.max(least)
        }
    };
    Seeds {
        left,
        current: None,
    }
}

/// A seed of chance for a test that makes its random input once. It is printed.
pub(crate) fn any_seed() -> u64 {
    let seed = the_seed().unwrap_or_else(|| RandomState::new().hash_one(()));
    std::eprintln!("TIDEGATE_SEED={seed}");
    seed
}

/// The one seed that is asked for, if it is one.
pub(crate) fn the_seed() -> Option<u64> {
    number("TIDEGATE_SEED")
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, not {value:?}")))
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.left.next();
        self.current
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for Seeds {}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current
            && std::thread::panicking()
        {
            std::eprintln!("failed with TIDEGATE_SEED={seed}");
        }
    }
}
