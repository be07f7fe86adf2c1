//! A client of capacity servers: it waits until a shared resource may be used.
//!
//! A [`LeaseClient`] keeps one lease for each resource of its process, for any number of handles, and
//! renews them all together. A user of a resource never contacts a server and never waits for
//! one: it reads the lease, which is a number and an end. After the end, [`AfterExpiry`] decides
//! what may be used, for any behaviour of the servers.
//!
//! The demand is measured from use, or set with `set_wants`.

mod connect;
mod demand;
mod entitlement;
mod handles;
#[cfg(test)]
#[path = "../tests/it/lease_model.rs"]
mod lease_model;
mod leases;
mod line;
mod metrics;
mod options;
mod probe;
mod route;
mod share;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::{Clock, lock};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::connect::ServerList;
use self::entitlement::{Entitlement, capacity};
use self::handles::Handle;
use self::leases::{AnswerEffect, Leases, RequestFailure, RequestId, ResourceOpening};
use self::line::{HandleDemand, ResourceQueue};

pub use self::entitlement::{AfterExpiry, Allowance, NotACapacity, SafeCapacity};
pub use self::handles::{GaugeResource, Guard, RateResource};
pub use self::line::WaitError;
pub use self::metrics::ClientMetrics;
pub use self::options::{
    ClientError, ClientOptions, OpenError, ResourceKind, ResourceOptions, ResourceState,
};
pub use self::probe::{ReportedRole, Unanswered, standing};
pub use self::share::{CapacityShare, ShareLease, ShareReport};
pub use crate::dial::{Dial, DialedConnection, Dialing, TcpDial, TlsDial};
pub use crate::sharing::{BadAddress, ID_BYTES_MAX, ServerAddress};
pub use tidegate_limits::Tokens;

/// The most resources of one client, including those that it has just closed.
pub const RESOURCES_MAX: usize = 10_000;
/// The time for releasing unused leases.
const RELEASE_BOUND: Duration = Duration::from_secs(1);

/// Keeps leases of resources. Clones are the same client.
///
/// When the last clone and the last handle are dropped, it releases its leases and ends.
#[derive(Clone, Debug)]
pub struct LeaseClient {
    state: Arc<ClientState>,
    lifetime: Arc<DropGuard>,
}

/// The state that a client, its handles and its task share.
#[derive(Debug)]
struct ClientState {
    clock: Clock,
    metrics: ClientMetrics,
    registry: Mutex<Registry>,
    /// The server that answered the latest request as the master.
    master: Mutex<Option<ServerAddress>>,
    /// For the task: there may be something to do.
    wake: Notify,
    /// For users of shares: one of them has changed.
    shares_changed: Notify,
    /// The task must end.
    closing: CancellationToken,
    /// The task has ended.
    closed: CancellationToken,
    handles: AtomicU64,
}

#[derive(Debug)]
struct Registry {
    leases: Leases,
    resources: BTreeMap<Arc<str>, Weak<OpenResource>>,
    /// Resources that are used as shares.
    shares: BTreeMap<Arc<str>, Weak<share::ShareHandle>>,
}

/// A resource in use. When it is no longer used, its lease is released.
#[derive(Debug)]
struct OpenResource {
    id: Arc<str>,
    line: ResourceQueue,
    state: Arc<ClientState>,
    _lifetime: Arc<DropGuard>,
}

