//! The `[config]` part of a scenario: the keys of config.toml that decide about waiting, with
//! their spelling and their defaults.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::{Class, ClassShare};
use toml::de::DeValue;

use super::reader::{Mistake, Section, choice, duration, integer, name, time_span};
use crate::admit::{Postpone, Settings, WhenFull, Window};

const PER_WINDOW: &str = "smapi_rate_limit_per_window";
/// Largest number of calls that a limit may allow.
const CALLS_MAX: u32 = 1_000_000;
/// Most classes that a scenario may have.
const CLASSES_MAX: usize = 64;

/// The keys as given. A reload gives some of them anew and keeps the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    window_size_seconds: Option<u32>,
    per_window: Option<PerWindow>,
    outstanding: Option<u32>,
    threshold_seconds: Option<u32>,
    fixed: Option<bool>,
    stamp_replied: Option<bool>,
    guard: Option<Duration>,
    capacity: Option<u32>,
    workers: Option<u32>,
    when_full: Option<WhenFull>,
    jitter: Option<bool>,
    postpone_jitter: Option<(Duration, Duration)>,
    max_connections: Option<u32>,
}

/// `smapi_rate_limit_per_window`; 0 switches a number off.
#[derive(Clone, Debug, Default)]
struct PerWindow {
    total: Option<u32>,
    functions: Vec<(String, u32)>,
}

/// What the gate is told, and the classes that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) settings: Settings,
    pub(super) classes: Vec<ClassShare>,
}

impl Setup {
    /// The class of this name.
    pub(super) fn class(&self, name: &str) -> Option<Class> {
        let index = self.classes.iter().position(|class| &*class.name == name)?;
        Some(Class(
            u32::try_from(index).expect("classes are counted to 64"),
        ))
    }
}

/// Reads `[config]`.
pub(super) fn read(config: Option<Section<'_>>, root: &Section<'_>) -> Option<(Keys, Setup)> {
    let Some(mut config) = config else {
        if !root.has("config") {
            root.complain(
                "config",
                Mistake::new("there is no [config.limits]", TOTAL_CURE),
            );
        }
        return None;
    };
    let classes = classes(config.sections("class"));
    let keys = keys(&mut config);
    total_is_given(&keys, &config);
    config.finish();
    let settings = settings(&keys);
    Some((keys, Setup { settings, classes }))
}

/// Reads what a reload changes and lays it over what was in force.
pub(super) fn read_reload(mut reload: Section<'_>, keys: &mut Keys, setup: &mut Setup) {
    let new = self::keys(&mut reload);
    *keys = new.over(keys.clone());
    total_is_given(keys, &reload);
    reload.finish();
    setup.settings = settings(keys);
}

fn keys(config: &mut Section<'_>) -> Keys {
    let mut keys = Keys::default();
    if let Some(mut limits) = config.section("limits") {
        keys.window_size_seconds =
            limits.read("smapi_rate_limit_window_size_seconds", integer(0..=86400));
        keys.per_window = limits.read(PER_WINDOW, per_window);
        keys.outstanding = limits.read("smapi_max_outstanding_requests", integer(0..=CALLS_MAX));
        keys.threshold_seconds = limits.read(
            "smapi_request_postpone_threshold_seconds",
            integer(0..=86400),
        );
        keys.fixed = limits.read("window", choice(&[("sliding", false), ("fixed", true)]));
        keys.stamp_replied = limits.read(
            "window_stamp",
            choice(&[("sent", false), ("replied", true)]),
        );
        keys.guard = limits.read("window_guard", duration);
        limits.finish();
    }
    if let Some(mut queue) = config.section("queue") {
        keys.capacity = queue.read("capacity", integer(1..=1_000_000));
        keys.workers = queue.read("workers", integer(1..=65536));
        keys.when_full = queue.read(
            "when_full",
            choice(&[("wait", WhenFull::Wait), ("refuse", WhenFull::Refuse)]),
        );
        keys.jitter = queue.read("postpone", choice(&[("jitter", true), ("in_turn", false)]));
        keys.postpone_jitter = queue.read("postpone_jitter", jitter);
        queue.finish();
    }
    if let Some(mut server) = config.section("server") {
        keys.max_connections = server.read("max_connections", integer(1..=1_000_000));
        server.finish();
    }
    keys
}

impl Keys {
    /// These keys, and the older ones where these say nothing.
    fn over(self, old: Self) -> Self {
        Self {
            window_size_seconds: self.window_size_seconds.or(old.window_size_seconds),
            per_window: self.per_window.or(old.per_window),
            outstanding: self.outstanding.or(old.outstanding),
            threshold_seconds: self.threshold_seconds.or(old.threshold_seconds),
            fixed: self.fixed.or(old.fixed),
            stamp_replied: self.stamp_replied.or(old.stamp_replied),
            guard: self.guard.or(old.guard),
            capacity: self.capacity.or(old.capacity),
            workers: self.workers.or(old.workers),
            when_full: self.when_full.or(old.when_full),
            jitter: self.jitter.or(old.jitter),
            postpone_jitter: self.postpone_jitter.or(old.postpone_jitter),
            max_connections: self.max_connections.or(old.max_connections),
        }
    }
}

