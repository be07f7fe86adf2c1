//! The log as a trace: everything that the schedulers were given, by process, in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use foldhash::HashMap;
use smallvec::SmallVec;
use tidegate_limits::Tokens;
use tidegate_record::step::read_steps;
use tidegate_record::{CallLine, GateLine, LogLine, LogStream, StepKind};

use super::given::{Given, SchedulerInput};
use super::names::{Name, NameTable};
use super::setup::KnownConfigs;
use super::steps::{LoggedStep, Packed, StepEvent, Steps};
use crate::logs::{At, Log, LogError, merge};

/// Longest list of lines that the report names.
const NAMED_MAX: usize = 10;

/// Fields that many calls have in common. Each combination is kept once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallProfile {
    pub(super) function: Name,
    pub(super) class: Name,
    pub(super) caller: u64,
    pub(super) client: Name,
    pub(super) listener: Name,
    pub(super) user: Option<Name>,
    pub(super) dialect: Name,
    pub(super) backend: u8,
    pub(super) weight: u32,
    pub(super) cost: u32,
    /// The bits of its estimated cost.
    tokens: u64,
    pub(super) bucket: Option<u64>,
    /// The label of its rate limit.
    pub(super) rate_limit: Option<Name>,
    /// The quotas that it draws from, and their keys.
    pub(super) draws: Option<Arc<[(Name, Name)]>>,
    /// Whether its final cost corrects its quotas and its turns too.
    pub(super) is_settled: bool,
}

impl CallProfile {
    /// The estimated cost of a call of this kind.
    pub(super) fn tokens(&self) -> Tokens {
        Tokens::new(f64::from_bits(self.tokens)).expect("it was checked")
    }
}

/// A call of the trace. There are millions of them in memory: 48 bytes for each, and 8 or 16 for
/// each of its steps (`a_call_in_memory_is_small`).
#[derive(Debug)]
pub(super) struct TracedCall {
    pub(super) id: u64,
    pub(super) arrived: u64,
    /// `u64::MAX` if it has none.
    deadline: u64,
    pub(super) line: u32,
    /// The number of its kind.
    pub(super) kind: u32,
    pub(super) reason: Option<Name>,
    pub(super) limit: Option<Name>,
    /// Where its steps are: [`Steps`], without its padding.
    first_step: u32,
    step_words: u16,
    pub(super) log: u16,
}

impl TracedCall {
    /// Where its steps are.
    pub(super) const fn steps(&self) -> Steps {
        Steps {
            first: self.first_step,
            words: self.step_words,
        }
    }

    /// The last instant at which it might leave the queue, when it asked.   ns
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.deadline < u64::MAX).then_some(self.deadline)
    }
}

/// A process of the trace: its calls and their steps.
#[derive(Default)]
pub(super) struct TracedProcess {
    pub(super) calls: Vec<TracedCall>,
    steps: Packed,
    /// Lines of the gate.
    pub(super) given: Vec<Given>,
    /// Ids of all calls, also of those that met no limits, and when each arrived. Until the log is
    /// complete.
    ids: Vec<(u64, u64)>,
    /// Calls between the first and the last one of the log that have no line.
    pub(super) missing: u64,
    /// Access lines without steps.
    without_replay: u64,
    /// Whether its access lines have steps, as those of older versions.
    has_steps_in_access_lines: bool,
    /// The arrival of the call before the first of these, or of the last call.   ns
    known_until: u64,
}

impl TracedProcess {
    /// Of what happened from this instant on, the log does not have everything.   ns
    pub(super) fn until(&self) -> u64 {
        let has_end = self
            .given
            .iter()
            .any(|given| given.what == SchedulerInput::End);
        if has_end { u64::MAX } else { self.known_until }
    }

