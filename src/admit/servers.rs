//! The servers of the HTTP backend: their settings, and what is known of the health of each.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::call::{Backend, ServerNumber};
use tidegate_limits::policy::{LimitRule, Pick, Scope};

use super::acts::{Ramp, first};
use super::backends::KnownHealth;
use crate::call::Destination;

/// The servers of the HTTP backend; none if it is one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// The servers, in the order in which they are chosen.
    pub list: Vec<ServerRule>,
    /// How a server is chosen.
    pub pick: Pick,
    /// How long a call waits for the server of its key.
    pub sticky_wait: Duration,
}

/// A server and its own limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRule {
    /// The name in metrics and logs.
    pub name: Arc<str>,
    /// The number of that name.
    pub server: ServerNumber,
    /// Calls there at once, if they are limited.
    pub outstanding: Option<u32>,
    /// Calls per window, if they are limited.
    pub per_window: Option<u32>,
}

/// A server, as calls have shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerNow {
    /// The name.
    pub name: Arc<str>,
    /// Whether it accepts connections.
    pub is_up: bool,
    /// Since when.
    pub since: Timestamp,
    /// Calls there now.
    pub calls: u32,
}

impl ServerRule {
    /// The name of the limit on calls there at once, which its health closes.
    #[must_use]
    pub fn limit(&self) -> String {
        format!("server:{}", self.name)
    }

    /// The name of its limit per window.
    #[must_use]
    pub fn window(&self) -> String {
        format!("server:{}:window", self.name)
    }

    pub(super) fn scope(&self) -> Scope {
        Scope::Server(Backend(Destination::Http as u8), self.server)
    }
}

/// Whether a limit of a server bounds nothing, and is there only for its health.
pub(super) fn is_unbounded(rule: &LimitRule) -> bool {
    matches!(rule.scope, Scope::Server(..)) && rule.limit.max() == u32::MAX
}

/// The servers that are up, and the next probe of each that is down.
#[derive(Debug, Default)]
pub(super) struct ServerHealth(pub(super) Vec<ServerState>);

/// A server that calls may go to.
#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) rule: ServerRule,
    pub(super) known: KnownHealth,
    pub(super) down_since: Option<Timestamp>,
    /// Since when it is up or down.
    pub(super) since: Timestamp,
    /// The time in which its limits grow, and the next step.
    pub(super) ramp: Option<(Ramp, Timestamp)>,
}

impl ServerHealth {
    pub(super) fn new(settings: &ServerSettings, now: Timestamp) -> Self {
        let mut servers = Self::default();
        servers.apply(settings, now);
        servers
    }

    /// Takes new settings. A server that stays keeps its health.
    pub(super) fn apply(&mut self, settings: &ServerSettings, now: Timestamp) {
        let mut before = std::mem::take(&mut self.0);
        let states = settings.list.iter().map(|rule| {
            let place = before.iter().position(|it| it.rule.server == rule.server);
            let rule = rule.clone();
            match place.map(|place| before.swap_remove(place)) {
                Some(state) => ServerState { rule, ..state },
                None => ServerState {
                    rule,
                    known: KnownHealth::default(),
                    down_since: None,
                    since: now,
                    ramp: None,
                },
            }
        });
        self.0 = states.collect();
    }

    /// Whether any server is up; true without servers.
    pub(super) fn is_any_up(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(|state| state.known.is_up())
    }

    /// When a probe or a step of a ramp is due.
    #[inline]
    pub(super) fn wake(&self) -> Option<Timestamp> {
        let wakes = self.0.iter().filter_map(|state| {
            let step = state.ramp.as_ref().map(|(_, step)| *step);
            first(state.known.wake(), step)
        });
        wakes.min()
    }

    pub(super) fn find(&mut self, server: ServerNumber) -> Option<&mut ServerState> {
        self.0.iter_mut().find(|it| it.rule.server == server)
    }
}
