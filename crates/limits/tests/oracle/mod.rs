//! Recounts everything from the full history, by brute force, and says which promise is broken.
//!
//! It shares no code with the limiters: it keeps every call that was ever let through and
//! counts again, each time, which of them a limit still has to count.

#![allow(dead_code, reason = "each binary of tests uses a part of this")]

mod recent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::BucketId;
use tidegate_limits::policy::{LimitRule, Scope, WindowShape, WindowStamp};
use tidegate_limits::scheduler::{BucketRule, OnExcess, Settlement, Supplier, Supply};
use tidegate_limits::{Call, Fill, Limit, Timestamp, Tokens};

/// Numbers of tokens this close are the same: they are sums of fractions of two, except for
/// rounding.
pub(crate) const CLOSE: f64 = 1e-6;

/// A violation of a law, as a sentence.
pub(crate) type Violation = String;

/// A run of a call, from its admission to its end.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) call: Call,
    began: u64,
    pub(crate) sent: Option<u64>,
    pub(crate) replied: Option<u64>,
    pub(crate) end: Option<End>,
    /// The run's draw in the history of its bucket, and the bucket's life.
    drawn: Option<(u64, usize)>,
    /// Limits that need not remember it: a reload made them forget.
    forgotten_by: BTreeSet<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished(u64),
    Undrawn(u64),
}

/// The history so far, and the rules in force.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    rules: Arc<[LimitRule]>,
    supplies: BTreeMap<(Arc<str>, Supplier), Supply>,
    buckets: BTreeMap<BucketId, BucketHistory>,
    lives: u64,
    runs: Vec<Run>,
    /// Limits of which the exact count is not known after a reload; the count here is a lower
    /// bound for them.
    inexact: BTreeSet<Arc<str>>,
    /// Limits that had the same rule except the maximum throughout, and the largest maximum
    /// ever in force.
    constant: Arc<BTreeMap<Arc<str>, (LimitRule, u64)>>,
}

impl Oracle {
    pub(crate) fn new(rules: &[LimitRule]) -> Self {
        let constant = rules
            .iter()
            .map(|rule| {
                (
                    rule.name.clone(),
                    (rule.clone(), u64::from(rule.limit.max())),
                )
            })
            .collect();
        Self {
            rules: rules.into(),
            supplies: BTreeMap::new(),
            buckets: BTreeMap::new(),
            lives: 0,
            runs: Vec::new(),
            inexact: BTreeSet::new(),
            constant: Arc::new(constant),
        }
    }

    pub(crate) fn rules(&self) -> &[LimitRule] {
        &self.rules
    }

    /// Whether the count of this limit is exact.
    pub(crate) fn is_exact(&self, rule: &LimitRule) -> bool {
        !self.inexact.contains(&rule.name)
    }

    /// Whether the counts of all limits are.
    pub(crate) fn is_exact_throughout(&self) -> bool {
        self.inexact.is_empty()
    }

    /// Whether the counts of all limits are that the call meets.
    pub(crate) fn is_exact_for(&self, call: &Call) -> bool {
        let mut own = self.rules.iter().filter(|rule| meets(rule, call));
        own.all(|rule| self.is_exact(rule))
    }

    pub(crate) fn max(&self, rule: &LimitRule, now: u64) -> u64 {
        let told = Supplier::ALL.iter().filter_map(|&supplier| {
            let supply = self.supplies.get(&(rule.name.clone(), supplier))?;
            let &Supply::Capacity {
                capacity,
                expires_at,
                then,
            } = supply
            else {
                return None;
            };
            let expired = expires_at.is_some_and(|end| now >= end.as_nanos());
            Some(if expired { then } else { capacity })
        });
        u64::from(told.min().unwrap_or(u32::MAX).min(rule.limit.max()))
    }

    /// Drawn and not back, recounted.
    pub(crate) fn used(&self, rule: &LimitRule, now: u64) -> u64 {
        let counted = |run: &&Run| meets(rule, &run.call) && !run.forgotten_by.contains(&rule.name);
        self.runs
            .iter()
            .filter(counted)
            .map(|run| draw_now(&rule.limit, run, now))
            .sum()
    }

