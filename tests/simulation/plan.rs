//! The decisions of a seed: the limits, the calls, the backend's behaviour and the faults.

use std::collections::VecDeque;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::claim::Claim;
use crate::record::Millis;

/// The time in which calls begin and faults happen.   ms
pub(crate) const STORM: Millis = 12_000;
/// The longest that the backend works on a call.   ms
pub(crate) const WORK_MAX: Millis = 900;
/// The time after which a backend that says nothing is given up.   ms
pub(crate) const RESPONSE_TIMEOUT: Millis = 2_000;

/// Numbers that the config has, and that the judge holds the process to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) outstanding: usize,
    pub(crate) per_window: usize,
    pub(crate) window: Millis,
    pub(crate) max_wait: Millis,
    pub(crate) capacity: usize,
}

/// A client's behaviour in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Waits for the whole answer.
    Stays,
    /// Closes its connection, or only its sending side.
    Leaves { after: Millis, half: bool },
    /// Says and reads nothing any more, and does not close.
    HalfOpen { until: Millis },
    /// Reads a few bytes at a time.
    ReadsSlowly,
}

/// A call of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedCall {
    pub(crate) at: Millis,
    pub(crate) client: usize,
    /// The request comes in two pieces, this far apart.
    pub(crate) pause: Option<Millis>,
    pub(crate) body: usize,
    pub(crate) patience: Patience,
    pub(crate) work: Work,
}

/// The backend's behaviour in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Answers with a body of this length.
    Answers { after: Millis, bytes: usize },
    /// Answers chunk by chunk.
    Streams {
        after: Millis,
        chunks: u64,
        every: Millis,
    },
    /// Begins an answer, and closes.
    Cuts { after: Millis },
    /// Closes without an answer.
    Closes { after: Millis },
    /// Answers nothing, and keeps the connection.
    Silent,
}

/// A disturbance of the process, the backend or what is between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed, and another one starts later.
    Kill { for_: Millis },
    /// The process gets SIGTERM; another one starts when it has.
    Restart,
    /// The process gets no processor.
    Stall { for_: Millis },
    /// The process gets another config.
    Reload(Limits),
    /// The process gets a config with a mistake, and with other limits.
    BadReload(Limits),
    /// The backend listens no more, and its calls end.
    BackendDown { for_: Millis },
    /// From the backend to the process nothing passes. What is sent to the backend arrives.
    Partition { for_: Millis },
}

/// A limit that two processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A quota in a store.
    Quota { total: usize, window: Millis },
    /// Calls in a window, leased from servers.
    Lease {
        capacity: usize,
        safe: usize,
        window: Millis,
    },
}

/// A disturbance of the store of quotas, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// No question arrives.
    IsCutOff,
    /// Questions arrive again.
    Ends,
    /// The store forgets all records.
    Forgets,
}

impl StoreFault {
    /// Whether a disturbance begins, and none ends.
    pub(crate) const fn begins(self) -> bool {
        !matches!(self, Self::Ends)
    }
}

/// A disturbance of the lease servers, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseServerFault {
    /// A server ends, and its connections do.
    Down(usize),
    /// A server comes back without what it knew.
    UpAgain(usize),
    /// The master cannot renew its mastership, and still answers.
    MasterCutOff,
    /// The master can renew it again.
    MasterReached,
}

impl LeaseServerFault {
    /// Whether a disturbance begins, and none ends.
    pub(crate) const fn begins(self) -> bool {
        matches!(self, Self::Down(_) | Self::MasterCutOff)
    }
}

/// A mistake that must be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    OneTooMany,
    WindowTooShort,
    ForgetsLedger,
    WaitsTooLong,
    KeepsWhoLeft,
    SendsTwice,
    SleepsInTurn,
    QueueTooLong,
    TakesBadConfig,
    KeepsSlotsOfTheDead,
    StoreForgets,
    LeasesTooMuch,
}

