//! `[classes]`, `[[class]]` and what a listener says of classes: read, checked, and handed to
//! the classifier and the gate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::admit::{ClassRule, Deadline, Pool};
use crate::call::Protocol;
use crate::call::sdk::{Effort, Kind as Writes};
use crate::classify::class::{self, FromListener, HEADER, Known, POLLING, USER};

use super::backend_kind;
use super::functions::Functions;
use super::nearest::nearest;
use super::per_window::{CALLS_MAX, function_name};
use super::raw::{Listen, Raw};
use super::reader::{Notes, Section, Setting};
use super::text::name;
use super::tree::{Value, quoted};
use super::value::{Kind, Mistake, choice, duration, flag, integer, text};

/// Most classes of one's own; there is a line in the queue for each with each set of limits.
pub(super) const CLASSES_MAX: usize = 16;
/// Most functions that a list may name.
const FUNCTIONS_MAX: usize = 1024;
/// What stands for all functions that only read the SDK's own database.
const DATABASE: &str = "db";
/// It only reads the database, until it is told to ask SMAPI for what is new.
const SYNCS: &str = "get_fcp_templates_details";

const USER_WEIGHT: u32 = 4;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The efforts by the words of the config.
const EFFORTS: &[(&str, Effort)] = &[
    ("db", Effort::Db),
    ("cp", Effort::Cp),
    ("smapi", Effort::Smapi),
    ("seconds", Effort::Seconds),
    ("minutes", Effort::Minutes),
];

/// The word for an effort.
pub(super) fn word_of(effort: Effort) -> &'static str {
    let mut words = EFFORTS.iter();
    let found = words.find(|(_, known)| *known == effort);
    found.expect("every effort has a word").0
}

/// `[classes]`
pub(super) struct Classes {
    header: Setting<HeaderName>,
    promote_for: Setting<Duration>,
}

/// `[[class]]`
pub(super) struct Class {
    pub(super) name: Setting<Option<String>>,
    weight: Setting<Option<u32>>,
    deadline: Setting<Option<Deadline>>,
    functions: Setting<Vec<String>>,
    effort: Setting<Option<Effort>>,
    outstanding_max: Setting<Option<u32>>,
    beside_total: Setting<bool>,
    per_window: Setting<Option<u32>>,
    pub(super) reserve_outstanding: Setting<u32>,
    pub(super) reserve_per_window: Setting<u32>,
}

/// What a listener says.
pub(super) struct OfListener {
    class: Setting<Option<String>>,
    header: Setting<bool>,
}

pub(super) fn read(mut section: Section<'_>) -> Classes {
    let usual = HeaderName::from_static(HEADER);
    let classes = Classes {
        header: section.read("header", usual, header()),
        promote_for: section.read(
            "promote_for",
            Duration::from_secs(10),
            duration(Duration::ZERO..=Duration::from_secs(3600)),
        ),
    };
    section.finish();
    classes
}

pub(super) fn read_class(mut section: Section<'_>) -> Class {
    let calls = || integer(1..=CALLS_MAX).optional();
    let class = Class {
        name: section.read("name", None, name().optional()),
        weight: section.read("weight", None, integer(1..=1000).optional()),
        deadline: section.read("deadline", None, deadline().optional()),
        functions: section.read("functions", Vec::new(), functions("a list of functions")),
        effort: section.read("effort", None, choice(EFFORTS).optional()),
        outstanding_max: section.read("outstanding_max", None, calls()),
        beside_total: section.read("beside_total", false, flag()),
        per_window: section.read("per_window", None, calls()),
        reserve_outstanding: section.read("reserve_outstanding", 0, integer(0..=CALLS_MAX)),
        reserve_per_window: section.read("reserve_per_window", 0, integer(0..=CALLS_MAX)),
    };
    section.finish();
    class
}

/// The listener's share; it finishes its section itself.
pub(super) fn read_of_listener(section: &mut Section<'_>) -> OfListener {
    OfListener {
        class: section.read("class", None, name().optional()),
        header: section.read("class_header", false, flag()),
    }
}

