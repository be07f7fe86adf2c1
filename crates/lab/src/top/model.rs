//! State of the screen, and how keys and answers change it. The model reads neither a clock nor
//! a terminal.

use std::cmp::Ordering;

use serde_json::Value;

use super::history::Answers;
use super::look::ScreenLook;
use super::panes::{Pane, PaneColumn};

/// The longest filter.   characters
const FILTER_MAX: usize = 64;

/// A sidecar that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since_unix_ms: u64,
    /// The last error.
    pub why: String,
}

/// A chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chart {
    /// The calls that waited.
    Waiting,
    /// The use of a limit.
    Limit,
}

/// State of the screen: the answers, and what the user chose to see.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The address that is asked.
    pub address: String,
    /// The current time, in milliseconds since 1970.
    pub clock_unix_ms: u64,
    /// Why there is no newer answer.
    pub trouble: Option<Trouble>,
    /// Characters and colours that the terminal can show.
    pub look: ScreenLook,
    /// Without the line of keys and without a chosen row.
    pub printed: bool,
    /// How far the sidecar's clock is ahead.   ms
    ahead: i64,
    /// The chart where there is room for one.
    pub(super) chart: Chart,
    /// The limit whose use is shown.
    pub(super) limit: Option<String>,
    /// The user chose it. Otherwise it is the one that most calls wait for.
    limit_is_chosen: bool,
    answers: Answers,
    frozen: Option<Box<Answers>>,
    pub(super) pane: Pane,
    /// The column by which each pane is sorted; none for the order of the sidecar.
    pub(super) sorted: [Option<usize>; Pane::ALL.len()],
    pub(super) chosen: [usize; Pane::ALL.len()],
    pub(super) filter: String,
    pub(super) typing: bool,
    pub(super) help: bool,
}

/// A key, as far as it means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressedKey {
    /// A letter.
    Letter(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Erase,
    /// Tab, or the arrow to the right.
    Next,
    /// Tab with shift, or the arrow to the left.
    Previous,
    /// The arrow up and down, or a page up and down: rows.
    Move(isize),
}

impl Model {
    /// A screen without an answer.
    #[must_use]
    pub fn new(address: String, look: ScreenLook) -> Self {
        Self {
            address,
            clock_unix_ms: 0,
            trouble: None,
            look,
            printed: false,
            ahead: 0,
            chart: Chart::Waiting,
            limit: None,
            limit_is_chosen: false,
            answers: Answers::default(),
            frozen: None,
            pane: Pane::Functions,
            sorted: [None; Pane::ALL.len()],
            chosen: [0; Pane::ALL.len()],
            filter: String::new(),
            typing: false,
            help: false,
        }
    }

    /// Takes the answer of `/v1/series`.
    pub fn load(&mut self, series: &Value) {
        self.answers.history.load(series);
    }

    /// Takes an answer of `/v1/now`, or why there is none.
    pub fn take(&mut self, answer: Result<Value, String>) {
        match answer {
            Ok(now) => {
                let at = now["at_unix_ms"].as_u64().unwrap_or(self.clock_unix_ms);
                self.ahead = at.wrapping_sub(self.clock_unix_ms).cast_signed();
                self.answers.history.add(&now, at);
                self.answers.now = now;
                self.trouble = None;
                self.choose_limit();
            }
            Err(why) => {
                let since = self.trouble.take().map(|trouble| trouble.since_unix_ms);
                self.trouble = Some(Trouble {
                    since_unix_ms: since.unwrap_or(self.clock_unix_ms),
                    why,
                });
            }
        }
    }

    /// Takes a line of `/v1/stream`.
    pub fn take_frame(&mut self, mut frame: Value) {
        self.take(Ok(frame["now"].take()));
        self.answers.history.refine(&frame);
    }

