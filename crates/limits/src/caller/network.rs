//! Addresses and networks, as patterns and as what is seen.

use alloc::format;
use alloc::string::ToString;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::identity::Field;
use super::pattern::{Literal, PatternError, Space};

/// The longest way to write an address or a network.   bytes
const LENGTH_MAX: usize = 64;

/// The two kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Addresses with the same leading bits. What is not in the prefix is zero.
///
/// IPv4 addresses in IPv6 dress are IPv4 addresses throughout, so `::/0` is the IPv6
/// addresses only, and `::ffff:0:0/96` is `0.0.0.0/0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    family: Family,
    /// An IPv4 address stands in the first four.
    octets: [u8; 16],
    bits: u8,
}

impl Network {
    pub(super) fn single(address: IpAddr) -> Self {
        let (family, octets) = octets(address.to_canonical());
        Self {
            family,
            octets,
            bits: family.bits(),
        }
    }

    fn masked(mut self) -> Self {
        for (octet, first) in self.octets.iter_mut().zip((0_u8..).step_by(8)) {
            let kept = self.bits.saturating_sub(first).min(8);
            *octet &= !(0xff_u16 >> kept) as u8;
        }
        self
    }

    /// The lowest address in it.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        match self.family {
            Family::V4 => {
                let [a, b, c, d, ..] = self.octets;
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            Family::V6 => IpAddr::V6(Ipv6Addr::from(self.octets)),
        }
    }

    /// The length of its prefix, at most 32 or 128.   bits
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether it is one address.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.bits == self.family.bits()
    }

    /// Whether `address` is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let single = Self::single(address);
        let bits = self.bits;
        single.family == self.family && Self { bits, ..single }.masked() == *self
    }

    pub(super) fn demands(&self) -> Literal<'_> {
        let width = usize::from(self.family.bits() / 8);
        Literal {
            space: Space::Address(self.family),
            key: &self.octets[..width],
            bits: u16::from(self.bits),
            is_exact: self.is_exact(),
        }
    }
}

/// The address if it is one, else the network: `10.1.2.0/24`.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address())?;
        if self.is_exact() {
            Ok(())
        } else {
            write!(f, "/{}", self.bits)
        }
    }
}

/// The octets of an address, those of an IPv4 address in front.
pub(crate) fn octets(address: IpAddr) -> (Family, [u8; 16]) {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            (Family::V4, octets)
        }
        IpAddr::V6(address) => (Family::V6, address.octets()),
    }
}

pub(super) fn parse(text: &str) -> Result<Option<Network>, PatternError> {
    if text.is_empty() || text == "*" {
        return Ok(None);
    }
    if text.len() > LENGTH_MAX {
        return Err(PatternError::TooLong {
            field: Field::Ip,
            bytes: text.len(),
            max: LENGTH_MAX,
        });
    }
    if let Some(leading) = text.strip_suffix('*') {
        return leading_numbers(leading)
            .map(Some)
            .ok_or_else(|| PatternError::NotWholeNumbers { given: text.into() });
    }
    let not_an_address = || PatternError::NotAnAddress { given: text.into() };
    let Some((address, bits)) = text.split_once('/') else {
        let address = text.parse().map_err(|_| not_an_address())?;
        return Ok(Some(Network::single(address)));
    };
    let address: IpAddr = address.parse().map_err(|_| not_an_address())?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let bits =
        digits(bits)
            .filter(|bits| *bits <= max)
            .ok_or_else(|| PatternError::PrefixLength {
                given: text.into(),
                max,
            })?;
    network(address, bits)
        .map(Some)
        .map_err(|network| PatternError::HostBitsSet {
            given: text.into(),
            network: network.to_string().into(),
        })
}

/// The network of an address as written, where an IPv4 network may be in IPv6 dress; if bits
/// are set beyond the prefix, the network without them.
fn network(address: IpAddr, bits: u8) -> Result<Network, Network> {
    /// The bits that an IPv4 address is dressed in.
    const DRESS: u8 = 96;
    let plain = address.to_canonical();
    let (address, bits) = if plain != address && bits >= DRESS {
        (plain, bits - DRESS)
    } else {
        (address, bits)
    };
    let (family, octets) = octets(address);
    let given = Network {
        family,
        octets,
        bits,
    };
    let masked = given.masked();
    if given == masked {
        Ok(given)
    } else {
        Err(masked)
    }
}

/// A decimal number without a sign.
fn digits(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

/// The network of `10.1.` or `2001:db8:`: whole numbers, and the separator after the last.
fn leading_numbers(text: &str) -> Option<Network> {
    let (separator, max, width) = if text.ends_with('.') {
        ('.', 4, 8)
    } else {
        (':', 8, 16)
    };
    let numbers = text.strip_suffix(separator)?;
    let count = numbers.split(separator).count();
    if count >= max || numbers.split(separator).any(str::is_empty) {
        return None;
    }
    let zeros = max - count;
    let address = if separator == '.' {
        IpAddr::V4(format!("{numbers}{}", ".0".repeat(zeros)).parse().ok()?)
    } else {
        IpAddr::V6(format!("{numbers}{}", ":0".repeat(zeros)).parse().ok()?)
    };
    network(address, count as u8 * width).ok()
}
