//! The spent part of every budget in every window: by the sidecars' access lines, and by the
//! arrivals at the backend.
//!
//! A line says which window a call was paid from, and the backend when it arrived. What arrived
//! and has no line, because its sidecar was killed before it wrote one, counts in the window that
//! others spent at that time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use serde::Deserialize;

use super::Plan;
use super::backend::Arrival;
use super::call::{BUDGETS, CallId, EVERYBODY, EXPENSIVE_COST, PER_USER, USERS};
use super::faults::{Done, Fault};
use super::load::CONNECTIONS;

/// A call without a line that arrived so soon after a window's first may belong to the one
/// before.   µs
const EDGE: u64 = 50_000;
/// The time after the beginning of a window in which an arrival may have been decided before. On a machine that
/// does much else a call was seen to take 99 ms from its decision to the backend.   µs
const BEGINS: u64 = 200_000;
/// From when the store's servers are all well until every sidecar has found that out: the longest
/// pause before it is tried again, and a connection.   µs
const FOUND_OUT: u64 = 3_000_000;
/// How long a call may be on its way from the decision to the backend, on a machine that does
/// much else.   µs
pub(super) const UNDER_WAY: u64 = 500_000;

/// The payment of a call from one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) window: u64,
    pub(super) total: u64,
    pub(super) cost: u64,
}

/// The payments of a call that left, by its access line: from its user's budget, and from the total.
pub(super) type Told = [Option<Draw>; 2];

/// A window of one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Tokens, by all lines.
    pub(super) spent: u64,
    /// Of calls that have no line.
    pub(super) unlogged: u64,
    /// The largest in any line.
    pub(super) total: u64,
    /// When the first call arrived that was paid from it.   µs since the epoch
    pub(super) first: Option<u64>,
    /// And the last.
    pub(super) last: Option<u64>,
    /// Tokens by sidecar, by all lines.
    pub(super) by: Vec<u64>,
}

/// The records of a run.
pub(super) struct Evidence<'a> {
    pub(super) plan: &'a Plan,
    /// Whether the store's time is the time of day here.
    pub(super) time_of_day: bool,
    pub(super) told: HashMap<CallId, Told>,
    /// In the order of their times.
    pub(super) arrivals: Vec<Arrival>,
    pub(super) done: Vec<Done>,
    /// From when on there was load, until when something was done, and when the load ended.
    /// µs since the epoch
    pub(super) from: u64,
    pub(super) well: u64,
    pub(super) to: u64,
}

/// The result of the account.
#[derive(Debug)]
pub(super) struct Account {
    /// By budget and window.
    pub(super) windows: Vec<BTreeMap<u64, Window>>,
    /// Calls that arrived more than once.
    pub(super) twice: usize,
    /// Calls that arrived and have no line.
    pub(super) unlogged: usize,
    /// Windows that were spent beyond the total: budget, number, by how much.
    pub(super) over: Vec<(String, u64, u64)>,
    /// The excess by the times of arrival only, where they decide it.
    pub(super) over_by_arrival: Vec<(String, u64, u64)>,
    /// By how much a call arrived after one that was paid from a later window.   µs
    pub(super) late: u64,
    /// The lateness without the time that its sidecar stood still.   µs
    pub(super) late_awake: u64,
    /// By how much a call arrived before its window began, if the store's time is known.   µs
    pub(super) early: u64,
    /// The part of the common total that was spent in windows in which the store was well.
    pub(super) used: Vec<f64>,
    /// The part of the common total that was spent in the other windows.
    pub(super) used_without_store: Vec<f64>,
    /// By sidecar, its part of all that was spent.
    pub(super) shares: Vec<f64>,
    /// How long after all was well again each sidecar's first call arrived.   µs
    pub(super) back_after: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    target: Option<&'a str>,
    #[serde(borrow)]
    userid: Option<&'a str>,
    sent_us: Option<u64>,
    #[serde(borrow)]
    quota: Option<Vec<LineDraw<'a>>>,
}

