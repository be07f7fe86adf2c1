//! Random policies and buckets.

use std::time::Duration;

use tidegate_limits::call::Backend;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Reserve, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::scheduler::{BucketLimit, BucketOrder, BucketRule, OnExcess, Settlement};
use tidegate_limits::{Burst, Class, Fill, Limit, Policy};

use crate::nanos;
use crate::random::Random;

/// The settings of a run.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) classes: u64,
    pub(crate) callers: u64,
    pub(crate) calls: u64,
    pub(crate) buckets: u64,
    pub(crate) reserves: bool,
    pub(crate) reloads: bool,
    pub(crate) jitter: bool,
    /// Negative control: fixed windows are passed off as sliding ones.
    pub(crate) fixed_as_sliding: bool,
    /// Negative control: after a reload outstanding limits are passed off as larger by one.
    pub(crate) one_slot_more: bool,
}

impl Shape {
    /// The limits as the oracle gets them.
    pub(crate) fn claims(self, rules: &[LimitRule]) -> Vec<LimitRule> {
        let mut rules = rules.to_vec();
        for rule in &mut rules {
            if let (true, Limit::Window { shape, .. }) = (self.fixed_as_sliding, &mut rule.limit) {
                *shape = WindowShape::Sliding;
            }
            if let (true, Limit::Outstanding { max }) = (self.one_slot_more, &mut rule.limit) {
                *max = max.saturating_add(u32::from(*max > 0));
            }
        }
        rules
    }
}

/// The limits that a policy may have. A name always has the same scope and kind.
pub(crate) const LIMITS: [(&str, Scope, bool); 10] = [
    ("total", Scope::Every, true),
    ("outstanding", Scope::Every, false),
    ("first backend", Scope::Backend(Backend(0)), false),
    ("slow backend", Scope::Backend(Backend(1)), true),
    ("zero", Scope::Every, true),
    ("list", Scope::Every, true),
    ("create", Scope::Every, false),
    ("pool", Scope::Class(Class(0)), false),
    ("class", Scope::Class(Class(0)), true),
    ("others", Scope::Every, false),
];

pub(crate) fn random_policy(random: &mut Random, shape: Shape, before: Option<&Policy>) -> Policy {
    let mut rules = Vec::new();
    for (name, everyone, window) in &LIMITS {
        let kept =
            before.and_then(|policy| policy.limits().iter().find(|rule| &*rule.name == *name));
        let rule = match kept {
            // Most reloads touch some limits and leave the others.
            Some(rule) if random.one_in(2) => Some(rule.clone()),
            Some(rule) if random.one_in(2) => {
                let mut rule = rule.clone();
                match &mut rule.limit {
                    Limit::Paced { .. } => unreachable!("no paced limit is in these policies"),
                    Limit::Outstanding { max } | Limit::Window { max, .. } => {
                        *max = random.between(1, 6) as u32
                    }
                }
                rule.reserve = random_reserve(random, shape, &rule.limit);
                Some(rule)
            }
            _ => random.one_in(2).then(|| {
                let limit = random_limit(random, *window);
                let reserve = random_reserve(random, shape, &limit);
                LimitRule::new(*name, limit)
                    .scope(scope(name, everyone))
                    .reserve(reserve)
            }),
        };
        rules.extend(rule);
    }
    let capacity = if random.one_in(2) {
        random.between(1, 8)
    } else {
        1000
    } as u32;
    let when_full = if random.one_in(2) {
        WhenFull::Refuse
    } else {
        WhenFull::Wait {
            door: random.between(0, 10) as u32,
        }
    };
    let postpone = if shape.jitter {
        let min = random.below(10);
        Postpone::Jitter {
            min: nanos(min),
            max: nanos(min + random.between(1, 10)),
        }
    } else {
        Postpone::InTurn
    };
    let weights = (0..shape.classes).map(|_| random.between(1, 4) as u32);
    let classes = weights
        .zip(0..)
        .map(|(weight, n)| ClassShare::new(format!("class {n}"), weight))
        .collect();
    Policy::new(rules, capacity, when_full, postpone, classes).expect("a random policy is a policy")
}

/// Numbers of tokens that add up without rounding; a nanosecond is as long as a second elsewhere.
pub(crate) fn random_bucket(random: &mut Random, shape: Shape) -> BucketRule {
    let quarters = |random: &mut Random, most| random.between(1, most) as f64 / 4.0;
    let burst = Burst::new(quarters(random, 40)).expect("a burst");
    let fill = Fill::new(quarters(random, 12) * 1e8).expect("a rate");
    BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Bucket { burst, fill },
        on_excess: if random.one_in(4) {
            OnExcess::Reject
        } else {
            OnExcess::Delay
        },
        order: if random.one_in(3) {
            BucketOrder::Fifo
        } else {
            BucketOrder::Fair
        },
        settlement: if shape.reloads && random.one_in(2) {
            Settlement::Measured
        } else {
            Settlement::Estimate
        },
    }
}

fn random_limit(random: &mut Random, window: bool) -> Limit {
    let max = match random.below(12) {
        0 => u32::MAX,
        1 => 0,
        n => n as u32 % 6 + 1,
    };
    if !window {
        return Limit::Outstanding { max };
    }
    let length = match random.below(10) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        _ => nanos(random.between(1, 25)),
    };
    let guard = if random.one_in(2) {
        Duration::ZERO
    } else {
        nanos(random.below(4))
    };
    let shape = match random.below(3) {
        0 => WindowShape::Fixed {
            phase: nanos(random.below(30)),
        },
        _ => WindowShape::Sliding,
    };
    let stamp = if random.one_in(3) {
        WindowStamp::Replied
    } else {
        WindowStamp::Sent
    };
    Limit::Window {
        max,
        length,
        guard,
        shape,
        stamp,
    }
}

fn random_reserve(random: &mut Random, shape: Shape, limit: &Limit) -> Option<Reserve> {
    (shape.reserves && random.one_in(2)).then(|| Reserve {
        class: Class(random.below(shape.classes) as u32),
        amount: random.below(u64::from(limit.max().min(4)) + 1) as u32,
    })
}

fn scope(name: &str, scope: &Scope) -> Scope {
    match name {
        "list" | "create" => Scope::Function(name.into()),
        "others" => Scope::EveryBut([Class(0)].into()),
        _ => scope.clone(),
    }
}
