//! The content of the file that has what operators did.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tidegate_limits::Timestamp;

use crate::admin::{ActKind, HOLD_SECONDS_MAX, unix_milliseconds};
use crate::admit::{BackendControl, BackendControlNow, Override};

/// The version of the format.
pub(super) const SCHEMA: u32 = 1;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::app) struct StoredActs {
    pub(super) acting: Option<StoredActing>,
    #[serde(default)]
    pub(super) overrides: Vec<StoredOverride>,
    /// The latest first.
    pub(super) acts: VecDeque<StoredAct>,
}

/// A pause or a ramp that has an end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredActing {
    /// Of a pause; a ramp has none.
    pub(super) pause: Option<StoredPause>,
    pub(super) since_unix_ms: u64,
    pub(super) ends_unix_ms: u64,
    pub(super) why: String,
    pub(super) author: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredPause {
    pub(super) extend_deadlines: bool,
}

/// A limit that has a lower value for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredOverride {
    pub(super) limit: String,
    pub(super) value: u32,
    /// Files of earlier versions do not have it.
    #[serde(default)]
    pub(super) since_unix_ms: Option<u64>,
    pub(super) ends_unix_ms: u64,
    pub(super) why: String,
    pub(super) author: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredAct {
    pub(super) at_unix_ms: u64,
    pub(super) author: String,
    pub(super) act: ActKind,
    pub(super) what: String,
    pub(super) why: String,
}

impl StoredOverride {
    /// How long it is to go on at `wall`. A clock that was set back makes it no longer than it was to be.
    pub(super) fn rest(&self, wall: u64) -> Duration {
        let since = self.since_unix_ms;
        let longest = milliseconds(Duration::from_secs_f64(HOLD_SECONDS_MAX));
        let whole = since.map_or(longest, |since| self.ends_unix_ms.saturating_sub(since));
        Duration::from_millis(self.ends_unix_ms.saturating_sub(wall).min(whole))
    }
}

/// The act that is to go on after a restart. If it is known already, it keeps its beginning.
pub(super) fn stored(
    now: &BackendControlNow,
    before: Option<StoredActing>,
) -> Option<StoredActing> {
    let (pause, since, ends, why, author) = match &now.acting {
        BackendControl::Running => return None,
        BackendControl::Paused(it) => {
            let pause = StoredPause {
                extend_deadlines: it.extends,
            };
            (Some(pause), it.since, it.ends, &it.why, &it.author)
        }
        BackendControl::Ramping(it) => (None, it.since, it.ends, &it.why, &it.author),
    };
    let wall = unix_milliseconds(SystemTime::now());
    let began = wall.saturating_sub(milliseconds(now.now.since(since)));
    let before = before.filter(|it| it.pause.is_some() == pause.is_some());
    Some(StoredActing {
        pause,
        since_unix_ms: before.map_or(began, |it| it.since_unix_ms.min(began)),
        ends_unix_ms: wall.saturating_add(milliseconds(ends.since(now.now))),
        why: why.to_string(),
        author: author.to_string(),
    })
}

/// The overrides that are to go on after a restart. What is known already keeps its end by the wall clock.
pub(super) fn stored_overrides(
    in_force: Vec<Override>,
    now: Timestamp,
    before: &[StoredOverride],
) -> Vec<StoredOverride> {
    let wall = unix_milliseconds(SystemTime::now());
    let stored = in_force.into_iter().map(|it| {
        let ends_unix_ms = wall.saturating_add(milliseconds(it.ends.since(now)));
        let new = StoredOverride {
            limit: it.limit.to_string(),
            value: it.value,
            since_unix_ms: Some(wall),
            ends_unix_ms,
            why: it.why.to_string(),
            author: it.author.to_string(),
        };
        // To the second: between two readings of the clocks passes some time.
        let is_same = |old: &&StoredOverride| {
            old.limit == new.limit && old.ends_unix_ms.abs_diff(ends_unix_ms) < 1000
        };
        match before.iter().find(is_same) {
            Some(old) => StoredOverride {
                since_unix_ms: old.since_unix_ms.or(Some(wall)),
                ends_unix_ms: old.ends_unix_ms,
                ..new
            },
            None => new,
        }
    });
    stored.collect()
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn at(unix_ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix_ms)
}

/// A time in words: `300 s`.
pub(super) fn words(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}
