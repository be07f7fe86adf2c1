//! The proxies that are trusted to name their clients.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate_callers::Network;

use crate::call::Peer;

/// The trusted proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// By their addresses.
    pub networks: Arc<[Network]>,
    /// Whether every process that may connect to a Unix socket is one.
    pub unix: bool,
}

impl TrustedProxies {
    /// Whether a peer is trusted.
    #[must_use]
    pub fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.contains(address.ip()),
            Peer::Unix { .. } => self.unix,
        }
    }

    /// Whether an address is that of a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }
}
