//! What the process says on stderr: text on a terminal, JSON elsewhere.
//!
//! The level can be changed while it runs, so a reload need not restart anything.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::SystemTime;

use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use tracing_subscriber::{Layer, Registry};

use super::access::{AccessLog, Look, TimeOfDay};
use super::{Format, Settings};

/// The logs of a running process.
#[derive(Debug)]
pub struct Logs {
    level: reload::Handle<Targets, Registry>,
    look: Look,
}

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A word stands where a level should.
    #[error("{given:?} is no level; error, warn, info, debug, trace and off are")]
    Level {
        /// The word.
        given: Box<str>,
    },
    /// The level is no filter.
    #[error("{given:?} is no level and no filter such as \"info,tidegate=debug\"")]
    Filter {
        /// What was given.
        given: Box<str>,
        /// What is wrong with it.
        #[source]
        cause: ParseError,
    },
    /// Somebody else in this process has set up logs.
    #[error("logs are already set up")]
    Twice(#[source] TryInitError),
}

/// Sets up the logs of the process; once.
///
/// # Errors
///
/// If the level is no filter, or logs are already set up.
pub fn init(settings: &Settings) -> Result<Logs, LogError> {
    let (subscriber, logs) = build(&settings.level, look(settings.format), io::stderr)?;
    subscriber.try_init().map_err(LogError::Twice)?;
    Ok(logs)
}

fn build<W>(
    level: &str,
    look: Look,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, Logs), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, level) = reload::Layer::new(filter(level)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match look {
        Look::Json => lines.json().flatten_event(true).boxed(),
        Look::Text { colour } => lines.with_ansi(colour).with_timer(Now).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    Ok((subscriber, Logs { level, look }))
}

/// The time of day, as in an access line.
struct Now;

impl FormatTime for Now {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", TimeOfDay(SystemTime::now()))
    }
}

/// Whether a level would be taken, for the config's check.
///
/// # Errors
///
/// If it is no filter.
pub fn check_level(level: &str) -> Result<(), LogError> {
    filter(level).map(drop)
}

impl Logs {
    /// Changes the level from here on.
    ///
    /// # Errors
    ///
    /// If it is no filter; then the old one stays.
    ///
    /// # Panics
    ///
    /// Only if the subscriber set up by [`init`] were gone, which lives as long as the process.
    pub fn set_level(&self, level: &str) -> Result<(), LogError> {
        self.level
            .reload(filter(level)?)
            .expect("the subscriber lives as long as the process");
        Ok(())
    }

    /// Opens the log of calls, on stderr, looking like the other lines.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn access(&self) -> io::Result<AccessLog> {
        AccessLog::start(io::stderr(), self.look)
    }
}

fn filter(level: &str) -> Result<Targets, LogError> {
    for part in level.split(',').map(str::trim) {
        // A lone word that is no level would be taken for a module to trace: a misspelt
        // level would then silence everything else. An empty one would mean "error".
        let is_word = !part.contains(['=', '[']);
        if is_word && (part.is_empty() || part.parse::<LevelFilter>().is_err()) {
            return Err(LogError::Level { given: part.into() });
        }
    }
    level
        .replace(' ', "")
        .parse()
        .map_err(|cause| LogError::Filter {
            given: level.into(),
            cause,
        })
}

fn look(format: Format) -> Look {
    let terminal = io::stderr().is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match format {
        Format::Auto if !terminal => Look::Json,
        Format::Json => Look::Json,
        Format::Auto | Format::Text => Look::Text { colour },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_nonsense_is_named() {
        for good in [
            "info",
            "warn",
            "info,tidegate=debug",
            " info, h2=off ",
            "off",
        ] {
            check_level(good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        }
        for bad in ["", "loud", "tidegate=verbose", "info;x=debug=1"] {
            let error = check_level(bad).expect_err(bad);
            assert!(error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn a_format_that_is_given_wins_over_the_terminal() {
        assert_eq!(look(Format::Json), Look::Json);
        assert!(matches!(look(Format::Text), Look::Text { .. }));
    }

    /// What is written while `say` runs.
    fn written(level: &str, look: Look, say: impl FnOnce(&Logs)) -> String {
        let file = Arc::new(tempfile::tempfile().expect("a temporary file"));
        let (subscriber, logs) = build(level, look, Arc::clone(&file)).expect("a good level");
        tracing::subscriber::with_default(subscriber, || say(&logs));
        (&*file).rewind().expect("a file can be rewound");
        io::read_to_string(&*file).expect("readable")
    }

    #[test]
    fn a_level_that_is_changed_holds_from_there_on_and_a_bad_one_changes_nothing() {
        let text = written("info", Look::Json, |logs| {
            tracing::debug!("one");
            logs.set_level("debug").expect("a good level");
            tracing::debug!("two");
            logs.set_level("loud").expect_err("no level");
            tracing::debug!("three");
            logs.set_level("off").expect("a good level");
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
        let text = written("info", Look::Json, |_| {
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
