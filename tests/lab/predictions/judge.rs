//! Whether a prediction is right.

use std::collections::BTreeMap;

use super::load::Load;
use super::run::{Figures, Ran, Row};
use super::scenario::Scenario;

/// How far a prediction may be off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Of the share of refused calls, in shares of all calls.
    pub(super) refused: f64,
    /// Of the p95 of waits, as a share of the real one.
    pub(super) wait: f64,
    /// The bound on the wait of clients that ask again after their answer.
    pub(super) wait_closed: f64,
}

/// The bounds that the project promises.
pub(super) const STRICT: Bounds = Bounds {
    refused: 0.005,
    wait: 0.15,
    wait_closed: 0.25,
};

/// A prediction beside what happened.
pub(super) struct Judged {
    pub(super) name: &'static str,
    pub(super) change: &'static str,
    pub(super) is_closed: bool,
    pub(super) rows: Vec<Compared>,
}

/// The figures of some calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    pub(super) row: Row,
    /// In the log that the plan has.
    pub(super) before: Figures,
    pub(super) planned: Figures,
    pub(super) real: Figures,
}

impl Compared {
    /// By how much the planned share of refused calls is off, in shares of all calls.
    pub(super) fn refused_off(&self) -> f64 {
        self.planned.refused_share() - self.real.refused_share()
    }

    /// By which share the planned wait is off.
    pub(super) fn wait_off(&self) -> f64 {
        (self.planned.p95_seconds - self.real.p95_seconds) / self.real.p95_seconds
    }
}

impl Judged {
    pub(super) fn new(
        scenario: &Scenario,
        before: &Ran,
        real: &Ran,
        planned: &BTreeMap<Row, Figures>,
    ) -> Self {
        let rows = scenario.rows.iter().map(|row| Compared {
            row: *row,
            before: before.figures[row],
            planned: planned[row],
            real: real.figures[row],
        });
        Self {
            name: scenario.name,
            change: scenario.change,
            is_closed: matches!(scenario.load, Load::Closed(_)),
            rows: rows.collect(),
        }
    }

    /// The figures that are off by more than the bounds.
    pub(super) fn wrong(&self, bounds: &Bounds) -> Vec<String> {
        let wait = match self.is_closed {
            true => bounds.wait_closed,
            false => bounds.wait,
        };
        let mut wrong = Vec::new();
        for it in &self.rows {
            // Not a number is wrong, too.
            let is_right = |off: f64, bound: f64| off.abs() <= bound;
            if !is_right(it.refused_off(), bounds.refused) || !is_right(it.wait_off(), wait) {
                wrong.push(format!("{}: {it:?}", self.name));
            }
        }
        wrong
    }
}
