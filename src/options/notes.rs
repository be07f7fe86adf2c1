//! Notes that are taken while a config is read and checked: every mistake, with its place.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::kind::Mistake;
use super::place::{ConfigPlace, LocatedKey};
use super::problem::{Problem, Severity};

/// Mistakes under way.
#[derive(Default)]
pub struct Notes {
    problems: RefCell<Vec<Problem>>,
    /// The places of values that no option takes.
    refused: RefCell<Vec<ConfigPlace>>,
    /// Lines whose TOML is broken: what was saved from them is not to be trusted, and has
    /// been reported already.
    broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, so that what is missing may not be missing.
    pub lost: bool,
}

impl Notes {
    /// No notes yet, of a file whose lines in `broken` could not be parsed. `lost`: sections may be missing too.
    pub fn new(broken: BTreeSet<usize>, lost: bool) -> Self {
        Self {
            broken,
            lost,
            problems: RefCell::default(),
            refused: RefCell::default(),
        }
    }

    /// An error in something that is given.
    pub fn error(&self, at: &LocatedKey, cause: impl Into<String>, cure: impl Into<String>) {
        self.note(Severity::Error, at, cause.into(), cure.into());
    }

    /// A warning. Where something may be lost, it could be about a default.
    pub fn warn(&self, at: &LocatedKey, cause: impl Into<String>, cure: impl Into<String>) {
        if !self.lost {
            self.note(Severity::Warning, at, cause.into(), cure.into());
        }
    }

    /// An error about something that is missing.
    pub fn missing(&self, at: &LocatedKey, cause: impl Into<String>, cure: impl Into<String>) {
        if !self.lost {
            self.error(at, cause, cure);
        }
    }

    /// An error in a value, or in a part of it.
    pub fn mistake(&self, at: &LocatedKey, mistake: Mistake) {
        let part = mistake.part.as_ref().map(|part| at.part(part));
        self.error(part.as_ref().unwrap_or(at), mistake.message, mistake.cure);
    }

    /// An error in a value that its option does not take.
    pub fn refuse(&self, at: &LocatedKey, mistake: Mistake) {
        let part = mistake.part.as_ref().map(|part| at.part(part));
        let place = part.as_ref().unwrap_or(at).place.clone();
        self.refused.borrow_mut().push(place);
        self.mistake(at, mistake);
    }

    /// Whether an option refused a value at this place.
    pub fn is_refused(&self, place: &ConfigPlace) -> bool {
        let ConfigPlace::File { start, end, .. } = place else {
            return false;
        };
        let overlaps = |other: &ConfigPlace| match other {
            ConfigPlace::File {
                start: from,
                end: to,
                ..
            } => start < to && from < end,
            _ => false,
        };
        self.refused.borrow().iter().any(overlaps)
    }

    /// A value, or none with a note of what is wrong.
    #[cfg(any(feature = "tls", feature = "leases", feature = "quotas"))]
    pub fn taken<T>(&self, at: &LocatedKey, result: Result<T, Mistake>) -> Option<T> {
        result.map_err(|mistake| self.mistake(at, mistake)).ok()
    }

    fn note(&self, severity: Severity, at: &LocatedKey, message: String, cure: String) {
        self.problems.borrow_mut().push(Problem {
            severity,
            place: at.place.clone(),
            key: at.key.clone(),
            message,
            cure,
        });
    }

    /// Whether the TOML itself is broken at this place.
    pub fn is_broken(&self, place: &ConfigPlace) -> bool {
        matches!(place, ConfigPlace::File { line, .. } if self.broken.contains(line))
    }

    /// All problems, which are no longer here.
    pub fn take(&self) -> Vec<Problem> {
        self.problems.take()
    }
}
