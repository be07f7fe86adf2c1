//! The usage of a caller, or of a group of callers: calls and tokens over the latest five minutes, hour and day and
//! in all, which functions it called, what was delayed or refused, and the limit that would suit it.
//!
//! **What a span means.** Each span is sixty slots of time, aligned to the clock's start, of
//! 5 s, 1 min and 24 min. A call counts while the slot in which it came is one of the newest
//! sixty: for at most the whole span and more than 59/60 of it. Functions and waits are kept
//! by halves of a span, and count while theirs is one of the newest two: for at most the whole
//! span and more than a half of it. Every figure says since when it counts. What a slot counts
//! is exact.
//!
//! **What it costs.** Counting touches the newest slots only. After a silence the slots that
//! have passed are cleared, at most 60 of each span and 720 of the hour's history, whose slots
//! are all freed by a silence as long as the span. A clock that steps back counts into the
//! newest slots.
//!
//! **Memory.** Where a pointer has eight bytes, a caller that called once takes 640 bytes, and
//! none takes more than 7,936: 448 for the value itself, 2,400 for the slots of five minutes
//! and of the hour, 1,440 for those of the day, 1,440 for the hour's history, 1,536 for the
//! functions, 672 for the waits. All counts saturate.

mod halves;
mod history;
#[cfg(test)]
mod memory;
mod rounded;
mod suggest;
mod top;
mod waits;

use alloc::vec::Vec;
use core::time::Duration;

pub use suggest::{Basis, DELAYED_MAX, Headroom, Suggestion};

use crate::ring::{self, Ring, SLOTS};
use halves::Halves;
use history::{CELLS, UsageHistory};
use rounded::RoundedUp;
use suggest::Stretch;
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;
use top::{PackedTokens, Top};
use waits::WaitCounts;

const SLOT: u64 = 5;
const MINUTE: u64 = 60;
/// Seconds in a slot of the day.
const DAY_SLOT: u64 = 24 * MINUTE;
/// Slots of five seconds in a slot of the day.
const CELLS_IN_DAY_SLOT: u64 = DAY_SLOT / SLOT;

/// A function by a small number; the user of this type has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u16);

impl FunctionId {
    /// All functions that have no number of their own.
    pub const OTHER: Self = Self(u16::MAX);
}

/// A span of time up to now, for which usage is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UsageSpan {
    /// 60 slots of 5 s.
    FiveMinutes,
    /// 60 slots of 1 min.
    Hour,
    /// 60 slots of 24 min.
    Day,
}

impl UsageSpan {
    /// Every span, the shortest first.
    pub const ALL: [Self; 3] = [Self::FiveMinutes, Self::Hour, Self::Day];

    /// The length of the span.
    #[must_use]
    pub const fn length(self) -> Duration {
        let slot = match self {
            Self::FiveMinutes => SLOT,
            Self::Hour => MINUTE,
            Self::Day => DAY_SLOT,
        };
        Duration::from_secs(slot * SLOTS as u64)
    }

    /// The number of the half of it in which a moment lies, counted from the clock's start.
    const fn half_at(self, moment: Timestamp) -> u64 {
        moment.as_nanos() / self.half_nanos()
    }

    /// From when on calls count while a half is the newest.
    const fn since(self, half: u64) -> Timestamp {
        Timestamp::from_nanos(half.saturating_sub(1) * self.half_nanos())
    }

    const fn half_nanos(self) -> u64 {
        self.length().as_secs() / 2 * 1_000_000_000
    }
}

/// Calls and tokens that were counted together. All counts saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTally {
    /// Calls that were counted, whatever became of them.
    pub calls: u64,
    /// The cost of the calls.
    pub tokens: TokenCount,
    /// Calls that had to wait.
    pub delayed: u64,
    /// Calls that were refused.
    pub refused: u64,
}

impl UsageTally {
    /// Both together.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            tokens: self.tokens.saturating_add(other.tokens),
            delayed: self.delayed.saturating_add(other.delayed),
            refused: self.refused.saturating_add(other.refused),
        }
    }
}

