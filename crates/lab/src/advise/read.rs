//! Reads calls from logs: Tidegate's own (docs/reference/access-log.md), and those of Apache httpd, nginx and
//! HAProxy (docs/how-to/before-you-install.md).
//!
//! Which program wrote a log is found out from its first lines: the format that reads most of them.

mod foreign;
mod haproxy;
mod instant;
mod json;
mod own;
mod request;
mod shown;
mod template;
mod whole_seconds;

use tidegate_advice::sample::Sample;
use tidegate_record::{CallLine, GateEvent, GateLine, LogLine, LogStream};

pub(crate) use self::foreign::Format;
use self::foreign::{Foreign, Unfit};
use self::own::{Shown, shown};
use self::request::NamePool;
use super::sidecars;
use crate::logs::{At, Log, LogError, merge};

/// Calls that are kept, at most; each takes about 100 bytes.
pub(super) const CALLS_MAX: usize = 10_000_000;
/// Lines that decide which program wrote a log.
const FIRST_LINES: usize = 1_000;
/// Bytes that decide which program wrote a log.
const FIRST_BYTES: usize = 1 << 20;

/// Content of the logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) samples: Vec<Sample>,
    /// The last config that decided, as the log has it.
    pub(super) config: Option<String>,
    /// How much is known of the configs before the last one.
    pub(super) configs: Configs,
    /// Sidecars that ran at once.
    pub(super) sidecars: u32,
    /// Lines that were lost when the log was written.
    pub(super) lost: u64,
    /// Access lines of a version without the times of the backend.
    pub(super) old: u64,
    /// Lines that cannot be read.
    pub(super) broken: u64,
    /// Calls beyond the bound.
    pub(super) beyond: u64,
    /// Notes for a reader of the advice on logs of other programs, a line each.
    pub(crate) notes: Vec<String>,
    /// Whether the paths of another program's log are those of the z/VM SDK server.
    pub(crate) is_zvm: bool,
    /// The process and the id of each sample, because logs may overlap.
    ids: Vec<(u64, u64)>,
    names: NamePool,
    sources: Vec<LogSource>,
}

/// How many configs decided, as far as the logs show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Configs {
    /// There may have been others, before the log began.
    #[default]
    Unknown,
    /// Each process began with the last one, and kept it.
    One,
    /// Several.
    Several,
}

/// How logs of other programs are read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadOptions {
    /// The format of all logs, if it is given.
    pub(crate) format: Option<Format>,
    /// The seed of instants within whole seconds.
    pub(crate) seed: u64,
}

/// Why logs give no calls.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log lacks fields that the advice needs.
    #[error("{log}: {unfit}")]
    Unfit { log: String, unfit: Unfit },
}

/// A log and the program that wrote it.
#[derive(Debug)]
struct LogSource {
    log: String,
    writer: Writer,
}

/// The program that wrote a log.
#[derive(Debug)]
enum Writer {
    /// Not known yet: the first lines.
    Unknown {
        lines: Vec<Vec<u8>>,
        bytes: usize,
    },
    Tidegate,
    Other(Box<Foreign>),
    /// No call can be read from it.
    Unfit(Unfit),
}

impl Logs {
    /// Reads all logs. `progress` gets the number of lines from time to time.
    ///
    /// # Errors
    ///
    /// If a log cannot be read to its end, or does not have the times of its calls.
    pub(crate) fn read(
        mut logs: Vec<Log>,
        reading: &ReadOptions,
        mut progress: impl FnMut(u64),
    ) -> Result<Self, ReadError> {
        let mut read = Self::default();
        let mut lines = 0_u64;
        merge(&mut logs, |at| {
            lines += 1;
            if lines.is_multiple_of(1 << 16) {
                progress(lines);
            }
            read.line(&at, reading)
        })?;
        read.complete(reading)?;
        Ok(read)
    }

    /// Takes a line, and returns its time in microseconds since the epoch.
    fn line(&mut self, at: &At<'_>, reading: &ReadOptions) -> Option<u64> {
        let number = match self.sources.iter().position(|it| it.log == at.log) {
            Some(number) => number,
            None => {
                self.sources.push(LogSource {
                    log: at.log.to_owned(),
                    writer: Writer::Unknown {
                        lines: Vec::new(),
                        bytes: 0,
                    },
                });
                self.sources.len() - 1
            }
        };
        let Ok(line) = at.line else {
            self.broken += 1;
            return None;
        };
        match &mut self.sources[number].writer {
            Writer::Tidegate => self.own_line(line),
            Writer::Other(foreign) => {
                if !foreign.take(line, at.number, &mut self.names) {
                    self.broken += 1;
                }
                None
            }
            // The rest of it is not needed.
            Writer::Unfit(_) => Some(u64::MAX),
            Writer::Unknown { lines, bytes } => {
                let is_own = reading.format.is_none() && is_own(line);
                lines.push(line.to_vec());
                *bytes += line.len();
                if is_own || lines.len() >= FIRST_LINES || *bytes >= FIRST_BYTES {
                    return self.decide(number, reading);
                }
                None
            }
        }
    }

