//! Which of many was used last, and which least recently.
//!
//! A doubly linked list in the order of their last uses, so that noting one costs the same however
//! many there are, and allocates nothing. The links are in the values themselves.
//!
//! Public for the crates beside this one, and no part of what it promises.

use crate::slab::{Key, Slab};

/// A value that can be in a list.
pub trait Linked {
    /// Its neighbours there.
    fn links(&mut self) -> &mut Links;

    /// The same, to look at.
    fn linked(&self) -> &Links;
}

/// The ends of the list.
#[derive(Debug, Default)]
pub struct Recency {
    ends: Option<Ends>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: Key,
    newest: Key,
}

/// The neighbours of a value in the list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    older: Option<Key>,
    newer: Option<Key>,
}

impl Recency {
    /// How many are in the list.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether none is in the list.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The one that was used least recently.
    pub fn oldest(&self) -> Option<Key> {
        self.ends.map(|ends| ends.oldest)
    }

    /// All of them, those used last first.
    pub fn newest_first<'a, V: Linked>(
        &self,
        values: &'a Slab<V>,
    ) -> impl Iterator<Item = (Key, &'a V)> {
        let found = |key: Key| {
            let value = values.get(key).expect("what is in the list is there");
            (key, value)
        };
        let newest = self.ends.map(|ends| found(ends.newest));
        core::iter::successors(newest, move |(_, value)| value.linked().older.map(found))
    }

    /// Adds one as that which was used last.
    pub fn push<V: Linked>(&mut self, values: &mut Slab<V>, key: Key) {
        let before = self.ends.map(|ends| ends.newest);
        links(values, key).older = before;
        if let Some(before) = before {
            links(values, before).newer = Some(key);
        }
        self.ends = Some(Ends {
            oldest: self.oldest().unwrap_or(key),
            newest: key,
        });
        self.len += 1;
    }

    /// Takes one out of the list.
    pub fn remove<V: Linked>(&mut self, values: &mut Slab<V>, key: Key) {
        let Links { older, newer } = core::mem::take(links(values, key));
        if let Some(older) = older {
            links(values, older).newer = newer;
        }
        if let Some(newer) = newer {
            links(values, newer).older = older;
        }
        let ends = self.ends.expect("it is in the list");
        // The only one has no neighbours, and leaves no ends.
        self.ends = match (older, newer) {
            (None, None) => None,
            (None, Some(oldest)) => Some(Ends { oldest, ..ends }),
            (Some(newest), None) => Some(Ends { newest, ..ends }),
            (Some(_), Some(_)) => Some(ends),
        };
        self.len -= 1;
    }

    /// Makes one of the list that which was used last.
    pub fn touch<V: Linked>(&mut self, values: &mut Slab<V>, key: Key) {
        if self.ends.is_none_or(|ends| ends.newest != key) {
            self.remove(values, key);
            self.push(values, key);
        }
    }
}

fn links<V: Linked>(values: &mut Slab<V>, key: Key) -> &mut Links {
    let value = values.get_mut(key);
    value.expect("what is in the list is there").links()
}
