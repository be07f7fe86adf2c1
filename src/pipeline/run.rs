//! A call from its question to the gate until its reply: it waits for its turn, then it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Pipeline;
use super::patience::ClientTurn;
use crate::admit::{Admission, Ask, Permit, QueuedCall};
use crate::call::{Message, Progress, Reason, Record, Refusal};
use crate::forward::{Forward, UnsentCall};

/// The end of an exchange: the answer, a refusal, or the call if no byte of it left.
type ExchangeEnd<O> = Result<Result<<O as Forward>::Answer, Refusal>, UnsentCall<O, Permit>>;

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

/// A client whose connection the protocol watches.
impl Clients for Progress {
    type Turn<'a> = ClientTurn;

    fn admit(&self) {
        Self::admit(self);
    }

    fn wait(&self) {
        Self::wait(self);
    }

    fn turn(&self, waiting: QueuedCall) -> ClientTurn {
        ClientTurn::new(waiting, self)
    }
}

/// A call. It holds either a waiting call or a running one, and never both. Written by hand, because an async function
/// has room for the call and for all that it was made of, and 10,000 calls may wait.
pub(super) struct Run<'a, C: Clients, O: Forward> {
    pub(super) pipeline: &'a Pipeline,
    pub(super) clients: &'a C,
    pub(super) record: &'a Arc<Record>,
    /// The request that is sent once more if the backend closes without a reply.
    again: Option<Box<(Ask, O)>>,
    state: RunState<'a, C, O>,
}

/// The state of a call for its own client.
pub(super) type ClientState<'a> = RunState<'a, Progress, Message>;

/// The state of a call.
pub(super) enum RunState<'a, C: Clients + 'a, O: Forward> {
    /// The call has not asked the gate.
    Asks(Ask, O),
    /// In the queue.
    Waits(O, C::Turn<'a>),
    /// On its way.
    Sends(O::Sending<Permit>),
    /// Rare: it is shared, handed over or about a task, waits for another turn, or is sent once more. Boxed, so that
    /// no other call pays for it.
    Boxed(Pin<Box<dyn Future<Output = Result<O::Answer, Refusal>> + Send + 'a>>),
    /// The call gets this refusal and no reply.
    Refused(Refusal),
    /// The reply was returned.
    Ended,
}

impl Pipeline {
    /// Polls an exchange with the backend. When the time of a drain is over, the call is given up.
    pub(super) fn poll_sending<O: Forward>(
        &self,
        sending: &mut O::Sending<Permit>,
        record: &Record,
        cx: &mut Context<'_>,
    ) -> Poll<ExchangeEnd<O>> {
        let polled = Pin::new(sending).poll(cx);
        if polled.is_pending() && self.gate.gives_up() {
            return Poll::Ready(Ok(Err(given_up(record))));
        }
        polled
    }
}

/// The answer to a call whose exchange is given up. What may have begun at the backend is not called unsent.
#[cold]
fn given_up(record: &Record) -> Refusal {
    let refusal = match record.is_committed() {
        true => Refusal::new(
            Reason::DrainTimeout,
            "the proxy has stopped, and the call was at the backend, where it may still run",
        ),
        false => Refusal::draining(),
    };
    // Before the exchange is dropped, which says else that the client has left.
    record.refuse(&refusal);
    refusal
}

impl<'a, C: Clients, O: Forward> Run<'a, C, O> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        state: RunState<'a, C, O>,
        clients: &'a C,
        record: &'a Arc<Record>,
    ) -> Self {
        Self {
            pipeline,
            clients,
            record,
            again: None,
            state,
        }
    }

    /// Asks the gate.
    fn ask(&mut self, ask: Ask, mut outgoing: O) -> RunState<'a, C, O> {
        self.again = self.pipeline.again(&ask, &outgoing, self.record);
        match self.pipeline.gate.ask(ask, self.record) {
            Admission::Decided(admitted) => self.send(outgoing, admitted),
            Admission::Queued(turn) => {
                outgoing.compact();
                RunState::Waits(outgoing, self.clients.turn(turn))
            }
        }
    }

    /// Sends an admitted call.
    fn send(&self, outgoing: O, admitted: Result<Permit, Refusal>) -> RunState<'a, C, O> {
        match admitted {
            Ok(permit) => {
                self.clients.admit();
                let record = Arc::clone(self.record);
                RunState::Sends(outgoing.send(&self.pipeline.forwarder, permit, record))
            }
            Err(refusal) => RunState::Refused(refusal),
        }
    }

    fn take(&mut self) -> RunState<'a, C, O> {
        std::mem::replace(&mut self.state, RunState::Ended)
    }
}

impl<C: Clients, O: Forward> Future for Run<'_, C, O> {
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
                        this.state = this.send(outgoing, admitted);
                    }
                    continue;
                }
                RunState::Sends(sending) => {
                    match ready!(pipeline.poll_sending::<O>(sending, record, cx)) {
                        Ok(reply) => reply,
                        Err(unsent) => {
                            let trying = pipeline.try_again(unsent, clients, record);
                            this.state = RunState::Boxed(Box::pin(trying));
                            continue;
                        }
                    }
                }
                RunState::Boxed(answer) => ready!(answer.as_mut().poll(cx)),
                RunState::Asks(..) | RunState::Refused(_) | RunState::Ended => match this.take() {
                    RunState::Asks(ask, outgoing) => {
                        this.state = this.ask(ask, outgoing);
                        continue;
                    }
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
