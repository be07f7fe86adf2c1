//! Where lines wait, and which to ask.
//!
//! A line holds the calls of one caller and class that meet the same limits, and only the first of
//! them, its head, is ever asked. A line with a head is either ready, which means that it is to be
//! asked, or parked at a limit, bucket or quota that bars its head. There it stands in the order of
//! that one ([`Order`]). Only the first line of an order is looked at again when something changes
//! there: a release, a supply, the moment it opens. Those behind it have a later turn, and may not
//! draw before it. When the first one leaves, for whatever reason, the next is looked at.
//!
//! Where lines are parked, then, either the first of them is the one that was looked at last and is
//! still barred (`asked`), or the spot is on the `changed` list. [`Parking::next_changed`] empties the
//! list, so nothing that could run is ever overlooked and nothing that can't is asked twice.
//!
//! A line whose turn comes is asked where it stands, and leaves only when the answer is known. A head
//! that runs leaves the line where it was for the next one.
//!
//! A limit that keeps something for one class has two spots, one for that class and one for all
//! others, since what lets one of them run may not let the other. Both share one order.
//!
//! Before its order each limit has its *claims*: see the law in `queue/fair.rs`. A line that claims
//! stands at the front of the limit that bars it, and its claims at others keep room there.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use crate::call::{Call, Caller, Class};
use crate::policy::{LimitId, SetId};
use crate::queue::account::{Account, Behind};
use crate::queue::fair::{Common, Entry, Order, Part, Service};
use crate::queue::{Bar, LineId, Waiting};
use crate::slab::Key;
use crate::sorted::Sorted;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// Lines without a call that are kept for the next one: to make a line costs more than to find it.
const RESTING_MAX: usize = 64;

/// Lines that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spot {
    /// At a limit, bucket or quota.
    At(Bar),
    /// At a limit, those of the class for which it keeps something.
    Kept(LimitId),
}

impl Spot {
    pub(super) const fn bar(self) -> Bar {
        match self {
            Self::At(bar) => bar,
            Self::Kept(limit) => Bar::Limit(limit),
        }
    }
}

#[derive(Debug)]
pub(super) struct Parking {
    common: Common,
    lines: Vec<Line>,
    by_key: BTreeMap<LineKey, LineId>,
    /// Places in `lines` where none is.
    free: Vec<LineId>,
    /// Lines that became empty, the first one first. Some of them may have a call again.
    resting: VecDeque<LineId>,
    limits: Vec<At>,
    /// By place.
    buckets: Vec<At>,
    /// Those at which lines are parked or claim.
    quotas: BTreeMap<Key, At>,
    /// Lines that are to be asked.
    ready: Order,
    /// While there are any: whether one of them was asked last.
    last_was_ready: Option<bool>,
    /// Orders that have tags because several lines were ready at once.
    tagged: Vec<Bar>,
    /// Spots whose first line must be asked again, each once, here or in `woken`.
    changed: Vec<Spot>,
    /// Of these, the ones that are being looked at: by round, then by when the first line came.
    woken: BinaryHeap<Reverse<(u64, u64, Spot)>>,
    /// Rounds of looking at what has changed. A spot that changes again is looked at after those that
    /// have not been: else all the room of a limit would go to those that stand there, and none to
    /// those whose other limit opened at the same moment.
    round: u64,
    /// When spots open for the line that was asked last.
    openings: Sorted<(Timestamp, Spot)>,
    /// When claims lapse.
    lapses: BTreeSet<(Timestamp, Bar, LineId)>,
    /// Claims made so far.
    claims: u64,
    /// For how long room was kept, over all claims that are over.
    idle: Duration,
    /// Lines looked at because something changed.
    looked: u64,
}

/// What the calls of a line meet besides the limits of their set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Own {
    pub(super) bucket: Option<Key>,
    pub(super) quotas: Option<Arc<[Key]>>,
}

impl Own {
    pub(super) fn of<T>(waiting: &Waiting<T>) -> Self {
        Self {
            bucket: waiting.bucket,
            quotas: waiting.quotas.clone(),
        }
    }
}

/// What the calls of a line have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineKey {
    set: SetId,
    caller: Caller,
    class: Class,
    own: Own,
}

impl LineKey {
    pub(super) const fn set(&self) -> SetId {
        self.set
    }

    /// Whether its calls draw from this, beside the limits of their set.
    pub(super) fn has_own(&self, bar: Bar) -> bool {
        match bar {
            Bar::Limit(_) => false,
            Bar::Bucket(bucket) => self.own.bucket == Some(bucket),
            Bar::Quota(quota) => {
                let mut quotas = self.own.quotas.iter().flat_map(|keys| keys.iter());
                quotas.any(|&key| key == quota)
            }
        }
    }

    pub(super) const fn new(set: SetId, call: &Call, own: Own) -> Self {
        Self {
            set,
            caller: call.caller,
            class: call.class,
            own,
        }
    }

    pub(super) fn of<T>(waiting: &Waiting<T>) -> Self {
        Self::new(waiting.set, &waiting.call, Own::of(waiting))
    }
}

#[derive(Debug)]
struct Line {
    key: LineKey,
    /// The call whose turn it is in this line, by its arrival.
    head: Option<(u64, Key)>,
    /// Where it is parked; a line with a head and no spot is ready.
    parked_at: Option<Spot>,
    /// What the head was passed over at, if it was.
    passed: Option<Box<Passed>>,
    held_by: Option<Bar>,
    /// Calls that joined up to this have waited while `held_by` held the line.
    held_until: u64,
    is_resting: bool,
    /// What its calls have waited for.
    account: Account,
    /// The account as it stands, for whoever joins before it changes.
    noted: Option<Arc<Account>>,
}

