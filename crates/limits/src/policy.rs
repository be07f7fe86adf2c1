//! Which limits a call meets, and how calls wait.
//!
//! A policy is checked when it is made, so the scheduler never meets a wrong one. The limits of
//! a call depend only on its function and its backend, so the sets of limits that calls can
//! meet are few, known in advance, and numbered.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;

use crate::limiter::Limit;
use crate::queue::{Backend, Class};

/// Which calls meet a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every call.
    Every,
    /// Calls of this function.
    Function(Arc<str>),
    /// Calls to this backend.
    Backend(Backend),
    /// Calls of this class: a pool inside whatever limits the total.
    Class(Class),
    /// Every call but those of these classes, which have pools beside the total.
    EveryBut(Arc<[Class]>),
}

/// What a limit keeps for the calls of one class.
///
/// Whatever of `amount` the class does not use itself, nobody else may: a call of another class
/// is let through only while what all others use, and the greater of `amount` and what this
/// class uses, leave room for it. The class itself may use all of the limit.
///
/// In [`Postpone::Jitter`], calls of a class for which a limit keeps anything, be it 0, are not
/// set aside: they keep their place and run the moment their limits open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Whose it is.
    pub class: Class,
    /// How much: calls for an outstanding limit, cost for a window; at most the limit's maximum.
    pub amount: u32,
}

/// A limit with its name and the calls that meet it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRule {
    /// The name under which its state survives a reload, and which refusals carry.
    pub name: Arc<str>,
    /// Which calls meet it.
    pub scope: Scope,
    /// The limit itself.
    pub limit: Limit,
    /// What of it is kept for one class, if anything.
    pub reserve: Option<Reserve>,
}

/// What happens to a call that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused at once.
    Refuse,
    /// It waits at the door: in its turn, as if it were in the queue, while the queue counts as full.
    Wait {
        /// Calls that may wait above the capacity; one more is refused.
        door: u32,
    },
}

/// What happens to a call that meets a closed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Postpone {
    /// It keeps its place and runs the moment the limit opens, in fair order.
    InTurn,
    /// It is set aside for a random time, then joins the end of its flow again. No order is
    /// promised. It keeps its place in the capacity meanwhile.
    Jitter {
        /// The shortest time aside.
        min: Duration,
        /// The longest time aside, above zero.
        max: Duration,
    },
}

/// A class of calls and its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassShare {
    /// The name by which waiting calls find their class again after a reload.
    pub name: Arc<str>,
    /// How much cost the class is served per round, relative to the others; above zero.
    pub weight: u32,
}

/// The limits, the queue's bounds and the classes: everything that decides whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    limits: Vec<LimitRule>,
    capacity: u32,
    when_full: WhenFull,
    postpone: Postpone,
    classes: Vec<ClassShare>,
}

