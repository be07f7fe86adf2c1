//! The table of callers.

mod auto_register;
mod config;
mod saved;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;

pub use self::auto_register::AutoRegister;
use crate::bounds::{
    DISTINCT_GROUPS_MAX, GROUPS_PER_CALLER_MAX, KEPT_PATTERNS_MAX, PATTERNS_PER_CALLER_MAX,
};
use crate::churn::Churn;
use crate::error::TableError;
use crate::identity::{FieldSet, Identity, IdentityField};
use crate::index::Index;
use crate::matches::Matches;
use crate::names::{Group, Notes};
use crate::network::Ipv6Prefix;
use crate::pattern::{Pattern, PatternError};
use crate::row::{
    CallerId, CallerRow, Charge, LastCall, NewCaller, Patch, RateLimitId, RowKind, TableEntry,
};
use tidegate_limits::Timestamp;
use tidegate_limits::recency::{Links, Recency};
use tidegate_limits::slab::{Slab, SlabKey};

/// How callers register themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSettings {
    /// How many can be registered at a time.
    pub auto_register: AutoRegister,
    /// How many can register in any second; 0 means none.
    pub auto_register_per_second: u16,
    /// By which fields.
    pub identify: FieldSet,
    /// By how many leading bits of an IPv6 address. A loopback address and an IPv4 address count as a
    /// whole.
    pub ipv6_prefix: Ipv6Prefix,
}

/// 100 callers, 10 per second, by all identity fields, and by the /64 of an IPv6 address.
impl Default for TableSettings {
    fn default() -> Self {
        Self {
            auto_register: AutoRegister(100),
            auto_register_per_second: 10,
            identify: IdentityField::ALL.into_iter().collect(),
            ipv6_prefix: Ipv6Prefix::default(),
        }
    }
}

/// The result of the search for a call's own row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// A row with exactly this identity exists.
    Known,
    /// A new row was made.
    Registered {
        /// The id of the caller.
        id: CallerId,
        /// The row that was evicted for it.
        forgotten: Option<CallerId>,
    },
    /// Too many are registering: the call counts for [`CallerId::UNKNOWN`].
    Surplus,
    /// No pattern can hold this identity: the call counts for [`CallerId::UNKNOWN`].
    Unfit(PatternError),
    /// No field that identifies callers was present.
    NothingSeen,
    /// No caller is registered automatically.
    Off,
}

/// A removed caller whose statistics go to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The removed caller.
    pub from: CallerId,
    /// The caller that has its patterns now.
    pub into: CallerId,
}

/// The result of a new caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsertOutcome {
    /// The id of the new caller: that of a registered row with one of the patterns, if there was one, so that its
    /// statistics go on.
    pub id: CallerId,
    /// Further registered rows with one of the patterns.
    pub folded: Vec<Fold>,
}

/// The result of new rows from the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// The ids, in the order given.
    pub ids: Vec<CallerId>,
    /// Rows that the config no longer has.
    pub removed: Vec<CallerId>,
    /// Rows whose patterns are all in the config now.
    pub folded: Vec<Fold>,
    /// Rows made through the API, with some of their patterns in the config now.
    pub narrowed: Vec<CallerId>,
}

/// The result of the rows of an earlier run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// Registered rows without room: the least recently called.
    pub trimmed: Vec<CallerId>,
    /// Rows that were not accepted, and why.
    pub refused: Vec<(CallerId, TableError)>,
}

/// All callers.
///
/// Rows made by people are kept. Registered rows can be evicted, except those that people gave a
/// label, a group, notes or a limit, or merged. Each part has its own bound, so neither takes the
/// other's room:
///
/// | what | at most |
/// |---|---|
/// | rows registered by themselves | `auto_register`, and 10,000 |
/// | new ones in any second | `auto_register_per_second` |
/// | patterns of all other rows together | 10,000 |
/// | patterns of one row | 256 |
/// | groups of one row, of all rows | 16, 1,024 |
///
/// A call that cannot be registered, because too many arrived at once or because its identity is
/// not exact, is counted for the row [`CallerId::UNKNOWN`], which can have a limit like any
/// other.
///
/// No operation costs more than a logarithm of the number of rows, except a look-up and those
/// that say so.
#[derive(Debug)]
pub struct CallerTable {
    settings: TableSettings,
    churn: Churn,
    rows: Slab<TableEntry>,
    by_id: BTreeMap<CallerId, SlabKey>,
    index: Index<SlabKey>,
    /// Rows that can be evicted, in the order of their last calls.
    autos: Recency,
    next_id: u64,
    unknown: SlabKey,
    /// The number of rows in each group.
    groups: BTreeMap<Group, u32>,
    /// The patterns of rows that are kept.
    kept_patterns: usize,
}