/// Usage at one moment; every figure is of the same moment.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageNow {
    /// When the latest call was counted; `None` if there was none since the start.
    pub last_access: Option<Timestamp>,
    /// Everything.
    pub total: UsageTally,
    /// The cost of the most expensive single call.
    pub most_expensive: TokenCount,
    /// The latest five minutes, hour and day, in the order of [`UsageSpan::ALL`].
    pub spans: [SpanUse; 3],
    /// The waits of delayed calls; `None` if none was delayed lately.
    pub waits: Option<WaitTimes>,
}

impl UsageNow {
    /// The usage over a span.
    #[must_use]
    pub const fn over(&self, span: UsageSpan) -> &SpanUse {
        &self.spans[span as usize]
    }
}

/// The usage over one span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanUse {
    /// The span.
    pub span: UsageSpan,
    /// From when on calls count.
    pub since: Timestamp,
    /// The sum over the span.
    pub tally: UsageTally,
    /// The most common functions.
    pub common: CommonFunctions,
}

/// The most common functions over the latest half of a span up to the whole of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommonFunctions {
    /// From when on calls count.
    pub since: Timestamp,
    /// The most common first, at most 32.
    pub functions: Vec<FunctionUse>,
    /// By how many calls a function, other than [`FunctionId::OTHER`], may be told wrong: none
    /// where a caller calls at most sixteen functions in half a span, otherwise at most a
    /// sixteenth of the calls, and a few times that after a merge. A function that is not
    /// named was called at most so often.
    pub calls_error: u64,
}

/// How often a function was called, and what that cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionUse {
    /// The function.
    pub function: FunctionId,
    /// Calls of it.
    pub calls: u64,
    /// The cost of the calls.
    pub tokens: TokenCount,
}

/// How long delayed calls waited, over the latest half hour up to the hour.
///
/// Quantiles are off by at most an eighth of themselves and half a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimes {
    /// From when on calls count.
    pub since: Timestamp,
    /// Half of the delayed calls waited no longer.
    pub p50: Duration,
    /// Ninety-nine of a hundred delayed calls waited no longer.
    pub p99: Duration,
}

type FineRing = Ring<UsageCounts, SLOT>;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct UsageCounts {
    calls: u32,
    delayed: u32,
    refused: u32,
    tokens: PackedTokens,
}

impl ring::RingSlot for UsageCounts {}

impl UsageCounts {
    fn tally(self) -> UsageTally {
        UsageTally {
            calls: self.calls.into(),
            tokens: self.tokens.get(),
            delayed: self.delayed.into(),
            refused: self.refused.into(),
        }
    }

    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.delayed = self.delayed.saturating_add(other.delayed);
        self.refused = self.refused.saturating_add(other.refused);
        self.tokens.add(other.tokens.get());
    }
}

/// The usage over a span: every slot, or stretches of 24 minutes.
enum Stretches<S, D> {
    Slots(S),
    Days(D),
}

/// A slot of the day, and the most tokens within five seconds and within a minute of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct DayCounts {
    counts: UsageCounts,
    slot_peak: RoundedUp,
    minute_peak: RoundedUp,
}

impl ring::RingSlot for DayCounts {}

impl DayCounts {
    fn raise_peaks(&mut self, slot: TokenCount, minute: TokenCount) {
        self.slot_peak = self.slot_peak.max(RoundedUp::new(slot));
        self.minute_peak = self.minute_peak.max(RoundedUp::new(minute));
    }

    /// Whatever lies in the same slots of both, the peaks are at most the sums of theirs.
    fn add(&mut self, other: Self) {
        self.counts.add(other.counts);
        let sum = |a: RoundedUp, b: RoundedUp| a.count().saturating_add(b.count());
        self.slot_peak = RoundedUp::new(sum(self.slot_peak, other.slot_peak));
        self.minute_peak = RoundedUp::new(sum(self.minute_peak, other.minute_peak));
    }
}

