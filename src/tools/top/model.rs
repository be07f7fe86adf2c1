//! What the screen shows, and what keys and answers change about it. Nothing here reads a clock or
//! a terminal.

use std::cmp::Ordering;
use std::collections::VecDeque;

use serde_json::Value;

use super::look::Look;
use super::panes::{Column, Pane};

/// The seconds of the queue that are kept: what `/v1/series` gives for its shortest span.
const HISTORY_MAX: usize = 600;
/// The longest filter.   characters
const FILTER_MAX: usize = 64;

/// The calls that waited in each second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The oldest first; none where no answer came.
    points: VecDeque<Option<f64>>,
    /// The second of the last point, since 1970.
    last: u64,
}

impl History {
    /// Takes the answer of `/v1/series`. Points of more than a second fill all their seconds.
    pub fn load(&mut self, series: &Value) {
        let Some(waiting) = series["series"]["waiting"].as_array() else {
            return;
        };
        let step = series["step_seconds"].as_u64().unwrap_or(1).clamp(1, 60);
        let start = series["start_unix_ms"].as_u64().unwrap_or_default() / 1000;
        self.points.clear();
        let points = waiting.len().min(HISTORY_MAX);
        for point in &waiting[waiting.len() - points..] {
            self.points
                .extend((0..step).map(|_| point.as_f64()).take(step as usize));
        }
        self.forget();
        self.last = (start + waiting.len() as u64 * step).saturating_sub(1);
    }

    /// Adds the calls that wait now.
    pub fn add(&mut self, at_unix_ms: u64, waiting: Option<f64>) {
        let second = at_unix_ms / 1000;
        // The sidecar's clock was set back: what came before has no place in time.
        if second.saturating_add(HISTORY_MAX as u64) < self.last {
            self.points.clear();
        }
        if second <= self.last
            && let Some(last) = self.points.back_mut()
        {
            *last = match (*last, waiting) {
                (Some(before), Some(now)) => Some(before.max(now)),
                (before, now) => now.or(before),
            };
            return;
        }
        let missed = second.saturating_sub(self.last + 1).min(HISTORY_MAX as u64);
        if !self.points.is_empty() {
            self.points.extend((0..missed).map(|_| None));
        }
        self.points.push_back(waiting);
        self.last = second;
        self.forget();
    }

    fn forget(&mut self) {
        let surplus = self.points.len().saturating_sub(HISTORY_MAX);
        self.points.drain(..surplus);
    }

    /// The largest value of each of `columns` equal spans, the newest last. Spans begin at whole
    /// multiples of their length, so a bar keeps its height while it moves to the left.
    pub(super) fn columns(&self, columns: usize) -> Vec<Option<f64>> {
        let span = HISTORY_MAX.div_ceil(columns.max(1)) as u64;
        let newest = self.last / span;
        let mut all = vec![None; columns];
        for (age, point) in self.points.iter().rev().enumerate() {
            let Some(second) = self.last.checked_sub(age as u64) else {
                break;
            };
            let back = (newest - second / span) as usize;
            if let Some(column) = columns.checked_sub(1 + back) {
                let column: &mut Option<f64> = &mut all[column];
                *column = match (*column, *point) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        all
    }
}

/// A sidecar that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since_unix_ms: u64,
    /// The last error.
    pub why: String,
}

/// What came from the sidecar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// The last answer of `/v1/now`.
    pub now: Value,
    /// The queue of the last ten minutes.
    pub history: History,
}

