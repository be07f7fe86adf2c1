//! `[[bucket]]` and `[[pace]]`, and the names that they share with `[[quota]]`.

use std::sync::Arc;

use tidegate_limits::Cost;
use tidegate_limits::bucket::DEBT_MAX_FILL;
use tidegate_limits::pace::Pace;

use crate::admit::options::PostponeBy;
use crate::call::LimitMode;
use crate::call::costs::Costs;
use crate::callers::rate_limit::RATE_LIMITS_MAX;
use crate::callers::rate_limit::options::{BucketSection, PaceScope, PaceSection};
use crate::callers::rate_limit::profiles::Profiles;
use crate::options::shown::quoted;
use crate::options::{Notes, Setting, did_you_mean};

use super::super::sections::Sections;
use super::functions::KnownFunctions;

pub(super) fn check(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    let costs = all.every_cost();
    for bucket in &all.buckets {
        has_one_size(bucket, &all.profiles, notes);
        is_closed_for_long(bucket, &all.profiles, &costs, notes);
    }
    for pace in &all.paces {
        let is_of_function = pace.applies_to.meant().map(|to| *to == PaceScope::Function);
        function_fits(is_of_function, &pace.function, notes);
        function_is_known(pace.function_met(), &pace.function, all, functions, notes);
        rate_fits(pace, &costs, notes);
        if pace.applies_to.sound && !pace.is_of_callers() {
            decides_nothing_of_callers(pace, notes);
            goes_evenly(pace, all, notes);
        }
    }
    if let Some(first) = all.paces.first()
        && all.buckets.len() + all.paces.len() > RATE_LIMITS_MAX
    {
        let cause = format!(
            "there are {} buckets and paces",
            all.buckets.len() + all.paces.len()
        );
        notes.error(
            &first.section,
            cause,
            format!("give at most {RATE_LIMITS_MAX}"),
        );
    }
    names_are_apart(all, notes);
}

/// Calls that a pace of all calls delays are postponed like any other call.
fn goes_evenly(pace: &PaceSection, all: &Sections, notes: &Notes) {
    if all.postpone() == Some(PostponeBy::Jitter) {
        let cause = "its calls do not go evenly while queue.postpone is \"jitter\": a delayed call \
                    waits aside for a random time";
        let cure = "write postpone = \"in_turn\" in [queue]";
        notes.warn(&pace.section, cause, cure);
    }
}

/// A pace on all calls, or on those of a function, has no say in what else becomes of a call.
fn decides_nothing_of_callers(pace: &PaceSection, notes: &Notes) {
    for (option, mark) in pace.marks_of_callers().filter(|(_, mark)| mark.given) {
        let cure = match option {
            "settle" => "leave it out: such a pace draws what a call is estimated to cost",
            "max_wait" => {
                "leave it out: max_wait in [limits] and in [[class]] say how long a call may wait"
            }
            _ => "leave it out: postpone in [queue] says how calls wait for such a pace",
        };
        let cause = format!("a pace that is not for callers has no {option}");
        notes.error(mark, cause, cure);
    }
}

fn has_one_size(bucket: &BucketSection, profiles: &Profiles, notes: &Notes) {
    if let Some(profile) = bucket.profile.said() {
        if bucket.burst.given || bucket.fill.given {
            let cause = "the size is given twice: as a profile, and in numbers";
            let cure = "leave profile out, or burst and fill";
            notes.error(&bucket.profile, cause, cure);
        }
        if profiles.sound && profiles.find(profile).is_none() {
            let names = profiles.list.iter().map(|profile| &*profile.name);
            let near = did_you_mean(profile, names);
            let cure = near.unwrap_or("add it to [profiles], or give burst and fill".to_owned());
            let cause = format!("there is no profile {}", quoted(profile));
            notes.error(&bucket.profile, cause, cure);
        }
        return;
    }
    for (field, is_missing, example) in [
        ("burst", bucket.burst.is_missing(), "burst = 30"),
        ("fill", bucket.fill.is_missing(), "fill = 3"),
    ] {
        if is_missing && bucket.profile.is_missing() {
            let cause = format!("the bucket has no {field}");
            let cure = format!("add {example}, or profile = \"poller\" instead of both");
            notes.missing(&bucket.section, cause, cure);
        }
    }
}

/// Whether one call can close a bucket for longer than its callers wait.
fn is_closed_for_long(bucket: &BucketSection, profiles: &Profiles, costs: &Costs, notes: &Notes) {
    let most_expensive = costs.range(None).most_expensive.get();
    let closed = bucket
        .per_second(profiles)
        .map_or(0.0, |fill| most_expensive / fill);
    if closed > DEBT_MAX_FILL.as_secs_f64() && bucket.mode.value == LimitMode::Enforce {
        let at = match bucket.fill.given {
            true => &bucket.fill.mark,
            false => &bucket.section,
        };
        let cause = format!(
            "the most expensive call, of {most_expensive} tokens, closes it for {closed:.0} s, until fill \
             has repaid it"
        );
        notes.warn(at, cause, "raise fill, or lower the cost in [costs]");
    }
}

