//! The scopes: which limits, which calls, and what may happen.

use std::time::Duration;

use tidegate_limits::call::{ServerChoice, ServerNumber};
use tidegate_limits::policy::{
    ClassShare, LimitRule, Pick, Postpone, Reserve, Scope as Calls, WhenFull, WindowShape,
    WindowStamp,
};
use tidegate_limits::scheduler::{BucketLimit, BucketOrder, BucketRule, OnExcess, Settlement};
use tidegate_limits::{Burst, Call, Caller, Class, Cost, Fill, Limit, Policy, Timestamp};

use super::world::{BACKEND, BUCKET, Broken};

/// Calls that are alike.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) call: Call,
    /// How long it waits at most, in steps.
    pub(crate) patience: Option<u64>,
}

/// Actions that may happen, and how often in all; `None` is without end.
#[derive(Clone, Copy)]
pub(crate) struct May {
    /// Calls that wait or run at once.
    pub(crate) at_once: usize,
    pub(crate) arrivals: Option<u32>,
    pub(crate) ticks: Option<u8>,
    pub(crate) requeues: Option<u8>,
    pub(crate) reloads: Option<u8>,
    pub(crate) give_back: bool,
    pub(crate) pause: bool,
    pub(crate) jump: bool,
    /// A call leaves for the backend in an action of its own, and not as it is admitted.
    pub(crate) send: bool,
    /// A call that arrives runs at once if it need not wait, without a place in the queue.
    pub(crate) run_at_once: bool,
    /// Calls may be suspended for this many steps.
    pub(crate) suspend: Option<u64>,
    /// A server is down, or is up again.
    pub(crate) servers: bool,
}

impl May {
    /// Up to this many calls at once, in histories without end.
    const fn of(at_once: usize) -> Self {
        Self {
            at_once,
            arrivals: None,
            ticks: None,
            requeues: None,
            reloads: None,
            give_back: true,
            pause: true,
            jump: false,
            send: false,
            run_at_once: false,
            suspend: None,
            servers: false,
        }
    }
}

/// Two that share a limit by weight, while both wait.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    /// How far a call of each kind moves the first, and the second.
    pub(crate) moves: [Vec<i32>; 2],
}

impl Pair {
    pub(crate) fn first(&self, kind: u8) -> i32 {
        self.moves[0][kind as usize]
    }

    pub(crate) fn second(&self, kind: u8) -> i32 {
        self.moves[1][kind as usize]
    }

    /// A maximal call of each.
    pub(crate) fn most(&self) -> i32 {
        let most = |moves: &[i32]| moves.iter().copied().max().unwrap_or(0);
        most(&self.moves[0]) + most(&self.moves[1])
    }
}

/// A table of calls, limits and actions that is searched.
pub(crate) struct Scope {
    pub(crate) name: String,
    /// As the oracle has them. A reload goes to the next one.
    pub(crate) policies: Vec<Policy>,
    /// As the scheduler has them: the same, unless the scheduler is broken.
    pub(crate) given: Vec<Policy>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) bucket: Option<BucketRule>,
    pub(crate) may: May,
    pub(crate) pairs: Vec<Pair>,
    /// The longest that any policy counts a departure.
    pub(crate) remembers: Duration,
    /// Moments that are a multiple of this many steps apart are alike: the length of fixed windows.
    pub(crate) period: u64,
    /// Steps that a call waits at most for the end of another one, of a window or of a suspension.
    pub(crate) longest_wait: u64,
    pub(crate) broken: Option<Broken>,
}

const fn seconds(steps: u64) -> Duration {
    Duration::from_secs(steps)
}

fn kind(name: &'static str, function: &str, class: u32, caller: u64) -> Kind {
    let call = Call::new(function, Timestamp::ZERO);
    Kind {
        name,
        call: call.class(Class(class)).caller(Caller(caller)),
        patience: None,
    }
}

impl Kind {
    fn cost(mut self, cost: u32) -> Self {
        self.call = self.call.cost(Cost::new(cost).expect("above zero"));
        self
    }

    fn patience(self, steps: u64) -> Self {
        Self {
            patience: Some(steps),
            ..self
        }
    }

    /// Calls of the backend with several servers, which only these may serve.
    fn at(mut self, server: ServerChoice) -> Self {
        self.call = self.call.backend(BACKEND).server(server);
        self
    }

    fn charged(mut self) -> Self {
        self.call = self.call.bucket(Some(BUCKET));
        self
    }
}

