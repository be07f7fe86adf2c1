//! Which of many literals a value begins with, or is.
//!
//! A binary trie whose paths without a branch are left out (D. R. Morrison, "PATRICIA",
//! Journal of the ACM 15, 1968). A node knows only how many bits its keys share; the bits
//! themselves are compared once, with the key of the node where the descent ends, since all
//! nodes on the way have a prefix of that key.
//!
//! One kind of trie serves text and addresses. Ordered by bits instead of hashed, it needs no
//! secret: whoever picks the values can't make them collide. What he can do is nest them, and
//! then a look-up that meets all of them takes a step for each, up to one for every bit of
//! the value.

use alloc::boxed::Box;

use super::arena::{Arena, Id};

/// Ids under keys, each key as a prefix, as a whole value, or both.
#[derive(Debug)]
pub(super) struct Trie {
    root: Option<Id>,
    nodes: Arena<Node>,
}

#[derive(Debug)]
struct Node {
    /// How many bits all keys at and below this node share.
    bits: u16,
    /// By the bit after those.
    children: [Option<Id>; 2],
    /// Empty where two paths only part; such a node has both children.
    key: Box<[u8]>,
    prefix: Option<Id>,
    exact: Option<Id>,
}

/// Where a link to a node is kept.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Child(Id, usize),
}

impl Node {
    const fn is_fork(&self) -> bool {
        self.prefix.is_none() && self.exact.is_none()
    }

    const fn slot(&mut self, is_exact: bool) -> &mut Option<Id> {
        if is_exact {
            &mut self.exact
        } else {
            &mut self.prefix
        }
    }
}

impl Trie {
    pub(super) const fn new() -> Self {
        Self {
            root: None,
            nodes: Arena::new(),
        }
    }

    /// Tells every id whose key `value` begins with, or is; shortest first.
    pub(super) fn look_up(&self, value: &[u8], mut found: impl FnMut(Id)) {
        let Some(root) = self.root else { return };
        let bits = value.len() as u16 * 8;
        let (beside, beside_bits) = self.key_beside(root, value, bits);
        let shared = shared_bits(value, beside).min(beside_bits);
        let mut next = Some(root);
        while let Some(id) = next {
            let node = self.nodes.at(id);
            if node.bits > shared {
                return;
            }
            if let Some(prefix) = node.prefix {
                found(prefix);
            }
            if node.bits == bits {
                if let Some(exact) = node.exact {
                    found(exact);
                }
                return;
            }
            next = node.children[bit(value, node.bits)];
        }
    }

    /// The id of exactly this literal.
    pub(super) fn get(&self, key: &[u8], bits: u16, is_exact: bool) -> Option<Id> {
        let node = self.nodes.at(self.walk(key, bits).1?);
        let is_here = node.bits == bits && shared_bits(key, &node.key) >= bits;
        if !is_here {
            return None;
        }
        if is_exact { node.exact } else { node.prefix }
    }

    /// Puts `id` under the first `bits` of `key`, where nothing is yet.
    pub(super) fn insert(&mut self, key: &[u8], bits: u16, is_exact: bool, id: Id) {
        let mut leaf = Node {
            bits,
            children: [None, None],
            key: key.into(),
            prefix: None,
            exact: None,
        };
        *leaf.slot(is_exact) = Some(id);
        let Some(root) = self.root else {
            self.root = Some(self.nodes.insert(leaf));
            return;
        };
        let (beside, beside_bits) = self.key_beside(root, key, bits);
        let shared = shared_bits(key, beside).min(beside_bits).min(bits);
        let below = (shared < beside_bits).then(|| bit(beside, shared));
        let (link, at) = self.walk(key, shared);
        let at = at.expect("the key beside is at the end of the way");
        let node = self.nodes.at_mut(at);
        if node.bits == shared && shared == bits {
            if node.is_fork() {
                node.key = leaf.key;
            }
            *node.slot(is_exact) = Some(id);
        } else if node.bits == shared {
            let leaf = self.nodes.insert(leaf);
            self.set(Link::Child(at, bit(key, shared)), Some(leaf));
        } else {
            let below = below.expect("what is longer has a bit more");
            let upper = if shared == bits {
                leaf.children[below] = Some(at);
                self.nodes.insert(leaf)
            } else {
                let mut fork = Node {
                    bits: shared,
                    children: [None, None],
                    key: Box::default(),
                    prefix: None,
                    exact: None,
                };
                fork.children[1 - below] = Some(self.nodes.insert(leaf));
                fork.children[below] = Some(at);
                self.nodes.insert(fork)
            };
            self.set(link, Some(upper));
        }
    }

    /// Takes away what [`Self::insert`] put there.
    pub(super) fn remove(&mut self, key: &[u8], bits: u16, is_exact: bool) {
        let (link, at) = self.walk(key, bits);
        let at = at.expect("the literal is there");
        let node = self.nodes.at_mut(at);
        *node.slot(is_exact) = None;
        if !node.is_fork() {
            return;
        }
        node.key = Box::default();
        self.tidy(link, at);
        if let Link::Child(parent, _) = link
            && self.nodes.at(parent).is_fork()
        {
            let parent_bits = self.nodes.at(parent).bits;
            let (link, _) = self.walk(key, parent_bits);
            self.tidy(link, parent);
        }
    }

