//! Finds the most that a limit ever counted, by an exact sweep over calls in the order in which
//! they left.
//!
//! A stamp is cut to whole microseconds, and the clocks of two hosts differ. So each sweep finds
//! three amounts: by the stamps, at least, and at most. The last two hold for any true times that
//! fit the stamps. A true time `t` and its stamp `s`, both since the start of the process, have
//! `s <= t < s + 1`. As a time of day the stamp is cut once more, with the start of the process,
//! and the clock errs by up to `e`: `s - e <= t < s + 2 + e`. So the true distance of two stamps
//! differs from the distance of the stamps by less than one microsecond in one process, and by
//! less than `2 + 2e` in two.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::limit::Span;

/// Most marks of one sweep. A window with more marks has more calls than any config allows, and
/// not all of them are counted.
const MARKS_MAX: usize = 1 << 20;

/// One call that counts in a limit. Calls are put in the order in which they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// When it left, by the clock of its process.   µs since the epoch
    pub(super) at: u64,
    pub(super) id: u64,
    /// When the backend finished it.
    pub(super) end: u64,
    /// The amount that it adds.
    pub(super) amount: u64,
}

/// The span in which a limit counted most.
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

/// Bounds of the true amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The least that is possible.
    pub(super) least: u64,
    /// The most that is possible.
    pub(super) most: u64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// By the stamps.
    pub(super) densest: Densest,
    /// The bounds if all calls were of one process.
    pub(super) one_clock: Bounds,
    /// The bounds if they were of several.
    pub(super) clocks: Bounds,
    /// Whether there were more calls than can be counted.
    pub(super) overflowed: bool,
}

/// The sweep of one limit over one kind of span.
#[derive(Debug)]
pub(super) enum Sweep {
    Any(Any),
    Aligned(Aligned),
    AtOnce(AtOnce),
}

impl Sweep {
    /// A sweep of this span. The clocks err by at most `error` microseconds.
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

    /// Takes the next call. Calls come in the order of their stamps.
    pub(super) fn push(&mut self, mark: Mark) {
        match self {
            Self::Any(sweep) => sweep.push(mark),
            Self::Aligned(sweep) => sweep.push(mark),
            Self::AtOnce(sweep) => sweep.push(mark),
        }
    }

    /// The result so far.
    pub(super) fn found(&self) -> Found {
        match self {
            Self::Any(sweep) => sweep.found(),
            Self::Aligned(sweep) => sweep.found(),
            Self::AtOnce(sweep) => sweep.found(),
        }
    }
}

/// Every span of one length, half open. It is enough to look at spans that begin at a call.
#[derive(Debug)]
pub(super) struct Any {
    marks: VecDeque<Mark>,
    /// How many marks were removed.
    dropped: u64,
    /// By the stamps; the most of one process; the least and the most of several. The least of one
    /// process is what the stamps say: within one process, stamps less than the length apart are
    /// less than the length apart in truth.
    reaches: [Reach; 4],
    overflowed: bool,
}

/// The span that ends at the newest mark, and the densest so far.
#[derive(Debug)]
struct Reach {
    /// Stamps less than this apart lie in one span.   µs
    length: u64,
    /// The number of the oldest mark in it, counted from the first ever.
    from: u64,
    sum: u64,
    densest: Densest,
}

impl Any {
    fn new(length: u64, error: u64) -> Self {
        let slack = 2 + 2 * error;
        let lengths = [
            length,
            length + 1,
            (length + 1).saturating_sub(slack),
            length + slack,
        ];
        Self {
            marks: VecDeque::new(),
            dropped: 0,
            reaches: lengths.map(|length| Reach {
                length,
                from: 0,
                sum: 0,
                densest: Densest::default(),
            }),
            overflowed: false,
        }
    }

    fn push(&mut self, mark: Mark) {
        if self.marks.len() == MARKS_MAX
            && let Some(oldest) = self.marks.pop_front()
        {
            for reach in &mut self.reaches {
                if reach.from == self.dropped {
                    reach.sum -= oldest.amount;
                    reach.from += 1;
                }
            }
            self.dropped += 1;
            self.overflowed = true;
        }
        self.marks.push_back(mark);
        for reach in &mut self.reaches {
            reach.push(mark, &self.marks, self.dropped);
        }
        let kept = self.reaches.iter().map(|reach| reach.from).min();
        while self.dropped < kept.expect("there are four") {
            self.marks.pop_front();
            self.dropped += 1;
        }
    }

    fn found(&self) -> Found {
        let [stamps, one_clock_most, least, most] = self.reaches.each_ref().map(|it| it.densest);
        Found {
            densest: stamps,
            one_clock: Bounds {
                least: stamps.amount,
                most: one_clock_most.amount,
            },
            clocks: Bounds {
                least: least.amount,
                most: most.amount,
            },
            overflowed: self.overflowed,
        }
    }
}

impl Reach {
    /// Takes the newest mark, which is in `marks` already. `dropped` older ones were removed.
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

/// Spans of one length. Each begins where the last one ends, the first at the epoch.
#[derive(Debug)]
pub(super) struct Aligned {
    length: u64,
    error: u64,
    /// The windows, by number, that later calls may still belong to.
    open: BTreeMap<u64, Found>,
    found: Found,
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
        let densest = &mut self.open.entry(at / self.length).or_default().densest;
        if densest.amount == 0 {
            (densest.from, densest.first) = (at, id);
        }
        (densest.to, densest.last) = (at, id);
        densest.amount += amount;
        // The true time may be up to a microsecond later, in the next window.
        self.add(at, at + 1, amount, |window| &mut window.one_clock);
        let error = self.error;
        self.add(at.saturating_sub(error), at + 1 + error, amount, |it| {
            &mut it.clocks
        });
    }

    /// Counts a call that left between these two times, both included.
    fn add(&mut self, from: u64, to: u64, amount: u64, of: fn(&mut Found) -> &mut Bounds) {
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

/// Adds the counts of a window that is over.
fn close(found: &mut Found, window: &Found) {
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

/// Calls between their last byte and the end of the backend's work.
#[derive(Debug)]
pub(super) struct AtOnce {
    stamps: Held,
    one_clock: [Held; 2],
    clocks: [Held; 2],
    densest: Densest,
    overflowed: bool,
}

/// Calls held at once, if each begins and ends this much later than its stamps.
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
        // The end is a sum of two values that were cut, and of three as a time of day.
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
    /// Returns false if there are more calls than can be counted.
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
