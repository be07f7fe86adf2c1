//! Bounds of the table.

/// The most rows that register themselves.
pub(crate) const AUTO_REGISTER_MAX: u32 = 10_000;
/// The most patterns of all rows that are kept.
pub(crate) const KEPT_PATTERNS_MAX: usize = 10_000;
/// The most patterns of one caller.
pub const PATTERNS_PER_CALLER_MAX: usize = 256;
/// The most groups that one caller is in.
pub const GROUPS_PER_CALLER_MAX: usize = 16;
/// The most groups of all callers together.
pub(crate) const DISTINCT_GROUPS_MAX: usize = 1024;
