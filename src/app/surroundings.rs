//! The clock of a process, and the ways to its stores and lease servers. A simulation has others.

#[cfg(feature = "leases")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "leases")]
use tidegate_leases::client::Dial;
use tidegate_quota::Engine;
use tidegate_runtime::Clock;

use super::quotas::StoreOpener;

/// The clock has moments for what the processes of this time before did. No window is longer.
pub const PAST: Duration = Duration::from_secs(25 * 60 * 60);

/// The clock of a process, and the ways to its stores and lease servers.
pub struct Surroundings {
    /// Counts its time.
    pub clock: Clock,
    /// Opens the store of its quotas, unless that is in its own memory.
    pub open: StoreOpener,
    /// Connects to lease servers; `None` for the network.
    #[cfg(feature = "leases")]
    pub dial: Option<Arc<dyn Dial>>,
}

impl Surroundings {
    /// The clock and the network of this machine.
    #[must_use]
    pub fn real() -> Self {
        Self {
            clock: Clock::with_past(PAST),
            open: Box::new(Engine::open),
            #[cfg(feature = "leases")]
            dial: None,
        }
    }
}
