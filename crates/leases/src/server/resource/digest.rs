//! The part of a resource that decides its next answers, for a search that tells states apart.
//!
//! Each part is taken apart by all its fields, so that no new field is forgotten.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_limits::Timestamp;

use super::seen::HolderRecord;
use super::{CapacitySource, ServerResource};
use crate::book::Holder;
use crate::server::roster::RosterMember;

impl ServerResource {
    /// A digest of the state of one holder.
    pub(in crate::server) fn digest_of(&self, now: Timestamp, member: RosterMember) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Some(&holder) = self.places.get(&member) {
            let seen = &self.seen[holder.0 as usize];
            let HolderRecord {
                capacity,
                expires,
                // Read by `early_until`.
                asks_before: _,
                // Read by `until`.
                outlasts: _,
            } = seen;
            let early_until = Some(seen.early_until()).filter(|until| now < *until);
            (capacity.to_bits(), expires, early_until, seen.until()).hash(&mut hasher);
            self.reserved.contains(&holder).hash(&mut hasher);
            self.book.hash_row(holder, &mut hasher);
        }
        hasher.finish()
    }

    /// A digest of everything else. What counts of holders that have left has no order.
    pub(in crate::server) fn digest_of_rest(&self, now: Timestamp) -> u64 {
        let Self {
            // A search knows its id and which templates are in force.
            id: _,
            template: _,
            algorithm: _,
            safe_capacity: _,
            source,
            book,
            learning_until,
            places,
            // The digests of the holders have them.
            seen: _,
            reserved: _,
            // Which row a new holder gets decides nothing.
            left: _,
            // Only a resource below another server has it.
            made: _,
            // Only a bound on resources depends on it.
            maker: _,
            // Leases are searched for earlier than they end, never later.
            ends_from: _,
        } = self;
        let CapacitySource::Template(_) = source else {
            unreachable!("a digest has no servers above");
        };
        let is_held = |holder: &Holder| places.values().any(|place| place == holder);
        let left = book.counted_holders();
        let left = left.filter(|holder| !is_held(holder));
        let mut left: Vec<u64> = left
            .map(|holder| {
                let mut hasher = DefaultHasher::new();
                book.hash_row(holder, &mut hasher);
                hasher.finish()
            })
            .collect();
        left.sort_unstable();
        let learning_until = learning_until.filter(|until| now <= *until);
        let mut hasher = DefaultHasher::new();
        (left, learning_until).hash(&mut hasher);
        hasher.finish()
    }
}
