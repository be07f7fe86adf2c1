//! The one writer of the log: events and access lines share one bounded buffer, and one thread
//! writes it.
//!
//! The thread that moves calls never waits for the reader of the log. If that reader stalls, the
//! buffer fills up to its bound, and further lines are lost. Lines are also lost if stderr cannot be
//! written, as on a full disk. Each lost line is counted by its cause, and the log reports the
//! counts when it can be written again. Part of the buffer is only for events, so a flood of access
//! lines never displaces an error, and part is not for lines that only a replay needs.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_runtime::lock;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::journal::Priority;
use super::losses::{LineKind, LossCause, LossReport, Losses};

/// Bytes that may wait to be written; about 15,000 access lines.
const BUFFER_MAX: usize = 4 << 20;
/// Bytes that may wait when a line for a replay comes, so that such lines never displace an access line.
const REPLAY_MAX: usize = BUFFER_MAX / 2;
/// Bytes beyond that which only events may fill; about 1,000 of them.
const EVENTS_MAX: usize = 256 << 10;
/// A buffer that a burst made larger than this is freed after it.   bytes
const BUFFER_KEPT: usize = 256 << 10;
/// How long the writer lets lines gather: at a thousand calls a second it then wakes a
/// hundred times, not a thousand.
const GATHER: Duration = Duration::from_millis(10);
/// How long the end of the process waits until the last lines are written.
pub const LAST_WRITE: Duration = Duration::from_secs(1);

/// The result for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LineOutcome {
    /// The line will be written, unless stderr cannot be written then.
    Yes,
    /// The log of calls is off.
    Off,
    /// The buffer is full.
    Lost,
}

/// Lines on their way to one thread, which writes them. Dropping the last clone ends that thread
/// and waits at most a second until everything is written.
#[derive(Clone, Debug)]
pub struct LogWriter(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    lines: Arc<LineQueue>,
    /// Whether each line begins with its priority, for the journal.
    has_priorities: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_with(out, false)
    }

    /// Starts the thread that writes to the journal, where each line begins with its priority.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start_for_journal(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_with(out, true)
    }

    fn start_with(out: impl Write + Send + 'static, has_priorities: bool) -> io::Result<Self> {
        let lines = Arc::new(LineQueue::default());
        let for_thread = Arc::clone(&lines);
        thread::Builder::new()
            .name("log".into())
            .spawn(move || for_thread.write_to(out))?;
        Ok(Self(Arc::new(Handle {
            lines,
            has_priorities,
        })))
    }

    /// Appends a line of the log of calls.
    pub(super) fn line(&self, line: &[u8], kind: LineKind) -> LineOutcome {
        self.append(line, kind, Priority::INFO)
    }

    /// Appends an event, of one line or several.
    pub fn event(&self, event: &[u8], priority: Priority) -> LineOutcome {
        self.append(event, LineKind::Event, priority)
    }

    fn append(&self, text: &[u8], kind: LineKind, priority: Priority) -> LineOutcome {
        let Handle {
            lines,
            has_priorities,
        } = &*self.0;
        lines.append(text, kind, has_priorities.then_some(priority))
    }

    /// The lines lost so far.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.0.lines.lock().losses
    }

    /// Waits until everything appended by now is written, but not longer than this. Returns
    /// whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        self.0.lines.flush(within)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.lines.lock().closed = true;
        // Past the bound the lines are given up: a reader that stalls must not keep the
        // process from ending.
        self.lines.flush(LAST_WRITE);
    }
}

/// Takes what `tracing-subscriber` writes: each event whole, in one write.
#[derive(Debug)]
pub struct EventWriter<'a> {
    writer: &'a LogWriter,
    priority: Priority,
}

impl Write for EventWriter<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // A lost event is counted there.
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            self.writer.event(event, self.priority);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = EventWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        EventWriter {
            writer: self,
            priority: Priority::INFO,
        }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        let priority = match *event.level() {
            Level::ERROR => Priority::ERROR,
            Level::WARN => Priority::WARNING,
            Level::INFO => Priority::INFO,
            Level::DEBUG | Level::TRACE => Priority::DEBUG,
        };
        EventWriter {
            writer: self,
            priority,
        }
    }
}

/// The state that the thread shares with others.
#[derive(Debug, Default)]
struct LineQueue {
    waiting: Mutex<PendingLines>,
    filled: Condvar,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    batch: Batch,
    losses: Losses,
    /// Bytes ever appended, and how many of them are written.
    appended: u64,
    written: u64,
    /// A flush waits, so lines do not gather.
    hurry: bool,
    closed: bool,
}

