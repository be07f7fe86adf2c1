//! The path of a request: it is classified, charged to its caller, waits for its turn, is sent,
//! and its reply goes back.
//!
//! Identical reads may share one such path, and a call may be handed over. Both then run in a
//! task of their own.

mod handed_over;
mod outgoing;
mod patience;
mod run;
mod sent_again;
mod shared_call;
mod shared_turn;
mod standing;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use self::outgoing::{meter, outgoing};
use self::run::{ClientState, Clients, Run, RunState};
use tidegate_limits::call::ServerChoice;
use tidegate_runtime::{Clock, Live};

use crate::admit::{Ask, Claimed, Gate, Waits};
use crate::call::claim::CostRule;
use crate::call::{
    Claim, Dialect, Facts, Head, Identity, LooksExceeded, Message, Observe, Origin, Progress,
    QueueStanding, Reason, Record, Refusal, Rejection, Reply, Request, RequestBody, Serve,
    TaskWakers, Trace, Tunnel,
};
use crate::callers::{Callers, Meets};
use crate::classify::{Classifier, Operation};
use crate::coalesce::Coalescer;
use crate::forward::{Forward, Forwarder, TcpConnection};
use crate::tasks::{Preference, Tasks};

/// The stages in their order.
#[derive(Clone)]
pub struct Pipeline {
    /// Classifies a request.
    pub classifier: Arc<Live<Classifier>>,
    /// Finds the caller and the charge.
    pub callers: Callers,
    /// Lets identical reads share a call.
    pub coalescer: Coalescer,
    /// Keeps calls that run without their clients.
    pub tasks: Tasks,
    /// Decides when the call may run.
    pub gate: Gate,
    /// Sends it.
    pub forwarder: Forwarder,
    /// Observes how the call ended.
    pub observer: Arc<dyn Observe>,
    /// The time.
    pub clock: Clock,
    /// Wakes the tasks of calls when they are given up.
    pub wakers: TaskWakers,
}

/// A request, until it is answered. Written by hand, because an async function has room for the call and for all
/// that it was made of, and 10,000 calls may wait.
struct ServedRequest<'a> {
    run: Run<'a, Progress, Message>,
    dialect: Dialect,
}

impl Future for ServedRequest<'_> {
    type Output = Result<Reply, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.run).poll(cx));
        let Run {
            pipeline,
            clients: progress,
            record,
            ..
        } = self.run;
        let reply = reply.map_err(|mut refusal| {
            record.refuse(&refusal);
            // That of this client, also if it shared the call of another one.
            refusal.call = Some(record.id());
            refusal.refused_as = record.note(|facts| facts.rare().refused_as.clone());
            refusal
        });
        if self.dialect == Dialect::Http {
            pipeline.tell_quota(progress, record);
        }
        Poll::Ready(reply)
    }
}

/// A connection that asks for a tunnel, until it has one.
struct TunnelCall<'a> {
    run: Run<'a, Progress, TcpConnection>,
}

impl Future for TunnelCall<'_> {
    type Output = Result<Tunnel, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let tunnel = ready!(Pin::new(&mut self.run).poll(cx));
        Poll::Ready(tunnel.inspect_err(|refusal| self.run.record.refuse(refusal)))
    }
}

impl Serve for Pipeline {
    fn serve<'a>(
        &'a self,
        request: Request,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Reply, Refusal>> + Send + 'a {
        let dialect = request.message.dialect();
        let (record, state) = match self.about_tasks(&request) {
            Some(found) => found,
            None => self.begin(request, progress),
        };
        let record = progress.begins(record);
        ServedRequest {
            run: Run::new(self, state, progress, record),
            dialect,
        }
    }

    fn tunnel<'a>(
        &'a self,
        origin: Origin,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Tunnel, Refusal>> + Send + 'a {
        let mut operation = self.classifier.get().tunnel(&origin);
        let names = (&*operation.function, &[][..]);
        let claim = self.claim(&origin.identity, names, operation.limited, None);
        let ask = ask(&operation, &origin, &claim, Waits::Client);
        let facts = facts(origin, Dialect::Tcp, &mut operation, claim);
        let record = Record::of(facts, Arc::clone(&self.observer));
        let record = progress.begins(record);
        TunnelCall {
            run: self.run(ask, TcpConnection, progress, record),
        }
    }

    fn refused(&self, origin: Origin, dialect: Dialect, refusal: &Refusal) -> u64 {
        let none: Arc<str> = Arc::from("none");
        let class = Arc::clone(&none);
        let observer = Arc::clone(&self.observer);
        let record = Record::open(origin, dialect, none, class, None, observer);
        record.refuse(refusal);
        record.id()
    }

    fn rejected(&self, identity: &Identity, rejection: Rejection) {
        self.observer.connection_rejected(identity, rejection);
    }

    fn standing(
        &self,
        call: u64,
        client: Option<&Identity>,
    ) -> Result<Option<QueueStanding>, LooksExceeded> {
        self.find_standing(call, client)
    }

    fn waiting(&self) -> usize {
        self.gate.busy().1
    }

    fn needs_body(&self, head: &Head) -> bool {
        let may_be_handed_over = self.tasks.is_on() && Preference::is_in(&head.headers);
        may_be_handed_over || self.classifier.look(|it| it.needs_body(head))
    }
}

