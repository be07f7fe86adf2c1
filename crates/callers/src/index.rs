//! Finds the patterns that match an identity without asking all of them.
//!
//! A *literal* is what one field of a pattern demands; patterns that demand the same share
//! it. A pattern is the sequence of its literals in the order of [`Field`], and the sequences
//! form a tree. A look-up finds, in one [`Trie`] per field, the literals that the identity's
//! value satisfies, and then follows those through the tree. So it makes no difference which
//! field tells the callers apart: ten thousand agents behind one address and one agent on ten
//! thousand addresses are both found by one step per field.
//!
//! # Cost
//!
//! L is how many literals the identity satisfies: mostly one or two per field. The tries cost
//! a step for each bit by which keys on the way part; then, at each tree node reached, the
//! shorter of "its children" and "the L literals" is looked for in the longer, by halving.
//! Measured at 10,000 patterns: 0.2 to 0.6 µs (`benches/callers.rs`).
//!
//! The worst case is patterns that all match except in their last field, which takes nested
//! prefixes (`a*`, `aa*`, …) in several fields at once. Then all of them are reached, and the
//! look-up is linear in the number of patterns, about 0.1 µs each. Only the author of patterns
//! can cause that. A client that only sends values cannot: its values are registered exactly, so
//! a value satisfies at most one literal per field beyond the configured ones.

use alloc::vec::Vec;

use crate::arena::{Arena, Id};
use crate::identity::{Field, Identity};
use crate::network::octets;
use crate::pattern::literal::{Family, LITERAL_MAX, Literal, Space};
use crate::pattern::{Pattern, Specificity};
use crate::trie::Trie;

type NodeId = Id;

/// A literal; those of one trie stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LiteralId {
    trie: u8,
    place: Id,
}

/// Patterns, each with a value.
#[derive(Debug)]
pub(super) struct Index<V> {
    /// One for each field of text, and one for each family of addresses.
    tries: [Trie<LiteralId>; 6],
    literals: Arena<Place>,
    nodes: Arena<Node<V>>,
}

/// What the tree knows of a literal.
#[derive(Debug)]
struct Place {
    /// The node of the patterns that begin with it.
    first: Option<NodeId>,
    /// How many nodes are about it.
    uses: u32,
}

/// The patterns with the same first literals.
#[derive(Debug)]
struct Node<V> {
    /// The pattern that ends here.
    entry: Option<(Specificity, V)>,
    /// By the next literal, in the order of literals.
    children: Vec<(LiteralId, NodeId)>,
}

/// What a look-up found, and the room that it needs: kept from one look-up to the next, so
/// that none of them allocates.
#[derive(Debug)]
pub(super) struct Found<V> {
    pub(super) entries: Vec<(Specificity, V)>,
    literals: Vec<LiteralId>,
}

impl<V> Default for Found<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            literals: Vec::new(),
        }
    }
}

impl<V: Copy> Index<V> {
    pub(super) const fn new() -> Self {
        Self {
            tries: [const { Trie::new() }; 6],
            literals: Arena::new(),
            nodes: Arena::new(),
        }
    }

    /// The value of exactly this pattern.
    pub(super) fn get(&self, pattern: &Pattern) -> Option<V> {
        let mut at = None;
        for literal in pattern.literals().into_iter().flatten() {
            at = Some(self.step(at, self.literal(&literal)?)?);
        }
        let (_, value) = self.nodes.at(at?).entry?;
        Some(value)
    }

    /// Adds a pattern.
    ///
    /// # Errors
    ///
    /// The value of the same pattern, if it is there already.
    pub(super) fn insert(&mut self, pattern: &Pattern, value: V) -> Result<(), V> {
        if let Some(holder) = self.get(pattern) {
            return Err(holder);
        }
        let mut at = None;
        for literal in pattern.literals().into_iter().flatten() {
            let id = self.literal_or_new(&literal);
            let next = self.step(at, id).unwrap_or_else(|| self.grow(at, id));
            at = Some(next);
        }
        let last = at.expect("a pattern has a field that is not any");
        self.nodes.at_mut(last).entry = Some((pattern.specificity(), value));
        Ok(())
    }

