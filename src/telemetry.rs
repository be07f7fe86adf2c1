//! Logs and metrics.
//!
//! [`calls`] counts a call when it ends, [`access`] writes its line, and [`process`] has the
//! metrics of the process. The other metrics belong to their stages. All other log lines go
//! through `tracing`, which [`log`] sets up. One thread writes both ([`writer`]). Calls come here
//! as plain arguments.

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
    /// The format of a line.
    pub format: Format,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,tidegate=debug`.
    pub level: Box<str>,
    /// Whether each call has an access line.
    pub access: bool,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}
