//! A breadth-first search over the states of a scope.
//!
//! A state is kept as its number, the state from which it was reached first and the action, in 13 bytes and a place in a table. To go
//! on from a state, it is made again: the states on the way to it are kept, and the next one in order shares most of its way.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tidegate_limits::digest::Digest;

use super::scopes::Scope;
use super::world::{Action, World};
use crate::oracle::Violation;

/// How often the costly checks are made: in one of this many cases.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    /// States that are taken for the same are compared by all that can happen next.
    merges: u64,
    /// From a new state everything is run to its end.
    ends: u64,
}

impl Effort {
    pub(crate) const THOROUGH: Self = Self {
        merges: 32,
        ends: 8,
    };
    pub(crate) const WIDE: Self = Self {
        merges: 512,
        ends: 64,
    };
}

/// The result of a search, as one line.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) scope: String,
    at_once: usize,
    kinds: usize,
    limits: usize,
    arrivals: Option<u32>,
    ticks: Option<u8>,
    requeues: Option<u8>,
    reloads: Option<u8>,
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    depth: usize,
    pub(crate) is_complete: bool,
    pub(crate) merges_compared: usize,
    pub(crate) runs_to_the_end: usize,
    took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |most: Option<u32>| most.map_or("any".to_owned(), |most| most.to_string());
        write!(
            f,
            "{{\"machines\": \"scheduler\", \"name\": \"{}\", \"scope\": \"{} calls at once of {} kinds, {} limits; in all: {} arrivals, \
             {} ticks, {} requeues, {} reloads\", \"states\": {}, \"generated\": {}, \"depth\": {}, \"complete\": {}, \
             \"bound\": \"symmetry: calls by the order of their arrival, times from now; of merged states {} were compared by all \
             that follows, and {} ran to their end\", \"seconds\": {:.1}}}",
            self.scope,
            self.at_once,
            self.kinds,
            self.limits,
            most(self.arrivals),
            most(self.ticks.map(u32::from)),
            most(self.requeues.map(u32::from)),
            most(self.reloads.map(u32::from)),
            self.states,
            self.transitions,
            self.depth,
            self.is_complete,
            self.merges_compared,
            self.runs_to_the_end,
            self.took.as_secs_f64(),
        )
    }
}

/// States that were found, in order.
#[derive(Default)]
struct Found {
    numbers: Vec<u64>,
    before: Vec<u32>,
    /// The action, by its place among those that were possible.
    actions: Vec<u8>,
    /// By number: the place of a state plus one.
    table: Vec<u32>,
}

impl Found {
    /// The place of the state with this number, and whether it is new.
    fn find_or_add(&mut self, number: u64, before: u32, action: u8) -> (u32, bool) {
        if self.numbers.len() * 2 >= self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let mut slot = number as usize & mask;
        loop {
            match self.table[slot] {
                0 => break,
                place if self.numbers[place as usize - 1] == number => return (place - 1, false),
                _ => slot = (slot + 1) & mask,
            }
        }
        self.numbers.push(number);
        self.before.push(before);
        self.actions.push(action);
        let place = self.numbers.len() as u32;
        self.table[slot] = place;
        (place - 1, true)
    }

    fn grow(&mut self) {
        let size = (self.table.len() * 2).max(1 << 12);
        self.table = vec![0; size];
        for (number, place) in self.numbers.iter().zip(1..) {
            let mut slot = *number as usize & (size - 1);
            while self.table[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.table[slot] = place;
        }
    }

    /// The actions that lead to a state.
    fn way_to(&self, mut place: u32) -> Vec<u8> {
        let mut way = Vec::new();
        while place != 0 {
            way.push(self.actions[place as usize]);
            place = self.before[place as usize];
        }
        way.reverse();
        way
    }
}

/// Panics are violations too: those of the scheduler's own audit.
fn guarded<R>(step: impl FnOnce() -> Result<R, Violation>) -> Result<R, Violation> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

struct Search<'s> {
    scope: &'s Scope,
    effort: Effort,
    found: Found,
    digest: Digest,
    /// The way to the state that is looked at: places, and the states there.
    way: Vec<(u32, World<'s>)>,
    transitions: usize,
    merges: u64,
    merges_compared: usize,
    runs_to_the_end: usize,
}

/// Looks at all states of a scope.
///
/// # Errors
///
/// The first violation of a law, with the shortest way to it.
pub(crate) fn search(scope: &Scope, effort: Effort) -> Result<Report, String> {
    let began = Instant::now();
    let start = World::new(scope);
    let mut search = Search {
        scope,
        effort,
        found: Found::default(),
        digest: World::digest(scope),
        way: vec![(0, start.clone())],
        transitions: 0,
        merges: 0,
        merges_compared: 0,
        runs_to_the_end: 0,
    };
    let number = start.number(&mut search.digest);
    search.found.find_or_add(number, 0, 0);
    let shows = std::env::var_os("TIDEGATE_TRACE").is_some();
    let (mut depth, mut layer_end, mut place) = (0, 1, 0);
    while place < search.found.numbers.len() {
        if place == layer_end {
            depth += 1;
            layer_end = search.found.numbers.len();
            if shows {
                eprintln!(
                    "{}: {place} states within {depth} actions, {:?}",
                    scope.name,
                    began.elapsed()
                );
            }
        }
        search.expand(place as u32, depth)?;
        place += 1;
    }
    Ok(Report {
        scope: scope.name.clone(),
        at_once: scope.may.at_once,
        kinds: scope.kinds.len(),
        limits: scope.policies[0].limits().len() + usize::from(scope.bucket.is_some()),
        arrivals: scope.may.arrivals,
        ticks: scope.may.ticks,
        requeues: scope.may.requeues,
        reloads: scope.may.reloads.filter(|_| scope.policies.len() > 1),
        states: search.found.numbers.len(),
        transitions: search.transitions,
        depth,
        is_complete: true,
        merges_compared: search.merges_compared,
        runs_to_the_end: search.runs_to_the_end,
        took: began.elapsed(),
    })
}

impl<'s> Search<'s> {
    /// Makes the state at this place, which is this deep.
    fn make(&mut self, place: u32, depth: usize) {
        let mut missing = Vec::new();
        let (mut at, mut deep) = (place, depth);
        while self.way.get(deep).is_none_or(|(known, _)| *known != at) {
            missing.push(at);
            at = self.found.before[at as usize];
            deep -= 1;
        }
        self.way.truncate(deep + 1);
        let mut actions = Vec::new();
        while let Some(place) = missing.pop() {
            let (_, last) = self.way.last().expect("the start is always there");
            let mut world = last.clone();
            world.actions(&mut actions);
            let action = actions[self.found.actions[place as usize] as usize];
            world.act(action).expect("it was found before");
            self.way.push((place, world));
        }
    }

