//! Where something is in a config: lines and columns of a file, or a variable.

use std::ops::Range;
use std::sync::Arc;

/// The place of something in a config. Problems are reported in this order: those without a line
/// first, then down the file, then the variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigPlace {
    /// Nowhere: something is missing.
    #[default]
    Whole,
    /// In the file.
    File {
        /// Counted from 1.
        line: usize,
        /// In characters, counted from 1.
        column: usize,
        /// First byte in the file.
        start: usize,
        /// First byte after it.
        end: usize,
    },
    /// In an environment variable, by its name.
    Variable(Arc<str>),
}

impl ConfigPlace {
    /// The first byte in the file, if it is in the file.
    pub(super) fn start(&self) -> Option<usize> {
        match self {
            Self::File { start, .. } => Some(*start),
            Self::Whole | Self::Variable(_) => None,
        }
    }
}

/// The path and the place of an option.
#[derive(Clone, Debug, Default)]
pub struct LocatedKey {
    /// The path of the place: `listen[0].bind`.
    pub key: String,
    /// The place in the file or in the environment.
    pub place: ConfigPlace,
}

impl LocatedKey {
    /// A key and its place.
    pub fn new(key: impl Into<String>, place: &ConfigPlace) -> Self {
        let (key, place) = (key.into(), place.clone());
        Self { key, place }
    }

    /// The place of something inside it.
    pub fn inside(&self, key: &str) -> Self {
        Self::new(join(&self.key, key), &self.place)
    }

    /// The place of a part of its value. An empty key is the key of the whole value.
    pub fn part(&self, part: &Self) -> Self {
        Self::new(join(&self.key, &part.key), &part.place)
    }
}

/// A key inside of a section, as a path.
pub(super) fn join(path: &str, key: &str) -> String {
    let dot = if path.is_empty() || key.is_empty() {
        ""
    } else {
        "."
    };
    format!("{path}{dot}{key}")
}

/// The place itself, or that of the character which it is in.
fn at_character(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Where each line begins.
fn starts(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

/// Turns byte offsets of a text into lines and columns.
pub struct LineIndex<'a> {
    text: &'a str,
    starts: Vec<usize>,
    /// The file and where its lines begin, where the text is a repaired form of it.
    file: Option<(&'a str, Vec<usize>)>,
    /// Bytes of the text that a repair added, in their order.
    added: &'a [usize],
}

impl<'a> LineIndex<'a> {
    /// The lines of a text.
    pub fn of(text: &'a str) -> Self {
        Self {
            text,
            starts: starts(text),
            file: None,
            added: &[],
        }
    }

    /// The lines of a repaired form of a file, which has the same lines: places are those of the file. `added` are
    /// the bytes that the file does not have, in their order.
    pub fn repaired(text: &'a str, file: &'a str, added: &'a [usize]) -> Self {
        Self {
            file: Some((file, starts(file))),
            added,
            ..Self::of(text)
        }
    }

    /// The byte of the file that a byte of the text stands for, at the boundary of a character: a repair may have
    /// changed the rest of the line.
    fn in_file(&self, at: usize) -> usize {
        let Some((file, starts)) = &self.file else {
            return at;
        };
        let line = self.starts.partition_point(|&start| start <= at) - 1;
        let from = starts.get(line).copied().unwrap_or(file.len());
        let end = starts.get(line + 1).copied().unwrap_or(file.len());
        let offset = at - self.starts[line];
        let in_line = (from + offset - self.added_in(self.starts[line]..at)).min(end);
        at_character(file, in_line)
    }

    /// How many bytes of a range a repair added.
    fn added_in(&self, range: Range<usize>) -> usize {
        let before = |end: usize| self.added.partition_point(|at| *at < end);
        before(range.end) - before(range.start)
    }

    /// The place of a range of bytes, brought to character boundaries.
    pub fn place(&self, span: Range<usize>) -> ConfigPlace {
        let start = at_character(self.text, span.start.min(self.text.len()));
        let mut end = span.end.clamp(start, self.text.len());
        while !self.text.is_char_boundary(end) {
            end += 1;
        }
        let line = self.starts.partition_point(|&at| at <= start);
        let first = self.starts[line - 1];
        let column = self.text[first..start].chars().count() - self.added_in(first..start) + 1;
        ConfigPlace::File {
            line,
            column,
            start: self.in_file(start),
            end: self.in_file(end),
        }
    }

    /// The first byte of a line, and the line without its end, by its number.
    pub fn line(&self, number: usize) -> (usize, &'a str) {
        let start = self.starts[number - 1];
        let end = self.starts.get(number).copied().unwrap_or(self.text.len());
        (start, self.text[start..end].trim_end_matches(['\r', '\n']))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_repaired_line_is_at_a_character_of_the_file() {
        let file = "[a\u{feff}\nb = 1\n";
        let lines = LineIndex::repaired("[ab]\nb = 1\n", file, &[]);
        for at in 0..lines.text.len() {
            let ConfigPlace::File { start, end, .. } = lines.place(at..at + 1) else {
                panic!("it is a place in a file");
            };
            assert!(start <= end && file.get(start..end).is_some(), "{at}");
        }
    }
}
