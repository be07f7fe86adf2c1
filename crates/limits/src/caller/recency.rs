//! Which of the rows that registered themselves was called last, and which least recently.
//!
//! The rows are a doubly linked list in the order of their last calls, so that noting a call
//! costs the same however many there are, and allocates nothing.

use super::row::Row;
use crate::slab::{Key, Slab};

/// The ends of the list; the links are in the rows.
#[derive(Debug, Default)]
pub(super) struct Recency {
    ends: Option<Ends>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: Key,
    newest: Key,
}

/// The neighbours of a row in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    older: Option<Key>,
    newer: Option<Key>,
}

impl Recency {
    /// How many rows are in the list.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The row that was called least recently.
    pub(super) fn oldest(&self) -> Option<Key> {
        self.ends.map(|ends| ends.oldest)
    }

    /// Adds a row as the one that was called last.
    pub(super) fn push(&mut self, rows: &mut Slab<Row>, key: Key) {
        let before = self.ends.map(|ends| ends.newest);
        links(rows, key).older = before;
        if let Some(before) = before {
            links(rows, before).newer = Some(key);
        }
        self.ends = Some(Ends {
            oldest: self.oldest().unwrap_or(key),
            newest: key,
        });
        self.len += 1;
    }

    /// Takes a row out of the list.
    pub(super) fn remove(&mut self, rows: &mut Slab<Row>, key: Key) {
        let Links { older, newer } = core::mem::take(links(rows, key));
        if let Some(older) = older {
            links(rows, older).newer = newer;
        }
        if let Some(newer) = newer {
            links(rows, newer).older = older;
        }
        let ends = self.ends.expect("the row is in the list");
        // The only row has no neighbours, and leaves no ends.
        self.ends = match (older, newer) {
            (None, None) => None,
            (None, Some(oldest)) => Some(Ends { oldest, ..ends }),
            (Some(newest), None) => Some(Ends { newest, ..ends }),
            (Some(_), Some(_)) => Some(ends),
        };
        self.len -= 1;
    }

    /// Makes a row of the list the one that was called last.
    pub(super) fn touch(&mut self, rows: &mut Slab<Row>, key: Key) {
        if self.ends.is_none_or(|ends| ends.newest != key) {
            self.remove(rows, key);
            self.push(rows, key);
        }
    }
}

fn links(rows: &mut Slab<Row>, key: Key) -> &mut Links {
    &mut rows.get_mut(key).expect("a row in the list is there").links
}
