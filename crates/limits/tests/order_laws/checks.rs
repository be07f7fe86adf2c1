//! Checks of the scheduler when nothing more happens at a moment.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_limits::Verdict;

use super::MS;
use super::met::{Kind, Met, Room, Who};
use super::world::{BUCKET, Check, Violation, World, at};

/// Two of the same limit that wait all the while: since when, and how far they have been apart.
pub(crate) struct Pair {
    start: f64,
    least: f64,
    most: f64,
    /// The service that one of the two was owed, or that a claim gave it before its turn.
    pub(crate) slack: f64,
    /// Limits opened at the same moment.
    opened_together: bool,
}

/// Who is compared at a limit: two callers of a class, or two classes.
pub(crate) type Compared = (usize, (usize, Option<u64>), (usize, Option<u64>));

/// The first of alike calls of a caller that wait.
struct Head {
    kind: Kind,
    caller: u64,
    /// Calls that are set aside make room for others of their line, which may cost more.
    costliest: f64,
    keeps_place: bool,
}

impl World {
    /// Limits that have room now and had none when nothing more happened at the moment before.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &Met> {
        let heads = self.heads();
        let limits = self.limits.iter().filter(|met| met.is_there);
        limits.filter(move |met| {
            let mut here = heads.iter().filter(|head| met.meets(head.kind));
            here.any(|head| {
                let had_room = met.had_room.contains(&head.kind.class);
                !had_room && self.room(met, head.kind.class, 0.0, &heads) != Room::Closed
            })
        })
    }

    /// Checks a moment at which nothing more happens.
    pub(crate) fn check(&mut self, opened_together: bool) -> Result<(), Violation> {
        let now = self.now();
        for met in &mut self.limits {
            met.tidy(now);
        }
        let heads = self.heads();
        self.note_rooms(&heads);
        // Who has a call that one limit alone holds up.
        let mut held: BTreeMap<usize, BTreeSet<(usize, u64)>> = BTreeMap::new();
        for head in heads.iter().filter(|head| head.keeps_place) {
            let rooms = self.met_by(head.kind);
            let rooms: Vec<(usize, Room)> = rooms
                .map(|(place, met)| (place, self.room(met, head.kind.class, 0.0, &heads)))
                .collect();
            if rooms.iter().any(|(_, room)| *room == Room::Unknown) {
                continue;
            }
            // What a claim keeps room from is held up by that claim too.
            let closed = rooms.iter().filter(|&&(place, room)| {
                let met = &self.limits[place];
                let claimed = || self.room(met, head.kind.class, met.claimed, &heads) != Room::Open;
                room == Room::Closed || (met.claimed > 0.0 && claimed())
            });
            let closed: Vec<_> = closed.map(|(place, _)| *place).collect();
            match closed[..] {
                [] if self.checks(Check::Work) => {
                    let (kind, caller, now) = (head.kind, head.caller, self.now());
                    return Err(format!("{kind:?} of caller {caller} could run at {now}"));
                }
                [only] if self.limits[only].claimed == 0.0 => {
                    let callers = held.entry(only).or_default();
                    callers.insert((head.kind.class, head.caller));
                }
                _ => {}
            }
        }
        if !self.checks(Check::Fairness) {
            return Ok(());
        }
        self.compare(&held, opened_together)
    }

    /// Notes which limits have room, and whose claims were served where their class still waits.
    fn note_rooms(&mut self, heads: &[Head]) {
        for place in 0..self.limits.len() {
            let met = &self.limits[place];
            let here = || heads.iter().filter(|head| met.meets(head.kind));
            let classes = 0..self.weights.len();
            let is_open =
                |&class: &usize| met.is_there && self.room(met, class, 0.0, heads) != Room::Closed;
            let had_room = classes.filter(is_open).collect();
            let waits = |class| here().any(|head| head.kind.class == class);
            let claimants = met.claimants.iter().copied();
            let claimants = claimants.filter(|&(class, _)| waits(class)).collect();
            let met = &mut self.limits[place];
            (met.had_room, met.claimants) = (had_room, claimants);
        }
    }

    /// Notes what is claimed at each limit. With a call that has just gone went its claims.
    pub(crate) fn note_claims(&mut self, gone: Option<usize>) {
        let made = self.replay.scheduler().queue_now(at(self.now())).claims;
        let is_new = made > std::mem::replace(&mut self.claims, made);
        let gone = gone.map(|id| &self.calls[id]);
        let gone = gone.map(|call| (call.kind, self.streams[call.stream].caller));
        for place in 0..self.limits.len() {
            let claimed = self.claimed(&self.limits[place]);
            let met = &mut self.limits[place];
            if let Some((kind, caller)) = gone.filter(|(kind, _)| met.meets(*kind))
                && (is_new || claimed < met.claimed)
            {
                met.claimants.insert((kind.class, caller));
            }
            met.claimed = claimed;
        }
    }

    /// The calls that are asked.
    fn heads(&self) -> Vec<Head> {
        let mut heads: BTreeMap<(Kind, u64), Head> = BTreeMap::new();
        for &id in &self.waiting {
            let call = &self.calls[id];
            let (kind, caller) = (call.kind, self.streams[call.stream].caller);
            match heads.get_mut(&(kind, caller)) {
                Some(head) if !self.in_turn => head.costliest = head.costliest.max(call.tokens),
                Some(_) => {}
                None => {
                    let head = Head {
                        kind,
                        caller,
                        costliest: call.tokens,
                        keeps_place: call.keeps_place,
                    };
                    heads.insert((kind, caller), head);
                }
            }
        }
        heads.into_values().collect()
    }

    /// How much is claimed of a limit, by calls or in tokens.
    fn claimed(&self, met: &Met) -> f64 {
        let now = at(self.now());
        match met.who {
            Who::Bucket => {
                let bucket = self.replay.scheduler().bucket_now(now, BUCKET);
                bucket.expect("it is there").claimed
            }
            Who::Quota => {
                let quotas = self.replay.scheduler().quotas_now(now, "quota", 1);
                quotas.first().map_or(0.0, |quota| quota.claimed as f64)
            }
            _ => {
                let limit = self.replay.scheduler().limit_now(now, &met.name);
                limit.map_or(0.0, |limit| limit.claimed as f64)
            }
        }
    }

    /// Whether a limit has room for the costliest call that waits at it, beside what is claimed: those
    /// that cost less may have a later turn.
    fn room(&self, met: &Met, class: usize, claimed: f64, heads: &[Head]) -> Room {
        if self.now() < met.exact_from {
            return Room::Unknown;
        }
        let open = |is_open| if is_open { Room::Open } else { Room::Closed };
        let here = heads.iter().filter(|head| met.meets(head.kind));
        let costliest = here.map(|head| head.costliest).fold(0.0, f64::max);
        match met.who {
            Who::Bucket => {
                let bucket = self.replay.scheduler().bucket_now(at(self.now()), BUCKET);
                let tokens = bucket.expect("it is there").tokens;
                open(tokens >= costliest + claimed + 1e-6)
            }
            // As the store's time is known, a window may not have begun yet.
            Who::Quota if self.now() % (500 * MS) < 10 * MS => Room::Unknown,
            Who::Quota => {
                let quotas = self
                    .replay
                    .scheduler()
                    .quotas_now(at(self.now()), "quota", 1);
                let ledger = quotas.first().map(|quota| quota.ledger);
                let there = ledger.map_or(0, |ledger| ledger.held + ledger.safe);
                open(there as f64 >= costliest + claimed)
            }
            _ => match met.room(self.now(), class) {
                Some(room) => open(room as f64 > claimed),
                None if claimed > 0.0 => Room::Closed,
                None => {
                    let limit = self.replay.scheduler().limit_now(at(self.now()), &met.name);
                    open(limit.expect("it is there").opens == Verdict::Ready)
                }
            },
        }
    }

    fn compare(
        &mut self,
        held: &BTreeMap<usize, BTreeSet<(usize, u64)>>,
        opened_together: bool,
    ) -> Result<(), Violation> {
        let mut now: BTreeSet<Compared> = BTreeSet::new();
        for (&place, callers) in held {
            for &one in callers {
                for &other in callers.range((one.0, one.1 + 1)..) {
                    now.insert(if one.0 == other.0 {
                        (place, (one.0, Some(one.1)), (other.0, Some(other.1)))
                    } else {
                        (place, (one.0, None), (other.0, None))
                    });
                }
            }
        }
        self.pairs.retain(|pair, _| now.contains(pair));
        for pair in now {
            let (place, one, other) = pair;
            let (first, most_first, slack_first) = self.served(place, one);
            let (second, most_second, slack_second) = self.served(place, other);
            let apart = first - second;
            let state = self.pairs.entry(pair).or_insert(Pair {
                start: apart,
                least: 0.0,
                most: 0.0,
                slack: 0.0,
                opened_together: false,
            });
            state.slack = state.slack.max(slack_first + slack_second);
            state.opened_together |= opened_together;
            self.worst.compared += 1;
            state.least = state.least.min(apart - state.start);
            state.most = state.most.max(apart - state.start);
            let times = if state.opened_together { 2.0 } else { 1.0 };
            let bound = times * (most_first + most_second) + state.slack + 1e-4;
            let span = state.most - state.least;
            self.worst.apart(span / bound);
            if span > bound {
                let met = &self.limits[place];
                return Err(format!(
                    "at {:?} of {} ({:?}) {one:?} and {other:?} were {} to {} apart, of {bound}",
                    self.replay.now(),
                    met.name,
                    met.lets,
                    state.least,
                    state.most
                ));
            }
        }
        Ok(())
    }

    /// The service of a caller or a class by weight at a limit, the most that one call is, and by how much it may
    /// be served before its turn.
    fn served(&self, place: usize, who: (usize, Option<u64>)) -> (f64, f64, f64) {
        let met = &self.limits[place];
        let (class, caller) = who;
        // While its own class was not there, a stream may have had this one.
        let own = self.streams.iter().filter(|stream| {
            let is_of = match caller {
                Some(caller) => caller == stream.caller,
                None => class == stream.class || self.reloads,
            };
            is_of && met.meets(stream.kind(class))
        });
        let own: Vec<_> = own.map(|stream| (stream.tokens, stream.weight)).collect();
        let maximal = own.iter().map(|(tokens, _)| *tokens).max().unwrap_or(1);
        let served = met
            .served
            .iter()
            .filter(|&(&(of, one), _)| of == class && caller.is_none_or(|caller| caller == one));
        let mut served: f64 = served.map(|(_, tokens)| tokens).sum();
        let (weight, lightest) = match caller {
            Some(_) => {
                let weight = own.iter().map(|(_, weight)| *weight).max().unwrap_or(1);
                (weight, weight)
            }
            None => {
                served -= met.served_kept.get(&class).unwrap_or(&0.0);
                (self.weights[class], self.lightest[class])
            }
        };
        let is_of =
            |&(of, one): &(usize, u64)| of == class && caller.is_none_or(|caller| caller == one);
        let owed = met.owed.iter().filter(|(who, _)| is_of(who));
        let owed: f64 = owed.map(|(_, tokens)| tokens).sum();
        let claimants = met.claimants.iter().filter(|who| is_of(who)).count();
        let (weight, lightest) = (f64::from(weight), f64::from(lightest));
        let maximal = maximal as f64;
        let slack = owed + claimants as f64 * maximal;
        (served / weight, maximal / lightest, slack / lightest)
    }
}
