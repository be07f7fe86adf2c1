//! The limits that calls meet, as numbered sets.
//!
//! The limits of a call depend only on its function, its backend and its class, and on the server to which it is bound. So the possible sets of
//! limits are few, known in advance, and numbered.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::rule::{LimitRule, Scope};
use crate::call::{ANY_FUNCTION, Backend, Class, ServerNumber};

/// The index of a limit in its policy.
pub(crate) type LimitId = u32;

/// The number of a set of limits.
pub(crate) type SetId = u32;

/// The sets of limits: one for each function with a limit of its own, one for all other functions and one for a call that
/// may be of any function, times the same for backends, times the same for classes that a limit names.
#[derive(Clone, Debug)]
pub(crate) struct LimitSets {
    /// Functions with a limit of their own, in order of [`by_length`]. A function's number is its place in
    /// here plus one. The last number is that of [`ANY_FUNCTION`].
    functions: Vec<Arc<str>>,
    /// Backends with a limit of their own, and their servers, in order; likewise.
    backends: Vec<ServedBy>,
    /// Classes that a limit names, in order; likewise.
    classes: Vec<Class>,
    sets: Vec<Arc<[LimitId]>>,
    /// For each limit, the first that the same calls meet.
    peers: Vec<LimitId>,
}

/// A backend and the server of it to which a call is bound, in one number: it is looked up for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServedBy(u32);

impl ServedBy {
    #[inline]
    pub(crate) fn new(backend: Backend, server: Option<ServerNumber>) -> Self {
        Self(u32::from(backend.0) << 16 | u32::from(server.map_or(0, ServerNumber::get)))
    }

    const fn backend(self) -> Backend {
        Backend((self.0 >> 16) as u8)
    }
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
                Scope::Backend(backend) => backends.push(ServedBy::new(*backend, None)),
                Scope::Server(backend, server) => {
                    let servers = [None, Some(*server)];
                    backends.extend(servers.map(|server| ServedBy::new(*backend, server)));
                }
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
        let first = |of: &LimitRule| rules.iter().position(|rule| rule.scope == of.scope);
        let first = |rule| first(rule).expect("it has its own scope") as LimitId;
        let peers = rules.iter().map(first).collect();
        let mut sets = Vec::new();
        let named = others_and(&functions).map(|function| match function {
            Some(function) => FunctionSet::One(function),
            None => FunctionSet::Other,
        });
        for function in named.chain([FunctionSet::Any]) {
            for backend in others_and(&backends) {
                for class in others_and(&classes) {
                    let is_met = |rule: &LimitRule| match &rule.scope {
                        Scope::Every => true,
                        Scope::Function(named) => function.meets(named),
                        Scope::Backend(named) => backend.is_some_and(|it| it.backend() == *named),
                        Scope::Server(named, server) => {
                            backend == Some(&ServedBy::new(*named, Some(*server)))
                        }
                        Scope::Class(named) => class == Some(named),
                        Scope::EveryBut(named) => class.is_none_or(|it| !named.contains(it)),
                    };
                    let met = rules.iter().zip(0..).filter(|(rule, _)| is_met(rule));
                    sets.push(met.map(|(_, id)| id).collect());
                }
            }
        }
        Self {
            functions,
            backends,
            classes,
            sets,
            peers,
        }
    }

    /// The place of a server of a backend, or of the backend if the policy does not name the server.
    #[inline]
    pub(crate) fn place_of(&self, backend: Backend, server: Option<ServerNumber>) -> ServedBy {
        let place = ServedBy::new(backend, server);
        if server.is_some() && self.backends.binary_search(&place).is_err() {
            return ServedBy::new(backend, None);
        }
        place
    }

    /// The set that a call of this function and class meets at this place.
    #[inline(always)]
    pub(crate) fn find(&self, function: &str, place: ServedBy, class: Class) -> SetId {
        let number = |found: Result<usize, usize>| found.map_or(0, |index| index + 1);
        let function = if self.functions.is_empty() {
            0
        } else if function == ANY_FUNCTION {
            self.functions.len() + 1
        } else {
            let by_name = |other: &Arc<str>| by_length(other, function);
            number(self.functions.binary_search_by(by_name))
        };
        let backend = number(self.backends.binary_search(&place));
        let class = number(self.classes.binary_search(&class));
        let set = function * (self.backends.len() + 1) + backend;
        (set * (self.classes.len() + 1) + class) as SetId
    }

    /// The limits of a set, in the policy's order.
    pub(crate) fn limits(&self, set: SetId) -> &Arc<[LimitId]> {
        &self.sets[set as usize]
    }

    /// The first limit that the same calls meet: one name for all limits of a scope.
    pub(crate) fn first_peer(&self, limit: LimitId) -> LimitId {
        self.peers[limit as usize]
    }
}