    /// Looks for calls without a line.
    fn count_missing(&mut self) {
        let mut ids = mem::take(&mut self.ids);
        ids.sort_unstable();
        ids.dedup_by_key(|(id, _)| *id);
        let (first, last) = match (ids.first(), ids.last()) {
            (Some(first), Some(last)) => (*first, *last),
            _ => return,
        };
        let all = (last.0 - first.0).saturating_add(1);
        self.missing = all.saturating_sub(ids.len() as u64);
        let mut pairs = ids.windows(2);
        let gap = pairs.find(|pair| pair[1].0 - pair[0].0 > 1);
        self.known_until = gap.map_or(last, |pair| pair[0]).1;
    }

    /// The steps of a call, in order.
    pub(super) fn steps(&self, call: &TracedCall) -> impl Iterator<Item = LoggedStep> + '_ {
        self.steps.of(call.steps())
    }

    /// A step of a call, and where the next one is.
    pub(super) fn step(&self, call: u32, word: u32) -> (LoggedStep, Option<u32>) {
        self.steps.at(self.calls[call as usize].steps(), word)
    }

    /// When a call asked for its turn.   ns
    pub(super) fn asked(&self, call: &TracedCall) -> u64 {
        self.steps.at(call.steps(), call.steps().first).0.at
    }

    /// The last step of a call.
    pub(super) fn last(&self, call: &TracedCall) -> LoggedStep {
        self.steps(call).last().expect("a call has a step")
    }

    /// Puts everything in order. Logs may overlap, so the same line may come twice.
    fn complete(&mut self) {
        self.count_missing();
        self.given.sort_by_key(|given| given.at);
        let mut of_instant: Vec<Given> = Vec::new();
        let mut all = Vec::with_capacity(self.given.len());
        for given in mem::take(&mut self.given) {
            if of_instant.first().is_some_and(|first| first.at != given.at) {
                all.append(&mut of_instant);
            }
            if !of_instant.contains(&given) {
                of_instant.push(given);
            }
        }
        all.append(&mut of_instant);
        self.given = all;
        // In the order in which they asked.
        let (calls, steps) = (&mut self.calls, &self.steps);
        calls.sort_unstable_by_key(|call| {
            (steps.at(call.steps(), call.steps().first).0.at, call.id)
        });
        calls.dedup_by_key(|call| call.id);
    }
}

/// All processes of all logs.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) names: NameTable,
    kinds: Vec<CallProfile>,
    kind_numbers: HashMap<CallProfile, u32>,
    /// Configs that are given beside the logs.
    pub(super) known: KnownConfigs,
    /// By their start, in microseconds since the epoch.
    pub(super) processes: BTreeMap<u64, TracedProcess>,
    pub(super) logs: Vec<String>,
    pub(super) lost: u64,
    /// Access lines that were lost.
    lost_access: u64,
    /// Calls of processes that wrote no line for a replay.
    pub(super) without_replay: u64,
    /// Lines that cannot be read, the first of them by name.
    pub(super) broken: u64,
    pub(super) broken_at: Vec<String>,
    /// Calls that drew from quotas, of a version that does not write from which.
    pub(super) with_quota: u64,
}

impl Trace {
    /// Reads all logs. `progress` gets the number of lines from time to time.
    ///
    /// # Errors
    ///
    /// If a log cannot be read to its end.
    pub(super) fn read(
        mut logs: Vec<Log>,
        known: KnownConfigs,
        mut progress: impl FnMut(u64),
    ) -> Result<Self, LogError> {
        let mut trace = Self {
            known,
            ..Self::default()
        };
        let mut lines = 0_u64;
        merge(&mut logs, |at| {
            lines += 1;
            if lines.is_multiple_of(1 << 16) {
                progress(lines);
            }
            trace.take(&at)
        })?;
        trace.kind_numbers = HashMap::default();
        trace.forget_processes_without_replay();
        for process in trace.processes.values_mut() {
            process.complete();
        }
        Ok(trace)
    }

