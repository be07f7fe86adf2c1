//! Why the table of callers was left as it was.

use alloc::boxed::Box;

use crate::bounds::{
    AUTO_REGISTER_MAX, DISTINCT_GROUPS_MAX, GROUPS_PER_CALLER_MAX, KEPT_PATTERNS_MAX,
    PATTERNS_PER_CALLER_MAX,
};
use crate::macros::errors;
use crate::names::Label;
use crate::pattern::Pattern;
use crate::row::CallerId;

errors! {
    /// Why a change of the table was refused. Nothing has changed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum TableError {
        /// There is no caller of that id.
        Unknown(id: CallerId) in "id", (": there is no caller {id}");
        /// Two saved callers have the same id.
        IdTaken(id: CallerId) in "id", (": there is a caller {id} already");
        /// A saved caller has an id that was never given.
        IdTooLarge(id: CallerId) in "id", (": {id} was never given to a caller");
        /// The caller stands in the config file.
        IsStatic(id: CallerId) in "id", (
            ": caller {id} stands in the config file; change it there"
        );
        /// The row for unknown callers can have a limit, groups and notes, but no label. It cannot
        /// be merged or removed.
        IsFixed in "id", (": the (unknown) row takes a limit, groups and notes only");
        /// A caller without a pattern would never match.
        NoPattern in "match", (" must have at least one pattern");
        /// A caller has more patterns than are taken.
        TooManyPatterns {
            /// How many there would be.
            given: usize,
        } in "match", (
            " has {given} patterns, at most {PATTERNS_PER_CALLER_MAX} are taken; a prefix or a \
             network may say the same"
        );
        /// A caller has the same pattern twice.
        PatternRepeated(pattern: Box<Pattern>) in "match", (
            " has the pattern {pattern} twice; leave one out"
        );
        /// Another caller has the pattern.
        PatternExists {
            /// The pattern.
            pattern: Box<Pattern>,
            /// Who has it.
            holder: CallerId,
        } in "match", (
            ": caller {holder} has the pattern {pattern}; change that caller, or merge the two"
        );
        /// Two callers of the config have the same pattern.
        PatternShared {
            /// The pattern.
            pattern: Box<Pattern>,
            /// Who had it first.
            holder: Label,
            /// Who has it too.
            other: Label,
        } in "match", (
            ": callers {:?} and {:?} have the same pattern {pattern}; leave one out",
            holder.as_str(),
            other.as_str()
        );
        /// Two callers of the config have the same label, which must be unique.
        LabelRepeated(label: Label) in "label", (
            " {:?} stands on two callers; give each its own", label.as_str()
        );
        /// A caller is in more groups than are taken.
        TooManyGroups {
            /// How many there would be.
            given: usize,
        } in "groups", (" has {given} names, at most {GROUPS_PER_CALLER_MAX} are taken");
        /// All callers together would be in more groups than are taken, since each is a value of
        /// a metric's label.
        TooManyDistinctGroups in "groups", (
            ": there would be more than {DISTINCT_GROUPS_MAX} groups in all; use one that there \
             is, or empty one first"
        );
        /// There would be more patterns than are kept.
        Full in "match", (
            ": there would be more than {KEPT_PATTERNS_MAX} patterns in all; remove a caller first"
        );
        /// A merge names no caller to merge, or one twice, or the target.
        MergeList in "from", (" must name one caller or more, each once, and not the target");
        /// Callers to be merged are charged differently, so that a limit would be lost unseen.
        ChargesDiffer {
            /// The target.
            into: CallerId,
            /// Who is charged differently.
            from: CallerId,
        } in "from", (
            ": caller {from} is limited otherwise than caller {into}; give both the same limit, or \
             detach it"
        );
        /// `auto_register` is above what can be kept.
        AutoRegister {
            /// The number that was given.
            given: i64,
        } in "auto_register", (
            " must be 0 for off, 1 to {AUTO_REGISTER_MAX}, or -1 for as many as that, not {given}"
        );
    }
}
