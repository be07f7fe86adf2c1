//! All demands, in the order in which they are satisfied, with the sums for a share.
//!
//! The order is by priority, the highest first, if priorities count; then by the demand for each
//! client, the smallest first. So holders that can have all that they want come before those that
//! cannot, and a share needs only a few sums over a range of that order.
//!
//! A B+-tree (D. Comer, "The Ubiquitous B-Tree", 1979), in which each node has the demand below
//! each child. Neighbours that fit into three quarters of one node become one. The nodes are
//! wide, because a binary tree of 100,000 entries touches too much memory: it took at least twice
//! as long. As in `sums`, a change is summed again from the bottom up, and nothing is ever
//! subtracted, so sums do not drift. A change is O(log n), and so is a share.
//!
//! There is an entry for each holder, so entries are small. The demand for each client is
//! computed for comparisons, and a priority is stored only if priorities count. A leaf has little
//! spare room. A leaf that grows at its end, for example with many equal demands in a row, is not
//! split in the middle.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt::Debug;
use core::ops::Add;

use super::share::{above_equal_share, at_level};
use super::{Band, Split};

/// The most children of a node.
const WIDTH: usize = 32;
/// The most entries of a leaf. They are fewer, because leaves are read from memory and not from a
/// cache. With one more, before a split, they fill 256 bytes.
const LEAF_WIDTH: usize = 15;
/// The number of entries and children for which room is made at once.
const STEP: usize = 4;

#[derive(Clone, Debug)]
pub(super) enum DemandOrder {
    /// Without priorities.
    Plain(DemandNode<()>),
    /// With priorities.
    Ranked(DemandNode<i64>),
}

#[derive(Clone, Debug)]
pub(super) enum DemandNode<P> {
    Leaf(Vec<DemandEntry<P>>),
    /// Never empty.
    Inner(Vec<Child<P>>),
}

#[derive(Clone, Debug)]
pub(super) struct Child<P> {
    /// The first below it.
    first: OrderKey,
    /// Of all below it.
    sum: Sum,
    node: DemandNode<P>,
}

/// The demand of a holder, in a leaf: one for each holder, in 16 bytes without priorities.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemandEntry<P> {
    priority: P,
    wants: f64,
    weight: u32,
    owner: u32,
}

/// The part of an entry's priority that is kept: none, if priorities do not count.
pub(super) trait Priority: Copy + Debug {
    fn of(band: &Band) -> Self;
    fn get(self) -> i64;
}

impl Priority for () {
    fn of(_: &Band) -> Self {}

    fn get(self) -> i64 {
        0
    }
}

impl Priority for i64 {
    fn of(band: &Band) -> Self {
        band.priority
    }

    fn get(self) -> i64 {
        self
    }
}

/// The key of the order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OrderKey {
    /// Zero without priorities.
    priority: i64,
    /// The demand for each client.
    each: f64,
    owner: u32,
}

/// A place between two entries: before those of this priority that want at least this much for
/// each client.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Edge {
    priority: i64,
    each: f64,
}

impl Edge {
    /// Before all entries.
    const START: Self = Self::before(i64::MAX);
    /// After all entries.
    const END: Self = Self::after(i64::MIN);

    const fn before(priority: i64) -> Self {
        let each = 0.0;
        Self { priority, each }
    }

    /// After the entries of a priority. No demand is infinite.
    const fn after(priority: i64) -> Self {
        let each = f64::INFINITY;
        Self { priority, each }
    }

    fn is_after(self, key: &OrderKey) -> bool {
        key.priority > self.priority || key.priority == self.priority && key.each < self.each
    }
}

/// The sum of some bands' demands, and their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) wants: f64,
    pub(super) clients: u64,
}

impl Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            wants: self.wants + other.wants,
            clients: self.clients + other.clients,
        }
    }
}

impl core::iter::Sum for Sum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), Add::add)
    }
}

impl DemandOrder {
    pub(super) const fn new(ranked: bool) -> Self {
        if ranked {
            Self::Ranked(DemandNode::Leaf(Vec::new()))
        } else {
            Self::Plain(DemandNode::Leaf(Vec::new()))
        }
    }

    pub(super) const fn is_ranked(&self) -> bool {
        matches!(self, Self::Ranked(_))
    }

