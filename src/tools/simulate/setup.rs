//! The `[config]` part of a scenario. The reader of config.toml reads it, so that both have the same
//! keys, ranges, defaults and checks.

use tidegate_limits::Class;
use toml::{Table, Value};

use super::reader::{Mistake, Section, integer};
use crate::admit::Settings;
use crate::call::BackendKind;
use crate::call::sdk::Kind;
use crate::classify::class::{POLLING, USER};
use crate::config::{self, Config, Place, Problem, Severity};

/// What a config needs besides: a scenario has no sockets.
const SOCKETS: &str = "
[[listen]]
name = \"scenario\"
bind = \"127.0.0.1:1\"
protocol = \"socket\"
[backend]
socket = \"127.0.0.1:2\"
";

/// The settings of the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) settings: Settings,
}

impl Setup {
    /// The class of this name.
    pub(super) fn class(&self, name: &str) -> Option<Class> {
        let mut classes = self.settings.classes.iter();
        let index = classes.position(|class| &*class.name == name)?;
        Some(Class(
            u32::try_from(index).expect("classes are counted to 18"),
        ))
    }

    /// The class of calls that name this one, or none. Calls of a class that a reload has removed
    /// are in the class of their function.
    pub(super) fn class_of(&self, named: Option<&str>, function: &str) -> Class {
        let named = named.and_then(|name| self.class(name));
        named.unwrap_or_else(|| self.class_of_function(function))
    }

    /// The class of a function's calls, by the table: writes are user work.
    fn class_of_function(&self, function: &str) -> Class {
        let known = BackendKind::default().function(function);
        let is_write = known.is_some_and(|it| it.kind == Kind::Write);
        let class = self.class(if is_write { USER } else { POLLING });
        class.expect("the built-in classes are always there")
    }
}

/// Reads `[config]`.
pub(super) fn read(root: &mut Section<'_>, text: &str) -> Option<Setup> {
    let Some(mut config) = root.section("config") else {
        if !root.has("config") {
            let cure = "add smapi_rate_limit_per_window = \"total:30\" to [config.limits], or \
                        smapi_rate_limit_window_size_seconds = 0 to do without windows";
            root.complain("config", Mistake::new("there is no [config.limits]", cure));
        }
        return None;
    };
    let setup = match load(&alone(text)) {
        Ok(loaded) => {
            if !loaded.callers.rate_limits.is_empty() || loaded.quotas.is_some() {
                let cure = "give kind = \"paced\", and applies_to = \"total\" or \"function\"";
                let message = "a scenario has only paced limits on all calls or on a function";
                config.complain("rate_limit", Mistake::new(message, cure));
            }
            let settings = loaded.admit;
            Some(Setup { settings })
        }
        Err(problems) => {
            for problem in problems {
                let mistake = Mistake::new(problem.message, problem.cure);
                match problem.place {
                    Place::File { line, column, .. } if line <= text.lines().count() => {
                        let path = format!("config.{}", problem.key);
                        config.complain_at(line, column, path, mistake);
                    }
                    _ => config.complain(&problem.key, mistake),
                }
            }
            None
        }
    };
    config.sections("rate_limit");
    report_useless(config);
    setup
}

/// Reads a reload, and lays it over the config in force: it changes keys of `[limits]`, `[queue]`
/// and `[server]`, and replaces all classes.
pub(super) fn read_reload(reload: Section<'_>, given: &Table, config: &mut Table) -> Option<Setup> {
    for (name, value) in given {
        match (config.get_mut(name), value) {
            (Some(Value::Table(before)), Value::Table(new)) => before.extend(new.clone()),
            _ => {
                config.insert(name.clone(), value.clone());
            }
        }
    }
    let loaded = load(&config.to_string()).map_err(|problems| {
        for problem in problems {
            let mistake = Mistake::new(problem.message, problem.cure);
            reload.complain(&problem.key, mistake);
        }
    });
    report_useless(reload);
    let settings = loaded.ok()?.admit;
    Some(Setup { settings })
}

/// Reports sections and keys that do nothing in a scenario.
fn report_useless(mut config: Section<'_>) {
    let useless = |section: &Section<'_>, keys: &[&str]| {
        for key in keys.iter().filter(|key| section.has(key)) {
            let mistake = Mistake::new("it has no effect in a scenario", "leave it out");
            section.complain(key, mistake);
        }
    };
    if let Some(limits) = config.section("limits") {
        useless(&limits, &["exempt"]);
    }
    if let Some(queue) = config.section("queue") {
        useless(&queue, &["max_unlimited"]);
    }
    for class in config.sections("class") {
        useless(&class, &["functions", "effort"]);
    }
    if let Some(mut server) = config.section("server") {
        server.read("max_connections", integer(1..=1_000_000));
        server.finish();
    }
    config.finish();
}

/// Reads a config without sockets.
fn load(text: &str) -> Result<Config, Vec<Problem>> {
    let text = format!("{text}{SOCKETS}");
    match config::read_knowing(&text, "", std::iter::empty(), &[]) {
        Ok(checked) => {
            let mut config = checked.config;
            // No call of a scenario is about a guest.
            config.admit.promote_for = None;
            Ok(config)
        }
        Err(problems) => {
            let errors = problems.iter().filter(|it| it.severity == Severity::Error);
            Err(errors.cloned().collect())
        }
    }
}

/// The `[config]` part of a scenario alone, with each character in its place. Other lines are
/// blank, and headers lack their `config.`.
fn alone(text: &str) -> String {
    let mut is_config = false;
    let lines = text.lines().map(|line| {
        let is_header = line.trim_start().starts_with('[');
        let name = line.trim_start_matches([' ', '\t', '[']);
        let is_whole = name.starts_with("config]");
        if is_header {
            is_config = is_whole || name.starts_with("config.");
        }
        match (is_config, is_header) {
            (true, false) => format!("{line}\n"),
            (true, true) if !is_whole => format!("{}\n", line.replacen("config.", "       ", 1)),
            _ => "\n".to_owned(),
        }
    });
    lines.collect()
}
