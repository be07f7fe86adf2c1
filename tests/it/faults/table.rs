//! docs/reports/faults.md, as far as a run writes it.

use std::path::Path;

use super::client::Wire;
use super::matrix::{Cell, Column, Row};
use super::run::{Ran, Under, lacks};

/// Between these two lines the document is written by a run.
const BEGINS: &str = "<!-- make faults writes from here -->";
const ENDS: &str = "<!-- make faults writes to here -->";

/// And between these by the soak.
pub(super) const SOAK: (&str, &str) = (
    "<!-- make soak writes from here -->",
    "<!-- make soak writes to here -->",
);

/// Writes what came of all cells into the document.
pub(super) fn write(all: &[(Under, Ran)]) {
    put(BEGINS, ENDS, &text(all));
}

/// Replaces what stands in the document between two lines.
pub(super) fn put(begins: &str, ends: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reports/faults.md");
    let document = std::fs::read_to_string(&path).expect("docs/reports/faults.md is there");
    let (before, rest) = document.split_once(begins).expect("the first mark");
    let (_, after) = rest.split_once(ends).expect("the second mark");
    let document = format!("{before}{begins}\n{text}{ends}{after}");
    std::fs::write(&path, document).expect("it can be written to");
}

fn text(all: &[(Under, Ran)]) -> String {
    let of = |cell: Cell| all.iter().map(|(_, ran)| ran).find(|ran| ran.cell == cell);
    let mut text = "\n| state | how the test knows that it is reached |\n|---|---|\n".to_owned();
    for row in Row::ALL {
        text += &format!("| {} | {} |\n", row.name(), row.is_reached_when());
    }
    for wire in [Wire::Http, Wire::Socket, Wire::Tcp] {
        let (mut ran, mut passed) = (0, 0);
        let mut table = String::new();
        table += "| |";
        for row in Row::ALL {
            table += &format!(" {} |", row.name());
        }
        table += "\n|---|";
        table += &"---|".repeat(Row::ALL.len());
        table += "\n";
        for column in Column::ALL {
            table += &format!("| {} |", column.name());
            for row in Row::ALL {
                let cell = Cell { row, column, wire };
                let sign = match of(cell) {
                    Some(it) => {
                        ran += 1;
                        passed += usize::from(it.findings.is_empty());
                        if it.findings.is_empty() {
                            "passed"
                        } else {
                            "**failed**"
                        }
                    }
                    None => "–",
                };
                table += &format!(" {sign} |");
            }
            table += "\n";
        }
        text += &format!(
            "\n### {}: {ran} cells run, {passed} passed\n\n{table}",
            wire.name()
        );
    }
    text += "\n### What was seen\n\nOf each cell: what clients saw, what arrived at the backend, the longest call, and what was found.\n";
    for wire in [Wire::Http, Wire::Socket, Wire::Tcp] {
        for column in Column::ALL {
            let cells: Vec<Cell> = Row::ALL.map(|row| Cell { row, column, wire }).to_vec();
            text += &format!(
                "\n**{}, {}**: {}.\n\n",
                wire.name(),
                column.name(),
                column.injects()
            );
            text += "| row | seen | |\n|---|---|---|\n";
            let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
            for cell in cells {
                match (of(cell), cell.reason().or_else(|| lacks(cell.column))) {
                    (Some(ran), _) => {
                        let found: Vec<String> = ran
                            .findings
                            .iter()
                            .map(|it| it.to_string().replace('|', "/"))
                            .collect();
                        let outcome = match found.is_empty() {
                            true => "passed".to_owned(),
                            false => format!("**failed**: {}", found.join("; ")),
                        };
                        text += &format!("| {} | {} | {outcome} |\n", cell.row.name(), ran.seen);
                    }
                    (None, Some(reason)) => match reasons.iter_mut().find(|it| it.0 == reason) {
                        Some((_, rows)) => rows.push(cell.row.name()),
                        None => reasons.push((reason, vec![cell.row.name()])),
                    },
                    (None, None) => {
                        text += &format!("| {} | not run this time | |\n", cell.row.name())
                    }
                }
            }
            for (reason, rows) in reasons {
                text += &format!("| {} | not run: {reason} | – |\n", rows.join(", "));
            }
        }
    }
    text.push('\n');
    text
}
