//! The one decision: whose turn it is, and whether it may go.
//!
//! A call is submitted, waits in a line, and leaves it in [`Scheduler::next`] as a step: to be
//! run, with a [`Hold`] that stands for everything it has drawn, or to be told that its deadline
//! has passed. Every hold ends in exactly one of [`finish`](Scheduler::finish),
//! [`give_back`](Scheduler::give_back) and [`requeue`](Scheduler::requeue).
//!
//! Everything that happens may let another call go, so after every other method `next` is
//! called until it says [`Step::SleepUntil`] or [`Step::Idle`], and again at that moment.
//!
//! What it costs, in the number n of waiting calls: O(log n) for every method but
//! [`apply`](Scheduler::apply) and the snapshots, which are linear. With [`Postpone::Jitter`] that is
//! per call asked, and every call is asked each time it has been aside; with
//! [`Postpone::InTurn`] a call is asked only when it is first in its line and something has
//! changed for that line.

mod hold;
mod park;
mod refusal;
mod reload;
mod snapshot;

pub use hold::{Hold, Outcome};
pub use refusal::{Reason, Refusal};
pub use snapshot::{Demand, FunctionNow, LimitNow, QueueNow};

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::limiter::{Limiter, Supply};
use crate::policy::{LimitId, LimitRule, LimitSets, Policy, Postpone, SetId, WhenFull};
use crate::queue::fair::{Fair, Turn};
use crate::queue::{Call, Class, LineId, Place, Queue, Ticket, Waiting};
use crate::slab::{Key, Slab};
use crate::time::{Timestamp, nanos};
use crate::verdict::{Cost, Verdict};
use hold::Held;
use park::Parking;

/// What to do next.
#[derive(Debug)]
pub enum Step<T> {
    /// Run this call; all its limits are drawn.
    Run {
        /// What was submitted.
        payload: T,
        /// What the call has drawn.
        hold: Hold,
        /// What it waited for.
        waited: Waited,
    },
    /// Tell this call that it does not run; nothing is drawn.
    Expired {
        /// What was submitted.
        payload: T,
        /// Why, and when to come back.
        refusal: Refusal,
    },
    /// Nothing can go before this moment, unless something else happens first.
    SleepUntil(Timestamp),
    /// Nothing can go until something happens.
    Idle,
}

/// What a call waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// The limit that held it last; `None` if none did.
    pub held_by: Option<Arc<str>>,
    /// Times it was set aside; 0 with [`Postpone::InTurn`].
    pub postponed: u32,
}

/// A limit in force: its rule, its state, and who waits for it.
#[derive(Debug)]
struct Metered {
    rule: LimitRule,
    limiter: Limiter,
    /// Calls in the queue that meet it.
    waiting: u64,
    /// What they would draw.
    waiting_draw: u64,
    /// Need and use, as last reported by [`Scheduler::demand`].
    reported: (u64, u64),
}

impl Metered {
    fn new(rule: &LimitRule) -> Self {
        let limiter = Limiter::new(&rule.limit);
        Self {
            rule: rule.clone(),
            limiter,
            waiting: 0,
            waiting_draw: 0,
            reported: (0, 0),
        }
    }
}

/// Holds calls back until their limits allow them, and decides whose turn it is.
#[derive(Debug)]
pub struct Scheduler<T> {
    policy: Policy,
    sets: LimitSets,
    limits: Vec<Metered>,
    queue: Queue<T>,
    fair: Fair,
    parking: Parking,
    holds: Slab<Held>,
    /// When supplies run out.
    expiries: BTreeSet<(Timestamp, LimitId)>,
    /// The latest moment handed in: one that steps back counts as this one.
    now: Timestamp,
    /// Joinings of the queue so far.
    joined: u64,
    draining: bool,
    asked: u64,
}