    /// Takes out a fork that does not part two paths.
    fn tidy(&mut self, link: Link, id: Id) {
        let only = match self.nodes.at(id).children {
            [Some(_), Some(_)] => return,
            [child, None] | [None, child] => child,
        };
        self.nodes.remove(id);
        self.set(link, only);
    }

    fn set(&mut self, link: Link, to: Option<Id>) {
        match link {
            Link::Root => self.root = to,
            Link::Child(parent, side) => self.nodes.at_mut(parent).children[side] = to,
        }
    }

    /// Follows `key` to the first node of at least `bits`, unverified: the node, if there is
    /// one, and the link where it hangs or would hang.
    fn walk(&self, key: &[u8], bits: u16) -> (Link, Option<Id>) {
        let (mut link, mut at) = (Link::Root, self.root);
        while let Some(id) = at {
            let node = self.nodes.at(id);
            if node.bits >= bits {
                break;
            }
            let side = bit(key, node.bits);
            link = Link::Child(id, side);
            at = node.children[side];
        }
        (link, at)
    }

    /// A key that shares as many bits with the first `bits` of `value` as any does, and how
    /// many bits it has.
    fn key_beside(&self, root: Id, value: &[u8], bits: u16) -> (&[u8], u16) {
        let mut node = self.nodes.at(root);
        while node.bits < bits
            && let Some(child) = node.children[bit(value, node.bits)]
        {
            node = self.nodes.at(child);
        }
        while node.is_fork() {
            node = self
                .nodes
                .at(node.children[0].expect("a fork has both children"));
        }
        (&node.key, node.bits)
    }
}

fn bit(key: &[u8], at: u16) -> usize {
    usize::from(key[usize::from(at / 8)] >> (7 - at % 8) & 1)
}

fn shared_bits(one: &[u8], other: &[u8]) -> u16 {
    let mut bits = 0;
    for (a, b) in one.iter().zip(other) {
        let differs = a ^ b;
        if differs != 0 {
            return bits + differs.leading_zeros() as u16;
        }
        bits += 8;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;
    use alloc::vec::Vec;

    /// A key of few bits, so that keys nest and part everywhere; its last bits are zero, as
    /// they are in a network.
    fn literal(random: &mut Random) -> (Vec<u8>, u16, bool) {
        let length = 1 + random.below(3) as usize;
        let mut key: Vec<u8> = (0..length)
            .map(|_| random.pick(&[0x00, 0x01, 0x80, 0xff]))
            .collect();
        if random.one_in(2) {
            return (key, length as u16 * 8, true);
        }
        let bits = random.below(length as u64 * 8 + 1) as u16;
        for (at, byte) in key.iter_mut().enumerate() {
            let kept = usize::from(bits).saturating_sub(at * 8).min(8);
            *byte &= !(0xff_u16 >> kept) as u8;
        }
        (key, bits, false)
    }

    fn satisfies(value: &[u8], key: &[u8], bits: u16, is_exact: bool) -> bool {
        if is_exact {
            value == key
        } else {
            bits <= value.len() as u16 * 8 && (0..bits).all(|at| bit(value, at) == bit(key, at))
        }
    }

    #[test]
    fn a_look_up_finds_what_a_scan_finds() {
        for seed in 0..3_000 {
            let mut random = Random(seed);
            let (mut trie, mut ids) = (Trie::new(), Arena::new());
            let mut held: Vec<(Vec<u8>, u16, bool, Id)> = Vec::new();
            for _ in 0..80 {
                if random.one_in(3) && !held.is_empty() {
                    let at = random.below(held.len() as u64) as usize;
                    let (key, bits, is_exact, id) = held.swap_remove(at);
                    trie.remove(&key, bits, is_exact);
                    ids.remove(id);
                } else {
                    let (key, bits, is_exact) = literal(&mut random);
                    let same = |(k, b, e, _): &&(Vec<u8>, u16, bool, Id)| {
                        *e == is_exact
                            && *b == bits
                            && (0..bits).all(|at| bit(k, at) == bit(&key, at))
                    };
                    let known = held.iter().find(same).map(|(.., id)| *id);
                    assert_eq!(trie.get(&key, bits, is_exact), known, "seed {seed}");
                    if known.is_none() {
                        let id = ids.insert(());
                        trie.insert(&key, bits, is_exact, id);
                        held.push((key, bits, is_exact, id));
                    }
                }
                let (value, ..) = literal(&mut random);
                let mut found = Vec::new();
                trie.look_up(&value, |id| found.push(id));
                found.sort_unstable();
                let mut scanned: Vec<Id> = held
                    .iter()
                    .filter(|(key, bits, is_exact, _)| satisfies(&value, key, *bits, *is_exact))
                    .map(|(.., id)| *id)
                    .collect();
                scanned.sort_unstable();
                assert_eq!(found, scanned, "seed {seed}: {value:x?} among {held:x?}");
                // Forks only part paths, so there are fewer of them than keys.
                assert!(trie.nodes.len() <= 2 * held.len(), "seed {seed}");
            }
            for (key, bits, is_exact, _) in held {
                trie.remove(&key, bits, is_exact);
            }
            assert_eq!((trie.root, trie.nodes.len()), (None, 0), "seed {seed}");
        }
    }
}