impl Line {
    fn new(key: LineKey) -> Self {
        Self {
            key,
            head: None,
            parked_at: None,
            passed: None,
            held_by: None,
            held_until: 0,
            is_resting: false,
            account: Account::new(),
            noted: None,
        }
    }
}

/// A head was passed over.
#[derive(Debug)]
pub(super) struct Passed {
    /// From when on it may claim.
    due: Timestamp,
    /// Where its turn has come and there was room.
    turns: Vec<Bar>,
    /// Claims of it that lapsed in vain.
    lapses: u32,
}

/// A line whose head was passed over, on its way through a reload.
pub(super) struct Carried {
    pub(super) head: (u64, Key),
    /// Where the line is parked.
    pub(super) at: Bar,
    passed: Box<Passed>,
    claims: Vec<(Bar, Claim)>,
}

impl Carried {
    /// The same under another policy: `heir` says what each bar is now, if the call still meets it.
    pub(super) fn map(mut self, heir: impl Fn(Bar) -> Option<Bar>) -> Option<Self> {
        self.at = heir(self.at)?;
        let turns = self.passed.turns.into_iter();
        self.passed.turns = turns.filter_map(&heir).collect();
        let claims = self.claims.into_iter();
        let claims = claims.filter_map(|(bar, claim)| Some((heir(bar)?, claim)));
        self.claims = claims.collect();
        Some(self)
    }
}

impl Passed {
    fn may_claim(&self, bar: Bar, now: Timestamp) -> bool {
        self.due <= now && self.turns.contains(&bar)
    }
}

/// A line is first among those at a limit, or has room kept there.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// How much of the limit it is for.
    draw: u64,
    since: Timestamp,
    /// The line stands here, at the front; or else when the claim lapses.
    until: Option<Timestamp>,
}

/// What waits at a limit, bucket or quota.
#[derive(Debug, Default)]
struct At {
    order: Order,
    /// By arrival.
    claims: BTreeMap<(u64, LineId), Claim>,
    /// What they are for, together.
    claimed: u64,
    /// For how long room was kept, over all claims that are over.
    idle: Duration,
    /// The class for which it keeps something.
    kept_for: Option<Class>,
    all: Look,
    /// The class for which it keeps something.
    kept: Look,
}

/// Who was looked at last, and what was said.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    asked: Option<LineId>,
    /// The moment in `openings`.
    opens: Option<Timestamp>,
    /// On the `changed` list.
    changed: bool,
}

impl At {
    fn is_empty(&self) -> bool {
        self.order.is_empty() && self.claims.is_empty()
    }

    #[inline]
    fn look(&mut self, spot: Spot) -> &mut Look {
        match spot {
            Spot::At(_) => &mut self.all,
            Spot::Kept(_) => &mut self.kept,
        }
    }

    /// Which lines of the order stand at this spot.
    #[inline]
    fn part(&self, spot: Spot) -> Part {
        match (self.kept_for, spot) {
            (None, _) => Part::All,
            (Some(class), Spot::Kept(_)) => Part::Only(class),
            (Some(class), Spot::At(_)) => Part::But(class),
        }
    }
}

/// What a line is asked by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) line: LineId,
    pub(super) key: Key,
    /// Its turn has come there.
    pub(super) turn: Option<Spot>,
}

impl Parking {
    /// For so many classes. `kept_for` says for each limit for which class it keeps something.
    pub(super) fn new(
        classes: usize,
        seed: u64,
        kept_for: impl Iterator<Item = Option<Class>>,
    ) -> Self {
        let at_limit = |kept_for| At {
            kept_for,
            ..At::default()
        };
        Self {
            common: Common {
                classes,
                seed,
                served: 0,
            },
            lines: Vec::new(),
            by_key: BTreeMap::new(),
            free: Vec::new(),
            resting: VecDeque::new(),
            limits: kept_for.map(at_limit).collect(),
            buckets: Vec::new(),
            quotas: BTreeMap::new(),
            ready: Order::default(),
            last_was_ready: None,
            tagged: Vec::new(),
            changed: Vec::new(),
            woken: BinaryHeap::new(),
            round: 0,
            openings: Sorted::default(),
            lapses: BTreeSet::new(),
            claims: 0,
            idle: Duration::ZERO,
            looked: 0,
        }
    }

    /// Goes on without the lines, under another policy: `before` says which limit each one was.
    pub(super) fn reload(
        &mut self,
        places: &[Option<Class>],
        classes: usize,
        kept_for: impl Iterator<Item = Option<Class>>,
        before: impl Fn(LimitId) -> Option<LimitId>,
    ) -> Self {
        let mut new = Self::new(classes, self.common.seed, kept_for);
        let common = Common {
            served: self.common.served,
            ..new.common
        };
        new.common = common;
        (new.looked, new.claims, new.idle) = (self.looked, self.claims, self.idle);
        for (at, id) in new.limits.iter_mut().zip(0..) {
            if let Some(old) = before(id) {
                let old = &mut self.limits[old as usize];
                at.idle = old.idle;
                at.order = core::mem::take(&mut old.order).reload(places, common);
            }
        }
        let reload = |old: At| At {
            order: old.order.reload(places, common),
            idle: old.idle,
            ..At::default()
        };
        new.buckets = self.buckets.drain(..).map(reload).collect();
        let quotas = core::mem::take(&mut self.quotas).into_iter();
        new.quotas = quotas.map(|(key, at)| (key, reload(at))).collect();
        new
    }