/// Why a policy is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// Two limits have this name.
    DuplicateLimit(Arc<str>),
    /// Two classes have this name.
    DuplicateClass(Arc<str>),
    /// No call may wait.
    ZeroCapacity,
    /// There is no class that a call could be in.
    NoClass,
    /// This class would never be served.
    ZeroWeight(Arc<str>),
    /// The shortest jitter is longer than the longest.
    JitterMinAboveMax {
        /// The shortest, as given.
        min: Duration,
        /// The longest, as given.
        max: Duration,
    },
    /// A call set aside for no time at all would be asked without end.
    JitterZero,
    /// This limit is a paced one, of which nothing can be kept for anybody.
    ReserveOfPace(Arc<str>),
    /// This limit is for a class, or keeps something for one, that there is not.
    UnknownClass(Arc<str>),
    /// This limit keeps more than it has.
    ReserveAboveMax(Arc<str>),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateLimit(name) => {
                write!(f, "two limits are named {name:?}; names must differ")
            }
            Self::DuplicateClass(name) => {
                write!(f, "two classes are named {name:?}; names must differ")
            }
            Self::ZeroCapacity => f.write_str("the queue's capacity must be at least 1"),
            Self::NoClass => f.write_str("there must be at least one class"),
            Self::ZeroWeight(name) => write!(f, "the weight of class {name:?} must be at least 1"),
            Self::JitterMinAboveMax { min, max } => {
                write!(
                    f,
                    "the shortest jitter, {min:?}, must not be above the longest, {max:?}"
                )
            }
            Self::JitterZero => f.write_str("the longest jitter must be above zero"),
            Self::UnknownClass(limit) => {
                write!(f, "limit {limit:?} names a class that there is not")
            }
            Self::ReserveOfPace(limit) => {
                write!(f, "limit {limit:?} is a paced one, and can keep nothing")
            }
            Self::ReserveAboveMax(limit) => {
                write!(f, "limit {limit:?} must not keep more than its maximum")
            }
        }
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// A policy of these limits, with `capacity` calls that may wait.
    ///
    /// # Errors
    ///
    /// The first mistake found, in the order of [`PolicyError`].
    pub fn new(
        limits: Vec<LimitRule>,
        capacity: u32,
        when_full: WhenFull,
        postpone: Postpone,
        classes: Vec<ClassShare>,
    ) -> Result<Self, PolicyError> {
        if let Some(name) = duplicate(limits.iter().map(|rule| &rule.name)) {
            return Err(PolicyError::DuplicateLimit(name));
        }
        if let Some(name) = duplicate(classes.iter().map(|class| &class.name)) {
            return Err(PolicyError::DuplicateClass(name));
        }
        if capacity == 0 {
            return Err(PolicyError::ZeroCapacity);
        }
        if classes.is_empty() {
            return Err(PolicyError::NoClass);
        }
        if let Some(class) = classes.iter().find(|class| class.weight == 0) {
            return Err(PolicyError::ZeroWeight(class.name.clone()));
        }
        if let Postpone::Jitter { min, max } = postpone {
            if min > max {
                return Err(PolicyError::JitterMinAboveMax { min, max });
            }
            if max.is_zero() {
                return Err(PolicyError::JitterZero);
            }
        }
        let is_unknown = |class: Class| class.0 as usize >= classes.len();
        for rule in &limits {
            let of_class = match &rule.scope {
                Scope::Class(class) => is_unknown(*class),
                Scope::EveryBut(classes) => classes.iter().any(|class| is_unknown(*class)),
                Scope::Every | Scope::Function(_) | Scope::Backend(_) => false,
            };
            if of_class || rule.reserve.is_some_and(|kept| is_unknown(kept.class)) {
                return Err(PolicyError::UnknownClass(rule.name.clone()));
            }
            if rule.reserve.is_some() && matches!(rule.limit, Limit::Paced { .. }) {
                return Err(PolicyError::ReserveOfPace(rule.name.clone()));
            }
            if rule
                .reserve
                .is_some_and(|kept| kept.amount > rule.limit.max())
            {
                return Err(PolicyError::ReserveAboveMax(rule.name.clone()));
            }
        }
        Ok(Self {
            limits,
            capacity,
            when_full,
            postpone,
            classes,
        })
    }

    /// The limits, in the order given.
    #[must_use]
    pub fn limits(&self) -> &[LimitRule] {
        &self.limits
    }

    /// Calls that may wait in the queue, at least 1.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// What happens to a call that finds the queue full.
    #[must_use]
    pub const fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// What happens to a call that meets a closed limit.
    #[must_use]
    pub const fn postpone(&self) -> Postpone {
        self.postpone
    }

    /// For how long calls of this class are set aside that a limit bars; `None` if they keep their
    /// place, as those do for which a limit keeps something.
    pub(crate) fn jitter(&self, class: Class) -> Option<(Duration, Duration)> {
        let Postpone::Jitter { min, max } = self.postpone else {
            return None;
        };
        let mut kept = self.limits.iter().filter_map(|rule| rule.reserve);
        let keeps_its_place = kept.any(|reserve| reserve.class == class);
        (!keeps_its_place).then_some((min, max))
    }

    /// The classes, at least one; [`Class`] is the index in here.
    #[must_use]
    pub fn classes(&self) -> &[ClassShare] {
        &self.classes
    }
}

fn duplicate<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Option<Arc<str>> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name)).cloned()
}

/// The index of a limit in its policy.
pub(crate) type LimitId = u32;

/// The number of a set of limits that calls can meet.
pub(crate) type SetId = u32;

