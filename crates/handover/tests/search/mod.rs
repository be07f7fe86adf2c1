//! The way to search all states of a model and to report it, for every crate that has one.
//!
//! A search goes through all states within its scope. What bounds it is a part of each state, such as the faults that
//! are left and the moment at which time ends, and never a depth at which the search would stop. So a search that ends has
//! seen every order of events in its scope, and its depth is that of the longest.
//!
//! `make model` sets `TIDEGATE_EVIDENCE` to a file, to which each search adds a line of JSON.

use std::fmt::{self, Debug};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use compared::Compared;

mod compared;
mod evidence;

/// The machines that are searched, for reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machines {
    pub(crate) name: &'static str,
    /// Why the bounds of their scopes are enough.
    pub(crate) bound: &'static str,
}

impl Machines {
    /// Searches a whole scope, whose text has the bounds. `sometimes` are the properties that it must have an example of; those that
    /// hold always must have no counterexample.
    pub(crate) fn check<M>(self, name: &str, scope: M, sometimes: &[&'static str])
    where
        M: Model + fmt::Display + Send + Sync + 'static,
        M::State: Clone + Debug + Hash + Send + Sync,
        M::Action: Clone + Debug + PartialEq,
    {
        let (text, model) = (
            scope.to_string(),
            Compared::new(scope, |_, state| digest(state)),
        );
        let always = model.properties().into_iter();
        let always = always.filter(|property| property.expectation == Expectation::Always);
        let always: Vec<&'static str> = always.map(|property| property.name).collect();
        let begin = Instant::now();
        let checker = model.checker().threads(2).spawn_dfs().join();
        let seconds = begin.elapsed().as_secs_f64();
        for name in always {
            if let Some(path) = checker.discovery(name) {
                let last = path.last_state().state.clone();
                let steps = path.into_actions();
                panic!("{name}: {steps:#?}\n{last:#?}");
            }
        }
        for name in sometimes {
            assert!(checker.discovery(name).is_some(), "not found: {name}");
        }
        assert!(checker.is_done());
        let compared = checker.model().result();
        let compared = compared.unwrap_or_else(|error| panic!("{error}"));
        let Self {
            name: machines,
            bound,
        } = self;
        // Nothing in these texts is written differently in JSON.
        let line = format!(
            "{{\"machines\": {machines:?}, \"name\": {name:?}, \"scope\": {text:?}, \"states\": {}, \"generated\": {}, \
         \"depth\": {}, \"complete\": true, \"bound\": \"{bound}; of \
         states with one digest {compared} were compared by all that follows\", \"seconds\": {seconds:.1}}}",
            checker.unique_state_count(),
            checker.state_count(),
            checker.max_depth(),
        );
        println!("{line}");
        evidence::add(&line);
    }

    /// Searches a scope with a digest that leaves out too much, which the comparison of states must find.
    pub(crate) fn check_digest<M>(
        self,
        leaves_out: &str,
        scope: M,
        digest: fn(&M, &M::State) -> u64,
    ) where
        M: Model + Send + Sync + 'static,
        M::State: Clone + Debug + Send + Sync,
        M::Action: Clone + Debug + PartialEq,
    {
        let begin = Instant::now();
        let model = Compared::new(scope, digest);
        let checker = model.checker().threads(1).spawn_dfs().join();
        let error = checker.model().result().expect_err(leaves_out);
        let states = checker.unique_state_count();
        let seconds = begin.elapsed().as_secs_f64();
        let first = error.lines().next().unwrap_or_default();
        println!("a digest without {leaves_out}, among {states} states in {seconds:.1} s: {first}");
    }

    /// Searches until a mistake is found, by breaking one of the properties `finds`.
    pub(crate) fn check_mistake<M>(self, mistake: impl Debug, model: M, finds: &[&'static str])
    where
        M: Model + Send + Sync + 'static,
        M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
        M::Action: Clone + Debug + PartialEq,
    {
        let begin = Instant::now();
        let found = HasDiscoveries::AnyOf(finds.iter().copied().collect());
        let checker = model
            .checker()
            .threads(1)
            .finish_when(found)
            .spawn_bfs()
            .join();
        let name = finds.iter().find(|name| checker.discovery(name).is_some());
        let name = *name.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        let steps = checker.discovery(name).expect("it was found");
        let steps = steps.into_actions();
        let states = checker.unique_state_count();
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{mistake:?} breaks {name:?} in {} steps, found among {states} states in {seconds:.1} s: {steps:?}",
            steps.len(),
        );
        let (machines, mistake) = (self.name, format!("{mistake:?}"));
        evidence::add(format_args!(
            "{{\"machines\": {machines:?}, \"mistake\": {mistake:?}, \"breaks\": {name:?}, \"steps\": {}, \
         \"states\": {states}, \"seconds\": {seconds:.1}}}",
            steps.len(),
        ));
    }
}

/// A digest of a state.
pub(crate) fn digest(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
