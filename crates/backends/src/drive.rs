//! Calls that arrive, a fixed limit on those at the backend, and what becomes of them.
//!
//! This is the smallest proxy there is: calls that may not start wait in the order of arrival. It
//! judges a limit, [`goodput`] at each number of outstanding calls, without any code of the proxy.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;

use crate::SECOND;
use crate::demand::ServiceDemand;
use crate::model::{BackendModel, CallStart, Model, ServiceOutcome};
use crate::profile::ValueProfile;

/// A call that is going to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.   ns
    pub at: u64,
    /// The number of its function.
    pub function: usize,
    /// How long the backend would take for it alone.   ns
    pub demand: u64,
}

/// The most calls at the backend at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveLimits {
    /// Of all functions together.
    pub total: Option<NonZeroU32>,
    /// Of each function. A function beyond the list has no limit.
    pub by_function: Vec<Option<NonZeroU32>>,
    /// After this time in the queue a call gives up.   ns
    pub patience: Option<u64>,
}

impl DriveLimits {
    /// A limit on all functions together, and nothing else. With 0, there is no limit.
    #[must_use]
    pub fn total(limit: u32) -> Self {
        let total = NonZeroU32::new(limit);
        Self {
            total,
            ..Self::default()
        }
    }
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedCall {
    /// The number of its function.
    pub function: usize,
    /// When it arrived.   ns
    pub arrived: u64,
    /// When it was sent to the backend; `None` if it never was.   ns
    pub started: Option<u64>,
    /// When it ended or gave up.   ns
    pub ended: u64,
    /// How it ended.
    pub ending: CallEnding,
}

/// How a call ended, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallEnding {
    /// The backend ended it.
    Backend(ServiceOutcome),
    /// The call gave up before it was sent.
    GaveUp,
}

impl FinishedCall {
    /// Whether it was answered.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.ending == CallEnding::Backend(ServiceOutcome::Served)
    }
}

/// Runs these calls, which are in the order of arrival, against a backend. Returns them in the
/// order of arrival. A call that finds the backend down has not been sent, and waits for it with
/// all others.
///
/// # Panics
///
/// If the arrivals are not in order.
#[must_use]
pub fn drive(
    backend: BackendModel,
    arrivals: &[Arrival],
    limits: &DriveLimits,
) -> Vec<FinishedCall> {
    Drive::new(backend, limits).open(arrivals)
}

/// Workers who ask again after `think` as soon as they have their answer, until a time. Calls have the function and
/// the demand that `next` returns for a worker. Returns the calls in the order of arrival.
pub fn drive_closed(
    backend: BackendModel,
    limits: &DriveLimits,
    workers: u32,
    until: u64,
    next: &mut dyn FnMut(u32) -> NextCall,
) -> Vec<FinishedCall> {
    Drive::new(backend, limits).closed(workers, until, next)
}

/// The next call of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextCall {
    /// How long after its last answer it comes.   ns
    pub think: u64,
    /// The number of its function.
    pub function: usize,
    /// How long the backend would take for it alone.   ns
    pub demand: u64,
}

/// Random arrivals (a Poisson process) of one function with this rate a second, until a time.
/// `unit` returns even random numbers in `0.0..1.0`.
pub fn poisson(
    per_second: &ValueProfile,
    until: u64,
    function: usize,
    demand: ServiceDemand,
    unit: &mut dyn FnMut() -> f64,
) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut at = per_second.next_event(0, unit());
    while at < until {
        let demand = demand.quantile(unit());
        arrivals.push(Arrival {
            at,
            function,
            demand,
        });
        at = per_second.next_event(at, unit());
    }
    arrivals
}

/// Several lists of arrivals as one, in order.
#[must_use]
pub fn merged(lists: &[Vec<Arrival>]) -> Vec<Arrival> {
    let mut all = lists.concat();
    all.sort_by_key(|it| it.at);
    all
}

/// Answers a second until a moment, of calls that were answered `within` this time of their
/// arrival, if it is given.
#[must_use]
pub fn goodput(done: &[FinishedCall], until: u64, within: Option<u64>) -> f64 {
    let is_good = |it: &&FinishedCall| {
        it.is_served()
            && it.ended <= until
            && within.is_none_or(|within| it.ended - it.arrived <= within)
    };
    done.iter().filter(is_good).count() as f64 / (until as f64 / SECOND as f64)
}

/// A call that has arrived.
struct DriveCall {
    done: FinishedCall,
    demand: u64,
    worker: u32,
    is_over: bool,
}

struct Drive<'l> {
    model: Model,
    limits: &'l DriveLimits,
    calls: Vec<DriveCall>,
    /// Calls that wait, by function, in the order of arrival. Some may have given up.
    waiting: BTreeMap<usize, VecDeque<usize>>,
    outstanding: u32,
    of_function: BTreeMap<usize, u32>,
    patience: BinaryHeap<Reverse<(u64, usize)>>,
    /// Calls that have ended since the driver looked.
    over: Vec<usize>,
    now: u64,
}

impl<'l> Drive<'l> {
    fn new(backend: BackendModel, limits: &'l DriveLimits) -> Self {
        Self {
            model: Model::new(backend),
            limits,
            calls: Vec::new(),
            waiting: BTreeMap::new(),
            outstanding: 0,
            of_function: BTreeMap::new(),
            patience: BinaryHeap::new(),
            over: Vec::new(),
            now: 0,
        }
    }

