//! A resource: its capacity here, its leases, and its answers.
//!
//! The bound holds in a tree, where any answer may be lost and any server may die, for these
//! reasons:
//!
//! - A lease is never longer than the one that it is part of. So everything that a server granted
//!   ends with its own lease.
//! - A holder counts with the larger of its previous and its new lease, until it confirms the new
//!   one ([`Frees::Confirmed`]) with exactly its capacity and end. Any other report was sent
//!   before the answer arrived, or the answer was lost, and proves nothing.
//! - A server with a lowered lease confirms it only once its own grants fit into it. Until then
//!   its grants end with its larger lease.
//! - A new master echoes what its clients report to have. What does not fit into a lease of its
//!   own keeps its end.

mod above;
mod claim;
#[cfg(test)]
mod digest;
mod seen;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::book::{Band, Book, Capacity, HeldLease, Holder, Lease, Rows, Split, Terms};

use self::above::ParentRequest;
use self::claim::HolderClaim;
use self::seen::HolderRecord;
use super::roster::{MemberKind, RosterMember};
use super::status::ServerCounts;
use super::templates::{Algorithm, Frees, Template};
use crate::wire::{self, Epoch};

/// The refresh interval for clients of a server without an answer from above, and how long after
/// the resource was made it is used.
const REFRESH_AWAITED: Duration = Duration::from_secs(1);
const AWAITED_FOR: Duration = Duration::from_secs(10);
/// A request that is this much too early is still answered, because timers and networks are
/// inexact.
const EARLY_BY: Duration = Duration::from_millis(50);
/// When an unanswered request to the server above is repeated.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// The change of demand that is sent to the server above early.
const CHANGE_IS_BIG: f64 = 0.1;
/// The most vacant rows that are checked for reuse.
const LOOKED_AT: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct ServerResource {
    pub(super) id: Arc<str>,
    /// The glob of the template; `None` if the server above decides.
    pub(super) template: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) safe_capacity: Option<f64>,
    pub(super) source: CapacitySource,
    pub(super) book: Book,
    pub(super) learning_until: Option<Timestamp>,
    /// The row of every holder of a lease, here and in the book.
    places: HashMap<RosterMember, Holder>,
    /// By row.
    seen: Rows<HolderRecord>,
    /// Vacant rows.
    left: VecDeque<Holder>,
    /// The holders of safe shares.
    reserved: HashSet<Holder>,
    made: Timestamp,
    /// The client that created it and for which it counts, see [`Bounds`](super::ServerBounds).
    pub(super) maker: Option<RosterMember>,
    /// No lease ends before this.
    ends_from: Timestamp,
}

/// The source of the capacity.
#[derive(Clone, Debug)]
pub(super) enum CapacitySource {
    /// The config: this server is the root.
    Template(Capacity),
    /// A server above.
    Above(Above),
}

/// The lease of a server from the one above.
#[derive(Clone, Debug, Default)]
pub(super) struct Above {
    grant: Option<Grant>,
    /// More was granted than the lease covers; the lease of the rest ends here.
    shrinks_by: Option<Timestamp>,
    /// More was echoed than the lease covers; the last of it ends here.
    echoed_by: Option<Timestamp>,
    asked: Option<ParentRequest>,
    /// Whether the answer to the last request has arrived.
    answered: bool,
    /// Whether an answer with the algorithm has arrived.
    heard: bool,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    capacity: Capacity,
    expires: Timestamp,
    refresh: Duration,
    /// The end in the words of the server above, which identifies its lease.   seconds since 1970
    expiry_time: i64,
}

impl CapacitySource {
    /// The lease from the server above.
    fn grant(&self) -> Option<Grant> {
        match self {
            Self::Template(_) => None,
            Self::Above(above) => above.grant,
        }
    }
}

impl Above {
    fn granted(&self) -> Capacity {
        self.grant.map_or(Capacity::ZERO, |grant| grant.capacity)
    }
}

