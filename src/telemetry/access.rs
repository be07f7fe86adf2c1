//! The log of calls: one line for each call that has ended, which the app builds
//! (`src/app/access.rs`), and the times in it.
//!
//! A line is built in memory and appended to the buffer of the log's one writer ([`LogWriter`]).
//! So the thread that moves calls never waits for the reader of the log.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::writer::LogWriter;
pub use super::writer::Written;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
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
    look: Look,
    next_id: AtomicU64,
    writer: LogWriter,
}

impl AccessLog {
    /// Starts a thread that writes to `out`. The log is on at first.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static, look: Look) -> io::Result<Self> {
        Ok(Self::to(LogWriter::start(out)?, look))
    }

    /// Writes its lines with a shared writer. The log is on at first.
    #[must_use]
    pub fn to(writer: LogWriter, look: Look) -> Self {
        Self {
            on: AtomicBool::new(true),
            look,
            // Two processes with one log do not share ids.
            next_id: AtomicU64::new(rand::random()),
            writer,
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

    /// A new id for a call, unique in this process.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The id that comes next.
    pub(crate) fn coming_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    /// Writes an object as a line, if the log is for machines.
    pub fn write_object(&self, object: &serde_json::Value) -> Written {
        match self.look {
            Look::Json => self.write(|out, _| writeln!(out, "{object}")),
            Look::Text { .. } => Written::Off,
        }
    }

    /// Writes the line that `build` appends.
    pub fn write(&self, build: impl FnOnce(&mut Vec<u8>, Look) -> io::Result<()>) -> Written {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(512));
        }
        if !self.is_on() {
            return Written::Off;
        }
        LINE.with_borrow_mut(|buffer| {
            buffer.clear();
            build(buffer, self.look).expect("writing to memory does not fail");
            self.writer.access_line(buffer)
        })
    }
}

/// Text of a known length, filled digit by digit.
pub(crate) struct Ascii<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Ascii<N> {
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("filled with ASCII only")
    }

    /// Writes the last `digits` decimal digits of `value` at `at`.
    pub(crate) fn decimal(&mut self, at: usize, digits: usize, mut value: u64) {
        for place in self.0[at..at + digits].iter_mut().rev() {
            *place = digit(value % 10);
            value /= 10;
        }
    }
}

fn digit(value: u64) -> u8 {
    b"0123456789abcdef"[usize::try_from(value).expect("one digit")]
}

pub(crate) fn hexadecimal(value: u64) -> Ascii<16> {
    Ascii(std::array::from_fn(|place| {
        digit(value >> (60 - 4 * place) & 0xf)
    }))
}

/// A moment in UTC, RFC 3339, to the microsecond, as the access lines have it.
#[derive(Clone, Copy, Debug)]
pub struct Utc(pub SystemTime);

impl Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(utc(self.0).as_str())
    }
}

/// A moment in UTC, RFC 3339, to the microsecond.
pub(crate) fn utc(at: SystemTime) -> Ascii<27> {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = time_of_day(seconds);
    let mut text = Ascii(*b"0000-00-00T00:00:00.000000Z");
    text.decimal(0, 4, year);
    text.decimal(5, 2, month);
    text.decimal(8, 2, day);
    text.decimal(11, 2, hour);
    text.decimal(14, 2, minute);
    text.decimal(17, 2, second);
    text.decimal(20, 6, since_epoch.subsec_micros().into());
    text
}

/// The time of a day in UTC, to the millisecond: `22:13:20.123Z`. Short, for a terminal.
pub(crate) struct TimeOfDay(pub(crate) SystemTime);

impl Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_epoch = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (hour, minute, second) = time_of_day(since_epoch.as_secs());
        let mut text = Ascii(*b"00:00:00.000Z");
        text.decimal(0, 2, hour);
        text.decimal(3, 2, minute);
        text.decimal(6, 2, second);
        text.decimal(9, 3, since_epoch.subsec_millis().into());
        f.write_str(text.as_str())
    }
}

fn time_of_day(seconds: u64) -> (u64, u64, u64) {
    (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// The civil date of a day since 1970-01-01. Years are counted from a first of March, so
/// that the leap day is the last of its year, in eras of 400 years, which are all alike
/// (Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`).
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_timestamp_is_the_date_that_the_calendar_says() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(at).as_str(), date);
        }
    }
}
