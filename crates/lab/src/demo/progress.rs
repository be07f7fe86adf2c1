//! The progress of a storm, on stderr: on a terminal one line that is redrawn, elsewhere a line
//! per second.

use std::fmt;
use std::time::Duration;

use tidegate_runtime::command::{note, shows_progress};

/// Width of the bar.   characters
const BAR: usize = 30;

/// A moment of a storm.
#[derive(Clone, Copy, Debug)]
pub(super) struct StormCounts {
    pub(super) calls: u32,
    pub(super) answered: u32,
    pub(super) failed: u32,
    /// At the backend.
    pub(super) in_flight: u32,
    /// Time since the storm began.
    pub(super) passed: Duration,
}

impl fmt::Display for StormCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.answered + self.failed;
        // Counted at different times and places, so the difference can be below 0.
        let waiting = self.calls.saturating_sub(ended + self.in_flight);
        let filled = BAR * ended as usize / self.calls.max(1) as usize;
        write!(
            f,
            "[{:#<filled$}{:.<rest$}] {} answered, {waiting} waiting, {} at the backend, {} failed, {:.1} s",
            "",
            "",
            self.answered,
            self.in_flight,
            self.failed,
            self.passed.as_secs_f64(),
            rest = BAR - filled,
        )
    }
}

/// Where the progress of a storm is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormProgress {
    /// On a terminal, redrawn.
    Redrawn,
    /// On stderr, as lines.
    Lines,
    /// Nowhere.
    Hidden,
}

impl StormProgress {
    /// On stderr, redrawn if that is a terminal.
    #[must_use]
    pub fn to_stderr() -> Self {
        match shows_progress() {
            true => Self::Redrawn,
            false => Self::Lines,
        }
    }

    /// The time between two updates.
    pub(super) fn period(self) -> Duration {
        Duration::from_millis(if self == Self::Redrawn { 100 } else { 1000 })
    }

    pub(super) fn begin(self, what: &str) {
        self.write(format_args!("{what}\n"));
    }

    pub(super) fn show(self, now: &StormCounts) {
        match self {
            Self::Redrawn => self.write(format_args!("\r  {now}\x1b[K")),
            Self::Lines | Self::Hidden => self.write(format_args!("  {now}\n")),
        }
    }

    pub(super) fn end(self, now: &StormCounts) {
        self.show(now);
        if self == Self::Redrawn {
            self.write(format_args!("\n"));
        }
    }

    fn write(self, text: fmt::Arguments<'_>) {
        if self != Self::Hidden {
            note(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_reads_as_one_line() {
        let now = StormCounts {
            calls: 300,
            answered: 150,
            failed: 0,
            in_flight: 10,
            passed: Duration::from_millis(4400),
        };
        assert_eq!(
            now.to_string(),
            "[###############...............] 150 answered, 140 waiting, 10 at the backend, \
             0 failed, 4.4 s"
        );
    }
}
