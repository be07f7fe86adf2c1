//! Places in the queue of clients that have given up for a while, and will come back.
//!
//! A call whose client is about to give up is refused, and suspended in the scheduler. Its place is found again by the
//! digest of the call, also by a client that sends no ticket. Each call has one place.

use std::time::Duration;

use tidegate_ledger::PromisedPlace;
use tidegate_limits::{Call, Ticket, Timestamp};
use tidegate_runtime::Clock;
use tokio::sync::oneshot;

use super::Gate;
use super::decision::{Lane, WaitingCall};
use super::kept_places::{KeptPlace, PlaceFate, TicketCounts};
use super::lock::GateState;
use super::observe::CallEvent;
use super::permit::GateCall;
use super::shadow::CallEnd;
use crate::call::steps::StepKind;
use crate::call::ticket::{CallDigest, ClientPatience, PLACE_KEPT, TicketSecret};
use crate::call::{Reason, Refusal};

impl Gate {
    /// The secret of tickets.
    #[must_use]
    pub fn ticket_secret(&self) -> TicketSecret {
        self.lock.lock().kept_places.secret
    }
}

impl GateCall {
    /// Refuses this waiting call, and keeps its place for its client. `None` if its turn has come.
    pub(super) fn suspend(&self, ticket: Ticket, patience: &ClientPatience) -> Option<Refusal> {
        let clock = self.lock.clock;
        self.lock.change_in(self.lane, |state, now| {
            let lane = &state.lanes[self.lane as usize];
            let held = lane.refusal_now(now, ticket)?;
            let waited = lane.waited(now, ticket).unwrap_or_default();
            let reopens = state.acts.pause().map(|pause| pause.ends);
            let foreseen = lane.foreseen(now, &[ticket], reopens);
            let starts = foreseen.into_iter().flatten().find_map(|it| it.starts);
            let wait = starts.map_or(held.retry_after, |starts| starts.since(now));
            let service = state.usual_service(self.lane, ticket);
            let returns = patience.comes_back_after(wait, service);
            let until = now + returns + PLACE_KEPT;
            let fate = state.place_fate(patience);
            let step = match fate {
                PlaceFate::Kept => {
                    state.keep_place(self, ticket, patience.digest, until, now);
                    StepKind::Suspended(until.as_nanos())
                }
                PlaceFate::Taken | PlaceFate::GivenUp | PlaceFate::NotDecided => {
                    state.kept_places.counts.taken += u64::from(fate == PlaceFate::Taken);
                    state.note_left(self.lane, ticket);
                    state.lanes[self.lane as usize].cancel(now, ticket);
                    StepKind::Left
                }
            };
            let left = CallEvent::Ended(CallEnd::Left);
            let would = state.observe_call(now, self.shadowed, left);
            self.record.note(|facts| {
                facts.step(now, step);
                facts.delays.extend(waited.delays);
                facts.set_would(would);
            });
            let is_kept = fate == PlaceFate::Kept;
            let ticket = is_kept.then(|| {
                let until = clock.boot_time(until);
                let secret = state.kept_places.secret;
                secret.ticket(patience.digest, until).into_boxed_str()
            });
            // Without a place there is nothing to come back to at once.
            let least = match is_kept {
                true => Duration::ZERO,
                false => Duration::from_secs(1),
            };
            Some(Refusal {
                limit: held.limit,
                retry_after: Some(returns.max(least)),
                ticket,
                ..Refusal::new(Reason::ComeBack, fate.detail())
            })
        })
    }
}

impl GateState {
    /// How long most calls of the function of a waiting call take at the backend; zero if that is not known.
    pub(super) fn usual_service(&self, lane: Lane, ticket: Ticket) -> Duration {
        let call = self.lanes[lane as usize].waiting_call(ticket);
        let known = call.zip(self.ledger.as_ref());
        let usual = known.map_or(0, |(call, ledger)| ledger.usual_service_ms(&call.function));
        Duration::from_millis(usual.into())
    }