/// The usage of a caller or a group; the module's head says what is kept and what it costs.
///
/// Count a call when it comes in, with the cost estimated for it: what a caller asks for is
/// what a limit has to be measured by. What becomes of it is counted later, by
/// [`Usage::delayed`], [`Usage::refused`] and [`Usage::settle`].
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// The latest moment handed in.
    latest: Timestamp,
    first_access: Option<Timestamp>,
    last_access: Option<Timestamp>,
    total: UsageTally,
    most_expensive: TokenCount,
    slots: FineRing,
    minutes: Ring<UsageCounts, MINUTE>,
    days: Ring<DayCounts, DAY_SLOT>,
    history: UsageHistory,
    /// The most common functions of each span, in the order of [`UsageSpan::ALL`].
    common: [Halves<Top>; 3],
    waits: Halves<WaitCounts>,
}

impl Usage {
    /// Usage that begins at this total: the count of an earlier process.
    #[must_use]
    pub fn with_total(total: UsageTally) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

    /// Counts a call that came in and is to cost this much.
    pub fn count(&mut self, now: Timestamp, function: FunctionId, cost: TokenCount) {
        self.advance(now);
        self.first_access.get_or_insert(self.latest);
        self.last_access = Some(self.latest);
        self.most_expensive = self.most_expensive.max(cost);
        self.add(UsageCounts {
            calls: 1,
            tokens: PackedTokens::new(cost),
            ..UsageCounts::default()
        });
        for common in &mut self.common {
            common.current.count(function, cost);
        }
    }

    /// Counts that a call, counted before, had to wait so long until it could go.
    pub fn delayed(&mut self, now: Timestamp, wait: Duration) {
        self.advance(now);
        self.waits.current.count(wait);
        self.add(UsageCounts {
            delayed: 1,
            ..UsageCounts::default()
        });
    }

    /// Counts that a call, counted before, was refused.
    pub fn refused(&mut self, now: Timestamp) {
        self.advance(now);
        self.add(UsageCounts {
            refused: 1,
            ..UsageCounts::default()
        });
    }

    /// Corrects what a call cost that was counted at `arrived`: in the slots of that moment, as
    /// far as they still count, and in all.
    pub fn settle(
        &mut self,
        now: Timestamp,
        arrived: Timestamp,
        function: FunctionId,
        estimated: TokenCount,
        charged: TokenCount,
    ) {
        self.advance(now);
        let more = charged.saturating_sub(estimated);
        let less = estimated.saturating_sub(charged);
        if more == less {
            return;
        }
        let arrived = arrived.min(self.latest);
        self.most_expensive = self.most_expensive.max(charged);
        let tokens = self.total.tokens.saturating_add(more);
        self.total.tokens = tokens.saturating_sub(less);

        self.correct_slots(arrived, more, less);
        for (common, span) in self.common.iter_mut().zip(UsageSpan::ALL) {
            if let Some(top) = common.half_at_mut(span.half_at(arrived)) {
                top.correct(function, more, less);
            }
        }
    }

