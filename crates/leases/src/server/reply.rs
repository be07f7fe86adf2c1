//! The answer that is possible for any request: another server is the master.

use crate::wire::{self, Mastership};

/// An answer that can name another master.
pub(super) trait Reply {
    /// Contains only that. Without an address, it is unknown whether there is a master.
    fn redirect(master: Mastership) -> Self;
    /// Whether it contains only the master.
    fn redirects(&self) -> bool;
}

impl Reply for wire::GetCapacityResponse {
    fn redirect(master: Mastership) -> Self {
        Self {
            response: Vec::new(),
            mastership: Some(master),
        }
    }

    fn redirects(&self) -> bool {
        self.mastership.is_some()
    }
}

impl Reply for wire::GetServerCapacityResponse {
    fn redirect(master: Mastership) -> Self {
        Self {
            response: Vec::new(),
            mastership: Some(master),
        }
    }

    fn redirects(&self) -> bool {
        self.mastership.is_some()
    }
}

impl Reply for wire::ReleaseCapacityResponse {
    fn redirect(master: Mastership) -> Self {
        Self {
            mastership: Some(master),
        }
    }

    fn redirects(&self) -> bool {
        self.mastership.is_some()
    }
}

/// The request was for the master.
impl Reply for wire::DiscoveryResponse {
    fn redirect(master: Mastership) -> Self {
        Self {
            mastership: master,
            is_master: false,
        }
    }

    fn redirects(&self) -> bool {
        false
    }
}
