//! Logs and metrics.
//!
//! [`calls`] counts a call when it ends, [`access`] keeps the log of calls, and [`process`] has the
//! metrics of the process. The other metrics belong to their stages. All other log lines go
//! through `tracing`, which [`log`] sets up. One thread writes both ([`writer`]), and counts what is
//! lost ([`losses`]). Calls come here
//! as plain arguments. Sampled calls become [`spans`], which `otlp` sends to a collector.

pub mod access;
pub mod calls;
pub mod journal;
pub mod log;
pub mod losses;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod process;
pub mod spans;
pub mod writer;

pub use access::AccessLog;
pub use log::{Logs, init};

use tracing_subscriber::filter::Targets;

use crate::options::kind::{choice, flag, text};
use crate::options::shown::quoted;
use crate::options::{Mistake, ValueKind, did_you_mean, options, words};

options! {
    /// What the process logs, and how.
    pub struct LogSection => LogSettings {
        /// How a log line looks. "auto" writes text on a terminal and JSON elsewhere.
        format: Format = choice().or(Format::Auto).restart();

        /// How much is logged. A filter such as "info,tidegate::forward=debug" logs more of one
        /// module.
        level: Box<str> = level().or("info".into()).first(19);

        /// Whether each call gets a line when it ends. Turn it off where the metrics are enough: at
        /// thousands of calls a second, the lines cost more than the calls.
        access: bool = flag().or(true).first(20);

        /// Whether a log in JSON also has the lines that "tidegate plan" needs to replay the calls. They
        /// make the log 1.7 times as long.
        replay: bool = flag().or(false).restart();
    }
}

words! {
    /// How a log line looks.
    pub enum Format {
        /// Text on a terminal, JSON elsewhere.
        Auto = "auto",
        /// For people.
        Text = "text",
        /// For machines.
        Json = "json",
    }
}

/// A log level, or a filter by module.
pub fn level() -> ValueKind<Box<str>> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let allowed = format!("{}, or a filter", LEVELS.join(", "));
    text(allowed, "info", |given| {
        let level_of = |part| {
            str::rsplit_once(part, '=')
                .map_or(part, |(_, level)| level)
                .trim()
        };
        let unknown = given
            .split(',')
            .map(level_of)
            .find(|it| !LEVELS.contains(it));
        let wrong = match unknown {
            _ if given.len() > 1024 => given,
            Some(word) => word,
            None if given.replace(' ', "").parse::<Targets>().is_ok() => return Ok(given.into()),
            None => given,
        };
        let cure = did_you_mean(wrong, LEVELS).unwrap_or_else(|| {
            let levels = LEVELS.join(", ");
            format!("give one of {levels}, or a filter such as \"info,tidegate=debug\"")
        });
        let cause = format!("{} is not a log level", quoted(wrong));
        Err(Mistake::new(cause, cure))
    })
}