/// A request for a resource.
pub(super) struct LeaseRequest<'a> {
    pub(super) member: RosterMember,
    pub(super) kind: MemberKind,
    pub(super) bands: &'a [Band],
    pub(super) has: Option<&'a wire::Lease>,
}

/// The settings of all resources of a server.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) epoch: Epoch,
    pub(super) minimum_interval: Duration,
}

/// The answer.
pub(super) struct LeaseAnswer {
    pub(super) gets: wire::Lease,
    /// `None` while nothing is known: the client keeps its earlier lease.
    pub(super) safe_capacity: Option<f64>,
    /// When all its earlier grants have ended; `None` if unknown. Seconds since 1970
    pub(super) granted_until: Option<i64>,
}

impl ServerResource {
    pub(super) fn new(
        id: &str,
        now: Timestamp,
        elected: Timestamp,
        template: Option<&Template>,
        source: CapacitySource,
    ) -> Self {
        let algorithm = template.map_or_else(Algorithm::default, |one| one.algorithm.clone());
        let learning_until = elected + algorithm.learning;
        let terms = terms(&algorithm, &source);
        Self {
            id: id.into(),
            template: template.map(|one| one.glob.as_str().to_owned()),
            safe_capacity: template.and_then(|one| one.safe_capacity),
            algorithm,
            source,
            book: Book::new(terms),
            learning_until: (learning_until > now).then_some(learning_until),
            places: HashMap::new(),
            seen: Rows::default(),
            left: VecDeque::new(),
            reserved: HashSet::new(),
            made: now,
            maker: None,
            ends_from: now,
        }
    }

    /// The client for which it counted, if it no longer does: it has left, and others hold the
    /// resource.
    pub(super) fn disowned(&mut self) -> Option<RosterMember> {
        let places = &self.places;
        self.maker
            .take_if(|maker| !places.is_empty() && !places.contains_key(maker))
    }

    /// Whether it only learns the current leases.
    pub(super) fn is_learning(&mut self, now: Timestamp) -> bool {
        // Inclusive: a lease from the last moment before the election ends then.
        self.learning_until = self.learning_until.filter(|until| now <= *until);
        self.learning_until.is_some()
    }

    pub(super) fn is_held_by(&self, member: RosterMember) -> bool {
        self.places.contains_key(&member)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.len() as u64
    }

    /// Answers a request; `None` if it is too early, and the client keeps its lease.
    pub(super) fn ask(
        &mut self,
        now: Timestamp,
        rules: Rules,
        ask: &LeaseRequest<'_>,
        counts: &mut ServerCounts,
    ) -> Option<LeaseAnswer> {
        self.refill(now, counts);
        let place = self.places.get(&ask.member).copied();
        let seen = place.map(|Holder(row)| self.seen[row as usize]);
        if seen.is_some_and(|seen| now < seen.early_until()) {
            counts.early += 1;
            return None;
        }
        let holder = place.unwrap_or_else(|| self.next_place());
        let learning = self.is_learning(now);
        let is_live = seen.is_some_and(|seen| now < seen.expires);
        let has = self.claimed(now, rules, ask, is_live, counts);

        let reserved = self.reserve_for(ask, holder, seen.is_none(), counts);
        let share = match (&self.algorithm.reserve, reserved) {
            (Some(reserve), true) => reserve.share.get(),
            _ => 0.0,
        };
        let wants: f64 = ask.bands.iter().map(|band| band.wants.get()).sum();
        let claimed = HolderClaim {
            holder,
            seen,
            has,
            share,
        };
        let lease = self.lease_beyond(now, rules, ask, &claimed);
        let gets = Lease {
            capacity: Capacity::new(share.min(wants) + lease.capacity.get()).unwrap_or_default(),
            refresh: self.refresh_answered(now, lease.refresh),
            // A safe share does not end with a lease.
            expires: if lease.capacity == Capacity::ZERO {
                now + self.algorithm.lease
            } else {
                lease.expires
            },
        };
        let mut answer = self.answer(now, rules, (ask, holder), gets, reserved);
        if !learning {
            answer.granted_until = Some(seen.map_or(0, |seen| rules.epoch.seconds(seen.until())));
        }
        Some(answer)
    }

