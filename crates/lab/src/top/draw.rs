//! Draws a screen: the same model and size give the same cells.

mod chart;
mod page;
mod state;
mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use self::page::Page;
use super::model::Model;
use super::panes::Pane;

/// The smallest screen.   columns, rows
pub(super) const LEAST: (u16, u16) = (80, 24);
/// From this height, every pane is shown.   rows
const ALL_PANES: u16 = 36;
/// From this height, both charts are shown.   rows
const BOTH_CHARTS: u16 = 48;
/// From this width, two panes are beside each other.   columns
const TWO_PANES: u16 = 170;
/// A pane with one row.   rows
const PANE_LEAST: u16 = 3;
/// The screen of a model.
#[must_use]
pub fn draw(model: &Model, area: Rect) -> Buffer {
    let mut buffer = Buffer::empty(area);
    let mut page = Page {
        model,
        area,
        y: area.y,
        buffer: &mut buffer,
    };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (width, height) = LEAST;
        let text = format!("This screen is too small: {width}x{height} or more is needed.");
        page.line(&text, Style::new());
        return buffer;
    }
    page.header();
    if model.help {
        page.help();
    } else {
        page.state();
        page.charts(area.height >= BOTH_CHARTS);
        match (area.width >= TWO_PANES, area.height >= ALL_PANES) {
            (true, true) => page.pairs_of_panes(),
            (false, true) => page.all_panes(),
            (_, false) => page.one_pane(),
        }
    }
    page.footer();
    buffer
}

impl Page<'_> {
    /// The limits, and the pane that the user chose.
    fn one_pane(&mut self) {
        let pane = self.model.pane;
        let room = self.room();
        let width = self.area.width;
        if pane == Pane::Limits {
            self.pane(pane, self.area.x, width, room);
            return;
        }
        let (limits, other) = (self.needs(Pane::Limits), self.needs(pane));
        let limits = limits.min((room / 2).max(room.saturating_sub(other)));
        self.pane(Pane::Limits, self.area.x, width, limits);
        self.pane(pane, self.area.x, width, room - limits);
    }

    /// All panes, one below the other. They grow in turns, the chosen one first.
    fn all_panes(&mut self) {
        let first = self.model.pane as usize;
        let mut heights = Pane::ALL.map(|pane| self.needs(pane).min(PANE_LEAST));
        let mut room = self.room().saturating_sub(heights.iter().sum());
        let mut grown = true;
        while room > 0 && grown {
            grown = false;
            for turn in 0..Pane::ALL.len() {
                let at = (first + turn) % Pane::ALL.len();
                if room > 0 && heights[at] < self.needs(Pane::ALL[at]) {
                    heights[at] += 1;
                    room -= 1;
                    grown = true;
                }
            }
        }
        for (pane, height) in Pane::ALL.into_iter().zip(heights) {
            self.pane(pane, self.area.x, self.area.width, height);
        }
    }

    /// Limits and backends, functions and callers, calls and events, beside each other.
    fn pairs_of_panes(&mut self) {
        let left = self.area.width.div_ceil(2);
        let right = self.area.width - left;
        let third = self.room() / 3;
        let last = self.room() - 2 * third;
        for (beside, height) in [
            ([Pane::Limits, Pane::Backends], third),
            ([Pane::Functions, Pane::Callers], third),
            ([Pane::Calls, Pane::Events], last),
        ] {
            let y = self.y;
            self.pane(beside[0], self.area.x, left - 1, height);
            self.y = y;
            self.pane(beside[1], self.area.x + left, right, height);
        }
    }
}

/// A screen as text, without spaces at the ends of lines and without empty lines at its end.
#[must_use]
pub fn plain(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| {
        let cells = (area.x..area.right()).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let lines: Vec<String> = (area.y..area.bottom()).map(line).collect();
    format!("{}\n", lines.join("\n").trim_end())
}