impl Pipeline {
    /// Finds what a request asks, its caller, and how its answer begins.
    fn begin<'a>(
        &'a self,
        request: Request,
        progress: &'a Progress,
    ) -> (Arc<Record>, ClientState<'a>) {
        let mut operation = self.classifier.look(|it| it.classify(&request));
        let Request {
            mut origin,
            mut message,
        } = request;
        let mut named = operation.names.take();
        if let Some(named) = &mut named {
            named.name_caller(&mut origin);
        }
        let preference = self.preference(&mut message);
        let rule = named.as_ref().map(|it| it.cost_rule(&operation.class));
        let batch = named.as_ref().map_or(&[][..], |named| named.batch());
        let names = (&*operation.function, batch);
        let claim = self.claim(&origin.identity, names, operation.limited, rule);
        let waits = match preference {
            Some(_) => Waits::NoClient,
            None => Waits::Client,
        };
        let mut ask = ask(&operation, &origin, &claim, waits);
        if let Some(named) = &named {
            ask.claimed.cost = named.cost();
        }
        self.note_patience(&mut message, &mut ask, progress);
        self.choose_server(&mut ask, &message, &operation);
        let (key, observer) = if self.coalescer.is_on() && progress.patience().is_none() {
            self.read_or_write(&message, &operation)
        } else {
            (None, Arc::clone(&self.observer))
        };
        if key.is_some() {
            // The record of a shared call does not name it.
            ask.target.clone_from(&operation.target);
        }
        let mut facts = facts(origin, message.dialect(), &mut operation, claim);
        if let Some(refused_as) = named.as_mut().and_then(|named| named.refused_as.take()) {
            facts.rare_mut().refused_as = Some(refused_as);
        }
        if let Message::Http(call) = &message {
            note_trace(&call.head, &*observer, &mut facts);
        }
        facts.is_read = self.forwarder.retries_reads() && operation.is_read(&message);
        let record = Record::of(facts, observer);
        if let Message::Http(call) = &mut message {
            call.body.count_into(&record);
            call.on_client_left = operation.on_client_left;
            call.meter = meter(call, &mut operation, named.as_deref_mut());
        }
        let checked = named.map_or(Ok(()), |named| named.check());
        let outgoing = checked.and_then(|()| outgoing(message, &operation));
        let state = match (outgoing, key, preference) {
            (Ok(outgoing), None, None) => RunState::Asks(ask, outgoing),
            (Ok(outgoing), Some(key), None) => {
                let record = Arc::clone(&record);
                let sharing = self.share(key, ask, outgoing, progress, progress, record);
                RunState::Boxed(Box::pin(sharing))
            }
            // It must be here as a whole, because its client may not be there to send the rest.
            (Ok(Message::Http(call)), _, Some(_))
                if matches!(call.body, RequestBody::Streamed { .. }) =>
            {
                RunState::Refused(Refusal::new(
                    Reason::TooLarge,
                    "a call can be handed over only if its body is no larger than buffer_bytes",
                ))
            }
            (Ok(outgoing), key, Some(preference)) => {
                let record = Arc::clone(&record);
                RunState::Boxed(Box::pin(
                    self.hand_over(preference, key, ask, outgoing, record),
                ))
            }
            (Err(refusal), ..) => RunState::Refused(refusal),
        };
        (record, state)
    }

    /// Counts a call, or a batch of them, for its caller.
    fn claim(
        &self,
        identity: &Arc<Identity>,
        names: (&str, &[Box<str>]),
        limited: bool,
        rule: Option<CostRule>,
    ) -> Claim {
        let meets = match limited {
            true => Meets::Limits,
            false => Meets::NoLimits,
        };
        let (now, rule) = (self.clock.now(), rule.unwrap_or_default());
        self.callers.claim_batch(now, identity, names, meets, &rule)
    }

    /// Adds what is left of the rate limit that the call met, for the headers of its reply.
    fn tell_quota(&self, progress: &Progress, record: &Record) {
        let met = record.note(|facts| {
            let claim = facts.claim.as_ref()?;
            Some((claim.caller, claim.charged.bucket()?))
        });
        if let Some((caller, bucket)) = met
            && let Some(quota) = self.gate.quota(bucket, caller)
        {
            progress.charge(quota);
        }
    }

    /// Asks the gate when it is first polled.
    fn run<'a, C: Clients, O: Forward>(
        &'a self,
        ask: Ask,
        outgoing: O,
        clients: &'a C,
        record: &'a Arc<Record>,
    ) -> Run<'a, C, O> {
        Run::new(self, RunState::Asks(ask, outgoing), clients, record)
    }
}

/// The question of a call to the gate. The record of the call names its guest.
fn ask(operation: &Operation, origin: &Origin, claim: &Claim, waits: Waits) -> Ask {
    Ask {
        function: Arc::clone(&operation.function),
        destination: operation.destination,
        server: ServerChoice::ANY,
        limited: operation.limited,
        arrived: origin.arrived,
        waits,
        claimed: Claimed::of(claim),
        class: Arc::clone(&operation.class),
        role: operation.role,
        target: None,
        foreign: None,
        place: None,
    }
}

/// The facts of a call that arrives. Takes the target from the operation.
#[inline]
fn facts(origin: Origin, dialect: Dialect, operation: &mut Operation, claim: Claim) -> Facts {
    let (function, class) = (Arc::clone(&operation.label), Arc::clone(&operation.class));
    let mut facts = Facts::begun(origin, dialect, function, class, operation.target.take());
    facts.claim = Some(claim);
    facts.limited = operation.limited;
    facts
}

/// Notes the trace of a request, and the span of its client if that is kept.
#[inline]
fn note_trace(head: &Head, observer: &dyn Observe, facts: &mut Facts) {
    let trace = Trace::of(&head.headers);
    facts.trace = trace.map(|trace| trace.id);
    if let Some(parent) = trace.and_then(|trace| trace.sampled)
        && observer.keeps_spans()
    {
        facts.rare_mut().parent = Some(parent);
    }
}
