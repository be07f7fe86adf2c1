//! Thirteen changes of a config, each with a load under which it matters.
//!
//! Backends that slow down get the same limit on outstanding calls in both configs. A plan lets each call take as
//! long as in the log, and says so.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_backends::ServiceDemand;
use tidegate_lab::backend::ModelOptions;

use super::load::{Call, Load, Maker, Wire};
use super::run::{Limits, Row};

const MS: u64 = 1_000_000;

/// A load, a backend and two configs.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The difference between the configs.
    pub(super) change: &'static str,
    pub(super) load: Load,
    pub(super) wire: Wire,
    pub(super) backend: ModelOptions,
    pub(super) before: Limits,
    pub(super) after: Limits,
    /// The calls that are compared.
    pub(super) rows: &'static [Row],
}

/// All of them.
pub(super) fn all(seed: u64) -> Vec<Scenario> {
    vec![
        burst(seed, "in_turn"),
        burst(seed, "jitter"),
        full_queue(seed, 12),
        deadline(seed, "in_turn"),
        deadline(seed, "jitter"),
        window_asked_again(seed, 10),
        outstanding(seed, "in_turn"),
        outstanding(seed, "jitter"),
        classes(seed),
        bucket(seed),
        functions(seed),
        step(seed),
        heavy_tail(seed),
    ]
}

/// Work of a few milliseconds, which does not matter.
fn short() -> ServiceDemand {
    ServiceDemand::even(10 * MS, 20 * MS).expect("a range")
}

fn burst(seed: u64, postpone: &'static str) -> Scenario {
    let load =
        Maker::new(seed)
            .burst(250, Call::READ, short())
            .steady(15.0, 8, Call::READ, short());
    let limits = |window| Limits {
        window,
        ..Limits::none(postpone)
    };
    Scenario {
        name: match postpone {
            "jitter" => "a burst before a window, jitter",
            _ => "a burst before a window, in turn",
        },
        change: "window 30 → 60 a second",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits("total:30"),
        after: limits("total:60"),
        rows: &[Row::All],
    }
}

/// Calls come faster than the window admits them, for some seconds.
pub(super) fn full_queue(seed: u64, seconds: u64) -> Scenario {
    let load = Maker::new(seed).steady(80.0, seconds, Call::READ, short());
    let limits = |capacity| Limits {
        capacity,
        window: "total:50",
        ..Limits::none("in_turn")
    };
    let seconds = u32::try_from(seconds).expect("a few");
    Scenario {
        name: "a full queue, in turn",
        change: "capacity 20 → 7 a second of the load",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits(20 * seconds),
        after: limits(7 * seconds),
        rows: &[Row::All],
    }
}

fn deadline(seed: u64, postpone: &'static str) -> Scenario {
    let load = Maker::new(seed).steady(240.0, 14, Call::READ, short());
    let limits = |deadline_seconds| Limits {
        window: "total:180",
        deadline_seconds,
        ..Limits::none(postpone)
    };
    Scenario {
        name: match postpone {
            "jitter" => "a deadline, jitter",
            _ => "a deadline, in turn",
        },
        change: "deadline 4 → 2 s",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits(4),
        after: limits(2),
        rows: &[Row::All],
    }
}

/// Thirty clients, each of which asks this many times.
fn clients(seed: u64, calls: usize, work: ServiceDemand) -> Load {
    let think = ServiceDemand::exponential(100 * MS);
    Maker::new(seed).closed(30, calls, think, work, Call::READ)
}

pub(super) fn window_asked_again(seed: u64, calls: usize) -> Scenario {
    let limits = |window| Limits {
        window,
        ..Limits::none("in_turn")
    };
    Scenario {
        name: "clients that ask again before a window, in turn",
        change: "window 20 → 30 a second",
        load: clients(seed, calls, short()),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits("total:20"),
        after: limits("total:30"),
        rows: &[Row::All],
    }
}