    fn take(&mut self, at: &At<'_>) -> Option<u64> {
        match at.read() {
            LogLine::Access(call) | LogLine::Replay(call) => return self.call(at, &call),
            LogLine::Gate(gate) => return self.gate(at, &gate),
            LogLine::Lost(LogStream::Replay, lines) => self.lost += lines,
            // Lines of older versions are for a replay, too.
            LogLine::Lost(LogStream::Access, lines) => self.lost_access += lines,
            LogLine::Broken(_) => self.is_broken(at),
            LogLine::Text | LogLine::Other => {}
        }
        None
    }

    fn gate(&mut self, at: &At<'_>, gate: &GateLine<'_>) -> Option<u64> {
        let (Some(started), Some(at_ns)) = (gate.started_us, gate.at_ns) else {
            self.is_broken(at);
            return None;
        };
        match Given::of(gate, &mut self.names) {
            Some(given) => {
                let process = self.processes.entry(started).or_default();
                process.given.push(given);
            }
            None => self.is_broken(at),
        }
        started.checked_add(at_ns / 1000)
    }

    /// Processes whose calls have no line for a replay: `log.replay` was off.
    fn forget_processes_without_replay(&mut self) {
        let is_old = self
            .processes
            .values()
            .any(|process| process.has_steps_in_access_lines);
        if is_old {
            self.lost += self.lost_access;
        }
        let without = &mut self.without_replay;
        self.processes.retain(|_, process| {
            let has_replay = process.without_replay == 0 || !process.ids.is_empty();
            if !has_replay {
                *without += process.without_replay;
            }
            has_replay
        });
    }

    fn is_broken(&mut self, at: &At<'_>) {
        self.broken += 1;
        if self.broken_at.len() < NAMED_MAX {
            self.broken_at.push(format!("{}:{}", at.log, at.number));
        }
    }

    fn call(&mut self, at: &At<'_>, line: &CallLine<'_>) -> Option<u64> {
        let (Some(id), Some(started)) = (line.id, line.started_us) else {
            self.is_broken(at);
            return None;
        };
        let process = self.processes.entry(started).or_default();
        let is_access = line.target.as_deref() == Some("access");
        if line.steps.is_none() && is_access {
            process.without_replay += 1;
            return line.ended_us();
        }
        process.has_steps_in_access_lines |= is_access;
        process.ids.push((id, line.arrived_ns.unwrap_or(0)));
        // A call that did not ask has none.
        let raw = line.steps?;
        let Some(steps) = read_steps(raw) else {
            self.is_broken(at);
            return None;
        };
        let last = steps.last().map_or(0, |step| step.at);
        if line.limited != Some(false) && !steps.is_empty() {
            self.with_quota += u64::from(line.quota.is_some() && line.draws.is_none());
            let names = &mut self.names;
            let named = steps.into_iter().map(|step| LoggedStep {
                at: step.at,
                what: named(names, step.what),
            });
            let steps: SmallVec<[LoggedStep; 8]> = named.collect();
            if self.parsed(at, id, started, line, &steps).is_none() {
                self.is_broken(at);
            }
        }
        started.checked_add(last / 1000)
    }

