//! The `[config]` part of a scenario. The reader of config.toml reads it, so that both have the same
//! keys, ranges, defaults and checks.

use tidegate_limits::Class;

use tidegate::admit::GateSettings;
use tidegate::call::BackendKind;
use tidegate::call::sdk::FunctionKind;
use tidegate::classify::class::{POLLING, USER};
use tidegate::config::{self, Config, ConfigPlace, Problem, Severity};
use tidegate::options::tree::{ConfigValue, Node, Table};
use tidegate::options::{LocatedKey, Section, did_you_mean, syntax};

/// Sections that every config needs, although a scenario has no sockets.
const SOCKETS: &str = "
[[listen]]
name = \"scenario\"
bind = \"127.0.0.1:1\"
protocol = \"socket\"
[backend]
socket = \"127.0.0.1:2\"
";

/// The sections that have an effect in a scenario.
const SECTIONS: [&str; 5] = ["class", "limits", "pace", "queue", "server"];

/// The class of this name.
pub(super) fn class(settings: &GateSettings, name: &str) -> Option<Class> {
    let mut classes = settings.classes.iter();
    let index = classes.position(|class| &*class.name == name)?;
    Some(Class(
        u32::try_from(index).expect("classes are counted to 18"),
    ))
}

/// The class of calls that name this one, or none. Calls of a class that a reload has removed, and
/// of none, are in the class of their function, by the table: writes are user work.
pub(super) fn class_of(settings: &GateSettings, named: Option<&str>, function: &str) -> Class {
    let by_function = || {
        let known = BackendKind::default().function(function);
        let is_write = known.is_some_and(|it| it.kind == FunctionKind::Write);
        let class = class(settings, if is_write { USER } else { POLLING });
        class.expect("the built-in classes are always there")
    };
    let named = named.and_then(|name| class(settings, name));
    named.unwrap_or_else(by_function)
}

/// Reads `[config]`, and notes every mistake.
pub(super) fn read(section: &Section<'_>) -> Option<GateSettings> {
    let at = section.mark().at();
    let Some(table) = section.table() else {
        if !section.mark().given {
            let cure = "add per_window = \"total:30\" to [config.limits], or window = \"0s\" to do without \
                        windows";
            let cause = "there is no [config.limits]";
            section.notes().missing(&at, cause, cure);
        }
        return None;
    };
    report_useless(section, table);
    let config = load(section, table)?;
    if !config.callers.rate_limits.is_empty() || config.quotas.is_some() {
        let cause = "a scenario has only paces on all calls or on a function";
        let cure = "give applies_to = \"total\" or \"function\"";
        let at = section.mark().inside("pace");
        section.notes().error(&at, cause, cure);
    }
    Some(config.admit)
}

/// Reads a reload, and lays it over the config in force: it changes keys of `[limits]`, `[queue]`
/// and `[server]`, and replaces all classes.
pub(super) fn read_reload(
    reload: &Section<'_>,
    given: &Table,
    config: &mut Table,
) -> Option<GateSettings> {
    report_useless(reload, given);
    for (name, node) in given {
        match (config.get_mut(name).map(|it| &mut it.value), &node.value) {
            (Some(ConfigValue::Table(before)), ConfigValue::Table(new)) => {
                before.extend(new.clone())
            }
            _ => _ = config.insert(name.clone(), node.clone()),
        }
    }
    Some(load(reload, config)?.admit)
}

/// Reports sections and keys that do nothing in a scenario.
fn report_useless(section: &Section<'_>, config: &Table) {
    let error = |key: &str, place: &ConfigPlace, cure: &str| {
        let key = section.mark().inside(key).key;
        let place = place.clone();
        let cause = "it has no effect in a scenario";
        section
            .notes()
            .error(&LocatedKey { key, place }, cause, cure);
    };
    for (name, node) in config {
        if !SECTIONS.contains(&name.as_str()) {
            let meant = did_you_mean(name, SECTIONS);
            error(name, &node.name, meant.as_deref().unwrap_or("leave it out"));
        }
        for (key, node) in tables(node).flatten() {
            let is_useless = match (name.as_str(), key.as_str()) {
                ("limits", "exempt") | ("queue", "max_unlimited") => true,
                ("class", "functions" | "effort") => true,
                ("server", key) => key != "max_connections",
                _ => false,
            };
            if is_useless {
                error(&format!("{name}.{key}"), &node.name, "leave it out");
            }
        }
    }
}

/// The table that a node is, or the tables of an array.
fn tables(node: &Node) -> impl Iterator<Item = &Table> {
    let nodes = match &node.value {
        ConfigValue::List(list) => list,
        _ => std::slice::from_ref(node),
    };
    nodes.iter().filter_map(|node| match &node.value {
        ConfigValue::Table(table) => Some(table),
        _ => None,
    })
}

/// Reads a config without sockets, and notes every mistake.
fn load(section: &Section<'_>, config: &Table) -> Option<Config> {
    let mut tree = config.clone();
    tree.retain(|name, _| SECTIONS.contains(&name.as_str()));
    tree.extend(syntax::parse(SOCKETS).tree);
    match config::read_tree(tree) {
        Ok(mut config) => {
            // No call of a scenario is about a guest.
            config.admit.promote_for = None;
            Some(config)
        }
        Err(problems) => {
            let errors = problems.into_iter();
            for problem in errors.filter(|it| it.severity == Severity::Error) {
                let Problem { message, cure, .. } = problem;
                let mut at = section.mark().inside(&problem.key);
                if problem.place != ConfigPlace::Whole {
                    at.place = problem.place;
                }
                section.notes().error(&at, message, cure);
            }
            None
        }
    }
}