/// The sets of limits that calls can meet: one for each function with a limit of its own (and
/// one for all the rest), times one for each backend with a limit of its own (and the rest),
/// times one for each class that a limit names (and the rest).
#[derive(Debug)]
pub(crate) struct LimitSets {
    /// Those with a limit of their own, in order of [`by_length`]; a function's place in here is
    /// its number, less one.
    functions: Vec<Arc<str>>,
    /// Those with a limit of their own, in order; likewise.
    backends: Vec<Backend>,
    /// Those with a limit of their own, in order; likewise.
    classes: Vec<Class>,
    sets: Vec<Arc<[LimitId]>>,
}

impl LimitSets {
    pub(crate) fn new(rules: &[LimitRule]) -> Self {
        let mut functions = Vec::new();
        let mut backends = Vec::new();
        let mut classes = Vec::new();
        for rule in rules {
            match &rule.scope {
                Scope::Every => {}
                Scope::Function(function) => functions.push(function.clone()),
                Scope::Backend(backend) => backends.push(*backend),
                Scope::Class(class) => classes.push(*class),
                Scope::EveryBut(others) => classes.extend_from_slice(others),
            }
        }
        functions.sort_unstable_by(|one, other| by_length(one, other));
        functions.dedup();
        backends.sort_unstable();
        backends.dedup();
        classes.sort_unstable();
        classes.dedup();
        let mut sets = Vec::new();
        // A number of 0 is that of all the rest.
        let own = |number: usize| number.checked_sub(1);
        for function in 0..=functions.len() {
            for backend in 0..=backends.len() {
                for class in 0..=classes.len() {
                    let met = rules.iter().zip(0..).filter(|(rule, _)| match &rule.scope {
                        Scope::Every => true,
                        Scope::Function(name) => {
                            own(function).is_some_and(|number| functions[number] == *name)
                        }
                        Scope::Backend(name) => {
                            own(backend).is_some_and(|number| backends[number] == *name)
                        }
                        Scope::Class(name) => {
                            own(class).is_some_and(|number| classes[number] == *name)
                        }
                        Scope::EveryBut(names) => {
                            own(class).is_none_or(|number| !names.contains(&classes[number]))
                        }
                    });
                    sets.push(met.map(|(_, id)| id).collect());
                }
            }
        }
        Self {
            functions,
            backends,
            classes,
            sets,
        }
    }

    /// The set that a call of this function to this backend and of this class meets.
    pub(crate) fn find(&self, function: &str, backend: Backend, class: Class) -> SetId {
        let number = |found: Result<usize, usize>| found.map_or(0, |index| index + 1);
        let function = if self.functions.is_empty() {
            0
        } else {
            let by_name = |other: &Arc<str>| by_length(other, function);
            number(self.functions.binary_search_by(by_name))
        };
        let backend = number(self.backends.binary_search(&backend));
        let class = number(self.classes.binary_search(&class));
        let set = function * (self.backends.len() + 1) + backend;
        (set * (self.classes.len() + 1) + class) as SetId
    }

    /// The limits of a set, in the policy's order.
    pub(crate) fn limits(&self, set: SetId) -> &Arc<[LimitId]> {
        &self.sets[set as usize]
    }
}