/// Lines that are written together.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Where each line or event ends, and its kind, so that those can be counted that are lost.
    ends: Vec<(u32, LineKind)>,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(BUFFER_KEPT);
        self.ends.clear();
        self.ends
            .shrink_to(BUFFER_KEPT / size_of::<(u32, LineKind)>());
    }

    /// Whether a line ends after this number of bytes.
    fn has_end_at(&self, written: usize) -> bool {
        written == 0 || self.ends.iter().any(|(end, _)| *end as usize == written)
    }
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, PendingLines> {
        lock(&self.waiting)
    }

    fn append(&self, text: &[u8], kind: LineKind, priority: Option<Priority>) -> LineOutcome {
        let max = match kind {
            LineKind::Replay => REPLAY_MAX,
            LineKind::Access => BUFFER_MAX,
            LineKind::Event => BUFFER_MAX + EVENTS_MAX,
        };
        let mut waiting = self.lock();
        let before = waiting.batch.bytes.len();
        if before + text.len() > max {
            waiting.losses.count(kind, LossCause::SlowReader);
            return LineOutcome::Lost;
        }
        match priority {
            None => waiting.batch.bytes.extend_from_slice(text),
            // The journal makes an entry of each line.
            Some(priority) => {
                for line in text.split_inclusive(|byte| *byte == b'\n') {
                    waiting.batch.bytes.extend_from_slice(priority.prefix());
                    waiting.batch.bytes.extend_from_slice(line);
                }
            }
        }
        let after = waiting.batch.bytes.len();
        let end = u32::try_from(after).expect("the buffer is bounded far below 4 GiB");
        waiting.batch.ends.push((end, kind));
        waiting.appended += (after - before) as u64;
        drop(waiting);
        if before == 0 {
            self.filled.notify_one();
        }
        LineOutcome::Yes
    }

    fn flush(&self, within: Duration) -> bool {
        let mut waiting = self.lock();
        let end = waiting.appended;
        waiting.hurry = true;
        self.filled.notify_one();
        let (waiting, _) = self
            .progress
            .wait_timeout_while(waiting, within, |waiting| waiting.written < end)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.written >= end
    }

    fn write_to(&self, out: impl Write) {
        let mut out = Out {
            out,
            is_inside_line: false,
        };
        let mut batch = Batch::default();
        let mut report = LossReport::default();
        while let Some(hurry) = self.take(&mut batch, report.due) {
            // Calls continue without their log.
            let written = out.write_batch(&batch);
            let is_written = written.is_ok();
            if let Err((lost, cause)) = written {
                let mut waiting = self.lock();
                for (_, kind) in &batch.ends[lost..] {
                    waiting.losses.count(*kind, cause);
                }
            }
            // The warnings go through the buffer like all events, and now it has room. They are
            // added before the batch counts as written, so that a second flush includes them.
            let losses = self.lock().losses;
            report.update(losses, is_written, hurry);
            self.lock().written += batch.bytes.len() as u64;
            self.progress.notify_all();
            batch.clear();
        }
    }

    /// Waits for lines, or until `due`, lets a few more lines gather, and swaps them into the empty
    /// `batch`. Returns whether a flush waits, or `None` after the last batch.
    fn take(&self, batch: &mut Batch, due: Option<Instant>) -> Option<bool> {
        let waiting = self.lock();
        let is_idle =
            |waiting: &mut PendingLines| waiting.batch.bytes.is_empty() && !waiting.closed;
        let waiting = match due {
            None => self.filled.wait_while(waiting, is_idle),
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now());
                let waited = self.filled.wait_timeout_while(waiting, left, is_idle);
                waited
                    .map(|(waiting, _)| waiting)
                    .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0))
            }
        };
        let waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, _) = self
            .filled
            .wait_timeout_while(waiting, GATHER, |waiting| !waiting.closed && !waiting.hurry)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.batch.bytes.is_empty() && waiting.closed {
            return None;
        }
        let hurry = std::mem::take(&mut waiting.hurry) || waiting.closed;
        std::mem::swap(&mut waiting.batch, batch);
        Some(hurry)
    }
}

/// Where lines are written.
struct Out<W> {
    out: W,
    /// A write failed inside a line. The next line must not be added to the half one.
    is_inside_line: bool,
}

impl<W: Write> Out<W> {
    /// Writes a batch. After an error: the first line that is lost, and the cause. All lines after
    /// it are lost as well.
    fn write_batch(&mut self, batch: &Batch) -> Result<(), (usize, LossCause)> {
        if self.is_inside_line && !batch.bytes.is_empty() {
            self.write_whole(b"\n")
                .map_err(|(_, error)| (0, LossCause::of(&error)))?;
            self.is_inside_line = false;
        }
        self.write_whole(&batch.bytes).map_err(|(written, error)| {
            self.is_inside_line = !batch.has_end_at(written);
            let whole = batch
                .ends
                .partition_point(|(end, _)| *end as usize <= written);
            (whole, LossCause::of(&error))
        })
    }

