//! Values under keys that are never mistaken for one another: a place that is used again gets
//! a new generation, and a place that has had them all is not used again. That costs one place for
//! every 2^32 uses of it.
//!
//! Public for the crates beside this one, and no part of what it promises.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// A place and its generation, in one number: keys are compared all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabKey(pub(crate) u64);

impl SlabKey {
    const fn new(index: u32, generation: u32) -> Self {
        Self((index as u64) << 32 | generation as u64)
    }

    /// The place, which another tenant may have had or may get.
    pub const fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn generation(self) -> u32 {
        self.0 as u32
    }
}

#[derive(Clone, Debug)]
pub struct Slab<V> {
    places: Vec<SlabEntry<V>>,
    free: Vec<u32>,
    /// Places that are not used again.
    retired: usize,
}

#[derive(Clone, Debug)]
struct SlabEntry<V> {
    generation: u32,
    value: Option<V>,
}

impl<V> Default for Slab<V> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            retired: 0,
        }
    }
}

impl<V> Slab<V> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len() - self.retired
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn insert(&mut self, value: V) -> SlabKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(SlabEntry {
                generation: 0,
                value: None,
            });
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 values exist at once")
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        SlabKey::new(index, place.generation)
    }

    pub fn get(&self, key: SlabKey) -> Option<&V> {
        let place = self.places.get(key.index() as usize);
        place.filter(|place| place.is_of(key))?.value.as_ref()
    }

    /// The number of places, with and without a value.
    pub fn places(&self) -> u32 {
        self.places.len() as u32
    }

    /// The value that has this place now.
    pub fn at(&self, index: u32) -> Option<&V> {
        self.places.get(index as usize)?.value.as_ref()
    }

    /// The places that are used again, the next one last.
    pub(crate) fn free_places(&self) -> &[u32] {
        &self.free
    }

    pub fn get_mut(&mut self, key: SlabKey) -> Option<&mut V> {
        let place = self.places.get_mut(key.index() as usize);
        place.filter(|place| place.is_of(key))?.value.as_mut()
    }

    pub fn remove(&mut self, key: SlabKey) -> Option<V> {
        self.vacate(key)?.take()
    }

    /// Drops a value where it is, if it is there.
    pub fn discard(&mut self, key: SlabKey) {
        if let Some(place) = self.vacate(key) {
            *place = None;
        }
    }

    /// The place of a value, which another one may take from now on.
    fn vacate(&mut self, key: SlabKey) -> Option<&mut Option<V>> {
        let place = self.places.get_mut(key.index() as usize);
        let place = place.filter(|place| place.is_of(key) && place.value.is_some())?;
        match place.generation.checked_add(1) {
            Some(next) => {
                place.generation = next;
                self.free.push(key.index());
            }
            None => self.retired += 1,
        }
        Some(&mut place.value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlabKey, &V)> {
        let places = self.places.iter().zip(0..);
        places.filter_map(|(place, index)| {
            Some((SlabKey::new(index, place.generation), place.value.as_ref()?))
        })
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlabKey, &mut V)> {
        let places = self.places.iter_mut().zip(0..);
        places.filter_map(|(place, index)| {
            Some((SlabKey::new(index, place.generation), place.value.as_mut()?))
        })
    }
}

impl<V> SlabEntry<V> {
    fn is_of(&self, key: SlabKey) -> bool {
        self.generation == key.generation()
    }
}

/// The value of a key that is known to be there.
impl<V> Index<SlabKey> for Slab<V> {
    type Output = V;

    #[inline]
    fn index(&self, key: SlabKey) -> &V {
        self.get(key).expect(THERE)
    }
}

impl<V> IndexMut<SlabKey> for Slab<V> {
    #[inline]
    fn index_mut(&mut self, key: SlabKey) -> &mut V {
        self.get_mut(key).expect(THERE)
    }
}

const THERE: &str = "the key names a value that is there";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_does_not_find_the_new_tenant() {
        let mut slab = Slab::default();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!(new.index(), old.index());
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!((slab.get(new), slab.len()), (Some(&'b'), 1));
    }

    #[test]
    fn a_place_that_has_had_all_its_keys_is_not_used_again() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        // As if it had been used 2^32 - 1 times.
        slab.places[0].generation = u32::MAX;
        let last = slab.insert('b');
        assert_eq!(slab.remove(last), Some('b'));
        let new = slab.insert('c');
        assert_ne!((new.index(), new), (last.index(), first));
        assert_eq!((slab.get(first), slab.get(last)), (None, None));
        assert_eq!((slab.get(new), slab.len()), (Some(&'c'), 1));
    }
}
