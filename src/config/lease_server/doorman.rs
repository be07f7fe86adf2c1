//! Doorman's own form of the rules: YAML or JSON with the field names of its protocol.
//!
//! What the original passes over in silence is a mistake here: a key that it does not know, a
//! key written in another way, a value of another kind.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_leases::server::{
    Catchall, RawAlgorithm, RawKind, RawParameter, RawTemplate, TemplateMistake, Templates,
};

use crate::config::nearest::nearest;
use crate::config::problem::{Place, Problem, Problems, Severity};
use crate::config::reader::{At, Notes};
use crate::config::tree::{Node, Table, Value, quoted, shortened};
use crate::config::value::Mistake;

use super::yaml;

/// Most rules; an id that is none literally is compared with each.
pub(super) const TEMPLATES_MAX: usize = 10_000;

const TEMPLATE_KEYS: [&str; 5] = [
    "identifier_glob",
    "capacity",
    "safe_capacity",
    "description",
    "algorithm",
];
const ALGORITHM_KEYS: [&str; 5] = [
    "kind",
    "lease_length",
    "refresh_interval",
    "learning_mode_duration",
    "parameters",
];

/// Reads the rules in Doorman's form. `origin` is the name of the file or key, for messages.
///
/// # Errors
///
/// Every mistake.
pub fn templates(text: &str, origin: &str) -> Result<Templates, Problems> {
    let told = |problems: Vec<Problem>| Err(Problems::new(origin, text, problems));
    if let Some(problem) = text_protobuf(text) {
        return told(vec![problem]);
    }
    let parsed = match yaml::parse(text) {
        Ok(parsed) => parsed,
        Err(problem) => return told(vec![*problem]),
    };
    let notes = Notes::default();
    for (place, name) in parsed.duplicates {
        let at = At {
            key: String::new(),
            place,
        };
        let mistake = Mistake::new(yaml::twice(&name), "leave one of the two out");
        notes.error(&at, mistake);
    }
    let mut reading = Reading {
        notes: &notes,
        places: Vec::new(),
        complained: BTreeSet::new(),
    };
    let raw = reading.root(&parsed.root);
    let checked = raw.map(|raw| Templates::new(raw, Catchall::Required));
    let checked = match checked {
        None => None,
        Some(Ok(templates)) => Some(templates),
        Some(Err(mistakes)) => {
            for mistake in mistakes {
                reading.complain(mistake);
            }
            None
        }
    };
    let (mut problems, _) = notes.finish();
    match checked {
        Some(templates) if problems.is_empty() => Ok(templates),
        _ => {
            yaml::locate(text, &mut problems);
            told(problems)
        }
    }
}

/// The help of Doorman's `-config` flag promises text protobuf; nobody ever read it.
fn text_protobuf(text: &str) -> Option<Problem> {
    let at = text.lines().position(|line| {
        let line = line.trim();
        let rest = line.strip_prefix("resources").map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with(['{', '<']) || rest == ": <")
    })?;
    let start: usize = text.split_inclusive('\n').take(at).map(str::len).sum();
    Some(Problem {
        severity: Severity::Error,
        place: Place::File {
            line: at + 1,
            column: 1,
            start,
            end: start + "resources".len(),
        },
        key: "resources".to_owned(),
        message: "this is text protobuf, which is read by neither Doorman nor us".to_owned(),
        cure: "write it as YAML: resources: and below it one \"- identifier_glob: …\" for each"
            .to_owned(),
    })
}

struct Reading<'a> {
    notes: &'a Notes,
    /// Where the keys of each rule stand, by the names that its mistakes have.
    places: Vec<BTreeMap<String, Place>>,
    /// What has been complained about already, by rule and key.
    complained: BTreeSet<(usize, String)>,
}

