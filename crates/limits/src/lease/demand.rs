//! What all want, in the order in which it is satisfied, with the sums that a share needs.
//!
//! The order is by priority, the greatest first, where priorities count; then by what is wanted for
//! each client, the least first. So whoever can have all that it wants stands before whoever cannot,
//! and a share needs no more than a few sums over a stretch of that order.
//!
//! A balanced tree (G. Adelson-Velsky, E. Landis, "An algorithm for the organization of
//! information", 1962), whose nodes carry the sums of what is below them. As in `sums`, they are
//! summed anew from the leaves up and nothing is ever subtracted from them, so they don't drift.
//! A change is O(log n), and so is a share.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::num::NonZeroU64;

use super::share::{above_equal_share, at_level};
use super::{Band, Capacity, Split};

/// The node of a band. Stays the same as long as the band is in here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node(u32);

impl Node {
    /// No node.
    pub(super) const NONE: Self = Self(u32::MAX);
}

#[derive(Debug)]
pub(super) struct Demand {
    places: Vec<Place>,
    root: Node,
    /// The first of the places that are free, each of which names the next as its `left`.
    free: Node,
    /// Whether priorities count.
    ranked: bool,
}

/// 64 bytes, of which there is one for each holder.
#[derive(Clone, Debug)]
struct Place {
    priority: i64,
    /// What is wanted for each client.
    each: f64,
    wants: f64,
    /// Of this one and all below.
    sum: Sum,
    weight: u32,
    owner: u32,
    left: Node,
    right: Node,
    height: u8,
}

/// What some bands want together, and their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) wants: f64,
    pub(super) clients: u64,
}

impl core::ops::Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            wants: self.wants + other.wants,
            clients: self.clients + other.clients,
        }
    }
}

impl Demand {
    pub(super) const fn new(ranked: bool) -> Self {
        Self {
            places: Vec::new(),
            root: Node::NONE,
            free: Node::NONE,
            ranked,
        }
    }

    pub(super) const fn is_ranked(&self) -> bool {
        self.ranked
    }

    /// Of all.
    pub(super) fn total(&self) -> Sum {
        self.sum(self.root)
    }

    pub(super) fn band(&self, node: Node) -> Band {
        let place = self.at(node);
        Band {
            priority: place.priority,
            clients: NonZeroU64::new(place.weight.into()).expect("no band has no clients"),
            wants: Capacity::saturating(place.wants),
        }
    }

    /// Puts a band in. An owner has no other of this priority, and no other at all where priorities
    /// don't count.
    pub(super) fn insert(&mut self, owner: u32, band: &Band) -> Node {
        let place = Place {
            priority: band.priority,
            each: band.each(),
            wants: band.wants.get(),
            sum: Sum::default(),
            weight: band.weight(),
            owner,
            left: Node::NONE,
            right: Node::NONE,
            height: 1,
        };
        let node = self.free;
        let node = if node == Node::NONE {
            if self.places.len() == self.places.capacity() {
                // A quarter more, not twice as much.
                self.places.reserve_exact(4 + self.places.len() / 4);
            }
            self.places.push(place);
            let index = u32::try_from(self.places.len() - 1);
            Node(index.expect("fewer than 2^32 bands are held at once"))
        } else {
            self.free = self.at(node).left;
            *self.at_mut(node) = place;
            node
        };
        self.root = self.insert_below(self.root, node);
        node
    }

    /// Puts a band in the place of another of the same owner.
    pub(super) fn replace(&mut self, node: Node, band: &Band) {
        let place = self.at(node);
        let (priority, wants, weight) = (place.priority, place.wants, place.weight);
        if (priority, weight) == (band.priority, band.weight()) && wants == band.wants.get() {
            return;
        }
        self.root = self.remove_below(self.root, node);
        let place = self.at_mut(node);
        place.priority = band.priority;
        place.each = band.each();
        place.wants = band.wants.get();
        place.weight = band.weight();
        self.root = self.insert_below(self.root, node);
    }

    pub(super) fn remove(&mut self, node: Node) {
        self.root = self.remove_below(self.root, node);
        let free = self.free;
        self.at_mut(node).left = free;
        self.free = node;
    }

    /// What this band ought to have.
    pub(super) fn share(&self, split: Split, capacity: f64, node: Node) -> f64 {
        let place = self.at(node);
        match split {
            Split::None => place.wants,
            Split::Static => place.wants.min(capacity),
            Split::Proportional => self.proportional(capacity, node),
            Split::Fair => self.fair(capacity, node),
        }
    }

    fn proportional(&self, capacity: f64, node: Node) -> f64 {
        let place = self.at(node);
        let (above, rank) = self.around(place.priority);
        let left = (capacity - above.wants).max(0.0);
        if rank.wants <= left {
            return place.wants;
        }
        let each = left / rank.clients as f64;
        if place.each < each {
            return place.wants;
        }
        let modest = self.between(
            |other| self.rank(place.priority, other) != Ordering::Less,
            |other| self.is_past(place.priority, each, other),
        );
        let others = self.between(
            |other| self.is_past(place.priority, each, other),
            |other| self.rank(place.priority, other) == Ordering::Greater,
        );
        let unused = each * modest.clients as f64 - modest.wants;
        let beyond = others.wants - each * others.clients as f64;
        above_equal_share(&self.band(node), each, unused, beyond)
    }