    /// The limit that most calls wait for, unless the user chose one. Without such a limit, the one
    /// before is kept.
    fn choose_limit(&mut self) {
        let limits = self.answers.now["limits"].as_array();
        let limits = limits.map_or(&[][..], Vec::as_slice);
        let is_there = limits
            .iter()
            .any(|it| it["name"].as_str() == self.limit.as_deref());
        if is_there && self.limit_is_chosen {
            return;
        }
        self.limit_is_chosen = false;
        let waiting = |limit: &Value| limit["waiting"].as_u64().unwrap_or_default();
        let holds = |limit: &&Value| limit["open"] == false && waiting(limit) > 0;
        // The first of several that are equal.
        let most = limits
            .iter()
            .rev()
            .filter(holds)
            .max_by_key(|it| waiting(it));
        let total = || limits.iter().find(|it| it["name"] == "total");
        let next = match (most, is_there) {
            (None, true) => return,
            (most, _) => most.or_else(total).or(limits.first()),
        };
        self.limit = next
            .and_then(|it| it["name"].as_str())
            .map(ToOwned::to_owned);
    }

    /// The time on the sidecar's clock, which may be another than here.
    pub(super) fn sidecar_unix_ms(&self) -> u64 {
        self.clock_unix_ms.saturating_add_signed(self.ahead)
    }

    /// The answers on the screen: the newest, or those at the moment when the screen was frozen.
    pub(super) fn shown(&self) -> &Answers {
        self.frozen.as_deref().unwrap_or(&self.answers)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The rows of a pane that contain the filter, in their order.
    pub(super) fn rows(&self, pane: Pane) -> Vec<Value> {
        let mut rows = pane.rows(self.shown(), self.sidecar_unix_ms(), self.look);
        if !self.filter.is_empty() {
            let wanted = self.filter.to_lowercase();
            let texts = pane.columns().iter().filter(|it| it.figure.is_none());
            let has = |row: &Value, column: &PaneColumn| {
                (column.cell)(row, self.look)
                    .to_lowercase()
                    .contains(&wanted)
            };
            rows.retain(|row| texts.clone().any(|column| has(row, column)));
        }
        if let Some(column) = self.sorted[pane as usize].map(|it| &pane.columns()[it]) {
            match column.figure {
                Some(figure) => rows.sort_by(|a, b| largest_first(figure(a), figure(b))),
                None => rows.sort_by_cached_key(|row| (column.cell)(row, self.look)),
            }
        }
        rows
    }

    /// Does what a key means; false if it is the one that quits.
    pub fn press(&mut self, key: PressedKey) -> bool {
        if self.typing {
            match key {
                PressedKey::Letter(c) if self.filter.chars().count() < FILTER_MAX => {
                    self.filter.push(c)
                }
                PressedKey::Erase => {
                    self.filter.pop();
                }
                PressedKey::Escape => {
                    self.filter.clear();
                    self.typing = false;
                }
                PressedKey::Enter => self.typing = false,
                _ => {}
            }
            self.chosen = [0; Pane::ALL.len()];
            return true;
        }
        if self.help {
            self.help = false;
            return key != PressedKey::Letter('q');
        }
        let pane = self.pane as usize;
        match key {
            PressedKey::Letter('q') => return false,
            PressedKey::Letter('?') => self.help = true,
            PressedKey::Letter('/') => self.typing = true,
            PressedKey::Letter(' ') => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some(Box::new(self.answers.clone())),
                };
            }
            PressedKey::Letter('s') => {
                let next = self.sorted[pane].map_or(0, |column| column + 1);
                self.sorted[pane] = (next < self.pane.columns().len()).then_some(next);
            }
            PressedKey::Letter('c') => {
                self.chart = match self.chart {
                    Chart::Waiting => Chart::Limit,
                    Chart::Limit => Chart::Waiting,
                };
            }
            PressedKey::Escape => self.filter.clear(),
            PressedKey::Next => self.pane = self.pane.beside(1),
            PressedKey::Previous => self.pane = self.pane.beside(Pane::ALL.len() - 1),
            PressedKey::Move(rows) => {
                let Some(last) = self.rows(self.pane).len().checked_sub(1) else {
                    return true;
                };
                let chosen = self.chosen[pane].min(last);
                self.chosen[pane] = chosen.saturating_add_signed(rows).min(last);
                if self.pane == Pane::Limits {
                    let limit = self.rows(self.pane).swap_remove(self.chosen[pane]);
                    self.limit = limit["name"].as_str().map(ToOwned::to_owned);
                    self.limit_is_chosen = true;
                }
            }
            PressedKey::Letter(_) | PressedKey::Enter | PressedKey::Erase => {}
        }
        true
    }
}

