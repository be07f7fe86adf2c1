//! Usage against an oracle that keeps every event and counts anew, on a virtual clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::random::{Random, seeds};
use tidegate_callers::{
    DELAYED_MAX, FunctionId, FunctionUse, Headroom, Suggestion, Usage, UsageSpan, UsageTally,
};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::TokenCount;

const SECOND: u64 = 1_000_000_000;
const SEEDS: Range<u64> = 0..400;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * SECOND)
}

fn tokens(tokens: f64) -> TokenCount {
    TokenCount::new(tokens).expect("the tests' counts are numbers from 0 up")
}

fn slot_seconds(span: UsageSpan) -> u64 {
    span.length().as_secs() / 60
}

/// A call and what became of it.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: u64,
    function: u16,
    calls: u64,
    delayed: u64,
    refused: u64,
    /// In millionths.
    tokens: u64,
    single: u64,
}

/// Everything that happened.
#[derive(Default)]
struct Oracle {
    events: Vec<Event>,
}

impl Oracle {
    /// The events of the newest `slots` slots of a length.
    fn newest(&self, now: u64, slots: u64, seconds: u64) -> impl Iterator<Item = &Event> {
        let slot = move |moment: u64| moment / (seconds * SECOND);
        self.events
            .iter()
            .filter(move |event| slot(now) - slot(event.at) < slots)
    }

    fn tally<'a>(events: impl Iterator<Item = &'a Event>) -> UsageTally {
        let mut tally = UsageTally::default();
        for event in events {
            tally.calls += event.calls;
            tally.delayed += event.delayed;
            tally.refused += event.refused;
            let tokens = TokenCount::from_micros(event.tokens);
            tally.tokens = tally.tokens.saturating_add(tokens);
        }
        tally
    }

    fn common(&self, now: u64, span: UsageSpan) -> BTreeMap<u16, (u64, u64)> {
        let mut functions = BTreeMap::new();
        for event in self.newest(now, 2, slot_seconds(span) * 30) {
            let (calls, tokens) = functions.entry(event.function).or_insert((0, 0));
            *calls += event.calls;
            *tokens += event.tokens;
        }
        functions.retain(|_, (calls, _)| *calls > 0);
        functions
    }

    /// Tokens of each slot of five seconds, from the first call on.
    fn slots(&self, now: u64, slots: u64) -> Vec<f64> {
        let slot = |moment: u64| moment / (5 * SECOND);
        let first = self.events.iter().find(|event| event.calls > 0);
        let Some(first) = first.map(|event| slot(event.at)) else {
            return Vec::new();
        };
        let begins = (slot(now) + 1).saturating_sub(slots).max(first);
        let mut found = vec![0; (slot(now) - begins + 1) as usize];
        for event in &self.events {
            if slot(event.at) >= begins {
                found[(slot(event.at) - begins) as usize] += event.tokens;
            }
        }
        found.iter().map(|&micros| micros as f64 / 1e6).collect()
    }
}

/// The smallest burst that delays nothing, if the calls of a slot come at its start.
fn least_burst(slots: &[f64], fill: f64) -> f64 {
    let (mut level, mut highest) = (0.0_f64, 0.0_f64);
    for used in slots {
        highest = highest.max(level + used);
        level = (level + used - 5.0 * fill).max(0.0);
    }
    highest
}

/// In how many slots a full bucket comes to be short, if the calls of a slot come at its start.
fn short_slots(slots: &[f64], fill: f64, burst: f64) -> usize {
    let mut left = burst;
    let mut short = 0;
    for used in slots {
        left -= used;
        short += usize::from(left < -1e-9 * burst);
        left = (left + 5.0 * fill).min(burst);
    }
    short
}

/// The most tokens in 13 slots in a row, by the second.
fn busiest_minute(slots: &[f64]) -> f64 {
    let window = slots.len().min(13);
    let sums = slots.windows(window).map(|slots| slots.iter().sum::<f64>());
    sums.fold(0.0, f64::max) / 60.0
}

