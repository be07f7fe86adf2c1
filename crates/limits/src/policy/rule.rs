//! The policy: limits, queue and classes, checked when it is made.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::limit::Limit;
use crate::call::{Backend, Class, ServerNumber, setters};

/// The set of calls that meet a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every call.
    Every,
    /// Calls of this function.
    Function(Arc<str>),
    /// Calls to this backend.
    Backend(Backend),
    /// Calls of this class: a pool inside the total.
    Class(Class),
    /// Calls that are bound to this server of a backend. A call to the backend is bound when it leaves, to a
    /// server whose limits all have room. Until then it waits at the first [`Limit::Outstanding`] with
    /// [`Scope::Backend`], which the policy must have.
    Server(Backend, ServerNumber),
    /// Every call except those of these classes, which have pools beside the total.
    EveryBut(Arc<[Class]>),
}

/// The part of a limit that is reserved for one class.
///
/// Other classes cannot use any of `amount`, even if the class itself does not use it. A call of another
/// class is admitted only if there is room beside the use of all others and the greater of `amount` and
/// the class's own use. The class itself may use the whole limit.
///
/// With [`Postpone::Jitter`], calls of a class with a reserve are not set aside, even if the amount is 0.
/// They keep their place and run as soon as their limits open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The class.
    pub class: Class,
    /// Calls for an outstanding limit, cost for a window; at most the limit's maximum.
    pub amount: u32,
}

/// A limit with its name and the calls that meet it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRule {
    /// The name, which refusals contain. A limit keeps its state over a reload by its name.
    pub name: Arc<str>,
    /// The set of calls that meet the limit.
    pub scope: Scope,
    /// The limit itself.
    pub limit: Limit,
    /// The part reserved for one class, if any.
    pub reserve: Option<Reserve>,
}

impl LimitRule {
    /// A limit that every call meets, without a reserve.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, limit: Limit) -> Self {
        Self {
            name: name.into(),
            scope: Scope::Every,
            limit,
            reserve: None,
        }
    }

    setters! {
        scope: Scope,
        reserve: Option<Reserve>,
    }
}

/// The fate of a call that arrives at a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The call is refused at once.
    Refuse,
    /// The call waits at the door: in its turn, as if it were in the queue, but above the capacity.
    Wait {
        /// Calls that may wait above the capacity. Further calls are refused.
        door: u32,
    },
}

/// The fate of a call that meets a closed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Postpone {
    /// The call keeps its place and runs as soon as the limit opens, in fair order.
    InTurn,
    /// The call is set aside for a random time, and then joins the end of its flow again. The order is not defined.
    /// Meanwhile it counts in the capacity.
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
    /// The name. Waiting calls find their class by name after a reload.
    pub name: Arc<str>,
    /// How much cost the class is served per round, relative to the others; above zero.
    pub weight: u32,
}

impl ClassShare {
    /// A class with this name and weight.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, weight: u32) -> Self {
        Self {
            name: name.into(),
            weight,
        }
    }
}

/// The limits, the bounds of the queue, and the classes: everything that decides whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    limits: Vec<LimitRule>,
    capacity: u32,
    when_full: WhenFull,
    postpone: Postpone,
    classes: Vec<ClassShare>,
    pick: Pick,
    sticky_wait: Duration,
}

/// The choice of a server for a call that any may serve, among those with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The first one, in the order of the policy.
    #[default]
    First,
    /// The one with the fewest calls in flight, as a part of what its outstanding limit allows. Equal ones take turns.
    Least,
}

