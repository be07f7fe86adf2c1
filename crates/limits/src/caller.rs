//! Who is asking: identities, patterns, and the bounded table of callers.
//!
//! An [`Identity`] is what is seen of whoever makes a call. A caller is a row of the
//! [`Table`], with one or more [`Pattern`]s; a call belongs to every caller that it matches,
//! the most specific first. All of them are counted, and one is charged: the most specific
//! with a limit. An exempt one ends that search.
//!
//! Rows come from the config, from the API, or from the calls themselves: whom no row names
//! exactly is registered by what was seen of him, in a bounded part of the table from which
//! the least recently called is forgotten.

mod arena;
mod churn;
mod error;
mod identity;
mod index;
mod matches;
mod names;
mod network;
mod pattern;
#[cfg(test)]
mod random;
mod row;
mod table;
mod trie;

pub use error::TableError;
pub use identity::{Field, FieldSet, Identity, IdentityBuf};
pub use matches::{Match, Matches};
pub use names::{Group, Label, NameError, Notes};
pub use network::{Network, NetworkError};
pub use pattern::{LITERAL_MAX, Pattern, PatternError, PatternText, Specificity, TextPattern};
pub use row::{CallerId, Charge, Kind, LastCall, LimitRef, NewCaller, Patch, Row, SavedCaller};
pub use table::{AutoRegister, Fold, Inserted, Registration, Reloaded, Restored, Settings, Table};
