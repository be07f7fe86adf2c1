//! The part of a resource that decides its next answers, for a search that tells states apart.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_limits::Timestamp;

use super::ServerResource;
use crate::book::Holder;
use crate::server::roster::RosterMember;

impl ServerResource {
    /// A digest of the state of one holder.
    pub(in crate::server) fn digest_of(&self, now: Timestamp, member: RosterMember) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Some(&holder) = self.places.get(&member) {
            let seen = &self.seen[holder.0 as usize];
            let early_until = Some(seen.early_until()).filter(|until| now < *until);
            let lease = (seen.capacity.to_bits(), seen.expires, seen.until());
            (lease, early_until, self.reserved.contains(&holder)).hash(&mut hasher);
            self.book.hash_row(holder, &mut hasher);
        }
        hasher.finish()
    }

    /// A digest of everything else. What counts of holders that have left has no order.
    pub(in crate::server) fn digest_of_rest(&self, now: Timestamp) -> u64 {
        let is_held = |holder: &Holder| self.places.values().any(|place| place == holder);
        let left = self.book.counted_holders();
        let left = left.filter(|holder| !is_held(holder));
        let mut left: Vec<u64> = left
            .map(|holder| {
                let mut hasher = DefaultHasher::new();
                self.book.hash_row(holder, &mut hasher);
                hasher.finish()
            })
            .collect();
        left.sort_unstable();
        let learning_until = self.learning_until.filter(|until| now <= *until);
        let mut hasher = DefaultHasher::new();
        (left, learning_until).hash(&mut hasher);
        hasher.finish()
    }
}
