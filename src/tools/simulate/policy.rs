//! The settings as limits of the scheduler, the same as the gate's: a slot for each worker, the
//! outstanding limit, the windows, and one limit that the backend's health closes.

use std::time::Duration;

use tidegate_limits::{
    Backend, ClassShare, Limit, LimitRule, Policy, Scope, WindowShape, WindowStamp,
};

use crate::admit::{Postpone, Settings, WhenFull, Window};

/// The one backend that a scenario has.
pub(super) const BACKEND: Backend = Backend(0);
/// The limit that its health closes and opens.
pub(super) const BACKEND_LIMIT: &str = "backend:socket";

/// The policy of these settings. Fixed windows begin at multiples of their length, counted from
/// the scenario's start.
///
/// # Panics
///
/// If the settings make no sense; what reads them lets none such through.
pub(super) fn of(settings: &Settings, classes: &[ClassShare]) -> Policy {
    let mut limits = vec![outstanding("workers", Scope::Every, settings.workers)];
    if let Some(max) = settings.outstanding_max {
        limits.push(outstanding("outstanding", Scope::Every, max));
    }
    if let Some(window) = &settings.window {
        if let Some(total) = window.total {
            limits.push(rule("total", Scope::Every, window_limit(window, total)));
        }
        for (function, max) in &window.functions {
            // Prefixed, so that a function called "workers" is not the workers.
            let name = format!("function:{function}");
            let scope = Scope::Function(function.clone());
            limits.push(rule(&name, scope, window_limit(window, *max)));
        }
    }
    limits.push(outstanding(
        BACKEND_LIMIT,
        Scope::Backend(BACKEND),
        u32::MAX,
    ));
    let when_full = match settings.when_full {
        WhenFull::Refuse => tidegate_limits::WhenFull::Refuse,
        WhenFull::Wait => tidegate_limits::WhenFull::Wait {
            door: settings.door_max,
        },
    };
    let postpone = match settings.postpone {
        Postpone::InTurn => tidegate_limits::Postpone::InTurn,
        Postpone::Jitter { min, max } => tidegate_limits::Postpone::Jitter { min, max },
    };
    Policy::new(
        limits,
        settings.capacity,
        when_full,
        postpone,
        classes.to_vec(),
    )
    .expect("a scenario with a mistake is not run")
}

fn outstanding(name: &str, scope: Scope, max: u32) -> LimitRule {
    rule(name, scope, Limit::Outstanding { max })
}

fn rule(name: &str, scope: Scope, limit: Limit) -> LimitRule {
    LimitRule {
        name: name.into(),
        scope,
        limit,
    }
}

fn window_limit(window: &Window, max: u32) -> Limit {
    Limit::Window {
        max,
        length: window.length,
        guard: window.guard,
        shape: if window.fixed {
            WindowShape::Fixed {
                phase: Duration::ZERO,
            }
        } else {
            WindowShape::Sliding
        },
        stamp: if window.stamp_replied {
            WindowStamp::Replied
        } else {
            WindowStamp::Sent
        },
    }
}
