//! Lines that the log has lost, why, and when it reports them.

use std::io;
use std::time::{Duration, Instant};

/// The time between two warnings about lost lines.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Why a line is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// The reader of stderr is too slow, so the buffer is full.
    SlowReader,
    /// The disk or the quota of its user is full.
    DiskFull,
    /// The file has reached the size that this process may write (`ulimit -f`, `LimitFSIZE=`).
    FileTooLarge,
    /// No reader is left.
    Closed,
    /// Any other error of the system.
    WriteFailed,
}

impl LossCause {
    /// Every cause.
    pub const ALL: [Self; 5] = [
        Self::SlowReader,
        Self::DiskFull,
        Self::FileTooLarge,
        Self::Closed,
        Self::WriteFailed,
    ];

    /// The label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::SlowReader => "slow_reader",
            Self::DiskFull => "disk_full",
            Self::FileTooLarge => "file_too_large",
            Self::Closed => "closed",
            Self::WriteFailed => "write_failed",
        }
    }

    /// The cause in a warning.
    fn in_words(self) -> &'static str {
        match self {
            Self::SlowReader => "stderr is read too slowly",
            Self::DiskFull => "the disk behind stderr is full",
            Self::FileTooLarge => "the file behind stderr has reached its size limit",
            Self::Closed => "stderr has no reader",
            Self::WriteFailed => "stderr cannot be written",
        }
    }

    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            io::ErrorKind::FileTooLarge => Self::FileTooLarge,
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::WriteFailed,
        }
    }
}

/// Lines lost since the start, by kind and cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([[u64; LossCause::ALL.len()]; LineKind::ALL.len()]);

impl Losses {
    /// The number of lines of a kind.
    #[must_use]
    pub fn lines(&self, kind: LineKind, cause: LossCause) -> u64 {
        self.0[kind as usize][cause as usize]
    }

    pub(super) fn count(&mut self, kind: LineKind, cause: LossCause) {
        self.0[kind as usize][cause as usize] += 1;
    }
}

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A line of the log of calls.
    Access,
    /// An event of the process.
    Event,
    /// A line that only a replay needs.
    Replay,
}

impl LineKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Access, Self::Event, Self::Replay];
}

/// The losses that the log has reported.
#[derive(Debug, Default)]
pub(super) struct LossReport {
    reported: Losses,
    at: Option<Instant>,
    /// When the losses since then are to be reported.
    pub(super) due: Option<Instant>,
}

impl LossReport {
    /// Reports the losses, at most now and then, and only while stderr can be written. A warning
    /// that is lost as well would only add to the losses.
    pub(super) fn update(&mut self, losses: Losses, can_be_written: bool, hurry: bool) {
        if losses == self.reported || !can_be_written {
            self.due = None;
            return;
        }
        let now = Instant::now();
        let next = self.at.map_or(now, |at| at + WARN_EVERY);
        if next > now && !hurry {
            self.due = Some(next);
            return;
        }
        for cause in LossCause::ALL {
            let since = |kind| losses.lines(kind, cause) - self.reported.lines(kind, cause);
            let why = cause.in_words();
            let [lines, events, replay] = LineKind::ALL.map(since);
            if lines > 0 {
                tracing::warn!(
                    // The reader of logs looks for these words (crates/record).
                    target: "tidegate::telemetry::access",
                    lines,
                    cause = cause.label(),
                    "access lines lost, {why}"
                );
            }
            if replay > 0 {
                tracing::warn!(
                    target: "tidegate::telemetry::access",
                    lines = replay,
                    cause = cause.label(),
                    "replay lines lost, {why}"
                );
            }
            if events > 0 {
                tracing::warn!(events, cause = cause.label(), "log events lost, {why}");
            }
        }
        *self = Self {
            reported: losses,
            at: Some(now),
            due: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_system_has_a_cause_of_its_own_word() {
        let check = |code: i32, cause| {
            assert_eq!(LossCause::of(&io::Error::from_raw_os_error(code)), cause);
        };
        check(28, LossCause::DiskFull); // ENOSPC
        check(122, LossCause::DiskFull); // EDQUOT
        check(27, LossCause::FileTooLarge); // EFBIG
        check(32, LossCause::Closed); // EPIPE
        check(5, LossCause::WriteFailed); // EIO
        let labels = LossCause::ALL.map(LossCause::label);
        assert_eq!(LossCause::ALL.map(|it| labels[it as usize]), labels);
    }

    #[test]
    fn losses_are_reported_now_and_then_and_not_to_a_disk_that_is_full() {
        let mut report = LossReport::default();
        let mut losses = Losses::default();
        report.update(losses, true, false);
        assert_eq!((report.at, report.due), (None, None), "there are none");
        losses.count(LineKind::Access, LossCause::DiskFull);
        report.update(losses, false, false);
        assert_eq!((report.at, report.due), (None, None), "it would be lost");
        report.update(losses, true, false);
        let first = report.at.expect("reported");
        losses.count(LineKind::Event, LossCause::DiskFull);
        report.update(losses, true, false);
        assert_eq!(
            (report.at, report.due),
            (Some(first), Some(first + WARN_EVERY))
        );
        report.update(losses, true, true);
        assert_eq!(
            (report.reported, report.due),
            (losses, None),
            "the process ends"
        );
    }
}
