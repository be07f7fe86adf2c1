//! Why the table of callers was left as it was.

use alloc::boxed::Box;
use core::error::Error;
use core::fmt;

use crate::bounds::{
    AUTO_REGISTER_MAX, DISTINCT_GROUPS_MAX, GROUPS_PER_CALLER_MAX, KEPT_PATTERNS_MAX,
    PATTERNS_PER_CALLER_MAX,
};
use crate::names::Label;
use crate::pattern::Pattern;
use crate::row::CallerId;

/// Why a change of the table was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableError {
    /// There is no caller of that id.
    Unknown(CallerId),
    /// Two saved callers have the same id.
    IdTaken(CallerId),
    /// A saved caller has an id that was never given.
    IdTooLarge(CallerId),
    /// The caller stands in the config file.
    IsStatic(CallerId),
    /// The row for unknown callers can have a limit, groups and notes, but no label. It cannot be
    /// merged or removed.
    IsFixed,
    /// A caller without a pattern would never match.
    NoPattern,
    /// A caller has more patterns than are taken.
    TooManyPatterns {
        /// How many there would be.
        given: usize,
    },
    /// A caller has the same pattern twice.
    PatternRepeated(Box<Pattern>),
    /// Another caller has the pattern.
    PatternExists {
        /// The pattern.
        pattern: Box<Pattern>,
        /// Who has it.
        holder: CallerId,
    },
    /// Two callers of the config have the same pattern.
    PatternShared {
        /// The pattern.
        pattern: Box<Pattern>,
        /// Who had it first.
        holder: Label,
        /// Who has it too.
        other: Label,
    },
    /// Two callers of the config have the same label, which must be unique.
    LabelRepeated(Label),
    /// A caller is in more groups than are taken.
    TooManyGroups {
        /// How many there would be.
        given: usize,
    },
    /// All callers together would be in more groups than are taken, since each is a value of
    /// a metric's label.
    TooManyDistinctGroups,
    /// There would be more patterns than are kept.
    Full,
    /// A merge names no caller to merge, or one twice, or the target.
    MergeList,
    /// Callers to be merged are charged differently, so that a limit would be lost unseen.
    ChargesDiffer {
        /// The target.
        into: CallerId,
        /// Who is charged differently.
        from: CallerId,
    },
    /// `auto_register` is above what can be kept.
    AutoRegister {
        /// What was given.
        given: i64,
    },
}

impl TableError {
    /// The name of the field that is wrong.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Unknown(_)
            | Self::IdTaken(_)
            | Self::IdTooLarge(_)
            | Self::IsStatic(_)
            | Self::IsFixed => "id",
            Self::NoPattern
            | Self::TooManyPatterns { .. }
            | Self::PatternRepeated(_)
            | Self::PatternExists { .. }
            | Self::PatternShared { .. }
            | Self::Full => "match",
            Self::LabelRepeated(_) => "label",
            Self::TooManyGroups { .. } | Self::TooManyDistinctGroups => "groups",
            Self::MergeList | Self::ChargesDiffer { .. } => "from",
            Self::AutoRegister { .. } => "auto_register",
        }
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.field();
        match self {
            Self::Unknown(id) => write!(f, "{field}: there is no caller {id}"),
            Self::IdTaken(id) => write!(f, "{field}: there is a caller {id} already"),
            Self::IdTooLarge(id) => write!(f, "{field}: {id} was never given to a caller"),
            Self::IsStatic(id) => write!(
                f,
                "{field}: caller {id} stands in the config file; change it there"
            ),
            Self::IsFixed => write!(
                f,
                "{field}: the (unknown) row takes a limit, groups and notes only"
            ),
            Self::NoPattern => write!(f, "{field} must have at least one pattern"),
            Self::TooManyPatterns { given } => write!(
                f,
                "{field} has {given} patterns, at most {PATTERNS_PER_CALLER_MAX} are taken; \
                 a prefix or a network may say the same"
            ),
            Self::PatternRepeated(pattern) => {
                write!(f, "{field} has the pattern {pattern} twice; leave one out")
            }
            Self::PatternExists { pattern, holder } => write!(
                f,
                "{field}: caller {holder} has the pattern {pattern}; change that caller, or \
                 merge the two"
            ),
            Self::PatternShared {
                pattern,
                holder,
                other,
            } => write!(
                f,
                "{field}: callers {:?} and {:?} have the same pattern {pattern}; leave one out",
                holder.as_str(),
                other.as_str()
            ),
            Self::LabelRepeated(label) => write!(
                f,
                "{field} {:?} stands on two callers; give each its own",
                label.as_str()
            ),
            Self::TooManyGroups { given } => write!(
                f,
                "{field} has {given} names, at most {GROUPS_PER_CALLER_MAX} are taken"
            ),
            Self::TooManyDistinctGroups => write!(
                f,
                "{field}: there would be more than {DISTINCT_GROUPS_MAX} groups in all; use one \
                 that there is, or empty one first"
            ),
            Self::Full => write!(
                f,
                "{field}: there would be more than {KEPT_PATTERNS_MAX} patterns in all; remove \
                 a caller first"
            ),
            Self::MergeList => write!(
                f,
                "{field} must name one caller or more, each once, and not the target"
            ),
            Self::ChargesDiffer { into, from } => write!(
                f,
                "{field}: caller {from} is limited otherwise than caller {into}; give both the \
                 same limit, or detach it"
            ),
            Self::AutoRegister { given } => write!(
                f,
                "{field} must be 0 for off, 1 to {AUTO_REGISTER_MAX}, or -1 for as many as \
                 that, not {given}"
            ),
        }
    }
}

impl Error for TableError {}