    /// Whether a client has one of the safe shares.
    fn reserve_for(
        &mut self,
        ask: &LeaseRequest<'_>,
        holder: Holder,
        is_new: bool,
        counts: &mut ServerCounts,
    ) -> bool {
        let Some(reserve) = &self.algorithm.reserve else {
            return false;
        };
        if ask.kind == MemberKind::Server {
            return false;
        }
        if self.reserved.contains(&holder) {
            return true;
        }
        if self.reserved() >= reserve.clients.get() {
            counts.unreserved += u64::from(is_new);
            return false;
        }
        self.reserved.insert(holder)
    }

    fn refresh_answered(&self, now: Timestamp, refresh: Duration) -> Duration {
        match &self.source {
            CapacitySource::Above(above)
                if above.grant.is_none() && now < self.made + AWAITED_FOR =>
            {
                REFRESH_AWAITED
            }
            _ => refresh,
        }
    }

    /// The latest end of a new grant.
    fn cap(&mut self, now: Timestamp) -> Option<Timestamp> {
        let held = self.book.held();
        let CapacitySource::Above(above) = &mut self.source else {
            return None;
        };
        let grant = above.grant?;
        if held <= grant.capacity {
            above.shrinks_by = None;
            above.echoed_by = None;
        }
        // An ended lease stays ended.
        let ends = [above.shrinks_by, above.echoed_by, Some(grant.expires)];
        ends.into_iter().flatten().filter(|end| now < *end).min()
    }

    /// Caps a grant in learning mode for echoes: the part that fits into a lease of its own lasts as long as that,
    /// the rest until its own end.
    fn cap_learned(
        &mut self,
        ask: &LeaseRequest<'_>,
        holder: Holder,
        has: Capacity,
        rules: Rules,
    ) -> Option<Timestamp> {
        let own = self
            .book
            .get(holder)
            .map_or(0.0, |held| held.lease.capacity.get());
        let together = self.book.held().get() - own + has.get();
        let ends = ask.has.map(|has| rules.epoch.timestamp(has.expiry_time));
        match &mut self.source {
            CapacitySource::Above(Above {
                grant: Some(grant), ..
            }) if together <= grant.capacity.get() => Some(grant.expires),
            CapacitySource::Above(above) => {
                above.echoed_by = above.echoed_by.max(ends);
                ends
            }
            CapacitySource::Template(_) => None,
        }
    }

