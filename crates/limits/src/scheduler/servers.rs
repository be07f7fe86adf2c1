//! Several servers behind one line: a call is bound to a server when it leaves.
//!
//! The limits of a server are ordinary limits. A call that any server may serve meets none of them while it waits. It
//! waits at one limit of the backend, whose verdict is the least strict one of all servers. When it leaves, a server
//! with room is chosen, and the call draws from all limits of that server, too. Its stakes there come back as any
//! others. Each change at a server is also a change at the limit of the backend.
//!
//! A call with a key is bound to one server from the start and meets the limits of that server. So it delays no call
//! that other servers may serve. After a while it is unbound.

use super::budgets::Budgets;
use super::state::Scheduler;
use crate::call::{Call, ServerChoice, ServerNumber};
use crate::limiter::LimitOpening;
use crate::policy::{LimitId, Pick, ServerGroup, SetId};
use crate::queue::{Budget, FlowId};
use crate::slab::SlabKey;
use crate::time::Timestamp;
use crate::verdict::Verdict;

impl Budgets {
    /// Whether any backend has servers.
    #[inline]
    pub(super) fn has_servers(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The server to which a call is bound while it waits; `None` if any may serve it.
    #[inline]
    pub(super) fn bound(&self, call: &Call) -> Option<ServerNumber> {
        if self.groups.is_empty() {
            return None;
        }
        self.group_of(call)?.bound(call.server)
    }

    fn group_of(&self, call: &Call) -> Option<&ServerGroup> {
        let mut groups = self.groups.iter();
        groups.find(|group| group.backend == call.backend)
    }

    /// The servers that may serve a call, if any of them may.
    #[inline]
    pub(super) fn servers_for(&self, call: &Call) -> Option<&ServerGroup> {
        if self.groups.is_empty() {
            return None;
        }
        let group = self.group_of(call)?;
        group.bound(call.server).is_none().then_some(group)
    }

    /// The servers for which such a call waits at this limit, if it does.
    #[inline]
    pub(super) fn servers_at(&self, limit: LimitId, call: &Call) -> Option<&ServerGroup> {
        let mut groups = self.groups.iter();
        let group = groups.find(|group| group.limit == limit)?;
        group.bound(call.server).is_none().then_some(group)
    }

    /// The limit at which calls wait for any server, if this is a limit of a server.
    pub(super) fn wait_limit_of(&self, limit: LimitId) -> Option<LimitId> {
        let has_it = |group: &&ServerGroup| {
            let mut servers = group.servers.iter();
            servers.any(|server| server.limits.contains(&limit))
        };
        Some(self.groups.iter().find(has_it)?.limit)
    }

    /// The verdict of the servers on a call that any of them may serve, behind claims of `ahead` calls. `claimed`
    /// returns what calls that are bound to a server have claimed at a limit of it.
    pub(super) fn peek_servers(
        &self,
        now: Timestamp,
        group: &ServerGroup,
        call: &Call,
        ahead: u64,
        claimed: impl Fn(LimitId) -> u64,
    ) -> Verdict {
        let (mut mildest, mut room) = (Verdict::Never, 0_u64);
        for server in &group.servers {
            let (mut strictest, mut fits) = (Verdict::Ready, u64::MAX);
            for &limit in &server.limits {
                let (limiter, claimed) = (&self.limits[limit as usize], claimed(limit));
                strictest = strictest.max(limiter.peek(now, call, claimed));
                if ahead > 0 && strictest == Verdict::Ready {
                    fits = fits.min(limiter.fits(now, call, claimed));
                }
            }
            if strictest != Verdict::Ready {
                mildest = mildest.min(strictest);
                continue;
            }
            room = room.saturating_add(fits);
            if room > ahead {
                return Verdict::Ready;
            }
        }
        match room {
            0 => mildest,
            // There is room, and earlier calls claim it.
            _ => mildest.min(Verdict::OnChange),
        }
    }

    /// Whether a server that may serve the call has room, while no call waits.
    #[cold]
    pub(super) fn servers_have_room(&self, now: Timestamp, call: &Call) -> bool {
        let verdict = |group| self.peek_servers(now, group, call, 0, |_| 0);
        self.servers_for(call)
            .map(verdict)
            .is_none_or(|it| it == Verdict::Ready)
    }

    /// The place in the group of the server that gets a call now; `None` if none has room.
    fn choose(
        &self,
        now: Timestamp,
        group: &ServerGroup,
        pick: Pick,
        call: &Call,
        claimed: impl Fn(LimitId) -> u64,
    ) -> Option<usize> {
        let count = group.servers.len();
        let has_room = |place: &usize| {
            let mut limits = group.servers[*place].limits.iter();
            limits.all(|&limit| {
                let limiter = &self.limits[limit as usize];
                limiter.peek(now, call, claimed(limit)) == Verdict::Ready
            })
        };
        match pick {
            Pick::First => (0..count).find(has_room),
            Pick::Least => {
                let in_turn = (0..count).map(|step| (group.begins_at + step) % count);
                in_turn.filter(has_room).reduce(|best, other| {
                    let [of_best, of_other] =
                        [best, other].map(|place| self.load(now, group, place));
                    // Which part of its maximum each would use with this call.
                    match of_other.0 * of_best.1 < of_best.0 * of_other.1 {
                        true => other,
                        false => best,
                    }
                })
            }
        }
    }

    /// The calls in flight at a server with one call more, and its maximum in the policy: one that is supplied with less
    /// gets its part, and so one that is down gets a probe, also while the others are idle.
    fn load(&self, now: Timestamp, group: &ServerGroup, place: usize) -> (u128, u128) {
        let Some(limit) = group.servers[place].outstanding else {
            return (1, 1);
        };
        let limiter = &self.limits[limit as usize];
        let in_flight = u128::from(limiter.used(now)) + 1;
        (in_flight, u128::from(limiter.rule.limit.max()))
    }

    /// When the first server could take this call, as far as departures show; `None` if no server ever can.
    pub(super) fn servers_open(
        &self,
        now: Timestamp,
        group: &ServerGroup,
        call: &Call,
    ) -> Option<Timestamp> {
        let opens = group.servers.iter().filter_map(|server| {
            let mut last = now;
            for &limit in &server.limits {
                let limiter = &self.limits[limit as usize];
                if limiter.is_beyond(call) {
                    return None;
                }
                if !limiter.is_growing() {
                    let verdict = limiter.peek(now, call, 0);
                    last = last.max(limiter.earliest(now, call, verdict));
                }
            }
            Some(last)
        });
        opens.min()
    }

    /// When the servers open for a call with `ahead` calls before it, as far as that is known. Each server is taken to
    /// serve its part of them.
    pub(super) fn servers_opening(
        &self,
        now: Timestamp,
        from: Timestamp,
        group: &ServerGroup,
        call: &Call,
        ahead: u64,
    ) -> Option<Timestamp> {
        let size = |place: usize| {
            let limit = group.servers[place].outstanding;
            limit.map_or(1, |limit| u128::from(self.limits[limit as usize].max(now)))
        };
        let sum: u128 = (0..group.servers.len()).map(size).sum();
        let opens = group.servers.iter().zip(0..).filter_map(|(server, place)| {
            let part = u128::from(ahead) * size(place) / sum.max(1);
            let part = u64::try_from(part).unwrap_or(u64::MAX);
            let mut last = from;
            for &limit in &server.limits {
                let limiter = &self.limits[limit as usize];
                let before = part.saturating_mul(limiter.draw_of(call));
                last = last.max(match limiter.opening(from, call, before, before) {
                    LimitOpening::At(at) => at,
                    LimitOpening::After { then, .. } => from + then,
                    LimitOpening::Unknown => return None,
                });
            }
            Some(last)
        });
        opens.min()
    }

    /// Since when supplies let any server admit anything; `None` if that is not known.
    pub(super) fn servers_supplied_from(
        &self,
        now: Timestamp,
        group: &ServerGroup,
        reopens: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let supplied = group.servers.iter().filter_map(|server| {
            let mut last = now;
            for &limit in &server.limits {
                let limiter = &self.limits[limit as usize];
                if limiter.max(now) == 0 {
                    last = last.max(limiter.supplied_from(now, reopens)?);
                }
            }
            Some(last)
        });
        supplied.min()
    }
}

impl<T> Scheduler<T> {
    /// The server to which the running call at this [place](super::hold::Hold::place) is bound; `None` if its backend
    /// has no limits of servers.
    #[must_use]
    pub fn server_at(&self, place: u32) -> Option<ServerNumber> {
        self.holds.at(place)?.server
    }