impl LeaseClient {
    /// A client of these servers, of which any may name another as the master. Runs a task in
    /// the tokio runtime that it is called in.
    ///
    /// # Errors
    ///
    /// If no server is named, or a time of the options is zero.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(servers: Vec<ServerAddress>, options: ClientOptions) -> Result<Self, ClientError> {
        Self::with_clock(servers, options, Clock::start())
    }

    /// A client with a given clock: a [`CapacityShare`] uses its moments.
    ///
    /// # Errors
    ///
    /// If no server is named, or a time of the options is zero.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn with_clock(
        servers: Vec<ServerAddress>,
        options: ClientOptions,
        clock: Clock,
    ) -> Result<Self, ClientError> {
        if servers.is_empty() {
            return Err(ClientError::NoServer);
        }
        if options.request_timeout.is_zero() {
            return Err(ClientError::Zero("request_timeout"));
        }
        if options.interval_min.is_zero() {
            return Err(ClientError::Zero("interval_min"));
        }
        let client_id = options.client_id.unwrap_or_else(unique_id);
        let state = Arc::new(ClientState {
            clock,
            metrics: options.metrics.clone(),
            registry: Mutex::new(Registry {
                leases: Leases::new(client_id, options.interval_min),
                resources: BTreeMap::new(),
                shares: BTreeMap::new(),
            }),
            master: Mutex::default(),
            wake: Notify::new(),
            shares_changed: Notify::new(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
            handles: AtomicU64::new(0),
        });
        let servers = ServerList::new(
            servers,
            options.dial,
            options.request_timeout,
            clock,
            options.metrics,
        );
        let lifetime = Arc::new(state.closing.clone().drop_guard());
        tokio::spawn(run(Arc::clone(&state), servers));
        Ok(Self { state, lifetime })
    }

    /// The id of the client.
    #[must_use]
    pub fn id(&self) -> String {
        lock(&self.state.registry).leases.client_id().to_owned()
    }

    /// The server that answered the latest request as the master; `None` before the first answer, and since a request
    /// that no server answered.
    #[must_use]
    pub fn master(&self) -> Option<ServerAddress> {
        lock(&self.state.master).clone()
    }

    /// A handle to a resource whose capacity is operations a second. Several handles to one id
    /// share its lease, and their demands are added up.
    ///
    /// # Errors
    ///
    /// [`OpenError`], with the reason.
    pub fn rate(&self, id: &str, options: ResourceOptions) -> Result<RateResource, OpenError> {
        self.open(id, ResourceKind::Rate, options).map(RateResource)
    }

    /// A handle to a resource whose capacity is holders at once. Several handles to one id share
    /// its lease, and their demands are added up.
    ///
    /// # Errors
    ///
    /// [`OpenError`], with the reason.
    pub fn gauge(&self, id: &str, options: ResourceOptions) -> Result<GaugeResource, OpenError> {
        self.open(id, ResourceKind::Gauge, options)
            .map(GaugeResource)
    }

    /// A share of a resource, for a user that keeps to it itself. `wants_min` is the minimum
    /// demand.
    ///
    /// # Errors
    ///
    /// [`OpenError`], with the reason; a resource has one such user.
    pub fn share(&self, id: &str, wants_min: f64) -> Result<CapacityShare, OpenError> {
        let wants_min = capacity("wants_min", wants_min)?;
        let mut registry = self.opening(id)?;
        if registry.resources.contains_key(id) {
            return Err(OpenError::OtherKind(id.to_owned()));
        }
        let id: Arc<str> = id.into();
        let opening = ResourceOpening {
            priority: 0,
            wants: wants_min,
            // Its user knows its safe share.
            after_expiry: AfterExpiry::Pessimistic,
            safe: None,
        };
        let entitlement = registry.open_new(self.state.clock.now(), &id, opening)?;
        let shared = Arc::new(share::ShareHandle {
            id: Arc::clone(&id),
            client: Arc::clone(&self.state),
            state: Mutex::new(share::ShareState {
                entitlement,
                wants_min,
                needs: 0.0,
                peaks: demand::Peaks::new(),
            }),
            _lifetime: Arc::clone(&self.lifetime),
        });
        registry.shares.insert(id, Arc::downgrade(&shared));
        drop(registry);
        self.state.wake.notify_one();
        Ok(CapacityShare(shared))
    }

    /// Waits until a lease of a [`CapacityShare`] has changed since the last call.
    pub async fn shares_changed(&self) {
        self.state.shares_changed.notified().await;
    }

    /// Every resource in use, by id.
    #[must_use]
    pub fn resources(&self) -> Vec<ResourceState> {
        let in_use = self.state.in_use();
        in_use.iter().map(|it| it.line.state(&it.id)).collect()
    }

    /// Ends it: waiting operations are refused, and leases are released, within two seconds.
    pub async fn close(&self) {
        self.state.closing.cancel();
        self.state.closed.cancelled().await;
    }

    fn open(
        &self,
        id: &str,
        kind: ResourceKind,
        options: ResourceOptions,
    ) -> Result<Arc<Handle>, OpenError> {
        let at_first = capacity("wants_at_first", options.wants_at_first)?;
        let wants = match options.wants {
            Some(wants) => HandleDemand::Fixed(capacity("wants", wants)?),
            None => HandleDemand::Measured { at_first },
        };
        let opening = ResourceOpening {
            priority: options.priority,
            wants: 0.0,
            after_expiry: options.after_expiry,
            safe: options.safe_capacity,
        };
        let resource = self.resource(id, kind, options.waiting_max, opening)?;
        if resource.line.kind != kind {
            return Err(OpenError::OtherKind(id.to_owned()));
        }
        let number = self.state.handles.fetch_add(1, Ordering::Relaxed);
        resource.line.add_handle(number, wants);
        let opening = ResourceOpening {
            wants: resource.line.wants(),
            ..opening
        };
        let now = self.state.clock.now();
        // It is already in use: this can only raise its priority and set the demand.
        lock(&self.state.registry)
            .leases
            .open(now, &resource.id, opening);
        self.state.wake.notify_one();
        Ok(Arc::new(Handle { number, resource }))
    }

    /// The registry, for one more user of a resource.
    fn opening(&self, id: &str) -> Result<MutexGuard<'_, Registry>, OpenError> {
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            Err(OpenError::BadId(id.len()))
        } else if self.state.closing.is_cancelled() {
            Err(OpenError::Closed)
        } else {
            Ok(lock(&self.state.registry))
        }
    }

    /// The resource with this id, made if it is new.
    fn resource(
        &self,
        id: &str,
        kind: ResourceKind,
        waiting_max: usize,
        opening: ResourceOpening,
    ) -> Result<Arc<OpenResource>, OpenError> {
        let mut registry = self.opening(id)?;
        if let Some(resource) = registry.resources.get(id).and_then(Weak::upgrade) {
            return Ok(resource);
        }
        let id: Arc<str> = id.into();
        let entitlement = registry.open_new(self.state.clock.now(), &id, opening)?;
        let resource = Arc::new(OpenResource {
            id: Arc::clone(&id),
            line: ResourceQueue::new(self.state.clock, kind, waiting_max, entitlement),
            state: Arc::clone(&self.state),
            _lifetime: Arc::clone(&self.lifetime),
        });
        registry.resources.insert(id, Arc::downgrade(&resource));
        Ok(resource)
    }
}

