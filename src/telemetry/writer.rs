//! The one writer of the log: events and access lines share one bounded buffer, and one thread
//! writes it.
//!
//! The thread that moves calls never waits for the reader of the log. If that reader stalls, the
//! buffer fills up to its bound. Further lines are lost and counted, and the log reports the
//! count when the reader continues. Part of the buffer is only for events, so a flood of access
//! lines never displaces an error.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tidegate_runtime::lock;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait to be written; about 15,000 access lines.
const BUFFER_MAX: usize = 4 << 20;
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
pub enum Written {
    /// It will be written.
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
struct Handle(Arc<Lines>);

impl LogWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Arc::new(Lines::default());
        let for_thread = Arc::clone(&lines);
        thread::Builder::new()
            .name("log".into())
            .spawn(move || for_thread.write_to(out))?;
        Ok(Self(Arc::new(Handle(lines))))
    }

    /// Appends an access line.
    pub fn access_line(&self, line: &[u8]) -> Written {
        let lines = &self.0.0;
        lines.append(line, BUFFER_MAX, |lost| &mut lost.access_lines)
    }

    /// Appends an event.
    pub fn event(&self, line: &[u8]) -> Written {
        let lines = &self.0.0;
        lines.append(line, BUFFER_MAX + EVENTS_MAX, |lost| &mut lost.events)
    }

    /// Events lost so far.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.0.0.lock().events_lost
    }

    /// Waits until everything appended by now is written, but not longer than this. Returns
    /// whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        self.0.0.flush(within)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        // Past the bound the lines are given up: a reader that stalls must not keep the
        // process from ending.
        self.0.flush(LAST_WRITE);
    }
}

/// Takes what `tracing-subscriber` writes: each event whole, in one write.
#[derive(Debug)]
pub struct EventWriter<'a>(&'a LogWriter);

impl Write for EventWriter<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // A lost event is counted there.
        let (Written::Yes | Written::Off | Written::Lost) = self.0.event(event);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = EventWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        EventWriter(self)
    }
}

/// The state that the thread shares with others.
#[derive(Debug, Default)]
struct Lines {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    lost: Lost,
    events_lost: u64,
    /// Bytes ever appended, and how many of them are written.
    appended: u64,
    written: u64,
    /// A flush waits, so lines do not gather.
    hurry: bool,
    closed: bool,
}

/// Lines lost since the log last reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lost {
    access_lines: u64,
    events: u64,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn append(&self, line: &[u8], max: usize, count: impl Fn(&mut Lost) -> &mut u64) -> Written {
        let mut waiting = self.lock();
        if waiting.bytes.len() + line.len() > max {
            let before = waiting.lost;
            *count(&mut waiting.lost) += 1;
            waiting.events_lost += waiting.lost.events - before.events;
            return Written::Lost;
        }
        let was_empty = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(line);
        waiting.appended += line.len() as u64;
        drop(waiting);
        if was_empty {
            self.filled.notify_one();
        }
        Written::Yes
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

    fn write_to(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        while let Some(lost) = self.take(&mut batch) {
            // If stderr is closed, no reader is left to inform. Calls continue without it.
            let _ = write_whole(&mut out, &batch);
            // These go through the buffer like all events, and now it has room. Before the
            // batch counts as written, so that a second flush includes them.
            if lost.access_lines > 0 {
                tracing::warn!(
                    // `tidegate audit` looks for this target.
                    target: "tidegate::telemetry::access",
                    lines = lost.access_lines,
                    "access lines lost, stderr is read too slowly"
                );
            }
            if lost.events > 0 {
                tracing::warn!(
                    events = lost.events,
                    "log events lost, stderr is read too slowly"
                );
            }
            let mut waiting = self.lock();
            waiting.written += batch.len() as u64;
            drop(waiting);
            self.progress.notify_all();
            batch.clear();
            batch.shrink_to(BUFFER_KEPT);
        }
    }

    /// Waits for lines, lets a few more gather, and swaps them into the empty `batch`.
    /// Returns how many were lost since the last time, or `None` after the last batch.
    fn take(&self, batch: &mut Vec<u8>) -> Option<Lost> {
        let waiting = self.lock();
        let waiting = self
            .filled
            .wait_while(waiting, |waiting| {
                waiting.bytes.is_empty() && !waiting.closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        let (mut waiting, _) = self
            .filled
            .wait_timeout_while(waiting, GATHER, |waiting| !waiting.closed && !waiting.hurry)
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes.is_empty() {
            return None;
        }
        waiting.hurry = false;
        std::mem::swap(&mut waiting.bytes, batch);
        Some(std::mem::take(&mut waiting.lost))
    }
}

/// Like `write_all`, and also to a stderr that another process has made non-blocking.
#[expect(
    clippy::disallowed_methods,
    reason = "the writer has a thread of its own"
)]
fn write_whole(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(GATHER),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_finds_the_buffer_full_is_lost_and_events_have_room_of_their_own() {
        let writer = LogWriter(Arc::new(Handle(Arc::default())));
        let half = vec![b'x'; BUFFER_MAX / 2];
        assert_eq!(writer.access_line(&half), Written::Yes);
        assert_eq!(writer.access_line(&half), Written::Yes);
        assert_eq!(writer.access_line(b"x"), Written::Lost);
        assert_eq!(writer.event(&vec![b'x'; EVENTS_MAX]), Written::Yes);
        assert_eq!(writer.event(b"x"), Written::Lost);
        assert_eq!(writer.event(b"x"), Written::Lost);
        assert_eq!(writer.events_lost(), 2);
        let lines = Arc::clone(&writer.0.0);
        let mut batch = Vec::new();
        let lost = Lost {
            access_lines: 1,
            events: 2,
        };
        lines.lock().hurry = true;
        assert_eq!(lines.take(&mut batch), Some(lost));
        assert_eq!(batch.len(), BUFFER_MAX + EVENTS_MAX);
        assert_eq!(writer.access_line(b"x"), Written::Yes);
        drop(writer);
        batch.clear();
        assert_eq!(lines.take(&mut batch), Some(Lost::default()));
        assert_eq!(batch, b"x");
        batch.clear();
        assert_eq!(lines.take(&mut batch), None);
    }
}