    /// Whether each limit of the call has room for it.
    pub(crate) fn could_run(&self, call: &Call, now: u64) -> bool {
        self.rules
            .iter()
            .filter(|rule| meets(rule, call))
            .all(|rule| self.has_room(rule, call, now))
            && self.has_tokens(call, now, CLOSE)
    }

    pub(crate) fn has_room(&self, rule: &LimitRule, call: &Call, now: u64) -> bool {
        self.taken(rule, call, now) + draw(&rule.limit, call) <= self.max(rule, now)
    }

    /// The part of a limit that is not there for this call: what is used, and what is kept for another class and
    /// not used by it.
    pub(crate) fn taken(&self, rule: &LimitRule, call: &Call, now: u64) -> u64 {
        let used = self.used(rule, now);
        match rule.reserve {
            Some(reserve) if reserve.class != call.class => {
                let of_class: u64 = self
                    .runs
                    .iter()
                    .filter(|run| run.call.class == reserve.class)
                    .filter(|run| meets(rule, &run.call) && !run.forgotten_by.contains(&rule.name))
                    .map(|run| draw_now(&rule.limit, run, now))
                    .sum();
                used - of_class + of_class.max(u64::from(reserve.amount))
            }
            Some(_) | None => used,
        }
    }

    /// The part of a limit that a call of this class could have if no call used anything.
    pub(crate) fn reach(&self, rule: &LimitRule, call: &Call, now: u64) -> u64 {
        let kept = rule.reserve.filter(|reserve| reserve.class != call.class);
        let kept = kept.map_or(0, |reserve| u64::from(reserve.amount));
        self.max(rule, now).saturating_sub(kept)
    }

    /// Whether the call's bucket lets it through with this much to spare, or is full.
    pub(crate) fn has_tokens(&self, call: &Call, now: u64, spare: f64) -> bool {
        let Some(bucket) = self.bucket(call) else {
            return true;
        };
        let (level, rule) = bucket.level(now);
        level >= call.tokens.get().min(rule.limit.most()) + spare
    }

    /// Whether there will be enough by then, as far as one can tell now: a supply that runs out
    /// before, or is set again, may change it either way.
    pub(crate) fn has_tokens_by(&self, call: &Call, now: u64, deadline: u64) -> bool {
        let Some(bucket) = self.bucket(call) else {
            return true;
        };
        let (level, rule) = bucket.level(now);
        let flows = (deadline - now) as f64 * 1e-9 * bucket.flows(now);
        let most = rule.limit.most();
        (level + flows).min(most) >= call.tokens.get().min(most) + CLOSE || level >= most
    }

