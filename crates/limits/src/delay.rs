//! The causes of a call's wait, and the time for each.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem;
use core::time::Duration;

/// How many causes are recorded separately for one call. A call meets a handful of limits, so there
/// are more only if its bucket or the policy changed repeatedly while it waited.
const CAUSES_MAX: usize = 16;

/// A cause of a call's wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DelayCause {
    /// A limit or bucket was closed to the call, or to one with an earlier turn there.
    Limit(Arc<str>),
    /// The call's turn had not come. No limit was known to bar it.
    Turn,
    /// All causes beyond the number recorded separately.
    Others,
}

/// A part of a call's wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delay {
    /// The cause of the wait.
    pub cause: DelayCause,
    /// For how long.
    pub time: Duration,
}

/// The parts of a call's wait, each cause once and at most 16 of them. Nothing is written here
/// for a call that does not wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delays(Box<[Delay]>);

impl Delays {
    /// Adds waiting time.
    pub fn add(&mut self, cause: DelayCause, time: Duration) {
        if time.is_zero() {
            return;
        }
        if let Some(delay) = self.0.iter_mut().find(|delay| delay.cause == cause) {
            delay.time = delay.time.saturating_add(time);
            return;
        }
        if self.0.len() >= CAUSES_MAX - 1 && cause != DelayCause::Others {
            return self.add(DelayCause::Others, time);
        }
        // Most calls wait for one thing, and many may wait: no room is kept for a second.
        let mut parts = mem::take(&mut self.0).into_vec();
        parts.reserve_exact(1);
        parts.push(Delay { cause, time });
        self.0 = parts.into_boxed_slice();
    }

    /// Adds the delays of a later wait of the same call.
    pub fn extend(&mut self, again: Self) {
        for Delay { cause, time } in again.0 {
            self.add(cause, time);
        }
    }

    /// The parts, in the order in which each cause first held it.
    pub fn iter(&self) -> impl Iterator<Item = &Delay> {
        self.0.iter()
    }

    /// Whether the call did not wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The whole wait.
    #[must_use]
    pub fn total(&self) -> Duration {
        let times = self.0.iter().map(|delay| delay.time);
        times.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The limit or bucket that held it longest; `None` if none did.
    #[must_use]
    pub fn longest(&self) -> Option<&Arc<str>> {
        let limits = self.0.iter().filter_map(|delay| match &delay.cause {
            DelayCause::Limit(name) => Some((delay.time, name)),
            DelayCause::Turn | DelayCause::Others => None,
        });
        // Of several with the same time, the first.
        let longest = limits.reduce(|one, other| if other.0 > one.0 { other } else { one });
        longest.map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    fn limit(name: &str) -> DelayCause {
        DelayCause::Limit(name.into())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_cause_stands_there_once_with_all_its_time() {
        let mut delays = Delays::default();
        delays.add(limit("total"), SECOND);
        delays.add(DelayCause::Turn, 3 * SECOND);
        delays.add(limit("bucket"), 2 * SECOND);
        delays.add(DelayCause::Turn, Duration::ZERO);
        let mut again = Delays::default();
        again.add(limit("total"), SECOND);
        delays.extend(again);
        let parts: Vec<_> = delays.iter().map(|delay| delay.time.as_secs()).collect();
        assert_eq!(parts, [2, 3, 2]);
        assert_eq!(delays.total(), 7 * SECOND);
        assert_eq!(delays.longest().map(|name| &**name), Some("total"));
    }

    #[test]
    fn causes_without_end_take_no_memory_without_end_and_lose_no_time() {
        let mut delays = Delays::default();
        for number in 0..1000 {
            delays.add(limit(&format!("bucket {number}")), SECOND);
        }
        assert_eq!(delays.iter().count(), CAUSES_MAX);
        assert_eq!(delays.total(), 1000 * SECOND);
    }
}
