//! The facts of a call, from its first byte until it is reported.
//!
//! A [`Record`] is reported exactly once, when its last owner drops it. A call that is dropped anywhere
//! on its way still gets its access line, as aborted.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_callers::FinalCharge;
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::scheduler::{Delays, Outcome, QuotaSpent};
use tidegate_limits::{Timestamp, Tokens};
use tidegate_runtime::lock;

use super::job::JobFacts;
use super::refusal::RefusalTemplate;
use super::steps::{GateStep, ReplayFacts, StepKind};
use super::{Claim, Destination, Dialect, Observe, Origin, Reason, Refusal, Sign, TraceId, Would};

labels! {
    /// How a call ended.
    pub enum Verdict {
        /// Answered; no limit delayed it.
        Passed = "passed",
        /// Answered, after it had waited.
        Delayed = "delayed",
        /// Refused before it waited.
        Refused = "refused",
        /// Refused at its deadline.
        Expired = "expired",
        /// The client left first.
        Aborted = "aborted",
        /// Sent, and the backend failed.
        Failed = "failed",
    }
}

/// The facts that are reported when a call has ended.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The id of its access line.
    pub id: u64,
    /// Where and when it arrived.
    pub origin: Origin,
    /// The dialect of the client.
    pub dialect: Dialect,
    /// The function; a name from the table or the config, else `other`.
    pub function: Arc<str>,
    /// The final class; `none` if it was refused before it was a call.
    pub class: Arc<str>,
    /// The userid that it is about.
    pub target: Option<Box<str>>,
    /// How it ended.
    pub verdict: Verdict,
    /// Whether its client left while it ran.
    pub left: bool,
    /// Whether it got the answer of another call, and has drawn nothing itself.
    pub shared: bool,
    /// Whether it was handed over, and ran without its client.
    pub handed_over: bool,
    /// Whether it only reads, for `retry_reads`.
    pub is_read: bool,
    /// Whether it was sent once more after it had failed; the second send is reported separately.
    pub is_sent_again: bool,
    /// The trace id of its `traceparent`, if that is well formed.
    pub trace: Option<TraceId>,
    /// Whether it meets limits and takes a worker.
    pub limited: bool,
    /// Why, if it was refused or failed.
    pub reason: Option<Reason>,
    /// The limit that held it longest or refused it.
    pub limit: Option<Arc<str>>,
    /// The causes of the call's wait in the queue, for each time in it.
    pub delays: Delays,
    /// Where it is to go, once it has asked for its turn.
    pub destination: Option<Destination>,
    /// How it ended at the backend, if it was sent there.
    pub outcome: Option<Outcome>,
    /// The facts that only a replay needs, while `log.replay` is on, once it has asked for its turn.
    pub replay: Option<Box<ReplayFacts>>,
    /// When it was admitted.
    pub admitted: Option<Timestamp>,
    /// How far its predicted start was from the real one, in parts of its wait; `None` if none was predicted.
    pub start_error: Option<f32>,
    /// When its last byte left for the backend.
    pub sent: Option<Timestamp>,
    /// When the backend was done with it.
    pub answered: Option<Timestamp>,
    /// Bytes of the request that went to the backend.
    pub bytes_in: u64,
    /// Bytes of the reply.
    pub bytes_out: u64,
    /// The HTTP status of the reply, on HTTP.
    pub status: Option<u16>,
    /// The code of the answer, on the socket protocol.
    pub overall_rc: Option<i64>,
    /// The caller and the charge; `None` if it was not a request.
    pub claim: Option<Claim>,
    /// Facts that few calls have. 10,000 calls may wait, and most have no room for it.
    pub rare: Option<Box<RareFacts>>,
}

/// Facts of few calls.
#[derive(Clone, Debug, Default)]
pub struct RareFacts {
    /// The call whose second send this is, by its id.
    pub retry_of: Option<u64>,
    /// The call whose place in the queue this one has taken, by its id.
    pub place_of: Option<u64>,
    /// The name of the server to which it was sent, if its backend has several.
    pub server: Option<Arc<str>>,
    /// The final charge, if it was settled.
    pub settled: Option<FinalCharge>,
    /// The call's draws from quotas, unless they were given back.
    pub quotas: Vec<QuotaSpent>,
    /// The decisions of the limits that only observe; `None` if none does.
    pub would: Option<Would>,
    /// The span of its client, if that is sampled and spans are kept.
    pub parent: Option<NonZeroU64>,
    /// The wait of the clients of a shared call before another of them had its turn.
    pub earlier: Option<Delays>,
    /// The form of a refusal, if the route of the call has one.
    pub refused_as: Option<Box<RefusalTemplate>>,
    /// The signs of life that the client got while the call waited.
    pub signs: Option<(Sign, u64)>,
    /// The job that has held the slot of the call behind its answer.
    pub job: Option<JobFacts>,
    /// Interim replies of the backend that the client has not got.
    interim: Vec<u8>,
}

impl RareFacts {
    /// Counts a sign of life. A call has signs of one kind.
    pub fn note_sign(&mut self, sign: Sign) {
        let sent = self.signs.map_or(0, |(_, sent)| sent);
        self.signs = Some((sign, sent + 1));
    }