/// The functions that meet no limit.
pub(super) fn exempt() -> Kind<Vec<String>> {
    functions("a list of functions, or \"db\" for the reads of the database")
}

fn header() -> Kind<HeaderName> {
    text("the name of a header", "X-Tidegate-Class", |given| {
        given.parse().map_err(|_| {
            Mistake::new(
                format!("{} is not the name of a header", quoted(given)),
                "give letters, digits and \"-\", such as \"X-Tidegate-Class\"",
            )
        })
    })
}

fn deadline() -> Kind<Deadline> {
    let length = duration(Duration::ZERO..=DAY);
    Kind {
        allowed: format!("\"none\", or a duration, {}", length.allowed),
        read: Box::new(move |node| match node.text() {
            Some("none") => Ok(Deadline::Never),
            _ => (length.read)(node).map(Deadline::After),
        }),
    }
}

fn functions(allowed: &str) -> Kind<Vec<String>> {
    const CURE: &str = "give names in quotes, such as [\"guest_get_info\", \"guest_list\"]";
    Kind {
        allowed: allowed.to_owned(),
        read: Box::new(|node| {
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, CURE));
            };
            if list.len() > FUNCTIONS_MAX {
                let told = format!("there are {} of them", list.len());
                return Err(Mistake::new(told, format!("give at most {FUNCTIONS_MAX}")));
            }
            let mut names: Vec<String> = Vec::new();
            for item in list {
                let Some(name) = item.text() else {
                    let told = format!("{} is not a string", item.told());
                    return Err(Mistake::new(told, CURE));
                };
                function_name(name)?;
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
            Ok(names)
        }),
    }
}

/// Looks for what is wrong with them.
pub(super) fn check(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    names(raw, notes);
    functions_are_apart(raw, notes);
    functions_are_known(raw, functions, notes);
    table_is_there(raw, functions, notes);
    for class in &raw.classes {
        pool(raw, class, notes);
        per_window(raw, class, notes);
    }
    reserves(raw, notes);
    exempt_functions(raw, notes);
    for listener in raw.listen.iter().flatten() {
        of_listener(raw, listener, notes);
    }
}

fn names(raw: &Raw, notes: &Notes) {
    let mut seen: Vec<&str> = Vec::new();
    for class in &raw.classes {
        if class.name.is_missing() {
            let cure = "add a name, such as name = \"long\"; \"user\" and \"polling\" change \
                        the built-in ones";
            notes.missing(&class.name.at, Mistake::new("the class has no name", cure));
        }
        let Some(Some(name)) = class.name.meant() else {
            continue;
        };
        if seen.contains(&&**name) {
            let told = format!("{} is the name of another class too", quoted(name));
            let cure = "give each class a name of its own, or make one of the two";
            notes.error(&class.name.at, Mistake::new(told, cure));
        }
        seen.push(name);
    }
}

fn functions_are_apart(raw: &Raw, notes: &Notes) {
    let mut functions: BTreeMap<&str, &str> = BTreeMap::new();
    let mut efforts: Vec<Effort> = Vec::new();
    for class in &raw.classes {
        let at = &class.functions.at;
        for function in class.functions.meant().into_iter().flatten() {
            if let Some(other) = functions.insert(function, &at.key) {
                let told = format!("{} stands in {other} too", quoted(function));
                let cure = "leave it in one class";
                notes.error(at, Mistake::new(told, cure));
            }
        }
        if let Some(Some(effort)) = class.effort.meant() {
            if efforts.contains(effort) {
                let told = "another class has all calls of this effort already";
                notes.error(
                    &class.effort.at,
                    Mistake::new(told, "leave it to one class"),
                );
            }
            efforts.push(*effort);
        }
    }
}

