//! Which lines to ask, and which to leave alone until something changes.
//!
//! A line with a call in it is either ready (its head is to be asked) or parked at a spot: at
//! what bars its head. Only the first of those parked at a spot, in the order of their turn, is
//! looked at again when something changes there: a release, a supply, the moment it opens. If
//! there is room for it by now, the line is ready and everything it meets is asked. Those behind
//! it have a later turn, and may not draw before it. When the first one leaves, for whatever
//! reason, the next is looked at.
//!
//! Where lines are parked, then, either the first of them is the one that was looked at last
//! and is still barred (`asked`), or the spot is on the `changed` list, or the line woken from it
//! is still ready. [`Parking::wake`] empties the list, so nothing that could run is ever
//! overlooked and nothing that can't is asked twice.
//!
//! A limit that keeps something for one class has two spots, one for that class and one for all
//! others, since what lets one of them run may not let the other. Between the two, a line with an
//! earlier turn goes first as at one spot, but for a call that takes only what is kept for it:
//! nobody else could have that.
//!
//! At a bucket or a quota, classes share by tags of its own, which move when it serves and not when
//! anything else does: so nobody has to look at all of them because classes' tags have moved. There may be
//! very many quotas, so there is a spot only where something is parked.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::policy::{LimitId, SetId};
use crate::queue::account::{Account, Behind};
use crate::queue::fair::{Fair, GroupId, Shares, Turn};
use crate::queue::{Bar, Class, LineId, Waiting};
use crate::slab::Key;
use crate::sorted::Sorted;
use crate::time::Timestamp;
use crate::verdict::Verdict;

/// A line in a set ordered by class, then by turn.
type Parked = (u32, Turn, LineId);

/// Where lines are parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpotId {
    /// At a limit.
    Limit(LimitId),
    /// At a limit, lines of the class for which it keeps something.
    Kept(LimitId),
    /// At a bucket, by its place.
    Bucket(u32),
    /// At a key's quota.
    Quota(Key),
}

#[derive(Debug)]
pub(super) struct Parking {
    lines: Vec<Line>,
    /// Lines that are always there: set by set, class by class.
    fixed: u32,
    /// Those of buckets and quotas, which are there as long as a call is in them.
    own_lines: BTreeMap<(Own, SetId, u32), LineId>,
    /// Places in `lines` where none is.
    free: Vec<LineId>,
    limits: Vec<AtLimit>,
    /// By place.
    buckets: Vec<Spot>,
    /// Those at which lines are parked.
    quotas: BTreeMap<Key, Spot>,
    /// Ready lines by class.
    ready: Vec<Sorted<(Turn, LineId)>>,
    /// Lines in `ready`.
    ready_count: u32,
    /// Spots whose first parked line must be asked again.
    changed: Vec<SpotId>,
    /// When spots open for the line that was asked last.
    openings: Sorted<(Timestamp, SpotId)>,
    /// A class's tag moved, so another line may now be first at a limit.
    reordered: bool,
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

    pub(super) const fn is_none(&self) -> bool {
        self.bucket.is_none() && self.quotas.is_none()
    }
}

#[derive(Clone, Debug)]
struct Line {
    class: u32,
    set: SetId,
    own: Own,
    /// The call whose turn it is in this line.
    head: Option<(Turn, Key)>,
    /// The head's turn towards the class, as long as the line offers it.
    turn: Turn,
    /// There is a head, and its own bucket does not hold it.
    offers: bool,
    /// Where the head is parked; a line with a head and no spot is ready.
    parked_at: Option<SpotId>,
    /// The spot whose change made it ready, as long as it has not been asked.
    woken_from: Option<SpotId>,
    held_by: Option<Bar>,
    /// Calls that joined up to this have waited while `held_by` held the line.
    held_until: u64,
    /// What its calls have waited for.
    account: Account,
    /// The account as it stands, for whoever joins before it changes.
    noted: Option<Arc<Account>>,
}

impl Line {
    fn new(class: u32, set: SetId, own: Own) -> Self {
        Self {
            class,
            set,
            own,
            head: None,
            turn: Turn::new(0, 0),
            offers: false,
            parked_at: None,
            woken_from: None,
            held_by: None,
            held_until: 0,
            account: Account::new(),
            noted: None,
        }
    }