    /// Notes in the draws from quotas what the call has cost in the end.
    pub fn settle_quotas(&mut self, measured: Tokens) {
        for spent in &mut self.quotas {
            spent.settled = Some(measured.whole());
        }
    }
}

/// The rare facts of most calls.
static NOTHING: RareFacts = RareFacts {
    server: None,
    retry_of: None,
    place_of: None,
    settled: None,
    quotas: Vec::new(),
    would: None,
    parent: None,
    earlier: None,
    refused_as: None,
    signs: None,
    job: None,
    interim: Vec::new(),
};

impl Facts {
    /// The facts of a call that has just arrived. Until another verdict is set, it was aborted. Its id is set by
    /// its record.
    #[inline]
    #[must_use]
    pub fn begun(
        origin: Origin,
        dialect: Dialect,
        function: Arc<str>,
        class: Arc<str>,
        target: Option<Box<str>>,
    ) -> Self {
        Self {
            id: 0,
            origin,
            dialect,
            function,
            class,
            target,
            verdict: Verdict::Aborted,
            left: false,
            shared: false,
            handed_over: false,
            is_read: false,
            is_sent_again: false,
            trace: None,
            limited: true,
            reason: None,
            limit: None,
            delays: Delays::default(),
            destination: None,
            outcome: None,
            replay: None,
            admitted: None,
            sent: None,
            answered: None,
            bytes_in: 0,
            bytes_out: 0,
            status: None,
            overall_rc: None,
            claim: None,
            start_error: None,
            rare: None,
        }
    }

    /// Facts that few calls have.
    #[must_use]
    pub fn rare(&self) -> &RareFacts {
        self.rare.as_deref().unwrap_or(&NOTHING)
    }

    /// Facts that few calls have, to change them.
    pub fn rare_mut(&mut self) -> &mut RareFacts {
        self.rare.get_or_insert_default()
    }

    /// Sets what the limits that only observe would have done.
    pub fn set_would(&mut self, would: Option<Would>) {
        if would.is_some() || self.rare.is_some() {
            self.rare_mut().would = would;
        }
    }

    /// Notes that the call's draws from quotas were given back.
    pub fn draws_no_quota(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.quotas.clear();
        }
    }

    /// Copies the draws of this call.
    pub fn draws_as(&mut self, call: &Self) {
        let RareFacts {
            settled, quotas, ..
        } = call.rare();
        if settled.is_some() || !quotas.is_empty() || self.rare.is_some() {
            let own = self.rare_mut();
            own.settled = *settled;
            own.quotas.clone_from(quotas);
        }
    }

    /// Takes over the turn of another client of the same call, which paid for it.
    pub fn takes_turn_of(&mut self, payer: Self) {
        let Self {
            origin,
            class,
            limit,
            delays,
            destination,
            outcome,
            replay,
            admitted,
            start_error,
            rare,
            ..
        } = payer;
        let earlier = std::mem::replace(&mut self.delays, delays);
        if !earlier.is_empty() {
            self.rare_mut().earlier = Some(earlier);
        }
        if let Some(rare) = rare {
            let own = self.rare_mut();
            (own.quotas, own.would) = (rare.quotas, rare.would);
        } else {
            self.draws_no_quota();
            self.set_would(None);
        }
        (self.origin, self.class, self.limit) = (origin, class, limit);
        (self.destination, self.outcome, self.replay) = (destination, outcome, replay);
        (self.admitted, self.start_error) = (admitted, start_error);
    }

    /// Notes a step at the gate, for a replay.
    pub fn step(&mut self, at: Timestamp, what: StepKind) {
        if let Some(replay) = &mut self.replay {
            let at = at.as_nanos();
            replay.steps.push(GateStep { at, what });
        }
    }

    /// Whether it waited in the queue.
    #[must_use]
    pub fn waited(&self) -> bool {
        !self.delays.is_empty()
    }

    /// How long limits delayed it, if it was admitted.
    #[must_use]
    pub fn delayed_for(&self) -> Option<Duration> {
        let claim = self.claim.as_ref()?;
        self.limit.as_ref()?;
        Some(self.admitted?.since(claim.at))
    }

    /// The cost of the call: 0 if it got the answer of another call, else the final charge if it was settled, else
    /// the estimate.
    #[must_use]
    pub fn cost(&self) -> Option<TokenCount> {
        let estimated = self.claim.as_ref()?.cost;
        if self.shared {
            return Some(TokenCount::ZERO);
        }
        Some(
            self.rare()
                .settled
                .map_or(estimated, |settled| settled.charged),
        )
    }

    /// Whether the backend reports that it did what was asked: by its code, or by the status of
    /// an answer without one.
    #[must_use]
    pub fn is_success(&self) -> bool {
        match self.overall_rc {
            Some(rc) => rc == 0,
            None => self.status.is_some_and(|status| status / 100 == 2),
        }
    }

    /// How long the backend took, if it was sent and the backend is done with it.
    #[must_use]
    pub fn service(&self) -> Option<Duration> {
        Some(self.answered?.since(self.sent?))
    }
}

