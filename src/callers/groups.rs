//! Groups of callers, and what they have used.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_callers::{CallerId, Group, Usage};

use super::CallersState;

/// The callers of each group.
pub(super) type Members = BTreeMap<Group, BTreeSet<CallerId>>;

impl CallersState {
    /// The groups that each of them is in.
    pub(super) fn groups_of(
        &self,
        callers: impl IntoIterator<Item = CallerId>,
    ) -> Vec<(CallerId, Vec<Group>)> {
        let groups = |id| {
            let row = self.table.get(id);
            row.map(|row| row.groups.to_vec()).unwrap_or_default()
        };
        callers.into_iter().map(|id| (id, groups(id))).collect()
    }

    /// Adds the statistics of a caller, which becomes a part of another, to the groups of that one
    /// in which it was not before: what a caller used and what its group used must agree.
    pub(super) fn bring_into_groups(&mut self, part: CallerId, before: &[Group], into: CallerId) {
        let account = self.accounts.get(&part);
        let Some(usage) = account.and_then(|account| account.usage.as_deref()) else {
            return;
        };
        let row = self.table.get(into);
        for group in row.map(|row| &*row.groups).unwrap_or_default() {
            if !before.contains(group) {
                let used = self.groups.entry(group.clone()).or_default();
                used.usage.merge(usage);
            }
        }
    }

    /// The callers of each group.
    pub(super) fn members(&self) -> Members {
        let mut members = Members::new();
        for row in self.table.rows() {
            for group in &row.groups {
                members.entry(group.clone()).or_default().insert(row.id);
            }
        }
        members
    }

    /// Follows callers that joined groups or left them: what a group has used is what its callers
    /// have. `grown` are callers that others became a part of.
    pub(super) fn follow_groups(&mut self, before: &Members, grown: &[CallerId]) {
        let none = BTreeSet::new();
        for (group, now) in self.members() {
            let was = before.get(&group).unwrap_or(&none);
            let has_lost = !was.is_subset(&now) || grown.iter().any(|id| was.contains(id));
            if !has_lost && was.len() == now.len() {
                continue;
            }
            let used = self.groups.entry(group).or_default();
            if has_lost {
                used.usage = Usage::default();
            }
            for id in now.iter().filter(|id| has_lost || !was.contains(id)) {
                let account = self.accounts.get(id);
                if let Some(usage) = account.and_then(|account| account.usage.as_deref()) {
                    used.usage.merge(usage);
                }
            }
        }
        self.forget_empty_groups();
    }

    pub(super) fn forget_empty_groups(&mut self) {
        let table = &self.table;
        self.groups
            .retain(|group, _| table.groups().any(|(known, _)| known == group));
    }
}
