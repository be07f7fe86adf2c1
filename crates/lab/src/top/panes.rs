//! The tables of the screen: their rows, columns and order.

use serde_json::{Value, json};

use super::history::Answers;
use super::look::{ScreenLook, figure, length, time_of_day, wait};

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Limits,
    Functions,
    Callers,
    Calls,
    Backends,
    Events,
}

/// A column: its head, its cell, and the figure by which it is sorted; none for text.
pub(super) struct PaneColumn {
    pub(super) head: &'static str,
    pub(super) cell: fn(&Value, ScreenLook) -> String,
    pub(super) figure: Option<fn(&Value) -> Option<f64>>,
}

const fn text(head: &'static str, cell: fn(&Value, ScreenLook) -> String) -> PaneColumn {
    let figure = None;
    PaneColumn { head, cell, figure }
}

const fn number(
    head: &'static str,
    cell: fn(&Value, ScreenLook) -> String,
    figure: fn(&Value) -> Option<f64>,
) -> PaneColumn {
    let figure = Some(figure);
    PaneColumn { head, cell, figure }
}

/// A column with a field as it is.
macro_rules! field {
    ($head:literal, $name:literal) => {
        text($head, |row, look| look.word(&row[$name]))
    };
    ($head:literal, $name:literal, $shown:expr) => {
        number(
            $head,
            |row, _| row[$name].as_f64().map_or("-".to_owned(), $shown),
            |row| row[$name].as_f64(),
        )
    };
}

const LIMITS: [PaneColumn; 7] = [
    field!("LIMIT", "name"),
    text("KIND", |row, look| {
        let mut kind = look.word(&row["kind"]);
        if row["observes"] == true {
            kind.push_str(", observes");
        }
        if !row["shared"].is_null() {
            kind.push_str(", shared");
        }
        kind
    }),
    field!("USED", "used", figure),
    field!("OF", "allowed", figure),
    number(
        "SHARE",
        |row, look| share(row).map_or("-".to_owned(), |share| look.bar(share, 10)),
        share,
    ),
    field!("WAIT", "waiting", figure),
    text("OPENS", |row, _| {
        if row["open"] == true {
            return "now".to_owned();
        }
        let opens = row["opens_in_seconds"].as_f64();
        opens.map_or("when a call ends".to_owned(), |seconds| {
            format!("in {}", wait(seconds * 1000.0))
        })
    }),
];

fn share(row: &Value) -> Option<f64> {
    let (used, allowed) = (row["used"].as_f64()?, row["allowed"].as_f64()?);
    match allowed > 0.0 {
        true => Some(used / allowed),
        false => Some(1.0),
    }
}

const fn rates(head: PaneColumn) -> [PaneColumn; 9] {
    [
        head,
        field!("/S", "per_second", figure),
        field!("WAIT", "waiting", figure),
        field!("RUN", "in_flight", figure),
        field!("QUEUED", "queue_p50_ms", wait),
        field!("P95", "queue_p95_ms", wait),
        field!("BACKEND", "backend_p50_ms", wait),
        field!("P95", "backend_p95_ms", wait),
        field!("HELD BY", "held_by"),
    ]
}

const FUNCTIONS: [PaneColumn; 9] = rates(field!("FUNCTION", "function"));
const CALLERS: [PaneColumn; 9] = rates(text("CALLER", |row, look| {
    match look.word(&row["caller"]) {
        name if name == "-" => look.word(&row["id"]),
        name => name,
    }
}));
const CALLS: [PaneColumn; 7] = [
    field!("CALL", "id"),
    field!("FUNCTION", "function"),
    field!("CALLER", "caller"),
    field!("CLASS", "class"),
    field!("WAITS", "waits_seconds", |seconds| wait(seconds * 1000.0)),
    field!("FOR", "waits_for"),
    field!("STARTS IN", "starts_in_seconds", |seconds| wait(
        seconds * 1000.0
    )),
];
const BACKENDS: [PaneColumn; 6] = [
    field!("BACKEND", "name"),
    field!("ADDRESS", "address"),
    text("STATE", |row, look| match row["up"].as_bool() {
        Some(true) => "up".to_owned(),
        Some(false) if row["trouble"].is_string() => {
            format!("down: {}", look.word(&row["trouble"]))
        }
        Some(false) => "DOWN".to_owned(),
        None => "-".to_owned(),
    }),
    number(
        "SINCE",
        |row, _| {
            row["since_unix_ms"]
                .as_u64()
                .map_or("-".to_owned(), time_of_day)
        },
        |row| row["since_unix_ms"].as_f64(),
    ),
    field!("CONNECTIONS", "connections", figure),
    field!("FAILED 1H", "failures_1h", figure),
];
const EVENTS: [PaneColumn; 3] = [
    field!("WHAT", "what"),
    field!("COUNT", "count", figure),
    field!("TEXT", "text"),
];

