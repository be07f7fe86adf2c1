//! Why a change of callers, rate limits or costs was refused.

use std::sync::Arc;

use tidegate_callers::{CallerId, RateLimitId, TableError};

use super::rate_limit::RATE_LIMITS_MAX;

/// Why a change was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The table of callers said no.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There is no rate limit of that id.
    #[error("id: there is no rate limit {0}")]
    UnknownRateLimit(RateLimitId),
    /// The rate limit stands in the config file.
    #[error("id: rate limit {0} stands in the config file; change it there")]
    RateLimitIsStatic(RateLimitId),
    /// Another rate limit is called that.
    #[error("label: rate limit {holder} is called {label:?} already; give another")]
    LabelTaken {
        /// The label.
        label: Box<str>,
        /// Who has it.
        holder: RateLimitId,
    },
    /// A label that could be taken for the id of a rate limit.
    #[error("label: {0:?} reads as the id of a rate limit; give another")]
    LabelIsAnId(Box<str>),
    /// A limit of the config that is not for callers is called that.
    #[error("label: a limit of the config file is called {0:?} already; give another")]
    LabelInConfig(Box<str>),
    /// There is no such profile.
    #[error("profile: there is no profile {0:?}; GET /v1/profiles lists them")]
    UnknownProfile(Arc<str>),
    /// A bucket needs both numbers, and a pace its rate.
    #[error("{0} must be given: the rate limit had none before")]
    SizeMissing(&'static str),
    /// There may be no more.
    #[error("label: there are {RATE_LIMITS_MAX} rate limits, and there may be no more")]
    TooManyRateLimits,
    /// The caller has another rate limit, or none.
    #[error("callers: rate limit {rate_limit} is not that of caller {caller}")]
    NotAttached {
        /// The rate limit.
        rate_limit: RateLimitId,
        /// The caller.
        caller: CallerId,
    },
    /// No limit can be derived without usage.
    #[error("caller: {0} used no token in that time; wait, or give burst and fill")]
    NothingUsed(CallerId),
    /// More functions than can be told apart.
    #[error("functions: there would be more than {0} functions with names")]
    TooManyFunctions(usize),
}

impl Error {
    /// The name of the field that is wrong.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Table(mistake) => mistake.field(),
            Self::UnknownRateLimit(_) | Self::RateLimitIsStatic(_) => "id",
            Self::LabelTaken { .. }
            | Self::LabelIsAnId(_)
            | Self::LabelInConfig(_)
            | Self::TooManyRateLimits => "label",
            Self::UnknownProfile(_) => "profile",
            Self::SizeMissing(field) => field,
            Self::NotAttached { .. } => "callers",
            Self::NothingUsed(_) => "caller",
            Self::TooManyFunctions(_) => "functions",
        }
    }
}
