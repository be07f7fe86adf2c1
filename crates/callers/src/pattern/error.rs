//! Mistakes in a pattern.

use alloc::boxed::Box;

use crate::identity::IdentityField;
use crate::macros::errors;

errors! {
    /// A mistake in a pattern.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum PatternError {
        /// Every field is any.
        NothingSet in "match", (": at least one field must be set to more than \"*\"");
        /// A field is longer than can be held.
        TooLong {
            /// The field.
            field: IdentityField,
            /// How long it is.   bytes
            bytes: usize,
            /// How long it may be.   bytes
            max: usize,
        } in field.name(), (" has {bytes} bytes, at most {max} are taken");
        /// A field has a control character; no value on the wire has one.
        ControlCharacter {
            /// The field.
            field: IdentityField,
        } in field.name(), (" has a control character; take it out");
        /// `ip` is neither an address nor a network.
        NotAnAddress {
            /// The value as written.
            given: Box<str>,
        } in IdentityField::Ip.name(), (" must be an address or a network such as 10.1.2.0/24, not {given:?}");
        /// `ip` has a `*` in place of part of a number.
        NotWholeNumbers {
            /// The value as written.
            given: Box<str>,
        } in IdentityField::Ip.name(), (
            " must have whole numbers before \"*\", as in 10.1.* or 2001:db8:*, or be a network such as \
             10.1.0.0/16, not {given:?}"
        );
        /// The prefix of a network is not a valid length.
        PrefixLength {
            /// The value as written.
            given: Box<str>,
            /// The longest valid prefix.   bits
            max: u8,
        } in IdentityField::Ip.name(), (
            " must have a prefix of 0 to {max} bits after the slash, not {given:?}"
        );
        /// An address in a network was written with the network's prefix.
        HostBitsSet {
            /// The value as written.
            given: Box<str>,
            /// The network that the address is in.
            network: Box<str>,
        } in IdentityField::Ip.name(), (
            " has bits set beyond its prefix: write {network} for the network that {given:?} is in"
        );
    }
}