/// Names by their length and then by their letters: most differ in length, and those need no
/// look at the letters.
fn by_length(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn rule(name: &str, scope: Scope) -> LimitRule {
        LimitRule {
            name: name.into(),
            scope,
            limit: Limit::Outstanding { max: 1 },
            reserve: None,
        }
    }

    fn class(name: &str, weight: u32) -> ClassShare {
        ClassShare {
            name: name.into(),
            weight,
        }
    }

    #[test]
    fn a_policy_that_makes_no_sense_does_not_exist() {
        let check = |limits: &[&str], capacity, postpone, classes: &[ClassShare], expected| {
            let limits = limits.iter().map(|name| rule(name, Scope::Every)).collect();
            let policy = Policy::new(
                limits,
                capacity,
                WhenFull::Refuse,
                postpone,
                classes.to_vec(),
            );
            assert_eq!(policy.err(), expected);
        };
        let one = [class("one", 1)];
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(2));
        let turned = Postpone::Jitter {
            min: long,
            max: short,
        };
        let none = Postpone::Jitter {
            min: Duration::ZERO,
            max: Duration::ZERO,
        };
        check(&["a", "b"], 1, Postpone::InTurn, &one, None);
        check(
            &["a", "a"],
            1,
            Postpone::InTurn,
            &one,
            Some(PolicyError::DuplicateLimit("a".into())),
        );
        check(
            &[],
            1,
            Postpone::InTurn,
            &[class("c", 1), class("c", 2)],
            Some(PolicyError::DuplicateClass("c".into())),
        );
        check(
            &[],
            0,
            Postpone::InTurn,
            &one,
            Some(PolicyError::ZeroCapacity),
        );
        check(&[], 1, Postpone::InTurn, &[], Some(PolicyError::NoClass));
        check(
            &[],
            1,
            Postpone::InTurn,
            &[class("c", 0)],
            Some(PolicyError::ZeroWeight("c".into())),
        );
        check(
            &[],
            1,
            turned,
            &one,
            Some(PolicyError::JitterMinAboveMax {
                min: long,
                max: short,
            }),
        );
        check(&[], 1, none, &one, Some(PolicyError::JitterZero));
    }

    #[test]
    fn a_class_that_there_is_not_has_no_pool_and_no_reserve() {
        let check = |scope, reserve: Option<(u32, u32)>, expected| {
            let limit = LimitRule {
                reserve: reserve.map(|(class, amount)| Reserve {
                    class: Class(class),
                    amount,
                }),
                ..rule("limit", scope)
            };
            let classes = vec![class("one", 1)];
            let policy = Policy::new(vec![limit], 1, WhenFull::Refuse, Postpone::InTurn, classes);
            assert_eq!(policy.err(), expected);
        };
        let unknown = || Some(PolicyError::UnknownClass("limit".into()));
        check(Scope::Class(Class(0)), Some((0, 1)), None);
        check(Scope::Class(Class(1)), None, unknown());
        check(Scope::EveryBut([Class(0)].into()), None, None);
        check(
            Scope::EveryBut([Class(0), Class(1)].into()),
            None,
            unknown(),
        );
        check(Scope::Every, Some((1, 0)), unknown());
        let above = PolicyError::ReserveAboveMax("limit".into());
        check(Scope::Every, Some((0, 2)), Some(above));
    }

    #[test]
    fn a_pool_is_met_by_the_calls_of_its_class_and_by_no_others() {
        let sets = LimitSets::new(&[
            rule("total", Scope::Every),
            rule("pool", Scope::Class(Class(2))),
            rule("list", Scope::Function("list".into())),
        ]);
        let check = |function: &str, class, expected: &[LimitId]| {
            let set = sets.find(function, Backend(0), Class(class));
            assert_eq!(**sets.limits(set), *expected);
        };
        check("list", 2, &[0, 1, 2]);
        check("list", 1, &[0, 2]);
        check("other", 2, &[0, 1]);
        check("other", 0, &[0]);
    }

    #[test]
    fn who_has_a_pool_beside_the_total_does_not_meet_it() {
        let sets = LimitSets::new(&[
            rule("total", Scope::EveryBut([Class(1)].into())),
            rule("pool", Scope::Class(Class(1))),
        ]);
        let check = |class, expected: &[LimitId]| {
            let set = sets.find("list", Backend(0), Class(class));
            assert_eq!(**sets.limits(set), *expected);
        };
        check(0, &[0]);
        check(1, &[1]);
        check(2, &[0]);
    }

    #[test]
    fn a_call_meets_the_limits_of_everyone_its_function_and_its_backend() {
        let sets = LimitSets::new(&[
            rule("total", Scope::Every),
            rule("list", Scope::Function("list".into())),
            rule("first", Scope::Backend(Backend(1))),
            rule("list too", Scope::Function("list".into())),
            rule("create", Scope::Function("create".into())),
        ]);
        let check = |function: &str, backend, expected: &[LimitId]| {
            assert_eq!(
                **sets.limits(sets.find(function, Backend(backend), Class(0))),
                *expected
            );
        };
        check("other", 0, &[0]);
        check("other", 1, &[0, 2]);
        check("list", 0, &[0, 1, 3]);
        check("list", 1, &[0, 1, 2, 3]);
        check("create", 1, &[0, 2, 4]);
        assert_eq!(sets.sets.len(), 6);
        assert_eq!(vec![0; 0], **LimitSets::new(&[]).limits(0));
    }
}