    fn group(&self) -> GroupId {
        GroupId {
            class: Class(self.class),
            bucket: self.own.bucket.map(Key::index),
        }
    }
}

/// The lines parked at a limit.
#[derive(Debug)]
struct AtLimit {
    all: Spot,
    /// The class for which it keeps something, and where its lines are.
    kept: Option<(u32, Spot)>,
}

/// Lines parked for the same reason.
#[derive(Debug)]
struct Spot {
    /// By class.
    parked: Vec<Sorted<(Turn, LineId)>>,
    /// Lines in `parked`.
    count: u32,
    /// Classes that have any there.
    classes: u32,
    /// The first of them, as long as they are of one class.
    only: Option<Parked>,
    asked: Option<Parked>,
    /// The moment in `openings`.
    opens: Option<Timestamp>,
    /// On the `changed` list.
    changed: bool,
    /// How classes share it, if it has tags of its own.
    shares: Option<Shares>,
}

impl Spot {
    fn new(classes: usize) -> Self {
        let mut parked = Vec::new();
        parked.resize_with(classes, Sorted::default);
        Self {
            parked,
            count: 0,
            classes: 0,
            only: None,
            asked: None,
            opens: None,
            changed: false,
            shares: None,
        }
    }

    fn with_shares(classes: usize) -> Self {
        Self {
            shares: Some(Shares::new(classes)),
            ..Self::new(classes)
        }
    }

    fn insert(&mut self, (class, turn, line): Parked) {
        let of_class = &mut self.parked[class as usize];
        if of_class.is_empty() {
            self.classes += 1;
            if let Some(shares) = &mut self.shares {
                shares.activate(Class(class));
            }
        }
        of_class.insert((turn, line));
        self.count += 1;
        if self.classes == 1 {
            let entry = (class, turn, line);
            self.only = Some(self.only.map_or(entry, |only| only.min(entry)));
        }
    }

    fn remove(&mut self, (class, turn, line): Parked) {
        let of_class = &mut self.parked[class as usize];
        of_class.remove(&(turn, line));
        self.count -= 1;
        let next = of_class.first();
        if next.is_none() {
            self.classes -= 1;
        }
        self.only = match self.classes {
            0 => None,
            1 => match next {
                Some((turn, line)) => Some((class, turn, line)),
                None => self.first_of_any(),
            },
            // Not asked for as long as there is more than one.
            _ => self.only,
        };
    }

    /// The first line of the first class that has any here.
    fn first_of_any(&self) -> Option<Parked> {
        let mut classes = self.parked.iter().zip(0..);
        classes.find_map(|(parked, class)| {
            let (turn, line) = parked.first()?;
            Some((class, turn, line))
        })
    }

    /// The first line parked here, over all classes.
    #[inline]
    fn first(&self, fair: &Fair) -> Option<Parked> {
        if self.classes <= 1 {
            return self.only;
        }
        self.first_of_all(fair)
    }

    fn first_of_all(&self, fair: &Fair) -> Option<Parked> {
        let mut first: Option<Parked> = None;
        for (parked, class) in self.parked.iter().zip(0..) {
            let Some((turn, line)) = parked.first() else {
                continue;
            };
            if first.is_none_or(|(before, ..)| self.class_precedes(class, before, fair)) {
                first = Some((class, turn, line));
            }
        }
        first
    }

    #[inline]
    fn class_precedes(&self, one: u32, other: u32, fair: &Fair) -> bool {
        match &self.shares {
            Some(shares) => shares.turn(one) < shares.turn(other),
            None => fair.class_turn(one) < fair.class_turn(other),
        }
    }

    /// Whether a line parked here has an earlier turn than this one.
    fn is_before(&self, own: Parked, fair: &Fair) -> bool {
        self.first(fair).is_some_and(|first| {
            if first.0 == own.0 {
                (first.1, first.2) < (own.1, own.2)
            } else {
                self.class_precedes(first.0, own.0, fair)
            }
        })
    }
}