/// A mistake in a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// Two limits have this name.
    DuplicateLimit(Arc<str>),
    /// Two classes have this name.
    DuplicateClass(Arc<str>),
    /// No call can wait.
    ZeroCapacity,
    /// There is no class.
    NoClass,
    /// A class with weight 0 would never be served.
    ZeroWeight(Arc<str>),
    /// The shortest jitter is longer than the longest.
    JitterMinAboveMax {
        /// The shortest, as given.
        min: Duration,
        /// The longest, as given.
        max: Duration,
    },
    /// A call set aside for no time would be asked without end.
    JitterZero,
    /// A paced limit cannot have a reserve.
    ReserveOfPace(Arc<str>),
    /// A limit names an unknown class.
    UnknownClass(Arc<str>),
    /// The limit of a server cannot have a reserve.
    ReserveOfServer(Arc<str>),
    /// The limit is of a server, and its backend has no outstanding limit at which calls could wait.
    ServerWithoutBackend(Arc<str>),
    /// The reserve of this limit is above its maximum.
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
            Self::UnknownClass(limit) => write!(f, "limit {limit:?} names an unknown class"),
            Self::ReserveOfPace(limit) => {
                write!(f, "limit {limit:?} is paced and cannot have a reserve")
            }
            Self::ReserveOfServer(limit) => {
                write!(
                    f,
                    "limit {limit:?} is of a server and cannot have a reserve"
                )
            }
            Self::ServerWithoutBackend(limit) => {
                write!(
                    f,
                    "limit {limit:?} is of a server, and its backend has no outstanding limit"
                )
            }
            Self::ReserveAboveMax(limit) => {
                write!(f, "the reserve of limit {limit:?} is above its maximum")
            }
        }
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// A policy with these limits, under which `capacity` calls may wait.
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
        let policy = Self {
            limits,
            capacity,
            when_full,
            postpone,
            classes,
            pick: Pick::First,
            sticky_wait: Duration::ZERO,
        };
        policy.checked()
    }

    fn checked(self) -> Result<Self, PolicyError> {
        if let Some(name) = duplicate(self.limits.iter().map(|rule| &rule.name)) {
            return Err(PolicyError::DuplicateLimit(name));
        }
        if let Some(name) = duplicate(self.classes.iter().map(|class| &class.name)) {
            return Err(PolicyError::DuplicateClass(name));
        }
        if self.capacity == 0 {
            return Err(PolicyError::ZeroCapacity);
        }
        if self.classes.is_empty() {
            return Err(PolicyError::NoClass);
        }
        if let Some(class) = self.classes.iter().find(|class| class.weight == 0) {
            return Err(PolicyError::ZeroWeight(class.name.clone()));
        }
        if let Postpone::Jitter { min, max } = self.postpone {
            if min > max {
                return Err(PolicyError::JitterMinAboveMax { min, max });
            }
            if max.is_zero() {
                return Err(PolicyError::JitterZero);
            }
        }
        for rule in &self.limits {
            rule.check(&self.classes)?;
        }
        if let Some(rule) = self.server_without_backend() {
            return Err(PolicyError::ServerWithoutBackend(Arc::clone(&rule.name)));
        }
        Ok(self)
    }

    /// A policy with one class and room for 1,024 waiting calls, for you to change.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_limits::policy::LimitRule;
    /// use tidegate_limits::{Limit, Policy};
    ///
    /// let two_per_second = Limit::sliding(2, Duration::from_secs(1));
    /// let policy = Policy::builder()
    ///     .limit(LimitRule::new("total", two_per_second))
    ///     .capacity(100)
    ///     .build()?;
    /// # Ok::<(), tidegate_limits::policy::PolicyError>(())
    /// ```
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder(Self {
            limits: Vec::new(),
            capacity: 1024,
            when_full: WhenFull::Refuse,
            postpone: Postpone::InTurn,
            classes: Vec::new(),
            pick: Pick::First,
            sticky_wait: Duration::ZERO,
        })
    }

    /// The limits, in the order given.
    #[must_use]
    pub fn limits(&self) -> &[LimitRule] {
        &self.limits
    }

    /// The number of calls that may wait in the queue, at least 1.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The fate of a call that arrives at a full queue.
    #[must_use]
    pub const fn when_full(&self) -> WhenFull {
        self.when_full
    }

    /// The fate of a call that meets a closed limit.
    #[must_use]
    pub const fn postpone(&self) -> Postpone {
        self.postpone
    }

    /// Sets how a server is chosen. A call with a key waits for its own server for
    /// `sticky_wait` after its arrival.
    #[must_use]
    pub fn with_pick(self, pick: Pick, sticky_wait: Duration) -> Self {
        Self {
            pick,
            sticky_wait,
            ..self
        }
    }

    /// How a server is chosen for a call that any may serve.
    #[must_use]
    pub const fn pick(&self) -> Pick {
        self.pick
    }

    /// How long after its arrival a call waits for the server of its key.
    #[must_use]
    pub const fn sticky_wait(&self) -> Duration {
        self.sticky_wait
    }

    /// The limit of a backend at which calls wait for any of its servers.
    pub(crate) fn wait_limit(&self, backend: Backend) -> Option<u32> {
        let is_it = |rule: &LimitRule| {
            rule.scope == Scope::Backend(backend) && matches!(rule.limit, Limit::Outstanding { .. })
        };
        Some(self.limits.iter().position(is_it)? as u32)
    }

    /// The first limit of a server whose backend has no limit at which calls could wait.
    fn server_without_backend(&self) -> Option<&LimitRule> {
        self.limits.iter().find(|rule| match rule.scope {
            Scope::Server(backend, _) => self.wait_limit(backend).is_none(),
            _ => false,
        })
    }

    /// How long calls of this class are set aside when a limit bars them; `None` if they keep their place,
    /// as calls of a class with a reserve do.
    pub(crate) fn jitter(&self, class: Class) -> Option<(Duration, Duration)> {
        let Postpone::Jitter { min, max } = self.postpone else {
            return None;
        };
        let mut reserves = self.limits.iter().filter_map(|rule| rule.reserve);
        let keeps_its_place = reserves.any(|reserve| reserve.class == class);
        (!keeps_its_place).then_some((min, max))
    }

    /// The classes, at least one. A [`Class`] is an index into them.
    #[must_use]
    pub fn classes(&self) -> &[ClassShare] {
        &self.classes
    }
}

