//! `[coordinate]`: which limits are shares of what several sidecars have together, from the file
//! to the settings of whoever asks for them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_leases::client::{ID_BYTES_MAX, ServerAddress};
use tidegate_leases::sharing::{Safe, Servers, Settings, SharedLimit};
use tidegate_limits::Fill;

use crate::telemetry::calls::RATE_LIMIT_PREFIX;

use super::effective::{Toml, quoted as toml_text};
use super::nearest::nearest;
use super::rate_limits::RawRateLimit;
use super::raw::Raw;
use super::reader::{At, Notes, Section, Setting};
use super::tree::{Node, Value, quoted};
use super::value::{Kind, Mistake, choice, duration, integer, number, show_duration, text};

/// Most servers that are named.
const SERVERS_MAX: usize = 64;
/// Most limits that are shared.
const LIMITS_MAX: usize = 64;
/// Most sidecars.
const SIDECARS_MAX: u32 = 100_000;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Who shares the capacity out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Lease,
}

const ENGINES: &[(&str, Engine)] = &[("lease", Engine::Lease)];

/// `[coordinate]`
pub(super) struct RawCoordinate {
    at: At,
    given: bool,
    /// The engine of those limits that name none.
    engine: Setting<Engine>,
    servers: Setting<Vec<ServerAddress>>,
    id: Setting<Option<String>>,
    expected_sidecars: Setting<Option<u32>>,
    request_timeout: Setting<Duration>,
    minimum_interval: Setting<Duration>,
    limits: Vec<RawShared>,
}

/// `[[coordinate.limit]]`
struct RawShared {
    at: At,
    limit: Setting<Option<String>>,
    resource: Setting<Option<String>>,
    safe: Setting<Option<Fill>>,
    engine: Setting<Option<Engine>>,
}

pub(super) fn read(mut section: Section<'_>) -> RawCoordinate {
    let limits = section.sections("limit", LIMITS_MAX).unwrap_or_default();
    let coordinate = RawCoordinate {
        at: section.at().clone(),
        given: section.is_given(),
        engine: section.read("engine", Engine::Lease, choice(ENGINES)),
        servers: section.read("servers", Vec::new(), servers()),
        id: section.read("id", None, id("the sidecar's", "proxy-1").optional()),
        expected_sidecars: section.read(
            "expected_sidecars",
            None,
            integer(1..=SIDECARS_MAX).optional(),
        ),
        request_timeout: section.read(
            "request_timeout",
            2 * SECOND,
            duration(Duration::from_millis(10)..=MINUTE),
        ),
        minimum_interval: section.read(
            "minimum_interval",
            5 * SECOND,
            duration(Duration::from_millis(10)..=60 * MINUTE),
        ),
        limits: limits.into_iter().map(shared).collect(),
    };
    section.finish();
    coordinate
}

fn shared(mut section: Section<'_>) -> RawShared {
    let safe = number("0.000001 to 1000000000", |given| {
        Fill::new(given).map_err(|_| ())
    });
    let limit = RawShared {
        at: section.at().clone(),
        limit: section.read("limit", None, limit_name().optional()),
        resource: section.read(
            "resource",
            None,
            id("a resource's", "zvm1/total").optional(),
        ),
        safe: section.read("safe", None, safe.optional()),
        engine: section.read("engine", None, choice(ENGINES).optional()),
    };
    section.finish();
    limit
}

fn limit_name() -> Kind<String> {
    text("the name of a limit, as in metrics", "total", |given| {
        Ok(given.to_owned())
    })
}

fn id(whose: &'static str, example: &'static str) -> Kind<String> {
    text("1 to 1024 bytes", example, move |given| {
        if given.is_empty() || given.len() > ID_BYTES_MAX {
            let told = format!("{whose} id has {} bytes", given.len());
            return Err(Mistake::new(told, "give 1 to 1024 bytes"));
        }
        Ok(given.to_owned())
    })
}