    /// Binds a call that leaves to a server, if its backend has any. Returns the limits that it meets there.
    #[cold]
    pub(super) fn bind(
        &mut self,
        now: Timestamp,
        call: &Call,
        set: SetId,
        flow: Option<FlowId>,
    ) -> (SetId, Option<ServerNumber>) {
        let budgets = &self.budgets;
        let Some(group) = budgets.servers_for(call) else {
            return (set, budgets.bound(call));
        };
        let parking = &self.parking;
        let claimed = |limit| flow.map_or(0, |flow| parking.ahead(flow, Budget::Limit(limit), now));
        let place = budgets.choose(now, group, self.policy.pick(), call, claimed);
        let place = place.expect("a call leaves only if a server has room for it");
        let server = group.servers[place].server;
        let set = budgets.set_at(call, Some(server));
        let mut groups = self.budgets.groups.iter_mut();
        let group = groups.find(|group| group.backend == call.backend);
        if let Some(group) = group {
            group.begins_at = (place + 1) % group.servers.len();
        }
        (set, Some(server))
    }

    /// A call begins to wait. If it is bound to the server of its key, that ends in time.
    #[inline]
    pub(super) fn note_bound(&mut self, key: SlabKey) {
        let call = &self.queue.calls[key].call;
        if call.server.is_sticky() && self.budgets.bound(call).is_some() {
            self.bound
                .insert((call.arrived + self.policy.sticky_wait(), key));
        }
    }

    /// A call no longer waits.
    #[inline]
    pub(super) fn forget_bound(&mut self, key: SlabKey, call: &Call) {
        if call.server.is_sticky() {
            self.bound
                .remove(&(call.arrived + self.policy.sticky_wait(), key));
        }
    }

    /// Counts anew which calls are bound, under another policy.
    pub(super) fn recount_bound(&mut self) {
        self.bound.clear();
        let keys = self.queue.calls.iter().map(|(key, _)| key);
        let keys: alloc::vec::Vec<SlabKey> = keys.collect();
        keys.into_iter().for_each(|key| self.note_bound(key));
    }

    /// Calls that have waited long enough for their servers may go to any.
    #[inline]
    pub(super) fn unbind_due(&mut self, now: Timestamp) {
        if !self.bound.is_empty() {
            self.unbind_until(now);
        }
    }

    #[cold]
    fn unbind_until(&mut self, now: Timestamp) {
        while let Some(&(until, key)) = self.bound.first()
            && until <= now
        {
            self.bound.pop_first();
            let waiting = &self.queue.calls[key];
            let (arrival, class) = (waiting.arrival, waiting.call.class);
            self.move_to(key, arrival, class, ServerChoice::ANY);
        }
    }
}
