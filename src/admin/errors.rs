//! `/errors`: what each reason for a refusal means, and what to do about it. The text is the table of
//! docs/errors.md, so the page and the document are always the same.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use maud::{Markup, html};
use tidegate_runtime::page;

use super::Source;
use super::page::answer_text;
use super::routes::Routes;

/// The document.
const DOCUMENT: &str = include_str!("../../docs/errors.md");

/// A row of its table.
struct Row {
    reason: &'static str,
    /// What an answer has: the name of a number, and the number.
    answer: [(&'static str, &'static str); 3],
    when: &'static str,
    what_to_do: &'static str,
}

fn cells(line: &'static str) -> Option<[&'static str; 6]> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<_> = line.split(" | ").collect();
    cells.try_into().ok()
}

fn rows() -> impl Iterator<Item = Row> {
    let mut lines = DOCUMENT.lines().filter_map(cells);
    let names = lines.next().unwrap_or_default();
    lines.map(move |row| Row {
        reason: row[1].trim_matches('`'),
        answer: [0, 2, 3].map(|at| (names[at], row[at])),
        when: row[4],
        what_to_do: row[5],
    })
}

/// What to do about a refusal for this reason, in one sentence with names between backquotes.
#[must_use]
pub fn what_to_do(reason: &str) -> &'static str {
    let row = rows().find(|row| row.reason == reason);
    row.map_or("", |row| row.what_to_do)
}

/// The address of the same, and of more about it, here.
#[must_use]
pub fn link_to_what_to_do(reason: &str) -> String {
    format!("/errors#{reason}")
}

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/errors", page)
}

async fn page(headers: HeaderMap) -> Response {
    let version = env!("CARGO_PKG_VERSION");
    let page = page::page("Tidegate errors", version, None, "/", &body());
    answer_text("text/html; charset=utf-8", page, &headers)
}

fn body() -> Markup {
    html! {
        p {
            "For these reasons Tidegate answers a call itself. The word is the same in the answer, in the "
            "log and in the metrics. " code { "docs/errors.md" } " has the same table."
        }
        @for row in rows() {
            section.panel id=(row.reason) aria-label=(row.reason) {
                h2 { (row.reason) }
                dl.facts {
                    div { dt { "when" } dd { (words(row.when)) } }
                    div { dt { "what to do" } dd { (words(row.what_to_do)) } }
                    div {
                        dt { "answer" }
                        dd {
                            @for (name, number) in row.answer { (name) " " (number) " " }
                        }
                    }
                }
            }
        }
    }
}

/// Text of the document: names between backquotes are code, and a link to another document is its
/// name, because no document is here.
fn words(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (without_links(part)) }
        }
    }
}

fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, (name, after))) = rest.split_once('[').and_then(|(before, link)| {
        let (name, target) = link.split_once("](")?;
        Some((before, (name, target.split_once(')')?.1)))
    }) {
        plain.push_str(before);
        plain.push_str("docs/");
        plain.push_str(name);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::call::Reason;

    #[test]
    fn each_reason_has_its_own_advice() {
        let advice: BTreeSet<_> = Reason::ALL
            .iter()
            .map(|it| what_to_do(it.label()))
            .collect();
        assert_eq!(advice.len(), Reason::ALL.len(), "{advice:?}");
        for text in advice {
            assert!(text.len() > 20, "{text:?}");
            assert!(!text.contains("as for") && !text.contains("]("), "{text}");
            assert_eq!(text.matches('`').count() % 2, 0, "{text}");
        }
    }

    #[test]
    fn a_link_of_the_document_is_its_name() {
        let text = "see [tasks.md](tasks.md) and [a b](c#d).";
        assert_eq!(without_links(text), "see docs/tasks.md and docs/a b.");
    }
}
