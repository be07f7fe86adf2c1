//! Which peers are believed when they say for whom they ask.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use crate::call::Peer;

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u32,
}

/// Why a text is no [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotANetwork {
    /// It is no address with or without a prefix.
    Malformed,
    /// Bits are set behind the prefix; this is the network that was probably meant.
    HostBits(Network),
}

impl Network {
    /// One address.
    #[must_use]
    pub fn only(address: IpAddr) -> Self {
        Self {
            first: address,
            prefix: bits(address),
        }
    }

    /// Whether an address is in it. One of IPv4 that is written as IPv6 is one of IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        bits(address) == bits(self.first) && masked(address, self.prefix) == self.first
    }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all bits behind the prefix cleared.
fn masked(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork::Malformed)?;
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map_err(|_| NotANetwork::Malformed)?
            }
            Some(_) => return Err(NotANetwork::Malformed),
            None => bits(address),
        };
        if prefix > bits(address) {
            return Err(NotANetwork::Malformed);
        }
        let first = masked(address, prefix);
        let network = Self { first, prefix };
        if first == address {
            Ok(network)
        } else {
            Err(NotANetwork::HostBits(network))
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

/// The proxies that are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// By their addresses.
    pub networks: Arc<[Network]>,
    /// Whether whoever may connect to a Unix socket is one.
    pub unix: bool,
}

impl TrustedProxies {
    /// Whether a peer is believed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_that_its_prefix_says() {
        let check = |network: &str, address: &str, is_in: bool| {
            let network: Network = network.parse().expect("a network");
            let address = address.parse().expect("an address");
            assert_eq!(network.contains(address), is_in, "{network} {address}");
        };
        check("127.0.0.1/32", "127.0.0.1", true);
        check("127.0.0.1/32", "127.0.0.2", false);
        check("127.0.0.1", "::ffff:127.0.0.1", true);
        check("10.0.0.0/8", "10.255.255.255", true);
        check("10.0.0.0/8", "11.0.0.0", false);
        check("192.168.4.0/22", "192.168.7.255", true);
        check("192.168.4.0/22", "192.168.8.0", false);
        check("0.0.0.0/0", "255.1.2.3", true);
        check("0.0.0.0/0", "::1", false);
        check("::/0", "2001:db8::1", true);
        check("::/0", "1.2.3.4", false);
        check("2001:db8::/33", "2001:db8:7fff::1", true);
        check("2001:db8::/33", "2001:db8:8000::", false);
        check("::1/128", "::1", true);
    }

    #[test]
    fn a_text_that_is_no_network_is_told_from_one_with_bits_too_many() {
        let malformed = |text: &str| {
            let error = text.parse::<Network>().expect_err(text);
            assert_eq!(error, NotANetwork::Malformed, "{text}");
        };
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/+8",
            "x/8",
            "10.0.0.0/8/8",
            "10.0.0.0 /8",
            "[::1]/128",
            "10.0.0.0/99999999999",
        ] {
            malformed(text);
        }
        let meant = "10.0.0.0/8".parse().expect("a network");
        assert_eq!(
            "10.1.2.3/8".parse::<Network>(),
            Err(NotANetwork::HostBits(meant))
        );
        assert_eq!(meant.to_string(), "10.0.0.0/8");
    }
}
