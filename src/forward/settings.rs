//! The settings of this stage, and their change by a reload.

use std::sync::atomic::Ordering;

use tidegate_limits::call::{ServerChoice, ServerNumber};

use super::{Bounds, Forwarder, NamedRemote, Remote, StickyBy};
use crate::call::{Destination, Generation, Message};

/// The settings of this stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwarderSettings {
    /// The sdkserver.
    pub socket: Option<Remote>,
    /// The HTTP backend. With several servers it is the first, for calls that were admitted when it was one server.
    pub http: Option<Remote>,
    /// The servers of the HTTP backend, if it has several.
    pub servers: Vec<NamedRemote>,
    /// The key by which calls go to the same server.
    pub sticky_by: Option<StickyBy>,
    /// The TCP backend.
    pub tcp: Option<Remote>,
    /// Whether a read whose connection closed before the first byte of the reply is sent once more.
    pub retry_reads: bool,
    /// The bounds of every backend.
    pub bounds: Bounds,
}

impl Forwarder {
    /// Takes new settings for later calls. Exchanges under way keep the backend that they began
    /// with. The name of a backend that stays is looked up again in the background. Returns the
    /// destinations that lead to another backend from now on: the health of the old one does not
    /// apply to it.
    #[must_use = "the gate has to hear of backends that were moved"]
    pub fn apply(
        &self,
        settings: &ForwarderSettings,
    ) -> Vec<(Destination, Option<ServerNumber>, Generation)> {
        let shared = &*self.shared;
        let retry_reads = settings.retry_reads;
        shared.retry_reads.store(retry_reads, Ordering::Relaxed);
        let remotes = [&settings.socket, &settings.http, &settings.tcp];
        let destinations = Destination::BACKENDS.into_iter().zip(&shared.backends);
        let (bounds, resolve) = (&settings.bounds, &shared.resolve);
        let moved = destinations.zip(remotes);
        let moved = moved.filter_map(|((destination, backends), remote)| {
            let new = backends.apply(destination, None, remote.as_ref(), bounds, resolve)?;
            Some((destination, None, new))
        });
        let sticky_by = settings.sticky_by.as_ref();
        let servers = &settings.servers;
        let servers = shared.servers.apply(servers, sticky_by, bounds, resolve);
        let has_servers = !shared.servers.is_empty();
        shared.has_servers.store(has_servers, Ordering::Relaxed);
        let servers = servers
            .into_iter()
            .map(|(server, new)| (Destination::Http, Some(server), new));
        moved.chain(servers).collect()
    }

    /// Whether the HTTP backend has several servers, or had until the last reload.
    #[inline]
    #[must_use]
    pub fn has_servers(&self) -> bool {
        self.shared.has_servers.load(Ordering::Relaxed)
    }

    /// The servers that may serve a call of this caller and function.
    #[must_use]
    pub fn server_choice(&self, message: &Message, caller: u64, function: &str) -> ServerChoice {
        self.shared.servers.choice(message, caller, function)
    }
}