impl Mistake {
    /// All of them, each with its name and the claim that it breaks.
    pub(crate) const ALL: [(Self, &str, Claim); 12] = [
        (
            Self::OneTooMany,
            "one call too many at once",
            Claim::Promise(1),
        ),
        (
            Self::WindowTooShort,
            "a window that is too short",
            Claim::Promise(1),
        ),
        (
            Self::ForgetsLedger,
            "a restart without the ledger",
            Claim::Promise(1),
        ),
        (
            Self::WaitsTooLong,
            "a deadline that is too late",
            Claim::Promise(2),
        ),
        (
            Self::KeepsSlotsOfTheDead,
            "a call keeps its slot after its process has died",
            Claim::Promise(3),
        ),
        (
            Self::KeepsWhoLeft,
            "clients that leave are not watched",
            Claim::Promise(4),
        ),
        (Self::SendsTwice, "a call is sent twice", Claim::Promise(5)),
        (
            Self::SleepsInTurn,
            "calls that sleep though there is room",
            Claim::Promise(6),
        ),
        (
            Self::QueueTooLong,
            "a queue that is too long",
            Claim::Promise(7),
        ),
        (
            Self::TakesBadConfig,
            "a config with a mistake is taken",
            Claim::Promise(8),
        ),
        (Self::StoreForgets, "a store that forgets", Claim::Quotas),
        (
            Self::LeasesTooMuch,
            "lease servers that lease too much",
            Claim::Leases,
        ),
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|(mistake, ..)| *mistake)
    }
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    /// Calls of clients that have left run to their end.
    pub(crate) finishes: bool,
    /// A full queue refuses.
    pub(crate) refuses: bool,
    pub(crate) clients: usize,
    /// By their time.
    pub(crate) calls: Vec<PlannedCall>,
    /// By their time.
    pub(crate) faults: VecDeque<(Millis, Fault)>,
    /// The process shares a limit with the next one.
    pub(crate) sharing: Option<Sharing>,
}

fn limits(random: &mut StdRng) -> Limits {
    Limits {
        outstanding: random.random_range(1..=6),
        per_window: random.random_range(2..=20),
        window: [200, 500, 1_000][random.random_range(0..3)],
        max_wait: [300, 1_000, 4_000][random.random_range(0..3)],
        capacity: random.random_range(1..=40),
    }
}

fn work(random: &mut StdRng) -> Work {
    let after = random.random_range(0..WORK_MAX / 2);
    match random.random_range(0..100) {
        0..70 => Work::Answers {
            after,
            bytes: [0, 40, 3_000, 200_000][random.random_range(0..4)],
        },
        70..82 => Work::Streams {
            after,
            chunks: random.random_range(1..=8),
            every: random.random_range(1..=50),
        },
        82..89 => Work::Cuts { after },
        89..97 => Work::Closes { after },
        _ => Work::Silent,
    }
}

fn call(random: &mut StdRng, at: Millis, clients: usize) -> PlannedCall {
    PlannedCall {
        at,
        client: random.random_range(0..clients),
        pause: random
            .random_bool(0.15)
            .then(|| random.random_range(1..120)),
        body: match random.random_range(0..10) {
            0 => random.random_range(1..40_000),
            1 | 2 => random.random_range(1..200),
            _ => 0,
        },
        patience: match random.random_range(0..100) {
            0..70 => Patience::Stays,
            70..88 => Patience::Leaves {
                after: random.random_range(0..1_500),
                half: random.random_bool(0.5),
            },
            88..93 => Patience::HalfOpen {
                until: STORM + random.random_range(0..3_000),
            },
            _ => Patience::ReadsSlowly,
        },
        work: work(random),
    }
}

fn fault(random: &mut StdRng, before: Limits) -> Fault {
    let mut for_ = |range: Range<Millis>| random.random_range(range);
    match for_(0..7) {
        0 => Fault::Kill { for_: for_(1..700) },
        1 => Fault::Restart,
        2 => Fault::Stall { for_: for_(2..900) },
        3 => Fault::BackendDown {
            for_: for_(1..1_500),
        },
        4 => Fault::Partition {
            for_: for_(1..1_000),
        },
        5 => Fault::Reload(Limits {
            window: before.window,
            ..limits(random)
        }),
        _ => Fault::BadReload(Limits {
            outstanding: before.outstanding + 3,
            per_window: before.per_window + 20,
            ..before
        }),
    }
}