fn servers() -> Kind<Vec<ServerAddress>> {
    const ALLOWED: &str = "[\"host:port\", …]";
    let read = |node: &Node| {
        let Value::List(list) = &node.value else {
            let cure = "give their addresses in brackets, such as [\"10.0.0.1:5101\"]";
            let told = format!("{} is not a list", node.told());
            return Err(Mistake::new(told, cure));
        };
        if list.len() > SERVERS_MAX {
            let told = format!("there are {} of them", list.len());
            return Err(Mistake::new(told, format!("give at most {SERVERS_MAX}")));
        }
        let mut servers = Vec::new();
        for item in list {
            let address = item.text().and_then(|text| text.parse().ok());
            let Some(address) = address else {
                let told = format!("{} is not the address of a server", item.told());
                return Err(Mistake::new(told, "write each as \"host:port\""));
            };
            if servers.contains(&address) {
                let told = format!("{} is named twice", item.told());
                return Err(Mistake::new(told, "leave one of the two out"));
            }
            servers.push(address);
        }
        Ok(servers)
    };
    Kind {
        allowed: ALLOWED.to_owned(),
        read: Box::new(read),
    }
}

/// A limit that could be shared, with its number in the config.
enum Known {
    /// Calls, cost, or whole tokens a second.
    Whole(u32),
    /// Tokens a second.
    Rate(f64),
}

impl Known {
    fn configured(&self) -> f64 {
        match *self {
            Self::Whole(max) => f64::from(max),
            Self::Rate(per_second) => per_second,
        }
    }
}

/// Every limit that could be shared, by its name in metrics.
fn known(raw: &Raw) -> BTreeMap<String, Known> {
    let limits = &raw.limits;
    let mut known = BTreeMap::new();
    if limits.window_size_seconds.value > 0 {
        if let Some(total) = &limits.per_window.total
            && total.value > 0
        {
            known.insert("total".to_owned(), Known::Whole(total.value));
        }
        for (function, calls) in &limits.per_window.functions {
            if calls.value > 0 {
                known.insert(format!("function:{function}"), Known::Whole(calls.value));
            }
        }
    }
    if limits.outstanding.value > 0 {
        let max = Known::Whole(limits.outstanding.value);
        known.insert("outstanding".to_owned(), max);
    }
    // A quota is shared already.
    for limit in raw.rate_limits.iter().filter(|it| !it.is_quota()) {
        let (Some(name), Some(per_second)) = (&limit.name.value, limit.per_second(&raw.profiles))
        else {
            continue;
        };
        let name = format!("{RATE_LIMIT_PREFIX}{name}");
        let number = if limit.is_of_callers() {
            Known::Rate(per_second)
        } else {
            // The gate counts whole tokens a second of those.
            Known::Whole(per_second as u32)
        };
        known.insert(name, number);
    }
    known
}

/// The name in metrics of what the config calls by this name: that, or the name of a rate limit.
fn in_metrics<'a>(known: &'a BTreeMap<String, Known>, given: &str) -> Option<(&'a str, &'a Known)> {
    let named = known.get_key_value(given);
    let named = named.or_else(|| known.get_key_value(&format!("{RATE_LIMIT_PREFIX}{given}")));
    named.map(|(name, known)| (name.as_str(), known))
}

