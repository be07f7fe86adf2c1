//! The checklist on a terminal, and as JSON.

use std::path::Path;

use serde_json::{Value, json};
use tidegate_runtime::command::{allows_unicode, cleaned};

use super::kinds::{CHECKS, CheckStatus, Finding};

/// The width of the checklist.   columns
const WIDTH: usize = 100;
/// The widest column of names. A longer name has a line of its own.   columns
const ABOUT_MAX: usize = 22;

/// Characters and colours that the terminal can show.
#[derive(Clone, Copy)]
pub(super) struct TerminalStyle {
    /// Only ASCII.
    ascii: bool,
    colours: bool,
}

impl TerminalStyle {
    pub(super) fn of_the_terminal(colours: bool) -> Self {
        Self {
            ascii: !allows_unicode(),
            colours,
        }
    }

    /// The mark and the colour of a status.
    fn mark(self, status: CheckStatus) -> (&'static str, &'static str) {
        let ascii = self.ascii;
        match status {
            CheckStatus::Ok => (if ascii { "+" } else { "√" }, "32"),
            CheckStatus::Skipped => ("-", "2"),
            CheckStatus::Warning => (if ascii { "!" } else { "‼" }, "33"),
            CheckStatus::Failed => (if ascii { "x" } else { "×" }, "1;31"),
        }
    }

    fn painted(self, text: &str, colour: &str) -> String {
        match self.colours {
            true => format!("\x1b[{colour}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// The checklist. If it is quiet, only what is wrong.
pub(super) fn text(findings: &[Finding], look: TerminalStyle, quiet: bool) -> String {
    let is_wrong = |it: &&Finding| matches!(it.status, CheckStatus::Warning | CheckStatus::Failed);
    let shown: Vec<&Finding> = match quiet {
        true => findings.iter().filter(is_wrong).collect(),
        false => findings.iter().collect(),
    };
    if shown.is_empty() {
        return String::new();
    }
    let widths = shown.iter().map(|it| it.about.chars().count());
    let about = widths.max().unwrap_or(0).min(ABOUT_MAX);
    let pages = CHECKS.iter().map(|kind| kind.page.len());
    let page = WIDTH - pages.max().unwrap_or(0);
    let columns = Columns { about, page };
    let mut lines = Vec::new();
    let mut group = None;
    for finding in shown {
        if group != Some(finding.kind.group) {
            if group.is_some() {
                lines.push(String::new());
            }
            group = Some(finding.kind.group);
            lines.push(look.painted(finding.kind.group.heading(), "1"));
        }
        columns.write(finding, look, &mut lines);
    }
    lines.push(String::new());
    lines.push(summary(findings, look));
    lines.join("\n") + "\n"
}

/// Where the columns begin and end.
struct Columns {
    about: usize,
    page: usize,
}

impl Columns {
    fn write(&self, finding: &Finding, look: TerminalStyle, lines: &mut Vec<String>) {
        let clean = |text: &str| cleaned(text, look.ascii);
        let (mark, colour) = look.mark(finding.status);
        let mut about = clean(&finding.about);
        let indent = 4 + self.about + 2;
        let room = self.page - 2 - indent;
        let mut found = wrapped(&clean(&finding.found), room);
        let mut head = String::new();
        if about.chars().count() <= self.about {
            let width = self.about;
            head = format!("{about:<width$}  {}", found.remove(0));
        } else {
            // It has a line of its own.
            std::mem::swap(&mut head, &mut about);
            let most = self.page - 6;
            if head.chars().count() > most {
                head = head.chars().take(most - 3).chain("...".chars()).collect();
            }
        }
        let gap = " ".repeat(self.page - 4 - head.chars().count());
        let (mark, page) = (look.painted(mark, colour), finding.kind.page);
        lines.push(format!("  {mark} {head}{gap}{}", look.painted(page, "2")));
        let indent = " ".repeat(indent);
        lines.extend(found.into_iter().map(|line| format!("{indent}{line}")));
        let room = WIDTH - indent.len();
        if let Some(cause) = &finding.cause {
            let cause = wrapped(&clean(cause), room);
            lines.extend(cause.into_iter().map(|line| format!("{indent}{line}")));
        }
        if let Some(cure) = &finding.cure {
            let cure = wrapped(&format!("cure: {}", clean(cure)), room);
            lines.extend(cure.into_iter().map(|line| format!("{indent}{line}")));
        }
    }
}

/// Lines of at most this many letters, broken between words, or within a word that is longer. There
/// is one at least.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is one at least");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + word.len() <= room {
                line.extend([" "].into_iter().take(gap));
                line.extend(&word);
                break;
            }
            if used == 0 {
                line.extend(word.drain(..room));
            }
            lines.push(String::new());
        }
    }
    lines
}

fn summary(findings: &[Finding], look: TerminalStyle) -> String {
    let count = |status| findings.iter().filter(|it| it.status == status).count();
    let (failed, warnings) = (count(CheckStatus::Failed), count(CheckStatus::Warning));
    let mut parts = vec![format!("{} ok", count(CheckStatus::Ok))];
    for (number, word) in [
        (count(CheckStatus::Skipped), "skipped"),
        (warnings, if warnings == 1 { "warning" } else { "warnings" }),
        (failed, "failed"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {word}"));
        }
    }
    let worst = match (failed, warnings) {
        (0, 0) => CheckStatus::Ok,
        (0, _) => CheckStatus::Warning,
        _ => CheckStatus::Failed,
    };
    look.painted(&parts.join(", "), look.mark(worst).1)
}

/// All of it as one JSON object.
pub(super) fn json(file: &Path, findings: &[Finding]) -> String {
    let count = |status| findings.iter().filter(|it| it.status == status).count();
    let checks = findings.iter().map(|it| {
        json!({
            "group": it.kind.group.word(), "check": it.kind.name, "about": it.about,
            "status": it.status.word(), "found": it.found, "cause": it.cause, "cure": it.cure,
            "page": it.kind.page,
        })
    });
    let checks: Vec<Value> = checks.collect();
    let report = json!({
        "file": file.display().to_string(), "good": count(CheckStatus::Failed) == 0,
        "ok": count(CheckStatus::Ok), "warnings": count(CheckStatus::Warning),
        "failed": count(CheckStatus::Failed), "skipped": count(CheckStatus::Skipped), "checks": checks,
    });
    format!("{report:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_broken_between_words_and_within_a_word_that_is_too_long() {
        let check = |text: &str, lines: &[&str]| assert_eq!(wrapped(text, 10), lines);
        check("", &[""]);
        check("one two three", &["one two", "three"]);
        check("one twelve three four", &["one twelve", "three four"]);
        check("abcdefghijklm no", &["abcdefghij", "klm no"]);
        check("a abcdefghijklm", &["a", "abcdefghij", "klm"]);
    }

    #[test]
    fn a_line_has_its_width_however_long_its_texts_are() {
        let look = TerminalStyle {
            ascii: true,
            colours: false,
        };
        let long = |count: usize| "x".repeat(count);
        for about in [0, 5, 22, 23, 60, 61, 62, 300] {
            for found in [0, 40, 50, 300] {
                let finding = CHECKS[0].failed(long(about), long(found), long(200), "a cure");
                let text = text(&[finding], look, false);
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert_eq!(widest, Some(WIDTH), "{about} {found}:\n{text}");
            }
        }
    }
}
