//! Connects the gate's limits to the capacity servers: demands go out, leases come in, as plain
//! values. The gate does not know the servers, and the lease client does not know the gate.
//!
//! A limit may give out the larger of its lease and its safe share, and never more than its own
//! rule, which is what this backend can bear. When a lease ends, the scheduler falls back to the
//! safe share by itself, even if this task does not run.
//!
//! A previous process may have used its whole share up to its end. So a window stays closed for
//! its own length after the process has started: calls from before and calls from now are then
//! never in one window.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_leases::client::{
    Allowance, CapacityShare, ClientMetrics, ClientOptions, Dial, LeaseClient, ShareReport,
    TcpDial, TlsDial,
};
use tidegate_leases::sharing::{Safe, SharedLimit, SharedServers, SharingSettings};
use tidegate_leases::supply::{RATE_OVER, rate, use_of, whole};
use tidegate_limits::call::BucketId;
use tidegate_limits::scheduler::{BucketNow, Supply};
use tidegate_limits::{Fill, Timestamp};
use tidegate_runtime::metric::Registry;
use tidegate_runtime::{Clock, lock};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::Surroundings;
use super::shares::ShareNow;
use crate::admit::{self, Gate};
use crate::callers::Callers;

/// How often the need is checked while calls are here. An idle proxy checks nothing.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs as long as the proxy.
pub(super) struct Coordination {
    gate: Gate,
    callers: Callers,
    clock: Clock,
    /// Connects to the servers in a simulation.
    dial: Option<Arc<dyn Dial>>,
    started: Timestamp,
    metrics: ClientMetrics,
    /// The name of this process, for its first client. A later one of the same name could lose its
    /// leases when the one before ends.
    name: Mutex<Option<String>>,
    running: Mutex<Option<ActiveSharing>>,
    /// There are other settings.
    changed: Notify,
}

/// How the capacity servers are reached.
#[must_use]
pub fn options(servers: &SharedServers) -> ClientOptions {
    ClientOptions {
        client_id: servers.id.as_deref().map(ToOwned::to_owned),
        request_timeout: servers.request_timeout,
        interval_min: servers.interval_min,
        dial: match &servers.tls {
            Some(tls) => Arc::new(TlsDial(tls.clone())),
            None => Arc::new(TcpDial),
        },
        ..ClientOptions::default()
    }
}

struct ActiveSharing {
    servers: SharedServers,
    client: LeaseClient,
    entries: Vec<SharedLimitEntry>,
}

struct SharedLimitEntry {
    rule: SharedLimit,
    share: CapacityShare,
    /// A window is closed until then.
    quiet_until: Timestamp,
    told: LastSupply,
    drawn: RecentDraws,
    /// The safe capacity of the servers that was last logged as a warning.
    warned: Option<f64>,
}

/// The last supply of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LastSupply {
    Nothing,
    Whole(Supply),
    Rate(Supply<Fill>),
}