impl<T> Scheduler<T> {
    /// A scheduler at rest.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let sets = LimitSets::new(policy.limits());
        let classes = policy.classes().len();
        let lines = sets.len() * classes;
        Self {
            limits: policy.limits().iter().map(Metered::new).collect(),
            queue: Queue::new(lines),
            fair: Fair::new(policy.classes()),
            parking: Parking::new(lines, classes, policy.limits().len()),
            holds: Slab::new(),
            expiries: BTreeSet::new(),
            now: Timestamp::ZERO,
            joined: 0,
            draining: false,
            asked: 0,
            sets,
            policy,
        }
    }

    /// The policy in force.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes a call in. Its ticket cancels it; whether it may run is for
    /// [`next`](Self::next) to say, at the same `now` if its deadline is that short.
    ///
    /// # Errors
    ///
    /// A refusal, with the payload, if the call could never run, could run only after its
    /// deadline even with nobody ahead of it, or finds no place.
    pub fn submit(
        &mut self,
        now: Timestamp,
        call: Call,
        payload: T,
    ) -> Result<Ticket, (Refusal, T)> {
        let now = self.advance(now);
        let set = self.sets.find(&call.function, call.backend);
        match self.refuse_at_once(now, &call, set) {
            Some((reason, limit)) => {
                Err((self.refusal(now, reason, limit, set, call.cost), payload))
            }
            None if self.has_room() => {
                let arrival = self.count_joining();
                Ok(Ticket(self.join(call, payload, set, arrival)))
            }
            None => {
                let arrival = self.count_joining();
                let turn = Turn::new(0, arrival);
                let place = Place::Door;
                let waiting = Waiting {
                    call,
                    payload,
                    set,
                    turn,
                    place,
                    joined: arrival,
                    held_by: None,
                    postponed: 0,
                };
                Ok(Ticket(self.queue.insert(waiting)))
            }
        }
    }

    /// What to do next: call it until it says to sleep. `entropy` gives 64 random bits a call,
    /// and is asked only to set a call aside.
    pub fn next(&mut self, now: Timestamp, entropy: &mut impl FnMut() -> u64) -> Step<T> {
        let now = self.advance(now);
        if self.queue.is_empty() {
            self.expire_supplies(now);
            self.parking.nobody_waits();
            let expires_at = self.expiries.first().map(|&(moment, _)| moment);
            return expires_at.map_or(Step::Idle, Step::SleepUntil);
        }
        if let Some(key) = self.overdue(|deadline| deadline < now) {
            return self.expire(now, key, Reason::DeadlinePassed, None);
        }
        self.rejoin_due(now);
        self.expire_supplies(now);
        self.parking.open_due(now);
        loop {
            self.wake(now);
            let Some(line) = self.parking.pick(&self.fair) else {
                break;
            };
            let (_, key) = self
                .queue
                .head(line)
                .expect("a ready line has a call waiting");
            match self.ask(now, line, key) {
                Answer::Run => return self.run(now, line, key),
                Answer::Barred(limit, Verdict::Never) => {
                    return self.expire(now, key, Reason::NeverPossible, Some(limit));
                }
                Answer::Barred(limit, verdict) => match self.policy.postpone() {
                    Postpone::InTurn => {
                        self.parking
                            .park(line, limit, verdict, self.joined, &self.fair)
                    }
                    Postpone::Jitter { min, max } => {
                        if self
                            .queue
                            .expect(key)
                            .call
                            .deadline
                            .is_some_and(|deadline| deadline <= now)
                        {
                            return self.expire(now, key, Reason::DeadlinePassed, Some(limit));
                        }
                        let until = aside_until(now, min, max, entropy());
                        self.set_aside(now, key, limit, until);
                    }
                },
            }
        }
        // Those whose deadline is this very moment have had their turn, if they had one.
        if let Some(key) = self.overdue(|deadline| deadline <= now) {
            return self.expire(now, key, Reason::DeadlinePassed, None);
        }
        let moments = [
            self.queue.first_deadline().map(|(moment, _)| moment),
            self.queue.first_aside().map(|(moment, _)| moment),
            self.expiries.first().map(|&(moment, _)| moment),
            self.parking.next_opening(),
        ];
        moments
            .into_iter()
            .flatten()
            .min()
            .map_or(Step::Idle, Step::SleepUntil)
    }

    /// Takes a waiting call back out; `None` if it no longer waits.
    pub fn cancel(&mut self, now: Timestamp, ticket: Ticket) -> Option<T> {
        self.advance(now);
        self.queue.get(ticket.0)?;
        Some(self.take_out(ticket.0).payload)
    }

    /// Takes out any one waiting call, for whoever ends them all; `None` if nobody waits.
    pub fn evict(&mut self, now: Timestamp) -> Option<T> {
        self.advance(now);
        let (key, _) = self.queue.iter().next()?;
        Some(self.take_out(key).payload)
    }

    /// Puts a waiting call into another class, at the end of its caller's flow there. False if
    /// it no longer waits.
    pub fn reclass(&mut self, ticket: Ticket, class: Class) -> bool {
        let class = self.fair.clamp(class);
        let Some(waiting) = self.queue.get(ticket.0) else {
            return false;
        };
        let (old, caller, cost, set) = (
            waiting.call.class,
            waiting.call.caller,
            waiting.call.cost,
            waiting.set,
        );
        let (place, turn) = (waiting.place, waiting.turn);
        if old == class {
            return true;
        }
        self.queue.expect_mut(ticket.0).call.class = class;
        if place == Place::Door {
            return true;
        }
        self.fair.leave(old, caller);
        let turn = Turn::new(self.fair.join(class, caller, cost), turn.arrival());
        match place {
            Place::Line(from) => {
                let to = self.line(set, class);
                self.queue.relocate(ticket.0, Place::Line(to), turn);
                self.refresh_head(from);
                self.refresh_head(to);
            }
            Place::Aside(_) | Place::Door => self.queue.relocate(ticket.0, place, turn),
        }
        true
    }

    /// Tells a limit what it may give out. False if no limit has this name.
    pub fn supply(&mut self, now: Timestamp, limit: &str, supply: Supply) -> bool {
        self.advance(now);
        let Some(id) = self.find_limit(limit) else {
            return false;
        };
        let limiter = &mut self.limits[id as usize].limiter;
        if let Some(expires_at) = limiter.supply().expires_at() {
            self.expiries.remove(&(expires_at, id));
        }
        limiter.set_supply(supply);
        if let Some(expires_at) = supply.expires_at() {
            self.expiries.insert((expires_at, id));
        }
        self.parking.change(id);
        true
    }

    /// From now on [`submit`](Self::submit) refuses; what waits and runs goes on.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether a call submitted now would get a place in the queue at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.queued() < self.policy.capacity() as usize && self.queue.at_door() == 0
    }

    /// Calls that wait in the queue, set aside ones included; not those at the door. May be
    /// above the capacity by those requeued, which had a place, or after a reload.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.queued()
    }

    /// Calls that wait at the door.
    #[must_use]
    pub fn at_door(&self) -> usize {
        self.queue.at_door()
    }

    /// Calls that were run and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.holds.len()
    }

    /// Nothing waits, nothing is in flight, and nothing is drawn that only the end of a call
    /// could bring back. Departures may still count in their windows.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.queue.queued() == 0
            && self.queue.at_door() == 0
            && self.holds.len() == 0
            && self.fair.callers_known() == 0
            && self
                .limits
                .iter()
                .all(|met| met.limiter.is_at_rest() && met.waiting == 0)
    }

    /// Time only goes forward here.
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.now = self.now.max(now);
        self.now
    }

    fn count_joining(&mut self) -> u64 {
        self.joined += 1;
        self.joined
    }

    fn find_limit(&self, name: &str) -> Option<LimitId> {
        let index = self.limits.iter().position(|met| &*met.rule.name == name)?;
        Some(index as LimitId)
    }

    fn line(&self, set: SetId, class: Class) -> LineId {
        set * self.fair.len() as u32 + class.0
    }

    fn refuse_at_once(
        &self,
        now: Timestamp,
        call: &Call,
        set: SetId,
    ) -> Option<(Reason, Option<LimitId>)> {
        if self.draining {
            return Some((Reason::Draining, None));
        }
        if call.deadline.is_some_and(|deadline| deadline < now) {
            return Some((Reason::DeadlinePassed, None));
        }
        let mut last = (now, None);
        for &limit in self.sets.limits(set).iter() {
            let limiter = &self.limits[limit as usize].limiter;
            if limiter.is_beyond(now, call.cost) {
                return Some((Reason::NeverPossible, Some(limit)));
            }
            // Most deadlines are beyond whatever a limit could be waiting for.
            if call
                .deadline
                .is_some_and(|deadline| deadline < limiter.opens_by(now))
            {
                let verdict = limiter.peek(now, call.cost);
                let earliest = limiter.earliest(now, call.cost, verdict);
                if earliest > last.0 {
                    last = (earliest, Some(limit));
                }
            }
        }
        if call.deadline.is_some_and(|deadline| deadline < last.0) {
            return Some((Reason::DeadlineUnreachable, last.1));
        }
        let door = match self.policy.when_full() {
            WhenFull::Refuse => 0,
            WhenFull::Wait { door } => door as usize,
        };
        (!self.has_room() && self.queue.at_door() >= door).then_some((Reason::QueueFull, None))
    }

    /// The strictest verdict of a set's limits, and the limit it comes from.
    fn peek(&self, now: Timestamp, set: SetId, cost: Cost) -> (Verdict, Option<LimitId>) {
        let mut strictest = (Verdict::Ready, None);
        for &limit in self.sets.limits(set).iter() {
            let verdict = self.limits[limit as usize].limiter.peek(now, cost);
            if verdict > strictest.0 {
                strictest = (verdict, Some(limit));
            }
        }
        strictest
    }

    /// Puts a call into its line.
    fn join(&mut self, mut call: Call, payload: T, set: SetId, arrival: u64) -> Key {
        call.class = self.fair.clamp(call.class);
        let turn = Turn::new(self.fair.join(call.class, call.caller, call.cost), arrival);
        let joined = self.joined;
        self.enter_line(Waiting {
            call,
            payload,
            set,
            turn,
            place: Place::Door,
            joined,
            held_by: None,
            postponed: 0,
        })
    }

    /// Puts a call whose turn is known into its line.
    fn enter_line(&mut self, mut waiting: Waiting<T>) -> Key {
        let line = self.line(waiting.set, waiting.call.class);
        waiting.place = Place::Line(line);
        self.count_waiting(waiting.set, waiting.call.cost);
        let key = self.queue.insert(waiting);
        self.refresh_head(line);
        key
    }

    fn count_waiting(&mut self, set: SetId, cost: Cost) {
        for &limit in self.sets.limits(set).iter() {
            let met = &mut self.limits[limit as usize];
            met.waiting += 1;
            met.waiting_draw += u64::from(met.limiter.draw_of(cost));
        }
    }

    fn discount_waiting(&mut self, set: SetId, cost: Cost) {
        for &limit in self.sets.limits(set).iter() {
            let met = &mut self.limits[limit as usize];
            met.waiting -= 1;
            met.waiting_draw -= u64::from(met.limiter.draw_of(cost));
        }
    }

    fn refresh_head(&mut self, line: LineId) {
        let head = self.queue.head(line).map(|(turn, _)| turn);
        self.parking
            .set_head(line, head, self.joined, &mut self.fair);
    }

    /// Asks the head of a line whether it may run.
    fn ask(&mut self, now: Timestamp, line: LineId, key: Key) -> Answer {
        let waiting = self.queue.expect(key);
        let limits = self.sets.limits(waiting.set);
        let behind = limits
            .iter()
            .find(|&&limit| self.parking.is_behind(line, limit, &self.fair));
        if let Some(&limit) = behind {
            return Answer::Barred(limit, Verdict::WhenTold);
        }
        self.asked += 1;
        match self.peek(now, waiting.set, waiting.call.cost) {
            (Verdict::Ready, _) => Answer::Run,
            (verdict, Some(limit)) => Answer::Barred(limit, verdict),
            (_, None) => unreachable!("a verdict other than ready comes from a limit"),
        }
    }

    /// Looks again at the lines for which something has changed.
    fn wake(&mut self, now: Timestamp) {
        let (queue, limits) = (&self.queue, &self.limits);
        self.parking
            .wake(self.joined, &mut self.fair, |limit, line| {
                let (_, key) = queue.head(line).expect("a parked line has a call waiting");
                limits[limit as usize]
                    .limiter
                    .peek(now, queue.expect(key).call.cost)
            });
    }

    fn run(&mut self, now: Timestamp, line: LineId, key: Key) -> Step<T> {
        let waited = self.waited(key, None);
        let waiting = self.queue.remove(key).expect("the head of a line waits");
        let Waiting {
            call,
            payload,
            set,
            turn,
            ..
        } = waiting;
        self.discount_waiting(set, call.cost);
        self.fair
            .serve(call.class, call.caller, call.cost, turn.start());
        self.parking.classes_moved();
        self.parking.ran(line);
        self.refresh_head(line);
        let drawn = self.sets.limits(set).clone();
        for &limit in drawn.iter() {
            self.limits[limit as usize].limiter.take(call.cost);
        }
        let hold = Hold(self.holds.insert(Held::new(now, call, turn, drawn)));
        self.let_in();
        Step::Run {
            payload,
            hold,
            waited,
        }
    }

    fn expire(
        &mut self,
        now: Timestamp,
        key: Key,
        reason: Reason,
        limit: Option<LimitId>,
    ) -> Step<T> {
        let held_by = limit.or_else(|| self.held_by(key));
        let waiting = self.take_out(key);
        let refusal = self.refusal(now, reason, held_by, waiting.set, waiting.call.cost);
        Step::Expired {
            payload: waiting.payload,
            refusal,
        }
    }

    /// The limit that holds a waiting call, or held it last.
    fn held_by(&self, key: Key) -> Option<LimitId> {
        let waiting = self.queue.expect(key);
        match waiting.place {
            Place::Line(line) => waiting
                .held_by
                .or_else(|| self.parking.held_by(line, waiting.joined)),
            Place::Aside(_) => waiting.held_by,
            Place::Door => None,
        }
    }

    fn waited(&self, key: Key, limit: Option<LimitId>) -> Waited {
        let held_by = limit.or_else(|| self.held_by(key));
        Waited {
            held_by: held_by.map(|limit| self.limits[limit as usize].rule.name.clone()),
            postponed: self.queue.expect(key).postponed,
        }
    }

    /// Takes a call out of wherever it waits, without service.
    fn take_out(&mut self, key: Key) -> Waiting<T> {
        let waiting = self.queue.remove(key).expect("the call waits");
        if waiting.place != Place::Door {
            self.discount_waiting(waiting.set, waiting.call.cost);
            self.fair.leave(waiting.call.class, waiting.call.caller);
            if let Place::Line(line) = waiting.place {
                self.refresh_head(line);
            }
            self.let_in();
        }
        waiting
    }

    /// Fills free places from the door, in order.
    fn let_in(&mut self) {
        if self.queue.at_door() == 0 {
            return;
        }
        while self.queue.queued() < self.policy.capacity() as usize
            && let Some(key) = self.queue.first_at_door()
        {
            let joined = self.count_joining();
            let waiting = self.queue.expect_mut(key);
            waiting.joined = joined;
            waiting.call.class = self.fair.clamp(waiting.call.class);
            let (call, set, turn) = (&waiting.call, waiting.set, waiting.turn);
            let (class, cost) = (call.class, call.cost);
            let turn = Turn::new(self.fair.join(class, call.caller, cost), turn.arrival());
            let line = self.line(set, class);
            self.count_waiting(set, cost);
            // Its ticket stays good, so it is moved and not taken out and put in.
            self.queue.relocate(key, Place::Line(line), turn);
            self.refresh_head(line);
        }
    }

    fn overdue(&self, is_over: impl Fn(Timestamp) -> bool) -> Option<Key> {
        let (deadline, key) = self.queue.first_deadline()?;
        is_over(deadline).then_some(key)
    }

    fn expire_supplies(&mut self, now: Timestamp) {
        while let Some(&(expires_at, limit)) = self.expiries.first()
            && expires_at <= now
        {
            self.expiries.pop_first();
            self.parking.change(limit);
        }
    }

    /// Sets the head of a line aside; at its deadline it is asked a last time.
    fn set_aside(&mut self, now: Timestamp, key: Key, limit: LimitId, until: Timestamp) {
        let waiting = self.queue.expect_mut(key);
        let (turn, place) = (waiting.turn, waiting.place);
        waiting.postponed = waiting.postponed.saturating_add(1);
        waiting.held_by = Some(limit);
        let until = until.max(now + Duration::from_nanos(1));
        let until = waiting
            .call
            .deadline
            .map_or(until, |deadline| until.min(deadline));
        self.queue.relocate(key, Place::Aside(until), turn);
        if let Place::Line(line) = place {
            self.parking.ran(line);
            self.refresh_head(line);
        }
    }

    fn rejoin_due(&mut self, now: Timestamp) {
        while let Some((until, key)) = self.queue.first_aside()
            && until <= now
        {
            self.rejoin(key);
        }
    }

    /// Puts a call that was aside at the end of its flow.
    fn rejoin(&mut self, key: Key) {
        let arrival = self.count_joining();
        let waiting = self.queue.expect_mut(key);
        waiting.joined = arrival;
        let (call, set) = (&waiting.call, waiting.set);
        let start = self.fair.rejoin(call.class, call.caller, call.cost);
        let line = self.line(set, self.queue.expect(key).call.class);
        self.queue
            .relocate(key, Place::Line(line), Turn::new(start, arrival));
        self.refresh_head(line);
    }

    /// Calls asked so far: for tests that count work instead of timing it.
    #[doc(hidden)]
    #[must_use]
    pub const fn asked_count(&self) -> u64 {
        self.asked + self.parking.looked()
    }

    /// Panics if anything that must hold once [`next`](Self::next) says to sleep does not.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.parking.audit(&self.fair);
        for met in &self.limits {
            let meets = |waiting: &Waiting<T>| {
                let set = self.sets.limits(waiting.set);
                waiting.place != Place::Door
                    && set
                        .iter()
                        .any(|&id| self.limits[id as usize].rule.name == met.rule.name)
            };
            let waiting = self
                .queue
                .iter()
                .filter(|(_, waiting)| meets(waiting))
                .count();
            assert_eq!(
                met.waiting, waiting as u64,
                "every limit knows how many wait for it"
            );
        }
        let full = self.queue.queued() >= self.policy.capacity() as usize;
        assert!(
            full || self.queue.at_door() == 0,
            "nobody is at the door of a queue with room"
        );
    }
}