    /// Like `write_all`, and also to a stderr that another process has made non-blocking. An error
    /// comes with the number of bytes before it.
    #[expect(
        clippy::disallowed_methods,
        reason = "the writer has a thread of its own"
    )]
    fn write_whole(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.out.write(&bytes[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(GATHER),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        self.out.flush().map_err(|error| (written, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer without its thread.
    fn stalled(has_priorities: bool) -> LogWriter {
        LogWriter(Arc::new(Handle {
            lines: Arc::default(),
            has_priorities,
        }))
    }

    fn batch(lines: &[(&str, LineKind)]) -> Batch {
        let mut batch = Batch::default();
        for (line, kind) in lines {
            batch.bytes.extend_from_slice(line.as_bytes());
            let end = u32::try_from(batch.bytes.len()).expect("short");
            batch.ends.push((end, *kind));
        }
        batch
    }

    #[test]
    fn a_line_that_finds_the_buffer_full_is_lost_and_events_have_room_of_their_own() {
        let writer = stalled(false);
        let half = vec![b'x'; BUFFER_MAX / 2];
        let event = |text: &[u8]| writer.event(text, Priority::INFO);
        assert_eq!(writer.line(&half, LineKind::Access), LineOutcome::Yes);
        assert_eq!(writer.line(b"x", LineKind::Replay), LineOutcome::Lost);
        assert_eq!(writer.line(&half, LineKind::Access), LineOutcome::Yes);
        assert_eq!(writer.line(b"x", LineKind::Access), LineOutcome::Lost);
        assert_eq!(event(&vec![b'x'; EVENTS_MAX]), LineOutcome::Yes);
        assert_eq!(event(b"x"), LineOutcome::Lost);
        assert_eq!(event(b"x"), LineOutcome::Lost);
        let losses = writer.losses();
        let of = |kind| losses.lines(kind, LossCause::SlowReader);
        assert_eq!(LineKind::ALL.map(of), [1, 2, 1]);
        assert_eq!(losses.lines(LineKind::Event, LossCause::DiskFull), 0);
        let lines = Arc::clone(&writer.0.lines);
        let mut batch = Batch::default();
        lines.lock().hurry = true;
        assert_eq!(lines.take(&mut batch, None), Some(true));
        assert_eq!(batch.bytes.len(), BUFFER_MAX + EVENTS_MAX);
        batch.clear();
        assert_eq!(writer.line(b"x", LineKind::Access), LineOutcome::Yes);
        drop(writer);
        assert_eq!(lines.take(&mut batch, None), Some(true));
        assert_eq!(batch.bytes, b"x");
        batch.clear();
        assert_eq!(lines.take(&mut batch, None), None);
    }

    #[test]
    fn each_line_for_the_journal_begins_with_its_priority() {
        let writer = stalled(true);
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            writer.line(b"{}\n", LineKind::Access);
        let (LineOutcome::Yes | LineOutcome::Off | LineOutcome::Lost) =
            writer.event(b"two\nlines\n", Priority::WARNING);
        let mut batch = Batch::default();
        let lines = Arc::clone(&writer.0.lines);
        drop(writer);
        lines.take(&mut batch, None);
        assert_eq!(
            String::from_utf8_lossy(&batch.bytes),
            "<6>{}\n<4>two\n<4>lines\n"
        );
    }

    /// A disk with room for some bytes.
    struct Disk {
        room: usize,
        content: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = bytes.len().min(self.room);
            if written == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= written;
            self.content.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_half_line_is_ended_before_the_next_and_counts_as_lost() {
        use LineKind::{Access, Event};
        let mut out = Out {
            out: Disk {
                room: 6,
                content: Vec::new(),
            },
            is_inside_line: false,
        };
        let lines = batch(&[("one\n", Access), ("two\n", Event), ("three\n", Access)]);
        assert_eq!(out.write_batch(&lines), Err((1, LossCause::DiskFull)));
        assert_eq!(out.write_batch(&lines), Err((0, LossCause::DiskFull)));
        out.out.room = 5;
        assert_eq!(out.write_batch(&lines), Err((1, LossCause::DiskFull)));
        out.out.room = 100;
        assert_eq!(out.write_batch(&batch(&[("four\n", Access)])), Ok(()));
        assert_eq!(
            String::from_utf8_lossy(&out.out.content),
            "one\ntw\none\nfour\n"
        );
    }
}