    /// Everything at one moment. A moment before the latest one handed in counts as that.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> UsageNow {
        let now = now.max(self.latest);
        let day = self.days.at(now).map(|(slot, day)| (slot, day.counts));
        let tallies = [
            tally::<SLOT>(self.slots.at(now)),
            tally::<MINUTE>(self.minutes.at(now)),
            tally::<DAY_SLOT>(day),
        ];
        UsageNow {
            last_access: self.last_access,
            total: self.total,
            most_expensive: self.most_expensive,
            spans: UsageSpan::ALL.map(|span| {
                let (since, tally) = tallies[span as usize];
                SpanUse {
                    span,
                    since,
                    tally,
                    common: self.common_at(now, span),
                }
            }),
            waits: self.waits_at(now),
        }
    }

    /// The token bucket that would have admitted what was used over a span, filling by the headroom
    /// faster than the busiest minute. `None` if no token was used.
    ///
    /// The burst is the smallest that would have delayed no call, if the calls of a slot of five
    /// seconds come at its start, or the cost of the most expensive single call if that is more; over
    /// a day, an upper bound of it. That takes up to 0.2 ms for a day: under a contended lock, suggest
    /// from a clone.
    #[must_use]
    pub fn suggest(
        &self,
        now: Timestamp,
        span: UsageSpan,
        headroom: Headroom,
    ) -> Option<Suggestion> {
        let most_expensive = self.most_expensive.tokens();
        match self.stretches(now, span)? {
            Stretches::Slots(slots) => suggest::suggest(slots, headroom, most_expensive),
            Stretches::Days(days) => suggest::suggest(days, headroom, most_expensive),
        }
    }

    /// The share of the tokens of a span that a bucket might have delayed, if it was full at first: an
    /// upper bound, as for [`Usage::suggest`]. `None` if no token was used.
    #[must_use]
    pub fn would_delay(
        &self,
        now: Timestamp,
        span: UsageSpan,
        fill: f64,
        burst: f64,
    ) -> Option<f64> {
        match self.stretches(now, span)? {
            Stretches::Slots(slots) => suggest::delayed(slots, fill, burst),
            Stretches::Days(days) => suggest::delayed(days, fill, burst),
        }
    }

    /// The usage over a span, as far as it is kept. `None` before the first call.
    fn stretches(
        &self,
        now: Timestamp,
        span: UsageSpan,
    ) -> Option<
        Stretches<
            impl Iterator<Item = Stretch> + Clone + use<'_>,
            impl Iterator<Item = Stretch> + Clone + use<'_>,
        >,
    > {
        let now = now.max(self.latest);
        let newest = FineRing::number_at(now);
        let first = FineRing::number_at(self.first_access?);
        let latest = |slots: u64| {
            let oldest = newest.saturating_sub(slots - 1).max(first);
            (oldest..=newest).map(move |slot| {
                let tokens = self.history.tokens(&self.slots, slot);
                Stretch::slot(tokens.unwrap_or_default().tokens())
            })
        };
        Some(match span {
            UsageSpan::FiveMinutes => Stretches::Slots(latest(SLOTS as u64)),
            UsageSpan::Hour => Stretches::Slots(latest(CELLS as u64)),
            UsageSpan::Day => {
                Stretches::Days(self.days.at(now).filter_map(move |(number, day)| {
                    let begins = (number * CELLS_IN_DAY_SLOT).max(first);
                    let ends = ((number + 1) * CELLS_IN_DAY_SLOT).min(newest + 1);
                    Some(Stretch {
                        slots: ends.checked_sub(begins).filter(|&slots| slots > 0)?,
                        tokens: day.counts.tokens.get().tokens(),
                        slot_peak: day.slot_peak.count().tokens(),
                        minute_peak: day.minute_peak.count().tokens(),
                    })
                }))
            }
        })
    }

    /// Adds what another has used: of callers folded into one, or of the members of a group.
    pub fn merge(&mut self, other: &Self) {
        self.advance(other.latest);
        self.first_access = match (self.first_access, other.first_access) {
            (Some(ours), Some(theirs)) => Some(ours.min(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
        self.last_access = self.last_access.max(other.last_access);
        self.total = self.total.saturating_add(other.total);
        self.most_expensive = self.most_expensive.max(other.most_expensive);
        self.history
            .merge(&self.slots, &other.history, &other.slots);
        self.slots.merge(&other.slots, UsageCounts::add);
        self.minutes.merge(&other.minutes, UsageCounts::add);
        self.days.merge(&other.days, DayCounts::add);
        for (ours, theirs) in self.common.iter_mut().zip(&other.common) {
            ours.merge(theirs);
        }
        self.waits.merge(&other.waits);
    }

    /// Everything kept is of the slot and the halves in which `now` lies, or older.
    fn advance(&mut self, now: Timestamp) {
        self.latest = self.latest.max(now);
        // Every other slot and half begins where one of these does.
        let slot = FineRing::number_at(self.latest);
        if slot == self.slots.number() {
            return;
        }
        self.history.keep(&self.slots, slot);
        self.slots.advance(slot);
        self.minutes
            .advance(Ring::<UsageCounts, MINUTE>::number_at(self.latest));
        self.days
            .advance(Ring::<DayCounts, DAY_SLOT>::number_at(self.latest));
        for (common, span) in self.common.iter_mut().zip(UsageSpan::ALL) {
            common.advance(span.half_at(self.latest));
        }
        self.waits.advance(UsageSpan::Hour.half_at(self.latest));
    }

    /// Adds to the newest slots.
    fn add(&mut self, counts: UsageCounts) {
        self.total = self.total.saturating_add(counts.tally());
        self.slots.newest_mut().add(counts);
        self.minutes.newest_mut().add(counts);
        let slot = self.slots.newest_mut().tokens.get();
        let minute = self.minutes.newest_mut().tokens.get();
        let day = self.days.newest_mut();
        day.counts.add(counts);
        day.raise_peaks(slot, minute);
    }

    /// Corrects the slots in which a moment lies, as far as they are kept.
    fn correct_slots(&mut self, moment: Timestamp, more: TokenCount, less: TokenCount) {
        let number = FineRing::number_at(moment);
        if let Some(slot) = self.slots.get_mut(number) {
            slot.tokens.correct(more, less);
        }
        self.history.correct(&self.slots, number, more, less);
        let slot = self.history.tokens(&self.slots, number);

        let number = Ring::<UsageCounts, MINUTE>::number_at(moment);
        let minute = self.minutes.get_mut(number).map(|minute| {
            minute.tokens.correct(more, less);
            minute.tokens.get()
        });

        let number = Ring::<DayCounts, DAY_SLOT>::number_at(moment);
        if let Some(day) = self.days.get_mut(number) {
            day.counts.tokens.correct(more, less);
            // What is no longer known was at most the peak.
            let raised = |peak: RoundedUp| peak.count().saturating_add(more);
            let slot = slot.unwrap_or_else(|| raised(day.slot_peak));
            let minute = minute.unwrap_or_else(|| raised(day.minute_peak));
            day.raise_peaks(slot, minute);
        }
    }

    fn waits_at(&self, now: Timestamp) -> Option<WaitTimes> {
        let half = self.waits.newest(UsageSpan::Hour.half_at(now));
        let counts = self.waits.at(half).into_iter().flatten();
        Some(WaitTimes {
            since: UsageSpan::Hour.since(half),
            p50: waits::quantile(counts.clone(), 50)?,
            p99: waits::quantile(counts, 99)?,
        })
    }

    /// The most common functions of a span.
    fn common_at(&self, now: Timestamp, span: UsageSpan) -> CommonFunctions {
        let common = &self.common[span as usize];
        let half = common.newest(span.half_at(now));
        let mut functions: Vec<FunctionUse> = Vec::new();
        let mut calls_error = 0;
        for top in common.at(half).into_iter().flatten() {
            calls_error += u64::from(top.error());
            for place in top.places() {
                let (calls, tokens) = (u64::from(place.calls), place.tokens.get());
                match functions
                    .iter_mut()
                    .find(|it| it.function == place.function)
                {
                    Some(told) => {
                        told.calls += calls;
                        told.tokens = told.tokens.saturating_add(tokens);
                    }
                    None => functions.push(FunctionUse {
                        function: place.function,
                        calls,
                        tokens,
                    }),
                }
            }
        }
        functions.sort_unstable_by_key(|it| (core::cmp::Reverse(it.calls), it.function));
        CommonFunctions {
            since: span.since(half),
            functions,
            calls_error,
        }
    }
}

/// Since when these slots count, and what they count.
fn tally<const SECONDS: u64>(
    mut slots: impl Iterator<Item = (u64, UsageCounts)>,
) -> (Timestamp, UsageTally) {
    let (oldest, counts) = slots.next().expect("a ring has a newest slot at least");
    let tally = slots.fold(counts.tally(), |tally, (_, counts)| {
        tally.saturating_add(counts.tally())
    });
    (Ring::<UsageCounts, SECONDS>::start_of(oldest), tally)
}
