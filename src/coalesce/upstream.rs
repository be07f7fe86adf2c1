//! A shared call, from the view of its task.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::lock;
use tokio::sync::futures::Notified;

use super::CoalescerState;
use super::answer::{AnswerScope, is_good, reply_aged};
use super::key::KeyHeaders;
use super::store::{
    EndedCall, PayingClient, ReadDeadlines, Seat, SeatId, SharedResult, StartedCall,
};
use crate::call::claim::Payer;
use crate::call::{
    BufferedReply, Destination, Facts, Identity, Observe, OnClientLeft, Reason, Record, Refusal,
    Rejection, Reply, TlsCause, Verdict,
};

/// A call that several clients wait for. If it is dropped before its end, its clients get no
/// answer, and are refused.
#[must_use]
pub struct SharedCall {
    shared: Arc<CoalescerState>,
    begun: StartedCall,
    /// Until the call ends.
    record: Option<Arc<Record>>,
    observer: Arc<SharedObserver>,
    /// The headers that distinguish its clients' requests from others.
    apart: KeyHeaders,
}

impl SharedCall {
    pub(super) fn new(
        shared: Arc<CoalescerState>,
        begun: StartedCall,
        first: &Record,
        apart: KeyHeaders,
    ) -> Self {
        let shared_observer = Arc::new(SharedObserver {
            reported_in: Mutex::default(),
            observer: Arc::clone(first.observer()),
        });
        let observer = Arc::clone(&shared_observer) as Arc<dyn Observe>;
        let record = first.note(|facts| {
            let origin = facts.origin.clone();
            let function = Arc::clone(&facts.function);
            let class = Arc::clone(&facts.class);
            Record::open(origin, facts.dialect, function, class, None, observer)
        });
        Self {
            shared,
            begun,
            record: Some(record),
            observer: shared_observer,
            apart,
        }
    }

