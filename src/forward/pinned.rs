//! Where a backend connection goes after an exchange: into the pool, or to the client that has logged it in, as NTLM and
//! Negotiate do. What comes over such a connection is answered as that user's, so it belongs to the client's own connection
//! and ends with it.

use tidegate_limits::call::ServerNumber;
use tokio::time::Instant;

use super::backend::BackendHandle;
use super::pool::LOOK_AFTER;
use super::upstream::Upstream;
use crate::call::{Generation, PinnedConnection};

/// Where a connection goes when its exchange has ended.
pub(super) enum ConnectionFate {
    /// Into the pool, for any client.
    Pool,
    /// To the client that has logged it in.
    Pinned(PinnedConnection),
}

/// The backend connection that a client's connection keeps.
struct Pinned {
    upstream: Upstream,
    generation: Generation,
    server: Option<ServerNumber>,
}

impl ConnectionFate {
    /// Keeps a connection whose reply was read to its end, at this moment.
    pub(super) fn keep(self, upstream: Upstream, since: Instant, backend: &BackendHandle) {
        match self {
            Self::Pool => backend.pool.put(upstream, since, &backend.bounds),
            Self::Pinned(pinned) => pinned.put(Box::new(Pinned {
                upstream,
                generation: backend.generation,
                server: backend.server,
            })),
        }
    }
}

/// The server to which the client's own connection leads, if the backend has several.
pub(super) fn server(pinned: &PinnedConnection) -> Option<ServerNumber> {
    let connection = pinned.take()?;
    let server = connection.downcast_ref::<Pinned>()?.server;
    pinned.put(connection);
    server
}

/// The client's own connection to this backend, if it has one that is still open.
pub(super) fn take(pinned: &PinnedConnection, backend: &BackendHandle) -> Option<Upstream> {
    let Pinned {
        mut upstream,
        generation,
        server,
    } = *pinned.take()?.downcast().ok()?;
    let is_its_own = (generation, server) == (backend.generation, backend.server);
    let is_good = is_its_own && upstream.is_quiet(LOOK_AFTER);
    is_good.then_some(upstream)
}
