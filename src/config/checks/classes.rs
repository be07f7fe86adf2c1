//! `[[class]]`, and what a listener says of classes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::call::Protocol;
use crate::classify::class::{POLLING, USER};
use crate::options::shown::quoted;
use crate::options::{Notes, did_you_mean};

use super::super::classes::DATABASE;
use super::super::sections::{Class, Listen, Sections};
use super::functions::KnownFunctions;

pub(super) fn check(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    are_apart(all, notes);
    functions_are_known(all, functions, notes);
    table_is_there(all, functions, notes);
    for class in &all.classes {
        pool(all, class, notes);
        per_window(all, class, notes);
    }
    reserves(all, notes);
    exempt_functions(all, notes);
    for listener in all.listen.iter().flatten() {
        of_listener(all, listener, notes);
    }
}

fn are_apart(all: &Sections, notes: &Notes) {
    let names = all.classes.iter().map(|it| &it.class.name);
    let cure = "give each class a name of its own, or make one of the two";
    super::are_apart(names, ("the name of another class", cure), notes);
    let mut functions: BTreeMap<&str, &str> = BTreeMap::new();
    let mut efforts = Vec::new();
    for Class { placed, .. } in &all.classes {
        for function in placed.functions.meant().into_iter().flatten() {
            if let Some(other) = functions.insert(function, &placed.functions.key) {
                let cause = format!("{} is in {other} too", quoted(function));
                notes.error(&placed.functions, cause, "leave it in one class");
            }
        }
        if let Some(effort) = placed.effort.said() {
            if efforts.contains(&effort) {
                let cause = "another class has all calls of this effort already";
                notes.error(&placed.effort, cause, "leave it to one class");
            }
            efforts.push(effort);
        }
    }
}

fn functions_are_known(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    let lists = all
        .classes
        .iter()
        .map(|class| (&class.placed.functions, None));
    for (list, also) in lists.chain([(&all.exempt.exempt, Some(DATABASE))]) {
        for name in list.meant().into_iter().flatten() {
            if let Some(doubt) = functions.doubt(name, also) {
                notes.warn(list, doubt.message, doubt.cure);
            }
        }
    }
}

/// Checks that names of groups of functions are used only with the built-in table.
fn table_is_there(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    const CURE: &str = "leave it out, or write kind = \"zvm\" in [backend] if that is true";
    if functions.has_table() {
        return;
    }
    let efforts = all.classes.iter().map(|class| &class.placed.effort);
    for effort in efforts.filter(|effort| effort.value.is_some()) {
        let cause = "it names no function: only a backend of kind \"zvm\" has a table of efforts";
        notes.warn(effort, cause, CURE);
    }
    let exempt = &all.exempt.exempt;
    if exempt.value.iter().any(|name| **name == *DATABASE) {
        let cause = "\"db\" names no function: only a backend of kind \"zvm\" has a table of them";
        notes.warn(exempt, cause, CURE);
    }
}

fn pool(all: &Sections, Class { class, .. }: &Class, notes: &Notes) {
    let (Some(pool), Some(&beside)) = (class.outstanding_max.meant(), class.beside_total.meant())
    else {
        return;
    };
    let Some(pool) = *pool else {
        if beside {
            let cause = "a pool beside the total needs a number";
            let cure = "add outstanding_max = 4 with the calls that the backend can take on top, \
                        or leave beside_total out";
            notes.missing(&class.beside_total, cause, cure);
        }
        return;
    };
    let Some(&total) = all.limits.outstanding.meant() else {
        return;
    };
    if beside && total == 0 {
        let cause = format!(
            "there is no total that it could be beside: {} is 0",
            all.limits.outstanding.name()
        );
        notes.warn(&class.beside_total, cause, "leave it out");
    }
    if !beside && total > 0 && pool > total {
        let cause = format!(
            "{pool} of its calls at once are more than the {total} of {}",
            all.limits.outstanding.name()
        );
        let cure = format!(
            "give at most {total}, or say beside_total = true to let them come on top of these"
        );
        notes.error(&class.outstanding_max, cause, cure);
    }
}