impl Parking {
    /// Lines for so many sets and classes. `kept_for` says for each limit for which class it
    /// keeps something.
    pub(super) fn new(
        sets: usize,
        classes: usize,
        kept_for: impl Iterator<Item = Option<Class>>,
    ) -> Self {
        let fixed = sets * classes;
        let line = |index| {
            let (set, class) = (index / classes, index % classes);
            Line::new(class as u32, set as SetId, Own::default())
        };
        let mut ready = Vec::new();
        ready.resize_with(classes, Sorted::default);
        let at_limit = |kept: Option<Class>| AtLimit {
            all: Spot::new(classes),
            kept: kept.map(|class| (class.0, Spot::new(classes))),
        };
        Self {
            lines: (0..fixed).map(line).collect(),
            fixed: fixed as u32,
            own_lines: BTreeMap::new(),
            free: Vec::new(),
            limits: kept_for.map(at_limit).collect(),
            buckets: Vec::new(),
            quotas: BTreeMap::new(),
            ready,
            ready_count: 0,
            changed: Vec::new(),
            openings: Sorted::default(),
            reordered: false,
            looked: 0,
        }
    }

    fn classes(&self) -> usize {
        self.ready.len()
    }

    /// There is a bucket now.
    pub(super) fn make_bucket(&mut self, bucket: Key) {
        let (place, classes) = (bucket.index() as usize, self.classes());
        while self.buckets.len() <= place {
            self.buckets.push(Spot::with_shares(classes));
        }
        self.buckets[place] = Spot::with_shares(classes);
    }

    /// There is no such bucket any more; nobody waits for it.
    pub(super) fn remove_bucket(&mut self, bucket: Key) {
        let spot = &mut self.buckets[bucket.index() as usize];
        assert_eq!(spot.count, 0, "whoever waited for the bucket was rerouted");
        spot.shares = None;
    }

