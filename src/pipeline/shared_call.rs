//! Identical reads share one call, which runs in a task of its own.

use std::sync::Arc;
use std::task::{Context, Waker};

use super::Pipeline;
use super::run::Clients;
use super::shared_turn::SharedClients;
use crate::admit::Ask;
use crate::call::{Message, Observe, Progress, Reason, Record, Refusal, Reply};
use crate::classify::Operation;
use crate::coalesce::{JoinOutcome, Key, SharedCall, SharedCallWaiter, SharedResult};
use crate::forward::Forward;

/// A client's part in a call that may be shared.
enum SharedRole {
    /// No part: an answer is kept.
    Answered(Box<Result<Reply, Refusal>>),
    /// The client's request is the one that is sent, and it gets the answer, whatever it is.
    First(SharedCallWaiter),
    /// The client's own request is kept, in case the answer is not for all.
    Other(SharedCallWaiter, Ask, Message),
    /// No part: there is no room.
    Alone(Ask, Message),
}

impl Pipeline {
    /// The key of a read that may be shared, and the observer of the call's end: a write makes
    /// answers old. Used only if any function is shared.
    pub(super) fn read_or_write(
        &self,
        message: &Message,
        operation: &Operation,
    ) -> (Option<Key>, Arc<dyn Observe>) {
        let observer = Arc::clone(&self.observer);
        let guest = operation.only_guest();
        if operation.may_change(message) {
            return (None, self.coalescer.write(guest, observer));
        }
        let (function, destination) = (&operation.function, operation.destination);
        let key = self
            .coalescer
            .key(function, destination, guest, message, operation.of_table);
        (key, observer)
    }

    /// Answers a read together with all identical ones.
    pub(super) fn share<'a, P: Clients>(
        &'a self,
        key: Key,
        ask: Ask,
        mut outgoing: Message,
        clients: &'a P,
        progress: &'a Progress,
        record: Arc<Record>,
    ) -> impl Future<Output = Result<Reply, Refusal>> + Send + 'a {
        let (deadline, class) = self.gate.patience(&ask);
        let part = match self.coalescer.join(key, deadline, class, &record) {
            JoinOutcome::Kept(reply) => SharedRole::Answered(Box::new(reply)),
            JoinOutcome::First(call, waiter) => {
                self.start(call, ask, outgoing);
                SharedRole::First(waiter)
            }
            JoinOutcome::Other(waiter) => {
                outgoing.compact();
                SharedRole::Other(waiter, ask, outgoing)
            }
            JoinOutcome::Alone => SharedRole::Alone(ask, outgoing),
        };
        // The future holds only what a waiting read needs.
        async move {
            let (ask, outgoing) = match part {
                SharedRole::Answered(reply) => return *reply,
                SharedRole::First(waiter) => match waiter.told(progress).await {
                    SharedResult::Answer(reply) => return reply,
                    SharedResult::Alone => {
                        let none = "a shared call came to no answer";
                        return Err(Refusal::new(Reason::Internal, none));
                    }
                },
                SharedRole::Other(waiter, ask, outgoing) => match waiter.told(progress).await {
                    SharedResult::Answer(reply) => return reply,
                    SharedResult::Alone => (ask, outgoing),
                },
                SharedRole::Alone(ask, outgoing) => (ask, outgoing),
            };
            Box::pin(self.run(ask, outgoing, clients, &record)).await
        }
    }

    /// Runs a shared call in its own task.
    fn start(&self, call: SharedCall, ask: Ask, outgoing: Message) {
        let clients = SharedClients::new(call, self.gate.clone(), ask.clone());
        let mut task = Box::pin(self.clone().run_shared(clients, ask, outgoing));
        // Polled once at once, like the call of one client. So a call that need not wait is past
        // the gate before its client's half-close is checked.
        let mut unwoken = Context::from_waker(Waker::noop());
        if task.as_mut().poll(&mut unwoken).is_pending() {
            tokio::spawn(self.wakers.watch(task));
        }
    }

    /// No async function, because that keeps its arguments twice.
    fn run_shared(
        self,
        clients: SharedClients,
        ask: Ask,
        outgoing: Message,
    ) -> impl Future<Output = ()> + Send {
        let on_client_left = self.forwarder.on_client_left(&outgoing);
        async move {
            let call = &clients.call;
            let record = call.record();
            let reply = tokio::select! {
                biased;
                // Dropping an unsent call cancels it.
                () = call.abandoned(on_client_left) => return,
                reply = self.run(ask, outgoing, &clients, record) => reply,
            };
            let reply = reply.inspect_err(|refusal| record.refuse(refusal));
            clients.call.end(reply);
        }
    }
}
