//! Tests of `tidegate-lab`, with the sidecars whose logs it reads.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../crates/advice/tests/worlds/mod.rs"]
mod advice_worlds;
mod advise;
mod audit;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/authority.rs"]
mod authority;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/child.rs"]
mod child;
mod foreign_logs;
mod lease_simulate;
mod plan;
mod predicted;
mod predictions;
mod scenarios;
#[path = "../../crates/limits/tests/random/seeds.rs"]
mod seeds;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/sidecar.rs"]
mod sidecar;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/stores.rs"]
mod stores;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/storm.rs"]
mod storm;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../it/support.rs"]
mod support;
mod top;
