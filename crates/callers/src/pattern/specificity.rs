//! Which of two patterns is more specific.

use super::literal::{LITERAL_MAX, Literal};
use crate::identity::{Field, FieldSet};

/// How specific a pattern is; a greater value is more specific.
///
/// More exact fields come first; then more literal bits; then, field by field in the order of
/// [`Field`], exact before prefix before any, and more literal bits before fewer; then the lower
/// id. Lengths are in bits everywhere, so that text and addresses compare: a byte of text has 8,
/// a network the length of its prefix, an exact address 32 or 128.
///
/// Two different patterns that match the same identity never tie up to the id: they would need
/// the same kind and length in every field, hence the same literals. So for any one call the
/// order depends only on the patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Specificity {
    exact_fields: u8,
    literal_bits: u16,
    /// For each field [`EXACT`] or [`PREFIX`] with its literal bits, or 0 for any.
    fields: [u16; Field::ALL.len()],
}

const PREFIX: u16 = 1 << 12;
const EXACT: u16 = 2 << 12;
/// The bits of a literal stay below the kind of the field.
const _: () = assert!(8 * LITERAL_MAX < PREFIX as usize);

impl Specificity {
    /// No field is required: only the row for unknown callers.
    pub(crate) const NONE: Self = Self {
        exact_fields: 0,
        literal_bits: 0,
        fields: [0; Field::ALL.len()],
    };

    /// The specificity of these fields.
    pub(super) fn of(literals: [Option<Literal<'_>>; Field::ALL.len()]) -> Self {
        let mut specificity = Self::NONE;
        for (place, literal) in specificity.fields.iter_mut().zip(literals) {
            let Some(literal) = literal else { continue };
            specificity.exact_fields += u8::from(literal.is_exact);
            specificity.literal_bits += literal.bits;
            *place = if literal.is_exact { EXACT } else { PREFIX } | literal.bits;
        }
        specificity
    }

    /// The number of fields that must match exactly.
    #[must_use]
    pub const fn exact_fields(&self) -> u8 {
        self.exact_fields
    }

    /// The literal bits of all fields.   bits
    #[must_use]
    pub const fn literal_bits(&self) -> u16 {
        self.literal_bits
    }

    /// The fields that must match exactly.
    pub(crate) fn exact_set(&self) -> FieldSet {
        Field::ALL
            .into_iter()
            .zip(self.fields)
            .filter(|(_, demanded)| *demanded >= EXACT)
            .map(|(field, _)| field)
            .collect()
    }
}
