//! Doorman's own form of the rules: YAML or JSON with the field names of its protocol.
//!
//! What the original ignores silently is a mistake here: a key that it does not know, a
//! key written in another way, a value of another kind.

use tidegate::options::kind::all;
use tidegate::options::shown::quoted;
use tidegate::options::tree::{ConfigValue, Node, Table};
use tidegate::options::{
    ConfigPlace, ConfigReader, LocatedKey, Mistake, Options, Problem, Problems, Section, ValueKind,
    options,
};
use tidegate_leases::server::{Catchall, RawAlgorithm, RawKind, RawTemplate, Templates};
use tidegate_leases::wire::NamedParameter;

use super::options::{any_number, plain};
use super::rules::{RuleKeys, TEMPLATES_MAX, checked};
use super::yaml;

options! {
    /// A rule.
    pub struct TemplateSection {
        /// The resources of this rule.
        identifier_glob: Option<String> = plain("a glob", "disk-*").optional();

        /// The capacity to share.
        capacity: Option<f64> = any_number().optional();

        /// The capacity that a client may use when it loses every server.
        safe_capacity: Option<f64> = any_number().optional();

        /// A text for people.
        description: Option<String> = plain("a text", "a disk").optional();
    }
}

options! {
    /// How the capacity is divided.
    pub struct DoormanAlgorithm {
        /// How the capacity is divided among the clients.
        kind: Option<RawKind> = kind().optional();

        /// The length of a lease.
        lease_length: Option<i64> = seconds().optional();

        /// When clients ask again.
        refresh_interval: Option<i64> = seconds().optional();

        /// How long a new master only collects the leases that exist.
        learning_mode_duration: Option<i64> = seconds().optional();

        /// Further parameters.
        parameters: Vec<Parameter> = parameters().or(Vec::new());
    }
}

/// A parameter and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    name: String,
    value: Option<String>,
    place: ConfigPlace,
}

/// How the name of a key begins that only holds anchors for others. Doorman skips every key that it
/// does not know.
const HOLDER: &str = "x-";

/// Reads the rules in Doorman's form. `origin` is the name of the file or key, for messages.
///
/// # Errors
///
/// Every mistake.
pub fn templates(text: &str, origin: &str) -> Result<Templates, Problems> {
    let cause = |problems: Vec<Problem>| Err(Problems::new(origin, text, problems));
    if let Some(problem) = text_protobuf(text) {
        return cause(vec![problem]);
    }
    let parsed = match yaml::parse(text) {
        Ok(parsed) => parsed,
        Err(problem) => return cause(vec![*problem]),
    };
    let (tree, not_a_table) = match parsed.root.value {
        ConfigValue::Table(mut table) => {
            table.retain(|name, _| !name.starts_with(HOLDER));
            (table, None)
        }
        _ => (Table::new(), Some(parsed.root)),
    };
    let mut reading = ConfigReader::of_tree(tree, "docs/how-to/leases.md");
    for (place, name) in parsed.duplicates {
        let key = String::new();
        reading.notes.error(
            &LocatedKey { key, place },
            format!("{} stands twice", quoted(&name)),
            "leave one of the two out",
        );
    }
    let checked = match not_a_table {
        Some(root) => {
            let place = root.place.clone();
            let cause = format!("{} stands where the rules belong", root.in_words());
            let cure = "write resources: and below it one \"- identifier_glob: …\" for each";
            reading.notes.error(
                &LocatedKey {
                    key: String::new(),
                    place,
                },
                cause,
                cure,
            );
            None
        }
        None => read(&reading.root()),
    };
    let mut problems = reading.problems();
    match checked {
        Some(templates) if problems.is_empty() => Ok(templates),
        _ => {
            yaml::locate(text, &mut problems);
            cause(problems)
        }
    }
}

/// The help of Doorman's `-config` flag promises text protobuf, which it never read.
fn text_protobuf(text: &str) -> Option<Problem> {
    let at = text.lines().position(|line| {
        let line = line.trim();
        let rest = line.strip_prefix("resources").map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with(['{', '<']) || rest == ": <")
    })?;
    let start: usize = text.split_inclusive('\n').take(at).map(str::len).sum();
    let place = ConfigPlace::File {
        line: at + 1,
        column: 1,
        start,
        end: start + "resources".len(),
    };
    let cause = "this is text protobuf, which is read by neither Doorman nor us";
    let cure = "write it as YAML: resources: and below it one \"- identifier_glob: …\" for each";
    Some(Problem::error(place, "resources", cause, cure))
}

fn read(root: &Section<'_>) -> Option<Templates> {
    let notes = root.notes();
    let rules: tidegate::options::Setting<Option<()>> =
        root.option("resources", "", rules_list().optional());
    let list = match rules.value {
        Some(()) => root.sections("resources", TEMPLATES_MAX)?,
        None => {
            if rules.sound {
                let cure = "add at least the rule \"*\"";
                notes.error(&root.mark(), "there are no resources", cure);
            }
            return None;
        }
    };
    let (raw, keys): (Vec<_>, Vec<_>) = list.iter().map(template).unzip();
    checked(raw, Catchall::Required, "resources", &keys, notes)
}

