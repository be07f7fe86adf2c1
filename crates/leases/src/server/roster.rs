//! A small number for each client and server that holds a lease, so that a long id is kept once.
//!
//! Most clients use one resource, so there are about as many ids as leases. The table that finds an
//! id holds only its number: with the standard library's, each id would be in memory twice.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

use crate::book::Rows;

/// The kind of a holder: ids of clients and of servers are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MemberKind {
    Client,
    Server,
}

/// The most resources that one client may create.
pub(super) const RESOURCES_MADE_MAX: usize = u16::MAX as usize;

/// A member of the roster, until it holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RosterMember(u32);

#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    /// Seeded anew in each process, since names come from clients.
    hasher: RandomState,
    /// The number of each name.
    numbers: HashTable<u32>,
    /// By the member's number.
    entries: Rows<RosterEntry>,
    /// Free numbers.
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct RosterEntry {
    /// Empty if the number is free.
    pub(super) name: Box<str>,
    /// Resources of which it holds something.
    pub(super) leases: u32,
    /// Resources that exist because it asked for them.
    pub(super) made: u16,
    pub(super) kind: MemberKind,
}

impl Roster {
    pub(super) fn find(&self, kind: MemberKind, name: &str) -> Option<RosterMember> {
        let found = self.numbers.find(self.hash(kind, name), |number| {
            let entry = &self.entries[*number as usize];
            entry.kind == kind && *entry.name == *name
        });
        found.copied().map(RosterMember)
    }

    /// The number of this name, a new one if it has none. The user of a new one gives it a lease or
    /// drops it again.
    pub(super) fn find_or_add(&mut self, kind: MemberKind, name: &str) -> RosterMember {
        if let Some(member) = self.find(kind, name) {
            return member;
        }
        let entry = RosterEntry {
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
        let Self {
            hasher,
            numbers,
            entries,
            ..
        } = self;
        let rehash = |number: &u32| {
            let entry = &entries[*number as usize];
            hasher.hash_one((entry.kind, &*entry.name))
        };
        numbers.insert_unique(rehash(&number), number, rehash);
        RosterMember(number)
    }

    fn hash(&self, kind: MemberKind, name: &str) -> u64 {
        self.hasher.hash_one((kind, name))
    }

    pub(super) fn entry(&self, member: RosterMember) -> &RosterEntry {
        &self.entries[member.0 as usize]
    }

    pub(super) fn gained(&mut self, member: RosterMember) {
        self.entries[member.0 as usize].leases += 1;
    }

    /// Counts a new resource that a member asked for. [`RESOURCES_MADE_MAX`] bounds them.
    pub(super) fn made(&mut self, member: RosterMember) {
        self.entries[member.0 as usize].made += 1;
    }

    /// A resource that it created has ended, or counts for another now.
    pub(super) fn unmade(&mut self, member: RosterMember) {
        self.entries[member.0 as usize].made -= 1;
        self.forget_if_idle(member);
    }

    /// Takes one lease away. A member without leases and without existing resources of its own is removed.
    pub(super) fn lost(&mut self, member: RosterMember) {
        self.entries[member.0 as usize].leases -= 1;
        self.forget_if_idle(member);
    }

    fn forget_if_idle(&mut self, member: RosterMember) {
        let entry = self.entry(member);
        if entry.leases > 0 || entry.made > 0 {
            return;
        }
        let hash = self.hash(entry.kind, &entry.name);
        let found = self
            .numbers
            .find_entry(hash, |number| *number == member.0)
            .expect("a member is in the table until it is forgotten");
        found.remove();
        self.entries[member.0 as usize].name = Box::default();
        self.free.push(member.0);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeds;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};
    use std::collections::HashMap;

    #[test]
    fn an_entry_takes_24_bytes() {
        assert_eq!(size_of::<RosterEntry>(), 24);
    }

    #[test]
    fn a_member_is_found_by_name_exactly_while_it_holds_something() {
        for seed in seeds(0..20) {
            let mut random = StdRng::seed_from_u64(seed);
            let mut roster = Roster::default();
            let mut leases: HashMap<(MemberKind, String), usize> = HashMap::new();
            for step in 0..5_000 {
                let kind = [MemberKind::Client, MemberKind::Server][random.random_range(0..2)];
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
                    let entry = (roster.entry(member).kind, &*roster.entry(member).name);
                    assert_eq!(entry, (kind, name.as_str()), "seed {seed}");
                    assert_eq!(roster.entry(member).leases as usize, *held, "seed {seed}");
                }
            }
            let holding = leases.iter().filter(|(_, held)| **held > 0);
            assert_eq!(roster.len(), holding.clone().count(), "seed {seed}");
            for ((kind, name), held) in holding {
                let member = roster.find(*kind, name).expect("it holds something");
                assert_eq!(roster.entry(member).leases as usize, *held, "seed {seed}");
            }
        }
    }
}
