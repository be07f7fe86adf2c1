//! The owner of a quota, in a form that every store accepts as a name.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// A user, caller, function or any other owner of a quota.
///
/// Every store has it under its percent-encoded name. Letters, digits, `-` and `_` stay as they
/// are, and so does `.` unless it comes first (no store has a name `.` or `..`, and our own names
/// begin with it). Every other byte is `%` and two digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Arc<str>);

/// An invalid name of a quota's owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty.
    #[error("a quota's key must not be empty")]
    Empty,
    /// Longer than [`RecordKey::BYTES_MAX`].
    #[error("a quota's key must not be longer than {max} bytes, not {given}", max = RecordKey::BYTES_MAX)]
    TooLong {
        /// The length in bytes.
        given: usize,
    },
}

impl RecordKey {
    /// The longest id. Its encoded form is at most three times as long.
    pub const BYTES_MAX: usize = 256;

    /// The key of an id, which can contain any character.
    ///
    /// # Errors
    ///
    /// If it is empty or longer than [`BYTES_MAX`](Self::BYTES_MAX).
    pub fn new(id: &str) -> Result<Self, KeyError> {
        if id.is_empty() {
            return Err(KeyError::Empty);
        }
        Ok(Self(encode(id)?.into()))
    }

    /// The key of an id among the ids of one namespace: `namespace:id`, both encoded, or only `id`
    /// without a namespace. No id has a raw `:`, so keys of different namespaces never collide. The
    /// empty id, of calls without a known owner, is `namespace:`, or `:nobody`.
    ///
    /// # Errors
    ///
    /// If the namespace is empty, or either is longer than [`BYTES_MAX`](Self::BYTES_MAX).
    pub fn within(namespace: Option<&str>, id: &str) -> Result<Self, KeyError> {
        let Some(namespace) = namespace else {
            if id.is_empty() {
                return Ok(Self(UNKNOWN.into()));
            }
            return Self::new(id);
        };
        if namespace.is_empty() {
            return Err(KeyError::Empty);
        }
        let encoded = format!("{}:{}", encode(namespace)?, encode(id)?);
        Ok(Self(encoded.into()))
    }

    /// The key of a record that belongs to no quota, to try a store out. No id has this name.
    #[must_use]
    pub fn trial() -> Self {
        Self(".probe".into())
    }

    /// The place where sidecars keep a word about themselves. No other key begins with a dot.
    #[must_use]
    pub fn of_sidecars() -> Self {
        Self(".sidecars".into())
    }

    /// The percent-encoded name of the key.
    #[must_use]
    pub fn encoded(&self) -> &str {
        &self.0
    }

    /// The key of a name from a store.
    pub(super) fn of_encoded(encoded: &str) -> Self {
        Self(encoded.into())
    }
}

/// The key of calls without a known owner, without a namespace.
const UNKNOWN: &str = ":nobody";

/// An id in the form that every store accepts.
fn encode(id: &str) -> Result<String, KeyError> {
    if id.len() > RecordKey::BYTES_MAX {
        return Err(KeyError::TooLong { given: id.len() });
    }
    let mut encoded = String::with_capacity(id.len());
    for (at, byte) in id.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => {
                encoded.push(char::from(byte));
            }
            b'.' if at > 0 => encoded.push('.'),
            _ => write!(encoded, "%{byte:02X}").expect("a string takes any text"),
        }
    }
    Ok(encoded)
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: &str, encoded: &str) {
        assert_eq!(RecordKey::new(id).expect("it is a key").encoded(), encoded);
    }

    #[test]
    fn characters_with_a_meaning_in_a_store_are_encoded() {
        check("alice@example.com", "alice%40example.com");
        check("a/b", "a%2Fb");
        check("..", "%2E.");
        check(".members", "%2Emembers");
        check("a\u{0}\n\u{7f}", "a%00%0A%7F");
        check("50%", "50%25");
        check("tür_-9", "t%C3%BCr_-9");
        check("{a}*", "%7Ba%7D%2A");
    }

    #[test]
    fn two_ids_never_have_one_name() {
        let ids = ["a/b", "a%2Fb", "a%2fb", ".", "%2E", "A", "a"];
        let mut names: Vec<_> = ids.iter().map(|id| RecordKey::new(id)).collect();
        names.sort_by_key(|name| name.clone().expect("it is a key"));
        names.dedup();
        assert_eq!(names.len(), ids.len());
    }

    #[test]
    fn keys_of_different_namespaces_never_collide() {
        let check = |namespace, id: &str, encoded: &str| {
            let key = RecordKey::within(namespace, id).expect("it is a key");
            assert_eq!(key.encoded(), encoded);
        };
        check(None, "alice", "alice");
        check(None, "caller:web", "caller%3Aweb");
        check(Some("caller"), "web", "caller:web");
        check(Some("caller"), "a:b/c", "caller:a%3Ab%2Fc");
        check(Some("a:b"), "c", "a%3Ab:c");
        check(Some("caller"), ".", "caller:%2E");
        check(Some("caller"), "", "caller:");
        check(None, "", ":nobody");
        check(None, ":nobody", "%3Anobody");
        assert_eq!(RecordKey::within(Some(""), "a"), Err(KeyError::Empty));
        let too_long = "x".repeat(RecordKey::BYTES_MAX + 1);
        let refused = Err(KeyError::TooLong { given: 257 });
        assert_eq!(RecordKey::within(Some("a"), &too_long), refused);
    }

    #[test]
    fn a_key_is_neither_empty_nor_too_long() {
        assert_eq!(RecordKey::new(""), Err(KeyError::Empty));
        let longest = "x".repeat(RecordKey::BYTES_MAX);
        assert!(RecordKey::new(&longest).is_ok());
        assert_eq!(
            RecordKey::new(&(longest + "x")),
            Err(KeyError::TooLong { given: 257 })
        );
    }
}
