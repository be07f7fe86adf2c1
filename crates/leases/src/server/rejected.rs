//! Why a request was refused.

/// A request that is refused as a whole: nothing of it was done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejected {
    /// The id of the client or server is empty.
    #[error("{field} is empty")]
    EmptyId {
        /// `client_id` or `server_id`, or `resource[3].resource_id`.
        field: String,
    },
    /// An id is too long.
    #[error("{field} has {bytes} bytes, more than {bytes_max}")]
    LongId {
        /// The name of the id's field.
        field: String,
        /// The length of the id.
        bytes: usize,
        /// The greatest length allowed.
        bytes_max: usize,
    },
    /// A demand, or the reported capacity, is not a valid number.
    #[error("{field} of resource {resource:?} is {given}: it must be finite and not below 0")]
    NoAmount {
        /// `wants`, `has.capacity` or `wants[1].wants`.
        field: String,
        /// The resource.
        resource: String,
        /// The number that was given.
        given: f64,
    },
    /// A resource is twice in one request.
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
        /// The number that was given.
        given: i64,
    },
    /// A server's request without a band: it has no clients.
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
    /// Too many resources in one request.
    #[error("{given} resources in one request, more than {max}")]
    LongRequest {
        /// How many.
        given: usize,
        /// The greatest number allowed.
        max: usize,
    },
    /// Too many bands.
    #[error("resource {resource:?} has {given} bands, more than {max}")]
    ManyBands {
        /// The resource.
        resource: String,
        /// How many.
        given: usize,
        /// The greatest number allowed.
        max: usize,
    },
    /// A new resource, client or lease is beyond a bound.
    #[error("the server keeps no more than {max} {what}")]
    Full {
        /// `resources`, `clients`, `leases`, or `leases of one client`.
        what: &'static str,
        /// How many.
        max: usize,
    },
}

impl Rejected {
    /// Whether a bound of the server was reached, so that the same request may succeed later
    /// (`RESOURCE_EXHAUSTED`). Otherwise the request is wrong (`INVALID_ARGUMENT`).
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::LongRequest { .. })
    }
}