    /// The line of calls of this class that meet this set and this of their own.
    #[inline]
    pub(super) fn line(&mut self, set: SetId, class: Class, own: Own) -> LineId {
        if own.is_none() {
            return set * self.classes() as u32 + class.0;
        }
        let (lines, free) = (&mut self.lines, &mut self.free);
        let line = self.own_lines.entry((own, set, class.0));
        let own = line.key().0.clone();
        *line.or_insert_with(|| {
            let new = Line::new(class.0, set, own);
            match free.pop() {
                Some(place) => {
                    lines[place as usize] = new;
                    place
                }
                None => {
                    lines.push(new);
                    lines.len() as LineId - 1
                }
            }
        })
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

    /// What held a call which joined at `joined`, if anything did.
    #[inline]
    pub(super) fn held_by(&self, line: LineId, joined: u64) -> Option<Bar> {
        let held_by = self.lines[line as usize].held_by;
        let held_until = self.lines[line as usize].held_until;
        self.parked_at(line)
            .or(held_by.filter(|_| joined <= held_until))
    }

    /// Where a line is parked now.
    #[inline]
    pub(super) fn parked_at(&self, line: LineId) -> Option<Bar> {
        let spot = self.lines[line as usize].parked_at?;
        Some(self.bar(line, spot))
    }

    #[inline]
    fn bar(&self, line: LineId, spot: SpotId) -> Bar {
        match spot {
            SpotId::Limit(limit) | SpotId::Kept(limit) => Bar::Limit(limit),
            SpotId::Bucket(_) => {
                let bucket = self.lines[line as usize].own.bucket;
                Bar::Bucket(bucket.expect("only lines of a bucket are parked there"))
            }
            SpotId::Quota(quota) => Bar::Quota(quota),
        }
    }

    /// Where a line barred by this is parked.
    fn spot_at(&self, line: LineId, bar: Bar) -> SpotId {
        match bar {
            Bar::Bucket(bucket) => SpotId::Bucket(bucket.index()),
            Bar::Quota(quota) => SpotId::Quota(quota),
            Bar::Limit(limit) => match &self.limits[limit as usize].kept {
                Some((class, _)) if *class == self.lines[line as usize].class => {
                    SpotId::Kept(limit)
                }
                Some(_) | None => SpotId::Limit(limit),
            },
        }
    }

    /// None at a quota where nothing is parked.
    #[inline]
    fn spot(&self, id: SpotId) -> Option<&Spot> {
        match id {
            SpotId::Limit(limit) => Some(&self.limits[limit as usize].all),
            SpotId::Kept(limit) => {
                let kept = self.limits[limit as usize].kept.as_ref();
                Some(&kept.expect("lines are parked at spots that there are").1)
            }
            SpotId::Bucket(place) => Some(&self.buckets[place as usize]),
            SpotId::Quota(quota) => self.quotas.get(&quota),
        }
    }

    #[inline]
    fn spot_mut(&mut self, id: SpotId) -> &mut Spot {
        match id {
            SpotId::Limit(limit) => &mut self.limits[limit as usize].all,
            SpotId::Kept(limit) => {
                let kept = self.limits[limit as usize].kept.as_mut();
                &mut kept.expect("lines are parked at spots that there are").1
            }
            SpotId::Bucket(place) => &mut self.buckets[place as usize],
            SpotId::Quota(quota) => {
                let classes = self.ready.len();
                let spot = self.quotas.entry(quota);
                spot.or_insert_with(|| Spot::with_shares(classes))
            }
        }
    }

    /// The head of a line is now this one. A new head is asked, wherever the old one stood.
    pub(super) fn set_head(
        &mut self,
        line: LineId,
        head: Option<(Turn, Key)>,
        now: Timestamp,
        joined: u64,
        fair: &mut Fair,
    ) {
        let state = &mut self.lines[line as usize];
        if state.head == head {
            return;
        }
        if state.head.is_none() {
            state.account.begin(now);
            state.noted = None;
        }
        if self.lines[line as usize].parked_at.is_some() {
            self.unpark(line, joined);
        } else {
            self.unready(line);
        }
        self.lines[line as usize].head = head;
        if head.is_some() {
            self.make_ready(line, fair);
        } else {
            self.was_asked(line);
            self.withdraw(line, fair);
            if line >= self.fixed {
                let state = &mut self.lines[line as usize];
                let own = core::mem::take(&mut state.own);
                self.own_lines.remove(&(own, state.set, state.class));
                self.free.push(line);
            }
        }
    }

    #[inline]
    fn withdraw(&mut self, line: LineId, fair: &mut Fair) {
        let state = &mut self.lines[line as usize];
        if state.offers {
            state.offers = false;
            fair.withdraw(state.group());
        }
    }

    /// Classes' tags have moved.
    pub(super) fn classes_moved(&mut self) {
        self.reordered = self.ready.len() > 1;
    }

    /// A bucket has served a call of this class.
    pub(super) fn served(&mut self, bucket: Key, class: Class, service: u64) {
        let spot = &mut self.buckets[bucket.index() as usize];
        let shares = spot.shares.as_mut();
        shares
            .expect("a bucket has tags of its own")
            .serve(class, service);
        self.change_bucket(bucket);
    }

    /// A quota has served a call of this class.
    pub(super) fn served_quota(&mut self, quota: Key, class: Class, service: u64) {
        if let Some(spot) = self.quotas.get_mut(&quota) {
            let shares = spot.shares.as_mut();
            shares
                .expect("a quota has tags of its own")
                .serve(class, service);
            self.change_quota(quota);
        }
    }

    /// Something drew less or was given more at this limit.
    #[inline]
    pub(super) fn change(&mut self, limit: LimitId) {
        let at = &mut self.limits[limit as usize];
        if at.all.count > 0 && !at.all.changed {
            at.all.changed = true;
            self.changed.push(SpotId::Limit(limit));
        }
        if let Some((_, kept)) = &mut at.kept
            && kept.count > 0
            && !kept.changed
        {
            kept.changed = true;
            self.changed.push(SpotId::Kept(limit));
        }
    }

    /// Something drew less from this bucket, or it is another one now.
    pub(super) fn change_bucket(&mut self, bucket: Key) {
        self.mark(SpotId::Bucket(bucket.index()));
    }

    /// What a quota says may be another thing now.
    pub(super) fn change_quota(&mut self, quota: Key) {
        self.mark(SpotId::Quota(quota));
    }

    /// The quotas at which calls are parked.
    pub(super) fn quotas_waited_for(&self) -> Vec<Key> {
        self.quotas.keys().copied().collect()
    }

    /// The first call that waits for a quota.
    pub(super) fn first_at_quota(&self, quota: Key, fair: &Fair) -> Option<Key> {
        let (_, _, line) = self.quotas.get(&quota)?.first(fair)?;
        Some(self.head(line).1)
    }

    #[inline]
    fn mark(&mut self, id: SpotId) {
        if self.spot(id).is_none() {
            return;
        }
        let spot = self.spot_mut(id);
        if !spot.changed && spot.count > 0 {
            spot.changed = true;
            self.changed.push(id);
        }
    }

    /// The first line at a spot has left: the next must be asked, and with it whoever may have
    /// been behind it at the limit's other spot.
    fn first_left(&mut self, id: SpotId) {
        match id {
            SpotId::Limit(limit) | SpotId::Kept(limit) => self.change(limit),
            SpotId::Bucket(_) | SpotId::Quota(_) => self.mark(id),
        }
    }

    /// A draw at this limit turned into a departure, which has a moment at which it frees. That
    /// is news to whoever waited for something to be told, not to who waits for a moment.
    #[inline]
    pub(super) fn change_told(&mut self, limit: LimitId) {
        let at = &self.limits[limit as usize];
        let waits_for_a_moment = at.all.count == 0 || at.all.opens.is_some();
        if !waits_for_a_moment || at.kept.is_some() {
            self.change(limit);
        }
    }

    /// Spots whose moment has come have changed.
    #[inline]
    pub(super) fn open_due(&mut self, now: Timestamp) {
        while let Some((opens, spot)) = self.openings.first()
            && opens <= now
        {
            self.openings.remove(&(opens, spot));
            self.spot_mut(spot).opens = None;
            self.mark(spot);
        }
    }

    /// The next moment at which a spot opens for the first line parked at it.
    #[inline]
    pub(super) fn next_opening(&self) -> Option<Timestamp> {
        self.openings.first().map(|(opens, _)| opens)
    }

    /// Nothing has changed since it was last looked at.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.changed.is_empty() && !self.reordered
    }