fn slots_of(name: &str, max: u32) -> LimitRule {
    LimitRule::new(name, Limit::Outstanding { max })
}

fn window(name: &str, max: u32, steps: u64) -> LimitRule {
    LimitRule::new(name, Limit::sliding(max, seconds(steps)))
}

fn policy(limits: Vec<LimitRule>, weights: [u32; 2]) -> Policy {
    sized(limits, weights, 100)
}

fn sized(limits: Vec<LimitRule>, weights: [u32; 2], capacity: u32) -> Policy {
    let classes = ["first", "second"].iter().zip(weights);
    let classes = classes.map(|(name, weight)| ClassShare::new(*name, weight));
    let policy = Policy::new(
        limits,
        capacity,
        WhenFull::Refuse,
        Postpone::InTurn,
        classes.collect(),
    );
    policy.expect("a policy")
}

impl Scope {
    fn new(name: &str, policies: Vec<Policy>, kinds: Vec<Kind>, may: May) -> Self {
        let lengths = policies.iter().flat_map(Policy::limits);
        let lengths = lengths.filter_map(|rule| match rule.limit {
            Limit::Window { length, guard, .. } => Some(length + guard),
            Limit::Outstanding { .. } | Limit::Paced { .. } => None,
        });
        let remembers = lengths.max().unwrap_or(Duration::ZERO);
        Self {
            name: format!("{name}-{}", may.at_once),
            given: policies.clone(),
            policies,
            kinds,
            bucket: None,
            may,
            pairs: Vec::new(),
            remembers,
            period: 1,
            longest_wait: 4 + 4 * remembers.as_secs(),
            broken: None,
        }
    }

    /// A copy of the scope, where calls run at once that need not wait.
    fn at_once(mut self) -> Self {
        self.name += "-run-at-once";
        self.may.run_at_once = true;
        self
    }

    /// A copy of the scope with a scheduler that has this fault.
    pub(crate) fn broken(mut self, broken: Broken) -> Self {
        self.broken = Some(broken);
        if broken == Broken::FixedWindows {
            self.period = 6;
        }
        self.given = self
            .policies
            .iter()
            .map(|policy| given(policy, broken))
            .collect();
        self
    }
}

/// The policy of a scheduler with this fault.
fn given(policy: &Policy, broken: Broken) -> Policy {
    let mut limits = policy.limits().to_vec();
    let mut weights = [0, 1].map(|class| policy.classes()[class].weight);
    for rule in &mut limits {
        match (&mut rule.limit, broken) {
            (Limit::Outstanding { max } | Limit::Window { max, .. }, Broken::AdmitsOneMore) => {
                *max += 1;
            }
            (Limit::Outstanding { max }, Broken::ServerAdmitsOneMore)
                if matches!(rule.scope, Calls::Server(..)) =>
            {
                *max += 1;
            }
            (Limit::Window { shape, .. }, Broken::FixedWindows) => {
                let phase = Duration::ZERO;
                *shape = WindowShape::Fixed { phase };
            }
            _ => {}
        }
    }
    if broken == Broken::OtherWeights {
        weights[0] *= 4;
    }
    let given = sized(limits, weights, policy.capacity());
    given.with_pick(policy.pick(), policy.sticky_wait())
}

/// Slots, a pool of a class within them, and reloads that take slots away.
pub(crate) fn slots(at_once: usize) -> Scope {
    let limits = |total, pool| {
        let pool = slots_of("pool", pool).scope(Calls::Class(Class(1)));
        policy(vec![slots_of("total", total), pool], [2, 1])
    };
    let kinds = vec![
        kind("first class", "list", 0, 1),
        kind("second class", "list", 1, 1),
    ];
    Scope::new(
        "slots",
        vec![limits(2, 1), limits(1, 2)],
        kinds,
        May {
            ticks: Some(0),
            ..May::of(at_once)
        },
    )
}

/// A window, with departures in actions of their own, jumps of the clock and a shorter window after a reload.
pub(crate) fn windows(at_once: usize) -> Scope {
    let limits = |max, steps| policy(vec![window("window", max, steps)], [1, 1]);
    let kinds = vec![
        kind("cheap", "list", 0, 1),
        kind("expensive", "list", 0, 1).cost(2),
    ];
    Scope::new(
        "windows",
        vec![limits(2, 3), limits(3, 2)],
        kinds,
        May {
            jump: true,
            send: true,
            ..May::of(at_once)
        },
    )
}