/// The keys as the gate's settings, with the defaults of config.toml. The one place where the
/// two meet.
fn settings(keys: &Keys) -> Settings {
    let window_seconds = keys.window_size_seconds.unwrap_or(1);
    let per_window = keys.per_window.clone().unwrap_or_default();
    let (min, max) = keys
        .postpone_jitter
        .unwrap_or((Duration::from_secs(1), Duration::from_secs(3)));
    Settings {
        capacity: keys.capacity.unwrap_or(4096),
        workers: keys.workers.unwrap_or(64),
        max_unlimited: 64,
        when_full: keys.when_full.unwrap_or(WhenFull::Wait),
        postpone: if keys.jitter.unwrap_or(true) {
            Postpone::Jitter { min, max }
        } else {
            Postpone::InTurn
        },
        window: unless_off(window_seconds).map(|seconds| Window {
            length: Duration::from_secs(seconds.into()),
            total: per_window.total.and_then(unless_off),
            functions: per_window
                .functions
                .iter()
                .filter_map(|(name, calls)| Some((name.as_str().into(), unless_off(*calls)?)))
                .collect(),
            fixed: keys.fixed.unwrap_or(false),
            stamp_replied: keys.stamp_replied.unwrap_or(false),
            guard: keys.guard.unwrap_or(Duration::from_millis(5)),
        }),
        outstanding_max: unless_off(keys.outstanding.unwrap_or(10)),
        threshold: Duration::from_secs(keys.threshold_seconds.unwrap_or(60).into()),
        door_max: keys.max_connections.unwrap_or(16384),
    }
}

fn unless_off(value: u32) -> Option<u32> {
    (value > 0).then_some(value)
}

const TOTAL_CURE: &str = "add smapi_rate_limit_per_window = \"total:30\" to [config.limits], or \
                          smapi_rate_limit_window_size_seconds = 0 to do without windows";

/// Windows need a total. One that is there and can't be read has been complained about.
fn total_is_given(keys: &Keys, config: &Section<'_>) {
    let is_off = keys.window_size_seconds == Some(0);
    if !is_off && keys.per_window.is_none() && !config.has_inside("limits", PER_WINDOW) {
        config.complain("limits", Mistake::new("there is no total", TOTAL_CURE));
    }
}

/// `"total:30, guest_list:10"`, with spaces anywhere, or a table of the same.
fn per_window(value: &DeValue<'_>) -> Result<PerWindow, Mistake> {
    const CURE: &str = "write \"total:30, guest_list:10\" or { total = 30, guest_list = 10 }";
    let mut entries: Vec<(String, u32)> = Vec::new();
    match value {
        DeValue::String(list) => {
            for entry in list.split(',') {
                let wrong = || Mistake::new(format!("{entry:?} is not a name and a number"), CURE);
                let (name, calls) = entry.split_once(':').ok_or_else(wrong)?;
                let calls = calls.trim().parse().map_err(|_| wrong())?;
                if calls > CALLS_MAX {
                    let message = format!("{calls} is out of range");
                    return Err(Mistake::new(message, format!("give 0 to {CALLS_MAX}")));
                }
                entries.push((name.trim().to_owned(), calls));
            }
        }
        DeValue::Table(table) => {
            for (name, calls) in table.iter() {
                let calls = integer(0..=CALLS_MAX)(calls.get_ref())?;
                entries.push((name.get_ref().to_string(), calls));
            }
        }
        _ => return Err(Mistake::new("it is neither a string nor a table", CURE)),
    }
    let mut per_window = PerWindow::default();
    for (name, calls) in entries {
        let is_second = match name.as_str() {
            "" => return Err(Mistake::new("a name is missing", CURE)),
            "total" => per_window.total.replace(calls).is_some(),
            _ => {
                let known = per_window.functions.iter().any(|(other, _)| *other == name);
                per_window.functions.push((name.clone(), calls));
                known
            }
        };
        if is_second {
            let message = format!("{name} is given twice");
            return Err(Mistake::new(message, "leave one of the two out"));
        }
    }
    let Some(total) = per_window.total else {
        return Err(Mistake::new("there is no total", CURE));
    };
    // A total of 0 is no bound.
    let above = |calls: u32| total > 0 && calls > total;
    if let Some((name, calls)) = per_window.functions.iter().find(|(_, calls)| above(*calls)) {
        return Err(Mistake::new(
            format!("{name} may have {calls} calls per window, above the total of {total}"),
            format!("give {name} at most {total}, or raise the total"),
        ));
    }
    Ok(per_window)
}

fn jitter(value: &DeValue<'_>) -> Result<(Duration, Duration), Mistake> {
    let (min, max) = time_span(value)?;
    if max.is_zero() {
        return Err(Mistake::new(
            "nobody would ever wait",
            "give times above zero",
        ));
    }
    Ok((min, max))
}

/// `[[config.class]]`; without one, everybody is in the same class.
fn classes(sections: Vec<Section<'_>>) -> Vec<ClassShare> {
    let mut classes: Vec<ClassShare> = Vec::new();
    for mut section in sections {
        let name = section.read("name", name);
        let weight = section.read("weight", integer(1..=1_000_000)).unwrap_or(1);
        match name {
            None if !section.has("name") => section.complain(
                "name",
                Mistake::new(
                    "the class has no name",
                    "add a name, such as name = \"user\"",
                ),
            ),
            None => {}
            Some(name) if classes.iter().any(|class| *class.name == *name) => section.complain(
                "name",
                Mistake::new(
                    format!("two classes are named {name:?}"),
                    "rename one of them",
                ),
            ),
            Some(_) if classes.len() == CLASSES_MAX => section.complain(
                "name",
                Mistake::new("there are too many classes", "give at most 64"),
            ),
            Some(name) => classes.push(ClassShare {
                name: Arc::from(name),
                weight,
            }),
        }
        section.finish();
    }
    if classes.is_empty() {
        classes.push(ClassShare {
            name: "default".into(),
            weight: 1,
        });
    }
    classes
}