    /// The lines whose heads were passed over, before a reload takes the lines apart.
    pub(super) fn take_passed(&mut self) -> Vec<Carried> {
        let mut carried = Vec::new();
        for line in 0..self.lines.len() as LineId {
            let state = &mut self.lines[line as usize];
            let (Some(head), Some(spot)) = (state.head, state.parked_at) else {
                continue;
            };
            let Some(passed) = state.passed.take() else {
                continue;
            };
            let own = (head.0, line);
            let claim_at = |&bar| Some((bar, *self.at(bar)?.claims.get(&own)?));
            carried.push(Carried {
                head,
                at: spot.bar(),
                claims: passed.turns.iter().filter_map(claim_at).collect(),
                passed,
            });
        }
        carried
    }

    /// Parks a line that is ready where it was parked before a reload, with what was remembered of
    /// its head.
    pub(super) fn restore(&mut self, line: LineId, carried: Carried, now: Timestamp, joined: u64) {
        for (bar, claim) in carried.claims {
            self.insert_claim(bar, line, claim);
        }
        self.lines[line as usize].passed = Some(carried.passed);
        self.park_again(line, carried.at, now, joined);
    }

    /// All lines are back after a reload.
    pub(super) fn reloaded(&mut self) {
        let ats = self.limits.iter_mut().chain(&mut self.buckets);
        ats.for_each(|at| at.order.tidy());
        self.quotas.retain(|_, at| {
            at.order.tidy();
            !at.is_empty()
        });
    }

    /// There is a bucket now, or its lines go in another order.
    pub(super) fn set_bucket(&mut self, bucket: Key, by_arrival: bool) {
        let place = bucket.index() as usize;
        if self.buckets.len() <= place {
            self.buckets.resize_with(place + 1, At::default);
        }
        let order = &self.buckets[place].order;
        if order.is_by_arrival() != by_arrival {
            let mut new = Order::new(by_arrival);
            for line in order.all() {
                new.insert(self.entry(line), self.common);
            }
            self.buckets[place].order = new;
            self.reordered(Bar::Bucket(bucket));
        }
    }

    /// There is no such bucket any more; nobody waits for it.
    pub(super) fn remove_bucket(&mut self, bucket: Key) {
        let at = &mut self.buckets[bucket.index() as usize];
        assert!(at.is_empty(), "whoever waited for the bucket was rerouted");
        at.idle = Duration::ZERO;
    }

    /// The line of calls like these.
    #[inline]
    pub(super) fn line(&mut self, key: LineKey) -> LineId {
        if let Some(&line) = self.by_key.get(&key) {
            return line;
        }
        let new = Line::new(key.clone());
        let line = match self.free.pop() {
            Some(place) => {
                self.lines[place as usize] = new;
                place
            }
            None => {
                self.lines.push(new);
                self.lines.len() as LineId - 1
            }
        };
        self.by_key.insert(key, line);
        line
    }

    /// A line has become empty.
    fn rest(&mut self, line: LineId) {
        let state = &mut self.lines[line as usize];
        if !state.is_resting {
            state.is_resting = true;
            self.resting.push_back(line);
        }
        while self.resting.len() > RESTING_MAX
            && let Some(line) = self.resting.pop_front()
        {
            let state = &mut self.lines[line as usize];
            state.is_resting = false;
            if state.head.is_none() {
                self.by_key.remove(&state.key);
                state.noted = None;
                self.free.push(line);
            }
        }
    }

    /// What whoever joins a line now has to note of its account; nothing if the line is empty.
    #[inline]
    pub(super) fn note_account(&mut self, line: LineId) -> Option<Arc<Account>> {
        let state = &mut self.lines[line as usize];
        state.head?;
        let account = &state.account;
        Some(Arc::clone(
            state.noted.get_or_insert_with(|| Arc::new(account.clone())),
        ))
    }

    /// What the calls of a line have waited for.
    pub(super) fn account(&self, line: LineId) -> &Account {
        &self.lines[line as usize].account
    }

    /// How many lines there may be now.
    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The head of any line.
    pub(super) fn any(&self) -> Option<Key> {
        let first = self.ready.first(Part::All);
        let mut heads = self.by_key.values();
        // Among as many lines as may rest without a call there is one that has one.
        let line = first.or_else(|| {
            heads
                .find(|&&line| self.lines[line as usize].head.is_some())
                .copied()
        })?;
        Some(self.head(line).1)
    }

    /// What held a call which joined at `joined`, if anything did.
    #[inline]
    pub(super) fn held_by(&self, line: LineId, joined: u64) -> Option<Bar> {
        let state = &self.lines[line as usize];
        let held_by = state.held_by.filter(|_| joined <= state.held_until);
        self.parked_at(line).or(held_by)
    }

    /// Where a line is parked now.
    #[inline]
    pub(super) fn parked_at(&self, line: LineId) -> Option<Bar> {
        Some(self.lines[line as usize].parked_at?.bar())
    }

    /// Where a line barred by this stands.
    #[inline]
    fn spot_of(&self, line: LineId, bar: Bar) -> Spot {
        match bar {
            Bar::Limit(limit)
                if self.limits[limit as usize].kept_for
                    == Some(self.lines[line as usize].key.class) =>
            {
                Spot::Kept(limit)
            }
            _ => Spot::At(bar),
        }
    }

    /// None at a quota where nothing waits.
    #[inline]
    fn at(&self, bar: Bar) -> Option<&At> {
        match bar {
            Bar::Limit(limit) => Some(&self.limits[limit as usize]),
            Bar::Bucket(bucket) => Some(&self.buckets[bucket.index() as usize]),
            Bar::Quota(quota) => self.quotas.get(&quota),
        }
    }

    #[inline]
    fn at_mut(&mut self, bar: Bar) -> Option<&mut At> {
        match bar {
            Bar::Limit(limit) => Some(&mut self.limits[limit as usize]),
            Bar::Bucket(bucket) => Some(&mut self.buckets[bucket.index() as usize]),
            Bar::Quota(quota) => self.quotas.get_mut(&quota),
        }
    }

