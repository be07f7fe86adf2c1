//! Continues an exchange when its client leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::call::Record;

/// A flag that is set and read within one task.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, to: bool) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// Set by an exchange at its first byte. From then on it must not be cancelled.
pub(super) type Committed = Arc<Flag>;

/// Runs an exchange in the caller's own task. Dropping it before the first byte cancels the
/// exchange. Dropping it later moves the exchange to a task that brings it to its end.
pub(super) struct Carry<T: Send + 'static> {
    exchange: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    committed: Committed,
    record: Arc<Record>,
}

impl<T: Send + 'static> Carry<T> {
    pub(super) fn new<F>(record: Arc<Record>, exchange: impl FnOnce(Committed) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let committed = Committed::default();
        Self {
            exchange: Some(Box::pin(exchange(Arc::clone(&committed)))),
            committed,
            record,
        }
    }
}

impl<T: Send + 'static> Future for Carry<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let exchange = self.exchange.as_mut();
        let exchange = exchange.expect("an exchange is not polled after its end");
        let done = exchange.as_mut().poll(cx);
        if done.is_ready() {
            self.exchange = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for Carry<T> {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.take()
            && self.committed.get()
        {
            self.record.note(|facts| facts.left = true);
            carry_on(async move {
                drop(exchange.await);
            });
        }
    }
}

/// Runs a future to its end in a task of its own. If the whole runtime goes down, no task can
/// continue it, and dropping it gives its slot back.
pub(super) fn carry_on(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(work);
    }
}