/// Fair turns: two callers of a class, and another class, at one limit.
pub(crate) fn turns(at_once: usize) -> Scope {
    let policies = vec![policy(vec![slots_of("slots", 1)], [1, 1])];
    let kinds = vec![
        kind("caller 1", "list", 0, 1),
        kind("caller 2", "list", 0, 2),
        kind("other class", "list", 1, 1),
    ];
    let pairs = vec![
        Pair {
            name: "callers",
            moves: [vec![1, 0, 0], vec![0, 1, 0]],
        },
        Pair {
            name: "classes",
            moves: [vec![1, 1, 0], vec![0, 0, 1]],
        },
    ];
    let may = May {
        ticks: Some(0),
        requeues: Some(0),
        give_back: false,
        ..May::of(at_once)
    };
    Scope {
        pairs,
        ..Scope::new("turns", policies, kinds, may)
    }
}

/// Classes with weights 2 and 1 at a window.
pub(crate) fn weights(at_once: usize) -> Scope {
    let policies = vec![policy(vec![window("window", 2, 2)], [2, 1])];
    let kinds = vec![
        kind("weight 2", "list", 0, 1),
        kind("weight 1", "list", 1, 1),
    ];
    let pairs = vec![Pair {
        name: "classes of weight 2 and 1",
        moves: [vec![1, 0], vec![0, 2]],
    }];
    let may = May {
        requeues: Some(0),
        give_back: false,
        ..May::of(at_once)
    };
    Scope {
        pairs,
        ..Scope::new("weights", policies, kinds, may)
    }
}

/// Three limits that are not nested, at which calls are passed over and claim room. A claim that lapses lasts twice as long the next
/// time, so time is bounded here.
pub(crate) fn crossing(at_once: usize, ticks: u8) -> Scope {
    let limits = |slots| {
        policy(
            vec![
                slots_of("slots", slots),
                window("window", 2, 2),
                window("list", 1, 3).scope(Calls::Function("list".into())),
            ],
            [2, 1],
        )
    };
    let kinds = vec![kind("list", "list", 0, 1), kind("start", "start", 1, 2)];
    Scope::new(
        "crossing",
        vec![limits(2), limits(1)],
        kinds,
        May {
            ticks: Some(ticks),
            requeues: Some(2),
            reloads: Some(2),
            ..May::of(at_once)
        },
    )
}

/// A reserve of a class in slots and in a window.
pub(crate) fn reserve(at_once: usize, ticks: u8) -> Scope {
    let kept = Reserve {
        class: Class(0),
        amount: 1,
    };
    let limits = vec![
        slots_of("slots", 2).reserve(Some(kept)),
        window("window", 3, 2).reserve(Some(kept)),
    ];
    let kinds = vec![
        kind("has a reserve", "list", 0, 1),
        kind("has none", "list", 1, 1),
    ];
    Scope::new(
        "reserve",
        vec![policy(limits, [1, 1])],
        kinds,
        May {
            ticks: Some(ticks),
            ..May::of(at_once)
        },
    )
}

/// Deadlines, a queue with two places, a window in which calls count from their end, and jumps past the deadline.
pub(crate) fn deadlines(at_once: usize) -> Scope {
    let from_the_end = Limit::Window {
        max: 2,
        length: seconds(3),
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp: WindowStamp::Replied,
    };
    let limits = vec![slots_of("slots", 1), LimitRule::new("window", from_the_end)];
    let kinds = vec![
        kind("patient", "list", 0, 1).patience(3),
        kind("hasty", "list", 1, 1).patience(1),
    ];
    Scope::new(
        "deadlines",
        vec![sized(limits, [1, 1], 2)],
        kinds,
        May {
            jump: true,
            ..May::of(at_once)
        },
    )
}

/// A bucket of two tokens that gets one every two seconds, beside slots.
pub(crate) fn buckets(at_once: usize, ticks: u8, order: BucketOrder) -> Scope {
    let policies = vec![policy(vec![slots_of("slots", 2)], [1, 1])];
    let kinds = vec![
        kind("charged, caller 1", "list", 0, 1).charged(),
        kind("charged, caller 2", "list", 0, 2).charged(),
        kind("not charged", "list", 1, 1),
    ];
    let bucket = BucketRule {
        name: "bucket".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(2.0).expect("a burst"),
            fill: Fill::new(0.5).expect("a rate"),
        },
        on_excess: OnExcess::Delay,
        order,
        settlement: Settlement::Estimate,
    };
    let name = match order {
        BucketOrder::Fair => "bucket-in-turn",
        BucketOrder::Fifo => "bucket-by-arrival",
    };
    let may = May {
        ticks: Some(ticks),
        requeues: Some(1),
        give_back: false,
        ..May::of(at_once)
    };
    let scope = Scope::new(name, policies, kinds, may);
    Scope {
        bucket: Some(bucket),
        longest_wait: 8,
        ..scope
    }
}

