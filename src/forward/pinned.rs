//! Where a backend connection goes after an exchange: into the pool, or to the client that has logged it in, as NTLM and
//! Negotiate do. What comes over such a connection is answered as that user's, so it belongs to the client's own connection
//! and ends with it.

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
}

impl ConnectionFate {
    /// Keeps a connection whose reply was read to its end, at this moment.
    pub(super) fn keep(self, upstream: Upstream, since: Instant, backend: &BackendHandle) {
        match self {
            Self::Pool => backend.pool.put(upstream, since, &backend.bounds),
            Self::Pinned(pinned) => pinned.put(Box::new(Pinned {
                upstream,
                generation: backend.generation,
            })),
        }
    }
}

/// The client's own connection to this backend, if it has one that is still open.
pub(super) fn take(pinned: &PinnedConnection, backend: &BackendHandle) -> Option<Upstream> {
    let Pinned {
        mut upstream,
        generation,
    } = *pinned.take()?.downcast().ok()?;
    let is_good = generation == backend.generation && upstream.is_quiet(LOOK_AFTER);
    is_good.then_some(upstream)
}
