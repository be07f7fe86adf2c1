//! Recency of use among many items: which was used last, and which least recently.
//!
//! A doubly linked list in the order of their last uses, so that noting one costs the same however
//! many there are, and allocates nothing. The links are in the values themselves.
//!
//! Public for the crates beside this one, and no part of what it promises.

use crate::slab::{Slab, SlabKey};

/// A value that can be in a list.
pub trait Linked {
    /// The item's neighbours in the list.
    fn links(&mut self) -> &mut Links;

    /// The item's neighbours in the list, to look at.
    fn linked(&self) -> &Links;
}

/// The ends of the list.
#[derive(Clone, Debug, Default)]
pub struct Recency {
    oldest: Option<SlabKey>,
    newest: Option<SlabKey>,
    len: usize,
}

/// The neighbours of a value in the list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Links {
    older: Option<SlabKey>,
    newer: Option<SlabKey>,
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
    pub fn oldest(&self) -> Option<SlabKey> {
        self.oldest
    }

    /// All of them, those used last first.
    pub fn newest_first<'a, V: Linked>(
        &self,
        values: &'a Slab<V>,
    ) -> impl Iterator<Item = (SlabKey, &'a V)> {
        let found = |key: SlabKey| {
            let value = values.get(key).expect("what is in the list is there");
            (key, value)
        };
        let newest = self.newest.map(found);
        core::iter::successors(newest, move |(_, value)| value.linked().older.map(found))
    }

    /// Adds one as that which was used last.
    pub fn push<V: Linked>(&mut self, values: &mut Slab<V>, key: SlabKey) {
        let before = self.newest.replace(key);
        links(values, key).older = before;
        match before {
            Some(before) => links(values, before).newer = Some(key),
            None => self.oldest = Some(key),
        }
        self.len += 1;
    }

    /// Takes one out of the list.
    pub fn remove<V: Linked>(&mut self, values: &mut Slab<V>, key: SlabKey) {
        let Links { older, newer } = core::mem::take(links(values, key));
        match older {
            Some(older) => links(values, older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => links(values, newer).older = older,
            None => self.newest = older,
        }
        self.len -= 1;
    }

    /// Makes one of the list that which was used last.
    pub fn touch<V: Linked>(&mut self, values: &mut Slab<V>, key: SlabKey) {
        if self.newest != Some(key) {
            self.remove(values, key);
            self.push(values, key);
        }
    }
}

fn links<V: Linked>(values: &mut Slab<V>, key: SlabKey) -> &mut Links {
    let value = values.get_mut(key);
    value.expect("what is in the list is there").links()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    impl Linked for Links {
        fn links(&mut self) -> &mut Links {
            self
        }

        fn linked(&self) -> &Links {
            self
        }
    }

    #[test]
    fn a_list_is_in_the_order_of_the_last_uses() {
        let mut values = Slab::default();
        let mut list = Recency::default();
        assert!(list.is_empty());
        let keys: Vec<_> = (0..3).map(|_| values.insert(Links::default())).collect();
        for &key in &keys {
            list.push(&mut values, key);
        }
        list.touch(&mut values, keys[0]);
        let newest_first: Vec<_> = list.newest_first(&values).map(|(key, _)| key).collect();
        assert_eq!(newest_first, [keys[0], keys[2], keys[1]]);
        assert_eq!((list.len(), list.oldest()), (3, Some(keys[1])));
        for key in keys {
            assert!(!list.is_empty());
            list.remove(&mut values, key);
        }
        assert!(list.is_empty());
    }
}