impl LimitRule {
    fn check(&self, classes: &[ClassShare]) -> Result<(), PolicyError> {
        let is_unknown = |class: Class| class.0 as usize >= classes.len();
        let of_unknown = match &self.scope {
            Scope::Class(class) => is_unknown(*class),
            Scope::EveryBut(others) => others.iter().any(|class| is_unknown(*class)),
            Scope::Every | Scope::Function(_) | Scope::Backend(_) | Scope::Server(..) => false,
        };
        let name = || Arc::clone(&self.name);
        if of_unknown {
            return Err(PolicyError::UnknownClass(name()));
        }
        match self.reserve {
            Some(reserve) if is_unknown(reserve.class) => Err(PolicyError::UnknownClass(name())),
            Some(_) if matches!(self.limit, Limit::Paced { .. }) => {
                Err(PolicyError::ReserveOfPace(name()))
            }
            Some(_) if matches!(self.scope, Scope::Server(..)) => {
                Err(PolicyError::ReserveOfServer(name()))
            }
            Some(reserve) if reserve.amount > self.limit.max() => {
                Err(PolicyError::ReserveAboveMax(name()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Makes a [`Policy`]. See [`Policy::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PolicyBuilder(Policy);

impl PolicyBuilder {
    /// Adds a limit.
    pub fn limit(mut self, rule: LimitRule) -> Self {
        self.0.limits.push(rule);
        self
    }

    /// Adds a class. Without any, there is one class named `default`.
    pub fn class(mut self, name: impl Into<Arc<str>>, weight: u32) -> Self {
        self.0.classes.push(ClassShare::new(name, weight));
        self
    }

    /// The number of calls that may wait in the queue.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.0.capacity = capacity;
        self
    }

    /// Sets the fate of a call that arrives at a full queue.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.0.when_full = when_full;
        self
    }

    /// Sets the fate of a call that meets a closed limit.
    pub fn postpone(mut self, postpone: Postpone) -> Self {
        self.0.postpone = postpone;
        self
    }

    /// The policy.
    ///
    /// # Errors
    ///
    /// As for [`Policy::new`].
    pub fn build(mut self) -> Result<Policy, PolicyError> {
        if self.0.classes.is_empty() {
            self.0.classes.push(ClassShare::new("default", 1));
        }
        self.0.checked()
    }
}

fn duplicate<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Option<Arc<str>> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name)).cloned()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn rule(name: &str, scope: Scope) -> LimitRule {
        LimitRule::new(name, Limit::Outstanding { max: 1 }).scope(scope)
    }

    #[test]
    fn an_invalid_policy_is_an_error() {
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
        let one = [ClassShare::new("one", 1)];
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
            &[ClassShare::new("c", 1), ClassShare::new("c", 2)],
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
            &[ClassShare::new("c", 0)],
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
    fn an_unknown_class_has_no_pool_and_no_reserve() {
        let check = |scope, reserve: Option<(u32, u32)>, expected| {
            let reserve = reserve.map(|(class, amount)| Reserve {
                class: Class(class),
                amount,
            });
            let limit = rule("limit", scope).reserve(reserve);
            let classes = vec![ClassShare::new("one", 1)];
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
}