    /// Of all.
    pub(super) fn total(&self) -> Sum {
        match self {
            Self::Plain(root) => root.sum(),
            Self::Ranked(root) => root.sum(),
        }
    }

    /// Inserts a band. A holder has no other band of this priority, and no other at all without
    /// priorities.
    pub(super) fn insert(&mut self, owner: u32, band: &Band) {
        match self {
            Self::Plain(root) => root.insert_at_root(DemandEntry::new(owner, band)),
            Self::Ranked(root) => root.insert_at_root(DemandEntry::new(owner, band)),
        }
    }

    /// Removes an existing band.
    pub(super) fn remove(&mut self, owner: u32, band: &Band) {
        match self {
            Self::Plain(root) => root.remove_at_root(&DemandEntry::<()>::new(owner, band).key()),
            Self::Ranked(root) => root.remove_at_root(&DemandEntry::<i64>::new(owner, band).key()),
        }
    }

    /// The share of this existing band.
    pub(super) fn share(&self, split: Split, capacity: f64, band: &Band) -> f64 {
        match split {
            Split::None => band.wants.get(),
            Split::Static => band.wants.get().min(capacity),
            Split::Proportional => self.proportional(capacity, band),
            Split::Fair => self.fair(capacity, band),
        }
    }

    fn proportional(&self, capacity: f64, band: &Band) -> f64 {
        let priority = self.priority(band);
        let (above, rank) = self.around(priority);
        let left = (capacity - above.wants).max(0.0);
        if rank.wants <= left {
            return band.wants.get();
        }
        let each = left / rank.clients as f64;
        if band.each() < each {
            return band.wants.get();
        }
        let wants_more = Edge { priority, each };
        let modest = self.between(Edge::before(priority), wants_more);
        let others = self.between(wants_more, Edge::after(priority));
        let unused = each * modest.clients as f64 - modest.wants;
        let beyond = others.wants - each * others.clients as f64;
        above_equal_share(band, each, unused, beyond)
    }

    fn fair(&self, capacity: f64, band: &Band) -> f64 {
        let priority = self.priority(band);
        let (above, rank) = self.around(priority);
        if above.wants + rank.wants <= capacity {
            return band.wants.get();
        }
        // The first that cannot have all that it wants: all before it can, and the others share the
        // rest.
        let end = above.clients + rank.clients;
        let left = |before: Sum| (end - before.clients) as f64;
        let short = |key: &OrderKey, before: Sum| match priority.cmp(&key.priority) {
            Ordering::Less => false,
            Ordering::Equal => before.wants + key.each * left(before) > capacity,
            Ordering::Greater => true,
        };
        let level = match self.before_first(&short) {
            // All of this rank can, except for the rounding of their sum.
            None => f64::INFINITY,
            Some(before) if before.clients >= end => f64::INFINITY,
            Some(before) => (capacity - before.wants).max(0.0) / left(before),
        };
        at_level(band, level)
    }

    /// The demand of the higher priorities, and of this one.
    fn around(&self, priority: i64) -> (Sum, Sum) {
        if !self.is_ranked() {
            return (Sum::default(), self.total());
        }
        let (begin, end) = (Edge::before(priority), Edge::after(priority));
        (self.between(Edge::START, begin), self.between(begin, end))
    }

    fn priority(&self, band: &Band) -> i64 {
        if self.is_ranked() { band.priority } else { 0 }
    }

    fn between(&self, from: Edge, to: Edge) -> Sum {
        match self {
            Self::Plain(root) => root.between(from, to),
            Self::Ranked(root) => root.between(from, to),
        }
    }

    fn before_first(&self, is_first: &impl Fn(&OrderKey, Sum) -> bool) -> Option<Sum> {
        match self {
            Self::Plain(root) => root.before_first(Sum::default(), is_first),
            Self::Ranked(root) => root.before_first(Sum::default(), is_first),
        }
    }
}

impl<P: Priority> DemandNode<P> {
    fn insert_at_root(&mut self, entry: DemandEntry<P>) {
        if let Some(right) = self.insert(entry) {
            let left = core::mem::replace(self, Self::Leaf(Vec::new()));
            *self = Self::Inner(alloc::vec![Child::of(left), Child::of(right)]);
        }
    }

