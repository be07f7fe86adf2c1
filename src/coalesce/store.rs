//! The reads that wait for each call, and the answers that are kept. Pure: `now` is an argument.
//!
//! A call under way is in the index as long as reads may join it. A write takes it out, and the
//! call continues for the reads that already wait. Removed values are returned, so that they are
//! dropped outside the lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_limits::{Class, Timestamp};
use tokio::sync::{Notify, oneshot, watch};

use super::CoalesceSettings;
use super::answer::compact;
use super::key::{Guest, Key};
use crate::call::claim::Payer;
use crate::call::{BufferedReply, Record, Refusal, Reply};

/// The approximate size of an entry besides its key and its answer.   bytes
const ENTRY_BYTES: usize = 256;

/// The number of a call under way; numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SharedCallId(u64);

/// The number of a read that waits for a call, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeatId(u64);

impl SeatId {
    /// The first read, whose request is sent.
    pub(super) const FIRST: Self = Self(0);
}

/// A read that waits for a call.
pub(super) struct Seat {
    /// Until when it may wait for the call's turn; `None` without a bound.
    pub(super) deadline: Option<Timestamp>,
    pub(super) class: Class,
    pub(super) payer: Payer,
    pub(super) record: Arc<Record>,
    pub(super) tell: oneshot::Sender<SharedResult>,
}

/// A call under way.
struct RunningSharedCall {
    key: Arc<Key>,
    seats: BTreeMap<SeatId, Seat>,
    next_seat: u64,
    /// The read that pays for the call, once its turn has come.
    paid_by: Option<SeatId>,
    /// The record of the last read that left: the call is reported in it.
    left: Option<Arc<Record>>,
    changed: Arc<Notify>,
    admitted: watch::Receiver<bool>,
}

enum SharedCallEntry {
    Running(SharedCallId),
    Kept(KeptAnswer),
}

struct KeptAnswer {
    answer: Arc<BufferedReply>,
    at: Timestamp,
    id: SharedCallId,
    /// When it was last given, counted in uses of all answers.
    used: u64,
}

/// The result of looking a read up.
pub(super) enum SharedLookup {
    /// A kept answer, and its moment.
    Kept(Arc<BufferedReply>, Timestamp),
    /// An identical call under way.
    Running(SharedCallId),
    /// No call is under way, and no answer is kept. The key is for the new call.
    Free(Arc<Key>),
    /// No call is under way, no answer is kept, and there is no room.
    Full,
}

/// A call that has just begun, for the task that runs it.
pub(super) struct StartedCall {
    pub(super) id: SharedCallId,
    /// A read has joined or left.
    pub(super) changed: Arc<Notify>,
    pub(super) admit: watch::Sender<bool>,
}

/// The needs of the waiting reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDeadlines {
    /// The earliest deadline: then a read must be refused.
    pub first_deadline: Option<Timestamp>,
    /// The latest deadline: until then the call is useful.
    pub last_deadline: Option<Timestamp>,
    /// The most urgent class: classes are numbered from there.
    pub class: Class,
}

/// The reads that still wait when a call has ended.
#[derive(Default)]
pub(super) struct EndedCall {
    pub(super) seats: BTreeMap<SeatId, Seat>,
    /// The read that pays, if its turn came.
    pub(super) paid_by: Option<SeatId>,
    pub(super) left: Option<Arc<Record>>,
}

/// A read that waits for a call, as a payer.
#[derive(Debug)]
pub struct PayingClient {
    /// The payer that the client draws from.
    pub payer: Payer,
    /// The record of the client's call.
    pub record: Arc<Record>,
}

/// The message to a waiting read.
#[derive(Debug)]
pub enum SharedResult {
    /// The answer.
    Answer(Result<Reply, Refusal>),
    /// There is no answer for it, because the answer can be given only once. The read is sent on
    /// its own.
    Alone,
}

/// How much is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceNow {
    /// Calls under way that clients wait for together, or could.
    pub calls: usize,
    /// Clients that wait for them.
    pub waiting: usize,
    /// Answers kept.
    pub kept: usize,
    /// Bytes of both, with their keys.
    pub bytes: usize,
}

