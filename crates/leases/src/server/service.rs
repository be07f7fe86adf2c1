//! The four calls of the wire, around [`CapacityServer`] behind one lock.
//!
//! The clock is read inside the lock, so that time never goes back for the state machine. So is
//! the mastership. A server whose fence has passed, because it was paused or cannot reach the
//! store, answers that the master is unknown. It checks once more before the answer leaves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tidegate_runtime::election::Mastership;
use tidegate_runtime::lock;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use super::reply::ServerReply;
use super::{
    CapacityServer, Rejected, ServerRole, ServerSettings, ServerStatus as Shown, Templates, View,
};
use crate::wire::capacity_server::Capacity;
use crate::wire::{self, Epoch};

/// The server for the network. Clones share it.
#[derive(Clone, Debug)]
pub struct CapacityService(Arc<ServiceState>);

#[derive(Debug)]
struct ServiceState {
    machine: Mutex<Machine>,
    clock: Clock,
    epoch: Epoch,
    mastership: watch::Receiver<Mastership>,
    /// Answers that contained only the master.
    redirected: AtomicU64,
    /// A request or a change after which the server above may have to be asked.
    changed: Notify,
}

#[derive(Debug)]
struct Machine {
    server: CapacityServer,
    /// The term in which it was elected, while it is the master.
    term: Option<u64>,
}

/// An answer for the time in which it is unknown whether there is a master.
const UNKNOWN_MASTER: wire::Mastership = wire::Mastership {
    master_address: None,
};

impl CapacityService {
    /// A server that follows an election. Its only time is `clock`.
    #[must_use]
    pub fn new(
        settings: ServerSettings,
        templates: Templates,
        clock: Clock,
        mastership: watch::Receiver<Mastership>,
    ) -> Self {
        let epoch = settings.epoch;
        let machine = Machine {
            server: CapacityServer::new(settings, templates, clock.now()),
            term: None,
        };
        let service = Self(Arc::new(ServiceState {
            machine: Mutex::new(machine),
            clock,
            epoch,
            mastership,
            redirected: AtomicU64::new(0),
            changed: Notify::new(),
        }));
        service.follow();
        service
    }