    fn remove_at_root(&mut self, key: &OrderKey) {
        self.remove(key);
        if let Self::Inner(children) = self {
            match children.as_mut_slice() {
                [] => *self = Self::Leaf(Vec::new()),
                [_] => *self = children.remove(0).node,
                _ => {}
            }
        }
    }

    fn sum(&self) -> Sum {
        match self {
            Self::Leaf(entries) => entries.iter().map(DemandEntry::own).sum(),
            Self::Inner(children) => children.iter().map(|child| child.sum).sum(),
        }
    }

    /// The number of entries or children.
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }

    /// Inserts an entry. Returns the second part of the node if it became too wide.
    fn insert(&mut self, entry: DemandEntry<P>) -> Option<Self> {
        match self {
            Self::Leaf(entries) => {
                let place = place_in(entries, &entry.key());
                put(entries, place, entry);
                second_part(entries, place, LEAF_WIDTH).map(Self::Leaf)
            }
            Self::Inner(children) => {
                let place = place_of(children, &entry.key());
                let child = &mut children[place];
                let right = child.node.insert(entry);
                child.sum_up();
                let right = right?;
                put(children, place + 1, Child::of(right));
                second_part(children, place + 1, WIDTH).map(Self::Inner)
            }
        }
    }

    /// Removes the entry of this key. The rest may be empty.
    fn remove(&mut self, key: &OrderKey) {
        match self {
            Self::Leaf(entries) => {
                let place = place_in(entries, key);
                let entry = entries.remove(place);
                debug_assert_eq!(entry.key(), *key);
                if entries.capacity() - entries.len() >= 2 * STEP {
                    entries.shrink_to(entries.len() + STEP);
                }
            }
            Self::Inner(children) => {
                let place = place_of(children, key);
                let child = &mut children[place];
                child.node.remove(key);
                if child.node.len() == 0 {
                    children.remove(place);
                    return;
                }
                child.sum_up();
                for left in [place, place.saturating_sub(1)] {
                    join_if_narrow(children, left);
                }
            }
        }
    }

    /// The sum of the entries from one edge to another, which is not before it.
    fn between(&self, from: Edge, to: Edge) -> Sum {
        match self {
            Self::Leaf(entries) => {
                let first = entries.partition_point(|entry| from.is_after(&entry.key()));
                let end = entries.partition_point(|entry| to.is_after(&entry.key()));
                entries[first..end].iter().map(DemandEntry::own).sum()
            }
            Self::Inner(children) => {
                // Each edge may be inside the last child that begins before it.
                let begun = children.partition_point(|child| from.is_after(&child.first));
                let end = children.partition_point(|child| to.is_after(&child.first));
                match &children[begun.saturating_sub(1)..end] {
                    [] => Sum::default(),
                    [only] => only.between(from, to),
                    [first, whole @ .., last] => {
                        let whole: Sum = whole.iter().map(|child| child.sum).sum();
                        first.between(from, Edge::END) + whole + last.between(Edge::START, to)
                    }
                }
            }
        }
    }

    /// The sum of all before the first entry for which `is_first` holds; it gets that sum. It holds
    /// for all later entries. `before` is the sum before this node.
    fn before_first(&self, before: Sum, is_first: &impl Fn(&OrderKey, Sum) -> bool) -> Option<Sum> {
        let mut before = before;
        match self {
            Self::Leaf(entries) => {
                for entry in entries {
                    if is_first(&entry.key(), before) {
                        return Some(before);
                    }
                    before = before + entry.own();
                }
                None
            }
            Self::Inner(children) => {
                // It is below the last child whose first it is not yet, or the first of the next.
                let mut last: Option<(&Child<P>, Sum)> = None;
                let within = |last: Option<(&Child<P>, Sum)>| {
                    last.and_then(|(child, before)| child.node.before_first(before, is_first))
                };
                for child in children {
                    if is_first(&child.first, before) {
                        return within(last).or(Some(before));
                    }
                    last = Some((child, before));
                    before = before + child.sum;
                }
                within(last)
            }
        }
    }
}

/// How many of these are before the key. All are read without branches, so that a leaf outside
/// the cache is fetched as a whole and not in the steps of a binary search.
fn place_in<P: Priority>(entries: &[DemandEntry<P>], key: &OrderKey) -> usize {
    let before = entries.iter().map(|entry| entry.key().is_before(key));
    before.map(usize::from).sum()
}

