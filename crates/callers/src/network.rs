//! Networks: addresses that begin alike.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// Addresses with the same leading bits. What is not in the prefix is zero.
///
/// IPv4 addresses in IPv6 dress are IPv4 addresses throughout, so `::/0` is the IPv6
/// addresses only, and `::ffff:0:0/96` is `0.0.0.0/0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The text is no address where one is expected.
    NotAnAddress,
    /// The length of the prefix is no whole number from 0 to this.   bits
    PrefixLength {
        /// 32 or 128.
        max: u8,
    },
    /// Bits are set behind the prefix; this is the network that was probably meant.
    HostBitsSet(Network),
}

impl Network {
    /// The network of a single address.
    #[must_use]
    pub fn single(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let bits = width(address);
        Self { address, bits }
    }

    /// The lowest address in it.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of its prefix, at most 32 or 128.   bits
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether it is one address.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.bits == width(self.address)
    }

    /// Whether `address` is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.bits) == self.address
    }
}

/// The leading bits of an IPv6 address that identify a client. Beyond them, a client chooses its address
/// as it likes: a network gets at least a /64, which has 2^64 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix(u8);

/// 64 bits.
impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

impl Ipv6Prefix {
    /// The whole address.
    pub const WHOLE: Self = Self(128);

    /// A prefix with this number of bits; `None` if that is 0 or above 128.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        match bits {
            1..=128 => Some(Self(bits)),
            _ => None,
        }
    }

    /// The length of the prefix, 1 to 128.   bits
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether other addresses count as the same client as this one.
    #[must_use]
    pub fn shortens(self, address: IpAddr) -> bool {
        self != Self::WHOLE && matches!(address.to_canonical(), IpAddr::V6(it) if !it.is_loopback())
    }

    /// The addresses that count as the same client as this one.
    #[must_use]
    pub fn of(self, address: IpAddr) -> Network {
        if !self.shortens(address) {
            return Network::single(address);
        }
        Network {
            address: masked(address, self.0),
            bits: self.0,
        }
    }
}

/// The bits of an address.
const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The leading bits of an address, and zeros; all of it if it has no more.
pub(crate) fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = bits.into();
    match address {
        IpAddr::V4(it) => Ipv4Addr::from_bits(it.to_bits() & !u32::MAX.unbounded_shr(bits)).into(),
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() & !u128::MAX.unbounded_shr(bits)).into(),
    }
}

/// Reads an address or a network, `10.1.2.0/24`.
impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let address = |text: &str| text.parse().map_err(|_| NetworkError::NotAnAddress);
        let Some((text, bits)) = text.split_once('/') else {
            return address(text).map(Self::single);
        };
        let address: IpAddr = address(text)?;
        let max = width(address);
        let bits = digits(bits)
            .filter(|bits| *bits <= max)
            .ok_or(NetworkError::PrefixLength { max })?;
        network(address, bits).map_err(NetworkError::HostBitsSet)
    }
}

/// The address if it is one, else the network: `10.1.2.0/24`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.is_exact() {
            Ok(())
        } else {
            write!(f, "/{}", self.bits)
        }
    }
}

/// The network of an address as written, where an IPv4 network may be in IPv6 dress; if bits
/// are set beyond the prefix, the network without them.
pub(crate) fn network(address: IpAddr, bits: u8) -> Result<Network, Network> {
    /// The bits that an IPv4 address is dressed in.
    const DRESS: u8 = 96;
    let plain = address.to_canonical();
    let (address, bits) = if plain != address && bits >= DRESS {
        (plain, bits - DRESS)
    } else {
        (address, bits)
    };
    let network = Network {
        address: masked(address, bits),
        bits,
    };
    if network.address == address {
        Ok(network)
    } else {
        Err(network)
    }
}

/// A decimal number without a sign.
fn digits(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

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
    fn a_client_is_its_prefix_of_ipv6_and_its_whole_address_otherwise() {
        let check = |bits, address: &str, network: &str| {
            let prefix = Ipv6Prefix::new(bits).expect("a prefix");
            let address = address.parse().expect("an address");
            assert_eq!(prefix.of(address).to_string(), network, "{address}/{bits}");
            assert_eq!(prefix.of(address).is_exact(), !prefix.shortens(address));
        };
        check(64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
        check(48, "2001:db8:1:2:3:4:5:6", "2001:db8:1::/48");
        check(128, "2001:db8::6", "2001:db8::6");
        check(64, "fe80::1", "fe80::/64");
        check(64, "::1", "::1");
        check(64, "10.1.2.3", "10.1.2.3");
        check(8, "::ffff:10.1.2.3", "10.1.2.3");
        assert_eq!(Ipv6Prefix::new(0), None);
        assert_eq!(Ipv6Prefix::new(129), None);
        assert_eq!(Ipv6Prefix::default().bits(), 64);
    }

    #[test]
    fn an_invalid_network_is_reported_with_its_mistake() {
        let wrong = |texts: &[&str], told: NetworkError| {
            for text in texts {
                assert_eq!(text.parse::<Network>(), Err(told), "{text}");
            }
        };
        wrong(
            &["", "/", "10.0.0/8", "x/8", "10.0.0.0 /8", "[::1]/128"],
            NetworkError::NotAnAddress,
        );
        wrong(
            &[
                "10.0.0.0/",
                "10.0.0.0/33",
                "10.0.0.0/+8",
                "10.0.0.0/8/8",
                "10.0.0.0/99999999999",
            ],
            NetworkError::PrefixLength { max: 32 },
        );
        wrong(&["::/129"], NetworkError::PrefixLength { max: 128 });
        let meant = "10.0.0.0/8".parse().expect("a network");
        wrong(&["10.1.2.3/8"], NetworkError::HostBitsSet(meant));
        assert_eq!(meant.to_string(), "10.0.0.0/8");
    }
}
