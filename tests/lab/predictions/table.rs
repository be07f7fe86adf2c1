//! docs/reports/predictions.md, as far as a run writes it.

use std::path::Path;

use super::judge::{Judged, STRICT};

const BEGINS: &str = "<!-- make predict writes from here -->";
const ENDS: &str = "<!-- make predict writes to here -->";

const HEADING: &str = "\
| scenario | calls | what changes | refused: log | plan | real | off by, points | p95 wait: log | plan | real | off by | |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// The rows of one scenario.
pub(super) fn rows(judged: &Judged) -> String {
    let mut text = String::new();
    let clients = if judged.is_closed { "closed" } else { "open" };
    for it in &judged.rows {
        let one = Judged {
            rows: vec![*it],
            ..*judged
        };
        let verdict = match one.wrong(&STRICT).is_empty() {
            true => "holds",
            false => "**off**",
        };
        let share = |share: f64| format!("{:.1} %", share * 100.0);
        text += &format!(
            "| {}, {clients}: {} | {} | {} | {} | {} | {} | {:+.2} | {:.3} s | {:.3} s | {:.3} s | {:+.1} % | {verdict} |\n",
            judged.name,
            it.row.name(),
            it.real.calls,
            judged.change,
            share(it.before.refused_share()),
            share(it.planned.refused_share()),
            share(it.real.refused_share()),
            it.refused_off() * 100.0,
            it.before.p95_seconds,
            it.planned.p95_seconds,
            it.real.p95_seconds,
            it.wait_off() * 100.0,
        );
    }
    text
}

/// Writes all into the document.
pub(super) fn write(all: &[Judged], seed: u64) {
    let rows: String = all.iter().map(rows).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = format!("Seed {seed}, on a machine with {cores} cores.");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reports/predictions.md");
    let document = std::fs::read_to_string(&path).expect("docs/reports/predictions.md is there");
    let (before, rest) = document.split_once(BEGINS).expect("the first mark");
    let (_, after) = rest.split_once(ENDS).expect("the second mark");
    let document = format!("{before}{BEGINS}\n\n{machine}\n\n{HEADING}{rows}\n{ENDS}{after}");
    std::fs::write(&path, document).expect("it can be written to");
}
