//! All calls that wait.

use alloc::vec::Vec;

use super::bar::LineId;
use super::waiting::{Place, Waiting};
use crate::slab::{Key, Slab};
use crate::sorted::Sorted;
use crate::time::Timestamp;

/// All calls that wait.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// Their places and arrivals are changed by the methods here only.
    pub(crate) calls: Slab<Waiting<T>>,
    lines: Vec<Sorted<(u64, Key)>>,
    /// By the moment of their return; of those with the same one, who joined first comes first.
    asides: Sorted<(Timestamp, u64, Key)>,
    deadlines: Sorted<(Timestamp, Key)>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            calls: Slab::default(),
            lines: Vec::new(),
            asides: Sorted::default(),
            deadlines: Sorted::default(),
        }
    }

    /// The calls that are so, in the order of their turns.
    pub(crate) fn in_order(&self, is: impl Fn(&Waiting<T>) -> bool) -> Vec<Key> {
        let calls = self.calls.iter().filter(|(_, waiting)| is(waiting));
        let mut calls: Vec<_> = calls.map(|(key, waiting)| (waiting.arrival, key)).collect();
        calls.sort_unstable();
        calls.into_iter().map(|(_, key)| key).collect()
    }

    /// The calls that are charged to this bucket, in the order of their turns.
    pub(crate) fn charged_to(&self, bucket: Key) -> Vec<Key> {
        self.in_order(|waiting| waiting.meets.bucket == Some(bucket))
    }

    /// The head of a line.
    pub(crate) fn head(&self, line: LineId) -> Option<(u64, Key)> {
        self.lines[line as usize].first()
    }

    pub(crate) fn first_deadline(&self) -> Option<(Timestamp, Key)> {
        self.deadlines.first()
    }

    pub(crate) fn first_aside(&self) -> Option<(Timestamp, Key)> {
        let (until, _, key) = self.asides.first()?;
        Some((until, key))
    }

    /// Takes a call in.
    #[inline]
    pub(crate) fn insert(&mut self, waiting: Waiting<T>) -> Key {
        let (place, arrival, deadline) = (waiting.place, waiting.arrival, waiting.call.deadline);
        let key = self.calls.insert(waiting);
        self.link(key, place, arrival);
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key));
        }
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Waiting<T>> {
        let waiting = self.calls.get(key)?;
        let (place, arrival, deadline) = (waiting.place, waiting.arrival, waiting.call.deadline);
        self.unlink(key, place, arrival);
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, key));
        }
        // Taken out last, so that it is moved only once.
        self.calls.remove(key)
    }

    /// Moves a call's deadline.
    pub(crate) fn set_deadline(&mut self, key: Key, deadline: Option<Timestamp>) {
        let old = core::mem::replace(&mut self.calls[key].call.deadline, deadline);
        if let Some(old) = old {
            self.deadlines.remove(&(old, key));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, key));
        }
    }

    /// Puts a call elsewhere, with another arrival.
    pub(crate) fn relocate(&mut self, key: Key, place: Place, arrival: u64) {
        let waiting = &mut self.calls[key];
        let (old_place, old_arrival) = (waiting.place, waiting.arrival);
        (waiting.place, waiting.arrival) = (place, arrival);
        self.unlink(key, old_place, old_arrival);
        self.link(key, place, arrival);
    }

    /// Puts all calls into new lines, in the order of their turns: `sort` sets the place of each call.
    pub(crate) fn rebuild(&mut self, mut sort: impl FnMut(&mut Waiting<T>)) {
        let calls = self.in_order(|_| true);
        self.lines.clear();
        self.asides = Sorted::default();
        for key in calls {
            let waiting = &mut self.calls[key];
            sort(waiting);
            let (place, arrival) = (waiting.place, waiting.arrival);
            if let Place::Line(line) = place {
                self.make_lines(line as usize + 1);
            }
            self.link(key, place, arrival);
        }
    }

    /// There are at least this many lines.
    pub(crate) fn make_lines(&mut self, lines: usize) {
        if self.lines.len() < lines {
            self.lines.resize_with(lines, Sorted::default);
        }
    }

    fn link(&mut self, key: Key, place: Place, arrival: u64) {
        let new = match place {
            Place::Line(line) => self.lines[line as usize].insert((arrival, key)),
            Place::Aside(until) => self.asides.insert((until, arrival, key)),
        };
        debug_assert!(new, "a call waits in one place");
    }

    fn unlink(&mut self, key: Key, place: Place, arrival: u64) {
        let found = match place {
            Place::Line(line) => self.lines[line as usize].remove(&(arrival, key)),
            Place::Aside(until) => self.asides.remove(&(until, arrival, key)),
        };
        debug_assert!(found, "a waiting call is where its place says");
    }
}