    /// The call's own record. It is reported in the record of one waiting read, so a call that was
    /// sent once is reported once.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        self.record
            .as_ref()
            .expect("a call has a record until it ends")
    }

    /// The call is past the gate.
    pub fn admit(&self) {
        self.begun.admit.send_replace(true);
    }

    /// The call is back in the queue: it could not be sent.
    pub fn wait(&self) {
        self.begun.admit.send_replace(false);
    }

    /// Ready at the next read that joins or leaves.
    pub fn changed(&self) -> Notified<'_> {
        self.begun.changed.notified()
    }

    /// The needs of the waiting reads; `None` if no read waits.
    #[must_use]
    pub fn wanted(&self) -> Option<ReadDeadlines> {
        lock(&self.shared.store).wanted(self.begun.id)
    }

    /// The waiting reads from the one with this number on, in the order of arrival, and the number of the
    /// next one to come.
    #[must_use]
    pub fn clients(&self, from: u64) -> (Vec<PayingClient>, u64) {
        lock(&self.shared.store).clients(self.begun.id, from)
    }

    /// Whether a read waits that would pay like this.
    #[must_use]
    pub fn has_payer(&self, payer: &Payer) -> bool {
        lock(&self.shared.store).has_payer(self.begun.id, payer)
    }

    /// The turn of the call has come, by the limits of this payer.
    pub fn paid_by(&self, payer: &Payer) {
        lock(&self.shared.store).paid_by(self.begun.id, payer);
    }

    /// Sleeps until then; without a moment, for ever.
    pub async fn sleep_until(&self, at: Option<Timestamp>) {
        match at {
            Some(at) => self.shared.clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Refuses the reads whose deadline has passed, each as its payer; the others continue to wait.
    pub fn refuse_overdue(&self, refusal: impl Fn(&Payer) -> Refusal) {
        let overdue = {
            let mut store = lock(&self.shared.store);
            let now = self.shared.clock.now();
            store.overdue(self.begun.id, now)
        };
        for seat in overdue {
            let refusal = refusal(&seat.payer);
            answer(seat, Err(refusal));
        }
    }

    /// Ends when no read waits for the call any more, and it was not sent or is closed when its clients leave. From
    /// then on it cannot be joined, so it may be dropped.
    pub async fn abandoned(&self, on_client_left: OnClientLeft) {
        loop {
            let changed = self.changed();
            // A call that was sent may run to its end; reads may still join it then.
            let was_sent = self.record().note(|facts| facts.sent.is_some());
            if !was_sent || on_client_left == OnClientLeft::Close {
                let ended = lock(&self.shared.store).end_if_unused(self.begun.id);
                if let Some(left) = ended {
                    self.observer.set(left);
                    return;
                }
            }
            changed.await;
        }
    }

    /// Gives the reply to the waiting reads, and keeps it if it is good.
    pub fn end(mut self, reply: Result<Reply, Refusal>) {
        let facts = self.record().note(|facts| facts.clone());
        let given = AnswerScope::of(reply, &self.apart);
        let good = match &given {
            AnswerScope::Shared(Ok(answer)) => {
                Some(answer).filter(|it| is_good(it, facts.overall_rc))
            }
            AnswerScope::Shared(Err(_)) | AnswerScope::Once(_) => None,
        };
        let now = self.shared.clock.now();
        let EndedCall {
            mut seats,
            paid_by,
            left,
        } = lock(&self.shared.store).end(self.begun.id, now, good);
        let mut alone = Vec::new();
        match &given {
            AnswerScope::Shared(Err(refusal)) if is_of_one_client(refusal.reason) => {
                alone = take_those_with_time(&mut seats, now);
            }
            AnswerScope::Shared(_) => {}
            AnswerScope::Once(_) => {
                let first = seats.pop_first();
                alone = std::mem::take(&mut seats).into_values().collect();
                seats.extend(first);
            }
        }
        // The call is reported in the record of the read that pays. If that has left, in that of the
        // first of the others, and if none is left, of the last one that left.
        let pays = paid_by.filter(|number| seats.contains_key(number));
        let pays = pays.or_else(|| seats.keys().next().copied());
        let record = pays.map(|number| Arc::clone(&seats[&number].record));
        self.observer.set(record.or(left));
        for (_, seat) in seats.iter().filter(|(number, _)| pays != Some(**number)) {
            seat.record.note(|own| share(&facts, own));
        }
        // Only a reply that is still streaming can hold it as well, and reports it at its end.
        self.record = None;
        let mut seats = seats.into_values();
        match given {
            AnswerScope::Shared(shared) => seats.for_each(|seat| {
                let reply = shared.as_ref().map(BufferedReply::reply);
                answer(seat, reply.map_err(Refusal::clone));
            }),
            AnswerScope::Once(reply) => {
                if let Some(seat) = seats.next() {
                    answer(seat, Ok(reply));
                }
            }
        }
        for seat in alone {
            // A read that has just left needs no report.
            let _ = seat.tell.send(SharedResult::Alone);
        }
    }
}

impl Drop for SharedCall {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        let ended = lock(&self.shared.store).end(self.begun.id, now, None);
        // Not under the lock, because records call their observers.
        drop(ended);
    }
}

fn answer(seat: Seat, reply: Result<Reply, Refusal>) {
    // A read that has just left needs no answer.
    let _ = seat.tell.send(SharedResult::Answer(reply));
}

/// Whether a call was refused because of one read's deadline or limits, which says nothing about the
/// reads with a later deadline or other limits.
fn is_of_one_client(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DeadlinePassed
            | Reason::DeadlineUnreachable
            | Reason::PredictedLate
            | Reason::BackendUnreachable
            | Reason::NeverPossible
            | Reason::RateLimited
            | Reason::QuotaStoreAway
            | Reason::QueueFull
    )
}

/// Reads that can still be served: the refusal was not theirs. The first gets it in any case, because
/// its request is gone. Of the others, it applies only to reads whose deadline has passed.
fn take_those_with_time(seats: &mut BTreeMap<SeatId, Seat>, now: Timestamp) -> Vec<Seat> {
    let has_time = |seat: &Seat| seat.deadline.is_none_or(|deadline| deadline > now);
    let (with_time, refused) = std::mem::take(seats)
        .into_iter()
        .partition(|(number, seat)| *number != SeatId::FIRST && has_time(seat));
    *seats = refused;
    BTreeMap::into_values(with_time).collect()
}