    /// Looks at the first line at each changed spot, and makes it ready if it is not barred
    /// there any more. `peek` is what the limit or bucket says to the head of a line.
    pub(super) fn wake(
        &mut self,
        joined: u64,
        fair: &mut Fair,
        peek: impl Fn(Bar, Key) -> Verdict,
    ) {
        loop {
            if self.reordered {
                self.reordered = false;
                for limit in 0..self.limits.len() as LimitId {
                    let at = &self.limits[limit as usize];
                    let is_outdated = |spot: &Spot| {
                        spot.classes > 1 && spot.asked.is_some() && spot.first(fair) != spot.asked
                    };
                    // Who goes first of two spots may have changed without either's first.
                    if is_outdated(&at.all) || at.kept.is_some() {
                        self.change(limit);
                    }
                }
            }
            let Some(spot) = self.changed.pop() else {
                return;
            };
            if self.spot(spot).is_none() {
                continue;
            }
            self.spot_mut(spot).changed = false;
            let Some(first) = self.spot(spot).and_then(|spot| spot.first(fair)) else {
                continue;
            };
            let (_, _, line) = first;
            self.looked += 1;
            self.forget_asked(spot);
            let (_, head) = self.head(line);
            match peek(self.bar(line, spot), head) {
                verdict @ (Verdict::NotBefore(_) | Verdict::WhenTold) => {
                    self.remember_asked(spot, first, verdict);
                }
                Verdict::Ready | Verdict::Never => {
                    self.unpark(line, joined);
                    self.lines[line as usize].woken_from = Some(spot);
                    self.make_ready(line, fair);
                }
            }
        }
    }

    /// Whatever has changed, there is nobody to look at it for.
    pub(super) fn nobody_waits(&mut self) {
        self.reordered = false;
        while let Some(spot) = self.changed.pop() {
            if self.spot(spot).is_some() {
                self.spot_mut(spot).changed = false;
            }
        }
    }

