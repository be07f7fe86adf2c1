//! A shared call, as the task sees it in which it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use super::Shared;
use super::answer::{Answer, Given};
use super::key::Apart;
use super::store::{CallId, Ended, Seat, SeatId, Wanted};
use super::waiter::Told;
use crate::call::{Facts, Identity, Observe, Reason, Record, Refusal, Rejection, Reply, Verdict};

/// A call that clients wait for together. Dropped without an end, it leaves them without an
/// answer, which they are told.
#[must_use]
pub struct SharedCall {
    shared: Arc<Shared>,
    id: CallId,
    /// Until the call ends.
    record: Option<Arc<Record>>,
    told_in: Arc<ToldIn>,
    /// Somebody has come or gone.
    changed: Arc<Notify>,
    admitted: watch::Sender<bool>,
    /// Which headers tell its clients' requests from others.
    apart: Apart,
}

impl SharedCall {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: CallId,
        first: &Record,
        changed: Arc<Notify>,
        admitted: watch::Sender<bool>,
        apart: Apart,
    ) -> Self {
        let told_in = Arc::new(ToldIn::default());
        let observer = Arc::clone(&told_in) as Arc<dyn Observe>;
        let record = first.note(|facts| {
            let origin = facts.origin.clone();
            let function = Arc::clone(&facts.function);
            let class = Arc::clone(&facts.class);
            Record::open(origin, facts.dialect, function, class, None, observer)
        });
        Self {
            shared,
            id,
            record: Some(record),
            told_in,
            changed,
            admitted,
            apart,
        }
    }

    /// The call's own record. It is told in that of one of those who wait, so what was sent
    /// once is told once.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        self.record
            .as_ref()
            .expect("a call has a record until it ends")
    }

    /// The call is past the gate.
    pub fn admit(&self) {
        self.admitted.send_replace(true);
    }

    /// The call is back in the queue: it could not be sent.
    pub fn wait(&self) {
        self.admitted.send_replace(false);
    }

    /// Ready when somebody comes or goes from now on.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// What those who wait want of the call; `None` if nobody does.
    #[must_use]
    pub fn wanted(&self) -> Option<Wanted> {
        self.shared.lock().wanted(self.id)
    }

    /// Sleeps until then; `None` for ever.
    pub async fn sleep_until(&self, at: Option<Timestamp>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.shared.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// Refuses those whose deadline has passed; the others wait on.
    pub fn refuse_overdue(&self, refusal: &Refusal) {
        let overdue = {
            let mut store = self.shared.lock();
            let now = self.shared.clock.now();
            store.overdue(self.id, now)
        };
        for seat in overdue {
            answer(seat, Reply::Refused(refusal.clone()));
        }
    }

    /// Ends when nobody waits for the call any more and it was not sent. From then on it
    /// cannot be joined, so it may be dropped.
    pub async fn abandoned(&self) {
        loop {
            let changed = self.changed();
            // What was sent runs to its end, as any call does; its answer may yet be wanted.
            let was_sent = self.record().note(|facts| facts.sent.is_some());
            if !was_sent {
                let ended = self.shared.lock().end_if_nobody_waits(self.id);
                if let Some(left) = ended {
                    self.told_in.set(left);
                    return;
                }
            }
            changed.await;
        }
    }

    /// Gives the reply to those who wait, and keeps it if it is good.
    pub fn end(mut self, reply: Reply) {
        let facts = self.record().note(|facts| facts.clone());
        let given = Given::of(reply, &self.apart);
        let good = match &given {
            Given::Shared(answer) => Some(answer).filter(|it| it.is_good(facts.overall_rc)),
            Given::Once(_) => None,
        };
        let now = self.shared.clock.now();
        let Ended { mut seats, left } = self.shared.lock().end(self.id, now, good);
        let mut alone = Vec::new();
        match &given {
            Given::Shared(Answer::Refused(refusal)) if is_of_a_deadline(refusal.reason) => {
                alone = take_those_with_time(&mut seats, now);
            }
            Given::Shared(_) => {}
            Given::Once(_) => {
                let first = seats.pop_first();
                alone = std::mem::take(&mut seats).into_values().collect();
                seats.extend(first);
            }
        }
        // The first of them tells of the call; if nobody is there any more, the last who was.
        let first = seats.first_key_value().map(|(_, seat)| &seat.record);
        self.told_in.set(first.map(Arc::clone).or(left));
        for seat in seats.values().skip(1) {
            seat.record.note(|own| share(&facts, own));
        }
        // Nobody else has it but a reply that is still to be read, which tells it at its end.
        self.record = None;
        let mut seats = seats.into_values();
        match given {
            Given::Shared(shared) => seats.for_each(|seat| answer(seat, shared.reply())),
            Given::Once(reply) => {
                if let Some(seat) = seats.next() {
                    answer(seat, reply);
                }
            }
        }
        for seat in alone {
            // One that has just left needs to be told nothing.
            let _ = seat.tell.send(Told::Alone);
        }
    }
}

