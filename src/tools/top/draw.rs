//! Draws a screen: the same model and size give the same cells.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use serde_json::Value;

use super::look::{length, time_of_day};
use super::model::Model;
use super::panes::{Column, Pane};

/// The smallest screen.   columns, rows
pub(super) const LEAST: (u16, u16) = (80, 24);
/// From this height, every pane is shown.   rows
const ALL_PANES: u16 = 36;
/// From this width, two panes are beside each other.   columns
const TWO_PANES: u16 = 170;
/// A pane with one row.   rows
const PANE_LEAST: u16 = 3;
/// To what columns may shrink.   columns
const TEXT_LEAST: usize = 10;
const FIGURE_LEAST: usize = 4;
/// The rows of bars in the chart.
const BARS: u16 = 4;
const KEYS: &str = "q quit  tab pane  arrows row  s sort  / filter  space freeze  ? help";
const HELP: [&str; 12] = [
    "q            quit",
    "tab, right   the next pane; shift-tab or left, the one before",
    "up, down     rows of the pane; page up and page down move ten rows",
    "s            sort by the next column; after the last, the order of the sidecar",
    "/            show only rows with a text; enter keeps it, escape removes it",
    "space        freeze the screen; space again continues with the newest",
    "?            this page; any key leaves it",
    "",
    "QUEUED and BACKEND are the median time in the queue and at the backend; P95 is",
    "what 95 of 100 calls do not exceed. RUN counts calls at the backend.",
    "`tidegate explain CALL` shows what held a call that has ended.",
    "",
];

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
        page.chart();
        match (area.width >= TWO_PANES, area.height >= ALL_PANES) {
            (true, true) => page.pairs_of_panes(),
            (false, true) => page.all_panes(),
            (_, false) => page.one_pane(),
        }
    }
    page.footer();
    buffer
}

struct Page<'a> {
    model: &'a Model,
    area: Rect,
    /// The next row.
    y: u16,
    buffer: &'a mut Buffer,
}

