//! A call from its question to the gate until its reply: it waits for its turn, then it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Pipeline;
use crate::admit::{Admission, Ask, Permit, QueuedCall};
use crate::call::{Progress, Reason, Record, Refusal};
use crate::forward::Forward;

/// The clients of a call: one, or all that share it.
pub(super) trait Clients: Sync {
    /// A wait for a turn.
    type Turn<'a>: Future<Output = Result<Permit, Refusal>> + Send + Unpin
    where
        Self: 'a;

    /// The call is past the gate.
    fn admit(&self);
    /// The call is back in the queue.
    fn wait(&self);
    /// Waits for the call's turn.
    fn turn(&self, waiting: QueuedCall) -> Self::Turn<'_>;
}

/// The client itself watches its connection.
impl Clients for Progress {
    type Turn<'a> = QueuedCall;

    fn admit(&self) {
        Self::admit(self);
    }

    fn wait(&self) {
        Self::wait(self);
    }

    fn turn(&self, waiting: QueuedCall) -> QueuedCall {
        waiting
    }
}

/// A call that has asked the gate. It holds either a waiting call or a running one, and never both.
pub(super) struct Run<'a, P: Clients, O: Forward> {
    pipeline: &'a Pipeline,
    clients: &'a P,
    record: &'a Arc<Record>,
    /// What is sent once more if the backend closes without a reply.
    again: Option<Box<(Ask, O)>>,
    state: RunState<'a, P, O>,
}

/// Where a call is.
enum RunState<'a, P: Clients + 'a, O: Forward> {
    /// In the queue.
    Waits(O, P::Turn<'a>),
    /// On its way.
    Sends(O::Sending<Permit>),
    /// Rare: it waits for another turn, or is sent once more. Boxed, so that no other call pays for it.
    Boxed(Pin<Box<dyn Future<Output = Result<O::Answer, Refusal>> + Send + 'a>>),
    /// It has no reply.
    Refused(Refusal),
    /// Its reply was returned.
    Ended,
}

impl<'a, P: Clients, O: Forward> Run<'a, P, O> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        asked: Admission,
        mut outgoing: O,
        again: Option<Box<(Ask, O)>>,
        clients: &'a P,
        record: &'a Arc<Record>,
    ) -> Self {
        let mut run = Self {
            pipeline,
            clients,
            record,
            again,
            state: RunState::Ended,
        };
        match asked {
            Admission::Decided(admitted) => run.proceed(outgoing, admitted),
            Admission::Queued(turn) => {
                outgoing.compact();
                run.state = RunState::Waits(outgoing, clients.turn(turn));
            }
        }
        run
    }

    /// The gate has answered.
    fn proceed(&mut self, outgoing: O, admitted: Result<Permit, Refusal>) {
        self.state = match admitted {
            Ok(permit) => {
                self.clients.admit();
                let record = Arc::clone(self.record);
                RunState::Sends(outgoing.send(&self.pipeline.forwarder, permit, record))
            }
            Err(refusal) => RunState::Refused(refusal),
        };
    }
}

impl<P: Clients, O: Forward> Future for Run<'_, P, O> {
    type Output = Result<O::Answer, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let &mut Self {
            pipeline,
            clients,
            record,
            ..
        } = this;
        loop {
            let reply = match &mut this.state {
                RunState::Waits(_, turn) => {
                    let admitted = ready!(Pin::new(turn).poll(cx));
                    if let RunState::Waits(outgoing, _) = this.take() {
                        this.proceed(outgoing, admitted);
                    }
                    continue;
                }
                RunState::Sends(sending) => match ready!(Pin::new(sending).poll(cx)) {
                    Ok(reply) => reply,
                    Err(unsent) => {
                        let trying = pipeline.try_again(unsent, clients, record);
                        this.state = RunState::Boxed(Box::pin(trying));
                        continue;
                    }
                },
                RunState::Boxed(answer) => ready!(answer.as_mut().poll(cx)),
                RunState::Refused(_) | RunState::Ended => match this.take() {
                    RunState::Refused(refusal) => Err(refusal),
                    _ => unreachable!("a call is not polled after its end"),
                },
            };
            match (this.again.take(), reply) {
                (Some(again), Err(refusal)) if refusal.reason == Reason::BackendClosed => {
                    let sending = pipeline.send_again(*again, refusal, clients, record);
                    this.state = RunState::Boxed(Box::pin(sending));
                }
                (_, reply) => {
                    this.state = RunState::Ended;
                    return Poll::Ready(reply);
                }
            }
        }
    }
}

impl<'a, P: Clients, O: Forward> Run<'a, P, O> {
    fn take(&mut self) -> RunState<'a, P, O> {
        std::mem::replace(&mut self.state, RunState::Ended)
    }
}