    #[inline]
    fn make_at(&mut self, bar: Bar) -> &mut At {
        if let Bar::Quota(quota) = bar {
            return self.quotas.entry(quota).or_default();
        }
        self.at_mut(bar).expect("limits and buckets are there")
    }

    fn forget_if_empty(&mut self, bar: Bar) {
        if let Bar::Quota(quota) = bar
            && self.quotas.get(&quota).is_some_and(At::is_empty)
        {
            self.forget_asked(Spot::At(bar));
            self.quotas.remove(&quota);
        }
    }

    /// A line as it stands in orders.
    #[inline]
    fn entry(&self, line: LineId) -> Entry {
        let state = &self.lines[line as usize];
        Entry {
            class: state.key.class,
            caller: state.key.caller,
            arrival: self.head(line).0,
            line,
        }
    }

    #[inline]
    pub(super) fn head(&self, line: LineId) -> (u64, Key) {
        let head = self.lines[line as usize].head;
        head.expect("only lines with a call in them are ready or parked")
    }

    /// The first line at a spot.
    #[inline]
    fn first(&self, spot: Spot) -> Option<LineId> {
        let at = self.at(spot.bar())?;
        if !at.claims.is_empty() {
            let mut claims = at.claims.iter();
            let front = claims.find(|((_, line), claim)| {
                claim.until.is_none() && self.lines[*line as usize].parked_at == Some(spot)
            });
            if let Some(((_, line), _)) = front {
                return Some(*line);
            }
        }
        at.order.first(at.part(spot))
    }

    /// The head of a line is now this one. It waits where the one before it did.
    pub(super) fn set_head(
        &mut self,
        line: LineId,
        head: Option<(u64, Key)>,
        now: Timestamp,
        joined: u64,
    ) {
        let state = &mut self.lines[line as usize];
        if state.head == head {
            return;
        }
        if state.passed.is_some() {
            self.leave_front(line, now);
            self.drop_claims(line, now);
            self.lines[line as usize].passed = None;
        }
        let state = &mut self.lines[line as usize];
        let (before, parked_at) = (state.head, state.parked_at);
        match (before, head) {
            (None, Some(_)) => {
                state.account.begin(now);
                state.noted = None;
                state.head = head;
                self.ready.insert(self.entry(line), self.common);
            }
            (Some(_), Some((arrival, _))) => {
                let entry = self.entry(line);
                self.lines[line as usize].head = head;
                if let Some(spot) = parked_at {
                    let at = self.at_mut(spot.bar()).expect("the line is parked there");
                    at.order.replace(entry, arrival);
                    self.has_new_head(line, spot);
                } else {
                    self.ready.replace(entry, arrival);
                }
            }
            (Some(_), None) => {
                if parked_at.is_some() {
                    self.unpark(line, now, joined);
                } else {
                    self.ready.remove(self.entry(line));
                }
                self.lines[line as usize].head = None;
                self.rest(line);
            }
            (None, None) => {}
        }
    }

    /// A line that is parked here has another head.
    #[inline]
    fn has_new_head(&mut self, line: LineId, spot: Spot) {
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        if at.look(spot).asked == Some(line) {
            self.mark(spot);
        }
        self.reordered(spot.bar());
    }

    /// The first call of this line runs, and draws from these, from some what is kept for its class.
    /// `next` is the one behind it. Returns which of all that were served it is.
    #[inline]
    pub(super) fn served(
        &mut self,
        line: LineId,
        service: Service,
        drawn_from: impl Iterator<Item = (Bar, bool)>,
        next: Option<(u64, Key)>,
    ) -> u64 {
        self.common.served += 1;
        let (entry, common) = (self.entry(line), self.common);
        // Several calls that came at once wait for each other wherever they meet.
        let counts = self.ready.len() > 1;
        let state = &self.lines[line as usize];
        // Where it stands, in the order and not at the front, it goes on to stand with the next one.
        let stands_at = state.parked_at.filter(|_| state.passed.is_none());
        if counts && state.parked_at.is_none() {
            self.ready.serve(entry, service, true, common);
        }
        for (bar, is_kept) in drawn_from {
            // What is kept for a class is no loss to others. Its callers take turns with it.
            let service = if is_kept {
                service.within_its_class()
            } else {
                service
            };
            if let (Some(spot), Some((arrival, _))) = (stands_at, next)
                && spot.bar() == bar
                && let Some(at) = self.at_mut(bar)
                && at.order.serve_first(entry, service, arrival)
            {
                self.lines[line as usize].head = next;
                self.has_new_head(line, spot);
                continue;
            }
            if let Some(at) = self.at_mut(bar)
                && at.order.serve(entry, service, counts, common)
            {
                if at.order.is_empty() {
                    self.tagged.push(bar);
                } else {
                    self.reordered(bar);
                }
            }
        }
        common.served
    }

    /// Nothing is ready any more: orders in which nothing waits begin anew.
    fn tidy(&mut self) {
        while let Some(bar) = self.tagged.pop() {
            if let Some(at) = self.at_mut(bar) {
                at.order.tidy();
            }
            self.forget_if_empty(bar);
        }
    }

    /// Something that served a call has not after all. Another line may be first there:
    /// [`change`](Self::change) has it looked at.
    pub(super) fn unserved(
        &mut self,
        bar: Bar,
        class: Class,
        caller: Caller,
        service: Service,
        served: u64,
    ) {
        if let Some(at) = self.at_mut(bar) {
            at.order.unserve(class, caller, service, served);
        }
    }

