//! Where every line is, and the spots that have changed.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use super::line::{At, Line, LineKey, Look, Spot};
use crate::call::Class;
use crate::queue::account::Account;
use crate::queue::fair::{Common, Entry, Order};
use crate::queue::{Bar, LineId};
use crate::slab::Key;
use crate::sorted::Sorted;
use crate::time::Timestamp;

/// Lines without a call that are kept for the next one: to make a line costs more than to find it.
pub(super) const RESTING_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Parking {
    pub(super) common: Common,
    pub(super) lines: Vec<Line>,
    pub(super) by_key: BTreeMap<LineKey, LineId>,
    /// Places in `lines` where none is.
    pub(super) free: Vec<LineId>,
    /// Lines that became empty, the first one first. Some of them may have a call again.
    pub(super) resting: VecDeque<LineId>,
    pub(super) limits: Vec<At>,
    /// By place.
    pub(super) buckets: Vec<At>,
    /// The quotas at which flows are parked or claim.
    pub(super) quotas: BTreeMap<Key, At>,
    /// Lines that are to be asked.
    pub(super) ready: Order,
    /// While there are any: whether one of them was asked last.
    pub(super) last_was_ready: Option<bool>,
    /// Orders that have tags because several lines were ready at once.
    pub(super) tagged: Vec<Bar>,
    /// Spots whose first line must be asked again, each once, here or in `woken`.
    pub(super) changed: Vec<Spot>,
    /// Of these, the ones that are being looked at: by round, then by when the first line came.
    pub(super) woken: BinaryHeap<Reverse<(u64, u64, Spot)>>,
    /// Rounds of asking changed spots. A spot that changes again comes after those that were not
    /// asked yet. Otherwise lines parked there would get all the room of a limit, and lines whose
    /// other limit opened at the same moment would get none.
    pub(super) round: u64,
    /// When spots open for the line that was asked last.
    pub(super) openings: Sorted<(Timestamp, Spot)>,
    /// When claims lapse.
    pub(super) lapses: BTreeSet<(Timestamp, Bar, LineId)>,
    /// Claims made so far.
    pub(super) claims: u64,
    /// For how long room was kept, over all claims that are over.
    pub(super) idle: Duration,
    /// Lines looked at because something changed.
    pub(super) looked: u64,
}