fn functions_are_known(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    let lists = raw.classes.iter().map(|class| (&class.functions, None));
    let lists = lists.chain([(&raw.limits.exempt, Some(DATABASE))]);
    for (list, also) in lists {
        for name in list.meant().into_iter().flatten() {
            if let Some(doubt) = functions.doubt(name, also) {
                notes.warn(&list.at, doubt);
            }
        }
    }
}

/// What stands for functions of the built-in table needs the table.
fn table_is_there(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    if functions.has_table() {
        return;
    }
    const CURE: &str = "leave it out, or write kind = \"zvm\" in [backend] if that is true";
    let given = raw.classes.iter().map(|class| &class.effort);
    for effort in given.filter(|effort| effort.value.is_some()) {
        let told = "it names no function: only a backend of kind \"zvm\" has a table of efforts";
        notes.warn(&effort.at, Mistake::new(told, CURE));
    }
    if raw.limits.exempt.value.iter().any(|name| name == DATABASE) {
        let told = "\"db\" names no function: only a backend of kind \"zvm\" has a table of them";
        notes.warn(&raw.limits.exempt.at, Mistake::new(told, CURE));
    }
}

fn pool(raw: &Raw, class: &Class, notes: &Notes) {
    let (Some(pool), Some(&beside)) = (class.outstanding_max.meant(), class.beside_total.meant())
    else {
        return;
    };
    let Some(pool) = *pool else {
        if beside {
            let told = "a pool beside the total needs a number";
            let cure = "add outstanding_max = 4 with what the backend bears on top, or leave \
                        beside_total out";
            notes.missing(&class.beside_total.at, Mistake::new(told, cure));
        }
        return;
    };
    let Some(&total) = raw.limits.outstanding.meant() else {
        return;
    };
    if beside && total == 0 {
        let told = "there is no total that it could be beside: smapi_max_outstanding_requests is 0";
        notes.warn(&class.beside_total.at, Mistake::new(told, "leave it out"));
    }
    if !beside && total > 0 && pool > total {
        let told = format!(
            "{pool} of its calls at once are more than the {total} of \
             smapi_max_outstanding_requests"
        );
        let cure = format!(
            "give at most {total}, or say beside_total = true to let them come on top of these"
        );
        notes.error(&class.outstanding_max.at, Mistake::new(told, cure));
    }
}

fn per_window(raw: &Raw, class: &Class, notes: &Notes) {
    let Some(Some(calls)) = class.per_window.meant() else {
        return;
    };
    if raw.limits.window_size_seconds.meant() == Some(&0) {
        let told = "windows are off: smapi_rate_limit_window_size_seconds is 0";
        let cure = "leave it out, or give the window a length";
        notes.error(&class.per_window.at, Mistake::new(told, cure));
        return;
    }
    if let Some(total) = window_total(raw)
        && *calls > total
    {
        let told = format!("{calls} calls per window are more than the total of {total}");
        let cure = format!("give at most {total}, or raise total");
        notes.error(&class.per_window.at, Mistake::new(told, cure));
    }
}

/// Calls per window of all together, where that is bounded.
fn window_total(raw: &Raw) -> Option<u32> {
    let total = raw.limits.per_window.total.as_ref()?;
    (raw.limits.per_window.sound && total.value > 0).then_some(total.value)
}