impl Page<'_> {
    fn now(&self) -> &Value {
        &self.model.shown().now
    }

    /// Writes at most `width` columns. Returns the column after the text.
    fn put(&mut self, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
        if y >= self.area.bottom() || x >= self.area.right() {
            return x;
        }
        self.buffer
            .set_stringn(x, y, text, usize::from(width), style)
            .0
    }

    fn line(&mut self, text: &str, style: Style) {
        self.put(self.area.x, self.y, text, self.area.width, style);
        self.y += 1;
    }

    fn header(&mut self) {
        let look = self.model.look;
        let now = self.now();
        let uptime = now["uptime_seconds"].as_f64().map(length);
        let mut left = vec![format!("tidegate top  {}", look.clean(&self.model.address))];
        if !now.is_null() {
            left.push(look.word(&now["version"]));
            left.extend(uptime.map(|uptime| format!("up {uptime}")));
        }
        let left = left.join("  ");
        let not_ready = (now["ready"]["ok"] == false)
            .then(|| format!("NOT READY: {}", look.word(&now["ready"]["why"])));
        let (right, style) = match (self.model.is_frozen(), not_ready) {
            (true, _) => ("FROZEN, space continues".to_owned(), look.caution()),
            (false, Some(why)) => (why, look.bad()),
            (false, None) if now.is_null() => (String::new(), look.quiet()),
            (false, None) => (
                now["at_unix_ms"]
                    .as_u64()
                    .map(time_of_day)
                    .unwrap_or_default(),
                look.quiet(),
            ),
        };
        let end = self.put(self.area.x, self.y, &left, self.area.width, look.head());
        let room = self.area.right().saturating_sub(end + 2);
        let wide = u16::try_from(right.chars().count()).unwrap_or(u16::MAX);
        let wide = wide.min(room);
        self.put(self.area.right() - wide, self.y, &right, wide, style);
        self.y += 1;
    }

    /// A lost connection, the sentence, a pause, the last reload and the backends.
    fn state(&mut self) {
        let look = self.model.look;
        if let Some(trouble) = &self.model.trouble {
            let since = trouble.since_unix_ms;
            let age = self.model.clock_unix_ms.saturating_sub(since) as f64 / 1000.0;
            let text = format!(
                "NO ANSWER since {} ({}): {}",
                time_of_day(since),
                length(age),
                look.clean(&trouble.why)
            );
            self.wrapped(&text, 3, look.bad());
        }
        let sentence = look.word(&self.now()["sentence"]);
        if sentence != "-" {
            self.wrapped(&sentence, 2, look.head());
        }
        let pause = &self.now()["pause"];
        if !pause.is_null() {
            let pause = self.pause(&pause.clone());
            self.line(&pause, look.caution());
        }
        let now = self.now();
        let reload = &now["reload"];
        let at = reload["at_unix_ms"].as_u64().map(time_of_day);
        let (reload, style) = match (at, reload["taken"].as_bool()) {
            (Some(at), Some(false)) => (
                format!("reload at {at} REFUSED, see Events"),
                look.caution(),
            ),
            (Some(at), _) => (format!("reload at {at} taken"), look.quiet()),
            (None, _) => ("no reload yet".to_owned(), look.quiet()),
        };
        let all = now["backends"].as_array().map_or(&[][..], Vec::as_slice);
        let down = all.iter().filter(|it| it["up"] == false).count();
        let backends = match (all.len(), down) {
            (0, _) => "no backend".to_owned(),
            (1, 0) => "the backend is up".to_owned(),
            (n, 0) => format!("{n} backends up"),
            (n, down) => format!("{down} of {n} backends DOWN"),
        };
        let in_flight = look.word(&now["queue"]["in_flight"]);
        let calls = format!("{in_flight} in flight{}", look.separator());
        let backends_style = if down > 0 { look.bad() } else { look.quiet() };
        if now.is_null() {
            return;
        }
        let (y, right) = (self.y, self.area.right());
        let mut x = self.area.x;
        for (text, style) in [
            (&*calls, look.quiet()),
            (&*backends, backends_style),
            (look.separator(), look.quiet()),
            (&*reload, style),
        ] {
            x = self.put(x, y, text, right.saturating_sub(x), style);
        }
        self.y += 1;
    }

    fn pause(&self, pause: &Value) -> String {
        let look = self.model.look;
        let since = |name: &str| pause[name].as_u64();
        let clock = self.model.sidecar_unix_ms();
        let left = since("ends_unix_ms").map(|end| end.saturating_sub(clock) as f64 / 1000.0);
        let left = left.map_or(String::new(), |left| format!(", ends in {}", length(left)));
        let by = format!(
            "{} (by {})",
            look.word(&pause["why"]),
            look.word(&pause["author"])
        );
        if pause["state"] == "ramping" {
            let share = pause["share"].as_f64().unwrap_or_default() * 100.0;
            return format!("RAMP: limits at {share:.0} %{left}: {by}");
        }
        let at = since("since_unix_ms")
            .map_or(String::new(), |at| format!(" since {}", time_of_day(at)));
        let running = look.word(&pause["in_flight"]);
        format!("PAUSED{at}{left}, {running} in flight: {by}")
    }

    /// A text on at most so many lines, broken at spaces.
    fn wrapped(&mut self, text: &str, lines_max: usize, style: Style) {
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

    /// The queue of the last ten minutes, as bars.
    fn chart(&mut self) {
        let look = self.model.look;
        let width = usize::from(self.area.width);
        let columns = self.model.shown().history.columns(width);
        let most = columns.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
        let capacity = look.word(&self.now()["queue"]["capacity"]);
        let title = format!("Waiting, last 10 minutes (at most {most:.0} of {capacity})");
        self.title(&title, self.area.x, self.area.width, false);
        let levels: &[&str] = match look.ascii {
            true => &[".", ":", "#"],
            false => &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        };
        let steps = levels.len();
        let full = steps * usize::from(BARS);
        for (column, value) in columns.iter().enumerate() {
            let Some(value) = value else {
                continue;
            };
            // A call that waits is never invisible.
            let height = match *value > 0.0 {
                true => ((value / most * full as f64).round() as usize).clamp(1, full),
                false => 0,
            };
            let x = self.area.x + u16::try_from(column).unwrap_or(u16::MAX);
            for row in 0..BARS {
                let filled = height.saturating_sub(usize::from(row) * steps).min(steps);
                let y = self.y + BARS - 1 - row;
                if filled > 0 {
                    self.put(x, y, levels[filled - 1], 1, look.good());
                } else if row == 0 {
                    let zero = if look.ascii { "_" } else { "·" };
                    self.put(x, y, zero, 1, look.quiet());
                }
            }
        }
        self.y += BARS;
    }

    fn title(&mut self, text: &str, x: u16, width: u16, chosen: bool) {
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
    fn room(&self) -> u16 {
        let footer = u16::from(!self.model.printed);
        self.area.bottom().saturating_sub(self.y + footer)
    }

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

    /// The rows of a pane with its title and heads.
    fn needs(&self, pane: Pane) -> u16 {
        let rows = u16::try_from(self.model.rows(pane).len()).unwrap_or(u16::MAX);
        match rows {
            0 => 2,
            rows => rows.saturating_add(2),
        }
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

    /// A title, heads, and as many rows as there is room for.
    fn pane(&mut self, pane: Pane, x: u16, width: u16, height: u16) {
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

    fn table(&mut self, pane: Pane, rows: &[Value], x: u16, width: u16, chosen: Option<usize>) {
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

    fn help(&mut self) {
        self.y += 1;
        for line in HELP {
            self.line(line, Style::new());
        }
    }

    fn footer(&mut self) {
        let model = self.model;
        if model.printed {
            return;
        }
        let (text, style) = match (model.typing, model.filter.is_empty()) {
            (true, _) => (format!("filter: {}_", model.filter), model.look.head()),
            (false, true) => (KEYS.to_owned(), model.look.quiet()),
            (false, false) => (
                format!("filter: {}  (escape removes it)  {KEYS}", model.filter),
                model.look.caution(),
            ),
        };
        self.y = self.area.bottom() - 1;
        let text = model.look.clean(&text);
        self.line(&text, style);
    }
}

/// Rows that need attention.
fn style_of(pane: Pane, row: &Value, look: super::look::Look) -> Style {
    match pane {
        Pane::Limits if row["waiting"].as_f64().is_some_and(|n| n > 0.0) => look.caution(),
        Pane::Backends if row["up"] == false => look.bad(),
        _ => Style::new(),
    }
}

/// What each column needs; where that is too wide, the widest columns give way, text before
/// figures.
fn widths(columns: &[Column], lines: &[Vec<String>], width: usize) -> Vec<usize> {
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