/// A random history, counted by both.
struct Run {
    random: Random,
    usage: Usage,
    oracle: Oracle,
    now: u64,
    /// The latest moment handed in.
    latest: u64,
    /// The longest pause that is usual.
    pace: u64,
    functions: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let paces = [SECOND / 10, 5 * SECOND, 60 * SECOND, 1800 * SECOND];
        Self {
            pace: paces[random.below(4) as usize],
            functions: [1, 12, 16, 80][random.below(4) as usize],
            now: random.below(10 * 86_400) * SECOND,
            latest: 0,
            random,
            usage: Usage::default(),
            oracle: Oracle::default(),
        }
    }

    fn step(&mut self) {
        self.now += self.random.below(self.pace);
        if self.random.one_in(40) {
            self.now += self.random.below(90 * self.pace);
        }
        if self.random.one_in(300) {
            self.now += self.random.below(2 * 86_400) * SECOND;
        }
        // A clock that steps back counts into the newest slots.
        let back = if self.random.one_in(20) {
            self.random.below(400) * SECOND
        } else {
            0
        };
        let given = self.now.saturating_sub(back);
        if !self.oracle.events.is_empty() && self.random.one_in(10) {
            self.settle(given);
            return;
        }
        self.latest = self.latest.max(given);
        let given = Timestamp::from_nanos(given);
        let mut event = Event {
            at: self.latest,
            function: self.random.below(self.functions) as u16,
            calls: 0,
            delayed: 0,
            refused: 0,
            tokens: 0,
            single: 0,
        };
        match self.random.below(10) {
            0 => {
                event.refused = 1;
                self.usage.refused(given);
            }
            1 => {
                event.delayed = 1;
                let wait = Duration::from_millis(self.random.below(60_000));
                self.usage.delayed(given, wait);
            }
            _ => {
                event.calls = 1;
                event.tokens = self.random.below(40) * 250_000;
                event.single = event.tokens;
                let function = FunctionId(event.function);
                let cost = TokenCount::from_micros(event.tokens);
                self.usage.count(given, function, cost);
            }
        }
        self.oracle.events.push(event);
    }

    /// Settles one of the latest calls.
    fn settle(&mut self, given: u64) {
        let events = self.oracle.events.len() as u64;
        let back = self.random.below(events.min(30));
        let event = &mut self.oracle.events[(events - 1 - back) as usize];
        if event.calls == 0 {
            return;
        }
        let charged = self.random.below(5 * event.tokens + 1);
        self.latest = self.latest.max(given);
        self.usage.settle(
            Timestamp::from_nanos(given),
            Timestamp::from_nanos(event.at),
            FunctionId(event.function),
            TokenCount::from_micros(event.tokens),
            TokenCount::from_micros(charged),
        );
        event.single = event.single.max(charged);
        event.tokens = charged;
    }

    fn check(&self, now: u64, seed: u64) {
        let told = self.usage.snapshot(Timestamp::from_nanos(now));
        let context = || format!("TIDEGATE_SEED={seed} at {now} ns");
        let calls = || self.oracle.events.iter();
        assert_eq!(told.total, Oracle::tally(calls()), "{}", context());
        let last = calls()
            .filter(|event| event.calls > 0)
            .map(|it| it.at)
            .max();
        assert_eq!(
            told.last_access.map(Timestamp::as_nanos),
            last,
            "{}",
            context()
        );
        let most_expensive = calls().map(|event| event.single).max().unwrap_or(0);
        assert_eq!(
            told.most_expensive.micros(),
            most_expensive,
            "{}",
            context()
        );
        for span in UsageSpan::ALL {
            let seconds = slot_seconds(span);
            let over = told.over(span);
            let expected = Oracle::tally(self.oracle.newest(now, 60, seconds));
            assert_eq!(over.tally, expected, "{span:?}, {}", context());
            let since = (now / (seconds * SECOND)).saturating_sub(59) * seconds;
            assert_eq!(over.since, at(since), "{span:?}, {}", context());

            let half = seconds * 30;
            let since = (now / (half * SECOND)).saturating_sub(1) * half;
            assert_eq!(over.common.since, at(since), "{span:?}, {}", context());
            let expected = self.oracle.common(now, span);
            self.check_common(
                &over.common.functions,
                over.common.calls_error,
                &expected,
                seed,
            );
        }
    }

    fn check_common(
        &self,
        told: &[FunctionUse],
        error: u64,
        expected: &BTreeMap<u16, (u64, u64)>,
        seed: u64,
    ) {
        let total = |calls: &mut dyn Iterator<Item = u64>| calls.sum::<u64>();
        let told_calls = total(&mut told.iter().map(|it| it.calls));
        let calls = total(&mut expected.values().map(|it| it.0));
        assert_eq!(told_calls, calls, "TIDEGATE_SEED={seed}");
        assert!(
            error <= calls / 16,
            "TIDEGATE_SEED={seed}: {error} of {calls}"
        );
        assert!(told.is_sorted_by(|a, b| a.calls >= b.calls) && told.len() <= 32);
        for (&function, &(calls, tokens)) in expected {
            let found = told.iter().find(|it| it.function == FunctionId(function));
            let told_calls = found.map_or(0, |it| it.calls);
            assert!(told_calls.abs_diff(calls) <= error, "TIDEGATE_SEED={seed}");
            if self.functions <= 16 {
                let told_tokens = found.map_or(0, |it| it.tokens.micros());
                assert_eq!((told_tokens, error), (tokens, 0), "TIDEGATE_SEED={seed}");
            }
        }
    }
}

