//! The rows of an earlier run.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{CallerTable, RestoreOutcome, check_distinct_patterns, check_groups, distinct};
use crate::error::TableError;
use crate::names::Notes;
use crate::row::{CallerId, CallerRow, Charge, Patch, RowKind};

/// The greatest id that is taken from an earlier run: the greatest number that every reader of
/// JSON takes exactly. Ten new rows a second get there in 28 million years.
const ID_MAX: u64 = (1 << 53) - 1;

impl CallerTable {
    /// Takes the rows of an earlier run into a new table. Of those that had registered
    /// themselves, the least recently called are left out where there are more than there may
    /// be. Those of the config are to be replaced by what the config has now. No row was called
    /// in this run.
    pub fn restore(&mut self, saved: Vec<CallerRow>) -> RestoreOutcome {
        let mut restored = RestoreOutcome::default();
        let (mut autos, kept): (Vec<_>, Vec<_>) = saved.into_iter().partition(is_forgettable);
        autos.sort_by_key(|row| Reverse((row.last_call, row.id)));
        let room = self.settings.auto_register.rows() as usize;
        let room = room.saturating_sub(self.autos.len());
        let excess = autos.split_off(room.min(autos.len()));
        restored.trimmed = excess.iter().map(|row| row.id).collect();
        // The least recently called comes first, so that it is the first to be forgotten.
        for row in kept.into_iter().chain(autos.into_iter().rev()) {
            let id = row.id;
            self.count_ids_as_given(id.0);
            if let Err(mistake) = self.restore_row(row) {
                restored.refused.push((id, mistake));
            }
        }
        restored
    }

    /// The highest id that was given so far; 0 if none was.
    #[must_use]
    pub fn ids_given(&self) -> u64 {
        self.next_id - 1
    }

    /// Takes ids up to this one as given by an earlier run, also to rows that are gone: none of
    /// them is given again. One that is out of range counts as none.
    pub fn count_ids_as_given(&mut self, given: u64) {
        if given <= ID_MAX {
            self.next_id = self.next_id.max(given + 1);
        }
    }

    fn restore_row(&mut self, saved: CallerRow) -> Result<(), TableError> {
        if saved.id.0 > ID_MAX {
            return Err(TableError::IdTooLarge(saved.id));
        }
        check_groups(&saved.groups)?;
        if saved.id == CallerId::UNKNOWN {
            let patch = Patch {
                label: None,
                groups: Some(saved.groups.into()),
                notes: Some(saved.notes),
                charge: Some(saved.charge),
                weight: Some(saved.weight),
            };
            return self.patch(CallerId::UNKNOWN, patch);
        }
        if self.by_id.contains_key(&saved.id) {
            return Err(TableError::IdTaken(saved.id));
        }
        let kind = match saved.kind {
            RowKind::Static => RowKind::Static,
            _ if is_forgettable(&saved) => RowKind::Auto,
            _ => RowKind::Made,
        };
        check_distinct_patterns(&saved.patterns)?;
        for pattern in &saved.patterns {
            if let Some(holder) = self.holder(pattern) {
                return Err(TableError::PatternExists {
                    pattern: pattern.clone().into(),
                    holder,
                });
            }
        }
        let kept = if kind == RowKind::Auto {
            0
        } else {
            saved.patterns.len()
        };
        self.check_room(kept, &saved.groups)?;
        self.place(CallerRow {
            kind,
            groups: distinct(saved.groups.into()),
            ..saved
        });
        Ok(())
    }
}

/// Whether a saved row was registered automatically, and was not changed since.
fn is_forgettable(saved: &CallerRow) -> bool {
    saved.kind == RowKind::Auto
        && saved.label.is_none()
        && saved.groups.is_empty()
        && saved.notes == Notes::default()
        && saved.charge == Charge::None
        && saved.weight.is_none()
        && saved.patterns.len() == 1
}