    /// Another line may be first now.
    fn reordered(&mut self, bar: Bar) {
        let kept = match bar {
            Bar::Limit(limit) => Some(Spot::Kept(limit)),
            Bar::Bucket(_) | Bar::Quota(_) => None,
        };
        let kept_for = self.at(bar).and_then(|at| at.kept_for);
        for spot in [Some(Spot::At(bar)), kept.filter(|_| kept_for.is_some())]
            .into_iter()
            .flatten()
        {
            let first = self.first(spot);
            let at = self.at_mut(bar).expect("it was just found");
            // Who goes first of two spots may have changed without either's first.
            if at.look(spot).asked != first || kept_for.is_some() {
                self.mark(spot);
            }
        }
    }

    /// Something drew less or was given more here.
    #[inline]
    pub(super) fn change(&mut self, bar: Bar) {
        self.mark(Spot::At(bar));
        if let Bar::Limit(limit) = bar
            && self.limits[limit as usize].kept_for.is_some()
        {
            self.mark(Spot::Kept(limit));
        }
    }

    #[inline]
    fn mark(&mut self, spot: Spot) {
        if let Some(at) = self.at_mut(spot.bar())
            && !at.is_empty()
            && !at.look(spot).changed
        {
            at.look(spot).changed = true;
            self.changed.push(spot);
        }
    }

    /// A draw at this limit turned into a departure, which has a moment at which it frees. That
    /// is news to whoever waited for something to be told, not to who waits for a moment.
    #[inline]
    pub(super) fn change_told(&mut self, limit: LimitId) {
        let at = &self.limits[limit as usize];
        let waits_for_a_moment = at.is_empty() || at.all.opens.is_some();
        if !waits_for_a_moment || at.kept_for.is_some() {
            self.change(Bar::Limit(limit));
        }
    }

    /// The quotas at which calls are parked.
    pub(super) fn quotas_waited_for(&self) -> Vec<Key> {
        self.quotas.keys().copied().collect()
    }

    /// The first call that waits for a quota.
    pub(super) fn first_at_quota(&self, quota: Key) -> Option<Key> {
        let line = self.first(Spot::At(Bar::Quota(quota)))?;
        Some(self.head(line).1)
    }

    /// Spots whose moment has come have changed, and claims that have lasted long enough are over.
    #[inline]
    pub(super) fn open_due(&mut self, now: Timestamp) {
        while let Some((opens, spot)) = self.openings.first()
            && opens <= now
        {
            self.openings.remove(&(opens, spot));
            if let Some(at) = self.at_mut(spot.bar()) {
                at.look(spot).opens = None;
            }
            self.mark(spot);
        }
        while let Some(&(until, bar, line)) = self.lapses.first()
            && until <= now
        {
            self.drop_claim(bar, line, now);
            if let Some(passed) = &mut self.lines[line as usize].passed {
                passed.lapses = passed.lapses.saturating_add(1);
            }
        }
    }

    /// The next moment at which a spot opens for the first line parked at it, or a claim lapses.
    #[inline]
    pub(super) fn next_opening(&self) -> Option<Timestamp> {
        let opens = self.openings.first().map(|(opens, _)| opens);
        let lapses = self.lapses.first().map(|&(until, ..)| until);
        [opens, lapses].into_iter().flatten().min()
    }

    /// The next line to ask: one that is ready, or the first one where something has changed. `meets`
    /// says whether the calls of a line meet something.
    #[inline]
    pub(super) fn next(&mut self, meets: impl Fn(&LineKey, Bar) -> bool) -> Option<Asked> {
        let ready = self.ready.first(Part::All);
        if let Some(line) = ready {
            if self.goes_first(line, meets) {
                self.last_was_ready = Some(true);
                return Some(self.asked(line, None));
            }
        } else {
            self.tidy();
        }
        while let Some(spot) = self.next_changed() {
            if let Some(at) = self.at_mut(spot.bar()) {
                at.look(spot).changed = false;
            }
            self.forget_asked(spot);
            if let Some(line) = self.first(spot) {
                self.looked += 1;
                self.last_was_ready = ready.map(|_| false);
                return Some(self.asked(line, Some(spot)));
            }
        }
        self.last_was_ready = ready.map(|_| true);
        Some(self.asked(ready?, None))
    }

    fn asked(&self, line: LineId, turn: Option<Spot>) -> Asked {
        let (_, key) = self.head(line);
        Asked { line, key, turn }
    }

    /// Whether a line that is ready is asked before the first of those that stand where something has
    /// changed. If it meets that, it takes its place there first, or finds that it goes before. Else
    /// whoever came first begins, and then they go by turns.
    fn goes_first(&mut self, line: LineId, meets: impl Fn(&LineKey, Bar) -> bool) -> bool {
        self.wake_changed();
        let Some(&Reverse((_, arrival, spot))) = self.woken.peek() else {
            return true;
        };
        meets(&self.lines[line as usize].key, spot.bar())
            || match self.last_was_ready {
                Some(last_was_ready) => !last_was_ready,
                None => self.head(line).0 < arrival,
            }
    }

    fn wake_changed(&mut self) {
        while let Some(spot) = self.changed.pop() {
            let first = self.first(spot);
            let arrival = first.map_or(0, |line| self.head(line).0);
            self.woken.push(Reverse((self.round, arrival, spot)));
        }
    }

    /// The changed spot to look at next.
    #[inline]
    fn next_changed(&mut self) -> Option<Spot> {
        if self.woken.is_empty() && self.changed.len() < 2 {
            return self.changed.pop();
        }
        self.wake_changed();
        let Reverse((round, _, spot)) = self.woken.pop()?;
        self.round = round + 1;
        Some(spot)
    }

    /// Nothing has changed since it was last looked at.
    pub(super) fn is_settled(&self) -> bool {
        self.changed.is_empty() && self.woken.is_empty()
    }

