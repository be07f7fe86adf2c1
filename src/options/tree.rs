//! A config as a tree in which every value knows its place.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::place::ConfigPlace;
use super::shown::{quoted, shortened};

/// A value and its place.
#[derive(Clone, Debug)]
pub struct Node {
    /// The place in the file or in the environment.
    pub place: ConfigPlace,
    /// The place of its name, if it has one.
    pub name: ConfigPlace,
    /// The value at this place.
    pub value: ConfigValue,
    /// The text of a variable: where a string is required, `12` is one too.
    pub letters: Option<String>,
}

/// A table by its keys.
pub type Table = BTreeMap<String, Node>;

/// A value in a config.
#[derive(Clone, Debug)]
pub enum ConfigValue {
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
    pub fn new(place: ConfigPlace, value: ConfigValue) -> Self {
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
            ConfigValue::Text(text) => Some(text),
            ConfigValue::Integer(_) | ConfigValue::Boolean(_) | ConfigValue::Other(_) => {
                self.letters.as_deref()
            }
            ConfigValue::List(_) | ConfigValue::Table(_) => None,
        }
    }

    /// The table it is, if it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            ConfigValue::Table(table) => Some(table),
            _ => None,
        }
    }

    /// How to call it in a message: its value if that is short, else its kind.
    pub fn in_words(&self) -> String {
        match &self.value {
            ConfigValue::Text(text) => quoted(text),
            ConfigValue::Integer(number) => number.to_string(),
            ConfigValue::Boolean(flag) => flag.to_string(),
            ConfigValue::Other(text) => shortened(text),
            ConfigValue::List(_) => "an array".to_owned(),
            ConfigValue::Table(_) => "a table".to_owned(),
        }
    }
}

/// The tree of a parsed table; `place` turns bytes of the text into places.
pub fn of_table(table: &DeTable<'_>, place: &dyn Fn(Range<usize>) -> ConfigPlace) -> Table {
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

pub(crate) fn of_value(
    value: &DeValue<'_>,
    place: &dyn Fn(Range<usize>) -> ConfigPlace,
) -> ConfigValue {
    let item = |item: &Spanned<DeValue<'_>>| {
        Node::new(place(item.span()), of_value(item.get_ref(), place))
    };
    match value {
        DeValue::String(text) => ConfigValue::Text(text.to_string()),
        DeValue::Integer(number) => ConfigValue::Integer(
            i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX),
        ),
        DeValue::Float(number) => ConfigValue::Other(number.to_string()),
        DeValue::Boolean(flag) => ConfigValue::Boolean(*flag),
        DeValue::Datetime(date) => ConfigValue::Other(date.to_string()),
        DeValue::Array(list) => ConfigValue::List(list.iter().map(item).collect()),
        DeValue::Table(table) => ConfigValue::Table(of_table(table, place)),
    }
}
