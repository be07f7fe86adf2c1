//! Takes keys out of a scenario file by name, notes every mistake with its line, and finally
//! reports the unknown keys.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::options::nearest;

/// One mistake in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// The path of the key, such as `arrivals.takes`; empty if the TOML itself is broken.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub cure: String,
}

/// Every mistake of one scenario file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    origin: String,
    list: Vec<Problem>,
}

impl Problems {
    /// The mistakes.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.list
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{}:{}: ", self.origin, problem.line, problem.column)?;
            if !problem.key.is_empty() {
                write!(f, "{}: ", problem.key)?;
            }
            write!(f, "{}\n  help: {}", problem.message, problem.cure)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A mistake in a value, before its place is known.
#[derive(Clone, Debug)]
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

/// Reads a file with `read`. Returns the result only if there was no mistake.
///
/// # Errors
///
/// Every mistake in the file.
pub(super) fn read_file<T>(
    origin: &str,
    text: &str,
    read: impl FnOnce(Section<'_>) -> Option<T>,
) -> Result<T, Problems> {
    let notes = Notes {
        text,
        problems: RefCell::default(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let cure =
            "write each line as key = value, with strings in quotes, and a section as [name]";
        let message = format!("not TOML: {}", error.message());
        notes.add(
            error.span().unwrap_or_default(),
            "",
            Mistake::new(message, cure),
        );
    }
    // What a broken file seems to contain is not worth a second complaint.
    let made = if errors.is_empty() {
        read(Section {
            table: table.get_ref(),
            span: 0..0,
            path: String::new(),
            asked: BTreeSet::new(),
            notes: &notes,
        })
    } else {
        None
    };
    let mut list = notes.problems.into_inner();
    list.sort();
    match made {
        Some(made) if list.is_empty() => Ok(made),
        _ => {
            assert!(!list.is_empty(), "what could not be read has a mistake");
            Err(Problems {
                origin: origin.to_owned(),
                list,
            })
        }
    }
}

/// The mistakes so far.
struct Notes<'a> {
    text: &'a str,
    problems: RefCell<Vec<Problem>>,
}

impl Notes<'_> {
    fn add(&self, span: Range<usize>, key: &str, mistake: Mistake) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.problems.borrow_mut().push(Problem {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: key.to_owned(),
            message: mistake.message,
            cure: mistake.cure,
        });
    }
}

/// A table of the file, and which of its keys were read.
pub(super) struct Section<'a> {
    table: &'a DeTable<'a>,
    span: Range<usize>,
    path: String,
    asked: BTreeSet<String>,
    notes: &'a Notes<'a>,
}

impl<'a> Section<'a> {
    /// The value of a key; `None` if it is missing or invalid. A mistake is noted.
    pub(super) fn read<T>(
        &mut self,
        key: &str,
        kind: impl Fn(&DeValue<'_>) -> Result<T, Mistake>,
    ) -> Option<T> {
        match kind(self.take(key)?) {
            Ok(value) => Some(value),
            Err(mistake) => {
                self.complain(key, mistake);
                None
            }
        }
    }

    /// A table inside this one.
    pub(super) fn section(&mut self, key: &str) -> Option<Section<'a>> {
        match self.take(key)? {
            DeValue::Table(table) => Some(self.inside(key, table, self.span_of(key))),
            _ => {
                let cure = format!("write it as a section: [{}]", self.path_of(key));
                self.complain(key, Mistake::new("it is not a table", cure));
                None
            }
        }
    }

    /// A list of tables inside this one; empty if it is missing.
    pub(super) fn sections(&mut self, key: &str) -> Vec<Section<'a>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let cure = || format!("write each entry as a section: [[{}]]", self.path_of(key));
        let DeValue::Array(list) = value else {
            self.complain(key, Mistake::new("it is not a list of tables", cure()));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for entry in list.iter() {
            match entry.get_ref() {
                DeValue::Table(table) => sections.push(self.inside(key, table, entry.span())),
                _ => self.complain(key, Mistake::new("an entry is not a table", cure())),
            }
        }
        sections
    }

    /// Keys that hold a table and were not read.
    pub(super) fn other_sections(&self) -> Vec<String> {
        let other = self.table.iter().filter(|(key, value)| {
            matches!(value.get_ref(), DeValue::Table(_))
                && !self.asked.contains(key.get_ref().as_ref())
        });
        other.map(|(key, _)| key.get_ref().to_string()).collect()
    }

    /// Notes that a key is wrong. For a missing key the place is the beginning of its section.
    pub(super) fn complain(&self, key: &str, mistake: Mistake) {
        self.notes
            .add(self.span_of(key), &self.path_of(key), mistake);
    }

    /// Whether a key is present, valid or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Notes that something is wrong at a place that is known.
    pub(super) fn complain_at(&self, line: usize, column: usize, key: String, mistake: Mistake) {
        let Mistake { message, cure } = mistake;
        self.notes.problems.borrow_mut().push(Problem {
            line,
            column,
            key,
            message,
            cure,
        });
    }

