//! Patterns of a field of text.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt::{self, Write as _};

use super::error::PatternError;
use super::{FieldDemand, LITERAL_MAX};
use crate::identity::IdentityField;

/// The pattern of a field of text.
///
/// "Any" is the prefix of no bytes, so it needs no separate case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextPattern {
    literal: Box<str>,
    /// Not with an empty literal: no identity has one.
    is_exact: bool,
}

impl TextPattern {
    pub(super) fn any() -> Self {
        Self {
            literal: Box::default(),
            is_exact: false,
        }
    }

    pub(super) fn parse(field: IdentityField, text: &str) -> Result<Self, PatternError> {
        // A literal's byte takes at most two when written, and `*` ends it.
        if text.len() > 2 * LITERAL_MAX + 1 {
            return Err(too_long(field, text));
        }
        let mut literal = String::with_capacity(text.len());
        let mut is_exact = true;
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '*' if rest.as_str().is_empty() => is_exact = false,
                '\\' if rest.as_str().starts_with(['*', '\\']) => literal.extend(rest.next()),
                c => literal.push(c),
            }
        }
        if literal.is_empty() {
            return Ok(Self::any());
        }
        check_literal(field, &literal)?;
        Ok(Self {
            literal: literal.into(),
            is_exact,
        })
    }

    /// Matches exactly this value, with any characters in it.
    pub(super) fn exact(field: IdentityField, seen: &str) -> Result<Self, PatternError> {
        check_literal(field, seen)?;
        Ok(Self {
            literal: seen.into(),
            is_exact: true,
        })
    }

    /// Whether it matches any value.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.literal.is_empty()
    }

    /// Whether it matches one value only.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// The value, or its prefix.
    #[must_use]
    pub const fn literal(&self) -> &str {
        &self.literal
    }

    pub(super) fn matches(&self, seen: Option<&str>) -> bool {
        match seen {
            None => self.is_any(),
            Some(seen) if self.is_exact => *seen == *self.literal,
            Some(seen) => seen.starts_with(&*self.literal),
        }
    }

    pub(super) const fn demand(&self) -> FieldDemand {
        let bits = self.literal.len() as u16 * 8;
        match (self.is_any(), self.is_exact) {
            (true, _) => FieldDemand::Nothing,
            (false, true) => FieldDemand::Exact(bits),
            (false, false) => FieldDemand::Prefix(bits),
        }
    }
}

/// The shortest form: a backslash is escaped only where it would read as an escape, a `*` only
/// where it would read as a prefix.
impl fmt::Display for TextPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.literal.chars();
        while let Some(c) = rest.next() {
            let after = rest.as_str();
            let is_last = after.is_empty();
            let is_special = match c {
                '*' => is_last && self.is_exact,
                '\\' => after.starts_with(['*', '\\']) || is_last && !self.is_exact,
                _ => false,
            };
            if is_special {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        if self.is_exact || self.is_any() {
            Ok(())
        } else {
            f.write_char('*')
        }
    }
}

pub(super) fn check_literal(field: IdentityField, literal: &str) -> Result<(), PatternError> {
    if literal.len() > LITERAL_MAX {
        return Err(too_long(field, literal));
    }
    if literal.chars().any(char::is_control) {
        return Err(PatternError::ControlCharacter { field });
    }
    Ok(())
}

pub(super) fn too_long(field: IdentityField, text: &str) -> PatternError {
    PatternError::TooLong {
        field,
        bytes: text.len(),
        max: LITERAL_MAX,
    }
}
