//! `[coordinate]`: the limits that are shared.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::options::shown::quoted;
use crate::options::{Notes, did_you_mean};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

use super::super::coordinate::{Coordinate, SharedSection};
use super::super::sections::Sections;
use super::super::shared_limits::{ShareableLimit, in_metrics, known};

/// Checks options that depend on each other.
pub(super) fn check(all: &Sections, notes: &Notes) {
    let Coordinate {
        section, limits, ..
    } = &all.coordinate;
    if !section.section.given {
        return;
    }
    if section.servers.sound && section.servers.value.is_empty() {
        let cure = "add servers = [\"10.0.0.1:5101\"] to [coordinate]";
        notes.missing(&section.section, "no capacity server is named", cure);
    }
    if limits.is_empty() {
        let cure = "add a section [[coordinate.limit]] with limit, resource and safe, or leave \
                    [coordinate] out";
        notes.missing(&section.section, "no limit is shared", cure);
    }
    let known = known(all);
    let resources = limits.iter().map(|it| &it.resource);
    let what = (
        "another limit's resource",
        "give each limit a resource of its own",
    );
    super::are_apart(resources, what, notes);
    let mut names = Vec::new();
    for shared in limits {
        let Some(given) = shared.limit.said() else {
            continue;
        };
        let Some((name, number)) = in_metrics(&known, given) else {
            unknown(shared, given, all, &known, notes);
            continue;
        };
        if names.contains(&name) {
            let cause = format!("{} is shared twice", quoted(name));
            notes.error(&shared.limit, cause, "leave one of the two out");
        }
        names.push(name);
        if let Some(safe) = shared.safe.said() {
            safe_fits(shared, name, number, safe.get(), notes);
            reserves_fit(shared, name, safe.get(), all, notes);
        }
    }
}

fn unknown(
    shared: &SharedSection,
    given: &str,
    all: &Sections,
    known: &BTreeMap<String, ShareableLimit>,
    notes: &Notes,
) {
    let of_window = given == "total" || given.starts_with("function:");
    if of_window && all.limits.window.meant() == Some(&Duration::ZERO) {
        let cause = format!("there is no limit {}: windows are off", quoted(given));
        let cure = format!(
            "give {} in [limits] a time above 0, or leave this limit out",
            all.limits.window.name()
        );
        notes.error(&shared.limit, cause, cure);
        return;
    }
    // What could not be read may be the one that is meant.
    if of_window && all.limits.per_window.value.total.is_none() {
        return;
    }
    let bare_name = given.strip_prefix(RATE_LIMIT_PREFIX).unwrap_or(given);
    let mut quotas = all.quotas.iter();
    if quotas.any(|it| it.name.value.as_deref() == Some(bare_name)) {
        let cause = format!("{} is a quota, which has a store of its own", quoted(given));
        let cure = "leave it out: sidecars share it already, through the store in [quota_store]";
        notes.error(&shared.limit, cause, cure);
        return;
    }
    let names = || known.keys().map(String::as_str);
    let bare = names().filter_map(|name| name.strip_prefix(RATE_LIMIT_PREFIX));
    let function = format!("function:{given}");
    let near = match known.contains_key(&function) {
        true => did_you_mean(&function, [&*function]),
        false => did_you_mean(given, names().chain(bare)),
    };
    let cause = format!("there is no limit {}", quoted(given));
    let cure = near.unwrap_or_else(|| match known.is_empty() {
        true => "there is none that could be shared".to_owned(),
        false => {
            let list: Vec<_> = names().map(quoted).collect();
            format!("give one of {}", list.join(", "))
        }
    });
    notes.error(&shared.limit, cause, cure);
}

fn safe_fits(
    shared: &SharedSection,
    name: &str,
    number: &ShareableLimit,
    safe: f64,
    notes: &Notes,
) {
    let name = quoted(name);
    if matches!(number, ShareableLimit::Whole(_)) && safe < 1.0 {
        let cause = format!("{safe} of {name} is nothing: only whole ones count");
        notes.error(&shared.safe, cause, "give 1 or more");
    }
    let configured = number.configured();
    if safe > configured {
        let cause = format!("{safe} is more than the {configured} that {name} allows");
        let cure = format!("give at most {configured}, or raise the limit itself");
        notes.error(&shared.safe, cause, cure);
    }
}

/// Checks the reserves of a limit: they are kept of a small share, too, and may be all of it.
fn reserves_fit(shared: &SharedSection, name: &str, safe: f64, all: &Sections, notes: &Notes) {
    for class in all.classes.iter().map(|it| &it.class) {
        let reserve = match name {
            "outstanding" => class.reserve_outstanding.value,
            "total" => class.reserve_per_window.value,
            _ => 0,
        };
        if f64::from(reserve) >= safe.floor() && reserve > 0 {
            let class = quoted(class.name.value.as_deref().unwrap_or_default());
            let cause = format!(
                "while only this is left, all of it is kept for class {class}, which keeps {reserve}"
            );
            let cure = format!("give more than {reserve}, or let the class keep less");
            notes.warn(&shared.safe, cause, cure);
        }
    }
}
