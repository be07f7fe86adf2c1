//! `[[quota]]`, and `[quota_store]`.

use std::sync::Arc;

use tidegate_limits::bucket::TokenCount;
use tidegate_limits::quota::OutagePolicy;

use crate::call::costs::Costs;
use crate::callers::rate_limit::options::{QuotaScope, QuotaSection, WhenAway};
use crate::callers::settings::QuotaBy;
use crate::options::shown::quoted;
use crate::options::{LocatedKey, Notes};

use super::super::sections::Sections;
use super::functions::KnownFunctions;
use super::rate_limits::{function_fits, function_is_known};

pub(super) fn check(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    let store = &all.quota_store.store.section;
    match (store.given, all.quotas.first()) {
        (false, Some(first)) => {
            let cause = "the store of the quotas is missing";
            let cure = "add a section [quota_store]: with engine = \"zookeeper\", \"etcd\" or \
                        \"redis\", servers and expected_sidecars; or empty, for this sidecar alone";
            notes.missing(&first.section, cause, cure);
        }
        (true, None) => {
            let cause = "nothing is kept here: there is no quota";
            let cure = "leave [quota_store] out, or add a [[quota]]";
            notes.warn(store, cause, cure);
        }
        _ => {}
    }
    for quota in &all.quotas {
        let is_of_function = match quota.applies_to.said() {
            // A quota of each function names none.
            Some(QuotaScope::Function) if quota.function.is_missing() => None,
            to => to.map(|to| *to == QuotaScope::Function),
        };
        function_fits(is_of_function, &quota.function, notes);
        function_is_known(quota.function_met(), &quota.function, all, functions, notes);
        base_fits(quota, notes);
        let away = quota.when_store_away.meant();
        if quota.safe.given && away.is_some_and(|it| *it != WhenAway::Safe) {
            let cause = "it has no effect unless when_store_away is \"safe\"";
            let cure = "leave it out, or write when_store_away = \"safe\"";
            notes.warn(&quota.safe, cause, cure);
        }
        totals_belong(quota, functions, notes);
        most_expensive_can_pass(quota, all, notes);
    }
    namespaces_are_apart(&all.quotas, notes);
    if !all.quotas.is_empty() {
        costs_are_whole(all, notes);
    }
}

fn base_fits(quota: &QuotaSection, notes: &Notes) {
    let Some(base) = quota.base.said() else {
        return;
    };
    if let Some(total) = quota.total.said().filter(|total| base > *total) {
        let cause = format!("the smallest draw of {base} is more than the total of {total}");
        let cure = format!("give at most {total}, or leave it out");
        notes.error(&quota.base, cause, cure);
        return;
    }
    for (index, (key, total)) in quota.totals.value.iter().enumerate() {
        if *total > 0 && base > total {
            let cause = format!("a total of {total} is less than the smallest draw, base = {base}");
            let cure = format!("give {base} or more, or a smaller base");
            notes.error(&quota.totals.entry(key, index), cause, cure);
        }
    }
}

fn totals_belong(quota: &QuotaSection, functions: &KnownFunctions<'_>, notes: &Notes) {
    let totals = &quota.totals;
    let wrong = |cause: &str, cure: &str| {
        let cause = format!("{cause}: there are no keys with a total of their own");
        notes.error(
            totals,
            cause,
            format!("give the number as total, or {cure}"),
        );
    };
    match quota.by().filter(|_| totals.given) {
        Some(QuotaBy::Total) => wrong("all calls have one quota", "write applies_to = \"user\""),
        Some(QuotaBy::Function(Some(_))) => {
            wrong("one function has this quota", "leave function out")
        }
        Some(QuotaBy::Function(None)) => {
            for (index, (key, _)) in totals.value.iter().enumerate() {
                functions.limit(key, &totals.entry(key, index), notes);
            }
        }
        _ => {}
    }
}

