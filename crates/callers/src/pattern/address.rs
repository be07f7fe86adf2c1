//! Patterns of an address.

use alloc::format;
use alloc::string::ToString;
use core::net::IpAddr;

use super::error::PatternError;
use super::specificity::FieldDemand;
use crate::identity::IdentityField;
use crate::network::{Network, NetworkError, network};

/// The longest way to write an address or a network.   bytes
const LENGTH_MAX: usize = 64;

/// The demand of a network on an address.
pub(super) fn demand(network: &Network) -> FieldDemand {
    let bits = network.bits().into();
    match network.is_exact() {
        true => FieldDemand::Exact(bits),
        false => FieldDemand::Prefix(bits),
    }
}

/// Reads the pattern of an address. `None` matches any.
pub(super) fn parse(text: &str) -> Result<Option<Network>, PatternError> {
    if text.is_empty() || text == "*" {
        return Ok(None);
    }
    if text.len() > LENGTH_MAX {
        return Err(PatternError::TooLong {
            field: IdentityField::Ip,
            bytes: text.len(),
            max: LENGTH_MAX,
        });
    }
    if let Some(leading) = text.strip_suffix('*') {
        return leading_numbers(leading)
            .map(Some)
            .ok_or_else(|| PatternError::NotWholeNumbers { given: text.into() });
    }
    text.parse().map(Some).map_err(|error| {
        let given = text.into();
        match error {
            NetworkError::NotAnAddress => PatternError::NotAnAddress { given },
            NetworkError::PrefixLength { max } => PatternError::PrefixLength { given, max },
            NetworkError::HostBitsSet(network) => PatternError::HostBitsSet {
                given,
                network: network.to_string().into(),
            },
        }
    })
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