fn outstanding(seed: u64, postpone: &'static str) -> Scenario {
    let work = ServiceDemand::even(60 * MS, 100 * MS).expect("a range");
    let limits = |outstanding| Limits {
        outstanding,
        ..Limits::none(postpone)
    };
    Scenario {
        name: match postpone {
            "jitter" => "outstanding calls, jitter",
            _ => "outstanding calls, in turn",
        },
        change: "outstanding 3 → 5",
        load: clients(seed, 20, work),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits(3),
        after: limits(5),
        rows: &[Row::All],
    }
}

fn classes(seed: u64) -> Scenario {
    let write = Call {
        function: "guest_start",
        ..Call::READ
    };
    let load =
        Maker::new(seed)
            .steady(35.0, 10, write, short())
            .steady(40.0, 10, Call::READ, short());
    let limits = |weight| Limits {
        window: "total:50",
        more: format!("[[class]]\nname = \"user\"\nweight = {weight}"),
        ..Limits::none("in_turn")
    };
    Scenario {
        name: "two classes, in turn",
        change: "weight of user 1 → 2",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits(1),
        after: limits(2),
        rows: &[Row::All, Row::Class("user"), Row::Class("polling")],
    }
}

fn bucket(seed: u64) -> Scenario {
    let greedy = Call {
        listener: "batch",
        function: "guest_list",
        ..Call::READ
    };
    let load =
        Maker::new(seed)
            .steady(20.0, 10, greedy, short())
            .steady(20.0, 10, Call::READ, short());
    let limits = |fill| Limits {
        window: "total:60",
        more: format!(
            "[[bucket]]\nname = \"batch\"\nburst = 20\nfill = {fill}\n\
             [[caller]]\nlabel = \"batch\"\nmatch = {{ listener = \"batch\" }}\nrate_limit = \"batch\""
        ),
        ..Limits::none("in_turn")
    };
    Scenario {
        name: "a caller with a bucket, in turn",
        change: "fill 9 → 13 a second",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits(9),
        after: limits(13),
        rows: &[Row::All, Row::Function("guest_list")],
    }
}

fn functions(seed: u64) -> Scenario {
    let list = Call {
        function: "guest_list",
        ..Call::READ
    };
    let load = Maker::new(seed)
        .steady(30.0, 8, list, short())
        .steady(30.0, 8, Call::READ, short());
    let limits = |window| Limits {
        window,
        ..Limits::none("jitter")
    };
    Scenario {
        name: "two functions that share, jitter",
        change: "guest_list 15 → 22 of 50 a second",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions::default(),
        before: limits("total:50, guest_list:15"),
        after: limits("total:50, guest_list:22"),
        rows: &[Row::All, Row::Function("guest_list")],
    }
}

/// Half of the capacity fails while calls come.
fn step(seed: u64) -> Scenario {
    let work = ServiceDemand::even(30 * MS, 60 * MS).expect("a range");
    let load = Maker::new(seed).steady(66.0, 15, Call::READ, work);
    let limits = |deadline_seconds| Limits {
        outstanding: 6,
        deadline_seconds,
        ..Limits::none("in_turn")
    };
    Scenario {
        name: "a step of capacity, in turn",
        change: "deadline 30 → 1 s",
        load: load.open(),
        wire: Wire::Socket,
        backend: ModelOptions {
            servers: NonZeroU32::new(4),
            steps: vec![(Duration::from_secs(4), 0.5)],
            ..ModelOptions::default()
        },
        before: limits(30),
        after: limits(1),
        rows: &[Row::All],
    }
}

/// A few calls take a hundred times as long as most.
fn heavy_tail(seed: u64) -> Scenario {
    let work = ServiceDemand::lognormal(40 * MS, 1.0).expect("a tail");
    let load = Maker::new(seed).steady(45.0, 14, Call::READ, work);
    let limits = |outstanding| Limits {
        outstanding,
        ..Limits::none("in_turn")
    };
    Scenario {
        name: "a heavy tail over pooled HTTP, in turn",
        change: "outstanding 6 → 3",
        load: load.open(),
        wire: Wire::Http,
        backend: ModelOptions::default(),
        before: limits(6),
        after: limits(3),
        rows: &[Row::All],
    }
}
