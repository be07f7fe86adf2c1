//! The turn of a call that several clients share.
//!
//! The call runs as soon as one of its clients may run it alone, and that client pays
//! (docs/decisions/0037-who-pays-for-a-shared-call.md). So the call has a place in the queue for each
//! *payer*: each caller, bucket and quotas of its clients. The first place whose turn comes is used, and
//! the others leave the queue. A payer whose place is refused waits with the others.
//!
//! All places wait until the last deadline of the clients, in the most urgent of their classes. Each client
//! is refused at its own deadline.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tidegate_limits::Timestamp;
use tidegate_runtime::lock;
use tokio::task::yield_now;

use super::run::Clients;
use crate::admit::{Admission, Ask, Claimed, Gate, Permit, QueuedCall, Waits};
use crate::call::claim::Payer;
use crate::call::{Facts, NoObserver, Reason, Record, Refusal};
use crate::coalesce::{PayingClient, SharedCall};

/// The most places that one shared call has in the queue. Beyond it, the place that is predicted to start
/// last is given up.
const PLACES_MAX: usize = 4;

/// The clients of a shared call.
pub(super) struct SharedClients {
    pub(super) call: SharedCall,
    gate: Gate,
    /// How its first client asked.
    ask: Ask,
    /// The payer of the place with which it asked last.
    payer: Mutex<Payer>,
}

impl SharedClients {
    /// `ask` is that of its first client.
    pub(super) fn new(call: SharedCall, gate: Gate, ask: Ask) -> Self {
        let (clients, _) = call.clients(0);
        let first = clients.into_iter().next();
        let payer = first.map(|client| client.payer).unwrap_or_default();
        Self {
            call,
            gate,
            ask,
            payer: Mutex::new(payer),
        }
    }
}

impl Clients for SharedClients {
    type Turn<'a> = Pin<Box<dyn Future<Output = Result<Permit, Refusal>> + Send + 'a>>;

    fn admit(&self) {
        self.call.admit();
    }

    fn wait(&self) {
        self.call.wait();
    }

    fn turn(&self, waiting: QueuedCall) -> Self::Turn<'_> {
        Box::pin(turn_of_all(self, waiting))
    }
}

/// Waits until the turn of any payer comes. Without a place, returns the refusal of the last one.
async fn turn_of_all(clients: &SharedClients, waiting: QueuedCall) -> Result<Permit, Refusal> {
    let call = &clients.call;
    let mut places = QueuePlaces::new(clients, waiting);
    loop {
        let changed = call.changed();
        // Without clients, the task that runs this drops it, unless one joins first.
        let wanted = call.wanted();
        if let Some(wanted) = wanted {
            if let Some(permit) = places.follow_clients() {
                return Ok(permit);
            }
            if let Some(refusal) = places.refused.take_if(|_| places.all.is_empty()) {
                return Err(refusal);
            }
            for place in &places.all {
                place.waiting.wait_as(wanted.last_deadline, wanted.class);
            }
        }
        // The scheduler handles the last deadline, and asks once more at it.
        let due = wanted
            .filter(|wanted| wanted.first_deadline != wanted.last_deadline)
            .and_then(|wanted| wanted.first_deadline);
        tokio::select! {
            biased;
            (number, told) = poll_fn(|cx| places.poll(cx)) => match told {
                Ok(permit) => {
                    let permit = places.used(number, permit);
                    // The ends of its clients may have come together with its turn.
                    yield_now().await;
                    return Ok(permit);
                }
                Err(refusal) => {
                    places.all.swap_remove(number);
                    if places.all.is_empty() {
                        return Err(refusal);
                    }
                    places.next = 0;
                }
            },
            () = changed => {}
            () = call.sleep_until(due) => places.refuse_overdue(),
        }
    }
}

/// The places of a shared call in the queue.
struct QueuePlaces<'a> {
    clients: &'a SharedClients,
    /// The record of the call itself.
    record: Option<Arc<Record>>,
    /// Each with another payer.
    all: Vec<QueuePlace>,
    /// The number of the next client that has not been looked at.
    next: u64,
    /// The last refusal of a place.
    refused: Option<Refusal>,
}

struct QueuePlace {
    payer: Payer,
    waiting: QueuedCall,
}

impl<'a> QueuePlaces<'a> {
    fn new(clients: &'a SharedClients, waiting: QueuedCall) -> Self {
        Self {
            clients,
            record: waiting.record().map(Arc::clone),
            all: vec![QueuePlace {
                payer: lock(&clients.payer).clone(),
                waiting,
            }],
            next: 0,
            refused: None,
        }
    }