/// What depends on two options at once.
pub(super) fn check(raw: &Raw, notes: &Notes) {
    let coordinate = &raw.coordinate;
    if !coordinate.given {
        return;
    }
    let at = &coordinate.at;
    if coordinate.servers.sound && coordinate.servers.value.is_empty() {
        let cure = "add servers = [\"10.0.0.1:5101\"] to [coordinate]";
        notes.missing(at, Mistake::new("no capacity server is named", cure));
    }
    if coordinate.expected_sidecars.is_missing() {
        let cure = "add expected_sidecars, the most that will ever run at once: each of them owns \
                    its safe share whatever happens";
        let told = "it is not said how many sidecars share the limits";
        notes.missing(at, Mistake::new(told, cure));
    }
    if coordinate.limits.is_empty() {
        let cure = "add a section [[coordinate.limit]] with limit, resource and safe, or leave \
                    [coordinate] out";
        notes.missing(at, Mistake::new("no limit is shared", cure));
    }
    let known = known(raw);
    let mut limits: Vec<&str> = Vec::new();
    let mut resources: Vec<&str> = Vec::new();
    for shared in &coordinate.limits {
        is_whole(shared, notes);
        if let Some(Some(resource)) = shared.resource.meant() {
            if resources.contains(&resource.as_str()) {
                let told = format!("{} is another limit's resource too", quoted(resource));
                let cure = "give each limit a resource of its own";
                notes.error(&shared.resource.at, Mistake::new(told, cure));
            }
            resources.push(resource);
        }
        let Some(Some(given)) = shared.limit.meant() else {
            continue;
        };
        let Some((name, number)) = in_metrics(&known, given) else {
            unknown(shared, given, raw, &known, notes);
            continue;
        };
        if limits.contains(&name) {
            let told = format!("{} is shared twice", quoted(name));
            let cure = "leave one of the two out";
            notes.error(&shared.limit.at, Mistake::new(told, cure));
        }
        limits.push(name);
        if let Some(Some(safe)) = shared.safe.meant() {
            safe_fits(shared, name, number, safe.get(), notes);
            reserves_fit(shared, name, safe.get(), raw, notes);
        }
    }
}

fn is_whole(shared: &RawShared, notes: &Notes) {
    for (missing, told, cure) in [
        (
            shared.limit.is_missing(),
            "it is not said which limit is shared",
            "add limit = \"total\", or another name that metrics know",
        ),
        (
            shared.resource.is_missing(),
            "it is not said what the servers call it",
            "add resource = \"zvm1/total\", the same in every sidecar",
        ),
        (
            shared.safe.is_missing(),
            "it is not said what this sidecar always owns",
            "add safe = 5, which it may use whatever happens to the servers",
        ),
    ] {
        if missing {
            notes.missing(&shared.at, Mistake::new(told, cure));
        }
    }
}

fn unknown(
    shared: &RawShared,
    given: &str,
    raw: &Raw,
    known: &BTreeMap<String, Known>,
    notes: &Notes,
) {
    let of_window = given == "total" || given.starts_with("function:");
    if of_window && raw.limits.window_size_seconds.meant() == Some(&0) {
        let told = format!("there is no limit {}: windows are off", quoted(given));
        let cure = "give smapi_rate_limit_window_size_seconds in [limits] a number above 0, or \
                    leave this limit out";
        notes.error(&shared.limit.at, Mistake::new(told, cure));
        return;
    }
    // What could not be read may be the one that is meant.
    let per_window = raw.limits.per_window.total.is_none();
    if of_window && per_window {
        return;
    }
    let bare_name = given.strip_prefix(RATE_LIMIT_PREFIX).unwrap_or(given);
    let is_meant =
        |limit: &RawRateLimit| limit.is_quota() && limit.name.value.as_deref() == Some(bare_name);
    if raw.rate_limits.iter().any(is_meant) {
        let told = format!("{} is a quota, which has a store of its own", quoted(given));
        let cure = "leave it out: sidecars share it already, as [quota] says";
        notes.error(&shared.limit.at, Mistake::new(told, cure));
        return;
    }
    let names = || known.keys().map(String::as_str);
    let bare = || names().filter_map(|name| name.strip_prefix(RATE_LIMIT_PREFIX));
    let functions = || {
        let functions = names().filter_map(|name| name.strip_prefix("function:"));
        functions.filter(|function| *function == given)
    };
    let near = functions()
        .next()
        .map(|function| format!("function:{function}"))
        .or_else(|| nearest(given, names().chain(bare())).map(ToOwned::to_owned));
    let cure = match near {
        Some(near) => format!("did you mean {}?", quoted(&near)),
        None if known.is_empty() => "there is none that could be shared".to_owned(),
        None => {
            let list: Vec<_> = names().map(quoted).collect();
            format!("give one of {}", list.join(", "))
        }
    };
    let told = format!("there is no limit {}", quoted(given));
    notes.error(&shared.limit.at, Mistake::new(told, cure));
}

