//! The part of a screen that is drawn next, and its lines and titles.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use serde_json::Value;

use crate::top::model::Model;

/// A screen that is drawn from top to bottom.
pub(super) struct Page<'a> {
    pub(super) model: &'a Model,
    pub(super) area: Rect,
    /// The next row.
    pub(super) y: u16,
    pub(super) buffer: &'a mut Buffer,
}

impl Page<'_> {
    pub(super) fn now(&self) -> &Value {
        &self.model.shown().now
    }

    /// Writes at most `width` columns. Returns the column after the text.
    pub(super) fn put(&mut self, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
        if y >= self.area.bottom() || x >= self.area.right() {
            return x;
        }
        self.buffer
            .set_stringn(x, y, text, usize::from(width), style)
            .0
    }

    pub(super) fn line(&mut self, text: &str, style: Style) {
        self.put(self.area.x, self.y, text, self.area.width, style);
        self.y += 1;
    }

    /// Writes a text, broken at spaces, on at most `lines_max` lines.
    pub(super) fn wrapped(&mut self, text: &str, lines_max: usize, style: Style) {
        let width = usize::from(self.area.width);
        let mut rest = text;
        for line in 1..=lines_max {
            let fits = rest.char_indices().nth(width).map(|(at, _)| at);
            let cut = match fits {
                Some(at) if line < lines_max => rest[..at].rfind(' ').unwrap_or(at),
                _ => rest.len(),
            };
            let (now, later) = rest.split_at(cut);
            self.line(now, style);
            rest = later.trim_start();
            if rest.is_empty() {
                return;
            }
        }
    }

    pub(super) fn title(&mut self, text: &str, x: u16, width: u16, chosen: bool) {
        let look = self.model.look;
        let line = if look.ascii { "-" } else { "─" };
        let (mark, style) = match chosen && !self.model.printed {
            true => (">", look.head()),
            false => (line, look.quiet()),
        };
        let text = format!("{line}{mark} {text} ");
        let rest = line.repeat(usize::from(width).saturating_sub(text.chars().count()));
        let y = self.y;
        let end = self.put(x, y, &text, width, style);
        self.put(end, y, &rest, (x + width).saturating_sub(end), look.quiet());
        self.y += 1;
    }

    /// The rows between the chart and the line of keys.
    pub(super) fn room(&self) -> u16 {
        let footer = u16::from(!self.model.printed);
        self.area.bottom().saturating_sub(self.y + footer)
    }
}
