//! The `[config]` part of a scenario: the keys of config.toml that decide about waiting, with
//! their spelling and their defaults.

use std::time::Duration;

use tidegate_limits::Class;
use tidegate_limits::bucket::OutOfRange;
use tidegate_limits::pace::{BurstRatio, Rate};
use toml::de::DeValue;

use super::reader::{Mistake, Section, choice, duration, integer, name, number, time_span};
use crate::admit::{ClassRule, Deadline, PacedLimit, Pool, Postpone, Settings, WhenFull, Window};
use crate::call::BackendKind;
use crate::call::pace::CostRange;
use crate::call::sdk::Kind;
use crate::classify::class::{POLLING, USER};

const PER_WINDOW: &str = "smapi_rate_limit_per_window";
/// The largest number of calls of a limit.
const CALLS_MAX: u32 = 1_000_000;
/// The most classes of a scenario.
const CLASSES_MAX: usize = 16;

/// The keys as given. A reload changes some of them and keeps the rest.
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
    let classes = config.sections("class");
    let paced = paced(config.sections("rate_limit"));
    let keys = keys(&mut config);
    total_is_given(&keys, &config);
    let mut settings = settings(&keys, Vec::new());
    settings.classes = self::classes(classes, Limits::of(&settings));
    settings.paced = paced;
    config.finish();
    Some((keys, Setup { settings }))
}

/// Reads what a reload changes, on top of what was in force.
pub(super) fn read_reload(mut reload: Section<'_>, keys: &mut Keys, setup: &mut Setup) {
    let new_classes = reload.has("class").then(|| reload.sections("class"));
    let new = self::keys(&mut reload);
    *keys = new.over(keys.clone());
    total_is_given(keys, &reload);
    reload.finish();
    let classes = std::mem::take(&mut setup.settings.classes);
    let paced = std::mem::take(&mut setup.settings.paced);
    setup.settings = settings(keys, classes);
    setup.settings.paced = paced;
    if let Some(classes) = new_classes {
        setup.settings.classes = self::classes(classes, Limits::of(&setup.settings));
    }
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
    /// These keys, and the older ones for those that are missing.
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

/// The keys as the gate's settings, with the defaults of config.toml. This is the only place
/// where the two meet.
fn settings(keys: &Keys, classes: Vec<ClassRule>) -> Settings {
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
        paced: Vec::new(),
        outstanding_max: unless_off(keys.outstanding.unwrap_or(10)),
        threshold: Duration::from_secs(keys.threshold_seconds.unwrap_or(60).into()),
        door_max: keys.max_connections.unwrap_or(16384),
        classes,
        // No guests are known here.
        promote_for: None,
    }
}

fn unless_off(value: u32) -> Option<u32> {
    (value > 0).then_some(value)
}

const TOTAL_CURE: &str = "add smapi_rate_limit_per_window = \"total:30\" to [config.limits], or \
                          smapi_rate_limit_window_size_seconds = 0 to do without windows";

/// Windows need a total. An unreadable one was complained about.
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

/// The paced limits on all calls or on those of a function. A caller is a name here, without a
/// rate limit of its own.
fn paced(sections: Vec<Section<'_>>) -> Vec<PacedLimit> {
    const SCOPES: [(&str, bool); 2] = [("total", false), ("function", true)];
    let mut limits: Vec<PacedLimit> = Vec::new();
    for mut section in sections {
        let name = section.read("name", name);
        let kind = section.read("kind", choice(&[("paced", ())]));
        let rate = section.read("rate", rate);
        let ratio = section.read("ratio", ratio).unwrap_or_default();
        let is_of_function = section.read("applies_to", choice(&SCOPES));
        let function = section.read("function", self::name);
        for (key, is_missing, cure) in [
            ("name", name.is_none(), "add name = \"all\""),
            ("kind", kind.is_none(), "add kind = \"paced\""),
            ("rate", rate.is_none(), "add rate = 10, in tokens a second"),
            (
                "applies_to",
                is_of_function.is_none(),
                "add applies_to = \"total\" or \"function\"",
            ),
            (
                "function",
                is_of_function == Some(true) && function.is_none(),
                "add function = \"guest_list\", or what it is",
            ),
        ] {
            if is_missing && !section.has(key) {
                section.complain(key, Mistake::new(format!("there is no {key}"), cure));
            }
        }
        if function.is_some() && is_of_function == Some(false) {
            let mistake = Mistake::new("the limit is on all calls", "leave it out");
            section.complain("function", mistake);
        }
        if let (Some(name), Some(rate)) = (name, rate) {
            if limits.iter().any(|other| *other.name == *name) {
                let mistake = Mistake::new(format!("{name} is given twice"), "give another name");
                section.complain("name", mistake);
            } else {
                limits.push(PacedLimit {
                    name: name.into(),
                    function: function.map(Into::into),
                    rate,
                    ratio,
                    costs: CostRange::ONE,
                });
            }
        }
        section.finish();
    }
    limits
}

