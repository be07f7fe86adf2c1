//! Numbers and moments as text, digit by digit: formatting through `fmt` takes several times the
//! instructions.

use std::fmt::{self, Display};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Text of a known length, filled digit by digit.
#[derive(Clone, Copy, Debug)]
pub struct Ascii<const N: usize>(pub [u8; N]);

impl<const N: usize> Ascii<N> {
    /// The text.
    ///
    /// # Panics
    ///
    /// Never, because only ASCII is written to it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("filled with ASCII only")
    }

    /// Writes the last `digits` decimal digits of `value` at `at`.
    pub fn decimal(&mut self, at: usize, digits: usize, mut value: u64) {
        for place in self.0[at..at + digits].iter_mut().rev() {
            *place = digit(value % 10);
            value /= 10;
        }
    }
}

fn digit(value: u64) -> u8 {
    b"0123456789abcdef"[usize::try_from(value).expect("one digit")]
}

/// Appends a number.
pub(crate) fn decimal(out: &mut Vec<u8>, value: u64) {
    let digits = value.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut text = Ascii([0; 20]);
    text.decimal(0, digits, value);
    out.extend_from_slice(&text.0[..digits]);
}

/// A number as 16 hexadecimal digits.
#[must_use]
pub fn hexadecimal(value: u64) -> Ascii<16> {
    Ascii(std::array::from_fn(|place| {
        digit(value >> (60 - 4 * place) & 0xf)
    }))
}

/// Whole microseconds of a duration.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A moment in UTC, RFC 3339, to the microsecond, as log lines have it.
#[derive(Clone, Copy, Debug)]
pub struct Utc(pub SystemTime);

impl Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(utc(self.0).as_str())
    }
}

/// A moment in UTC, RFC 3339, to the microsecond.
#[must_use]
pub fn utc(at: SystemTime) -> Ascii<27> {
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
#[derive(Clone, Copy, Debug)]
pub struct TimeOfDay(pub SystemTime);

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

    #[test]
    fn numbers_have_their_digits() {
        for value in [0, 1, 9, 10, 99, 100, 1_234_567, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            decimal(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
