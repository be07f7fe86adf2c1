//! Mistakes in the config, all of them at once: where, what was wrong, what would be right.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use tidegate_runtime::command::{allows_colours, allows_unicode};

use super::place::ConfigPlace;
use super::shown;

/// How many problems are drawn; the rest are plain lines. Each drawing reads the
/// file from its beginning.
const DRAWN_MAX: usize = 100;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The config is refused.
    Error,
    /// The config is taken, and probably does not do what was meant.
    Warning,
}

/// A mistake of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: ConfigPlace,
    /// The path of the key, such as `limits.window`; empty where the TOML itself is broken.
    pub key: String,
    /// The fault.
    pub message: String,
    /// The cure.
    pub cure: String,
}

/// Every mistake of one config. `Display` writes plain lines; [`Problems::render`] can also
/// draw the lines of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct Problems {
    origin: Arc<str>,
    /// The file as it is, secrets too: only a masked form of it is ever shown.
    source: Arc<str>,
    list: Vec<Problem>,
}

impl Problems {
    /// The problems of a source, in the order of their lines.
    pub fn new(origin: &str, source: &str, list: Vec<Problem>) -> Self {
        let mut problems = Self {
            origin: origin.into(),
            source: source.into(),
            list: Vec::new(),
        };
        problems.extend(list);
        problems
    }

    /// Adds what was found after the file was read.
    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = Problem>) {
        self.list.extend(more);
        self.list.sort_by(|a, b| a.place.cmp(&b.place));
    }

    /// Whether one of them is an error.
    #[must_use]
    pub fn has_error(&self) -> bool {
        self.iter().any(|p| p.severity == Severity::Error)
    }

    /// A mistake as plain text: a line with place and key, and a `help:` line.
    #[must_use]
    pub fn plain(&self, problem: &Problem) -> String {
        let Self { origin, .. } = self;
        let place = match &problem.place {
            ConfigPlace::Whole => origin.to_string(),
            ConfigPlace::File { line, column, .. } => format!("{origin}:{line}:{column}"),
            ConfigPlace::Variable(name) => name.to_string(),
        };
        let severity = match problem.severity {
            Severity::Error => "",
            Severity::Warning => "warning: ",
        };
        let (subject, cure) = (problem.subject(), &problem.cure);
        format!("{place}: {severity}{subject}\n  help: {cure}")
    }

    /// All of them, as plain lines, or drawn with the lines of the file and a mark under
    /// what is wrong, for a terminal. Colours are left out where `NO_COLOR` is set, and lines are drawn
    /// with ASCII where the locale has no more.
    #[must_use]
    pub fn render(&self, graphical: bool) -> String {
        if !graphical {
            return self.to_string();
        }
        let renderer = match allows_colours() {
            true => Renderer::styled(),
            false => Renderer::plain(),
        };
        let has_unicode = allows_unicode();
        let renderer = renderer.decor_style(match has_unicode {
            true => DecorStyle::Unicode,
            false => DecorStyle::Ascii,
        });
        let source = shown::mask(&self.source);
        let text = self.iter().enumerate().map(|(index, problem)| {
            if index < DRAWN_MAX {
                renderer.render(&problem.drawn(&self.origin, &source)) + "\n\n"
            } else {
                self.plain(problem) + "\n"
            }
        });
        let text: String = text.collect();
        match has_unicode {
            true => text,
            false => text.replace('…', "..."),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.iter().map(|problem| self.plain(problem)).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Without the file, which may hold a secret.
impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Problems")
            .field("origin", &self.origin)
            .field("list", &self.list)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Problems {}

/// The mistakes, in the order of the file.
impl Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.list
    }
}

impl Problem {
    /// An error at a place.
    pub fn error(
        place: ConfigPlace,
        key: impl Into<String>,
        message: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Error,
            place,
            key: key.into(),
            message: message.into(),
            cure: cure.into(),
        }
    }

    /// The fault and the cure, in one line.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{}; {}", self.subject(), self.cure)
    }

    /// Key and message, or the message alone where there is no key.
    fn subject(&self) -> String {
        if self.key.is_empty() {
            self.message.clone()
        } else {
            format!("{}: {}", self.key, self.message)
        }
    }

    fn drawn<'a>(&'a self, origin: &'a str, source: &'a str) -> [Group<'a>; 1] {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let message = match &self.place {
            ConfigPlace::Whole => format!("{origin}: {}", self.subject()),
            ConfigPlace::File { .. } => self.subject(),
            ConfigPlace::Variable(name) => format!("{name}: {}", self.subject()),
        };
        let title = level.primary_title(message);
        let help = Level::HELP.message(self.cure.as_str());
        let ConfigPlace::File { start, end, .. } = self.place else {
            return [title.element(help)];
        };
        let snippet = Snippet::source(source)
            .path(origin)
            .annotation(AnnotationKind::Primary.span(start..end))
            .annotation(AnnotationKind::Visible.span(around(source, start..end)));
        [title.element(snippet).element(help)]
    }
}

/// A range with the line before it and the line after it.
fn around(text: &str, range: Range<usize>) -> Range<usize> {
    let before = text[..range.start].rmatch_indices('\n').nth(1);
    let after = text[range.end..].match_indices('\n').nth(1);
    before.map_or(0, |(at, _)| at + 1)..after.map_or(text.len(), |(at, _)| range.end + at)
}
