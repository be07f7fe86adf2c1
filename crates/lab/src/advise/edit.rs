//! Today's config with the advice in it: single lines change, so comments and everything else stay.
//!
//! Text is edited without a parser, so each part of the advice is read back: it stays only if the whole
//! is a config that says so, without new warnings.

use std::time::Duration;

use super::config::{
    CAPACITY, Change, MAX_WAIT, OUTSTANDING, OptionPlace, PER_WINDOW, WINDOW, WORKERS,
};
use tidegate::config::{Config, LoadedConfig, read};
use tidegate::options::kind::parse_duration;
use tidegate::options::{Problems, Severity};

/// A line of the text, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EditedLine {
    Kept(String),
    Removed(String),
    Added(String),
}

/// Today's config with the advice in it.
#[derive(Debug)]
pub(crate) struct Edited {
    lines: Vec<EditedLine>,
    /// Parts of the advice that are not in it, and why.
    pub(super) left_out: Vec<(String, String)>,
}

/// Lines around each change of a diff.
const AROUND: usize = 3;

impl Edited {
    /// Today's text with these changes.
    ///
    /// # Errors
    ///
    /// If today's text is no config.
    pub(crate) fn of(today: &str, changes: &[Change]) -> Result<Self, Problems> {
        let mut warnings = checked(today)?.warnings.len();
        let mut edited = Self {
            lines: today
                .lines()
                .map(|it| EditedLine::Kept(it.to_owned()))
                .collect(),
            left_out: Vec::new(),
        };
        let mut parts: Vec<&str> = changes.iter().map(|change| &*change.part).collect();
        parts.dedup();
        for part in parts {
            let before = edited.lines.clone();
            let inside = changes.iter().filter(|change| change.part == part);
            let inside: Vec<&Change> = inside.collect();
            inside.iter().for_each(|it| edit(&mut edited.lines, it));
            let why = match checked(&edited.text()) {
                Ok(after) if !inside.iter().all(|it| is_said(&after.config, it)) => {
                    "the text of today's config says it in another place".to_owned()
                }
                Ok(after) => match new_warning(&after.warnings, warnings) {
                    None => {
                        warnings = after.warnings.len();
                        continue;
                    }
                    Some(why) => why,
                },
                Err(problems) => first(&problems, Severity::Error),
            };
            edited.lines = before;
            edited.left_out.push((part.to_owned(), why));
        }
        Ok(edited)
    }

    /// The whole config.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            if let EditedLine::Kept(line) | EditedLine::Added(line) = line {
                text += line;
                text.push('\n');
            }
        }
        text
    }

    /// Whether anything differs.
    pub(super) fn is_changed(&self) -> bool {
        self.lines
            .iter()
            .any(|line| !matches!(line, EditedLine::Kept(_)))
    }

    /// Makes a unified diff with three lines around each change; empty if there is no difference.
    pub(super) fn diff(&self, today: &str, advised: &str) -> String {
        let is_changed = |line: &EditedLine| !matches!(line, EditedLine::Kept(_));
        let mut text = String::new();
        let (mut old, mut new) = (1, 1);
        let mut at = 0;
        while let Some(change) = self.lines[at..].iter().position(is_changed) {
            let first = (at + change).saturating_sub(AROUND).max(at);
            // The hunk ends where more lines are kept than belong to two hunks.
            let mut last = at + change + 1;
            while let Some(next) = self.lines[last..].iter().position(is_changed) {
                if next > 2 * AROUND {
                    break;
                }
                last += next + 1;
            }
            let last = (last + AROUND).min(self.lines.len());
            (old, new) = (old + first - at, new + first - at);
            let hunk = &self.lines[first..last];
            let count =
                |skip: fn(&EditedLine) -> bool| hunk.iter().filter(|line| !skip(line)).count();
            let of_old = count(|line| matches!(line, EditedLine::Added(_)));
            let of_new = count(|line| matches!(line, EditedLine::Removed(_)));
            if text.is_empty() {
                text = format!("--- {today}\n+++ {advised}\n");
            }
            text += &format!("@@ -{old},{of_old} +{new},{of_new} @@\n");
            for line in hunk {
                let (sign, line) = match line {
                    EditedLine::Kept(line) => (' ', line),
                    EditedLine::Removed(line) => ('-', line),
                    EditedLine::Added(line) => ('+', line),
                };
                text += &format!("{sign}{line}\n");
            }
            (old, new, at) = (old + of_old, new + of_new, last);
        }
        text
    }
}

fn checked(text: &str) -> Result<LoadedConfig, Problems> {
    read(text, "the advised config", std::iter::empty())
}

