//! YAML, and JSON which is YAML, as a tree in which every value knows its line.
//!
//! The parser tells where something stands only when it fails there. So the values are
//! numbered as they come, and the place of one that is complained about is found by parsing
//! again and failing at its number: complaints are few.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use tidegate::options::tree::{ConfigValue, Node, Table};
use tidegate::options::{ConfigPlace, LineIndex, Problem};

/// Complaints whose places are looked up; further ones have none.
const LOOKED_UP_MAX: usize = 100;

/// A parsed text.
pub(super) struct YamlDocument {
    /// The whole of it. Its places are numbers; [`locate`] turns them into lines.
    pub(super) root: Node,
    /// Keys that stand twice in one table, as the message about them needs them.
    pub(super) duplicates: Vec<(ConfigPlace, String)>,
}

/// Parses a text.
///
/// # Errors
///
/// The one mistake at which the parser stopped, with its line.
pub(super) fn parse(text: &str) -> Result<YamlDocument, Box<Problem>> {
    let numbers = ValueCounter::default();
    match walk(text, &numbers) {
        Ok(root) => Ok(YamlDocument {
            root,
            duplicates: numbers.duplicates.into_inner(),
        }),
        Err(error) => {
            let cause = error.to_string();
            // The place is reported beside the message.
            let message = cause.split(" at line ").next().unwrap_or(&cause);
            let cause = format!("neither YAML nor JSON: {message}");
            let cure = "write it as resources: and below it one \"- identifier_glob: …\" for each";
            let place = place_of(text, &error).unwrap_or(ConfigPlace::Whole);
            Err(Box::new(Problem::error(place, "", cause, cure)))
        }
    }
}

/// Gives every problem its line.
pub(super) fn locate(text: &str, problems: &mut [Problem]) {
    for (index, problem) in problems.iter_mut().enumerate() {
        let ConfigPlace::File { start: number, .. } = problem.place else {
            continue;
        };
        problem.place = (index < LOOKED_UP_MAX)
            .then(|| {
                let numbers = ValueCounter {
                    stop: Some(number),
                    ..ValueCounter::default()
                };
                let stopped = walk(text, &numbers).err()?;
                place_of(text, &stopped)
            })
            .flatten()
            .unwrap_or(ConfigPlace::Whole);
    }
}

fn walk(text: &str, numbers: &ValueCounter) -> Result<Node, serde_yaml_ng::Error> {
    NodeSeed(numbers).deserialize(serde_yaml_ng::Deserializer::from_str(text))
}

/// The word at which the parser stopped.
fn place_of(text: &str, error: &serde_yaml_ng::Error) -> Option<ConfigPlace> {
    let at = error.location()?;
    let lines = LineIndex::of(text);
    let number = at.line().clamp(1, text.lines().count().max(1));
    let (start, line) = lines.line(number);
    // Counted in characters.
    let skipped = line.char_indices().nth(at.column().saturating_sub(1));
    let from = skipped.map_or(line.len(), |(byte, _)| byte);
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}');
    let rest = &line[from..];
    let length = rest.find(ends).unwrap_or(rest.len());
    Some(lines.place(start + from..start + from + length))
}

/// How many values have come, and at which to stop.
#[derive(Default)]
struct ValueCounter {
    come: Cell<usize>,
    stop: Option<usize>,
    duplicates: RefCell<Vec<(ConfigPlace, String)>>,
}

impl ValueCounter {
    /// The place that stands for the next value.
    fn next<E: serde::de::Error>(&self) -> Result<ConfigPlace, E> {
        let number = self.come.get();
        self.come.set(number + 1);
        if self.stop == Some(number) {
            return Err(E::custom("here"));
        }
        Ok(ConfigPlace::File {
            line: number,
            column: 0,
            start: number,
            end: number,
        })
    }
}

/// Reads one value.
#[derive(Clone, Copy)]
struct NodeSeed<'a>(&'a ValueCounter);

impl NodeSeed<'_> {
    fn node<E: serde::de::Error>(self, value: ConfigValue) -> Result<Node, E> {
        let place = self.0.next()?;
        Ok(Node::new(place, value))
    }
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<Node, E> {
        self.node(ConfigValue::Boolean(flag))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Node, E> {
        self.node(ConfigValue::Integer(number.into()))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Node, E> {
        self.node(ConfigValue::Integer(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Node, E> {
        self.node(ConfigValue::Other(number.to_string()))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Node, E> {
        self.node(ConfigValue::Text(text.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Node, E> {
        self.node(ConfigValue::Other("null".to_owned()))
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut node = self.node(ConfigValue::List(Vec::new()))?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        node.value = ConfigValue::List(list);
        Ok(node)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut node = self.node(ConfigValue::Table(Table::new()))?;
        let mut table = Table::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let Some(name) = key.text().map(str::to_owned) else {
                return Err(A::Error::custom(format!("{} is no key", key.in_words())));
            };
            let mut value = entries.next_value_seed(self)?;
            value.name = key.place.clone();
            if table.insert(name.clone(), value).is_some() {
                self.0.duplicates.borrow_mut().push((key.place, name));
            }
        }
        if let Some(merged) = table.remove(MERGE) {
            merge(&mut table, merged).map_err(A::Error::custom)?;
        }
        node.value = ConfigValue::Table(table);
        Ok(node)
    }
}

/// The key of YAML 1.1 by which a table takes over the keys of others.
const MERGE: &str = "<<";

/// Takes over what a merge key names: one table, or a list of them of which the first wins. Keys
/// that the table has itself stay.
fn merge(table: &mut Table, merged: Node) -> Result<(), String> {
    match merged.value {
        ConfigValue::Table(others) => {
            for (name, value) in others {
                table.entry(name).or_insert(value);
            }
            Ok(())
        }
        ConfigValue::List(list) => list.into_iter().try_for_each(|one| merge(table, one)),
        _ => Err(format!(
            "{} cannot be merged: write <<: *name, where &name stands before a table of keys",
            merged.in_words()
        )),
    }
}
