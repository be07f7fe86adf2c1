//! The log of calls: one line for each call that has ended, which the app builds
//! (`src/app/access.rs`), and with `log.replay` the lines that a replay needs.
//!
//! A line is built in memory and appended to the buffer of the log's one writer ([`LogWriter`]).
//! So the thread that moves calls never waits for the reader of the log.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::losses::LineKind;
pub use super::writer::LineOutcome;
use super::writer::LogWriter;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// For people, in columns.
    Text {
        /// Whether the terminal has colours.
        colour: bool,
    },
    /// For machines, one object a line.
    Json,
}

/// The log of calls.
#[derive(Debug)]
pub struct AccessLog {
    on: AtomicBool,
    keeps_replay: bool,
    look: LineFormat,
    next_id: AtomicU64,
    writer: LogWriter,
}

impl AccessLog {
    /// Starts a thread that writes to `out`. The log is on at first.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static, look: LineFormat) -> io::Result<Self> {
        Ok(Self::to(LogWriter::start(out)?, look))
    }

    /// Writes its lines with a shared writer. The log is on at first.
    #[must_use]
    pub fn to(writer: LogWriter, look: LineFormat) -> Self {
        Self {
            on: AtomicBool::new(true),
            keeps_replay: false,
            look,
            // Two processes with one log do not share ids.
            next_id: AtomicU64::new(rand::random()),
            writer,
        }
    }

    /// Switches on the lines that a replay needs, if the log is in JSON.
    #[must_use]
    pub fn with_replay(self, keeps_replay: bool) -> Self {
        Self {
            keeps_replay: keeps_replay && self.look == LineFormat::Json,
            ..self
        }
    }

    /// Switches the log of calls on or off.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether lines are written.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether the log has the lines that a replay needs.
    #[must_use]
    pub fn keeps_replay(&self) -> bool {
        self.keeps_replay
    }

    /// A new id for a call, unique in this process.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The id that comes next.
    pub(crate) fn coming_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    /// Writes the line of a call that `build` appends.
    pub fn write(
        &self,
        build: impl FnOnce(&mut Vec<u8>, LineFormat) -> io::Result<()>,
    ) -> LineOutcome {
        if !self.is_on() {
            return LineOutcome::Off;
        }
        self.append(LineKind::Access, |line| {
            build(line, self.look).expect("writing to memory does not fail");
        })
    }

    /// Writes a line besides those of calls, if the log is in JSON.
    pub fn write_beside(&self, build: impl FnOnce(&mut Vec<u8>)) -> LineOutcome {
        match self.look {
            LineFormat::Json if self.is_on() => self.append(LineKind::Access, build),
            _ => LineOutcome::Off,
        }
    }

    /// Writes a line that only a replay needs.
    pub fn write_replay(&self, build: impl FnOnce(&mut Vec<u8>)) -> LineOutcome {
        match self.keeps_replay {
            true => self.append(LineKind::Replay, build),
            false => LineOutcome::Off,
        }
    }

    fn append(&self, kind: LineKind, build: impl FnOnce(&mut Vec<u8>)) -> LineOutcome {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(1024));
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            build(line);
            self.writer.line(line, kind)
        })
    }
}