    pub(crate) fn bucket(&self, call: &Call) -> Option<&BucketHistory> {
        self.buckets.get(&call.bucket?)
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = (BucketId, &BucketHistory)> {
        self.buckets.iter().map(|(&id, bucket)| (id, bucket))
    }

    /// A bucket was made, or is another one from now on.
    pub(crate) fn bucket_set(&mut self, id: BucketId, rule: &BucketRule, now: u64) {
        self.lives += 1;
        let life = self.lives;
        let bucket = self.buckets.entry(id).or_insert_with(|| BucketHistory {
            life,
            events: Vec::new(),
        });
        bucket.events.push((now, Happened::Set(rule.clone())));
    }

    pub(crate) fn bucket_removed(&mut self, id: BucketId) {
        self.buckets.remove(&id);
    }

    /// Settles a run: its charge comes back, or changes by what it turned out to cost.
    fn settle(&mut self, run: usize, now: u64, measured: Option<Tokens>) {
        let run = &self.runs[run];
        let (Some((life, draw)), Some(id)) = (run.drawn, run.call.bucket) else {
            return;
        };
        let Some(bucket) = self.buckets.get_mut(&id).filter(|one| one.life == life) else {
            return;
        };
        let happened = match measured {
            None => Happened::PutBack(draw),
            Some(measured) => {
                let (_, rule) = bucket.level(now);
                if rule.settlement == Settlement::Estimate {
                    return;
                }
                Happened::Settled(draw, measured.get())
            }
        };
        bucket.events.push((now, happened));
    }

    /// A call was let through.
    pub(crate) fn ran(&mut self, call: &Call, now: u64) -> Result<usize, Violation> {
        for rule in self.rules.iter().filter(|rule| meets(rule, call)) {
            if !self.has_room(rule, call, now) {
                return Err(format!(
                    "at {now}: {call:?} was let through with {} of {} in use: {rule:?}",
                    self.used(rule, now),
                    self.max(rule, now),
                ));
            }
        }
        if !self.has_tokens(call, now, -CLOSE) {
            let level = self.bucket(call).map(|bucket| bucket.level(now));
            return Err(format!("at {now}: {call:?} was let through with {level:?}"));
        }
        Ok(self.ran_unasked(call, now))
    }

    /// A call was admitted without a check here: only spans and peaks are checked, later.
    pub(crate) fn ran_unasked(&mut self, call: &Call, now: u64) -> usize {
        let forgotten_by = BTreeSet::new();
        let bucket = call.bucket.and_then(|id| self.buckets.get_mut(&id));
        let drawn = bucket.map(|bucket| {
            bucket
                .events
                .push((now, Happened::Drawn(call.tokens.get())));
            (bucket.life, bucket.events.len() - 1)
        });
        self.runs.push(Run {
            drawn,
            call: call.clone(),
            began: now,
            sent: None,
            replied: None,
            end: None,
            forgotten_by,
        });
        self.runs.len() - 1
    }

    pub(crate) fn sent(&mut self, run: usize, now: u64) {
        self.runs[run].sent.get_or_insert(now);
    }

    pub(crate) fn replied(&mut self, run: usize, now: u64) {
        self.runs[run].replied.get_or_insert(now);
    }

    pub(crate) fn ended(
        &mut self,
        run: usize,
        end: End,
        measured: Option<Tokens>,
    ) -> Result<(), Violation> {
        match (end, measured) {
            (End::Undrawn(now), _) => self.settle(run, now, None),
            (End::Finished(now), Some(measured)) => self.settle(run, now, Some(measured)),
            (End::Finished(_), None) => {}
        }
        match self.runs[run].end.replace(end) {
            None => Ok(()),
            Some(before) => Err(format!("run {run} ended twice: {before:?}, then {end:?}")),
        }
    }

    pub(crate) fn supplied(&mut self, limit: &Arc<str>, supplier: Supplier, supply: Supply) {
        self.supplies.insert((limit.clone(), supplier), supply);
    }

    pub(crate) fn bucket_supplied(&mut self, id: BucketId, supply: Supply<Fill>, now: u64) {
        let bucket = self.buckets.get_mut(&id).expect("it was made");
        bucket.events.push((now, Happened::Supplied(supply)));
    }

    /// Moments at which a supply runs out.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = u64> {
        let limits = self.supplies.values().filter_map(|supply| match supply {
            Supply::Configured => None,
            Supply::Capacity { expires_at, .. } => expires_at.map(Timestamp::as_nanos),
        });
        let buckets = self.buckets.values();
        limits.chain(buckets.filter_map(BucketHistory::supply_expires))
    }

