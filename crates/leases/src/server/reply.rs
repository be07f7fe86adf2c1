//! The answer that is possible for any request: another server is the master.

use crate::wire::{self, Mastership};

/// An answer that can name another master.
pub(super) trait ServerReply: Default {
    /// Contains only that. Without an address, it is unknown whether there is a master.
    fn redirect(master: Mastership) -> Self {
        let mut answer = Self::default();
        answer.set_master(master);
        answer
    }

    fn set_master(&mut self, master: Mastership);

    /// Whether it contains only the master.
    fn redirects(&self) -> bool;
}

macro_rules! replies {
    ($($Response:ident),+) => {$(
        impl ServerReply for wire::$Response {
            fn set_master(&mut self, master: Mastership) {
                self.mastership = Some(master);
            }

            fn redirects(&self) -> bool {
                self.mastership.is_some()
            }
        }
    )+};
}

replies!(
    GetCapacityResponse,
    GetServerCapacityResponse,
    ReleaseCapacityResponse
);

/// The request was for the master.
impl ServerReply for wire::DiscoveryResponse {
    fn set_master(&mut self, master: Mastership) {
        self.mastership = master;
    }

    fn redirects(&self) -> bool {
        false
    }
}