    /// Follows every change of the election, until it is stopped. Requests do so too; this is for
    /// the time without requests.
    pub async fn keep_following(self, stop: CancellationToken) {
        let mut mastership = self.0.mastership.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = mastership.changed() => if changed.is_err() {
                    return self.follow();
                }
            }
            self.follow();
        }
    }

    fn follow(&self) {
        let (machine, _, _) = self.machine();
        drop(machine);
        self.0.changed.notify_one();
    }

    /// The machine, the time, and whether it is the master and may answer as such.
    fn machine(&self) -> (MutexGuard<'_, Machine>, Timestamp, bool) {
        let mut machine = lock(&self.0.machine);
        let now = self.0.clock.now();
        let mastership = self.0.mastership.borrow();
        let is_certain = match &*mastership {
            Mastership::Master { term, .. } => {
                // A passed fence does not mean that another is master: if it is renewed in the same
                // term, the grants are still valid.
                let holds = mastership.holds_at(now);
                if holds && machine.term != Some(*term) {
                    machine.server.elected(now);
                    machine.term = Some(*term);
                }
                holds
            }
            Mastership::Other(_) | Mastership::Unknown => {
                let master = match &*mastership {
                    Mastership::Other(address) => Some(address.clone()),
                    _ => None,
                };
                let is_new = !matches!(&machine.server.standing, ServerRole::Other { master: known } if *known == master);
                if is_new {
                    machine.server.deposed(master);
                    machine.term = None;
                }
                true
            }
        };
        drop(mastership);
        (machine, now, is_certain)
    }

    /// Decides, and returns the moment.
    fn answer<A: ServerReply>(
        &self,
        decide: impl FnOnce(&mut CapacityServer, Timestamp) -> Result<A, Rejected>,
    ) -> Result<Response<A>, Status> {
        let (mut machine, now, is_certain) = self.machine();
        let decided = if is_certain {
            decide(&mut machine.server, now)
        } else {
            Ok(A::redirect(UNKNOWN_MASTER))
        };
        let as_master = machine.term.is_some();
        drop(machine);
        let mut answer = decided.map_err(|rejected| status_of(&rejected))?;
        // A pause between here and the decision can have been as long as any other.
        if as_master && !self.0.mastership.borrow().holds_at(self.0.clock.now()) {
            answer = A::redirect(UNKNOWN_MASTER);
        }
        if answer.redirects() {
            self.0.redirected.fetch_add(1, Ordering::Relaxed);
        }
        let mut response = Response::new(answer);
        let millis = MetadataValue::from(self.0.epoch.millis(now));
        response.metadata_mut().insert(wire::NOW_MS, millis);
        Ok(response)
    }

    /// Takes new rules.
    pub fn apply(&self, templates: Templates) {
        self.with(|server, now| server.apply(now, templates));
        self.0.changed.notify_one();
    }

    /// The shown state.
    #[must_use]
    pub fn view(&self, view: View<'_>) -> Shown {
        self.with(|server, now| server.view(now, view))
    }

    /// Whether the master is known.
    #[must_use]
    pub fn knows_the_master(&self) -> bool {
        match &*self.0.mastership.borrow() {
            Mastership::Unknown => false,
            Mastership::Other(_) => true,
            mastership @ Mastership::Master { .. } => mastership.holds_at(self.0.clock.now()),
        }
    }

    /// The election that it follows.
    pub(super) fn mastership(&self) -> watch::Receiver<Mastership> {
        self.0.mastership.clone()
    }

    /// Answers so far that contained only the master.
    #[must_use]
    pub fn redirected(&self) -> u64 {
        self.0.redirected.load(Ordering::Relaxed)
    }

    /// The relation of the process's time to the wire's.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// The clock that it decides by.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// When to ask the server above next, if ever.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let (machine, _, is_certain) = self.machine();
        machine.server.next_due().filter(|_| is_certain)
    }

    /// Ready after a change that may move this time.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// The request to the server above, and the moment from which its leases count.
    pub(super) fn ask_parent(&self) -> Option<(Timestamp, wire::GetServerCapacityRequest)> {
        let (mut machine, now, is_certain) = self.machine();
        let request = is_certain.then(|| machine.server.ask_parent(now))??;
        Some((now, request))
    }

    /// Lets the state machine decide, at this moment.
    pub(super) fn with<T>(&self, decide: impl FnOnce(&mut CapacityServer, Timestamp) -> T) -> T {
        let (mut machine, now, _) = self.machine();
        decide(&mut machine.server, now)
    }
}

fn status_of(rejected: &Rejected) -> Status {
    let told = rejected.to_string();
    if rejected.is_exhausted() {
        Status::resource_exhausted(told)
    } else {
        Status::invalid_argument(told)
    }
}

#[tonic::async_trait]
impl Capacity for CapacityService {
    async fn discovery(
        &self,
        _: Request<wire::DiscoveryRequest>,
    ) -> Result<Response<wire::DiscoveryResponse>, Status> {
        self.answer(|server, _| Ok(server.discovery()))
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        let answer = self.answer(|server, now| server.get_capacity(now, request.get_ref()));
        self.0.changed.notify_one();
        answer
    }

    async fn get_server_capacity(
        &self,
        request: Request<wire::GetServerCapacityRequest>,
    ) -> Result<Response<wire::GetServerCapacityResponse>, Status> {
        let answer = self.answer(|server, now| server.get_server_capacity(now, request.get_ref()));
        self.0.changed.notify_one();
        answer
    }

    async fn release_capacity(
        &self,
        request: Request<wire::ReleaseCapacityRequest>,
    ) -> Result<Response<wire::ReleaseCapacityResponse>, Status> {
        self.answer(|server, now| Ok(server.release_capacity(now, request.get_ref())))
    }
}
