//! Values that were found in a message of JSON.

use std::borrow::Cow;

use crate::pointer::POINTERS_MAX;

/// A value at a wanted place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonValue<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it was written.
    Number(JsonNumber<'a>),
    /// A string without quotes and escapes. Borrowed from the body if it had no escapes.
    String(Cow<'a, str>),
    /// An array of any length.
    Array,
    /// An object of any length.
    Object,
}

impl JsonValue<'_> {
    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is a whole one as [`JsonNumber::as_u64`] says.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }
}

/// A number as it was written, valid by RFC 8259.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonNumber<'a>(pub(crate) &'a str);

/// Above it, a parser that keeps numbers as doubles may read a neighbour of the number.
const EXACT_MAX: u64 = 1 << 53;

impl<'a> JsonNumber<'a> {
    /// The number as it was written.
    #[must_use]
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// The number, if it is whole and at least 0: `100`, `100.0` and `1e2` are.
    ///
    /// Digits alone may be up to 2^63 - 1, because parsers with integers read them exactly. With a
    /// fraction or an exponent the number may be up to 2^53.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        if self.0.bytes().all(|byte| byte.is_ascii_digit()) {
            let number: i64 = self.0.parse().ok()?;
            return number.try_into().ok();
        }
        let (mantissa, exponent) = match self.0.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (self.0, None),
        };
        let (sign, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => ("-", rest),
            None => ("", mantissa),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        let significant = digits().enumerate().filter(|(_, digit)| *digit != b'0');
        let Some((last, _)) = significant.last() else {
            return Some(0);
        };
        if !sign.is_empty() {
            return None;
        }
        // An exponent that does not fit is far out of range.
        let exponent: i64 = exponent.map_or(Some(0), |text| text.parse().ok())?;
        // How many zeros follow the last digit that is none.
        let place = i64::try_from(whole.len()).ok()? - 1 - i64::try_from(last).ok()?;
        let zeros = u32::try_from(place.checked_add(exponent)?).ok()?;
        let significant = digits().take(last + 1).try_fold(0u64, |number, digit| {
            let number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
            number.filter(|number| *number <= EXACT_MAX)
        })?;
        let number = significant.checked_mul(10u64.checked_pow(zeros)?)?;
        (number <= EXACT_MAX).then_some(number)
    }
}

/// The value at each place of a set, in the order of its pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundValues<'a> {
    values: [Option<JsonValue<'a>>; POINTERS_MAX],
    count: usize,
}

impl<'a> FoundValues<'a> {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            values: [const { None }; POINTERS_MAX],
            count,
        }
    }

    /// Keeps the value of each pointer whose bit is set.
    pub(crate) fn set(&mut self, pointers: u8, value: JsonValue<'a>) {
        let mut rest = pointers;
        while rest & (rest - 1) != 0 {
            self.values[rest.trailing_zeros() as usize] = Some(value.clone());
            rest &= rest - 1;
        }
        self.values[rest.trailing_zeros() as usize] = Some(value);
    }

    /// The value of the pointer with this number, from 0, if the message has one.
    ///
    /// # Panics
    /// If the set has no pointer with this number.
    #[must_use]
    pub fn get(&self, pointer: usize) -> Option<&JsonValue<'a>> {
        self.values[..self.count][pointer].as_ref()
    }

    /// The value of each pointer.
    pub fn iter(&self) -> impl Iterator<Item = Option<&JsonValue<'a>>> {
        self.values[..self.count].iter().map(Option::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_whole_if_its_value_is() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0e5", Some(0)),
            ("0e99999999999999999999", Some(0)),
            ("100", Some(100)),
            ("1e2", Some(100)),
            ("1E+2", Some(100)),
            ("100.0", Some(100)),
            ("12.50e1", Some(125)),
            ("12.5", None),
            ("0.001e3", Some(1)),
            ("1200e-2", Some(12)),
            ("1200e-3", None),
            ("4.0000000000000000000000001", None),
            ("-1", None),
            ("-1e2", None),
            ("1e-99999999999999999999", None),
            ("1e99999999999999999999", None),
            ("9007199254740993", Some((1 << 53) + 1)),
            ("9007199254740992.0", Some(1 << 53)),
            ("9007199254740993.0", None),
            ("9.007199254740992e15", Some(1 << 53)),
            ("1e15", Some(1_000_000_000_000_000)),
            ("1e16", None),
            ("9223372036854775807", Some((1 << 63) - 1)),
            ("9223372036854775808", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(JsonNumber(text).as_u64(), expected, "{text}");
        }
    }
}