    /// Whatever has changed, there is nobody to look at it for.
    pub(super) fn nobody_waits(&mut self) {
        while let Some(spot) = self.next_changed() {
            if let Some(at) = self.at_mut(spot.bar()) {
                at.look(spot).changed = false;
            }
        }
    }

    /// Whether a line with an earlier turn is parked here. `is_kept_for_it` says whether the head
    /// takes only what is kept for its class.
    #[inline]
    pub(super) fn is_behind(
        &self,
        line: LineId,
        bar: Bar,
        is_kept_for_it: impl FnOnce() -> bool,
    ) -> bool {
        let Some(at) = self.at(bar).filter(|at| !at.order.is_empty()) else {
            return false;
        };
        let entry = self.entry(line);
        if at.claims.contains_key(&(entry.arrival, line)) {
            return false;
        }
        // Whoever is asked where it is parked is the first of its part.
        let is_here = self.parked_at(line) == Some(bar);
        let is_behind = |part| at.order.is_behind(entry, part);
        match at.kept_for {
            None => !is_here && is_behind(Part::All),
            Some(class) if class == entry.class => {
                (!is_here && is_behind(Part::Only(class)))
                    || (is_behind(Part::But(class)) && !is_kept_for_it())
            }
            Some(class) if is_here => is_behind(Part::Only(class)),
            Some(_) => is_behind(Part::All),
        }
    }

    /// How much is claimed here by those that go before the head of this line.
    ///
    /// A head that may claim here goes behind those only that came before it, whether it claims yet or
    /// not. Else two limits could send it to and fro: each would be closed until it stood there.
    #[inline]
    pub(super) fn ahead(&self, line: LineId, bar: Bar, now: Timestamp) -> u64 {
        let Some(at) = self.at(bar).filter(|at| !at.claims.is_empty()) else {
            return 0;
        };
        let own = (self.head(line).0, line);
        let passed = self.lines[line as usize].passed.as_ref();
        let may_claim = passed.is_some_and(|passed| passed.may_claim(bar, now));
        if !may_claim && !at.claims.contains_key(&own) {
            return at.claimed;
        }
        let before = at.claims.range(..own);
        before.map(|(_, claim)| claim.draw).sum()
    }

    /// A line was asked, and this bars it: it parks there, at the front if it may.
    pub(super) fn park(
        &mut self,
        asked: Asked,
        bar: Bar,
        verdict: Verdict,
        front: Option<u64>,
        now: Timestamp,
        joined: u64,
    ) {
        let line = asked.line;
        let spot = self.spot_of(line, bar);
        if self.lines[line as usize].parked_at != Some(spot) {
            if asked.turn.is_some() {
                self.unpark(line, now, joined);
            } else {
                self.ready.remove(self.entry(line));
            }
            if let Some(draw) = front {
                self.claim(bar, line, draw, now, None);
            }
            self.stand(line, spot, now, joined);
        }
        if front.is_some() {
            // What bars it may be another before which it goes now.
            self.change(bar);
        } else if self.first(spot) == Some(line) {
            self.forget_asked(spot);
            self.remember_asked(spot, line, verdict);
        } else {
            self.reordered(bar);
        }
    }

    /// A line stands at a spot from now on: in the order, unless it claims the front.
    fn stand(&mut self, line: LineId, spot: Spot, now: Timestamp, joined: u64) {
        let (bar, entry, common) = (spot.bar(), self.entry(line), self.common);
        let at = self.make_at(bar);
        let claim = at.claims.get(&(entry.arrival, line));
        if claim.is_none_or(|claim| claim.until.is_some()) {
            at.order.insert(entry, common);
        }
        let state = &mut self.lines[line as usize];
        state.parked_at = Some(spot);
        (state.held_by, state.held_until) = (Some(bar), joined);
        if state.account.charge(now, Behind::Bar(bar)) {
            state.noted = None;
        }
    }

    /// Whether a line has a call and is to be asked.
    #[inline]
    pub(super) fn is_ready(&self, line: LineId) -> bool {
        let state = &self.lines[line as usize];
        state.head.is_some() && state.parked_at.is_none()
    }

    /// Parks a line that is ready, to be asked there.
    pub(super) fn park_again(&mut self, line: LineId, bar: Bar, now: Timestamp, joined: u64) {
        if !self.is_ready(line) {
            return;
        }
        self.ready.remove(self.entry(line));
        self.stand(line, self.spot_of(line, bar), now, joined);
        self.change(bar);
    }

    /// Takes a line from where it is parked. If it was the one asked, the next must be.
    fn unpark(&mut self, line: LineId, now: Timestamp, joined: u64) {
        self.leave_front(line, now);
        let state = &mut self.lines[line as usize];
        let Some(spot) = state.parked_at.take() else {
            return;
        };
        state.held_until = joined;
        let entry = self.entry(line);
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        at.order.remove(entry);
        if at.look(spot).asked.is_none_or(|asked| asked == line) {
            self.forget_asked(spot);
            // With it goes whoever was behind it at the limit's other spot.
            self.change(spot.bar());
        } else {
            self.reordered(spot.bar());
        }
        self.forget_if_empty(spot.bar());
    }

    /// A line that stands at the front of a limit stands in its order from now on.
    fn leave_front(&mut self, line: LineId, now: Timestamp) {
        let Some(spot) = self.lines[line as usize].parked_at else {
            return;
        };
        let entry = self.entry(line);
        let common = self.common;
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        let own = (entry.arrival, line);
        if at
            .claims
            .get(&own)
            .is_some_and(|claim| claim.until.is_none())
        {
            at.order.insert(entry, common);
            self.drop_claim(spot.bar(), line, now);
        }
    }

