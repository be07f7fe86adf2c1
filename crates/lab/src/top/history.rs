//! The last ten minutes: the queue, the use of each limit, and what happened.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

/// The seconds that are kept: what `/v1/series` gives for its shortest span.
const SECONDS_MAX: usize = 600;
/// The most marks. The oldest leaves for a new one.
const MARKS_MAX: usize = 256;
/// The most limits whose use is kept: as many as `/v1/now` has.
const LIMITS_MAX: usize = 128;

/// A figure of each second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Track {
    /// The oldest first; none where no answer came.
    points: VecDeque<Option<f64>>,
    /// The second of the last point, since 1970.
    last: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HistoryMark {
    pub(super) at_unix_ms: u64,
    /// The subject in a word.
    pub(super) kind: String,
    pub(super) text: String,
}

/// The use of a limit, and how much was allowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LimitTrack {
    pub(super) used: Track,
    pub(super) allowed: Track,
}

/// Figures that the charts show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The calls that waited.
    pub(super) waiting: Track,
    /// Each limit by its name.
    pub(super) limits: BTreeMap<String, LimitTrack>,
    /// Events, the oldest first.
    pub(super) marks: VecDeque<HistoryMark>,
}

/// Answers that came from the sidecar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// The last answer of `/v1/now`.
    pub now: Value,
    /// The last ten minutes.
    pub history: History,
}

impl Track {
    /// Takes a list of `/v1/series`. Points of more than a second fill all their seconds.
    fn load(list: &[Value], start: u64, step: u64) -> Self {
        let mut track = Self::default();
        for point in &list[list.len() - list.len().min(SECONDS_MAX)..] {
            let seconds = (0..step).map(|_| point.as_f64());
            track.points.extend(seconds);
        }
        track.forget();
        track.last = (start + list.len() as u64 * step).saturating_sub(1);
        track
    }

    /// Adds the figure of a second.
    fn add(&mut self, at_unix_ms: u64, figure: Option<f64>) {
        let second = at_unix_ms / 1000;
        // The sidecar's clock was set back: what came before has no place in time.
        if second.saturating_add(SECONDS_MAX as u64) < self.last {
            self.points.clear();
        }
        if second <= self.last
            && let Some(last) = self.points.back_mut()
        {
            *last = either(*last, figure, f64::max);
            return;
        }
        let missed = second.saturating_sub(self.last + 1).min(SECONDS_MAX as u64);
        if !self.points.is_empty() {
            self.points.extend((0..missed).map(|_| None));
        }
        self.points.push_back(figure);
        self.last = second;
        self.forget();
    }

    fn forget(&mut self) {
        let surplus = self.points.len().saturating_sub(SECONDS_MAX);
        self.points.drain(..surplus);
    }

    /// The largest value of each of `columns` equal spans, the newest last. Spans begin at whole
    /// multiples of their length, so a bar keeps its height while it moves to the left.
    pub(super) fn columns(&self, columns: usize) -> Vec<Option<f64>> {
        let mut all = vec![None; columns];
        for (age, point) in self.points.iter().rev().enumerate() {
            let Some(second) = self.last.checked_sub(age as u64) else {
                break;
            };
            if let Some(column) = self.column(second, columns) {
                let column: &mut Option<f64> = &mut all[column];
                *column = either(*column, *point, f64::max);
            }
        }
        all
    }

    /// The column of a second; none before the first, or after the last.
    pub(super) fn column(&self, second: u64, columns: usize) -> Option<usize> {
        let span = SECONDS_MAX.div_ceil(columns.max(1)) as u64;
        let back = (self.last / span).checked_sub(second / span)?;
        columns.checked_sub(1 + usize::try_from(back).ok()?)
    }
}

fn either(a: Option<f64>, b: Option<f64>, of: fn(f64, f64) -> f64) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(of(a, b)),
        (a, b) => a.or(b),
    }
}

impl History {
    /// Takes the answer of `/v1/series`.
    pub fn load(&mut self, series: &Value) {
        let step = series["step_seconds"].as_u64().unwrap_or(1).clamp(1, 60);
        let start = series["start_unix_ms"].as_u64().unwrap_or_default() / 1000;
        let track = |list: &Value| {
            let list = list.as_array().map_or(&[][..], Vec::as_slice);
            Track::load(list, start, step)
        };
        if !series["series"]["waiting"].is_array() {
            return;
        }
        self.waiting = track(&series["series"]["waiting"]);
        let limits = series["limits"].as_array().into_iter().flatten();
        let limits = limits.take(LIMITS_MAX).filter_map(|limit| {
            let (used, allowed) = (track(&limit["used"]), track(&limit["allowed"]));
            Some((
                limit["name"].as_str()?.to_owned(),
                LimitTrack { used, allowed },
            ))
        });
        self.limits = limits.collect();
        self.marks.clear();
        self.mark(&series["marks"]);
    }

