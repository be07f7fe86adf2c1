//! The permit of a call whose job holds its slot.

use std::sync::Arc;

use tidegate_limits::scheduler::Outcome;
use tokio::time::Instant;

use super::Gate;
use super::permit::{HELD, Permit};
use crate::call::job::{JobEnd, JobFacts};
use crate::call::job_meter::StartedJob;
use crate::call::jobs::JobSlot;
use crate::call::{Reason, Slot as _, Verdict};

impl Permit {
    /// Lets a job hold what the call holds, from its reply on.
    pub(super) fn hand_over_to(mut self, job: StartedJob) -> Instant {
        self.replied();
        let (call, hold) = self.held.as_ref().expect(HELD);
        let server = self.server();
        let (lock, record) = (Arc::clone(&call.lock), Arc::clone(&call.record));
        let (lane, place, admitted) = (call.lane, hold.place(), self.admitted);
        let now = lock.change_in(lane, |state, now| {
            let record = Gate::job_record(job.key(), job.most(), admitted, now);
            state.note_job(lane, place, record);
            now
        });
        let named = record.note(|facts| {
            facts.rare_mut().job = Some(JobFacts {
                key: job.key(),
                replied: now,
                end: None,
            });
            (facts.id, Arc::clone(&facts.function))
        });
        if let Err(slot) = job.keep(named, server, Box::new(self)) {
            record.note(|facts| facts.rare_mut().job = None);
            slot.end(JobEnd::Done);
        }
        lock.clock.instant(now)
    }

    /// Ends a job that another process follows from now on. What that must know is in the ledger, and stays there.
    fn leave(&mut self) {
        let Some((call, hold)) = &self.held else {
            return;
        };
        let (lane, place) = (call.lane, hold.place());
        // After a hand-over this process has no ledger, and may decide again.
        let is_left = call
            .lock
            .look(|state, _| state.ledger.is_some() || state.is_known_to_peer(lane, place));
        if !is_left {
            let _ = Self::end(self, Outcome::Served, None);
            return;
        }
        let is_delayed = self.delayed;
        if let Some((call, _)) = self.held.take() {
            call.record.note(|facts| {
                facts.outcome = Some(Outcome::Served);
                facts.verdict = match is_delayed {
                    true => Verdict::Delayed,
                    false => Verdict::Passed,
                };
            });
        }
    }
}

impl JobSlot for Permit {
    fn end(mut self: Box<Self>, end: JobEnd) {
        if let Some((call, _)) = &self.held {
            call.record.note(|facts| {
                if let Some(job) = &mut facts.rare_mut().job {
                    job.end = Some(end);
                }
                if end == JobEnd::Overdue {
                    facts.reason = Some(Reason::BackendSlow);
                }
            });
        }
        match end {
            JobEnd::Done | JobEnd::Gone => drop(Permit::end(&mut self, Outcome::Served, None)),
            JobEnd::Overdue => drop(Permit::end(&mut self, Outcome::Failed, None)),
            JobEnd::Left => self.leave(),
        }
    }
}