/// The facts of one call while it is under way. They are reported when it is dropped.
pub struct Record {
    facts: Mutex<Facts>,
    /// An interim reply is here.
    has_interim: AtomicBool,
    /// A byte of the call has left for the backend.
    is_committed: AtomicBool,
    observer: Arc<dyn Observe>,
}

impl Record {
    /// Opens the record of a call that has just arrived. Until another verdict is set, it was
    /// aborted.
    #[must_use]
    pub fn open(
        origin: Origin,
        dialect: Dialect,
        function: Arc<str>,
        class: Arc<str>,
        target: Option<Box<str>>,
        observer: Arc<dyn Observe>,
    ) -> Arc<Self> {
        Self::of(
            Facts::begun(origin, dialect, function, class, target),
            observer,
        )
    }

    /// A record of the facts that are known already.
    // Inlined, because the facts of a call are large, and are then moved once.
    #[inline]
    #[must_use]
    pub fn of(mut facts: Facts, observer: Arc<dyn Observe>) -> Arc<Self> {
        let id = observer.next_id();
        facts.id = id;
        let record = Arc::new(Self {
            facts: Mutex::new(facts),
            has_interim: AtomicBool::new(false),
            is_committed: AtomicBool::new(false),
            observer,
        });
        record.observer.call_began(id, Arc::downgrade(&record));
        record
    }

    /// The record of the same call, sent once more: a departure of its own, with its own report.
    /// The end of this one does not change.
    #[must_use]
    pub fn sent_again(&self) -> Arc<Self> {
        let first = self.note(|facts| {
            facts.is_sent_again = true;
            facts.clone()
        });
        let parent = first.rare().parent;
        let Facts {
            origin,
            dialect,
            function,
            class,
            target,
            ..
        } = first;
        let second = Facts {
            trace: first.trace,
            is_read: first.is_read,
            limited: first.limited,
            handed_over: first.handed_over,
            rare: Some(Box::new(RareFacts {
                retry_of: Some(first.id),
                parent,
                ..RareFacts::default()
            })),
            ..Facts::begun(origin, dialect, function, class, target)
        };
        Self::of(second, Arc::clone(&self.observer))
    }

    /// Records how a refused or failed call ended.
    pub fn refuse(&self, refusal: &Refusal) {
        self.note(|facts| {
            // The current facts are those of its second send. A call whose client has left stays
            // aborted, even if a client that closed only one half reads the refusal.
            if facts.is_sent_again || facts.left {
                return;
            }
            facts.verdict = match refusal.reason {
                Reason::DeadlinePassed | Reason::BackendUnreachable => Verdict::Expired,
                Reason::BackendClosed
                | Reason::BackendCut
                | Reason::BackendSlow
                | Reason::ReplyTooLarge
                | Reason::DrainTimeout
                | Reason::Internal => Verdict::Failed,
                // After the handshake it counts as sent.
                Reason::BackendTls if facts.sent.is_some() => Verdict::Failed,
                _ => Verdict::Refused,
            };
            facts.reason = Some(refusal.reason);
            if refusal.limit.is_some() {
                facts.limit.clone_from(&refusal.limit);
            }
            match facts.dialect {
                Dialect::Http => facts.status = Some(refusal.reason.status().as_u16()),
                Dialect::Socket => {
                    facts.overall_rc = Some(i64::from(refusal.reason.overall_rc()));
                }
                Dialect::Tcp => {}
            }
        });
    }

    /// Keeps an interim reply of the backend for the client.
    pub fn pass_interim(&self, reply: &[u8]) {
        self.note(|facts| facts.rare_mut().interim.extend_from_slice(reply));
        self.has_interim.store(true, Ordering::Release);
    }

    /// A byte of the call leaves for the backend: from now on it may run there.
    pub fn commit(&self) {
        self.is_committed.store(true, Ordering::Relaxed);
    }

    /// Whether a byte of the call has left for the backend.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        self.is_committed.load(Ordering::Relaxed)
    }

    /// Interim replies that came since the last call of this.
    pub fn take_interim(&self) -> Option<Vec<u8>> {
        if !self.has_interim.load(Ordering::Relaxed) {
            return None;
        }
        self.has_interim.store(false, Ordering::Relaxed);
        Some(self.note(|facts| std::mem::take(&mut facts.rare_mut().interim)))
    }

    /// Where the call and its connection to the backend are reported.
    #[must_use]
    pub fn observer(&self) -> &Arc<dyn Observe> {
        &self.observer
    }

    /// The id of its access line.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.note(|facts| facts.id)
    }

    /// Changes the facts.
    pub fn note<R>(&self, write: impl FnOnce(&mut Facts) -> R) -> R {
        write(&mut lock(&self.facts))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.observer.call_ended(facts);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10,000 calls may wait, each with its record, and 449 bytes take 512.
    #[test]
    fn a_record_fits_into_its_size_class() {
        let counts = 2 * size_of::<usize>();
        let bytes = size_of::<Record>() + counts;
        assert!(bytes <= 448, "{bytes}");
    }
}