/// The functions of the calls that meet a set.
#[derive(Clone, Copy)]
enum FunctionSet<'a> {
    /// Functions without a limit of their own.
    Other,
    One(&'a Arc<str>),
    /// A call whose function is not known meets the limits of each.
    Any,
}

impl FunctionSet<'_> {
    fn meets(self, named: &Arc<str>) -> bool {
        match self {
            Self::Other => false,
            Self::One(function) => function == named,
            Self::Any => true,
        }
    }
}

/// `None`, which stands for all that are not named, and then each that is.
fn others_and<T>(named: &[T]) -> impl Iterator<Item = Option<&T>> {
    core::iter::once(None).chain(named.iter().map(Some))
}

/// Orders names by length, and then by letters. Most names differ in length, so the letters are rarely
/// compared.
fn by_length(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::policy::limit::Limit;

    fn rule(name: &str, scope: Scope) -> LimitRule {
        LimitRule::new(name, Limit::Outstanding { max: 1 }).scope(scope)
    }

    #[test]
    fn only_calls_of_its_class_meet_a_pool() {
        let sets = LimitSets::new(&[
            rule("total", Scope::Every),
            rule("pool", Scope::Class(Class(2))),
            rule("list", Scope::Function("list".into())),
        ]);
        let check = |function: &str, class, expected: &[LimitId]| {
            let set = sets.find(function, ServedBy::new(Backend(0), None), Class(class));
            assert_eq!(**sets.limits(set), *expected);
        };
        check("list", 2, &[0, 1, 2]);
        check("list", 1, &[0, 2]);
        check("other", 2, &[0, 1]);
        check("other", 0, &[0]);
    }

    #[test]
    fn a_class_with_a_pool_beside_the_total_does_not_meet_the_total() {
        let sets = LimitSets::new(&[
            rule("total", Scope::EveryBut([Class(1), Class(3)].into())),
            rule("pool", Scope::Class(Class(1))),
            rule("other pool", Scope::Class(Class(3))),
        ]);
        let check = |class, expected: &[LimitId]| {
            let set = sets.find("list", ServedBy::new(Backend(0), None), Class(class));
            assert_eq!(**sets.limits(set), *expected);
        };
        check(0, &[0]);
        check(1, &[1]);
        check(2, &[0]);
        check(3, &[2]);
    }

    #[test]
    fn a_call_meets_the_limits_of_all_of_its_function_and_of_its_backend() {
        let sets = LimitSets::new(&[
            rule("total", Scope::Every),
            rule("list", Scope::Function("list".into())),
            rule("first", Scope::Backend(Backend(1))),
            rule("list too", Scope::Function("list".into())),
            rule("create", Scope::Function("create".into())),
        ]);
        let check = |function: &str, backend, expected: &[LimitId]| {
            assert_eq!(
                **sets.limits(sets.find(function, ServedBy::new(Backend(backend), None), Class(0))),
                *expected
            );
        };
        check("other", 0, &[0]);
        check("other", 1, &[0, 2]);
        check("list", 0, &[0, 1, 3]);
        check("list", 1, &[0, 1, 2, 3]);
        check("create", 1, &[0, 2, 4]);
        check(ANY_FUNCTION, 0, &[0, 1, 3, 4]);
        check(ANY_FUNCTION, 1, &[0, 1, 2, 3, 4]);
        assert_eq!(sets.sets.len(), 8);
        assert_eq!(vec![0; 0], **LimitSets::new(&[]).limits(0));
    }
}