impl Plan {
    /// The plans of the processes of a seed: of one, or of two that share something.
    pub(crate) fn of(seed: u64) -> Vec<Self> {
        let mut random = StdRng::seed_from_u64(seed);
        let sharing = sharing(&mut random);
        let processes = 1 + usize::from(sharing.is_some());
        let mut plans: Vec<_> = (0..processes).map(|_| Self::draw(&mut random)).collect();
        for plan in &mut plans {
            plan.sharing = sharing;
            if let Some(Sharing::Lease { window, .. }) = sharing {
                // A window of another length would not be the one that is leased.
                plan.limits.window = window;
                for (_, fault) in &mut plan.faults {
                    if let Fault::Reload(limits) | Fault::BadReload(limits) = fault {
                        limits.window = window;
                    }
                }
            }
        }
        plans
    }

    fn draw(random: &mut StdRng) -> Self {
        let limits = limits(random);
        let clients = random.random_range(1..=60);
        // From far fewer calls than the limits allow to far more.
        let count = random.random_range(20..=260);
        let burst = random.random_bool(0.5);
        let mut calls: Vec<_> = (0..count)
            .map(|_| {
                let mut at = random.random_range(0..STORM);
                if burst {
                    at -= at % 1_500;
                }
                call(random, at, clients)
            })
            .collect();
        calls.sort_by_key(|call| call.at);
        let faults = (0..random.random_range(0..=6))
            .map(|_| (random.random_range(0..STORM), fault(random, limits)))
            .collect();
        Self {
            limits,
            finishes: random.random_bool(0.3),
            refuses: random.random_bool(0.5),
            clients,
            calls,
            faults: in_order(faults),
            sharing: None,
        }
    }
}

fn sharing(random: &mut StdRng) -> Option<Sharing> {
    match random.random_range(0..10) {
        0..2 => Some(Sharing::Quota {
            total: random.random_range(4..=40),
            window: [1_000, 2_000][random.random_range(0..2)],
        }),
        2..4 => Some(Sharing::Lease {
            capacity: random.random_range(4..=20),
            safe: random.random_range(1..=2),
            window: [500, 1_000][random.random_range(0..2)],
        }),
        _ => None,
    }
}

/// The faults of a store, by their time.
pub(crate) fn store_faults(seed: u64, mistake: Option<Mistake>) -> VecDeque<(Millis, StoreFault)> {
    let mut faults = Vec::new();
    for (from, until, _) in shared_faults(seed) {
        faults.push((from, StoreFault::IsCutOff));
        faults.push((until, StoreFault::Ends));
    }
    if mistake == Some(Mistake::StoreForgets) {
        let often = (0..STORM / 700).map(|nth| (nth * 700 + 350, StoreFault::Forgets));
        faults.extend(often);
    }
    in_order(faults)
}

/// The faults of lease servers, by their time.
pub(crate) fn lease_server_faults(seed: u64) -> VecDeque<(Millis, LeaseServerFault)> {
    let mut faults = Vec::new();
    for (from, until, which) in shared_faults(seed) {
        let (begin, end) = match which {
            0 => (
                LeaseServerFault::MasterCutOff,
                LeaseServerFault::MasterReached,
            ),
            other => (
                LeaseServerFault::Down(other - 1),
                LeaseServerFault::UpAgain(other - 1),
            ),
        };
        faults.extend([(from, begin), (until, end)]);
    }
    in_order(faults)
}

/// The beginning and the end of faults, and which of three each is.
fn shared_faults(seed: u64) -> Vec<(Millis, Millis, usize)> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x0f_a017);
    let count = random.random_range(0..=4);
    let mut draw = || {
        let from = random.random_range(0..STORM);
        let until = from + random.random_range(1..4_000);
        (from, until, random.random_range(0..3))
    };
    (0..count).map(|_| draw()).collect()
}

fn in_order<F>(mut faults: Vec<(Millis, F)>) -> VecDeque<(Millis, F)> {
    faults.sort_by_key(|(at, _)| *at);
    faults.into()
}

/// The next fault, if its time has come.
pub(crate) fn next_at<F>(faults: &mut VecDeque<(Millis, F)>, now: Millis) -> Option<(Millis, F)> {
    let is_due = faults.front().is_some_and(|(at, _)| *at <= now);
    is_due.then(|| faults.pop_front()).flatten()
}