    fn expand(&mut self, place: u32, depth: usize) -> Result<(), String> {
        self.make(place, depth);
        let mut actions = Vec::new();
        let (_, world) = self.way.last().expect("it was made");
        world.actions(&mut actions);
        for (index, &action) in actions.iter().enumerate() {
            let (_, world) = self.way.last().expect("it was made");
            let mut next = world.clone();
            let digest = &mut self.digest;
            let number = guarded(|| {
                next.act(action)?;
                Ok(next.number(digest))
            });
            let number = number.map_err(|error| self.tell(place, Some(action), &error))?;
            self.transitions += 1;
            let (known, is_new) = self.found.find_or_add(number, place, index as u8);
            if is_new {
                let checked = guarded(|| next.check());
                checked.map_err(|error| self.tell(known, None, &error))?;
            }
            if is_new && number.is_multiple_of(self.effort.ends) {
                self.runs_to_the_end += 1;
                let ended = guarded(|| next.run_to_the_end());
                let ended = ended.map_err(|error| format!("when all that runs ends, {error}"));
                ended.map_err(|error| self.tell(known, None, &error))?;
            } else if !is_new {
                self.merges += 1;
                if self.merges.is_multiple_of(self.effort.merges) {
                    self.merges_compared += 1;
                    let compared = guarded(|| self.compare(&next, known));
                    compared.map_err(|error| self.tell(place, Some(action), &error))?;
                }
            }
        }
        Ok(())
    }

    /// Two states that are taken for the same: whatever happens next, the same must come of it.
    fn compare(&mut self, one: &World<'s>, known: u32) -> Result<(), Violation> {
        let mut actions = Vec::new();
        let mut other = World::new(self.scope);
        for action in self.found.way_to(known) {
            other.actions(&mut actions);
            other.act(actions[action as usize])?;
        }
        let mut others = Vec::new();
        one.actions(&mut actions);
        other.actions(&mut others);
        let mut numbers = |world: &World<'s>| -> Result<Vec<u64>, Violation> {
            let next = actions.iter().map(|&action| {
                let mut next = world.clone();
                next.act(action)?;
                Ok(next.number(&mut self.digest))
            });
            next.collect()
        };
        let (ours, theirs) = (numbers(one)?, numbers(&other)?);
        if actions == others && ours == theirs {
            return Ok(());
        }
        let apart = ours
            .iter()
            .zip(&theirs)
            .position(|(one, other)| one != other);
        let apart = apart.map_or("they allow different actions".to_owned(), |index| {
            format!("they differ when {}", one.describe(actions[index]))
        });
        let way = self.describe(known, None).join("\n");
        Err(format!(
            "two different states are taken for the same: {apart}. The other one is reached so:\n{way}"
        ))
    }

    /// The way to a state in plain words, and one action more.
    fn describe(&self, place: u32, last: Option<Action>) -> Vec<String> {
        let mut world = World::new(self.scope);
        world.told = Some(Vec::new());
        let mut lines = Vec::new();
        let mut actions = Vec::new();
        let mut way: Vec<Action> = Vec::new();
        for action in self.found.way_to(place) {
            world.actions(&mut actions);
            way.push(actions[action as usize]);
            drop(guarded(|| world.act(actions[action as usize])));
        }
        way.extend(last);
        let mut world = World::new(self.scope);
        world.told = Some(Vec::new());
        for (action, number) in way.into_iter().zip(1..) {
            let text = world.describe(action);
            drop(guarded(|| world.act(action)));
            let told = world.told.iter().flatten().map(|told| format!("; {told}"));
            lines.push(format!("  {number}. {text}{}", told.collect::<String>()));
        }
        lines
    }

    fn tell(&self, place: u32, last: Option<Action>, error: &str) -> String {
        let way = self.describe(place, last);
        let (name, steps) = (&self.scope.name, way.len());
        format!("{name}: {error}\nafter {steps} steps:\n{}", way.join("\n"))
    }
}
