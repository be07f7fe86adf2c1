//! Logs and metrics.

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
