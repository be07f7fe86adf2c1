//! Why a request was refused. Each except the last changes nothing.

use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_callers::{CallerId, PatternError, RateLimitId, TableError};

use super::written::text;

/// Why a request was not done, or not completely. It is also the body of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "error", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ApiRefusal {
    /// A value is wrong: 400.
    #[serde(rename = "INVALID_VALUE")]
    Invalid {
        /// The path of the field: `match[0].ip`; `body` is all of it.
        field: String,
        /// A sentence about valid values.
        reason: String,
    },
    /// A named object does not exist: 404.
    Unknown {
        /// The kind of the unknown thing.
        what: ObjectKind,
        /// The name that was given.
        id: String,
        /// Why it can be unknown, if that is worth a word.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A caller has the pattern already: 409.
    PatternExists {
        /// The holder of the pattern.
        #[serde(rename = "id", serialize_with = "text")]
        holder: CallerId,
    },
    /// A rate limit has the label already: 409.
    LabelExists {
        /// The holder of the label.
        #[serde(rename = "id", serialize_with = "text")]
        holder: RateLimitId,
    },
    /// The value is valid, but the current state does not allow it: 409.
    Conflict {
        /// The field.
        field: String,
        /// The obstacle.
        reason: String,
    },
    /// The change could not be written to the state file, so it was not made: 507.
    NotSaved {
        /// The error of the system.
        reason: String,
    },
    /// The change was made, and then the state file could not be written: 507. It is in force, and
    /// is saved as soon as the disk allows.
    NotYetSaved {
        /// The error of the system.
        reason: String,
    },
}

/// The kinds of objects that can be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A caller.
    Caller,
    /// A rate limit.
    RateLimit,
    /// A profile.
    Profile,
    /// A group of callers.
    Group,
    /// A call.
    Call,
    /// A limit.
    Limit,
    /// A file of the page.
    File,
}

impl ApiRefusal {
    /// A value is wrong.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// A named object does not exist.
    pub fn unknown(what: ObjectKind, id: impl fmt::Display) -> Self {
        Self::Unknown {
            what,
            id: id.to_string(),
            reason: None,
        }
    }

    /// There is no such call. `reason` says which calls are known.
    pub fn unknown_call(id: impl fmt::Display, reason: String) -> Self {
        Self::Unknown {
            what: ObjectKind::Call,
            id: id.to_string(),
            reason: Some(reason),
        }
    }

    /// A mistake in a pattern at `path`.
    pub(super) fn pattern(path: &str, mistake: &PatternError) -> Self {
        match mistake {
            PatternError::NothingSet => Self::invalid(path, "at least one field must be set"),
            mistake => {
                let field = mistake.field();
                Self::invalid(
                    format!("{path}.{field}"),
                    without_name(&mistake.to_string(), field),
                )
            }
        }
    }
}

/// An error of the table of callers, in the form of the API.
impl From<TableError> for ApiRefusal {
    fn from(error: TableError) -> Self {
        let field = error.field();
        let reason = without_name(&error.to_string(), field);
        match error {
            TableError::Unknown(id) => Self::unknown(ObjectKind::Caller, id),
            TableError::PatternExists { holder, .. } => Self::PatternExists { holder },
            TableError::IsStatic(_)
            | TableError::IsFixed
            | TableError::Full
            | TableError::TooManyDistinctGroups
            | TableError::ChargesDiffer { .. }
            | TableError::IdTaken(_)
            | TableError::IdTooLarge(_) => Self::Conflict {
                field: field.to_owned(),
                reason,
            },
            TableError::NoPattern
            | TableError::TooManyPatterns { .. }
            | TableError::PatternRepeated(_)
            | TableError::PatternShared { .. }
            | TableError::LabelRepeated(_)
            | TableError::TooManyGroups { .. }
            | TableError::MergeList
            | TableError::AutoRegister { .. } => Self::invalid(field, reason),
        }
    }
}

/// The field is reported beside the reason, so the reason need not begin with it.
pub(crate) fn without_name(text: &str, field: &str) -> String {
    let rest = text.strip_prefix(field).unwrap_or(text);
    rest.trim_start_matches([':', ' ']).to_owned()
}

impl IntoResponse for ApiRefusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Invalid { .. } => StatusCode::BAD_REQUEST,
            Self::Unknown { .. } => StatusCode::NOT_FOUND,
            Self::Conflict { .. } | Self::PatternExists { .. } | Self::LabelExists { .. } => {
                StatusCode::CONFLICT
            }
            Self::NotSaved { .. } | Self::NotYetSaved { .. } => StatusCode::INSUFFICIENT_STORAGE,
        };
        (status, Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_table_is_reported_with_its_field() {
        let said = |error| ApiRefusal::from(error);
        assert_eq!(
            said(TableError::TooManyGroups { given: 17 }),
            ApiRefusal::invalid("groups", "has 17 names, at most 16 are taken")
        );
        assert_eq!(
            said(TableError::Unknown(CallerId(9))),
            ApiRefusal::unknown(ObjectKind::Caller, "c9")
        );
        assert_eq!(
            said(TableError::IsStatic(CallerId(1))),
            ApiRefusal::Conflict {
                field: "id".into(),
                reason: "caller c1 stands in the config file; change it there".into()
            }
        );
    }
}
