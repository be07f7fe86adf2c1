//! The log as a trace: everything that the schedulers were given, by process, in memory.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use foldhash::HashMap;
use smallvec::SmallVec;
use tidegate_limits::Tokens;

use super::given::{Event, Given};
use super::line::{self, Line, Value};
use super::names::{Name, Names};
use super::setup::Known;
use super::steps::{Packed, Step, Steps, What};
use crate::logs::{Log, LogError, merge};
use tidegate::call::steps::Word;

/// Longest list of lines that the report names.
const NAMED_MAX: usize = 10;

/// What many calls have in common. Each is kept once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) function: Name,
    pub(super) class: Name,
    pub(super) caller: u64,
    pub(super) client: Name,
    pub(super) listener: Name,
    pub(super) user: Option<Name>,
    pub(super) dialect: Name,
    pub(super) backend: u8,
    pub(super) weight: u32,
    /// The bits of its estimated cost.
    tokens: u64,
    pub(super) bucket: Option<u64>,
    /// The label of its rate limit.
    pub(super) rate_limit: Option<Name>,
    /// The quotas that it draws from, and their keys.
    pub(super) draws: Option<Arc<[(Name, Name)]>>,
}

impl Kind {
    /// What it costs by the estimate.
    pub(super) fn tokens(&self) -> Tokens {
        Tokens::new(f64::from_bits(self.tokens)).expect("it was checked")
    }
}

/// One call of the trace. There are millions of them in memory: 48 bytes for each, and 8 or 16 for
/// each of its steps (`a_call_in_memory_is_small`).
#[derive(Debug)]
pub(super) struct Call {
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

impl Call {
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

/// One process.
#[derive(Default)]
pub(super) struct Process {
    pub(super) calls: Vec<Call>,
    steps: Packed,
    /// Lines of the gate.
    pub(super) given: Vec<Given>,
    /// Ids of all calls, also of those that met no limits, and when each arrived. Until the log is
    /// complete.
    ids: Vec<(u64, u64)>,
    /// Calls between the first and the last one of the log that have no line.
    pub(super) missing: u64,
    /// The arrival of the call before the first of these, or of the last call.   ns
    known_until: u64,
}

impl Process {
    /// Of what happened from this instant on, the log does not have everything.   ns
    pub(super) fn until(&self) -> u64 {
        let has_end = self.given.iter().any(|given| given.what == Event::End);
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
    pub(super) fn steps(&self, call: &Call) -> impl Iterator<Item = Step> + '_ {
        self.steps.of(call.steps())
    }

    /// A step of a call, and where the next one is.
    pub(super) fn step(&self, call: u32, word: u32) -> (Step, Option<u32>) {
        self.steps.at(self.calls[call as usize].steps(), word)
    }

    /// When a call asked for its turn.   ns
    pub(super) fn asked(&self, call: &Call) -> u64 {
        self.steps.at(call.steps(), call.steps().first).0.at
    }

    /// The last step of a call.
    pub(super) fn last(&self, call: &Call) -> Step {
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
    pub(super) names: Names,
    kinds: Vec<Kind>,
    kind_numbers: HashMap<Kind, u32>,
    /// Configs that are given beside the logs.
    pub(super) known: Known,
    /// By their start, in microseconds since the epoch.
    pub(super) processes: BTreeMap<u64, Process>,
    pub(super) logs: Vec<String>,
    pub(super) lost: u64,
    /// Access lines without steps.
    pub(super) old: u64,
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
        known: Known,
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
            let read = at.line.map_or(Line::Broken, line::read);
            trace.take(at.log, at.number, read)
        })?;
        trace.kind_numbers = HashMap::default();
        for process in trace.processes.values_mut() {
            process.complete();
        }
        Ok(trace)
    }

    fn take(&mut self, log: &str, number: u64, line: Line<'_>) -> Option<u64> {
        match line {
            Line::Call(call) => return self.call(log, number, &call),
            Line::Gate(gate) => {
                let at = gate.started_us.checked_add(gate.at_ns / 1000);
                match Given::of(&gate, &mut self.names) {
                    Some(given) => {
                        let process = self.processes.entry(gate.started_us).or_default();
                        process.given.push(given);
                    }
                    None => self.is_broken(log, number),
                }
                return at;
            }
            Line::Lost(lines) => self.lost += lines,
            Line::Old => self.old += 1,
            Line::Broken => self.is_broken(log, number),
            Line::Other => {}
        }
        None
    }

    fn is_broken(&mut self, log: &str, number: u64) {
        self.broken += 1;
        if self.broken_at.len() < NAMED_MAX {
            self.broken_at.push(format!("{log}:{number}"));
        }
    }

    fn call(&mut self, log: &str, number: u64, line: &line::Call<'_>) -> Option<u64> {
        let steps = line.steps.as_deref().unwrap_or_default();
        let last = steps.last().map_or(0, |step| step.at);
        let at = line.started_us.checked_add(last / 1000);
        let Some(id) = u64::from_str_radix(&line.id, 16).ok() else {
            self.is_broken(log, number);
            return at;
        };
        let ids = &mut self.processes.entry(line.started_us).or_default().ids;
        ids.push((id, line.arrived_ns.unwrap_or(0)));
        if !line.limited || steps.is_empty() {
            return at;
        }
        self.with_quota += u64::from(line.quota && line.draws.is_none());
        if self.parsed(log, number, id, line, steps).is_none() {
            self.is_broken(log, number);
        }
        at
    }