pub(super) struct SharedCalls {
    pub(super) settings: Arc<CoalesceSettings>,
    /// By guest, so that a write finds the reads that it ends.
    index: HashMap<Option<Guest>, HashMap<Arc<Key>, SharedCallEntry>>,
    calls: HashMap<SharedCallId, RunningSharedCall>,
    /// Kept answers, in the order of their age.
    kept: BTreeMap<(Timestamp, SharedCallId), Arc<Key>>,
    /// The kept answers in the order of their last use.
    by_use: BTreeMap<u64, Arc<Key>>,
    /// Bytes of these.
    kept_bytes: usize,
    uses: u64,
    /// Entries in the index.
    entries: usize,
    /// Bytes of the entries in the index.
    bytes: usize,
    next_call: u64,
}

impl SharedCalls {
    pub(super) fn new(settings: CoalesceSettings) -> Self {
        Self {
            settings: Arc::new(settings),
            index: HashMap::new(),
            calls: HashMap::new(),
            kept: BTreeMap::new(),
            by_use: BTreeMap::new(),
            kept_bytes: 0,
            uses: 0,
            entries: 0,
            bytes: 0,
            next_call: 0,
        }
    }

    /// Takes other settings and starts empty, because the backend may be another one.
    pub(super) fn apply(&mut self, settings: CoalesceSettings) {
        self.settings = Arc::new(settings);
        self.end_all();
    }

    /// Looks for an identical read.
    pub(super) fn find(&mut self, key: Key, now: Timestamp) -> SharedLookup {
        self.sweep(now);
        let group = self.index.get_mut(&key.guest);
        match group.and_then(|group| group.get_mut(&key)) {
            Some(SharedCallEntry::Kept(kept)) => {
                let moved = self.by_use.remove(&kept.used);
                self.uses += 1;
                kept.used = self.uses;
                self.by_use.insert(kept.used, moved.expect(STANDS_BY_USE));
                return SharedLookup::Kept(Arc::clone(&kept.answer), kept.at);
            }
            Some(&mut SharedCallEntry::Running(id)) => return SharedLookup::Running(id),
            None => {}
        }
        if self.make_room(weight(&key, None)) {
            SharedLookup::Free(Arc::new(key))
        } else {
            SharedLookup::Full
        }
    }

    /// Joins a call that was just found. Returns the place, and the signal that the call is past
    /// the gate.
    pub(super) fn join(&mut self, id: SharedCallId, seat: Seat) -> (SeatId, watch::Receiver<bool>) {
        let call = self.calls.get_mut(&id).expect(RUNS);
        (call.sit(seat), call.admitted.clone())
    }

    /// Begins a call under a key that was just found free, with its first read.
    pub(super) fn begin(&mut self, key: &Arc<Key>, seat: Seat) -> StartedCall {
        let id = SharedCallId(self.next_call);
        self.next_call += 1;
        let changed = Arc::new(Notify::new());
        let (admit, admitted) = watch::channel(false);
        let call = RunningSharedCall {
            key: Arc::clone(key),
            seats: BTreeMap::from([(SeatId::FIRST, seat)]),
            next_seat: SeatId::FIRST.0 + 1,
            paid_by: None,
            left: None,
            changed: Arc::clone(&changed),
            admitted,
        };
        self.calls.insert(id, call);
        self.insert(key, SharedCallEntry::Running(id));
        StartedCall { id, changed, admit }
    }

    /// Removes a read whose client has left, if it still waits. The last one leaves its record with
    /// the call.
    pub(super) fn leave(&mut self, id: SharedCallId, seat: SeatId) -> Option<Seat> {
        let call = self.calls.get_mut(&id)?;
        let seat = call.seats.remove(&seat)?;
        // Before the call is reported in this record.
        seat.record.note(|own| own.left = true);
        if call.seats.is_empty() && call.left.is_none() {
            call.left = Some(Arc::clone(&seat.record));
        }
        call.changed.notify_waiters();
        Some(seat)
    }

    /// The needs of the waiting reads; `None` if no read waits.
    pub(super) fn wanted(&self, id: SharedCallId) -> Option<ReadDeadlines> {
        let seats = &self.calls.get(&id)?.seats;
        let deadlines = || seats.values().map(|seat| seat.deadline);
        Some(ReadDeadlines {
            first_deadline: deadlines().flatten().min(),
            // A read without a deadline waits longest.
            last_deadline: deadlines()
                .max_by_key(|deadline| (deadline.is_none(), *deadline))
                .flatten(),
            class: seats.values().map(|seat| seat.class).min()?,
        })
    }

