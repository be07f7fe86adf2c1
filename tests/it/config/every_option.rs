//! Every option that is read, given in every way that none of them takes: each time it is
//! refused, and the message names the option.
//!
//! The options are those that the reader asks for, so that a new one is tried without being
//! written down here.

use std::collections::BTreeMap;

use tidegate::config::{self, Severity};

use super::read;
use crate::certificates::Files;

/// Values that no option takes.
const NEVER: [&str; 8] = [
    "nan",
    "inf",
    "-inf",
    "1979-05-27T07:32:00Z",
    "[1979-05-27T07:32:00Z]",
    "[nan]",
    "{ no_such_key = 1979-05-27T07:32:00Z }",
    "{ no_such_key = nan }",
];

/// Values of each kind: most options take one kind or two.
const KINDS: [(&str, &str); 5] = [
    ("flag", "true"),
    ("integer", "7"),
    ("text", "\"no such text, and no duration or size either\""),
    ("list", "[[]]"),
    ("table", "{ no_such_key = [] }"),
];

/// A config with every option in it, and where each of them stands: the line, by its path.
struct Whole {
    lines: Vec<String>,
    places: BTreeMap<String, usize>,
    files: Files,
}

impl Whole {
    fn new() -> Self {
        let options = config::catalogue().allowed();
        let (mut section, mut lines) = (String::new(), Vec::new());
        let mut places = BTreeMap::new();
        let every = config::catalogue().every_option("");
        for line in every.lines() {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let header = bare.strip_prefix('[').and_then(|_| bare.strip_suffix(']'));
            if let Some(header) = header {
                section = header.trim_matches(['[', ']']).to_owned();
                lines.push(bare.to_owned());
                continue;
            }
            let path = bare
                .split_once(" = ")
                .map(|(key, _)| format!("{section}.{key}"));
            match path.filter(|path| options.contains_key(path)) {
                Some(path) => {
                    places.insert(path, lines.len());
                    lines.push(bare.to_owned());
                }
                None if line.starts_with('#') => {}
                None => lines.push(line.to_owned()),
            }
        }
        assert!(places.keys().eq(options.keys()), "the config has them all");
        Self {
            lines,
            places,
            files: Files::new(),
        }
    }

    /// The errors of a config in which one option has this value: those that name the option, and
    /// others.
    fn errors(&self, path: &str, value: &str) -> (Vec<String>, Vec<String>) {
        let at = self.places[path];
        let key = path.rsplit('.').next().expect("split gives one at least");
        let mut lines = self.lines.clone();
        lines[at] = format!("{key} = {value}");
        let dir = self.files.dir.path().display().to_string();
        let text = lines.join("\n").replace("/etc/tidegate", &dir);
        let Err(problems) = read(&text) else {
            return Default::default();
        };
        let place = format!("config.toml:{}:", at + 1);
        problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .map(|problem| problems.plain(problem))
            .partition(|told| told.contains(&place) && told.contains(key))
    }

    fn is_refused(&self, path: &str, value: &str) -> bool {
        !self.errors(path, value).0.is_empty()
    }
}

#[test]
fn no_option_takes_what_is_no_number_no_text_and_nothing_else() {
    let whole = Whole::new();
    for path in whole.places.keys() {
        for value in NEVER {
            assert!(whole.is_refused(path, value), "{path} = {value}");
        }
    }
}

#[test]
fn every_option_takes_only_its_own_kinds() {
    let whole = Whole::new();
    for path in whole.places.keys() {
        let taken: Vec<&str> = KINDS
            .into_iter()
            .filter(|(_, value)| !whole.is_refused(path, value))
            .map(|(kind, _)| kind)
            .collect();
        assert!(taken.len() <= 1, "{path} takes {taken:?}");
    }
}

#[test]
fn every_number_is_refused_beyond_its_range() {
    let whole = Whole::new();
    let mut ranges = 0;
    for (path, allowed) in config::catalogue().allowed() {
        // As in "connections, 1 to 1000000", or "duration, 0s to 1h".
        let words: Vec<&str> = allowed.split([' ', ',']).collect();
        let Some(to) = words.iter().position(|word| *word == "to") else {
            continue;
        };
        let (Some(Ok(least)), Some(Ok(most))) = (
            to.checked_sub(1).map(|at| words[at].parse::<i64>()),
            words.get(to + 1).map(|word| word.parse::<i64>()),
        ) else {
            continue;
        };
        ranges += 1;
        for value in [least - 1, most.saturating_add(1), i64::MIN, i64::MAX] {
            if (least..=most).contains(&value) {
                continue;
            }
            assert!(
                whole.is_refused(&path, &value.to_string()),
                "{path} = {value}"
            );
        }
    }
    assert!(ranges > 10, "{ranges}");
}

#[test]
fn no_option_is_taken_twice_or_beyond_what_toml_has_numbers_for() {
    let whole = Whole::new();
    for (path, at) in &whole.places {
        let line = &whole.lines[*at];
        let (_, value) = line.split_once(" = ").expect("key = value");
        let (told, others) = whole.errors(path, &format!("{value}\n{line}"));
        let mut all = told.iter().chain(&others);
        let second = format!("config.toml:{}:", at + 2);
        let is_reported = |told: &String| told.contains(&second) && told.contains("duplicate key");
        assert!(all.any(is_reported), "{path}: {others:?}");
        assert!(whole.is_refused(path, "99999999999999999999"), "{path}");
    }
}
