//! What is noted while a config is read and checked: every mistake, with its place.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::kind::Mistake;
use super::place::Place;
use super::problem::{Problem, Severity};

/// Where an option stands.
#[derive(Clone, Debug)]
pub struct At {
    /// Its path: `listen[0].bind`.
    pub(crate) key: String,
    pub(crate) place: Place,
}

/// Mistakes under way.
#[derive(Default)]
pub(crate) struct Notes {
    problems: RefCell<Vec<Problem>>,
    /// Lines whose TOML is broken: what was saved from them is not to be trusted, and has
    /// been reported already.
    broken: BTreeSet<usize>,
    /// Whether whole sections may be lost, so that what is missing may not be missing.
    pub(crate) lost: bool,
}

impl Notes {
    pub(crate) fn new(broken: BTreeSet<usize>, lost: bool) -> Self {
        Self {
            broken,
            lost,
            problems: RefCell::default(),
        }
    }

    /// An error in something that was said.
    pub(crate) fn error(&self, at: &At, told: impl Into<String>, cure: impl Into<String>) {
        self.note(Severity::Error, at, told.into(), cure.into());
    }

    /// A warning. Where something may be lost, it could be about a default.
    pub(crate) fn warn(&self, at: &At, told: impl Into<String>, cure: impl Into<String>) {
        if !self.lost {
            self.note(Severity::Warning, at, told.into(), cure.into());
        }
    }

    /// An error about something that was not said.
    pub(crate) fn missing(&self, at: &At, told: impl Into<String>, cure: impl Into<String>) {
        if !self.lost {
            self.error(at, told, cure);
        }
    }

    /// An error in a value, or in a part of it.
    pub(crate) fn mistake(&self, at: &At, mistake: Mistake) {
        let Mistake {
            message,
            cure,
            part,
        } = mistake;
        match part {
            None => self.error(at, message, cure),
            Some((key, place)) => {
                let dot = if key.is_empty() { "" } else { "." };
                let key = format!("{}{dot}{}", at.key, super::shown::shortened(&key));
                self.error(&At { key, place }, message, cure);
            }
        }
    }

    fn note(&self, severity: Severity, at: &At, message: String, cure: String) {
        self.problems.borrow_mut().push(Problem {
            severity,
            place: at.place.clone(),
            key: at.key.clone(),
            message,
            cure,
        });
    }

    /// Whether the TOML itself is broken where this was said.
    pub(crate) fn is_broken(&self, place: &Place) -> bool {
        matches!(place, Place::File { line, .. } if self.broken.contains(line))
    }

    pub(crate) fn take(&self) -> Vec<Problem> {
        self.problems.take()
    }
}
