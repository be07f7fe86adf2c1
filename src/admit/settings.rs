//! The settings of the gate: the queue, its limits and its classes.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, Reserve, Scope, WindowStamp};
use tidegate_limits::{Class, Limit, Timestamp};

use super::servers::ServerSettings;
use crate::call::LimitMode;
use crate::call::pace::CostRange;
use crate::options::words;

/// The settings of this stage. The gate builds the scheduler's policy from them, because only the
/// gate knows the clock's phase and the backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// The most waiting calls.
    pub capacity: u32,
    /// The most calls past the gate at once.
    pub workers: u32,
    /// The most calls without limits past the gate at once.
    pub max_unlimited: u32,
    /// The behaviour of a full queue.
    pub when_full: WhenFull,
    /// Whether a call that is predicted to start after its deadline is refused at once.
    pub early_refusal: bool,
    /// How a call is postponed.
    pub postpone: Postpone,
    /// The limits per window; none switches windows off.
    pub window: Option<Window>,
    /// Paced limits on all calls, or on those of a function, each with its own name.
    pub paced: Vec<PacedLimit>,
    /// Calls at the backend at once; none switches this limit off.
    pub outstanding_max: Option<u32>,
    /// Whether that limit holds calls. If it only observes, workers hold none either.
    pub outstanding_mode: LimitMode,
    /// How long a call may wait, from arrival.
    pub max_wait: Duration,
    /// The most calls above the capacity, at the door of a full queue: one for each connection, and
    /// the tasks.
    pub door_max: u32,
    /// The classes, at least one. The first is that of users, to which reads are promoted. Calls of
    /// unknown classes are in the last.
    pub classes: Vec<ClassRule>,
    /// How long after a user call on a guest its reads are in the class of users; `None` switches
    /// promotion off.
    pub promote_for: Option<Duration>,
    /// Content of windows at a start if nothing is known of the process before.
    pub ledger_lost: LedgerLost,
    /// How long after the start a call counts that was at the backend when the process before died.
    pub after_crash: AfterCrash,
    /// How long limits grow from a tenth to full, after a backend was down and after a pause. Zero is
    /// not at all.
    pub ramp: Duration,
    /// The servers of the HTTP backend, if it has several.
    pub servers: ServerSettings,
}

/// How long a call that was at the backend when its process died holds its slot in the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCrash {
    /// So long in any case.
    Fixed(Duration),
    /// As long as such calls usually take, as far as that is known.
    Usual,
}

impl AfterCrash {
    /// How long a call is held if nothing is known of such calls; and the most for which one that has lasted too long
    /// holds others.
    const UNKNOWN: Duration = Duration::from_secs(60);

    /// How long a call is held. `usual` is how long most such calls take; `late` is how long one has lasted that had
    /// already lasted longer than is usual for it, which means that the backend is slower than usual.
    #[must_use]
    pub fn hold_time(self, usual: Option<Duration>, late: Option<Duration>) -> Duration {
        match (self, usual) {
            (Self::Fixed(time), _) => time,
            (Self::Usual, None) => Self::UNKNOWN,
            // From the start and not from its admission: that is the longer time.
            (Self::Usual, Some(usual)) => {
                let late = late.map_or(Duration::ZERO, |late| late.min(Self::UNKNOWN));
                usual.max(late)
            }
        }
    }
}

words! {
    /// Content of windows at a start if nothing is known of the process before.
    pub enum LedgerLost {
        /// Windows count as used up.
        AssumeFull = "assume_full",
        /// Windows count as unused.
        AssumeEmpty = "assume_empty",
    }
}

words! {
    /// The fate of one more call at a full queue.
    pub enum WhenFull {
        /// The call waits at the door, in its turn.
        Wait = "wait",
        /// The call is refused at once.
        Refuse = "refuse",
    }
}

/// The window limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The length.
    pub length: Duration,
    /// Calls per window over all functions; `None` if `total` is 0, which means no bound.
    pub total: Option<u32>,
    /// Calls per window by function.
    pub functions: Vec<(Arc<str>, u32)>,
    /// Sliding, or aligned to the wall clock.
    pub fixed: bool,
    /// When a slot is stamped.
    pub stamp: WindowStamp,
    /// Added to the length before a slot comes back.
    pub guard: Duration,
    /// Whether they hold calls.
    pub mode: LimitMode,
}

/// A number of tokens a second, over all callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacedLimit {
    /// The name in the config.
    pub name: Arc<str>,
    /// The function whose calls meet it; `None` for all calls.
    pub function: Option<Arc<str>>,
    /// Tokens per second.
    pub rate: Rate,
    /// Late calls are admitted at this many times the rate.
    pub ratio: BurstRatio,
    /// The costs of its calls.
    pub costs: CostRange,
    /// Whether it holds calls.
    pub mode: LimitMode,
}

/// The index of the most urgent class, to which reads are promoted.
pub(super) const USER: Class = Class(0);

/// A class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassRule {
    /// The name in metrics and logs.
    pub name: Arc<str>,
    /// The share of turns against the other classes while both wait; above zero.
    pub weight: u32,
    /// How long its calls may wait.
    pub deadline: ClassDeadline,
    /// The most of its calls at the backend at once, if below the limit of all.
    pub pool: Option<ClassPool>,
    /// The calls per window, if below the limit of all.
    pub per_window: Option<u32>,
    /// Of the calls at the backend at once, how many are for this class alone.
    pub reserve_outstanding: u32,
    /// The reserve in the total per window.
    pub reserve_per_window: u32,
    /// Whether its pool and its reserve of calls at once hold calls.
    pub outstanding_mode: LimitMode,
    /// Whether its limit and its reserve per window hold calls.
    pub window_mode: LimitMode,
}

