//! A backend: its address, the connections to it, and how long each step may take.
//!
//! A reload makes a new value, and an exchange keeps the one that it began with. While the
//! address and the certificates stay the same, the values share one pool and one generation. If one
//! changes, both are new, and the old pool is closed: it takes nothing back, and ends with its last exchange.
//! A reload also looks a name up again, and retires connections to addresses that it no longer has.
//! (docs/decisions/0013)

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use std::time::Duration;

use tidegate_limits::call::ServerNumber;
use tidegate_runtime::PerThread;
use tokio::time::Instant;

use super::addresses::NameState;
use super::client_left::spawn_to_end;
use super::complaint::{Complaint, chain};
use super::connect::{ConnectError, Connector, not_ours};
use super::pool::{ConnectionPool, Retirement};
use super::streamed::ReaderBounds;
use super::tls_failure::TlsFailure;
use super::upstream::Upstream;
use super::{BackendAddress, BackendTls, Bounds, Remote, Resolve};
use crate::call::loopback::without_pacing;
use crate::call::{Destination, Generation, Link};

/// The least time that a reload waits for a lookup. No call waits for it.
const LOOKUP_MIN: Duration = Duration::from_secs(10);

/// A backend, as calls use it.
#[derive(Clone)]
pub(super) struct BackendHandle {
    pub(super) generation: Generation,
    pub(super) bounds: Bounds,
    /// The idle connections.
    pub(super) pool: Arc<ConnectionPool<Upstream>>,
    pub(super) destination: Destination,
    /// The server that it is, if there are several.
    pub(super) server: Option<ServerNumber>,
    connector: Arc<Connector>,
    tls: Option<BackendTls>,
    complaint: Arc<Complaint>,
    /// Replies with slow clients.
    slow_readers: Arc<AtomicUsize>,
}

impl BackendHandle {
    /// The bounds for clients that read its replies.
    pub(super) fn readers(&self) -> ReaderBounds {
        ReaderBounds {
            min_rate: self.bounds.reply_min_rate,
            slow_max: self.bounds.slow_readers_max,
            slow: Arc::clone(&self.slow_readers),
        }
    }

    /// Connects within `connect_timeout`. With TLS, the handshake has the same time after that.
    pub(super) async fn connect(&self) -> Result<Link, ConnectError> {
        let connected = self.try_connect().await;
        connected.inspect_err(|error| self.complain(error))
    }

    async fn try_connect(&self) -> Result<Link, ConnectError> {
        let bounds = &self.bounds;
        let stream = self.connector.connect(bounds.connect_timeout).await?;
        let stream = not_ours(stream, &bounds.own)?;
        if let Ok(peer) = stream.peer_addr() {
            without_pacing(&stream, peer.ip());
        }
        let Some(tls) = &self.tls else {
            return Ok(Link::Plain(stream));
        };
        // Boxed, so that a connect without TLS needs no room for it.
        let shaking = Box::pin(tls.shake_hands(stream, bounds.connect_timeout));
        let shaken = shaking.await;
        shaken.map_err(|failure| ConnectError::Tls(Box::new(failure)))
    }

    /// Connects, and writes what it can at once. Returns the connection and the number of bytes
    /// written, which may be 0.
    pub(super) async fn connect_and_write(
        &self,
        bytes: &[u8],
    ) -> Result<(Link, usize), ConnectError> {
        // Nothing is written before the name is resolved, or before the handshake is over.
        if matches!(self.connector.address, BackendAddress::Name(..)) || self.tls.is_some() {
            return Ok((self.connect().await?, 0));
        }
        let bound = self.bounds.connect_timeout;
        let connected = self.connector.connect_and_write(bytes, bound).await;
        let (stream, written) = connected.inspect_err(|error| self.complain(error))?;
        Ok((Link::Plain(stream), written))
    }

    /// The meaning of its name now; `None` if its address is not a name.
    pub(super) fn name_state(&self) -> Option<NameState> {
        let is_name = matches!(self.connector.address, BackendAddress::Name(..));
        is_name.then(|| self.connector.book.state(Instant::now()))
    }

