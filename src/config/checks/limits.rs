//! The queue, the windows, the calls at the backend, and the reads that share an answer.

use std::time::Duration;

use crate::admit::options::{LimitsSection, PostponeBy};
use crate::call::LimitMode;
use crate::call::sdk::FunctionKind;
use crate::options::kind::show_duration;
use crate::options::shown::quoted;
use crate::options::{Notes, OptionMark, Setting};

use super::super::sections::Sections;
use super::functions::KnownFunctions;

/// How many calls the real sdkserver works on at once.
const SDKSERVER_WORKERS: u32 = 64;

pub(super) fn check(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    queue(all, notes);
    windows(&all.limits, notes);
    let per_window = &all.limits.per_window;
    for limit in &per_window.value.functions {
        functions.limit(&limit.name, &per_window.part(&limit.part), notes);
    }
    coalesced_are_reads(all, functions, notes);
    outstanding(all, notes);
    observed(all, notes);
}

/// Checks the consequences of limits that only observe.
fn observed(all: &Sections, notes: &Notes) {
    let limits = &all.limits;
    let by_itself = &limits.outstanding_mode;
    let at: &OptionMark = if by_itself.given {
        by_itself
    } else {
        &limits.mode
    };
    if limits.at_once_mode() == LimitMode::Observe {
        let cause = format!(
            "{} only observes, and workers hold no call: nothing protects the backend from too \
             many calls at once meanwhile",
            limits.outstanding.name()
        );
        let cure = "write outstanding_mode = \"enforce\" once you know what it would have held";
        notes.warn(at, cause, cure);
    }
}

fn queue(all: &Sections, notes: &Notes) {
    let jitter = &all.queue.postpone_jitter;
    let early = &all.queue.early_refusal;
    if early.meant() == Some(&true) && all.postpone() == Some(PostponeBy::Jitter) {
        let cause = "with postpone = \"jitter\" the order is random, so no start can be predicted";
        notes.error(
            early,
            cause,
            "write postpone = \"in_turn\", or leave it out",
        );
    }
    let (Some(postpone), Some((shortest, _))) = (all.postpone(), jitter.meant()) else {
        return;
    };
    if postpone == PostponeBy::InTurn {
        if jitter.given {
            let cause = "it has no effect while postpone is \"in_turn\"";
            notes.warn(
                jitter,
                cause,
                "leave it out, or write postpone = \"jitter\"",
            );
        }
        return;
    }
    let max_wait = &all.limits.max_wait;
    if let Some(wait) = max_wait.meant().filter(|wait| !wait.is_zero())
        && shortest >= wait
    {
        let wait = show_duration(*wait);
        let cause = format!("no postponed call comes back within the {wait} that a call may wait");
        let cure = format!("give times well below {}", max_wait.name());
        notes.warn(jitter, cause, cure);
    }
}

/// The line that switches windows off, by the name of the option that the config has.
pub(super) fn switched_off(window: &Setting<Duration>) -> String {
    match window.name() {
        own @ "window" => format!("{own} = \"0s\""),
        seconds => format!("{seconds} = 0"),
    }
}

fn windows(limits: &LimitsSection, notes: &Notes) {
    let setting = &limits.per_window;
    let value = &setting.value;
    let on = limits.window.meant().is_some_and(|it| !it.is_zero());
    if setting.sound && value.total.is_none() && on {
        let cause = if setting.given {
            "\"total\" is not given"
        } else {
            "the limit per window is not given"
        };
        let cure = format!(
            "give \"total:30\" with the number that the backend can take per window, or switch \
             windows off with {}",
            switched_off(&limits.window)
        );
        notes.missing(setting, cause, cure);
    }
    let Some(total) = value.total.filter(|total| *total > 0) else {
        return;
    };
    let (mut sum, mut all_fit) = (0_u64, true);
    for limit in &value.functions {
        sum += u64::from(limit.calls);
        if limit.calls > total {
            all_fit = false;
            let (name, calls) = (quoted(&limit.name), limit.calls);
            let cause =
                format!("{name} may make {calls} calls per window, more than the total of {total}");
            let cure = format!("give {name} at most {total}, or raise total");
            notes.error(&setting.part(&limit.part), cause, cure);
        }
    }
    if all_fit && sum >= u64::from(total) {
        let cause = format!(
            "the functions together may make {sum} calls per window, \
             which leaves nothing of the total of {total} for the others"
        );
        notes.warn(setting, cause, "keep the sum of the functions below total");
    }
}

