//! A small number for everybody who holds something, so that a long id is kept once.
//!
//! Here, too, there is one of everything for each client of each resource, as a client mostly uses
//! one. So an id is kept in one place only, and found by a table of our own: the standard
//! library's would keep it a second time.

use std::hash::{BuildHasher as _, RandomState};

use crate::book::Rows;

/// Who asks: ids of clients and of servers are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Client,
    Server,
}

/// Most resources that one client may make.
pub(super) const RESOURCES_MADE_MAX: usize = u16::MAX as usize;

/// Somebody on the roster, until it holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Member(u32);

#[derive(Debug, Default)]
pub(super) struct Roster {
    names: Names,
    /// By the member's number.
    entries: Rows<Entry>,
    /// Numbers that are nobody's.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    /// Empty where it is nobody's.
    name: Box<str>,
    /// Resources of which it holds something.
    leases: u32,
    /// Resources that are there because it asked for them.
    made: u16,
    kind: Kind,
}

impl Roster {
    pub(super) fn find(&self, kind: Kind, name: &str) -> Option<Member> {
        let found = self.names.find((kind, name), |number| {
            let entry = &self.entries[number as usize];
            entry.kind == kind && *entry.name == *name
        });
        found.map(Member)
    }

    /// The number of this name, a new one if it has none. Whoever asks for a new one gives it a
    /// lease or drops it again.
    pub(super) fn find_or_add(&mut self, kind: Kind, name: &str) -> Member {
        if let Some(member) = self.find(kind, name) {
            return member;
        }
        let entry = Entry {
            name: name.into(),
            leases: 0,
            made: 0,
            kind,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("leases are bounded below 2^32")
            }
        };
        self.names.insert((kind, name), number);
        Member(number)
    }

    fn entry(&self, member: Member) -> &Entry {
        &self.entries[member.0 as usize]
    }

    pub(super) fn name(&self, member: Member) -> &str {
        &self.entry(member).name
    }

    pub(super) fn kind(&self, member: Member) -> Kind {
        self.entry(member).kind
    }

    pub(super) fn leases(&self, member: Member) -> usize {
        self.entry(member).leases as usize
    }

    pub(super) fn gained(&mut self, member: Member) {
        self.entries[member.0 as usize].leases += 1;
    }

    /// How many resources are there because this one asked for them.
    pub(super) fn made_by(&self, member: Member) -> usize {
        self.entry(member).made.into()
    }

    /// It asked for a resource that was not there. [`RESOURCES_MADE_MAX`] bounds them.
    pub(super) fn made(&mut self, member: Member) {
        self.entries[member.0 as usize].made += 1;
    }

    /// A resource that it made has ended, or is another's concern now.
    pub(super) fn unmade(&mut self, member: Member) {
        self.entries[member.0 as usize].made -= 1;
        self.forget_if_idle(member);
    }

    /// One lease less; whoever has none, and made nothing that is still there, is forgotten.
    pub(super) fn lost(&mut self, member: Member) {
        self.entries[member.0 as usize].leases -= 1;
        self.forget_if_idle(member);
    }

    fn forget_if_idle(&mut self, member: Member) {
        let entry = &mut self.entries[member.0 as usize];
        if entry.leases == 0 && entry.made == 0 {
            let name = std::mem::take(&mut entry.name);
            self.names.remove((entry.kind, &name), member.0);
            self.free.push(member.0);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// Numbers by the names that they stand for: a hash table with linear probing (D. Knuth, "The Art
/// of Computer Programming" 3, 6.4, algorithms L and R), in 8 bytes a slot. The hash has a secret
/// of the process in it, since names come from clients.
#[derive(Debug, Default)]
struct Names {
    hasher: RandomState,
    /// None, or a power of two of them.
    slots: Vec<Option<Slot>>,
    len: usize,
}

/// A number and half of its name's hash, by which it is told from nearly all others, and by which
/// it finds its place again when the table grows. Not zero, so that no slot is one that is empty.
type Slot = std::num::NonZeroU64;

fn slot(hash: u64, number: u32) -> Slot {
    let upper = hash & !u64::from(u32::MAX);
    Slot::new(upper | (u64::from(number) + 1)).expect("the lower half is not zero")
}

fn number_in(slot: Slot) -> u32 {
    (slot.get() as u32) - 1
}

impl Names {
    fn find(&self, name: (Kind, &str), is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(name);
        let mut at = self.home(hash);
        while let Some(found) = self.slots[at] {
            let number = number_in(found);
            if found == slot(hash, number) && is_it(number) {
                return Some(number);
            }
            at = self.next(at);
        }
        None
    }

    /// Puts a name in that is not in.
    fn insert(&mut self, name: (Kind, &str), number: u32) {
        // Seven eighths full at the most: there is always an empty slot to stop at.
        if self.len + 1 > self.slots.len() / 8 * 7 {
            let larger = vec![None; (2 * self.slots.len()).max(8)];
            let slots = std::mem::replace(&mut self.slots, larger);
            for slot in slots.into_iter().flatten() {
                self.put(slot);
            }
        }
        self.put(slot(self.hasher.hash_one(name), number));
        self.len += 1;
    }

    /// Takes a name out that is in.
    fn remove(&mut self, name: (Kind, &str), number: u32) {
        let gone = slot(self.hasher.hash_one(name), number);
        let mut hole = self.home(gone.get());
        while self.slots[hole] != Some(gone) {
            hole = self.next(hole);
        }
        // Whoever stands behind the hole moves into it, unless that is before its home.
        let mut at = self.next(hole);
        while let Some(slot) = self.slots[at] {
            if self.steps(self.home(slot.get()), at) >= self.steps(hole, at) {
                self.slots[hole] = Some(slot);
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = None;
        self.len -= 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.get());
        while self.slots[at].is_some() {
            at = self.next(at);
        }
        self.slots[at] = Some(slot);
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.slots.len() - 1)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// From one slot on to another.
    fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};
    use std::collections::HashMap;

    #[test]
    fn an_entry_takes_24_bytes() {
        assert_eq!(size_of::<Entry>(), 24);
        assert_eq!(size_of::<Option<Slot>>(), 8);
    }

    #[test]
    fn everybody_is_found_by_name_as_long_as_it_holds_something_and_no_longer() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut roster = Roster::default();
            let mut leases: HashMap<(Kind, String), usize> = HashMap::new();
            for step in 0..5_000 {
                let kind = [Kind::Client, Kind::Server][random.random_range(0..2)];
                let name = format!("name-{}", random.random_range(0..400));
                let held = leases.entry((kind, name.clone())).or_default();
                // More and fewer in turn, so that the table grows and empties.
                if random.random_range(0..5) < 2 + step / 500 % 3 {
                    let member = roster.find_or_add(kind, &name);
                    roster.gained(member);
                    *held += 1;
                } else if let Some(member) = roster.find(kind, &name) {
                    roster.lost(member);
                    *held -= 1;
                }
                let found = roster.find(kind, &name);
                assert_eq!(found.is_some(), *held > 0, "seed {seed}, step {step}");
                if let Some(member) = found {
                    let entry = (roster.kind(member), roster.name(member));
                    assert_eq!(entry, (kind, name.as_str()), "seed {seed}");
                    assert_eq!(roster.leases(member), *held, "seed {seed}");
                }
            }
            let holding = leases.iter().filter(|(_, held)| **held > 0);
            assert_eq!(roster.len(), holding.clone().count(), "seed {seed}");
            for ((kind, name), held) in holding {
                let member = roster.find(*kind, name).expect("it holds something");
                assert_eq!(roster.leases(member), *held, "seed {seed}");
            }
        }
    }
}
