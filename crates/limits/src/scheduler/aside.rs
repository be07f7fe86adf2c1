//! Calls that are set aside for a random time.

use core::time::Duration;

use super::park::LineKey;
use super::state::Scheduler;
use crate::queue::{Bar, LineId, Place};
use crate::slab::Key;
use crate::time::{Timestamp, nanos};

impl<T> Scheduler<T> {
    /// Sets the head of a line aside; at its deadline it is asked a last time.
    pub(super) fn set_aside(
        &mut self,
        now: Timestamp,
        line: LineId,
        key: Key,
        bar: Bar,
        until: Timestamp,
    ) {
        self.carry_over(key);
        let waiting = self.queue.expect_mut(key);
        let arrival = waiting.arrival;
        waiting.postponed = waiting.postponed.saturating_add(1);
        waiting.held_by = Some(bar);
        let until = until.max(now + Duration::from_nanos(1));
        let until = waiting
            .call
            .deadline
            .map_or(until, |deadline| until.min(deadline));
        self.queue.relocate(key, Place::Aside(until), arrival);
        self.refresh_head(line);
    }

    pub(super) fn rejoin_due(&mut self, now: Timestamp) {
        while let Some((until, key)) = self.queue.first_aside()
            && until <= now
        {
            self.rejoin(key);
        }
    }

    /// Puts a call that was aside at the end of its line.
    fn rejoin(&mut self, key: Key) {
        let arrival = self.count_joining();
        self.queue.expect_mut(key).joined = arrival;
        let line = self.line(LineKey::of(self.queue.expect(key)));
        self.move_into_line(key, line, arrival);
        self.refresh_head(line);
    }
}

/// Moments within the span of the jitter at which calls come back.
pub(super) const RETURNS: u64 = 128;

/// When a call set aside comes back. The span is cut into [`RETURNS`] steps of the common clock, so
/// that calls that come back at about the same time wake the scheduler once. With thousands aside
/// it would otherwise wake for each.
pub(super) fn aside_until(now: Timestamp, min: Duration, max: Duration, random: u64) -> Timestamp {
    let drawn = (now + jitter(min, max, random)).as_nanos();
    let step = nanos(max - min) / RETURNS;
    if step == 0 {
        return Timestamp::from_nanos(drawn);
    }
    let stepped = Timestamp::from_nanos(drawn - drawn % step);
    if stepped < now + min {
        stepped + Duration::from_nanos(step)
    } else {
        stepped
    }
}

/// A time between `min` and `max`, both possible, by one draw of 64 random bits: the bias of
/// multiplying instead of rejecting is below 2^-20 for spans up to a few hours.
fn jitter(min: Duration, max: Duration, random: u64) -> Duration {
    let (min, max) = (nanos(min), nanos(max));
    let span = u128::from(max - min) + 1;
    let offset = (u128::from(random) * span) >> 64;
    Duration::from_nanos(min + u64::try_from(offset).expect("the offset is at most max - min"))
}