#[derive(Deserialize)]
struct LineDraw<'a> {
    #[serde(borrow)]
    limit: &'a str,
    #[serde(borrow)]
    key: &'a str,
    /// The window; `None` where the sidecar did not know which.
    window: Option<u64>,
    total: u64,
    cost: u64,
}

/// Reads what the logs say of calls that left.
pub(super) fn read(logs: &[PathBuf]) -> HashMap<CallId, Told> {
    let mut told = HashMap::new();
    for path in logs {
        let mut log = BufReader::new(File::open(path).expect("every sidecar has a log"));
        let mut text = String::new();
        while log.read_line(&mut text).expect("it can be read") > 0 {
            if let Some((call, draws)) = read_line(&text) {
                let before = told.insert(call, draws);
                assert!(before.is_none(), "{call:?} has two lines");
            }
            text.clear();
        }
    }
    told
}

fn read_line(text: &str) -> Option<(CallId, Told)> {
    // The last of a sidecar that was killed may be cut.
    let line: Line<'_> = serde_json::from_str(text).ok()?;
    if line.target != Some("access") {
        return None;
    }
    line.sent_us?;
    let call = line.userid.and_then(CallId::parse)?;
    let user = USERS[usize::from(call.user)].0;
    let mut draws = [None, None];
    for draw in line.quota.unwrap_or_default() {
        let at = match (draw.limit.strip_prefix("rate_limit:"), draw.key) {
            (Some(PER_USER), key) if key == user => 0,
            (Some(EVERYBODY), EVERYBODY) => 1,
            other => panic!("{call:?} of {user} has no budget {other:?}"),
        };
        assert_eq!(draw.cost, call.cost(), "{call:?}");
        let Some(window) = draw.window else {
            continue;
        };
        let draw = Draw {
            window,
            total: draw.total,
            cost: draw.cost,
        };
        assert!(draws[at].replace(draw).is_none(), "{call:?} is paid twice");
    }
    Some((call, draws))
}

fn name(budget: usize) -> String {
    USERS
        .get(budget)
        .map_or(EVERYBODY, |user| user.0)
        .to_owned()
}

