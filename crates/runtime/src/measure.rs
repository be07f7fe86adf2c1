//! Numbers with a unit: the one grammar of durations and sizes, in files and on command lines.
//!
//! `90s`, `1.5 h`, `64KiB`: a number, which may have a fraction, and a unit. It is read exactly, in the smallest unit.
//! Zero needs no unit.

use std::time::Duration;

/// A kind of numbers with a unit.
#[derive(Debug)]
pub struct Measure {
    /// A word for such a number.
    pub name: &'static str,
    /// Units and how many of the smallest each is, largest first.
    pub units: &'static [(&'static str, u64)],
    /// How zero is written.
    pub zero: &'static str,
    /// A number of this kind.
    pub example: &'static str,
    /// The unit that a bare number probably meant.
    pub usual: &'static str,
}

/// Durations, in microseconds.
pub const DURATION: Measure = Measure {
    name: "duration",
    units: &[
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1000),
        ("us", 1),
    ],
    zero: "0s",
    example: "30s",
    usual: "s",
};

/// Sizes, in bytes.
pub const SIZE: Measure = Measure {
    name: "size",
    units: &[
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ],
    zero: "0B",
    example: "64KiB",
    usual: "B",
};

/// Why a text is no number with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureError {
    /// The text does not begin with a number.
    NotNumber,
    /// The unit is missing.
    NoUnit,
    /// The unit is none of this measure.
    UnknownUnit,
    /// The number is too large.
    TooLarge,
    /// The number has a part of the smallest unit.
    TooFine,
}

impl MeasureError {
    /// The fault in words; completes a sentence that begins with the text.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::NotNumber => "is not a number with a unit",
            Self::NoUnit => "has no unit",
            Self::UnknownUnit => "has an unknown unit",
            Self::TooLarge => "is too large",
            Self::TooFine => "is finer than the smallest unit",
        }
    }
}

impl Measure {
    /// The units, smallest first.
    #[must_use]
    pub fn list(&self) -> String {
        let units: Vec<_> = self.units.iter().rev().map(|(unit, _)| *unit).collect();
        units.join(", ")
    }

    /// Writes an amount in the largest unit that leaves no rest.
    #[must_use]
    pub fn show(&self, amount: u64) -> String {
        if amount == 0 {
            return self.zero.to_owned();
        }
        let mut units = self.units.iter();
        let found = units.find(|(_, size)| amount.is_multiple_of(*size));
        let (unit, size) = found.expect("the smallest unit divides everything");
        format!("{}{unit}", amount / size)
    }

    /// Reads an amount of the smallest unit.
    ///
    /// # Errors
    ///
    /// What is wrong with the text.
    pub fn read(&self, text: &str) -> Result<u64, MeasureError> {
        use MeasureError as E;
        let text = text.trim();
        let (whole, rest) = digits(text);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("", rest),
        };
        let has_point = text.len() - whole.len() != rest.len();
        if whole.is_empty() || has_point && fraction.is_empty() || rest.starts_with(['.', ',', '_'])
        {
            return Err(E::NotNumber);
        }
        let fraction = fraction.trim_end_matches('0');
        let unit = rest.trim_start();
        let size = match self.units.iter().find(|(name, _)| *name == unit) {
            Some((_, size)) => u128::from(*size),
            None if !unit.is_empty() => return Err(E::UnknownUnit),
            None if whole.trim_matches('0').is_empty() && fraction.is_empty() => return Ok(0),
            None => return Err(E::NoUnit),
        };
        let whole: u128 = whole.parse::<u64>().map_err(|_| E::TooLarge)?.into();
        // More digits would be finer than any unit can be divided.
        if fraction.len() > 12 {
            return Err(E::TooFine);
        }
        let parts: u128 = match fraction {
            "" => 0,
            digits => digits.parse().map_err(|_| E::NotNumber)?,
        };
        let scale = 10_u128.pow(u32::try_from(fraction.len()).expect("it is short"));
        let rest = parts * size;
        if !rest.is_multiple_of(scale) {
            return Err(E::TooFine);
        }
        u64::try_from(whole * size + rest / scale).map_err(|_| E::TooLarge)
    }
}

/// The digits that a text begins with, and the rest.
fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
}

/// Reads a duration, such as `50ms`, `1.5s`, `2m` or `24h`.
///
/// # Errors
///
/// What is wrong with the text, for people.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let amount = DURATION.read(text);
    amount.map(Duration::from_micros).map_err(|error| {
        format!(
            "`{text}` {}; give a duration such as 50ms, 1.5s, 2m or 1h",
            error.in_words()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_with_a_unit_and_may_have_a_fraction() {
        let check = |text: &str, micros: u64| {
            let read = parse_duration(text);
            assert_eq!(read, Ok(Duration::from_micros(micros)), "{text}");
        };
        check("50ms", 50_000);
        check("1.5s", 1_500_000);
        check("2m", 120_000_000);
        check("24h", 86_400_000_000);
        check("0.5h", 1_800_000_000);
        check("1.50 h", 5_400_000_000);
        check("250us", 250);
        check(" 1 s ", 1_000_000);
        check("0.001ms", 1);
        for zero in ["0", "0.0", "00", "0s", "0h"] {
            check(zero, 0);
        }
        check(&format!("{}us", u64::MAX), u64::MAX);
    }

    #[test]
    fn any_other_text_is_refused_with_its_reason() {
        use MeasureError as E;
        for (text, error) in [
            ("", E::NotNumber),
            ("s", E::NotNumber),
            ("-1s", E::NotNumber),
            ("+1s", E::NotNumber),
            (".5s", E::NotNumber),
            ("1.s", E::NotNumber),
            ("1..5s", E::NotNumber),
            ("1,5s", E::NotNumber),
            ("1_000s", E::NotNumber),
            ("1.5.5s", E::NotNumber),
            ("unlimited", E::NotNumber),
            ("5", E::NoUnit),
            ("0.5", E::NoUnit),
            ("1e30s", E::UnknownUnit),
            ("1 day", E::UnknownUnit),
            ("1S", E::UnknownUnit),
            ("1h30m", E::UnknownUnit),
            ("0.5us", E::TooFine),
            ("0.0000000000001h", E::TooFine),
            ("99999999999999999999s", E::TooLarge),
            ("18446744073709551615h", E::TooLarge),
        ] {
            assert_eq!(DURATION.read(text), Err(error), "{text:?}");
        }
        assert_eq!(SIZE.read("1.5KiB"), Ok(1536));
        assert_eq!(SIZE.read("0.5B"), Err(E::TooFine));
        assert_eq!(SIZE.read("4k"), Err(E::UnknownUnit));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for amount in [0, 1, 999, 1000, 1500, 60_000_000, 5_400_000_000, u64::MAX] {
            assert_eq!(DURATION.read(&DURATION.show(amount)), Ok(amount));
            assert_eq!(SIZE.read(&SIZE.show(amount)), Ok(amount));
        }
    }
}
