//! A paced limit in one line, as nosqlbench writes it: `12000`, `12000,1.1`,
//! `12000,1.1,restart`, `500:1.5`, `12000,thread`.
//!
//! A rate, then, if wanted, a burst ratio, a verb and a scope, separated by `,`, `:` or `;`. The
//! rate may have an exponent (`1.5E6`), a suffix for thousands to trillions (`K`, `M`, `B` or
//! `G`, `T`), and a unit of time (`100/s`, `60/m`, `3600/h`).

use alloc::boxed::Box;
use core::fmt;
use core::iter::Peekable;
use core::str::FromStr;

use super::rule::{BurstRatio, Rate};
use crate::bucket::OutOfRange;

/// A pace and its verb, as one line asks for them.
///
/// ```
/// # use tidegate_limits::pace::{PaceSpec, Verb};
/// let spec: PaceSpec = "12K,1.5,restart".parse()?;
/// assert_eq!(spec.rate.get(), 12_000.0);
/// assert_eq!(spec.ratio.get(), 1.5);
/// assert_eq!(spec.verb, Verb::Restart);
/// # Ok::<(), tidegate_limits::pace::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceSpec {
    /// Operations per second.
    pub rate: Rate,
    /// How many times the rate a late caller gets. The default is 1.1.
    pub ratio: BurstRatio,
    /// The change to make to the limiter. The default is [`Verb::Start`].
    pub verb: Verb,
    /// How many share it. The default is [`SpecScope::Activity`].
    pub scope: SpecScope,
}

/// A change to a limiter when its numbers are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// Change the numbers, and leave what is in the pools.
    Configure,
    /// Start it; an error if it runs.
    #[default]
    Start,
    /// Start it again, running or not.
    Restart,
    /// Stop the accrual of time.
    Stop,
}

/// How many share a limiter. It is for the code that creates limiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecScope {
    /// All together.
    #[default]
    Activity,
    /// Every thread has its own.
    Thread,
}

/// Why a line is no specification.
#[derive(Clone, Debug, PartialEq)]
pub enum SpecError {
    /// There is nothing in it.
    Empty,
    /// The field of the rate is no number.
    RateNotANumber {
        /// The text found.
        given: Box<str>,
    },
    /// The rate or the ratio is out of range.
    OutOfRange(OutOfRange),
    /// A word that is neither a ratio, a verb nor a scope, or comes too late to be one.
    UnknownWord {
        /// The text found.
        given: Box<str>,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str(
                "a rate is missing: operations per second, such as \"12000\" or \"12000,1.1\"",
            ),
            Self::RateNotANumber { given } => write!(
                f,
                "the rate must be a number of operations per second such as 12000, 12K or 60/m, \
                 not {given:?}"
            ),
            Self::OutOfRange(_) => f.write_str("a number is out of range"),
            Self::UnknownWord { given } => write!(
                f,
                "after the rate come a burst ratio, then one of configure, start, restart and \
                 stop, then activity or thread, not {given:?}"
            ),
        }
    }
}

impl core::error::Error for SpecError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::OutOfRange(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<OutOfRange> for SpecError {
    fn from(cause: OutOfRange) -> Self {
        Self::OutOfRange(cause)
    }
}

impl FromStr for PaceSpec {
    type Err = SpecError;

    fn from_str(line: &str) -> Result<Self, SpecError> {
        if line.trim().is_empty() {
            return Err(SpecError::Empty);
        }
        let mut words = line.split([',', ':', ';']).map(str::trim).peekable();
        let rate = rate(words.next().unwrap_or_default())?;
        let ratio = match words.peek().and_then(|word| word.parse().ok()) {
            Some(times) => {
                words.next();
                BurstRatio::new(times)?
            }
            None => BurstRatio::default(),
        };
        let verb = next_known(&mut words, &VERBS).unwrap_or_default();
        let scope = next_known(&mut words, &SCOPES).unwrap_or_default();
        match words.next() {
            None => Ok(Self {
                rate,
                ratio,
                verb,
                scope,
            }),
            Some(word) => Err(SpecError::UnknownWord { given: word.into() }),
        }
    }
}

const VERBS: [(&str, Verb); 4] = [
    ("configure", Verb::Configure),
    ("start", Verb::Start),
    ("restart", Verb::Restart),
    ("stop", Verb::Stop),
];

const SCOPES: [(&str, SpecScope); 2] = [
    ("activity", SpecScope::Activity),
    ("thread", SpecScope::Thread),
];

/// Takes the next word if it is one of these, and returns what it means.
fn next_known<'a, T: Copy>(
    words: &mut Peekable<impl Iterator<Item = &'a str>>,
    known: &[(&str, T)],
) -> Option<T> {
    let word = words.peek()?;
    let (_, meaning) = *known.iter().find(|(name, _)| name == word)?;
    words.next();
    Some(meaning)
}

fn rate(word: &str) -> Result<Rate, SpecError> {
    let (number, seconds) = match word.split_once('/').map(|(n, unit)| (n, unit.trim())) {
        None => (word, Some(1.0)),
        Some((number, "s")) => (number, Some(1.0)),
        Some((number, "m")) => (number, Some(60.0)),
        Some((number, "h")) => (number, Some(3600.0)),
        Some((number, _)) => (number, None),
    };
    match (count(number.trim()), seconds) {
        (Some(count), Some(seconds)) => Ok(Rate::new(count / seconds)?),
        _ => Err(SpecError::RateNotANumber { given: word.into() }),
    }
}