impl Drop for SharedCall {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        let ended = self.shared.lock().end(self.id, now, None);
        // Not under the lock: records tell their observers.
        drop(ended);
    }
}

fn answer(seat: Seat, reply: Reply) {
    // One that has just left needs no answer.
    let _ = seat.tell.send(Told::Answer(reply));
}

/// Whether a call was refused because somebody's time is up, which says nothing about those
/// who have more of it.
fn is_of_a_deadline(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DeadlinePassed | Reason::DeadlineUnreachable | Reason::BackendUnreachable
    )
}

/// Those who came while the call was being refused: the first asked with his own deadline, of
/// whoever is left only those whose deadline has passed are meant.
fn take_those_with_time(seats: &mut BTreeMap<SeatId, Seat>, now: Timestamp) -> Vec<Seat> {
    let has_time = |seat: &Seat| seat.deadline.is_none_or(|deadline| deadline > now);
    let (with_time, refused) = std::mem::take(seats)
        .into_iter()
        .partition(|(number, seat)| *number != SeatId::FIRST && has_time(seat));
    *seats = refused;
    BTreeMap::into_values(with_time).collect()
}

/// In whose record a shared call is told, once that is known: it hears of the call's end.
#[derive(Default)]
struct ToldIn(Mutex<Option<Arc<Record>>>);

impl ToldIn {
    fn set(&self, record: Option<Arc<Record>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = record;
    }

    fn take(&self) -> Option<Arc<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Observe for ToldIn {
    fn ended(&self, facts: &Facts) {
        if let Some(record) = self.take() {
            record.note(|own| tell(facts, own));
        }
    }

    /// It is no connection's.
    fn rejected(&self, _: &Identity, _: Rejection) {}
}

/// Tells of a call in the record of one who waited for it.
fn tell(facts: &Facts, own: &mut Facts) {
    answered(facts, own);
    own.sent = facts.sent;
    own.settled = facts.settled;
    own.quotas.clone_from(&facts.quotas);
    own.bytes_in = facts.bytes_in;
    own.left |= facts.left;
    if own.left && matches!(own.verdict, Verdict::Passed | Verdict::Delayed) {
        own.verdict = Verdict::Aborted;
    }
}

/// Tells that somebody has shared the answer of a call.
fn share(facts: &Facts, own: &mut Facts) {
    answered(facts, own);
    own.shared = true;
}

/// What is told of everybody who gets the answer of a call.
fn answered(facts: &Facts, own: &mut Facts) {
    own.admitted = facts.admitted;
    own.answered = facts.answered;
    own.verdict = facts.verdict;
    own.reason = facts.reason;
    own.limit.clone_from(&facts.limit);
    // Who came later has waited less, and nobody knows how much less for each.
    let waited = facts.admitted.map(|at| at.since(own.origin.arrived));
    if waited.is_some_and(|waited| facts.delays.total() <= waited) {
        own.delays.clone_from(&facts.delays);
    }
    own.bytes_out = facts.bytes_out;
    own.status = facts.status;
    own.overall_rc = facts.overall_rc;
    // Whoever came when the call was past the gate was held up by nothing.
    if facts.admitted.is_some_and(|at| at <= own.origin.arrived) {
        own.limit = None;
        if own.verdict == Verdict::Delayed {
            own.verdict = Verdict::Passed;
        }
    }
}

/// Answers a read with what is kept, since so long, and tells so.
pub(super) fn kept(answer: &Answer, age: Duration, record: &Record) -> Reply {
    record.note(|own| {
        own.shared = true;
        own.verdict = Verdict::Passed;
        own.bytes_out = answer.body_len() as u64;
        match answer {
            Answer::Whole(_) => own.overall_rc = Some(0),
            Answer::Http { status, .. } => own.status = Some(status.as_u16()),
            Answer::Refused(_) => {}
        }
        answer.reply_aged(age, own.dialect == "http")
    })
}
