//! What one field of a pattern requires of an identity.

use crate::identity::Field;

/// The longest literal of one field. A longer value matches no pattern.   bytes
pub const LITERAL_MAX: usize = 256;

/// What one field of a pattern requires: the first `bits` of `key`, and if it is exact, nothing
/// after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Literal<'a> {
    pub(crate) space: Space,
    pub(crate) key: &'a [u8],
    pub(crate) bits: u16,
    pub(crate) is_exact: bool,
}

/// The space of comparable keys: a field of text, or a family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Text(Field),
    Address(Family),
}

/// The two kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}
