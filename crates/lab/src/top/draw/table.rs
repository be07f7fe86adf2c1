//! The tables, each in the room that it has.

use ratatui::style::Style;
use serde_json::Value;

use super::page::Page;
use crate::top::look::ScreenLook;
use crate::top::panes::{Pane, PaneColumn};

/// To what columns may shrink.   columns
const TEXT_LEAST: usize = 10;
const FIGURE_LEAST: usize = 4;

impl Page<'_> {
    /// The rows of a pane with its title and heads.
    pub(super) fn needs(&self, pane: Pane) -> u16 {
        let rows = u16::try_from(self.model.rows(pane).len()).unwrap_or(u16::MAX);
        match rows {
            0 => 2,
            rows => rows.saturating_add(2),
        }
    }

    /// A title, heads, and as many rows as there is room for.
    pub(super) fn pane(&mut self, pane: Pane, x: u16, width: u16, height: u16) {
        let end = self.y + height;
        if height < 2 {
            self.y = end;
            return;
        }
        let look = self.model.look;
        let rows = self.model.rows(pane);
        let room = usize::from(height).saturating_sub(2).max(1);
        let is_chosen = self.model.pane == pane;
        let chosen = self.model.chosen[pane as usize].min(rows.len().saturating_sub(1));
        let first = (chosen + 1).saturating_sub(room);
        let beyond = match rows.len() > room {
            true => format!(" ({} of {})", room.min(rows.len()), rows.len()),
            false => String::new(),
        };
        self.title(&(pane.title().to_owned() + &beyond), x, width, is_chosen);
        if rows.is_empty() {
            let nothing = match self.model.filter.is_empty() {
                true => pane.nothing().to_owned(),
                false => format!("nothing contains \"{}\"", look.clean(&self.model.filter)),
            };
            let y = self.y;
            self.put(x, y, &nothing, width, look.quiet());
            self.y = end;
            return;
        }
        let shown = &rows[first..rows.len().min(first + room)];
        self.table(
            pane,
            shown,
            x,
            width,
            (is_chosen && !self.model.printed).then(|| chosen - first),
        );
        self.y = end;
    }

    pub(super) fn table(
        &mut self,
        pane: Pane,
        rows: &[Value],
        x: u16,
        width: u16,
        chosen: Option<usize>,
    ) {
        let look = self.model.look;
        let sorted = self.model.sorted[pane as usize];
        let arrow = if look.ascii { "v" } else { "▾" };
        let heads = pane.columns().iter().enumerate().map(|(at, column)| {
            let mark = if sorted == Some(at) { arrow } else { "" };
            format!("{}{mark}", column.head)
        });
        let mut lines: Vec<Vec<String>> = vec![heads.collect()];
        for row in rows {
            let cells = pane.columns().iter();
            lines.push(cells.map(|column| (column.cell)(row, look)).collect());
        }
        let widths = widths(pane.columns(), &lines, usize::from(width));
        for (at, line) in lines.iter().enumerate() {
            let style = match at.checked_sub(1) {
                None => look.quiet(),
                row if row == chosen => look.chosen(),
                Some(row) => style_of(pane, &rows[row], look),
            };
            let y = self.y;
            let mut left = x;
            for (column, (cell, &wide)) in pane.columns().iter().zip(line.iter().zip(&widths)) {
                let wide = u16::try_from(wide).unwrap_or(u16::MAX);
                let long = u16::try_from(cell.chars().count()).unwrap_or(u16::MAX);
                let indent = match column.figure {
                    Some(_) => wide.saturating_sub(long),
                    None => 0,
                };
                let room = (x + width).saturating_sub(left + indent).min(wide - indent);
                self.put(left + indent, y, cell, room, style);
                left = left.saturating_add(wide + 2);
            }
            self.y += 1;
        }
    }
}

/// Rows that need attention.
fn style_of(pane: Pane, row: &Value, look: ScreenLook) -> Style {
    match pane {
        Pane::Limits if row["waiting"].as_f64().is_some_and(|n| n > 0.0) => look.caution(),
        Pane::Backends if row["up"] == false => look.bad(),
        _ => Style::new(),
    }
}

/// Computes the width that each column needs. Where they are too wide, the widest columns shrink, text before
/// figures.
fn widths(columns: &[PaneColumn], lines: &[Vec<String>], width: usize) -> Vec<usize> {
    let widest = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let gaps = 2 * columns.len().saturating_sub(1);
    let mut surplus = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    for (texts, least) in [(true, TEXT_LEAST), (false, FIGURE_LEAST)] {
        while surplus > 0 {
            let of_kind = widths.iter_mut().zip(columns);
            let of_kind = of_kind.filter(|(_, column)| column.figure.is_none() == texts);
            let widest = of_kind.map(|(width, _)| width).max_by_key(|width| **width);
            let Some(widest) = widest.filter(|width| **width > least) else {
                break;
            };
            *widest -= 1;
            surplus -= 1;
        }
    }
    widths
}