    /// The waiting reads from the one with this number on, in the order of arrival, and the number of the
    /// next one to come.
    pub(super) fn clients(&self, id: SharedCallId, from: u64) -> (Vec<PayingClient>, u64) {
        let Some(call) = self.calls.get(&id) else {
            return (Vec::new(), from);
        };
        let seats = call.seats.range(SeatId(from)..);
        let clients = seats.map(|(_, seat)| PayingClient {
            payer: seat.payer.clone(),
            record: Arc::clone(&seat.record),
        });
        (clients.collect(), call.next_seat)
    }

    /// Whether a read waits that would pay like this.
    pub(super) fn has_payer(&self, id: SharedCallId, payer: &Payer) -> bool {
        let call = self.calls.get(&id);
        call.is_some_and(|call| call.seats.values().any(|seat| seat.payer == *payer))
    }

    /// The turn of a call has come, by the limits of this payer: the first read with it pays.
    pub(super) fn paid_by(&mut self, id: SharedCallId, payer: &Payer) {
        if let Some(call) = self.calls.get_mut(&id) {
            let mut seats = call.seats.iter();
            let pays = seats.find(|(_, seat)| seat.payer == *payer);
            call.paid_by = pays.map(|(&number, _)| number);
        }
    }

    /// Removes the reads whose deadline has passed.
    pub(super) fn overdue(&mut self, id: SharedCallId, now: Timestamp) -> Vec<Seat> {
        let Some(call) = self.calls.get_mut(&id) else {
            return Vec::new();
        };
        let is_over = |seat: &Seat| seat.deadline.is_some_and(|deadline| deadline <= now);
        let (overdue, rest): (BTreeMap<_, _>, _) = std::mem::take(&mut call.seats)
            .into_iter()
            .partition(|(_, seat)| is_over(seat));
        call.seats = rest;
        call.changed.notify_waiters();
        overdue.into_values().collect()
    }

    /// Removes a call that has ended. Keeps its answer if that is allowed and no write arrived in
    /// between. Returns the reads that get the answer.
    pub(super) fn end(
        &mut self,
        id: SharedCallId,
        now: Timestamp,
        answer: Option<&BufferedReply>,
    ) -> EndedCall {
        let Some(call) = self.calls.remove(&id) else {
            return EndedCall::default();
        };
        if self.is_indexed(&call.key, id) {
            self.remove(&call.key);
            self.sweep(now);
            let keeps = !self.settings.fresh_for.is_zero();
            if let Some(answer) = answer.filter(|_| keeps)
                && self.make_room(weight(&call.key, Some(answer)))
            {
                self.uses += 1;
                let kept = KeptAnswer {
                    answer: Arc::new(compact(answer)),
                    at: now,
                    id,
                    used: self.uses,
                };
                self.kept.insert((now, id), Arc::clone(&call.key));
                self.by_use.insert(kept.used, Arc::clone(&call.key));
                self.insert(&call.key, SharedCallEntry::Kept(kept));
            }
        }
        EndedCall {
            seats: call.seats,
            paid_by: call.paid_by,
            left: call.left,
        }
    }

    /// Removes a call that no read waits for. Returns whether it did, and the record of the last
    /// read that left.
    pub(super) fn end_if_unused(&mut self, id: SharedCallId) -> Option<Option<Arc<Record>>> {
        if !self.calls.get(&id)?.seats.is_empty() {
            return None;
        }
        let call = self.calls.remove(&id)?;
        if self.is_indexed(&call.key, id) {
            self.remove(&call.key);
        }
        Some(call.left)
    }

    /// A guest has changed, or any may have. Removes what is kept. Calls under way are neither
    /// joined nor kept any more. A read about no guest in particular counts as one about this guest
    /// too.
    pub(super) fn end_about(&mut self, guest: Option<Guest>) {
        let Some(guest) = guest else {
            return self.end_all();
        };
        for about in [Some(guest), None] {
            for (key, entry) in self.index.remove(&about).into_iter().flatten() {
                self.discount(&key, &entry);
            }
        }
    }