impl Pane {
    pub(super) const ALL: [Self; 6] = [
        Self::Limits,
        Self::Functions,
        Self::Callers,
        Self::Calls,
        Self::Backends,
        Self::Events,
    ];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Limits => "Limits",
            Self::Functions => "Functions",
            Self::Callers => "Callers",
            Self::Calls => "Oldest calls",
            Self::Backends => "Backends",
            Self::Events => "Events",
        }
    }

    /// The words where there are no rows.
    pub(super) const fn nothing(self) -> &'static str {
        match self {
            Self::Limits => "no limits",
            Self::Functions | Self::Callers => "no calls in the last hour",
            Self::Calls => "no call waits",
            Self::Backends => "no backend",
            Self::Events => "no refusals in the last hour, and nothing to report",
        }
    }

    pub(super) const fn columns(self) -> &'static [PaneColumn] {
        match self {
            Self::Limits => &LIMITS,
            Self::Functions => &FUNCTIONS,
            Self::Callers => &CALLERS,
            Self::Calls => &CALLS,
            Self::Backends => &BACKENDS,
            Self::Events => &EVENTS,
        }
    }

    pub(super) fn beside(self, steps: usize) -> Self {
        Self::ALL[(self as usize + steps) % Self::ALL.len()]
    }

    /// The rows of an answer, in the order of the sidecar.
    pub(super) fn rows(
        self,
        answers: &Answers,
        clock_unix_ms: u64,
        look: ScreenLook,
    ) -> Vec<Value> {
        let now = &answers.now;
        let of = |name: &str| now[name].as_array().cloned().unwrap_or_default();
        match self {
            Self::Limits => of("limits"),
            Self::Functions => of("functions"),
            Self::Callers => of("callers"),
            Self::Calls => of("oldest_calls"),
            Self::Backends => {
                let mut rows = of("backends");
                for mut store in of("stores") {
                    if let Some(name) = store["name"].as_str().map(|name| format!("store {name}")) {
                        store["name"] = name.into();
                    }
                    rows.push(store);
                }
                if now["lease_master"].is_string() {
                    rows.push(json!({"name": "lease master", "address": now["lease_master"]}));
                }
                rows
            }
            Self::Events => events(answers, clock_unix_ms, look),
        }
    }
}

/// Rows for mistakes of a refused config, limits that were set for a while, notices, refusals, and
/// events, the latest first.
fn events(answers: &Answers, clock_unix_ms: u64, look: ScreenLook) -> Vec<Value> {
    let now = &answers.now;
    let of = |name: &str| now[name].as_array().into_iter().flatten();
    let mut rows = Vec::new();
    for mistake in now["reload"]["mistakes"].as_array().into_iter().flatten() {
        rows.push(json!({"what": "mistake in the config", "text": mistake}));
    }
    for set in of("overrides") {
        let limit = set["limit"].as_str().unwrap_or("-");
        let left = set["ends_unix_ms"].as_u64().unwrap_or_default();
        let left = length(left.saturating_sub(clock_unix_ms) as f64 / 1000.0);
        rows.push(json!({
            "what": format!("limit {limit} is {}", set["value"]),
            "text": format!("for {left} more{}", look.reason(set)),
        }));
    }
    for notice in of("notices") {
        rows.push(json!({"what": "notice", "text": notice}));
    }
    for refusal in of("refusals_1h") {
        let reason = refusal["reason"].as_str().unwrap_or("-");
        rows.push(json!({
            "what": format!("refused: {reason}"), "count": refusal["count"],
            "text": refusal["link"],
        }));
    }
    for mark in answers.history.marks.iter().rev() {
        let at = time_of_day(mark.at_unix_ms);
        let what = format!("{at}, {}", mark.kind.replace('_', " "));
        rows.push(json!({"what": what, "text": mark.text}));
    }
    rows
}