    fn fair(&self, capacity: f64, node: Node) -> f64 {
        let place = self.at(node);
        let (above, rank) = self.around(place.priority);
        if above.wants + rank.wants <= capacity {
            return place.wants;
        }
        let end = above.clients + rank.clients;
        // The first who cannot have all that it wants, if nobody of this rank has more than it for
        // each client: all before it can, and those from it on share what these leave.
        let mut level = f64::INFINITY;
        let mut before = Sum::default();
        let mut at = self.root;
        while at != Node::NONE {
            let other = self.at(at);
            let until = before + self.sum(other.left);
            let short = match self.rank(place.priority, other) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => {
                    let clients = (end - until.clients) as f64;
                    let short = until.wants + other.each * clients > capacity;
                    if short {
                        level = (capacity - until.wants).max(0.0) / clients;
                    }
                    short
                }
            };
            if short {
                at = other.left;
            } else {
                before = until + other.own();
                at = other.right;
            }
        }
        at_level(&self.band(node), level)
    }

    /// What the greater priorities want, and what this one does.
    fn around(&self, priority: i64) -> (Sum, Sum) {
        if !self.ranked {
            return (Sum::default(), self.total());
        }
        let here = |other: &Place| self.rank(priority, other) != Ordering::Less;
        let past = |other: &Place| self.rank(priority, other) == Ordering::Greater;
        (self.between(|_| true, here), self.between(here, past))
    }

    /// Where another stands to those of a priority: before them, among them or after them.
    fn rank(&self, priority: i64, other: &Place) -> Ordering {
        if self.ranked {
            priority.cmp(&other.priority)
        } else {
            Ordering::Equal
        }
    }

    /// Whether another wants this much for each client or more, or is of a lesser priority.
    fn is_past(&self, priority: i64, each: f64, other: &Place) -> bool {
        match self.rank(priority, other) {
            Ordering::Less => false,
            Ordering::Equal => other.each >= each,
            Ordering::Greater => true,
        }
    }

    /// The sum of the stretch from the first for whom `begun` holds to the last for whom `past` does
    /// not. Both hold for all after one for whom they hold.
    fn between(&self, begun: impl Fn(&Place) -> bool, past: impl Fn(&Place) -> bool) -> Sum {
        // The topmost of the stretch: all others of it are below.
        let mut top = self.root;
        while top != Node::NONE {
            let place = self.at(top);
            if !begun(place) {
                top = place.right;
            } else if past(place) {
                top = place.left;
            } else {
                break;
            }
        }
        if top == Node::NONE {
            return Sum::default();
        }
        let place = self.at(top);
        let mut sum = place.own();
        let mut at = place.left;
        while at != Node::NONE {
            let place = self.at(at);
            if begun(place) {
                sum = sum + place.own() + self.sum(place.right);
                at = place.left;
            } else {
                at = place.right;
            }
        }
        let mut at = place.right;
        while at != Node::NONE {
            let place = self.at(at);
            if past(place) {
                at = place.left;
            } else {
                sum = sum + place.own() + self.sum(place.left);
                at = place.right;
            }
        }
        sum
    }

    fn at(&self, node: Node) -> &Place {
        &self.places[node.0 as usize]
    }

    fn at_mut(&mut self, node: Node) -> &mut Place {
        &mut self.places[node.0 as usize]
    }

    fn sum(&self, node: Node) -> Sum {
        if node == Node::NONE {
            Sum::default()
        } else {
            self.at(node).sum
        }
    }

    fn height(&self, node: Node) -> u8 {
        if node == Node::NONE {
            0
        } else {
            self.at(node).height
        }
    }

    /// Where `a` stands to `b`.
    fn order(&self, a: &Place, b: &Place) -> Ordering {
        self.rank(b.priority, a)
            .then_with(|| a.each.total_cmp(&b.each))
            .then_with(|| a.owner.cmp(&b.owner))
    }

    fn insert_below(&mut self, top: Node, node: Node) -> Node {
        if top == Node::NONE {
            let place = self.at_mut(node);
            (place.left, place.right) = (Node::NONE, Node::NONE);
            return self.balanced(node);
        }
        let place = self.at(top);
        match self.order(self.at(node), place) {
            Ordering::Less => {
                let left = self.insert_below(place.left, node);
                self.at_mut(top).left = left;
            }
            _ => {
                let right = self.insert_below(place.right, node);
                self.at_mut(top).right = right;
            }
        }
        self.balanced(top)
    }

    fn remove_below(&mut self, top: Node, node: Node) -> Node {
        let place = self.at(top);
        let (left, right) = (place.left, place.right);
        if top == node {
            if left == Node::NONE {
                return right;
            }
            if right == Node::NONE {
                return left;
            }
            let (next, right) = self.without_first(right);
            let place = self.at_mut(next);
            (place.left, place.right) = (left, right);
            return self.balanced(next);
        }
        match self.order(self.at(node), place) {
            Ordering::Less => {
                let left = self.remove_below(left, node);
                self.at_mut(top).left = left;
            }
            _ => {
                let right = self.remove_below(right, node);
                self.at_mut(top).right = right;
            }
        }
        self.balanced(top)
    }

    /// The first below `top`, and what is left of it.
    fn without_first(&mut self, top: Node) -> (Node, Node) {
        let place = self.at(top);
        let (left, right) = (place.left, place.right);
        if left == Node::NONE {
            return (top, right);
        }
        let (first, left) = self.without_first(left);
        self.at_mut(top).left = left;
        (first, self.balanced(top))
    }

    /// Sums a node anew, and turns it if one of its sides is too high. Returns what is on top then.
    fn balanced(&mut self, top: Node) -> Node {
        let place = self.at(top);
        let (left, right) = (place.left, place.right);
        let (left_height, right_height) = (self.height(left), self.height(right));
        if left_height > right_height + 1 {
            let place = self.at(left);
            if self.height(place.left) < self.height(place.right) {
                let left = self.turned_left(left);
                self.at_mut(top).left = left;
            }
            return self.turned_right(top);
        }
        if right_height > left_height + 1 {
            let place = self.at(right);
            if self.height(place.right) < self.height(place.left) {
                let right = self.turned_right(right);
                self.at_mut(top).right = right;
            }
            return self.turned_left(top);
        }
        let sum = self.sum(left) + place.own() + self.sum(right);
        let place = self.at_mut(top);
        place.sum = sum;
        place.height = 1 + left_height.max(right_height);
        top
    }

    fn turned_left(&mut self, top: Node) -> Node {
        let right = self.at(top).right;
        self.at_mut(top).right = self.at(right).left;
        self.at_mut(right).left = top;
        self.sum_up(top);
        self.sum_up(right);
        right
    }

    fn turned_right(&mut self, top: Node) -> Node {
        let left = self.at(top).left;
        self.at_mut(top).left = self.at(left).right;
        self.at_mut(left).right = top;
        self.sum_up(top);
        self.sum_up(left);
        left
    }

    fn sum_up(&mut self, node: Node) {
        let place = self.at(node);
        let sum = self.sum(place.left) + place.own() + self.sum(place.right);
        let height = 1 + self.height(place.left).max(self.height(place.right));
        let place = self.at_mut(node);
        place.sum = sum;
        place.height = height;
    }
}

