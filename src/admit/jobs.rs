//! Jobs at the gate: the work of calls that goes on behind their answers, and holds what the calls have drawn.

use std::sync::Arc;
use std::time::Duration;

use tidegate_ledger::JobRecord;
use tidegate_limits::call::ServerNumber;
use tidegate_limits::{Hold, Timestamp};

use super::Gate;
use super::decision::Lane;
use super::journal::CarriedCall;
use super::lock::{GateLock, GateState};
use super::permit::{GateCall, Permit};
use super::promotion::EffectiveClass;
use super::user_work::Promotion;
use crate::call::job::JobKey;
use crate::call::jobs::CarriedJob;
use crate::call::{Destination, Dialect, Identity, NoObserver, Origin, Peer, Record};

/// The name of the listener of a job of a process before, for operators.
const LISTENER: &str = "process before";

/// A job of a process before, and what it holds.
#[derive(Debug)]
pub(super) struct CarriedJobHold {
    record: JobRecord,
    call: CarriedCall,
    hold: Hold,
    server: Option<ServerNumber>,
}

impl GateState {
    /// Notes that the call in this place has begun a job that may last until then.
    pub(super) fn note_job(&mut self, lane: Lane, place: u32, record: JobRecord) {
        if lane == Lane::Limited {
            self.jobs.insert(place, record);
            if let Some(ledger) = &mut self.ledger {
                ledger.begin_job(place, record);
            }
        }
    }

    /// The job in this place has ended.
    #[inline]
    pub(super) fn forget_job(&mut self, lane: Lane, place: u32) {
        if lane == Lane::Limited && !self.jobs.is_empty() {
            self.jobs.remove(&place);
        }
    }

    /// Counts the call of a job of a process before.
    pub(super) fn carry_job(
        &mut self,
        now: Timestamp,
        call: CarriedCall,
        record: JobRecord,
    ) -> CarriedJobHold {
        let calls = self.calls();
        let hold = calls.carry_call(now, call.since, call.call.clone(), call.departed);
        let server = calls.server_at(hold.place());
        self.jobs.insert(hold.place(), record);
        CarriedJobHold {
            record,
            call,
            hold,
            server,
        }
    }
}

impl CarriedJobHold {
    /// The job, for the table of jobs.
    pub(super) fn into_job(self, lock: &Arc<GateLock>, now: Timestamp) -> CarriedJob {
        let Self {
            record,
            call,
            hold,
            server,
        } = self;
        let function = Arc::clone(&call.call.function);
        let origin = Origin {
            identity: Arc::new(Identity::without_names(
                LISTENER.into(),
                Peer::Unix { uid: 0 },
            )),
            arrived: call.since,
        };
        let observer = Arc::new(NoObserver);
        let named = (Arc::clone(&function), Arc::clone(&call.class));
        let record_of_call = Record::open(origin, Dialect::Http, named.0, named.1, None, observer);
        let most = Duration::from_millis(record.most_ms.into());
        let lasted = now.since(call.since);
        let gate_call = GateCall {
            lock: Arc::clone(lock),
            lane: Lane::Limited,
            backend: Destination::Http,
            settling: None,
            shadowed: None,
            class: EffectiveClass::Own,
            promotion: Promotion::None,
            record: record_of_call,
            foreign: None,
        };
        CarriedJob {
            key: JobKey(record.key),
            function,
            lasted,
            left: most.saturating_sub(lasted),
            server,
            slot: Box::new(Permit::adopted(
                gate_call,
                hold,
                call.since,
                Some(call.since),
            )),
        }
    }
}

impl Gate {
    /// The record of a job that a call has begun which was admitted then.
    pub(super) fn job_record(
        key: JobKey,
        most: Duration,
        admitted: Timestamp,
        now: Timestamp,
    ) -> JobRecord {
        let most = now.since(admitted) + most;
        JobRecord {
            key: key.0,
            most_ms: u32::try_from(most.as_millis()).unwrap_or(u32::MAX),
        }
    }
}
