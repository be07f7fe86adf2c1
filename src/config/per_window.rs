//! `smapi_rate_limit_per_window`: `"total:30, guest_list:10"` as in sdkserver, or a table.

use super::problem::Place;
use super::reader::{At, Section, Setting};
use super::tree::{Node, Value, quoted};
use super::value::{Mistake, integer};

/// Largest number of calls that a limit may allow.   calls
pub(super) const CALLS_MAX: u32 = 1_000_000;

/// Most functions that can have a limit of their own; each is a label in the metrics.
const FUNCTIONS_MAX: usize = 256;

/// The name that stands for all functions together.
const TOTAL: &str = "total";

/// The numbers as they were given; 0 switches one off.
pub(super) struct PerWindow {
    /// Where the value as a whole stands.
    pub(super) at: At,
    /// Whether it was given at all.
    pub(super) given: bool,
    /// Whether all of it could be read.
    pub(super) sound: bool,
    pub(super) total: Option<Setting<u32>>,
    /// By function, in the order of the config.
    pub(super) functions: Vec<(String, Setting<u32>)>,
}

/// Reads it from its section.
pub(super) fn read(section: &mut Section<'_>) -> PerWindow {
    let notes = section.notes();
    let allowed = "\"total:N, function:N, …\" or { total = N, function = N, … }";
    let (node, at, trusted) = section.bare("smapi_rate_limit_per_window", allowed);
    let mut this = PerWindow {
        at,
        given: node.is_some(),
        sound: trusted,
        total: None,
        functions: Vec::new(),
    };
    let Some(node) = node.filter(|_| trusted) else {
        return this;
    };
    let mut mistakes = Vec::new();
    match &node.value {
        Value::Text(text) => this.take_text(text, &node.place, &mut mistakes),
        Value::Table(table) => {
            for (name, number) in table {
                let at = At {
                    key: format!("{}.{name}", this.at.key),
                    place: number.place.clone(),
                };
                this.take(name, number, at, &mut mistakes);
            }
        }
        _ => mistakes.push((
            this.at.clone(),
            Mistake::new(
                format!("{} is neither a string nor a table", node.told()),
                "give a string such as \"total:30, guest_list:10\", or { total = 30, guest_list = 10 }",
            ),
        )),
    }
    if this.functions.len() > FUNCTIONS_MAX {
        let told = format!("{} functions have a limit", this.functions.len());
        let cure = format!("give at most {FUNCTIONS_MAX}");
        mistakes.push((this.at.clone(), Mistake::new(told, cure)));
    }
    this.sound = mistakes.is_empty();
    for (at, mistake) in mistakes {
        notes.error(&at, mistake);
    }
    this
}

impl PerWindow {
    /// `total:30, guest_list:10`, with spaces anywhere around names and numbers, as the
    /// original takes them.
    fn take_text(&mut self, text: &str, place: &Place, mistakes: &mut Vec<(At, Mistake)>) {
        const FORM: &str = "write it as \"total:30, guest_list:10\"";
        let mut offset = 0;
        for entry in text.split(',') {
            let at = At {
                key: self.at.key.clone(),
                place: part_of(place, text, offset, entry),
            };
            offset += entry.len() + 1;
            if entry.trim().is_empty() {
                let mistake = if text.trim().is_empty() {
                    Mistake::new("the value is empty", FORM)
                } else if offset > text.len() {
                    Mistake::new("nothing follows the last comma", "leave that comma out")
                } else {
                    Mistake::new("nothing stands between two commas", "leave one comma out")
                };
                mistakes.push((at, mistake));
                continue;
            }
            let Some((name, number)) = entry.split_once(':') else {
                let alone = entry.trim();
                let is_number = alone.bytes().all(|byte| byte.is_ascii_digit());
                let (told, meant) = if is_number {
                    let told = format!("it is not said what {} is the limit of", quoted(alone));
                    (told, format!("{TOTAL}:{alone}"))
                } else {
                    let told = format!("{} has no number", quoted(alone));
                    (told, format!("{alone}:30"))
                };
                let cure = format!("write {}", quoted(&meant));
                mistakes.push((at, Mistake::new(told, cure)));
                continue;
            };
            let (name, number) = (name.trim(), number.trim());
            let Ok(calls) = number.parse() else {
                let told = if number.is_empty() {
                    format!("{} has no number", quoted(name))
                } else {
                    format!("{} of {} is not an integer", quoted(number), quoted(name))
                };
                let cure = format!("give 0 to {CALLS_MAX}; {FORM}");
                mistakes.push((at, Mistake::new(told, cure)));
                continue;
            };
            let node = Node {
                place: at.place.clone(),
                name: at.place.clone(),
                value: Value::Integer(calls),
                letters: None,
            };
            self.take(name, &node, at, mistakes);
        }
    }

    /// One limit.
    fn take(&mut self, name: &str, number: &Node, at: At, mistakes: &mut Vec<(At, Mistake)>) {
        let calls = match (integer(0..=CALLS_MAX).read)(number) {
            Ok(calls) => calls,
            Err(mistake) => {
                let told = format!("{}: {}", quoted(name), mistake.message);
                let cure = format!("{}; 0 switches the limit off", mistake.cure);
                mistakes.push((at, Mistake::new(told, cure)));
                return;
            }
        };
        if let Err(mistake) = function_name(name) {
            mistakes.push((at, mistake));
            return;
        }
        let before = match name {
            TOTAL => self.total.is_some(),
            _ => self.functions.iter().any(|(other, _)| other == name),
        };
        if before {
            let told = format!("{} is given twice", quoted(name));
            mistakes.push((at, Mistake::new(told, "leave one of the two out")));
            return;
        }
        let setting = Setting {
            value: calls,
            at,
            given: true,
            sound: true,
        };
        if name == TOTAL {
            self.total = Some(setting);
        } else {
            self.functions.push((name.to_owned(), setting));
        }
    }
}

/// A function's name becomes a label of metrics and part of answers, so it is plain.
pub(super) fn function_name(name: &str) -> Result<(), Mistake> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        return Err(Mistake::new(
            "a function's name is empty",
            "write the name of a function before its number, such as \"guest_list:10\"",
        ));
    }
    if name.len() > 64 || !name.chars().all(plain) {
        return Err(Mistake::new(
            format!("{} is not the name of a function", quoted(name)),
            "give up to 64 letters, digits, \"_\", \"-\" or \".\"",
        ));
    }
    Ok(())
}

/// The place of one entry inside a string in the file. A string with escapes is longer
/// there than it is, so it stays whole.
fn part_of(place: &Place, text: &str, offset: usize, entry: &str) -> Place {
    let Place::File {
        line,
        column,
        start,
        end,
    } = *place
    else {
        return place.clone();
    };
    if end - start != text.len() + 2 || text.contains('\n') {
        return place.clone();
    }
    let blank = entry.len() - entry.trim_start().len();
    let skipped = 1 + text[..offset + blank].chars().count();
    let from = start + 1 + offset + blank;
    Place::File {
        line,
        column: column + skipped,
        start: from,
        end: from + entry.trim().len().max(1),
    }
}
