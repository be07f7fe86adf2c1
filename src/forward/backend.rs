//! One backend: its address, the connections to it, and how long each step may take.
//!
//! A reload makes a new value, and an exchange keeps the one that it began with. While the
//! address stays the same, the values share one pool and one generation. With a new address both
//! are new, and the old pool is closed: it takes nothing back, and ends with its last exchange.
//! (docs/decisions/0013)
//! exchange that uses it. (docs/decisions/0013)

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};

use super::connect::{ConnectError, Connector, not_ours};
use super::pool::Pool;
use super::stream::Stream;
use super::streamed::Readers;
use super::{Address, Bounds, Resolve};
use crate::call::Generation;

/// A backend, as calls use it.
pub(super) struct Backend {
    pub(super) generation: Generation,
    pub(super) bounds: Bounds,
    pub(super) pool: Arc<Pool>,
    connector: Arc<Connector>,
    /// Replies with slow clients.
    slow_readers: Arc<AtomicUsize>,
}

impl Backend {
    fn new(
        generation: Generation,
        address: Address,
        bounds: Bounds,
        resolve: Arc<dyn Resolve>,
    ) -> Self {
        Self {
            generation,
            bounds,
            pool: Arc::default(),
            connector: Arc::new(Connector::new(address, resolve)),
            slow_readers: Arc::default(),
        }
    }

    /// The same backend with other bounds.
    fn bounded(&self, bounds: Bounds) -> Self {
        Self {
            generation: self.generation,
            bounds,
            pool: Arc::clone(&self.pool),
            connector: Arc::clone(&self.connector),
            slow_readers: Arc::clone(&self.slow_readers),
        }
    }

    /// The bounds for clients that read its replies.
    pub(super) fn readers(&self) -> Readers {
        Readers {
            min_rate: self.bounds.reply_min_rate,
            slow_max: self.bounds.slow_readers_max,
            slow: Arc::clone(&self.slow_readers),
        }
    }

    /// Connects within `connect_timeout`.
    pub(super) async fn connect(&self) -> Result<Stream, ConnectError> {
        let bounds = &self.bounds;
        let stream = self.connector.connect(bounds.connect_timeout).await?;
        not_ours(stream, &bounds.own)
    }

    /// Connects, and writes what it can at once. Returns the connection and the number of bytes
    /// written, which may be 0.
    pub(super) async fn connect_and_write(
        &self,
        bytes: &[u8],
    ) -> Result<(Stream, usize), ConnectError> {
        let bound = self.bounds.connect_timeout;
        if !self.connector.is_by_name() {
            return self.connector.connect_and_write(bytes, bound).await;
        }
        // Nothing is written before the name is resolved.
        let stream = self.connector.connect(bound).await?;
        Ok((not_ours(stream, &self.bounds.own)?, 0))
    }
}

/// The backends of one destination: a list of none or one.
#[derive(Default)]
pub(super) struct Backends(RwLock<List>);

#[derive(Default)]
struct List {
    backends: Vec<Arc<Backend>>,
    /// The number of the next backend.
    next: Generation,
}

impl Backends {
    /// The backend for the next call.
    pub(super) fn pick(&self) -> Option<Arc<Backend>> {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        list.backends.first().cloned()
    }

    /// Applies a reload. Returns the generation of a new backend.
    pub(super) fn apply(
        &self,
        address: Option<&Address>,
        bounds: &Bounds,
        resolve: &Arc<dyn Resolve>,
    ) -> Option<Generation> {
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = list.backends.first().cloned();
        if let (Some(before), Some(address)) = (&before, address)
            && before.connector.address() == address
        {
            if before.bounds != *bounds {
                list.backends = vec![Arc::new(before.bounded(bounds.clone()))];
            }
            return None;
        }
        let new = address.map(|address| {
            let generation = list.next;
            list.next = generation.next();
            let resolve = Arc::clone(resolve);
            Arc::new(Backend::new(
                generation,
                address.clone(),
                bounds.clone(),
                resolve,
            ))
        });
        let generation = new.as_ref().map(|new| new.generation);
        list.backends = new.into_iter().collect();
        drop(list);
        if let Some(before) = before {
            before.pool.close();
        }
        generation
    }
}