/// Observer of a shared call, which is reported in the record of a client.
struct SharedObserver {
    /// The record, once it is known.
    reported_in: Mutex<Option<Arc<Record>>>,
    /// Observer of the clients, for what happens to the connection to the backend.
    observer: Arc<dyn Observe>,
}

impl SharedObserver {
    fn set(&self, record: Option<Arc<Record>>) {
        *lock(&self.reported_in) = record;
    }
}

impl Observe for SharedObserver {
    /// The ids are those of the clients.
    fn next_id(&self) -> u64 {
        0
    }

    /// Each client was reported when it arrived.
    fn call_began(&self, _: u64, _: Weak<Record>) {}

    /// A read makes no kept answer old.
    fn backend_finished(&self) {}

    fn keeps_spans(&self) -> bool {
        false
    }

    fn call_ended(&self, facts: &Facts) {
        let record = lock(&self.reported_in).take();
        if let Some(record) = record {
            record.note(|own| tell(facts, own));
        }
    }

    fn lacked_resources(&self, backend: Destination, cause: &(dyn Error + 'static)) {
        self.observer.lacked_resources(backend, cause);
    }

    fn tls_failed(&self, backend: Destination, cause: TlsCause) {
        self.observer.tls_failed(backend, cause);
    }

    /// No client's connection belongs to the call.
    fn connection_rejected(&self, _: &Identity, _: Rejection) {}
}

/// Reports the call in the record of a waiting read.
fn tell(facts: &Facts, own: &mut Facts) {
    answered(facts, own);
    own.sent = facts.sent;
    own.draws_as(facts);
    own.bytes_in = facts.bytes_in;
    own.left |= facts.left;
    if own.left && matches!(own.verdict, Verdict::Passed | Verdict::Delayed) {
        own.verdict = Verdict::Aborted;
    }
}

/// Reports that a read got the answer of another call.
fn share(facts: &Facts, own: &mut Facts) {
    answered(facts, own);
    // Its own limits held it until the turn of another read came.
    if own.origin.arrived < facts.origin.arrived
        && own.admitted.is_some()
        && let Some(earlier) = &facts.rare().earlier
    {
        own.delays.clone_from(earlier);
        own.limit = earlier.longest().cloned();
        if own.verdict == Verdict::Passed {
            own.verdict = Verdict::Delayed;
        }
    }
    own.shared = true;
}

/// Fills in the facts of a read that gets the answer of a call.
fn answered(facts: &Facts, own: &mut Facts) {
    own.admitted = facts.admitted;
    own.answered = facts.answered;
    own.verdict = facts.verdict;
    own.reason = facts.reason;
    own.limit.clone_from(&facts.limit);
    // A read that arrived later has waited less; how much less is not known for each.
    let waited = facts.admitted.map(|at| at.since(own.origin.arrived));
    if waited.is_some_and(|waited| facts.delays.total() <= waited) {
        own.delays.clone_from(&facts.delays);
    }
    own.bytes_out = facts.bytes_out;
    own.status = facts.status;
    own.overall_rc = facts.overall_rc;
    // A read that arrived after the gate was delayed by nothing.
    if facts.admitted.is_some_and(|at| at <= own.origin.arrived) {
        own.limit = None;
        if own.verdict == Verdict::Delayed {
            own.verdict = Verdict::Passed;
        }
    }
}

/// Answers a read with a kept answer of the given age, and reports it.
pub(super) fn kept(
    answer: &BufferedReply,
    age: Duration,
    record: &Record,
) -> Result<Reply, Refusal> {
    record.note(|own| {
        own.shared = true;
        own.verdict = Verdict::Passed;
        own.bytes_out = answer.body.len() as u64;
        match &answer.head {
            None => own.overall_rc = Some(0),
            Some(head) => own.status = Some(head.status.as_u16()),
        }
        Ok(reply_aged(answer, age, own.dialect))
    })
}
