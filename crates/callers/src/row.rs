//! A caller: its row in the table.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use crate::names::{Group, Label, Notes};
use crate::pattern::Pattern;
use tidegate_limits::call::BucketId;
use tidegate_limits::recency::{Linked, Links};
use tidegate_limits::{Timestamp, Weight};

/// A caller, by a number that is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u64);

impl CallerId {
    /// The fixed row for calls that match no other row and could not be registered.
    pub const UNKNOWN: Self = Self(0);
}

/// As the API writes it: `c7`.
impl fmt::Display for CallerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// A rate limit, by a number that is never given to another one; nothing else is known of it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RateLimitId(pub u32);

impl RateLimitId {
    /// The number of its bucket.
    #[must_use]
    pub fn bucket(self) -> BucketId {
        BucketId(self.0.into())
    }
}

/// As the API writes it: `r7`.
impl fmt::Display for RateLimitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The rate limit that a caller's calls are charged to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Charge {
    /// The caller has no charge of its own: the next match decides.
    #[default]
    None,
    /// A limit, which other callers may share.
    Limit(RateLimitId),
    /// The caller's calls are not charged: no other match decides.
    Exempt,
}

impl Charge {
    /// The limit, if it is one.
    #[must_use]
    pub const fn limit(self) -> Option<RateLimitId> {
        match self {
            Self::Limit(id) => Some(id),
            Self::None | Self::Exempt => None,
        }
    }
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// The row is in the config, and only the config can change it.
    Static,
    /// The row was made through the API, or promoted: registered by itself, and then given a label, a group, notes
    /// or a limit, or merged with another. It is never forgotten.
    Made,
    /// The row was registered by its own calls. The least recently called of these is forgotten where there is no
    /// room.
    Auto,
    /// [`CallerId::UNKNOWN`].
    Unknown,
}

/// When a caller was last called; never comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LastCall {
    /// Not that anybody knew.
    #[default]
    Never,
    /// Before this run: the number that [`Table::restore`](crate::CallerTable::restore) was given,
    /// of which only the order counts.
    Earlier(u64),
    /// In this run.
    At(Timestamp),
}

/// A caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerRow {
    /// The id of the caller.
    pub id: CallerId,
    /// Where it comes from.
    pub kind: RowKind,
    /// The label of the caller, if it has one.
    pub label: Option<Label>,
    /// The groups that it is in, in the order in which they were given.
    pub groups: Box<[Group]>,
    /// Notes of operators.
    pub notes: Notes,
    /// The patterns of the caller: calls that match one of these belong to it.
    pub patterns: Box<[Pattern]>,
    /// The charge of the caller's calls.
    pub charge: Charge,
    /// When it was last called.
    pub last_call: LastCall,
    /// The caller's turns for one turn of an ordinary caller; `None` takes the weight of less specific callers.
    pub weight: Option<Weight>,
}

impl CallerRow {
    /// The label of the caller, or its pattern.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        match (&self.label, &*self.patterns) {
            (Some(label), _) => label.as_str().into(),
            (None, [pattern, ..]) => pattern.to_string().into(),
            (None, []) => "(unknown)".into(),
        }
    }
}

/// A row in the table.
#[derive(Debug)]
pub(super) struct TableEntry {
    pub(super) row: CallerRow,
    /// The neighbours among the rows that may be evicted.
    pub(super) links: Links,
}

impl Linked for TableEntry {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn linked(&self) -> &Links {
        &self.links
    }
}

/// A caller to be put into the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCaller {
    /// The label of the caller. Rows of the config are identified by it.
    pub label: Label,
    /// The groups that it is in, at most 16.
    pub groups: Vec<Group>,
    /// The operator's notes.
    pub notes: Notes,
    /// The patterns of the caller, 1 to 256.
    pub patterns: Vec<Pattern>,
    /// The charge of the caller's calls.
    pub charge: Charge,
    /// The caller's turns for one turn of an ordinary caller, if it has a weight of its own.
    pub weight: Option<Weight>,
}

/// The changes to a caller; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The operator's label.
    pub label: Option<Label>,
    /// All the groups that it is in, at most 16.
    pub groups: Option<Vec<Group>>,
    /// The operator's notes.
    pub notes: Option<Notes>,
    /// The charge of the caller's calls.
    pub charge: Option<Charge>,
    /// The caller's turns for one turn of an ordinary caller, if it has a weight of its own.
    pub weight: Option<Option<Weight>>,
}