fn rate_fits(pace: &PaceSection, costs: &Costs, notes: &Notes) {
    let Some((rate, ratio)) = pace.pacing() else {
        return;
    };
    if pace.ratio.given && pace.rate.value.is_some_and(|it| it.ratio.is_some()) {
        let cause = "the ratio is given twice: in the line of the rate, and as a number";
        notes.error(&pace.ratio, cause, "leave one of the two out");
    }
    let function = pace.function_met().map(|name| &**name);
    let most_expensive = costs.range(function).most_expensive.get();
    let largest = Cost::new(most_expensive.ceil() as u32).unwrap_or(Cost::ONE);
    if Pace::new(rate, ratio).with_largest(largest).is_err() {
        let cause = format!(
            "at this rate the most expensive call, of {most_expensive} tokens, takes a lifetime"
        );
        let cure = "give a higher rate, or lower the cost in [costs]";
        notes.error(&pace.rate, cause, cure);
    }
}

/// A function is named if, and only if, a limit applies to one alone. `is_of_function` is `None`
/// where that could not be read.
pub(super) fn function_fits(
    is_of_function: Option<bool>,
    function: &Setting<Option<Arc<str>>>,
    notes: &Notes,
) {
    match is_of_function {
        Some(true) if function.is_missing() => {
            let cause = "it applies to a function, and names none";
            let cure = "add function = \"guest_list\", or the one you mean";
            notes.missing(function, cause, cure);
        }
        Some(false) if function.given => {
            let cause = "a function is named to which it does not apply alone";
            let cure = "write applies_to = \"function\", or leave function out";
            notes.error(function, cause, cure);
        }
        _ => {}
    }
}

/// Whether the function that a limit applies to meets limits, and is known.
pub(super) fn function_is_known(
    met: Option<&Arc<str>>,
    function: &Setting<Option<Arc<str>>>,
    all: &Sections,
    functions: &KnownFunctions<'_>,
    notes: &Notes,
) {
    let Some(name) = met else {
        return;
    };
    if all.exempt_functions().contains(name) {
        let cause = format!("{} is exempt from every limit", quoted(name));
        let cure = "leave this limit out, or take the function out of exempt in [limits]";
        notes.error(function, cause, cure);
    }
    functions.limit(name, function, notes);
}

fn names_are_apart(all: &Sections, notes: &Notes) {
    let names = || {
        let buckets = all.buckets.iter().map(|it| &it.name);
        let paces = all.paces.iter().map(|it| &it.name);
        let quotas = all.quotas.iter().map(|it| &it.name);
        buckets.chain(paces).chain(quotas)
    };
    let what = "the name of another [[bucket]], [[pace]] or [[quota]]";
    super::are_apart(
        names(),
        (what, "give each of them a name of its own"),
        notes,
    );
    for (setting, name) in names().filter_map(|it| Some((it, it.said()?))) {
        let number = name.strip_prefix('r').unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            let cause = format!("{} reads as the id of a rate limit", quoted(name));
            let cure = "give a name that is not \"r\" and a number";
            notes.error(setting, cause, cure);
        }
    }
}

/// Whether a caller can have the bucket or pace that it names.
pub(super) fn exists_for(named: &Setting<Option<Arc<str>>>, all: &Sections, notes: &Notes) {
    let Some(name) = named.said() else {
        return;
    };
    let buckets = all.buckets.iter().map(|it| &it.name);
    let of_callers = |it: &&PaceSection| it.is_of_callers();
    let paces = all.paces.iter().filter(of_callers).map(|it| &it.name);
    let known: Vec<_> = buckets.chain(paces).collect();
    let others = all.paces.iter().filter(|it| !it.is_of_callers());
    let others: Vec<_> = others.map(|it| &it.name).collect();
    let quotas: Vec<_> = all.quotas.iter().map(|it| &it.name).collect();
    let has = |names: &[&Setting<Option<Arc<str>>>]| {
        names.iter().any(|it| it.value.as_ref() == Some(name))
    };
    let mut every = known.iter().chain(&others).chain(&quotas);
    if every.any(|it| !it.sound) || has(&known) {
        return;
    }
    let cure = match (has(&others), has(&quotas)) {
        (true, _) => "leave applies_to out there, or name another here",
        (_, true) => "leave it out: applies_to says there whose calls draw from the quota",
        (false, false) => {
            let names = known.iter().filter_map(|it| it.value.as_deref());
            let (near, name) = (did_you_mean(name, names), quoted(name));
            let add = || format!("add a section: [[bucket]], and below it name = {name}");
            let cause = format!("there is no [[bucket]] or [[pace]] {name}");
            notes.missing(named, cause, near.unwrap_or_else(add));
            return;
        }
    };
    let cause = format!("{} is not for callers", quoted(name));
    notes.error(named, cause, cure);
}