    /// Complains about every key that was not read.
    pub(super) fn finish(self) {
        let is_unknown = |key: &str| !self.asked.contains(key);
        for (key, _) in self
            .table
            .iter()
            .filter(|(key, _)| is_unknown(key.get_ref()))
        {
            let known = self.asked.iter().map(String::as_str);
            let cure = match nearest(key.get_ref(), known.clone()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("known here: {}", known.collect::<Vec<_>>().join(", ")),
            };
            let message = "no such key";
            self.notes.add(
                key.span(),
                &self.path_of(key.get_ref()),
                Mistake::new(message, cure),
            );
        }
    }

    fn inside(&self, key: &str, table: &'a DeTable<'a>, span: Range<usize>) -> Self {
        Section {
            table,
            span,
            path: self.path_of(key),
            asked: BTreeSet::new(),
            notes: self.notes,
        }
    }

    fn find(&self, key: &str) -> Option<(Range<usize>, &'a DeValue<'a>)> {
        let (name, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        let span = match value.get_ref() {
            // The name of a table is a better place for the message than its body.
            DeValue::Table(_) | DeValue::Array(_) => name.span(),
            _ => value.span(),
        };
        Some((span, value.get_ref()))
    }

    fn take(&mut self, key: &str) -> Option<&'a DeValue<'a>> {
        self.asked.insert(key.to_owned());
        self.find(key).map(|(_, value)| value)
    }

    fn span_of(&self, key: &str) -> Range<usize> {
        self.find(key)
            .map_or_else(|| self.span.clone(), |(span, _)| span)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }
}

/// A string.
pub(super) fn text(value: &DeValue<'_>) -> Result<String, Mistake> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Mistake::new("it is not a string", "write it in quotes")),
    }
}

/// A name: a string that is neither empty nor long.
pub(super) fn name(value: &DeValue<'_>) -> Result<String, Mistake> {
    let name = text(value)?;
    if name.is_empty() || name.len() > 64 {
        let cure = "give a name of 1 to 64 bytes";
        return Err(Mistake::new(format!("{name:?} is not a name"), cure));
    }
    Ok(name)
}

/// A whole number in a range.
pub(super) fn integer<T>(range: RangeInclusive<T>) -> impl Fn(&DeValue<'_>) -> Result<T, Mistake>
where
    T: TryFrom<i64> + PartialOrd + fmt::Display,
{
    move |value| {
        let cure = format!(
            "give a whole number from {} to {}",
            range.start(),
            range.end()
        );
        let number = match value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => return Err(Mistake::new("it is not a whole number", cure)),
        };
        number
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| Mistake::new("it is out of range", cure))
    }
}

/// A number, whole or not, that is not negative.
pub(super) fn number(value: &DeValue<'_>) -> Result<f64, Mistake> {
    let number = match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number as f64),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    };
    number
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| Mistake::new("it is not a number from 0 up", "give a number such as 9.3"))
}

/// One of several words.
pub(super) fn choice<T: Copy>(words: &[(&str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, Mistake> {
    move |value| {
        let given = value.as_str();
        let found = words.iter().find(|(word, _)| Some(*word) == given);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let list: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            let message = match given {
                Some(given) => format!("{given:?} is not known here"),
                None => "it is not a string".to_owned(),
            };
            Mistake::new(message, format!("give {}", list.join(" or ")))
        })
    }
}

const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// The longest time in a scenario.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A time with its unit, such as `"50ms"`.
pub(super) fn duration(value: &DeValue<'_>) -> Result<Duration, Mistake> {
    const CURE: &str = "give a whole number and a unit (ms, s, m, h) in quotes, such as \"50ms\"";
    let Some(given) = value.as_str() else {
        return Err(Mistake::new("it is not a time with a unit", CURE));
    };
    let digits = given.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = (&given[..digits], given[digits..].trim_start());
    let wrong = || Mistake::new(format!("{given:?} is not a time with a unit"), CURE);
    let (_, millis) = TIME_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let time = Duration::from_millis(number.saturating_mul(*millis));
    if time > TIME_MAX {
        return Err(Mistake::new(
            format!("{given:?} is too long"),
            "give at most 30 days (720h)",
        ));
    }
    Ok(time)
}

/// A time above zero.
pub(super) fn duration_above_zero(value: &DeValue<'_>) -> Result<Duration, Mistake> {
    let time = duration(value)?;
    if time.is_zero() {
        return Err(Mistake::new("it is zero", "give a time above zero"));
    }
    Ok(time)
}

/// A time, or the minimum and maximum of a range of times.
pub(super) fn time_or_span(value: &DeValue<'_>) -> Result<(Duration, Duration), Mistake> {
    match value {
        DeValue::Array(_) => time_span(value),
        _ => duration(value).map(|time| (time, time)),
    }
}

/// The minimum and maximum of a range of times, such as `["1s", "3s"]`.
pub(super) fn time_span(value: &DeValue<'_>) -> Result<(Duration, Duration), Mistake> {
    const CURE: &str = "give the shortest and the longest, such as [\"40ms\", \"60ms\"]";
    let bounds: Result<Vec<Duration>, _> = match value {
        DeValue::Array(list) => list.iter().map(|time| duration(time.get_ref())).collect(),
        _ => Err(Mistake::new("it is not a list of two times", CURE)),
    };
    match bounds?[..] {
        [min, max] if min <= max => Ok((min, max)),
        [_, _] => Err(Mistake::new("the first is longer than the second", CURE)),
        _ => Err(Mistake::new("it is not a list of two times", CURE)),
    }
}
