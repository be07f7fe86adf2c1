//! Tests of the crate through its public face, in one binary.

#[path = "../../../limits/tests/random/mod.rs"]
mod random;

mod callers;
mod costs;
mod settled;
mod usage;