    /// Adds a call; `None` if its line cannot be read.
    fn parsed(
        &mut self,
        at: &At<'_>,
        id: u64,
        started: u64,
        line: &CallLine<'_>,
        steps: &[LoggedStep],
    ) -> Option<()> {
        let log = self.log(at.log);
        let names = &mut self.names;
        let class = steps.iter().find_map(|step| match step.what {
            StepEvent::Asked(class) => Some(class),
            _ => None,
        });
        let caller = line.caller.as_deref().unwrap_or("c0");
        let draws = line.draws.as_ref().map(|draws| {
            let draws = draws.iter();
            draws
                .map(|(quota, key)| (names.of(quota), names.of(key)))
                .collect()
        });
        let kind = CallProfile {
            function: names.of(line.function.as_deref()?),
            class: class?,
            caller: caller.strip_prefix('c')?.parse().ok()?,
            client: names.of(line.client.as_deref().unwrap_or_default()),
            listener: names.of(line.listener.as_deref().unwrap_or_default()),
            user: line.user.as_deref().map(|user| names.of(user)),
            dialect: names.of(line.dialect.as_deref().unwrap_or_default()),
            backend: super::setup::backend(line.backend.as_deref()?)?,
            weight: u32::try_from(line.weight?).ok()?,
            cost: u32::try_from(line.cost.unwrap_or(1)).ok()?,
            tokens: Tokens::new(line.estimate?).ok()?.get().to_bits(),
            bucket: line.bucket,
            rate_limit: line.rate_limit.as_deref().map(|label| names.of(label)),
            draws,
            is_settled: line.settles == Some(true),
        };
        let (reason, limit) = (line.reason.as_deref(), line.limit.as_deref());
        let (reason, limit) = (reason.map(|it| names.of(it)), limit.map(|it| names.of(it)));
        let kind = self.kind_of(kind);
        let process = self.processes.entry(started).or_default();
        let steps = process.steps.push(steps)?;
        let call = TracedCall {
            id,
            arrived: line.arrived_ns?,
            deadline: line.deadline_ns.unwrap_or(u64::MAX),
            line: u32::try_from(at.number).unwrap_or(u32::MAX),
            kind,
            reason,
            limit,
            first_step: steps.first,
            step_words: steps.words,
            log,
        };
        process.calls.push(call);
        Some(())
    }

    /// The number of a kind.
    fn kind_of(&mut self, kind: CallProfile) -> u32 {
        if let Some(known) = self.kind_numbers.get(&kind) {
            return *known;
        }
        let number = u32::try_from(self.kinds.len()).expect("memory ends before");
        self.kinds.push(kind.clone());
        self.kind_numbers.insert(kind, number);
        number
    }

    /// All kinds, by their numbers.
    pub(super) fn kinds(&self) -> &[CallProfile] {
        &self.kinds
    }

    /// The fields that a call has in common with others.
    pub(super) fn kind(&self, call: &TracedCall) -> &CallProfile {
        &self.kinds[call.kind as usize]
    }

    /// The number of a log.
    fn log(&mut self, name: &str) -> u16 {
        let known = self.logs.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.logs.push(name.to_owned());
            self.logs.len() - 1
        });
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Where a call is in the logs.
    pub(super) fn place(&self, call: &TracedCall) -> String {
        let log = self.logs.get(usize::from(call.log));
        let log = log.map_or("?", String::as_str);
        format!("{log}:{}", call.line)
    }
}

/// The event, with the number of the name of its class.
fn named(names: &mut NameTable, what: StepKind<Cow<'_, str>>) -> StepEvent {
    match what {
        StepKind::Asked(class) => StepEvent::Asked(names.of(&class)),
        StepKind::Class(class) => StepEvent::Class(names.of(&class)),
        StepKind::Postponed(aside) => StepEvent::Postponed(aside),
        StepKind::Deadline(deadline) => StepEvent::Deadline(deadline),
        StepKind::Bucket(bucket) => StepEvent::Bucket(bucket),
        StepKind::Admitted => StepEvent::Admitted,
        StepKind::Requeued => StepEvent::Requeued,
        StepKind::Sent => StepEvent::Sent,
        StepKind::Replied => StepEvent::Replied,
        StepKind::Ended(outcome, measured) => StepEvent::Ended(outcome, measured),
        StepKind::GivenBack => StepEvent::GivenBack,
        StepKind::Refused => StepEvent::Refused,
        StepKind::Expired => StepEvent::Expired,
        StepKind::Left => StepEvent::Left,
        StepKind::Evicted => StepEvent::Evicted,
        StepKind::Suspended(until) => StepEvent::Suspended(until),
        StepKind::Resumed(at) => StepEvent::Resumed(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_memory_is_small() {
        assert!(
            size_of::<TracedCall>() <= 48,
            "{} bytes",
            size_of::<TracedCall>()
        );
        assert!(size_of::<Given>() <= 40, "{} bytes", size_of::<Given>());
    }
}