    fn open(mut self, arrivals: &[Arrival]) -> Vec<FinishedCall> {
        let in_order = arrivals.is_sorted_by_key(|it| it.at);
        assert!(in_order, "arrivals are in the order of time");
        let mut arrivals = arrivals.iter().peekable();
        loop {
            let arrives = arrivals.peek().map(|it| it.at);
            let Some(now) = arrives.into_iter().chain(self.next()).min() else {
                break;
            };
            self.ends(now);
            while let Some(it) = arrivals.next_if(|it| it.at == now) {
                self.arrives(it, 0);
            }
            self.starts(now);
            self.over.clear();
        }
        self.calls.into_iter().map(|it| it.done).collect()
    }

    fn closed(
        mut self,
        workers: u32,
        until: u64,
        next: &mut dyn FnMut(u32) -> NextCall,
    ) -> Vec<FinishedCall> {
        let mut asks = BinaryHeap::new();
        let mut ask = |worker, now: u64, asks: &mut BinaryHeap<_>| {
            let it = next(worker);
            let at = now.saturating_add(it.think);
            if at < until {
                asks.push(Reverse((at, worker, it.function, it.demand)));
            }
        };
        (0..workers).for_each(|worker| ask(worker, 0, &mut asks));
        loop {
            let arrives = asks.peek().map(|Reverse((at, ..))| *at);
            let Some(now) = arrives.into_iter().chain(self.next()).min() else {
                break;
            };
            self.ends(now);
            while let Some(&Reverse((at, worker, function, demand))) = asks.peek()
                && at == now
            {
                asks.pop();
                let arrival = Arrival {
                    at,
                    function,
                    demand,
                };
                self.arrives(&arrival, worker);
            }
            self.starts(now);
            for nth in std::mem::take(&mut self.over) {
                ask(self.calls[nth].worker, now, &mut asks);
            }
        }
        self.calls.into_iter().map(|it| it.done).collect()
    }

    /// When something happens besides arrivals.
    fn next(&mut self) -> Option<u64> {
        while let Some(&Reverse((_, nth))) = self.patience.peek()
            && (self.calls[nth].is_over || self.calls[nth].done.started.is_some())
        {
            self.patience.pop();
        }
        let gives_up = self.patience.peek().map(|Reverse((at, _))| *at);
        let is_waiting = self.waiting.values().any(|line| !line.is_empty());
        let up = self.model.down_until(self.now).filter(|_| is_waiting);
        [self.model.wake(), gives_up, up]
            .into_iter()
            .flatten()
            .min()
    }

    fn arrives(&mut self, arrival: &Arrival, worker: u32) {
        let nth = self.calls.len();
        self.calls.push(DriveCall {
            done: FinishedCall {
                function: arrival.function,
                arrived: arrival.at,
                started: None,
                ended: arrival.at,
                ending: CallEnding::GaveUp,
            },
            demand: arrival.demand,
            worker,
            is_over: false,
        });
        let line = self.waiting.entry(arrival.function).or_default();
        line.push_back(nth);
        if let Some(patience) = self.limits.patience {
            let gives_up = arrival.at.saturating_add(patience);
            self.patience.push(Reverse((gives_up, nth)));
        }
    }

    /// Calls end at the backend, or give up.
    fn ends(&mut self, now: u64) {
        self.now = now;
        for ended in self.model.due(now) {
            let nth = usize::try_from(ended.id).expect("ids are places in a list");
            let it = &mut self.calls[nth];
            it.done.ended = ended.at;
            it.done.ending = CallEnding::Backend(ended.outcome);
            it.is_over = true;
            self.outstanding -= 1;
            *self.of_function.entry(it.done.function).or_default() -= 1;
            self.over.push(nth);
        }
        while let Some(&Reverse((at, nth))) = self.patience.peek()
            && at <= now
        {
            self.patience.pop();
            let it = &mut self.calls[nth];
            if !it.is_over && it.done.started.is_none() {
                it.done.ended = at;
                it.is_over = true;
                self.over.push(nth);
            }
        }
    }

    /// Sends as many calls as may start.
    fn starts(&mut self, now: u64) {
        loop {
            if self.model.down_until(now).is_some() {
                return;
            }
            let has_room = |limit: Option<NonZeroU32>, used| limit.is_none_or(|it| used < it.get());
            if !has_room(self.limits.total, self.outstanding) {
                return;
            }
            for line in self.waiting.values_mut() {
                while line.front().is_some_and(|nth| self.calls[*nth].is_over) {
                    line.pop_front();
                }
            }
            self.waiting.retain(|_, line| !line.is_empty());
            let (by_function, used) = (&self.limits.by_function, &self.of_function);
            let open = self.waiting.iter_mut().filter(|(function, _)| {
                let limit = by_function.get(**function).copied().flatten();
                has_room(limit, used.get(*function).copied().unwrap_or(0))
            });
            let first = open.min_by_key(|(_, line)| line[0]);
            let Some((function, line)) = first else {
                return;
            };
            let nth = line.pop_front().expect("no line is empty");
            *self.of_function.entry(*function).or_default() += 1;
            self.outstanding += 1;
            self.calls[nth].done.started = Some(now);
            let (function, demand) = (*function, self.calls[nth].demand);
            let start = self.model.starts(now, nth as u64, function, demand);
            assert_eq!(start, CallStart::Taken, "the backend is up");
            // A reset frees its place at once, and a collapse all of them.
            self.ends(now);
        }
    }
}