    /// Decides whether a call keeps its place whose client is about to give up.
    fn place_fate(&mut self, patience: &ClientPatience) -> PlaceFate {
        let place = self.kept_places.find(patience.digest);
        let is_taken = place.is_some_and(|place| {
            // The scheduler may have refused the call since.
            self.lanes[place.lane as usize].is_suspended(place.ticket)
        });
        if !patience.keeps_place() {
            PlaceFate::GivenUp
        } else if self.peer.is_some() || self.refuses_all {
            PlaceFate::NotDecided
        } else if is_taken {
            PlaceFate::Taken
        } else {
            PlaceFate::Kept
        }
    }

    /// Suspends a waiting call until this moment.
    fn keep_place(
        &mut self,
        call: &GateCall,
        ticket: Ticket,
        digest: CallDigest,
        until: Timestamp,
        now: Timestamp,
    ) {
        self.forget_lapsed(now);
        // One that is no longer in the queue.
        self.forget_place(digest);
        let lane = &mut self.lanes[call.lane as usize];
        let arrived = lane.waiting_call(ticket).map(|it| it.arrived);
        lane.suspend(now, ticket, until);
        let id = lane.payload_mut(ticket).map(|waiter| {
            // The client is no longer there to be informed.
            waiter.tell = Some(oneshot::channel().0);
            waiter.id
        });
        let place = KeptPlace {
            lane: call.lane,
            ticket,
            arrived: arrived.unwrap_or(now),
            since: now,
            until,
            call: id,
        };
        if let Some(ledger) = &mut self.ledger {
            ledger.keep_place(digest, &place);
        }
        self.kept_places.keep(digest, place);
        self.kept_places.counts.given += 1;
    }

    /// Removes a place from what is kept. The scheduler still has it, if its time is not over.
    fn forget_place(&mut self, digest: CallDigest) -> Option<KeptPlace> {
        let place = self.kept_places.take(digest)?;
        if let Some(ledger) = &mut self.ledger {
            ledger.forget_place(digest);
        }
        Some(place)
    }

    /// Takes the place of a call that comes back, if it has one.
    pub(super) fn take_place(
        &mut self,
        digest: CallDigest,
        lane: Lane,
        now: Timestamp,
    ) -> Option<KeptPlace> {
        self.forget_lapsed(now);
        let place = self.forget_place(digest)?;
        if place.lane != lane {
            self.lanes[place.lane as usize].cancel(now, place.ticket);
            return None;
        }
        let is_there = self.lanes[lane as usize].is_suspended(place.ticket);
        match is_there {
            true => self.kept_places.counts.used += 1,
            false => self.kept_places.counts.lapsed += 1,
        }
        is_there.then_some(place)
    }

    /// Tickets by what became of them, until now.
    pub(super) fn ticket_counts(&mut self, now: Timestamp) -> TicketCounts {
        self.forget_lapsed(now);
        self.kept_places.counts
    }

    fn forget_lapsed(&mut self, now: Timestamp) {
        for digest in self.kept_places.forget_lapsed(now) {
            if let Some(ledger) = &mut self.ledger {
                ledger.forget_place(digest);
            }
        }
    }

    /// Keeps the places that an earlier process has promised, in the order of their arrival. Returns their number.
    pub(super) fn carry_places(
        &mut self,
        promised: &[PromisedPlace],
        clock: Clock,
        now: Timestamp,
    ) -> usize {
        let mut promised: Vec<_> = promised.iter().collect();
        promised.sort_by_key(|place| place.arrived);
        let mut kept = 0;
        for place in promised {
            let until = clock.of_boot_time(place.until);
            let arrived = clock.of_boot_time(place.arrived);
            let lane = Lane::of(place.limited);
            let digest = CallDigest(place.digest);
            if until <= now || self.kept_places.find(digest).is_some() {
                continue;
            }
            let call = Call::new("", arrived);
            let waiter = WaitingCall {
                tell: Some(oneshot::channel().0),
                ..WaitingCall::default()
            };
            let reserved = self.lanes[lane as usize].reserve(now, call, waiter, until);
            let Some(ticket) = reserved else { continue };
            self.kept_places.keep(
                digest,
                KeptPlace {
                    lane,
                    ticket,
                    arrived,
                    since: now,
                    until,
                    call: None,
                },
            );
            kept += 1;
        }
        kept
    }
}