impl Place {
    fn own(&self) -> Sum {
        Sum {
            wants: self.wants,
            clients: self.weight.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    impl Demand {
        /// Checks what is promised of a node and all below it, and lists them in order.
        fn check(&self, node: Node, list: &mut Vec<Node>) {
            if node == Node::NONE {
                return;
            }
            let place = self.at(node);
            self.check(place.left, list);
            list.push(node);
            self.check(place.right, list);
            let (left, right) = (self.height(place.left), self.height(place.right));
            assert!(left.abs_diff(right) <= 1);
            assert_eq!(place.height, 1 + left.max(right));
            let sum = self.sum(place.left) + place.own() + self.sum(place.right);
            assert_eq!(place.sum, sum);
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
    fn it_stays_balanced_in_order_and_summed_up() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut demand = Demand::new(random.one_in(2));
            let mut owners: Vec<Node> = Vec::new();
            for _ in 0..300 {
                if owners.is_empty() || random.one_in(2) {
                    let owner = owners.len() as u32;
                    let node = demand.insert(owner, &any_band(&mut random));
                    owners.push(node);
                } else if random.one_in(2) {
                    let node = random.pick(&owners);
                    demand.replace(node, &any_band(&mut random));
                } else {
                    demand.remove(owners.pop().expect("it is not empty"));
                }
                let mut list = Vec::new();
                demand.check(demand.root, &mut list);
                assert_eq!(list.len(), owners.len(), "seed {seed}");
                for pair in list.windows(2) {
                    let order = demand.order(demand.at(pair[0]), demand.at(pair[1]));
                    assert_eq!(order, Ordering::Less, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn every_share_is_what_the_pure_function_says() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let ranked = random.one_in(2);
            let mut demand = Demand::new(ranked);
            let bands: Vec<Band> = (0..random.between(1, 20))
                .map(|_| any_band(&mut random))
                .collect();
            let nodes: Vec<Node> = bands
                .iter()
                .zip(0..)
                .map(|(band, owner)| demand.insert(owner, band))
                .collect();
            let capacity = Capacity::new(random.real(0.0, 300.0)).unwrap();
            for split in [Split::None, Split::Static, Split::Proportional, Split::Fair] {
                let pure = if ranked {
                    split.share_by_priority(capacity, &bands)
                } else {
                    split.share(capacity, &bands)
                };
                for (&node, share) in nodes.iter().zip(pure) {
                    let got = demand.share(split, capacity.get(), node);
                    let off = (got - share.get()).abs();
                    assert!(
                        off < 1e-9,
                        "seed {seed}, {split:?}: {got} instead of {share:?}"
                    );
                }
            }
        }
    }
}
