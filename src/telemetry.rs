//! Logs and metrics.
//!
//! Metrics live in [`metrics`], one line per call in [`access`], everything else that the
//! process says goes through `tracing` and is set up in [`log`]. One thread writes both
//! ([`writer`]). Nothing here knows a call: what to tell comes as plain arguments.

pub mod access;
pub mod log;
pub mod metrics;
pub mod writer;

pub use access::{AccessLine, AccessLog};
pub use log::{Logs, init};
pub use metrics::Metrics;

/// What this part is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a line looks.
    pub format: Format,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,tidegate=debug`.
    pub level: Box<str>,
    /// Whether each call gets an access line.
    pub access: bool,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}
