//! A run of the real process, and the plan of its log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use tidegate_lab::backend::{StandInBackend, StandInOptions};

use super::load::{self, Load};
use super::scenario::Scenario;
use crate::sidecar::Sidecar;
use crate::sidecar::plan_with;
use crate::support::both;

/// A call that is sent later than this shows that the machine stood still.
const LATE_MAX: Duration = Duration::from_millis(150);
/// Runs of one load, if the machine stands still.
const ATTEMPTS: usize = 3;

/// The part of a config in which the two of a scenario differ.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) postpone: &'static str,
    /// Calls that may wait; further calls are refused.
    pub(super) capacity: u32,
    pub(super) window: &'static str,
    pub(super) outstanding: u32,
    pub(super) deadline_seconds: u32,
    /// Further sections.
    pub(super) more: String,
}

impl Limits {
    /// Limits that a call does not meet.
    pub(super) fn none(postpone: &'static str) -> Self {
        Self {
            postpone,
            capacity: 4000,
            window: "total:1000",
            outstanding: 500,
            deadline_seconds: 60,
            more: String::new(),
        }
    }

    /// As a config before a backend there.
    fn config(&self, backend: &str) -> String {
        let Self {
            postpone,
            capacity,
            window,
            outstanding,
            deadline_seconds,
            more,
        } = self;
        format!(
            r#"
            [[listen]]
            name = "test"
            bind = "127.0.0.1:0"
            [[listen]]
            name = "batch"
            bind = "127.0.0.1:0"
            [server]
            threads = 1
            [backend]
            {backend}
            [classes]
            promote_for = "0s"
            [queue]
            postpone = "{postpone}"
            postpone_jitter = ["50ms", "150ms"]
            capacity = {capacity}
            workers = 500
            when_full = "refuse"
            [limits]
            per_window = "{window}"
            outstanding = {outstanding}
            max_wait = "{deadline_seconds}s"
            [log]
            access = true
            replay = true
            format = "json"
            [admin]
            bind = "127.0.0.1:0"
            {more}
            "#
        )
    }
}

/// Calls that are compared: all, or those of a class, a function or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Row {
    All,
    Class(&'static str),
    Function(&'static str),
}

impl Row {
    pub(super) fn name(self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Class(name) => format!("class {name}"),
            Self::Function(name) => format!("function {name}"),
        }
    }

    fn has(self, line: &Value) -> bool {
        match self {
            Self::All => true,
            Self::Class(name) => line["class"] == name,
            Self::Function(name) => line["function"] == name,
        }
    }
}

/// The figures of some calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) calls: u64,
    pub(super) refused: u64,
    /// The p95 of the waits of calls that were sent.
    pub(super) p95_seconds: f64,
}

impl Figures {
    /// Refused calls of all calls.
    pub(super) fn refused_share(&self) -> f64 {
        self.refused as f64 / self.calls.max(1) as f64
    }
}

/// The log of a run, and what its lines say.
pub(super) struct Ran {
    log: String,
    pub(super) figures: BTreeMap<Row, Figures>,
}

/// Runs a scenario under a config, before a fresh backend. If a call was sent late, the machine stood still: then it
/// runs again, a few times.
pub(super) async fn run(scenario: &Scenario, limits: &Limits) -> Ran {
    for _ in 1..ATTEMPTS {
        let (late, ran) = run_once(scenario, limits).await;
        if late <= LATE_MAX {
            return ran;
        }
        eprintln!("{}: a call was sent {late:?} late; again", scenario.name);
    }
    run_once(scenario, limits).await.1
}

async fn run_once(scenario: &Scenario, limits: &Limits) -> (Duration, Ran) {
    let options = StandInOptions {
        model: scenario.backend.clone(),
        ..StandInOptions::on_free_ports()
    };
    let backend = StandInBackend::start(options).await.expect("free ports");
    let addresses = both(backend.socket_addr(), backend.http_addr());
    let sidecar = Sidecar::start(&limits.config(&addresses)).await;
    let test = sidecar.listener("test").await;
    let batch = sidecar.listener("batch").await;
    let addr = |name: &str| if name == "batch" { batch } else { test };
    let late = load::send(&scenario.load, scenario.wire, addr).await;
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success(), "{}: it ends well", scenario.name);
    let access = lines
        .iter()
        .filter(|line| line.contains(r#""target":"access""#));
    let access: Vec<Value> = access
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    let figures = scenario.rows.iter().map(|row| {
        let lines = access.iter().filter(|line| row.has(line));
        (*row, figures(lines))
    });
    let ran = Ran {
        figures: figures.collect(),
        log: lines.iter().fold(String::new(), |mut log, line| {
            let _ = writeln!(log, "{line}");
            log
        }),
    };
    (late, ran)
}

/// Counted from the lines of calls, without the code of the plan.
fn figures<'l>(lines: impl Iterator<Item = &'l Value>) -> Figures {
    let mut figures = Figures::default();
    let mut waits = Vec::new();
    for line in lines {
        figures.calls += 1;
        match line["verdict"].as_str().expect("a verdict") {
            "refused" | "expired" => figures.refused += 1,
            "passed" | "delayed" => {
                waits.push(line["queue_ms"].as_f64().expect("a wait") / 1000.0);
            }
            other => panic!("a call {other}: {line}"),
        }
    }
    waits.sort_by(f64::total_cmp);
    let nth = (waits.len() * 95).div_ceil(100).saturating_sub(1);
    figures.p95_seconds = waits.get(nth).copied().unwrap_or(0.0);
    figures
}

/// The prediction of a plan with these limits for a run.
pub(super) async fn plan(
    scenario: &Scenario,
    ran: &Ran,
    limits: &Limits,
) -> BTreeMap<Row, Figures> {
    let clients = match scenario.load {
        Load::Open(_) => "open",
        Load::Closed(_) => "closed",
    };
    // A plan asks no backend.
    let new = limits.config(&both("127.0.0.1:1", "127.0.0.1:2"));
    let option = format!("--clients={clients}");
    let arguments = ["--config=new.toml", &option, "--json"];
    let said = plan_with(&ran.log, &new, &arguments).await;
    assert_eq!(
        said.code,
        Some(0),
        "{}: {}{}",
        scenario.name,
        said.out,
        said.err
    );
    let report: Value = serde_json::from_str(&said.out).expect("one object");
    let plan = &report["plan"][clients];
    let rows = scenario.rows.iter().map(|row| {
        let pair = match row {
            Row::All => plan,
            Row::Class(name) => &plan["class"][name],
            Row::Function(name) => &plan["function"][name],
        };
        let after = &pair["after"];
        let number = |of: &Value| of.as_u64().expect("a number");
        let figures = Figures {
            calls: number(&after["calls"]),
            refused: number(&after["refused"]),
            p95_seconds: after["wait_seconds"]["p95"].as_f64().expect("a number"),
        };
        (*row, figures)
    });
    rows.collect()
}