    /// The ready line whose turn it is, and its head.
    #[inline]
    pub(super) fn pick(&self, fair: &Fair) -> Option<(LineId, Key)> {
        if self.ready_count == 0 {
            return None;
        }
        let mut picked: Option<(u32, LineId)> = None;
        for (ready, class) in self.ready.iter().zip(0..) {
            let Some((_, line)) = ready.first() else {
                continue;
            };
            if picked.is_none_or(|(before, _)| fair.class_turn(class) < fair.class_turn(before)) {
                picked = Some((class, line));
            }
        }
        picked.map(|(_, line)| (line, self.head(line).1))
    }

    /// Whether a line with an earlier turn is parked at this limit. `is_kept_for_it` says
    /// whether the head takes only what is kept for its class there.
    #[inline]
    pub(super) fn is_behind(
        &self,
        line: LineId,
        limit: LimitId,
        fair: &Fair,
        is_kept_for_it: impl FnOnce() -> bool,
    ) -> bool {
        let at = &self.limits[limit as usize];
        if at.all.count == 0 && at.kept.is_none() {
            return false;
        }
        let Some((class, kept)) = &at.kept else {
            return at.all.is_before(self.offered_as(line), fair);
        };
        let own = self.offered_as(line);
        if own.0 != *class {
            return at.all.is_before(own, fair) || kept.is_before(own, fair);
        }
        kept.is_before(own, fair) || (at.all.is_before(own, fair) && !is_kept_for_it())
    }

    /// Whether a line with an earlier turn is parked at this bucket, which is the line's own.
    pub(super) fn is_behind_at_bucket(&self, line: LineId, bucket: Key, fair: &Fair) -> bool {
        let spot = &self.buckets[bucket.index() as usize];
        spot.count > 0 && spot.is_before(self.queued_as(line), fair)
    }

    /// Whether a line with an earlier turn is parked at this quota.
    pub(super) fn is_behind_at_quota(&self, line: LineId, quota: Key, fair: &Fair) -> bool {
        let spot = self.quotas.get(&quota);
        spot.is_some_and(|spot| spot.is_before(self.offered_as(line), fair))
    }

    /// A ready line was asked and may not run: it parks. `verdict` is what it was told.
    pub(super) fn park(
        &mut self,
        line: LineId,
        bar: Bar,
        verdict: Verdict,
        now: Timestamp,
        joined: u64,
        fair: &mut Fair,
    ) {
        self.unready(line);
        let id = self.spot_at(line, bar);
        if let SpotId::Bucket(_) = id {
            self.withdraw(line, fair);
        }
        let entry = self.entry(line, id);
        let state = &mut self.lines[line as usize];
        state.parked_at = Some(id);
        (state.held_by, state.held_until) = (Some(bar), joined);
        if state.account.charge(now, Behind::Bar(bar)) {
            state.noted = None;
        }
        let spot = self.spot_mut(id);
        spot.insert(entry);
        if spot.count == 1 || spot.first(fair) == Some(entry) {
            self.forget_asked(id);
            self.remember_asked(id, entry, verdict);
        }
        self.was_asked(line);
    }

    /// A line as it is parked at a spot.
    #[inline]
    fn entry(&self, line: LineId, spot: SpotId) -> Parked {
        match spot {
            SpotId::Limit(_) | SpotId::Kept(_) | SpotId::Quota(_) => self.offered_as(line),
            SpotId::Bucket(_) => self.queued_as(line),
        }
    }

    /// A line by its turn towards its class.
    #[inline]
    fn offered_as(&self, line: LineId) -> Parked {
        let state = &self.lines[line as usize];
        (state.class, state.turn, line)
    }

    /// A line by its turn in its group.
    #[inline]
    fn queued_as(&self, line: LineId) -> Parked {
        (self.lines[line as usize].class, self.head(line).0, line)
    }

    #[inline]
    fn head(&self, line: LineId) -> (Turn, Key) {
        let head = self.lines[line as usize].head;
        head.expect("only lines with a call in them are ready or parked")
    }

