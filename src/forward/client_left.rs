//! Decides how an exchange ends when its client leaves: it is closed, or continues without the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_limits::scheduler::Outcome;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::call::{OnClientLeft, Reason, Record, Slot};

/// An exchange that can go on without its client.
pub(super) trait Carried: Future<Output: Send> + Send + Unpin + 'static {
    /// How the exchange ends when its client leaves.
    fn on_client_left(&self) -> OnClientLeft;
    /// The record of the call.
    fn record(&self) -> &Record;
    /// Closes the connection to the backend, and gives the slot back.
    fn abandon(self);
}

/// An exchange that is an async function.
pub(super) struct AsyncExchange<T> {
    exchange: Pin<Box<dyn Future<Output = T> + Send>>,
    on_client_left: OnClientLeft,
    record: Arc<Record>,
}

impl<T> AsyncExchange<T> {
    pub(super) fn new(
        record: Arc<Record>,
        on_client_left: OnClientLeft,
        exchange: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self {
            exchange: Box::pin(exchange),
            on_client_left,
            record,
        }
    }
}

impl<T> Future for AsyncExchange<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.exchange.as_mut().poll(cx)
    }
}

impl<T: Send + 'static> Carried for AsyncExchange<T> {
    fn on_client_left(&self) -> OnClientLeft {
        // Until all of it has left, the slot of a dropped exchange would be given back undrawn.
        match self.record.note(|facts| facts.sent.is_some()) {
            true => self.on_client_left,
            false => OnClientLeft::Finish,
        }
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn abandon(self) {}
}

/// Runs an exchange in the caller's own task. Dropping it before the first byte cancels the
/// exchange. Dropping it later closes the connection to the backend, or moves the exchange to a task that brings
/// it to its end.
pub(super) struct Carry<E: Carried> {
    /// Until the end.
    exchange: Option<E>,
}

impl<E: Carried> Carry<E> {
    pub(super) fn new(exchange: E) -> Self {
        Self {
            exchange: Some(exchange),
        }
    }
}

impl<E: Carried> Future for Carry<E> {
    type Output = E::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<E::Output> {
        let exchange = self.exchange.as_mut();
        let exchange = exchange.expect("an exchange is not polled after its end");
        let done = Pin::new(exchange).poll(cx);
        if done.is_ready() {
            self.exchange = None;
        }
        done
    }
}

impl<E: Carried> Drop for Carry<E> {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.take()
            && exchange.record().is_committed()
        {
            match exchange.on_client_left() {
                OnClientLeft::Close => {
                    note_closed(exchange.record());
                    exchange.abandon();
                }
                OnClientLeft::Finish => {
                    note_left(exchange.record());
                    spawn_to_end(async move {
                        drop(exchange.await);
                    });
                }
            }
        }
    }
}

/// Records that the client has left, unless the proxy gives the call up.
fn note_left(record: &Record) {
    record.note(|facts| facts.left |= facts.reason != Some(Reason::DrainTimeout));
}

/// Records that the client has left, and the backend's connection is closed for it.
pub(super) fn note_closed(record: &Record) {
    note_left(record);
    record.note(|facts| {
        facts.reason = facts.reason.or(Some(Reason::ClientLeft));
    });
}

/// Gives the slot of a call back whose connection to the backend was closed, once the backend has surely noticed it.
pub(super) fn finish_after_close<S: Slot>(slot: S, after_close: Duration) {
    if after_close.is_zero() {
        slot.finish(Outcome::Failed);
        return;
    }
    spawn_to_end(async move {
        sleep(after_close).await;
        slot.finish(Outcome::Failed);
    });
}

/// Runs a future to its end in a task of its own. If the whole runtime goes down, no task can
/// continue it, and dropping it gives its slot back.
pub(super) fn spawn_to_end(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(work);
    }
}