#[test]
fn every_span_counts_what_a_recount_of_all_events_counts() {
    for seed in seeds(SEEDS) {
        let mut run = Run::new(seed);
        for step in 0..400 {
            run.step();
            if step % 7 == 0 {
                run.check(run.now, seed);
                let later = run.random.below(30 * run.pace);
                run.check(run.now + later, seed);
            }
        }
    }
}

#[test]
fn a_call_counts_for_the_whole_span_at_most_and_more_than_fifty_nine_sixtieths() {
    for span in UsageSpan::ALL {
        let slot = slot_seconds(span) * SECOND;
        for offset in [0, 1, slot / 2, slot - 1] {
            let mut usage = Usage::default();
            let counted = 1000 * slot + offset;
            usage.count(
                Timestamp::from_nanos(counted),
                FunctionId(0),
                TokenCount::ONE,
            );
            let calls = |nanos| {
                usage
                    .snapshot(Timestamp::from_nanos(nanos))
                    .over(span)
                    .tally
                    .calls
            };
            let forgotten = 1060 * slot;
            assert_eq!((calls(forgotten - 1), calls(forgotten)), (1, 0));
            let counts_for = forgotten - counted;
            assert!(counts_for > 59 * slot && counts_for <= 60 * slot);
        }
    }
}

#[test]
fn usage_merged_is_the_usage_of_both() {
    for seed in seeds(SEEDS) {
        let mut run = Run::new(seed);
        run.functions = 12;
        let (mut whole, mut parts) = (Usage::default(), [Usage::default(), Usage::default()]);
        for _ in 0..300 {
            run.now += run.random.below(run.pace);
            if run.random.one_in(100) {
                run.now += run.random.below(86_400) * SECOND;
            }
            let now = Timestamp::from_nanos(run.now);
            let part = run.random.below(2) as usize;
            let function = FunctionId(run.random.below(12) as u16);
            let cost = TokenCount::from_micros(run.random.below(9_000_000));
            let wait = Duration::from_millis(run.random.below(5000));
            for usage in [&mut whole, &mut parts[part]] {
                usage.count(now, function, cost);
                usage.delayed(now, wait);
            }
        }
        let [first, second] = parts;
        for (mut merged, other) in [(first.clone(), &second), (second.clone(), &first)] {
            merged.merge(other);
            for later in [0, 100 * SECOND, 3000 * SECOND, 80_000 * SECOND] {
                let now = Timestamp::from_nanos(run.now + later);
                assert_eq!(
                    merged.snapshot(now),
                    whole.snapshot(now),
                    "TIDEGATE_SEED={seed}"
                );
                let suggest = |usage: &Usage, span| usage.suggest(now, span, Headroom::DEFAULT);
                let span = UsageSpan::FiveMinutes;
                assert_eq!(
                    suggest(&merged, span),
                    suggest(&whole, span),
                    "TIDEGATE_SEED={seed}"
                );
                if let Some(of_both) = suggest(&whole, UsageSpan::Hour) {
                    let of_merged = suggest(&merged, UsageSpan::Hour).expect("there was usage");
                    assert_near(of_merged.fill, of_both.fill, 0.002, seed);
                }
            }
        }
    }
}