fn safe_fits(shared: &RawShared, name: &str, number: &Known, safe: f64, notes: &Notes) {
    if matches!(number, Known::Whole(_)) && safe < 1.0 {
        let told = format!(
            "{safe} of {} is nothing: only whole ones count",
            quoted(name)
        );
        let cure = "give 1 or more";
        notes.error(&shared.safe.at, Mistake::new(told, cure));
    }
    let configured = number.configured();
    if safe > configured {
        let told = format!(
            "{safe} is more than the {configured} that {} allows",
            quoted(name)
        );
        let cure = format!("give at most {configured}, or raise the limit itself");
        notes.error(&shared.safe.at, Mistake::new(told, cure));
    }
}

/// What a limit keeps for a class is kept of a small share, too, and may be all of it.
fn reserves_fit(shared: &RawShared, name: &str, safe: f64, raw: &Raw, notes: &Notes) {
    for class in &raw.classes {
        let reserve = match name {
            "outstanding" => class.reserve_outstanding.value,
            "total" => class.reserve_per_window.value,
            _ => 0,
        };
        if f64::from(reserve) >= safe.floor() && reserve > 0 {
            let told = format!(
                "while only this is left, all of it is kept for class {}, which keeps {reserve}",
                quoted(class.name.value.as_deref().unwrap_or_default())
            );
            let cure = format!("give more than {reserve}, or let the class keep less");
            notes.warn(&shared.safe.at, Mistake::new(told, cure));
        }
    }
}

/// The settings, of a config that has no error.
pub(super) fn settings(raw: &Raw) -> Option<Settings> {
    let coordinate = &raw.coordinate;
    if !coordinate.given {
        return None;
    }
    let known = known(raw);
    let sidecars = coordinate.expected_sidecars.value;
    let limits = coordinate.limits.iter().map(|shared| {
        let given = shared.limit.value.as_deref();
        let given = given.expect("a share without a limit is an error");
        let (name, number) = in_metrics(&known, given).expect("an unknown limit is an error");
        let resource = shared.resource.value.as_deref();
        let safe = shared
            .safe
            .value
            .expect("a share without a safe one is an error");
        let Engine::Lease = shared.engine.value.unwrap_or(coordinate.engine.value);
        SharedLimit {
            limit: name.into(),
            resource: resource
                .expect("a share without a resource is an error")
                .into(),
            safe: match number {
                Known::Whole(_) => Safe::Whole(
                    NonZeroU32::new(safe.get() as u32).expect("less than 1 is an error"),
                ),
                Known::Rate(_) => Safe::Rate(safe),
            },
        }
    });
    Some(Settings {
        servers: Servers {
            addresses: coordinate.servers.value.clone(),
            id: coordinate.id.value.as_deref().map(Into::into),
            request_timeout: coordinate.request_timeout.value,
            interval_min: coordinate.minimum_interval.value,
        },
        expected_sidecars: sidecars
            .and_then(NonZeroU32::new)
            .expect("sharing with nobody knows how many is an error"),
        limits: limits.collect(),
    })
}

/// The section as the config says it.
pub(super) fn write(out: &mut Toml, settings: &Settings) {
    out.header("[coordinate]");
    out.text("engine", "lease");
    let servers = settings.servers.addresses.iter();
    let list: Vec<_> = servers.map(|server| toml_text(server.as_str())).collect();
    out.bare("servers", format_args!("[{}]", list.join(", ")));
    if let Some(id) = &settings.servers.id {
        out.text("id", id);
    }
    out.bare("expected_sidecars", settings.expected_sidecars);
    out.text(
        "request_timeout",
        &show_duration(settings.servers.request_timeout),
    );
    out.text(
        "minimum_interval",
        &show_duration(settings.servers.interval_min),
    );
    for shared in &settings.limits {
        out.header("[[coordinate.limit]]");
        out.text("limit", &shared.limit);
        out.text("resource", &shared.resource);
        out.bare("safe", shared.safe.get());
    }
}
