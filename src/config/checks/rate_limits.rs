//! `[[rate_limit]]`.

use std::sync::Arc;

use tidegate_limits::Cost;
use tidegate_limits::bucket::DEBT_MAX_FILL;
use tidegate_limits::pace::Pace;

use crate::admit::options::PostponeBy;
use crate::call::costs::Costs;
use crate::callers::rate_limit::options::{
    AppliesTo, Excess, Form, Mode, OF_CALLERS, RateLimitSection,
};
use crate::callers::rate_limit::profiles::Profiles;
use crate::options::shown::quoted;
use crate::options::{At, Mark, Notes, Setting, did_you_mean};

use super::super::sections::{RateLimit, Sections};
use super::functions::Functions;

pub(super) fn check(all: &Sections, functions: &Functions<'_>, notes: &Notes) {
    let costs = all.costs.costs();
    for both in &all.rate_limits {
        let limit = &both.limit;
        if let Some(&kind) = limit.kind.meant() {
            has_only_its_own(both, kind, notes);
            match kind {
                Form::Bucket => {
                    bucket(limit, &all.profiles, notes);
                    is_closed_for_long(limit, &all.profiles, &costs, notes);
                }
                Form::Paced => paced(limit, &costs, notes),
                Form::Quota => quota(limit, notes),
            }
            words_fit(limit, kind, notes);
        }
        function_is_known(limit, all, functions, notes);
        goes_evenly(limit, all, notes);
    }
    names_are_apart(&all.rate_limits, notes);
}

/// Calls that a pace of all calls delays are postponed like any other call.
fn goes_evenly(limit: &RateLimitSection, all: &Sections, notes: &Notes) {
    let of_all = limit.applies_to.sound && !limit.is_of_callers() && !limit.is_quota();
    if of_all && all.postpone() == Some(PostponeBy::Jitter) {
        let cause = "its calls do not go evenly while queue.postpone is \"jitter\": a delayed call \
                    waits aside for a random time";
        let cure = "write postpone = \"in_turn\" in [queue]";
        notes.warn(&limit.section, cause, cure);
    }
}

/// The options that other kinds have and this one does not. A limit on all calls, or on those of a
/// function, has no say in what else becomes of a call.
fn has_only_its_own(both: &RateLimit, kind: Form, notes: &Notes) {
    let name = match kind {
        Form::Bucket => "a bucket",
        Form::Paced => "a paced rate limit",
        Form::Quota => "a quota",
    };
    let to_all = matches!(
        both.limit.applies_to.meant(),
        Some(AppliesTo::Total | AppliesTo::Function)
    );
    let given = |(_, mark): &(_, &Mark)| mark.given;
    for (option, mark) in both.limit.marks().into_iter().filter(given) {
        let of_callers = kind == Form::Paced && to_all && OF_CALLERS.contains(&option);
        let (name, cure) = match (kind, option) {
            // What these two say of a bucket is checked below.
            (Form::Bucket, "applies_to" | "function") => continue,
            _ if of_callers => (
                "a rate limit that is not for callers",
                cure_of_callers(option),
            ),
            _ if kind.has(option) => continue,
            (Form::Bucket, _) => (name, "add kind = \"paced\", or give burst and fill instead"),
            (Form::Paced, _) => (name, "give rate and ratio instead, or leave kind out"),
            (Form::Quota, "order" | "settle" | "deadline") => {
                (name, "leave it out, or give another kind")
            }
            (Form::Quota, _) => (
                name,
                "give total and refresh_window instead, or another kind",
            ),
        };
        notes.error(mark, format!("{name} has no {option}"), cure);
    }
    if kind != Form::Quota {
        for (option, mark) in both.quota.marks().into_iter().filter(given) {
            let cure = "leave it out, or write kind = \"quota\"";
            notes.error(mark, format!("{name} has no {option}"), cure);
        }
    }
}

fn cure_of_callers(option: &str) -> &'static str {
    match option {
        "settle" => "leave it out: such a limit draws what a call is estimated to cost",
        "deadline" => {
            "leave it out: max_wait in [limits], and deadline in [[class]], say how long a call may \
             wait"
        }
        _ => "leave it out: postpone in [queue] says how calls wait for such a limit",
    }
}