#[test]
fn merging_nothing_changes_nothing() {
    let mut run = Run::new(3);
    (0..200).for_each(|_| run.step());
    let before = run.usage.snapshot(Timestamp::from_nanos(run.now));
    run.usage.merge(&Usage::default());
    assert_eq!(run.usage.snapshot(Timestamp::from_nanos(run.now)), before);
    let mut new = Usage::default();
    new.merge(&run.usage);
    assert_eq!(new.snapshot(Timestamp::from_nanos(run.now)), before);
}

#[test]
fn a_restart_keeps_what_was_used_in_all() {
    let mut usage = Usage::default();
    usage.count(at(5), FunctionId(1), tokens(2.5));
    usage.refused(at(6));
    let total = usage.snapshot(at(6)).total;
    let mut usage = Usage::with_total(total);
    let told = usage.snapshot(at(0));
    assert_eq!((told.total, told.last_access), (total, None));
    assert_eq!(told.over(UsageSpan::Day).tally, UsageTally::default());
    usage.count(at(1), FunctionId(1), tokens(1.0));
    let told = usage.snapshot(at(1)).total;
    assert_eq!((told.calls, told.tokens), (2, tokens(3.5)));
}

#[test]
fn counts_saturate() {
    let total = UsageTally {
        calls: u64::MAX,
        tokens: TokenCount::MAX,
        delayed: u64::MAX,
        refused: u64::MAX,
    };
    let mut usage = Usage::with_total(total);
    usage.count(Timestamp::MAX, FunctionId(0), TokenCount::MAX);
    usage.count(Timestamp::MAX, FunctionId(0), TokenCount::MAX);
    usage.delayed(Timestamp::MAX, Duration::MAX);
    usage.refused(Timestamp::MAX);
    let told = usage.snapshot(Timestamp::MAX);
    assert_eq!(told.total, total);
    assert_eq!(told.over(UsageSpan::Hour).tally.tokens, TokenCount::MAX);
    let mut twice = usage.clone();
    twice.merge(&usage);
    assert_eq!(twice.snapshot(Timestamp::ZERO).total, total);
    for span in UsageSpan::ALL {
        check_bucket(usage.suggest(Timestamp::MAX, span, Headroom::DEFAULT));
    }
}

fn check_bucket(suggestion: Option<Suggestion>) {
    let suggestion = suggestion.expect("there was usage");
    for value in [suggestion.fill, suggestion.burst] {
        assert!((1e-6..=1e9).contains(&value), "{suggestion:?}");
    }
}

// What the XAPI project's tests of its statistics ask for.

#[test]
fn xapi_initial_state() {
    let total = Usage::default().snapshot(at(0)).total;
    assert_eq!((total.calls, total.tokens.tokens()), (0, 0.0));
}

#[test]
fn xapi_single_register() {
    let mut usage = Usage::default();
    usage.count(at(0), FunctionId(0), tokens(2.5));
    let total = usage.snapshot(at(0)).total;
    assert_eq!((total.calls, total.tokens.tokens()), (1, 2.5));
}

#[test]
fn xapi_concurrent_register_loses_no_updates() {
    let usage = Mutex::new(Usage::default());
    thread::scope(|scope| {
        for thread in 0..16 {
            let usage = &usage;
            scope.spawn(move || {
                for call in 0..500 {
                    let now = Timestamp::from_nanos(call * SECOND / 100);
                    let mut usage = usage.lock().expect("no thread panics");
                    usage.count(now, FunctionId(thread), tokens(0.25));
                }
            });
        }
    });
    let told = usage
        .into_inner()
        .expect("no thread panics")
        .snapshot(at(5));
    assert_eq!(
        (told.total.calls, told.total.tokens.tokens()),
        (8000, 2000.0)
    );
    let common = &told.over(UsageSpan::FiveMinutes).common;
    assert!(
        common
            .functions
            .iter()
            .all(|it| (it.calls, it.tokens) == (500, tokens(125.0)))
    );
    assert_eq!((common.functions.len(), common.calls_error), (16, 0));
}

