//! The log as a trace: everything that the schedulers were given, by process, in memory.

use std::collections::BTreeMap;
use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::HashMap;
use tidegate_limits::Tokens;
use tidegate_limits::scheduler::Outcome;

use super::line::{self, Gate, Line, Value};
use crate::tools::logs::{Log, LogError, merge};

/// Longest list of lines that the report names.
const NAMED_MAX: usize = 10;

/// A name that many calls share, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(NonZeroU32);

/// Each name once.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
}

impl Names {
    pub(super) fn of(&mut self, name: &str) -> Name {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let number = u32::try_from(self.all.len() + 1).ok();
        let number = Name(
            number
                .and_then(NonZeroU32::new)
                .expect("memory ends before"),
        );
        let name: Arc<str> = name.into();
        self.all.push(Arc::clone(&name));
        self.known.insert(name, number);
        number
    }

    pub(super) fn get(&self, name: Name) -> &Arc<str> {
        &self.all[name.0.get() as usize - 1]
    }
}

/// One call of the trace.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: u64,
    pub(super) log: u16,
    pub(super) line: u32,
    pub(super) function: Name,
    pub(super) class: Name,
    pub(super) caller: u64,
    pub(super) client: Name,
    pub(super) reason: Option<Name>,
    pub(super) limit: Option<Name>,
    pub(super) backend: u8,
    pub(super) weight: u32,
    pub(super) tokens: Tokens,
    pub(super) bucket: Option<u64>,
    pub(super) arrived: u64,
    pub(super) deadline: Option<u64>,
    pub(super) steps: Box<[Step]>,
}

impl Call {
    /// When it asked for its turn.   ns
    pub(super) fn asked(&self) -> u64 {
        self.steps.first().map_or(0, |step| step.at)
    }

    /// When it was over.   ns
    pub(super) fn over(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.at)
    }
}

/// A step of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) at: u64,
    pub(super) what: What,
}

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    Asked,
    Postponed(u64),
    Class(Name),
    Deadline(Option<u64>),
    Bucket(Option<u64>),
    Admitted,
    Sent,
    Replied,
    Requeued,
    GivenBack,
    Ended(Outcome, Option<Tokens>),
    Refused,
    Expired,
    Left,
    Evicted,
}

impl What {
    /// Whether the scheduler decided it, and did not get it.
    pub(super) const fn is_decided(self) -> bool {
        matches!(
            self,
            Self::Postponed(_) | Self::Admitted | Self::Refused | Self::Expired
        )
    }
}

/// One process.
#[derive(Default)]
pub(super) struct Process {
    pub(super) calls: Vec<Call>,
    /// Lines of the gate.
    pub(super) given: Vec<Gate>,
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
        let has_end = self.given.iter().any(|gate| gate.event == "end");
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

    /// Puts everything in order. Logs may overlap, so the same line may come twice.
    fn complete(&mut self) {
        let is_same = |one: &Gate, other: &Gate| {
            let key = |it: &Gate| {
                let of = (it.event.clone(), it.limit.clone(), it.by.clone(), it.bucket);
                (it.at_ns, of)
            };
            key(one) == key(other)
        };
        self.count_missing();
        self.given.sort_by_key(|gate| gate.at_ns);
        self.given.dedup_by(|one, other| is_same(one, other));
        // In the order in which they asked.
        self.calls
            .sort_unstable_by_key(|call| (call.asked(), call.id));
        self.calls.dedup_by_key(|call| call.id);
    }
}

/// All processes of all logs.
#[derive(Default)]
pub(super) struct Trace {
    pub(super) names: Names,
    /// By their start, in microseconds since the epoch.
    pub(super) processes: BTreeMap<u64, Process>,
    pub(super) logs: Vec<String>,
    pub(super) lost: u64,
    /// Access lines without steps.
    pub(super) old: u64,
    /// Lines that cannot be read, the first of them by name.
    pub(super) broken: u64,
    pub(super) broken_at: Vec<String>,
    /// Calls that drew from quotas.
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
        mut progress: impl FnMut(u64),
    ) -> Result<Self, LogError> {
        let mut trace = Self::default();
        let mut lines = 0_u64;
        merge(&mut logs, |at| {
            lines += 1;
            if lines.is_multiple_of(1 << 16) {
                progress(lines);
            }
            let read = at.line.map_or(Line::Broken, line::read);
            trace.take(at.log, at.number, read)
        })?;
        for process in trace.processes.values_mut() {
            process.complete();
        }
        Ok(trace)
    }

    fn take(&mut self, log: &str, number: u64, line: Line<'_>) -> Option<u64> {
        match line {
            Line::Call(call) => return self.call(log, number, &call),
            Line::Gate(gate) => {
                let process = self.processes.entry(gate.started_us).or_default();
                let at = gate.started_us.checked_add(gate.at_ns / 1000);
                process.given.push(*gate);
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
        self.with_quota += u64::from(line.quota.is_some());
        match self.parsed(log, number, id, line, steps) {
            Some(call) => {
                let process = self.processes.entry(line.started_us).or_default();
                process.calls.push(call);
            }
            None => self.is_broken(log, number),
        }
        at
    }

    fn parsed(
        &mut self,
        log: &str,
        number: u64,
        id: u64,
        line: &line::Call<'_>,
        steps: &[line::Step<'_>],
    ) -> Option<Call> {
        let log = self.log(log);
        let names = &mut self.names;
        let mut class = None;
        let mut read = Vec::with_capacity(steps.len());
        for step in steps {
            let what = match (&*step.word, &step.value) {
                ("asked", Value::Name(name)) => {
                    class = Some(names.of(name));
                    What::Asked
                }
                ("postponed", Value::Whole(aside)) => What::Postponed(*aside),
                ("class", Value::Name(name)) => What::Class(names.of(name)),
                ("deadline", Value::Whole(deadline)) => What::Deadline(Some(*deadline)),
                ("deadline", Value::None) => What::Deadline(None),
                ("bucket", Value::Whole(bucket)) => What::Bucket(Some(*bucket)),
                ("bucket", Value::None) => What::Bucket(None),
                ("served", value) => What::Ended(Outcome::Served, tokens(value)),
                ("overloaded", value) => What::Ended(Outcome::Overloaded, tokens(value)),
                ("failed", value) => What::Ended(Outcome::Failed, tokens(value)),
                ("admitted", _) => What::Admitted,
                ("sent", _) => What::Sent,
                ("replied", _) => What::Replied,
                ("requeued", _) => What::Requeued,
                ("given_back", _) => What::GivenBack,
                ("refused", _) => What::Refused,
                ("expired", _) => What::Expired,
                ("left", _) => What::Left,
                ("evicted", _) => What::Evicted,
                _ => return None,
            };
            read.push(Step { at: step.at, what });
        }
        if !read.is_sorted_by_key(|step| step.at) {
            return None;
        }
        let caller = line.caller.as_deref().unwrap_or("c0");
        Some(Call {
            id,
            log,
            line: u32::try_from(number).unwrap_or(u32::MAX),
            function: names.of(&line.function),
            class: class?,
            caller: caller.strip_prefix('c')?.parse().ok()?,
            client: names.of(line.client.as_deref().unwrap_or_default()),
            reason: line.reason.as_deref().map(|name| names.of(name)),
            limit: line.limit.as_deref().map(|name| names.of(name)),
            backend: super::setup::backend(line.backend.as_deref()?)?,
            weight: line.weight?,
            tokens: Tokens::new(line.estimate?).ok()?,
            bucket: line.bucket,
            arrived: line.arrived_ns?,
            deadline: line.deadline_ns,
            steps: read.into(),
        })
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