    /// The turn of a line came, and something else bars it than where it stands. True if it goes to
    /// the front there; then room is kept for it where its turn has come. `opens` is when the bar
    /// does, as far as that is known; `claim` says of a limit how long a claim at it lasts, and what it
    /// is for.
    pub(super) fn pass_over(
        &mut self,
        line: LineId,
        turn: Spot,
        bar: Bar,
        opens: Option<Timestamp>,
        now: Timestamp,
        claim: impl Fn(Bar) -> (Duration, u64),
    ) -> bool {
        self.leave_front(line, now);
        self.drop_claims(line, now);
        let passed = self.lines[line as usize].passed.take();
        let mut passed = passed.unwrap_or_else(|| {
            Box::new(Passed {
                due: now + claim(turn.bar()).0,
                turns: Vec::new(),
                lapses: 0,
            })
        });
        if !passed.turns.contains(&turn.bar()) {
            passed.turns.push(turn.bar());
        }
        let claims = passed.may_claim(bar, now);
        if claims {
            for &at in passed.turns.iter().filter(|&&at| at != bar) {
                let (window, draw) = claim(at);
                if opens.is_none_or(|opens| opens.since(now) <= window) {
                    let factor = 1_u32.checked_shl(passed.lapses).unwrap_or(u32::MAX);
                    let until = now + window.saturating_mul(factor);
                    self.claim(at, line, draw, now, Some(until));
                }
            }
        }
        self.lines[line as usize].passed = Some(passed);
        claims
    }

    fn claim(
        &mut self,
        bar: Bar,
        line: LineId,
        draw: u64,
        now: Timestamp,
        until: Option<Timestamp>,
    ) {
        self.claims += 1;
        let claim = Claim {
            draw,
            since: now,
            until,
        };
        self.insert_claim(bar, line, claim);
    }

    fn insert_claim(&mut self, bar: Bar, line: LineId, claim: Claim) {
        let own = (self.head(line).0, line);
        let at = self.make_at(bar);
        at.claimed += claim.draw;
        let before = at.claims.insert(own, claim);
        debug_assert!(before.is_none(), "a call claims once at a limit");
        if let Some(until) = claim.until {
            self.lapses.insert((until, bar, line));
        }
    }

    /// A line claims nothing here any more, if it did.
    fn drop_claim(&mut self, bar: Bar, line: LineId, now: Timestamp) {
        let own = (self.head(line).0, line);
        let Some(at) = self.at_mut(bar) else {
            return;
        };
        let Some(claim) = at.claims.remove(&own) else {
            return;
        };
        at.claimed -= claim.draw;
        if let Some(until) = claim.until {
            let idle = now.since(claim.since);
            at.idle += idle;
            self.idle += idle;
            self.lapses.remove(&(until, bar, line));
        }
        self.change(bar);
        self.forget_if_empty(bar);
    }

    /// A line claims nothing any more.
    fn drop_claims(&mut self, line: LineId, now: Timestamp) {
        let Some(passed) = self.lines[line as usize].passed.take() else {
            return;
        };
        for &bar in &passed.turns {
            self.drop_claim(bar, line, now);
        }
        self.lines[line as usize].passed = Some(passed);
    }

    #[inline]
    fn remember_asked(&mut self, spot: Spot, line: LineId, verdict: Verdict) {
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        at.look(spot).asked = Some(line);
        if let Verdict::NotBefore(opens) = verdict {
            at.look(spot).opens = Some(opens);
            self.openings.insert((opens, spot));
        }
    }

    #[inline]
    fn forget_asked(&mut self, spot: Spot) {
        let Some(at) = self.at_mut(spot.bar()) else {
            return;
        };
        at.look(spot).asked = None;
        if let Some(opens) = at.look(spot).opens.take() {
            self.openings.remove(&(opens, spot));
        }
    }

    /// What is claimed here now, and for how long claims have kept room.
    pub(super) fn claimed(&self, bar: Bar, now: Timestamp) -> (u64, Duration) {
        let Some(at) = self.at(bar) else {
            return (0, Duration::ZERO);
        };
        let claims = at.claims.values().filter(|claim| claim.until.is_some());
        let idle = claims.map(|claim| now.since(claim.since));
        (at.claimed, at.idle + idle.sum::<Duration>())
    }

    /// Claims made so far, and for how long those that are over have kept room.
    pub(super) const fn claims(&self) -> (u64, Duration) {
        (self.claims, self.idle)
    }

    /// Lines looked at so far.
    pub(super) const fn looked(&self) -> u64 {
        self.looked
    }

    /// No line waits, and no tag is remembered.
    pub(super) fn is_at_rest(&self) -> bool {
        let mut ats = self.limits.iter().chain(&self.buckets);
        self.ready.is_empty() && ats.all(At::is_empty) && self.quotas.is_empty()
    }