    fn answer(
        &mut self,
        now: Timestamp,
        rules: Rules,
        (ask, holder): (&LeaseRequest<'_>, Holder),
        gets: Lease,
        reserved: bool,
    ) -> LeaseAnswer {
        // The wire has whole seconds, and 0 means "at any time".
        let refresh = gets.refresh.as_secs().max(1);
        // A client with a shorter refresh interval may ask sooner.
        let interval = rules.minimum_interval.min(Duration::from_secs(refresh));
        self.ends_from = if self.places.is_empty() {
            gets.expires
        } else {
            self.ends_from.min(gets.expires)
        };
        let Holder(row) = holder;
        let row = row as usize;
        let before = match self.places.insert(ask.member, holder) {
            Some(_) => self.seen[row].until(),
            None => gets.expires,
        };
        let seen = HolderRecord::new(gets, now + interval.saturating_sub(EARLY_BY), before);
        if row == self.seen.len() {
            self.seen.push(seen);
        } else {
            self.seen[row] = seen;
        }
        LeaseAnswer {
            gets: wire::Lease {
                expiry_time: rules.epoch.seconds(gets.expires),
                refresh_interval: i64::try_from(refresh).unwrap_or(i64::MAX),
                capacity: gets.capacity.get(),
            },
            safe_capacity: match ask.kind {
                MemberKind::Client if self.algorithm.reserve.is_some() && !reserved => Some(0.0),
                _ if self.safe_capacity.is_none() && !self.knows_reserve() => None,
                _ => Some(self.safe_capacity()),
            },
            granted_until: None,
        }
    }

    /// The capacity that a client may use after it lost every server: its reserve, the operator's value, or an
    /// equal part of the capacity here.
    pub(super) fn safe_capacity(&self) -> f64 {
        if let Some(reserve) = &self.algorithm.reserve {
            return reserve.share.get();
        }
        self.safe_capacity.unwrap_or_else(|| {
            let clients = self.book.clients().max(1);
            self.book.terms().capacity.get() / clients as f64
        })
    }

    /// The capacity here, including safe shares.
    pub(super) fn capacity(&self) -> Capacity {
        match &self.source {
            CapacitySource::Template(capacity) => *capacity,
            CapacitySource::Above(above) => above.granted(),
        }
    }

    /// The parameters for a server below, beside its lease.
    pub(super) fn algorithm_answered(&self, answer: &LeaseAnswer) -> Option<wire::Algorithm> {
        let each = self.book.terms().capacity;
        self.knows_reserve()
            .then(|| self.algorithm.to_wire(each, answer.granted_until))
    }

    pub(super) fn leased_until(&self) -> Option<Timestamp> {
        self.source.grant().map(|grant| grant.expires)
    }

    /// Applies a new template. Leases stay unchanged.
    pub(super) fn apply(
        &mut self,
        now: Timestamp,
        elected: Timestamp,
        template: &Template,
        counts: &mut ServerCounts,
    ) {
        self.template = Some(template.glob.as_str().to_owned());
        match &mut self.source {
            CapacitySource::Template(capacity) => *capacity = template.capacity,
            CapacitySource::Above(above) if above.grant.is_some() => return,
            // The server above decides; until it answers, this applies.
            CapacitySource::Above(_) => {}
        }
        self.safe_capacity = template.safe_capacity;
        self.rule(now, elected, template.algorithm.clone(), counts);
    }

    fn rule(
        &mut self,
        now: Timestamp,
        elected: Timestamp,
        algorithm: Algorithm,
        counts: &mut ServerCounts,
    ) {
        self.algorithm = algorithm;
        // Shorter or longer, but it does not start again. The end set by the server above stays.
        let heard = self.source.grant().is_some();
        let was = self.learning_until;
        if self.is_learning(now) {
            let until = elected + self.algorithm.learning;
            self.learning_until = was
                .filter(|_| heard)
                .map(|was| was.min(until))
                .or(Some(until));
        }
        self.set_terms(now, counts);
    }

    fn set_terms(&mut self, now: Timestamp, counts: &mut ServerCounts) {
        let terms = terms(&self.algorithm, &self.source);
        if terms == *self.book.terms() {
            return;
        }
        let lowered = terms.capacity < self.book.terms().capacity;
        self.book.set_terms(now, terms);
        if !lowered || !terms.split.shares() {
            return;
        }
        let short = self.book.held().get() - terms.capacity.get();
        if short > 0.0 {
            counts.shortfalls += 1;
            counts.shortfall_max = counts.shortfall_max.max(short);
        }
    }

    /// Drops the lease from above when it has ended.
    pub(super) fn refill(&mut self, now: Timestamp, counts: &mut ServerCounts) {
        if let CapacitySource::Above(above) = &mut self.source
            && above.grant.is_some_and(|grant| grant.expires <= now)
        {
            above.grant = None;
            above.shrinks_by = None;
            above.echoed_by = None;
            self.set_terms(now, counts);
        }
    }

    /// A row for a new holder, which has it after its answer.
    fn next_place(&mut self) -> Holder {
        for _ in 0..self.left.len().min(LOOKED_AT) {
            let place = self.left.pop_front().expect("there is one for each round");
            if self.book.is_vacant(place) {
                // It is not lost before the answer, and not free after it.
                return place;
            }
            self.left.push_back(place);
        }
        Holder(u32::try_from(self.seen.len()).expect("leases are bounded below 2^32"))
    }

    /// Ends a lease. False if there is none.
    pub(super) fn release(&mut self, now: Timestamp, member: RosterMember) -> bool {
        let Some(place) = self.places.remove(&member) else {
            return false;
        };
        self.reserved.remove(&place);
        self.book.release(now, place);
        self.left.push_back(place);
        true
    }

    /// Removes holders whose lease has ended, and returns them in order.
    pub(super) fn clean(&mut self, now: Timestamp, counts: &mut ServerCounts) -> Vec<RosterMember> {
        self.refill(now, counts);
        self.book.expire(now);
        if now < self.ends_from {
            return Vec::new();
        }
        let mut gone = Vec::new();
        let mut ends_from = Timestamp::MAX;
        let (seen, book) = (&self.seen, &self.book);
        self.places.retain(|member, place| {
            let seen = &seen[place.0 as usize];
            // A recorded lease may outlast the sent one while the reserve is unknown.
            let until = match book.get(*place) {
                Some(held) => held.lease.expires.max(seen.until()),
                None => seen.until(),
            };
            let stays = now < until;
            if stays {
                ends_from = ends_from.min(until);
            } else {
                gone.push((*member, *place));
            }
            stays
        });
        self.ends_from = ends_from;
        // A table has no order, but the order in which rows and numbers are reused affects shares.
        // The same requests must get the same answers.
        gone.sort_unstable_by_key(|(member, _)| *member);
        for (_, place) in &gone {
            self.reserved.remove(place);
            self.left.push_back(*place);
        }
        gone.into_iter().map(|(member, _)| member).collect()
    }

    /// Whether a new resource with this id would have the same state.
    pub(super) fn is_spent(&self) -> bool {
        self.places.is_empty()
            && self.book.held() == Capacity::ZERO
            && self
                .source
                .grant()
                .is_none_or(|grant| grant.capacity == Capacity::ZERO)
    }

    /// All holders, in no order.
    pub(super) fn members(&self) -> impl Iterator<Item = RosterMember> {
        self.places.keys().copied()
    }

    /// The lease of each holder, and whether it has a safe share, in no order.
    pub(super) fn leases(&self) -> impl Iterator<Item = (RosterMember, HeldLease, bool)> {
        self.places.iter().filter_map(|(member, place)| {
            let seen = &self.seen[place.0 as usize];
            let mut held = self.book.get(*place)?;
            held.lease.expires = seen.expires;
            Some((*member, held, self.reserved.contains(place)))
        })
    }
}

/// The terms for the book.
fn terms(algorithm: &Algorithm, source: &CapacitySource) -> Terms {
    let capacity = match source {
        // The reserve is not granted.
        CapacitySource::Template(capacity) if algorithm.split.shares() => {
            let reserved = algorithm.reserve.map_or(0.0, |reserve| reserve.total());
            Capacity::new((capacity.get() - reserved).max(0.0)).unwrap_or_default()
        }
        CapacitySource::Template(capacity) => *capacity,
        CapacitySource::Above(above) => match (algorithm.split, above.grant, algorithm.each) {
            (Split::Static, Some(_), Some(each)) => each,
            _ => above.granted(),
        },
    };
    Terms {
        capacity,
        // Without a capacity nothing is granted, by any rule.
        split: match source {
            CapacitySource::Above(above) if above.grant.is_none() => Split::Fair,
            _ => algorithm.split,
        },
        by_priority: algorithm.by_priority,
        lease: algorithm.lease,
        refresh: algorithm.refresh,
        frees_after: match algorithm.frees {
            Frees::AtOnce => Duration::ZERO,
            // Zero would be at once.
            Frees::Confirmed(after) => after.max(Duration::from_nanos(1)),
        },
    }
}
