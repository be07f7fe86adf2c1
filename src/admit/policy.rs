//! The settings as limits of the scheduler.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::Backend;
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Reserve, Scope, WindowShape};
use tidegate_limits::{Limit, Policy};

use super::settings::{ClassPool, ClassRule, GateSettings, PacedLimit, USER, WhenFull, Window};
use crate::call::pace::pace;
use crate::call::{Destination, LimitMode};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;

/// The name of the limit on calls past the gate.
const WORKERS: &str = "workers";

/// The policy of calls with limits, without the limits that only observe. `phase` is how far past
/// the epoch the clock began to count, which aligns fixed windows.
///
/// # Panics
/// If the settings contradict themselves, which the check of the config refuses.
#[must_use]
pub fn limited(settings: &GateSettings, phase: Duration) -> Policy {
    of(&enforced(settings), phase)
}

/// The names of the limits that only observe, as in metrics, except rate limits of callers.
///
/// # Panics
/// As for [`limited`].
#[must_use]
pub fn observed(settings: &GateSettings) -> Vec<Arc<str>> {
    let names = |settings: &GateSettings| -> Vec<Arc<str>> {
        let policy = of(settings, Duration::ZERO);
        policy.limits().iter().map(|it| it.name.clone()).collect()
    };
    let enforced = names(&enforced(settings));
    let raises_workers = settings.outstanding_mode == LimitMode::Observe;
    let mut observed = names(settings);
    observed.retain(|name| !enforced.contains(name) || raises_workers && **name == *WORKERS);
    observed
}

/// The settings without the limits that only observe.
fn enforced(settings: &GateSettings) -> GateSettings {
    let mut settings = settings.clone();
    let is_enforced = |mode| mode == LimitMode::Enforce;
    if !is_enforced(settings.outstanding_mode) {
        settings.outstanding_max = None;
        // There are no more calls than connections and tasks.
        settings.workers = settings.workers.max(settings.door_max);
        for server in &mut settings.servers.list {
            server.outstanding = None;
        }
    }
    if let Some(window) = &mut settings.window
        && !is_enforced(window.mode)
    {
        window.total = None;
        window.functions.clear();
        for server in &mut settings.servers.list {
            server.per_window = None;
        }
    }
    settings.paced.retain(|limit| is_enforced(limit.mode));
    for class in &mut settings.classes {
        if !is_enforced(class.outstanding_mode) {
            class.pool = class.pool.and_then(ClassPool::unbounded);
            class.reserve_outstanding = 0;
        }
        if !is_enforced(class.window_mode) {
            class.per_window = None;
            class.reserve_per_window = 0;
        }
    }
    settings
}

/// The policy of calls with limits, of all of them.
pub(super) fn of(settings: &GateSettings, phase: Duration) -> Policy {
    let mut workers = outstanding(WORKERS, settings.workers);
    if let Postpone::Jitter { .. } = settings.postpone {
        // Nothing of it is reserved, but a class with a reserve is never set aside.
        workers.reserve = Some(Reserve {
            class: USER,
            amount: 0,
        });
    }
    let mut limits = vec![workers];
    if let Some(max) = settings.outstanding_max {
        limits.push(LimitRule {
            scope: settings.outstanding_scope(),
            reserve: settings.reserve(max, |class| class.reserve_outstanding),
            ..outstanding("outstanding", max)
        });
    }
    if let Some(window) = &settings.window {
        let limit = |max| window_limit(window, max, phase);
        if let Some(total) = window.total {
            limits.push(LimitRule {
                reserve: settings.reserve(total, |class| class.reserve_per_window),
                ..rule("total", Scope::Every, limit(total))
            });
        }
        for (function, max) in &window.functions {
            // With a prefix, so that a function called "total" is not the total.
            let name = format!("function:{function}");
            limits.push(rule(
                &name,
                Scope::Function(Arc::clone(function)),
                limit(*max),
            ));
        }
    }
    limits.extend(settings.paced.iter().map(paced));
    limits.extend(settings.class_limits(|max| {
        let window = settings.window.as_ref()?;
        Some(window_limit(window, max, phase))
    }));
    limits.extend(backends());
    limits.extend(servers(settings, phase));
    let when_full = match settings.when_full {
        WhenFull::Refuse => tidegate_limits::policy::WhenFull::Refuse,
        WhenFull::Wait => at_the_door(settings),
    };
    let classes = settings.classes.iter().map(ClassRule::share).collect();
    Policy::new(
        limits,
        settings.capacity,
        when_full,
        settings.postpone,
        classes,
    )
    .expect(CHECKED)
    .with_pick(settings.servers.pick, settings.servers.sticky_wait)
}

/// The policy of calls without limits: their own slots, and the backends' health.
pub(super) fn unlimited(settings: &GateSettings) -> Policy {
    let mut limits = vec![outstanding("unlimited", settings.max_unlimited)];
    limits.extend(backends());
    let health = settings.servers.list.iter().map(|server| {
        let limit = Limit::Outstanding { max: u32::MAX };
        rule(&server.limit(), server.scope(), limit)
    });
    limits.extend(health);
    Policy::new(
        limits,
        settings.capacity,
        at_the_door(settings),
        Postpone::InTurn,
        vec![ClassShare::new("unlimited", 1)],
    )
    .expect(CHECKED)
    .with_pick(settings.servers.pick, settings.servers.sticky_wait)
}

const CHECKED: &str = "the config's check lets only sound policies through";

fn at_the_door(settings: &GateSettings) -> tidegate_limits::policy::WhenFull {
    tidegate_limits::policy::WhenFull::Wait {
        door: settings.door_max,
    }
}

/// The limit that a backend's health closes and opens.
#[must_use]
pub fn backend_limit(backend: Destination) -> String {
    format!("backend:{}", backend.label())
}

fn backends() -> impl Iterator<Item = LimitRule> {
    Destination::BACKENDS.into_iter().map(|backend| {
        rule(
            &backend_limit(backend),
            Scope::Backend(Backend(backend as u8)),
            Limit::Outstanding { max: u32::MAX },
        )
    })
}

/// The limits of each server. Its health closes the first of them, so each has one.
fn servers(settings: &GateSettings, phase: Duration) -> impl Iterator<Item = LimitRule> {
    settings.servers.list.iter().flat_map(move |server| {
        let max = server.outstanding.unwrap_or(u32::MAX);
        let at_once = rule(&server.limit(), server.scope(), Limit::Outstanding { max });
        let window = settings.window.as_ref().zip(server.per_window);
        let window = window.map(|(window, max)| {
            let limit = window_limit(window, max, phase);
            rule(&server.window(), server.scope(), limit)
        });
        std::iter::once(at_once).chain(window)
    })
}

fn outstanding(name: &str, max: u32) -> LimitRule {
    rule(name, Scope::Every, Limit::Outstanding { max })
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit).scope(scope)
}

/// Named like a rate limit of callers, so that operators need not know the difference.
fn paced(limit: &PacedLimit) -> LimitRule {
    let scope = match &limit.function {
        Some(function) => Scope::Function(Arc::clone(function)),
        None => Scope::Every,
    };
    let name = format!("{RATE_LIMIT_PREFIX}{}", limit.name);
    let pace = pace(limit.rate, limit.ratio, limit.costs);
    rule(&name, scope, Limit::Paced { pace })
}

fn window_limit(window: &Window, max: u32, phase: Duration) -> Limit {
    Limit::Window {
        max,
        length: window.length,
        guard: window.guard,
        shape: if window.fixed {
            WindowShape::Fixed { phase }
        } else {
            WindowShape::Sliding
        },
        stamp: window.stamp,
    }
}
