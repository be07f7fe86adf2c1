//! Durations and sizes: numbers with a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_runtime::measure::{DURATION, Measure, MeasureError, SIZE};

use super::{Mistake, ValueKind};
use crate::options::shown::{quoted, shortened};
use crate::options::toml::string;
use crate::options::tree::{ConfigValue, Node};

/// A duration with its unit, in whole milliseconds.
pub fn duration(range: RangeInclusive<Duration>) -> ValueKind<Duration> {
    let range = micros(range.start())..=micros(range.end());
    let kind = measured(&DURATION, MICROS_OF_MS, range);
    kind.map(Duration::from_micros, micros)
}

/// A size with its unit.
pub fn size<T>(range: RangeInclusive<u64>) -> ValueKind<T>
where
    T: Copy + TryFrom<u64> + TryInto<u64> + 'static,
{
    let fits = "a size is within its range";
    let to = move |bytes| T::try_from(bytes).ok().expect(fits);
    measured(&SIZE, 1, range).map(to, move |bytes: &T| (*bytes).try_into().ok().expect(fits))
}

/// The finest part of a duration in a config.   µs
const MICROS_OF_MS: u64 = 1000;

fn micros(length: &Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// A duration as the config writes it, such as `90s`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    DURATION.read(text).ok().map(Duration::from_micros)
}

/// A duration as the config writes it.
pub fn show_duration(length: Duration) -> String {
    DURATION.show(micros(&length))
}

/// A size as the config writes it.
pub fn show_size(bytes: u64) -> String {
    SIZE.show(bytes)
}

/// A number with a unit that is in a range and a multiple of `step`.
fn measured(measure: &'static Measure, step: u64, range: RangeInclusive<u64>) -> ValueKind<u64> {
    let (least, most) = (measure.show(*range.start()), measure.show(*range.end()));
    let words = format!("{least} to {most}");
    let allowed = format!("{}, {words}", measure.name);
    // A value that is right for this option, so that the cure can be taken as it is.
    let shown = [measure.example, &least, &most];
    let fits = |text: &&&str| measure.read(text).is_ok_and(|it| range.contains(&it));
    let example = shown
        .iter()
        .find(fits)
        .map_or_else(String::new, |it| quoted(it));
    let read = move |node: &Node| {
        let given = match &node.value {
            ConfigValue::Text(text) => text.clone(),
            ConfigValue::Integer(number) => number.to_string(),
            // A number with a fraction lacks its unit.
            ConfigValue::Other(text) => text.clone(),
            _ => {
                let cure = format!("give a number and a unit in quotes, such as {example}");
                return Err(Mistake::of(node, &format!("not a {}", measure.name), cure));
            }
        };
        let units = measure.list();
        let amount = measure.read(&given).map_err(|error| {
            let shown = match error {
                MeasureError::NoUnit => shortened(given.trim()),
                _ => quoted(&given),
            };
            let cause = format!("{shown} {}", error.in_words());
            let with_unit = format!("{}{}", given.trim(), measure.usual);
            let is_meant = measure.read(&with_unit).is_ok_and(|it| range.contains(&it));
            match error {
                MeasureError::NoUnit if is_meant => {
                    let cure = format!("write the unit ({units}) in quotes, such as {with_unit:?}");
                    Mistake::new(cause, cure)
                }
                _ => {
                    let cure =
                        format!("give a number and a unit ({units}) in quotes, such as {example}");
                    Mistake::new(cause, cure)
                }
            }
        })?;
        if !range.contains(&amount) {
            let cause = format!("{} is out of range", quoted(&given));
            return Err(Mistake::new(cause, format!("give {words}")));
        }
        if amount % step != 0 {
            let finest = measure.show(step);
            let cause = format!("{} is no multiple of {finest}", quoted(&given));
            let whole = measure.show((amount / step * step).max(*range.start()));
            return Err(Mistake::new(cause, format!("give one, such as {whole:?}")));
        }
        Ok(amount)
    };
    ValueKind::new(allowed, read, |amount| string(&measure.show(*amount)))
}