    fn make_ready(&mut self, line: LineId, fair: &mut Fair) {
        let (head, _) = self.head(line);
        let state = &mut self.lines[line as usize];
        state.turn = if state.offers {
            fair.offered(state.group(), head)
        } else {
            fair.offer(state.group(), head)
        };
        state.offers = true;
        let (class, turn) = (state.class, state.turn);
        let ready = &mut self.ready[class as usize];
        let first = ready.is_empty();
        ready.insert((turn, line));
        self.ready_count += 1;
        if first && fair.activate(Class(class)) {
            self.classes_moved();
        }
    }

    fn unready(&mut self, line: LineId) {
        let state = &self.lines[line as usize];
        if let (Some(_), None) = (state.head, state.parked_at) {
            self.ready[state.class as usize].remove(&(state.turn, line));
            self.ready_count -= 1;
        }
    }

    /// Takes a line from where it is parked. If it was the one asked, the next must be.
    fn unpark(&mut self, line: LineId, joined: u64) {
        let Some(id) = self.lines[line as usize].parked_at else {
            return;
        };
        let entry = self.entry(line, id);
        let state = &mut self.lines[line as usize];
        state.parked_at = None;
        state.held_until = joined;
        let spot = self.spot_mut(id);
        spot.remove(entry);
        let is_empty = spot.count == 0;
        if spot.asked == Some(entry) {
            self.forget_asked(id);
            self.first_left(id);
        }
        if let SpotId::Quota(quota) = id
            && is_empty
        {
            self.quotas.remove(&quota);
        }
    }

    #[inline]
    fn remember_asked(&mut self, id: SpotId, entry: Parked, verdict: Verdict) {
        let spot = self.spot_mut(id);
        spot.asked = Some(entry);
        if let Verdict::NotBefore(opens) = verdict {
            spot.opens = Some(opens);
            self.openings.insert((opens, id));
        }
    }

    #[inline]
    fn forget_asked(&mut self, id: SpotId) {
        let spot = self.spot_mut(id);
        spot.asked = None;
        if let Some(opens) = spot.opens.take() {
            self.openings.remove(&(opens, id));
        }
    }

    /// The answer of a line woken from a spot is in: unless it parked there again as the first,
    /// the next one there must be asked.
    #[inline]
    fn was_asked(&mut self, line: LineId) {
        if let Some(id) = self.lines[line as usize].woken_from.take()
            && self.spot(id).is_some_and(|spot| spot.asked.is_none())
        {
            self.first_left(id);
        }
    }

    /// A ready line was asked and its head runs: the next head, if any, is set after this.
    #[inline]
    pub(super) fn ran(&mut self, line: LineId) {
        self.was_asked(line);
    }

    /// Lines looked at because something changed, so far.
    pub(super) const fn looked(&self) -> u64 {
        self.looked
    }

    /// What must hold between calls to [`Scheduler::next`](super::Scheduler::next) for nothing
    /// to be overlooked; panics with the fact that does not.
    pub(super) fn audit(&self, fair: &Fair) {
        assert!(
            self.changed.is_empty() && !self.reordered,
            "every change has been looked at"
        );
        assert!(
            self.ready.iter().all(Sorted::is_empty),
            "every ready line has been asked"
        );
        let at_limits = self.limits.iter();
        let kept = at_limits
            .clone()
            .filter_map(|at| at.kept.as_ref().map(|(_, spot)| spot));
        let spots = at_limits.map(|at| &at.all).chain(kept);
        let mut parked = 0;
        for spot in spots.chain(&self.buckets).chain(self.quotas.values()) {
            assert_eq!(
                spot.asked,
                spot.first(fair),
                "the first parked line was asked last"
            );
            assert!(!spot.changed, "what is marked as changed is on the list");
            parked += spot.count as usize;
        }
        let heads = self.lines.iter().filter(|line| line.head.is_some());
        assert_eq!(parked, heads.count(), "every line with a head is parked");
        assert_eq!(
            self.lines.len(),
            self.fixed as usize + self.own_lines.len() + self.free.len(),
            "every line is in use or free"
        );
    }
}