/// The last warning, if there are more than before.
fn new_warning(warnings: &Problems, before: usize) -> Option<String> {
    (warnings.len() > before).then(|| first(warnings, Severity::Warning))
}

fn first(problems: &Problems, severity: Severity) -> String {
    let mut of_kind = problems.iter().filter(|it| it.severity == severity);
    of_kind.next().map_or(String::new(), |it| it.text())
}

/// The lines that a text still has.
fn shown(line: &EditedLine) -> Option<&str> {
    match line {
        EditedLine::Kept(line) | EditedLine::Added(line) => Some(line.trim()),
        EditedLine::Removed(_) => None,
    }
}

/// The value of a line `key = value` with this key.
fn value_of<'a>(line: &'a EditedLine, key: &str) -> Option<&'a str> {
    let rest = shown(line)?.strip_prefix(key)?;
    Some(rest.trim_start().strip_prefix('=')?.trim())
}

/// The string of a line `key = "string"`.
fn string_of(line: &EditedLine, key: &str) -> Option<String> {
    value_of(line, key)?;
    let table: toml::Table = shown(line)?.parse().ok()?;
    table.get(key)?.as_str().map(str::to_owned)
}

/// The lines of the sections with this header, headers included.
fn sections(lines: &[EditedLine], header: &str) -> Vec<(usize, usize)> {
    // A comment may follow the header.
    let is_header = |line: &EditedLine| shown(line).is_some_and(|it| it.starts_with(header));
    let starts = (0..lines.len()).filter(|at| is_header(&lines[*at]));
    let ends = |line: &EditedLine| shown(line).is_some_and(|it| it.starts_with('['));
    let whole = starts.map(|start| {
        let length = lines[start + 1..].iter().position(ends);
        (
            start,
            length.map_or(lines.len(), |length| start + 1 + length),
        )
    });
    whole.collect()
}

/// The section of a change, if the text has it.
fn section(lines: &[EditedLine], place: &OptionPlace) -> Option<(usize, usize)> {
    let header = match place {
        OptionPlace::Section(section) => format!("[{section}]"),
        OptionPlace::RateLimit(_) | OptionPlace::NewRateLimit(_) => "[[bucket]]".to_owned(),
        OptionPlace::Caller(_) => "[[caller]]".to_owned(),
    };
    let is_single = matches!(place, OptionPlace::Section(_));
    let mut all = sections(lines, &header).into_iter();
    all.find(|(start, end)| {
        is_single || lines[*start..*end].iter().any(|line| is_named(line, place))
    })
}

/// Whether a line has the name of a section that the config may have several times.
fn is_named(line: &EditedLine, place: &OptionPlace) -> bool {
    match place {
        OptionPlace::Section(_) => false,
        OptionPlace::RateLimit(name) | OptionPlace::NewRateLimit(name) => {
            string_of(line, "name").as_ref() == Some(name)
        }
        OptionPlace::Caller(label) => string_of(line, "label").as_ref() == Some(label),
    }
}

/// Changes one option: its line, or a new one at the start of its section, or a new section.
fn edit(lines: &mut Vec<EditedLine>, change: &Change) {
    let Change {
        place, key, value, ..
    } = change;
    let Some((start, end)) = section(lines, place) else {
        let header = match place {
            OptionPlace::Section(section) => vec![format!("[{section}]")],
            OptionPlace::NewRateLimit(name) => {
                vec!["[[bucket]]".to_owned(), format!("name = \"{name}\"")]
            }
            // Its section is written otherwise than one line for each option.
            OptionPlace::RateLimit(_) | OptionPlace::Caller(_) => return,
        };
        let is_apart = lines.iter().rev().find_map(shown).is_none_or(str::is_empty);
        let blank = (!is_apart).then(String::new);
        let added = format!("{key} = {value}");
        let new = blank.into_iter().chain(header).chain([added]);
        lines.extend(new.map(EditedLine::Added));
        return;
    };
    let of_key = |key| {
        let is_key = |line: &EditedLine| value_of(line, key).is_some();
        lines[start..end].iter().position(is_key)
    };
    // Under the name that the text has, if the value can be said there.
    let by_alias = alias(key, value).and_then(|alias| Some((of_key(alias.key)?, alias)));
    let (at, key, value) = match by_alias {
        Some((
            at,
            Alias {
                key,
                value: Some(value),
            },
        )) => (Some(at), key, value),
        Some((at, _)) => (Some(at), *key, value.clone()),
        None => (of_key(key), *key, value.clone()),
    };
    let added = format!("{key} = {value}");
    let Some(at) = at else {
        // Behind its name, and behind the lines that were added before, in their order.
        let named = lines[start..end].iter().position(|it| is_named(it, place));
        let first = start + named.unwrap_or(0) + 1;
        let is_added = |line: &&EditedLine| matches!(line, EditedLine::Added(_));
        let added_before = lines[first..end].iter().take_while(is_added).count();
        lines.insert(first + added_before, EditedLine::Added(added));
        return;
    };
    let at = start + at;
    if let EditedLine::Kept(old) = &lines[at] {
        let old = old.clone();
        let indent: String = old.chars().take_while(|c| c.is_whitespace()).collect();
        let new = format!("{indent}{added}{}", comment(&old));
        if old != new && value_of(&lines[at], key) != Some(&value) {
            lines[at] = EditedLine::Removed(old);
            lines.insert(at + 1, EditedLine::Added(new));
        }
    }
}