/// The child for this key.
fn place_of<P>(children: &[Child<P>], key: &OrderKey) -> usize {
    let after = children.partition_point(|child| !key.is_before(&child.first));
    after.saturating_sub(1)
}

/// Inserts one, and makes room for a few more if there is none.
fn put<T>(items: &mut Vec<T>, place: usize, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact(STEP);
    }
    items.insert(place, item);
}

/// Splits a node that is too wide, after an insertion at this place: in the middle, or near the
/// end if it grows there, because the first part may never grow again.
fn second_part<T>(items: &mut Vec<T>, place: usize, width: usize) -> Option<Vec<T>> {
    if items.len() <= width {
        return None;
    }
    let grows_at_end = place + 1 == items.len();
    let cut = if grows_at_end {
        items.len() * 3 / 4
    } else {
        items.len() / 2
    };
    let mut right = Vec::with_capacity((items.len() - cut).next_multiple_of(STEP));
    right.extend(items.drain(cut..));
    items.shrink_to(cut.next_multiple_of(STEP));
    Some(right)
}

/// Merges a child with the next if they fit into three quarters of one. So it is not split again
/// soon, and neighbours are never nearly empty.
fn join_if_narrow<P: Priority>(children: &mut Vec<Child<P>>, left: usize) {
    let (Some(child), Some(next)) = (children.get(left), children.get(left + 1)) else {
        return;
    };
    let width = match child.node {
        DemandNode::Leaf(_) => LEAF_WIDTH,
        DemandNode::Inner(_) => WIDTH,
    };
    if child.node.len() + next.node.len() > width * 3 / 4 {
        return;
    }
    let next = children.remove(left + 1);
    let child = &mut children[left];
    match (&mut child.node, next.node) {
        (DemandNode::Leaf(entries), DemandNode::Leaf(more)) => append(entries, more),
        (DemandNode::Inner(children), DemandNode::Inner(more)) => append(children, more),
        _ => unreachable!("all leaves are equally deep"),
    }
    child.sum_up();
}

/// Appends these, without spare room.
fn append<T>(items: &mut Vec<T>, more: Vec<T>) {
    items.reserve_exact(more.len());
    items.extend(more);
}

impl<P: Priority> Child<P> {
    fn of(node: DemandNode<P>) -> Self {
        let mut child = Self {
            first: OrderKey {
                priority: 0,
                each: 0.0,
                owner: 0,
            },
            sum: Sum::default(),
            node,
        };
        child.sum_up();
        child
    }

    fn between(&self, from: Edge, to: Edge) -> Sum {
        if (from, to) == (Edge::START, Edge::END) {
            self.sum
        } else {
            self.node.between(from, to)
        }
    }

    /// Updates the sum below it.
    fn sum_up(&mut self) {
        self.sum = self.node.sum();
        self.first = match &self.node {
            DemandNode::Leaf(entries) => entries[0].key(),
            DemandNode::Inner(children) => children[0].first,
        };
    }
}

impl<P: Priority> DemandEntry<P> {
    fn new(owner: u32, band: &Band) -> Self {
        Self {
            priority: P::of(band),
            wants: band.wants.get(),
            weight: band.weight(),
            owner,
        }
    }

    fn key(&self) -> OrderKey {
        OrderKey {
            priority: self.priority.get(),
            each: self.wants / f64::from(self.weight),
            owner: self.owner,
        }
    }

    fn own(&self) -> Sum {
        Sum {
            wants: self.wants,
            clients: self.weight.into(),
        }
    }
}