/// Of one limit, one class can have something for itself.
fn reserves(raw: &Raw, notes: &Notes) {
    let outstanding = raw.limits.outstanding.meant();
    let windows_are_off = raw.limits.window_size_seconds.meant() == Some(&0);
    let mut holders: [Option<&str>; 2] = [None; 2];
    for class in &raw.classes {
        let limits = [
            (
                &class.reserve_outstanding,
                "smapi_max_outstanding_requests",
                outstanding.copied().filter(|max| *max > 0),
                outstanding == Some(&0),
                class.outstanding_max.value,
            ),
            (
                &class.reserve_per_window,
                "the total of smapi_rate_limit_per_window",
                window_total(raw),
                windows_are_off,
                class.per_window.value,
            ),
        ];
        for ((setting, limit, max, is_off, own), holder) in limits.into_iter().zip(&mut holders) {
            let Some(&amount) = setting.meant().filter(|amount| **amount > 0) else {
                continue;
            };
            let error = |told: String, cure: &str| {
                notes.error(&setting.at, Mistake::new(told, cure));
            };
            if let Some(other) = holder {
                let told = format!("{other} keeps something of {limit} already");
                error(told, "keep it for one class; its weight helps the other");
                continue;
            }
            *holder = Some(&setting.at.key);
            if is_off {
                error(
                    format!("there is nothing to keep: {limit} is off"),
                    "leave it out",
                );
            } else if max.is_some_and(|max| amount >= max) {
                error(
                    format!("{amount} of {limit} leave nothing for the other classes"),
                    "keep fewer than there are",
                );
            } else if own.is_some_and(|own| amount > own) {
                error(
                    format!("{amount} are kept for a class that may not use as many"),
                    "keep at most what the class may have",
                );
            }
        }
        if class.reserve_outstanding.value > 0 && class.beside_total.meant() == Some(&true) {
            let told = "its calls do not count in smapi_max_outstanding_requests";
            let cure = "leave it out: what outstanding_max says is for this class alone";
            notes.error(&class.reserve_outstanding.at, Mistake::new(told, cure));
        }
    }
}

fn exempt_functions(raw: &Raw, notes: &Notes) {
    let exempt = exempt_names(raw);
    for (name, calls) in &raw.limits.per_window.functions {
        if calls.value > 0 && exempt.iter().any(|it| **it == **name) {
            let told = format!("{} is exempt from every limit", quoted(name));
            let cure = "leave this limit out, or take the function out of exempt in [limits]";
            notes.error(&calls.at, Mistake::new(told, cure));
        }
    }
}

fn of_listener(raw: &Raw, listener: &Listen, notes: &Notes) {
    let said = &listener.classes;
    if let Some(Some(name)) = said.class.meant() {
        let own = raw.classes.iter().filter_map(|it| it.name.value.as_deref());
        let known: Vec<&str> = [USER, POLLING].into_iter().chain(own).collect();
        if !known.contains(&&**name) {
            let told = format!("there is no class {}", quoted(name));
            let cure = match nearest(name, known) {
                Some(class) => format!("did you mean {}?", quoted(class)),
                None => format!("add a section [[class]] with name = {}", quoted(name)),
            };
            notes.error(&said.class.at, Mistake::new(told, cure));
        }
    }
    let has_headers = |protocol| matches!(protocol, Protocol::Auto | Protocol::Http);
    if said.header.meant() == Some(&true)
        && listener
            .protocol
            .meant()
            .is_some_and(|it| !has_headers(*it))
    {
        let told = "no class is ever named here: only HTTP has headers";
        let cure = "leave it out, or write protocol = \"http\"";
        notes.warn(&said.header.at, Mistake::new(told, cure));
    }
}

