//! A call from its question to the gate until its reply: it waits for its turn, then it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Pipeline;
use crate::admit::{Ask, Asked, Permit, Waiting};
use crate::call::{Progress, Reason, Record, Refusal};
use crate::forward::Forward;

/// The clients of a call: one, or all that share it.
pub(super) trait Party: Sync {
    /// A wait for a turn.
    type Turn<'a>: Future<Output = Result<Permit, Refusal>> + Send + Unpin
    where
        Self: 'a;

    /// The call is past the gate.
    fn admit(&self);
    /// The call is back in the queue.
    fn wait(&self);
    /// Waits for the call's turn.
    fn turn(&self, waiting: Waiting) -> Self::Turn<'_>;
}

/// The client itself watches its connection.
impl Party for Progress {
    type Turn<'a> = Waiting;

    fn admit(&self) {
        Self::admit(self);
    }

    fn wait(&self) {
        Self::wait(self);
    }

    fn turn(&self, waiting: Waiting) -> Waiting {
        waiting
    }
}

/// A call that has asked the gate. It holds either a waiting call or a running one, and never both.
pub(super) struct Run<'a, P: Party, O: Forward> {
    pipeline: &'a Pipeline,
    party: &'a P,
    record: &'a Arc<Record>,
    /// What is sent once more if the backend closes without a reply.
    again: Option<Box<(Ask, O)>>,
    step: Step<'a, P, O>,
}

/// Where a call is.
enum Step<'a, P: Party + 'a, O: Forward> {
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

impl<'a, P: Party, O: Forward> Run<'a, P, O> {
    pub(super) fn new(
        pipeline: &'a Pipeline,
        asked: Asked,
        mut outgoing: O,
        again: Option<Box<(Ask, O)>>,
        party: &'a P,
        record: &'a Arc<Record>,
    ) -> Self {
        let mut run = Self {
            pipeline,
            party,
            record,
            again,
            step: Step::Ended,
        };
        match asked {
            Asked::Answered(admitted) => run.told(outgoing, admitted),
            Asked::Waits(turn) => {
                outgoing.compact();
                run.step = Step::Waits(outgoing, party.turn(turn));
            }
        }
        run
    }

    /// The gate has answered.
    fn told(&mut self, outgoing: O, admitted: Result<Permit, Refusal>) {
        self.step = match admitted {
            Ok(permit) => {
                self.party.admit();
                let record = Arc::clone(self.record);
                Step::Sends(outgoing.send(&self.pipeline.forwarder, permit, record))
            }
            Err(refusal) => Step::Refused(refusal),
        };
    }
}

impl<P: Party, O: Forward> Future for Run<'_, P, O> {
    type Output = Result<O::Answer, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let &mut Self {
            pipeline,
            party,
            record,
            ..
        } = this;
        loop {
            let reply = match &mut this.step {
                Step::Waits(_, turn) => {
                    let admitted = ready!(Pin::new(turn).poll(cx));
                    if let Step::Waits(outgoing, _) = this.take() {
                        this.told(outgoing, admitted);
                    }
                    continue;
                }
                Step::Sends(sending) => match ready!(Pin::new(sending).poll(cx)) {
                    Ok(reply) => reply,
                    Err(unsent) => {
                        let trying = pipeline.try_again(unsent, party, record);
                        this.step = Step::Boxed(Box::pin(trying));
                        continue;
                    }
                },
                Step::Boxed(answer) => ready!(answer.as_mut().poll(cx)),
                Step::Refused(_) | Step::Ended => match this.take() {
                    Step::Refused(refusal) => Err(refusal),
                    _ => unreachable!("a call is not polled after its end"),
                },
            };
            match (this.again.take(), reply) {
                (Some(again), Err(refusal)) if refusal.reason == Reason::BackendClosed => {
                    let sending = pipeline.send_again(*again, refusal, party, record);
                    this.step = Step::Boxed(Box::pin(sending));
                }
                (_, reply) => {
                    this.step = Step::Ended;
                    return Poll::Ready(reply);
                }
            }
        }
    }
}

impl<'a, P: Party, O: Forward> Run<'a, P, O> {
    fn take(&mut self) -> Step<'a, P, O> {
        std::mem::replace(&mut self.step, Step::Ended)
    }
}