/// Rows without the figure come last.
fn largest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frozen_screen_keeps_what_it_shows_and_goes_on_with_the_newest() {
        let look = ScreenLook {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        let now = |n: u64| json!({"at_unix_ms": n * 1000, "queue": {"waiting": n}});
        model.take(Ok(now(1)));
        assert!(model.press(PressedKey::Letter(' ')));
        model.take(Ok(now(2)));
        assert_eq!(model.shown().now["queue"]["waiting"], 1);
        assert!(model.press(PressedKey::Letter(' ')));
        assert_eq!(model.shown().now["queue"]["waiting"], 2);
    }

    #[test]
    fn trouble_counts_from_its_first_error() {
        let look = ScreenLook {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        model.clock_unix_ms = 5000;
        model.take(Err("refused".to_owned()));
        model.clock_unix_ms = 9000;
        model.take(Err("timeout".to_owned()));
        let trouble = model.trouble.clone().expect("no answer");
        assert_eq!((trouble.since_unix_ms, &*trouble.why), (5000, "timeout"));
        model.take(Ok(json!({})));
        assert_eq!(model.trouble, None);
    }

    #[test]
    fn letters_of_a_filter_are_no_commands() {
        let look = ScreenLook {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        for key in "/q s".chars() {
            assert!(model.press(PressedKey::Letter(key)));
        }
        assert_eq!(model.filter, "q s");
        assert!(model.press(PressedKey::Enter));
        assert!(!model.press(PressedKey::Letter('q')));
    }

    fn model() -> Model {
        let look = ScreenLook {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        model.take(Ok(json!({"functions": [
            {"function": "guest_list", "waiting": 3},
            {"function": "guest_start", "waiting": null},
            {"function": "image_query", "waiting": 7},
        ]})));
        model
    }

    #[test]
    fn the_limit_that_most_calls_wait_for_is_shown_until_the_user_chooses_another() {
        let look = ScreenLook {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        let now = |of_total: u64, of_list: u64| {
            let limit = |name: &str, waiting: u64| json!({"name": name, "waiting": waiting, "open": waiting == 0});
            let limits = [
                limit("workers", 0),
                limit("total", of_total),
                limit("list", of_list),
            ];
            Ok(json!({"limits": limits}))
        };
        let check = |model: &mut Model, answer, expected: &str| {
            model.take(answer);
            assert_eq!(model.limit.as_deref(), Some(expected));
        };
        check(&mut model, now(0, 0), "total");
        check(&mut model, now(2, 3), "list");
        check(&mut model, now(3, 3), "total");
        check(&mut model, now(0, 0), "total");
        model.pane = Pane::Limits;
        model.press(PressedKey::Move(2));
        check(&mut model, now(9, 0), "list");
        check(
            &mut model,
            Ok(json!({"limits": [{"name": "total"}]})),
            "total",
        );
        model.take(Ok(json!({"limits": []})));
        model.press(PressedKey::Move(1));
        assert_eq!(model.limit, None);
    }

    fn names(model: &Model) -> Vec<String> {
        let rows = model.rows(Pane::Functions);
        rows.iter().map(|row| row["function"].to_string()).collect()
    }

    #[test]
    fn rows_are_sorted_by_each_column_in_turn_and_then_as_they_came() {
        let mut model = model();
        let original = names(&model);
        for _ in 0..3 {
            model.press(PressedKey::Letter('s'));
        }
        assert_eq!(
            names(&model),
            ["\"image_query\"", "\"guest_list\"", "\"guest_start\""]
        );
        for _ in 3..=Pane::Functions.columns().len() {
            model.press(PressedKey::Letter('s'));
        }
        assert_eq!(names(&model), original);
    }

    #[test]
    fn rows_without_the_filter_are_left_out() {
        let mut model = model();
        for letter in "/GUEST".chars() {
            model.press(PressedKey::Letter(letter));
        }
        assert_eq!(names(&model).len(), 2);
        model.press(PressedKey::Escape);
        assert_eq!(names(&model).len(), 3);
    }
}
