//! The demands of a pattern on each field, and which of two patterns is more specific.

use super::LITERAL_MAX;
use crate::identity::{FieldSet, IdentityField};

/// The demand of a pattern on one field. The more specific is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FieldDemand {
    Nothing,
    /// The field begins with this many given bits.
    Prefix(u16),
    /// The field has exactly this many given bits.
    Exact(u16),
}

/// The demands of all patterns of one shape on each field. Whole values may have any length.
pub(crate) type PatternShape = [FieldDemand; IdentityField::ALL.len()];

/// The longest literal has a length.
const _: () = assert!(8 * LITERAL_MAX <= u16::MAX as usize);

/// How specific a pattern is; a greater value is more specific.
///
/// More exact fields come first; then more literal bits; then, field by field in the order of
/// [`IdentityField`], exact before prefix before any, and more literal bits before fewer; then the lower
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
    fields: [FieldDemand; IdentityField::ALL.len()],
}

impl Specificity {
    /// No field is required: only the row for unknown callers.
    pub(crate) const NONE: Self = Self {
        exact_fields: 0,
        literal_bits: 0,
        fields: [FieldDemand::Nothing; IdentityField::ALL.len()],
    };

    /// The specificity of a pattern that demands this of each field.
    pub(super) fn of(fields: [FieldDemand; IdentityField::ALL.len()]) -> Self {
        let mut specificity = Self {
            fields,
            ..Self::NONE
        };
        for demand in fields {
            match demand {
                FieldDemand::Nothing => {}
                FieldDemand::Prefix(bits) => specificity.literal_bits += bits,
                FieldDemand::Exact(bits) => {
                    specificity.literal_bits += bits;
                    specificity.exact_fields += 1;
                }
            }
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

    /// The literal bits of one field.   bits
    pub(crate) const fn literal_bits_of(&self, field: IdentityField) -> u16 {
        match self.fields[field as usize] {
            FieldDemand::Nothing => 0,
            FieldDemand::Prefix(bits) | FieldDemand::Exact(bits) => bits,
        }
    }

    /// The fields that must match exactly.
    pub(crate) fn exact_set(&self) -> FieldSet {
        let fields = IdentityField::ALL.into_iter().zip(self.fields);
        let exact = fields.filter(|(_, demand)| matches!(demand, FieldDemand::Exact(_)));
        exact.map(|(field, _)| field).collect()
    }

    pub(crate) fn shape(&self) -> PatternShape {
        self.fields.map(|demand| match demand {
            FieldDemand::Exact(_) => FieldDemand::Exact(0),
            FieldDemand::Nothing | FieldDemand::Prefix(_) => demand,
        })
    }
}
