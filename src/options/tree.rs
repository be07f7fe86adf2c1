//! A config as a tree in which every value knows its place.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::place::Place;
use super::shown::{quoted, shortened};

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// The place in the file or in the environment.
    pub place: Place,
    /// The place of its name, if it has one.
    pub name: Place,
    /// The value at this place.
    pub value: Value,
    /// The text of a variable: where a string is required, `12` is one too.
    pub letters: Option<String>,
}

/// A table by its keys.
pub type Table = BTreeMap<String, Node>;

/// A value in a config.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    Text(String),
    /// Too large for TOML is the largest here, so that it is out of every range.
    Integer(i128),
    /// `true` or `false`.
    Boolean(bool),
    /// A float or a date, which no option is, as it was written.
    Other(String),
    /// Values in brackets.
    List(Vec<Node>),
    /// A section, or a table in one line.
    Table(Table),
}

impl Node {
    /// Without a name.
    pub fn new(place: Place, value: Value) -> Self {
        Self {
            name: place.clone(),
            place,
            value,
            letters: None,
        }
    }

    /// The string it is, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Integer(_) | Value::Boolean(_) | Value::Other(_) => self.letters.as_deref(),
            Value::List(_) | Value::Table(_) => None,
        }
    }

    /// The table it is, if it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// How to call it in a message: its value if that is short, else its kind.
    pub fn in_words(&self) -> String {
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

/// The tree of a parsed table; `place` turns bytes of the text into places.
pub fn of_table(table: &DeTable<'_>, place: &dyn Fn(Range<usize>) -> Place) -> Table {
    let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        let name = place(key.span());
        let whole = match value.get_ref() {
            // A table's own span is that of its header, or nothing: its name says it better.
            DeValue::Table(_) => name.clone(),
            _ => place(value.span()),
        };
        let node = Node::new(whole, of_value(value.get_ref(), place));
        (key.get_ref().to_string(), Node { name, ..node })
    };
    table.iter().map(entry).collect()
}

pub(crate) fn of_value(value: &DeValue<'_>, place: &dyn Fn(Range<usize>) -> Place) -> Value {
    let item = |item: &Spanned<DeValue<'_>>| {
        Node::new(place(item.span()), of_value(item.get_ref(), place))
    };
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Integer(
            i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX),
        ),
        DeValue::Float(number) => Value::Other(number.to_string()),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => Value::Other(date.to_string()),
        DeValue::Array(list) => Value::List(list.iter().map(item).collect()),
        DeValue::Table(table) => Value::Table(of_table(table, place)),
    }
}
