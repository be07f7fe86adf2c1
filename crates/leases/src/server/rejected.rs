//! Why a request was not looked at.

/// A request that is refused whole: nothing of it has been done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejected {
    /// The id of who asks is empty.
    #[error("{field} is empty")]
    EmptyId {
        /// `client_id` or `server_id`, or `resource[3].resource_id`.
        field: String,
    },
    /// An id is too long.
    #[error("{field} has {bytes} bytes, more than {bytes_max}")]
    LongId {
        /// Which id.
        field: String,
        /// Its length.
        bytes: usize,
        /// What is allowed.
        bytes_max: usize,
    },
    /// A demand, or what is said to be held, is no number that can be.
    #[error("{field} of resource {resource:?} is {given}: it must be finite and not below 0")]
    NoAmount {
        /// `wants`, `has.capacity` or `wants[1].wants`.
        field: String,
        /// The resource.
        resource: String,
        /// What was given.
        given: f64,
    },
    /// One resource stands twice in one request.
    #[error("resource {resource:?} is asked for twice in one request")]
    Twice {
        /// The resource.
        resource: String,
    },
    /// A band of no clients, or of a negative number.
    #[error("{field} of resource {resource:?} is {given}: it must be at least 1")]
    NoClients {
        /// `wants[1].num_clients`.
        field: String,
        /// The resource.
        resource: String,
        /// What was given.
        given: i64,
    },
    /// A server's request without a band: it speaks for nobody.
    #[error("resource {resource:?} has no wants: a server asks for at least one band")]
    NoBand {
        /// The resource.
        resource: String,
    },
    /// No template matches, and the server refuses such ids.
    #[error("no template matches resource {resource:?}")]
    Unmatched {
        /// The resource.
        resource: String,
    },
    /// More resources in one request than are looked at.
    #[error("{given} resources in one request, more than {max}")]
    LongRequest {
        /// How many.
        given: usize,
        /// What is allowed.
        max: usize,
    },
    /// More bands than are looked at.
    #[error("resource {resource:?} has {given} bands, more than {max}")]
    ManyBands {
        /// The resource.
        resource: String,
        /// How many.
        given: usize,
        /// What is allowed.
        max: usize,
    },
    /// A new resource, client or lease is one too many.
    #[error("the server keeps no more than {max} {what}")]
    Full {
        /// `resources`, `clients`, `leases`, or `leases of one client`.
        what: &'static str,
        /// How many.
        max: usize,
    },
}

impl Rejected {
    /// Whether a bound of the server was met, so that the same request may be taken later
    /// (`RESOURCE_EXHAUSTED`). Otherwise the request is wrong (`INVALID_ARGUMENT`).
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::LongRequest { .. })
    }
}