    /// Decides which program wrote a log, and reads the lines that were kept for that.
    fn decide(&mut self, number: usize, reading: &ReadOptions) -> Option<u64> {
        let source = &mut self.sources[number];
        let Writer::Unknown { lines, .. } = &mut source.writer else {
            return None;
        };
        let lines = std::mem::take(lines);
        let is_own = reading.format.is_none() && lines.last().is_none_or(|line| is_own(line));
        if is_own {
            source.writer = Writer::Tidegate;
            let times = lines.iter().map(|line| self.own_line(line));
            return times.fold(None, |latest, at| latest.max(at));
        }
        match Foreign::of(&lines, reading.format.as_ref()) {
            Ok(mut foreign) => {
                for (line, number) in lines.iter().zip(1..) {
                    if !foreign.take(line, number, &mut self.names) {
                        self.broken += 1;
                    }
                }
                source.writer = Writer::Other(Box::new(foreign));
                None
            }
            Err(unfit) => {
                source.writer = Writer::Unfit(unfit);
                Some(u64::MAX)
            }
        }
    }

    /// Takes a line of Tidegate, and returns its time in microseconds since the epoch.
    fn own_line(&mut self, line: &[u8]) -> Option<u64> {
        match tidegate_record::read(line) {
            LogLine::Access(call) => return self.call(&call),
            LogLine::Gate(gate) => {
                let at = gate.started_us?.checked_add(gate.at_ns? / 1000);
                self.decides(&gate);
                return at;
            }
            LogLine::Lost(LogStream::Access, lines) => self.lost += lines,
            LogLine::Broken(_) => self.broken += 1,
            LogLine::Replay(_) | LogLine::Lost(..) | LogLine::Text | LogLine::Other => {}
        }
        None
    }

    /// Notes the config of a line of the gate.
    fn decides(&mut self, gate: &GateLine<'_>) {
        let Some(config) = gate.config.as_deref() else {
            return;
        };
        let is_another = self.config.as_ref().is_some_and(|last| *last != config);
        let is_start = gate.event.as_deref() == Some(GateEvent::Start.word());
        self.configs = match self.configs {
            _ if is_another => Configs::Several,
            Configs::Unknown if self.config.is_none() && is_start => Configs::One,
            before => before,
        };
        self.config = Some(config.to_owned());
    }

    fn call(&mut self, call: &CallLine<'_>) -> Option<u64> {
        let (Some(id), Some(started_us), Some(function)) =
            (call.id, call.started_us, &call.function)
        else {
            self.broken += 1;
            return None;
        };
        let times = match shown(call) {
            Shown::Times(times) => times,
            Shown::OfNoLimit => return call.ended_us(),
            Shown::Old => {
                self.old += 1;
                return None;
            }
            Shown::Broken => {
                self.broken += 1;
                return None;
            }
        };
        let at = started_us.checked_add(times.ended / 1000);
        if self.samples.len() >= CALLS_MAX {
            self.beyond += 1;
            return at;
        }
        let epoch = started_us.saturating_mul(1000);
        let caller = call.caller.as_deref();
        let sample = Sample {
            function: self.names.function(function),
            caller: caller.and_then(|caller| self.names.caller(caller)),
            arrived: epoch.saturating_add(times.arrived),
            started: times.started.map(|at| epoch.saturating_add(at)),
            ended: epoch.saturating_add(times.ended),
            ending: times.ending,
        };
        self.ids.push((started_us, id));
        self.samples.push(sample);
        at
    }

    /// Leaves each call once, and adds the calls of other programs' logs.
    fn complete(&mut self, reading: &ReadOptions) -> Result<(), ReadError> {
        for number in 0..self.sources.len() {
            if matches!(self.sources[number].writer, Writer::Unknown { .. }) {
                self.decide(number, reading);
            }
        }
        let processes = self.ids.iter().map(|(process, _)| *process);
        let calls = processes.zip(&self.samples);
        let calls = calls.map(|(process, call)| (process, call.arrived, call.ended));
        self.sidecars = sidecars::at_once(calls);
        let mut seen = foldhash::HashSet::default();
        let mut ids = std::mem::take(&mut self.ids).into_iter();
        self.samples
            .retain(|_| ids.next().is_some_and(|id| seen.insert(id)));
        for LogSource { log, writer } in std::mem::take(&mut self.sources) {
            match writer {
                Writer::Unknown { .. } | Writer::Tidegate => {}
                Writer::Unfit(unfit) => return Err(ReadError::Unfit { log, unfit }),
                Writer::Other(foreign) => {
                    self.is_zvm |= foreign.is_zvm();
                    let read = foreign.complete(reading.seed);
                    let read = read.map_err(|unfit| ReadError::Unfit {
                        log: log.clone(),
                        unfit,
                    })?;
                    let room = CALLS_MAX.saturating_sub(self.samples.len());
                    self.beyond += read.samples.len().saturating_sub(room) as u64 + read.beyond;
                    self.samples.extend(read.samples.into_iter().take(room));
                    self.notes
                        .extend(read.notes.iter().map(|note| format!("{log}: {note}")));
                }
            }
        }
        Ok(())
    }
}

/// Whether a line is one of Tidegate's log.
fn is_own(line: &[u8]) -> bool {
    match tidegate_record::read(line) {
        LogLine::Access(_) | LogLine::Replay(_) | LogLine::Gate(_) | LogLine::Lost(..) => true,
        LogLine::Text | LogLine::Other | LogLine::Broken(_) => {
            memchr::memmem::find(line, br#""target":"tidegate"#).is_some()
        }
    }
}