    /// Takes a pattern out; its value, if it was there.
    pub(super) fn remove(&mut self, pattern: &Pattern) -> Option<V> {
        let mut path = [None; Field::ALL.len()];
        let mut at = None;
        for (step, literal) in path.iter_mut().zip(pattern.literals()) {
            let Some(literal) = literal else { continue };
            let id = self.literal(&literal)?;
            let node = self.step(at, id)?;
            *step = Some((at, literal, id, node));
            at = Some(node);
        }
        let (_, value) = self.nodes.at_mut(at?).entry.take()?;
        for (parent, literal, id, node) in path.into_iter().rev().flatten() {
            let is_needed = {
                let node = self.nodes.at(node);
                node.entry.is_some() || !node.children.is_empty()
            };
            if is_needed {
                break;
            }
            self.prune(parent, &literal, id, node);
        }
        Some(value)
    }

    /// Finds every pattern that matches `identity`, in no order.
    pub(super) fn look_up(&self, identity: &Identity<'_>, found: &mut Found<V>) {
        let Found { entries, literals } = found;
        entries.clear();
        literals.clear();
        for field in Field::ALL {
            if let Some(text) = identity.text(field) {
                // No literal is longer, so a longer value can only begin with one. One byte
                // more is kept, which tells it from the literal that has them all.
                let bytes = text.as_bytes();
                let bytes = &bytes[..bytes.len().min(LITERAL_MAX + 1)];
                self.tries[slot(Space::Text(field))].look_up(bytes, literals);
            }
        }
        if let Some(address) = identity.ip() {
            let (family, octets) = octets(address);
            let key = match family {
                Family::V4 => &octets[..4],
                Family::V6 => &octets[..],
            };
            self.tries[slot(Space::Address(family))].look_up(key, literals);
        }
        literals.sort_unstable();
        for literal in &*literals {
            if let Some(first) = self.literals.at(literal.place).first {
                self.follow(first, literals, entries);
            }
        }
    }

    /// Collects what ends at or below `node`, following `literals`.
    fn follow(&self, node: NodeId, literals: &[LiteralId], entries: &mut Vec<(Specificity, V)>) {
        let node = self.nodes.at(node);
        entries.extend(node.entry);
        let children = &*node.children;
        if children.len() <= literals.len() {
            for (literal, child) in children {
                if literals.binary_search(literal).is_ok() {
                    self.follow(*child, literals, entries);
                }
            }
            return;
        }
        // Where there are many children, they are mostly about one field, and the literals of
        // the others need not be looked for.
        let tries = children[0].0.trie..=children[children.len() - 1].0.trie;
        for literal in literals {
            if tries.contains(&literal.trie)
                && let Ok(at) = children.binary_search_by_key(literal, |(id, _)| *id)
            {
                self.follow(children[at].1, literals, entries);
            }
        }
    }

    fn step(&self, from: Option<NodeId>, literal: LiteralId) -> Option<NodeId> {
        let Some(from) = from else {
            return self.literals.at(literal.place).first;
        };
        let children = &*self.nodes.at(from).children;
        let at = children
            .binary_search_by_key(&literal, |(id, _)| *id)
            .ok()?;
        Some(children[at].1)
    }

    /// Adds the node that a step leads to.
    fn grow(&mut self, from: Option<NodeId>, literal: LiteralId) -> NodeId {
        let node = self.nodes.insert(Node {
            entry: None,
            children: Vec::new(),
        });
        let place = self.literals.at_mut(literal.place);
        place.uses += 1;
        match from {
            None => place.first = Some(node),
            Some(from) => {
                let children = &mut self.nodes.at_mut(from).children;
                let at = children.partition_point(|(id, _)| *id < literal);
                // Most nodes have one child, and never more.
                if children.is_empty() {
                    children.reserve_exact(1);
                }
                children.insert(at, (literal, node));
            }
        }
        node
    }

    /// Takes out a node with nothing at or below it, and its literal with its last node.
    fn prune(
        &mut self,
        parent: Option<NodeId>,
        literal: &Literal<'_>,
        id: LiteralId,
        node: NodeId,
    ) {
        self.nodes.remove(node);
        let place = self.literals.at_mut(id.place);
        place.uses -= 1;
        match parent {
            None => place.first = None,
            Some(parent) => {
                let children = &mut self.nodes.at_mut(parent).children;
                let at = children.binary_search_by_key(&id, |(literal, _)| *literal);
                children.remove(at.expect("a node's parent knows it"));
            }
        }
        if self.literals.at(id.place).uses == 0 {
            self.literals.remove(id.place);
            self.tries[slot(literal.space)].remove(literal.key, literal.bits, literal.is_exact);
        }
    }

