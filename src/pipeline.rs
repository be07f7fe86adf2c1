//! THE STORY: a request is classified, charged to whoever asks, waits for its turn, is sent,
//! and its reply goes back.

use std::sync::Arc;

use crate::admit::{Ask, Asked, Gate, Permit};
use crate::call::{
    Claim, Identity, Message, Observe, Origin, Progress, Reason, Record, Refusal, Rejection, Reply,
    Request, Serve, Verdict,
};
use crate::callers::{Callers, Meets};
use crate::classify::{Classifier, Operation};
use crate::clock::Clock;
use crate::forward::{Forwarder, Outgoing, Unsent};
use crate::live::Live;

/// The stages in their order.
#[derive(Clone)]
pub struct Pipeline {
    /// Says what a request asks.
    pub classifier: Arc<Live<Classifier>>,
    /// Says who asks, and what is charged.
    pub callers: Callers,
    /// Says when it may go.
    pub gate: Gate,
    /// Sends it.
    pub forwarder: Forwarder,
    /// Hears how it ended.
    pub observer: Arc<dyn Observe>,
    /// Says what time it is.
    pub clock: Clock,
}

impl Serve for Pipeline {
    fn serve<'a>(
        &'a self,
        request: Request,
        progress: &'a Progress,
    ) -> impl Future<Output = Reply> + Send + 'a {
        let operation = self.classifier.get().classify(&request);
        let Request { origin, message } = request;
        let claim = self.claim(&origin, &operation);
        let ask = Ask::new(&operation.function, operation.destination, origin.arrived);
        let ask = Ask {
            limited: operation.limited,
            ..ask.claimed(&claim)
        };
        let record = self.open_record(origin, &message, &operation);
        record.note(|facts| facts.claim = Some(claim));
        let outgoing = outgoing(message, &operation);
        // Only what a waiting call needs goes into the future.
        async move {
            let reply = match outgoing {
                Ok(outgoing) => self.run(ask, outgoing, progress, &record).await,
                Err(refusal) => Reply::Refused(refusal),
            };
            if let Reply::Refused(refusal) = &reply {
                write_down(&record, refusal);
            }
            self.tell_quota(progress, &record);
            reply
        }
    }

    fn refused(&self, origin: Origin, dialect: &'static str, refusal: &Refusal) {
        let nobody = Arc::from("none");
        let observer = Arc::clone(&self.observer);
        write_down(
            &Record::open(origin, dialect, nobody, None, observer),
            refusal,
        );
    }

    fn rejected(&self, identity: &Identity, rejection: Rejection) {
        self.observer.rejected(identity, rejection);
    }
}

impl Pipeline {
    /// Counts a call for whoever makes it.
    fn claim(&self, origin: &Origin, operation: &Operation) -> Claim {
        let meets = if operation.limited {
            Meets::Limits
        } else {
            Meets::NoLimits
        };
        let now = self.clock.now();
        self.callers
            .claim(now, &origin.identity, &operation.function, meets)
    }

    /// Where there are headers to say it in, says what the rate limit has left that a call met.
    fn tell_quota(&self, progress: &Progress, record: &Record) {
        let met = record.note(|facts| {
            let claim = facts.claim.as_ref().filter(|_| facts.dialect == "http")?;
            Some((claim.caller, claim.bucket()?))
        });
        if let Some((caller, bucket)) = met
            && let Some(quota) = self.gate.quota(bucket, caller)
        {
            progress.charge(quota);
        }
    }

    fn run<'a>(
        &'a self,
        ask: Ask,
        mut outgoing: Outgoing,
        progress: &'a Progress,
        record: &'a Arc<Record>,
    ) -> impl Future<Output = Reply> + Send + 'a {
        // Asked before the future is made, which so holds a call that waits or one that
        // runs, and never the question.
        let asked = self.gate.ask(ask, record);
        async move {
            let admitted = match asked {
                Asked::Answered(admitted) => admitted,
                Asked::Waits(turn) => {
                    if let Outgoing::Http(call) = &mut outgoing {
                        call.compact();
                    }
                    turn.await
                }
            };
            match admitted {
                // Boxed, so that a call that waits does not pay for what a running one needs.
                Ok(permit) => Box::pin(self.send(outgoing, permit, progress, record)).await,
                Err(refusal) => Reply::Refused(refusal),
            }
        }
    }

    async fn send(
        &self,
        mut outgoing: Outgoing,
        mut permit: Permit,
        progress: &Progress,
        record: &Arc<Record>,
    ) -> Reply {
        loop {
            progress.admit();
            let unsent = match self
                .forwarder
                .send(outgoing, permit, Arc::clone(record))
                .await
            {
                Ok(reply) => return reply,
                Err(unsent) => unsent,
            };
            // Not a byte has left, so the call may wait for another turn; no other is ever
            // sent twice.
            let Unsent {
                outgoing: kept,
                slot,
                cause,
            } = unsent;
            tracing::debug!(
                error = &cause as &dyn std::error::Error,
                "not sent, waits again"
            );
            outgoing = kept;
            progress.wait();
            permit = match self.gate.ask_again(slot, record).outcome().await {
                Ok(permit) => permit,
                Err(refusal) => return Reply::Refused(refusal),
            };
        }
    }

    fn open_record(&self, origin: Origin, message: &Message, operation: &Operation) -> Arc<Record> {
        let dialect = match message {
            Message::Socket(_) => "socket",
            Message::Http(_) => "http",
            Message::Tcp => "tcp",
        };
        Record::open(
            origin,
            dialect,
            Arc::clone(&operation.label),
            operation.target.clone(),
            Arc::clone(&self.observer),
        )
    }
}

/// What is to be sent, in the form its backend takes.
fn outgoing(message: Message, operation: &Operation) -> Result<Outgoing, Refusal> {
    use crate::call::Destination as To;
    match (message, operation.destination) {
        (Message::Socket(call), To::Socket) => Ok(Outgoing::Array(call)),
        (Message::Http(call), To::Socket) => call
            .array
            .map(Outgoing::Array)
            .ok_or_else(|| Refusal::no_backend("http")),
        (Message::Http(call), To::Http) => {
            // Which function it is stands in a body that was too large to read.
            if operation.is_unread {
                return Err(Refusal::new(
                    Reason::TooLarge,
                    "the body names the function, and is larger than buffer_bytes",
                ));
            }
            Ok(Outgoing::Http(call))
        }
        (Message::Tcp, To::Tcp) => Ok(Outgoing::Tcp),
        (Message::Socket(_), _) => Err(Refusal::no_backend("socket")),
        (Message::Http(_), _) => Err(Refusal::no_backend("http")),
        (Message::Tcp, _) => Err(Refusal::no_backend("tcp")),
    }
}

/// Writes down how a refused or failed call ended.
fn write_down(record: &Record, refusal: &Refusal) {
    record.note(|facts| {
        facts.verdict = match refusal.reason {
            Reason::DeadlinePassed | Reason::BackendUnreachable => Verdict::Expired,
            Reason::BackendClosed
            | Reason::BackendCut
            | Reason::BackendSlow
            | Reason::ReplyTooLarge
            | Reason::Internal => Verdict::Failed,
            _ => Verdict::Refused,
        };
        facts.reason = Some(refusal.reason);
        if refusal.limit.is_some() {
            facts.limit.clone_from(&refusal.limit);
        }
        facts.overall_rc = Some(i64::from(refusal.reason.overall_rc()));
        facts.status = (facts.dialect == "http").then(|| refusal.reason.status().as_u16());
    });
}