    /// Adds a call; `None` if its line cannot be read.
    fn parsed(
        &mut self,
        log: &str,
        number: u64,
        id: u64,
        line: &line::Call<'_>,
        steps: &[line::Step<'_>],
    ) -> Option<()> {
        let log = self.log(log);
        let names = &mut self.names;
        let mut class = None;
        let mut read: SmallVec<[Step; 8]> = SmallVec::new();
        for step in steps {
            if let (Word::Asked, Value::Name(name)) = (Word::of(&step.word)?, &step.value) {
                class = Some(names.of(name));
            }
            let what = what_happened(step, names)?;
            read.push(Step { at: step.at, what });
        }
        let caller = line.caller.as_deref().unwrap_or("c0");
        let draws = line.draws.as_ref().map(|draws| {
            let draws = draws.iter();
            draws
                .map(|(quota, key)| (names.of(quota), names.of(key)))
                .collect()
        });
        let kind = Kind {
            function: names.of(&line.function),
            class: class?,
            caller: caller.strip_prefix('c')?.parse().ok()?,
            client: names.of(line.client.as_deref().unwrap_or_default()),
            listener: names.of(line.listener.as_deref().unwrap_or_default()),
            user: line.user.as_deref().map(|user| names.of(user)),
            dialect: names.of(line.dialect.as_deref().unwrap_or_default()),
            backend: super::setup::backend(line.backend.as_deref()?)?,
            weight: line.weight?,
            tokens: Tokens::new(line.estimate?).ok()?.get().to_bits(),
            bucket: line.bucket,
            rate_limit: line.rate_limit.as_deref().map(|label| names.of(label)),
            draws,
        };
        let (reason, limit) = (line.reason.as_deref(), line.limit.as_deref());
        let (reason, limit) = (reason.map(|it| names.of(it)), limit.map(|it| names.of(it)));
        let kind = self.kind_of(kind);
        let process = self.processes.entry(line.started_us).or_default();
        let steps = process.steps.push(&read)?;
        let call = Call {
            id,
            arrived: line.arrived_ns?,
            deadline: line.deadline_ns.unwrap_or(u64::MAX),
            line: u32::try_from(number).unwrap_or(u32::MAX),
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
    fn kind_of(&mut self, kind: Kind) -> u32 {
        if let Some(known) = self.kind_numbers.get(&kind) {
            return *known;
        }
        let number = u32::try_from(self.kinds.len()).expect("memory ends before");
        self.kinds.push(kind.clone());
        self.kind_numbers.insert(kind, number);
        number
    }

    /// All kinds, by their numbers.
    pub(super) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// What a call has in common with others.
    pub(super) fn kind(&self, call: &Call) -> &Kind {
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
    pub(super) fn place(&self, call: &Call) -> String {
        let log = self.logs.get(usize::from(call.log));
        let log = log.map_or("?", String::as_str);
        format!("{log}:{}", call.line)
    }
}

/// The event of a step; `None` if its value does not fit its word.
fn what_happened(step: &line::Step<'_>, names: &mut Names) -> Option<What> {
    Some(match (Word::of(&step.word)?, &step.value) {
        (Word::Asked, Value::Name(_)) => What::Asked,
        (Word::Postponed, Value::Whole(aside)) => What::Postponed(*aside),
        (Word::Class, Value::Name(name)) => What::Class(names.of(name)),
        (Word::Deadline, Value::Whole(deadline)) => What::Deadline(Some(*deadline)),
        (Word::Deadline, Value::None) => What::Deadline(None),
        (Word::Bucket, Value::Whole(bucket)) => What::Bucket(Some(*bucket)),
        (Word::Bucket, Value::None) => What::Bucket(None),
        (Word::Asked | Word::Postponed | Word::Class, _) => return None,
        (Word::Deadline | Word::Bucket, _) => return None,
        (Word::Admitted, _) => What::Admitted,
        (Word::Sent, _) => What::Sent,
        (Word::Replied, _) => What::Replied,
        (Word::Requeued, _) => What::Requeued,
        (Word::GivenBack, _) => What::GivenBack,
        (Word::Refused, _) => What::Refused,
        (Word::Expired, _) => What::Expired,
        (Word::Left, _) => What::Left,
        (Word::Evicted, _) => What::Evicted,
        (ended @ (Word::Served | Word::Overloaded | Word::Failed), value) => {
            What::Ended(ended.outcome()?, tokens(value))
        }
    })
}

fn tokens(value: &Value<'_>) -> Option<Tokens> {
    match value {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a cost has fewer than 2^53 tokens"
        )]
        Value::Whole(tokens) => Tokens::new(*tokens as f64).ok(),
        Value::Tokens(tokens) => Tokens::new(*tokens).ok(),
        Value::Name(_) | Value::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_memory_is_small() {
        assert!(size_of::<Call>() <= 48, "{} bytes", size_of::<Call>());
        assert!(size_of::<Given>() <= 40, "{} bytes", size_of::<Given>());
    }
}