/// Only calls that change nothing may share an answer. For a `[[route]]` of the config, the method
/// decides.
fn coalesced_are_reads(all: &Sections, functions: &KnownFunctions<'_>, notes: &Notes) {
    let coalesced = &all.coalesce.functions;
    if !coalesced.sound {
        return;
    }
    for (index, name) in coalesced.value.iter().enumerate() {
        let own = all
            .routes
            .iter()
            .filter(|route| route.function.value.as_ref() == Some(name));
        let mut methods = own.map(|route| route.method.value.as_deref()).peekable();
        let at = coalesced.item(index);
        let cause = match functions.built_in(name) {
            Some(function) if function.kind == FunctionKind::Read => continue,
            Some(_) => "changes something, so each call of it is made",
            None if methods.peek().is_none() => {
                if let Some(doubt) = functions.doubt(name, None) {
                    notes.mistake(&at, doubt);
                }
                continue;
            }
            None if methods.all(|method| matches!(method, Some("GET" | "HEAD"))) => continue,
            None => "has a route with another method than GET or HEAD",
        };
        let cure = "leave it out: only reads can share an answer";
        notes.error(&at, format!("{} {cause}", quoted(name)), cure);
    }
    let fresh_for = &all.coalesce.fresh_for;
    if coalesced.value.is_empty() && fresh_for.meant().is_some_and(|time| !time.is_zero()) {
        let cause = "it has no effect while no function is coalesced";
        let cure = "add functions = [\"host_get_info\"] to [coalesce], or leave it out";
        notes.warn(fresh_for, cause, cure);
    }
}

fn outstanding(all: &Sections, notes: &Notes) {
    let setting = &all.limits.outstanding;
    let workers_at = &all.queue.workers;
    let (Some(&outstanding), Some(&workers)) = (setting.meant(), workers_at.meant()) else {
        return;
    };
    // Calls that may be at the backend in addition to the limit.
    let beside = all.classes.iter().filter(|it| it.class.beside_total.value);
    let beside = beside
        .filter_map(|it| it.class.outstanding_max.value)
        .fold(0, u32::saturating_add);
    let allowed = outstanding.saturating_add(beside);
    if workers < allowed {
        let pools = if beside > 0 {
            " and the pools beside it allow"
        } else {
            " allows"
        };
        let cause = format!(
            "{workers} workers never have the {allowed} calls in flight that \
             {}{pools}",
            setting.name()
        );
        let cure = format!("give workers = {allowed} or more, or lower the limit");
        notes.warn(workers_at, cause, cure);
    }
    if all.backend.socket.said().is_none() {
        return;
    }
    let (at, at_once): (&OptionMark, u32) = match outstanding {
        0 => (workers_at, workers),
        _ => (setting, allowed),
    };
    // Calls that meet no limit reach it as well.
    let max_unlimited = &all.queue.max_unlimited;
    if let Some(&more) = max_unlimited.meant()
        && !all.exempt.exempt.value.is_empty()
        && at_once <= SDKSERVER_WORKERS
        && at_once.saturating_add(more) > SDKSERVER_WORKERS
    {
        let cause = format!(
            "the real sdkserver works on {SDKSERVER_WORKERS} calls at once; {at_once} that meet \
             the limits and {more} that are exempt are more"
        );
        let room = (SDKSERVER_WORKERS - at_once).max(1);
        let cure = format!("give max_unlimited = {room} in [queue]");
        notes.warn(max_unlimited, cause, cure);
    }
    if at_once > SDKSERVER_WORKERS {
        let cause = format!(
            "the real sdkserver works on {SDKSERVER_WORKERS} calls at once; of {at_once}, the rest \
             waits there unseen"
        );
        let cure =
            format!("give at most {SDKSERVER_WORKERS}, unless its max_worker_count is higher");
        notes.warn(at, cause, cure);
    }
}
