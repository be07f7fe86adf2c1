//! The most that a limit ever counted, by an exact sweep over calls in the order in which they
//! left.
//!
//! A stamp is cut to whole microseconds, and the clocks of two hosts differ. So three amounts
//! are found: what the stamps say, what there was at least whatever the true times, and what
//! there may have been at most. In the letters used here a true time `t` of a stamp `s`, both
//! since the start of the process, has `s <= t < s + 1`. As a time of day it is cut once more,
//! with the start of the process, and is off by up to the error of clocks `e` in either
//! direction: `s - e <= t < s + 2 + e`. Two stamps of one process that are `d` apart are then
//! less than one microsecond nearer or farther in truth; of two processes, less than `2 + 2e`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::limit::Span;

/// Marks that one sweep keeps. More of them within one window are more than any limit of a
/// config allows, and are no longer all counted.
const MARKS_MAX: usize = 1 << 20;

/// One call that counts in a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// When it left, by the clock of its process.   µs since the epoch
    pub(super) at: u64,
    /// When the backend was done with it.
    pub(super) end: u64,
    /// What it counts for.
    pub(super) amount: u64,
    pub(super) id: u64,
}

/// Where a limit counted most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Densest {
    pub(super) amount: u64,
    /// When the first and the last of its calls left.   µs since the epoch
    pub(super) from: u64,
    pub(super) to: u64,
    /// The ids of these two.
    pub(super) first: u64,
    pub(super) last: u64,
}

/// What there was in truth, within what is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// At least so much.
    pub(super) least: u64,
    /// At most so much.
    pub(super) most: u64,
}

/// What a sweep has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// By the stamps.
    pub(super) densest: Densest,
    /// If all calls were of one process.
    pub(super) one_clock: Bounds,
    /// If they were of several.
    pub(super) clocks: Bounds,
    /// Whether there was more than could be counted.
    pub(super) overflowed: bool,
}

/// The sweep of one limit.
#[derive(Debug)]
pub(super) enum Sweep {
    Any(Any),
    Aligned(Aligned),
    AtOnce(AtOnce),
}

impl Sweep {
    /// Of this span, with clocks that err by so many microseconds at most.
    pub(super) fn new(span: Span, error: u64) -> Self {
        let micros = |length: std::time::Duration| {
            u64::try_from(length.as_micros()).expect("a window has 31 days at most")
        };
        match span {
            Span::Any(length) => Self::Any(Any::new(micros(length), error)),
            Span::Aligned(length) => Self::Aligned(Aligned::new(micros(length), error)),
            Span::AtOnce => Self::AtOnce(AtOnce::new(error)),
        }
    }

    /// Takes the next call. They come in the order of their stamps.
    pub(super) fn push(&mut self, mark: Mark) {
        match self {
            Self::Any(sweep) => sweep.push(mark),
            Self::Aligned(sweep) => sweep.push(mark),
            Self::AtOnce(sweep) => sweep.push(mark),
        }
    }

    /// What there was so far.
    pub(super) fn found(&self) -> Found {
        match self {
            Self::Any(sweep) => sweep.found(),
            Self::Aligned(sweep) => sweep.found(),
            Self::AtOnce(sweep) => sweep.found(),
        }
    }
}

/// Every span of one length, half open: it begins at a call, as any other holds no more.
#[derive(Debug)]
pub(super) struct Any {
    marks: VecDeque<Mark>,
    /// How many marks are no longer kept.
    dropped: u64,
    stamps: Reach,
    /// Of one process, stamps less than the length apart are so in truth.
    one_clock_most: Reach,
    clocks_least: Reach,
    clocks_most: Reach,
    overflowed: bool,
}

/// The span that ends at the newest mark, and the most that it ever held.
#[derive(Debug)]
struct Reach {
    /// Stamps nearer than this to one another lie in one span.   µs
    length: u64,
    /// The oldest mark in it, counted from the first ever.
    from: u64,
    sum: u64,
    densest: Densest,
}

