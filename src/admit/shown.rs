//! The gate as operators see it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_limits::policy::{LimitRule, Scope};
use tidegate_limits::scheduler::{Delays, LimitNow, Prediction, QueueNow, WaitReport};
use tidegate_limits::{Scheduler, Timestamp};

use super::Gate;
use super::decision::{CallOwner, WaitingCall};
use super::lock::GateState;
use super::metrics::GateNow;
use super::observe::ObservedNow;
use super::servers::{ServerNow, is_unbounded};
use crate::call::job::JobKey;
use crate::call::{Destination, LooksExceeded, QueueStanding, Record};

/// A waiting call, at one moment.
#[derive(Clone, Debug)]
pub struct QueuedCallNow {
    /// The moment.
    pub at: Timestamp,
    /// The cause of the wait: the limit, bucket or quota.
    pub held_by: Option<Arc<str>>,
    /// The delays of the call since it joined the queue.
    pub delays: Delays,
    /// When it starts.
    pub foreseen: Prediction,
    /// The calls of processes before that hold slots of that limit.
    pub carried: Option<CarriedSlots>,
    /// The jobs that hold slots of that limit.
    pub jobs: Vec<JobKey>,
}

/// Where a waiting call stands, and its record if the call has not just ended.
pub type FoundStanding = (QueueStanding, Option<Arc<Record>>);

/// Slots of a limit that calls of processes before hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedSlots {
    /// Their number, at least one.
    pub count: u64,
    /// Until when the last one is held.
    pub until: Timestamp,
}

impl Gate {
    /// Whether a backend accepts connections, as far as calls have shown.
    #[must_use]
    pub fn is_up(&self, backend: Destination) -> bool {
        self.lock.lock().is_up(backend)
    }

