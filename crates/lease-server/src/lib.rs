//! The capacity server, and the agent through which programs of a machine use leases: the program
//! `tidegate-leases`. The protocol, the book and the service are in [`tidegate_leases`].

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

pub mod agent;
pub mod cli;
pub mod config;
pub mod running;
pub(crate) mod server;