impl Any {
    fn new(length: u64, error: u64) -> Self {
        let reach = |length| Reach {
            length,
            from: 0,
            sum: 0,
            densest: Densest::default(),
        };
        let slack = 2 + 2 * error;
        Self {
            marks: VecDeque::new(),
            dropped: 0,
            stamps: reach(length),
            one_clock_most: reach(length + 1),
            clocks_least: reach((length + 1).saturating_sub(slack)),
            clocks_most: reach(length + slack),
            overflowed: false,
        }
    }

    fn push(&mut self, mark: Mark) {
        if self.marks.len() == MARKS_MAX {
            let (dropped, oldest) = (self.dropped, self.marks[0]);
            for reach in self.reaches() {
                if reach.from == dropped {
                    reach.sum -= oldest.amount;
                    reach.from += 1;
                }
            }
            self.marks.pop_front();
            self.dropped += 1;
            self.overflowed = true;
        }
        self.marks.push_back(mark);
        let Self { marks, dropped, .. } = self;
        for reach in [
            &mut self.stamps,
            &mut self.one_clock_most,
            &mut self.clocks_least,
            &mut self.clocks_most,
        ] {
            reach.push(mark, marks, *dropped);
        }
        let kept = self.reaches().map(|reach| reach.from).into_iter().min();
        let kept = kept.expect("there are four");
        while self.dropped < kept {
            self.marks.pop_front();
            self.dropped += 1;
        }
    }

    fn reaches(&mut self) -> [&mut Reach; 4] {
        [
            &mut self.stamps,
            &mut self.one_clock_most,
            &mut self.clocks_least,
            &mut self.clocks_most,
        ]
    }

    fn found(&self) -> Found {
        Found {
            densest: self.stamps.densest,
            one_clock: Bounds {
                least: self.stamps.densest.amount,
                most: self.one_clock_most.densest.amount,
            },
            clocks: Bounds {
                least: self.clocks_least.densest.amount,
                most: self.clocks_most.densest.amount,
            },
            overflowed: self.overflowed,
        }
    }
}

impl Reach {
    /// `marks` has the newest already; so many older ones are no longer in it.
    fn push(&mut self, newest: Mark, marks: &VecDeque<Mark>, dropped: u64) {
        let mark = |number: u64| {
            let index = usize::try_from(number - dropped).expect("there are MARKS_MAX at most");
            &marks[index]
        };
        self.sum = self.sum.saturating_add(newest.amount);
        let newest_number = dropped + marks.len() as u64 - 1;
        while self.from <= newest_number
            && mark(self.from).at.saturating_add(self.length) <= newest.at
        {
            self.sum -= mark(self.from).amount;
            self.from += 1;
        }
        if self.sum > self.densest.amount {
            let oldest = mark(self.from);
            self.densest = Densest {
                amount: self.sum,
                from: oldest.at,
                to: newest.at,
                first: oldest.id,
                last: newest.id,
            };
        }
    }
}

/// Spans of one length, each beginning where the last ends, the first at the epoch.
#[derive(Debug)]
pub(super) struct Aligned {
    length: u64,
    error: u64,
    /// By number, those that a call may still come to lie in.
    open: BTreeMap<u64, Window>,
    found: Found,
}

#[derive(Debug, Default)]
struct Window {
    densest: Densest,
    one_clock: Bounds,
    clocks: Bounds,
}

impl Aligned {
    fn new(length: u64, error: u64) -> Self {
        Self {
            length,
            error,
            open: BTreeMap::new(),
            found: Found::default(),
        }
    }