impl Reading<'_> {
    fn root(&mut self, root: &Node) -> Option<Vec<RawTemplate>> {
        let whole = At {
            key: String::new(),
            place: root.place.clone(),
        };
        let Value::Table(table) = &root.value else {
            let mistake = Mistake::new(
                format!("{} stands where the rules belong", root.told()),
                "write resources: and below it one \"- identifier_glob: …\" for each",
            );
            self.notes.error(&whole, mistake);
            return None;
        };
        self.unknown(table, "", &["resources"]);
        let Some(node) = table.get("resources") else {
            let mistake = Mistake::new("there are no resources", "add at least the rule \"*\"");
            self.notes.error(&whole, mistake);
            return None;
        };
        let at = At {
            key: "resources".to_owned(),
            place: node.place.clone(),
        };
        let Value::List(list) = &node.value else {
            let mistake = Mistake::new(
                format!("{} is not a list", node.told()),
                "write one \"- identifier_glob: …\" for each below it",
            );
            self.notes.error(&at, mistake);
            return None;
        };
        if list.len() > TEMPLATES_MAX {
            let message = format!("there are {} of them", list.len());
            let mistake = Mistake::new(message, format!("give at most {TEMPLATES_MAX}"));
            self.notes.error(&at, mistake);
            return None;
        }
        Some(list.iter().map(|node| self.template(node)).collect())
    }

    fn template(&mut self, node: &Node) -> RawTemplate {
        let index = self.places.len();
        let whole = (String::new(), node.place.clone());
        self.places.push(BTreeMap::from([whole]));
        let path = format!("resources[{index}]");
        let Some(table) = self.table(node, index, "") else {
            return RawTemplate::default();
        };
        self.unknown(table, &path, &TEMPLATE_KEYS);
        let algorithm = table.get("algorithm").map(|node| {
            self.note(index, "algorithm", node);
            self.algorithm(node, index)
        });
        RawTemplate {
            identifier_glob: self.text(table, index, "identifier_glob"),
            capacity: self.number(table, index, "capacity"),
            safe_capacity: self.number(table, index, "safe_capacity"),
            description: self.text(table, index, "description"),
            algorithm,
        }
    }

    fn algorithm(&mut self, node: &Node, index: usize) -> RawAlgorithm {
        let Some(table) = self.table(node, index, "algorithm") else {
            // What else may be missing in it has been said with that.
            return RawAlgorithm {
                lease_length: Some(1),
                refresh_interval: Some(1),
                ..RawAlgorithm::default()
            };
        };
        let path = format!("resources[{index}].algorithm");
        self.unknown(table, &path, &ALGORITHM_KEYS);
        let parameters = match table.get("parameters") {
            Some(node) => self.parameters(node, index),
            None => Vec::new(),
        };
        RawAlgorithm {
            kind: self.kind(table, index),
            lease_length: self.integer(table, index, "algorithm.lease_length"),
            refresh_interval: self.integer(table, index, "algorithm.refresh_interval"),
            learning_mode_duration: self.integer(table, index, "algorithm.learning_mode_duration"),
            parameters,
        }
    }

    fn kind(&mut self, table: &Table, index: usize) -> Option<RawKind> {
        const KEY: &str = "algorithm.kind";
        let node = table.get("kind")?;
        self.note(index, KEY, node);
        match &node.value {
            Value::Text(name) => Some(RawKind::Name(name.clone())),
            Value::Integer(number) => {
                Some(RawKind::Number(i64::try_from(*number).unwrap_or(i64::MAX)))
            }
            _ => {
                let cure = "give NO_ALGORITHM, STATIC, PROPORTIONAL_SHARE or FAIR_SHARE, or its \
                            number from 0 to 3";
                self.wrong(index, KEY, node, "neither a name nor a number", cure);
                None
            }
        }
    }

    fn parameters(&mut self, node: &Node, index: usize) -> Vec<RawParameter> {
        const KEY: &str = "algorithm.parameters";
        const CURE: &str = "write one \"- {name: decay_factor, value: \"0.5\"}\" for each";
        self.note(index, KEY, node);
        let Value::List(list) = &node.value else {
            self.wrong(index, KEY, node, "not a list", CURE);
            return Vec::new();
        };
        let mut parameters = Vec::new();
        for item in list {
            let Value::Table(table) = &item.value else {
                self.wrong(index, KEY, item, "no parameter", CURE);
                continue;
            };
            let path = format!("resources[{index}].{KEY}");
            self.unknown(table, &path, &["name", "value"]);
            let Some(name) = table.get("name").and_then(Node::text) else {
                self.wrong(index, KEY, item, "a parameter without a name", CURE);
                continue;
            };
            let value = table.get("value").map(|node| match &node.value {
                // A string on the wire; in a file it is easily written as what it means.
                Value::Text(text) | Value::Other(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => flag.to_string(),
                Value::List(_) | Value::Table(_) => node.told(),
            });
            let place = table.get("value").unwrap_or(item);
            self.note(index, &format!("{KEY}.{name}"), place);
            parameters.push(RawParameter {
                name: name.to_owned(),
                value,
            });
        }
        parameters
    }

    fn table<'n>(&mut self, node: &'n Node, index: usize, key: &str) -> Option<&'n Table> {
        if let Value::Table(table) = &node.value {
            return Some(table);
        }
        let cure = "write its keys below it, further to the right";
        self.wrong(index, key, node, "not a table", cure);
        None
    }

    fn text(&mut self, table: &Table, index: usize, key: &str) -> Option<String> {
        let node = table.get(last(key))?;
        self.note(index, key, node);
        if let Some(text) = node.text() {
            return Some(text.to_owned());
        }
        self.wrong(index, key, node, "not a text", "put it in quotes");
        None
    }

    fn number(&mut self, table: &Table, index: usize, key: &str) -> Option<f64> {
        let node = table.get(last(key))?;
        self.note(index, key, node);
        let number = match &node.value {
            // Whole numbers beyond 2^53 are no capacity of anything.
            Value::Integer(number) => Some(*number as f64),
            Value::Other(text) => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            let cure = "give a number, without quotes";
            self.wrong(index, key, node, "not a number", cure);
        }
        number
    }

    fn integer(&mut self, table: &Table, index: usize, key: &str) -> Option<i64> {
        let node = table.get(last(key))?;
        self.note(index, key, node);
        if let Value::Integer(number) = node.value {
            return Some(i64::try_from(number).unwrap_or(i64::MAX));
        }
        let cure = "give whole seconds, without a unit and without quotes";
        self.wrong(index, key, node, "not a whole number", cure);
        None
    }

    /// Remembers where a key of a rule stands.
    fn note(&mut self, index: usize, key: &str, node: &Node) {
        self.places[index].insert(key.to_owned(), node.place.clone());
    }

    fn wrong(&mut self, index: usize, key: &str, node: &Node, what: &str, cure: &str) {
        self.complained.insert((index, key.to_owned()));
        let dot = if key.is_empty() { "" } else { "." };
        let at = At {
            key: format!("resources[{index}]{dot}{key}"),
            place: node.place.clone(),
        };
        let message = format!("{} is {what}", node.told());
        self.notes.error(&at, Mistake::new(message, cure));
    }

    /// Complains about keys that there are not.
    fn unknown(&self, table: &Table, path: &str, known: &[&str]) {
        for (name, node) in table {
            if known.contains(&name.as_str()) {
                continue;
            }
            let dot = if path.is_empty() { "" } else { "." };
            let at = At {
                key: format!("{path}{dot}{}", shortened(name)),
                place: node.name.clone(),
            };
            let snake = snake_case(name);
            let cure = if known.contains(&snake.as_str()) {
                format!("write {snake}: names are in snake_case, as in the protocol")
            } else if let Some(meant) = nearest(name, known.iter().copied()) {
                format!("did you mean {meant}?")
            } else {
                format!("leave it out; there are {}", known.join(", "))
            };
            let message = format!("there is no key {} here", quoted(name));
            self.notes.error(&at, Mistake::new(message, cure));
        }
    }

    /// Tells a mistake of the checked rules where its key stands.
    fn complain(&self, mistake: TemplateMistake) {
        let TemplateMistake {
            template,
            key,
            problem,
        } = mistake;
        let Some(index) = template else {
            let at = At {
                key: "resources".to_owned(),
                place: Place::Whole,
            };
            return self.notes.error(&at, told(&problem));
        };
        if self.has_been_told(index, &key) {
            return;
        }
        let at = At {
            key: format!("resources[{index}].{key}"),
            place: nearest_place(&self.places[index], &key),
        };
        self.notes.error(&at, told(&problem));
    }

    /// Whether the key, or what it stands in, has been complained about: then it only seems to
    /// be missing.
    fn has_been_told(&self, index: usize, key: &str) -> bool {
        prefixes(key).any(|key| self.complained.contains(&(index, key.to_owned())))
    }
}

/// What was wrong and what would be right, of a sentence that says both.
pub(super) fn told(problem: &str) -> Mistake {
    match problem.rsplit_once(": ") {
        Some((message, cure)) => Mistake::new(message, cure),
        None => Mistake::new(problem, "docs/leases.md says what is allowed"),
    }
}

/// The place of a key of a rule, else of what it stands in.
pub(super) fn nearest_place(places: &BTreeMap<String, Place>, key: &str) -> Place {
    let found = prefixes(key).find_map(|key| places.get(key));
    found.cloned().unwrap_or(Place::Whole)
}

/// `a.b.c`, `a.b`, `a` and nothing.
fn prefixes(key: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(key), |key| match key.rsplit_once('.') {
        Some((before, _)) => Some(before),
        None => (!key.is_empty()).then_some(""),
    })
}

/// The last part of a dotted key.
fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// `identifierGlob` as `identifier_glob`.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars().take(64) {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}
