//! The environment, laid over the tree of a file: `TIDEGATE_SECTION__KEY` variables.

use std::sync::Arc;

use toml::de::DeValue;

use super::place::{Lines, Place};
use super::problem::{Problem, Severity};
use super::shown::{quoted, shortened};
use super::tree::{Node, Table, Value, of_value};

/// What every variable of ours begins with.
const PREFIX: &str = "TIDEGATE_";

/// Segments of a path that a variable may name; more than any option has.
const SEGMENTS_MAX: usize = 8;

/// What did not come to lie over the file.
#[derive(Default)]
pub(crate) struct NotLaid {
    /// Paths that lead nowhere.
    pub(crate) misplaced: Vec<Problem>,
    /// Names that begin as ours do and have no path.
    pub(crate) pathless: Vec<Arc<str>>,
}

/// Lays `TIDEGATE_SECTION__KEY` variables over the file; those of other programs are left alone.
pub(crate) fn lay_over(
    tree: &mut Table,
    variables: impl Iterator<Item = (String, String)>,
) -> NotLaid {
    let mut not_laid = NotLaid::default();
    let mut laid = Vec::new();
    for (name, value) in variables {
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let variable = Arc::<str>::from(name.as_str());
        if path.contains("__") {
            let path = path.split("__").map(Segment::of).collect::<Vec<_>>();
            laid.push((path, variable, value));
        } else if !is_of_another(path) {
            not_laid.pathless.push(shortened(&variable).into());
        }
    }
    let mut variables = laid;
    // In the order of their paths, so that the entries of an array come one after another.
    variables.sort();
    for (path, variable, text) in variables {
        let key = path.iter().fold(String::new(), |key, segment| {
            let dot = if key.is_empty() { "" } else { "." };
            match segment {
                Segment::Index(index) => format!("{key}[{index}]"),
                Segment::Key(name) => format!("{key}{dot}{name}"),
            }
        });
        let place = Place::Variable(Arc::clone(&variable));
        let node = Node {
            value: from_text(&text, &place),
            name: place.clone(),
            place,
            letters: Some(text),
        };
        if let Err((message, cure)) = put(tree, &path, node) {
            not_laid.misplaced.push(Problem {
                severity: Severity::Error,
                place: Place::Variable(shortened(&variable).into()),
                key: shortened(&key),
                message,
                cure,
            });
        }
    }
    not_laid.pathless.sort();
    not_laid
}

/// Names that are set for other reasons: for the command line, at a build, in tests, and by Kubernetes for a service
/// of our name (`TIDEGATE_SERVICE_HOST`, `TIDEGATE_PORT_8081_TCP_ADDR`).
fn is_of_another(name: &str) -> bool {
    matches!(
        name,
        "ADMIN"
            | "CONFIG"
            | "GENERATE"
            | "LEASE_CONFIG"
            | "PORT"
            | "REVISION"
            | "RUNTIME_DIR"
            | "SEED"
    ) || name.starts_with("SERVICE_HOST")
        || name.starts_with("SERVICE_PORT")
        || name
            .strip_prefix("PORT_")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// One step of a variable's path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Index(usize),
    Key(String),
}

impl Segment {
    fn of(text: &str) -> Self {
        match text.parse() {
            Ok(index) => Self::Index(index),
            Err(_) => Self::Key(text.to_lowercase()),
        }
    }
}

/// The value as TOML where it is TOML, else as a text, so that quotes need no quotes.
fn from_text(text: &str, place: &Place) -> Value {
    match DeValue::parse(text) {
        Ok(value) => {
            let mut value = of_value(value.get_ref(), &Lines::of(text));
            put_at(&mut value, place);
            value
        }
        Err(_) => Value::Text(text.to_owned()),
    }
}

/// Everything inside a variable's value was said in that variable.
fn put_at(value: &mut Value, place: &Place) {
    let inner: Box<dyn Iterator<Item = &mut Node>> = match value {
        Value::List(list) => Box::new(list.iter_mut()),
        Value::Table(table) => Box::new(table.values_mut()),
        _ => return,
    };
    for node in inner {
        node.place = place.clone();
        node.name = place.clone();
        put_at(&mut node.value, place);
    }
}

/// Puts a value where a path leads, making the tables on the way.
fn put(tree: &mut Table, path: &[Segment], node: Node) -> Result<(), (String, String)> {
    let not_a_key = || {
        (
            "is not the path of an option".to_owned(),
            "write TIDEGATE_SECTION__KEY, or TIDEGATE_LISTEN__0__BIND for the first of several"
                .to_owned(),
        )
    };
    let [Segment::Key(first), rest @ ..] = path else {
        return Err(not_a_key());
    };
    let empty = |segment: &Segment| matches!(segment, Segment::Key(name) if name.is_empty());
    if path.len() > SEGMENTS_MAX || path.iter().any(empty) {
        return Err(not_a_key());
    }
    let place = node.place.clone();
    let empty_node = |value: Value| Node {
        place: place.clone(),
        name: place.clone(),
        value,
        letters: None,
    };
    let missing = |next: Option<&Segment>| match next {
        Some(Segment::Index(_)) => empty_node(Value::List(Vec::new())),
        _ => empty_node(Value::Table(Table::new())),
    };
    let mut at = tree
        .entry(first.clone())
        .or_insert_with(|| missing(rest.first()));
    for (depth, segment) in rest.iter().enumerate() {
        at = match (segment, &mut at.value) {
            (Segment::Key(name), Value::Table(table)) => table
                .entry(name.clone())
                .or_insert_with(|| missing(rest.get(depth + 1))),
            (Segment::Index(index), Value::List(list)) => {
                if *index > list.len() {
                    return Err((
                        format!("there is no entry {index}, the next one is {}", list.len()),
                        "count the entries from 0, without a gap".to_owned(),
                    ));
                }
                if *index == list.len() {
                    list.push(missing(None));
                }
                &mut list[*index]
            }
            (Segment::Index(index), _) => {
                return Err((
                    format!("{index} counts the entries of something that has none"),
                    "leave the number out".to_owned(),
                ));
            }
            (Segment::Key(name), Value::List(_)) => {
                return Err((
                    format!(
                        "{} stands where the number of an entry belongs",
                        quoted(name)
                    ),
                    "write the number, from 0, before it, as in TIDEGATE_LISTEN__0__BIND"
                        .to_owned(),
                ));
            }
            (Segment::Key(name), _) => {
                return Err((
                    format!("{} is asked of something that is no table", quoted(name)),
                    "give the whole value in one variable".to_owned(),
                ));
            }
        };
    }
    *at = node;
    Ok(())
}
