//! Which of many literals a value begins with, or is.
//!
//! A binary trie whose paths without a branch are left out (D. R. Morrison, "PATRICIA",
//! Journal of the ACM 15, 1968). A node knows only how many bits its keys share; the bits
//! themselves are compared once, with the key of the node where the descent ends, since all
//! nodes on the way have a prefix of that key.
//!
//! One kind of trie serves text and addresses. Ordered by bits instead of hashed, it needs no
//! secret: the author of values cannot make them collide, but can nest them. Then a look-up that
//! meets all of them takes a step for each, up to one for every bit of the value.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::arena::{Arena, Id};

/// Values under literals; a key may stand for a prefix, for a whole value, or for both.
#[derive(Debug)]
pub(super) struct Trie<V> {
    root: Option<Id>,
    nodes: Arena<Node>,
    keys: Arena<Key<V>>,
}

/// As small as can be, since a look-up passes many of them and few keys.
#[derive(Debug)]
struct Node {
    /// How many bits all keys at and below this node share.
    bits: u16,
    /// Whether its key has a prefix.
    has_prefix: bool,
    /// By the bit after those.
    children: [Option<Id>; 2],
    /// None where two paths only part; such a fork has both children.
    key: Option<Id>,
}

#[derive(Debug)]
struct Key<V> {
    bytes: Box<[u8]>,
    prefix: Option<V>,
    exact: Option<V>,
}

/// Where a link to a node is kept.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Child(Id, usize),
}

impl<V: Copy> Trie<V> {
    pub(super) const fn new() -> Self {
        Self {
            root: None,
            nodes: Arena::new(),
            keys: Arena::new(),
        }
    }

    /// Adds to `found` every value whose literal `seen` begins with, or is.
    pub(super) fn look_up(&self, seen: &[u8], found: &mut Vec<V>) {
        let Some(root) = self.root else { return };
        let bits = seen.len() as u16 * 8;
        let mut node = self.nodes.at(root);
        let before = found.len();
        // On the way down nothing is compared, so what is found is not yet sure.
        let mut last_prefix = 0;
        loop {
            if node.has_prefix && node.bits <= bits {
                last_prefix = node.bits;
                found.extend(self.key(node).and_then(|key| key.prefix));
            }
            if node.bits >= bits {
                break;
            }
            match node.children[bit(seen, node.bits)] {
                Some(child) => node = self.nodes.at(child),
                None => break,
            }
        }
        let (beside, beside_bits) = self.key_below(node);
        let shared = shared_bits(seen, &beside.bytes).min(beside_bits);
        if last_prefix > shared {
            found.truncate(before);
            self.look_up_prefixes(root, seen, shared, found);
        }
        if node.bits == bits && shared == bits {
            found.extend(self.key(node).and_then(|key| key.exact));
        }
    }

    /// Adds to `found` the values of the prefixes of the first `shared` bits of `seen`.
    fn look_up_prefixes(&self, root: Id, seen: &[u8], shared: u16, found: &mut Vec<V>) {
        let mut next = Some(root);
        while let Some(id) = next {
            let node = self.nodes.at(id);
            if node.bits > shared {
                return;
            }
            found.extend(self.key(node).and_then(|key| key.prefix));
            next = node.children[bit(seen, node.bits)];
        }
    }

    /// The value of exactly this literal.
    pub(super) fn get(&self, key: &[u8], bits: u16, is_exact: bool) -> Option<V> {
        let node = self.nodes.at(self.walk(key, bits).1?);
        let held = self.key(node)?;
        let is_here = node.bits == bits && shared_bits(key, &held.bytes) >= bits;
        if !is_here {
            return None;
        }
        if is_exact { held.exact } else { held.prefix }
    }