impl Evidence<'_> {
    /// Adds everything up.
    pub(super) fn account(&self) -> Account {
        let mut windows = self.windows();
        let unlogged = self.place_unlogged(&mut windows);
        let over = (0..BUDGETS).flat_map(|budget| {
            let windows = windows[budget].iter();
            windows.filter_map(move |(number, window)| {
                let over = (window.spent + window.unlogged).saturating_sub(window.total);
                (over > 0).then(|| (name(budget), *number, over))
            })
        });
        let over = over.collect();
        let mut calls: Vec<CallId> = self.arrivals.iter().map(|it| it.call).collect();
        calls.sort_by_key(|call| call.userid());
        let twice = calls.windows(2).filter(|two| two[0] == two[1]).count();
        let (late, late_awake) = self.late(&windows);
        let (used, used_without_store) = self.used(&windows[BUDGETS - 1]);
        Account {
            twice,
            unlogged,
            over,
            over_by_arrival: self.over_by_arrival(),
            late,
            late_awake,
            early: self.early(),
            used,
            used_without_store,
            shares: self.shares(&windows[BUDGETS - 1]),
            back_after: self.back_after(),
            windows,
        }
    }

    /// Of a budget, what its rule allows.
    fn total(&self, budget: usize) -> u64 {
        match budget {
            it if it == BUDGETS - 1 => self.plan.everybody,
            _ => self.plan.per_user,
        }
    }

    fn window_length(&self) -> u64 {
        u64::try_from(self.plan.window.as_micros()).expect("a window is short")
    }

    /// The windows by the lines, and when the first call of each arrived.
    fn windows(&self) -> Vec<BTreeMap<u64, Window>> {
        let mut windows = vec![BTreeMap::new(); BUDGETS];
        for (call, told) in &self.told {
            for (budget, draw) in call.budgets().into_iter().zip(told) {
                let Some(draw) = draw else { continue };
                assert_eq!(draw.total, self.total(budget), "no client changed it");
                let window = windows[budget].entry(draw.window).or_insert(Window {
                    spent: 0,
                    unlogged: 0,
                    total: draw.total,
                    first: None,
                    last: None,
                    by: vec![0; self.plan.sidecars],
                });
                window.spent += draw.cost;
                window.by[usize::from(call.sidecar)] += draw.cost;
            }
        }
        for arrival in &self.arrivals {
            let Some(told) = self.told.get(&arrival.call) else {
                continue;
            };
            for (budget, draw) in arrival.call.budgets().into_iter().zip(told) {
                let Some(draw) = draw else { continue };
                let window = windows[budget].get_mut(&draw.window);
                let window = window.expect("its line was counted");
                window.first.get_or_insert(arrival.at);
                window.last = Some(arrival.at);
            }
        }
        windows
    }

    /// Counts what arrived without a line where it arrived; returns how many calls that were.
    ///
    /// A call whose line names no window was paid from its sidecar's own share while that did not
    /// know the store's time. Nor does anybody else know which window that was: such calls are
    /// counted by their arrival alone. So is what arrived when the last window that is known was
    /// over.
    fn place_unlogged(&self, windows: &mut [BTreeMap<u64, Window>]) -> usize {
        let begin = windows.iter().map(|windows| {
            let begin = windows.iter();
            let begin = begin.filter_map(|(number, window)| Some((window.first?, *number)));
            let mut begin: Vec<(u64, u64)> = begin.collect();
            begin.sort_unstable();
            begin
        });
        let begin: Vec<Vec<(u64, u64)>> = begin.collect();
        let mut unlogged = 0;
        for arrival in &self.arrivals {
            if self.told.contains_key(&arrival.call) {
                continue;
            }
            unlogged += 1;
            for budget in arrival.call.budgets() {
                let begin = &begin[budget];
                let next = begin.partition_point(|(first, _)| *first <= arrival.at);
                let Some(at) = next.checked_sub(1) else {
                    continue;
                };
                if arrival.at - begin[at].0 >= self.window_length() {
                    continue;
                }
                // Where sidecars do not agree on the time, several windows are spent at once; which of
                // them it was cannot be known.
                let may_be = |(place, (first, number)): &(usize, &(u64, u64))| {
                    let last = windows[budget][number].last;
                    let was_edge = *place + 1 == at && arrival.at - begin[at].0 < EDGE;
                    let is_spent = last.is_some_and(|last| arrival.at <= last);
                    *first <= arrival.at && (*place == at || was_edge || is_spent)
                };
                let room = |(_, (_, number)): &(usize, &(u64, u64))| {
                    let window = &windows[budget][number];
                    window.total.saturating_sub(window.spent + window.unlogged)
                };
                let candidates = begin[..next].iter().enumerate().filter(may_be);
                let (_, (_, number)) = candidates.max_by_key(room).expect("one has begun");
                let number = *number;
                let window = windows[budget].get_mut(&number);
                window.expect("it is one of them").unlogged += arrival.call.cost();
            }
        }
        unlogged
    }

    /// Arrivals, counted by time alone. A span of N windows touches one window more. If the store's
    /// time is the time of day, windows can be separated, except for the first arrivals in one,
    /// which may have been decided in the one before. Calls that were decided before their sidecar
    /// stalled may arrive late, as many as the sidecar has connections.
    fn over_by_arrival(&self) -> Vec<(String, u64, u64)> {
        let length = self.window_length();
        let mut over = Vec::new();
        for budget in 0..BUDGETS {
            let spent = self
                .arrivals
                .iter()
                .filter(|it| it.call.budgets().contains(&budget));
            let spent: Vec<(u64, u64)> = spent.map(|it| (it.at, it.call.cost())).collect();
            let mut most = |span: &[(u64, u64)], windows: u64| {
                let (Some((first, _)), Some((last, _))) = (span.first(), span.last()) else {
                    return;
                };
                let sum: u64 = span.iter().map(|(_, cost)| cost).sum();
                let allowed = windows * self.total(budget) + self.may_come_late(*first, *last);
                if sum > allowed {
                    over.push((name(budget), first / length, sum - allowed));
                }
            };
            if self.time_of_day {
                for window in spent.chunk_by(|one, other| one.0 / length == other.0 / length) {
                    let begins = window.partition_point(|(at, _)| at % length < BEGINS);
                    most(&window[begins..], 1);
                }
            }
            for windows in [1, 4, 16, u64::MAX / length] {
                let mut from = 0;
                // One span in each window.
                while let Some((first, _)) = spent.get(from) {
                    let end = first.saturating_add(windows * length);
                    let until = spent.partition_point(|(at, _)| *at < end);
                    let last = spent[until - 1].0;
                    let touched = windows.min((last - first) / length + 1) + 1;
                    most(&spent[from..until], touched);
                    let next = first + length;
                    from = spent.partition_point(|(at, _)| *at < next);
                }
            }
        }
        over
    }

    /// Calls decided before their sidecar paused, that arrived between these two.   tokens
    fn may_come_late(&self, from: u64, to: u64) -> u64 {
        let resumed = self.done.iter().filter(|done| {
            let at = done.to;
            done.fault == Fault::Paused && from.saturating_sub(UNDER_WAY) <= at && at <= to
        });
        (resumed.count() * CONNECTIONS) as u64 * EXPENSIVE_COST
    }

    /// By how much any call came after one of a later window; and how much of that its sidecar was
    /// awake.
    fn late(&self, windows: &[BTreeMap<u64, Window>]) -> (u64, u64) {
        // Of each budget, by window, when the first of any later one came.
        let next = windows.iter().map(|windows| {
            let mut earliest = u64::MAX;
            let mut next = HashMap::new();
            for (number, window) in windows.iter().rev() {
                next.insert(*number, earliest);
                earliest = earliest.min(window.first.unwrap_or(u64::MAX));
            }
            next
        });
        let next: Vec<HashMap<u64, u64>> = next.collect();
        let (mut worst, mut worst_awake) = (0, 0);
        for arrival in &self.arrivals {
            let Some(told) = self.told.get(&arrival.call) else {
                continue;
            };
            for (budget, draw) in arrival.call.budgets().into_iter().zip(told) {
                let Some(draw) = draw else { continue };
                let next = next[budget][&draw.window];
                let late = arrival.at.saturating_sub(next);
                if late == 0 {
                    continue;
                }
                let own = usize::from(arrival.call.sidecar);
                let pauses = self
                    .done
                    .iter()
                    .filter(|done| done.fault == Fault::Paused && done.sidecar == Some(own));
                let still = pauses.map(|done| {
                    let (from, to) = (done.from.max(next), done.to.min(arrival.at));
                    to.saturating_sub(from)
                });
                worst = worst.max(late);
                worst_awake = worst_awake.max(late.saturating_sub(still.sum()));
            }
        }
        (worst, worst_awake)
    }

    /// By how much any call came before its window, where the store's time is that of day.
    fn early(&self) -> u64 {
        if !self.time_of_day {
            return 0;
        }
        let length = self.window_length();
        let early = self.arrivals.iter().flat_map(|arrival| {
            let told = self.told.get(&arrival.call).copied().unwrap_or_default();
            let begin = told
                .into_iter()
                .flatten()
                .map(move |draw| draw.window * length);
            begin.map(|begin| begin.saturating_sub(arrival.at))
        });
        early.max().unwrap_or(0)
    }

    /// The part of the common total that was spent in each window that lay wholly in the load: where the store was
    /// well, and in the others.
    fn used(&self, windows: &BTreeMap<u64, Window>) -> (Vec<f64>, Vec<f64>) {
        let length = self.window_length();
        let firsts = windows.iter();
        let firsts = firsts.filter_map(|(number, window)| Some((*number, window.first?)));
        let firsts: BTreeMap<u64, u64> = firsts.collect();
        let (Some((first, _)), Some((last, _))) =
            (firsts.first_key_value(), firsts.last_key_value())
        else {
            return (Vec::new(), Vec::new());
        };
        let (mut used, mut without_store) = (Vec::new(), Vec::new());
        for number in *first..=*last {
            // A window in which nothing was spent began this much later than the last one in which some was.
            let (known, at) = firsts
                .range(..=number)
                .next_back()
                .expect("the first is one");
            let begin = at + (number - known) * length;
            if begin < self.from + length || begin + length > self.to {
                continue;
            }
            let spent = windows.get(&number);
            let spent = spent.map_or(0, |window| window.spent + window.unlogged);
            let part = spent as f64 / self.plan.everybody as f64;
            let is_well = !self.done.iter().any(|done| {
                done.sidecar.is_none() && done.from < begin + length && begin < done.to + FOUND_OUT
            });
            if is_well {
                &mut used
            } else {
                &mut without_store
            }
            .push(part);
        }
        (used, without_store)
    }

    fn shares(&self, windows: &BTreeMap<u64, Window>) -> Vec<f64> {
        let mut sums = vec![0; self.plan.sidecars];
        // In the first ones not all have begun.
        for window in windows.values().skip(2) {
            for (sum, by) in sums.iter_mut().zip(&window.by) {
                *sum += by;
            }
        }
        let all: u64 = sums.iter().sum();
        let part = |sum: u64| sum as f64 / all.max(1) as f64;
        sums.into_iter().map(part).collect()
    }

    fn back_after(&self) -> Vec<Option<u64>> {
        let later = &self.arrivals[self.arrivals.partition_point(|it| it.at < self.well)..];
        let first = |sidecar: usize| {
            let own = later
                .iter()
                .find(|it| usize::from(it.call.sidecar) == sidecar);
            own.map(|arrival| arrival.at - self.well)
        };
        (0..self.plan.sidecars).map(first).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::faults::Faults;
    use super::super::load::Demand;
    use super::*;

    const SECOND: u64 = 1_000_000;
    /// Where windows begin.
    const BEGIN: u64 = 1_000 * SECOND;

    fn plan() -> Plan {
        Plan {
            name: "test",
            sidecars: 2,
            window: Duration::from_secs(1),
            everybody: 10,
            per_user: 6,
            away: "safe",
            demand: Demand {
                open: 1.0,
                think: Duration::ZERO,
            },
            lasts: Duration::from_secs(2),
            faults: Faults::None,
            seed: 0,
        }
    }

    /// Calls of one token each by turns of two sidecars and two users: when each arrived, and
    /// which window its line says, if it has one.
    fn account(calls: &[(u64, Option<u64>)], done: Vec<Done>) -> Account {
        let plan = plan();
        let mut evidence = Evidence {
            plan: &plan,
            time_of_day: true,
            told: HashMap::new(),
            arrivals: Vec::new(),
            done,
            from: BEGIN,
            well: BEGIN + 10 * SECOND,
            to: BEGIN + 10 * SECOND,
        };
        for (at, (after, window)) in calls.iter().enumerate() {
            // No expensive one.
            let call = CallId::new(at % 2, at % 2, 8 * at as u32 + 1);
            evidence.arrivals.push(Arrival {
                at: BEGIN + after,
                call,
            });
            let draw = |total| {
                window.map(|window| Draw {
                    window: BEGIN / SECOND + window,
                    total,
                    cost: 1,
                })
            };
            if window.is_some() {
                evidence.told.insert(call, [draw(6), draw(10)]);
            }
        }
        evidence.arrivals.sort_by_key(|arrival| arrival.at);
        evidence.account()
    }

    fn many(count: usize, at: u64, window: Option<u64>) -> Vec<(u64, Option<u64>)> {
        (0..count as u64)
            .map(|step| (at + 1_000 * step, window))
            .collect()
    }

    #[test]
    fn spending_within_the_total_is_accepted() {
        let calls = [many(10, 200_000, Some(0)), many(10, 1_200_000, Some(1))].concat();
        let account = account(&calls, Vec::new());
        assert!(account.over.is_empty() && account.over_by_arrival.is_empty());
        assert_eq!((account.late, account.early, account.unlogged), (0, 0, 0));
        // The first window begins with the load.
        assert_eq!(account.used, [1.0]);
        assert_eq!(account.shares, [0.0, 0.0]);
    }

    #[test]
    fn more_than_windows_can_have_is_found_whatever_the_lines_say() {
        // Each window by its lines, but three of them within one.
        let calls = (0..3).flat_map(|window| many(10, 400_000 * window, Some(window)));
        let calls: Vec<_> = calls.collect();
        let account = account(&calls, Vec::new());
        assert_eq!(account.over, []);
        let everybody = account
            .over_by_arrival
            .iter()
            .filter(|it| it.0 == EVERYBODY);
        assert!(everybody.count() > 0, "{account:?}");
    }

    #[test]
    fn one_call_too_many_is_found_with_and_without_its_line() {
        for window in [Some(0), None] {
            let calls = [many(10, 200_000, Some(0)), many(1, 300_000, window)].concat();
            let account = account(&calls, Vec::new());
            let everybody = (EVERYBODY.to_owned(), BEGIN / SECOND, 1);
            assert_eq!(account.over, std::slice::from_ref(&everybody));
            assert_eq!(account.over_by_arrival, [everybody]);
            assert_eq!(account.unlogged, usize::from(window.is_none()));
        }
        let calls = many(13, 200_000, Some(0));
        let over: Vec<String> = account(&calls, Vec::new())
            .over
            .into_iter()
            .map(|it| it.0)
            .collect();
        assert_eq!(over, ["alice", EVERYBODY]);
    }

    #[test]
    fn a_window_that_is_spent_late_is_found_however_it_is_counted() {
        // Ten in the second window, and ten that say that they are of the first.
        let calls = [
            many(1, 900_000, Some(0)),
            many(10, 1_200_000, Some(1)),
            many(9, 1_500_000, Some(0)),
        ]
        .concat();
        let account = account(&calls, Vec::new());
        assert_eq!(account.over, []);
        assert_eq!(account.over_by_arrival.len(), 3);
        assert_eq!(account.late, 308_000);
        assert_eq!(account.late_awake, 308_000);
    }

    #[test]
    fn a_stopped_sidecar_may_be_late_by_its_pause() {
        let pause = |sidecar| Done {
            fault: Fault::Paused,
            sidecar: Some(sidecar),
            from: BEGIN + 950_000,
            to: BEGIN + 1_500_000,
        };
        let calls = [
            (1_100_000, Some(1)),
            (1_200_000, Some(1)),
            (1_510_000, Some(0)),
        ];
        assert_eq!(account(&calls, vec![pause(0)]).late_awake, 10_000);
        assert_eq!(account(&calls, vec![pause(1)]).late_awake, 410_000);
    }

    #[test]
    fn a_call_before_its_window_and_a_call_that_came_twice_are_found() {
        let calls = [(500_000, Some(0)), (990_000, Some(1))];
        let account = account(&calls, Vec::new());
        assert_eq!(account.early, 10_000);
        assert_eq!(account.twice, 0);
        let plan = plan();
        let arrival = Arrival {
            at: BEGIN,
            call: CallId::new(0, 0, 1),
        };
        let evidence = Evidence {
            plan: &plan,
            time_of_day: false,
            told: HashMap::new(),
            arrivals: vec![arrival, arrival],
            done: Vec::new(),
            from: BEGIN,
            well: BEGIN,
            to: BEGIN,
        };
        assert_eq!(evidence.account().twice, 1);
    }

    #[test]
    fn a_window_of_which_nothing_was_spent_counts_as_one() {
        let calls = [many(10, 1_000, Some(0)), many(10, 5_001_000, Some(5))].concat();
        let well = account(&calls, Vec::new());
        assert_eq!(well.used, [0.0, 0.0, 0.0, 0.0, 1.0]);
        let away = Done {
            fault: Fault::LeaderKilled,
            sidecar: None,
            from: BEGIN + 2_100_000,
            to: BEGIN + 2_200_000,
        };
        let struck = account(&calls, vec![away]);
        assert_eq!(struck.used, [0.0]);
        assert_eq!(struck.used_without_store, [0.0, 0.0, 0.0, 1.0]);
    }
}
