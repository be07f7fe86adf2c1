//! Finds the patterns that match an identity without asking all of them.
//!
//! This is tuple space search (V. Srinivasan, S. Suri, G. Varghese, "Packet Classification using
//! Tuple Space Search", SIGCOMM 1999). The *shape* of a pattern says of each field whether it
//! demands nothing, a whole value, or a prefix, and of how many bits. Patterns of one shape differ
//! only in the bytes that they demand, so an identity matches at most one of them: the one with
//! the bytes that the identity has there. These bytes are the *key*. A look-up makes one key for
//! each shape.
//!
//! The keys are ordered instead of hashed, so they need no secret: the author of values cannot make
//! them collide.
//!
//! # Cost
//!
//! A step for each shape, which is a logarithm of the number of its patterns. Rows that registered
//! themselves have at most 31 shapes, since whole values of any length have the same one. Measured
//! at 10,000 patterns: 0.1 to 0.5 µs, and 3 µs where prefixes of one field have 30 lengths
//! (`benches/callers.rs`).
//!
//! The worst case is a shape of its own for each pattern, which takes prefixes of different lengths
//! in several fields at once. Then the look-up is linear in the number of patterns, about
//! 0.1 µs each. Only the author of patterns can cause that, not a client.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::identity::Identity;
use crate::network::masked;
use crate::pattern::{FieldDemand, LITERAL_MAX, Pattern, PatternShape, Specificity};

/// Patterns, each with a value.
#[derive(Debug)]
pub(super) struct Index<V> {
    shapes: BTreeMap<PatternShape, OfOneShape<V>>,
}

/// Patterns of one shape, by their keys.
type OfOneShape<V> = BTreeMap<Box<[u8]>, (Specificity, V)>;

/// The result of a look-up, and the room that it needs: kept from one look-up to the next, so that none of them
/// allocates.
#[derive(Debug)]
pub(super) struct Lookup<V> {
    pub(super) entries: Vec<(Specificity, V)>,
    key: Vec<u8>,
}

impl<V> Default for Lookup<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            key: Vec::new(),
        }
    }
}

impl<V: Copy> Index<V> {
    pub(super) const fn new() -> Self {
        Self {
            shapes: BTreeMap::new(),
        }
    }

    /// The value of exactly this pattern.
    pub(super) fn get(&self, pattern: &Pattern) -> Option<V> {
        let patterns = self.shapes.get(&pattern.specificity().shape())?;
        patterns.get(&*key_of(pattern)).map(|(_, value)| *value)
    }

    /// Adds a pattern.
    ///
    /// # Errors
    ///
    /// The value of the same pattern, if it is there already.
    pub(super) fn insert(&mut self, pattern: &Pattern, value: V) -> Result<(), V> {
        let specificity = pattern.specificity();
        let patterns = self.shapes.entry(specificity.shape()).or_default();
        match patterns.entry(key_of(pattern)) {
            Entry::Occupied(held) => Err(held.get().1),
            Entry::Vacant(place) => {
                place.insert((specificity, value));
                Ok(())
            }
        }
    }

    /// Takes a pattern out; its value, if it was there.
    pub(super) fn remove(&mut self, pattern: &Pattern) -> Option<V> {
        let shape = pattern.specificity().shape();
        let patterns = self.shapes.get_mut(&shape)?;
        let (_, value) = patterns.remove(&*key_of(pattern))?;
        if patterns.is_empty() {
            self.shapes.remove(&shape);
        }
        Some(value)
    }

    /// Finds every pattern that matches `identity`, in no order.
    pub(super) fn look_up(&self, identity: &Identity<'_>, found: &mut Lookup<V>) {
        let Lookup { entries, key } = found;
        entries.clear();
        for (shape, patterns) in &self.shapes {
            if write_key(shape, identity, key).is_some() {
                entries.extend(patterns.get(&**key));
            }
        }
    }
}

/// The key of a pattern: that of the identity with no more than it demands.
fn key_of(pattern: &Pattern) -> Box<[u8]> {
    let mut key = Vec::new();
    let shape = pattern.specificity().shape();
    write_key(&shape, &pattern.least_match(), &mut key).expect("a pattern's own literals match");
    key.into()
}

/// The bytes that an identity has where patterns of this shape demand some, in the order of
/// [`Field`](crate::IdentityField); `None` if it has too few.
fn write_key(shape: &PatternShape, identity: &Identity<'_>, key: &mut Vec<u8>) -> Option<()> {
    key.clear();
    let [user, originator, ip, user_agent, listener] = *shape;
    write_text(user, identity.user, key)?;
    write_text(originator, identity.originator, key)?;
    match ip {
        FieldDemand::Nothing => {}
        FieldDemand::Exact(_) => write_address(identity.ip()?, key),
        FieldDemand::Prefix(bits) => write_address(masked(identity.ip()?, bits as u8), key),
    }
    write_text(user_agent, identity.user_agent, key)?;
    write_text(listener, identity.listener, key)
}

#[inline]
fn write_text(demand: FieldDemand, text: &str, key: &mut Vec<u8>) -> Option<()> {
    /// No text has this byte.
    const END: u8 = 0xff;
    let text = text.as_bytes();
    match demand {
        FieldDemand::Nothing => return Some(()),
        // An empty text is absent.
        _ if text.is_empty() => return None,
        FieldDemand::Exact(_) if text.len() > LITERAL_MAX => return None,
        FieldDemand::Exact(_) => {
            key.extend_from_slice(text);
            key.push(END);
        }
        FieldDemand::Prefix(bits) => key.extend_from_slice(text.get(..usize::from(bits / 8))?),
    }
    Some(())
}

/// The version comes first, since addresses of both have prefixes of the same length.
fn write_address(address: IpAddr, key: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            key.push(4);
            key.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            key.push(6);
            key.extend_from_slice(&address.octets());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};

    /// The result of a scan over all patterns.
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
        for seed in seeds(0..400) {
            let mut random = Random::new(seed);
            let (mut index, mut found) = (Index::new(), Lookup::default());
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
            assert!(
                index.shapes.is_empty(),
                "seed {seed}: nothing is left behind"
            );
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
        let mut found = Lookup::default();
        let mut check = |length: usize, values: &[i32]| {
            let agent = "a".repeat(length);
            let identity = Identity {
                user_agent: &agent,
                ..Identity::default()
            };
            index.look_up(&identity, &mut found);
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
