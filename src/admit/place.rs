//! Bounds on the looks of clients at the places of their calls, and the error of predictions lately.
//!
//! A look walks the queue under the lock, so the number of looks in a second is bounded for all clients together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_limits::Timestamp;

use crate::call::LooksExceeded;

/// The most looks in a second.
const LOOKS_PER_SECOND: u64 = 100;

/// The weight of a call in the error of lately.
const WEIGHT: f32 = 0.05;

/// The looks of this second, and how good predictions were lately.
#[derive(Debug, Default)]
pub(super) struct PlaceLooks {
    /// The second, and the looks in it in the lowest byte.
    looks: AtomicU64,
    /// The bits of the error, in parts of the wait; zero without one.
    error: AtomicU32,
}

impl PlaceLooks {
    /// Counts a look, if it may be.
    pub(super) fn look(&self, now: Timestamp) -> Result<(), LooksExceeded> {
        let second = now.as_nanos() / 1_000_000_000;
        let counted =
            self.looks
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |looks| {
                    match (looks >> 8 == second, looks & 0xff) {
                        (true, LOOKS_PER_SECOND..) => None,
                        (true, _) => Some(looks + 1),
                        (false, _) => Some(second << 8 | 1),
                    }
                });
        counted.map(drop).map_err(|_| LooksExceeded)
    }

    /// Notes the error of a prediction, in parts of the wait.
    pub(super) fn note_error(&self, error: f32) {
        let before = self.error();
        let error = before.map_or(error, |before| before + (error - before) * WEIGHT);
        // One that is lost to another thread changes little.
        self.error
            .store(error.max(f32::MIN_POSITIVE).to_bits(), Ordering::Relaxed);
    }

    /// The error of lately.
    pub(super) fn error(&self) -> Option<f32> {
        let bits = self.error.load(Ordering::Relaxed);
        (bits != 0).then(|| f32::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_has_100_looks_and_the_next_one_too() {
        let looks = PlaceLooks::default();
        let may_look = |at| {
            looks
                .look(Timestamp::ZERO + Duration::from_millis(at))
                .is_ok()
        };
        assert_eq!((0..300).filter(|at| may_look(at * 3)).count(), 100);
        assert!(may_look(1000));
    }

    #[test]
    fn the_error_of_lately_follows_the_errors() {
        let looks = PlaceLooks::default();
        assert_eq!(looks.error(), None);
        looks.note_error(0.5);
        assert_eq!(looks.error(), Some(0.5));
        (0..200).for_each(|_| looks.note_error(0.1));
        assert!((looks.error().unwrap_or_default() - 0.1).abs() < 0.01);
    }
}
