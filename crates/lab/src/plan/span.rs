//! The part of a process's log that a replay can judge.
//!
//! A line is written when its call ends. So a log that was cut, by rotation or because the sidecar
//! still runs, lacks calls at both ends: those that ended before its first line, and those that
//! ended after its last. Ids are consecutive, and show which ones are missing.

use std::ops::Range;

use tidegate_limits::scheduler::Supply;

use super::given::{Given, SchedulerInput};
use super::setup::{CannotReplay, Setup, setup};
use super::steps::{LoggedStep, StepEvent};
use super::trace::{Trace, TracedCall, TracedProcess};
use tidegate::admit::POSTPONED_MAX;

/// The part that can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JudgedSpan {
    /// The line of the gate with the config at its beginning.
    pub(super) first: u32,
    /// Calls that asked before this instant are not in it.   ns
    pub(super) from: u64,
    /// Of what happened from this instant on, the log does not have everything.   ns
    pub(super) until: u64,
    /// Whether a scheduler that starts empty is in the state of the sidecar's at `from`.
    pub(super) is_exact: bool,
}

impl JudgedSpan {
    /// Of a process.
    ///
    /// # Errors
    ///
    /// If the log has no config of it.
    pub(super) fn of(trace: &Trace, process: &TracedProcess) -> Result<Self, CannotReplay> {
        let given = &process.given;
        let position =
            |is: fn(&SchedulerInput) -> bool| given.iter().position(|given| is(&given.what));
        let number = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
        let until = process.until();
        if let Some(start) = position(|event| matches!(event, SchedulerInput::Start(_))) {
            return Ok(Self {
                first: number(start),
                from: 0,
                until,
                is_exact: true,
            });
        }
        let first = position(|event| matches!(event, SchedulerInput::Checkpoint(_)));
        let first = first.ok_or(CannotReplay::NoStart)?;
        let quiet = quiet(trace, process, first)?;
        Ok(Self {
            first: number(first),
            from: quiet.unwrap_or(given[first].at),
            until,
            is_exact: quiet.is_some(),
        })
    }

    /// The calls that asked within it.
    pub(super) fn calls(&self, process: &TracedProcess) -> Range<u32> {
        let before = |at: u64| {
            process
                .calls
                .partition_point(|call| process.asked(call) < at)
        };
        let number = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        number(before(self.from))..number(before(self.until))
    }

    /// Calls that were set aside more often than their lines show.
    pub(super) fn cut(&self, process: &TracedProcess) -> usize {
        let is_cut = |call: &&TracedCall| {
            let postponed = |step: &LoggedStep| matches!(step.what, StepEvent::Postponed(_));
            process.steps(call).filter(postponed).count() >= POSTPONED_MAX
        };
        let within = self.calls(process);
        let within = &process.calls[within.start as usize..within.end as usize];
        within.iter().filter(is_cut).count()
    }
}

/// The first instant after a checkpoint at which the scheduler was as good as new: no call waited or
/// ran, and for as long as limits remember anything, none had.
fn quiet(
    trace: &Trace,
    process: &TracedProcess,
    first: usize,
) -> Result<Option<u64>, CannotReplay> {
    let given = &process.given;
    // What sidecars hold of quotas is in no checkpoint.
    if given.iter().any(|given| given.what.is_of_quotas()) {
        return Ok(None);
    }
    let mut longest = 0;
    for configured in given.iter().filter_map(|given| given.what.configured()) {
        longest = longest.max(memory(&setup(&trace.known, configured)?, given));
    }
    // Before the first line of the log, calls may have ended that are not in it.
    let line = given.first().map_or(u64::MAX, |given| given.at);
    let over = |call| process.last(call).at;
    let call = process.calls.iter().map(over).min().unwrap_or(u64::MAX);
    let mut idle_since = line.min(call);
    let checkpoint = given[first].at;
    for call in &process.calls {
        let quiet = idle_since.saturating_add(longest).max(checkpoint);
        if quiet < process.asked(call) {
            return Ok(Some(quiet));
        }
        idle_since = idle_since.max(over(call));
    }
    Ok(None)
}

/// How long a limit remembers a call.   ns
fn memory(config: &Setup, given: &[Given]) -> u64 {
    let rules = || {
        given.iter().filter_map(|given| match &given.what {
            SchedulerInput::Bucket(it) => Some(&it.1),
            _ => None,
        })
    };
    let buckets = rules().map(|rule| {
        let fill = rule.limit.fill.or(rule.limit.rate).unwrap_or(0.0);
        rule.limit.burst / fill
    });
    // Leased fills are slower than the bucket's own.
    let slowest = given.iter().filter_map(|given| match &given.what {
        SchedulerInput::Fill(it) => match it.1 {
            Supply::Capacity { capacity, then, .. } => Some(capacity.get().min(then.get())),
            Supply::Configured => None,
        },
        _ => None,
    });
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let leased = rules().map(|rule| rule.limit.burst / slowest);
    let seconds = buckets.chain(leased).fold(0.0, f64::max);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of 0 fills never, and the cast saturates"
    )]
    let buckets = (seconds * 1e9).ceil() as u64;
    buckets.max(config.memory())
}
