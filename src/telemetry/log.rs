//! The log of the process on stderr: text on a terminal, JSON elsewhere.
//!
//! The level can change at run time, so a reload restarts nothing. Nothing here writes to stderr
//! itself: events, including panics, go to the log's one writer.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::process;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use tidegate_record::digits::TimeOfDay;
use tidegate_runtime::command::{allows_colours, tell};
use tracing::Subscriber;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry};

use super::access::{AccessLog, LineFormat};
use super::journal::{self, Priority};
use super::losses::Losses;
use super::writer::{LAST_WRITE, LogWriter};
use super::{Format, LogSettings};

/// The writer of this process's log, for the last lines.
static PROCESS: OnceLock<LogWriter> = OnceLock::new();

/// The logs of a running process.
#[derive(Clone, Debug)]
pub struct Logs {
    level: reload::Handle<Targets, Registry>,
    look: LineFormat,
    writer: LogWriter,
}

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Another part of this process has set up logs.
    #[error("logs are already set up")]
    Twice(#[source] TryInitError),
    /// No writer thread can be started.
    #[error("cannot start the thread that writes the log: {0}")]
    Thread(#[source] io::Error),
}

/// Sets up the logs of the process; once.
///
/// # Errors
///
/// If logs are already set up, or no thread can be started.
pub fn init(settings: &LogSettings) -> Result<Logs, LogError> {
    let writer = match journal::is_behind_stderr() {
        true => LogWriter::start_for_journal(stderr()),
        false => LogWriter::start(stderr()),
    };
    let writer = writer.map_err(LogError::Thread)?;
    let (subscriber, logs) = build(filter(&settings.level), look(settings.format), writer);
    subscriber.try_init().map_err(LogError::Twice)?;
    // Set once: only the first `init` of a process gets here.
    let _ = PROCESS.set(logs.writer.clone());
    panic::set_hook(Box::new(panicked));
    Ok(logs)
}

/// The process's stderr with its own descriptor. `io::stderr` has a lock, which the writer would
/// hold while its reader stalls.
fn stderr() -> Box<dyn Write + Send> {
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(own) => Box::new(File::from(own)),
        Err(_) => Box::new(io::stderr()),
    }
}

/// A panic is an event like others. The standard hook would write it to stderr and wait.
fn panicked(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = message.unwrap_or("no message");
    let place = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        place,
        backtrace,
        "a task panicked, which is a bug: {message}"
    );
}

/// Ends the process at once, if it can no longer keep its promises. The service manager starts a
/// clean one.
pub fn abort(message: &str) -> ! {
    tracing::error!("aborting: {message}");
    let is_logged = tracing::enabled!(tracing::Level::ERROR);
    match PROCESS.get() {
        Some(writer) => {
            if !is_logged {
                let text = format!("tidegate: aborting: {message}\n");
                let _ = writer.event(text.as_bytes(), Priority::ERROR);
            }
            finish(writer);
        }
        // No runtime thread waits for this reader: the process is not a sidecar.
        None => tell(format_args!("aborting: {message}")),
    }
    process::abort()
}

/// Waits for the last lines, and for the count of lost ones.
fn finish(writer: &LogWriter) {
    let end = Instant::now() + LAST_WRITE;
    if writer.flush(LAST_WRITE) {
        writer.flush(end.saturating_duration_since(Instant::now()));
    }
}

fn build(
    level: Targets,
    look: LineFormat,
    writer: LogWriter,
) -> (impl Subscriber + Send + Sync, Logs) {
    let (filter, level) = reload::Layer::new(level);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer.clone());
    let lines = match look {
        LineFormat::Json => lines.json().flatten_event(true).boxed(),
        LineFormat::Text { colour } => lines.with_ansi(colour).with_timer(LogTime).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    let logs = Logs {
        level,
        look,
        writer,
    };
    (subscriber, logs)
}

/// The time of day, as in an access line.
struct LogTime;

impl FormatTime for LogTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", TimeOfDay(SystemTime::now()))
    }
}

impl Logs {
    /// Changes the level from here on.
    ///
    /// # Panics
    ///
    /// Only if the subscriber set up by [`init`] were gone, which lives as long as the process.
    pub fn set_level(&self, level: Targets) {
        let set = self.level.reload(level);
        set.expect("the subscriber lives as long as the process");
    }

    /// The log of calls, with the same writer and format as the other lines.
    #[must_use]
    pub fn access(&self) -> AccessLog {
        AccessLog::to(self.writer.clone(), self.look)
    }

    /// Whether lines are for machines.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.look == LineFormat::Json
    }

    /// The lines that were lost.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.writer.losses()
    }

    /// Waits until the last lines are written, at most a second. For the exit of the process.
    pub fn finish(&self) {
        finish(&self.writer);
    }
}

/// A level or a filter, as the config takes it.
///
/// # Panics
///
/// If it is another text.
#[must_use]
pub fn filter(level: &str) -> Targets {
    let filter = level.replace(' ', "").parse();
    filter.expect("the config takes only levels and filters")
}

fn look(format: Format) -> LineFormat {
    let terminal = io::stderr().is_terminal();
    let colour = terminal && allows_colours();
    match format {
        Format::Auto if !terminal => LineFormat::Json,
        Format::Json => LineFormat::Json,
        Format::Auto | Format::Text => LineFormat::Text { colour },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    #[test]
    fn a_format_that_is_given_wins_over_the_terminal() {
        assert_eq!(look(Format::Json), LineFormat::Json);
        assert!(matches!(look(Format::Text), LineFormat::Text { .. }));
    }

    /// The lines that are written while `say` runs.
    fn written(level: &str, look: LineFormat, say: impl FnOnce(&Logs)) -> String {
        let mut file = tempfile::tempfile().expect("a temporary file");
        let writer = LogWriter::start(file.try_clone().expect("one file")).expect("a thread");
        let (subscriber, logs) = build(filter(level), look, writer);
        tracing::subscriber::with_default(subscriber, || say(&logs));
        logs.finish();
        file.rewind().expect("a file can be rewound");
        io::read_to_string(file).expect("readable")
    }

    #[test]
    fn a_level_that_is_changed_holds_from_there_on() {
        let text = written("info", LineFormat::Json, |logs| {
            tracing::debug!("one");
            logs.set_level(filter("debug"));
            tracing::debug!("two");
            tracing::debug!("three");
            logs.set_level(filter("off"));
            tracing::error!("four");
        });
        let said: Vec<_> = text
            .lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
                line["message"].as_str().expect("a message").to_owned()
            })
            .collect();
        assert_eq!(said, ["two", "three"]);
    }

    #[test]
    fn a_line_in_json_has_its_fields_at_the_top_and_the_head_of_an_access_line() {
        let text = written("info", LineFormat::Json, |_| {
            tracing::warn!(lines = 3, "lost \"some\"\nlines");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["target"], module_path!());
        assert_eq!(line["message"], "lost \"some\"\nlines");
        assert_eq!(line["lines"], 3);
        assert!(line["timestamp"].is_string(), "{text}");
    }
}