/// A second name of an option, and a value as it is written there.
struct Alias {
    key: &'static str,
    /// `None` if the alias cannot express the value: a time that is not a whole number of seconds.
    value: Option<String>,
}

/// The name that the design of sdkserver has for an option of `[limits]`.
fn alias(key: &str, value: &str) -> Option<Alias> {
    let same = Some(value.to_owned());
    let seconds = || length(value).filter(|it| it.subsec_nanos() == 0);
    let seconds = || seconds().map(|it| it.as_secs().to_string());
    let (key, value) = match key {
        OUTSTANDING => ("smapi_max_outstanding_requests", same),
        PER_WINDOW => ("smapi_rate_limit_per_window", same),
        WINDOW => ("smapi_rate_limit_window_size_seconds", seconds()),
        MAX_WAIT => ("smapi_request_postpone_threshold_seconds", seconds()),
        _ => return None,
    };
    Some(Alias { key, value })
}

/// A time as a change has it, in quotes.
fn length(value: &str) -> Option<Duration> {
    parse_duration(value.trim_matches('"'))
}

/// The comment at the end of a line, with the space before it.
fn comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '#') => return &line[line[..at].trim_end().len()..],
            _ => {}
        }
    }
    ""
}

/// Whether a config says what the change says.
fn is_said(config: &Config, change: &Change) -> bool {
    let settings = &config.admit;
    let number = change.value.parse::<u64>().ok();
    let window = settings.window.as_ref();
    match (&change.place, change.key) {
        (OptionPlace::Section(_), OUTSTANDING) => settings.outstanding_max.map(u64::from) == number,
        (OptionPlace::Section(_), WINDOW) => {
            window.map(|window| window.length) == length(&change.value)
        }
        (OptionPlace::Section(_), PER_WINDOW) => {
            let total = window.and_then(|window| window.total);
            let said = change.value.trim_matches('"');
            let said = said
                .split(',')
                .next()
                .and_then(|it| it.strip_prefix("total:"));
            said.and_then(|it| it.parse().ok()) == total
        }
        (OptionPlace::Section(_), MAX_WAIT) => Some(settings.max_wait) == length(&change.value),
        (OptionPlace::Section(_), CAPACITY) => Some(u64::from(settings.capacity)) == number,
        (OptionPlace::Section(_), WORKERS) => Some(u64::from(settings.workers)) == number,
        (OptionPlace::Section(_), _) => false,
        (OptionPlace::RateLimit(name) | OptionPlace::NewRateLimit(name), key) => {
            let mut limits = config.callers.rate_limits.iter();
            let limit = limits.find(|limit| *limit.name == **name);
            let bucket = limit.and_then(|limit| limit.rule.allowance.bucket());
            let said = bucket.map(|(burst, fill)| match key {
                "burst" => burst.get(),
                _ => fill.get(),
            });
            said == change.value.parse().ok()
        }
        (OptionPlace::Caller(label), _) => {
            let mut rows = config.callers.callers.iter();
            let row = rows.find(|row| row.caller.label.as_str() == label);
            let name = row.and_then(|row| row.rate_limit.as_deref());
            name == Some(change.value.trim_matches('"'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: &str = "# mine
[[listen]]
name = \"a\"
bind = \"127.0.0.1:0\"
protocol = \"socket\"
[backend]
socket = \"127.0.0.1:1\"

[limits] # what it takes
  smapi_rate_limit_per_window = 'total:30' # \"#\" is no comment
smapi_max_outstanding_requests=4
";

    fn change(place: OptionPlace, key: &'static str, value: &str) -> Change {
        Change {
            part: key.to_owned(),
            place,
            key,
            value: value.to_owned(),
        }
    }

    fn limits(key: &'static str, value: &str) -> Change {
        change(OptionPlace::Section("limits"), key, value)
    }

    fn edited(changes: &[Change]) -> Edited {
        Edited::of(TODAY, changes).expect("today's config is one")
    }

    #[test]
    fn only_the_lines_of_the_advice_change_and_comments_stay() {
        let changes = [
            limits(OUTSTANDING, "4"),
            limits(PER_WINDOW, "\"total:20\""),
            limits(MAX_WAIT, "\"9s\""),
            change(OptionPlace::Section("queue"), CAPACITY, "70"),
        ];
        let edited = edited(&changes);
        assert_eq!(edited.left_out, []);
        let diff = edited.diff("old", "new");
        assert_eq!(
            diff,
            "--- old\n+++ new\n@@ -7,5 +7,9 @@\n socket = \"127.0.0.1:1\"\n \n [limits] # what it takes\n\
             +max_wait = \"9s\"\n\
             -  smapi_rate_limit_per_window = 'total:30' # \"#\" is no comment\n\
             +  smapi_rate_limit_per_window = \"total:20\" # \"#\" is no comment\n \
             smapi_max_outstanding_requests=4\n+\n+[queue]\n+capacity = 70\n"
        );
        assert!(edited.text().starts_with("# mine\n[[listen]]\n"));
    }

    #[test]
    fn an_option_keeps_the_name_that_the_config_gives_it_if_the_value_can_be_said_there() {
        let today = format!("{TODAY}smapi_request_postpone_threshold_seconds = 50 # Apache\n")
            .replace("[backend]", "[queue]\npostpone = \"in_turn\"\n[backend]");
        let check = |value: &str, line: &str| {
            let edited = Edited::of(&today, &[limits(MAX_WAIT, value)]).expect("a config");
            assert_eq!(edited.left_out, []);
            assert!(
                edited.text().ends_with(&format!("=4\n{line} # Apache\n")),
                "{edited:?}"
            );
        };
        check("\"9s\"", "smapi_request_postpone_threshold_seconds = 9");
        check("\"2m\"", "smapi_request_postpone_threshold_seconds = 120");
        check("\"400ms\"", "max_wait = \"400ms\"");
    }

    #[test]
    fn what_is_said_already_changes_nothing() {
        let edited = edited(&[limits(OUTSTANDING, "4"), limits(MAX_WAIT, "\"60s\"")]);
        assert!(edited.is_changed(), "the default is written down");
        let same = Edited::of(TODAY, &[limits(OUTSTANDING, "4")]).expect("a config");
        assert!(!same.is_changed());
        assert_eq!(same.diff("old", "new"), "");
        assert_eq!(same.text(), TODAY);
    }

    #[test]
    fn a_part_that_is_no_config_is_taken_back_alone() {
        let changes = [
            limits(OUTSTANDING, "4000000000"),
            limits(MAX_WAIT, "\"9s\""),
            change(
                OptionPlace::Caller("no such".to_owned()),
                "rate_limit",
                "\"x\"",
            ),
        ];
        let edited = edited(&changes);
        let parts: Vec<&str> = edited.left_out.iter().map(|(part, _)| &**part).collect();
        assert_eq!(parts, [OUTSTANDING, "rate_limit"]);
        assert!(
            edited.left_out[0]
                .1
                .contains("smapi_max_outstanding_requests"),
            "{edited:?}"
        );
        assert!(edited.text().contains("max_wait = \"9s\"\n"));
        assert!(edited.text().contains("requests=4\n"));
        assert!(Edited::of("nonsense", &changes).is_err());
    }

    #[test]
    fn an_option_over_several_lines_is_not_cut() {
        let over = TODAY.replace("'total:30'", "\"\"\"total:30\n\"\"\"");
        assert!(checked(&over).is_ok());
        let edited = Edited::of(&over, &[limits(PER_WINDOW, "\"total:20\"")]);
        let edited = edited.expect("today's config is one");
        assert_eq!(edited.left_out.len(), 1);
        assert_eq!(edited.text(), over);
    }

    #[test]
    fn changes_that_are_far_apart_are_hunks_of_their_own() {
        let mut lines: Vec<String> = (0..20).map(|line| format!("# {line}")).collect();
        lines.insert(0, "[queue]".to_owned());
        let today = TODAY.replace("[limits]", &format!("{}\n[limits]", lines.join("\n")));
        let changes = [
            change(OptionPlace::Section("queue"), CAPACITY, "70"),
            limits(OUTSTANDING, "3"),
        ];
        let edited = Edited::of(&today, &changes).expect("a config");
        let diff = edited.diff("old", "new");
        assert_eq!(diff.matches("\n@@ ").count(), 2, "{diff}");
        assert!(diff.contains("@@ -7,6 +7,7 @@\n"), "{diff}");
        assert!(diff.contains("@@ -29,4 +30,4 @@\n"), "{diff}");
    }
}