impl Default for CallerTable {
    fn default() -> Self {
        Self::new(TableSettings::default())
    }
}

impl CallerTable {
    /// A table with only [`CallerId::UNKNOWN`].
    #[must_use]
    pub fn new(settings: TableSettings) -> Self {
        let mut rows = Slab::default();
        let unknown = CallerRow {
            id: CallerId::UNKNOWN,
            kind: RowKind::Unknown,
            label: None,
            groups: Box::default(),
            notes: Notes::default(),
            patterns: Box::default(),
            charge: Charge::None,
            last_call: LastCall::Never,
            weight: None,
        };
        let unknown = rows.insert(TableEntry {
            row: unknown,
            links: Links::default(),
        });
        Self {
            settings,
            churn: Churn::new(settings.auto_register_per_second),
            rows,
            by_id: BTreeMap::from([(CallerId::UNKNOWN, unknown)]),
            index: Index::new(),
            autos: Recency::default(),
            next_id: 1,
            unknown,
            groups: BTreeMap::new(),
            kept_patterns: 0,
        }
    }

    /// The callers of a call, without counting it: a dry run. An unknown one is
    /// [`CallerId::UNKNOWN`].
    pub fn classify(&self, identity: &Identity<'_>, matches: &mut Matches) {
        self.index.look_up(identity, &mut matches.found);
        matches.rank(&self.rows);
        if matches.as_slice().is_empty() {
            matches.push_unknown(self.unknown, self.row(self.unknown));
        }
    }

    /// The callers of a call that arrives now. A caller that matches no row exactly is registered,
    /// if there is room.
    pub fn classify_and_touch(
        &mut self,
        now: Timestamp,
        identity: &Identity<'_>,
        matches: &mut Matches,
    ) -> Registration {
        self.index.look_up(identity, &mut matches.found);
        let seen = self.settings.identify.intersection(identity.fields());
        let mut found = matches.found.entries.iter();
        let registration = if seen.is_empty() {
            Registration::NothingSeen
        } else if found.any(|(specificity, _)| specificity.exact_set().includes(seen))
            || matches!(identity.ip, Some(IpAddr::V6(_)))
                && self.is_in_known_network(identity, seen, matches)
        {
            Registration::Known
        } else {
            self.register(now, identity, matches)
        };
        matches.rank(&self.rows);
        let is_left_out = matches!(registration, Registration::Surplus | Registration::Unfit(_));
        if is_left_out || matches.as_slice().is_empty() {
            matches.push_unknown(self.unknown, self.row(self.unknown));
        }
        for found in matches.as_slice() {
            self.touch(now, found.row);
        }
        registration
    }

    /// Adds a caller, made through the API. Rows that had registered themselves by one of its
    /// patterns become part of it.
    ///
    /// # Errors
    ///
    /// If the draft has a mistake, or if another caller has one of its patterns.
    pub fn insert(&mut self, new: NewCaller) -> Result<InsertOutcome, TableError> {
        check_distinct_patterns(&new.patterns)?;
        check_groups(&new.groups)?;
        let mut absorbed = BTreeSet::new();
        for pattern in &new.patterns {
            let Some(key) = self.index.get(pattern) else {
                continue;
            };
            let holder = self.row(key);
            if holder.kind != RowKind::Auto {
                return Err(TableError::PatternExists {
                    pattern: pattern.clone().into(),
                    holder: holder.id,
                });
            }
            absorbed.insert(holder.id);
        }
        self.check_room(new.patterns.len(), &new.groups)?;
        let id = absorbed.pop_first();
        let last_call = id.into_iter().chain(absorbed.iter().copied());
        let last_call = last_call.map(|id| self.take_out(id).last_call).max();
        let id = id.unwrap_or_else(|| self.fresh_id());
        self.place(CallerRow {
            id,
            kind: RowKind::Made,
            label: Some(new.label),
            groups: distinct(new.groups),
            notes: new.notes,
            patterns: new.patterns.into(),
            charge: new.charge,
            last_call: last_call.unwrap_or_default(),
            weight: new.weight,
        });
        let folded = absorbed.into_iter().map(|from| Fold { from, into: id });
        Ok(InsertOutcome {
            id,
            folded: folded.collect(),
        })
    }

