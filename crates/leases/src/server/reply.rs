//! What can be said to any question: that somebody else is the master.

use crate::wire::{self, Mastership};

/// An answer that can say that somebody else is the master.
pub(super) trait Reply {
    /// Says so and nothing else. Without an address there is a master or there is none: nobody here
    /// knows.
    fn redirect(master: Mastership) -> Self;
    /// Whether it says nothing but who the master is.
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

/// Who the master is is what was asked.
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