    fn literal(&self, literal: &Literal<'_>) -> Option<LiteralId> {
        self.tries[slot(literal.space)].get(literal.key, literal.bits, literal.is_exact)
    }

    fn literal_or_new(&mut self, literal: &Literal<'_>) -> LiteralId {
        self.literal(literal).unwrap_or_else(|| {
            let place = self.literals.insert(Place {
                first: None,
                uses: 0,
            });
            let slot = slot(literal.space);
            let id = LiteralId {
                trie: slot as u8,
                place,
            };
            let trie = &mut self.tries[slot];
            trie.insert(literal.key, literal.bits, literal.is_exact, id);
            id
        })
    }

    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        (self.literals.len(), self.nodes.len())
    }
}

/// The trie of a space: the addresses of version 6 stand behind the fields.
const fn slot(space: Space) -> usize {
    match space {
        Space::Text(field) => field as usize,
        Space::Address(Family::V4) => Field::Ip as usize,
        Space::Address(Family::V6) => Field::ALL.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// What a scan over all patterns finds.
    fn scan(held: &[(Pattern, usize)], identity: &Identity<'_>) -> Vec<(Specificity, usize)> {
        let matching = held.iter().filter(|(pattern, _)| pattern.matches(identity));
        let mut entries: Vec<_> = matching
            .map(|(pattern, value)| (pattern.specificity(), *value))
            .collect();
        entries.sort_unstable();
        entries
    }

    #[test]
    fn a_look_up_finds_what_a_scan_finds() {
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let (mut index, mut found) = (Index::new(), Found::default());
            let mut held: Vec<(Pattern, usize)> = Vec::new();
            let size = 1 + random.below(200) as usize;
            for step in 0..2 * size {
                if held.len() > size || random.one_in(4) && !held.is_empty() {
                    let at = random.below(held.len() as u64) as usize;
                    let (pattern, value) = held.swap_remove(at);
                    assert_eq!(index.remove(&pattern), Some(value), "seed {seed}");
                    assert_eq!(index.remove(&pattern), None, "seed {seed}");
                } else {
                    let identity = random.identity();
                    let pattern = if random.one_in(3) {
                        Pattern::exact(&identity.as_identity(), random.fields())
                    } else {
                        Ok(random.pattern())
                    };
                    let Ok(pattern) = pattern else { continue };
                    let holder = held.iter().find(|(other, _)| *other == pattern);
                    let expected = holder.map_or(Ok(()), |(_, value)| Err(*value));
                    assert_eq!(
                        index.insert(&pattern, step),
                        expected,
                        "seed {seed}: {pattern}"
                    );
                    if expected.is_ok() {
                        held.push((pattern, step));
                    }
                }
                let identity = random.identity();
                index.look_up(&identity.as_identity(), &mut found);
                found.entries.sort_unstable();
                let scanned = scan(&held, &identity.as_identity());
                assert_eq!(found.entries, scanned, "seed {seed}: {identity:?}");
            }
            for (pattern, value) in &held {
                assert_eq!(index.get(pattern), Some(*value), "seed {seed}: {pattern}");
            }
            for (pattern, value) in held {
                assert_eq!(index.remove(&pattern), Some(value), "seed {seed}");
            }
            assert_eq!(index.size(), (0, 0), "seed {seed}: nothing is left behind");
        }
    }

    #[test]
    fn a_value_longer_than_any_literal_still_matches_its_prefixes() {
        let mut index = Index::new();
        let agent = |text: &str| {
            let user_agent = text;
            Pattern::parse(&crate::pattern::PatternText {
                user_agent,
                ..Default::default()
            })
            .expect("a pattern")
        };
        let full = "a".repeat(256);
        index.insert(&agent(&full), 0).expect("no row has it");
        let prefix = alloc::format!("{full}*");
        index.insert(&agent(&prefix), 1).expect("no row has it");
        index.insert(&agent("a*"), 2).expect("no row has it");
        let mut found = Found::default();
        let mut check = |length: usize, values: &[i32]| {
            let agent = "a".repeat(length);
            index.look_up(&Identity::default().with_user_agent(&agent), &mut found);
            let mut ranked = found.entries.clone();
            ranked.sort_unstable_by(|a, b| b.cmp(a));
            let ranked: Vec<i32> = ranked.into_iter().map(|(_, value)| value).collect();
            assert_eq!(ranked, values, "{length} bytes");
        };
        check(256, &[0, 1, 2]);
        check(257, &[1, 2]);
        check(100_000, &[1, 2]);
        check(255, &[2]);
    }
}