    /// Changes a caller. A registered one is kept from now on.
    ///
    /// # Errors
    ///
    /// If no caller has that id, if it is from the config, or if there is no room. The unknown row
    /// takes no label.
    pub fn patch(&mut self, id: CallerId, patch: Patch) -> Result<(), TableError> {
        let key = self.key_of_changeable(id)?;
        let row = self.row(key);
        if row.kind == RowKind::Unknown && patch.label.is_some() {
            return Err(TableError::IsFixed);
        }
        if patch == Patch::default() {
            return Ok(());
        }
        let groups = patch.groups.as_deref().unwrap_or_default();
        check_groups(groups)?;
        self.check_room(self.patterns_if_auto(key), groups)?;
        self.promote(key);
        if let Some(groups) = patch.groups {
            let groups = distinct(groups);
            self.count_groups(&groups);
            let old = core::mem::replace(&mut self.row_mut(key).groups, groups);
            self.uncount_groups(&old);
        }
        let row = self.row_mut(key);
        if let Some(label) = patch.label {
            row.label = Some(label);
        }
        if let Some(notes) = patch.notes {
            row.notes = notes;
        }
        if let Some(charge) = patch.charge {
            row.charge = charge;
        }
        if let Some(weight) = patch.weight {
            row.weight = weight;
        }
        Ok(())
    }

    /// Makes the patterns of `from` alternatives of `into`, which is in all their groups from now
    /// on. The rows of `from` are removed; the user of the table adds their statistics to `into`.
    ///
    /// # Errors
    ///
    /// If one of them does not exist, is from the config or is the unknown row; if they are charged
    /// differently, since a limit would get lost unnoticed; if there is no room.
    pub fn merge(&mut self, into: CallerId, from: &[CallerId]) -> Result<(), TableError> {
        let distinct: BTreeSet<CallerId> = from.iter().copied().collect();
        if from.is_empty() || distinct.len() < from.len() || distinct.contains(&into) {
            return Err(TableError::MergeList);
        }
        let target = self.key_of_changeable(into)?;
        let row = self.row(target);
        let charge = row.charge;
        let mut patterns = row.patterns.len();
        let mut promoted = self.patterns_if_auto(target);
        let mut groups = row.groups.to_vec();
        for id in core::iter::once(&into).chain(from) {
            let key = self.key_of_changeable(*id)?;
            let row = self.row(key);
            if row.kind == RowKind::Unknown {
                return Err(TableError::IsFixed);
            }
            if row.charge != charge {
                return Err(TableError::ChargesDiffer { into, from: *id });
            }
            if *id != into {
                patterns += row.patterns.len();
                promoted += self.patterns_if_auto(key);
                let further = row.groups.iter().filter(|group| !groups.contains(group));
                let further: Vec<Group> = further.cloned().collect();
                groups.extend(further);
            }
        }
        check_patterns(patterns)?;
        check_groups(&groups)?;
        self.check_room(promoted, &[])?;

        self.promote(target);
        self.count_groups(&groups);
        let mut alternatives = self.row(target).patterns.to_vec();
        let mut last_call = self.row(target).last_call;
        for id in from {
            let row = self.take_out(*id);
            for pattern in &row.patterns {
                let free = self.index.insert(pattern, target);
                free.expect("the row that had the pattern is gone");
            }
            self.kept_patterns += row.patterns.len();
            alternatives.extend(row.patterns);
            last_call = last_call.max(row.last_call);
        }
        let row = self.row_mut(target);
        row.patterns = alternatives.into();
        row.last_call = last_call;
        let old = core::mem::replace(&mut row.groups, groups.into());
        self.uncount_groups(&old);
        Ok(())
    }

    /// Removes a caller. Its next call can register it again.
    ///
    /// # Errors
    ///
    /// If no caller has that id, or if it is from the config or is the unknown row.
    pub fn remove(&mut self, id: CallerId) -> Result<CallerRow, TableError> {
        let key = self.key_of_changeable(id)?;
        if self.row(key).kind == RowKind::Unknown {
            return Err(TableError::IsFixed);
        }
        Ok(self.take_out(id))
    }

    /// Removes a deleted limit from every row that has it, also from rows of the config, and
    /// returns those rows. Visits every row.
    pub fn detach(&mut self, limit: RateLimitId) -> Vec<CallerId> {
        let mut detached = Vec::new();
        for key in self.by_id.values() {
            let row = &mut self.rows.get_mut(*key).expect("an id names a row").row;
            if row.charge == Charge::Limit(limit) {
                row.charge = Charge::None;
                detached.push(row.id);
            }
        }
        detached
    }

