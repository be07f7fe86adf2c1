//! The servers of a backend, as the limits of a policy name them.
//!
//! The limits of one server are ordinary limits that only calls bound to it meet. A call that any server may serve
//! waits at one limit of the backend, and meets the limits of its server from the moment at which it leaves.

use alloc::vec::Vec;

use super::limit::Limit;
use super::rule::{Policy, Scope};
use super::sets::LimitId;
use crate::call::{Backend, ServerChoice, ServerNumber};

/// The servers of one backend.
#[derive(Clone, Debug)]
pub(crate) struct ServerGroup {
    pub(crate) backend: Backend,
    /// Where calls wait that any server may serve.
    pub(crate) limit: LimitId,
    /// In the policy's order.
    pub(crate) servers: Vec<ServerLimits>,
    /// The server at which the next choice begins, so that equal ones take turns.
    pub(crate) begins_at: usize,
}

/// The limits of one server.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) server: ServerNumber,
    pub(crate) limits: Vec<LimitId>,
    /// The first outstanding limit: its use says how busy the server is.
    pub(crate) outstanding: Option<LimitId>,
}

impl ServerGroup {
    /// The server to which a call is bound while it waits; `None` if any may serve it.
    pub(crate) fn bound(&self, choice: ServerChoice) -> Option<ServerNumber> {
        let mut servers = self.servers.iter().map(|it| it.server);
        if choice == ServerChoice::ANY {
            None
        } else if choice.is_sticky() {
            // Rendezvous hashing: a server that is added or removed moves the keys of no other server.
            servers.max_by_key(|&server| (rank(choice.key(), server), server))
        } else {
            servers.find(|&it| choice.named() == Some(it))
        }
    }
}

/// The rank of a server for a key: evenly spread, by the finalizer of SplitMix64.
fn rank(key: u16, server: ServerNumber) -> u64 {
    let mut z = u64::from(key) << 16 | u64::from(server.get());
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The backends of a policy that have servers.
pub(crate) fn groups_of(policy: &Policy) -> Vec<ServerGroup> {
    let mut groups: Vec<ServerGroup> = Vec::new();
    for (rule, id) in policy.limits().iter().zip(0..) {
        let Scope::Server(backend, server) = rule.scope else {
            continue;
        };
        let known = groups.iter().position(|group| group.backend == backend);
        let group = known.unwrap_or_else(|| {
            let limit = policy.wait_limit(backend);
            groups.push(ServerGroup {
                backend,
                limit: limit.expect("a policy is checked"),
                servers: Vec::new(),
                begins_at: 0,
            });
            groups.len() - 1
        });
        let servers = &mut groups[group].servers;
        let known = servers.iter().position(|it| it.server == server);
        let at = known.unwrap_or_else(|| {
            servers.push(ServerLimits {
                server,
                limits: Vec::new(),
                outstanding: None,
            });
            servers.len() - 1
        });
        servers[at].limits.push(id);
        if let Limit::Outstanding { .. } = rule.limit {
            servers[at].outstanding.get_or_insert(id);
        }
    }
    groups
}
