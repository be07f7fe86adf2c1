//! Texts that operators give callers: labels, groups, notes.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::borrow::Borrow;
use core::fmt;

use crate::macros::errors;

/// The longest label.   bytes
const LABEL_MAX: usize = 128;
/// The longest name of a group.   bytes
const GROUP_MAX: usize = 64;
/// The longest notes.   bytes
const NOTES_MAX: usize = 1024;

/// The label that operators give a caller: not empty, in one line, at most 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Box<str>);

impl Label {
    /// Takes `text` as a label.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or has a control character.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let field = "label";
        not_empty(field, text)?;
        not_above(field, text, LABEL_MAX)?;
        if text.chars().any(char::is_control) {
            return Err(NameError::ControlCharacter { field });
        }
        Ok(Self(text.into()))
    }
}

/// The name of a group of callers, which may become the value of a metric's label: 1 to 64
/// of the letters A to Z and a to z, digits, `_`, `-` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(Arc<str>);

impl Group {
    /// Takes `text` as the name of a group.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or has another character.
    pub fn new(text: &str) -> Result<Self, NameError> {
        not_empty("group", text)?;
        not_above("group", text, GROUP_MAX)?;
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match text.chars().find(|c| !is_good(*c)) {
            Some(given) => Err(NameError::GroupCharacter { given }),
            None => Ok(Self(text.into())),
        }
    }
}

impl Borrow<str> for Group {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Notes that operators keep about a caller; they may be empty. At most 1,024 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Notes(Box<str>);

impl Notes {
    /// Takes `text` as notes.
    ///
    /// # Errors
    ///
    /// If it is too long, or has a control character other than a line feed or a tab.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let field = "notes";
        not_above(field, text, NOTES_MAX)?;
        let is_bad = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        if text.chars().any(is_bad) {
            return Err(NameError::ControlCharacter { field });
        }
        Ok(Self(text.into()))
    }
}

macro_rules! text {
    ($($Name:ident),*) => {$(
        impl $Name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text!(Label, Group, Notes);

fn not_empty(field: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { field });
    }
    Ok(())
}

fn not_above(field: &'static str, text: &str, max: usize) -> Result<(), NameError> {
    let bytes = text.len();
    if bytes > max {
        return Err(NameError::TooLong { field, bytes, max });
    }
    Ok(())
}

errors! {
    /// A mistake in a label, the name of a group, or notes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NameError {
        /// The text is empty.
        Empty {
            /// `label` or `group`.
            field: &'static str,
        } in field, (" must not be empty");
        /// The text is too long.
        TooLong {
            /// `label`, `group` or `notes`.
            field: &'static str,
            /// How long it is.   bytes
            bytes: usize,
            /// How long it may be.   bytes
            max: usize,
        } in field, (" has {bytes} bytes, at most {max} are taken");
        /// The text contains a control character.
        ControlCharacter {
            /// `label` or `notes`.
            field: &'static str,
        } in field, (" has a control character; take it out");
        /// The name of a group has a character that such names don't have.
        GroupCharacter {
            /// The first of them.
            given: char,
        } in "group", (
            " may only have letters A to Z and a to z, digits, \"_\", \"-\" and \".\", not {given:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_groups_name_is_short_and_plain() {
        let check = |name: &str, said: &str| {
            let error = Group::new(name).expect_err("it is wrong");
            assert_eq!((error.field(), &*error.to_string()), ("group", said));
        };
        check("", "group must not be empty");
        check(&"a".repeat(65), "group has 65 bytes, at most 64 are taken");
        check(
            "a b",
            "group may only have letters A to Z and a to z, digits, \"_\", \"-\" and \".\", not ' '",
        );
        check(
            "é",
            "group may only have letters A to Z and a to z, digits, \"_\", \"-\" and \".\", not 'é'",
        );
        for name in ["a", "nova_poll-2.x", &"a".repeat(64)] {
            assert_eq!(
                Group::new(name).map(|group| group.to_string()),
                Ok(name.into())
            );
        }
    }

    #[test]
    fn labels_and_notes_are_bounded_and_printable() {
        assert!(Label::new("Überwachung").is_ok());
        assert_eq!(Label::new(""), Err(NameError::Empty { field: "label" }));
        assert!(Label::new(&"a".repeat(128)).is_ok() && Label::new(&"a".repeat(129)).is_err());
        assert!(Label::new("two\nlines").is_err());
        assert!(Notes::new("two\nlines").is_ok() && Notes::new("").is_ok());
        assert!(Notes::new(&"a".repeat(1025)).is_err() && Notes::new("\u{1b}[2J").is_err());
    }
}
