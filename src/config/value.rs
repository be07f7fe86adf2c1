//! The kinds of values that options have, each with what it allows in words: durations and
//! sizes with their units, integers, flags, choices, texts.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::nearest::nearest;
use super::tree::{Node, Value, quoted};

/// What was wrong with a value, and what would be right.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) message: String,
    pub(super) cure: String,
}

impl Mistake {
    pub(super) fn new(message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            cure: cure.into(),
        }
    }
}

/// Reads a value of one kind.
type Read<T> = Box<dyn Fn(&Node) -> Result<T, Mistake>>;

/// How a value of one kind is read, and what it may be.
pub(super) struct Kind<T> {
    /// In words, as in config.toml.example: `1 to 64`.
    pub(super) allowed: String,
    pub(super) read: Read<T>,
}

impl<T: 'static> Kind<T> {
    /// The same, for an option that may be absent.
    pub(super) fn optional(self) -> Kind<Option<T>> {
        let read = self.read;
        Kind {
            allowed: self.allowed,
            read: Box::new(move |node| read(node).map(Some)),
        }
    }
}

/// A whole number.
pub(super) fn integer<T>(range: RangeInclusive<T>) -> Kind<T>
where
    T: Copy + Display + TryFrom<i128> + PartialOrd + 'static,
{
    let allowed = format!("{} to {}", range.start(), range.end());
    let words = allowed.clone();
    let read = move |node: &Node| {
        let Value::Integer(number) = node.value else {
            return Err(Mistake::new(
                format!("{} is not an integer", node.told()),
                format!("give a number, {words}, without quotes"),
            ));
        };
        match T::try_from(number) {
            Ok(fits) if range.contains(&fits) => Ok(fits),
            _ => Err(Mistake::new(
                format!("{number} is out of range"),
                format!("give {words}"),
            )),
        }
    };
    Kind {
        allowed,
        read: Box::new(read),
    }
}

/// A number that may have a fraction; `take` says whether it is one of those `allowed`.
pub(super) fn number<T: 'static>(
    allowed: &str,
    take: impl Fn(f64) -> Result<T, ()> + 'static,
) -> Kind<T> {
    let words = allowed.to_owned();
    let read = move |node: &Node| {
        let given = match &node.value {
            // Whole numbers beyond 2^53 are out of every range.
            Value::Integer(number) => Some(*number as f64),
            Value::Other(text) => text.replace('_', "").parse::<f64>().ok(),
            _ => None,
        };
        let Some(given) = given else {
            return Err(Mistake::new(
                format!("{} is not a number", node.told()),
                format!("give a number, {words}, without quotes"),
            ));
        };
        take(given).map_err(|()| {
            Mistake::new(
                format!("{} is out of range", node.told()),
                format!("give {words}"),
            )
        })
    };
    Kind {
        allowed: allowed.to_owned(),
        read: Box::new(read),
    }
}

/// `true` or `false`.
pub(super) fn flag() -> Kind<bool> {
    let read = |node: &Node| match node.value {
        Value::Boolean(flag) => Ok(flag),
        _ => Err(Mistake::new(
            format!("{} is neither true nor false", node.told()),
            "give true or false, without quotes",
        )),
    };
    Kind {
        allowed: "true or false".to_owned(),
        read: Box::new(read),
    }
}

/// One word of a few.
pub(super) fn choice<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> Kind<T> {
    let list: Vec<_> = words.iter().map(|(word, _)| quoted(word)).collect();
    let allowed = list.join(" | ");
    let told = allowed.clone();
    let read = move |node: &Node| {
        let Value::Text(given) = &node.value else {
            return Err(Mistake::new(
                format!("{} is not one of the words", node.told()),
                format!("give one of {told}"),
            ));
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == given) {
            return Ok(*value);
        }
        let cure = match nearest(given, words.iter().map(|(word, _)| *word)) {
            Some(word) => format!("did you mean {}? Give one of {told}", quoted(word)),
            None => format!("give one of {told}"),
        };
        Err(Mistake::new(
            format!("{} is not one of the words", quoted(given)),
            cure,
        ))
    };
    Kind {
        allowed,
        read: Box::new(read),
    }
}