/// The functions that meet no limit, each once.
pub(super) fn exempt_names(raw: &Raw) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in &raw.limits.exempt.value {
        if name == DATABASE {
            let table = backend_kind::of(&raw.backend).functions();
            let reads = table.iter().filter(|function| {
                function.effort == Effort::Db
                    && function.kind == Writes::Read
                    && function.name != SYNCS
            });
            names.extend(reads.map(|function| function.name));
        } else {
            names.push(name);
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The functions that meet no limit, for the classifier.
pub(super) fn exempt_of(raw: &Raw) -> Vec<Arc<str>> {
    exempt_names(raw).into_iter().map(Arc::from).collect()
}

/// The functions named here that the table does not know: they are labels of their own.
pub(super) fn functions_named(raw: &Raw) -> impl Iterator<Item = &str> {
    let kind = backend_kind::of(&raw.backend);
    let classes = in_order(raw).into_iter().filter_map(|(_, class)| class);
    let placed = classes.flat_map(|class| &class.functions.value);
    let exempt = raw.limits.exempt.value.iter();
    placed
        .chain(exempt.filter(|name| *name != DATABASE))
        .map(String::as_str)
        .filter(move |name| kind.function(name).is_none())
}

/// Every class by its name, with what the config says of it: `user` first and `polling` last,
/// because calls of a class that a reload takes away come to the last.
fn in_order(raw: &Raw) -> Vec<(&str, Option<&Class>)> {
    let named = |name: &str| {
        let mut classes = raw.classes.iter();
        classes.find(|class| class.name.value.as_deref() == Some(name))
    };
    let own = raw.classes.iter().filter_map(|class| {
        let name = class.name.value.as_deref()?;
        (name != USER && name != POLLING).then_some((name, Some(class)))
    });
    let mut classes = vec![(USER, named(USER))];
    classes.extend(own);
    classes.push((POLLING, named(POLLING)));
    classes
}

/// The classes, for the gate.
pub(super) fn rules(raw: &Raw) -> Vec<ClassRule> {
    let rule = |(name, class): (&str, Option<&Class>)| {
        let usual = if name == USER { USER_WEIGHT } else { 1 };
        let Some(class) = class else {
            return ClassRule::weighing(name, usual);
        };
        ClassRule {
            deadline: class.deadline.value.unwrap_or(Deadline::Threshold),
            pool: class.outstanding_max.value.map(|max| {
                if class.beside_total.value {
                    Pool::Beside(max)
                } else {
                    Pool::Inside(max)
                }
            }),
            per_window: class.per_window.value,
            reserve_outstanding: class.reserve_outstanding.value,
            reserve_per_window: class.reserve_per_window.value,
            ..ClassRule::weighing(name, class.weight.value.unwrap_or(usual))
        }
    };
    in_order(raw).into_iter().map(rule).collect()
}

/// How many calls may be at the backend on top of `smapi_max_outstanding_requests`.
pub(super) fn beside(raw: &Raw) -> u32 {
    let beside = raw.classes.iter().filter(|class| class.beside_total.value);
    beside
        .filter_map(|class| class.outstanding_max.value)
        .fold(0, u32::saturating_add)
}

/// Whether any function meets no limit.
pub(super) fn is_anything_exempt(raw: &Raw) -> bool {
    !raw.limits.exempt.value.is_empty()
}

/// How long after a user call its guest's reads are promoted; none switches it off.
pub(super) fn promote_for(raw: &Raw) -> Option<Duration> {
    Some(raw.class_defaults.promote_for.value).filter(|length| !length.is_zero())
}

/// What the classifier has to know of them.
pub(super) fn classifier(raw: &Raw) -> class::Settings {
    let rules = rules(raw);
    let user = &rules[0];
    let known = rules.iter().map(|rule| Known {
        name: Arc::clone(&rule.name),
        may_rise: rule.weight < user.weight && rule.pool.is_none() && rule.per_window.is_none(),
    });
    let mut functions = Vec::new();
    let mut efforts = Vec::new();
    for (rule, (_, class)) in rules.iter().zip(in_order(raw)) {
        let Some(class) = class else { continue };
        let names = class.functions.value.iter();
        functions.extend(names.map(|name| (name.as_str().into(), Arc::clone(&rule.name))));
        let effort = class.effort.value;
        efforts.extend(effort.map(|effort| (effort, Arc::clone(&rule.name))));
    }
    let listeners = raw.listen.iter().flatten().filter_map(|listener| {
        let said = &listener.classes;
        let says = said.header.value || said.class.value.is_some();
        says.then(|| FromListener {
            listener: listener.name.value.as_deref().unwrap_or_default().into(),
            class: said.class.value.as_deref().map(Arc::from),
            header: said.header.value,
        })
    });
    class::Settings {
        classes: known.collect(),
        functions,
        efforts,
        listeners: listeners.collect(),
        header: raw.class_defaults.header.value.clone(),
    }
}