/// A call that costs more than its quota ever holds could never pass, and a safe share of nothing
/// is none.
fn most_expensive_can_pass(quota: &QuotaSection, all: &Sections, notes: &Notes) {
    let (Some(by), Some(sidecars)) = (quota.by(), all.quota_store.sidecars()) else {
        return;
    };
    if !all.costs.is_read() {
        return;
    }
    let costs = all.every_cost();
    let exempt = all.exempt_functions();
    let general = quota.total.said();
    let general = general.map(|total| (None, *total, quota.total.at()));
    let own = quota.totals.value.iter().enumerate();
    let own = own
        .map(|(index, (key, total))| (Some(key.as_str()), *total, quota.totals.entry(key, index)));
    for (key, total, at) in general.into_iter().chain(own) {
        // A total of 0 blocks its key.
        let rule = quota.rule(total, sidecars);
        let Some(rule) = rule.filter(|rule| !rule.blocks()) else {
            continue;
        };
        let rule = match all.quota_store.is_memory() {
            true => rule.without_safe_share(),
            false => rule,
        };
        let most_expensive = match (&by, key) {
            (QuotaBy::Function(Some(function)), _) => costs.of(function),
            (QuotaBy::Function(None), Some(function)) => costs.of(function),
            _ => most_expensive(&costs, &exempt),
        };
        let most_expensive = whole_tokens(most_expensive);
        if most_expensive > rule.costliest() {
            let cause = match rule.safe_share() {
                0 => {
                    format!("a call of {most_expensive} tokens never passes: a window has {total}")
                }
                share => format!(
                    "a call of {most_expensive} tokens never passes: of {total}, each of {sidecars} \
                     sidecars owns {share}, and one can spend {} at most",
                    rule.costliest()
                ),
            };
            let cure = "give a higher total or a smaller safe, or lower the cost in [costs]";
            notes.error(&at, cause, cure);
        }
        if matches!(rule.settings().away, OutagePolicy::Safe { .. }) && rule.safe_share() == 0 {
            let cause = format!(
                "nothing passes while the store is unavailable: shared among {sidecars} sidecars, \
                 the safe share of {total} is no whole token"
            );
            let cure = "give a higher total, or choose in when_store_away";
            notes.warn(&at, cause, cure);
        }
    }
}

/// The cost of the most expensive call that meets limits.
fn most_expensive(costs: &Costs, exempt: &[Arc<str>]) -> TokenCount {
    let functions = costs.functions.iter();
    let functions = functions.filter(|(name, _)| !exempt.contains(*name));
    functions.fold(costs.default, |most_expensive, (_, cost)| {
        most_expensive.max(*cost)
    })
}

/// The tokens that a quota counts for a call of this cost.   tokens
fn whole_tokens(cost: TokenCount) -> u64 {
    cost.tokens().ceil() as u64
}

/// A quota counts whole tokens.
fn costs_are_whole(all: &Sections, notes: &Notes) {
    let fraction = |cost: &TokenCount| cost.tokens().fract() != 0.0;
    let costs = &all.costs;
    let default = costs.default.value;
    let mut functions = costs.functions.value.iter();
    let (at, what, cost): (&LocatedKey, _, _) = if fraction(&default) {
        (&costs.default, "a call".to_owned(), default)
    } else if let Some((function, cost)) = functions.find(|(_, cost)| fraction(cost)) {
        (&costs.functions, quoted(function), *cost)
    } else {
        return;
    };
    let cause = format!(
        "quotas count whole tokens: for {what} they count {}, not {}",
        whole_tokens(cost),
        cost.tokens()
    );
    let cure = "give whole numbers, such as ten times as many, and totals to match";
    notes.warn(at, cause, cure);
}

fn namespaces_are_apart(quotas: &[QuotaSection], notes: &Notes) {
    let mut seen: Vec<(Option<&str>, &str)> = Vec::new();
    for quota in quotas {
        let (Some(by), Some(name)) = (quota.by(), quota.name.meant()) else {
            continue;
        };
        let given = &quota.namespace;
        if !given.sound {
            continue;
        }
        let own = quota.namespace(&by);
        if let Some((_, other)) = seen.iter().find(|(namespace, _)| *namespace == own) {
            let at = if given.given {
                &given.mark
            } else {
                &quota.section
            };
            let cause = format!("its keys are those of {} too", quoted(other));
            let cure = "give each quota a namespace of its own, such as namespace = \"hourly\"";
            notes.error(at, cause, cure);
        }
        seen.push((own, name.as_deref().unwrap_or_default()));
    }
}