    /// Another policy is in force.
    pub(crate) fn applied(&mut self, rules: &[LimitRule], now: u64) {
        let old = std::mem::replace(&mut self.rules, rules.into());
        for rule in rules {
            let before = old.iter().find(|before| before.name == rule.name);
            // Whose the departures before were is not known to a reserve that is new.
            if rule.reserve.is_some() || before.is_some_and(|before| before.reserve.is_some()) {
                self.inexact.insert(rule.name.clone());
            }
            match before.map(|before| (&before.limit, &rule.limit)) {
                Some((Limit::Outstanding { .. }, Limit::Outstanding { .. })) => {}
                Some((&Limit::Window { stamp: from, .. }, &Limit::Window { stamp: to, .. })) => {
                    let limit = &before.expect("there was one").limit;
                    if is_no_longer(&rule.limit, limit) && from == to {
                        continue;
                    }
                    self.inexact.insert(rule.name.clone());
                    for run in &mut self.runs {
                        let over = run.end.is_some() || run.replied.is_some();
                        let freed =
                            departed(from, run).is_some_and(|at| !still_counts(limit, at, now));
                        if freed || (from != to && over) {
                            run.forgotten_by.insert(rule.name.clone());
                        }
                    }
                }
                None | Some(_) => {
                    // It counts what is in flight, which is known, but not of which class it was.
                    if rule.reserve.is_none() {
                        self.inexact.remove(&rule.name);
                    }
                    self.supplies.retain(|(name, _), _| *name != rule.name);
                    for run in self.runs.iter_mut() {
                        if run.end.is_some() {
                            run.forgotten_by.insert(rule.name.clone());
                        } else {
                            run.forgotten_by.remove(&rule.name);
                        }
                    }
                }
            }
        }
        self.supplies
            .retain(|(name, _), _| rules.iter().any(|rule| rule.name == *name));
        let same = |a: &LimitRule, b: &LimitRule| {
            a.scope == b.scope && with_max(&a.limit, 0) == with_max(&b.limit, 0)
        };
        Arc::make_mut(&mut self.constant).retain(|name, (constant, largest)| {
            let Some(rule) = rules.iter().find(|rule| rule.name == *name) else {
                return false;
            };
            *largest = (*largest).max(u64::from(rule.limit.max()));
            same(rule, constant)
        });
    }

    /// Moments after `now` at which a departure stops counting, for limits that the call meets.
    pub(crate) fn openings(&self, call: &Call, now: u64) -> Vec<u64> {
        let mut openings = Vec::new();
        for rule in self.rules.iter().filter(|rule| meets(rule, call)) {
            let Limit::Window { stamp, .. } = rule.limit else {
                continue;
            };
            let departures = self.runs.iter().filter(|run| meets(rule, &run.call));
            let freeing = departures.filter_map(|run| frees_at(&rule.limit, departed(stamp, run)?));
            openings.extend(freeing.filter(|&moment| moment > now));
        }
        if let Some(bucket) = self.bucket(call) {
            let (level, rule) = bucket.level(now);
            let lacking = call.tokens.get().min(rule.limit.most()) + CLOSE - level;
            // As if what flows now flowed for ever: where it does not, a supply runs out before.
            let wait = (lacking / bucket.flows(now) * 1e9).ceil();
            openings.extend((wait > 0.0 && wait < 1e12).then(|| now + wait as u64 + 1));
        }
        openings
    }

    /// Every two draws from every bucket whose rule stayed what it was: what was drawn from one
    /// up to the other is no more than a burst and what flowed in between.
    pub(crate) fn check_rates(&self) -> Result<(), Violation> {
        for (id, bucket) in &self.buckets {
            let [(_, Happened::Set(rule)), draws @ ..] = &bucket.events[..] else {
                return Err(format!("{id:?} was never made"));
            };
            for (nth, (from, first)) in draws.iter().enumerate() {
                let first = match *first {
                    Happened::Drawn(first) => first,
                    Happened::Supplied(_) => continue,
                    Happened::Set(_) | Happened::PutBack(_) | Happened::Settled(..) => break,
                };
                let mut drawn = first;
                for (to, event) in &draws[nth + 1..] {
                    let cost = match *event {
                        Happened::Drawn(cost) => cost,
                        // It lowers what flows from then on.
                        Happened::Supplied(_) => continue,
                        Happened::Set(_) | Happened::PutBack(_) | Happened::Settled(..) => break,
                    };
                    let flowed = bucket.flowed(*from, *to);
                    let (burst, needed) = (rule.limit.most(), cost.min(rule.limit.most()));
                    if drawn + needed > burst + flowed + CLOSE {
                        return Err(format!(
                            "{drawn} and {cost} were drawn from {from} to {to}: {rule:?}"
                        ));
                    }
                    drawn += cost;
                }
            }
        }
        Ok(())
    }

