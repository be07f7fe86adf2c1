//! Where calls wait.
//!
//! A waiting call is in one of three places: in a line, set aside (jitter), or at the door
//! (the queue was full). A line holds the calls of one class that meet the same limits, in the
//! order of their turn; only its head is ever asked, so what stands behind costs nothing.
//! There are as many lines as a policy has sets of limits and classes, however many wait.

pub(crate) mod fair;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::policy::{LimitId, SetId};
use crate::slab::{Key, Slab};
use crate::sorted::Sorted;
use crate::time::Timestamp;
use crate::verdict::Cost;
use fair::Turn;

/// A backend, by a number of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend(pub u8);

/// How urgent a call is: the index of its class in [`Policy::classes`](crate::Policy::classes).
/// One past the end counts as the last, since a reload may have taken classes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u32);

/// Who is asking, by a number of the caller's choice. Callers of one class share equally.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(pub u64);

impl Caller {
    /// Whom nobody knows; all of them together are one caller.
    pub const ANONYMOUS: Self = Self(0);
}

/// What the scheduler needs to know about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is asked for.
    pub function: Arc<str>,
    /// Where it would go.
    pub backend: Backend,
    /// How urgent it is.
    pub class: Class,
    /// Who is asking.
    pub caller: Caller,
    /// How much of its windows it draws.
    pub cost: Cost,
    /// When it came: when its connection was accepted, or its first byte read.
    pub arrived: Timestamp,
    /// The last moment at which it may leave the queue; `None` waits forever. A call whose
    /// deadline is `now` is still asked once.
    pub deadline: Option<Timestamp>,
}

/// A waiting call, for whoever wants to cancel it. It may be kept longer than the call waits:
/// it never names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) Key);

/// The index of a line.
pub(crate) type LineId = u32;

/// A call that waits, and where.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) call: Call,
    pub(crate) payload: T,
    pub(crate) set: SetId,
    pub(crate) turn: Turn,
    pub(crate) place: Place,
    /// Counts joinings of the queue, to tell who waited while a line was held.
    pub(crate) joined: u64,
    /// The limit that had it set aside last.
    pub(crate) held_by: Option<LimitId>,
    /// Times it was set aside.
    pub(crate) postponed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Line(LineId),
    Aside(Timestamp),
    Door,
}

/// A moment and the call it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timed(Timestamp, u64);

impl Timed {
    fn new(moment: Timestamp, key: Key) -> Self {
        Self(moment, key.to_bits())
    }

    fn parts(self) -> (Timestamp, Key) {
        (self.0, Key::from_bits(self.1))
    }
}

/// All calls that wait.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: Slab<Waiting<T>>,
    lines: Vec<Sorted<(Turn, Key)>>,
    asides: Sorted<Timed>,
    /// In order of arrival.
    door: Sorted<(u64, Key)>,
    deadlines: Sorted<Timed>,
}

impl<T> Queue<T> {
    pub(crate) fn new(lines: usize) -> Self {
        let mut empty = Vec::new();
        empty.resize_with(lines, Sorted::default);
        Self {
            waiting: Slab::new(),
            lines: empty,
            asides: Sorted::default(),
            door: Sorted::default(),
            deadlines: Sorted::default(),
        }
    }

    /// Nobody waits anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.len() == 0
    }

    /// Calls in lines and set aside: what capacity bounds.
    pub(crate) fn queued(&self) -> usize {
        self.waiting.len() - self.door.len()
    }

    /// Calls at the door.
    pub(crate) fn at_door(&self) -> usize {
        self.door.len()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Waiting<T>> {
        self.waiting.get(key)
    }

    /// The call itself; its place and turn are changed by the methods here only.
    pub(crate) fn expect(&self, key: Key) -> &Waiting<T> {
        self.waiting
            .get(key)
            .expect("a key in the queue's own sets names a waiting call")
    }

    pub(crate) fn expect_mut(&mut self, key: Key) -> &mut Waiting<T> {
        self.waiting
            .get_mut(key)
            .expect("a key in the queue's own sets names a waiting call")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Waiting<T>)> {
        self.waiting.iter()
    }

    /// The head of a line.
    pub(crate) fn head(&self, line: LineId) -> Option<(Turn, Key)> {
        self.lines[line as usize].first()
    }

    pub(crate) fn first_at_door(&self) -> Option<Key> {
        self.door.first().map(|(_, key)| key)
    }

    pub(crate) fn first_deadline(&self) -> Option<(Timestamp, Key)> {
        self.deadlines.first().map(Timed::parts)
    }

    pub(crate) fn first_aside(&self) -> Option<(Timestamp, Key)> {
        self.asides.first().map(Timed::parts)
    }

    pub(crate) fn insert(&mut self, waiting: Waiting<T>) -> Key {
        let (place, turn, deadline) = (waiting.place, waiting.turn, waiting.call.deadline);
        let key = self.waiting.insert(waiting);
        self.link(key, place, turn);
        if let Some(deadline) = deadline {
            self.deadlines.insert(Timed::new(deadline, key));
        }
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(key)?;
        self.unlink(key, waiting.place, waiting.turn);
        if let Some(deadline) = waiting.call.deadline {
            self.deadlines.remove(&Timed::new(deadline, key));
        }
        Some(waiting)
    }

    /// Puts a call elsewhere, with another turn.
    pub(crate) fn relocate(&mut self, key: Key, place: Place, turn: Turn) {
        let waiting = self.expect_mut(key);
        let (old_place, old_turn) = (waiting.place, waiting.turn);
        (waiting.place, waiting.turn) = (place, turn);
        self.unlink(key, old_place, old_turn);
        self.link(key, place, turn);
    }

    /// Starts anew with this many lines: `sort` says of each call where it goes now. Linear but
    /// for sorting each line.
    pub(crate) fn rebuild(&mut self, lines: usize, mut sort: impl FnMut(&mut Waiting<T>)) {
        let mut sorted: Vec<Vec<(Turn, Key)>> = Vec::new();
        sorted.resize_with(lines, Vec::new);
        let mut asides = Vec::new();
        for (key, waiting) in self.waiting.iter_mut() {
            sort(waiting);
            match waiting.place {
                Place::Line(line) => sorted[line as usize].push((waiting.turn, key)),
                Place::Aside(until) => asides.push(Timed::new(until, key)),
                Place::Door => {}
            }
        }
        self.lines = sorted.into_iter().map(Sorted::from_unsorted).collect();
        self.asides = Sorted::from_unsorted(asides);
    }

    fn link(&mut self, key: Key, place: Place, turn: Turn) {
        let new = match place {
            Place::Line(line) => self.lines[line as usize].insert((turn, key)),
            Place::Aside(until) => self.asides.insert(Timed::new(until, key)),
            Place::Door => self.door.insert((turn.arrival(), key)),
        };
        debug_assert!(new, "a call waits in one place");
    }

    fn unlink(&mut self, key: Key, place: Place, turn: Turn) {
        let found = match place {
            Place::Line(line) => self.lines[line as usize].remove(&(turn, key)),
            Place::Aside(until) => self.asides.remove(&Timed::new(until, key)),
            Place::Door => self.door.remove(&(turn.arrival(), key)),
        };
        debug_assert!(found, "a waiting call is where its place says");
    }
}