impl Registry {
    /// Opens a resource that is new to this client.
    fn open_new(
        &mut self,
        now: Timestamp,
        id: &Arc<str>,
        opening: ResourceOpening,
    ) -> Result<Entitlement, OpenError> {
        if self.shares.contains_key(id) {
            Err(OpenError::OtherKind(id.to_string()))
        } else if self.leases.len() >= RESOURCES_MAX {
            Err(OpenError::TooMany)
        } else {
            Ok(self.leases.open(now, id, opening))
        }
    }
}

impl OpenResource {
    /// The current demand; the task decides whether to request it.
    fn tell(&self, wants: f64) {
        let now = self.state.clock.now();
        let is_sooner = lock(&self.state.registry)
            .leases
            .set_wants(now, &self.id, wants);
        if is_sooner {
            self.state.wake.notify_one();
        }
    }
}

impl Drop for OpenResource {
    fn drop(&mut self) {
        let mut registry = lock(&self.state.registry);
        // The id may have been opened again since the last handle was dropped.
        let is_this = |other: &Weak<Self>| std::ptr::eq(other.as_ptr(), self);
        if registry.resources.get(&self.id).is_some_and(is_this) {
            registry.resources.remove(&self.id);
            registry.leases.leave(&self.id);
        }
        drop(registry);
        self.state.wake.notify_one();
    }
}

/// The task's next step.
enum TaskStep {
    Ask(RequestId, crate::wire::GetCapacityRequest),
    Release(crate::wire::ReleaseCapacityRequest),
    SleepUntil(Timestamp),
    Idle,
}