fn per_window(all: &Sections, Class { class, .. }: &Class, notes: &Notes) {
    let Some(calls) = class.per_window.said() else {
        return;
    };
    if all.limits.window.meant() == Some(&Duration::ZERO) {
        let cause = format!("windows are off: {} is 0", all.limits.window.name());
        let cure = "leave it out, or give the window a length";
        notes.error(&class.per_window, cause, cure);
    } else if let Some(total) = window_total(all).filter(|total| calls > total) {
        let cause = format!("{calls} calls per window are more than the total of {total}");
        let cure = format!("give at most {total}, or raise total");
        notes.error(&class.per_window, cause, cure);
    }
}

/// Calls per window of all together, where that is bounded.
fn window_total(all: &Sections) -> Option<u32> {
    let total = all.limits.per_window.meant()?.total;
    total.filter(|total| *total > 0)
}

/// Of one limit, one class can have something for itself.
fn reserves(all: &Sections, notes: &Notes) {
    let outstanding = all.limits.outstanding.meant();
    let windows_are_off = all.limits.window.meant() == Some(&Duration::ZERO);
    let at_once = all.limits.outstanding.name();
    let of_window = format!("the total of {}", all.limits.per_window.name());
    let mut holders: [Option<&str>; 2] = [None; 2];
    for Class { class, .. } in &all.classes {
        let limits = [
            (
                &class.reserve_outstanding,
                at_once,
                outstanding.copied().filter(|max| *max > 0),
                outstanding == Some(&0),
                class.outstanding_max.value,
            ),
            (
                &class.reserve_per_window,
                of_window.as_str(),
                window_total(all),
                windows_are_off,
                class.per_window.value,
            ),
        ];
        for ((setting, limit, max, is_off, own), holder) in limits.into_iter().zip(&mut holders) {
            let Some(&amount) = setting.meant().filter(|amount| **amount > 0) else {
                continue;
            };
            let (cause, cure) = if let Some(other) = holder {
                let cure = "keep it for one class; its weight helps the other";
                (format!("{other} keeps something of {limit} already"), cure)
            } else {
                *holder = Some(&setting.key);
                if is_off {
                    (
                        format!("there is nothing to keep: {limit} is off"),
                        "leave it out",
                    )
                } else if max.is_some_and(|max| amount >= max) {
                    let cause = format!("{amount} of {limit} leave nothing for the other classes");
                    (cause, "keep fewer than there are")
                } else if own.is_some_and(|own| amount > own) {
                    let cause = format!("{amount} are kept for a class that may not use as many");
                    (cause, "keep at most what the class may have")
                } else {
                    continue;
                }
            };
            notes.error(setting, cause, cure);
        }
        if class.reserve_outstanding.value > 0 && class.beside_total.meant() == Some(&true) {
            let cause = format!("its calls do not count in {at_once}");
            let cure = "leave it out: outstanding_max is for this class alone";
            notes.error(&class.reserve_outstanding, cause, cure);
        }
    }
}

fn exempt_functions(all: &Sections, notes: &Notes) {
    let exempt = all.exempt_functions();
    let per_window = &all.limits.per_window;
    for limit in &per_window.value.functions {
        if limit.calls > 0 && exempt.iter().any(|it| **it == *limit.name) {
            let cause = format!("{} is exempt from every limit", quoted(&limit.name));
            let cure = "leave this limit out, or take the function out of exempt in [limits]";
            notes.error(&per_window.part(&limit.part), cause, cure);
        }
    }
}

fn of_listener(all: &Sections, Listen { listen, class, .. }: &Listen, notes: &Notes) {
    if let Some(name) = class.class.said() {
        let own = all
            .classes
            .iter()
            .filter_map(|it| it.class.name.value.as_deref());
        let known: Vec<&str> = [USER, POLLING].into_iter().chain(own).collect();
        if !known.contains(&&**name) {
            let cause = format!("there is no class {}", quoted(name));
            let add = || format!("add a section [[class]] with name = {}", quoted(name));
            let cure = did_you_mean(name, known).unwrap_or_else(add);
            notes.error(&class.class, cause, cure);
        }
    }
    let has_headers = |protocol: &Protocol| matches!(protocol, Protocol::Auto | Protocol::Http);
    if class.class_header.meant() == Some(&true)
        && listen.protocol.meant().is_some_and(|it| !has_headers(it))
    {
        let cause = "no class is ever named here: only HTTP has headers";
        let cure = "leave it out, or write protocol = \"http\"";
        notes.warn(&class.class_header, cause, cure);
    }
}