    /// The current amount, without expired answers. Looks at every call under way.
    pub(super) fn now(&mut self, now: Timestamp) -> CoalesceNow {
        self.sweep(now);
        CoalesceNow {
            calls: self.calls.len(),
            waiting: self.calls.values().map(|call| call.seats.len()).sum(),
            kept: self.kept.len(),
            bytes: self.bytes,
        }
    }

    fn end_all(&mut self) {
        self.index.clear();
        self.kept.clear();
        self.by_use.clear();
        (self.entries, self.bytes, self.kept_bytes) = (0, 0, 0);
    }

    /// Removes expired answers.
    fn sweep(&mut self, now: Timestamp) {
        while let Some((&(at, id), key)) = self.kept.first_key_value()
            && now.since(at) >= self.settings.fresh_for
        {
            let key = Arc::clone(key);
            self.kept.remove(&(at, id));
            self.remove(&key);
        }
    }

    /// Makes room for one more entry. For it, removes kept answers, the least recently used first.
    /// If all of them together would not make enough room, removes none.
    fn make_room(&mut self, bytes: usize) -> bool {
        let running = (self.entries - self.kept.len(), self.bytes - self.kept_bytes);
        if !self.fits(running, bytes) {
            return false;
        }
        while !self.fits((self.entries, self.bytes), bytes) {
            let (_, key) = self.by_use.pop_first().expect("it fits without them");
            self.remove(&key);
        }
        true
    }

    fn fits(&self, (entries, held): (usize, usize), bytes: usize) -> bool {
        entries < self.settings.entries_max && held + bytes <= self.settings.bytes_max
    }

    fn is_indexed(&self, key: &Arc<Key>, id: SharedCallId) -> bool {
        let entry = self.index.get(&key.guest).and_then(|group| group.get(key));
        matches!(entry, Some(SharedCallEntry::Running(running)) if *running == id)
    }

    fn insert(&mut self, key: &Arc<Key>, entry: SharedCallEntry) {
        let weight = entry.weight(key);
        self.entries += 1;
        self.bytes += weight;
        if let SharedCallEntry::Kept(_) = entry {
            self.kept_bytes += weight;
        }
        let group = self.index.entry(key.guest).or_default();
        let before = group.insert(Arc::clone(key), entry);
        debug_assert!(before.is_none(), "a key stands in the index once");
    }

    fn remove(&mut self, key: &Arc<Key>) {
        let Some(group) = self.index.get_mut(&key.guest) else {
            return;
        };
        let entry = group.remove(key);
        if group.is_empty() {
            self.index.remove(&key.guest);
        }
        if let Some(entry) = entry {
            self.discount(key, &entry);
        }
    }

    fn discount(&mut self, key: &Key, entry: &SharedCallEntry) {
        let weight = entry.weight(key);
        self.entries -= 1;
        self.bytes -= weight;
        if let SharedCallEntry::Kept(kept) = entry {
            self.kept_bytes -= weight;
            self.kept.remove(&(kept.at, kept.id));
            self.by_use.remove(&kept.used);
        }
    }
}

const RUNS: &str = "a call in the index is under way";
const STANDS_BY_USE: &str = "a kept answer has its use noted";

impl RunningSharedCall {
    fn sit(&mut self, seat: Seat) -> SeatId {
        let number = SeatId(self.next_seat);
        self.next_seat += 1;
        self.seats.insert(number, seat);
        self.changed.notify_waiters();
        number
    }
}

impl SharedCallEntry {
    fn weight(&self, key: &Key) -> usize {
        match self {
            Self::Running(_) => weight(key, None),
            Self::Kept(kept) => weight(key, Some(&kept.answer)),
        }
    }
}

