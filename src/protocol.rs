//! Bytes to one whole request, and the reply back in the client's own dialect.

pub mod array_call;
pub mod dialect;
pub mod framer;

use std::time::Duration;

/// What this stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// From a request's first byte to its last (head and buffered body).
    pub request_timeout: Duration,
    /// How long a keep-alive connection may stay silent between requests.
    pub idle_timeout: Duration,
    /// How long one write to a client may make no progress.
    pub write_timeout: Duration,
    /// How long a streamed request body may take in all.
    pub body_timeout: Duration,
    /// Below this rate a streamed request body is given up.   bytes a second
    pub body_min_rate: u32,
    /// Largest request of the socket protocol.   bytes
    pub max_request_bytes: usize,
    /// Largest HTTP body held whole while its call waits; a larger one is streamed.   bytes
    pub buffer_bytes: usize,
}