fn rate(value: &DeValue<'_>) -> Result<Rate, Mistake> {
    in_range(Rate::new(number(value)?))
}

fn ratio(value: &DeValue<'_>) -> Result<BurstRatio, Mistake> {
    in_range(BurstRatio::new(number(value)?))
}

fn in_range<T>(made: Result<T, OutOfRange>) -> Result<T, Mistake> {
    made.map_err(
        |OutOfRange {
             given, min, max, ..
         }| {
            Mistake::new(
                format!("{given} is out of range"),
                format!("give {min} to {max}"),
            )
        },
    )
}

fn jitter(value: &DeValue<'_>) -> Result<(Duration, Duration), Mistake> {
    let (min, max) = time_span(value)?;
    if max.is_zero() {
        return Err(Mistake::new(
            "no call would ever wait",
            "give times above zero",
        ));
    }
    Ok((min, max))
}

/// `user` and `polling`, and the settings of `[[config.class]]` for these and others, in the
/// order of the gate.
fn classes(sections: Vec<Section<'_>>, limits: Limits) -> Vec<ClassRule> {
    let mut user = ClassRule::weighing(USER, 4);
    let mut polling = ClassRule::weighing(POLLING, 1);
    let mut own: Vec<ClassRule> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    let mut kept = [false; 2];
    for mut section in sections {
        let name = section.read("name", name);
        let weight = section.read("weight", integer(1..=1000));
        let mut rule = ClassRule::weighing("", weight.unwrap_or(1));
        rule.deadline = section
            .read("deadline", deadline)
            .unwrap_or(Deadline::Threshold);
        let beside = section.read("beside_total", flag).unwrap_or(false);
        let pool = section.read("outstanding_max", integer(1..=CALLS_MAX));
        rule.pool = pool.map(|max| {
            if beside {
                Pool::Beside(max)
            } else {
                Pool::Inside(max)
            }
        });
        rule.per_window = section.read("per_window", integer(1..=CALLS_MAX));
        let reserves = ["reserve_outstanding", "reserve_per_window"];
        let maxima = [limits.outstanding, limits.per_window];
        let amounts = [&mut rule.reserve_outstanding, &mut rule.reserve_per_window];
        for (((key, max), amount), kept) in
            reserves.into_iter().zip(maxima).zip(amounts).zip(&mut kept)
        {
            *amount = section.read(key, integer(0..=CALLS_MAX)).unwrap_or(0);
            if *amount == 0 {
                continue;
            }
            if *kept {
                let cure = "keep it for one class";
                section.complain(
                    key,
                    Mistake::new("another class keeps something already", cure),
                );
            }
            *kept = true;
            if max.is_none_or(|max| *amount >= max) {
                let cure = "keep fewer than the limit has";
                section.complain(
                    key,
                    Mistake::new("it leaves nothing for the other classes", cure),
                );
            }
        }
        match name {
            None if !section.has("name") => section.complain(
                "name",
                Mistake::new(
                    "the class has no name",
                    "add a name, such as name = \"user\"",
                ),
            ),
            None => {}
            Some(name) if seen.contains(&name) => section.complain(
                "name",
                Mistake::new(
                    format!("two classes are named {name:?}"),
                    "rename one of them",
                ),
            ),
            Some(_) if own.len() == CLASSES_MAX => section.complain(
                "name",
                Mistake::new("there are too many classes", "give at most 16"),
            ),
            Some(name) => {
                rule.name = name.as_str().into();
                match &*name {
                    USER => {
                        rule.weight = weight.unwrap_or(user.weight);
                        user = rule;
                    }
                    POLLING => polling = rule,
                    _ => own.push(rule),
                }
                seen.push(name);
            }
        }
        section.finish();
    }
    let mut classes = vec![user];
    classes.append(&mut own);
    classes.push(polling);
    classes
}

/// What a reserve is a part of, if that is limited.
#[derive(Clone, Copy)]
struct Limits {
    outstanding: Option<u32>,
    per_window: Option<u32>,
}

impl Limits {
    fn of(settings: &Settings) -> Self {
        let window = settings.window.as_ref();
        Self {
            outstanding: settings.outstanding_max,
            per_window: window.and_then(|window| window.total),
        }
    }
}

/// `"none"`, or a duration.
fn deadline(value: &DeValue<'_>) -> Result<Deadline, Mistake> {
    match value {
        DeValue::String(word) if word == "none" => Ok(Deadline::Never),
        _ => duration(value).map(Deadline::After),
    }
}

fn flag(value: &DeValue<'_>) -> Result<bool, Mistake> {
    match value {
        DeValue::Boolean(flag) => Ok(*flag),
        _ => Err(Mistake::new(
            "it is neither true nor false",
            "give true or false, without quotes",
        )),
    }
}
