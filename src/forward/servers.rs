//! The servers of the HTTP backend. Each is a backend of its own, with its address, pool and generation.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tidegate_limits::call::{ServerChoice, ServerNumber};

use super::backend::{BackendHandle, CurrentBackend};
use super::pinned;
use super::{Bounds, Remote, Resolve};
use crate::call::{Destination, Generation, Message, key_of};

/// The name and the address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRemote {
    /// The name in metrics and logs.
    pub name: Arc<str>,
    /// The number of that name.
    pub server: ServerNumber,
    /// Where it is.
    pub remote: Remote,
}

/// The key by which calls go to the same server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StickyBy {
    /// The caller.
    Caller,
    /// The function.
    Function,
    /// The value of a header.
    Header(Box<str>),
}

/// As the config gives it.
impl fmt::Display for StickyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller => f.write_str("caller"),
            Self::Function => f.write_str("function"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// The servers in force.
#[derive(Default)]
pub(super) struct Servers(RwLock<ServerList>);

#[derive(Default)]
struct ServerList {
    servers: Vec<KnownServer>,
    sticky_by: Option<StickyBy>,
}

struct KnownServer {
    server: ServerNumber,
    backend: Arc<CurrentBackend>,
    /// Whether it is no longer in the config. Calls that were bound to it before still go there, until the next reload.
    is_removed: bool,
}

impl Servers {
    /// The server to which a call is bound.
    pub(super) fn pick(&self, server: ServerNumber) -> Option<Arc<BackendHandle>> {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = list.servers.iter().find(|it| it.server == server)?;
        known.backend.pick()
    }

    /// Whether there is none, and none was removed by the last reload.
    pub(super) fn is_empty(&self) -> bool {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        list.servers.is_empty()
    }

    /// The servers that may serve a call of this caller and function.
    pub(super) fn choice(&self, message: &Message, caller: u64, function: &str) -> ServerChoice {
        let Message::Http(call) = message else {
            return ServerChoice::ANY;
        };
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        // Its connection is logged in there.
        let pinned = call.pinned.as_ref().and_then(pinned::server);
        if let Some(server) = pinned {
            return ServerChoice::only(server);
        }
        let key = match &list.sticky_by {
            None => return ServerChoice::ANY,
            Some(StickyBy::Caller) => key_of(&caller.to_le_bytes()),
            Some(StickyBy::Function) => key_of(function.as_bytes()),
            Some(StickyBy::Header(name)) => match call.head.headers.get_all(name).next() {
                Some(value) => key_of(value),
                None => return ServerChoice::ANY,
            },
        };
        ServerChoice::sticky(key)
    }

    /// Applies a reload. Returns the servers that have another address from now on.
    pub(super) fn apply(
        &self,
        remotes: &[NamedRemote],
        sticky_by: Option<&StickyBy>,
        bounds: &Bounds,
        resolve: &Arc<dyn Resolve>,
    ) -> Vec<(ServerNumber, Generation)> {
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut list.servers);
        before.retain(|it| !it.is_removed);
        let mut moved = Vec::new();
        for NamedRemote { server, remote, .. } in remotes {
            let place = before.iter().position(|it| it.server == *server);
            let known = place.map(|place| before.swap_remove(place));
            let known = known.unwrap_or_else(|| KnownServer {
                server: *server,
                backend: Arc::default(),
                is_removed: false,
            });
            let to = Destination::Http;
            let generation = known
                .backend
                .apply(to, Some(*server), Some(remote), bounds, resolve);
            moved.extend(generation.map(|generation| (*server, generation)));
            list.servers.push(known);
        }
        let removed = before.into_iter().map(|it| KnownServer {
            is_removed: true,
            ..it
        });
        list.servers.extend(removed);
        list.sticky_by = sticky_by.cloned();
        moved
    }
}