fn weight(key: &Key, answer: Option<&BufferedReply>) -> usize {
    ENTRY_BYTES + key.len() + answer.map_or(0, BufferedReply::bytes)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::call::{
        ArrayCall, Destination, Dialect, Identity, Message, NoObserver, Origin, Peer,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn origin() -> Origin {
        let peer = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 1)));
        Origin {
            identity: Arc::new(Identity::without_names("t".into(), peer)),
            arrived: Timestamp::ZERO,
        }
    }

    fn seat(deadline: Option<u64>, class: u32) -> Seat {
        Seat {
            deadline: deadline.map(at),
            class: Class(class),
            payer: Payer::default(),
            record: Record::open(
                origin(),
                Dialect::Socket,
                "f".into(),
                "c".into(),
                None,
                Arc::new(NoObserver),
            ),
            tell: oneshot::channel().0,
        }
    }

    /// A read about a guest; reads with other names are different.
    fn key(name: &str, guest: Option<&str>) -> Key {
        let message = Message::Socket(Box::new(ArrayCall {
            bytes: Bytes::copy_from_slice(name.as_bytes()),
            function: "f".into(),
            target: None,
        }));
        let apart = crate::coalesce::key::KeyHeaders::Known;
        Key::of("f", Destination::Socket, guest, &message, apart).expect("it can be shared")
    }

    fn answer(bytes: usize) -> BufferedReply {
        BufferedReply {
            head: None,
            body: vec![b'x'; bytes].into(),
        }
    }

    fn store(fresh_for: u64, entries_max: usize, bytes_max: usize) -> SharedCalls {
        SharedCalls::new(CoalesceSettings {
            ignored_headers: Arc::default(),
            functions: vec!["f".into()],
            fresh_for: Duration::from_secs(fresh_for),
            entries_max,
            bytes_max,
        })
    }

    fn begin(store: &mut SharedCalls, name: &str, guest: Option<&str>, seat: Seat) -> SharedCallId {
        let SharedLookup::Free(key) = store.find(key(name, guest), at(0)) else {
            panic!("{name} is new, and there is room");
        };
        store.begin(&key, seat).id
    }

    /// Begins a read and ends it at once with an answer that may be kept.
    fn keep(store: &mut SharedCalls, name: &str, guest: Option<&str>, now: u64) {
        let id = begin(store, name, guest, seat(None, 0));
        store.end(id, at(now), Some(&answer(10)));
    }

    fn is_kept(store: &mut SharedCalls, name: &str, guest: Option<&str>, now: u64) -> bool {
        matches!(
            store.find(key(name, guest), at(now)),
            SharedLookup::Kept(..)
        )
    }

    fn is_running(store: &mut SharedCalls, name: &str, guest: Option<&str>) -> bool {
        matches!(
            store.find(key(name, guest), at(0)),
            SharedLookup::Running(_)
        )
    }

    #[test]
    fn a_call_takes_the_latest_deadline_and_the_most_urgent_class() {
        let mut store = store(0, 9, 1 << 20);
        let id = begin(&mut store, "a", None, seat(Some(60), 2));
        let check = |store: &SharedCalls, first: Option<u64>, last: Option<u64>, class| {
            let wanted = ReadDeadlines {
                first_deadline: first.map(at),
                last_deadline: last.map(at),
                class: Class(class),
            };
            assert_eq!(store.wanted(id), Some(wanted));
        };
        check(&store, Some(60), Some(60), 2);
        let (second, _) = store.join(id, seat(Some(90), 1));
        check(&store, Some(60), Some(90), 1);
        let (third, _) = store.join(id, seat(None, 3));
        check(&store, Some(60), None, 1);
        store.leave(id, second);
        check(&store, Some(60), None, 2);
        assert_eq!(store.overdue(id, at(60)).len(), 1);
        check(&store, None, None, 3);
        store.leave(id, third);
        assert_eq!(store.wanted(id), None);
    }

    #[test]
    fn an_unused_call_can_be_joined_until_it_is_removed() {
        let mut store = store(0, 9, 1 << 20);
        let id = begin(&mut store, "a", None, seat(None, 0));
        assert!(store.end_if_unused(id).is_none());
        store.leave(id, SeatId::FIRST);
        assert!(is_running(&mut store, "a", None));
        let (next, _) = store.join(id, seat(None, 0));
        assert!(store.end_if_unused(id).is_none(), "a read waits again");
        store.leave(id, next);
        assert!(store.end_if_unused(id).is_some());
        assert!(!is_running(&mut store, "a", None));
        assert_eq!(store.now(at(0)), CoalesceNow::default());
    }

    #[test]
    fn an_answer_is_kept_for_exactly_its_time() {
        let mut store = store(5, 9, 1 << 20);
        keep(&mut store, "a", None, 10);
        assert!(is_kept(&mut store, "a", None, 14));
        assert!(!is_kept(&mut store, "a", None, 15));
        assert_eq!(store.now(at(15)), CoalesceNow::default());
    }

    #[test]
    fn a_write_removes_answers_about_its_guest_and_about_none() {
        let mut store = store(60, 9, 1 << 20);
        for (name, guest) in [("a", Some("A")), ("b", Some("B")), ("all", None)] {
            keep(&mut store, name, guest, 0);
            begin(&mut store, &format!("{name} runs"), guest, seat(None, 0));
        }
        store.end_about(Guest::new("a"));
        for (name, guest, stays) in [
            ("a", Some("A"), false),
            ("b", Some("B"), true),
            ("all", None, false),
        ] {
            assert_eq!(is_kept(&mut store, name, guest, 1), stays, "{name}");
            assert_eq!(
                is_running(&mut store, &format!("{name} runs"), guest),
                stays,
                "{name}"
            );
        }
        store.end_about(None);
        assert!(!is_kept(&mut store, "b", Some("B"), 1));
        assert!(!is_running(&mut store, "b runs", Some("B")));
        let now = store.now(at(1));
        assert_eq!((now.calls, now.kept, now.bytes), (3, 0, 0), "calls go on");
    }

    #[test]
    fn a_call_from_before_a_write_is_not_kept_and_does_not_disturb_the_next() {
        let mut store = store(60, 9, 1 << 20);
        let old = begin(&mut store, "a", Some("A"), seat(None, 0));
        store.end_about(Guest::new("A"));
        let new = begin(&mut store, "a", Some("A"), seat(None, 0));
        assert_eq!(store.end(old, at(1), Some(&answer(10))).seats.len(), 1);
        assert!(is_running(&mut store, "a", Some("A")));
        store.end(new, at(2), Some(&answer(10)));
        assert!(is_kept(&mut store, "a", Some("A"), 3));
    }

    #[test]
    fn the_least_recently_used_answer_makes_room_first() {
        let mut three = store(60, 3, 1 << 20);
        for name in ["a", "b", "c"] {
            keep(&mut three, name, None, 0);
        }
        assert!(is_kept(&mut three, "a", None, 1), "used again");
        let running = begin(&mut three, "d", None, seat(None, 0));
        assert!(is_kept(&mut three, "a", None, 1) && is_kept(&mut three, "c", None, 1));
        three.end(running, at(1), Some(&answer(10)));
        assert_eq!(three.now(at(1)).kept, 3);
        // Asked for last, because a failed search makes room for itself.
        assert!(!is_kept(&mut three, "b", None, 1));

        let one = weight(&key("a", None), Some(&answer(100)));
        let mut bytes = store(60, 9, 2 * one);
        for name in ["a", "b", "c"] {
            let id = begin(&mut bytes, name, None, seat(None, 0));
            bytes.end(id, at(0), Some(&answer(100)));
        }
        assert!(is_kept(&mut bytes, "b", None, 1) && is_kept(&mut bytes, "c", None, 1));
        assert_eq!(bytes.now(at(1)).bytes, 2 * one);
        let id = begin(&mut bytes, "x", None, seat(None, 0));
        bytes.end(id, at(1), Some(&answer(2 * one)));
        assert!(is_kept(&mut bytes, "c", None, 1), "nothing goes in vain");
    }

    #[test]
    fn beyond_the_bounds_nothing_is_shared() {
        let is_full = |store: &mut SharedCalls, now| {
            matches!(store.find(key("more", None), at(now)), SharedLookup::Full)
        };
        let mut two = store(5, 2, 1 << 20);
        let running = begin(&mut two, "a", None, seat(None, 0));
        begin(&mut two, "b", None, seat(None, 0));
        assert!(is_full(&mut two, 4));
        assert!(is_running(&mut two, "b", None));
        two.end(running, at(5), None);
        assert!(!is_full(&mut two, 5));

        let one_entry = weight(&key("a", None), None);
        let mut bytes = store(5, 9, one_entry + 100);
        let id = begin(&mut bytes, "a", None, seat(None, 0));
        assert!(is_full(&mut bytes, 0));
        bytes.end(id, at(0), Some(&answer(101)));
        assert!(
            !is_kept(&mut bytes, "a", None, 0),
            "larger than there is room for"
        );
        let id = begin(&mut bytes, "a", None, seat(None, 0));
        bytes.end(id, at(0), Some(&answer(100)));
        assert!(is_kept(&mut bytes, "a", None, 0));
        assert_eq!(bytes.now(at(0)).bytes, one_entry + 100);
    }
}
