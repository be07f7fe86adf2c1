//! The lines at the top and at the bottom: the sidecar, what waits, a pause, and the keys.

use ratatui::style::Style;
use serde_json::Value;

use super::page::Page;
use crate::top::look::{length, time_of_day};

const KEYS: &str = "q quit  tab pane  arrows row  c chart  s sort  / filter  space freeze  ? help";
const HELP: [&str; 16] = [
    "q            quit",
    "tab, right   the next pane; shift-tab or left, the one before",
    "up, down     rows of the pane; page up and page down move ten rows",
    "c            the chart: what waits, or the use of a limit, which is the row of the",
    "             pane Limits that you move to, else the one that most calls wait for",
    "s            sort by the next column; after the last, the order of the sidecar",
    "/            show only rows with a text; enter keeps it, escape removes it",
    "space        freeze the screen; space again continues with the newest",
    "?            this page; any key leaves it",
    "",
    "QUEUED and BACKEND are the median time in the queue and at the backend; P95 is",
    "what 95 of 100 calls do not exceed. RUN counts calls at the backend.",
    "`tidegate explain CALL` shows what holds or held a call.",
    "",
    "In the charts: S start, C config taken, X config refused, P pause, R resume,",
    "L limit changed for a while, D backend down, U backend up.",
];

impl Page<'_> {
    pub(super) fn header(&mut self) {
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
    pub(super) fn state(&mut self) {
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
            let pause = self.pause(pause);
            self.wrapped(&pause, 2, look.caution());
        }
        if let Some(lowered) = self.lowered() {
            self.line(&lowered, look.caution());
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
        let by = look.reason(pause);
        if pause["state"] == "ramping" {
            let share = pause["share"].as_f64().unwrap_or_default() * 100.0;
            return format!("RAMP: limits at {share:.0} %{left}{by}");
        }
        let at = since("since_unix_ms")
            .map_or(String::new(), |at| format!(" since {}", time_of_day(at)));
        format!("PAUSED{at}{left}{by}")
    }

    /// Limits that are lower for a while. The pane Events has who lowered them, and why.
    fn lowered(&self) -> Option<String> {
        let clock = self.model.sidecar_unix_ms();
        let overrides = self.now()["overrides"].as_array()?;
        let one = |set: &Value| {
            let ends = set["ends_unix_ms"].as_u64().unwrap_or_default();
            let left = length(ends.saturating_sub(clock) as f64 / 1000.0);
            let (limit, value) = (&set["limit"], &set["value"]);
            let look = self.model.look;
            format!("{} to {} for {left}", look.word(limit), look.word(value))
        };
        let all: Vec<String> = overrides.iter().map(one).collect();
        (!all.is_empty()).then(|| format!("LOWERED: {}", all.join(", ")))
    }

    pub(super) fn help(&mut self) {
        self.y += 1;
        for line in HELP {
            self.line(line, Style::new());
        }
    }

    pub(super) fn footer(&mut self) {
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