impl Coordination {
    pub(super) fn new(
        gate: Gate,
        callers: Callers,
        surroundings: &Surroundings,
        registry: &Registry,
        name: Option<&str>,
    ) -> Self {
        let clock = surroundings.clock;
        Self {
            gate,
            callers,
            clock,
            dial: surroundings.dial.clone(),
            started: clock.now(),
            metrics: ClientMetrics::new(registry),
            name: Mutex::new(name.map(ToOwned::to_owned)),
            running: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Takes new settings, after the gate has. Leases of resources that stay are kept. A limit that
    /// is no longer shared returns to its rule.
    pub(super) fn apply(&self, settings: Option<&SharingSettings>, gate: &admit::GateSettings) {
        let before = lock(&self.running).take();
        let kept = settings.filter(|settings| {
            let before = before.as_ref();
            before.is_some_and(|before| before.servers == settings.servers)
        });
        // The client that stays connects with what the files hold now.
        if let (Some(before), Some(kept)) = (&before, kept)
            && let (Some(own), Some(later)) = (&before.servers.tls, &kept.servers.tls)
        {
            own.renew(later);
        }
        // It stays with what it was made with, so that a later reload finds that again.
        let servers = before.as_ref().filter(|_| kept.is_some());
        let servers = servers.map(|before| before.servers.clone());
        let (client, left) = before.map(|before| (before.client, before.entries)).unzip();
        let mut left: Vec<SharedLimitEntry> = left.unwrap_or_default();
        // Leases from other servers do not count here.
        let stays =
            |entry: &SharedLimitEntry| kept.is_some_and(|settings| entry.stays(&settings.limits));
        for entry in left.extract_if(.., |entry| !stays(entry)) {
            entry.unshare(&self.gate, &self.callers);
        }
        if let Some(settings) = settings {
            // Before any request: what a limit may give out without a lease.
            let client = client
                .filter(|_| kept.is_some())
                .unwrap_or_else(|| self.client(&settings.servers));
            let quiet_until = self.started + window_counts(gate);
            let entries = settings.limits.iter().map(|rule| {
                let same = |entry: &SharedLimitEntry| entry.rule.resource == rule.resource;
                if let Some(at) = left.iter().position(same) {
                    let mut entry = left.swap_remove(at);
                    entry.rule = rule.clone();
                    entry.told = LastSupply::Nothing;
                    entry.share.set_wants_min(rule.safe.get());
                    return entry;
                }
                info!(limit = %rule.limit, resource = %rule.resource, "the limit is shared");
                let share = client.share(&rule.resource, rule.safe.get());
                SharedLimitEntry {
                    share: share.expect("the config names each resource once, and not too many"),
                    rule: rule.clone(),
                    quiet_until,
                    told: LastSupply::Nothing,
                    drawn: RecentDraws::default(),
                    warned: None,
                }
            });
            let mut running = ActiveSharing {
                entries: entries.collect(),
                servers: servers.unwrap_or_else(|| settings.servers.clone()),
                client,
            };
            running.carry(self);
            *lock(&self.running) = Some(running);
        }
        self.changed.notify_one();
    }

    fn client(&self, servers: &SharedServers) -> LeaseClient {
        let mut options = ClientOptions {
            metrics: self.metrics.clone(),
            ..options(servers)
        };
        if let Some(dial) = &self.dial {
            options.dial = Arc::clone(dial);
        }
        if options.client_id.is_none() {
            options.client_id = lock(&self.name).take();
        }
        let client = LeaseClient::with_clock(servers.addresses.clone(), options, self.clock);
        let client = client.expect("the config names a server, and no time is zero");
        info!(id = client.id(), "leases are asked for by this name");
        client
    }

    /// Runs until dropped.
    pub(super) async fn keep_carrying(self: Arc<Self>) {
        loop {
            self.gate.watch();
            let (client, look_again) = match &mut *lock(&self.running) {
                Some(running) => (Some(running.client.clone()), running.carry(self.as_ref())),
                None => (None, false),
            };
            let leased = async {
                match &client {
                    Some(client) => client.shares_changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = leased => {}
                () = self.changed.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY), if look_again => {}
                () = self.gate.wait_for_change(), if !look_again && client.is_some() => {}
            }
        }
    }

    /// Keeps no lease any more, and releases none: another process goes on with them by the same name.
    pub(super) fn suspend(&self) {
        drop(lock(&self.running).take());
    }

    /// Asks for leases by this name again, once there are settings.
    pub(super) fn resume(&self, name: Option<&str>) {
        *lock(&self.name) = name.map(ToOwned::to_owned);
    }

    /// Releases the leases: no call leaves any more.
    pub(super) async fn close(&self) {
        let running = lock(&self.running).take();
        if let Some(running) = running {
            running.client.close().await;
        }
    }

    /// The capacity server that is the master, as far as its latest answer shows.
    pub(super) fn master(&self) -> Option<String> {
        let running = lock(&self.running);
        let master = running.as_ref()?.client.master()?;
        Some(master.to_string())
    }

    /// Every limit that is shared.
    pub(super) fn shares(&self) -> Vec<ShareNow> {
        let now = self.clock.now();
        let running = lock(&self.running);
        let entries = running.iter().flat_map(|running| &running.entries);
        entries
            .map(|entry| ShareNow {
                limit: Arc::clone(&entry.rule.limit),
                resource: Arc::clone(&entry.rule.resource),
                safe: entry.rule.safe.get(),
                wants: entry.share.wants(),
                lease: entry
                    .share
                    .lease()
                    .map(|lease| (lease.capacity, lease.expires.since(now))),
            })
            .collect()
    }
}

impl ActiveSharing {
    /// Runs once. Returns whether to run again soon.
    fn carry(&mut self, with: &Coordination) -> bool {
        let now = with.clock.now();
        let mut look_again = false;
        for entry in &mut self.entries {
            let needs = entry.carry(now, &with.gate, &with.callers);
            look_again |= needs > 0.0 || now < entry.quiet_until;
        }
        look_again
    }
}

impl SharedLimitEntry {
    /// Whether the new settings share the same limit from the same resource.
    fn stays(&self, limits: &[SharedLimit]) -> bool {
        limits.iter().any(|rule| {
            rule.resource == self.rule.resource
                && rule.limit == self.rule.limit
                && std::mem::discriminant(&rule.safe) == std::mem::discriminant(&self.rule.safe)
        })
    }

    /// Sets the supply of the limit, and reports need and use to the lease client. Returns the
    /// need.
    fn carry(&mut self, now: Timestamp, gate: &Gate, callers: &Callers) -> f64 {
        let lease = self.share.lease();
        let reported = match self.rule.safe {
            Safe::Whole(safe) => {
                let quiet_until = Some(self.quiet_until).filter(|&quiet| now < quiet);
                let supply = whole(lease, safe, quiet_until);
                let limit = &self.rule.limit;
                let state = if self.told == LastSupply::Whole(supply) {
                    gate.limit_now(limit)
                } else {
                    gate.supply(limit, supply)
                };
                self.told = LastSupply::Whole(supply);
                state.map(|state| use_of(&state))
            }
            Safe::Rate(safe) => {
                let supply = rate(lease, safe);
                let bucket = bucket_of(callers, &self.rule.limit);
                let state = bucket.and_then(|bucket| {
                    if self.told == LastSupply::Rate(supply) {
                        gate.bucket_now(bucket)
                    } else {
                        gate.supply_fill(bucket, supply)
                    }
                });
                self.told = LastSupply::Rate(supply);
                state.map(|state| self.drawn.use_of(now, &state))
            }
        };
        // A limit that a reload has just removed needs nothing.
        let reported = reported.unwrap_or_default();
        self.share.report(reported);
        self.warn();
        reported.needs
    }

    /// Whether the servers reserve as much for this sidecar as it uses as its safe share.
    fn warn(&mut self) {
        let kept = match self.share.safe_capacity() {
            Some(Allowance::UpTo(kept)) if kept < self.rule.safe.get() => Some(kept),
            Some(Allowance::UpTo(_) | Allowance::Unlimited) | None => None,
        };
        if kept != self.warned {
            self.warned = kept;
            if let Some(kept) = kept {
                warn!(
                    limit = %self.rule.limit,
                    resource = %self.rule.resource,
                    safe = self.rule.safe.get(),
                    kept,
                    "the servers keep less for this sidecar than it takes for its own: are there \
                     more than expected_sidecars?"
                );
            }
        }
    }

    /// The limit returns to its rule.
    fn unshare(&self, gate: &Gate, callers: &Callers) {
        info!(limit = %self.rule.limit, resource = %self.rule.resource, "the limit is shared no more");
        match self.rule.safe {
            Safe::Whole(_) => {
                gate.supply(&self.rule.limit, Supply::Configured);
            }
            Safe::Rate(_) => {
                if let Some(bucket) = bucket_of(callers, &self.rule.limit) {
                    gate.supply_fill(bucket, Supply::Configured);
                }
            }
        }
    }
}

/// How long a departure counts in the windows.
fn window_counts(gate: &admit::GateSettings) -> Duration {
    let window = gate.window.as_ref();
    window.map_or(Duration::ZERO, |window| window.length + window.guard)
}

/// The bucket of a rate limit, by the limit's name in metrics.
fn bucket_of(callers: &Callers, limit: &str) -> Option<BucketId> {
    let name = limit.strip_prefix(crate::telemetry::calls::RATE_LIMIT_PREFIX)?;
    let all = callers.limits();
    let found = all.iter().find(|known| *known.label == *name)?;
    Some(found.id.bucket())
}

/// The recent draws from a bucket.
#[derive(Debug, Default)]
struct RecentDraws {
    /// Moments, a second or more apart, with the amount drawn by then.
    seen: VecDeque<(Timestamp, f64)>,
}

impl RecentDraws {
    fn use_of(&mut self, now: Timestamp, state: &BucketNow) -> ShareReport {
        let newest = self.seen.back();
        if newest.is_none_or(|(at, _)| now.since(*at) >= Duration::from_secs(1)) {
            self.seen.push_back((now, state.counts.drawn));
        }
        // One that is older than the span is needed to see the whole of it.
        while self.seen.len() > 1 && now.since(self.seen[1].0) >= RATE_OVER {
            self.seen.pop_front();
        }
        let &(since, drawn) = self.seen.front().expect("one was just seen, or before");
        let seconds = now.since(since).as_secs_f64().max(1.0);
        let drawn = (state.counts.drawn - drawn).max(0.0) / seconds;
        let needs = drawn + state.waiting_tokens / RATE_OVER.as_secs_f64();
        ShareReport {
            needs: needs.min(state.rule.limit.per_second()),
            in_force: state.per_second,
            // Drawn tokens do not come back.
            in_use: 0.0,
        }
    }
}