    /// What must hold between calls to [`Scheduler::next`](super::Scheduler::next) for nothing
    /// to be overlooked; panics with the fact that does not.
    pub(super) fn audit(&self) {
        assert!(self.woken.is_empty(), "every change has been looked at");
        assert!(self.changed.is_empty(), "every change has been looked at");
        assert!(self.ready.is_empty(), "every ready line has been asked");
        let limits = (0..self.limits.len() as LimitId).map(Bar::Limit);
        let quotas = self.quotas.keys().map(|&quota| Bar::Quota(quota));
        let (mut parked, mut lapses) = (0, 0);
        for bar in limits.chain(quotas) {
            let at = self.at(bar).expect("it is there");
            let first = |spot| self.first(spot);
            assert_eq!(
                at.all.asked,
                first(Spot::At(bar)),
                "the first line parked at {bar:?} was asked last"
            );
            if let (Some(_), Bar::Limit(limit)) = (at.kept_for, bar) {
                assert_eq!(
                    at.kept.asked,
                    first(Spot::Kept(limit)),
                    "and so was that of the class for which it keeps something"
                );
            }
            assert!(!at.all.changed && !at.kept.changed);
            let sum: u64 = at.claims.values().map(|claim| claim.draw).sum();
            assert_eq!(at.claimed, sum, "what is claimed is counted");
            parked += at.order.len() as usize;
            let front = at.claims.values().filter(|claim| claim.until.is_none());
            parked += front.count();
            lapses += at
                .claims
                .values()
                .filter(|claim| claim.until.is_some())
                .count();
        }
        for at in &self.buckets {
            parked += at.order.len() as usize;
            let front = at.claims.values().filter(|claim| claim.until.is_none());
            parked += front.count();
            lapses += at
                .claims
                .values()
                .filter(|claim| claim.until.is_some())
                .count();
        }
        assert_eq!(lapses, self.lapses.len(), "every claim lapses");
        let heads = self.lines.iter().filter(|line| line.head.is_some());
        assert_eq!(parked, heads.count(), "every line with a head is parked");
        assert_eq!(
            self.lines.len(),
            self.by_key.len() + self.free.len(),
            "every line is in use or free"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const LIMIT: Bar = Bar::Limit(0);

    /// A line with one call that came as the `arrival`th.
    fn waiting(parking: &mut Parking, arrival: u64) -> LineId {
        let line = parking.line(LineKey {
            set: 0,
            caller: Caller(arrival),
            class: Class(0),
            own: Own::default(),
        });
        let head = Some((arrival, Key::from_bits(arrival)));
        parking.set_head(line, head, Timestamp::ZERO, arrival);
        line
    }

    fn was_passed_over(parking: &mut Parking, line: LineId, due: Timestamp) {
        let (turns, lapses) = (vec![LIMIT], 0);
        let passed = Passed { due, turns, lapses };
        parking.lines[line as usize].passed = Some(Box::new(passed));
    }

    #[test]
    fn a_call_that_may_claim_goes_behind_those_only_that_claim_and_came_before_it() {
        let mut parking = Parking::new(1, 0, [None].into_iter());
        let [first, second, third] = [1, 2, 3].map(|arrival| waiting(&mut parking, arrival));
        let (now, due) = (Timestamp::ZERO, Timestamp::from_nanos(10));
        was_passed_over(&mut parking, second, now);
        parking.claim(LIMIT, second, 5, now, Some(due));
        // Who may not claim goes behind all claims, whenever it came.
        assert_eq!(
            [first, third].map(|line| parking.ahead(line, LIMIT, now)),
            [5, 5]
        );
        for line in [first, third] {
            was_passed_over(&mut parking, line, due);
            assert_eq!(parking.ahead(line, LIMIT, now), 5);
        }
        let ahead = [first, second, third].map(|line| parking.ahead(line, LIMIT, due));
        assert_eq!(ahead, [0, 0, 5]);
        // It is told the same once it claims: else two limits would send it to and fro.
        parking.claim(LIMIT, first, 1, due, None);
        parking.claim(LIMIT, third, 1, due, None);
        let ahead = [first, second, third].map(|line| parking.ahead(line, LIMIT, due));
        assert_eq!(ahead, [0, 1, 6]);
    }

    #[test]
    fn a_claim_lasts_a_window_and_twice_as_long_each_time_that_it_was_in_vain() {
        let window = Duration::from_nanos(100);
        let now = Timestamp::from_nanos(7);
        let claim = |_| (window, 3);
        for (lapses, lasts) in [(0, 100), (1, 200), (3, 800)] {
            let mut parking = Parking::new(1, 0, [None, None].into_iter());
            let line = waiting(&mut parking, 1);
            was_passed_over(&mut parking, line, now);
            let passed = parking.lines[line as usize].passed.as_mut();
            passed.expect("it was passed over").lapses = lapses;
            let (turn, bar) = (Spot::At(Bar::Limit(1)), LIMIT);
            assert!(parking.pass_over(line, turn, bar, None, now, claim));
            let until = now + Duration::from_nanos(lasts);
            assert_eq!(parking.claimed(turn.bar(), now).0, 3);
            assert_eq!(parking.next_opening(), Some(until));
        }
    }

    #[test]
    fn no_room_is_kept_for_a_call_whose_other_limit_opens_later_than_the_claim_lasts() {
        let now = Timestamp::from_nanos(7);
        let claim = |_| (Duration::from_nanos(100), 3);
        for (opens_in, claimed) in [(100, 3), (101, 0)] {
            let mut parking = Parking::new(1, 0, [None, None].into_iter());
            let line = waiting(&mut parking, 1);
            was_passed_over(&mut parking, line, now);
            let turn = Spot::At(Bar::Limit(1));
            let opens = Some(now + Duration::from_nanos(opens_in));
            assert!(parking.pass_over(line, turn, LIMIT, opens, now, claim));
            assert_eq!(parking.claimed(turn.bar(), now).0, claimed);
        }
    }

    #[test]
    fn a_call_that_is_passed_over_for_the_first_time_claims_after_a_window() {
        let claim = |_| (Duration::from_nanos(100), 3);
        let mut parking = Parking::new(1, 0, [None, None].into_iter());
        let line = waiting(&mut parking, 1);
        let (one, other) = (Spot::At(LIMIT), Spot::At(Bar::Limit(1)));
        let at = Timestamp::from_nanos;
        assert!(!parking.pass_over(line, one, other.bar(), None, at(0), claim));
        assert!(!parking.pass_over(line, other, one.bar(), None, at(99), claim));
        assert!(parking.pass_over(line, one, other.bar(), None, at(100), claim));
    }
}