    /// Every moment at which a call began, for every limit that stayed what it was: at most the
    /// largest maximum is in flight.
    pub(crate) fn check_peaks(&self) -> Result<(), Violation> {
        for (rule, largest) in self.constant.values() {
            if !matches!(rule.limit, Limit::Outstanding { .. }) {
                continue;
            }
            let runs: Vec<&Run> = self
                .runs
                .iter()
                .filter(|run| meets(rule, &run.call))
                .collect();
            // Calls may begin and end within one moment, so only those that outlast it count.
            let in_flight = |run: &Run, moment: u64| {
                run.began <= moment
                    && match run.end {
                        Some(End::Finished(end) | End::Undrawn(end)) => end > moment,
                        None => true,
                    }
            };
            for moment in runs.iter().map(|run| run.began) {
                let peak = runs.iter().filter(|run| in_flight(run, moment)).count() as u64;
                if peak > *largest {
                    return Err(format!(
                        "{peak} of {largest} were in flight at {moment}: {rule:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every span of every limit that stayed what it was: at most the largest maximum departs.
    pub(crate) fn check_spans(&self) -> Result<(), Violation> {
        for (rule, largest) in self.constant.values() {
            let Limit::Window {
                length,
                shape,
                stamp,
                ..
            } = rule.limit
            else {
                continue;
            };
            let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            let runs = self.runs.iter().filter(|run| meets(rule, &run.call));
            let departures: Vec<(u64, u64)> = runs
                .filter_map(|run| Some((departed(stamp, run)?, u64::from(run.call.cost.get()))))
                .collect();
            for &(start, _) in &departures {
                // The densest spans begin with a departure.
                let inside = |at: u64| match shape {
                    WindowShape::Sliding => at >= start && at - start < length,
                    WindowShape::Fixed { phase } => {
                        length > 0 && aligned(at, phase, length) == aligned(start, phase, length)
                    }
                };
                let cost: u64 = departures
                    .iter()
                    .filter(|(at, _)| inside(*at))
                    .map(|(_, cost)| cost)
                    .sum();
                if cost > *largest {
                    return Err(format!(
                        "{cost} of {largest} departed within {length} from {start}: {rule:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Everything that happened to a bucket since it was made.
#[derive(Clone, Debug)]
pub(crate) struct BucketHistory {
    life: u64,
    events: Vec<(u64, Happened)>,
}

#[derive(Clone, Debug)]
enum Happened {
    Set(BucketRule),
    /// The bucket's rate was set by a supply.
    Supplied(Supply<Fill>),
    Drawn(f64),
    /// The draw of this event never was.
    PutBack(usize),
    /// The draw of this event turned out to be this.
    Settled(usize, f64),
}

impl BucketHistory {
    /// Plays everything from the beginning.
    pub(crate) fn level(&self, now: u64) -> (f64, &BucketRule) {
        let mut rule: Option<&BucketRule> = None;
        let (mut level, mut at) = (0.0_f64, 0);
        let mut taken: BTreeMap<usize, f64> = BTreeMap::new();
        // The room in the bucket before and after each event, less what came back since.
        let mut rooms: Vec<(usize, f64)> = Vec::new();
        let flow = |level: f64, rule: &BucketRule, from: u64, to: u64| {
            (level + self.flowed(from, to)).min(rule.limit.most())
        };
        for (nth, (moment, event)) in self.events.iter().enumerate() {
            if let Some(rule) = rule {
                level = flow(level, rule, at, *moment);
            }
            at = *moment;
            rooms.extend(rule.map(|rule| (nth, rule.limit.most() - level)));
            // No more comes back than would still be there if it had not been drawn.
            let comes_back = |rooms: &mut Vec<(usize, f64)>, draw: usize, tokens: f64| {
                let since = rooms.iter_mut().filter(|(after, _)| *after > draw);
                let mut since: Vec<_> = since.collect();
                let least = since.iter().map(|(_, room)| *room).fold(tokens, f64::min);
                since.iter_mut().for_each(|(_, room)| *room -= least);
                least
            };
            let before = level;
            let mut whole = 0.0;
            match event {
                Happened::Set(new) => {
                    if rule.is_none() {
                        level = new.limit.most();
                    }
                    rule = Some(new);
                }
                Happened::Supplied(_) => {}
                Happened::Drawn(cost) => {
                    whole = *cost;
                    level -= cost;
                }
                Happened::PutBack(draw) => level += comes_back(&mut rooms, *draw, taken[draw]),
                Happened::Settled(draw, measured) => {
                    let Happened::Drawn(estimate) = self.events[*draw].1 else {
                        unreachable!("only draws are settled");
                    };
                    let more = measured - estimate;
                    whole = estimate + more;
                    level -= match more {
                        ..0.0 => -comes_back(&mut rooms, *draw, taken[draw].min(-more)),
                        _ => more,
                    };
                }
            }
            let rule = rule.expect("it is made before anything happens");
            let burst = rule.limit.most();
            let debt_max = (10.0 * burst).max(3600.0 * self.flows(at)).max(whole);
            level = level.min(burst).max(before.min(-debt_max));
            if let Happened::Set(_) = event {
                rooms.push((nth, burst - level));
            }
            taken.insert(nth, before - level);
        }
        let rule = rule.expect("it was made");
        (flow(level, rule, at, now), rule)
    }

    /// Tokens a second that flow right after everything that happened up to a moment.
    pub(crate) fn flows(&self, moment: u64) -> f64 {
        let past = || self.events.iter().rev().filter(|(at, _)| *at <= moment);
        let by_rule = past().find_map(|(_, event)| match event {
            Happened::Set(rule) => Some(rule.limit.per_second()),
            _ => None,
        });
        let told = past().find_map(|(_, event)| match event {
            Happened::Supplied(supply) => Some(*supply),
            _ => None,
        });
        let told = match told {
            None | Some(Supply::Configured) => f64::INFINITY,
            Some(Supply::Capacity {
                capacity,
                expires_at,
                then,
            }) => {
                let expired = expires_at.is_some_and(|end| moment >= end.as_nanos());
                if expired { then.get() } else { capacity.get() }
            }
        };
        by_rule.expect("it was made").min(told)
    }

    /// Tokens that flow between two moments, into a bucket that is never full.
    fn flowed(&self, from: u64, to: u64) -> f64 {
        let changes = self.events.iter().flat_map(|(at, event)| {
            let expires_at = match event {
                Happened::Supplied(Supply::Capacity { expires_at, .. }) => *expires_at,
                _ => None,
            };
            [Some(*at), expires_at.map(Timestamp::as_nanos)]
        });
        let between = changes.flatten().filter(|&at| from < at && at < to);
        let mut moments: BTreeSet<u64> = between.collect();
        moments.extend([from, to]);
        let moments: Vec<u64> = moments.into_iter().collect();
        moments
            .windows(2)
            .map(|span| (span[1] - span[0]) as f64 * 1e-9 * self.flows(span[0]))
            .sum()
    }

    /// When what was told last runs out.
    fn supply_expires(&self) -> Option<u64> {
        let told = self.events.iter().rev().find_map(|(_, event)| match event {
            Happened::Supplied(supply) => Some(*supply),
            _ => None,
        });
        match told? {
            Supply::Configured => None,
            Supply::Capacity { expires_at, .. } => expires_at.map(Timestamp::as_nanos),
        }
    }

    /// Whether a call that comes now, behind this many tokens, is refused.
    pub(crate) fn rejects(&self, now: u64, ahead: f64, cost: f64, spare: f64) -> bool {
        let (level, rule) = self.level(now);
        rule.on_excess == OnExcess::Reject && level - ahead < cost.min(rule.limit.most()) + spare
    }
}

/// Whether the rule is for this call.
pub(crate) fn meets(rule: &LimitRule, call: &Call) -> bool {
    match &rule.scope {
        Scope::Every => true,
        Scope::Function(function) => *function == call.function,
        Scope::Backend(backend) => *backend == call.backend,
        // A call that any server may serve meets none of their limits before it is bound.
        Scope::Server(backend, server) => {
            *backend == call.backend && call.server.named() == Some(*server)
        }
        Scope::Class(class) => *class == call.class,
        Scope::EveryBut(classes) => !classes.contains(&call.class),
    }
}

/// How much of the limit the call draws.
pub(crate) fn draw(limit: &Limit, call: &Call) -> u64 {
    match limit {
        // Paced limits have laws of their own, in paced_limits.rs.
        Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
        Limit::Outstanding { .. } => 1,
        Limit::Window { .. } => u64::from(call.cost.get()),
    }
}

fn draw_now(limit: &Limit, run: &Run, now: u64) -> u64 {
    match *limit {
        Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
        Limit::Outstanding { .. } => u64::from(run.end.is_none()),
        Limit::Window { stamp, .. } => match departed(stamp, run) {
            Some(at) if still_counts(limit, at, now) => draw(limit, &run.call),
            None if run.end.is_none() => draw(limit, &run.call),
            Some(_) | None => 0,
        },
    }
}

fn departed(stamp: WindowStamp, run: &Run) -> Option<u64> {
    let told = match stamp {
        WindowStamp::Sent => run.sent,
        WindowStamp::Replied => run.replied,
    };
    told.or(match run.end {
        Some(End::Finished(at)) => Some(at),
        Some(End::Undrawn(_)) | None => None,
    })
}

fn still_counts(limit: &Limit, at: u64, now: u64) -> bool {
    match *limit {
        Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
        Limit::Outstanding { .. } => false,
        Limit::Window {
            length,
            guard,
            shape: WindowShape::Sliding,
            ..
        } => Duration::from_nanos(now - at) < length.saturating_add(guard),
        Limit::Window {
            length,
            shape: WindowShape::Fixed { phase },
            ..
        } => {
            let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            length > 0 && aligned(at, phase, length) == aligned(now, phase, length)
        }
    }
}

fn frees_at(limit: &Limit, at: u64) -> Option<u64> {
    match *limit {
        Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
        Limit::Outstanding { .. } => None,
        Limit::Window {
            length,
            guard,
            shape: WindowShape::Sliding,
            ..
        } => u64::try_from(length.saturating_add(guard).as_nanos())
            .ok()?
            .checked_add(at),
        Limit::Window {
            length,
            shape: WindowShape::Fixed { phase },
            ..
        } => {
            let length = u64::try_from(length.as_nanos())
                .ok()
                .filter(|&length| length > 0)?;
            let next = (aligned(at, phase, length) + 1) * u128::from(length) - phase.as_nanos();
            u64::try_from(next).ok()
        }
    }
}

fn aligned(at: u64, phase: Duration, length: u64) -> u128 {
    (u128::from(at) + phase.as_nanos()) / u128::from(length)
}

/// Whether nothing counts longer under `new` than under `old`.
fn is_no_longer(new: &Limit, old: &Limit) -> bool {
    match (new, old) {
        (
            Limit::Window {
                length: new,
                guard: new_guard,
                shape: WindowShape::Sliding,
                ..
            },
            Limit::Window {
                length: old,
                guard: old_guard,
                shape: WindowShape::Sliding,
                ..
            },
        ) => new.saturating_add(*new_guard) <= old.saturating_add(*old_guard),
        _ => with_max(new, 0) == with_max(old, 0),
    }
}

fn with_max(limit: &Limit, max: u32) -> Limit {
    match *limit {
        Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
        Limit::Outstanding { .. } => Limit::Outstanding { max },
        Limit::Window {
            length,
            guard,
            shape,
            stamp,
            ..
        } => Limit::Window {
            max,
            length,
            guard,
            shape,
            stamp,
        },
    }
}

impl Oracle {
    /// Whether a run has departed, as this limit counts it.
    pub(crate) fn has_departed(&self, rule: &LimitRule, run: usize) -> bool {
        match rule.limit {
            Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
            Limit::Outstanding { .. } => false,
            Limit::Window { stamp, .. } => departed(stamp, &self.runs[run]).is_some(),
        }
    }
}