/// What the user looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The address that is asked.
    pub address: String,
    /// The current time, in milliseconds since 1970.
    pub clock_unix_ms: u64,
    /// Why there is no newer answer.
    pub trouble: Option<Trouble>,
    /// What the terminal can show.
    pub look: Look,
    /// Without the line of keys and without a chosen row.
    pub printed: bool,
    /// How far the sidecar's clock is ahead.   ms
    ahead: i64,
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
pub enum Key {
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
    pub fn new(address: String, look: Look) -> Self {
        Self {
            address,
            clock_unix_ms: 0,
            trouble: None,
            look,
            printed: false,
            ahead: 0,
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
                let waiting = now["queue"]["waiting"].as_f64();
                self.answers.history.add(at, waiting);
                self.answers.now = now;
                self.trouble = None;
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

    /// The time on the sidecar's clock, which may be another than here.
    pub(super) fn sidecar_unix_ms(&self) -> u64 {
        self.clock_unix_ms.saturating_add_signed(self.ahead)
    }

    /// What is shown: the newest, or what was there when the screen was frozen.
    pub(super) fn shown(&self) -> &Answers {
        self.frozen.as_deref().unwrap_or(&self.answers)
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The rows of a pane that contain the filter, in their order.
    pub(super) fn rows(&self, pane: Pane) -> Vec<Value> {
        let mut rows = pane.rows(&self.shown().now, self.sidecar_unix_ms());
        if !self.filter.is_empty() {
            let wanted = self.filter.to_lowercase();
            let texts = pane.columns().iter().filter(|it| it.figure.is_none());
            let has = |row: &Value, column: &Column| {
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
    pub fn press(&mut self, key: Key) -> bool {
        if self.typing {
            match key {
                Key::Letter(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
                Key::Erase => {
                    self.filter.pop();
                }
                Key::Escape => {
                    self.filter.clear();
                    self.typing = false;
                }
                Key::Enter => self.typing = false,
                _ => {}
            }
            self.chosen = [0; Pane::ALL.len()];
            return true;
        }
        if self.help {
            self.help = false;
            return key != Key::Letter('q');
        }
        let pane = self.pane as usize;
        match key {
            Key::Letter('q') => return false,
            Key::Letter('?') => self.help = true,
            Key::Letter('/') => self.typing = true,
            Key::Letter(' ') => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some(Box::new(self.answers.clone())),
                };
            }
            Key::Letter('s') => {
                let next = self.sorted[pane].map_or(0, |column| column + 1);
                self.sorted[pane] = (next < self.pane.columns().len()).then_some(next);
            }
            Key::Escape => self.filter.clear(),
            Key::Next => self.pane = self.pane.beside(1),
            Key::Previous => self.pane = self.pane.beside(Pane::ALL.len() - 1),
            Key::Move(rows) => {
                let last = self.rows(self.pane).len().saturating_sub(1);
                let chosen = self.chosen[pane].min(last);
                self.chosen[pane] = chosen.saturating_add_signed(rows).min(last);
            }
            Key::Letter(_) | Key::Enter | Key::Erase => {}
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
    fn the_queue_over_time_keeps_gaps_and_ten_minutes() {
        let mut history = History::default();
        let series = json!({"step_seconds": 1, "start_unix_ms": 1_000_000,
            "series": {"waiting": [1, null, 3]}});
        history.load(&series);
        assert_eq!(history.columns(600)[597..], [Some(1.0), None, Some(3.0)]);
        history.add(1_002_900, Some(9.0));
        history.add(1_005_000, Some(2.0));
        assert_eq!(
            history.columns(600)[594..],
            [Some(1.0), None, Some(9.0), None, None, Some(2.0)]
        );
        assert_eq!(history.columns(1), [Some(9.0)]);
        history.add(u64::MAX, Some(4.0));
        assert!(history.points.len() <= HISTORY_MAX);
        history.add(u64::MAX - 2000, Some(1.0));
        assert_eq!(history.points.back(), Some(&Some(4.0)), "the same second");
        history.add(5, Some(1.0));
        assert_eq!(history.points, [Some(1.0)], "a clock that was set back");
    }

    #[test]
    fn a_frozen_screen_keeps_what_it_shows_and_goes_on_with_the_newest() {
        let look = Look {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        let now = |n: u64| json!({"at_unix_ms": n * 1000, "queue": {"waiting": n}});
        model.take(Ok(now(1)));
        assert!(model.press(Key::Letter(' ')));
        model.take(Ok(now(2)));
        assert_eq!(model.shown().now["queue"]["waiting"], 1);
        assert!(model.press(Key::Letter(' ')));
        assert_eq!(model.shown().now["queue"]["waiting"], 2);
    }

    #[test]
    fn trouble_counts_from_its_first_error() {
        let look = Look {
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
        let look = Look {
            ascii: true,
            colours: false,
        };
        let mut model = Model::new("127.0.0.1:9180".to_owned(), look);
        for key in "/q s".chars() {
            assert!(model.press(Key::Letter(key)));
        }
        assert_eq!(model.filter, "q s");
        assert!(model.press(Key::Enter));
        assert!(!model.press(Key::Letter('q')));
    }

    fn model() -> Model {
        let look = Look {
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

    fn names(model: &Model) -> Vec<String> {
        let rows = model.rows(Pane::Functions);
        rows.iter().map(|row| row["function"].to_string()).collect()
    }

    #[test]
    fn rows_are_sorted_by_each_column_in_turn_and_then_as_they_came() {
        let mut model = model();
        let original = names(&model);
        for _ in 0..3 {
            model.press(Key::Letter('s'));
        }
        assert_eq!(
            names(&model),
            ["\"image_query\"", "\"guest_list\"", "\"guest_start\""]
        );
        for _ in 3..=Pane::Functions.columns().len() {
            model.press(Key::Letter('s'));
        }
        assert_eq!(names(&model), original);
    }

    #[test]
    fn rows_without_the_filter_are_left_out() {
        let mut model = model();
        for letter in "/GUEST".chars() {
            model.press(Key::Letter(letter));
        }
        assert_eq!(names(&model).len(), 2);
        model.press(Key::Escape);
        assert_eq!(names(&model).len(), 3);
    }
}
