//! A capacity, shared by many processes that each hold a lease on a part of it.
//!
//! Without features this crate is the [`book`]: the pure decision of which holder gets how much.
//! `client` keeps leases from servers with Doorman's protocol; `server` is such a server. `sharing`
//! has the settings of a sidecar's shared limits.

#![cfg_attr(not(any(feature = "wire", feature = "sharing")), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

extern crate alloc;

pub mod book;
#[cfg(feature = "client")]
pub mod client;
#[cfg(any(feature = "client", feature = "server"))]
pub mod dial;
#[cfg(test)]
#[path = "../../limits/tests/random/mod.rs"]
mod random;
#[cfg(feature = "server")]
pub mod server;
#[cfg(test)]
#[path = "../tests/shares/mod.rs"]
mod shares;
#[cfg(feature = "sharing")]
pub mod sharing;
#[cfg(feature = "client")]
pub mod supply;
#[cfg(feature = "wire")]
pub mod wire;
