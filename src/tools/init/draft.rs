//! A config under way: each value with the reason for it.

use std::fmt::Write as _;

use crate::options::toml::string;

/// Width of a comment.   characters
const WIDTH: usize = 96;

/// A value of the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Number(u64),
    Text(String),
}

/// An option with its value and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    key: &'static str,
    value: Scalar,
    why: String,
}

/// A config, section by section in the order in which they are added.
#[derive(Debug, Default)]
pub(super) struct Draft {
    sections: Vec<(&'static str, Vec<Line>)>,
}

impl Draft {
    /// Adds an option to a section, such as `[limits]`.
    pub(super) fn set(
        &mut self,
        section: &'static str,
        key: &'static str,
        value: Scalar,
        why: impl Into<String>,
    ) {
        let line = Line {
            key,
            value,
            why: why.into(),
        };
        match self.sections.iter_mut().find(|(name, _)| *name == section) {
            Some((_, lines)) => lines.push(line),
            None => self.sections.push((section, vec![line])),
        }
    }

    /// The config as TOML.
    pub(super) fn text(&self) -> String {
        let mut text = "# Tidegate's first config, written by `tidegate init`. docs/reference/options.md has every option.\n"
            .to_owned();
        for (section, lines) in &self.sections {
            let _ = write!(text, "\n{section}\n");
            for Line { key, value, why } in lines {
                comment(&mut text, why);
                let value = match value {
                    Scalar::Number(number) => number.to_string(),
                    Scalar::Text(given) => string(given),
                };
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }
}

/// A comment in lines of a bounded width.
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.extend(word.chars().filter(|c| !c.is_control()));
    }
    if line.len() > 1 {
        let _ = writeln!(text, "{line}");
    }
}
