//! The calls that reached the backend, with the concurrency that each of them met.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::levels::Levels;
use crate::sample::{Sample, SampleEnding};

/// Equal parts of the time of a log. What is seen in one part only may be one event.
pub(crate) const PARTS: usize = 40;

/// A call at the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackendRun {
    pub(crate) function: usize,
    pub(crate) arrived: u64,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) end: RunEnding,
    /// Calls at the backend when it started, itself included.
    pub(crate) entry: u32,
    /// The most at once while it ran.
    pub(crate) most: u32,
    /// The part of the log in which it started.
    pub(crate) part: usize,
}

/// The end of a run, as a sign of the backend's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnding {
    Served,
    Failed,
    Unknown,
}

impl BackendRun {
    pub(crate) fn took(&self) -> u64 {
        self.ended - self.started
    }
}

/// The runs of a log, and what they show of the backend.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The names of the functions.
    pub(crate) functions: Vec<Arc<str>>,
    /// Calls at the backend at once, of all functions.
    pub(crate) levels: Levels,
    /// The calls whose concurrency is known, by start.
    pub(crate) all: Vec<BackendRun>,
    /// From when to when the log shows all calls.   ns
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Runs {
    /// The runs of a log. A line is written at the end of a call. So at both ends of a log, calls
    /// that were under way are missing: as much time is left out as 99.9 % of calls take at most.
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let mut names: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        let mut functions = Vec::new();
        let mut all = Vec::new();
        for sample in samples {
            let Some(started) = sample.started else {
                continue;
            };
            let function = *names.entry(&sample.function).or_insert_with(|| {
                functions.push(Arc::clone(&sample.function));
                functions.len() - 1
            });
            all.push(BackendRun {
                function,
                arrived: sample.arrived.min(started),
                started,
                ended: sample.ended.max(started),
                end: match sample.ending {
                    SampleEnding::Served => RunEnding::Served,
                    SampleEnding::Overloaded | SampleEnding::Failed => RunEnding::Failed,
                    SampleEnding::Left | SampleEnding::Refused => RunEnding::Unknown,
                },
                entry: 0,
                most: 0,
                part: 0,
            });
        }
        let levels = Levels::of(all.iter().map(|run| (run.started, run.ended)));
        let first = all.iter().map(|run| run.started).min().unwrap_or(0);
        let last = all.iter().map(|run| run.ended).max().unwrap_or(0);
        let mut took: Vec<_> = all.iter().map(BackendRun::took).collect();
        let longest = took.len().saturating_sub(took.len() / 1000 + 1);
        let edge = match took.is_empty() {
            true => 0,
            false => *took.select_nth_unstable(longest).1,
        };
        let (from, to) = (first.saturating_add(edge), last.saturating_sub(edge));
        all.retain(|run| (from..to.max(from)).contains(&run.started));
        all.sort_unstable_by_key(|run| (run.started, run.ended, run.function));
        let mut runs = Self {
            functions,
            levels,
            all,
            from,
            to: to.max(from),
        };
        let length = (runs.to - runs.from) / PARTS as u64 + 1;
        let levels = &runs.levels;
        for run in &mut runs.all {
            (run.entry, run.most) = met(levels, run);
            run.part = ((run.started - from) / length) as usize;
        }
        runs
    }

    /// How long the part of the log is that is used.   ns
    pub(crate) fn span(&self) -> u64 {
        self.to - self.from
    }

    /// The runs of one function, with its own concurrency instead of all.
    pub(crate) fn of_function(&self, function: usize) -> (Levels, Vec<BackendRun>) {
        let own = self.all.iter().filter(|run| run.function == function);
        let levels = Levels::of(own.clone().map(|run| (run.started, run.ended)));
        let runs = own.map(|run| {
            let entry = levels.at(run.started).max(1);
            let most = levels.most(run.started, run.ended).max(entry);
            BackendRun {
                entry,
                most,
                ..*run
            }
        });
        let runs = runs.collect();
        (levels, runs)
    }
}

/// The level when a call started, and the highest while it ran. A call that ended at once is in no
/// level, but it was there, beside the others.
fn met(levels: &Levels, run: &BackendRun) -> (u32, u32) {
    let entry = levels.at(run.started) + u32::from(run.took() == 0);
    let most = levels.most(run.started, run.ended);
    (entry, most.max(entry))
}

/// The highest level that at least `calls` calls met, in at least `parts` parts of the log.
pub(crate) fn seen(levels: impl Iterator<Item = (u32, usize)>, calls: usize, parts: usize) -> u32 {
    let mut levels: Vec<_> = levels.collect();
    levels.sort_unstable_by(|one, other| other.cmp(one));
    let mut met = [false; PARTS];
    let (mut count, mut parts_met) = (0, 0);
    for (level, part) in levels {
        count += 1;
        if !std::mem::replace(&mut met[part.min(PARTS - 1)], true) {
            parts_met += 1;
        }
        if count >= calls && parts_met >= parts {
            return level;
        }
    }
    0
}