    /// Asks for a place for each new payer, and gives up places that no client would pay for any more.
    /// Returns a permit if one need not wait.
    fn follow_clients(&mut self) -> Option<Permit> {
        let call = &self.clients.call;
        if self.all.iter().any(|place| !call.has_payer(&place.payer)) {
            // There is room for payers that had no place.
            self.next = 0;
        }
        let (clients, next) = call.clients(self.next);
        self.next = next;
        let mut refused: Vec<Payer> = Vec::new();
        for PayingClient { payer, record } in clients {
            let has_place = self.all.iter().any(|place| place.payer == payer);
            if has_place || refused.contains(&payer) {
                continue;
            }
            match self.ask(&record) {
                Some(Admission::Queued(waiting)) => self.add(QueuePlace { payer, waiting }),
                Some(Admission::Decided(Ok(permit))) => return Some(self.paid(payer, permit)),
                Some(Admission::Decided(Err(refusal))) => {
                    self.refused = Some(refusal);
                    refused.push(payer);
                }
                None => {}
            }
        }
        self.all.retain(|place| call.has_payer(&place.payer));
        None
    }

    /// Asks for a place as the client of this record would; `None` if it draws nothing of its own.
    fn ask(&self, client: &Record) -> Option<Admission> {
        let Ask {
            function,
            destination,
            server,
            limited,
            role,
            target,
            ..
        } = self.clients.ask.clone();
        let (ask, facts) = client.note(|facts| {
            let claimed = Claimed::of(facts.claim.as_ref()?);
            let waits = match facts.handed_over {
                true => Waits::NoClient,
                false => Waits::Client,
            };
            let class = Arc::clone(&facts.class);
            let (origin, label) = (facts.origin.clone(), Arc::clone(&facts.function));
            let ask = Ask {
                function,
                destination,
                server,
                limited,
                arrived: origin.arrived,
                waits,
                claimed,
                class: Arc::clone(&class),
                role,
                target,
                foreign: None,
                place: None,
            };
            Some((ask, Facts::begun(origin, facts.dialect, label, class, None)))
        })?;
        // The call is reported in another record.
        let record = Record::of(facts, Arc::new(NoObserver));
        Some(self.clients.gate.ask(ask, &record))
    }

    fn add(&mut self, place: QueuePlace) {
        self.all.push(place);
        if self.all.len() > PLACES_MAX {
            let starts = |(_, place): &(usize, &QueuePlace)| {
                place.waiting.predicted_start().unwrap_or(Timestamp::MAX)
            };
            let last = self.all.iter().enumerate().max_by_key(starts);
            let (last, _) = last.expect("it has places");
            self.all.swap_remove(last);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Result<Permit, Refusal>)> {
        for (number, place) in self.all.iter_mut().enumerate() {
            if let Poll::Ready(told) = Pin::new(&mut place.waiting).poll(cx) {
                return Poll::Ready((number, told));
            }
        }
        Poll::Pending
    }

    /// The turn of this place has come.
    fn used(&mut self, number: usize, permit: Permit) -> Permit {
        let payer = self.all.swap_remove(number).payer;
        self.paid(payer, permit)
    }

    /// Takes the turn of this payer, so all other places leave the queue.
    fn paid(&mut self, payer: Payer, permit: Permit) -> Permit {
        // Before its turn is noted in the record of the call, which the first place may share.
        self.all.clear();
        self.clients.call.paid_by(&payer);
        *lock(&self.clients.payer) = payer;
        match &self.record {
            Some(record) => permit.reported_in(record),
            None => permit,
        }
    }

    /// Refuses the clients whose deadline has passed, each by its own limits. If a turn has come meanwhile, no
    /// client is refused.
    fn refuse_overdue(&self) {
        let refusals = self.all.iter().map(|place| place.waiting.refusal_now());
        let Some(refusals) = refusals.collect::<Option<Vec<Refusal>>>() else {
            return;
        };
        self.clients.call.refuse_overdue(|payer| {
            let own = self.all.iter().position(|place| place.payer == *payer);
            let refusal = refusals.get(own.unwrap_or(0));
            refusal.cloned().unwrap_or_else(|| {
                Refusal::new(Reason::DeadlinePassed, "waited as long as a call may")
            })
        });
    }
}
