//! The part of a server that decides its next answers, for a search that tells states apart. Numbers of members and
//! rows have no influence on answers, so clients are found by name.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_limits::Timestamp;

use super::{CapacityServer, MemberKind, ServerRole};

impl CapacityServer {
    /// A digest of the state of one client.
    pub(crate) fn digest_of(&self, now: Timestamp, client: &str) -> u64 {
        let member = self.roster.find(MemberKind::Client, client);
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
        let mut hasher = DefaultHasher::new();
        match &self.standing {
            ServerRole::Master { since } => (1, since).hash(&mut hasher),
            ServerRole::Other { master } => (0, master).hash(&mut hasher),
        }
        for id in &self.ids {
            (id, self.resources[id].digest_of_rest(now)).hash(&mut hasher);
        }
        hasher.finish()
    }
}
