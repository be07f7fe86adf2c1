//! A secret that a reload replaces, such as a password that rotates.

use std::fmt;
use std::sync::Arc;

use crate::Live;

/// Settings of a connection that all clones share, and that later connections take anew. Two of them count
/// as equal, so that settings that differ in nothing else are the same.
#[derive(Clone)]
pub struct Renewable<T>(Arc<Live<Generation<T>>>);

struct Generation<T> {
    number: u64,
    value: Arc<T>,
}

impl<T> Renewable<T> {
    /// Begins with this value.
    #[must_use]
    pub fn new(value: T) -> Self {
        let value = Arc::new(value);
        Self(Arc::new(Live::new(Generation { number: 0, value })))
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        self.0.look(|now| Arc::clone(&now.value))
    }

    /// How often the value was replaced. A connection of an earlier number uses an earlier value.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.look(|now| now.number)
    }

    /// Takes over the value of another one, such as after a reload, if it differs.
    pub fn renew(&self, other: &Self)
    where
        T: PartialEq,
    {
        let (own, value) = (self.get(), other.get());
        if own != value {
            let number = self.number() + 1;
            self.0.set(Generation { number, value });
        }
    }
}

impl<T> From<T> for Renewable<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> PartialEq for Renewable<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Renewable<T> {}

impl<T: fmt::Debug> fmt::Debug for Renewable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_differs_is_taken_over_by_all_clones_and_numbered() {
        let own = Renewable::new("old");
        let clone = own.clone();
        own.renew(&Renewable::new("old"));
        assert_eq!((*clone.get(), clone.number()), ("old", 0));
        own.renew(&Renewable::new("new"));
        assert_eq!((*clone.get(), clone.number()), ("new", 1));
    }
}