/// What a call that was asked may do.
enum Answer {
    Run,
    /// It may not, because of this limit.
    Barred(LimitId, Verdict),
}

/// Moments within the span of the jitter at which calls come back.
const RETURNS: u64 = 128;

/// When a call set aside comes back. The moments are cut into [`RETURNS`] steps of the common
/// clock, so that those who come back at about the same time wake the scheduler together: with
/// thousands aside it would otherwise wake for each.
fn aside_until(now: Timestamp, min: Duration, max: Duration, random: u64) -> Timestamp {
    let drawn = (now + jitter(min, max, random)).as_nanos();
    let step = nanos(max - min) / RETURNS;
    if step == 0 {
        return Timestamp::from_nanos(drawn);
    }
    let stepped = Timestamp::from_nanos(drawn - drawn % step);
    if stepped < now + min {
        stepped + Duration::from_nanos(step)
    } else {
        stepped
    }
}

/// A time between `min` and `max`, both possible, by one draw of 64 random bits: the bias of
/// multiplying instead of rejecting is below 2^-20 for spans up to a few hours.
fn jitter(min: Duration, max: Duration, random: u64) -> Duration {
    let (min, max) = (nanos(min), nanos(max));
    let span = u128::from(max - min) + 1;
    let offset = (u128::from(random) * span) >> 64;
    Duration::from_nanos(min + u64::try_from(offset).expect("the offset is at most max - min"))
}