impl Parking {
    /// For this number of classes. `kept_for` returns the class with a reserve for each limit.
    pub(crate) fn new(
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
            limits: kept_for.map(at_limit).collect(),
            ..Self::default()
        }
    }

    /// The line of calls like these.
    #[inline]
    pub(crate) fn line(&mut self, key: LineKey) -> LineId {
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
    pub(super) fn rest(&mut self, line: LineId) {
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

    /// The account that a call must keep when it joins a line; `None` if the line is empty.
    #[inline]
    pub(crate) fn note_account(&mut self, line: LineId) -> Option<Arc<Account>> {
        let state = &mut self.lines[line as usize];
        state.head?;
        let account = &state.account;
        Some(Arc::clone(
            state.noted.get_or_insert_with(|| Arc::new(account.clone())),
        ))
    }

    /// The causes of the wait of a flow's calls.
    pub(crate) fn account(&self, line: LineId) -> &Account {
        &self.lines[line as usize].account
    }

    /// How many lines there may be now.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The head of any line.
    pub(crate) fn any(&self) -> Option<Key> {
        // At most [`RESTING_MAX`] lines have no call.
        let mut lines = self.by_key.values();
        let head = lines.find_map(|&line| self.lines[line as usize].head);
        head.map(|(_, key)| key)
    }

    /// Where a line is parked now.
    #[inline]
    pub(crate) fn parked_at(&self, line: LineId) -> Option<Bar> {
        Some(self.lines[line as usize].parked_at?.bar())
    }

    /// The spot of a line that this bars.
    #[inline]
    pub(super) fn spot_of(&self, line: LineId, bar: Bar) -> Spot {
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

    /// The flows at a budget; `None` at a quota where no call waits.
    #[inline]
    pub(super) fn at(&self, bar: Bar) -> Option<&At> {
        match bar {
            Bar::Limit(limit) => Some(&self.limits[limit as usize]),
            Bar::Bucket(bucket) => Some(&self.buckets[bucket.index() as usize]),
            Bar::Quota(quota) => self.quotas.get(&quota),
        }
    }

    #[inline]
    pub(super) fn at_mut(&mut self, bar: Bar) -> Option<&mut At> {
        match bar {
            Bar::Limit(limit) => Some(&mut self.limits[limit as usize]),
            Bar::Bucket(bucket) => Some(&mut self.buckets[bucket.index() as usize]),
            Bar::Quota(quota) => self.quotas.get_mut(&quota),
        }
    }

    #[inline]
    pub(super) fn look(&mut self, spot: Spot) -> Option<&mut Look> {
        Some(self.at_mut(spot.bar())?.look(spot))
    }

    #[inline]
    pub(super) fn make_at(&mut self, bar: Bar) -> &mut At {
        if let Bar::Quota(quota) = bar {
            return self.quotas.entry(quota).or_default();
        }
        self.at_mut(bar).expect("limits and buckets are there")
    }

    pub(super) fn forget_if_empty(&mut self, bar: Bar) {
        if let Bar::Quota(quota) = bar
            && self.quotas.get(&quota).is_some_and(At::is_empty)
        {
            self.forget_asked(Spot::At(bar));
            self.quotas.remove(&quota);
        }
    }

    /// A line, as an entry of orders.
    #[inline]
    pub(super) fn entry(&self, line: LineId) -> Entry {
        let state = &self.lines[line as usize];
        Entry {
            class: state.key.class,
            caller: state.key.caller,
            arrival: self.head(line).0,
            line,
        }
    }

    #[inline]
    pub(crate) fn head(&self, line: LineId) -> (u64, Key) {
        let head = self.lines[line as usize].head;
        head.expect("only lines with a call in them are ready or parked")
    }

    /// The first line at a spot.
    #[inline]
    pub(super) fn first(&self, spot: Spot) -> Option<LineId> {
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
    pub(crate) fn set_head(&mut self, line: LineId, head: Option<(u64, Key)>, now: Timestamp) {
        let state = &mut self.lines[line as usize];
        if state.head == head {
            return;
        }
        if state.passed.is_some() {
            self.take_passed(line, now);
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
                    self.unpark(line, now);
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
    pub(super) fn has_new_head(&mut self, line: LineId, spot: Spot) {
        let at = self.at_mut(spot.bar()).expect("the line is parked there");
        if at.look(spot).asked == Some(line) {
            self.mark(spot);
        }
        self.reordered(spot.bar());
    }

    /// There is a bucket now, or its lines go in another order.
    pub(crate) fn set_bucket(&mut self, bucket: Key, by_arrival: bool) {
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

    /// Removes a bucket for which no call waits.
    pub(crate) fn remove_bucket(&mut self, bucket: Key) {
        let at = &mut self.buckets[bucket.index() as usize];
        assert!(
            at.is_empty(),
            "all calls that waited for the bucket were rerouted"
        );
        at.idle = Duration::ZERO;
    }

    /// Whether a line has a call and is to be asked.
    #[inline]
    pub(crate) fn is_ready(&self, line: LineId) -> bool {
        let state = &self.lines[line as usize];
        state.head.is_some() && state.parked_at.is_none()
    }

    /// Lines looked at so far.
    pub(crate) const fn looked(&self) -> u64 {
        self.looked
    }

    /// No line waits, and no tag is remembered.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut ats = self.limits.iter().chain(&self.buckets);
        self.ready.is_empty() && ats.all(At::is_empty) && self.quotas.is_empty()
    }

    /// The quotas at which calls are parked.
    pub(crate) fn quotas_waited_for(&self) -> Vec<Key> {
        self.quotas.keys().copied().collect()
    }

    /// The first call that waits for a quota.
    pub(crate) fn first_at_quota(&self, quota: Key) -> Option<Key> {
        let line = self.first(Spot::At(Bar::Quota(quota)))?;
        Some(self.head(line).1)
    }
}
