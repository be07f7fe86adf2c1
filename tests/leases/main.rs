//! Tests of `tidegate-leases`: the capacity server and the agent.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod agent;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/authority.rs"]
mod authority;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/child.rs"]
mod child;
mod config;
mod example;
mod failover;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../crates/leases/tests/it/client/mock.rs"]
mod lease_mock;
mod process;
mod rules_in_etcd;
mod secured;
mod server;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/sidecar.rs"]
mod sidecar;
mod started;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/stores.rs"]
mod stores;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/support.rs"]
mod support;
mod together;
