//! A config as a tree in which every value knows its place.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::place::{Lines, Place};
use super::shown::{quoted, shortened};

/// A value and where it was said.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    /// Where its name stands, if it has one.
    pub(crate) name: Place,
    pub(crate) value: Value,
    /// What a variable says, letter by letter: where a string is wanted, `12` is one too.
    pub(crate) letters: Option<String>,
}

/// A table by its keys.
pub(crate) type Table = BTreeMap<String, Node>;

/// What a config can say.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    /// Too large for TOML is the largest here, so that it is out of every range.
    Integer(i128),
    Boolean(bool),
    /// A float or a date, which no option is, as it was written.
    Other(String),
    List(Vec<Node>),
    Table(Table),
}

impl Node {
    /// The string it is, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => self.letters.as_deref(),
            Value::List(_) | Value::Table(_) => None,
        }
    }

    /// How to call it in a message: its value if that is short, else its kind.
    pub(crate) fn told(&self) -> String {
        match &self.value {
            Value::Text(text) => quoted(text),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::Other(text) => shortened(text),
            Value::List(_) => "an array".to_owned(),
            Value::Table(_) => "a table".to_owned(),
        }
    }
}

/// The tree of a file that has been parsed.
pub(crate) fn of_file(table: &DeTable<'_>, lines: &Lines<'_>) -> Table {
    table
        .iter()
        .map(|(key, value)| {
            let name = lines.place(key.span());
            let place = match value.get_ref() {
                // A table's own span is that of its header, or nothing: its name says it better.
                DeValue::Table(_) => name.clone(),
                _ => lines.place(value.span()),
            };
            let node = Node {
                place,
                name,
                value: of_value(value.get_ref(), lines),
                letters: None,
            };
            (key.get_ref().to_string(), node)
        })
        .collect()
}

pub(crate) fn of_value(value: &DeValue<'_>, lines: &Lines<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX),
        ),
        DeValue::Float(number) => Value::Other(number.to_string()),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Other(date.to_string()),
        DeValue::Array(list) => Value::List(
            list.iter()
                .map(|item| Node {
                    place: lines.place(item.span()),
                    name: lines.place(item.span()),
                    value: of_value(item.get_ref(), lines),
                    letters: None,
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(of_file(table, lines)),
    }
}
