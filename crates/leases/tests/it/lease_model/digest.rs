//! The digest of a state.
//!
//! Clients are alike, so states in which they have changed places are one. What the machines keep is in it, except what has no influence:
//! the numbers of requests, members and rows, counts, and moments that have passed. Each part is taken apart by all its fields, so that no
//! new field is forgotten.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::search;
use super::{Client, Content, Granted, Message, NAMES, Server, World, at};
use crate::wire;

/// A part that a digest leaves out by mistake, for the comparison of states to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestGap {
    Without,
    /// The servers' records of clients.
    Books,
    /// The clients' leases and requests.
    Leases,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.hash_except(DigestGap::Without, hasher);
    }
}

/// Only whole paths are compared, and by their steps.
impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        search::digest(self) == search::digest(other)
    }
}

impl World {
    pub(crate) fn digest_except(&self, gap: DigestGap) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash_except(gap, &mut hasher);
        hasher.finish()
    }

    fn hash_except(&self, gap: DigestGap, hasher: &mut impl Hasher) {
        let Self {
            now,
            servers,
            master,
            vacant_since,
            term,
            clients,
            crashes,
            resignations,
            deaths,
            faults,
            slips,
            demands,
        } = self;
        let moment = at(*now);
        let clients = clients.iter().zip(NAMES).map(|(client, name)| {
            let at_servers = servers.each_ref().map(|server| match gap {
                DigestGap::Books => 0,
                _ => server.machine.digest_of(moment, name),
            });
            (client.digest(*now, gap), at_servers)
        });
        let mut clients: Vec<_> = clients.collect();
        clients.sort_unstable();
        let servers = servers.each_ref().map(|server| {
            let Server { machine, is_up } = server;
            (machine.digest_of_rest(moment), *is_up)
        });
        let left = [crashes, resignations, deaths, faults, slips, demands];
        (clients, servers, left).hash(hasher);
        (now, master, vacant_since, term).hash(hasher);
    }
}

impl Client {
    fn digest(&self, now: u64, gap: DigestGap) -> u64 {
        let Self {
            machine,
            route,
            // They only tell messages apart.
            life: _,
            attempts: _,
            wants_all,
            behind,
            paused_until,
            messages,
            lease_ends,
            lease_term,
        } = self;
        let mut hasher = DefaultHasher::new();
        if gap != DigestGap::Leases {
            machine.hash_state(at(now - behind), &mut hasher);
        }
        let paused = (*paused_until).max(now);
        let lease = ((*lease_ends).max(now), lease_term);
        (route, wants_all, behind, paused, lease).hash(&mut hasher);
        let digests = messages.iter().map(|message| {
            // An answer to a client that has died since does not arrive.
            let is_of_this_life = message.life == self.life;
            let is_current = is_of_this_life && self.waits_for(message.request);
            message.digest([is_of_this_life, is_current, self.awaits(message)])
        });
        let mut digests: Vec<u64> = digests.collect();
        digests.sort_unstable();
        digests.hash(&mut hasher);
        hasher.finish()
    }
}

impl Message {
    /// `known` is what the client knows of it.
    fn digest(&self, known: [bool; 3]) -> u64 {
        let Self {
            // They are compared with those of the client.
            life: _,
            request: _,
            attempt: _,
            content,
            late_since,
        } = self;
        let mut hasher = DefaultHasher::new();
        (known, late_since).hash(&mut hasher);
        match content {
            Content::Request(to, request) => {
                (0, to).hash(&mut hasher);
                hash_request(request, &mut hasher);
            }
            Content::Redirect(to, request) => {
                (1, to).hash(&mut hasher);
                hash_request(request, &mut hasher);
            }
            Content::Answer(granted) => {
                let Granted {
                    response,
                    server_now_ms,
                    ends,
                    term,
                } = &**granted;
                (2, server_now_ms, ends, term).hash(&mut hasher);
                hash_response(response, &mut hasher);
            }
        }
        hasher.finish()
    }
}

fn hash_request(request: &wire::GetCapacityRequest, hasher: &mut impl Hasher) {
    let wire::GetCapacityRequest {
        // A message belongs to its client.
        client_id: _,
        resource,
    } = request;
    resource.len().hash(hasher);
    for request in resource {
        let wire::ResourceRequest {
            resource_id,
            priority,
            has,
            wants,
        } = request;
        (resource_id, priority, wants.to_bits()).hash(hasher);
        has.as_ref().map(numbers).hash(hasher);
    }
}

fn hash_response(response: &wire::GetCapacityResponse, hasher: &mut impl Hasher) {
    let wire::GetCapacityResponse {
        response,
        mastership,
    } = response;
    mastership.hash(hasher);
    response.len().hash(hasher);
    for response in response {
        let wire::ResourceResponse {
            resource_id,
            gets,
            safe_capacity,
        } = response;
        let safe_capacity = safe_capacity.map(f64::to_bits);
        (resource_id, numbers(gets), safe_capacity).hash(hasher);
    }
}

fn numbers(lease: &wire::Lease) -> (i64, i64, u64) {
    let wire::Lease {
        expiry_time,
        refresh_interval,
        capacity,
    } = lease;
    (*expiry_time, *refresh_interval, capacity.to_bits())
}
