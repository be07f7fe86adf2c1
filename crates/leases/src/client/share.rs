//! A share of a resource for a user that keeps to it itself, without a line. The user gets the
//! lease and its end, and reports its demand and use.
//!
//! What a client reports to have decides what the servers grant to others. After a smaller lease,
//! a user uses the larger one for a moment: calls under way cannot be called back, and recent
//! calls count in their window. So `has` is the largest of the lease, the amount in force and the
//! amount in use. A smaller lease is confirmed only once the user keeps to it, and only then the
//! difference is free for others.

use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_limits::Timestamp;
use tidegate_runtime::lock;
use tokio_util::sync::DropGuard;

use super::ClientState;
use super::demand::Peaks;
use super::entitlement::{Allowance, Entitlement, capacity};

/// The report of the user of a [`CapacityShare`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShareReport {
    /// The demand, including waiting calls.
    pub needs: f64,
    /// The most that the user admits now. Read together with `in_use`, at one moment.
    pub in_force: f64,
    /// The amount that is in use and cannot be called back.
    pub in_use: f64,
}

/// A lease, for the user of a [`CapacityShare`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareLease {
    /// How much, from 0 up.
    pub capacity: f64,
    /// The end of the lease, on the clock of the client.
    pub expires: Timestamp,
}

/// A share of a resource, without a line. Dropping it releases it; it must no longer be in use
/// then.
#[derive(Debug)]
pub struct CapacityShare(pub(super) Arc<ShareHandle>);

#[derive(Debug)]
pub(super) struct ShareHandle {
    pub(super) id: Arc<str>,
    pub(super) client: Arc<ClientState>,
    pub(super) state: Mutex<ShareState>,
    pub(super) _lifetime: Arc<DropGuard>,
}

#[derive(Debug)]
pub(super) struct ShareState {
    pub(super) entitlement: Entitlement,
    /// The minimum demand.
    pub(super) wants_min: f64,
    pub(super) needs: f64,
    pub(super) peaks: Peaks,
}

impl CapacityShare {
    /// Reports the current need and use. The demand for the servers is the highest need of the last
    /// ten seconds.
    ///
    /// Invalid numbers count as nothing needed and all used.
    pub fn report(&self, of: ShareReport) {
        let sound = |given: f64, otherwise: f64| {
            if given.is_finite() && given >= 0.0 {
                given
            } else {
                otherwise
            }
        };
        let used = sound(of.in_force, f64::MAX).max(sound(of.in_use, f64::MAX));
        let shared = &self.0;
        let now = shared.client.clock.now();
        let wants = {
            let mut state = shared.state();
            state.needs = sound(of.needs, 0.0);
            state.wants(now)
        };
        let is_sooner = {
            let mut registry = lock(&shared.client.registry);
            registry.leases.set_in_use(&shared.id, used);
            registry.leases.set_wants(now, &shared.id, wants)
        };
        if is_sooner {
            shared.client.wake.notify_one();
        }
    }

    /// Sets the minimum demand. An invalid number changes nothing.
    pub fn set_wants_min(&self, wants_min: f64) {
        if let Ok(wants_min) = capacity("wants_min", wants_min) {
            self.0.state().wants_min = wants_min;
        }
    }

    /// The lease, unless it has ended.
    #[must_use]
    pub fn lease(&self) -> Option<ShareLease> {
        let now = self.0.client.clock.now();
        let held = self.0.state().entitlement.live(now)?;
        Some(ShareLease {
            capacity: held.capacity,
            expires: held.expires,
        })
    }

    /// The demand for the servers.
    #[must_use]
    pub fn wants(&self) -> f64 {
        self.0.state().wants(self.0.client.clock.now())
    }

    /// The safe capacity that the servers sent, if any.
    #[must_use]
    pub fn safe_capacity(&self) -> Option<Allowance> {
        let safe = self.0.state().entitlement.safe?;
        Some(safe.allowance())
    }
}

impl ShareHandle {
    pub(super) fn state(&self) -> MutexGuard<'_, ShareState> {
        lock(&self.state)
    }
}

impl ShareState {
    pub(super) fn wants(&mut self, now: Timestamp) -> f64 {
        let needs = self.needs;
        self.peaks.most(now, needs).max(self.wants_min)
    }
}

// Not of the shared state: the client holds that briefly on another thread, and the resource
// must be free at once for another share.
impl Drop for CapacityShare {
    fn drop(&mut self) {
        let ShareHandle { id, client, .. } = &*self.0;
        let mut registry = lock(&client.registry);
        let this = Arc::as_ptr(&self.0);
        let is_this = |other: &std::sync::Weak<ShareHandle>| std::ptr::eq(other.as_ptr(), this);
        if registry.shares.get(id).is_some_and(is_this) {
            registry.shares.remove(id);
            registry.leases.leave(id);
        }
        drop(registry);
        client.wake.notify_one();
    }
}

#[cfg(test)]
mod laws;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ClientOptions, LeaseClient};

    #[tokio::test]
    async fn a_resource_is_free_for_another_share_while_the_client_still_looks_at_the_old_one() {
        let server = "127.0.0.1:1".parse().expect("an address");
        let client = LeaseClient::new(vec![server], ClientOptions::default()).expect("a server");
        let share = client.share("calls", 1.0).expect("it is free");
        // As the client's own task sometimes does.
        let looked_at = Arc::clone(&share.0);
        drop(share);
        let share = client.share("calls", 2.0).expect("it is free again");
        drop(looked_at);
        assert!(client.share("calls", 3.0).is_err(), "it is in use");
        drop(share);
    }
}