#[test]
fn xapi_readers_see_a_consistent_snapshot() {
    let usage = Mutex::new(Usage::default());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let mut usage = usage.lock().expect("no thread panics");
                    usage.count(at(1), FunctionId(0), TokenCount::ONE);
                }
            });
            scope.spawn(|| {
                for _ in 0..1000 {
                    let told = usage.lock().expect("no thread panics").snapshot(at(1));
                    for tally in told.spans.iter().map(|it| it.tally).chain([told.total]) {
                        assert_eq!(tally.calls as f64, tally.tokens.tokens());
                    }
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!(
        usage
            .into_inner()
            .expect("no thread panics")
            .snapshot(at(1))
            .total
            .calls,
        4000
    );
}

// Derived limits.

/// A caller that used this many tokens in each slot of five seconds, half of it in one call.
fn used(slots: &[f64]) -> (Usage, Timestamp) {
    let mut usage = Usage::default();
    let mut now = at(0);
    for (slot, &used) in (0..).zip(slots) {
        now = at(5 * slot + 2);
        for call in 0..2 {
            if used > 0.0 {
                usage.count(now, FunctionId(call), tokens(used / 2.0));
            }
        }
    }
    (usage, now)
}

fn headroom(factor: f64) -> Headroom {
    Headroom::new(factor).expect("from 1 to 100")
}

fn assert_near(value: f64, expected: f64, share: f64, seed: u64) {
    let near = (value - expected).abs() <= share * expected;
    assert!(near, "{value}, not {expected}; TIDEGATE_SEED={seed}");
}

const WORKED: [f64; 12] = [
    4.0, 6.0, 5.0, 30.0, 40.0, 35.0, 5.0, 4.0, 6.0, 5.0, 4.0, 5.0,
];

#[test]
fn the_worked_examples_come_out() {
    let (usage, now) = used(&WORKED);
    for span in UsageSpan::ALL {
        let check = |factor, fill: &str, burst: &str, rounded: (f64, f64)| {
            let suggestion = usage
                .suggest(now, span, headroom(factor))
                .expect("there was usage");
            assert_eq!(format!("{:.2}", suggestion.fill), fill);
            assert_eq!(format!("{:.2}", suggestion.basis.busiest), "2.48");
            assert_eq!(
                (suggestion.basis.slots, suggestion.basis.short_slots),
                (12, 0)
            );
            if span == UsageSpan::Day {
                // An upper bound, of slots that are kept rounded up.
                assert!(
                    suggestion.burst > 55.0 && suggestion.burst < 120.0,
                    "{suggestion:?}"
                );
                assert!(!suggestion.basis.every_slot_known);
                return;
            }
            assert_eq!(format!("{:.1}", suggestion.burst), burst);
            assert_eq!(suggestion.basis.peak, 40.0);
            assert!(suggestion.basis.every_slot_known);
            let up = suggestion.rounded_up();
            assert_eq!((up.fill, up.burst), rounded);
        };
        check(1.0, "2.48", "80.2", (2.49, 81.0));
        check(2.0, "4.97", "55.3", (4.97, 56.0));
    }
}

/// Calls of one token at these moments, in milliseconds.
fn called(moments: impl Iterator<Item = u64> + Clone) -> Usage {
    let mut usage = Usage::default();
    for moment in moments {
        let now = Timestamp::from_nanos(moment * SECOND / 1000);
        usage.count(now, FunctionId(0), tokens(1.0));
    }
    usage
}

/// How many of these calls a bucket holds that is full at first, call by call.
fn held(moments: impl Iterator<Item = u64>, fill: f64, burst: f64) -> usize {
    let (mut left, mut last) = (burst, 0);
    let waits = moments.filter(|moment| {
        left = (left + (moment - last) as f64 / 1000.0 * fill).min(burst) - 1.0;
        last = *moment;
        left < -1e-6
    });
    waits.count()
}

const PROFILES: [(&str, f64, f64); 4] = [
    ("interactive", 20.0, 200.0),
    ("poller", 3.0, 30.0),
    ("batch", 5.0, 600.0),
    ("quarantine", 0.2, 5.0),
];

/// The profile that an operator is offered.
fn offered(usage: &Usage, now: Timestamp, span: UsageSpan) -> Option<&'static str> {
    let suggested = usage.suggest(now, span, Headroom::DEFAULT)?;
    let enough = PROFILES.into_iter().filter(|(_, fill, burst)| {
        let late = usage.would_delay(now, span, *fill, *burst);
        late.is_some_and(|late| late <= DELAYED_MAX)
    });
    suggested.nearest(enough)
}

#[test]
fn sixty_calls_in_one_burst_are_suggested_a_bucket_that_holds_none_of_them() {
    for start in [1_000_000, 1_002_500, 1_019_000] {
        let moments = (0..60).map(|call| start + call);
        let usage = called(moments.clone());
        // Also when the caller has been idle since.
        for (later, span) in [
            (1, UsageSpan::FiveMinutes),
            (240, UsageSpan::FiveMinutes),
            (1, UsageSpan::Hour),
            (3_000, UsageSpan::Hour),
            (1, UsageSpan::Day),
            (80_000, UsageSpan::Day),
        ] {
            let now = at(start / 1000 + later);
            let suggested = usage
                .suggest(now, span, Headroom::DEFAULT)
                .expect("was used");
            let it = suggested.rounded_up();
            let context = format!("{span:?}, {later} s later, {it:?}");
            assert_eq!(held(moments.clone(), it.fill, it.burst), 0, "{context}");
            assert!((60.0..=61.0).contains(&it.burst), "{context}");
            let even = it.basis.every_slot_known.then_some(55.0);
            assert_eq!(it.basis.even_burst, even, "{context}");
            assert!((1.0..=1.01).contains(&it.fill), "{context}");
            // The control: what was answered before, by the mean of the hour.
            assert_eq!(held(moments.clone(), 0.2, 5.0), 55);
            assert_eq!(offered(&usage, now, span), Some("batch"), "{context}");
        }
    }
}

#[test]
fn a_steady_rate_is_suggested_as_the_fill_with_a_small_burst() {
    // In line with the slots, and not.
    for start in [1_020_000, 1_000_000, 1_002_500] {
        let moments = (0..1_200).map(|call| start + 50 * call);
        let usage = called(moments.clone());
        for (later, span) in [
            (60, UsageSpan::FiveMinutes),
            (240, UsageSpan::FiveMinutes),
            (60, UsageSpan::Hour),
            (3_000, UsageSpan::Hour),
            (60, UsageSpan::Day),
            (80_000, UsageSpan::Day),
        ] {
            let now = at(start / 1000 + later);
            let suggested = usage
                .suggest(now, span, Headroom::DEFAULT)
                .expect("was used");
            let it = suggested.rounded_up();
            let context = format!("from {start}, {span:?}, {later} s later, {it:?}");
            assert!((20.0..=20.1).contains(&it.fill), "{context}");
            // What one slot of five seconds has: within it, the moments are not known. The peaks of a
            // day are kept rounded up.
            assert!((100.0..=110.0).contains(&it.burst), "{context}");
            // The calls are spread evenly, so this is the right one.
            let even = it.basis.every_slot_known.then_some(1.0);
            assert_eq!(it.basis.even_burst, even, "{context}");
            assert_eq!(held(moments.clone(), it.fill, 1.0), 0, "{context}");
            assert_eq!(held(moments.clone(), it.fill, it.burst), 0, "{context}");
            assert_eq!(offered(&usage, now, span), Some("interactive"), "{context}");
        }
    }
}

#[test]
fn no_profile_is_offered_that_would_delay_too_many_calls() {
    // More than any profile fills, for an hour.
    let moments = (0..90_000).map(|call| 40 * call);
    let usage = called(moments);
    let now = at(3_600);
    assert_eq!(offered(&usage, now, UsageSpan::FiveMinutes), None);
    assert_eq!(offered(&usage, now, UsageSpan::Hour), None);
    let late = usage.would_delay(now, UsageSpan::FiveMinutes, 3.0, 30.0);
    assert_eq!(late, Some(1.0));
    // An idle caller has used nothing that could be delayed.
    let later = at(3_600 + 86_400);
    assert_eq!(usage.would_delay(later, UsageSpan::Day, 3.0, 30.0), None);
}

#[test]
fn nothing_used_suggests_nothing() {
    let mut usage = Usage::default();
    for span in UsageSpan::ALL {
        assert_eq!(usage.suggest(at(9), span, Headroom::DEFAULT), None);
    }
    usage.count(at(10), FunctionId(0), TokenCount::ZERO);
    for span in UsageSpan::ALL {
        assert_eq!(usage.suggest(at(10), span, Headroom::DEFAULT), None);
    }
    usage.count(at(10), FunctionId(0), TokenCount::from_micros(1));
    for span in UsageSpan::ALL {
        check_bucket(usage.suggest(at(10), span, headroom(100.0)));
        let end = at(10) + span.length();
        assert!(usage.suggest(end, span, Headroom::DEFAULT).is_none());
    }
}

#[test]
fn the_burst_is_never_below_the_most_expensive_call() {
    let mut usage = Usage::default();
    for second in 0..3000 {
        usage.count(at(second), FunctionId(0), tokens(10.0));
    }
    usage.count(at(3000), FunctionId(1), tokens(17.0));
    for span in UsageSpan::ALL {
        let suggestion = usage
            .suggest(at(3299), span, headroom(2.0))
            .expect("there was usage");
        assert!(suggestion.burst >= 17.0, "{suggestion:?}");
    }
}

#[test]
fn a_headroom_is_from_one_to_a_hundred() {
    for wrong in [0.0, 0.999, -1.5, 100.1, f64::NAN, f64::INFINITY] {
        assert_eq!(Headroom::new(wrong), None, "{wrong}");
    }
    assert_eq!(Headroom::new(1.0), Some(Headroom::DEFAULT));
}

#[test]
fn a_suggested_bucket_would_have_delayed_nothing_and_none_smaller_would_do() {
    for seed in seeds(SEEDS) {
        let mut run = Run::new(seed);
        for step in 0..600 {
            run.step();
            if step % 20 != 0 {
                continue;
            }
            let now = run.now;
            let factor = headroom(1.0 + run.random.below(300) as f64 / 100.0);
            for (span, slots) in [
                (UsageSpan::FiveMinutes, 60),
                (UsageSpan::Hour, 720),
                (UsageSpan::Day, 17_280),
            ] {
                let used = run.oracle.slots(now, slots);
                let suggested = run.usage.suggest(Timestamp::from_nanos(now), span, factor);
                let Some(suggested) = suggested else {
                    assert!(used.iter().sum::<f64>() == 0.0, "TIDEGATE_SEED={seed}");
                    continue;
                };
                check_suggestion(&run, span, &used, suggested, factor, seed);
            }
        }
    }
}

fn check_suggestion(
    run: &Run,
    span: UsageSpan,
    used: &[f64],
    suggested: Suggestion,
    headroom: Headroom,
    seed: u64,
) {
    let context = format!("{span:?}, {suggested:?}, TIDEGATE_SEED={seed}");
    let Suggestion { fill, burst, basis } = suggested;
    // The slots of a day begin where one of 24 minutes does.
    let left_out = used.len() as u64 - basis.slots;
    assert!(
        left_out < if span == UsageSpan::Day { 288 } else { 1 },
        "{context}"
    );
    let used = &used[used.len() - basis.slots as usize..];
    assert_eq!(short_slots(used, fill, burst), 0, "{context}");
    assert_eq!(basis.short_slots, 0, "{context}");
    let rounded = suggested.rounded_up();
    assert_eq!(
        short_slots(used, rounded.fill, rounded.burst),
        0,
        "{context}"
    );
    assert!(
        rounded.fill <= fill * 1.011 && rounded.burst <= burst * 1.11,
        "{context}"
    );
    let least = least_burst(used, fill);
    let most_expensive = run.oracle.events.iter().map(|event| event.single).max();
    let most_expensive = most_expensive.unwrap_or(0) as f64 / 1e6;
    assert!(burst >= most_expensive, "{context}");

    let busiest = busiest_minute(used);
    assert!(fill >= busiest * (1.0 - 1e-9), "{context}");
    if span == UsageSpan::Day {
        return;
    }
    let exact = span == UsageSpan::FiveMinutes;
    let even = basis.even_burst.expect("every slot is known");
    assert!(even >= most_expensive && even <= burst, "{context}");
    // Each of a call's corrections may round up by a thousandth.
    let rounding = if exact { 1e-9 } else { 0.01 };
    assert_near(basis.busiest, busiest, rounding, seed);
    assert_near(fill, busiest * headroom.get(), rounding, seed);
    let peak = used.iter().copied().fold(0.0, f64::max);
    assert_near(basis.peak, peak, rounding, seed);
    if exact && burst > most_expensive * 1.0001 {
        assert_near(burst, least, 1e-6, seed);
        assert!(short_slots(used, fill, burst * 0.999) > 0, "{context}");
    }
}

#[test]
fn however_bunched_calls_lie_in_their_slots_the_larger_burst_delays_none() {
    for seed in seeds(0..200) {
        let mut random = Random::new(seed);
        let mut usage = Usage::default();
        let mut calls = Vec::new();
        let mut now = 0;
        for _ in 0..200 {
            // Bunched around the ends of slots.
            now += random.below(4 * SECOND);
            let to_end = 5 * SECOND - now % (5 * SECOND);
            let bunched = now + to_end - SECOND / 100 + random.below(SECOND / 50);
            now = if random.one_in(2) { bunched } else { now };
            let cost = random.below(9) as f64;
            usage.count(Timestamp::from_nanos(now), FunctionId(0), tokens(cost));
            calls.push((now, cost));
        }
        let calls = calls
            .into_iter()
            .filter(|(at, _)| at / (5 * SECOND) + 60 > now / (5 * SECOND));
        let now = Timestamp::from_nanos(now);
        let suggested = usage
            .suggest(now, UsageSpan::FiveMinutes, headroom(1.2))
            .expect("was used");
        // At the end of one slot and the start of the next, say, with no time to fill between them.
        let burst = suggested.burst + 5.0 * suggested.fill;
        let (mut level, mut last) = (burst, 0);
        for (at, cost) in calls {
            let filled = (at - last) as f64 / 1e9 * suggested.fill;
            level = (level + filled).min(burst) - cost;
            last = at;
            assert!(level >= -1e-6, "seed {seed}: short by {level} at {at}");
        }
    }
}

#[test]
fn a_day_is_bounded_from_above_and_not_absurdly() {
    // Thirty tokens once a minute: a poller.
    let mut usage = Usage::default();
    for minute in 0..3000 {
        usage.count(at(60 * minute), FunctionId(0), tokens(30.0));
    }
    let now = at(60 * 2999);
    let hour = usage
        .suggest(now, UsageSpan::Hour, Headroom::DEFAULT)
        .expect("was used");
    let day = usage
        .suggest(now, UsageSpan::Day, Headroom::DEFAULT)
        .expect("was used");
    assert_near(day.fill, hour.fill, 0.03, 0);
    assert!(
        day.burst >= hour.burst && day.burst <= 4.5 * hour.burst,
        "{day:?} {hour:?}"
    );
    assert!(!day.basis.every_slot_known);
    assert!(
        day.basis.slots > 17_000 && day.basis.slots <= 17_280,
        "{day:?}"
    );
}

#[test]
fn the_nearest_profile_is_nearest_by_ratio() {
    let profiles = PROFILES;
    let (usage, now) = used(&WORKED);
    let suggested = usage
        .suggest(now, UsageSpan::Hour, Headroom::DEFAULT)
        .expect("was used");
    let nearest = |fill, burst| {
        let suggestion = Suggestion {
            fill,
            burst,
            ..suggested
        };
        suggestion.nearest(profiles)
    };
    assert_eq!(suggested.nearest(profiles), Some("poller"));
    let enough = profiles.into_iter().filter(|(_, fill, burst)| {
        let late = usage.would_delay(now, UsageSpan::Hour, *fill, *burst);
        late.expect("was used") <= DELAYED_MAX
    });
    assert_eq!(suggested.nearest(enough), Some("batch"), "a poller waits");
    assert_eq!(nearest(20.0, 200.0), Some("interactive"));
    assert_eq!(nearest(4.0, 700.0), Some("batch"));
    assert_eq!(nearest(1e-6, 1e-6), Some("quarantine"));
    assert_eq!(nearest(1e9, 1e9), Some("interactive"));
    let broken = [
        ("zero", 0.0, 1.0),
        ("nan", f64::NAN, 1.0),
        ("endless", 1.0, f64::INFINITY),
    ];
    assert_eq!(suggested.nearest(broken), None);
    let equal = [("first", 3.0, 30.0), ("second", 3.0, 30.0)];
    assert_eq!(suggested.nearest(equal), Some("first"));
}