    /// Puts `value` under the first `bits` of `key`, where nothing is yet.
    pub(super) fn insert(&mut self, key: &[u8], bits: u16, is_exact: bool, value: V) {
        let Some(root) = self.root else {
            self.root = Some(self.leaf(key, bits, is_exact, value));
            return;
        };
        let (beside, beside_bits) = self.key_beside(root, key, bits);
        let shared = shared_bits(key, beside).min(beside_bits).min(bits);
        let below = (shared < beside_bits).then(|| bit(beside, shared));
        let (link, at) = self.walk(key, shared);
        let at = at.expect("the key beside is at the end of the way");
        let node = self.nodes.at_mut(at);
        if node.bits == shared && shared == bits {
            let held = *node.key.get_or_insert_with(|| {
                self.keys.insert(Key {
                    bytes: key.into(),
                    prefix: None,
                    exact: None,
                })
            });
            node.has_prefix |= !is_exact;
            *self.keys.at_mut(held).slot(is_exact) = Some(value);
        } else if node.bits == shared {
            let leaf = self.leaf(key, bits, is_exact, value);
            self.set(Link::Child(at, bit(key, shared)), Some(leaf));
        } else {
            let below = below.expect("what is longer has a bit more");
            let leaf = self.leaf(key, bits, is_exact, value);
            let upper = if shared == bits {
                self.nodes.at_mut(leaf).children[below] = Some(at);
                leaf
            } else {
                let mut children = [Some(leaf); 2];
                children[below] = Some(at);
                self.nodes.insert(Node {
                    bits: shared,
                    has_prefix: false,
                    children,
                    key: None,
                })
            };
            self.set(link, Some(upper));
        }
    }

    /// Takes away what [`Self::insert`] put there.
    pub(super) fn remove(&mut self, key: &[u8], bits: u16, is_exact: bool) {
        let (link, at) = self.walk(key, bits);
        let at = at.expect("the literal is there");
        let node = self.nodes.at_mut(at);
        let held = node.key.expect("the literal is there");
        let key_held = self.keys.at_mut(held);
        *key_held.slot(is_exact) = None;
        node.has_prefix = key_held.prefix.is_some();
        if node.has_prefix || key_held.exact.is_some() {
            return;
        }
        self.keys.remove(held);
        node.key = None;
        self.tidy(link, at);
        if let Link::Child(parent, _) = link
            && self.nodes.at(parent).key.is_none()
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

    /// A new node that hangs nowhere yet.
    fn leaf(&mut self, key: &[u8], bits: u16, is_exact: bool, value: V) -> Id {
        let mut held = Key {
            bytes: key.into(),
            prefix: None,
            exact: None,
        };
        *held.slot(is_exact) = Some(value);
        let key = Some(self.keys.insert(held));
        self.nodes.insert(Node {
            bits,
            has_prefix: !is_exact,
            children: [None, None],
            key,
        })
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
        let (key, bits) = self.key_below(node);
        (&key.bytes, bits)
    }

    /// A key at or below `node`, and how many bits it has.
    fn key_below<'a>(&'a self, mut node: &'a Node) -> (&'a Key<V>, u16) {
        loop {
            if let Some(key) = self.key(node) {
                return (key, node.bits);
            }
            let child = node.children[0].expect("a fork has both children");
            node = self.nodes.at(child);
        }
    }

    fn key(&self, node: &Node) -> Option<&Key<V>> {
        node.key.map(|key| self.keys.at(key))
    }
}

impl<V> Key<V> {
    const fn slot(&mut self, is_exact: bool) -> &mut Option<V> {
        if is_exact {
            &mut self.exact
        } else {
            &mut self.prefix
        }
    }
}

fn bit(key: &[u8], at: u16) -> usize {
    usize::from(key[usize::from(at / 8)] >> (7 - at % 8) & 1)
}

fn shared_bits(one: &[u8], other: &[u8]) -> u16 {
    let (words, _) = one.as_chunks::<8>();
    let (other_words, _) = other.as_chunks::<8>();
    let mut bits = 0;
    for (a, b) in words.iter().zip(other_words) {
        let differs = u64::from_be_bytes(*a) ^ u64::from_be_bytes(*b);
        if differs != 0 {
            return bits + differs.leading_zeros() as u16;
        }
        bits += 64;
    }
    let start = usize::from(bits / 8);
    for (a, b) in one[start..].iter().zip(&other[start..]) {
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
    use super::*;
    use crate::random::Random;

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
            let mut random = Random::new(seed);
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
                trie.look_up(&value, &mut found);
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
            let left = (trie.root, trie.nodes.len(), trie.keys.len());
            assert_eq!(left, (None, 0, 0), "seed {seed}");
        }
    }
}
