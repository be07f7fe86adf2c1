//! The connections of the admin address. When all places are taken, a new connection replaces the
//! one that has been silent for longest.
//!
//! A connection is silent while none of its requests is being answered: it sends nothing, it
//! sends half a request head, or it does not read its answer. So clients that only hold
//! connections, or ask occasionally, never keep a probe or an operator out.

use std::sync::{Arc, Mutex};

use tidegate_runtime::lock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::io::{InspectReader, InspectWriter};

/// The places of all connections.
pub(super) struct AdminConnections {
    max: usize,
    taken: Mutex<Vec<Arc<AdminConnectionState>>>,
    /// A place became free, or a connection became silent.
    changed: Notify,
}

/// The place of one connection, free again once it is dropped.
pub(super) struct AdminConnection {
    places: Arc<AdminConnections>,
    state: Arc<AdminConnectionState>,
}

struct AdminConnectionState {
    now: Mutex<ConnectionActivity>,
    /// The connection must make room.
    close: Notify,
}

#[derive(Clone, Copy)]
struct ConnectionActivity {
    /// When bytes were last received or sent.
    moved: Instant,
    /// Requests that are being answered.
    answering: usize,
    /// Whether the connection was asked to make room.
    closing: bool,
}

impl AdminConnections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// A place for a new connection. If there is none, waits until the connection that was silent
    /// for longest has closed.
    pub(super) async fn take(self: &Arc<Self>) -> AdminConnection {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(place) = self.try_take() {
                return place;
            }
            self.close_the_most_silent();
            changed.await;
        }
    }

    fn try_take(self: &Arc<Self>) -> Option<AdminConnection> {
        let mut taken = lock(&self.taken);
        if taken.len() >= self.max {
            return None;
        }
        let state = Arc::new(AdminConnectionState {
            now: Mutex::new(ConnectionActivity {
                moved: Instant::now(),
                answering: 0,
                closing: false,
            }),
            close: Notify::new(),
        });
        taken.push(Arc::clone(&state));
        Some(AdminConnection {
            places: Arc::clone(self),
            state,
        })
    }

    /// Closes one, unless one is already closing.
    fn close_the_most_silent(&self) {
        let taken = lock(&self.taken);
        let mut silent: Option<(&Arc<AdminConnectionState>, Instant)> = None;
        for state in taken.iter() {
            let now = *lock(&state.now);
            if now.closing {
                return;
            }
            if now.answering == 0 && silent.is_none_or(|(_, since)| now.moved < since) {
                silent = Some((state, now.moved));
            }
        }
        if let Some((state, _)) = silent {
            lock(&state.now).closing = true;
            state.close.notify_one();
        }
    }
}

impl AdminConnection {
    /// Ends when the connection must make room for another.
    pub(super) async fn closed(&self) {
        loop {
            self.state.close.notified().await;
            let mut now = lock(&self.state.now);
            if now.answering == 0 {
                return;
            }
            // A request arrived meanwhile. Another connection must be closed.
            now.closing = false;
            drop(now);
            self.places.changed.notify_one();
        }
    }

    /// A request is being answered until the returned value is dropped.
    pub(super) fn answering(&self) -> ActiveRequest {
        lock(&self.state.now).answering += 1;
        ActiveRequest {
            places: Arc::clone(&self.places),
            state: Arc::clone(&self.state),
        }
    }

    /// A stream that notes when bytes are received and sent.
    pub(super) fn watch(&self, stream: impl AsyncRead + AsyncWrite) -> impl AsyncRead + AsyncWrite {
        let moved = || {
            let state = Arc::clone(&self.state);
            move |_: &[u8]| lock(&state.now).moved = Instant::now()
        };
        InspectWriter::new(InspectReader::new(stream, moved()), moved())
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        lock(&self.places.taken).retain(|state| !Arc::ptr_eq(state, &self.state));
        self.places.changed.notify_one();
    }
}

/// A request that is being answered.
pub(super) struct ActiveRequest {
    places: Arc<AdminConnections>,
    state: Arc<AdminConnectionState>,
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut now = lock(&self.state.now);
        now.answering -= 1;
        now.moved = Instant::now();
        drop(now);
        self.places.changed.notify_one();
    }
}