fn bucket(limit: &RateLimitSection, profiles: &Profiles, notes: &Notes) {
    if let Some(AppliesTo::Total | AppliesTo::Function) = limit.applies_to.meant() {
        let cause = "a bucket applies to the callers that name it";
        let cure = "add kind = \"paced\", or leave applies_to out";
        notes.error(&limit.applies_to, cause, cure);
    } else if limit.function.given {
        let cause = "a bucket is for callers, whatever they call";
        let cure = "add kind = \"paced\" and applies_to = \"function\", or leave function out";
        notes.error(&limit.function, cause, cure);
    }
    if let Some(profile) = limit.profile.said() {
        if limit.burst.given || limit.fill.given {
            let cause = "the size is given twice: as a profile, and in numbers";
            notes.error(
                &limit.profile,
                cause,
                "leave profile out, or burst and fill",
            );
        }
        if profiles.sound && profiles.find(profile).is_none() {
            let names = profiles.list.iter().map(|profile| &*profile.name);
            let near = did_you_mean(profile, names);
            let cure = near.unwrap_or("add it to [profiles], or give burst and fill".to_owned());
            let cause = format!("there is no profile {}", quoted(profile));
            notes.error(&limit.profile, cause, cure);
        }
        return;
    }
    let has_pace = limit.rate.given || limit.ratio.given || limit.pace.given;
    for (field, is_missing, example) in [
        ("burst", limit.burst.is_missing(), "burst = 30"),
        ("fill", limit.fill.is_missing(), "fill = 3"),
    ] {
        if is_missing && limit.profile.is_missing() && !has_pace {
            let cause = format!("the rate limit has no {field}");
            let cure = format!("add {example}, or profile = \"poller\" instead of both");
            notes.missing(&limit.section, cause, cure);
        }
    }
}

/// Whether one call can close a bucket for longer than its callers wait.
fn is_closed_for_long(limit: &RateLimitSection, profiles: &Profiles, costs: &Costs, notes: &Notes) {
    let (most_expensive, fill) = (
        costs.range(None).most_expensive.get(),
        limit.per_second(profiles),
    );
    let closed = fill.map_or(0.0, |fill| most_expensive / fill);
    if closed > DEBT_MAX_FILL.as_secs_f64() && limit.mode.value == Mode::Enforce {
        let at = match limit.fill.given {
            true => &limit.fill.mark,
            false => &limit.section,
        };
        let cause = format!(
            "the most expensive call, of {most_expensive} tokens, closes it for {closed:.0} s, until fill \
             has repaid it"
        );
        notes.warn(at, cause, "raise fill, or lower the cost in [costs]");
    }
}

fn paced(limit: &RateLimitSection, costs: &Costs, notes: &Notes) {
    if limit.pace.given {
        let (rate, ratio): (&At, &At) = (&limit.rate, &limit.ratio);
        for (at, given) in [(rate, limit.rate.given), (ratio, limit.ratio.given)] {
            if given {
                let cause = "the pace is given twice: in one line, and in numbers";
                notes.error(at, cause, "leave pace out, or rate and ratio");
            }
        }
    } else if limit.rate.is_missing() {
        let cure = "add rate = 10, or pace = \"10,1.1\" for rate and ratio at once";
        notes.missing(&limit.section, "the rate limit has no rate", cure);
    }
    match limit.applies_to.meant() {
        Some(AppliesTo::Function) if limit.function.is_missing() => {
            let cause = "the rate limit applies to a function, and names none";
            let cure = "add function = \"guest_list\", or the one you mean";
            notes.missing(&limit.section, cause, cure);
        }
        Some(to) if *to != AppliesTo::Function && limit.function.given => {
            let cause = "a function is named that the rate limit does not apply to alone";
            let cure = "add applies_to = \"function\", or leave function out";
            notes.error(&limit.function, cause, cure);
        }
        _ => {}
    }
    most_expensive_takes_no_lifetime(limit, costs, notes);
}

/// The words that quotas, or all others, have for themselves.
fn words_fit(limit: &RateLimitSection, kind: Form, notes: &Notes) {
    let is_quota = kind == Form::Quota;
    let on_excess = limit.on_excess.said();
    if is_quota && on_excess == Some(&Excess::Delay) {
        let cause = "\"delay\" is the word of the other kinds";
        let cure = "write \"wait\"";
        notes.error(&limit.on_excess, cause, cure);
    }
    if !is_quota && on_excess == Some(&Excess::Wait) {
        let cause = "\"wait\" is the word of quotas";
        let cure = "write \"delay\"";
        notes.error(&limit.on_excess, cause, cure);
    }
    match limit.mode.meant() {
        Some(Mode::Optimistic) if !is_quota => {
            let cure = "write kind = \"quota\", or \"enforce\" or \"observe\"";
            notes.error(&limit.mode, "only a quota is optimistic", cure);
        }
        _ => {}
    }
    if let Some(AppliesTo::Caller | AppliesTo::User) = limit.applies_to.meant()
        && !is_quota
    {
        let cause = "only a quota is kept for each caller or each user";
        let cure = "write kind = \"quota\", or applies_to = \"callers\" for those that name it";
        notes.error(&limit.applies_to, cause, cure);
    }
}