    /// Looks its name up again, and retires connections to addresses that the name no longer has. If
    /// the lookup fails, all connections stay.
    async fn follow_name(&self) {
        let asked_at = Instant::now();
        let step = self.bounds.connect_timeout;
        let looked_up = self.connector.look_up_anew(step.max(LOOKUP_MIN)).await;
        let (backend, address) = (self.destination.label(), &self.connector.address);
        match looked_up {
            None => {}
            Some(Ok(addresses)) => {
                let retirement = Retirement {
                    asked_at,
                    addresses,
                    // A lookup, a connect and a handshake may take so long.
                    opened_before: asked_at + 3 * step,
                };
                let closed = self.pool.retire(&retirement);
                if closed > 0 {
                    tracing::info!(
                        backend,
                        %address,
                        closed,
                        "closed idle connections to addresses that the backend's name no longer has"
                    );
                }
            }
            Some(Err(error)) => tracing::warn!(
                backend,
                %address,
                error = chain(&error),
                "the backend's name was not looked up after the reload, so its connections stay; \
                 check the name and the resolver of this machine, and reload again"
            ),
        }
    }

    /// Logs why there is no TLS after all.
    pub(super) fn complain_of(&self, failure: &TlsFailure) {
        let address = &self.connector.address;
        self.complaint.log_tls(self.destination, address, failure);
    }

    /// Logs why there is no connection.
    #[cold]
    fn complain(&self, error: &ConnectError) {
        self.complaint
            .log(self.destination, &self.connector.address, error);
    }
}

/// The backend of one destination, if there is one.
#[derive(Default)]
pub(super) struct CurrentBackend {
    latest: RwLock<Latest>,
    /// Changes with each reload.
    version: AtomicUsize,
    /// The current backend, once for each thread, because each call of a thread changes how often it is shared.
    own: PerThread<ThreadBackend>,
}

#[derive(Default)]
struct Latest {
    backend: Option<Arc<BackendHandle>>,
    /// The number of the next backend.
    next: Generation,
}

#[derive(Default)]
struct ThreadBackend {
    version: usize,
    backend: Option<Arc<BackendHandle>>,
}

impl CurrentBackend {
    /// The backend for the next call.
    pub(super) fn pick(&self) -> Option<Arc<BackendHandle>> {
        let version = self.version.load(Ordering::Acquire);
        let mut own = self.own.own();
        if own.version != version {
            let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner);
            let copied = latest.backend.as_deref().cloned();
            *own = ThreadBackend {
                version,
                backend: copied.map(Arc::new),
            };
        }
        own.backend.clone()
    }

    /// Applies a reload. Returns the generation of a new backend.
    pub(super) fn apply(
        &self,
        destination: Destination,
        server: Option<ServerNumber>,
        remote: Option<&Remote>,
        bounds: &Bounds,
        resolve: &Arc<dyn Resolve>,
    ) -> Option<Generation> {
        let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
        // A thread that sees this waits for the lock.
        self.version.fetch_add(1, Ordering::Release);
        let before = latest.backend.clone();
        if let (Some(before), Some(remote)) = (&before, remote)
            && before.connector.address == remote.address
            && before.tls == remote.tls
        {
            let current = match before.bounds == *bounds {
                true => Arc::clone(before),
                false => Arc::new(BackendHandle {
                    bounds: bounds.clone(),
                    ..BackendHandle::clone(before)
                }),
            };
            latest.backend = Some(Arc::clone(&current));
            drop(latest);
            if matches!(remote.address, BackendAddress::Name(..)) {
                spawn_to_end(async move { current.follow_name().await });
            }
            return None;
        }
        let new = remote.map(|remote| {
            let generation = latest.next;
            latest.next = generation.next();
            Arc::new(BackendHandle {
                generation,
                bounds: bounds.clone(),
                pool: Arc::default(),
                connector: Arc::new(Connector {
                    address: remote.address.clone(),
                    resolve: Arc::clone(resolve),
                    lookup: Mutex::default(),
                    book: Arc::default(),
                }),
                destination,
                server,
                tls: remote.tls.clone(),
                complaint: Arc::default(),
                slow_readers: Arc::default(),
            })
        });
        let generation = new.as_ref().map(|new| new.generation);
        latest.backend = new;
        drop(latest);
        if let Some(before) = before {
            before.pool.close();
        }
        generation
    }
}
