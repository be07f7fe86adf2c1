//! A model in which states with one digest are compared by all that follows.
//!
//! A search takes states with the same digest for the same. If a digest leaves out something that matters, then two of them allow
//! different steps, lead to states with different digests, or differ in a property. For a part of the digests, the first state is kept,
//! and each further one is compared with it. Models have alike members, so steps are not compared by their names: as often as one state
//! leads to a digest, the other one must, too.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use stateright::{Model, Property};

/// Of this many digests one is chosen at first, by its own number.
const ONE_IN_FIRST: u64 = 32;
/// With more states than this, half of them are dropped, and half as many digests are chosen from then on.
const KEPT_MAX: usize = 8_192;

/// A state and its digest, by which a search tells it apart.
#[derive(Clone, Debug)]
pub(crate) struct DigestedState<S> {
    pub(crate) state: S,
    digest: u64,
}

impl<S> Hash for DigestedState<S> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.digest);
    }
}

/// Only whole paths are compared, and by their steps.
impl<S> PartialEq for DigestedState<S> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

/// The first state of each chosen digest, and what came of the comparisons.
struct FirstStates<S> {
    one_in: u64,
    by_digest: HashMap<u64, S>,
    compared: u64,
    error: Option<String>,
}

/// A model whose states with one digest are compared.
pub(crate) struct Compared<M: Model> {
    model: M,
    properties: Vec<Property<M>>,
    digest: fn(&M, &M::State) -> u64,
    first: Mutex<FirstStates<M::State>>,
}

impl<M: Model> Compared<M>
where
    M::State: Clone + Debug,
    M::Action: Clone + Debug,
{
    pub(crate) fn new(model: M, digest: fn(&M, &M::State) -> u64) -> Self {
        Self {
            properties: model.properties(),
            model,
            digest,
            first: Mutex::new(FirstStates {
                one_in: ONE_IN_FIRST,
                by_digest: HashMap::new(),
                compared: 0,
                error: None,
            }),
        }
    }

    /// How many pairs of states were compared.
    ///
    /// # Errors
    ///
    /// The first two that are different.
    pub(crate) fn result(&self) -> Result<u64, String> {
        let first = self.first();
        match &first.error {
            None => Ok(first.compared),
            Some(error) => Err(error.clone()),
        }
    }

    fn first(&self) -> MutexGuard<'_, FirstStates<M::State>> {
        self.first.lock().expect("no thread panics while it has it")
    }

    fn digested(&self, state: M::State) -> DigestedState<M::State> {
        let digest = (self.digest)(&self.model, &state);
        if digest.is_multiple_of(ONE_IN_FIRST) {
            self.compare_with_first(digest, &state);
        }
        DigestedState { state, digest }
    }

    fn compare_with_first(&self, digest: u64, state: &M::State) {
        let mut first = self.first();
        if !digest.is_multiple_of(first.one_in) || first.error.is_some() {
            return;
        }
        let Some(other) = first.by_digest.get(&digest) else {
            first.by_digest.insert(digest, state.clone());
            if first.by_digest.len() > KEPT_MAX {
                first.one_in *= 2;
                let one_in = first.one_in;
                first.by_digest.retain(|it, _| it.is_multiple_of(one_in));
            }
            return;
        };
        let other = other.clone();
        first.compared += 1;
        drop(first);
        if let Some(difference) = self.difference(&other, state) {
            let error = format!(
                "two different states are taken for the same: {difference}\n{other:#?}\n{state:#?}"
            );
            self.first().error.get_or_insert(error);
        }
    }

    /// The first thing in which two states differ.
    fn difference(&self, one: &M::State, other: &M::State) -> Option<String> {
        for property in &self.properties {
            let [holds, holds_for_other] =
                [one, other].map(|state| (property.condition)(&self.model, state));
            if holds != holds_for_other {
                return Some(format!("only one has {:?}", property.name));
            }
        }
        let [mut ours, theirs] = [one, other].map(|state| self.next_digests(state));
        if ours.len() != theirs.len() {
            let counts = (ours.len(), theirs.len());
            return Some(format!("{} steps are possible, or {}", counts.0, counts.1));
        }
        for (digest, action) in theirs {
            match ours.iter().position(|(ours, _)| *ours == digest) {
                Some(place) => drop(ours.swap_remove(place)),
                None => return Some(format!("they differ after {action:?}")),
            }
        }
        None
    }

    /// The digest after each step, and the step.
    fn next_digests(&self, state: &M::State) -> Vec<(u64, M::Action)> {
        let mut actions = Vec::new();
        self.model.actions(state, &mut actions);
        let next = actions.into_iter().filter_map(|action| {
            let next = self.model.next_state(state, action.clone())?;
            Some(((self.digest)(&self.model, &next), action))
        });
        next.collect()
    }
}

impl<M: Model> Model for Compared<M>
where
    M::State: Clone + Debug,
    M::Action: Clone + Debug,
{
    type State = DigestedState<M::State>;
    type Action = M::Action;

    fn init_states(&self) -> Vec<Self::State> {
        let states = self.model.init_states().into_iter();
        states.map(|state| self.digested(state)).collect()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<M::Action>) {
        self.model.actions(&state.state, actions);
    }

    fn next_state(&self, last: &Self::State, action: M::Action) -> Option<Self::State> {
        let next = self.model.next_state(&last.state, action)?;
        Some(self.digested(next))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        // A condition is a plain function, so there is one for each place.
        let conditions: [fn(&Self, &Self::State) -> bool; 12] = [
            holds::<M, 0>,
            holds::<M, 1>,
            holds::<M, 2>,
            holds::<M, 3>,
            holds::<M, 4>,
            holds::<M, 5>,
            holds::<M, 6>,
            holds::<M, 7>,
            holds::<M, 8>,
            holds::<M, 9>,
            holds::<M, 10>,
            holds::<M, 11>,
        ];
        assert!(self.properties.len() <= conditions.len());
        let properties = self.properties.iter().zip(conditions);
        let properties = properties.map(|(property, condition)| Property {
            name: property.name,
            expectation: property.expectation.clone(),
            condition,
        });
        properties.collect()
    }
}

/// Whether a state has the property at this place.
fn holds<M: Model, const PLACE: usize>(model: &Compared<M>, state: &DigestedState<M::State>) -> bool
where
    M::State: Clone + Debug,
    M::Action: Clone + Debug,
{
    (model.properties[PLACE].condition)(&model.model, &state.state)
}