    /// Adds what waits now and the use of limits now.
    pub(super) fn add(&mut self, now: &Value, at_unix_ms: u64) {
        let waiting = now["queue"]["waiting"].as_f64();
        self.waiting.add(at_unix_ms, waiting);
        let limits = now["limits"].as_array().map_or(&[][..], Vec::as_slice);
        let limits = &limits[..limits.len().min(LIMITS_MAX)];
        let is_there = |name: &String| limits.iter().any(|limit| limit["name"] == **name);
        self.limits.retain(|name, _| is_there(name));
        for limit in limits {
            let Some(name) = limit["name"].as_str() else {
                continue;
            };
            let track = match self.limits.get_mut(name) {
                Some(track) => track,
                None => self.limits.entry(name.to_owned()).or_default(),
            };
            track.used.add(at_unix_ms, limit["used"].as_f64());
            track.allowed.add(at_unix_ms, limit["allowed"].as_f64());
        }
    }

    /// Adds a line of `/v1/stream` beyond its `now`: the most that waited in its second, and what
    /// happened.
    pub(super) fn refine(&mut self, frame: &Value) {
        let point = &frame["point"];
        if let Some(at) = point["at_unix_ms"].as_u64() {
            self.waiting.raise(at, point["waiting"].as_f64());
        }
        self.mark(&frame["marks"]);
    }

    /// Adds marks.
    fn mark(&mut self, marks: &Value) {
        for mark in marks.as_array().into_iter().flatten() {
            let text = |name: &str| mark[name].as_str().unwrap_or_default().to_owned();
            let mark = HistoryMark {
                at_unix_ms: mark["at_unix_ms"].as_u64().unwrap_or_default(),
                kind: text("kind"),
                text: text("text"),
            };
            // The history may have had it already.
            if self.marks.contains(&mark) {
                continue;
            }
            if self.marks.len() == MARKS_MAX {
                self.marks.pop_front();
            }
            self.marks.push_back(mark);
        }
    }
}

impl Track {
    /// Raises the figure of a second that is there to at least this.
    fn raise(&mut self, at_unix_ms: u64, figure: Option<f64>) {
        let back = self.last.checked_sub(at_unix_ms / 1000);
        let back = back.and_then(|back| usize::try_from(back).ok());
        let at = back.and_then(|back| self.points.len().checked_sub(1 + back));
        if let Some(point) = at.and_then(|at| self.points.get_mut(at)) {
            *point = either(*point, figure, f64::max);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now(waiting: u64) -> Value {
        json!({"queue": {"waiting": waiting}, "limits": [
            {"name": "total", "used": waiting, "allowed": 5}]})
    }

    #[test]
    fn the_queue_over_time_keeps_gaps_and_ten_minutes() {
        let mut history = History::default();
        let series = json!({"step_seconds": 1, "start_unix_ms": 1_000_000,
            "series": {"waiting": [1, null, 3]}});
        history.load(&series);
        let shown = |history: &History| history.waiting.columns(600);
        assert_eq!(shown(&history)[597..], [Some(1.0), None, Some(3.0)]);
        history.add(&now(9), 1_002_900);
        history.add(&now(2), 1_005_000);
        assert_eq!(
            shown(&history)[594..],
            [Some(1.0), None, Some(9.0), None, None, Some(2.0)]
        );
        assert_eq!(history.waiting.columns(1), [Some(9.0)]);
        history.add(&now(4), u64::MAX);
        assert!(history.waiting.points.len() <= SECONDS_MAX);
        history.add(&now(1), u64::MAX - 2000);
        assert_eq!(history.waiting.points.back(), Some(&Some(4.0)));
        history.add(&now(1), 5);
        assert_eq!(
            history.waiting.points,
            [Some(1.0)],
            "a clock that was set back"
        );
    }

    #[test]
    fn a_line_of_the_stream_has_the_most_of_its_second_and_marks_once() {
        let mut history = History::default();
        let mark = json!({"at_unix_ms": 7000, "kind": "pause", "text": "paused"});
        let series = json!({"step_seconds": 1, "start_unix_ms": 5000, "marks": [mark],
            "series": {"waiting": [1, 1]}, "limits": [{"name": "gone", "used": [1, 1],
            "allowed": [2, 2]}]});
        history.load(&series);
        assert_eq!(history.limits["gone"].allowed.columns(600)[599], Some(2.0));
        history.add(&now(2), 8000);
        history.refine(&json!({"point": {"at_unix_ms": 7000, "waiting": 30}, "marks": [mark]}));
        let shown = history.waiting.columns(600);
        assert_eq!(shown[597..], [Some(1.0), Some(30.0), Some(2.0)]);
        assert_eq!(history.marks.len(), 1);
        assert!(!history.limits.contains_key("gone"));
        assert_eq!(history.limits["total"].used.columns(600)[599], Some(2.0));
        for at in 0..1000 {
            let marks = json!([{"at_unix_ms": at, "kind": "limit", "text": "x"}]);
            history.refine(&json!({"marks": marks}));
        }
        assert_eq!(history.marks.len(), MARKS_MAX);
    }
}
