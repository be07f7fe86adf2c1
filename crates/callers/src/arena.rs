//! Values under small ids. A removed id is used again, so the holder of an id must ensure that it
//! exists.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// Takes four bytes, also in an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(NonZeroU32);

impl Id {
    fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2^32 values exist at once"))
    }

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug)]
pub(super) struct Arena<T> {
    places: Vec<Option<T>>,
    free: Vec<Id>,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Id {
        let id = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            Id::new(self.places.len() - 1)
        });
        self.places[id.index()] = Some(value);
        id
    }

    pub(super) fn at(&self, id: Id) -> &T {
        self.places[id.index()].as_ref().expect("the id lives")
    }

    pub(super) fn at_mut(&mut self, id: Id) -> &mut T {
        self.places[id.index()].as_mut().expect("the id lives")
    }

    pub(super) fn remove(&mut self, id: Id) -> T {
        self.free.push(id);
        self.places[id.index()].take().expect("the id lives")
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
