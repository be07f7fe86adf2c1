//! The rows of the config, which are replaced together.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{CallerTable, Fold, ReloadOutcome, check_distinct_patterns, check_groups, distinct};
use crate::bounds::KEPT_PATTERNS_MAX;
use crate::error::TableError;
use crate::index::Index;
use crate::names::{Group, Label};
use crate::row::{CallerId, CallerRow, LastCall, NewCaller, RowKind};

impl CallerTable {
    /// Replaces the rows of the config. A row with a label from before keeps its id. The config has
    /// priority: if another row has one of its patterns, the pattern moves to the config's row.
    /// Visits every row.
    ///
    /// # Errors
    ///
    /// Every mistake in them.
    pub fn replace_static(
        &mut self,
        new: Vec<NewCaller>,
    ) -> Result<ReloadOutcome, Vec<TableError>> {
        let mut mistakes = Self::check_static(&new);
        let statics = self.rows().filter(|row| row.kind == RowKind::Static);
        let mut old: BTreeMap<Label, CallerId> = statics
            .filter_map(|row| Some((row.label.clone()?, row.id)))
            .collect();
        let old_patterns: usize = old.values().map(|id| self.pattern_count(*id)).sum();
        let new_patterns: usize = new.iter().map(|row| row.patterns.len()).sum();
        if mistakes.is_empty() {
            if self.kept_patterns - old_patterns + new_patterns > KEPT_PATTERNS_MAX {
                mistakes.push(TableError::Full);
            }
            let groups: Vec<Group> = new.iter().flat_map(|row| row.groups.clone()).collect();
            mistakes.extend(self.check_distinct(&groups).err());
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }

        let mut reloaded = ReloadOutcome::default();
        let mut old_rows: BTreeMap<CallerId, CallerRow> = BTreeMap::new();
        for id in old.values() {
            old_rows.insert(*id, self.take_out(*id));
        }
        for new in new {
            let id = old.remove(&new.label).unwrap_or_else(|| self.fresh_id());
            let mut last_call = old_rows
                .get(&id)
                .map_or(LastCall::Never, |row| row.last_call);
            for pattern in &new.patterns {
                let Some(holder) = self.index.get(pattern) else {
                    continue;
                };
                let from = self.row(holder).id;
                if self.pattern_count(from) == 1 {
                    last_call = last_call.max(self.take_out(from).last_call);
                    reloaded.folded.push(Fold { from, into: id });
                } else {
                    self.narrow(holder, pattern);
                    reloaded.narrowed.push(from);
                }
            }
            self.place(CallerRow {
                id,
                kind: RowKind::Static,
                label: Some(new.label),
                groups: distinct(new.groups),
                notes: new.notes,
                patterns: new.patterns.into(),
                charge: new.charge,
                last_call,
                weight: new.weight,
            });
            reloaded.ids.push(id);
        }
        reloaded.removed = old.into_values().collect();
        reloaded.narrowed.sort_unstable();
        reloaded.narrowed.dedup();
        // A row that lost one pattern can lose all of them in the end.
        reloaded.narrowed.retain(|id| self.by_id.contains_key(id));
        Ok(reloaded)
    }

    /// Checks the rows of the config among themselves, and returns the mistakes.
    #[must_use]
    pub fn check_static(rows: &[NewCaller]) -> Vec<TableError> {
        let mut mistakes = Vec::new();
        let mut labels = BTreeSet::new();
        let mut index = Index::new();
        for (at, row) in rows.iter().enumerate() {
            if !labels.insert(&row.label) {
                mistakes.push(TableError::LabelRepeated(row.label.clone()));
            }
            mistakes.extend(check(row).err());
            for pattern in &row.patterns {
                if let Err(holder) = index.insert(pattern, at)
                    && holder != at
                {
                    mistakes.push(TableError::PatternShared {
                        pattern: pattern.clone().into(),
                        holder: rows[holder].label.clone(),
                        other: row.label.clone(),
                    });
                }
            }
        }
        if rows.iter().map(|row| row.patterns.len()).sum::<usize>() > KEPT_PATTERNS_MAX {
            mistakes.push(TableError::Full);
        }
        mistakes
    }
}

fn check(new: &NewCaller) -> Result<(), TableError> {
    check_distinct_patterns(&new.patterns)?;
    check_groups(&new.groups)
}