    /// The servers of the HTTP backend, if it has several.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerNow> {
        self.lock.lock().servers_now()
    }

    /// The current state of every limit that holds calls. The backends' health is elsewhere.
    #[must_use]
    pub fn limits_now(&self) -> (Vec<(LimitRule, LimitNow)>, Timestamp) {
        self.lock.look(|state, now| (state.limits_now(now), now))
    }

    /// The calls that limits would hold which only observe; `None` if none observes.
    #[must_use]
    pub fn observed_now(&self) -> Option<ObservedNow> {
        self.lock.change_shadow(GateState::observed_now)
    }

    /// No limit observes any more, as at the end of the process. Each call that would still wait gets
    /// its last line.
    pub fn end_observing(&self) {
        self.lock
            .change_shadow(|state, now| state.observer.end(now));
    }

    /// The current state of the queue. Looks at every waiting call.
    #[must_use]
    pub fn queue_now(&self) -> QueueNow {
        self.lock.look(|state, now| state.calls().queue_now(now))
    }

    /// A snapshot for metrics. Looks at every waiting call.
    #[must_use]
    pub fn now(&self) -> GateNow {
        self.lock.look(|state, now| GateNow {
            acting: state.acting_now(now),
            limits: state.limits_now(now),
            queue: state.calls().queue_now(now),
            outstanding: state.calls().in_flight(),
            outstanding_peak: state.peak,
            tickets: state.ticket_counts(now),
        })
    }

    /// The predictions for the waiting calls with these ids, one for each; `None` for a call that does not wait.
    /// And when the last of all waiting calls starts, if that is known. Looks at every waiting call.
    #[must_use]
    pub fn foreseen(&self, ids: &[u64]) -> (Vec<Option<Prediction>>, Option<Timestamp>) {
        self.lock.look(|state, now| {
            let reopens = state.acts.pause().map(|pause| pause.ends);
            let calls = state.calls();
            let mut tickets = vec![None; ids.len()];
            for (ticket, waiter) in calls.tickets() {
                if let Some(place) = ids.iter().position(|&id| id == waiter.id) {
                    tickets[place] = Some(ticket);
                }
            }
            let known: Vec<_> = tickets.iter().flatten().copied().collect();
            let mut foreseen = calls.foreseen(now, &known, reopens).into_iter();
            let of = tickets
                .iter()
                .map(|ticket| ticket.and_then(|_| foreseen.next().flatten()));
            (of.collect(), calls.all_started(now, reopens))
        })
    }

    /// The call with this id, if it waits. Looks at every waiting call.
    #[must_use]
    pub fn waiting_now(&self, id: u64) -> Option<QueuedCallNow> {
        self.lock.look(|state, now| {
            let reopens = state.acts.pause().map(|pause| pause.ends);
            state.lanes.iter().find_map(|lane| {
                let (ticket, _) = lane.tickets().find(|(_, waiter)| waiter.id == id)?;
                let WaitReport {
                    held_by, delays, ..
                } = lane.waited(now, ticket)?;
                let carried = held_by.as_ref().and_then(|limit| {
                    let held = state.owners.iter();
                    let held = held.filter(|&(&place, _)| lane.holds_slot(place, limit));
                    let untils = held.filter_map(|(_, owner)| match owner {
                        CallOwner::Before(hold) => Some(hold.until),
                        CallOwner::Peer(_) => None,
                    });
                    Some(CarriedSlots {
                        count: untils.clone().count() as u64,
                        until: untils.max()?,
                    })
                });
                let of_jobs = held_by.iter().flat_map(|limit| {
                    let held = state.jobs.iter();
                    held.filter(|&(&place, _)| lane.holds_slot(place, limit))
                });
                Some(QueuedCallNow {
                    at: now,
                    carried,
                    jobs: of_jobs.map(|(_, job)| JobKey(job.key)).collect(),
                    held_by,
                    delays,
                    foreseen: lane.foreseen(now, &[ticket], reopens).pop()??,
                })
            })
        })
    }

    /// The place of the call with this id, and its record; `None` if it does not wait. Looks at every waiting call.
    ///
    /// # Errors
    /// If this second has had its looks.
    pub fn place(&self, id: u64) -> Result<Option<FoundStanding>, LooksExceeded> {
        let looks = &self.lock.looks;
        looks.look(self.lock.clock.now())?;
        let error = looks.error();
        Ok(self.lock.look(|state, now| {
            let reopens = state.acts.pause().map(|pause| pause.ends);
            state.lanes.iter().find_map(|lane| {
                let (ticket, waiter) = lane.tickets().find(|(_, waiter)| waiter.id == id)?;
                let foreseen = lane.foreseen(now, &[ticket], reopens).pop()??;
                let place = QueueStanding {
                    ahead: foreseen.ahead,
                    wait: foreseen.starts.map(|starts| starts.since(now)),
                    error,
                };
                Some((place, waiter.record.upgrade()))
            })
        }))
    }

    /// Calls that have left for a backend since the start.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.lock.sent.load(Ordering::Relaxed)
    }

    /// How long the oldest waiting call has waited; zero without one. Looks at every waiting call.
    #[must_use]
    pub fn oldest_waits(&self) -> Duration {
        self.lock.look(|state, now| {
            let oldest = state.calls().oldest();
            oldest.map_or(Duration::ZERO, |arrived| now.since(arrived))
        })
    }

    /// Calls past the gate and waiting calls, also at the door, over both lanes.
    #[must_use]
    pub fn busy(&self) -> (usize, usize) {
        let state = self.lock.lock();
        let lanes = state.lanes.iter();
        let waiting = |lane: &Scheduler<WaitingCall>| lane.waiting() + lane.at_door();
        (
            lanes.clone().map(Scheduler::in_flight).sum(),
            lanes.map(waiting).sum(),
        )
    }
}

impl GateState {
    /// The current state of every limit that holds calls. The backends' health is elsewhere.
    fn limits_now(&self, now: Timestamp) -> Vec<(LimitRule, LimitNow)> {
        let lanes = self.lanes.iter();
        let limits = lanes.flat_map(|lane| lane.rules().cloned().zip(lane.limits_now(now)));
        let is_shown = |rule: &LimitRule| {
            !matches!(rule.scope, Scope::Backend(_))
                && !is_unbounded(rule)
                && !self.observer.has(&rule.name)
        };
        limits.filter(|(rule, _)| is_shown(rule)).collect()
    }

    /// The calls that limits would hold which only observe, at `now`.
    fn observed_now(&mut self, now: Timestamp) -> Option<ObservedNow> {
        self.observer.advance(now);
        self.observer.now()
    }
}
