//! The part of a server that decides its next answers, for a search that tells states apart.
//!
//! Each part is taken apart by all its fields, so that no new field is forgotten. Numbers of members and rows have no influence on
//! answers, so clients are found by name.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_limits::Timestamp;

use super::{CapacityServer, MemberKind, ServerRole};
use crate::server::roster::RosterEntry;

impl CapacityServer {
    /// A digest of the state of one client.
    pub(crate) fn digest_of(&self, now: Timestamp, client: &str) -> u64 {
        let member = self.roster.find(MemberKind::Client, client);
        if let Some(member) = member {
            let RosterEntry {
                name: _,
                // Only the bounds of the state depend on them.
                leases: _,
                made: _,
                kind: _,
            } = self.roster.entry(member);
        }
        let ids = self.ids.iter().map(|id| &self.resources[id]);
        let mut hasher = DefaultHasher::new();
        for resource in ids {
            let digest = member.map(|member| resource.digest_of(now, member));
            digest.hash(&mut hasher);
        }
        hasher.finish()
    }

    /// A digest of everything else.
    pub(crate) fn digest_of_rest(&self, now: Timestamp) -> u64 {
        let Self {
            // A search knows the settings, and which templates are in force.
            settings: _,
            templates: _,
            standing,
            resources,
            ids,
            // Names of members: the digests of the clients find them.
            roster: _,
            // Only the bounds of the state depend on it.
            leases: _,
            // Only reported.
            unmatched: _,
            counts: _,
            cleaned,
            asking,
        } = self;
        assert!(asking.is_none(), "a digest has no servers above");
        let mut hasher = DefaultHasher::new();
        match standing {
            ServerRole::Master { since } => (1, since, cleaned).hash(&mut hasher),
            // A server that becomes the master begins with an empty state.
            ServerRole::Other { master } => (0, master).hash(&mut hasher),
        }
        for id in ids {
            (id, resources[id].digest_of_rest(now)).hash(&mut hasher);
        }
        hasher.finish()
    }
}
