//! What is wrong with a pattern.

use alloc::boxed::Box;
use core::error::Error;
use core::fmt;

use crate::identity::Field;

/// What is wrong with a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// Every field is any.
    NothingSet,
    /// A field is longer than can be held.
    TooLong {
        /// The field.
        field: Field,
        /// How long it is.   bytes
        bytes: usize,
        /// How long it may be.   bytes
        max: usize,
    },
    /// A field has a control character; no value on the wire has one.
    ControlCharacter {
        /// The field.
        field: Field,
    },
    /// `ip` is neither an address nor a network.
    NotAnAddress {
        /// The value as written.
        given: Box<str>,
    },
    /// `ip` has a `*` in place of part of a number.
    NotWholeNumbers {
        /// The value as written.
        given: Box<str>,
    },
    /// The prefix of a network is not a valid length.
    PrefixLength {
        /// The value as written.
        given: Box<str>,
        /// The longest valid prefix.   bits
        max: u8,
    },
    /// An address in a network was written with the network's prefix.
    HostBitsSet {
        /// The value as written.
        given: Box<str>,
        /// The network that the address is in.
        network: Box<str>,
    },
}

impl PatternError {
    /// The name of the wrong field; `match` if the mistake is in all of them together.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::NothingSet => "match",
            Self::TooLong { field, .. } | Self::ControlCharacter { field } => field.name(),
            Self::NotAnAddress { .. }
            | Self::NotWholeNumbers { .. }
            | Self::PrefixLength { .. }
            | Self::HostBitsSet { .. } => Field::Ip.name(),
        }
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field();
        match self {
            Self::NothingSet => write!(
                f,
                "{field}: at least one field must be set to more than \"*\""
            ),
            Self::TooLong { bytes, max, .. } => {
                write!(f, "{field} has {bytes} bytes, at most {max} are taken")
            }
            Self::ControlCharacter { .. } => {
                write!(f, "{field} has a control character; take it out")
            }
            Self::NotAnAddress { given } => write!(
                f,
                "{field} must be an address or a network such as 10.1.2.0/24, not {given:?}"
            ),
            Self::NotWholeNumbers { given } => write!(
                f,
                "{field} must have whole numbers before \"*\", as in 10.1.* or 2001:db8:*, or be \
                 a network such as 10.1.0.0/16, not {given:?}"
            ),
            Self::PrefixLength { given, max } => write!(
                f,
                "{field} must have a prefix of 0 to {max} bits after the slash, not {given:?}"
            ),
            Self::HostBitsSet { given, network } => write!(
                f,
                "{field} has bits set beyond its prefix: write {network} for the network that \
                 {given:?} is in"
            ),
        }
    }
}

impl Error for PatternError {}