impl ClientState {
    /// Every resource in use. The registry must not be locked when they are dropped.
    fn in_use(&self) -> Vec<Arc<OpenResource>> {
        let registry = lock(&self.registry);
        registry
            .resources
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Takes the current demand of every resource.
    fn measure(&self) {
        let resources = self.in_use();
        let shares: Vec<Arc<share::ShareHandle>> = {
            let registry = lock(&self.registry);
            registry.shares.values().filter_map(Weak::upgrade).collect()
        };
        let now = self.clock.now();
        let of_resources = resources.iter().map(|it| (&it.id, it.line.wants()));
        let of_shares = shares.iter().map(|it| (&it.id, it.state().wants(now)));
        let wants: Vec<(&Arc<str>, f64)> = of_resources.chain(of_shares).collect();
        let mut registry = lock(&self.registry);
        for (id, wants) in wants {
            registry.leases.set_wants(now, id, wants);
        }
        // Dropping the last handle locks the registry.
        drop(registry);
    }

    fn step(&self) -> TaskStep {
        self.measure();
        let mut registry = lock(&self.registry);
        let now = self.clock.now();
        if let Some(release) = registry.leases.release(now) {
            return TaskStep::Release(release);
        }
        if let Some((request, message)) = registry.leases.ask(now) {
            return TaskStep::Ask(request, message);
        }
        registry
            .leases
            .next_due()
            .map_or(TaskStep::Idle, TaskStep::SleepUntil)
    }

    /// Passes on what may be used.
    fn entitle(&self, changed: Vec<(Arc<str>, Entitlement)>) {
        let users: Vec<_> = {
            let registry = lock(&self.registry);
            let users = changed.into_iter().map(|(id, entitlement)| {
                let share = registry.shares.get(&id).and_then(Weak::upgrade);
                let resource = registry.resources.get(&id).and_then(Weak::upgrade);
                (share, resource, entitlement)
            });
            users.collect()
        };
        for (share, resource, entitlement) in users {
            if let Some(share) = share {
                share.state().entitlement = entitlement;
                self.shares_changed.notify_one();
            }
            if let Some(resource) = resource {
                resource.line.entitle(entitlement);
            }
        }
    }

    fn heard(&self, request: RequestId, answered: &connect::MasterAnswer) {
        let AnswerEffect { changed, ignored } = {
            let mut registry = lock(&self.registry);
            let now = self.clock.now();
            registry
                .leases
                .answered(now, request, &answered.response, answered.server_now_ms)
        };
        self.metrics.ignored(ignored);
        self.entitle(changed);
    }

    fn not_heard(&self, request: RequestId, failure: RequestFailure) {
        let now = self.clock.now();
        lock(&self.registry)
            .leases
            .failed(now, request, failure, rand::random());
    }
}

/// Asks the servers until the client is no longer used.
async fn run(state: Arc<ClientState>, mut servers: ServerList) {
    let _closed = state.closed.clone().drop_guard();
    while !state.closing.is_cancelled() {
        match state.step() {
            TaskStep::Ask(request, message) => {
                let sent = |at| lock(&state.registry).leases.sent_again(at, request);
                let outcome = tokio::select! {
                    outcome = servers.get_capacity(&message, sent) => outcome,
                    () = state.closing.cancelled() => break,
                };
                let master = outcome.is_ok().then(|| servers.target().clone());
                *lock(&state.master) = master;
                match outcome {
                    Ok(answered) => state.heard(request, &answered),
                    Err(failure) => state.not_heard(request, failure),
                }
            }
            TaskStep::Release(message) => release(&mut servers, &message).await,
            TaskStep::SleepUntil(due) => tokio::select! {
                () = state.clock.sleep_until(due) => {}
                () = state.wake.notified() => {}
                () = state.closing.cancelled() => {}
            },
            TaskStep::Idle => tokio::select! {
                () = state.wake.notified() => {}
                () = state.closing.cancelled() => {}
            },
        }
    }
    for resource in state.in_use() {
        resource.line.close();
    }
    let all_released = async {
        loop {
            let message = {
                let mut registry = lock(&state.registry);
                let now = state.clock.now();
                registry.leases.leave_all();
                registry.leases.release(now)
            };
            match message {
                Some(message) => release(&mut servers, &message).await,
                None => break,
            }
        }
    };
    // Best effort: a lease that is not released expires by itself.
    let _ = tokio::time::timeout(RELEASE_BOUND, all_released).await;
}

/// Informs the servers once. Best effort: a lease that is not released expires by itself.
async fn release(servers: &mut ServerList, message: &crate::wire::ReleaseCapacityRequest) {
    let released = tokio::time::timeout(RELEASE_BOUND, servers.release_capacity(message)).await;
    if !matches!(released, Ok(Ok(()))) {
        tracing::debug!(
            resources = message.resource_id.len(),
            "leases could not be released"
        );
    }
}

/// A unique id: host, process, a number in this process, and a random part, because in containers
/// all the others may be equal.
fn unique_id() -> String {
    static CLIENTS: AtomicU64 = AtomicU64::new(0);
    #[expect(clippy::disallowed_methods, reason = "/proc is no disk")]
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "localhost",
        host => host,
    };
    let process = std::process::id();
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    format!("{host}:{process}:{number}:{:08x}", rand::random::<u32>())
}
