//! Times in a scenario.

use std::time::Duration;

use tidegate::options::kind::{DAY, MS, Mistake, ValueKind, all, duration, show_duration};
use tidegate::options::toml::string;
use tidegate::options::tree::{ConfigValue, Node};

/// A time in a scenario.
pub(super) fn time() -> ValueKind<Duration> {
    duration(Duration::ZERO..=30 * DAY)
}

/// Nanoseconds, as models of backends count.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time above zero.
pub(super) fn time_above_zero() -> ValueKind<Duration> {
    duration(MS..=30 * DAY)
}

/// A time, or the shortest and the longest of a range of times.
pub(super) fn times() -> ValueKind<(Duration, Duration)> {
    const CURE: &str = "give the shortest and the longest, such as [\"40ms\", \"60ms\"]";
    let read = time().read;
    let read = move |node: &Node| {
        let ConfigValue::List(list) = &node.value else {
            return read(node).map(|time| (time, time));
        };
        match all(list.iter().map(&read))?[..] {
            [min, max] if min <= max => Ok((min, max)),
            [_, _] => Err(Mistake::new("the first is longer than the second", CURE).into()),
            _ => Err(Mistake::new("it is not a list of two times", CURE).into()),
        }
    };
    let show = |(min, _): &_| string(&show_duration(*min));
    ValueKind::of_parts("a duration, or the shortest and the longest", read, show)
}
