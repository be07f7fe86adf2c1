//! `/errors`: what each reason for a refusal means, and what to do about it. The text is the table of
//! docs/reference/errors.md, so the page and the document are always the same.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use maud::{Markup, html};
use tidegate_runtime::page;

use super::AdminSource;
use super::page::answer_text;
use super::routes::Routes;

/// The document.
const DOCUMENT: &str = include_str!("../../docs/reference/errors.md");

/// A row of its table.
struct ErrorRow {
    reason: &'static str,
    /// The fields of an answer: the name of a number, and the number.
    answer: [(&'static str, &'static str); 3],
    when: &'static str,
    what_to_do: &'static str,
}

fn cells(line: &'static str) -> Option<[&'static str; 6]> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let cells: Vec<_> = line.split(" | ").collect();
    cells.try_into().ok()
}

fn rows() -> impl Iterator<Item = ErrorRow> {
    let mut lines = DOCUMENT.lines().filter_map(cells);
    let names = lines.next().unwrap_or_default();
    lines.map(move |row| ErrorRow {
        reason: row[1].trim_matches('`'),
        answer: [0, 2, 3].map(|at| (names[at], row[at])),
        when: row[4],
        what_to_do: row[5],
    })
}

/// The cure for a refusal for this reason, in one sentence with names between backquotes.
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

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
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
            "log and in the metrics. " code { "docs/reference/errors.md" } " has the same table."
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
/// place in the project, because no document is here.
fn words(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (without_links(part)) }
        }
    }
}

/// The path of a document from the root of the project, by a link of docs/reference/errors.md.
fn in_the_project(target: &str) -> Option<String> {
    let (path, _) = target.split_once('#').unwrap_or((target, ""));
    let path = path.strip_suffix(".md")?;
    Some(match path.strip_prefix("../") {
        Some(path) => format!("docs/{path}.md"),
        None => format!("docs/reference/{path}.md"),
    })
}

fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, (name, target, after))) =
        rest.split_once('[').and_then(|(before, link)| {
            let (name, link) = link.split_once("](")?;
            let (target, after) = link.split_once(')')?;
            Some((before, (name, target, after)))
        })
    {
        plain.push_str(before);
        plain.push_str(&in_the_project(target).unwrap_or_else(|| name.to_owned()));
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
    fn a_link_of_the_document_is_its_place_in_the_project() {
        let text = "see [tasks](../how-to/tasks.md#a), [it](metrics.md) and [a b](https://c/d).";
        let plain = "see docs/how-to/tasks.md, docs/reference/metrics.md and a b.";
        assert_eq!(without_links(text), plain);
    }
}