/// Calls whose clients give up for a while and come back to their places.
pub(crate) fn suspended(at_once: usize) -> Scope {
    let policies = vec![policy(
        vec![slots_of("slots", 1), window("window", 2, 2)],
        [1, 1],
    )];
    let kinds = vec![
        kind("caller 1", "list", 0, 1),
        kind("caller 2", "list", 0, 2),
    ];
    Scope::new(
        "suspended",
        policies,
        kinds,
        May {
            suspend: Some(3),
            requeues: Some(0),
            give_back: false,
            pause: false,
            ..May::of(at_once)
        },
    )
}

/// A fixed window that becomes a sliding one in a reload.
pub(crate) fn fixed(at_once: usize) -> Scope {
    let limits = |shape| {
        let limit = Limit::Window {
            max: 2,
            length: seconds(3),
            guard: Duration::ZERO,
            shape,
            stamp: WindowStamp::Sent,
        };
        policy(vec![LimitRule::new("window", limit)], [1, 1])
    };
    let fixed = limits(WindowShape::Fixed { phase: seconds(1) });
    let kinds = vec![
        kind("first class", "list", 0, 1),
        kind("second class", "list", 1, 1),
    ];
    let scope = Scope::new(
        "fixed",
        vec![fixed, limits(WindowShape::Sliding)],
        kinds,
        May {
            send: true,
            ..May::of(at_once)
        },
    );
    Scope { period: 3, ..scope }
}

/// Two servers behind one backend, that are down and up again: one takes a call at once, the other one two, and no more than two in
/// two seconds. Most calls may go to any server, and some only to the first.
pub(crate) fn servers(at_once: usize, pick: Pick) -> Scope {
    let server = |number| ServerNumber::new(number).expect("a number of a server");
    let of = |number| Calls::Server(BACKEND, server(number));
    let limits = vec![
        slots_of("backend", 3).scope(Calls::Backend(BACKEND)),
        slots_of("first", 1).scope(of(1)),
        slots_of("second", 2).scope(of(2)),
        window("window of the second", 2, 2).scope(of(2)),
    ];
    let kinds = vec![
        kind("any server", "list", 0, 1).at(ServerChoice::ANY),
        kind("only the first", "list", 0, 1).at(ServerChoice::only(server(1))),
    ];
    let name = match pick {
        Pick::First => "servers-first",
        Pick::Least => "servers-least",
    };
    let policy = policy(limits, [1, 1]).with_pick(pick, Duration::ZERO);
    Scope::new(
        name,
        vec![policy],
        kinds,
        May {
            servers: true,
            pause: false,
            ..May::of(at_once)
        },
    )
}

/// For `make test`.
pub(crate) fn small() -> Vec<Scope> {
    vec![
        slots(4),
        windows(2),
        turns(4),
        weights(3),
        crossing(2, 2),
        reserve(2, 3),
        deadlines(2),
        buckets(2, 2, BucketOrder::Fair),
        buckets(2, 2, BucketOrder::Fifo),
        suspended(2),
        slots(3).at_once(),
        weights(3).at_once(),
        servers(2, Pick::First),
        servers(3, Pick::Least),
    ]
}

/// For `make exhaustive`, the longest first.
pub(crate) fn full() -> Vec<Scope> {
    vec![
        six(4, 1, 1),
        fixed(3),
        crossing(4, 3),
        reserve(4, 4),
        buckets(3, 4, BucketOrder::Fair),
        buckets(3, 4, BucketOrder::Fifo),
        weights(6),
        servers(5, Pick::Least),
        servers(4, Pick::First),
        suspended(3),
        windows(3),
        slots(6),
        weights(5).at_once(),
        slots(5).at_once(),
        windows(2).at_once(),
        deadlines(5),
        turns(6),
    ]
}

/// Six calls in all, of two classes, at three limits that are not nested, with at most this many ticks, requeues and reloads.
fn six(ticks: u8, requeues: u8, reloads: u8) -> Scope {
    let mut scope = crossing(6, ticks);
    scope.name = "six-calls".into();
    scope.may.arrivals = Some(6);
    scope.may.requeues = Some(requeues);
    scope.may.reloads = Some(reloads);
    scope
}
