//! The trace that a call belongs to, from its header `traceparent` (W3C Trace Context, level 1).
//!
//! The header itself is passed on unchanged, well formed or not. The access line and spans use this.

use std::fmt::{self, Display};
use std::num::{NonZeroU64, NonZeroU128};

use super::Headers;

const TRACEPARENT: &str = "traceparent";

/// The id of a trace. It is never all zeros, which the standard forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(NonZeroU128);

/// The trace of a call, as its client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace.
    pub id: TraceId,
    /// The client's own span, if it is recorded (the flag `sampled`).
    pub sampled: Option<NonZeroU64>,
}

impl TraceId {
    /// As a number.
    #[must_use]
    pub fn get(self) -> NonZeroU128 {
        self.0
    }
}

impl Trace {
    /// The trace of a request with these headers. `None` if it has no `traceparent`, more than
    /// one, or one that is not well formed.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        Self::parse(headers.only(TRACEPARENT).ok()??)
    }

    /// Reads the value of a `traceparent`: `00-<trace id>-<parent id>-<flags>`, in lower case. A
    /// later version may have more after another `-`, which is not read; version `ff` is invalid.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, more) = value.split_at_checked(55)?;
        let [version @ .., b'-'] = &known[..3] else {
            return None;
        };
        let version = hexadecimal(version)?;
        let may_have_more = version > 0 && more.first() == Some(&b'-');
        if version == 0xff || !(more.is_empty() || may_have_more) {
            return None;
        }
        if known[35] != b'-' || known[52] != b'-' {
            return None;
        }
        let trace = NonZeroU128::new(hexadecimal(&known[3..35])?)?;
        let parent = u64::try_from(hexadecimal(&known[36..52])?).ok()?;
        let parent = NonZeroU64::new(parent)?;
        let is_sampled = hexadecimal(&known[53..])? & 1 == 1;
        Some(Self {
            id: TraceId(trace),
            sampled: is_sampled.then_some(parent),
        })
    }
}

/// As in the header: 32 hexadecimal digits.
impl Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The value of up to 32 hexadecimal digits in lower case; `None` if there is anything else.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_well_formed_one_is_read() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let later = GOOD.replacen("00", "cc", 1);
        for value in [GOOD, &later, &format!("{later}-more")] {
            let read = Trace::parse(value.as_bytes()).map(|trace| trace.id.to_string());
            assert_eq!(read.as_deref(), Some(trace), "{value}");
        }
    }

    #[test]
    fn only_the_last_bit_of_the_flags_says_that_it_is_sampled() {
        for (flags, sampled) in [("00", false), ("01", true), ("02", false), ("ff", true)] {
            let value = GOOD.replace("-01", &format!("-{flags}"));
            let trace = Trace::parse(value.as_bytes()).expect("it is good");
            let parent = NonZeroU64::new(0x00f0_67aa_0ba9_02b7);
            assert_eq!(trace.sampled, parent.filter(|_| sampled), "{flags}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        let parent = GOOD.replace("00f067aa0ba902b7", "0000000000000000");
        let trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let bad = [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &format!("{GOOD}-more"),
            &format!("{GOOD}0"),
            &GOOD.replacen("00", "ff", 1),
            &format!("{}0", GOOD.replacen("00", "cc", 1)),
            &GOOD.replace('-', "_"),
            &GOOD.replace("-01", "-0g"),
            &parent,
            &trace,
        ];
        for value in bad {
            assert_eq!(Trace::parse(value.as_bytes()), None, "{value:?}");
        }
    }
}