impl ClassRule {
    /// A class with only a weight.
    #[must_use]
    pub fn weighing(name: &str, weight: u32) -> Self {
        Self {
            name: name.into(),
            weight,
            deadline: ClassDeadline::Ordinary,
            pool: None,
            per_window: None,
            reserve_outstanding: 0,
            reserve_per_window: 0,
            outstanding_mode: LimitMode::Enforce,
            window_mode: LimitMode::Enforce,
        }
    }

    pub(super) fn share(&self) -> ClassShare {
        ClassShare::new(Arc::clone(&self.name), self.weight)
    }
}

/// The most calls of a class at the backend at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassPool {
    /// At most N of the calls that may be there.
    Inside(u32),
    /// N more than may be there, which do not count among those.
    Beside(u32),
}

impl ClassPool {
    /// No bound. Calls beside the total still do not count in it.
    pub(super) fn unbounded(self) -> Option<Self> {
        match self {
            Self::Inside(_) => None,
            Self::Beside(_) => Some(Self::Beside(UNBOUNDED)),
        }
    }

    /// Calls at once.
    #[must_use]
    pub fn max(self) -> u32 {
        match self {
            Self::Inside(max) | Self::Beside(max) => max,
        }
    }
}

/// A pool of this size is none: no config gives as much.
const UNBOUNDED: u32 = u32::MAX;

/// How long the calls of a class may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassDeadline {
    /// As long as any call may, from arrival.
    Ordinary,
    /// For this long, from arrival. Zero refuses at the first closed limit.
    After(Duration),
    /// Until they are served, or their clients leave.
    Never,
}

impl ClassDeadline {
    /// The last moment at which a call may leave the queue; `None` if it waits until it is served.
    #[must_use]
    pub fn of(self, max_wait: Duration, arrived: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let patience = match self {
            Self::Ordinary => max_wait,
            Self::After(patience) => patience,
            Self::Never => return None,
        };
        // With a deadline of now, it is refused at the first closed limit.
        Some(if patience.is_zero() {
            now
        } else {
            arrived + patience
        })
    }
}

impl GateSettings {
    /// The most calls at the backend at once: those of all classes together, plus the pools beside
    /// them. `None` without such a bound, also if a part of it only observes.
    #[must_use]
    pub fn outstanding_sum(&self) -> Option<u32> {
        let mut sum = self.outstanding_max?;
        if self.outstanding_mode == LimitMode::Observe {
            return None;
        }
        for class in &self.classes {
            if let Some(ClassPool::Beside(max)) = class.pool {
                if class.outstanding_mode == LimitMode::Observe {
                    return None;
                }
                sum = sum.saturating_add(max);
            }
        }
        Some(sum)
    }

    /// The classes and their rules.
    fn numbered(&self) -> impl Iterator<Item = (Class, &ClassRule)> {
        (0..).map(Class).zip(&self.classes)
    }

    /// The calls that count among those at the backend at once.
    pub(super) fn outstanding_scope(&self) -> Scope {
        let is_unlogged = |rule: &ClassRule| matches!(rule.pool, Some(ClassPool::Beside(_)));
        let beside = self.numbered().filter(|(_, rule)| is_unlogged(rule));
        let beside: Arc<[Class]> = beside.map(|(class, _)| class).collect();
        match beside.is_empty() {
            true => Scope::Every,
            false => Scope::EveryBut(beside),
        }
    }

    /// The reserve in a limit with this maximum, and its class: the first class with a reserve in
    /// it. The check of the config allows only one.
    pub(super) fn reserve(&self, max: u32, amount: impl Fn(&ClassRule) -> u32) -> Option<Reserve> {
        let (class, rule) = self.numbered().find(|(_, rule)| amount(rule) > 0)?;
        let amount = amount(rule).min(max);
        Some(Reserve { class, amount })
    }

    /// The classes' own limits.
    pub(super) fn class_limits(
        &self,
        window: impl Fn(u32) -> Option<Limit>,
    ) -> impl Iterator<Item = LimitRule> {
        self.numbered().flat_map(move |(class, rule)| {
            let named = |what: &str, limit| LimitRule {
                name: format!("class:{}:{what}", rule.name).into(),
                scope: Scope::Class(class),
                limit,
                reserve: None,
            };
            let pool = rule
                .pool
                .map(ClassPool::max)
                .filter(|max| *max != UNBOUNDED);
            let pool = pool.map(|max| named("outstanding", Limit::Outstanding { max }));
            let per_window = rule.per_window.and_then(&window);
            let per_window = per_window.map(|limit| named("window", limit));
            pool.into_iter().chain(per_window)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_counts_from_the_arrival_and_none_is_never() {
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        let check = |deadline: ClassDeadline, max_wait, expected| {
            let max_wait = Duration::from_secs(max_wait);
            assert_eq!(deadline.of(max_wait, at(5), at(7)), expected);
        };
        check(ClassDeadline::Ordinary, 60, Some(at(65)));
        check(ClassDeadline::Ordinary, 0, Some(at(7)));
        check(
            ClassDeadline::After(Duration::from_secs(10)),
            60,
            Some(at(15)),
        );
        check(ClassDeadline::After(Duration::ZERO), 60, Some(at(7)));
        check(ClassDeadline::Never, 0, None);
    }
}
