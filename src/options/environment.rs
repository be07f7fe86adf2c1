//! The environment, laid over the tree of a file: `TIDEGATE_SECTION__KEY` variables.

use std::sync::Arc;

use toml::de::DeValue;

use super::place::ConfigPlace;
use super::problem::Problem;
use super::shown::{quoted, shortened};
use super::tree::{ConfigValue, Node, Table, of_value};

/// The prefix of every variable of ours.
const PREFIX: &str = "TIDEGATE_";

/// Segments of a path that a variable may name; more than any option has.
const SEGMENTS_MAX: usize = 8;

const NO_PATH: &str = "is not the path of an option";
const PATH: &str =
    "write TIDEGATE_SECTION__KEY, or TIDEGATE_LISTEN__0__BIND for the first of several";
const BEFORE: &str = "write the number, from 0, before it, as in TIDEGATE_LISTEN__0__BIND";

/// Variables that could not be laid over the file.
#[derive(Default)]
pub(crate) struct UnplacedVariables {
    /// Paths that lead nowhere.
    pub(crate) misplaced: Vec<Problem>,
    /// Names that begin as ours do and have no path.
    pub(crate) pathless: Vec<Arc<str>>,
}

/// Lays `TIDEGATE_SECTION__KEY` variables over the file; those of other programs are left alone.
pub(crate) fn lay_over(
    tree: &mut Table,
    variables: impl Iterator<Item = (String, String)>,
) -> UnplacedVariables {
    let mut not_laid = UnplacedVariables::default();
    let mut laid = Vec::new();
    for (name, value) in variables {
        let Some(path) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if is_of_kubernetes(path, &value) {
            continue;
        }
        let variable = Arc::<str>::from(name.as_str());
        if path.contains("__") {
            let path = path.split("__").map(Segment::of).collect::<Vec<_>>();
            laid.push((path, variable, value));
        } else if !is_of_another(path) {
            not_laid.pathless.push(shortened(&variable).into());
        }
    }
    // In the order of their paths, so that the entries of an array come one after another.
    laid.sort();
    for (path, variable, text) in laid {
        let key = path.iter().fold(String::new(), |key, segment| {
            let dot = if key.is_empty() { "" } else { "." };
            match segment {
                Segment::Index(index) => format!("{key}[{index}]"),
                Segment::Key(name) => format!("{key}{dot}{name}"),
            }
        });
        let place = ConfigPlace::Variable(Arc::clone(&variable));
        let value = match DeValue::parse(&text) {
            Ok(value) => of_value(value.get_ref(), &|_| place.clone()),
            // So that quotes need no quotes.
            Err(_) => ConfigValue::Text(text.clone()),
        };
        let letters = Some(text);
        let node = Node::new(place, value);
        if let Err((message, cure)) = put(tree, &path, Node { letters, ..node }) {
            let place = ConfigPlace::Variable(shortened(&variable).into());
            let problem = Problem::error(place, shortened(&key), message, cure);
            not_laid.misplaced.push(problem);
        }
    }
    not_laid.pathless.sort();
    not_laid
}

/// Names that are set for other reasons: for the command line, at a build, and in tests.
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
    )
}

/// Whether Kubernetes sets a variable for a service whose name begins with ours: for the service
/// `tidegate-leases` these are `TIDEGATE_LEASES_SERVICE_HOST`, `…_SERVICE_PORT`,
/// `…_SERVICE_PORT_GRPC`, `…_PORT` (`tcp://10.0.0.1:9190`), `…_PORT_9190_TCP` and three more that
/// begin like the last one.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let words: Vec<_> = name.split('_').collect();
    let is_service = |pair: &[&str]| matches!(pair, ["SERVICE", "HOST" | "PORT"]);
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
    let is_port = |three: &[&str]| match three {
        ["PORT", number, "TCP" | "UDP" | "SCTP"] => is_number(number),
        _ => false,
    };
    let is_address = || {
        let schemes = ["tcp://", "udp://", "sctp://"];
        words.last() == Some(&"PORT") && schemes.iter().any(|it| value.starts_with(it))
    };
    words.windows(2).any(is_service) || words.windows(3).any(is_port) || is_address()
}

/// A step of a variable's path.
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

/// Puts a value where a path leads, making the tables on the way.
fn put(tree: &mut Table, path: &[Segment], node: Node) -> Result<(), (String, String)> {
    let wrong = |cause: String, cure: &str| Err((cause, cure.to_owned()));
    let empty = |segment: &Segment| matches!(segment, Segment::Key(name) if name.is_empty());
    let (Some(Segment::Key(first)), false) = (path.first(), path.iter().any(empty)) else {
        return wrong(NO_PATH.to_owned(), PATH);
    };
    if path.len() > SEGMENTS_MAX {
        return wrong(NO_PATH.to_owned(), PATH);
    }
    let missing = |next: Option<&Segment>| {
        let value = match next {
            Some(Segment::Index(_)) => ConfigValue::List(Vec::new()),
            _ => ConfigValue::Table(Table::new()),
        };
        Node::new(node.place.clone(), value)
    };
    let mut at = tree
        .entry(first.clone())
        .or_insert_with(|| missing(path.get(1)));
    for (depth, segment) in path.iter().enumerate().skip(1) {
        at = match (segment, &mut at.value) {
            (Segment::Key(name), ConfigValue::Table(table)) => table
                .entry(name.clone())
                .or_insert_with(|| missing(path.get(depth + 1))),
            (Segment::Index(index), ConfigValue::List(list)) => {
                let next = list.len();
                if *index > next {
                    let cause = format!("there is no entry {index}, the next one is {next}");
                    return wrong(cause, "count the entries from 0, without a gap");
                }
                if *index == next {
                    list.push(missing(None));
                }
                &mut list[*index]
            }
            (Segment::Index(index), _) => {
                let cause = format!("{index} counts the entries of something that has none");
                return wrong(cause, "leave the number out");
            }
            (Segment::Key(name), ConfigValue::List(_)) => {
                let name = quoted(name);
                let cause = format!("{name} stands where the number of an entry belongs");
                return wrong(cause, BEFORE);
            }
            (Segment::Key(name), _) => {
                let cause = format!("{} is asked of something that is no table", quoted(name));
                return wrong(cause, "give the whole value in one variable");
            }
        };
    }
    *at = node;
    Ok(())
}