/// A number with a suffix, if it has one.
fn count(word: &str) -> Option<f64> {
    let (number, times) = match word.char_indices().next_back()? {
        (end, 'K' | 'k') => (&word[..end], 1e3),
        (end, 'M') => (&word[..end], 1e6),
        (end, 'B' | 'G') => (&word[..end], 1e9),
        (end, 'T') => (&word[..end], 1e12),
        _ => (word, 1.0),
    };
    let number: f64 = number.trim().parse().ok()?;
    Some(number * times)
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[track_caller]
    fn check(line: &str, rate: f64, ratio: f64, verb: Verb, scope: SpecScope) {
        let spec: PaceSpec = line.parse().unwrap_or_else(|error| {
            panic!("{line:?}: {error}");
        });
        assert_eq!(
            (spec.rate.get(), spec.ratio.get(), spec.verb, spec.scope),
            (rate, ratio, verb, scope),
            "{line:?}"
        );
    }

    #[test]
    fn lines_of_the_sources_are_read_as_there() {
        use SpecScope::{Activity, Thread};
        use Verb::{Configure, Restart, Start};
        check("523", 523.0, 1.1, Start, Activity);
        check("12345,1.3", 12345.0, 1.3, Start, Activity);
        check("12345,1.4,configure", 12345.0, 1.4, Configure, Activity);
        check("12345,1.4,restart", 12345.0, 1.4, Restart, Activity);
        check("12345,1.1", 12345.0, 1.1, Start, Activity);
        check("12345", 12345.0, 1.1, Start, Activity);
        check("12345,1.4", 12345.0, 1.4, Start, Activity);
        check("12345,configure", 12345.0, 1.1, Configure, Activity);
        check("12345,thread", 12345.0, 1.1, Start, Thread);
        check("12345,1.4,thread", 12345.0, 1.4, Start, Thread);
        check(
            "12345,configure,activity",
            12345.0,
            1.1,
            Configure,
            Activity,
        );

        check("0.000001", 1e-6, 1.1, Start, Activity);
        check("10000000", 1e7, 1.1, Start, Activity);
        check(" 1000 , 1.1 , start ", 1000.0, 1.1, Start, Activity);
        check("42", 42.0, 1.1, Start, Activity);
        check("500, 1.5", 500.0, 1.5, Start, Activity);
        check("1000, 1.1, restart", 1000.0, 1.1, Restart, Activity);
    }

    #[test]
    fn a_rate_may_say_its_unit_of_time() {
        for (word, per_second) in [
            ("100", 100.0),
            ("12.5", 12.5),
            ("100/s", 100.0),
            ("100 /s", 100.0),
            (" 0.5/s ", 0.5),
            ("60/m", 1.0),
            ("1/m", 1.0 / 60.0),
            ("3600/h", 1.0),
        ] {
            check(word, per_second, 1.1, Verb::Start, SpecScope::Activity);
        }
        for wrong in [
            "", "   ", "/s", "0", "-1/s", "abc", "inf", "NaN", "1/d", "1/",
        ] {
            assert!(wrong.parse::<PaceSpec>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn separators_suffixes_and_exponents_are_read() {
        let (start, all) = (Verb::Start, SpecScope::Activity);
        check("500:1.5", 500.0, 1.5, start, all);
        check("500;1.5:stop", 500.0, 1.5, Verb::Stop, all);
        check("12K,2", 12_000.0, 2.0, start, all);
        check("1.5M", 1_500_000.0, 1.1, start, all);
        check("1G", 1e9, 1.1, start, all);
        check("0.5B", 5e8, 1.1, start, all);
        check("1E6", 1e6, 1.1, start, all);
        check("0.000001T", 1e6, 1.1, start, all);
    }

    #[test]
    fn each_mistake_has_an_error_of_its_own() {
        let error = |line: &str| line.parse::<PaceSpec>().expect_err(line);
        assert_eq!(error(""), SpecError::Empty);
        assert_eq!(error(" "), SpecError::Empty);
        for no_number in ["abc", ",1.1", "1 000", "K", "0x10"] {
            let error = error(no_number);
            assert!(
                matches!(error, SpecError::RateNotANumber { .. }),
                "{no_number:?}: {error:?}"
            );
        }
        for (line, what) in [
            ("0", "rate"),
            ("-1", "rate"),
            ("-100", "rate"),
            ("NaN", "rate"),
            ("inf", "rate"),
            ("2T", "rate"),
            ("100,0", "burst ratio"),
            ("100,0.9", "burst ratio"),
            ("100,-1", "burst ratio"),
            ("100,NaN", "burst ratio"),
            ("100,inf", "burst ratio"),
        ] {
            match error(line) {
                SpecError::OutOfRange(error) => assert_eq!(error.what, what, "{line:?}"),
                other => panic!("{line:?}: {other:?}"),
            }
        }
        for unknown in [
            "100,1.1,bogus",
            "100,bogus",
            "100,",
            "100,1.1,start,activity,more",
            "100,thread,start",
            "100,start,1.1",
        ] {
            let error = error(unknown);
            assert!(
                matches!(error, SpecError::UnknownWord { .. }),
                "{unknown:?}: {error:?}"
            );
            let last = unknown.rsplit(',').next().unwrap_or_default();
            if unknown.matches(',').count() < 3 && !unknown.starts_with("100,start") {
                assert!(
                    format!("{error}").ends_with(&format!("not {last:?}")),
                    "{error}"
                );
            }
        }
    }
}