impl OrderKey {
    // Without a branch that could be mispredicted. The demand for each is neither NaN nor negative,
    // so it is totally ordered.
    fn is_before(&self, other: &Self) -> bool {
        let first = (self.each == other.each) & (self.owner < other.owner);
        let modest = (self.each < other.each) | first;
        (self.priority > other.priority) | (self.priority == other.priority) & modest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Capacity;
    use crate::random::{Random, seeds};
    use crate::shares::{share, share_by_priority};
    use core::num::NonZeroU64;

    impl<P: Priority> DemandNode<P> {
        /// Checks what is promised of a node and all below it, and lists the entries in order.
        /// Returns how deep it is.
        fn check(&self, list: &mut Vec<OrderKey>) -> usize {
            match self {
                Self::Leaf(entries) => {
                    assert!(entries.len() <= LEAF_WIDTH);
                    assert!(entries.capacity() - entries.len() < 2 * STEP);
                    list.extend(entries.iter().map(DemandEntry::key));
                    1
                }
                Self::Inner(children) => {
                    assert!(!children.is_empty() && children.len() <= WIDTH);
                    let depths: Vec<usize> = children
                        .iter()
                        .map(|child| {
                            let first = list.len();
                            let depth = child.node.check(list);
                            assert_eq!(list[first], child.first);
                            assert_eq!(child.sum, child.node.sum());
                            depth
                        })
                        .collect();
                    assert!(depths.iter().all(|depth| *depth == depths[0]));
                    for pair in children.windows(2) {
                        let fill = pair[0].node.len() + pair[1].node.len();
                        // Less if the one between them was removed.
                        assert!(fill > 1, "neighbours are nearly empty");
                    }
                    1 + depths[0]
                }
            }
        }
    }

    fn any_band(random: &mut Random) -> Band {
        Band {
            priority: random.below(4) as i64,
            clients: NonZeroU64::new(random.between(1, 5)).unwrap(),
            // Few different ones, so that many want the same.
            wants: Capacity::new(random.below(40) as f64).unwrap(),
        }
    }

    #[test]
    fn an_entry_takes_16_bytes_and_a_priority_another_8() {
        assert_eq!(
            (size_of::<DemandEntry<()>>(), size_of::<DemandEntry<i64>>()),
            (16, 24)
        );
    }

    #[test]
    fn it_stays_level_in_order_and_summed_up() {
        for seed in seeds(0..20) {
            let mut random = Random::new(seed);
            let mut demand = DemandOrder::new(random.one_in(2));
            let mut owners: Vec<Band> = Vec::new();
            let mut grows = true;
            for step in 0..6000 {
                if owners.len() == 2000 || owners.is_empty() {
                    grows = owners.is_empty();
                }
                let band = any_band(&mut random);
                if random.one_in(if grows { 4 } else { 2 }) && !owners.is_empty() {
                    let owner = random.below(owners.len() as u64) as usize;
                    demand.remove(owner as u32, &owners[owner]);
                    demand.insert(owner as u32, &band);
                    owners[owner] = band;
                } else if grows {
                    demand.insert(owners.len() as u32, &band);
                    owners.push(band);
                } else if let Some(band) = owners.pop() {
                    demand.remove(owners.len() as u32, &band);
                }
                if step % 50 > 0 && owners.len() > 40 {
                    continue;
                }
                let mut list = Vec::new();
                match &demand {
                    DemandOrder::Plain(root) => root.check(&mut list),
                    DemandOrder::Ranked(root) => root.check(&mut list),
                };
                assert_eq!(list.len(), owners.len(), "seed {seed}");
                for pair in list.windows(2) {
                    assert!(pair[0].is_before(&pair[1]), "seed {seed}");
                }
                let clients: u64 = owners.iter().map(|band| band.clients.get()).sum();
                assert_eq!(demand.total().clients, clients, "seed {seed}");
            }
        }
    }

    #[test]
    fn every_share_is_what_the_pure_function_says() {
        for seed in seeds(0..2000) {
            let mut random = Random::new(seed);
            let ranked = random.one_in(2);
            let mut demand = DemandOrder::new(ranked);
            let most = random.pick(&[5, 40, 40, 1500]);
            let most = if random.one_in(20) {
                most
            } else {
                most.min(40)
            };
            let bands: Vec<Band> = (0..random.between(1, most))
                .map(|_| any_band(&mut random))
                .collect();
            for (band, owner) in bands.iter().zip(0..) {
                demand.insert(owner, band);
            }
            let each = random.real(0.0, 20.0);
            let capacity = each * bands.len() as f64;
            for split in [Split::None, Split::Static, Split::Proportional, Split::Fair] {
                let pure = if ranked {
                    share_by_priority(split, capacity, &bands)
                } else {
                    share(split, capacity, &bands)
                };
                for (band, share) in bands.iter().zip(pure) {
                    let got = demand.share(split, capacity, band);
                    let off = (got - share).abs();
                    assert!(
                        off < 1e-9 * capacity.max(1.0),
                        "seed {seed}, {split:?}: {got} instead of {share:?}"
                    );
                }
            }
        }
    }
}
