//! The charts of the last ten minutes: bars, the line of what is allowed, and marks of what
//! happened.

use serde_json::Value;

use super::page::Page;
use crate::top::history::Track;
use crate::top::look::figure;
use crate::top::model::Chart;

/// The rows of a chart.
const ROWS: u16 = 4;

impl Page<'_> {
    /// Draws the chosen chart, or both where there is room for them.
    pub(super) fn charts(&mut self, both: bool) {
        let chosen = self.model.chart;
        if both || chosen == Chart::Waiting {
            self.waiting();
        }
        if both || chosen == Chart::Limit {
            self.limit();
        }
    }

    fn waiting(&mut self) {
        let model = self.model;
        let track = &model.shown().history.waiting;
        let columns = track.columns(usize::from(self.area.width));
        let most = largest(&columns);
        let capacity = model.look.word(&self.now()["queue"]["capacity"]);
        let title = format!("Waiting, last 10 minutes (at most {most:.0} of {capacity})");
        self.chart(&title, &columns, None, track);
    }

    /// The use of a limit, with a line at what was allowed.
    fn limit(&mut self) {
        let model = self.model;
        let answers = model.shown();
        let name = model.limit.as_deref();
        let Some((name, limit)) = name.and_then(|name| answers.history.limits.get_key_value(name))
        else {
            self.chart("No limit", &[], None, &answers.history.waiting);
            return;
        };
        let width = usize::from(self.area.width);
        let (used, allowed) = (limit.used.columns(width), limit.allowed.columns(width));
        let limits = answers.now["limits"].as_array().into_iter().flatten();
        let now = limits.into_iter().find(|it| it["name"] == **name);
        let shown = |field: &str| {
            let of = now.map_or(&Value::Null, |limit| &limit[field]);
            of.as_f64().map_or("-".to_owned(), figure)
        };
        let title = format!(
            "Use of {}, last 10 minutes (now {} of {})",
            model.look.clean(name),
            shown("used"),
            shown("allowed")
        );
        self.chart(&title, &used, Some(&allowed), &limit.used);
    }

    /// Bars, with a line over them and marks in the columns that `track` gives them.
    fn chart(
        &mut self,
        title: &str,
        columns: &[Option<f64>],
        line: Option<&[Option<f64>]>,
        track: &Track,
    ) {
        let look = self.model.look;
        self.title(title, self.area.x, self.area.width, false);
        let most = largest(columns).max(line.map_or(0.0, largest));
        let levels: &[&str] = match look.ascii {
            true => &[".", ":", "#"],
            false => &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        };
        let steps = levels.len();
        let full = steps * usize::from(ROWS);
        // A call that waits is never invisible.
        let height = |value: f64| match value > 0.0 {
            true => ((value / most * full as f64).round() as usize).clamp(1, full),
            false => 0,
        };
        let top = self.y;
        for (column, value) in columns.iter().enumerate() {
            let Some(value) = *value else {
                continue;
            };
            let x = self.area.x + u16::try_from(column).unwrap_or(u16::MAX);
            let allowed = line.and_then(|line| line[column]);
            let is_full = allowed.is_some_and(|allowed| value >= allowed);
            let style = if is_full { look.caution() } else { look.good() };
            // The row whose upper end is nearest to what is allowed.
            let line_row = allowed.map(|allowed| height(allowed).saturating_sub(1) / steps);
            for row in 0..ROWS {
                let y = top + ROWS - 1 - row;
                let filled = height(value).saturating_sub(usize::from(row) * steps);
                if filled > 0 {
                    self.put(x, y, levels[filled.min(steps) - 1], 1, style);
                } else if line_row == Some(usize::from(row)) {
                    let line = if look.ascii { "-" } else { "─" };
                    self.put(x, y, line, 1, look.head());
                } else if row == 0 {
                    let zero = if look.ascii { "_" } else { "·" };
                    self.put(x, y, zero, 1, look.quiet());
                }
            }
        }
        self.marks(top, track);
        self.y = top + ROWS;
    }

    /// A letter at the top of the column in which something happened, and a line below it. Of
    /// several in a column, the latest is shown; the pane Events has all.
    fn marks(&mut self, top: u16, track: &Track) {
        let look = self.model.look;
        let line = if look.ascii { "|" } else { "╎" };
        for mark in &self.model.shown().history.marks {
            let width = usize::from(self.area.width);
            let column = track.column(mark.at_unix_ms / 1000, width);
            let Some(column) = column.and_then(|it| u16::try_from(it).ok()) else {
                continue;
            };
            let (letter, is_bad) = letter(&mark.kind);
            let style = if is_bad { look.bad() } else { look.head() };
            let x = self.area.x + column;
            self.put(x, top, letter, 1, style);
            for y in top + 1..top + ROWS {
                if self.buffer[(x, y)].symbol() == " " {
                    self.put(x, y, line, 1, look.quiet());
                }
            }
        }
    }
}

fn largest(columns: &[Option<f64>]) -> f64 {
    columns.iter().flatten().fold(0.0_f64, |a, b| a.max(*b))
}

/// The letter of a mark, as the help explains it, and whether it is bad news.
fn letter(kind: &str) -> (&'static str, bool) {
    match kind {
        "start" => ("S", false),
        "reload" => ("C", false),
        "reload_refused" => ("X", true),
        "pause" => ("P", false),
        "resume" => ("R", false),
        "backend_down" => ("D", true),
        "backend_up" => ("U", false),
        "limit" => ("L", false),
        _ => ("?", false),
    }
}
