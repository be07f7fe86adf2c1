//! The health of a server decides how many calls the gate admits to it.
//!
//! A server that accepts no connection is closed for all calls and gets one call at a time as a probe, as a
//! [backend](super::backends) does. Its calls go to other servers meanwhile. After its return its limits grow from a tenth,
//! at least one call, to all.

use std::sync::Arc;

use rand::RngExt;
use tidegate_limits::Timestamp;
use tidegate_limits::call::ServerNumber;
use tidegate_limits::scheduler::{Supply, SupplyShare};

use super::acts::Ramp;
use super::lock::GateState;
use super::operators::DOWN_MIN;
use super::servers::ServerNow;
use crate::call::{Destination, Generation};

impl GateState {
    /// The servers as they are now.
    pub(super) fn servers_now(&self) -> Vec<ServerNow> {
        let states = self.servers.0.iter().map(|state| {
            let limit = state.rule.limit();
            let lanes = self.lanes.iter();
            ServerNow {
                name: Arc::clone(&state.rule.name),
                is_up: state.known.is_up(),
                since: state.since,
                calls: lanes.filter_map(|lane| lane.in_use(&limit)).sum(),
            }
        });
        states.collect()
    }

    /// Whether a backend accepts connections, as far as calls have shown. If it has servers: whether one of them does.
    pub(super) fn is_up(&self, backend: Destination) -> bool {
        match backend {
            Destination::Http => self.backends.is_up(backend) && self.servers.is_any_up(),
            _ => self.backends.is_up(backend),
        }
    }

    /// A connect to a server failed.
    pub(super) fn server_failed(
        &mut self,
        server: ServerNumber,
        generation: Generation,
        now: Timestamp,
    ) {
        let spread = self.entropy.random_range(0.5..1.0);
        let Some(state) = self.servers.find(server) else {
            return;
        };
        state.known.failed(generation, now, spread);
        if state.known.is_up() {
            return;
        }
        state.since = *state.down_since.get_or_insert(now);
        state.ramp = None;
        let limit = state.rule.limit();
        let shut = self.supply(&limit, now, |_| Supply::capacity(0));
        self.observer.observe(now, shut);
    }

    /// A call was sent to a server. Returns the name of the server.
    pub(super) fn server_succeeded(
        &mut self,
        server: ServerNumber,
        generation: Generation,
        now: Timestamp,
    ) -> Option<Arc<str>> {
        let state = self.servers.find(server)?;
        let name = Arc::clone(&state.rule.name);
        if state.known.succeeded(generation) {
            self.open_server(server, now);
        }
        Some(name)
    }

    /// A server has another address from now on, and counts as up.
    pub(super) fn server_moved(
        &mut self,
        server: ServerNumber,
        generation: Generation,
        now: Timestamp,
    ) {
        let state = self.servers.find(server);
        if state.is_some_and(|state| state.known.moved(generation)) {
            self.open_server(server, now);
        }
    }

    /// Admits calls to a server again, few at first if the settings say so.
    fn open_server(&mut self, server: ServerNumber, now: Timestamp) {
        let length = self.acts.usual_ramp;
        let Some(state) = self.servers.find(server) else {
            return;
        };
        let down_since = state.down_since.take();
        if down_since.is_some() {
            state.since = now;
        }
        let was_long = down_since.is_some_and(|since| now.since(since) >= DOWN_MIN);
        state.ramp = (was_long && !length.is_zero()).then(|| {
            let ramp = Ramp {
                since: now,
                ends: now + length,
                why: "the server was down".into(),
                author: "tidegate".into(),
            };
            (ramp, now)
        });
        match state.ramp {
            Some(_) => self.step_ramp(server, now),
            None => self.give_out_at(server, SupplyShare::FULL, now),
        }
    }

    fn step_ramp(&mut self, server: ServerNumber, now: Timestamp) {
        let Some(state) = self.servers.find(server) else {
            return;
        };
        let Some((ramp, step)) = &mut state.ramp else {
            return;
        };
        let share = ramp.share(now);
        *step = (now + ramp.step()).min(ramp.ends);
        if share == SupplyShare::FULL {
            state.ramp = None;
        }
        self.give_out_at(server, share, now);
    }

    /// Lets the limits of a server give out this part of what they would.
    fn give_out_at(&mut self, server: ServerNumber, share: SupplyShare, now: Timestamp) {
        let Some(state) = self.servers.find(server) else {
            return;
        };
        let rule = &state.rule;
        let outstanding = (rule.limit(), rule.outstanding);
        let window = rule.per_window.map(|max| (rule.window(), Some(max)));
        for (limit, max) in std::iter::once(outstanding).chain(window) {
            let supply = match max {
                Some(max) if share < SupplyShare::FULL => {
                    let part = u64::from(max) * u64::from(share.thousandths()) / 1000;
                    Supply::capacity((part as u32).max(1))
                }
                _ => Supply::Configured,
            };
            let event = self.supply(&limit, now, |_| supply);
            self.observer.observe(now, event);
        }
    }

    /// Begins the probes and takes the steps of ramps that are due.
    pub(super) fn tend_servers(&mut self, now: Timestamp) {
        if self.servers.wake().is_none_or(|wake| wake > now) {
            return;
        }
        let servers: Vec<_> = self.servers.0.iter().map(|it| it.rule.server).collect();
        for server in servers {
            let Some(state) = self.servers.find(server) else {
                continue;
            };
            if state.ramp.as_ref().is_some_and(|(_, step)| *step <= now) {
                self.step_ramp(server, now);
            } else if state.known.probe(now) {
                // One more call than are under way to it.
                let limit = state.rule.limit();
                self.supply(&limit, now, |in_use| Supply::capacity(in_use + 1));
            }
        }
    }
}
