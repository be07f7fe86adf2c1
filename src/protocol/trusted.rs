//! The proxies that are trusted to name their clients.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate_callers::{Network, NetworkError};

use crate::call::Peer;
use crate::options::kind::{list, text};
use crate::options::shown::quoted;
use crate::options::{Mistake, ValueKind, options};

options! {
    /// The clients behind proxies, and callers.
    pub struct ProxiesSection {
        /// Proxies that are trusted to name their client: in a PROXY header, in Forwarded, or in
        /// X-Forwarded-For. From any other peer such a header is ignored. "unix" stands for every
        /// process that may connect to a socket file. Name the proxy's own address. Name a loopback
        /// address only if no other process on this machine could lie about its client.
        trusted_proxies: TrustedProxies = TrustedProxies::kind().or(TrustedProxies::default()).first(16);
    }
}

/// The trusted proxies. By default not even this machine: any process on it could choose its own
/// address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    fn kind() -> ValueKind<Self> {
        let entry = text(
            "\"unix\", or a network",
            "10.0.0.0/8",
            |given| match given {
                "unix" => Ok(given.to_owned()),
                _ => network(given).map(|network| network.to_string()),
            },
        );
        // Each address that is forwarded is compared with all of them.
        let entries = list(
            256,
            "[\"127.0.0.1/32\", \"10.0.0.0/8\"], or \"unix\"",
            entry,
        );
        let allowed = "a list of addresses, networks as address/prefix, or \"unix\"";
        entries.described(allowed).map(
            |entries| Self {
                networks: entries
                    .iter()
                    .filter_map(|entry| entry.parse().ok())
                    .collect(),
                unix: entries.iter().any(|entry| entry == "unix"),
            },
            |trusted| {
                let networks = trusted.networks.iter().map(ToString::to_string);
                networks
                    .chain(trusted.unix.then(|| "unix".to_owned()))
                    .collect()
            },
        )
    }
}

fn network(given: &str) -> Result<Network, Mistake> {
    const FORM: &str = "write it as 192.0.2.1, 10.0.0.0/8, 2001:db8::/32, or unix";
    given.trim().parse().map_err(|error| {
        let (cause, cure) = match error {
            NetworkError::HostBitsSet(network) => (
                "has bits behind its prefix".to_owned(),
                format!("did you mean {}?", quoted(&network.to_string())),
            ),
            NetworkError::NotAnAddress => (
                "is neither an address nor a network".to_owned(),
                FORM.to_owned(),
            ),
            NetworkError::PrefixLength { max } => (
                format!("has no prefix length from 0 to {max}"),
                FORM.to_owned(),
            ),
        };
        Mistake::new(format!("{} {cause}", quoted(given)), cure)
    })
}