fn quota(limit: &RateLimitSection, notes: &Notes) {
    let applies_to = &limit.applies_to;
    let given = applies_to.meant().filter(|_| applies_to.given);
    if given == Some(&AppliesTo::Callers) {
        let cause = "callers do not name a quota: each has one";
        let cure = "write applies_to = \"caller\", or \"user\", \"function\" or \"total\"";
        notes.error(applies_to, cause, cure);
    }
    if limit.function.given && given.is_some_and(|to| *to != AppliesTo::Function) {
        let cause = "a function is named that the quota does not apply to alone";
        let cure = "write applies_to = \"function\", or leave function out";
        notes.error(&limit.function, cause, cure);
    }
}

fn most_expensive_takes_no_lifetime(limit: &RateLimitSection, costs: &Costs, notes: &Notes) {
    let Some(pacing) = limit.pacing() else {
        return;
    };
    let function = limit.function_met().map(|name| &**name);
    let most_expensive = costs.range(function).most_expensive.get();
    let largest = Cost::new(most_expensive.ceil() as u32).unwrap_or(Cost::ONE);
    if Pace::new(pacing.rate, pacing.ratio)
        .with_largest(largest)
        .is_err()
    {
        let at: &At = match limit.pace.given {
            true => &limit.pace,
            false => &limit.rate,
        };
        let cause = format!(
            "at this rate the most expensive call, of {most_expensive} tokens, takes a lifetime"
        );
        notes.error(
            at,
            cause,
            "give a higher rate, or lower the cost in [costs]",
        );
    }
}

fn function_is_known(
    limit: &RateLimitSection,
    all: &Sections,
    functions: &Functions<'_>,
    notes: &Notes,
) {
    let Some(name) = limit.function_met() else {
        return;
    };
    if all.exempt_functions().contains(&&**name) {
        let cause = format!("{} is exempt from every limit", quoted(name));
        let cure = "leave this limit out, or take the function out of exempt in [limits]";
        notes.error(&limit.function, cause, cure);
    }
    functions.limit(name, &limit.function, notes);
}

fn names_are_apart(limits: &[RateLimit], notes: &Notes) {
    let names = || limits.iter().map(|it| &it.limit.name);
    let cure = "give each rate limit a name of its own";
    super::are_apart(names(), ("the name of another rate limit", cure), notes);
    for (setting, name) in names().filter_map(|it| Some((it, it.said()?))) {
        let number = name.strip_prefix('r').unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            let cause = format!("{} reads as the id of a rate limit", quoted(name));
            let cure = "give a name that is not \"r\" and a number";
            notes.error(setting, cause, cure);
        }
    }
}

/// Whether a caller can have the rate limit that it names.
pub(super) fn exists_for(named: &Setting<Option<Arc<str>>>, limits: &[RateLimit], notes: &Notes) {
    let Some(name) = named.said() else {
        return;
    };
    let limits = || limits.iter().map(|it| &it.limit);
    let known = limits().filter(|limit| limit.is_of_callers());
    let known: Vec<&str> = known.filter_map(|it| it.name.value.as_deref()).collect();
    if limits().any(|limit| !limit.name.sound) || known.contains(&&**name) {
        return;
    }
    if let Some(other) = limits().find(|limit| limit.name.value.as_ref() == Some(name)) {
        let cause = format!("the rate limit {} is not for callers", quoted(name));
        let cure = match other.is_quota() {
            true => "leave it out: applies_to says there whose calls draw from the quota",
            false => "leave applies_to out there, or name another here",
        };
        notes.error(named, cause, cure);
        return;
    }
    let (near, name) = (did_you_mean(name, known), quoted(name));
    let add = || format!("add a section: [[rate_limit]], and below it name = {name}");
    let cause = format!("there is no rate limit {name}");
    notes.missing(named, cause, near.unwrap_or_else(add));
}
