//! Logs and metrics.
//!
//! What is counted of a call when it ends is in [`calls`], its line in [`access`], the metrics of
//! the process in [`process`]; the other metrics belong to their stages. Everything else that the
//! process logs goes through `tracing`, which [`log`] sets up. One thread writes both
//! ([`writer`]). Calls come here as plain arguments.

pub mod access;
pub mod calls;
pub mod log;
pub mod process;
pub mod writer;

pub use access::{AccessLine, AccessLog};
pub use log::{Logs, init};

/// The settings of this part.
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
