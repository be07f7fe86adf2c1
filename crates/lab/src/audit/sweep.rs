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
use std::collections::{BTreeMap, BinaryHeap};

use super::limit::CountingSpan;

/// Most marks of one sweep. A window with more marks has more calls than any config allows, and
/// not all of them are counted.
const MARKS_MAX: usize = 1 << 20;

/// A call that counts in a limit. Calls are put in the order in which they left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountedCall {
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
pub(super) struct AmountBounds {
    /// The least that is possible.
    pub(super) least: u64,
    /// The most that is possible.
    pub(super) most: u64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SweepResult {
    /// By the stamps.
    pub(super) densest: Densest,
    /// The bounds if all calls were of one process.
    pub(super) one_clock: AmountBounds,
    /// The bounds if they were of several.
    pub(super) clocks: AmountBounds,
    /// Whether there were more calls than can be counted.
    pub(super) overflowed: bool,
}

/// The sweep of one limit over one kind of span.
#[derive(Clone, Debug)]
pub(super) enum Sweep {
    Held(Box<Occupancy>),
    Aligned(Aligned),
}

impl Sweep {
    /// A sweep of this span. The clocks err by at most `error` microseconds.
    pub(super) fn new(span: CountingSpan, error: u64) -> Self {
        let micros = |length: std::time::Duration| {
            u64::try_from(length.as_micros()).expect("a window has 31 days at most")
        };
        match span {
            CountingSpan::Any(length) => {
                Self::Held(Box::new(Occupancy::for_length(micros(length), error)))
            }
            CountingSpan::Aligned(length) => Self::Aligned(Aligned::new(micros(length), error)),
            CountingSpan::AtOnce => Self::Held(Box::new(Occupancy::to_their_ends(error))),
        }
    }

    /// Takes the next call. Calls come in the order of their stamps.
    pub(super) fn push(&mut self, mark: CountedCall) {
        match self {
            Self::Held(sweep) => sweep.push(mark),
            Self::Aligned(sweep) => sweep.push(mark),
        }
    }

    /// The result so far.
    pub(super) fn found(&self) -> SweepResult {
        match self {
            Self::Held(sweep) => sweep.found,
            Self::Aligned(sweep) => sweep.found(),
        }
    }
}

/// Calls that are held at once. A call is held until the backend finished it, or for a fixed
/// length: then those held at once are those of one span of that length, half open. It is enough
/// to look at spans that begin at a call.
#[derive(Clone, Debug)]
pub(super) struct Occupancy {
    /// How long a call is held, unless the backend decides.   µs
    length: Option<u64>,
    by_stamps: Reach,
    one_clock: [Reach; 2],
    clocks: [Reach; 2],
    found: SweepResult,
}

/// The calls held now, if each begins and ends this much later than its stamps.
#[derive(Clone, Debug)]
struct Reach {
    begins: i64,
    ends: i64,
    /// By their ends.
    now: BinaryHeap<Reverse<(u64, CountedCall)>>,
    sum: u64,
    most: u64,
}

impl Occupancy {
    /// All calls are held for the same length, so only the distance of their stamps matters.
    fn for_length(length: u64, error: u64) -> Self {
        let slack = 2 + 2 * signed(error);
        // Within one process, stamps less than the length apart are less than the length apart in
        // truth.
        let one_clock = [(0, 0), (0, 1)];
        Self::new(Some(length), one_clock, [(0, 1 - slack), (0, slack)])
    }

    fn to_their_ends(error: u64) -> Self {
        let error = signed(error);
        // The end is a sum of two values that were cut, and of three as a time of day.
        let clocks = [(2 + error, -error), (-error, 3 + error)];
        Self::new(None, [(1, 0), (0, 2)], clocks)
    }

    /// The pairs are how much later calls begin and end, for the least and the most.
    fn new(length: Option<u64>, one_clock: [(i64, i64); 2], clocks: [(i64, i64); 2]) -> Self {
        let reach = |(begins, ends)| Reach {
            begins,
            ends,
            now: BinaryHeap::new(),
            sum: 0,
            most: 0,
        };
        Self {
            length,
            by_stamps: reach((0, 0)),
            one_clock: one_clock.map(reach),
            clocks: clocks.map(reach),
            found: SweepResult::default(),
        }
    }

    fn push(&mut self, mut mark: CountedCall) {
        if let Some(length) = self.length {
            mark.end = mark.at.saturating_add(length);
        }
        let found = &mut self.found;
        let mut bounds = |reaches: &mut [Reach; 2]| {
            let [least, most] = reaches.each_mut().map(|reach| {
                found.overflowed |= !reach.push(mark);
                reach.most
            });
            AmountBounds { least, most }
        };
        let (one_clock, clocks) = (bounds(&mut self.one_clock), bounds(&mut self.clocks));
        (found.one_clock, found.clocks) = (one_clock, clocks);
        found.overflowed |= !self.by_stamps.push(mark);
        if self.by_stamps.most > found.densest.amount {
            // Without a length, the moment at which the last of them left is meant.
            let first = match (self.length, self.by_stamps.now.peek()) {
                (Some(_), Some(Reverse((_, oldest)))) => *oldest,
                _ => mark,
            };
            found.densest = Densest {
                amount: self.by_stamps.most,
                from: first.at,
                to: mark.at,
                first: first.id,
                last: mark.id,
            };
        }
    }
}

impl Reach {
    /// Returns false if there are more calls than can be counted.
    fn push(&mut self, mark: CountedCall) -> bool {
        let begin = mark.at.saturating_add_signed(self.begins);
        let end = mark.end.saturating_add_signed(self.ends);
        while let Some(Reverse((first, over))) = self.now.peek()
            && *first <= begin
        {
            self.sum -= over.amount;
            self.now.pop();
        }
        if end <= begin {
            return true;
        }
        let fits = self.now.len() < MARKS_MAX;
        if !fits && let Some(Reverse((_, first))) = self.now.pop() {
            self.sum -= first.amount;
        }
        self.now.push(Reverse((end, mark)));
        self.sum = self.sum.saturating_add(mark.amount);
        self.most = self.most.max(self.sum);
        fits
    }
}

fn signed(error: u64) -> i64 {
    i64::try_from(error).expect("clocks err by less than a window")
}

/// Spans of one length. Each begins where the last one ends, the first at the epoch.
#[derive(Clone, Debug)]
pub(super) struct Aligned {
    length: u64,
    error: u64,
    /// The windows, by number, that later calls may still belong to.
    open: BTreeMap<u64, SweepResult>,
    found: SweepResult,
}

impl Aligned {
    fn new(length: u64, error: u64) -> Self {
        Self {
            length,
            error,
            open: BTreeMap::new(),
            found: SweepResult::default(),
        }
    }

    fn push(&mut self, mark: CountedCall) {
        let CountedCall { at, amount, id, .. } = mark;
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
    fn add(
        &mut self,
        from: u64,
        to: u64,
        amount: u64,
        of: fn(&mut SweepResult) -> &mut AmountBounds,
    ) {
        let (first, last) = (from / self.length, to / self.length);
        for number in first..=last {
            let bounds = of(self.open.entry(number).or_default());
            bounds.most += amount;
            if first == last {
                bounds.least += amount;
            }
        }
    }

    fn found(&self) -> SweepResult {
        let mut found = self.found;
        for window in self.open.values() {
            close(&mut found, window);
        }
        found
    }
}

/// Adds the counts of a window that is over.
fn close(found: &mut SweepResult, window: &SweepResult) {
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