/// A list of tables.
fn rules_list() -> ValueKind<()> {
    let read = |node: &Node| {
        let ConfigValue::List(list) = &node.value else {
            let cure = "write one \"- identifier_glob: …\" for each below it";
            return Err(Mistake::new(
                format!("{} is not a list", node.in_words()),
                cure,
            ));
        };
        match list
            .iter()
            .find(|item| !matches!(item.value, ConfigValue::Table(_)))
        {
            None => Ok(()),
            Some(item) => {
                let cause = format!("{} is not a table", item.in_words());
                let cure = "write its keys below it, further to the right";
                Err(Mistake::new(cause, cure).in_part("", &item.place))
            }
        }
    };
    ValueKind::new("a list of rules", read, |()| String::new())
}

fn template(section: &Section<'_>) -> (RawTemplate, RuleKeys) {
    let own = TemplateSection::read(section);
    let algorithm = DoormanAlgorithm::read(&section.section("algorithm"));
    let is_given = algorithm.section.given || algorithm.parameters.given;
    let mut keys = RuleKeys::of(&own.section);
    keys.note("", own.marks());
    keys.note("algorithm.", algorithm.marks());
    let parameters = algorithm.parameters.value.iter().map(|it| {
        let key = format!("{}.{}", algorithm.parameters.key, it.name);
        let place = it.place.clone();
        keys.note_parameter(&it.name, LocatedKey { key, place });
        NamedParameter {
            name: it.name.clone(),
            value: it.value.clone(),
        }
    });
    let parameters = parameters.collect();
    let algorithm = is_given.then_some(RawAlgorithm {
        kind: algorithm.kind.value,
        lease_length: algorithm.lease_length.value,
        refresh_interval: algorithm.refresh_interval.value,
        learning_mode_duration: algorithm.learning_mode_duration.value,
        parameters,
    });
    let template = RawTemplate {
        identifier_glob: own.identifier_glob.value,
        capacity: own.capacity.value,
        safe_capacity: own.safe_capacity.value,
        description: own.description.value,
        algorithm,
    };
    (template, keys)
}

fn kind() -> ValueKind<RawKind> {
    let read = |node: &Node| match &node.value {
        ConfigValue::Text(name) => Ok(RawKind::Name(name.clone())),
        ConfigValue::Integer(number) => {
            Ok(RawKind::Number(i64::try_from(*number).unwrap_or(i64::MAX)))
        }
        _ => {
            let cause = format!("{} is neither a name nor a number", node.in_words());
            let cure = "give NO_ALGORITHM, STATIC, PROPORTIONAL_SHARE or FAIR_SHARE, or its \
                        number from 0 to 3";
            Err(Mistake::new(cause, cure))
        }
    };
    ValueKind::new("a name or its number", read, |_| String::new())
}

fn seconds() -> ValueKind<i64> {
    let read = |node: &Node| match node.value {
        ConfigValue::Integer(number) => Ok(i64::try_from(number).unwrap_or(i64::MAX)),
        _ => {
            let cause = format!("{} is not a whole number", node.in_words());
            let cure = "give whole seconds, without a unit and without quotes";
            Err(Mistake::new(cause, cure))
        }
    };
    ValueKind::new("whole seconds", read, i64::to_string)
}

fn parameters() -> ValueKind<Vec<Parameter>> {
    const CURE: &str = "write one \"- {name: decay_factor, value: \"0.5\"}\" for each";
    let read = |node: &Node| {
        let ConfigValue::List(list) = &node.value else {
            return Err(Mistake::new(format!("{} is not a list", node.in_words()), CURE).into());
        };
        all(list.iter().map(|item| {
            let wrong =
                |cause: String| Err(Mistake::new(cause, CURE).in_part("", &item.place).into());
            let ConfigValue::Table(table) = &item.value else {
                return wrong(format!("{} is no parameter", item.in_words()));
            };
            let mut keys = table.keys();
            if let Some(key) = keys.find(|key| !matches!(key.as_str(), "name" | "value")) {
                return wrong(format!("there is no key {key} in a parameter"));
            }
            let Some(name) = table.get("name").and_then(Node::text) else {
                return wrong("a parameter has no name".to_owned());
            };
            let value = table.get("value").map(|node| match &node.value {
                // A string on the wire; in a file it is easily written as what it means.
                ConfigValue::Text(text) | ConfigValue::Other(text) => text.clone(),
                _ => node.in_words(),
            });
            Ok(Parameter {
                name: name.to_owned(),
                value,
                place: table.get("value").unwrap_or(item).place.clone(),
            })
        }))
    };
    ValueKind::of_parts("a list of parameters", read, |_| String::new())
}