    /// Changes how callers register themselves. Returns the rows evicted by a lower maximum, the
    /// least recently called first.
    pub fn configure(&mut self, settings: TableSettings) -> Vec<CallerId> {
        self.settings = settings;
        self.churn.set(settings.auto_register_per_second);
        let mut forgotten = Vec::new();
        while self.autos.len() > settings.auto_register.rows() as usize {
            forgotten.extend(self.forget_one());
        }
        forgotten
    }

    /// A caller.
    #[must_use]
    pub fn get(&self, id: CallerId) -> Option<&CallerRow> {
        self.by_id.get(&id).map(|key| self.row(*key))
    }

    /// The caller that has exactly this pattern.
    #[must_use]
    pub fn holder(&self, pattern: &Pattern) -> Option<CallerId> {
        self.index.get(pattern).map(|key| self.row(key).id)
    }

    /// All callers in the order of their ids, [`CallerId::UNKNOWN`] first.
    pub fn rows(&self) -> impl Iterator<Item = &CallerRow> {
        self.by_id.values().map(|key| self.row(*key))
    }

    /// The number of registered callers, which can be evicted.
    #[must_use]
    pub const fn registered(&self) -> usize {
        self.autos.len()
    }

    /// The groups of callers, by name, with the number of callers in each.
    pub fn groups(&self) -> impl Iterator<Item = (&Group, u32)> {
        self.groups.iter().map(|(group, rows)| (group, *rows))
    }

