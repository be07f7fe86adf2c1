//! The limit that two processes share, with the store or the lease servers that keep it, and its judge.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::claim::Claim;
use crate::lease_servers::{LeaseServers, rules};
use crate::plan::{
    LeaseServerFault, Mistake, Sharing, StoreFault, lease_server_faults, next_at, store_faults,
};
use crate::process::Ways;
use crate::record::Millis;
use crate::store::{STORE_BEGAN, Store};

/// The time between two looks at who is the master of the lease servers.   ms
const ELECTS_EVERY: Millis = 250;
/// A call that was admitted before the end of a window comes within this time.   ms
const EDGE: Millis = 2;

/// A shared limit under way.
pub(crate) enum Shared {
    Quota(SharedQuota),
    Lease(Box<SharedLease>),
}

/// A quota in a store.
pub(crate) struct SharedQuota {
    store: Store,
    faults: VecDeque<(Millis, StoreFault)>,
    total: usize,
    window: Millis,
    /// Calls in the present window.
    in_window: usize,
}

/// Calls in a window, leased from servers.
pub(crate) struct SharedLease {
    servers: LeaseServers,
    faults: VecDeque<(Millis, LeaseServerFault)>,
    capacity: usize,
    window: Millis,
    /// When the last calls came, to any backend.
    came: VecDeque<Millis>,
}

impl Shared {
    /// Needs a runtime.
    pub(crate) fn start(sharing: Sharing, seed: u64, mistake: Option<Mistake>) -> Self {
        match sharing {
            Sharing::Quota { total, window } => Self::Quota(SharedQuota {
                store: Store::start(seed),
                faults: store_faults(seed, mistake),
                total,
                window,
                in_window: 0,
            }),
            Sharing::Lease {
                capacity,
                safe,
                window,
            } => {
                let more = match mistake {
                    Some(Mistake::LeasesTooMuch) => 3,
                    _ => 0,
                };
                Self::Lease(Box::new(SharedLease {
                    servers: LeaseServers::start(rules(capacity + more, safe, window)),
                    faults: lease_server_faults(seed),
                    capacity,
                    window,
                    came: VecDeque::new(),
                }))
            }
        }
    }

    /// Lets everything happen whose time has come; needs a runtime. Returns the number of faults that begin.
    pub(crate) fn change(&mut self, now: Millis) -> usize {
        match self {
            Self::Quota(quota) => quota.change(now),
            Self::Lease(lease) => lease.change(now),
        }
    }

    /// Counts a call that has come to a backend.
    ///
    /// # Errors
    /// The claim that it breaks, and how.
    pub(crate) fn came(&mut self, now: Millis) -> Result<(), (Claim, String)> {
        match self {
            Self::Quota(quota) => quota.came(now).map_err(|how| (Claim::Quotas, how)),
            Self::Lease(lease) => lease.came(now).map_err(|how| (Claim::Leases, how)),
        }
    }

    /// The ways of a process to what is shared.
    pub(crate) fn ways(&self) -> Ways {
        match self {
            Self::Quota(quota) => Ways {
                store: Some((quota.store.clone(), Instant::now())),
                servers: None,
            },
            Self::Lease(lease) => Ways {
                store: None,
                servers: Some(lease.servers.folder().to_owned()),
            },
        }
    }
}

impl SharedQuota {
    fn change(&mut self, now: Millis) -> usize {
        let mut faults = 0;
        while let Some((_, fault)) = next_at(&mut self.faults, now) {
            match fault {
                StoreFault::IsCutOff => self.store.set_unavailable(true),
                StoreFault::Forgets => self.store.forget(),
                StoreFault::Ends => self.store.set_unavailable(false),
            }
            faults += usize::from(fault.begins());
        }
        if now.is_multiple_of(self.window) {
            self.in_window = 0;
        }
        faults
    }

    fn came(&mut self, now: Millis) -> Result<(), String> {
        debug_assert_eq!(STORE_BEGAN % self.window, 0);
        // It may be of the window before.
        if now % self.window < EDGE {
            return Ok(());
        }
        self.in_window += 1;
        match self.in_window > self.total {
            true => Err(format!(
                "{} calls in a window of {}",
                self.in_window, self.total
            )),
            false => Ok(()),
        }
    }
}

impl SharedLease {
    fn change(&mut self, now: Millis) -> usize {
        let mut faults = 0;
        while let Some((_, fault)) = next_at(&mut self.faults, now) {
            match fault {
                LeaseServerFault::Down(server) => self.servers.take_down(server),
                LeaseServerFault::MasterCutOff => self.servers.cut_off_master(true),
                LeaseServerFault::UpAgain(server) => self.servers.bring_up(server),
                LeaseServerFault::MasterReached => self.servers.cut_off_master(false),
            }
            faults += usize::from(fault.begins());
        }
        if now.is_multiple_of(ELECTS_EVERY) {
            self.servers.elect(now);
        }
        faults
    }

    fn came(&mut self, now: Millis) -> Result<(), String> {
        self.came.push_back(now);
        while self.came.front().is_some_and(|at| at + self.window <= now) {
            self.came.pop_front();
        }
        let came = self.came.len();
        match came > self.capacity {
            true => Err(format!(
                "{came} calls in {} ms, not {}",
                self.window, self.capacity
            )),
            false => Ok(()),
        }
    }
}
