//! Stands in for `coordination` in a build without the feature `leases`: no limit is shared.

use std::sync::Arc;

use tidegate_leases::sharing::SharingSettings;
use tidegate_runtime::metric::Registry;

use super::Surroundings;
use super::shares::ShareNow;
use crate::admit::{self, Gate};
use crate::callers::Callers;

pub(super) struct Coordination;

impl Coordination {
    pub(super) fn new(
        _: Gate,
        _: Callers,
        _: &Surroundings,
        _: &Registry,
        _: Option<&str>,
    ) -> Self {
        Self
    }

    /// The config refuses `[coordinate]`, so there is nothing to apply.
    pub(super) fn apply(&self, _: Option<&SharingSettings>, _: &admit::GateSettings) {}

    pub(super) async fn keep_carrying(self: Arc<Self>) {}

    pub(super) fn suspend(&self) {}

    pub(super) fn resume(&self, _: Option<&str>) {}

    pub(super) async fn close(&self) {}

    pub(super) fn master(&self) -> Option<String> {
        None
    }

    pub(super) fn shares(&self) -> Vec<ShareNow> {
        Vec::new()
    }
}
