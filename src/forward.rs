//! Sends a call to its backend, once, and reads the reply to its end.

use std::net::SocketAddr;
use std::time::Duration;

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address.
    Ip(SocketAddr),
    /// A name, looked up at each connect.
    Name(Box<str>, u16),
}

/// What this stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The sdkserver.
    pub socket: Option<Address>,
    /// The HTTP backend.
    pub http: Option<Address>,
    /// The TCP backend.
    pub tcp: Option<Address>,
    /// Until a connect counts as failed.
    pub connect_timeout: Duration,
    /// From the last byte sent to the last byte of the reply.
    pub response_timeout: Duration,
    /// Largest reply of the socket backend.   bytes
    pub max_reply_bytes: usize,
    /// Replies of the socket backend up to this are held whole, so that one that is cut
    /// becomes a whole error; larger ones are streamed.   bytes
    pub reply_buffer_bytes: usize,
    /// Idle HTTP connections kept.
    pub pool_max_idle: usize,
    /// How long one is kept idle.
    pub pool_idle_timeout: Duration,
}