    /// Whether any caller is in a group.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    fn register(
        &mut self,
        now: Timestamp,
        identity: &Identity<'_>,
        matches: &mut Matches,
    ) -> Registration {
        let max = self.settings.auto_register.rows() as usize;
        if max == 0 {
            return Registration::Off;
        }
        let TableSettings {
            identify,
            ipv6_prefix,
            ..
        } = self.settings;
        let pattern = match Pattern::identifying(identity, identify, ipv6_prefix) {
            Ok(pattern) => pattern,
            Err(mistake) => return Registration::Unfit(mistake),
        };
        if !self.churn.admit(now) {
            return Registration::Surplus;
        }
        let forgotten = if self.autos.len() < max {
            None
        } else {
            self.forget_one()
        };
        let id = self.fresh_id();
        let specificity = pattern.specificity();
        let key = self.place(CallerRow {
            id,
            kind: RowKind::Auto,
            label: None,
            groups: Box::default(),
            notes: Notes::default(),
            patterns: Box::new([pattern]),
            charge: Charge::None,
            last_call: LastCall::At(now),
            weight: None,
        });
        matches.found.entries.push((specificity, key));
        Registration::Registered { id, forgotten }
    }

    /// Whether a row has exactly these fields of a client, and at least the prefix of its IPv6 address.
    fn is_in_known_network(
        &self,
        identity: &Identity<'_>,
        seen: FieldSet,
        matches: &Matches,
    ) -> bool {
        let prefix = self.settings.ipv6_prefix;
        seen.contains(IdentityField::Ip)
            && identity
                .ip()
                .is_some_and(|address| prefix.shortens(address))
            && matches.found.entries.iter().any(|(specificity, _)| {
                let exact = specificity.exact_set();
                let exact = exact.with(IdentityField::Ip);
                specificity.literal_bits_of(IdentityField::Ip) >= prefix.bits().into()
                    && exact.includes(seen)
            })
    }

    /// Evicts the least recently called registered row.
    fn forget_one(&mut self) -> Option<CallerId> {
        let id = self.row(self.autos.oldest()?).id;
        self.take_out(id);
        Some(id)
    }

    /// Records a call of a row.
    fn touch(&mut self, now: Timestamp, key: SlabKey) {
        let row = self.row_mut(key);
        row.last_call = LastCall::At(now);
        if row.kind == RowKind::Auto {
            self.autos.touch(&mut self.rows, key);
        }
    }

    /// Makes a registered row a kept one.
    fn promote(&mut self, key: SlabKey) {
        let row = self.row_mut(key);
        if row.kind == RowKind::Auto {
            row.kind = RowKind::Made;
            self.kept_patterns += row.patterns.len();
            self.autos.remove(&mut self.rows, key);
        }
    }

    /// Inserts a row; no other row has its id or its patterns.
    fn place(&mut self, row: CallerRow) -> SlabKey {
        let (id, kind) = (row.id, row.kind);
        self.count_groups(&row.groups);
        let patterns = row.patterns.len();
        let links = Links::default();
        let key = self.rows.insert(TableEntry { row, links });
        for pattern in &self.rows.get(key).expect("it was put there").row.patterns {
            let free = self.index.insert(pattern, key);
            free.expect("no row has the pattern");
        }
        self.by_id.insert(id, key);
        if kind == RowKind::Auto {
            self.autos.push(&mut self.rows, key);
        } else {
            self.kept_patterns += patterns;
        }
        key
    }

    /// Undoes [`Self::place`].
    fn take_out(&mut self, id: CallerId) -> CallerRow {
        let key = self.by_id.remove(&id).expect("an id names a row");
        if self.row(key).kind == RowKind::Auto {
            self.autos.remove(&mut self.rows, key);
        }
        let row = self.rows.remove(key).expect("an id names a row").row;
        for pattern in &row.patterns {
            let held = self.index.remove(pattern);
            held.expect("a row has its patterns");
        }
        self.uncount_groups(&row.groups);
        if row.kind != RowKind::Auto {
            self.kept_patterns -= row.patterns.len();
        }
        row
    }

    /// Removes one of several patterns from a kept row.
    fn narrow(&mut self, key: SlabKey, pattern: &Pattern) {
        let held = self.index.remove(pattern);
        held.expect("a row has its patterns");
        let row = self.row_mut(key);
        let rest = row.patterns.iter().filter(|held| *held != pattern);
        row.patterns = rest.cloned().collect();
        self.kept_patterns -= 1;
    }

    fn key_of_changeable(&self, id: CallerId) -> Result<SlabKey, TableError> {
        let key = *self.by_id.get(&id).ok_or(TableError::Unknown(id))?;
        if self.row(key).kind == RowKind::Static {
            return Err(TableError::IsStatic(id));
        }
        Ok(key)
    }

    fn row(&self, key: SlabKey) -> &CallerRow {
        &self.rows.get(key).expect("the row is there").row
    }

    fn row_mut(&mut self, key: SlabKey) -> &mut CallerRow {
        &mut self.rows.get_mut(key).expect("the row is there").row
    }

    fn pattern_count(&self, id: CallerId) -> usize {
        self.get(id).map_or(0, |row| row.patterns.len())
    }

    /// The number of patterns that would be kept and are not kept now.
    fn patterns_if_auto(&self, key: SlabKey) -> usize {
        let row = self.row(key);
        match row.kind {
            RowKind::Auto => row.patterns.len(),
            _ => 0,
        }
    }

    fn fresh_id(&mut self) -> CallerId {
        let id = CallerId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Whether there is room for this many more patterns, and for these groups.
    fn check_room(&self, patterns: usize, groups: &[Group]) -> Result<(), TableError> {
        if self.kept_patterns + patterns > KEPT_PATTERNS_MAX {
            return Err(TableError::Full);
        }
        self.check_distinct(groups)
    }

    fn check_distinct(&self, groups: &[Group]) -> Result<(), TableError> {
        let new = groups
            .iter()
            .filter(|group| !self.groups.contains_key(*group));
        let new: BTreeSet<&Group> = new.collect();
        if self.groups.len() + new.len() > DISTINCT_GROUPS_MAX {
            return Err(TableError::TooManyDistinctGroups);
        }
        Ok(())
    }

    fn count_groups(&mut self, groups: &[Group]) {
        for group in groups {
            *self.groups.entry(group.clone()).or_default() += 1;
        }
    }

    fn uncount_groups(&mut self, groups: &[Group]) {
        for group in groups {
            let rows = self.groups.get_mut(group).expect("the group was counted");
            *rows -= 1;
            if *rows == 0 {
                self.groups.remove(group);
            }
        }
    }
}

fn check_distinct_patterns(patterns: &[Pattern]) -> Result<(), TableError> {
    check_patterns(patterns.len())?;
    for (at, pattern) in patterns.iter().enumerate() {
        if patterns[..at].contains(pattern) {
            return Err(TableError::PatternRepeated(pattern.clone().into()));
        }
    }
    Ok(())
}

fn check_patterns(given: usize) -> Result<(), TableError> {
    match given {
        0 => Err(TableError::NoPattern),
        1..=PATTERNS_PER_CALLER_MAX => Ok(()),
        _ => Err(TableError::TooManyPatterns { given }),
    }
}

/// Each group once, in the order given.
fn distinct(mut groups: Vec<Group>) -> Box<[Group]> {
    let mut seen = BTreeSet::new();
    groups.retain(|group| seen.insert(group.clone()));
    groups.into()
}

fn check_groups(groups: &[Group]) -> Result<(), TableError> {
    let given = groups.len();
    if given > GROUPS_PER_CALLER_MAX {
        return Err(TableError::TooManyGroups { given });
    }
    Ok(())
}