/// A text that means something: `example` shows one.
pub(super) fn text<T: 'static>(
    allowed: &str,
    example: &'static str,
    parse: impl Fn(&str) -> Result<T, Mistake> + 'static,
) -> Kind<T> {
    let read = move |node: &Node| match node.text() {
        Some(text) => parse(text),
        None => Err(Mistake::new(
            format!("{} is not a string", node.told()),
            format!("give a string in quotes, such as {}", quoted(example)),
        )),
    };
    Kind {
        allowed: allowed.to_owned(),
        read: Box::new(read),
    }
}

/// A duration with its unit.
pub(super) fn duration(range: RangeInclusive<Duration>) -> Kind<Duration> {
    let allowed = format!(
        "{} to {}",
        show_duration(*range.start()),
        show_duration(*range.end())
    );
    let words = allowed.clone();
    let read = move |node: &Node| {
        let given = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            _ => {
                return Err(Mistake::new(
                    format!("{} is not a duration", node.told()),
                    "give a number and a unit in quotes, such as \"30s\"",
                ));
            }
        };
        let length = in_units(&given, &TIME_UNITS, "30s", 's').map(Duration::from_millis)?;
        if range.contains(&length) {
            Ok(length)
        } else {
            Err(Mistake::new(
                format!("{} is out of range", quoted(&given)),
                format!("give {words}"),
            ))
        }
    };
    Kind {
        allowed,
        read: Box::new(read),
    }
}

/// A size with its unit.
pub(super) fn size(range: RangeInclusive<u64>) -> Kind<u64> {
    let allowed = format!(
        "{} to {}",
        show_size(*range.start()),
        show_size(*range.end())
    );
    let words = allowed.clone();
    let read = move |node: &Node| {
        let given = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            _ => {
                return Err(Mistake::new(
                    format!("{} is not a size", node.told()),
                    "give a number and a unit in quotes, such as \"64KiB\"",
                ));
            }
        };
        let bytes = in_units(&given, &SIZE_UNITS, "64KiB", 'B')?;
        if range.contains(&bytes) {
            Ok(bytes)
        } else {
            Err(Mistake::new(
                format!("{} is out of range", quoted(&given)),
                format!("give {words}"),
            ))
        }
    };
    Kind {
        allowed,
        read: Box::new(read),
    }
}

/// Units and how many milliseconds each has, largest first.
const TIME_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Units and how many bytes each has, largest first.
const SIZE_UNITS: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A duration as the config writes it.
pub(super) fn show_duration(length: Duration) -> String {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    show_in_units(millis, &TIME_UNITS)
}

/// A size as the config writes it.
pub(super) fn show_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0B".to_owned();
    }
    show_in_units(bytes, &SIZE_UNITS)
}

/// In the largest unit that leaves no rest.
fn show_in_units(amount: u64, units: &[(&str, u64)]) -> String {
    let (unit, size) = units
        .iter()
        .find(|(_, size)| amount.is_multiple_of(*size))
        .expect("the smallest unit divides everything");
    format!("{}{unit}", amount / size)
}

/// Reads a number and its unit; `usual` is the unit that a bare number probably meant.
fn in_units(
    given: &str,
    units: &[(&str, u64)],
    example: &str,
    usual: char,
) -> Result<u64, Mistake> {
    let list: Vec<_> = units.iter().rev().map(|(unit, _)| *unit).collect();
    let list = list.join(", ");
    let trimmed = given.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim_start());
    let wrong = |message: String| {
        let cure =
            format!("give a whole number and a unit ({list}) in quotes, such as {example:?}");
        Mistake::new(message, cure)
    };
    if number.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err(wrong(format!(
            "{} is not a whole number with a unit",
            quoted(given)
        )));
    }
    if unit.is_empty() {
        return Err(Mistake::new(
            format!("{trimmed} has no unit"),
            format!("write the unit ({list}) in quotes, such as \"{trimmed}{usual}\""),
        ));
    }
    let Some((_, size)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(wrong(format!("{} has an unknown unit", quoted(given))));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*size))
        .ok_or_else(|| wrong(format!("{} is too large", quoted(given))))
}
