//! Handles of a resource's users, and the slots that they hold.

use std::sync::Arc;

use tidegate_limits::Tokens;

use super::entitlement::{NotACapacity, capacity};
use super::line::{HandleDemand, WaitError};
use super::{OpenResource, ResourceState};

/// A handle, from one opening of a resource.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) number: u64,
    pub(super) resource: Arc<OpenResource>,
}

/// A resource whose capacity is operations a second. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct RateResource(pub(super) Arc<Handle>);

/// A resource whose capacity is holders at once. Clones are the same handle.
#[derive(Clone, Debug)]
pub struct GaugeResource(pub(super) Arc<Handle>);

/// A place of a [`GaugeResource`], released when dropped.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Guard(pub(super) Arc<Handle>);

impl RateResource {
    /// Waits until one operation may run, in the order of arrival. Dropping the future leaves the
    /// line, and nothing is lost.
    ///
    /// # Errors
    ///
    /// If too many wait, or the client was closed.
    pub async fn wait(&self) -> Result<(), WaitError> {
        self.wait_with_cost(Tokens::ONE).await
    }

    /// Waits until an operation that counts as `cost` operations may run. An expensive one runs
    /// when one of cost 1 could, and those behind it wait until it is paid for.
    ///
    /// # Errors
    ///
    /// If too many wait, or the client was closed.
    pub async fn wait_with_cost(&self, cost: Tokens) -> Result<(), WaitError> {
        self.0.pass(cost).await
    }

    /// Sets the demand from now on, in operations a second. `None`: measured from use.
    ///
    /// # Errors
    ///
    /// If it is not a finite number from 0 up.
    pub fn set_wants(&self, per_second: Option<f64>) -> Result<(), NotACapacity> {
        self.0.set_wants(per_second)
    }

    /// The state of the resource.
    #[must_use]
    pub fn state(&self) -> ResourceState {
        self.0.state()
    }
}

impl GaugeResource {
    /// Waits for a place, which is taken until the guard is dropped, in the order of arrival.
    /// Dropping the future leaves the line, and nothing is lost. A smaller lease takes no place
    /// away: no operation is admitted until fewer places are taken.
    ///
    /// # Errors
    ///
    /// If too many wait, or the client was closed.
    pub async fn enter(&self) -> Result<Guard, WaitError> {
        self.0.pass(Tokens::ONE).await?;
        Ok(Guard(Arc::clone(&self.0)))
    }

    /// Sets the demand of places from now on. `None`: measured from use.
    ///
    /// # Errors
    ///
    /// If it is not a finite number from 0 up.
    pub fn set_wants(&self, places: Option<f64>) -> Result<(), NotACapacity> {
        self.0.set_wants(places)
    }

    /// The state of the resource.
    #[must_use]
    pub fn state(&self) -> ResourceState {
        self.0.state()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.resource.line.give_back(self.0.number);
    }
}

impl Handle {
    async fn pass(&self, cost: Tokens) -> Result<(), WaitError> {
        let resource = &*self.resource;
        let tell = |wants| resource.tell(wants);
        resource.line.pass(self.number, cost, tell).await
    }

    fn set_wants(&self, wants: Option<f64>) -> Result<(), NotACapacity> {
        let wants = match wants {
            Some(wants) => HandleDemand::Fixed(capacity("wants", wants)?),
            None => HandleDemand::Measured { at_first: 0.0 },
        };
        let line = &self.resource.line;
        line.set_wants(self.number, wants);
        self.resource.tell(line.wants());
        Ok(())
    }

    fn state(&self) -> ResourceState {
        self.resource.line.state(&self.resource.id)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.resource.line.remove_handle(self.number);
    }
}