    fn push(&mut self, mark: Mark) {
        let Mark { at, amount, id, .. } = mark;
        let earliest = at.saturating_sub(self.error) / self.length;
        while let Some(window) = self.open.first_entry()
            && *window.key() < earliest
        {
            close(&mut self.found, &window.remove());
        }
        let densest = &mut self.window(at).densest;
        if densest.amount == 0 {
            (densest.from, densest.first) = (at, id);
        }
        (densest.to, densest.last) = (at, id);
        densest.amount += amount;
        // Within the microsecond after a stamp the next window may begin.
        self.add(at, at + 1, amount, |window| &mut window.one_clock);
        let error = self.error;
        self.add(at.saturating_sub(error), at + 1 + error, amount, |it| {
            &mut it.clocks
        });
    }

    fn window(&mut self, at: u64) -> &mut Window {
        self.open.entry(at / self.length).or_default()
    }

    /// Counts a call that left between these two, both included.
    fn add(&mut self, from: u64, to: u64, amount: u64, of: fn(&mut Window) -> &mut Bounds) {
        let (first, last) = (from / self.length, to / self.length);
        for number in first..=last {
            let bounds = of(self.open.entry(number).or_default());
            bounds.most += amount;
            if first == last {
                bounds.least += amount;
            }
        }
    }

    fn found(&self) -> Found {
        let mut found = self.found;
        for window in self.open.values() {
            close(&mut found, window);
        }
        found
    }
}

fn close(found: &mut Found, window: &Window) {
    if window.densest.amount > found.densest.amount {
        found.densest = window.densest;
    }
    for (found, of) in [
        (&mut found.one_clock, window.one_clock),
        (&mut found.clocks, window.clocks),
    ] {
        found.least = found.least.max(of.least);
        found.most = found.most.max(of.most);
    }
}

/// Calls between their last byte sent and the backend's end.
#[derive(Debug)]
pub(super) struct AtOnce {
    stamps: Held,
    one_clock: [Held; 2],
    clocks: [Held; 2],
    densest: Densest,
    overflowed: bool,
}

/// Calls held at once, if each begins so much later and ends so much later than it says.
#[derive(Debug)]
struct Held {
    begins: i64,
    ends: i64,
    now: BinaryHeap<Reverse<u64>>,
    most: u64,
}

impl AtOnce {
    fn new(error: u64) -> Self {
        let error = i64::try_from(error).expect("clocks err by less than a window");
        let held = |begins, ends| Held {
            begins,
            ends,
            now: BinaryHeap::new(),
            most: 0,
        };
        // The end is the sum of what was cut twice, as a time of day three times.
        Self {
            stamps: held(0, 0),
            one_clock: [held(1, 0), held(0, 2)],
            clocks: [held(2 + error, -error), held(-error, 3 + error)],
            densest: Densest::default(),
            overflowed: false,
        }
    }

    fn push(&mut self, mark: Mark) {
        let [one_least, one_most] = &mut self.one_clock;
        let [least, most] = &mut self.clocks;
        for held in [one_least, one_most, least, most] {
            self.overflowed |= !held.push(mark);
        }
        let before = self.stamps.most;
        self.overflowed |= !self.stamps.push(mark);
        if self.stamps.most > before {
            self.densest = Densest {
                amount: self.stamps.most,
                from: mark.at,
                to: mark.at,
                first: mark.id,
                last: mark.id,
            };
        }
    }

    fn found(&self) -> Found {
        let bounds = |[least, most]: &[Held; 2]| Bounds {
            least: least.most,
            most: most.most,
        };
        Found {
            densest: self.densest,
            one_clock: bounds(&self.one_clock),
            clocks: bounds(&self.clocks),
            overflowed: self.overflowed,
        }
    }
}

impl Held {
    /// False if there are more than can be counted.
    fn push(&mut self, mark: Mark) -> bool {
        let begin = mark.at.saturating_add_signed(self.begins);
        let end = mark.end.saturating_add_signed(self.ends);
        while let Some(Reverse(first)) = self.now.peek()
            && *first <= begin
        {
            self.now.pop();
        }
        if end <= begin {
            return true;
        }
        if self.now.len() == MARKS_MAX {
            return false;
        }
        self.now.push(Reverse(end));
        self.most = self.most.max(self.now.len() as u64);
        true
    }
}
