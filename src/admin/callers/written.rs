//! How values are written in JSON, where their types do not say it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use tidegate_callers::Pattern;

/// The text of an id.
pub(crate) fn text<T: fmt::Display, S: Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

/// The text of an id, or null.
pub(crate) fn some_text<T: fmt::Display, S: Serializer>(
    id: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    id.as_ref().map(T::to_string).serialize(to)
}

pub(crate) fn texts<T: fmt::Display, S: Serializer>(ids: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ids.iter().map(T::to_string))
}

/// Each pattern as an object of the fields that are set.
pub(crate) fn patterns<S: Serializer>(
    patterns: &[Pattern],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(patterns.iter().map(|pattern| {
        let fields = pattern.fields();
        let written = fields.iter().map(|it| (it.name(), pattern.written(it)));
        written.collect::<BTreeMap<&str, String>>()
    }))
}
